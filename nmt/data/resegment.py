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

import numpy as np

from nmt.data.store import Mask, Rows, Values
from nmt.text import UNK_ID
from nmt.text.flat import FlatIds
from nmt.text.noise import Noise, spacing, title_case, typos, upper_case, without_punctuation
from nmt.text.subword_dropout import SubwordDropout, sentence_generator
from nmt.text.tokenizer import Tokenizers

Sides = tuple[FlatIds, FlatIds]  # Ids of the sources and of the targets.
# (epoch, rows of the store, stored ids) -> the ids to use in this epoch.
Resegment = Callable[[int, Rows, Sides], Sides]

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
_NOISES: Mapping[str, tuple[Noise, bool]] = {
    "no_final_punctuation": (without_punctuation, True),
    "typos": (partial(typos, rate=_TYPO_RATE), False),
    "spacing": (spacing, False),
    "title_case": (title_case, True),
    "upper_case": (upper_case, True),
}  # fmt: skip


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
        stored_source, stored_target = stored
        source = self._resegment(0, epoch, rows, stored_source)
        target = self._resegment(1, epoch, rows, stored_target)
        return source, target

    def _resegment(self, side: int, epoch: int, rows: Rows, stored: FlatIds) -> FlatIds:
        """Draw a segmentation of each sentence of a side: 0 for sources, 1 for targets."""
        sentences = stored.rows()
        for index, row in enumerate(rows.tolist()):
            random = sentence_generator(self.seed, epoch, row, side)
            ids = self.sides[side].resegment(sentences[index], random)
            if len(ids) <= self.longest:
                sentences[index] = ids
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
        """Return, for each kind of noise, which ``rows`` receive it in an epoch. (len(rows),).

        A kind that no corpus receives is left out.
        """
        corpus = np.searchsorted(self.ends, rows, side="right")  # index of the corpus of each row
        masks = {}
        for kind in _NOISES:
            # Of each corpus: the share of its pairs that receive this kind.
            rates = np.array([corpus_rates.get(kind, 0.0) for corpus_rates in self.rates])
            if rates.any():
                masks[kind] = uniform(f"{self.seed} {epoch} {kind}", rows) < rates[corpus]
        return masks

    def __call__(self, epoch: int, rows: Rows, stored: Sides) -> Sides:
        """Return the ids of ``rows`` for the epoch. For the arguments see `Resegmenter`."""
        masks = self.drawn(epoch, rows)
        is_noisy = np.any(list(masks.values()), axis=0)
        noisy_indices = np.flatnonzero(is_noisy).tolist()  # in ``rows``
        if not noisy_indices:
            return stored
        sources, targets = (side.rows() for side in stored)
        for index in noisy_indices:
            kinds = [kind for kind, mask in masks.items() if mask[index]]
            random = Random(f"{self.seed} {epoch} {rows[index]}")
            noisy_pair = self._noisy_pair(sources[index], targets[index], kinds, random)
            sources[index], targets[index] = noisy_pair
        return FlatIds.of(sources), FlatIds.of(targets)

    def _noisy_pair(
        self, source: list[int], target: list[int], kinds: Sequence[str], random: Random
    ) -> tuple[list[int], list[int]]:
        """Return the ids of a pair with some kinds of noise.

        The ids are unchanged if a side has unknown characters, or would be blank or too long.
        """
        pair = source, target
        if UNK_ID in source or UNK_ID in target:  # cannot be decoded
            return pair
        texts = []
        tags = []  # of each side: the ids of its tags, which get no noise
        for ids, tokenizer in zip(pair, self.tokenizers, strict=True):
            untagged = tokenizer.without_tags(ids)
            tags.append(ids[: len(ids) - len(untagged)])  # tags come first
            texts.append(tokenizer.decode(untagged))
        noisy_ids = []
        changed_texts = _with_noise((texts[0], texts[1]), kinds, random)
        for text, tokenizer, side_tags in zip(changed_texts, self.tokenizers, tags, strict=True):
            ids = tokenizer.encode(text)
            if not ids or len(side_tags) + len(ids) > self.longest:
                return pair
            noisy_ids.append(side_tags + ids)
        return noisy_ids[0], noisy_ids[1]


def noisy_texts(
    texts: tuple[str, str], rates: Mapping[str, float], random: Random
) -> tuple[str, str]:
    """Add noise to a pair, with the given probability of each kind.

    The vocabulary is learned from text with noise. Otherwise words in capitals would be split into
    single letters.

    >>> noisy_texts(("Ein Hund.", "A dog."), {"upper_case": 1.0}, Random(1))
    ('EIN HUND.', 'A DOG.')
    """
    possible = [kind for kind in _NOISES if kind in rates]  # in the order of application
    kinds = [kind for kind in possible if random.random() < rates[kind]]
    return _with_noise(texts, kinds, random)


def _with_noise(texts: tuple[str, str], kinds: Iterable[str], random: Random) -> tuple[str, str]:
    """Apply kinds of noise to source and target, one after the other."""
    for kind in kinds:
        noise, changes_target = _NOISES[kind]
        source, target = texts
        source = noise(source, random)
        if changes_target:
            target = noise(target, random)
        texts = source, target
    return texts


def uniform(stream: str, rows: Rows) -> Values:
    """Return a random number in [0, 1) for each row, by SplitMix64 (Steele et al. 2014).

    The number of a row depends only on the row and on ``stream``, which identifies a sequence of
    independent random numbers, such as one kind of noise in one epoch.
    """
    seed = hashlib.sha256(stream.encode()).digest()[:8]  # 8 bytes: one uint64
    z = rows.astype(np.uint64) * _GOLDEN + np.frombuffer(seed, "<u8")
    for shift, factor in _MIXING:
        z = (z ^ (z >> shift)) * factor
    z ^= z >> np.uint64(31)
    # A float64 has 53 bits, so the highest 53 of the 64 bits are used.
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53


def in_turn(changes: Sequence[Resegment], epoch: int, rows: Rows, stored: Sides) -> Sides:
    """Apply several changes to the stored ids, one after the other."""
    for change in changes:
        stored = change(epoch, rows, stored)
    return stored


_installed: list[Resegment] = []  # The changes of this worker process.


def install(changes: Sequence[Resegment]) -> None:
    """Store the changes that this worker process makes, so that they are sent only once."""
    _installed[:] = changes


def resegment_installed(epoch: int, rows: Rows, stored: Sides) -> Sides:
    """Apply the changes that `install` has stored."""
    return in_turn(_installed, epoch, rows, stored)
