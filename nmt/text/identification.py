"""Identification of the language of a text: by py3langid, and by trigrams of the training text.

py3langid identifies about 140 languages. If it cannot distinguish the languages of a model,
`LanguageProfiles` that `nmt prepare` has learned from the training text distinguish them.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from math import exp, log, sqrt
from typing import TYPE_CHECKING

import numpy as np
from langcodes import tag_distance

from nmt.config.language_codes import matching
from nmt.text.languages import foreign_share, letters_of

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

_MAX_CODES = 1024  # Codes in a cache.
_LAST_TEXTS = 16  # Several filters read the same pair.
_TEXTS_AT_ONCE = 1000
_LONGEST_AT_ONCE = 1000  # Bytes of a text that is identified together with others.
# Smallest lead of a label, in log probability. Another order of the same sum cannot change such a
# label, nor can two columns of the model with the same label, which count log 2 at most.
_CLEAR_LEAD = 0.8
_NO_LANGUAGE = "zxx"
# Distances of CLDR, from 0 to 134, at which a sentence does not distinguish two languages: the
# smaller distance of both directions, or both.
_NEAR_ONE_WAY = 14
_NEAR_BOTH_WAYS = 24
_NUM_TRIGRAMS = 2000  # Trigrams in the profile of a language.
# The counts of each language are scaled to this sum before smoothing. Otherwise a language with
# less text would give a higher probability to trigrams that it does not have.
_SMOOTHED_TRIGRAMS = 100_000
# Lowest usual mean log probability per trigram. With profiles of Tatoeba or Multi30k, 7% of the
# English news lines have less, and 98% of the lines in 127 other languages.
_USUAL_LOG_PROB = -8.5
# Odds of another language at which a text is clearly not in a language: 1 of 36,000 lines in the
# language reached them.
_CLEAR_ODDS = 20.0
_FEWEST_LETTERS = 10  # Shorter texts are never clearly in another language.
_UNSEEN = ""  # Key of the log probability of a trigram that is not in the profile.


@cache
def identifier() -> LanguageIdentifier:
    """Return the model of py3langid, which takes half a second to load."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier  # noqa: PLC0415 - slow to load

    model = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    # For the same products: numpy converts half precision slowly.
    model.nb_ptc = model.nb_ptc.astype(np.float32)
    return model


@lru_cache(_MAX_CODES)
def label_of(code: str) -> str | None:
    """Return py3langid's label of a language; None if py3langid does not support it.

    >>> label_of("deu_Latn"), label_of("kmr"), label_of("nb"), label_of("shn")
    ('de', 'ku', 'no', None)
    """
    labels = matching(code, identifier().labels)
    return labels[0] if labels else None


@lru_cache(_MAX_CODES)
def similar_labels(code: str) -> frozenset[str]:
    """Return the labels of a language, and of those that a sentence does not distinguish from it.

    Empty if py3langid does not support the language.

    >>> sorted(similar_labels("ary_Arab")), sorted(similar_labels("hrv")), similar_labels("shn")
    (['ar', 'ary'], ['bs', 'hr', 'sr'], frozenset())
    """
    return similar_codes(code, tuple(identifier().labels))


@lru_cache(_MAX_CODES)
def similar_codes(code: str, codes: tuple[str, ...]) -> frozenset[str]:
    """Return the codes of a language, and of those that a sentence does not distinguish from it.

    Empty if no code matches the language.
    """
    matches = matching(code, codes)
    similar = set(matches)
    for match in matches:
        for candidate in codes:
            # The distance of two languages depends on the direction.
            forth = tag_distance(match, candidate, ignore_script=True)
            back = tag_distance(candidate, match, ignore_script=True)
            if min(forth, back) <= _NEAR_ONE_WAY or max(forth, back) <= _NEAR_BOTH_WAYS:
                similar.add(candidate)
    return frozenset(similar)


@lru_cache(_LAST_TEXTS)
def likeliest_label(text: str) -> str:
    """Return the label of the likeliest language."""
    return _labels_ahead.get(text) or identifier().classify(text)[0]


_labels_ahead = dict[str, str]()  # Labels of the texts of `look_ahead`.


def look_ahead(texts: Iterable[str]) -> None:
    """Identify many texts at once, so that `likeliest_label` of these texts is quick.

    It takes a third of the time. Long texts and unclear ones are left to py3langid.
    """
    _labels_ahead.clear()
    contents = []
    for text in dict.fromkeys(texts):
        content = text.encode("utf-8", "surrogatepass")
        # py3langid changes texts in capitals and composes accents.
        is_usual = not text.isupper() and unicodedata.is_normalized("NFC", text)
        if is_usual and 0 < len(content) <= _LONGEST_AT_ONCE:
            contents.append(content)
    contents.sort(key=len)
    for start in range(0, len(contents), _TEXTS_AT_ONCE):
        labels = _clear_labels(contents[start : start + _TEXTS_AT_ONCE])
        _labels_ahead.update(labels)


def _clear_labels(contents: Sequence[bytes]) -> Iterator[tuple[str, str]]:
    """Yield each text whose likeliest label leads clearly, and the label.

    The finite automaton of py3langid reads the bytes of all texts in parallel, and writes features.

    Args:
        contents: Texts of similar lengths, in UTF-8.
    """
    model = identifier()
    next_states = np.asarray(model.tk_nextmove)  # by row and byte
    rows = np.array(model.tk_row, np.int64)  # by state
    features = np.array(model.tk_output)  # by state; -1 for none
    padded = np.array(contents)  # NUL follows shorter texts
    letters = padded.view(np.uint8).reshape(len(contents), -1)  # (texts, bytes)
    found = np.empty(letters.shape, np.int64)
    states = np.zeros(len(contents), np.int64)
    for index, column in enumerate(letters.T):
        states = next_states[256 * rows[states] + column]
        found[:, index] = features[states]
    for content, row in zip(contents, found, strict=True):
        written = row[: len(content)]
        distinct, counts = np.unique(written[written >= 0], return_counts=True)
        weights = np.log1p(counts, dtype=np.float32)
        scores = weights @ model.nb_ptc[distinct] + model.nb_pc
        second, best = np.partition(scores, -2)[-2:]
        # The square root is py3langid's, too.
        if len(distinct) and best - second > _CLEAR_LEAD * sqrt(len(content)):
            yield content.decode("utf-8", "surrogatepass"), model.nb_classes[scores.argmax()]


def other_label(text: str, code: str, min_odds: float) -> str | None:
    """Return the likeliest label if it is ``min_odds`` times as likely as the language ``code``.

    Returns:
        None if the text can be in the language, or is not in a language, or if py3langid does not
        support ``code``.
    """
    expected_labels = similar_labels(code)
    likeliest = likeliest_label(text)
    if not expected_labels or likeliest in expected_labels or likeliest == _NO_LANGUAGE:
        return None
    probabilities = dict(identifier().rank(text))  # by label
    expected_probability = max(map(probabilities.__getitem__, expected_labels))
    is_other = probabilities[likeliest] >= min_odds * expected_probability
    return likeliest if is_other else None


def are_identifiable(codes: Iterable[str]) -> bool:
    """Whether py3langid supports languages, and distinguishes all of them."""
    labels = [label_of(code) for code in codes]
    return None not in labels and len(set(labels)) == len(labels)


def _trigrams(text: str) -> list[str]:
    padded = f" {text.lower()} "
    return [padded[start : start + 3] for start in range(len(padded) - 2)]


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
            total = _SMOOTHED_TRIGRAMS + _NUM_TRIGRAMS  # one is added to the count of each trigram
            profile = {_UNSEEN: round(log(1 / total), 3)}
            for trigram, count in counts.most_common(_NUM_TRIGRAMS):
                profile[trigram] = round(log((scale * count + 1) / total), 3)
            log_probs[code] = profile
        return cls(log_probs)

    def cover(self, codes: Iterable[str]) -> bool:
        """Whether there is a profile of every language."""
        return all(code in self.log_probs for code in codes)

    def likeliest(self, text: str) -> str:
        """Return the likeliest language."""
        shares = self.shares(text, list(self.log_probs))
        return max(shares, key=shares.__getitem__)

    def other(self, text: str, code: str, min_odds: float) -> str | None:
        """Return the likeliest language if it is ``min_odds`` times as likely as ``code``.

        None if it is not, or if it is the language ``code`` itself.
        """
        likeliest = self.likeliest(text)
        shares = self.shares(text, [likeliest, code])
        is_other = likeliest != code and shares[likeliest] >= min_odds * shares[code]
        return likeliest if is_other else None

    def recognize(self, text: str, code: str) -> bool:
        """Whether a text is usual in a language, and no other language of the profiles likelier."""
        if code not in self.log_probs or self.likeliest(text) != code:
            return False
        trigrams = _trigrams(text)
        return self._log_prob(trigrams, code) >= _USUAL_LOG_PROB * len(trigrams)

    def _log_prob(self, trigrams: Sequence[str], code: str) -> float:
        profile = self.log_probs[code]
        unseen = profile.get(_UNSEEN, 0.0)
        return sum(profile.get(trigram, unseen) for trigram in trigrams)

    def shares(self, text: str, codes: Sequence[str]) -> dict[str, float]:
        """Return the probability of each language, if the text is in one of them."""
        trigrams = _trigrams(text)
        # As in py3langid: trigrams depend on each other, so their log probabilities count less.
        scale = sqrt(max(len(trigrams), 1))
        log_probs = {code: self._log_prob(trigrams, code) / scale for code in codes}
        # Softmax. The maximum is subtracted because `exp` of very low values is 0.
        highest = max(log_probs.values())
        weights = {code: exp(log_prob - highest) for code, log_prob in log_probs.items()}
        total = sum(weights.values())
        return {code: weight / total for code, weight in weights.items()}


NO_PROFILES = LanguageProfiles()


def clear_label(
    text: str,
    code: str,
    profiles: LanguageProfiles = NO_PROFILES,
    min_letters: int = _FEWEST_LETTERS,
) -> str | None:
    """Return the likeliest label if a text is clearly not in the language ``code``, else None.

    Text that the profiles recognize is not passed to py3langid, which takes half a second to load.
    A text of at most ``min_letters`` letters is never clear.

    >>> clear_label("Tengo un perro negro.", "en"), clear_label("I have a black dog.", "en")
    ('es', None)
    """
    if sum(map(str.isalpha, text)) <= min_letters or profiles.recognize(text, code):
        return None
    return other_label(text, code, _CLEAR_ODDS)


def language_shares(
    text: str, codes: Sequence[str], profiles: LanguageProfiles = NO_PROFILES
) -> dict[str, float]:
    """Return the probability of each of several languages.

    If py3langid or the profiles cannot distinguish them, the script does, as far as it can.
    """
    if profiles.cover(codes) and not are_identifiable(codes):
        return profiles.shares(text, codes)
    probabilities = dict(identifier().rank(text))  # by label
    labels = dict.fromkeys(filter(None, map(label_of, codes)))
    # That the text is in none of the languages that py3langid supports.
    no_label = 1 - sum(probabilities[label] for label in labels)
    shares = {}
    for code in codes:
        label = label_of(code)
        if label is not None:
            shares[code] = probabilities[label] * (1 - foreign_share(text, code))
        elif letters_of(code) is None:  # neither label nor script is known
            shares[code] = 0.0
        else:
            shares[code] = no_label * (1 - foreign_share(text, code))
    return shares
