"""Phrases of the demo corpus in English and German: numbers, times of day, people and things."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

Case = Literal["nominative", "accusative"]


class Pair(NamedTuple):
    """A phrase in both languages."""

    english: str
    german: str


@dataclass(frozen=True, slots=True)
class Noun:
    """A noun with its German gender (m, f, n) and both plurals."""

    english: str
    plural: str
    german: str
    german_plural: str
    gender: str
    accusative: str | None = None
    """Of a weak noun, where it differs from the nominative."""


ADJECTIVES = (
    (Pair("new", "neu"), Pair("old", "alt")),
    (Pair("small", "klein"), Pair("big", "groß")),
    (Pair("beautiful", "schön"),),
    (Pair("red", "rot"), Pair("green", "grün"), Pair("white", "weiß")),
    (Pair("cheap", "billig"),),
    (Pair("heavy", "schwer"),),
)
"""Groups of which at most one stands before a noun; the first three suit people too."""
_ONES = (
    Pair("zero", "null"), Pair("one", "eins"), Pair("two", "zwei"), Pair("three", "drei"),
    Pair("four", "vier"), Pair("five", "fünf"), Pair("six", "sechs"), Pair("seven", "sieben"),
    Pair("eight", "acht"), Pair("nine", "neun"), Pair("ten", "zehn"), Pair("eleven", "elf"),
    Pair("twelve", "zwölf"), Pair("thirteen", "dreizehn"), Pair("fourteen", "vierzehn"),
    Pair("fifteen", "fünfzehn"), Pair("sixteen", "sechzehn"), Pair("seventeen", "siebzehn"),
    Pair("eighteen", "achtzehn"), Pair("nineteen", "neunzehn"),
)  # fmt: skip
_TENS = {
    2: Pair("twenty", "zwanzig"), 3: Pair("thirty", "dreißig"), 4: Pair("forty", "vierzig"),
    5: Pair("fifty", "fünfzig"), 6: Pair("sixty", "sechzig"), 7: Pair("seventy", "siebzig"),
    8: Pair("eighty", "achtzig"), 9: Pair("ninety", "neunzig"),
}  # fmt: skip
_ENGLISH_ORDINALS = {
    1: "first", 2: "second", 3: "third", 5: "fifth", 8: "eighth", 9: "ninth", 12: "twelfth",
    20: "twentieth", 30: "thirtieth",
}  # fmt: skip
_GERMAN_ORDINALS = {1: "erste", 3: "dritte", 7: "siebte", 8: "achte"}


def number(value: int) -> Pair:
    """Spell a number from 0 to 999.

    >>> number(21)
    Pair(english='twenty-one', german='einundzwanzig')
    >>> number(305).german
    'dreihundertfünf'
    """
    if value < len(_ONES):
        return _ONES[value]
    if value < 100:
        tens, ones = _TENS[value // 10], value % 10
        if not ones:
            return tens
        german = "ein" if ones == 1 else _ONES[ones].german
        return Pair(f"{tens.english}-{_ONES[ones].english}", f"{german}und{tens.german}")
    hundreds, rest = number(value // 100), value % 100
    german = ("ein" if value // 100 == 1 else hundreds.german) + "hundert"
    if not rest:
        return Pair(f"{hundreds.english} hundred", german)
    english = f"{hundreds.english} hundred and {number(rest).english}"
    return Pair(english, german + number(rest).german)


def ordinal(day: int) -> Pair:
    """Spell the day of a date, from 1 to 31; German in the nominative after ``der``.

    >>> ordinal(23)
    Pair(english='twenty-third', german='dreiundzwanzigste')
    """
    spelt = number(day)
    if day in _ENGLISH_ORDINALS:
        english = _ENGLISH_ORDINALS[day]
    elif day > 20:
        english = f"{_TENS[day // 10].english}-{ordinal(day % 10).english}"
    else:
        english = f"{spelt.english}th"
    suffix = "te" if day < 20 else "ste"
    return Pair(english, _GERMAN_ORDINALS.get(day, spelt.german + suffix))


def clock_time(hour: int, minute: int) -> Pair:
    """Spell a time of day, in steps of five minutes.

    >>> clock_time(4, 30)
    Pair(english='half past four', german='halb fünf')
    """
    now, following = number(hour), number(hour % 12 + 1)
    hour_german = "ein" if hour == 1 else now.german
    if minute == 0:
        return Pair(f"{now.english} o'clock", f"{hour_german} Uhr")
    if minute == 30:
        return Pair(f"half past {now.english}", f"halb {following.german}")
    if minute < 30:
        if minute == 15:
            return Pair(f"a quarter past {now.english}", f"Viertel nach {now.german}")
        few = number(minute)
        return Pair(f"{few.english} past {now.english}", f"{few.german} nach {now.german}")
    if minute == 45:
        return Pair(f"a quarter to {following.english}", f"Viertel vor {following.german}")
    few = number(60 - minute)
    return Pair(f"{few.english} to {following.english}", f"{few.german} vor {following.german}")


_ARTICLES = {
    ("the", "m", "nominative"): ("der", "e"), ("the", "m", "accusative"): ("den", "en"),
    ("the", "f", "nominative"): ("die", "e"), ("the", "f", "accusative"): ("die", "e"),
    ("the", "n", "nominative"): ("das", "e"), ("the", "n", "accusative"): ("das", "e"),
    ("a", "m", "nominative"): ("ein", "er"), ("a", "m", "accusative"): ("einen", "en"),
    ("a", "f", "nominative"): ("eine", "e"), ("a", "f", "accusative"): ("eine", "e"),
    ("a", "n", "nominative"): ("ein", "es"), ("a", "n", "accusative"): ("ein", "es"),
}  # fmt: skip
"""German article, and ending of the adjectives after it, by determiner, gender and case."""
_PLURALS = {
    "the plural": ("the", "die", "en"), "plural": ("", "", "e"), "no plural": ("no", "keine", "en"),
}  # fmt: skip


def noun_phrase(
    determiner: str,
    adjectives: Sequence[Pair],
    noun: Noun,
    case: Case,
    count: Pair | None = None,
) -> Pair:
    """Return a determiner, adjectives and a noun in agreement.

    Args:
        determiner: ``the``, ``a``, ``no``, ``the plural``, ``plural``, ``no plural`` or ``number``.
        adjectives: In the order of both languages; all take the same German ending.
        noun: Of things or people.
        case: The plural has one form for both.
        count: With ``number``: how many, above 1.
    """
    following = [word.english for word in adjectives]
    if count is not None:
        first, ending, is_plural = count, "e", True
    elif determiner in _PLURALS:
        english, german, ending = _PLURALS[determiner]
        first, is_plural = Pair(english, german), True
    else:
        article, ending = _ARTICLES["the" if determiner == "the" else "a", noun.gender, case]
        starts_with_vowel = [*following, noun.english][0][0] in "aeio"
        first = {
            "the": Pair("the", article),
            "a": Pair("an" if starts_with_vowel else "a", article),
            "no": Pair("no", "k" + article),
        }[determiner]
        is_plural = False
    singular = noun.accusative if noun.accusative and case == "accusative" else noun.german
    return Pair(
        words(first.english, *following, noun.plural if is_plural else noun.english),
        words(
            first.german,
            *(word.german + ending for word in adjectives),
            noun.german_plural if is_plural else singular,
        ),
    )


def words(*parts: str) -> str:
    """Join the parts that are not empty.

    >>> words("the", "", "lamp")
    'the lamp'
    """
    return " ".join(filter(None, parts))


class _Bilingual(Protocol):
    @property
    def english(self) -> str: ...
    @property
    def german(self) -> str: ...


def both(first: _Bilingual, second: _Bilingual) -> Pair:
    """Join two phrases by "and"."""
    return Pair(f"{first.english} and {second.english}", f"{first.german} und {second.german}")
