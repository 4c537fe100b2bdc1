"""The demo corpus: right German, a function of the source, held-out sets held out."""

from __future__ import annotations

import calendar
import hashlib
import re

import pytest

from nmt.data.demo import (
    ORDINALS,
    Noun,
    Pair,
    SentenceGenerator,
    clock_time,
    demo_pairs,
    noun_phrase,
    number,
)
from nmt.errors import ConfigError


def test_the_corpus_is_the_same_on_every_machine_and_no_sentence_stands_twice() -> None:
    """Scores in the documentation are of this text; change both together."""
    splits = [list(demo_pairs(name, "en", "de")) for name in ("train", "valid", "test")]
    pairs = [pair for split in splits for pair in split]
    text = "".join(f"{english}\t{german}\n" for english, german in pairs)

    assert [len(split) for split in splits] == [40_000, 300, 300]
    assert all(len(set(side)) == len(pairs) for side in zip(*pairs, strict=True))
    digest = hashlib.sha256(text.encode()).hexdigest()
    assert digest == "2a2388d7684381a655910b784ddb6c0a3fc8889c5a0323aba0aaccc5c2b56335"


def test_either_direction_works_and_no_other_language() -> None:
    english, german = next(demo_pairs("test", "en", "de"))

    assert next(demo_pairs("test", "de-AT", "en_US")) == (german, english)
    for source, target in (("en", "fr"), ("en", "den"), ("ens", "de"), ("de", "de"), ("", "en")):
        with pytest.raises(ConfigError, match="en and de"):
            next(demo_pairs("test", source, target))


def test_the_grammar_gives_each_sentence_one_translation_either_way() -> None:
    """Else what the corpus lacks because it was drawn second would be hidden, not right."""
    generator = SentenceGenerator(seed=7)
    to_german: dict[str, str] = {}
    to_english: dict[str, str] = {}

    for _ in range(10_000):
        english, german = generator.sentence()
        assert to_german.setdefault(english, german) == german
        assert to_english.setdefault(german, english) == english


def test_sentences_have_german_word_order_and_endings() -> None:
    pairs = dict(demo_pairs("train", "en", "de"))

    for english, german in pairs.items():
        words = german.rstrip(".?").split()
        if english.startswith("Yesterday"):
            assert words[1] in {"habe", "hast", "hat", "haben"}
            assert words[-1][:2] in {"ge", "be", "ve"}
        if re.search(r" because \w+ wants? ", english):
            assert words[-1] in {"will", "willst", "wollen"}
        if " must " in english and " because " not in english:
            assert german.endswith(("en.", "en?"))
        assert english.endswith("?") is german.endswith("?")


def test_what_a_newcomer_may_type_first_is_in_the_grammar() -> None:
    """Several adjectives in any order, times at either end, people as objects, questions."""
    pairs = [pair for split in ("train", "valid", "test") for pair in demo_pairs(split, "en", "de")]

    for english, german in (
        (r"\w+ \w+ an old (red|green|white) \w+ .*\.", r".* ein\w* alte\w* (rot|grün|weiß)e.*"),
        (r"Yesterday \w+ sold .*\.", r"Gestern ha.* verkauft\."),
        (r"\w+ looks for (you|me)\b.*", r"\w+ sucht (dich|mich)\b.*"),
        (r"Can you .*\?", r"Kannst du .*\?"),
        (r"Did \w+ .*\?", r"Ha(be|st|t|ben) .*\?"),
        (r"The \w+ are \w+ and \w+\.", r"Die \w+ sind \w+ und \w+\."),
        (r"Anna and Peter \w+ .*", r"Anna und Peter \w+en .*"),
    ):
        found = [target for source, target in pairs if re.fullmatch(english, source)]
        assert found
        assert [target for target in found if not re.fullmatch(german, target)] == []


def test_dates_are_in_the_calendar_and_every_day_of_it_comes_up() -> None:
    days = {
        (ORDINALS[day - 1].english, calendar.month_name[month])
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
    generator = SentenceGenerator(seed=8)
    sentences = [generator.sentence() for _ in range(10_000)]

    assert any("needs" in english for english, _ in sentences)
    for english, _ in sentences:
        assert not re.search(r"\b(can|must|wants? to) need\b", english)
        # "muss keinen" leaves it to one, "must ... no" forbids it.
        assert not re.search(r"\bmust\b.* no ", english.split(" because ")[0])


def test_numbers_times_and_dates_are_spelled_in_both_languages() -> None:
    for value, english, german in (
        (1, "one", "eins"), (16, "sixteen", "sechzehn"), (21, "twenty-one", "einundzwanzig"),
        (30, "thirty", "dreißig"), (77, "seventy-seven", "siebenundsiebzig"),
        (101, "one hundred and one", "einhunderteins"), (600, "six hundred", "sechshundert"),
    ):  # fmt: skip
        assert number(value) == (english, german)
    assert clock_time(1, 0) == ("one o'clock", "ein Uhr")
    assert clock_time(12, 30) == ("half past twelve", "halb eins")
    assert clock_time(3, 45) == ("a quarter to four", "Viertel vor vier")
    assert clock_time(7, 35) == ("twenty-five to eight", "fünfundzwanzig vor acht")
    assert ORDINALS[0] == ("first", "erste")
    assert ORDINALS[11] == ("twelfth", "zwölfte")
    assert ORDINALS[20] == ("twenty-first", "einundzwanzigste")
    assert ORDINALS[29] == ("thirtieth", "dreißigste")


def test_nouns_have_the_article_and_adjectives_the_ending_of_their_case() -> None:
    apple, bag, neighbor = (
        Noun("apple", "apples", "Apfel", "Äpfel", "m"),
        Noun("bag", "bags", "Tasche", "Taschen", "f"),
        Noun("neighbor", "neighbors", "Nachbar", "Nachbarn", "m", accusative="Nachbarn"),
    )
    old, red = Pair("old", "alt"), Pair("red", "rot")

    for arguments, phrase in (
        (("the", [old], apple, "nominative"), ("the old apple", "der alte Apfel")),
        (("the", [], apple, "accusative"), ("the apple", "den Apfel")),
        (("a", [], apple, "accusative"), ("an apple", "einen Apfel")),
        (("a", [old], apple, "nominative"), ("an old apple", "ein alter Apfel")),
        (("a", [red, old], bag, "accusative"), ("a red old bag", "eine rote alte Tasche")),
        (("no", [old], bag, "accusative"), ("no old bag", "keine alte Tasche")),
        (("no plural", [old], bag, "accusative"), ("no old bags", "keine alten Taschen")),
        (("the plural", [old], bag, "nominative"), ("the old bags", "die alten Taschen")),
        (("plural", [red], apple, "accusative"), ("red apples", "rote Äpfel")),
        (("the", [old], neighbor, "accusative"), ("the old neighbor", "den alten Nachbarn")),
        (("number", [], bag, "accusative", number(2)), ("two bags", "zwei Taschen")),
    ):
        assert noun_phrase(*arguments) == phrase
