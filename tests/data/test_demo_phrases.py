"""The phrases of the demo corpus: right English, right German."""

from __future__ import annotations

import pytest

from nmt.data.demo_phrases import Noun, Pair, a, clock_time, number, ordinal, several, the


@pytest.mark.parametrize(
    ("value", "english", "german"),
    [
        (1, "one", "eins"),
        (16, "sixteen", "sechzehn"),
        (21, "twenty-one", "einundzwanzig"),
        (30, "thirty", "dreißig"),
        (77, "seventy-seven", "siebenundsiebzig"),
        (101, "one hundred and one", "einhunderteins"),
        (600, "six hundred", "sechshundert"),
    ],
)
def test_numbers_are_spelt_in_both_languages(value: int, english: str, german: str) -> None:
    assert number(value) == (english, german)


def test_times_and_dates_are_spelt_in_both_languages() -> None:
    assert clock_time(1, 0) == ("one o'clock", "ein Uhr")
    assert clock_time(12, 30) == ("half past twelve", "halb eins")
    assert clock_time(3, 45) == ("a quarter to four", "Viertel vor vier")
    assert clock_time(7, 35) == ("twenty-five to eight", "fünfundzwanzig vor acht")
    assert ordinal(1) == ("first", "erste")
    assert ordinal(12) == ("twelfth", "zwölfte")
    assert ordinal(21) == ("twenty-first", "einundzwanzigste")
    assert ordinal(30) == ("thirtieth", "dreißigste")


def test_nouns_have_the_article_and_adjectives_the_ending_of_their_case() -> None:
    apple, bag = (
        Noun("apple", "apples", "Apfel", "Äpfel", "m"),
        Noun("bag", "bags", "Tasche", "Taschen", "f"),
    )
    old = Pair("old", "alt")

    assert the(old, apple, "nominative") == ("the old apple", "der alte Apfel")
    assert the(None, apple, "accusative") == ("the apple", "den Apfel")
    assert a(None, apple) == ("an apple", "einen Apfel")
    assert a(old, bag) == ("an old bag", "eine alte Tasche")
    assert a(old, bag, negated=True) == ("no old bag", "keine alte Tasche")
    assert several(21, None, apple) == ("twenty-one apples", "einundzwanzig Äpfel")
    assert several(2, old, bag) == ("two old bags", "zwei alte Taschen")
