"""Augmentation of the stored text in each epoch: BPE-dropout and noise. Never imports torch.

Noise changes case, punctuation, letters (typos) and spacing. A model trained only on clean text
loses much quality on noisy input (Belinkov and Bisk 2018, Synthetic and Natural Noise Both Break
Neural Machine Translation).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from nmt.data.store import Mask, Rows, Values
from nmt.text import UNK_ID
from nmt.text.flat import FlatIds
from nmt.text.noise import Noise, spacing, title_case, typos, upper_case, without_punctuation
from nmt.text.subword_dropout import SubwordDropout, sentence_generator
from nmt.text.tokenizer import Tokenizers

Sides: TypeAlias = tuple[FlatIds, FlatIds]  # Of source and target.
# (epoch, rows of the store, stored ids) -> the ids to use in this epoch.
Resegment: TypeAlias = Callable[[int, Rows, Sides], Sides]

# Share of words with a typo in a pair that gets typos. It is higher than in real text, so that most
# pairs can stay without noise.
_TYPO_RATE = 0.2
# The constants of SplitMix64.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIXING = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)
# The kinds of noise of `nmt.config.data.NoiseConfig`, in the order in which they are applied, and
# whether they change the target too.
_NOISES: Mapping[str, tuple[Noise, bool]] = MappingProxyType({
    "no_final_punctuation": (without_punctuation, True),
    "typos": (partial(typos, rate=_TYPO_RATE), False),
    "spacing": (spacing, False),
    "title_case": (title_case, True),
    "upper_case": (upper_case, True),
})  # fmt: skip


@dataclass(frozen=True)
class Resegmenter:
    """Segments sentences into other subwords in each epoch (BPE-dropout, Provilkov et al. 2020).

    The result of a pair depends only on seed, epoch and row.
    """

    sides: tuple[SubwordDropout, SubwordDropout]  # Source and target.
    seed: int  # Seed of the run.
    longest: int  # A sentence that would have more subwords keeps the stored ones.

    def __call__(self, epoch: int, rows: Rows, stored: Sides) -> Sides:
        """Return the ids of ``rows`` for the epoch.

        Args:
            epoch: Number of the epoch, from 0.
            rows: Rows of the store.
            stored: Stored ids of both sides.
        """
        source = self._drawn(0, epoch, rows, stored[0])
        target = self._drawn(1, epoch, rows, stored[1])
        return source, target

    def _drawn(self, side: int, epoch: int, rows: Rows, stored: FlatIds) -> FlatIds:
        sentences = stored.rows()
        for place, row in enumerate(rows.tolist()):
            random = sentence_generator(self.seed, epoch, row, side)
            drawn = self.sides[side].resegment(sentences[place], random)
            if len(drawn) <= self.longest:
                sentences[place] = drawn
        return FlatIds.of(sentences)


@dataclass(frozen=True)
class NoiseAdder:
    """Adds noise to a random share of the pairs in each epoch.

    The noise of a pair depends only on seed, epoch and row. A pair stays unchanged if it has
    unknown characters, or if the result would be too long or blank.
    """

    tokenizers: Tokenizers  # Decode the stored pairs and encode the changed texts.
    ends: Rows  # Row at which each corpus of the store ends.
    rates: Sequence[Mapping[str, float]]  # By corpus: share of its pairs by kind of noise.
    seed: int  # Seed of the run.
    longest: int  # Maximum subwords of a side.

    def drawn(self, epoch: int, rows: Rows) -> dict[str, Mask]:
        """Return, for each kind of noise, which ``rows`` receive it in an epoch. (len(rows),)."""
        corpus = np.searchsorted(self.ends, rows, side="right")
        drawn = {}
        for kind in _NOISES:
            rates = np.array([of_corpus.get(kind, 0.0) for of_corpus in self.rates])
            if rates.any():
                drawn[kind] = _uniform(f"{self.seed} {epoch} {kind}", rows) < rates[corpus]
        return drawn

    def __call__(self, epoch: int, rows: Rows, stored: Sides) -> Sides:
        """Return the ids of ``rows`` for the epoch. For the arguments see `Resegmenter`."""
        drawn = self.drawn(epoch, rows)
        is_noisy = np.any(list(drawn.values()), axis=0)
        places = np.flatnonzero(is_noisy).tolist()
        if not places:
            return stored
        source, target = (side.rows() for side in stored)
        for place in places:
            kinds = [kind for kind, is_drawn in drawn.items() if is_drawn[place]]
            random = Random(f"{self.seed} {epoch} {rows[place]}")
            noisy = self._noisy(source[place], target[place], kinds, random)
            source[place], target[place] = noisy
        return FlatIds.of(source), FlatIds.of(target)

    def _noisy(
        self, source: list[int], target: list[int], kinds: Sequence[str], random: Random
    ) -> tuple[list[int], list[int]]:
        sides = source, target
        if UNK_ID in source or UNK_ID in target:
            return sides
        texts = []
        tags = []
        for ids, tokenizer in zip(sides, self.tokenizers, strict=True):
            untagged = tokenizer.without_tags(ids)
            tags.append(ids[: len(ids) - len(untagged)])
            texts.append(tokenizer.decode(untagged))
        noisy = []
        changed = _with_noise((texts[0], texts[1]), kinds, random)
        for text, tokenizer, first in zip(changed, self.tokenizers, tags, strict=True):
            ids = tokenizer.encode(text)
            if not ids or len(first) + len(ids) > self.longest:
                return sides
            noisy.append(first + ids)
        return noisy[0], noisy[1]


def noisy_texts(
    texts: tuple[str, str], rates: Mapping[str, float], random: Random
) -> tuple[str, str]:
    """Add noise to a pair, with the given probability of each kind.

    The vocabulary is learned from text with noise. Otherwise words in capitals would be split into
    single letters.

    >>> noisy_texts(("Ein Hund.", "A dog."), {"upper_case": 1.0}, Random(1))
    ('EIN HUND.', 'A DOG.')
    """
    kinds = [kind for kind in _NOISES if kind in rates]
    drawn = [kind for kind in kinds if random.random() < rates[kind]]
    return _with_noise(texts, drawn, random)


def _with_noise(texts: tuple[str, str], kinds: Iterable[str], random: Random) -> tuple[str, str]:
    for kind in kinds:
        noise, changes_target = _NOISES[kind]
        source, target = texts
        source = noise(source, random)
        if changes_target:
            target = noise(target, random)
        texts = source, target
    return texts


def _uniform(stream: str, rows: Rows) -> Values:
    """Return a random number in [0, 1) for each row, by SplitMix64 (Steele et al. 2014)."""
    start = hashlib.sha256(stream.encode()).digest()[:8]
    z = rows.astype(np.uint64) * _GOLDEN + np.frombuffer(start, "<u8")
    for shift, factor in _MIXING:
        z = (z ^ (z >> shift)) * factor
    z ^= z >> np.uint64(31)
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53


def in_turn(changes: Sequence[Resegment], epoch: int, rows: Rows, stored: Sides) -> Sides:
    """Apply several changes to the stored ids, one after the other."""
    for change in changes:
        stored = change(epoch, rows, stored)
    return stored


_installed: list[Resegment] = []


def install(changes: Sequence[Resegment]) -> None:
    """Store the changes that this worker process makes, so that they are sent only once."""
    _installed[:] = changes


def resegment_installed(epoch: int, rows: Rows, stored: Sides) -> Sides:
    """Apply the changes that `install` has stored."""
    return in_turn(_installed, epoch, rows, stored)
