"""The passes in which `nmt prepare` reads the blocks of all corpora.

Three functions process a block, in any process:

- `Look` applies the filters that need only the texts. The tokenizers are learned from a sample of
  the kept pairs, the `Reservoir`.
- `Encode` converts every line to token ids.
- `Decide` applies the filters that need lengths or the comparison with other pairs.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nmt.config.data import CorpusConfig
from nmt.data.checks import CorpusCheck, name_of_test
from nmt.data.corpus import BLOCK_PAIRS, Block, read_blocks
from nmt.data.filters import Diagnosis, FilterChain, Finding, Found
from nmt.data.pairs import BadPair, ReadOptions, SentencePair
from nmt.data.prepare_report import KEPT
from nmt.data.prepared import Recipe
from nmt.data.store import ParallelStore
from nmt.data.workers import Result, Stored, Workers, has_changed, map_blocks
from nmt.files.json_file import sha256_of_json
from nmt.text.flat import FlatIds
from nmt.text.tokenizer import Tokenizers
from nmt.version import __version__

Mask = npt.NDArray[np.bool_]


def kept_pairs(block: Block, is_kept: Mask) -> list[SentencePair]:
    """Return the pairs of a block that are kept."""
    return [pair for pair in compress(block.pairs, is_kept) if isinstance(pair, SentencePair)]


@dataclass(frozen=True, slots=True)
class Look:
    """The first pass: applies the filters of texts.

    The result has the array ``is_kept`` and the arrays of ``look``. Its values are the findings,
    and the counts of dropped pairs by the first reason that drops them.
    """

    filters: FilterChain
    corpus: str
    look: Callable[[Sequence[SentencePair]], Mapping[str, npt.NDArray[Any]]] | None = None

    def __call__(self, block: Block) -> Result:
        """Parse and filter a block.

        Raises:
            DataError: A line cannot be read.
        """
        pairs, found, counts = block.pairs, list[Found](), Counter[str]()
        is_kept = np.ones(len(pairs), np.bool_)
        for row, pair in enumerate(pairs):
            if isinstance(pair, BadPair):
                findings, texts = [Finding(pair.reason)], ("", "")
            else:
                texts = pair[:2]
                findings = self.filters.text_findings(*texts)
            if findings:
                found += [Found(self.corpus, pair.line, *each, *texts) for each in findings]
                if (reason := self.filters.dropping(findings)) is not None:
                    is_kept[row] = False
                    counts[reason] += 1
        arrays = self.look(kept_pairs(block, is_kept)) if self.look else {}
        return Result({"is_kept": is_kept, **arrays}, [found, counts])


@dataclass(frozen=True, slots=True)
class Encode:
    """Encodes every line of a block. A line that `BadPair` replaces has no tokens."""

    tokenizers: Tokenizers
    threads: int

    def __call__(self, block: Block) -> Result:
        """Return the ids and lengths of both sides, and the line ``numbers``.

        Raises:
            DataError: A line cannot be read.
        """
        pairs = block.pairs
        texts = [("", "") if isinstance(pair, BadPair) else pair[:2] for pair in pairs]
        numbers = np.array([pair.line for pair in pairs], np.int64)
        arrays: dict[str, npt.NDArray[Any]] = {"numbers": numbers}
        sides = zip(self.tokenizers, zip(*texts, strict=True), strict=True)
        for side, (model, lines) in enumerate(sides):
            flat = FlatIds.of(model.encode_batch(lines, self.threads))
            arrays |= {f"ids_{side}": flat.ids, f"lengths_{side}": flat.lengths}
        return Result(arrays)


class Known(NamedTuple):
    """Additional inputs of `Decide` for a block."""

    lengths: npt.NDArray[np.int64]  # subwords of source and target, tags included. (2, lines)
    usual_lengths: npt.NDArray[np.float64]  # see `FilterChain.length_findings`. (2, lines)
    is_kept: Mask  # whether the first pass has kept each line
    found: Mapping[int, Sequence[Finding]]  # findings of the diagnosis, by position in the block


@dataclass(frozen=True, slots=True)
class Decide:
    """The second pass: applies the filters of lengths and the findings of the diagnosis.

    The result has the array ``is_kept``. Its values are the findings, the count of kept pairs, and
    the counts of dropped pairs by the first reason that drops them.
    """

    filters: FilterChain
    corpus: str

    def __call__(self, block: Block) -> Result:
        """Filter the pairs that the first pass has kept."""
        known: Known = block.known
        found, counts, is_kept = list[Found](), Counter[str](), known.is_kept.copy()
        rows = np.flatnonzero(is_kept)
        lengths = known.lengths.T.tolist()
        usual_lengths = known.usual_lengths.T.tolist()
        for row in rows.tolist():
            of_lengths = self.filters.length_findings(lengths[row], usual_lengths[row])
            findings = [*known.found.get(row, ()), *of_lengths]
            reason = None
            if findings:
                pair = block.pairs[row]
                found += [Found(self.corpus, pair.line, *each, *pair[:2]) for each in findings]
                reason = self.filters.dropping(findings)
            counts[reason or KEPT] += 1
            is_kept[row] = reason is None
        return Result({"is_kept": is_kept}, [found, counts])


class Encoded(NamedTuple):
    """The token ids of every line of all corpora."""

    tokenizers: Tokenizers
    lines: ParallelStore
    spans: Mapping[str, tuple[int, int]]  # first row of each corpus, and the row after its last row


@dataclass(frozen=True, slots=True)
class Reading:
    """Reads all corpora, and stores the results of the first pass for the second pass."""

    recipe: Recipe
    folder: Path  # an existing, empty folder to write into
    workers: Workers
    shards: Path | None = None  # folder for the results of blocks; None does not store them
    stages: dict[str, float] = field(default_factory=dict)  # seconds of each stage
    # By the names of corpora and held-out sets in reports:
    num_lines: dict[str, int] = field(default_factory=dict)
    is_kept: dict[str, list[Mask]] = field(default_factory=dict)  # of each block
    checks: dict[str, CorpusCheck] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time of the context to ``stages``."""
        start = time.perf_counter()
        yield
        self.stages[name] = round(self.stages.get(name, 0) + time.perf_counter() - start, 3)

    def blocks(self, corpus: CorpusConfig) -> Iterator[Block]:
        """Yield the blocks of a corpus."""
        filters = self.recipe.config.filters
        languages = self.recipe.config.direction(corpus)
        options = ReadOptions(*languages, filters.on_bad_utf8, filters.max_characters)
        return read_blocks(corpus, options)

    def map(
        self, verb: str, name: str, function: Callable[[Block], Result], depends_on: Any
    ) -> Iterator[tuple[Block, Result]]:
        """Call ``function`` with every block of corpus ``name``; yield each block and its result.

        Results are stored in ``shards`` under a hash of ``depends_on`` and all other inputs. After
        a kill, the same command reads the stored results. ``verb`` is for the progress bar.
        """
        corpus = self.corpora[name]
        if self.shards is not None:
            sections = corpus, self.recipe.config.filters
            settings = [section.model_dump(mode="json") for section in sections]
            key = [__version__, verb, name, self.recipe.config.languages, settings, depends_on]
            function = Stored(function, self.shards, sha256_of_json(key), BLOCK_PAIRS)
        blocks, total = self.blocks(corpus), self.num_lines.get(name)
        return map_blocks(f"{verb} {name}", blocks, function, workers=self.workers, total=total)

    @property
    def corpora(self) -> dict[str, CorpusConfig]:
        """Training corpora and held-out sets."""
        data = self.recipe.data
        sets = {name_of_test(name): corpus for name, corpus in data.test.items()}
        return {**self.recipe.corpora, **self.recipe.valid_sets, **sets}

    def saw(
        self, name: str, corpus: CorpusConfig, block: Block, result: Result
    ) -> list[SentencePair]:
        """Record the result of the first pass for a block; return the kept pairs."""
        is_kept = result.arrays["is_kept"]
        kept = kept_pairs(block, is_kept)
        self.num_lines[name] = self.num_lines.get(name, 0) + len(block)
        self.is_kept.setdefault(name, []).append(is_kept)
        check = self.checks.setdefault(name, CorpusCheck(*self.recipe.config.direction(corpus)))
        check.update([pair[:2] for pair in kept])
        return kept

    def known_blocks(self, name: str, encoded: Encoded, diagnosis: Diagnosis) -> Iterator[Block]:
        """Yield the blocks of a corpus with the inputs of the second pass."""
        corpus, (first, end) = self.corpora[name], encoded.spans[name]
        tags = self.recipe.tag_ids(corpus, encoded.tokenizers)
        usual_subwords = [np.array(model.usual_subwords()) for model in encoded.tokenizers]
        for number, block in enumerate(self.blocks(corpus)):
            start = block.first - 1
            if first + start + len(block) > end:
                raise has_changed(name)
            rows = np.arange(first + start, first + start + len(block))
            is_kept = self.is_kept[name][number]
            lengths = list[npt.NDArray[np.int64]]()
            usual_lengths = list[npt.NDArray[np.float64]]()
            sides = encoded.lines.source_ids(rows), encoded.lines.target_ids(rows)
            for side, added, weights in zip(sides, tags, usual_subwords, strict=True):
                lengths.append(side.lengths + len(added))
                usual_lengths.append(np.ceil(side.sums(weights)) + len(added))
            found = diagnosis.of_block(name, start, is_kept)
            known = Known(np.array(lengths), np.array(usual_lengths), is_kept, found)
            yield replace(block, known=known)
