"""What clients get from a running server."""

from __future__ import annotations

import html
import json
import math
import random
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from libretranslatepy import LibreTranslateAPI
from typer.testing import CliRunner

from nmt.cli.app import app
from nmt.errors import ConfigError
from nmt.extras.serving.batching import Batcher
from nmt.extras.serving.bodies import answer_of
from nmt.extras.serving.models import ServedModel, detect
from nmt.extras.serving.options import ServeOptions, serve
from nmt.extras.serving.service import Service
from nmt.inference.request import Request, Result, TokenScore
from nmt.inference.translator import Translator
from nmt.text.sentences import SplitText
from tests.extras.serving.conftest import Inside
from tests.extras.serving.process import Server
from tests.inference.conftest import sentences


@pytest.fixture(scope="module")
def translator(models: dict[str, Path]) -> Translator:
    return Translator.load(models["de-en"], engine="torch")


def is_same(one: Any, other: Any) -> bool:
    """Whether plain data are equal except for rounding, which depends on batch sizes."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-4, abs_tol=1e-3)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same(one[x], other[x]) for x in one)
    return bool(one == other)


@pytest.mark.long
def test_a_line_gets_what_nmt_translate_writes(server: Server, translator: Translator) -> None:
    lines = ["der Hund schläft", "die Katze läuft und das Haus", ""]
    want = ["alignment", "attention", "tokens", "alternatives"]
    found = server.translate(*lines, want=want, options={"n_best": 2})
    outputs = {"alignments", "attention", "token_scores"}
    detailed = translator.with_options(outputs=outputs, n_best=2)
    for line, own in zip(lines[:2], found[:2], strict=True):
        (expected,) = detailed.translate([line])
        values = expected.as_dict()
        assert is_same({name: own[name] for name in values}, values)
        for text, side in ((own["source"], "source"), (own["translation"], "target")):
            words = own["words"][side]
            assert [text[word["start"] : word["end"]] for word in words] == text.split()
            assert [word["text"] for word in words] == text.split()
        assert all(0 <= word["probability"] <= 1 for word in own["words"]["target"])
    assert (found[2]["translation"], found[2]["sentences"]) == ("", [])


def test_paragraphs_keep_their_shape(server: Server) -> None:
    text = "\n der Hund.  Die Katze!\r\n\r\n\tdas Haus\n"
    (own,) = server.translate(text, want=["alignment", "tokens"])
    sentences = own["sentences"]
    found = [text[slice(*each["source"])] for each in sentences]
    assert found == ["der Hund.", "Die Katze!", "das Haus"]
    targets = [own["translation"][slice(*each["target"])] for each in sentences]
    assert targets == [each["alternatives"][0]["translation"] for each in sentences]
    assert own["translation"] == f"\n {targets[0]}  {targets[1]}\r\n\r\n\t{targets[2]}\n"
    assert own["log_prob"] == pytest.approx(sum(each["log_prob"] for each in sentences))
    links = [link.split("-") for link in own["alignment"].split()]
    count = len(own["words"]["source"]), len(own["words"]["target"])
    assert all(int(a) < count[0] and int(b) < count[1] for a, b in links)


def test_a_prefix_is_continued_and_has_alternatives(server: Server, translator: Translator) -> None:
    options = {"return_alternatives": True, "n_best": 3}
    (own,) = server.translate(
        {"id": "7", "text": "der Hund schläft", "prefix": "das Haus"},
        want=["alternatives"], options=options, split=False,
    )  # fmt: skip
    choosing = translator.with_options(constraints=True, return_alternatives=True, n_best=3)
    (expected,) = choosing.translate([Request("der Hund schläft", prefix="das Haus")])
    texts = [each["translation"] for each in own["alternatives"]]
    assert own["id"] == "7"
    assert texts == [each.text for each in expected.alternatives]
    assert len(set(texts)) > 1
    assert all(text.startswith("das Haus") for text in texts)
    assert own["translation"] == texts[0]


@pytest.mark.long
def test_an_answer_is_the_same_alone_and_under_load(server: Server) -> None:
    """Batches mix texts of many clients and lengths, next to batches with other options."""
    texts = [" ".join(sentences(1, seed, 20)) for seed in range(30)]
    alone = [server.translate(text)[0] for text in texts]

    def ask(client: int) -> list[tuple[Any, Any]]:
        rows = random.Random(client).sample(range(30), 10)
        options = {"beam_size": 2} if client % 3 == 2 else {}
        found = server.translate(*(texts[row] for row in rows), options=options)
        return [] if options else [(alone[row], own) for row, own in zip(rows, found, strict=True)]

    with ThreadPoolExecutor(12) as pool:
        pairs = [pair for own in pool.map(ask, range(36)) for pair in own]
    assert len(pairs) == 240
    assert not [pair for pair in pairs if not is_same(*pair)]


def test_lines_are_streamed_in_order(server: Server) -> None:
    refused = {"id": "7", "text": "die", "prefix": "a", "forbidden": ["a"]}
    texts = ["der Hund", refused, "das Haus"]
    answer = server.post("/v1/translate", {"texts": texts}, Accept="application/x-ndjson")
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert [line["index"] for line in lines] == [0, 1, 2]
    assert ["translation" in line for line in lines] == [True, False, True]
    assert "forbidden" in lines[1]["error"]
    assert (lines[1]["id"], lines[1]["source"]) == ("7", "die")
    assert is_same(lines[0], {"index": 0, **server.translate("der Hund")[0]})
    body = {"texts": ["der Hund"], "options": {"n_best": 3, "beam_size": 2}}  # no stream begins
    assert server.post("/v1/translate", body, Accept="application/x-ndjson").status_code == 422


def test_attention_of_a_long_text_is_refused(inside: Inside) -> None:
    client, text = inside(), "der Hund\n" * 300
    body = {"model": "de-en", "texts": [text], "want": ["attention"]}
    answer = client.post("/v1/translate", json=body)
    assert answer.status_code == 413
    assert "2,000" in answer.json()["error"]


def test_sentences_are_streamed_as_parts_of_their_text(server: Server, inside: Inside) -> None:
    """Together they are the answer for the whole text, white space included."""
    text = "Der Hund schl\u00e4ft. Die Katze l\u00e4uft.  Das Haus!\n\nDie Katze\n"
    body = {"texts": [{"id": "a", "text": text}, "\n", "das Haus"], "by_sentence": True}
    answer = server.post("/v1/translate", body, Accept="application/x-ndjson")
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert [line["index"] for line in lines] == list(range(7))
    assert [line["source"] for line in lines] == [
        "Der Hund schl\u00e4ft.", " Die Katze l\u00e4uft.", "  Das Haus!", "\n\nDie Katze",
        "\n", "\n", "das Haus",
    ]  # fmt: skip
    whole, *_ = server.translate(text)
    parts = [line for line in lines if line.get("id") == "a"]
    for side in ("source", "translation"):
        assert "".join(part[side] for part in parts) == whole[side]
    for part, sentence in zip(parts[:4], whole["sentences"], strict=True):
        (own,) = part["sentences"]
        start, end = own["target"]
        first, last = sentence["target"]
        assert part["translation"][start:end] == whole["translation"][first:last]
    detected = (
        inside().post("/v1/translate", json={**body, "source": "auto", "target": "en"}).json()
    )
    assert [each["route"]["source"] for each in detected["translations"]] == ["de"] * 7


def test_a_sentence_that_is_streamed_first_does_not_wait_for_the_others(
    inside: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The portions that are queued have 1, 2, 4, 8, 16 and again 16 sentences."""
    client = inside()
    sizes = []
    submit = Batcher.submit

    def counted(batcher: Batcher, client: str, requests: Any) -> Any:
        sizes.append(len(requests))
        return submit(batcher, client, requests)

    monkeypatch.setattr(Batcher, "submit", counted)
    text = "\n".join(["das Haus"] * 50)
    body = {"texts": [text], "by_sentence": True, "model": "de-en"}
    answer = client.post("/v1/translate", json=body)
    assert len(answer.json()["translations"]) == 50
    assert sizes == [1, 2, 4, 8, 16, 16, 3]


def test_confidence_of_several_sentences_is_weighted_by_length() -> None:
    """By hand: 9 characters at 80 and 1 at 20 are (9 * 80 + 1 * 20) / 10 = 74."""
    split = SplitText(("", " ", ""), ("a" * 9, "b"))
    results = [Result("a" * 9, "A", -1.0, confidence=80.0), Result("b", "B", -1.0, confidence=20.0)]
    answer = answer_of("a" * 9 + " b", split, split.gaps_for(" "), results, with_attention=False)
    assert answer["confidence"] == 74.0
    results[1] = replace(results[1], confidence=None)
    answer = answer_of("a" * 9 + " b", split, split.gaps_for(" "), results, with_attention=False)
    assert answer["confidence"] is None  # a mean of the rest would vouch for the second sentence


def test_an_answer_of_two_sentences_has_the_values_of_both() -> None:
    """Words of the second sentence are counted after those of the first."""
    split = SplitText(("", " ", "\n"), ("a b.", "c d"))
    # The last word of the first sentence has two subwords and probability exp(-0.5 - 0.25).
    pieces = (("\u2581A", -1.0), ("\u2581B", -0.5), (".", -0.25), ("</s>", -0.5))
    others = (("\u2581D", -0.125), ("\u2581C", -2.0), ("\u2581X", 0.0), ("</s>", -0.5))
    first = Result(
        "a b.", "A B.", -0.5, log_prob=-2.25, alignment=((0, 0), (1, 1)),
        attention=((0.9, 0.1), (0.2, 0.8)), tokens=tuple(TokenScore(*each) for each in pieces),
        alarms=("short",),
    )  # fmt: skip
    second = Result(
        "c d", "D C X", -1.5, log_prob=-2.625, alignment=((1, 0), (0, 1)),
        attention=((0.3, 0.7), (0.6, 0.4), (0.5, 0.5)), alarms=("loop",), retried=("long",),
        tokens=tuple(TokenScore(*each) for each in others),
    )  # fmt: skip
    answer = answer_of(
        "a b. c d\n", split, split.gaps_for(" "), [first, second], with_attention=True
    )
    assert answer["translation"] == "A B. D C X\n"
    assert (answer["score"], answer["log_prob"]) == (-1.0, -4.875)
    assert (answer["alarms"], answer["retried"]) == (["short", "loop"], ["long"])
    assert answer["alignment"] == "0-0 1-1 3-2 2-3"
    assert answer["attention"] == [
        [0.9, 0.1, 0, 0], [0.2, 0.8, 0, 0], [0, 0, 0.3, 0.7], [0, 0, 0.6, 0.4], [0, 0, 0.5, 0.5]
    ]  # fmt: skip
    assert [(each["piece"], each["log_prob"]) for each in answer["tokens"]] == [*pieces, *others]
    source, target = answer["words"]["source"], answer["words"]["target"]
    assert [(each["text"], each["start"], each["end"]) for each in source] == [
        ("a", 0, 1), ("b.", 2, 4), ("c", 5, 6), ("d", 7, 8)
    ]  # fmt: skip
    assert [(each["text"], each["start"], each["end"]) for each in target] == [
        ("A", 0, 1), ("B.", 2, 4), ("D", 5, 6), ("C", 7, 8), ("X", 9, 10)
    ]  # fmt: skip
    probabilities = [math.exp(each) for each in (-1, -0.75, -0.125, -2, 0)]
    assert [each["probability"] for each in target] == pytest.approx(probabilities, abs=5e-5)
    assert "unrated" not in answer["sentences"][0]
    spans = [(each["source"], each["target"], each["score"]) for each in answer["sentences"]]
    assert spans == [([0, 4], [0, 4], -0.5), ([5, 8], [5, 10], -1.5)]
    assert [each["alarms"] for each in answer["sentences"]] == [["short"], ["loop"]]
    plain = answer_of(
        "a b. c d\n", split, split.gaps_for(""), [first, second], with_attention=False
    )
    assert plain["translation"] == "A B.D C X\n"  # in a language without spaces
    assert "attention" not in plain


def test_an_error_names_its_sentence(server: Server) -> None:
    text = {"text": "der Hund", "prefix": "a dog", "forbidden": ["dog"]}
    answer = server.post("/v1/translate", {"texts": [text]})
    assert answer.status_code == 422
    assert answer.json()["error"].endswith("The sentence: der Hund")


def test_scores_are_those_of_the_search(server: Server) -> None:
    """A search that begins with the given translation reads the same tokens."""
    text = {"text": "der Hund", "prefix": "das Haus"}
    (own,) = server.translate(text, want=["tokens"], split=False)
    pairs = [{"source": "der Hund", "target": "das Haus"}, {"source": "die", "target": ""}]
    answer = server.post("/v1/score", {"pairs": pairs})
    assert answer.status_code == 200
    first, second = answer.json()["scores"]
    assert [(each["source"], each["target"]) for each in (first, second)] == [
        ("der Hund", "das Haus"), ("die", "")
    ]  # fmt: skip
    *words, end = first["tokens"]
    assert len(words) >= 2
    assert is_same(words, own["tokens"][: len(words)])
    assert [each["piece"] for each in (end, *second["tokens"])] == ["</s>", "</s>"]
    assert first["log_prob"] == pytest.approx(sum(each["log_prob"] for each in first["tokens"]))


def test_models_are_described(server: Server) -> None:
    values = server.get("/v1/models").json()
    (model,) = values["models"]
    expected = {"name": "de-en", "source": "de", "target": "en", "dtype": "float32"}
    assert model.items() >= expected.items()
    assert (model["source_name"], model["rtl"]["target"]) == ("German", False)
    assert model["engines"]["alignment"] == "torch"
    assert len(model["sha256"]) == 64
    assert values["limits"]["max_chars"] == 2000


def test_openapi_has_every_path_and_the_page_loads_nothing_from_the_network(server: Server) -> None:
    document = server.get("/openapi.json").json()
    names = {"/v1/translate", "/v1/score", "/v1/documents", "/v1/models", "/translate", "/detect",
             "/languages", "/frontend/settings", "/translate_file", "/download_file/{name}",
             "/health", "/health/live", "/health/ready",
             "/metrics"}  # fmt: skip
    assert names <= document["paths"].keys()
    text = json.dumps(document)
    for reference in ("TranslateBody", "Decoding", "Text", "Fault", "LibreBody"):
        assert f"#/components/schemas/{reference}" in text
    assert "HTTPValidationError" not in json.dumps(document["paths"]["/v1/translate"])
    assert [server.get(path).status_code for path in ("/docs", "/redoc")] == [404, 404]
    page = server.get("/")
    assert "default-src 'none'; script-src 'sha256-" in page.headers["content-security-policy"]
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", page.text)


def test_the_title_of_the_page_is_text(inside: Inside) -> None:
    default = inside().get("/").text
    assert "<title>nmt: translate</title>" in default
    page = inside(title="A & <b>B").get("/").text
    assert "<title>A &amp; &lt;b&gt;B</title>" in page
    assert "<h1>A &amp; &lt;b&gt;B</h1>" in page
    assert "{{" not in page


def test_the_client_of_libretranslate_works_unchanged(server: Server) -> None:
    client = LibreTranslateAPI(f"http://127.0.0.1:{server.port}")
    (own,) = server.translate("der Hund schläft")
    for source in ("de", "auto"):
        assert client.translate("der Hund schläft", source, "en") == own["translation"]
    assert client.detect("der Hund")[0]["language"] == "de"
    assert client.languages() == [
        {"code": "de", "name": "German", "targets": ["en"]},
        {"code": "en", "name": "English", "targets": []},
    ]


def test_the_server_logs_its_address_and_that_it_stops(server: Server, inside: Inside) -> None:
    logged = next(line for line in server.log if "de-en" in line)
    assert f"loading de-en for http://127.0.0.1:{server.port}" in logged
    assert server.get("/health/ready").json() == {"status": "ready"}
    client = inside(is_stopping=True)
    for path in ("/health", "/health/ready"):
        answer = client.get(path)
        assert (answer.status_code, answer.headers["connection"]) == (503, "close")
        assert answer.json() == {"error": "The server is stopping.", "fix": "Use another server."}


def test_a_text_in_none_of_the_languages_gets_no_confidence() -> None:
    german, english, japanese = "Der Hund ist nicht da.", "The dog is not there.", "犬が走る"
    for text, served, least, most in (
        (german, "en de", 90, 100),
        (german, "de", 90, 100),
        (english, "ja", 0, 0),
        (english, "de", 0, 50),
        (japanese, "ja", 90, 100),
        (japanese, "en de", 0, 0),
        (english, "xx yy", 0, 0),
        (english, "shn", 0, 0),  # py3langid does not support it: by its script
        ("မိူဝ်ႈၼႆႉ", "en shn", 90, 100),
        ("", "de", 0, 50),
    ):
        assert least <= detect(text, served.split())[0][1] <= most, (text, served)


@pytest.mark.parametrize("count", [2, 6])
def test_libretranslate_gives_the_next_best_translations_as_alternatives(
    inside: Inside, translator: Translator, count: int
) -> None:
    """In the order of the translator's n-best list, whose first is the translation itself."""
    lines, client = ["der Hund", "das Haus"], inside()
    beam_size = max(translator.options.decoding.beam_size, count + 1)
    results = translator.with_options(n_best=count + 1, beam_size=beam_size).translate(lines)
    lists = [[each.text for each in result.alternatives] for result in results]
    assert all(len(set(texts)) > 1 for texts in lists)
    body = {"q": lines, "source": "de", "target": "en", "alternatives": count}
    values = client.post("/translate", json=body).json()
    assert values["translatedText"] == [texts[0] for texts in lists]
    assert values["alternatives"] == [texts[1 : count + 1] for texts in lists]
    one = client.post("/translate", json=body | {"q": lines[0]}).json()
    assert one == {"translatedText": lists[0][0], "alternatives": lists[0][1 : count + 1]}


def test_libretranslate_takes_lists_and_detects(server: Server) -> None:
    body = {"q": ["der Hund", "das Haus"], "source": "auto", "target": "en"}
    values = server.post("/translate", body).json()
    assert values.keys() == {"translatedText", "detectedLanguage"}
    assert [each["language"] for each in values["detectedLanguage"]] == ["de", "de"]
    assert values["translatedText"][1] == server.translate("das Haus")[0]["translation"]
    form = server.client.post("/translate", data=body | {"source": "de"}).json()
    assert form == {"translatedText": values["translatedText"]}
    assert server.get("/health").json() == {"status": "ok"}


def test_libretranslate_reads_multipart_forms_queries_and_nulls(inside: Inside) -> None:
    client = inside()
    body: dict[str, Any] = {"q": "der Hund\r\ndas Haus", "source": "de", "target": "en"}
    expected = client.post("/translate", json=body).json()
    parts = {name: (None, value) for name, value in body.items()}
    parts["file"] = ("name.txt", b"x")  # type: ignore[assignment]
    answers = [
        client.post("/translate", files=parts),
        client.post("/translate", params=body),
        client.post("/translate", json=body | {"format": None, "alternatives": None}),
    ]
    for answer in answers:
        assert (answer.status_code, answer.json()) == (200, expected)
    headers = {"Content-Type": "multipart/form-data"}
    answer = client.post("/translate", content=b"--x--", headers=headers)
    assert answer.status_code == 422


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", "der Hund\n\ndas Haus"),
        ("page.html", "<p>der <b>Hund</b></p>"),
        ("a.srt", "1\n00:00:01,000 --> 00:00:02,000\nder Hund\n"),
        ("a.vtt", "WEBVTT\n\n00:01.000 --> 00:02.000\nder Hund\n"),
    ],
)
def test_libretranslate_translates_files(name: str, content: str, inside: Inside) -> None:
    client = inside()
    kind = name.partition(".")[2]
    languages = {"source": "de", "target": "en"}
    document = client.post("/v1/documents", json={"format": kind, "text": content, **languages})
    answer = client.post("/translate_file", files={"file": (name, content)}, data=languages)
    url = answer.json()["translatedFileUrl"]
    assert url.endswith(name[name.index(".") :])
    assert client.get(url).text == document.json()["text"]
    settings = client.get("/frontend/settings").json()
    assert settings["filesTranslation"]
    assert f".{kind}" in settings["supportedFilesFormat"]


def test_files_of_other_formats_and_unknown_results_are_refused(inside: Inside) -> None:
    client = inside()
    answer = client.post("/translate_file", files={"file": ("a.docx", b"x")}, data={"target": "en"})
    assert answer.status_code == 422
    assert "document format" in answer.json()["error"]
    assert client.post("/translate_file", json={"target": "en"}).status_code == 422
    assert client.get("/download_file/other.txt").status_code == 404


@pytest.mark.parametrize(
    ("path", "wrong", "right"), [("/translate", "text", "q"), ("/v1/translate", "q", "texts")]
)
def test_the_field_of_another_api_is_answered_with_the_right_field(
    path: str, wrong: str, right: str, inside: Inside
) -> None:
    answer = inside().post(path, json={wrong: "der Hund", "source": "de", "target": "en"})
    assert answer.status_code == 422
    assert f"{right}: field required in place of {wrong}" in answer.json()["error"]
    answer = inside().post(path, json={right: "der Hund", "source": "de"})
    assert "in place of" not in answer.text


@pytest.mark.parametrize("path", ["/", "/health", "/languages"])
def test_monitors_get_the_head_of_an_answer(path: str, inside: Inside) -> None:
    """`wget --spider` in a container, and services that watch websites, send HEAD."""
    client = inside()
    assert client.head(path).status_code == client.get(path).status_code == 200
    assert client.head("/translate").status_code == 405


def test_a_body_in_another_encoding_is_named(inside: Inside) -> None:
    body = '{"q": "Grüße", "source": "de", "target": "en"}'.encode("latin-1")
    answer = inside().post("/translate", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, "UTF-8" in answer.json()["error"]) == (422, True)


def test_libretranslate_translates_a_list_of_pages_at_once(
    inside: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All pages are queued before the first one is finished."""
    running = []
    most = []
    document = Service.document

    async def counted(self: Service, *arguments: Any) -> Any:
        running.append(1)
        most.append(len(running))
        answer = await document(self, *arguments)
        running.pop()
        return answer

    monkeypatch.setattr(Service, "document", counted)
    pages = ["<b>der Hund</b>", "<i>das Haus</i>", "die <b>Katze</b>"]
    body = {"q": pages, "source": "de", "target": "en", "format": "html"}
    client = inside()
    translated = client.post("/translate", json=body).json()["translatedText"]
    assert max(most) == len(pages)
    alone = [client.post("/translate", json=body | {"q": page}).json() for page in pages]
    assert translated == [answer["translatedText"] for answer in alone]


def test_libretranslate_detects_only_languages_that_can_be_translated(inside: Inside) -> None:
    client = inside()
    found = client.post("/detect", json={"q": "The dog is not there."}).json()
    assert [each["language"] for each in found] == ["en", "de"]  # not fr, which is only a target
    first, second = client.post(
        "/detect", json={"q": ["Der Hund ist da.", "The dog is there."]}
    ).json()
    assert [first[0]["language"], second[0]["language"]] == ["de", "en"]
    assert first[0]["confidence"] > first[1]["confidence"] >= 0


def test_libretranslates_settings_are_those_of_the_server(inside: Inside) -> None:
    for keys in (None, {"k" * 24: "anna"}):
        found = inside(keys=keys, max_chars=123).get("/frontend/settings").json()
        expected = {
            "apiKeys": keys is not None,
            "keyRequired": keys is not None,
            "charLimit": 123,
            "language": {
                "source": {"code": "de", "name": "German"},
                "target": {"code": "en", "name": "English"},
            },
        }
        assert found.items() >= expected.items()


def test_documents_keep_their_structure(server: Server) -> None:
    cue = "1\n00:00:01,000 --> 00:00:02,000\nder Hund\n\n"
    answer = server.post("/v1/documents", {"format": "srt", "text": cue})
    (own,) = server.translate("der Hund")
    assert answer.status_code == 200
    assert answer.json()["text"] == cue.replace("der Hund", own["translation"])
    assert (answer.json()["num_texts"], answer.json()["target"]) == (1, "en")
    body = {"q": "<p>der Hund</p>", "source": "de", "target": "en", "format": "html"}
    expected = html.escape(own["translation"], quote=False)
    assert server.post("/translate", body).json()["translatedText"] == f"<p>{expected}</p>"


def test_a_document_has_the_options_of_its_request_and_counts_warnings(
    inside: Inside, translator: Translator
) -> None:
    client, lines = inside(), ["der Hund", "das Haus"]
    texts = []
    for options in ({}, {"no_repeat_ngram_size": 1}):
        results = translator.with_options(**options).translate(lines)
        body = {"model": "de-en", "format": "txt", "text": "\n".join(lines), "options": options}
        values = client.post("/v1/documents", json=body).json()
        assert values["text"] == "\n".join(result.text for result in results)
        assert values["num_texts"] == 2
        assert values["alarms"] == sum(result.alarms != () for result in results)
        texts.append(values["text"])
    assert texts[0] != texts[1]


@pytest.mark.parametrize(("limit", "count"), [(None, 1), (19, 1), (18, 2)])
def test_a_text_or_paragraph_that_is_longer_than_the_training_lines_is_split(
    inside: Inside, models: dict[str, Path], limit: int | None, count: int
) -> None:
    """The limits are those of `nmt translate`: here two sentences and a number of characters."""
    model = ServedModel("de-en", models["de-en"], {"engine": "torch"})
    model.translator = model.translator.with_options(max_sentences=2, max_characters=limit)
    client = inside({"de-en": model})
    text = "Der Hund. Die Maus."
    answer = client.post("/v1/translate", json={"texts": [text]}).json()
    assert len(answer["translations"][0]["sentences"]) == count
    for kind in ("txt", "html"):
        document = client.post("/v1/documents", json={"format": kind, "text": text}).json()
        assert document["num_texts"] == count


def test_only_the_first_sentence_has_the_prefix_and_the_required_phrases(server: Server) -> None:
    text = {"text": "der Hund. Die Katze.", "prefix": "die", "required": ["das Haus"]}
    (own,) = server.translate(text)
    first, second = (own["translation"][slice(*each["target"])] for each in own["sentences"])
    assert first.startswith("die")
    assert "das Haus" in first
    assert second == server.translate("Die Katze.")[0]["translation"]


def test_as_many_alternatives_as_beams_are_given(server: Server) -> None:
    for options, count in (({}, 3), ({"beam_size": 2}, 2), ({"n_best": 1}, 1)):
        (own,) = server.translate("der Hund", want=["alternatives"], options=options)
        assert len(own["alternatives"]) == count


def test_metrics_count_sentences_and_characters(server: Server) -> None:
    names = ("sentences_total", "characters_total", "request_seconds_count", "batch_texts_sum")
    before = [server.gauge(name) for name in names]
    server.translate("der Hund", "das Haus. Die Katze.")  # 8 + 9 + 10 characters
    after = [server.gauge(name) for name in names]
    assert [new - old for new, old in zip(after, before, strict=True)] == [3, 27, 1, 3]


def test_each_histogram_has_the_limits_of_its_unit(server: Server) -> None:
    server.translate("der Hund")
    text = server.get("/metrics").text
    found = re.findall(r'^nmt_(\w+)_bucket\{le="(.+)"\}', text, re.MULTILINE)
    limits: dict[str, list[float]] = {}
    for name, limit in found:
        limits.setdefault(name, []).append(float(limit))
    assert limits == {
        "request_seconds": [0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, math.inf],
        "batch_texts": [*(2**n for n in range(9)), math.inf],
    }


def test_metrics_hold_no_text(server: Server) -> None:
    server.post("/v1/translate", {"texts": ["der geheime Hund"]})
    server.get("/der/geheime/Hund?Hund")
    text = server.get("/metrics").text
    assert 'nmt_responses_total{path="other",status="404"}' in text
    assert 'nmt_responses_total{path="/v1/translate",status="200"}' in text
    assert not re.search(r"Hund|127\.0\.0\.1", text)


def test_a_model_is_checked_before_it_is_served(models: dict[str, Path]) -> None:
    def check(*arguments: str) -> Any:
        return CliRunner().invoke(app, ["serve", *arguments, "--check", "--port", "0"])

    good = check(f"mine={models['de-en']}", "--json")
    assert good.exit_code == 0
    (found,) = json.loads(good.stdout)["models"]
    assert (found["name"], found["engines"]["alignment"]) == ("mine", "torch")
    assert check("nowhere").exit_code == 4
    for flags in (("--rate", "often"), ("--host", "192.0.2.1", "--no-auth")):
        assert check(str(models["de-en"]), *flags).exit_code == 2
    refused = check(str(models["de-en"]), "--host", "0.0.0.0")
    assert (refused.exit_code, "--api-keys" in refused.stderr) == (2, True)


def test_an_address_in_use_is_an_error(models: dict[str, Path]) -> None:
    served = (str(models["de-en"]),)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf":{port}: Address already in use\.\n"):
            serve(ServeOptions(models=served, port=port))
    with pytest.raises(ConfigError, match=r"no-such-host\.invalid:8080: [^()]+\.\n"):
        serve(ServeOptions(models=served, host="no-such-host.invalid", no_auth=True))
