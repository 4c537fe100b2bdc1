"""Models of a server: names, engines that lack something or fail, deadlines."""

from __future__ import annotations

import asyncio
import copy
import json
import shutil
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi.testclient import TestClient

from nmt.config.data import Direction, TokenizerConfig
from nmt.errors import CheckpointError, ConfigError
from nmt.extras.exchange.ctranslate2 import CTranslate2Engine
from nmt.extras.serving.access import Gate, digest
from nmt.extras.serving.bodies import RefusedError
from nmt.extras.serving.models import ServedModel, TranslationTask, name_models
from nmt.extras.serving.options import Rate, ServeOptions, serve
from nmt.extras.serving.server import _run
from nmt.extras.serving.service import Service
from nmt.inference.request import Request
from nmt.inference.torch_engine import TorchEngine
from nmt.inference.translator import Translator
from nmt.text.identification import LanguageProfiles
from nmt.text.tokenizer import load_tokenizers
from tests.extras.serving.conftest import Inside
from tests.inference.conftest import sentences
from tests.inference.models import run_config, save_run, small_model
from tests.learning import train_sentencepiece


def test_models_are_chosen_by_name_or_languages(inside: Inside) -> None:
    client = inside()

    def ask(**choice: Any) -> Any:
        return client.post("/v1/translate", json={"texts": ["a"], **choice})

    assert ask(model="en-fr").json()["target"] == "fr"
    assert ask(target="en").json()["model"] == "de-en"
    assert ask(source="auto", target="en").json()["source"] == "de"
    # Only languages with a translation to the target are detected.
    for text, target, source in (("The dog is not there.", "en", "de"), ("Der Hund", "fr", "en")):
        answer = ask(texts=[text], source="auto", target=target)
        assert (answer.status_code, answer.json()["source"]) == (200, source)
    for choice, problem in (({}, "Several"), ({"target": "it"}, "No model"),
                            ({"model": "../de-en"}, "no model"),
                            ({"model": "de-en", "target": "fr"}, "translates de-en")):  # fmt: skip
        answer = ask(**choice)
        assert (answer.status_code, problem in answer.json()["error"]) == (422, True)


def changed(model: ServedModel, name: str, source: str, target: str) -> ServedModel:
    """A second model with the same weights, of other languages."""
    other = copy.copy(model)
    other.name, other.source, other.target = name, source, target
    other.directions = (Direction(source, target),)
    return other


GERMAN = "Der Hund ist heute leider nicht im Haus."
FRENCH = "Le chien n'est pas dans la maison aujourd'hui."
ENGLISH = "The dog is not in the house today, unfortunately."
SPANISH = "El perro hoy no está en la casa, por desgracia."


@pytest.fixture
def two_sources(inside: Inside, loaded: dict[str, ServedModel]) -> TestClient:
    own = loaded["de-en"]
    return inside({
        "de-en": changed(own, "de-en", "de", "en"), "fr-en": changed(own, "fr-en", "fr", "en"),
    })  # fmt: skip


def test_each_text_of_a_request_is_detected_for_itself(two_sources: TestClient) -> None:
    """A text that is clearly in the target language, or in no source language, is kept."""
    texts = [GERMAN, FRENCH, ENGLISH, SPANISH, "A dog", f"<b>{ENGLISH}</b> https://der.hund.de/"]
    body = {"texts": texts, "source": "auto", "target": "en"}
    answer = two_sources.post("/v1/translate", json=body).json()
    assert (answer["source"], answer["unchanged"]) == ("de", False)
    routes = [translation["route"] for translation in answer["translations"]]
    assert [route["source"] for route in routes[:4]] == ["de", "fr", "en", "es"]
    assert [route["model"] for route in routes[:2]] == ["de-en", "fr-en"]
    assert [route["unchanged"] for route in routes] == [False, False, True, True, False, True]
    for text, translation, route in zip(texts, answer["translations"], routes, strict=True):
        assert (translation["translation"] == text) == route["unchanged"]
        assert 0 <= route["detected"] <= 100
        alone = two_sources.post("/v1/translate", json=body | {"texts": [text]}).json()
        assert alone["translations"] == [translation]
    for source, kept in (("de", False), ("auto", True)):
        body = {"texts": [ENGLISH], "source": source, "target": "en"}
        (translation,) = two_sources.post("/v1/translate", json=body).json()["translations"]
        assert (translation["translation"] == ENGLISH) == kept
        assert ("source_language" in translation["alarms"]) != kept


def test_libretranslate_and_documents_keep_texts_of_other_languages(
    two_sources: TestClient,
) -> None:
    body: dict[str, Any] = {"q": [GERMAN, ENGLISH, SPANISH], "source": "auto", "target": "en"}
    for kind in ("text", "html"):
        answer = two_sources.post("/translate", json=body | {"format": kind}).json()
        german, *kept = answer["translatedText"]
        assert german != GERMAN
        assert kept == [ENGLISH, SPANISH]
        detected = answer["detectedLanguage"]
        assert [language["language"] for language in detected] == ["de", "en", "es"]
        assert all(language["confidence"] > 50 for language in detected)
    document = {"format": "txt", "text": ENGLISH, "source": "auto", "target": "en"}
    answer = two_sources.post("/v1/documents", json=document).json()
    assert (answer["text"], answer["unchanged"], answer["num_texts"]) == (ENGLISH, True, 0)


def test_languages_are_detected_with_the_trigrams_of_a_model(
    inside: Inside, loaded: dict[str, ServedModel]
) -> None:
    model = changed(loaded["de-en"], "x", "tlh", "en")
    model.directions = (Direction("tlh", "en"), Direction("en", "tlh"))
    texts = {"tlh": ["nuqneH, tlhIngan maH", "bortaS bIr jablu'DI'"], "en": ["we are here"]}
    model.profiles = LanguageProfiles.learn(texts)
    client = inside({"x": model})
    for text, code in (("tlhIngan bortaS", "tlh"), ("we are", "en")):
        (first, *_) = client.post("/detect", json={"q": text}).json()
        assert first["language"] == code


def test_languages_of_a_request_may_have_other_codes(inside: Inside) -> None:
    client = inside()
    for source, target in (("deu", "eng"), ("de-AT", "en_GB"), ("ger", "en")):
        body = {"texts": ["a"], "source": source, "target": target}
        answer = client.post("/v1/translate", json=body).json()
        assert (answer["source"], answer["target"]) == ("de", "en")


def test_of_models_with_the_same_languages_the_first_is_the_default(
    inside: Inside, loaded: dict[str, ServedModel]
) -> None:
    own = loaded["de-en"]
    client = inside({name: changed(own, name, "de", "en") for name in ("one", "two", "three")})
    for choice in ({}, {"source": "de", "target": "en"}, {"target": "en"}):
        assert client.post("/v1/translate", json={"texts": [], **choice}).json()["model"] == "one"
    named = client.post("/v1/translate", json={"texts": [], "model": "two"})
    assert named.json()["model"] == "two"


@pytest.mark.parametrize(("source", "target"), [("de", "zh"), ("zh", "de")])
def test_sentences_are_joined_as_in_the_target_language(
    inside: Inside, loaded: dict[str, ServedModel], source: str, target: str
) -> None:
    client = inside({"x": changed(loaded["de-en"], "x", source, target)})
    lines = ["der Hund.", "Die Katze."]
    alone = [
        client.post("/v1/translate", json={"texts": [line]}).json()["translations"][0]
        for line in lines
    ]
    space = "" if target == "zh" else " "
    expected = space.join(each["translation"] for each in alone)
    body = {"texts": [" ".join(lines)]}
    (whole,) = client.post("/v1/translate", json=body).json()["translations"]
    assert whole["translation"] == expected
    document = {"format": "txt", "text": " ".join(lines)}
    assert client.post("/v1/documents", json=document).json()["text"] == expected


def test_languages_are_described_with_names_and_writing_direction(
    inside: Inside, loaded: dict[str, ServedModel]
) -> None:
    client = inside({"x": changed(loaded["de-en"], "x", "de", "ar")}, rate=Rate(5, 3600))
    values = client.get("/v1/models").json()
    (model,) = values["models"]
    expected = {
        "name": "x",
        "source": "de",
        "target": "ar",
        "source_name": "German",
        "target_name": "Arabic",
        "rtl": {"source": False, "target": True},
        "directions": [["de", "ar"]],
        "languages": {
            "de": {"name": "German", "rtl": False},
            "ar": {"name": "Arabic", "rtl": True},
        },
        "dtype": "float32",
        "engines": dict.fromkeys(("translate", "alignment", "prefix", "score"), "torch"),
        "confidence": False,
        "card": None,
    }
    assert model.items() >= expected.items()
    assert model["decoding"]["beam_size"] == run_config().decoding.beam_size
    defaults = ServeOptions(models=())
    assert values["limits"] == {
        "max_chars": defaults.max_chars,
        "max_texts": defaults.max_texts,
        "deadline": defaults.deadline,
        "rate": "5/h",
        "beam_size": 16,
        "n_best": 16,
    }
    assert values["documents"] == ["txt", "html", "srt", "vtt"]


def test_a_server_starts_with_the_keys_and_the_engine_of_its_options(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[Service, Gate]] = []

    def record(service: Service, gate: Gate, listener: socket.socket) -> None:
        listener.close()
        started.append((service, gate))

    monkeypatch.setattr("nmt.extras.serving.server._run", record)
    file = tmp_path / "keys"
    file.write_text(f"anna {'k' * 24}\n", encoding="utf-8")
    serve(
        ServeOptions(
            models=(f"mine={models['de-en']}",), port=0, api_keys=file, engine="ctranslate2",
            dtype="int8", device="cpu", threads=1, rate=Rate(1, 3600),
        )
    )  # fmt: skip
    ((service, gate),) = started
    assert gate.keys == {digest("k" * 24): "anna"}
    loading = {"engine": "ctranslate2", "dtype": "int8", "device": "cpu", "threads": 1}
    assert service.models["mine"]._loading == loading | {"glossary": None}
    engine = service.models["mine"].translator.engine
    assert (engine.name, engine.dtype) == ("ctranslate2", "int8")
    assert gate.count("127.0.0.1") == "127.0.0.1"
    with pytest.raises(RefusedError):
        gate.count("127.0.0.1")


def test_after_the_first_signal_load_balancers_have_time_and_the_second_ends_the_server(
    monkeypatch: pytest.MonkeyPatch, loaded: dict[str, ServedModel]
) -> None:
    """Of uvicorn only the loop is replaced: by one that sends the signals."""
    settings = ServeOptions(models=(), threads=1)
    service = Service(loaded, settings)
    states: list[tuple[bool, bool, bool]] = []

    def run(server: uvicorn.Server, sockets: object) -> None:
        del sockets

        async def main() -> None:
            server.config.load()
            messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
            is_ready = asyncio.Event()

            async def receive() -> dict[str, str]:
                if is_ready.is_set():
                    for number in (signal.SIGTERM, signal.SIGINT):
                        signal.raise_signal(number)
                        await asyncio.sleep(0.01)
                        flags = (service.is_stopping, server.should_exit, server.force_exit)
                        states.append(flags)
                return next(messages)

            async def send(message: dict[str, str]) -> None:
                if message["type"] == "lifespan.startup.complete":
                    is_ready.set()

            await server.config.loaded_app({"type": "lifespan", "state": {}}, receive, send)

        asyncio.run(main())

    monkeypatch.setattr(uvicorn.Server, "run", run)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            _run(service, Gate(settings, None), listener)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        service.batcher.close()
    assert states == [(True, False, False), (True, True, True)]


def test_each_direction_of_a_model_is_offered(inside: Inside, tmp_path: Path) -> None:
    (tmp_path / "tokenizer").mkdir()
    settings = TokenizerConfig(vocab_size=330, user_defined_symbols=("<2en>", "<2de>"))
    path = tmp_path / "tokenizer/joint.model"
    train_sentencepiece(iter(sentences(300, 0)), path, settings, threads=1)
    tokenizers, one, whole = load_tokenizers(path.parent), run_config(), run_config().model_dump()
    turned = {"source": "b", "target": "c", "source_language": "en", "target_language": "de"}
    data = {**whole["data"], "train": [*whole["data"]["train"], turned], "language_tags": "target"}
    config = type(one).model_validate({**whole, "data": data})
    place = save_run(tmp_path / "run", small_model(tokenizers), path.parent, config)
    client = inside({"two": ServedModel("two", place, {"engine": "torch"})})

    def ask(**body: Any) -> Any:
        return client.post("/v1/translate", json={"texts": ["Hund und Katze"], **body}).json()

    for source, target in (("de", "en"), ("en", "de")):
        (expected,) = Translator.load(place, engine="torch", target_language=target).translate(
            ["Hund und Katze"]
        )
        for choice in ({"source": source, "target": target}, {"model": "two", "target": target}):
            found = ask(**choice)
            assert (found["source"], found["target"]) == (source, target)
            assert found["translations"][0]["translation"] == expected.text
        libre = client.post("/translate", json={"q": "Hund und Katze", "target": target})
        assert libre.json()["translatedText"] == expected.text
    assert "Several models" in ask()["error"]
    assert "several target languages" in ask(model="two")["error"]
    (described,) = client.get("/v1/models").json()["models"]
    assert described["directions"] == [["de", "en"], ["en", "de"]]
    assert described["tags"] == []
    languages = {x["code"]: x["targets"] for x in client.get("/languages").json()}
    assert languages == {"de": ["en"], "en": ["de"]}


def test_an_engine_that_fails_on_one_text_answers_the_others(
    inside: Inside, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client = inside()
    body = {"model": "de-en", "texts": ["der Hund", "die Katze läuft und läuft", "das Haus"]}
    good = client.post("/v1/translate", json=body).json()["translations"]
    search = TorchEngine.search

    def failing(self: Any, sources: Any, *rest: Any) -> Any:
        if any(len(ids) > 6 for ids in sources):
            raise RuntimeError("secret Katze")
        return search(self, sources, *rest)

    monkeypatch.setattr(TorchEngine, "search", failing)
    answer = client.post("/v1/translate", json=body)
    found = answer.json()["translations"]
    assert answer.status_code == 200
    assert [found[i]["translation"] for i in (0, 2)] == [good[i]["translation"] for i in (0, 2)]
    assert found[1].keys() == {"source", "error", "fix"}
    assert "RuntimeError" in caplog.text
    assert "Katze" not in caplog.text + found[1]["error"]


def test_internal_errors_are_logged_and_not_sent_to_clients(
    inside: Inside, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client, body = inside(), {"model": "de-en", "texts": ["a"]}
    for error, status in ((CheckpointError("/secret is gone.", fix="Find it."), 503),
                          (ZeroDivisionError("secret Katze"), 500)):  # fmt: skip

        def fail(*_: Any, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr("nmt.extras.serving.service.Service.translate", fail)
        answer = client.post("/v1/translate", json=body)
        assert answer.status_code == status
        assert answer.json().keys() == {"error", "fix"}
        assert "secret" not in answer.text
    assert "/secret is gone." in caplog.text
    assert "ZeroDivisionError at " in caplog.text
    assert "Katze" not in caplog.text


def test_torch_serves_what_ctranslate2_lacks(
    inside: Inside, models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the same device."""
    loading = {"engine": "ctranslate2", "dtype": "int8", "threads": 1, "device": "cpu"}
    load = Translator.load
    loads: list[dict[str, Any]] = []

    def recorded(folder: Path, **options: Any) -> Translator:
        loads.append(options)
        return load(folder, **options)

    monkeypatch.setattr(Translator, "load", recorded)
    client = inside({"de-en": ServedModel("de-en", models["de-en"], loading)})
    body: dict[str, Any] = {"model": "de-en", "texts": ["der Hund"]}
    assert client.post("/v1/translate", json=body).status_code == 200
    body |= {"want": ["alignment"], "texts": [{"text": "der Hund", "prefix": "das"}]}
    (own,) = client.post("/v1/translate", json=body).json()["translations"]
    assert own["alignment"]
    assert own["translation"].startswith("das")
    model = client.get("/v1/models").json()["models"][0]
    assert (model["dtype"], model["engines"]["translate"]) == ("int8", "ctranslate2")
    assert model["engines"]["prefix"] == "torch"
    assert loads == [loading, {**loading, "engine": "torch", "dtype": "auto"}]


def test_a_model_that_has_changed_since_the_start_is_not_mixed_with_the_loaded_one(
    inside: Inside, models: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """FAULT: other weights in the folder, as when the training of a served run goes on."""
    folder = tmp_path / "served"
    shutil.copytree(models["de-en"], folder)
    loading = {"engine": "ctranslate2", "threads": 1, "device": "cpu"}
    client = inside({"m": ServedModel("m", folder, loading)})
    shutil.rmtree(folder)
    shutil.copytree(models["en-fr"], folder)
    pair = {"source": "der Hund", "target": "the dog"}
    assert client.post("/v1/translate", json={"texts": ["der Hund"]}).status_code == 200
    answer = client.post("/v1/score", json={"pairs": [pair]})
    assert (answer.status_code, answer.json()["error"]) == (500, "The model has changed.")
    assert f"{folder} has changed since it was loaded" in caplog.text


def test_a_gpu_searches_one_batch_at_a_time(
    inside: Inside, loaded: dict[str, ServedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GPU is only pretended here. Its CUDA graphs cannot serve two threads at once."""
    search, running, most = TorchEngine.search, list[int](), list[int]()

    def counted(self: Any, *arguments: Any) -> Any:
        running.append(1)
        most.append(len(running))
        time.sleep(0.05)
        running.pop()
        return search(self, *arguments)

    client, texts = inside(), ["der Hund läuft " * 5] * 40
    body = {"model": "de-en", "texts": texts, "options": {"beam_size": 1}}
    monkeypatch.setattr(TorchEngine, "search", counted)
    monkeypatch.setattr(loaded["de-en"].translator.engine, "on_gpu", True)
    assert client.post("/v1/translate", json=body).status_code == 200
    assert len(most) > 1  # two threads share the texts
    assert max(most) == 1


def test_a_request_that_takes_too_long_is_a_504(inside: Inside) -> None:
    client = inside(deadline=0.02)
    texts = ["der Hund schläft und die Katze läuft"] * 200
    body = {"model": "de-en", "texts": texts, "split": False}
    answer = client.post("/v1/translate", json=body)
    assert answer.status_code == 504
    assert answer.json()["fix"]
    lines = client.post("/v1/translate", json=body, headers={"Accept": "application/x-ndjson"})
    *done, last = map(json.loads, lines.text.splitlines())
    assert last.keys() == {"index", "error", "fix", "status"}
    assert last["status"] == 504
    assert last["index"] == len(done)


def test_a_full_queue_is_a_503(inside: Inside) -> None:
    answer = inside(max_queue=0).post("/v1/translate", json={"model": "de-en", "texts": ["a"]})
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1


def test_models_are_named_by_their_languages_or_folders(
    models: dict[str, Path], tmp_path: Path
) -> None:
    folder = models["de-en"]
    assert list(name_models([str(folder), f"mine={folder}"])) == ["de-en", "mine"]
    second = shutil.copytree(folder, tmp_path / "second")
    assert name_models([str(folder), str(second)]) == {"de-en": folder, "second": second}
    with pytest.raises(ConfigError, match="same name"):
        name_models([f"x={folder}", f"x={folder}"])
    with pytest.raises(ConfigError, match="not a valid model"):
        name_models(["a b=c"])
    with pytest.raises(CheckpointError):
        name_models([str(folder / "nothing")])


def test_a_proxy_may_serve_under_a_path(inside: Inside) -> None:
    client = inside(root_path="/mt")
    assert client.get("/mt/health/live").status_code == 200
    assert client.get("/health/live").status_code == 200


def test_a_search_of_a_server_is_small_and_can_be_interrupted_between_batches(
    runs: dict[str, Path],
) -> None:
    """The texts of a request are one batch of the queue, but several batches of CTranslate2."""
    model = ServedModel("de-en", runs["plain"], {"engine": "ctranslate2", "threads": 1})
    task = TranslationTask(model, {"beam_size": 1}, frozenset())
    requests = [Request(text) for text in sentences(200, seed=3)]
    calls = []

    def check(number: object) -> None:
        calls.append(number)
        if len(calls) == 9:
            raise InterruptedError

    tokenizer = model.translator.tokenizers.source
    num_tokens = sum(map(len, tokenizer.encode_batch([request.text for request in requests])))
    searched = []
    with pytest.MonkeyPatch.context() as patch:
        search = CTranslate2Engine._search_batch

        def spied(self: CTranslate2Engine, sources: Any, *arguments: Any, **options: Any) -> Any:
            searched.append(sum(map(len, sources)))
            return search(self, sources, *arguments, **options)

        patch.setattr(CTranslate2Engine, "_search_batch", spied)
        with pytest.raises(InterruptedError):
            task(requests, check)
    assert max(searched) <= 256
    assert sum(searched) < num_tokens / 2
