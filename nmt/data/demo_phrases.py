"""Phrases of the demo corpus in English and German: numbers, times of day, people and things."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

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


_DEFINITE = {
    ("m", "nominative"): ("der", "e"), ("m", "accusative"): ("den", "en"),
    ("f", "nominative"): ("die", "e"), ("f", "accusative"): ("die", "e"),
    ("n", "nominative"): ("das", "e"), ("n", "accusative"): ("das", "e"),
}  # fmt: skip
_INDEFINITE = {
    ("m", "accusative"): ("einen", "en"),
    ("f", "accusative"): ("eine", "e"),
    ("n", "accusative"): ("ein", "es"),
}


def the(adjective: Pair | None, noun: Noun, case: Case) -> Pair:
    """Return ``the (old) noun`` in a case."""
    article, ending = _DEFINITE[noun.gender, case]
    return _phrase(Pair("the", article), adjective, ending, Pair(noun.english, noun.german))


def a(adjective: Pair | None, noun: Noun, *, negated: bool = False) -> Pair:
    """Return ``a (new) noun``, or ``no (new) noun``, in the accusative."""
    article, ending = _INDEFINITE[noun.gender, "accusative"]
    following = adjective.english if adjective else noun.english
    positive = Pair("an" if following[0] in "aeio" else "a", article)
    first = Pair("no", "k" + article) if negated else positive
    return _phrase(first, adjective, ending, Pair(noun.english, noun.german))


def several(count: int, adjective: Pair | None, noun: Noun) -> Pair:
    """Return ``seven (old) nouns``, in the nominative or accusative; ``count`` is above 1."""
    return _phrase(number(count), adjective, "e", Pair(noun.plural, noun.german_plural))


def _phrase(first: Pair, adjective: Pair | None, ending: str, noun: Pair) -> Pair:
    inflected = () if adjective is None else (Pair(adjective.english, adjective.german + ending),)
    words = (first, *inflected, noun)
    return Pair(" ".join(word.english for word in words), " ".join(word.german for word in words))
