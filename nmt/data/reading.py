"""One reading of all corpora: what `nmt prepare` works with in both passes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nmt.config.data import CorpusConfig
from nmt.data.block_map import Result, Shards, has_changed, map_blocks
from nmt.data.blocks import Known, kept_pairs
from nmt.data.checks import CorpusCheck
from nmt.data.corpus import BLOCK_PAIRS, Block, read_blocks
from nmt.data.diagnosis import Diagnosis
from nmt.data.freshness import Recipe
from nmt.data.held_out import VALID, report_name
from nmt.data.pairs import ReadOptions, SentencePair
from nmt.data.store import ParallelStore
from nmt.data.workers import Workers
from nmt.files.manifest import sha256_of_json
from nmt.text.tokenizer import Tokenizers
from nmt.version import __version__


class Encoded(NamedTuple):
    """The token ids of every line."""

    tokenizers: Tokenizers
    lines: ParallelStore
    spans: Mapping[str, tuple[int, int]]  # first row of each corpus, and the row behind its last


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of all corpora, and what the first pass leaves to the second."""

    recipe: Recipe
    folder: Path  # an existing, empty folder to write into
    workers: Workers
    shards: Path | None = None  # results of blocks; None to store none
    stages: dict[str, float] = field(default_factory=dict)  # seconds of each stage
    # By the names of corpora and held-out sets in reports:
    num_lines: dict[str, int] = field(default_factory=dict)
    is_kept: dict[str, list[npt.NDArray[np.uint8]]] = field(default_factory=dict)  # bits of blocks
    checks: dict[str, CorpusCheck] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure the time of a part of the work."""
        start = time.perf_counter()
        yield
        self.stages[name] = round(self.stages.get(name, 0) + time.perf_counter() - start, 3)

    def blocks(self, corpus: CorpusConfig) -> Iterator[Block]:
        """Read a corpus."""
        filters = self.recipe.filters
        options = ReadOptions(*self.recipe.languages, filters.on_bad_utf8, filters.max_characters)
        return read_blocks(corpus, options)

    def map(
        self, verb: str, name: str, function: Callable[[Block], Result], depends_on: Any
    ) -> Iterator[tuple[Block, Result]]:
        """Call a function with all blocks of a corpus.

        Results are stored under all that they depend on: the same command after a kill reads them.
        """
        corpus, shards = self.corpora[name], None
        if self.shards is not None:
            settings = [each.model_dump(mode="json") for each in (corpus, self.recipe.filters)]
            key = [__version__, verb, name, self.recipe.languages, settings, depends_on]
            shards = Shards(self.shards, sha256_of_json(key), BLOCK_PAIRS)
        total, blocks = self.num_lines.get(name), self.blocks(corpus)
        what = f"{verb} {name}"
        return map_blocks(what, blocks, function, shards=shards, workers=self.workers, total=total)

    @property
    def corpora(self) -> dict[str, CorpusConfig]:
        """Training corpora and held-out sets."""
        data = self.recipe.data
        sets = {report_name(name): corpus for name, corpus in data.test.items()}
        return {**self.recipe.corpora, VALID: data.valid, **sets}

    def saw(self, name: str, block: Block, result: Result) -> list[SentencePair]:
        """Take what the first pass found in a block; return the pairs that it has kept."""
        is_kept = result.arrays["is_kept"]
        kept = kept_pairs(block, is_kept)
        self.num_lines[name] = self.num_lines.get(name, 0) + len(block)
        self.is_kept.setdefault(name, []).append(np.packbits(is_kept))
        check = self.checks.setdefault(name, CorpusCheck(*self.recipe.languages))
        check.update([pair[:2] for pair in kept], result.arrays["lengths"])
        return kept

    def known_blocks(self, name: str, encoded: Encoded, diagnosis: Diagnosis) -> Iterator[Block]:
        """Yield the blocks of a corpus with all that is known of each."""
        corpus, (first, end) = self.corpora[name], encoded.spans[name]
        for number, block in enumerate(self.blocks(corpus)):
            start = block.first - 1
            rows = slice(first + start, first + start + len(block))
            if rows.stop > end:
                raise has_changed(name)
            source = encoded.lines.source_lengths[rows] + (corpus.tag is not None)
            lengths = np.array([source, encoded.lines.target_lengths[rows]])
            bits = np.unpackbits(self.is_kept[name][number], count=len(block))
            is_kept = bits.astype(np.bool_)
            known = Known(lengths, is_kept, diagnosis.of_block(name, start, is_kept))
            yield replace(block, known=known)
