"""Identification of the language of a text: by py3langid, and by trigrams of the training text.

py3langid identifies about 140 languages. If it cannot distinguish the languages of a model,
`LanguageProfiles` that `nmt prepare` has learned from the training text distinguish them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from math import exp, log, sqrt
from typing import TYPE_CHECKING

from langcodes import tag_distance

from nmt.config.language_codes import matching
from nmt.text.languages import foreign_share, letters_of

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

_MOST_CODES = 1024  # Codes in a cache.
_LAST_TEXTS = 16  # Several filters read the same pair.
_NO_LANGUAGE = "zxx"
# Distances of CLDR, from 0 to 134, at which a sentence does not distinguish two languages: the
# smaller distance of both directions, or both.
_NEAR_ONE_WAY = 14
_NEAR_BOTH_WAYS = 24
_NUM_TRIGRAMS = 2000
# All languages have as many trigrams, so that the one with less text is not more likely.
_SMOOTHED_TRIGRAMS = 100_000
_UNSEEN = ""  # Key of the log probability of all other trigrams.


@cache
def identifier() -> LanguageIdentifier:
    """Return the model of py3langid, which takes half a second to load."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier  # noqa: PLC0415 - slow to load

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


@lru_cache(_MOST_CODES)
def label_of(code: str) -> str | None:
    """Return py3langid's label of a language; None if py3langid does not support it.

    >>> label_of("deu_Latn"), label_of("kmr"), label_of("nb"), label_of("shn")
    ('de', 'ku', 'no', None)
    """
    labels = matching(code, identifier().labels)
    return labels[0] if labels else None


@lru_cache(_MOST_CODES)
def similar_labels(code: str) -> frozenset[str]:
    """Return the labels of a language, and of those that a sentence does not distinguish from it.

    Empty if py3langid does not support the language.

    >>> sorted(similar_labels("ary_Arab")), sorted(similar_labels("hrv")), similar_labels("shn")
    (['ar', 'ary'], ['bs', 'hr', 'sr'], frozenset())
    """
    return similar_codes(code, tuple(identifier().labels))


@lru_cache(_MOST_CODES)
def similar_codes(code: str, codes: tuple[str, ...]) -> frozenset[str]:
    """Return the codes of a language, and of those that a sentence does not distinguish from it.

    Empty if no code matches the language.
    """
    similar = set(matching(code, codes))
    for match in matching(code, codes):
        for other in codes:
            there = tag_distance(match, other, ignore_script=True)
            back = tag_distance(other, match, ignore_script=True)
            if min(there, back) <= _NEAR_ONE_WAY or max(there, back) <= _NEAR_BOTH_WAYS:
                similar.add(other)
    return frozenset(similar)


@lru_cache(_LAST_TEXTS)
def likeliest_label(text: str) -> str:
    """Return the label of the likeliest language."""
    return identifier().classify(text)[0]


def other_label(text: str, code: str, min_odds: float) -> str | None:
    """Return the likeliest label if it is ``min_odds`` times as likely as the language ``code``.

    Returns:
        None if the text can be in the language, or is not in a language.
    """
    expected = similar_labels(code)
    likeliest = likeliest_label(text)
    if likeliest in expected or likeliest == _NO_LANGUAGE:
        return None
    probabilities = dict(identifier().rank(text))
    most_expected = max(map(probabilities.__getitem__, expected))
    is_other = probabilities[likeliest] >= min_odds * most_expected
    return likeliest if is_other else None


def are_identifiable(codes: Iterable[str]) -> bool:
    """Whether py3langid supports languages, and distinguishes all of them."""
    labels = [label_of(code) for code in codes]
    return None not in labels and len(set(labels)) == len(labels)


def _trigrams(text: str) -> list[str]:
    padded = f" {text.lower()} "
    return [padded[place : place + 3] for place in range(len(padded) - 2)]


@dataclass(frozen=True)
class LanguageProfiles:
    """The most frequent trigrams of characters of each language, learned from training text."""

    # By language: the natural log probability of each trigram, and of `_UNSEEN`.
    log_probs: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @classmethod
    def learn(cls, texts: Mapping[str, Iterable[str]]) -> LanguageProfiles:
        """Count the trigrams of the texts of each language, with add-one smoothing."""
        log_probs = {}
        for code, lines in texts.items():
            counts = Counter[str]()
            for line in lines:
                counts.update(_trigrams(line))
            scale = _SMOOTHED_TRIGRAMS / max(counts.total(), 1)
            total = _SMOOTHED_TRIGRAMS + _NUM_TRIGRAMS
            table = {_UNSEEN: round(log(1 / total), 3)}
            for trigram, count in counts.most_common(_NUM_TRIGRAMS):
                table[trigram] = round(log((scale * count + 1) / total), 3)
            log_probs[code] = table
        return cls(log_probs)

    def cover(self, codes: Iterable[str]) -> bool:
        """Whether there is a profile of every language."""
        return all(code in self.log_probs for code in codes)

    def likeliest(self, text: str) -> str:
        """Return the likeliest language."""
        shares = self.shares(text, list(self.log_probs))
        return max(shares, key=shares.__getitem__)

    def other(self, text: str, code: str, min_odds: float) -> str | None:
        """Return the likeliest language if it is ``min_odds`` times as likely as ``code``."""
        likeliest = self.likeliest(text)
        shares = self.shares(text, [likeliest, code])
        is_other = likeliest != code and shares[likeliest] >= min_odds * shares[code]
        return likeliest if is_other else None

    def shares(self, text: str, codes: Sequence[str]) -> dict[str, float]:
        """Return the probability of each language, if the text is in one of them."""
        trigrams = _trigrams(text)
        # As in py3langid: trigrams depend on each other, so their log probabilities count less.
        scale = sqrt(max(len(trigrams), 1))
        scores = {}
        for code in codes:
            table = self.log_probs[code]
            unseen = table.get(_UNSEEN, 0.0)
            scores[code] = sum(table.get(trigram, unseen) for trigram in trigrams) / scale
        highest = max(scores.values())
        weights = {code: exp(score - highest) for code, score in scores.items()}
        total = sum(weights.values())
        return {code: weight / total for code, weight in weights.items()}


NO_PROFILES = LanguageProfiles()


def language_shares(
    text: str, codes: Sequence[str], profiles: LanguageProfiles = NO_PROFILES
) -> dict[str, float]:
    """Return the probability of each of several languages.

    If py3langid or the profiles cannot distinguish them, the script does, as far as it can.
    """
    if profiles.cover(codes) and not are_identifiable(codes):
        return profiles.shares(text, codes)
    probabilities = dict(identifier().rank(text))
    labels = dict.fromkeys(filter(None, map(label_of, codes)))
    rest = 1 - sum(probabilities[label] for label in labels)
    shares = {}
    for code in codes:
        label = label_of(code)
        if label is not None:
            shares[code] = probabilities[label] * (1 - foreign_share(text, code))
        elif letters_of(code) is None:
            shares[code] = 0.0
        else:
            shares[code] = rest * (1 - foreign_share(text, code))
    return shares
