"""The built-in demo corpus: English-German sentence pairs from a small grammar.

The sentences are about people who buy, look for and paint things. They show real morphology
(gender, case, adjective endings, conjugation) and reordering (verb second, participles and
infinitives last, separable verbs, questions, subordinate clauses). Each rule builds both languages
together, so every pair is a correct translation.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import islice, tee
from typing import Any, NamedTuple

from nmt.config.language_codes import primary_code
from nmt.errors import ConfigError
from nmt.installation import read_toml


class Phrase(NamedTuple):
    """A phrase in both languages."""

    english: str
    german: str


class Noun(NamedTuple):
    """A noun in both languages."""

    singular: str
    plural: str
    german: str
    german_plural: str
    gender: str  # m, f or n
    accusative: str


class Determiner(NamedTuple):
    """An article or a number."""

    english: str
    # German, and the ending of the adjectives after it: by gender, and for masculine nouns in the
    # ``accusative``; or only for the ``plural``.
    forms: Mapping[str, Sequence[str]]


_WORDS: dict[str, Any] = read_toml(__file__, "demo.toml")  # comments there explain the columns


def _pairs(key: str) -> list[Phrase]:
    """Return a list of words in both languages."""
    return [Phrase(*row) for row in _WORDS[key]]


_NUMBERS = _pairs("numbers")
_TENS = _pairs("tens")
_DAYS = _pairs("days")
_FORMS: dict[str, str] = _WORDS["forms"]  # by tense: a German form or ending for each person
# Persons, which are columns of `_FORMS`.
_THIRD = 2
_PLURAL = 4
_NUM_ADJECTIVES = (0, 0, 1, 1, 1, 2, 2, 3)  # Of a noun. One number is drawn.
_SPLITS = {"test": (0, 300), "valid": (300, 600), "train": (600, 40_600)}  # First pair, and end.


def number(value: int) -> Phrase:
    """Spell a number from 0 to 99.

    >>> number(21)
    Phrase(english='twenty-one', german='einundzwanzig')
    """
    if value < len(_NUMBERS):
        return _NUMBERS[value]
    tens = _TENS[value // 10 - 2]  # the list starts with twenty
    ones = value % 10
    if ones == 0:
        return tens
    english, german = _NUMBERS[ones]
    if ones == 1:
        german = "ein"  # not "eins"
    return Phrase(f"{tens.english}-{english}", f"{german}und{tens.german}")  # ones before tens


def noun_phrase(
    determiner: Determiner, adjectives: Sequence[Phrase], noun: Noun, *, is_object: bool
) -> Phrase:
    """Return a noun phrase whose determiner and adjectives agree with the noun."""
    if "plural" in determiner.forms:
        case = "plural"
        english = noun.plural
        german = noun.german_plural
    else:
        # Only masculine nouns have another article as an object.
        case = "accusative" if is_object and noun.gender == "m" else noun.gender
        english = noun.singular
        german = noun.accusative if is_object else noun.german
    german_determiner, ending = determiner.forms[case]
    english_words = [word.english for word in adjectives]
    english_words.append(english)
    article = determiner.english
    if article == "a" and english_words[0][0] in "aeio":  # the first letter of the next word
        article = "an"
    german_words = [word.german + ending for word in adjectives]
    english_phrase = " ".join([article, *english_words])
    german_phrase = " ".join([german_determiner, *german_words, german])
    return Phrase(english_phrase, german_phrase)


@dataclass(frozen=True)
class _Clause:
    """The parts of a clause, from which the rules build sentences."""

    tense: str  # a key of `_FORMS`
    # In English:
    statement: str
    question: str
    # In German:
    subject: str
    verb: str  # the finite verb, without a separable prefix
    thing: str  # the object
    end: str  # last words of a main clause: prefix, participle or infinitive
    subordinate_end: str  # last words of a subordinate clause, which include the finite verb


class SentenceGenerator:
    """Draws random sentence pairs. A rule returns English, German and final punctuation."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._choice = self._random.choice

    def sentence(self) -> Phrase:
        """Draw a sentence and its translation."""
        rules = [self._statement] * 5  # five of eight sentences
        rules += [self._because, self._because, self._question]
        english, german, mark = self._choice(rules)()
        texts = []
        for words in (english, german):
            # Absent parts of a sentence leave spaces.
            text = " ".join(words.split()).replace(" ,", ",")
            texts.append(text[0].upper() + text[1:] + mark)
        return Phrase(*texts)

    def _noun(self, names: str, kinds: str, *, is_object: bool = False) -> tuple[Phrase, int]:
        """Draw a noun phrase and its person.

        Args:
            names: Determiners to choose from, with slashes between them: keys of the list of
                determiners, or ``number``.
            kinds: Kinds of nouns to choose from: ``p`` for people, ``t`` for things.
            is_object: Whether the phrase is an object.
        """
        kind = self._choice(kinds)
        name = self._choice(names.split("/"))
        groups = _WORDS["adjectives"]  # a noun gets at most one adjective of a group
        if kind == "p":
            groups = groups[:3]  # the other groups do not suit people
        num_adjectives = self._choice(_NUM_ADJECTIVES)
        drawn_groups = self._random.sample(groups, num_adjectives)
        adjectives = [Phrase(*self._choice(group)) for group in drawn_groups]
        noun = Noun(*self._choice(_WORDS["nouns"][kind]))
        # The number is always drawn, even if it is not used.
        count = number(self._random.randrange(2, 100))
        determiner = Determiner(count.english, {"plural": (count.german, "e")})
        if name != "number":
            determiner = Determiner(*_WORDS["determiners"][name])
        phrase = noun_phrase(determiner, adjectives, noun, is_object=is_object)
        return phrase, _PLURAL if "plural" in determiner.forms else _THIRD

    def _subject(self) -> tuple[Phrase, int]:
        """Draw a subject and its person."""
        kind = self._choice(["pronouns", "names", "people"])
        if kind == "people":
            return self._noun("the/the/a/the plural", "p")  # "the" is drawn twice as often
        english, german, person = self._choice(_WORDS[kind])
        return Phrase(english, german), person

    def _clause(self) -> _Clause:
        """Draw a subject, a verb in a tense, and an object."""
        tense = self._choice(["past", *_FORMS])  # the past is drawn twice as often
        subject, person = self._subject()
        base, third, past, prefix, stem, participle, kinds = self._choice(_WORDS["verbs"])
        thing, _ = self._noun("the/a/a/the plural/plural/number", kinds, is_object=True)
        # German: the ending of the verb in the present, else the auxiliary or modal verb.
        finite = _FORMS[tense].split()[person]
        if tense == "present":  # he fetches: er holt ... ab; weil er ... abholt
            auxiliary = "do"
            verb = base
            if person == _THIRD:
                auxiliary = "does"
                verb = third
            finite = stem + finite
            end = prefix
            subordinate_end = prefix + finite
        elif tense == "past":  # he fetched: er hat ... abgeholt; weil er ... abgeholt hat
            auxiliary = "did"
            verb = past
            end = participle
            subordinate_end = f"{participle} {finite}"
        else:  # he must fetch: er muss ... abholen; weil er ... abholen muss
            auxiliary = tense
            verb = f"{tense} {base}"
            end = f"{prefix}{stem}en"
            subordinate_end = f"{end} {finite}"
        return _Clause(
            tense=tense,
            statement=f"{subject.english} {verb} {thing.english}",
            question=f"{auxiliary} {subject.english} {base} {thing.english}",
            subject=subject.german,
            verb=finite,
            thing=thing.german,
            end=end,
            subordinate_end=subordinate_end,
        )

    def _when(self, tense: str) -> tuple[Phrase, Phrase]:
        """Draw a day that suits the tense, and a time of day."""
        weekday = self._choice(_DAYS)
        hour = number(self._random.randrange(2, 13))  # from two to twelve
        other_day = self._choice(_pairs("past_days" if tense == "past" else "later_days"))
        day = self._choice([Phrase(f"on {weekday.english}", f"am {weekday.german}"), other_day])
        return day, Phrase(f"at {hour.english} o'clock", f"um {hour.german} Uhr")

    def _statement(self) -> tuple[str, str, str]:
        """Draw a statement, with up to two adverbials of time."""
        clause = self._clause()
        day, time = self._when(clause.tense)
        none = Phrase("", "")
        # Adverbials at the beginning of the sentence, and after its verb.
        orders = [(none, none), (day, none), (none, day), (day, time)]
        opening, later = self._choice(orders)
        start = f"{clause.subject} {clause.verb}"
        if opening.german:  # the German verb stays second, so the subject moves behind it
            start = f"{opening.german} {clause.verb} {clause.subject}"
        german = f"{start} {later.german} {clause.thing} {clause.end}"
        return f"{opening.english} {clause.statement} {later.english}", german, "."

    def _question(self) -> tuple[str, str, str]:
        """Draw a question. Its German verb comes first."""
        clause = self._clause()
        day, _ = self._when(clause.tense)
        german = f"{clause.verb} {clause.subject} {day.german} {clause.thing} {clause.end}"
        return f"{clause.question} {day.english}", german, "?"

    def _because(self) -> tuple[str, str, str]:
        """Draw two clauses. In the German subordinate clause, the verb comes last."""
        main = self._clause()
        reason = self._clause()
        german = f"{main.subject} {main.verb} {main.thing} {main.end}, "
        german += f"weil {reason.subject} {reason.thing} {reason.subordinate_end}"
        return f"{main.statement} because {reason.statement}", german, "."


def _draw() -> Iterator[Phrase]:
    """Draw pairs without end: the test set, the validation set, then the training data.

    No sentence of a language occurs twice.
    """
    generator = SentenceGenerator(seed=20_241)
    seen = set[str]()
    while True:
        pair = generator.sentence()
        if seen.isdisjoint(pair):  # both sentences are new
            seen.update(pair)
            yield pair


_CORPUS = tee(_draw(), 1)[0]  # Its copies share what was drawn so far.


def demo_pairs(split: str, source_language: str, target_language: str) -> Iterator[tuple[str, str]]:
    """Yield the pairs of a split: ``train`` (40,000), ``valid`` (300) or ``test`` (300).

    Raises:
        ConfigError: The languages are not English and German.
    """
    # Variants such as de-AT count as German, but other codes that begin with de, such as den, do
    # not.
    languages = [primary_code(source_language), primary_code(target_language)]
    if sorted(languages) != ["de", "en"]:
        raise ConfigError(
            f"The demo corpus is English and German, not {' and '.join(languages)}.",
            fix="Set source_language and target_language to en and de.",
        )
    for english, german in islice(copy(_CORPUS), *_SPLITS[split]):
        yield (english, german) if languages[0] == "en" else (german, english)
