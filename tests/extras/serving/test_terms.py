"""Glossaries of a server and of its requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from nmt.errors import DataError
from nmt.extras.serving.models import ServedModel
from nmt.extras.serving.options import ServeOptions, serve
from nmt.inference.glossary import Glossary
from tests.extras.serving.conftest import Inside
from tests.inference.conftest import WORDS

LINE = " ".join(WORDS[:3])


@pytest.fixture
def with_glossary(models: dict[str, Path]) -> ServedModel:
    glossary = Glossary.parse([f"{WORDS[1]}\tofserver"])
    return ServedModel("de-en", models["de-en"], {"engine": "torch", "glossary": glossary})


def test_the_glossary_of_a_request_replaces_that_of_the_server(
    inside: Inside, with_glossary: ServedModel
) -> None:
    client = inside({"de-en": with_glossary})
    texts = []
    for fields in ({}, {"glossary": f"{WORDS[1]}\tofrequest\n"}, {"glossary": ""}):
        answer = client.post("/v1/translate", json={"texts": [LINE], **fields}).json()
        texts.append(answer["translations"][0]["translation"])
        document = {"format": "html", "text": f"<p>{LINE}</p>", **fields}
        assert texts[-1] in client.post("/v1/documents", json=document).json()["text"]
    assert ["ofserver" in text for text in texts] == [True, False, False]
    assert ["ofrequest" in text for text in texts] == [False, True, False]
    libre = {"q": LINE, "source": "de", "target": "en"}
    assert client.post("/translate", json=libre).json()["translatedText"] == texts[0]


def test_a_bad_glossary_is_refused_and_its_size_counts(
    inside: Inside, caplog: pytest.LogCaptureFixture
) -> None:
    client = inside(max_chars=100)
    body = {"texts": [LINE], "model": "de-en"}
    for path, rest in (("translate", {}), ("documents", {"format": "txt", "text": LINE})):
        fields = {"model": "de-en", **rest} if rest else body
        refused = client.post(f"/v1/{path}", json={**fields, "glossary": "a\tb\nsecret"})
        assert refused.status_code == 422
        assert refused.json()["error"].startswith("glossary:2: expected SOURCE<TAB>TARGET")
        long = client.post(f"/v1/{path}", json={**fields, "glossary": "a\tb" * 40})
        assert long.status_code == 413
    client.post("/v1/translate", json={**body, "glossary": "secret\tb\nsecret\tb"})
    assert "secret" not in caplog.text


def test_bad_lines_of_a_glossary_stop_the_start(models: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "terms.tsv"
    path.write_text("a\tb\nc\n", "utf-8")
    served = (f"de-en={models['de-en']}",)
    with pytest.raises(DataError, match=r"terms\.tsv:2"):
        serve(ServeOptions(models=served, glossary=path, check=True, port=0))
    path.write_text("a\tb\n", "utf-8")
    serve(ServeOptions(models=served, glossary=path, check=True, port=0))
