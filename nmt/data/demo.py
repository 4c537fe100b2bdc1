"""The embedded demo corpus: a small grammar of English-German sentence pairs.

Numbers, prices, times, dates, and people who buy, look for and paint things: enough to show real
morphology (gender, case, adjective endings, conjugation) and reordering (verb second, participles
and infinitives last, separable verbs, questions, subordinate clauses). Each rule builds both
languages side by side, so a pair is right by construction. Words and phrases are in ``demo.yaml``.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml

from nmt.errors import ConfigError

_SIZES = {"test": 300, "valid": 300, "train": 40_000}
_SEED = 20_241


class Pair(NamedTuple):
    """A phrase in both languages."""

    english: str
    german: str


class Noun(NamedTuple):
    """A noun with its German gender (m, f, n) and both plurals."""

    english: str
    plural: str
    german: str
    german_plural: str
    gender: str
    accusative: str | None = None
    """Of a weak noun, where it differs from the nominative."""


class Verb(NamedTuple):
    """A verb with an object: English and German forms."""

    english: str
    third: str
    past: str
    german: str
    """Stem of the present tense: kauf -> ich kaufe, du kaufst, er kauft, wir kaufen."""
    participle: str
    takes_people: bool = False
    """Whether its object may be a person."""


class Subject(NamedTuple):
    """Who does it."""

    text: Pair
    person: str
    """``1s 2s 3s 1p 3p``: the form of the verb."""


def _pairs(words: Mapping[str, str]) -> tuple[Pair, ...]:
    return tuple(Pair(*word) for word in words.items())


_WORDS: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
_NUMBERS, _TENS, ORDINALS, _DAYS, _TRIPS = (
    _pairs(_WORDS[name]) for name in ("numbers", "tens", "ordinals", "days", "trips")
)
_MONTHS = tuple((Pair(*names), num_days) for *names, num_days in _WORDS["months"])
_ADJECTIVES = tuple(map(_pairs, _WORDS["adjectives"]))
_NAMES = [Pair(name, name) for name in _WORDS["names"]]
_PEOPLE, _THINGS = ([Noun(*forms) for forms in _WORDS[name]] for name in ("people", "things"))
_VERBS = [Verb(*forms) for forms in _WORDS["verbs"]]
_PRONOUNS = [Subject(Pair(*names), person) for *names, person in _WORDS["pronouns"]]
_OBJECT_PRONOUNS = {who: Pair(*names) for who, names in _WORDS["object_pronouns"].items()}
_NONE = Pair("", "")
_EMPTY = re.compile(" (?=[ .,?])")
"""A space before a field of a template that was empty."""


def phrase(name: str, *parts: Pair, **named: Pair) -> Pair:
    """Fill the fields of a phrase of ``demo.yaml``.

    >>> phrase("both", Pair("old", "alt"), Pair("red", "rot"))
    Pair(english='old and red', german='alt und rot')
    """
    english, german = (
        text.format(*[part[i] for part in parts], **{key: named[key][i] for key in named})
        for i, text in enumerate(_WORDS["phrases"][name])
    )
    return Pair(english, german)


def number(value: int) -> Pair:
    """Spell a number from 0 to 999.

    >>> number(21)
    Pair(english='twenty-one', german='einundzwanzig')
    >>> number(305).german
    'dreihundertfünf'
    """
    if value < len(_NUMBERS):
        return _NUMBERS[value]
    if value >= 100:
        hundreds, rest = _NUMBERS[value // 100], number(value % 100)
        english, german = f"{hundreds.english} hundred", f"{_ein(hundreds)}hundert"
        if value % 100:
            english, german = f"{english} and {rest.english}", german + rest.german
        return Pair(english, german)
    tens, ones = _TENS[value // 10 - 2], _NUMBERS[value % 10]
    if value % 10 == 0:
        return tens
    return Pair(f"{tens.english}-{ones.english}", f"{_ein(ones)}und{tens.german}")


def _ein(value: Pair) -> str:
    """A German number before another word."""
    return value.german.replace("eins", "ein")


def clock_time(hour: int, minute: int) -> Pair:
    """Spell a time of day, in steps of five minutes.

    >>> clock_time(4, 30)
    Pair(english='half past four', german='halb fünf')
    """
    now, following = number(hour), number(hour % 12 + 1)
    if minute == 0:
        return Pair(f"{now.english} o'clock", f"{_ein(now)} Uhr")
    if minute == 30:
        return phrase("half past", now, following)
    few = number(min(minute, 60 - minute)) if minute % 30 != 15 else Pair("a quarter", "Viertel")
    return phrase("past", few, now) if minute < 30 else phrase("to", few, following)


def noun_phrase(
    determiner: str,
    adjectives: Sequence[Pair],
    noun: Noun,
    case: Literal["nominative", "accusative"],
    count: Pair | None = None,
) -> Pair:
    """Return a determiner, adjectives and a noun in agreement.

    The determiner is ``the``, ``a``, ``no``, ``the plural``, ``plural``, ``no plural``, or
    ``number`` with a count above 1. All adjectives take the same German ending.
    """
    names = Pair(noun.plural, noun.german_plural)
    if count is not None:
        (english, german), ending = count, "e"
    elif determiner in _WORDS["plural_articles"]:
        english, german, ending = _WORDS["plural_articles"][determiner]
    else:
        accusative = noun.accusative if case == "accusative" else None
        names = Pair(noun.english, accusative or noun.german)
        german, ending = _WORDS["articles"][case][determiner][noun.gender]
        is_an = determiner == "a" and (adjectives or [names])[0].english[0] in "aeio"
        english = "an" if is_an else determiner
    return Pair(
        " ".join([english, *(word.english for word in adjectives), names.english]).strip(),
        " ".join([german, *(word.german + ending for word in adjectives), names.german]).strip(),
    )


def conjugated(verb: Verb, tense: str, person: str) -> dict[str, Pair]:
    """Return the parts of a verb that phrases name.

    The German ``verb`` comes second, or last in a subordinate clause; an ``auxiliary`` begins a
    question; ``end`` remains after the English auxiliary, or at the end of a German clause.
    """
    base, want, do = verb.english, "want", "do"
    if is_third := person == "3s":
        want, do = "wants", "does"
    english, auxiliary, end = {
        "present": (verb.third if is_third else base, do, base),
        "past": (verb.past, "did", base),
        "want": (f"{want} to {base}", do, f"want to {base}"),
    }.get(tense, (f"{tense} {base}", tense, base))
    if tense == "present":
        finite, german_end = verb.german + _WORDS["endings"][person], ""
    else:
        finite = _WORDS["auxiliaries"][tense][person]
        german_end = verb.participle if tense == "past" else f"{verb.german}en"
    auxiliaries = {"verb": Pair(english, finite), "auxiliary": Pair(auxiliary, finite)}
    return {**auxiliaries, "end": Pair(end, german_end)}


class SentenceGenerator:
    """Draws sentences; each rule is a method that returns a pair."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._choice = self._random.choice
        self._rules: tuple[Callable[[], Pair], ...] = (
            *[self._statement] * 11, *[self._because] * 4, self._question, self._question,
            self._price, self._price, self._date, self._date, self._description, self._departure,
            self._sum,
        )  # fmt: skip

    def sentence(self) -> Pair:
        """Draw a sentence."""
        english, german = (_EMPTY.sub("", text.strip()) for text in self._choice(self._rules)())
        return Pair(english[0].upper() + english[1:], german[0].upper() + german[1:])

    def _chance(self, share: float) -> bool:
        return self._random.random() < share

    def _adjectives(
        self, *, of_people: bool = False, shares: Sequence[int] = (35, 40, 22, 3)
    ) -> list[Pair]:
        """Draw none, one, two or three adjectives, in any order."""
        groups = _ADJECTIVES[:3] if of_people else _ADJECTIVES
        (count,) = self._random.choices(range(len(shares)), shares)
        return [self._choice(group) for group in self._random.sample(groups, count)]

    def _subject(self) -> Subject:
        if self._chance(0.45):
            return self._choice(_PRONOUNS)
        first = self._someone()
        if self._chance(0.06) and (second := self._someone()) != first:
            return Subject(phrase("both", first.text, second.text), "3p")
        return first

    def _someone(self) -> Subject:
        if self._chance(0.4):
            return Subject(self._choice(_NAMES), "3s")
        return self._named(("the", "the", "a", "the plural"), of_people=True)

    def _named(self, determiners: Sequence[str], *, of_people: bool = False) -> Subject:
        """Draw people or a thing in the nominative."""
        determiner, noun = (
            self._choice(determiners),
            self._choice(_PEOPLE if of_people else _THINGS),
        )
        text = noun_phrase(determiner, self._adjectives(of_people=of_people), noun, "nominative")
        return Subject(text, "3p" if determiner == "the plural" else "3s")

    def _something(self, verb: Verb, *, may_be_none: bool) -> Pair:
        of_people = verb.takes_people and self._chance(0.1)
        if of_people and self._chance(0.3):
            return self._choice(_NAMES)
        noun = self._choice(_PEOPLE if of_people else _THINGS)
        adjectives = self._adjectives(of_people=of_people)
        determiners = ["the", "the", "a", "a", "the plural", "plural", "number", "number"]
        determiner = self._choice([*determiners, *["no", "no plural"] * may_be_none])
        count = number(self._random.randrange(2, 100)) if determiner == "number" else None
        return noun_phrase(determiner, adjectives, noun, "accusative", count)

    def _clause(
        self, *, who: Subject | None = None, may_be_none: bool = True
    ) -> tuple[str, dict[str, Pair]]:
        """Draw a tense or modal verb, and a subject, a verb and an object by their names."""
        tense = self._choice(("present", "past", "past", "can", "must", "want"))
        verb = self._choice(_VERBS if tense in ("present", "past") else _VERBS[:-1])
        text, person = who or self._subject()
        if verb.takes_people and self._chance(0.06):
            same = {"ich", "wir"} if person[0] == "1" else {text.german}
            others = [what for name, what in _OBJECT_PRONOUNS.items() if name not in same]
            english, german = self._choice(others)
            what, pronoun = Pair(english, ""), Pair("", german)
        else:
            pronoun = _NONE
            # "must buy no coat" forbids it, "muss keinen Mantel kaufen" does not.
            what = self._something(verb, may_be_none=may_be_none and tense != "must")
            if self._chance(0.05) and (other := self._something(verb, may_be_none=False)) != what:
                what = phrase("both", what, other)
        parts = {"who": text, "what": what, "pronoun": pronoun}
        return tense, parts | conjugated(verb, tense, person)

    def _day(self, tense: str) -> Pair:
        if self._chance(0.5):
            return phrase("on", self._choice(_DAYS))
        if tense == "past":
            return Pair("yesterday", "gestern")
        return self._choice((Pair("today", "heute"), Pair("tomorrow", "morgen")))

    def _time(self) -> Pair:
        hour, minute = self._random.randrange(1, 13), self._random.randrange(0, 60, 5)
        return phrase("at", clock_time(hour, minute))

    def _when(self, tense: str) -> tuple[Pair, Pair]:
        """Return what of the time stands first, and what stands later; both may be empty."""
        kind = self._random.random()
        if kind < 0.42:
            return _NONE, _NONE
        if kind < 0.62:
            return self._day(tense), _NONE
        if kind < 0.76:
            return _NONE, self._day(tense)
        if kind < 0.9:
            return _NONE, self._time()
        if kind < 0.94:
            return self._time(), _NONE
        return self._day(tense), self._time()

    def _statement(self) -> Pair:
        tense, clause = self._clause()
        first, later = self._when(tense)
        name = "statement after time" if first.german else "statement"
        return phrase(name, **clause, first=first, later=later)

    def _question(self) -> Pair:
        if self._chance(0.2):
            return phrase("question of description", *self._described())
        tense, clause = self._clause(may_be_none=False)
        return phrase("question", **clause, later=self._when(tense)[1])

    def _because(self) -> Pair:
        (_, main), (_, reason) = self._clause(), self._clause(who=self._choice(_PRONOUNS))
        return phrase(
            "because", phrase("main clause", **main), phrase("subordinate clause", **reason)
        )

    def _price(self) -> Pair:
        determiners = ("the", "the", "a", "the plural")
        what, person = self._named(determiners)
        euros = number(self._random.randrange(2, 1000))
        if self._chance(0.1) and (other := self._named(determiners)) != (what, person):
            what, person = phrase("both", what, other.text), "3p"
        costs = Pair("cost", "kosten") if person == "3p" else Pair("costs", "kostet")
        return phrase("price", what, costs, euros)

    def _described(self) -> tuple[Pair, Pair, Pair]:
        """Draw people or a thing, the form of "be" that goes with it, and what it is."""
        of_people = self._chance(0.5)
        who, person = self._subject() if of_people else self._named(("the", "the plural"))
        how = self._adjectives(of_people=of_people, shares=(0, 2, 1))
        return who, Pair(*_WORDS["be"][person]), phrase("both", *how) if len(how) > 1 else how[0]

    def _description(self) -> Pair:
        return phrase("description", *self._described())

    def _departure(self) -> Pair:
        what, time = self._choice(_TRIPS), self._time()
        day = self._choice((_NONE, self._day("present"), self._day("present")))
        return phrase(self._choice(("leaves", "arrives")), what, day, time)

    def _date(self) -> Pair:
        day, (month, num_days) = self._choice(_DAYS), self._choice(_MONTHS)
        if self._chance(0.02):
            return phrase("day", day)
        return phrase("date", day, ORDINALS[self._random.randint(1, num_days) - 1], month)

    def _sum(self) -> Pair:
        first, second = self._random.randrange(2, 500), self._random.randrange(2, 500)
        return phrase("sum", number(first), number(second), number(first + second))


def _distinct_pairs() -> Iterator[Pair]:
    """Draw pairs without end; no sentence stands on the same side twice."""
    generator, seen = SentenceGenerator(_SEED), set[str]()
    while True:
        pair = generator.sentence()
        if seen.isdisjoint(pair):
            seen.update(pair)
            yield pair


@cache
def _corpus() -> dict[str, list[Pair]]:
    pairs = _distinct_pairs()
    return {name: list(islice(pairs, size)) for name, size in _SIZES.items()}


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
    from_english = languages[0] == "en"
    for english, german in _corpus()[split]:
        yield (english, german) if from_english else (german, english)
