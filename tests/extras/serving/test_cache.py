"""The cache: the answer of a first request, for exactly the same question only."""

from __future__ import annotations

import re
from typing import Any

import pytest
from fastapi.testclient import TestClient

from nmt.extras.serving.models import ServedModel
from tests.extras.serving.conftest import Inside

TEXT = "der Hund ist da"


def counts(client: TestClient) -> tuple[int, int]:
    """Hits and misses so far."""
    text = client.get("/metrics").text
    hits, misses = re.findall(r"^nmt_cache_(?:hits|misses)_total (\S+)$", text, re.MULTILINE)
    return int(float(hits)), int(float(misses))


def ask(client: TestClient, text: Any = TEXT, model: str = "de-en", **fields: Any) -> Any:
    answer = client.post("/v1/translate", json={"texts": [text], "model": model, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()["translations"]


def test_a_repeated_text_has_the_same_answer_without_a_search(
    inside: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = inside(cache=1)
    first = ask(client, want=["tokens", "alternatives"])
    assert counts(client) == (0, 1)
    monkeypatch.setattr(ServedModel, "with_options", None)  # a search would fail
    assert ask(client, want=["tokens", "alternatives"]) == first
    assert counts(client) == (1, 1)


@pytest.mark.parametrize(
    "changed",
    [
        {"model": "en-fr"},
        {"options": {"beam_size": 1}},
        {"options": {"sampling": True, "seed": 2}},
        {"want": ["alternatives"]},
        {"want": ["tokens"]},
        {"text": f"{TEXT} "},
        {"text": TEXT.capitalize()},
        {"text": {"text": TEXT, "prefix": "the"}},
        {"text": {"text": TEXT, "required": ["dog"]}},
        {"text": {"text": TEXT, "forbidden": ["dog"]}},
        {"glossary": "Hund\tdog"},
    ],
)
def test_every_other_question_is_searched(inside: Inside, changed: dict[str, Any]) -> None:
    """And its answer is that of a server without a cache."""
    cached = inside(cache=1)
    ask(cached)
    expected = ask(inside(), **changed)
    assert ask(cached, **changed) == expected
    hits, misses = counts(cached)
    is_trimmed = changed == {"text": f"{TEXT} "}  # the space is not part of the sentence
    assert (hits, misses) == ((1, 1) if is_trimmed else (0, 2))


def test_only_the_missing_sentences_of_a_text_are_searched_and_stand_in_order(
    inside: Inside,
) -> None:
    client = inside(cache=1)
    lines = ["Der Hund.", "Das Haus.", "Die Katze.", "Das Haus."]
    (fresh,) = ask(inside(), " ".join(lines))
    ask(client, lines[1])
    (joined,) = ask(client, " ".join(lines))
    # Scores depend on the batch in the last digits.
    assert joined["translation"] == fresh["translation"]
    for own, other in zip(joined["sentences"], fresh["sentences"], strict=True):
        assert (own["source"], own["target"]) == (other["source"], other["target"])
    assert counts(client) == (2, 3)


def test_a_translation_with_a_glossary_of_the_request_is_not_kept(inside: Inside) -> None:
    client = inside(cache=1)
    for _ in range(2):
        ask(client, glossary="Hund\tdog")
    assert counts(client) == (0, 2)


def test_without_a_cache_nothing_is_kept(inside: Inside) -> None:
    client = inside(cache=0)
    assert ask(client) == ask(client)
    assert counts(client) == (0, 2)


def test_the_oldest_translations_make_room_and_one_that_is_too_large_is_not_kept(
    inside: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"der Hund": 400_000, "das Haus": 400_000, "die Katze": 400_000, "gross": 1_000_001}
    monkeypatch.setattr("nmt.extras.serving.service._num_bytes", lambda x: sizes[x.source])
    client = inside(cache=1)
    for text, hits in (
        ("der Hund", 0), ("das Haus", 0), ("der Hund", 1), ("die Katze", 1),  # drops "das Haus"
        ("der Hund", 2), ("das Haus", 2), ("gross", 2), ("gross", 2), ("das Haus", 3),
    ):  # fmt: skip
        ask(client, text)
        assert counts(client)[0] == hits, text


def test_a_failed_translation_is_tried_again(
    inside: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = inside(cache=1)
    with monkeypatch.context() as patch:
        patch.setattr(ServedModel, "with_options", None)
        failed = client.post("/v1/translate", json={"texts": [TEXT], "model": "de-en"})
        assert failed.status_code == 422
    assert "error" not in ask(client)[0]
    assert counts(client) == (0, 2)
