"""A sample of the training text, and the tokenizers that are learned from it."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from nmt.config.data import TokenizerConfig
from nmt.errors import DataError
from nmt.text.tokenizer import (
    JOINT,
    SOURCE,
    TARGET,
    Tokenizers,
    load_tokenizers,
    train_sentencepiece,
)

_MOST_CHARACTERS = 100_000_000
_SEED = 1
# Fixed: the unigram model depends on it, and should not depend on the machine.
_LEARNING_THREADS = 16


class Reservoir:
    """Keeps a uniform random sample of the pairs added, in bounded memory (Vitter 1985).

    The same pairs give the same sample.

    Args:
        capacity: Most pairs to keep.
        max_characters: Most characters to keep. When the sample outgrows them, a random half of
            it goes, which leaves it uniform.
        seed: Decides what is drawn.
    """

    def __init__(
        self, capacity: int, *, max_characters: int = _MOST_CHARACTERS, seed: int = _SEED
    ) -> None:
        self._capacity, self._max_characters = capacity, max_characters
        self._random = random.Random(seed)
        self._pairs: list[tuple[str, str]] = []
        self._seen = self._characters = 0

    def __len__(self) -> int:
        return len(self._pairs)

    def add(self, source: str, target: str) -> None:
        """Add a pair, by algorithm R."""
        self._seen += 1
        if len(self._pairs) < self._capacity:
            self._pairs.append((source, target))
        else:
            slot = self._random.randrange(self._seen)
            if slot >= self._capacity:
                return
            self._characters -= sum(map(len, self._pairs[slot]))
            self._pairs[slot] = (source, target)
        self._characters += len(source) + len(target)
        if self._characters > self._max_characters and len(self._pairs) > 1:
            self._capacity = len(self._pairs) // 2
            self._pairs = self._random.sample(self._pairs, self._capacity)
            self._characters = sum(len(source) + len(target) for source, target in self._pairs)

    def drain(self) -> Iterator[tuple[str, str]]:
        """Yield the pairs and forget them, so that whoever copies them needs no room for two."""
        self._pairs.reverse()
        while self._pairs:
            yield self._pairs.pop()


def learn_tokenizers(
    sample: Reservoir, folder: Path, config: TokenizerConfig, start_from: Path | None = None
) -> Tokenizers:
    """Write the tokenizers into a new folder, and return them.

    Args:
        sample: Text to learn from; empty afterwards.
        folder: Where to write them.
        config: What they are to be.
        start_from: Folder of tokenizers that are to be taken instead: fine-tuning keeps the
            vocabulary of the model it starts from.

    Raises:
        DataError: The sample is empty.
        TokenizerError: The text allows no vocabulary of this size, or those there are damaged.
    """
    if not len(sample):
        raise DataError(
            "The training corpora hold no pair with text on both sides.",
            fix="Check the files that data.train names.",
        )
    folder.mkdir()
    texts: dict[str, Iterable[str]] = {}
    if start_from is not None:
        load_tokenizers(start_from)  # says what is wrong with them
        for path in start_from.glob("*.model"):
            shutil.copy(path, folder)
    elif config.joint:
        texts = {JOINT: chain.from_iterable(sample.drain())}
    else:
        sources, targets = zip(*sample.drain(), strict=True)
        texts = {SOURCE: sources, TARGET: targets}
    for name, lines in texts.items():
        train_sentencepiece(lines, folder / name, config, threads=_LEARNING_THREADS)
    return load_tokenizers(folder)
