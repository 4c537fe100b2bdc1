"""The two passes of `nmt prepare` over the corpora.

The first checks, and draws the sample that the tokenizers learn from; the second encodes. Memory
holds the sample and one block of pairs, however large the corpora.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain, compress, islice
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from nmt.config.data import CorpusConfig, FilterConfig
from nmt.config.run import RunConfig
from nmt.data.checks import CorpusCheck
from nmt.data.corpus import BadPair, ReadOptions, SentencePair, corpus_names, read_corpus
from nmt.data.duplicates import DuplicateFinder
from nmt.data.filters import DUPLICATE, length_problem, text_problem
from nmt.data.overlap import HeldOut
from nmt.data.prepare_report import KEPT, READ, PrepareReport, SideStatistics
from nmt.data.sample import Reservoir
from nmt.data.store import StoreWriter
from nmt.engine import usable_cores
from nmt.errors import DataError
from nmt.text.tokenizer import (
    JOINT,
    SOURCE,
    TARGET,
    Tokenizers,
    load_tokenizers,
    train_sentencepiece,
)

TRAIN, VALID, TOKENIZER = "train", "valid", "tokenizer"
"""Parts of a prepared folder."""

_BLOCK_PAIRS = 10_000
_SAMPLE_CHARACTERS = 100_000_000
_SAMPLE_SEED = 1
# Fixed: the unigram model depends on it, and should not depend on the machine.
_LEARNING_THREADS = 16

AnyPair: TypeAlias = SentencePair | BadPair
Flags: TypeAlias = npt.NDArray[np.bool_]


class _Encoded(NamedTuple):
    """Pairs that were kept, with their ids."""

    pairs: Sequence[SentencePair]
    source: Sequence[Sequence[int]]
    target: Sequence[Sequence[int]]


class Preparation:
    """One reading of all corpora.

    Args:
        config: The experiment.
        folder: An existing, empty folder to work in.
        stores: Whether to write the token ids too, not only to report.
        quiet: Show no progress.
    """

    def __init__(self, config: RunConfig, folder: Path, *, stores: bool, quiet: bool) -> None:
        self._config = config
        self._folder = folder
        self._stores = stores
        self._quiet = quiet
        self._options = ReadOptions(
            config.source_language,
            config.target_language,
            config.filters.on_bad_utf8,
            config.filters.max_characters,
        )
        self._corpora = dict(zip(corpus_names(config.data.train), config.data.train, strict=True))
        self._threads = usable_cores()
        self._lines: dict[str, int] = {}
        self._checks: dict[str, CorpusCheck] = {}
        self._counts: dict[str, Counter[str]] = {}

    def run(self) -> tuple[PrepareReport, Tokenizers]:
        """Do both passes.

        Raises:
            DataError: A corpus is missing, damaged or not parallel, changes meanwhile, or leaves
                no pair.
            TokenizerError: The text allows no vocabulary of this size.
        """
        start = time.perf_counter()
        sets, unchecked = self._held_out()
        held_out = HeldOut(sets)
        sample, repeated = self._look(held_out)
        tokenizers = self._learn(sample)
        statistics = self._encode_train(repeated, tokenizers)
        self._encode_valid(tokenizers)
        warnings = [
            f"{name}: {text}" for name, check in self._checks.items() for text in check.warnings()
        ]
        report = PrepareReport(
            folder=str(self._config.prepared_dir),
            up_to_date=False,
            written=self._stores,
            counts={name: _plain(counts) for name, counts in self._counts.items()},
            findings={name: _plain(check.found) for name, check in self._checks.items()},
            overlap=held_out.overlap(),
            unchecked=unchecked,
            sides=tuple(side.report() for side in statistics),
            joint=self._config.tokenizer.joint,
            warnings=tuple(warnings),
            seconds=time.perf_counter() - start,
        )
        return report, tokenizers

    def _held_out(self) -> tuple[dict[str, list[tuple[str, str]]], tuple[str, ...]]:
        """Read the validation and test sets; name those that might have to be downloaded."""
        sets = {VALID: self._config.data.valid, **self._config.data.test}
        remote = tuple(name for name, each in sets.items() if each.sacrebleu or each.huggingface)
        read = {
            name: [pair[:2] for pair in read_corpus(corpus, self._options) if _is_usable(pair)]
            for name, corpus in sets.items()
            if name not in remote
        }
        return read, remote

    def _look(self, held_out: HeldOut) -> tuple[Reservoir, Flags]:
        """First pass. Return the sample to learn from, and which usable pairs are repetitions."""
        config = self._config
        sample = Reservoir(
            config.tokenizer.sample_sentences // 2,
            max_characters=_SAMPLE_CHARACTERS,
            seed=_SAMPLE_SEED,
        )
        with tempfile.TemporaryFile(dir=self._folder) as file:
            duplicates = DuplicateFinder(file)
            for name, corpus in self._corpora.items():
                check = CorpusCheck(config.source_language, config.target_language)
                self._checks[name] = check
                for block in self._blocks("reading", name, corpus):
                    usable = [pair[:2] for pair in block if _is_usable(pair)]
                    check.see(usable, _character_counts(block))
                    held_out.see(usable)
                    duplicates.add(usable)
                    for source, target in usable:
                        sample.add(source, target)
            return sample, duplicates.repetitions()

    def _learn(self, sample: Reservoir) -> Tokenizers:
        if not len(sample):
            raise DataError(
                "The training corpora hold no pair with text on both sides.",
                fix="Check the files that data.train names.",
            )
        folder, config = self._folder / TOKENIZER, self._config.tokenizer
        start_from = self._config.training.start_from
        if start_from is not None:
            return _take_over(start_from / TOKENIZER, folder)
        folder.mkdir()
        if config.joint:
            texts: dict[str, Iterator[str]] = {JOINT: chain.from_iterable(sample.drain())}
        else:
            sources, targets = zip(*sample.drain(), strict=True)
            texts = {SOURCE: iter(sources), TARGET: iter(targets)}
        for name, lines in texts.items():
            train_sentencepiece(lines, folder / name, config, threads=_LEARNING_THREADS)
        return load_tokenizers(folder)

    def _encode_train(
        self, repeated: Flags, tokenizers: Tokenizers
    ) -> tuple[SideStatistics, SideStatistics]:
        """Second pass over the training corpora."""
        filters = self._config.filters
        statistics = (
            SideStatistics(self._config.source_language, tokenizers.source, filters.max_length),
            SideStatistics(self._config.target_language, tokenizers.target, filters.max_length),
        )
        seen = 0
        with self._writer(TRAIN, tokenizers) as writer:
            for index, (name, corpus) in enumerate(self._corpora.items()):
                counts = self._counts[name] = Counter({READ: 0, KEPT: 0})
                for block in self._blocks("encoding", name, corpus):
                    usable = _usable(block, counts)
                    is_repeated = repeated[seen : seen + len(usable)]
                    seen += len(usable)
                    _check_unchanged(len(is_repeated), len(usable))
                    found = counts if filters.deduplicate else self._checks[name].found
                    found[DUPLICATE] += int(is_repeated.sum())
                    if filters.deduplicate:
                        usable = list(compress(usable, ~is_repeated))
                    encoded = self._encode(usable, tokenizers, filters, counts)
                    statistics[0].see(encoded.source)
                    statistics[1].see(encoded.target)
                    if writer:
                        writer.append(*encoded[1:], index, [pair.line for pair in encoded.pairs])
        _check_unchanged(seen, len(repeated))
        if not any(self._counts[name][KEPT] for name in self._corpora):
            raise _nothing_left("training", self._counts)
        return statistics

    def _encode_valid(self, tokenizers: Tokenizers) -> None:
        """Encode the validation set, and keep its text for scores of decoded output."""
        counts = self._counts[VALID] = Counter({READ: 0, KEPT: 0})
        # Held-out pairs are dropped only where the model cannot hold them.
        filters = self._config.filters.model_copy(update={"max_length_ratio": float("inf")})
        with self._writer(VALID, tokenizers) as writer:
            for block in self._blocks("encoding", VALID, self._config.data.valid):
                encoded = self._encode(_usable(block, counts), tokenizers, filters, counts)
                if writer:
                    writer.append(*encoded[1:], 0, [pair.line for pair in encoded.pairs])
                    _append_text(self._folder / VALID, encoded.pairs)
        if not counts[KEPT]:
            raise _nothing_left("validation", self._counts)

    def _encode(
        self,
        pairs: list[SentencePair],
        tokenizers: Tokenizers,
        filters: FilterConfig,
        counts: Counter[str],
    ) -> _Encoded:
        """Encode pairs, and count and drop those of unfit length."""
        source = tokenizers.source.encode_batch([pair.source for pair in pairs], self._threads)
        target = tokenizers.target.encode_batch([pair.target for pair in pairs], self._threads)
        kept = []
        for row, (left, right) in enumerate(zip(source, target, strict=True)):
            problem = length_problem(len(left), len(right), filters)
            counts[problem or KEPT] += 1
            if problem is None:
                kept.append(row)
        if len(kept) == len(pairs):
            return _Encoded(pairs, source, target)
        return _Encoded(
            [pairs[row] for row in kept],
            [source[row] for row in kept],
            [target[row] for row in kept],
        )

    def _writer(
        self, part: str, tokenizers: Tokenizers
    ) -> AbstractContextManager[StoreWriter | None]:
        if not self._stores:
            return nullcontext()
        vocab_size = max(tokenizers.source.vocab_size, tokenizers.target.vocab_size)
        return StoreWriter(self._folder / part, vocab_size)

    def _blocks(self, verb: str, name: str, corpus: CorpusConfig) -> Iterator[list[AnyPair]]:
        """Read a corpus, with a progress bar if somebody watches."""
        pairs = read_corpus(corpus, self._options)
        total = 0
        with tqdm(
            desc=f"{verb} {name}",
            unit=" pairs",
            unit_scale=True,
            total=self._lines.get(name),
            disable=True if self._quiet else None,
            leave=False,
        ) as progress:
            while block := list(islice(pairs, _BLOCK_PAIRS)):
                yield block
                total += len(block)
                progress.update(len(block))
        self._lines[name] = total


def _usable(block: list[AnyPair], counts: Counter[str]) -> list[SentencePair]:
    """Return the pairs with text on both sides, and count the others by reason."""
    counts[READ] += len(block)
    usable = []
    for pair in block:
        if isinstance(pair, BadPair):
            counts[pair.reason] += 1
        elif (problem := text_problem(pair.source, pair.target)) is None:
            usable.append(pair)
        else:
            counts[problem] += 1
    return usable


def _is_usable(pair: AnyPair) -> TypeGuard[SentencePair]:
    return isinstance(pair, SentencePair) and text_problem(pair.source, pair.target) is None


def _character_counts(block: list[AnyPair]) -> npt.NDArray[np.int64]:
    sizes = [(0, 0) if isinstance(p, BadPair) else (len(p.source), len(p.target)) for p in block]
    return np.array(sizes, dtype=np.int64).T


def _check_unchanged(found: int, expected: int) -> None:
    if found != expected:
        raise DataError(
            "A training corpus changed while it was read.",
            fix="Prepare again when nothing writes to the corpora any more.",
        )


def _nothing_left(part: str, counts: Mapping[str, Counter[str]]) -> DataError:
    reasons = Counter[str]()
    for name, corpus in counts.items():
        if (name == VALID) == (part == "validation"):
            reasons.update({what: n for what, n in corpus.items() if what != READ and n})
    told = ", ".join(f"{what} {n:,}" for what, n in reasons.most_common())
    return DataError(
        f"No {part} pair is left after the filters. Dropped: {told or 'nothing'}.",
        fix="Check the files, or relax the filters section.",
    )


def _append_text(folder: Path, pairs: Sequence[SentencePair]) -> None:
    for side in ("source", "target"):
        with (folder / f"{side}.txt").open("ab") as file:
            file.write("".join(f"{getattr(pair, side)}\n" for pair in pairs).encode())


def _take_over(there: Path, folder: Path) -> Tokenizers:
    """Fine-tuning keeps the vocabulary: copy the tokenizers of the model it starts from."""
    load_tokenizers(there)  # says what is wrong with them
    folder.mkdir()
    for path in there.glob("*.model"):
        shutil.copy(path, folder)
    return load_tokenizers(folder)


def _plain(counts: Counter[str]) -> dict[str, int]:
    return {what: n for what, n in counts.items() if n or what in (READ, KEPT)}
