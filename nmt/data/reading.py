"""The passes in which `nmt prepare` reads the blocks of all corpora.

Three functions process a block, in any process:

- `TextPass` applies the filters that need only the texts. The tokenizers are learned from a sample
  of the kept pairs, the `Reservoir`.
- `EncodingPass` converts every line to token ids.
- `LengthPass` applies the filters that need lengths or the comparison with other pairs.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from itertools import chain, compress, starmap
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nmt.config.data import CorpusConfig, Direction
from nmt.data.advice import ReasonSets, reason_set
from nmt.data.checks import CorpusCheck, name_of_test
from nmt.data.corpus import BLOCK_PAIRS, Block, origin_of, read_blocks
from nmt.data.diagnosis import Diagnosis, Looked
from nmt.data.filters import BAD_ROWS, FilterChain, ListedProblem, PairProblem
from nmt.data.formats.pair import BadPair, ReadOptions, SentencePair, leading_tag
from nmt.data.prepare_report import KEPT, READ
from nmt.data.prepared import Recipe
from nmt.data.store import IntArray, Mask, ParallelStore, Rows, Values
from nmt.data.workers import BlockResult, StoredResults, Workers, has_changed, map_blocks
from nmt.errors import DataError
from nmt.files.json_file import sha256_of_json
from nmt.text.flat import FlatIds, Ids
from nmt.text.identification import look_ahead
from nmt.text.tokenizer import Tokenizers
from nmt.version import __version__

# Another version of a library may filter or encode a block in another way.
_LIBRARIES = ("fasttext-predict", "ftfy", "langcodes", "py3langid", "regex", "sentencepiece")
_MOST_BAD_ROWS = 0.01  # Share of the pairs of a corpus.


def _installed_version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None


def _texts(pair: SentencePair | BadPair) -> tuple[str, str]:
    """Return the texts of a pair; empty texts if it could not be read."""
    if isinstance(pair, BadPair):
        return "", ""
    return pair.source, pair.target


@dataclass(frozen=True)
class _FilterPass:
    filters: FilterChain
    corpus: str

    def _drop(
        self,
        block: Block,
        is_kept: Mask,
        found: ReasonSets,
        problems: Mapping[int, Sequence[PairProblem]],
    ) -> tuple[list[ListedProblem], Counter[str]]:
        """List the problems of pairs, and clear ``is_kept`` of the pairs that they drop.

        Args:
            block: The pairs.
            is_kept: Whether each pair is kept. Changed in place.
            found: The reasons that each pair has, to which the new ones are added in place.
            problems: Problems of pairs, by index of the pair in the block.

        Returns:
            The listed problems, and the counts of dropped pairs by the first reason that drops
            them.
        """
        listed = []
        counts = Counter[str]()
        for index, pair_problems in sorted(problems.items()):
            pair = block.pairs[index]
            source, target = _texts(pair)
            listed += [  # a problem is its reason, value and limit
                ListedProblem(self.corpus, pair.line, *problem, source, target, pair.file)
                for problem in pair_problems
            ]
            found[index] |= reason_set(problem.reason for problem in pair_problems)
            reason = self.filters.dropping(pair_problems)
            if reason is not None:
                is_kept[index] = False
                counts[reason] += 1
        return listed, counts


@dataclass(frozen=True)
class TextPass(_FilterPass):
    """The first pass: applies the filters of texts.

    The result has the arrays ``is_kept`` and ``found`` and those of ``look``. Its values are the
    problems, the number of pairs read, and the counts of dropped pairs by the first reason that
    drops them.
    """

    look: Callable[[str, Sequence[SentencePair]], Looked] | None = None
    tags: Sequence[str] = ()  # of languages; a source may begin with them

    def __call__(self, block: Block) -> BlockResult:
        """Parse and filter a block.

        Raises:
            DataError: A line cannot be read.
        """
        problems = dict[int, list[PairProblem]]()  # by index of the pair in the block
        if "language" in self.filters.actions:
            look_ahead(chain.from_iterable(map(_texts, block.pairs)))
        for index, pair in enumerate(block.pairs):
            if isinstance(pair, BadPair):
                pair_problems = [PairProblem(pair.reason, pair.excerpt)]
            elif leading_tag(pair.source) not in ("", *self.tags):
                pair_problems = [PairProblem("language_code", leading_tag(pair.source))]
            else:
                pair_problems = self.filters.text_problems(pair.source, pair.target)
            if pair_problems:
                problems[index] = pair_problems
        arrays = self._look(block, problems)
        is_kept = np.ones(len(block), np.bool_)
        found = np.zeros(len(block), np.uint32)
        listed, counts = self._drop(block, is_kept, found, problems)
        counts[READ] = len(block)
        arrays |= {"is_kept": is_kept, "found": found}
        return BlockResult(arrays, [listed, counts])

    def _look(self, block: Block, problems: dict[int, list[PairProblem]]) -> dict[str, Any]:
        """Call ``look`` with the pairs that the filters keep; add the problems that it finds."""
        if self.look is None:
            return {}
        indices = []
        pairs = []
        for index, pair in enumerate(block.pairs):
            is_dropped = self.filters.dropping(problems.get(index, ())) is not None
            if isinstance(pair, SentencePair) and not is_dropped:
                indices.append(index)
                pairs.append(pair)
        looked = self.look(self.corpus, pairs)
        for row, problem in looked.problems.items():
            problems.setdefault(indices[row], []).append(problem)
        return dict(looked.arrays)


def kept_pairs(block: Block, is_kept: Mask) -> list[SentencePair]:
    """Return the pairs of a block that are kept."""
    kept = compress(block.pairs, is_kept)
    return [pair for pair in kept if isinstance(pair, SentencePair)]


@dataclass(frozen=True)
class EncodingPass:
    """Encodes every line of a block. A line that `BadPair` replaces has no tokens."""

    tokenizers: Tokenizers
    threads: int
    change: Callable[[str, str], tuple[str, str]]  # Returns the texts to encode.

    def __call__(self, block: Block) -> BlockResult:
        """Return the ids and lengths of both sides, and the line ``numbers``.

        Raises:
            DataError: A line cannot be read.
        """
        numbers = [pair.line for pair in block.pairs]
        pairs = starmap(self.change, map(_texts, block.pairs))
        sides = zip(*pairs, strict=True)  # all sources, then all targets
        arrays: dict[str, Ids] = {"numbers": np.array(numbers, np.int64)}
        for side, texts in enumerate(sides):
            encoded = self.tokenizers[side].encode_batch(texts, self.threads)
            flat = FlatIds.of(encoded)
            arrays[f"ids_{side}"] = flat.ids
            arrays[f"lengths_{side}"] = flat.lengths
        return BlockResult(arrays)


@dataclass(frozen=True)
class EncodedCorpora:
    """The token ids of every line of all corpora."""

    tokenizers: Tokenizers
    lines: ParallelStore  # in the order of the corpora
    spans: Mapping[str, tuple[int, int]]  # first row of each corpus, and the row after its last row

    def rows(self, corpus: str, block: Block) -> Rows:
        """Return the rows of the lines of a block.

        Raises:
            DataError: The corpus has become longer.
        """
        corpus_start, corpus_end = self.spans[corpus]
        start = corpus_start + block.first - 1  # line numbers count from 1
        end = start + len(block)
        if end > corpus_end:
            raise has_changed(corpus)
        return np.arange(start, end)


class LineFeatures(NamedTuple):
    """The inputs of `LengthPass` for the lines of a block, in addition to the texts."""

    lengths: IntArray  # subwords of source and target, tags included. (2, lines)
    usual_lengths: Values  # see `FilterChain.length_problems`. (2, lines)
    is_kept: Mask  # whether the first pass has kept each line
    found: ReasonSets  # reasons that the first pass has found. (lines,)
    # Problems that the diagnosis has found, by index of the line in the block.
    problems: Mapping[int, Sequence[PairProblem]]


@dataclass(frozen=True)
class LengthPass(_FilterPass):
    """The last pass: applies the filters of lengths and the problems that the diagnosis has found.

    The result has the arrays ``is_kept`` and ``found``, with the reasons of both passes. Its values
    are the problems, the count of kept pairs, and the counts of dropped pairs by the first reason
    that drops them.
    """

    def __call__(self, block: Block) -> BlockResult:
        """Filter the pairs that the first pass has kept."""
        features: LineFeatures = block.features
        is_kept = features.is_kept.copy()
        found = features.found.copy()
        lengths = features.lengths.T.tolist()  # one list for each line: of source and target
        usual_lengths = features.usual_lengths.T.tolist()
        # Texts are only needed for the list of problems, so most blocks need not be parsed.
        problems = {}
        for index in np.flatnonzero(is_kept).tolist():
            length_problems = self.filters.length_problems(lengths[index], usual_lengths[index])
            pair_problems = [*features.problems.get(index, ()), *length_problems]
            if pair_problems:
                problems[index] = pair_problems
        listed, counts = self._drop(block, is_kept, found, problems)
        counts[KEPT] = int(is_kept.sum())
        return BlockResult({"is_kept": is_kept, "found": found}, [listed, counts])


@dataclass(frozen=True)
class CorpusReader:
    """Reads all corpora, and keeps the results of the first pass for the last pass."""

    recipe: Recipe
    folder: Path  # an existing, empty folder to write into
    workers: Workers
    shards: Path | None = None  # folder for the results of blocks; None does not store them
    stages: dict[str, float] = field(default_factory=dict)  # seconds of each stage
    # By the names of corpora and held-out sets in reports:
    num_lines: dict[str, int] = field(default_factory=dict)
    # The files by the number of pairs before each; without a name if there is only one.
    files: dict[str, dict[int, str]] = field(default_factory=dict)
    is_kept: dict[str, list[Mask]] = field(default_factory=dict)  # of each block
    # Of each block: the lines that have reasons, and these. Few lines have some.
    found: dict[str, list[tuple[Rows, ReasonSets]]] = field(default_factory=dict)
    checks: dict[str, CorpusCheck] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time of the context to ``stages``."""
        start = time.perf_counter()
        yield
        seconds = self.stages.get(name, 0) + time.perf_counter() - start
        self.stages[name] = round(seconds, 3)

    @property
    def corpora(self) -> dict[str, CorpusConfig]:
        """Training corpora and held-out sets."""
        corpora = self.recipe.corpora | self.recipe.valid_sets
        for name, corpus in self.recipe.data.test.items():
            corpora[name_of_test(name)] = corpus
        return corpora

    def blocks(self, corpus: CorpusConfig) -> Iterator[Block]:
        """Yield the blocks of a corpus."""
        return read_blocks(corpus, self.options(corpus))

    def options(self, corpus: CorpusConfig) -> ReadOptions:
        """Return how to read a corpus."""
        filters = self.recipe.config.filters
        languages = self.recipe.config.direction(corpus)
        return ReadOptions(*languages, filters.on_bad_utf8, filters.max_characters)

    def map(
        self, verb: str, name: str, function: Callable[[Block], BlockResult], depends_on: Any
    ) -> Iterator[tuple[Block, BlockResult]]:
        """Call ``function`` with every block of corpus ``name``; yield each block and its result.

        Results are stored in ``shards`` under a hash of ``depends_on`` and all other inputs. After
        a kill, the same command reads the stored results.

        Args:
            verb: Verb of the progress bar. Each function has its own.
            name: Name of the corpus.
            function: Called in any process.
            depends_on: JSON data: inputs of ``function`` other than the block, the languages, and
                the settings of the corpus and the filters.
        """
        corpus = self.corpora[name]
        if self.shards is not None:
            config = self.recipe.config
            settings = [section.model_dump(mode="json") for section in (corpus, config.filters)]
            versions = [__version__, *map(_installed_version, _LIBRARIES)]
            key = sha256_of_json([versions, verb, name, config.languages, settings, depends_on])
            function = StoredResults(function, self.shards, key, BLOCK_PAIRS)
        return map_blocks(
            f"{verb} {name}",
            self.blocks(corpus),
            function,
            workers=self.workers,
            total=self.num_lines.get(name),
        )

    def kept_pairs(
        self, name: str, direction: Direction, results: Iterable[tuple[Block, BlockResult]]
    ) -> Iterator[tuple[list[SentencePair], BlockResult]]:
        """Record the results of the first pass for a corpus; yield the kept pairs of each block.

        Args:
            name: Name of the corpus.
            direction: Languages of the corpus.
            results: The blocks, and the results of `TextPass` for them.

        Raises:
            DataError: More than a hundredth of the pairs cannot be read, each for the same reason.
        """
        masks = list[Mask]()
        counts = Counter[str]()
        bad_rows = dict[str, ListedProblem]()  # the first one of each reason
        self.is_kept[name] = masks
        self.found[name] = []
        files = dict[int, str]()
        self.files[name] = files
        check = CorpusCheck(*direction)
        self.checks[name] = check
        for block, result in results:
            counts[READ] += block.num_others  # other corpora read them from the same text
            is_kept = result.arrays["is_kept"]
            files[block.num_before] = block.shard or ""
            pairs = kept_pairs(block, is_kept)
            masks.append(is_kept)
            found = result.arrays["found"]
            lines_found = np.flatnonzero(found)
            self.found[name].append((lines_found, found[lines_found]))
            problems, block_counts = result.values
            counts.update(block_counts)
            for row in problems:
                listed = ListedProblem(*row)
                if listed.reason in BAD_ROWS:
                    bad_rows.setdefault(listed.reason, listed)
            check.update([pair[:2] for pair in pairs])
            yield pairs, result
        self.num_lines[name] = sum(map(len, masks))
        if self.recipe.config.filters.on_bad_row == "skip":
            return
        num_read = counts[READ]
        for reason, first in bad_rows.items():
            if counts[reason] > _MOST_BAD_ROWS * num_read:
                problem = f"{name}: {counts[reason]:,} of {num_read:,} pairs {BAD_ROWS[reason]}"
                file = first.file or origin_of(self.corpora[name])
                problem += f" ({reason}). The first is {file}, line {first.line:,}: "
                fix = "Correct the rows, or format, columns, encoding and target_languages (such "
                fix += "as [fr, de]) of the corpus. To drop them, set filters.on_bad_row: skip."
                raise DataError(f"{problem}{first.value!r}.", fix=fix)

    def blocks_to_filter(
        self, name: str, encoded: EncodedCorpora, diagnosis: Diagnosis
    ) -> Iterator[Block]:
        """Yield the blocks of a corpus with the inputs of `LengthPass`.

        Raises:
            DataError: The corpus has become longer.
        """
        corpus = self.corpora[name]
        tags = self.recipe.tag_ids(corpus, encoded.tokenizers)  # of sources and of targets
        # For each side: the number of usual subwords that each subword counts as. (V,)
        usual_subwords = [np.array(model.usual_subwords()) for model in encoded.tokenizers]
        for block_index, block in enumerate(self.blocks(corpus)):
            rows = encoded.rows(name, block)
            is_kept = self.is_kept[name][block_index]
            found = np.zeros(len(block), np.uint32)
            lines_found, reasons_found = self.found[name][block_index]
            found[lines_found] = reasons_found
            lengths = []
            usual_lengths = []
            sides = encoded.lines.source.ids(rows), encoded.lines.target.ids(rows)
            for side, flat in enumerate(sides):
                num_tags = len(tags[side])
                num_usual = np.ceil(flat.sums(usual_subwords[side]))
                lengths.append(flat.lengths + num_tags)
                usual_lengths.append(num_usual + num_tags)
            problems = diagnosis.of_block(name, block.first - 1, is_kept)
            features = LineFeatures(
                np.array(lengths), np.array(usual_lengths), is_kept, found, problems
            )
            yield replace(block, features=features)
