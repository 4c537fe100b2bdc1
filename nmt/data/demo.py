"""The embedded demo corpus: a small grammar of English-German sentence pairs.

Numbers, prices, times, dates, and people who buy, look for and paint things: enough to show real
morphology (gender, case, adjective endings, conjugation) and real reordering (verb second,
participles and infinitives last, separable verbs, questions, subordinate clauses). Each rule
builds both languages side by side, so a pair is right by construction, and the same on every
machine. What its words can be combined to, the corpus combines: a newcomer types just that.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from nmt.data.demo_phrases import (
    ADJECTIVES,
    Noun,
    Pair,
    both,
    clock_time,
    noun_phrase,
    number,
    ordinal,
    words,
)
from nmt.errors import ConfigError

_SIZES = {"test": 300, "valid": 300, "train": 40_000}
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
    takes_people: bool = False
    """Whether its object may be a person."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Who does it."""

    english: str
    german: str
    person: str
    """``1s 2s 3s 1p 3p``: the form of the verb."""


_ENDINGS = {"1s": "e", "2s": "st", "3s": "t", "1p": "en", "3p": "en"}
_BE = {"1s": ("am", "bin"), "2s": ("are", "bist"), "3s": ("is", "ist")}
_BE |= dict.fromkeys(("1p", "3p"), ("are", "sind"))
_HAVE = {"1s": "habe", "2s": "hast", "3s": "hat", "1p": "haben", "3p": "haben"}
_MODALS = {
    "can": {"1s": "kann", "2s": "kannst", "3s": "kann", "1p": "können", "3p": "können"},
    "must": {"1s": "muss", "2s": "musst", "3s": "muss", "1p": "müssen", "3p": "müssen"},
    "want": {"1s": "will", "2s": "willst", "3s": "will", "1p": "wollen", "3p": "wollen"},
}

_PRONOUNS = (
    Subject("I", "ich", "1s"),
    Subject("you", "du", "2s"),
    Subject("he", "er", "3s"),
    Subject("she", "sie", "3s"),
    Subject("we", "wir", "1p"),
    Subject("they", "sie", "3p"),
)
_OBJECT_PRONOUNS = {
    "ich": Pair("me", "mich"), "du": Pair("you", "dich"), "er": Pair("him", "ihn"),
    "wir": Pair("us", "uns"),
}  # fmt: skip
"""By the subject; without "sie", which would be both "her" and "them"."""
_NAMES = ("Anna", "Peter", "Maria", "Thomas", "Julia", "Martin")
_PEOPLE = (
    Noun("teacher", "teachers", "Lehrer", "Lehrer", "m"),
    Noun("neighbor", "neighbors", "Nachbar", "Nachbarn", "m", accusative="Nachbarn"),
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
_ACTIONS = (
    Verb("buy", "buys", "bought", "kauf", "gekauft"),
    Verb("look for", "looks for", "looked for", "such", "gesucht", takes_people=True),
    Verb("pay for", "pays for", "paid for", "bezahl", "bezahlt"),
    Verb("sell", "sells", "sold", "verkauf", "verkauft"),
    Verb("fetch", "fetches", "fetched", "hol", "geholt", takes_people=True),
    Verb("paint", "paints", "painted", "mal", "gemalt", takes_people=True),
    Verb("show", "shows", "showed", "zeig", "gezeigt"),
)
"""What one can do, must do, or wants to do."""
_VERBS = (*_ACTIONS, Verb("need", "needs", "needed", "brauch", "gebraucht", takes_people=True))
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


@dataclass(frozen=True, slots=True)
class Clause:
    """A subject, a verb and an object, before they are put in order."""

    who: Subject
    verb: Verb
    what: Pair
    tense: str
    """``present``, ``past``, or a modal verb."""

    def middle(self, time: Pair) -> str:
        """Return the German object and time; a pronoun stands before the time."""
        what = self.what
        first, second = (what, time) if what in _OBJECT_PRONOUNS.values() else (time, what)
        return words(first.german, second.german)

    @property
    def auxiliary(self) -> str:
        """The English verb that begins a question."""
        if self.tense in ("can", "must"):
            return self.tense
        if self.tense == "past":
            return "did"
        return "does" if self.who.person == "3s" else "do"

    def english(self, *, after_auxiliary: bool = False) -> str:
        """Return the verb and the object, or what is left of the verb after the auxiliary."""
        third = self.who.person == "3s" and not after_auxiliary
        if self.tense == "past" and not after_auxiliary:
            verb = self.verb.past
        elif self.tense == "want":
            verb = f"{'wants' if third else 'want'} to {self.verb.english}"
        elif self.tense in ("can", "must"):
            verb = self.verb.english if after_auxiliary else f"{self.tense} {self.verb.english}"
        else:
            verb = self.verb.third if third and self.tense == "present" else self.verb.english
        return f"{verb} {self.what.english}"

    @property
    def finite(self) -> str:
        """The German verb form that comes second, or last in a subordinate clause."""
        if self.tense == "present":
            return self.verb.german + _ENDINGS[self.who.person]
        return (_HAVE if self.tense == "past" else _MODALS[self.tense])[self.who.person]

    @property
    def rest(self) -> str:
        """The German participle or infinitive at the end; nothing in the present tense."""
        if self.tense == "present":
            return ""
        return self.verb.participle if self.tense == "past" else f"{self.verb.german}en"


class _Speaker:
    """Draws sentences; each rule is a method that returns a pair."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._rules: tuple[Callable[[], Pair], ...] = (
            *[self.statement] * 11, *[self.because] * 4, self.question, self.question,
            self.price, self.price, self.date, self.date, self.description, self.departure,
            self.sum,
        )  # fmt: skip

    def sentence(self) -> Pair:
        return Pair(*(text[0].upper() + text[1:] for text in self._random.choice(self._rules)()))

    def _chance(self, share: float) -> bool:
        return self._random.random() < share

    def adjectives(
        self, *, of_people: bool = False, shares: Sequence[int] = (35, 40, 22, 3)
    ) -> list[Pair]:
        """Draw none, one, two or three adjectives, in any order."""
        groups = ADJECTIVES[:3] if of_people else ADJECTIVES
        (count,) = self._random.choices(range(len(shares)), shares)
        return [self._random.choice(group) for group in self._random.sample(groups, count)]

    def subject(self) -> Subject:
        if self._chance(0.45):
            return self._random.choice(_PRONOUNS)
        first = self._someone()
        if self._chance(0.06) and (second := self._someone()) != first:
            return Subject(*both(first, second), "3p")
        return first

    def _someone(self) -> Subject:
        if self._chance(0.4):
            name = self._random.choice(_NAMES)
            return Subject(name, name, "3s")
        determiner = self._random.choice(("the", "the", "a", "the plural"))
        noun, adjectives = self._random.choice(_PEOPLE), self.adjectives(of_people=True)
        phrase = noun_phrase(determiner, adjectives, noun, "nominative")
        return Subject(*phrase, "3p" if determiner == "the plural" else "3s")

    def object(self, verb: Verb, *, may_be_none: bool = True) -> Pair:
        phrase = self._something(verb, may_be_none=may_be_none)
        if self._chance(0.05) and (other := self._something(verb, may_be_none=False)) != phrase:
            return both(phrase, other)
        return phrase

    def _something(self, verb: Verb, *, may_be_none: bool) -> Pair:
        if verb.takes_people and self._chance(0.1):
            if self._chance(0.3):
                return Pair(*[self._random.choice(_NAMES)] * 2)
            noun, adjectives = self._random.choice(_PEOPLE), self.adjectives(of_people=True)
        else:
            noun, adjectives = self._random.choice(_THINGS), self.adjectives()
        determiners = ["the", "the", "a", "a", "the plural", "plural", "number", "number"]
        determiner = self._random.choice([*determiners, *["no", "no plural"] * may_be_none])
        count = number(self._random.randrange(2, 100)) if determiner == "number" else None
        return noun_phrase(determiner, adjectives, noun, "accusative", count)

    def clause(self, *, person: Subject | None = None, may_be_none: bool = True) -> Clause:
        tense = self._random.choice(("present", "past", "past", "can", "must", "want"))
        verb = self._random.choice(_VERBS if tense in ("present", "past") else _ACTIONS)
        who = person or self.subject()
        if verb.takes_people and self._chance(0.06):
            same = {"ich", "wir"} if who.person[0] == "1" else {who.german}
            others = [what for name, what in _OBJECT_PRONOUNS.items() if name not in same]
            return Clause(who, verb, self._random.choice(others), tense)
        # "must buy no coat" forbids it, "muss keinen Mantel kaufen" does not.
        return Clause(
            who, verb, self.object(verb, may_be_none=may_be_none and tense != "must"), tense
        )

    def day(self, tense: str) -> Pair:
        if self._chance(0.5):
            day = self._random.choice(_DAYS)
            return Pair(f"on {day.english}", f"am {day.german}")
        if tense == "past":
            return Pair("yesterday", "gestern")
        return self._random.choice((Pair("today", "heute"), Pair("tomorrow", "morgen")))

    def time(self) -> Pair:
        hour, minute = self._random.randrange(1, 13), self._random.randrange(0, 60, 5)
        time = clock_time(hour, minute)
        return Pair(f"at {time.english}", f"um {time.german}")

    def when(self, tense: str) -> tuple[Pair, Pair]:
        """Return what of the time stands first, and what stands later; both may be empty."""
        none = Pair("", "")
        kind = self._random.random()
        if kind < 0.42:
            return none, none
        if kind < 0.62:
            return self.day(tense), none
        if kind < 0.76:
            return none, self.day(tense)
        if kind < 0.9:
            return none, self.time()
        if kind < 0.94:
            return self.time(), none
        return self.day(tense), self.time()

    def statement(self) -> Pair:
        clause = self.clause()
        first, later = self.when(clause.tense)
        who = clause.who
        english = words(first.english, who.english, clause.english(), later.english)
        if first.german:
            start = (first.german, clause.finite, who.german)
        else:
            start = (who.german, clause.finite, "")
        return Pair(f"{english}.", f"{words(*start, clause.middle(later), clause.rest)}.")

    def question(self) -> Pair:
        if self._chance(0.2):
            who, (is_english, is_german), how = self._described()
            return Pair(
                f"{is_english} {who.english} {how.english}?",
                f"{is_german} {who.german} {how.german}?",
            )
        clause = self.clause(may_be_none=False)
        _, later = self.when(clause.tense)
        who = clause.who
        english = clause.english(after_auxiliary=True)
        return Pair(
            f"{words(clause.auxiliary, who.english, english, later.english)}?",
            f"{words(clause.finite, who.german, clause.middle(later), clause.rest)}?",
        )

    def because(self) -> Pair:
        main, reason = self.clause(), self.clause(person=self._random.choice(_PRONOUNS))
        who, what = reason.who, reason.what.german
        return Pair(
            f"{main.who.english} {main.english()} because {who.english} {reason.english()}.",
            f"{words(main.who.german, main.finite, main.what.german, main.rest)}, weil "
            f"{words(who.german, what, reason.rest, reason.finite)}.",
        )

    def price(self) -> Pair:
        what, euros = self._thing(), number(self._random.randrange(2, 1000))
        if self._chance(0.1) and (other := self._thing()) != what:
            what = Subject(*both(what, other), "3p")
        costs, kostet = ("cost", "kosten") if what.person == "3p" else ("costs", "kostet")
        return Pair(
            f"{what.english} {costs} {euros.english} euros.",
            f"{what.german} {kostet} {euros.german} Euro.",
        )

    def _thing(self, determiners: Sequence[str] = ("the", "the", "a", "the plural")) -> Subject:
        """Draw a thing in the nominative."""
        determiner, noun = self._random.choice(determiners), self._random.choice(_THINGS)
        phrase = noun_phrase(determiner, self.adjectives(), noun, "nominative")
        return Subject(*phrase, "3p" if determiner == "the plural" else "3s")

    def _described(self) -> tuple[Subject, tuple[str, str], Pair]:
        of_people = self._chance(0.5)
        who = self.subject() if of_people else self._thing(("the", "the plural"))
        how = self.adjectives(of_people=of_people, shares=(0, 2, 1))
        return who, _BE[who.person], both(*how) if len(how) > 1 else how[0]

    def description(self) -> Pair:
        who, (is_english, is_german), how = self._described()
        return Pair(
            f"{who.english} {is_english} {how.english}.", f"{who.german} {is_german} {how.german}."
        )

    def departure(self) -> Pair:
        what, when = self._random.choice(_TRIPS), self.time()
        day = self._random.choice((Pair("", ""), self.day("present"), self.day("present")))
        english, german = self._random.choice((("leaves", "ab"), ("arrives", "an")))
        verb = "fährt" if german == "ab" else "kommt"
        return Pair(
            f"{words('the', what.english, english, day.english, when.english)}.",
            f"{words(what.german, verb, day.german, when.german, german)}.",
        )

    def date(self) -> Pair:
        day, (month, num_days) = self._random.choice(_DAYS), self._random.choice(_MONTHS)
        if self._chance(0.02):
            return Pair(f"today is {day.english}.", f"heute ist {day.german}.")
        which = ordinal(self._random.randint(1, num_days))
        return Pair(
            f"today is {day.english}, the {which.english} of {month.english}.",
            f"heute ist {day.german}, der {which.german} {month.german}.",
        )

    def sum(self) -> Pair:
        first, second = self._random.randrange(2, 500), self._random.randrange(2, 500)
        numbers = number(first), number(second), number(first + second)
        return Pair(
            "{} plus {} is {}.".format(*(n.english for n in numbers)),
            "{} plus {} ist {}.".format(*(n.german for n in numbers)),
        )


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
    """Yield the pairs of a split: 40,000 to train, 300 to validate, 300 to test.

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
