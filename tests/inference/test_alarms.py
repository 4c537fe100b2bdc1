"""Alarms of languages, copies and capitals, and lines without the tag of training."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock

import pytest
from typing_extensions import override

from nmt.config.data import Direction
from nmt.inference import translator as translator_module
from nmt.inference.direction import Languages
from nmt.inference.engine import Engine
from nmt.inference.request import Request
from nmt.inference.translator import Translator
from nmt.search.hypothesis import Hypothesis
from nmt.text import identification
from nmt.text.identification import LanguageProfiles, clear_label
from nmt.text.tokenizer import Tokenizers
from tests.inference.conftest import translator_of

GERMAN = "Der Hund schläft heute nicht in dem großen Haus."
ENGLISH = "The dog does not sleep in the big house today."
FRENCH = "Le chien ne dort pas dans la grande maison aujourd'hui."

FRENCH_ADDRESS = "https://le.chien/ne-dort-pas-dans-la-grande-maison-aujourd-hui-avec-les-enfants"


class Answers(Engine):
    """Answers with the same ids; without ids, with those of the source."""

    def __init__(self, ids: Sequence[int] = ()) -> None:
        self.ids = tuple(ids)
        self.sources: list[list[int]] = []

    @override
    def search(self, sources: Sequence[Any], *_: Any, **__: Any) -> list[list[Hypothesis]]:
        self.sources += map(list, sources)
        return [[Hypothesis(self.ids or tuple(ids), -1.0, -1.0)] for ids in sources]


def german_english(tokenizers: Tokenizers, engine: Engine, **options: Any) -> Translator:
    languages = Languages((Direction("de", "en"),))
    return translator_of(
        engine, tokenizers, guard=True, max_length=256, languages=languages, **options
    )


@pytest.mark.parametrize(
    ("source", "output", "expected"),
    [
        (GERMAN, ENGLISH, ()),
        (FRENCH, ENGLISH, ("source_language",)),
        (ENGLISH, ENGLISH + " Yes.", ("source_language",)),
        (GERMAN, FRENCH, ("output_language",)),
        (GERMAN, GERMAN.upper(), ("output_language", "copied")),
        ("Bonjour", "Guten Tag", ()),  # too short
        ("Angela Merkel", "Angela Merkel!", ("copied",)),
        ("Merkel", "Merkel", ()),
        (f"Schau: {FRENCH_ADDRESS}", "Look:", ()),
    ],
)
def test_languages_and_copies_are_checked(
    tokenizers: Tokenizers, source: str, output: str, expected: tuple[str, ...]
) -> None:
    engine = Answers(tokenizers.target.encode(output))
    (found,) = german_english(tokenizers, engine).translate([source])
    assert found.alarms == expected


def test_a_model_of_one_language_or_of_unknown_languages_may_copy(tokenizers: Tokenizers) -> None:
    translator = german_english(tokenizers, Answers())
    for pair in (Direction("de", "de"), Direction("", "")):
        changed = translator.with_options(languages=Languages((pair,)))
        assert changed.translate([GERMAN])[0].alarms == ()


def test_an_alarm_does_not_depend_on_other_lines(tokenizers: Tokenizers) -> None:
    lines = [GERMAN, ENGLISH, FRENCH, "Hund", GERMAN.upper()]
    translator = german_english(tokenizers, Answers())
    together = translator.translate(lines)
    assert together == [translator.translate([line])[0] for line in lines]


def test_text_that_the_profiles_recognize_does_not_load_py3langid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    profiles = LanguageProfiles.learn({"de": [GERMAN], "en": [ENGLISH]})
    with monkeypatch.context() as patch:
        patch.setattr(identification, "other_label", Mock(side_effect=AssertionError))
        assert clear_label(GERMAN, "de", profiles) is None
        assert clear_label("Der Hund schläft heute.", "de", profiles) is None
    assert clear_label(ENGLISH, "de", profiles) == "en"
    assert clear_label(FRENCH, "de", profiles) == "fr"
    assert clear_label(FRENCH, "shn") is None  # py3langid does not support it


def test_capitals_are_translated_through_their_lower_case_form(tokenizers: Tokenizers) -> None:
    engine = Answers()
    translator = german_english(tokenizers, engine, lower_capitals=True, constraints=True)
    lines = ["DER HUND %s SCHLÄFT.", "NATO", "Der HUND", "HEUTE NICHT!"]
    results = translator.translate(lines)
    assert [result.text for result in results] == lines
    assert not any("capitals" in result.alarms for result in results)
    read = {tokenizers.source.decode(ids) for ids in engine.sources}
    assert {"Heute nicht!", "Der HUND", "NATO"} < read
    (constrained,) = translator.translate([Request("HEUTE NICHT", forbidden=("Hund",))])
    assert "capitals" in constrained.alarms
    assert tokenizers.source.decode(engine.sources[-1]) == "HEUTE NICHT"


@pytest.mark.parametrize(("lower", "is_flagged"), [(None, True), (False, False)])
def test_capitals_that_the_model_may_not_know_are_flagged(
    tokenizers: Tokenizers, lower: bool | None, *, is_flagged: bool
) -> None:
    engine = Answers()
    translator = german_english(tokenizers, engine, lower_capitals=lower)
    for line, is_capitals in (("DER HUND", True), ("HUND", False), ("DER Hund", False)):
        (result,) = translator.translate([line])
        assert ("capitals" in result.alarms) == (is_capitals and is_flagged)
        assert tokenizers.source.decode(engine.sources[-1]) == line


def test_a_line_without_the_tag_of_training_is_noted_once(
    tokenizers: Tokenizers, caplog: pytest.LogCaptureFixture
) -> None:
    translator_module._warn_untagged.cache_clear()
    languages = Languages(always_tagged=True)
    translator = translator_of(Answers(), tokenizers, languages=languages)
    with caplog.at_level(logging.WARNING):
        translator.segment([Request("Hund", tag=None)])
        translator.with_options(beam_size=1).segment(["Katze", "Haus"])
    assert [record.message.split(";")[0] for record in caplog.records] == [
        "a line has no tag, but all training text had one"
    ]
