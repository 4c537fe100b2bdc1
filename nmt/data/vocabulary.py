"""Learns the vocabularies from a sample of the training pairs, weighted as in training.

SentencePiece counts characters in all of the text. If one language has much more text than
another, the letters of the other are too rare for the vocabulary, and its sentences are spelled in
bytes. Therefore `cover` chooses characters so that each language of a training has its letters.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from nmt.config.data import DataConfig, Direction, TokenizerConfig
from nmt.data.plan import build_stages, epoch_weights
from nmt.data.prepared import Recipe
from nmt.data.resegment import noisy_texts
from nmt.text import NUM_SPECIAL, tokenizer
from nmt.text.cleaning import clean_source

_MOST_CHARACTERS = 100_000_000
_SEED = 1
_NOISE_SEED = 1
# Fixed, because the unigram model depends on this number but must not depend on the machine.
_LEARNING_THREADS = 16
_NUM_BYTES = 256
_PRECISION = 100  # SentencePiece counts lines in whole numbers: the rarest line counts so often.


class Reservoir:
    """Keeps a uniform random sample of the added pairs, in bounded memory (Vitter 1985).

    Args:
        capacity: Maximum number of pairs.
        random: Source of random numbers. The same pairs and numbers give the same sample.
    """

    def __init__(self, capacity: int, random: random.Random) -> None:
        self._capacity = capacity
        self._random = random
        self.pairs = list[tuple[str, str]]()  # the sample: source and target
        self.num_added = 0  # pairs, in the sample or not
        self.num_characters = 0  # of the sample

    def add(self, source: str, target: str) -> None:
        """Add a pair, by algorithm R.

        The i-th pair enters a full sample with probability capacity / i, and replaces a random
        pair. So all pairs so far are in the sample with the same probability.
        """
        self.num_added += 1
        index = len(self.pairs)  # behind the last pair: append
        if index >= self._capacity:
            index = self._random.randrange(self.num_added)
            if index >= self._capacity:  # the pair does not enter
                return
        pair = clean_source(source), target
        self.num_characters += _size(pair)
        if index == len(self.pairs):
            self.pairs.append(pair)
        else:
            self.num_characters -= _size(self.pairs[index])
            self.pairs[index] = pair

    def halve(self) -> None:
        """Remove a random half of the sample, so that it stays uniform. Halve the capacity too."""
        self._capacity = len(self.pairs) // 2
        self.pairs = self._random.sample(self.pairs, self._capacity)
        self.num_characters = sum(map(_size, self.pairs))


def _size(pair: tuple[str, str]) -> int:
    """Return the number of characters of both sides."""
    return len(pair[0]) + len(pair[1])


class TextSample:
    """A sample of each training corpus, with clean sources.

    Whenever all samples together are too large, the one with the most pairs is halved.

    Args:
        directions: Languages of each corpus.
        max_pairs: Maximum number of pairs.
        max_characters: Maximum number of characters.
        seed: Seed of the random generator.
        noise: Rates of the noise that training adds, by corpus. The sample has this noise too, so
            that the vocabulary contains it.
    """

    def __init__(
        self,
        directions: Mapping[str, Direction],
        max_pairs: int,
        *,
        max_characters: int = _MOST_CHARACTERS,
        seed: int = _SEED,
        noise: Mapping[str, Mapping[str, float]] = MappingProxyType({}),
    ) -> None:
        generator = random.Random(seed)
        self._directions = directions
        self._max_pairs = max_pairs
        self._max_characters = max_characters
        self._reservoirs = {name: Reservoir(max_pairs, generator) for name in directions}
        self._noise = noise
        self._noise_random = random.Random(_NOISE_SEED)
        # Of all samples together.
        self._num_pairs = 0
        self._num_characters = 0
        # How often SentencePiece counts a line of each corpus.
        self._counts = dict.fromkeys(directions, 1)

    def add(self, corpus: str, source: str, target: str) -> None:
        """Add a pair of a corpus. Halve the largest sample as long as there is too much text."""
        rates = self._noise.get(corpus)
        if rates:
            source, target = noisy_texts((source, target), rates, self._noise_random)
        reservoir = self._reservoirs[corpus]
        # The totals lose the old size of a sample that changes, and get its new size.
        self._add_sizes(reservoir, -1)
        reservoir.add(source, target)
        self._add_sizes(reservoir, 1)
        while self._num_pairs > 1 and self._is_full():
            reservoirs = self._reservoirs.values()
            largest = max(reservoirs, key=lambda reservoir: len(reservoir.pairs))
            self._add_sizes(largest, -1)
            largest.halve()
            self._add_sizes(largest, 1)

    def _add_sizes(self, reservoir: Reservoir, sign: int) -> None:
        """Add the size of a sample to the totals; with the sign -1, subtract it."""
        self._num_pairs += sign * len(reservoir.pairs)
        self._num_characters += sign * reservoir.num_characters

    def _is_full(self) -> bool:
        return self._num_pairs > self._max_pairs or self._num_characters > self._max_characters

    def weigh(self, data: DataConfig) -> None:
        """Count each corpus as often as training reads it."""
        sizes = [reservoir.num_added for reservoir in self._reservoirs.values()]
        weights = training_weights(data, sizes)
        frequencies = {}  # by corpus: how many pairs of training a line of its sample stands for
        for (name, reservoir), weight in zip(self._reservoirs.items(), weights, strict=True):
            num_read = weight * reservoir.num_added
            frequencies[name] = num_read / max(len(reservoir.pairs), 1)
        positive = list(filter(None, frequencies.values()))
        # Counts are whole numbers: 1 if all are equal, else `_PRECISION` for the rarest line.
        unit = min(positive, default=1.0)
        if unit != max(positive, default=1.0):
            unit /= _PRECISION
        self._counts = {name: round(value / unit) for name, value in frequencies.items()}

    def characters(self, sides: Sequence[int]) -> dict[str, Counter[str]]:
        """Return how often each character occurs in each language of some sides.

        Args:
            sides: 0 for sources, 1 for targets.

        Returns:
            By language: counts of characters, in which each line counts as often as in `lines`.
        """
        counts = dict[str, Counter[str]]()
        for name, reservoir in self._reservoirs.items():
            for side in sides:
                sample_counts = Counter[str]()
                for pair in reservoir.pairs:
                    sample_counts.update(pair[side])
                language_counts = counts.setdefault(self._directions[name][side], Counter())
                for character, count in sample_counts.items():
                    language_counts[character] += count * self._counts[name]
        return counts

    def lines(self, sides: Sequence[int], *, is_last: bool) -> Iterator[tuple[str, int]]:
        """Yield the lines of some sides, and how often to count them.

        Args:
            sides: 0 for sources, 1 for targets.
            is_last: Whether to remove the pairs from the sample while they are yielded, so that the
                caller can copy them without extra memory.
        """
        for name, reservoir in self._reservoirs.items():
            pairs = deque(reservoir.pairs)
            if is_last:  # then the deque has the only reference to each pair
                reservoir.pairs = []
            while pairs:
                pair = pairs.popleft()
                for side in sides:
                    yield pair[side], self._counts[name]


@dataclass(frozen=True)
class Coverage:
    """The characters of a vocabulary, and what it lacks."""

    characters: frozenset[str]  # characters that the vocabulary contains
    num_wanted: int  # number of characters with unlimited room
    # For each language that lacks wanted characters: their number, and their share of its text.
    lacking: Mapping[str, tuple[int, float]]


def cover(counts: Mapping[str, Counter[str]], share: float, room: int | None) -> Coverage:
    """Choose characters that make up a share of the text of each language.

    If there is not enough room, the characters with the largest share of the text of any language
    are chosen, so that a small language loses as little as a large one.

    Args:
        counts: How often each character occurs, by language.
        share: Share of the characters of each language's text to cover.
        room: Maximum number of characters; None for no limit.

    >>> counts = {"de": Counter("a" * 70 + "b" * 28 + "c" * 2), "el": Counter("\u03b1\u03b2")}
    >>> sorted(cover(counts, 0.98, None).characters)
    [' ', 'a', 'b', '\u03b1', '\u03b2']
    >>> sorted(cover(counts, 0.98, 3).characters)
    [' ', 'a', '\u03b1']
    """
    wanted = {language: _most_frequent(count, share) for language, count in counts.items()}
    # The largest share of each wanted character in any language. The space is always chosen.
    shares = {" ": 1.0}
    for language, characters in wanted.items():
        total = counts[language].total()
        for character in characters:
            share_here = counts[language][character] / total
            shares[character] = max(share_here, shares.get(character, 0.0))
    # Of equal shares, the character with the lowest code point comes first.
    ranked = sorted(shares, key=lambda character: (-shares[character], character))
    chosen = frozenset(ranked[:room])
    lacking = dict[str, tuple[int, float]]()
    for language, characters in wanted.items():
        missing = [character for character in characters if character not in chosen]
        if missing:
            total = counts[language].total()
            occurrences = sum(counts[language][character] for character in missing)
            lacking[language] = len(missing), occurrences / total
    return Coverage(chosen, len(shares), lacking)


def _most_frequent(counts: Counter[str], share: float) -> list[str]:
    """Return the most frequent characters that make up a share of a text."""
    num_needed = share * counts.total()
    characters = list[str]()
    num_covered = 0
    # Of equally frequent characters, the one with the lowest code point comes first.
    for character in sorted(counts, key=lambda character: (-counts[character], character)):
        if num_covered >= num_needed:
            break
        characters.append(character)
        num_covered += counts[character]
    return characters


def training_weights(data: DataConfig, sizes: Sequence[int]) -> list[float]:
    """Return how often training reads each corpus; the mean of all stages of a curriculum.

    Args:
        data: The data section of the configuration.
        sizes: Number of pairs of each training corpus.
    """
    stages = build_stages(data, sizes)
    if not stages:
        return epoch_weights(data, sizes)
    # Of each corpus: its weights in all stages.
    corpus_weights = zip(*(stage.weights for stage in stages), strict=True)
    return [sum(weights) / len(stages) for weights in corpus_weights]


def learn_tokenizers(sample: TextSample, folder: Path, recipe: Recipe) -> list[str]:
    """Learn the tokenizers, or copy them from a model; write them into a new folder.

    Args:
        sample: Text to learn from. It is empty afterwards if a tokenizer is learned.
        folder: The new folder.
        recipe: Settings of the tokenizers; or the model that fine-tuning starts from, or the run
            that is resumed, whose vocabulary is kept.

    Returns:
        Warnings about characters that the vocabulary does not contain.

    Raises:
        TokenizerError: The vocabulary size does not fit the text, or a given model is damaged.
    """
    folder.mkdir()
    config = recipe.config.tokenizer
    existing = recipe.vocabulary  # a folder of tokenizers; None to learn or adopt them
    if recipe.init_from is not None:
        existing = recipe.init_from / folder.name
    if existing is not None:
        tokenizer.load_tokenizers(existing)  # raises an error if they are damaged
        for path in existing.glob("*.model"):
            shutil.copy(path, folder)
        return []
    # By file name of a model: the sides whose text it is learned from; 0: sources, 1: targets.
    sides_by_name: dict[str, tuple[int, ...]] = {tokenizer.SOURCE: (0,), tokenizer.TARGET: (1,)}
    if config.joint:
        sides_by_name = {tokenizer.JOINT: (0, 1)}
    if config.models is not None:  # files of the user
        for path, name in zip(config.models, sides_by_name, strict=False):
            tokenizer.adopt(path, folder / name)
        return []
    sample.weigh(recipe.data)
    warnings = []
    for name, sides in sides_by_name.items():
        warnings += _learn(sample, folder / name, recipe, sides)
    return warnings


def _learn(sample: TextSample, path: Path, recipe: Recipe, sides: Sequence[int]) -> list[str]:
    """Learn a tokenizer from the text of some sides.

    Args:
        sample: The text. It is empty afterwards if ``sides`` contains the target side.
        path: File to write. Its name is one of `nmt.text.tokenizer`.
        recipe: Settings of the tokenizer.
        sides: 0 for sources, 1 for targets; both for a joint vocabulary.

    Returns:
        Warnings about characters that the vocabulary does not contain.
    """
    # Settings are pairs: of a source or joint vocabulary, which has the index False, and of a
    # target vocabulary, which has the index True.
    is_target = path.name == tokenizer.TARGET
    symbols = recipe.config.tag_symbols[is_target]
    if not is_target:
        # The tokenizer reads clean sources, and symbols are spelled as in its text. A joint one
        # also reads targets, which are not clean, so it has both spellings.
        clean = tuple(map(clean_source, symbols))
        symbols = tuple(dict.fromkeys(symbols + clean)) if len(sides) > 1 else clean
    config = recipe.config.tokenizer.model_copy(update={"user_defined_symbols": symbols})
    characters = None  # no limit
    warnings = []
    if config.kind != "word":  # a word with one character less would be another word
        num_fixed, max_characters = _room(config, is_target=is_target)
        coverage = cover(sample.characters(sides), config.character_coverage, max_characters)
        characters = coverage.characters
        warnings = list(_warnings(coverage, config.vocab_sizes[is_target], num_fixed))
    lines = sample.lines(sides, is_last=1 in sides)
    tokenizer.train_sentencepiece(
        lines, path, config, threads=_LEARNING_THREADS, characters=characters
    )
    return warnings


def _room(config: TokenizerConfig, *, is_target: bool) -> tuple[int, int | None]:
    """Return how many subwords are not learned, and the maximum number of characters, or None.

    Characters take at most half of a vocabulary, so that there is room for longer subwords. Without
    bytes there is no limit, because characters outside of the vocabulary would be lost.
    """
    size = config.vocab_sizes[is_target]
    num_fixed = NUM_SPECIAL + len(config.user_defined_symbols) + config.unused[is_target]
    if not config.byte_fallback:
        return num_fixed, None
    num_fixed += _NUM_BYTES
    max_characters = size - num_fixed
    if config.kind != "char":
        max_characters = min(max_characters, size // 2)
    return num_fixed, max(max_characters, 1)


def _warnings(coverage: Coverage, size: int, num_fixed: int) -> Iterator[str]:
    """Yield a warning for each language whose characters do not all fit into the vocabulary.

    Args:
        coverage: The chosen characters.
        size: Size of the vocabulary.
        num_fixed: Number of its subwords that are not learned.
    """
    # Both limits of `_room` on the number of characters, solved for the size.
    needed = max(2 * coverage.num_wanted, coverage.num_wanted + num_fixed)
    for language, (num_lacking, share) in coverage.lacking.items():
        text = f"a vocabulary of {size:,} has no room for {num_lacking:,} characters of {language} "
        text += f"({share:.1%} of its text), which are therefore spelled in bytes. "
        yield f"{text}To have room for all, set tokenizer.vocab_size to {needed} or more"
