"""Passes over corpora: blocks are read here, given to workers, and their results taken in order."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from nmt.config.data import CorpusConfig
from nmt.config.run import RunConfig
from nmt.data.cluster import Workers
from nmt.data.corpus import BLOCK_PAIRS, Block, corpus_names, read_blocks
from nmt.data.lines import has_changed
from nmt.data.pairs import BadPair, ReadOptions
from nmt.data.shards import OfBlock, Sharded, Storable
from nmt.extras.cleaning.scores import ScorePairs, Scores
from nmt.files.manifest import sha256_of_json
from nmt.files.progress import progress_bar
from nmt.version import __version__

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R", bound=OfBlock)


class Passes:
    """Reads corpora, as often as is needed, and has workers do something with their blocks.

    Args:
        config: The experiment.
        workers: Who does it.
        shards: Folder of results that an earlier preparation has left, and where to keep them.
        repairs: Shifted ranges that are to be paired again.
    """

    def __init__(
        self,
        config: RunConfig,
        workers: Workers,
        shards: Path | None = None,
        repairs: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self._config, self._workers, self._shards = config, workers, shards
        filters, data = config.filters, config.data
        self.languages = config.source_language, config.target_language
        self._options = ReadOptions(*self.languages, filters.on_bad_utf8, filters.max_characters)
        for name, corpus in zip(corpus_names(data.train), data.train, strict=True):
            if corpus.source is not None and corpus.target is not None:
                own = [each for each in repairs if each["corpus"] == name]
                self._options.shifts[corpus.source, corpus.target] = own
        self.lines: dict[str, int] = {}
        """Lines of each corpus that was read to its end."""

    def blocks(self, corpus: CorpusConfig) -> Iterator[Block]:
        """Yield the blocks of a corpus."""
        return read_blocks(corpus, self._options)

    def scored(self, name: str, corpus: CorpusConfig, score: ScorePairs) -> Scores:
        """Return the scores that models give to every line of a corpus."""
        values: list[float] = []
        with progress_bar(f"scoring {name}", unit="pairs", total=self.lines[name]) as progress:
            for block in self.blocks(corpus):
                pairs = block.pairs()
                values += score([("", "") if isinstance(x, BadPair) else x[:2] for x in pairs])
                progress.update(len(pairs))
        return np.array(values, np.float32)

    def stored(
        self, verb: str, name: str, corpus: CorpusConfig, make: Storable[R], depends_on: Any
    ) -> Iterator[R]:
        """Do as `done` with the blocks of a corpus, and keep results in case the work is stopped.

        Beside the blocks and the configuration they depend on ``depends_on``, plain data.
        """
        parts = [each.model_dump(mode="json") for each in (corpus, self._config.filters)]
        key = sha256_of_json([__version__, verb, name, *self.languages, *parts, depends_on])
        sharded = Sharded(make, self._shards, verb, key, BLOCK_PAIRS)
        for made in self.done(verb, name, sharded, self.blocks(corpus)):
            if made.damaged is not None:
                logger.warning("%s was damaged, and has been made again", made.damaged)
            yield made.result

    def done(self, verb: str, name: str, make: Callable[[T], R], items: Iterator[T]) -> Iterator[R]:
        """Have the workers do something with every block, with a progress bar if somebody watches.

        Yields:
            The results, in the order of the blocks.

        Raises:
            DataError: The corpus has not as many lines as the last time.
        """
        total, known = 0, self.lines.get(name)
        with progress_bar(f"{verb} {name}", unit="pairs", total=known, leave=False) as progress:
            for result in self._workers.map(make, items):
                yield result
                total += result.num_lines
                progress.update(result.num_lines)
        if self.lines.setdefault(name, total) != total:
            raise has_changed(name)
