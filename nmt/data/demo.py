"""The built-in demo corpus: English-German sentence pairs from a small grammar.

The sentences are about people who buy, look for and paint things. They show real morphology
(gender, case, adjective endings, conjugation) and reordering (verb second, participles and
infinitives last, separable verbs, questions, subordinate clauses). Each rule builds both languages
together, so every pair is a correct translation.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Iterator, Sequence
from copy import copy
from itertools import islice, tee
from pathlib import Path
from typing import NamedTuple

from nmt.config.language_codes import primary_code
from nmt.errors import ConfigError


class Pair(NamedTuple):
    """A phrase in both languages."""

    english: str
    german: str


def _rows(text: str) -> list[list[str]]:
    return [row.split(":") for row in text.split("/")]


def _pairs(text: str) -> list[Pair]:
    return [Pair(*row) for row in _rows(text)]


# The words of demo.toml. Sentences are drawn by position, so any change of its lists or their order
# changes the corpus.
_WORDS = tomllib.loads(Path(__file__).with_name("demo.toml").read_text(encoding="utf-8"))
_NUMBERS, _TENS, _DAYS, _NAMES = (_pairs(_WORDS[x]) for x in ("numbers", "tens", "days", "names"))
_ADJECTIVES = [_pairs(group) for group in _WORDS["adjectives"]]
_PEOPLE, _THINGS, _VERBS = (_rows(_WORDS[x]) for x in ("people", "things", "verbs"))
_FORMS: dict[str, str] = _WORDS["forms"]
# A subject is a phrase and its person: a column of `_FORMS`.
_THIRD, _PLURAL = 2, 4
_PRONOUNS = [(Pair("I", "ich"), 0), (Pair("you", "du"), 1), (Pair("he", "er"), 2),
             (Pair("she", "sie"), 2), (Pair("we", "wir"), 3), (Pair("they", "sie"), 4)]  # fmt: skip
# English, and German with the ending of the adjectives: m, f, n, and m in the accusative; or one
# form of the plural.
Determiner = tuple[str, list[list[str]]]
_DETERMINERS: dict[str, Determiner] = {
    "the": ("the", _rows("der:e/die:e/das:e/den:en")), "the plural": ("the", [["die", "en"]]),
    "a": ("a", _rows("ein:er/eine:e/ein:es/einen:en")), "plural": ("", [["", "e"]]),
}  # fmt: skip
_SPLITS = {"test": (0, 300), "valid": (300, 600), "train": (600, 40_600)}  # First pair, and end.


def number(value: int) -> Pair:
    """Spell a number from 0 to 99.

    >>> number(21)
    Pair(english='twenty-one', german='einundzwanzig')
    """
    if value < len(_NUMBERS):
        return _NUMBERS[value]
    tens, ones = _TENS[value // 10 - 2], _NUMBERS[value % 10]
    german = f"{ones.german.removesuffix('s') if value % 10 == 1 else ones.german}und{tens.german}"
    return Pair(f"{tens.english}-{ones.english}", german) if value % 10 else tens


def noun_phrase(
    determiner: Determiner, adjectives: Sequence[Pair], noun: Sequence[str], *, is_object: bool
) -> Pair:
    """Return a noun phrase whose determiner and adjectives agree with the noun."""
    english, plural, german, german_plural, gender, *accusative = noun
    article, forms = determiner
    if len(forms) == 1:
        (form, ending), english, german = forms[0], plural, german_plural
    else:
        form, ending = forms[3 if is_object and gender == "m" else "mfn".index(gender)]
        german = accusative[0] if accusative and is_object else german
    english_words = [word.english for word in adjectives] + [english]
    article += "n" * (article == "a" and english_words[0][0] in "aeio")
    german_words = [word.german + ending for word in adjectives] + [german]
    return Pair(" ".join([article, *english_words]), " ".join([form, *german_words]))


class SentenceGenerator:
    """Draws random sentence pairs. A rule returns English, German and final punctuation."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._choice = self._random.choice

    def sentence(self) -> Pair:
        """Draw a sentence and its translation."""
        rules = (*[self._statement] * 5, *[self._because] * 2, self._question)
        english, german, mark = self._choice(rules)()
        texts = (" ".join(text.split()).replace(" ,", ",") for text in (english, german))
        return Pair(*(f"{text[0].upper()}{text[1:]}{mark}" for text in texts))

    def _noun(self, names: str, kinds: str, *, is_object: bool = False) -> tuple[Pair, int]:
        of_people, name = self._choice(kinds) == "p", self._choice(names.split("/"))
        groups = _ADJECTIVES[:3] if of_people else _ADJECTIVES
        chosen = self._random.sample(groups, self._choice((0, 0, 1, 1, 1, 2, 2, 3)))
        adjectives = [self._choice(group) for group in chosen]
        noun = self._choice(_PEOPLE if of_people else _THINGS)
        count = number(self._random.randrange(2, 100))
        determiner = _DETERMINERS.get(name) or (count.english, [[count.german, "e"]])
        text = noun_phrase(determiner, adjectives, noun, is_object=is_object)
        return text, _THIRD if name in ("the", "a") else _PLURAL

    def _subject(self) -> tuple[Pair, int]:
        kind = self._choice(["pronoun", "name", "people"])
        if kind == "people":
            return self._noun("the/the/a/the plural", "p")
        return self._choice(_PRONOUNS) if kind == "pronoun" else (self._choice(_NAMES), _THIRD)

    def _clause(self) -> tuple[str, Pair, tuple[str, str, str], tuple[str, str]]:
        """Draw the parts of a clause, from which the rules build sentences.

        Returns:
            Tense; the English statement and question; German subject, finite verb and object; the
            words at the end of a German main clause and of a German subordinate clause.
        """
        tense, (who, person) = self._choice(["past", *_FORMS]), self._subject()
        base, third, past, prefix, stem, participle, kinds = self._choice(_VERBS)
        what, _ = self._noun("the/a/a/the plural/plural/number", kinds, is_object=True)
        finite = _FORMS[tense].split()[person]
        if tense == "present":
            do, verb = ("does", third) if person == _THIRD else ("do", base)
            finite, end, last = stem + finite, prefix, prefix + stem + finite
        else:
            do, verb = ("did", past) if tense == "past" else (tense, f"{tense} {base}")
            end = participle if tense == "past" else f"{prefix}{stem}en"
            last = f"{end} {finite}"
        subject, thing = who.english, what.english
        english = Pair(f"{subject} {verb} {thing}", f"{do} {subject} {base} {thing}")
        return tense, english, (who.german, finite, what.german), (end, last)

    def _when(self, tense: str) -> tuple[Pair, Pair]:
        """Draw a day that suits the tense, and a time of day."""
        day, hour = self._choice(_DAYS), number(self._random.randrange(2, 13))
        others = _pairs("yesterday:gestern" if tense == "past" else "today:heute/tomorrow:morgen")
        days = (Pair(f"on {day.english}", f"am {day.german}"), self._choice(others))
        return self._choice(days), Pair(f"at {hour.english} o'clock", f"um {hour.german} Uhr")

    def _statement(self) -> tuple[str, str, str]:
        tense, english, (who, verb, what), (end, _) = self._clause()
        none, (day, time) = Pair("", ""), self._when(tense)
        first, later = self._choice(((none, none), (day, none), (none, day), (day, time)))
        start = f"{first.german} {verb} {who}" if first.german else f"{who} {verb}"
        german = f"{start} {later.german} {what} {end}"
        return f"{first.english} {english.english} {later.english}", german, "."

    def _question(self) -> tuple[str, str, str]:
        tense, english, (who, verb, what), (end, _) = self._clause()
        day, _ = self._when(tense)
        return f"{english.german} {day.english}", f"{verb} {who} {day.german} {what} {end}", "?"

    def _because(self) -> tuple[str, str, str]:
        _, main, (who, verb, what), (end, _) = self._clause()
        _, reason, (other, _, thing), (_, last) = self._clause()
        german = f"{who} {verb} {what} {end}, weil {other} {thing} {last}"
        return f"{main.english} because {reason.english}", german, "."


def _draw() -> Iterator[Pair]:
    """Draw pairs without end: the test set, the validation set, then the training data."""
    generator, seen = SentenceGenerator(seed=20_241), set[str]()
    while True:
        if seen.isdisjoint(pair := generator.sentence()):  # no sentence occurs twice
            seen.update(pair)
            yield pair


_CORPUS = tee(_draw(), 1)[0]  # Its copies share what was drawn so far.


def demo_pairs(split: str, source_language: str, target_language: str) -> Iterator[tuple[str, str]]:
    """Yield the pairs of a split: ``train`` (40,000), ``valid`` (300) or ``test`` (300).

    Raises:
        ConfigError: The languages are not English and German.
    """
    # de-AT is German; den is not.
    languages = [primary_code(source_language), primary_code(target_language)]
    if sorted(languages) != ["de", "en"]:
        problem = f"The demo corpus is English and German, not {' and '.join(languages)}."
        raise ConfigError(problem, fix="Set source_language and target_language to en and de.")
    for english, german in islice(copy(_CORPUS), *_SPLITS[split]):
        yield (english, german) if languages[0] == "en" else (german, english)
