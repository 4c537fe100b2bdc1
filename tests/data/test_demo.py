"""The demo corpus: right German, a function of the source, held-out sets held out."""

from __future__ import annotations

import calendar
import hashlib
import re

import pytest

from nmt.data.demo import _Speaker, demo_pairs
from nmt.data.demo_phrases import ordinal
from nmt.errors import ConfigError


def test_every_sentence_stands_once_in_all_splits() -> None:
    splits = {name: list(demo_pairs(name, "en", "de")) for name in ("train", "valid", "test")}
    pairs = [pair for split in splits.values() for pair in split]

    assert {name: len(split) for name, split in splits.items()} == {
        "train": 24_000,
        "valid": 300,
        "test": 300,
    }
    assert len({english for english, _ in pairs}) == len(pairs)
    assert len({german for _, german in pairs}) == len(pairs)


def test_the_corpus_is_the_same_on_every_machine() -> None:
    """Scores in the documentation are of this text; change both together."""
    whole = hashlib.sha256()
    for split in ("train", "valid", "test"):
        for pair in demo_pairs(split, "en", "de"):
            whole.update("\t".join(pair).encode() + b"\n")

    assert whole.hexdigest() == "ba9ee7963193190fe579b1cc002243da75752345f238eaf0cfeb613560a73632"


def test_either_direction_works_and_no_other_language() -> None:
    english, german = next(demo_pairs("test", "en", "de"))

    assert next(demo_pairs("test", "de-AT", "en_US")) == (german, english)
    for source, target in (("en", "fr"), ("en", "den"), ("ens", "de"), ("de", "de"), ("", "en")):
        with pytest.raises(ConfigError, match="en and de"):
            next(demo_pairs("test", source, target))


def test_the_grammar_gives_each_sentence_one_translation_either_way() -> None:
    """Else what the corpus lacks because it was drawn second would be hidden, not right."""
    speaker = _Speaker(seed=7)
    to_german: dict[str, str] = {}
    to_english: dict[str, str] = {}

    for _ in range(30_000):
        english, german = speaker.sentence()
        assert to_german.setdefault(english, german) == german
        assert to_english.setdefault(german, english) == english


def test_sentences_have_german_word_order_and_endings() -> None:
    pairs = dict(demo_pairs("train", "en", "de"))

    for english, german in pairs.items():
        if english.startswith("Yesterday"):
            assert german.split()[1] in {"habe", "hast", "hat", "haben"}
            assert german.rstrip(".").split()[-1][:2] in {"ge", "be", "ve"}
        if " because " in english:
            assert german.rstrip(".").split()[-1] in {"will", "willst", "wollen"}
        if " must " in english:
            assert german.endswith("en.")


def test_dates_are_in_the_calendar_and_every_day_of_it_comes_up() -> None:
    days = {
        (ordinal(day).english, calendar.month_name[month])
        for month in range(1, 13)
        for day in range(1, calendar.monthrange(2023, month)[1] + 1)
    }
    drawn = {
        (found[1], found[2])
        for english, _ in demo_pairs("train", "en", "de")
        if (found := re.fullmatch(r"Today is \w+, the (\S+) of (\w+)\.", english))
    }

    assert len(days) == 365
    assert drawn == days


def test_modal_verbs_go_with_actions_and_mean_the_same_when_negated() -> None:
    speaker = _Speaker(seed=8)
    sentences = [speaker.sentence() for _ in range(20_000)]

    assert any("needs" in english for english, _ in sentences)
    for english, _ in sentences:
        assert not re.search(r"\b(can|must|wants? to) need\b", english)
        # "muss keinen" leaves it to one, "must ... no" forbids it.
        assert not re.search(r"\bmust\b.* no ", english)
