"""The embedded demo corpus: a small grammar of English-German sentence pairs.

Numbers in words, prices, times, dates, and people who buy, look for and paint things: enough to
show real morphology (gender, case, adjective endings, conjugation) and real reordering (verb
second, participles and infinitives last, separable verbs, subordinate clauses). Each rule builds
both languages side by side, so a pair is right by construction, and the same on every machine.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal

from nmt.data.demo_phrases import Noun, Pair, a, clock_time, number, ordinal, several, the
from nmt.errors import ConfigError

_SIZES = {"test": 300, "valid": 300, "train": 24_000}
_SEED = 20_241


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb with an object: English and German forms."""

    english: str
    third: str
    past: str
    german: str
    """Stem of the present tense: kauf -> ich kaufe, du kaufst, er kauft, wir kaufen."""
    participle: str


@dataclass(frozen=True, slots=True)
class Subject:
    """Who does it."""

    english: str
    german: str
    person: str
    """``1s 2s 3s 1p 3p``: the form of the verb."""


_ENDINGS = {"1s": "e", "2s": "st", "3s": "t", "1p": "en", "3p": "en"}
_HAVE = {"1s": "habe", "2s": "hast", "3s": "hat", "1p": "haben", "3p": "haben"}
_WANT = {"1s": "will", "2s": "willst", "3s": "will", "1p": "wollen", "3p": "wollen"}
_CAN = {"1s": "kann", "2s": "kannst", "3s": "kann", "1p": "können", "3p": "können"}
_MUST = {"1s": "muss", "2s": "musst", "3s": "muss", "1p": "müssen", "3p": "müssen"}

_PRONOUNS = (
    Subject("I", "ich", "1s"),
    Subject("you", "du", "2s"),
    Subject("he", "er", "3s"),
    Subject("she", "sie", "3s"),
    Subject("we", "wir", "1p"),
    Subject("they", "sie", "3p"),
)
_NAMES = ("Anna", "Peter", "Maria", "Thomas", "Julia", "Martin")
_PEOPLE = (
    Noun("teacher", "teachers", "Lehrer", "Lehrer", "m"),
    Noun("neighbor", "neighbors", "Nachbar", "Nachbarn", "m"),
    Noun("woman", "women", "Frau", "Frauen", "f"),
    Noun("doctor", "doctors", "Ärztin", "Ärztinnen", "f"),
    Noun("child", "children", "Kind", "Kinder", "n"),
    Noun("girl", "girls", "Mädchen", "Mädchen", "n"),
)
_THINGS = (
    Noun("apple", "apples", "Apfel", "Äpfel", "m"),
    Noun("coat", "coats", "Mantel", "Mäntel", "m"),
    Noun("chair", "chairs", "Stuhl", "Stühle", "m"),
    Noun("table", "tables", "Tisch", "Tische", "m"),
    Noun("key", "keys", "Schlüssel", "Schlüssel", "m"),
    Noun("flower", "flowers", "Blume", "Blumen", "f"),
    Noun("lamp", "lamps", "Lampe", "Lampen", "f"),
    Noun("bag", "bags", "Tasche", "Taschen", "f"),
    Noun("clock", "clocks", "Uhr", "Uhren", "f"),
    Noun("book", "books", "Buch", "Bücher", "n"),
    Noun("bicycle", "bicycles", "Fahrrad", "Fahrräder", "n"),
    Noun("picture", "pictures", "Bild", "Bilder", "n"),
    Noun("glass", "glasses", "Glas", "Gläser", "n"),
)
_ADJECTIVES = (
    Pair("red", "rot"), Pair("green", "grün"), Pair("new", "neu"), Pair("old", "alt"),
    Pair("small", "klein"), Pair("big", "groß"), Pair("beautiful", "schön"),
    Pair("cheap", "billig"), Pair("heavy", "schwer"), Pair("white", "weiß"),
)  # fmt: skip
_ACTIONS = (
    Verb("buy", "buys", "bought", "kauf", "gekauft"),
    Verb("look for", "looks for", "looked for", "such", "gesucht"),
    Verb("pay for", "pays for", "paid for", "bezahl", "bezahlt"),
    Verb("sell", "sells", "sold", "verkauf", "verkauft"),
    Verb("fetch", "fetches", "fetched", "hol", "geholt"),
    Verb("paint", "paints", "painted", "mal", "gemalt"),
    Verb("show", "shows", "showed", "zeig", "gezeigt"),
)
"""What one can do, must do, or wants to do."""
_VERBS = (*_ACTIONS, Verb("need", "needs", "needed", "brauch", "gebraucht"))
_DAYS = (
    Pair("Monday", "Montag"), Pair("Tuesday", "Dienstag"), Pair("Wednesday", "Mittwoch"),
    Pair("Thursday", "Donnerstag"), Pair("Friday", "Freitag"), Pair("Saturday", "Samstag"),
    Pair("Sunday", "Sonntag"),
)  # fmt: skip
_MONTHS = (
    (Pair("January", "Januar"), 31), (Pair("February", "Februar"), 28), (Pair("March", "März"), 31),
    (Pair("April", "April"), 30), (Pair("May", "Mai"), 31), (Pair("June", "Juni"), 30),
    (Pair("July", "Juli"), 31), (Pair("August", "August"), 31),
    (Pair("September", "September"), 30), (Pair("October", "Oktober"), 31),
    (Pair("November", "November"), 30), (Pair("December", "Dezember"), 31),
)  # fmt: skip
"""With the number of their days, in a year that is not a leap year."""
_TRIPS = (Pair("train", "Der Zug"), Pair("bus", "Der Bus"), Pair("ferry", "Die Fähre"))


class _Speaker:
    """Draws sentences; each rule is a method that returns a pair without its full stop."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._rules: tuple[Callable[[], Pair], ...] = (
            self.present, self.present, self.perfect, self.perfect, self.modal, self.modal,
            self.because, self.because, self.price, self.departure, self.date, self.sum,
        )  # fmt: skip

    def sentence(self) -> Pair:
        pair = self._random.choice(self._rules)()
        return Pair(*(f"{text[0].upper()}{text[1:]}." for text in pair))

    def subject(self) -> Subject:
        kind = self._random.random()
        if kind < 0.5:
            return self._random.choice(_PRONOUNS)
        if kind < 0.7:
            name = self._random.choice(_NAMES)
            return Subject(name, name, "3s")
        person = the(self.adjective(), self._random.choice(_PEOPLE), "nominative")
        return Subject(*person, "3s")

    def adjective(self) -> Pair | None:
        # "heavy", "cheap" and colours do not suit people: these draw from the middle of the list.
        return self._random.choice((None, *_ADJECTIVES[2:7]))

    def thing(self, *, may_be_none: bool = True) -> Pair:
        noun = self._random.choice(_THINGS)
        adjective = self._random.choice((None, *_ADJECTIVES))
        kind = self._random.randrange(4 if may_be_none else 3)
        if kind == 0:
            return the(adjective, noun, "accusative")
        if kind == 1:
            return a(adjective, noun)
        if kind == 3:
            return a(adjective, noun, negated=True)
        return several(self._random.randrange(2, 100), adjective, noun)

    def time(self) -> Pair:
        hour, minute = self._random.randrange(1, 13), self._random.randrange(0, 60, 5)
        return clock_time(hour, minute)

    def present(self) -> Pair:
        who, verb, what = self.subject(), self._random.choice(_VERBS), self.thing()
        english = f"{who.english} {_form(verb, who)} {what.english}"
        german_verb = verb.german + _ENDINGS[who.person]
        if self._random.random() < 0.5:
            return Pair(english, f"{who.german} {german_verb} {what.german}")
        day = self._random.choice(_DAYS)
        return Pair(
            f"on {day.english} {english}",
            f"am {day.german} {german_verb} {who.german} {what.german}",
        )

    def perfect(self) -> Pair:
        who, verb, what = self.subject(), self._random.choice(_VERBS), self.thing()
        have = _HAVE[who.person]
        if self._random.random() < 0.5:
            return Pair(
                f"{who.english} {verb.past} {what.english}",
                f"{who.german} {have} {what.german} {verb.participle}",
            )
        return Pair(
            f"yesterday {who.english} {verb.past} {what.english}",
            f"gestern {have} {who.german} {what.german} {verb.participle}",
        )

    def modal(self) -> Pair:
        who, verb = self.subject(), self._random.choice(_ACTIONS)
        english, german = self._random.choice((("can", _CAN), ("must", _MUST)))
        # "must buy no coat" forbids it, "muss keinen Mantel kaufen" does not.
        what, when = self.thing(may_be_none=german is not _MUST), self.time()
        return Pair(
            f"{who.english} {english} {verb.english} {what.english} at {when.english}",
            f"{who.german} {german[who.person]} um {when.german} {what.german} {verb.german}en",
        )

    def because(self) -> Pair:
        who, other = self.subject(), self._random.choice(_PRONOUNS)
        second = self._random.choice(_ACTIONS)
        verb = self._random.choice([each for each in _VERBS if each is not second])
        what, wanted = self.thing(), self.thing()
        wants = "want" if other.person not in ("3s",) else "wants"
        return Pair(
            f"{who.english} {_form(verb, who)} {what.english} because "
            f"{other.english} {wants} to {second.english} {wanted.english}",
            f"{who.german} {verb.german}{_ENDINGS[who.person]} {what.german}, weil "
            f"{other.german} {wanted.german} {second.german}en {_WANT[other.person]}",
        )

    def price(self) -> Pair:
        noun = the(self._random.choice(_ADJECTIVES), self._random.choice(_THINGS), "nominative")
        euros = number(self._random.randrange(2, 1000))
        return Pair(
            f"{noun.english} costs {euros.english} euros",
            f"{noun.german} kostet {euros.german} Euro",
        )

    def departure(self) -> Pair:
        what, when = self._random.choice(_TRIPS), self.time()
        day = self._random.choice(_DAYS)
        english, german = self._random.choice((("leaves", "ab"), ("arrives", "an")))
        verb = "fährt" if german == "ab" else "kommt"
        return Pair(
            f"the {what.english} {english} on {day.english} at {when.english}",
            f"{what.german} {verb} am {day.german} um {when.german} {german}",
        )

    def date(self) -> Pair:
        day, (month, num_days) = self._random.choice(_DAYS), self._random.choice(_MONTHS)
        which = ordinal(self._random.randint(1, num_days))
        return Pair(
            f"today is {day.english}, the {which.english} of {month.english}",
            f"heute ist {day.german}, der {which.german} {month.german}",
        )

    def sum(self) -> Pair:
        first, second = self._random.randrange(2, 500), self._random.randrange(2, 500)
        numbers = number(first), number(second), number(first + second)
        return Pair(
            "{} plus {} is {}".format(*(n.english for n in numbers)),
            "{} plus {} ist {}".format(*(n.german for n in numbers)),
        )


def _form(verb: Verb, who: Subject) -> str:
    return verb.third if who.person == "3s" else verb.english


@cache
def _corpus() -> dict[str, tuple[Pair, ...]]:
    """Draw distinct pairs until there are enough; no sentence stands on the same side twice."""
    speaker, pairs = _Speaker(_SEED), list[Pair]()
    english: set[str] = set()
    german: set[str] = set()
    while len(pairs) < sum(_SIZES.values()):
        pair = speaker.sentence()
        if pair.english in english or pair.german in german:
            continue
        english.add(pair.english)
        german.add(pair.german)
        pairs.append(pair)
    splits, start = {}, 0
    for name, size in _SIZES.items():
        splits[name] = tuple(pairs[start : start + size])
        start += size
    return splits


def demo_pairs(
    split: Literal["train", "valid", "test"], source_language: str, target_language: str
) -> Iterator[tuple[str, str]]:
    """Yield the pairs of a split: 24,000 to train, 300 to validate, 300 to test.

    Raises:
        ConfigError: The languages are not English and German.
    """
    languages = [
        re.split("[-_]", language)[0].lower()  # de-AT is German; den is not
        for language in (source_language, target_language)
    ]
    if sorted(languages) != ["de", "en"]:
        raise ConfigError(
            f"The demo corpus is English and German, not {source_language} and {target_language}.",
            fix="Set source_language and target_language to en and de, in either order.",
        )
    for pair in _corpus()[split]:
        texts = {"en": pair.english, "de": pair.german}
        yield texts[languages[0]], texts[languages[1]]
