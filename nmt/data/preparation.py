"""Corpora -> tokenizers, token stores and a report, in two passes.

The first checks, and draws the sample that the tokenizers learn from; the second encodes. Memory
holds the sample and one block of pairs, however large the corpora.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from heapq import nsmallest
from itertools import chain, compress, islice
from pathlib import Path
from typing import TypeAlias
from zlib import crc32

import numpy as np
import numpy.typing as npt

from nmt.config.data import CorpusConfig
from nmt.config.run import RunConfig
from nmt.data.checks import CorpusCheck
from nmt.data.corpus import (
    BadPair,
    ReadOptions,
    SentencePair,
    cached_test_sets,
    corpus_names,
    read_corpus,
)
from nmt.data.filters import held_out_filters, training_filters
from nmt.data.findings import (
    DROPPED,
    REPORTED,
    Finding,
    FindingList,
    Found,
    ReasonTally,
    examine,
)
from nmt.data.leakage import HeldOut
from nmt.data.prepared import KEPT, READ, TOKENIZER, TRAIN, VALID, PrepareReport, SideReport
from nmt.data.reasons import reasons_not_found
from nmt.data.repeats import RepeatFinder, Repeats, pair_hashes
from nmt.data.store import ParallelStore, StoreWriter
from nmt.data.xray import SCORES, LineWriter, XRay, write_scores, x_ray
from nmt.engine import usable_cores
from nmt.errors import DataError
from nmt.files.progress import progress_bar
from nmt.text.tokenizer import (
    JOINT,
    SOURCE,
    TARGET,
    Tokenizer,
    Tokenizers,
    load_tokenizers,
    train_sentencepiece,
)

_BLOCK_PAIRS = 10_000
_SAMPLE_CHARACTERS = 100_000_000
_SAMPLE_SEED = 1
_NUM_LENGTHS = 400
# Fixed: the unigram model depends on it, and should not depend on the machine.
_LEARNING_THREADS = 16

AnyPair: TypeAlias = SentencePair | BadPair
Ids: TypeAlias = Sequence[Sequence[int]]


class Preparation:
    """One reading of all corpora.

    Args:
        config: The experiment.
        folder: An existing, empty folder to work in.
        stores: Whether to write the token ids too, not only to report.

    Raises:
        ConfigError: A filter does not exist.
    """

    def __init__(self, config: RunConfig, folder: Path, *, stores: bool) -> None:
        self._config = config
        self._folder, self._stores = folder, stores
        filters, train = config.filters, config.data.train
        self._languages = config.source_language, config.target_language
        self._options = ReadOptions(*self._languages, filters.on_bad_utf8, filters.max_characters)
        self._filters = {
            TRAIN: training_filters(filters, *self._languages),
            VALID: held_out_filters(filters),
        }
        self._corpora = dict(zip(corpus_names(train), train, strict=True))
        self._threads = usable_cores()
        self._lines: dict[str, int] = {}
        self._checks: dict[str, CorpusCheck] = {}
        self._counts: dict[str, Counter[str]] = {}
        self._kept: dict[str, list[npt.NDArray[np.uint8]]] = {}  # of each block, packed bits
        self._tally = ReasonTally()
        self._lengths: list[tuple[int, tuple[int, int]]] = []

    def run(self) -> tuple[PrepareReport, Tokenizers]:
        """Do both passes.

        Raises:
            DataError: A corpus is missing, damaged or not parallel, changes meanwhile, or leaves
                no pair.
            TokenizerError: The text allows no vocabulary of this size.
        """
        start = time.perf_counter()
        with (
            FindingList(self._folder / DROPPED) as self._dropped,
            FindingList(self._folder / REPORTED) as self._reported,
        ):
            return self._run(start)

    def _run(self, start: float) -> tuple[PrepareReport, Tokenizers]:
        sets, remote = self._held_out_sets()
        held_out = HeldOut({
            name: self._held_out(name, corpus) for name, corpus in sets.items()
        })  # fmt: skip
        sample, repeats = self._look(held_out)
        tokenizers = self._learn(sample)
        xray = self._x_ray(tokenizers, {
            _place(name): corpus
            for name, corpus in sets.items()
            if name == VALID or name in self._config.data.test
        })  # fmt: skip
        sides = self._encode(TRAIN, self._corpora, tokenizers, repeats)
        self._encode(VALID, {VALID: self._config.data.valid}, tokenizers)
        actions = self._filters[TRAIN].actions
        warnings = [
            *reasons_not_found(actions, *self._languages),
            *(
                f"{name}: {text}"
                for name, check in self._checks.items()
                for text in check.warnings()
            ),
        ]
        report = PrepareReport(
            folder=str(self._folder),
            up_to_date=False,
            written=self._stores,
            counts={name: _plain(counts) for name, counts in self._counts.items()},
            findings=self._tally.reported(self._corpora, actions),
            reasons=self._tally.report(actions),
            leakage=held_out.leaks,
            **xray.findings(),
            overlap=held_out.overlap(),
            unchecked=remote,
            lengths=[[*pair] for _, pair in self._lengths],
            sides=[side.report() for side in sides],
            joint=self._config.tokenizer.joint,
            warnings=warnings,
            seconds=time.perf_counter() - start,
        )
        return report, tokenizers

    def _held_out_sets(self) -> tuple[dict[str, CorpusConfig], list[str]]:
        """Return the sets to look for, and the names of those that might have to be downloaded.

        The first are those of the configuration, and all that sacrebleu has in its cache.
        """
        data, cached = self._config.data, cached_test_sets("-".join(self._languages))
        sets = {VALID: data.valid, **data.test}
        remote = [
            name for name, each in sets.items()
            if each.huggingface or (each.sacrebleu and each.sacrebleu not in cached)
        ]  # fmt: skip
        named = {each.sacrebleu for each in sets.values()}
        for name, (source, target) in cached.items():
            if name not in named:
                sets.setdefault(name, CorpusConfig(source=source, target=target))
        return {name: each for name, each in sets.items() if name not in remote}, remote

    def _held_out(self, name: str, corpus: CorpusConfig) -> list[SentencePair]:
        """Return the usable pairs of a held-out set, and check them as those of training."""
        pairs = list(read_corpus(corpus, self._options))
        where = _place(name)
        usable = examine(pairs, self._filters[VALID], where).kept
        self._checked(where, pairs, usable)
        return usable

    def _checked(
        self, name: str, block: Sequence[AnyPair], usable: Sequence[SentencePair]
    ) -> list[tuple[str, str]]:
        """Look for signs that a block of a corpus is not what it should be; return its texts."""
        check = self._checks.setdefault(name, CorpusCheck(*self._languages))
        texts = (("", "") if isinstance(pair, BadPair) else pair[:2] for pair in block)
        found = [pair[:2] for pair in usable]
        check.update(found, np.array([(len(s), len(t)) for s, t in texts]).T)
        return found

    def _look(self, held_out: HeldOut) -> tuple[Reservoir, Repeats]:
        """First pass. Return the sample to learn from, and what repeats among the kept pairs."""
        size = self._config.tokenizer.sample_sentences // 2
        sample = Reservoir(size, max_characters=_SAMPLE_CHARACTERS, seed=_SAMPLE_SEED)
        actions = self._filters[TRAIN].actions
        with RepeatFinder(self._folder) as finder:
            for name, corpus in self._corpora.items():
                counts = self._counts[name] = Counter({READ: 0, KEPT: 0})
                kept = self._kept[name] = []
                for block in self._blocks("reading", name, corpus):
                    examined = examine(block, self._filters[TRAIN], name)
                    self._add(TRAIN, examined.found)
                    counts.update(examined.counts)
                    counts[READ] += len(block)
                    kept.append(np.packbits(examined.is_kept))
                    usable = self._checked(name, block, examined.kept)
                    held_out.update(examined.kept, name)
                    finder.add(pair_hashes(usable, sketches="near_duplicate" in actions))
                    for source, target in usable:
                        sample.add(source, target)
            return sample, finder.findings(actions, self._config.filters.limits)

    def _add(self, part: str, found: Sequence[Found]) -> None:
        """Count findings and write them to the lists."""
        actions = self._filters[part].actions
        drops = [actions.get(each.finding.reason, "drop") == "drop" for each in found]
        self._dropped.write(compress(found, drops))
        if part == TRAIN:
            self._tally.update(found)
            self._reported.write(compress(found, (not each for each in drops)))

    def _learn(self, sample: Reservoir) -> Tokenizers:
        if not len(sample):
            raise DataError(
                "The training corpora hold no pair with text on both sides.",
                fix="Check the files that data.train names.",
            )
        folder, config = self._folder / TOKENIZER, self._config.tokenizer
        config = config.model_copy(update={"user_defined_symbols": self._config.tag_symbols})
        folder.mkdir()
        texts: dict[str, Iterable[str]] = {}
        if (start_from := self._config.training.start_from) is not None:
            # Fine-tuning keeps the vocabulary of the model it starts from.
            load_tokenizers(start_from / TOKENIZER)  # says what is wrong with them
            for path in (start_from / TOKENIZER).glob("*.model"):
                shutil.copy(path, folder)
        elif config.joint:
            texts = {JOINT: chain.from_iterable(sample.drain())}
        else:
            sources, targets = zip(*sample.drain(), strict=True)
            texts = {SOURCE: sources, TARGET: targets}
        for name, lines in texts.items():
            train_sentencepiece(lines, folder / name, config, threads=_LEARNING_THREADS)
        return load_tokenizers(folder)

    def _x_ray(self, tokenizers: Tokenizers, held_out: Mapping[str, CorpusConfig]) -> XRay:
        """Score every line of the corpora, and find ranges that are misaligned."""
        with tempfile.TemporaryDirectory(dir=self._folder) as scratch:
            folder = Path(scratch) / "lines"
            with LineWriter(folder, tokenizers, self._threads) as writer:
                for name, corpus in {**self._corpora, **held_out}.items():
                    for block in self._blocks("aligning", name, corpus):
                        writer.add(name, block)
            found = x_ray(
                ParallelStore.open(folder), tokenizers.vocab_sizes, writer.spans, held_out.keys()
            )
        write_scores(self._folder / SCORES, found.scores)
        return found

    def _encode(
        self,
        part: str,
        corpora: Mapping[str, CorpusConfig],
        tokenizers: Tokenizers,
        repeats: Repeats | None = None,
    ) -> list[SideStatistics]:
        """Second pass over the corpora of a part. Return the statistics of both sides."""
        filters, seen = self._config.filters, 0
        sides = [
            SideStatistics(language, tokenizer, filters.max_length)
            for language, tokenizer in zip(self._languages, tokenizers, strict=True)
        ]
        writing: AbstractContextManager[StoreWriter | None] = nullcontext()
        if self._stores:
            writing = StoreWriter(self._folder / part, max(tokenizers.vocab_sizes))
        with writing as writer:
            for index, (name, corpus) in enumerate(corpora.items()):
                for number, block in enumerate(self._blocks("encoding", name, corpus)):
                    usable = self._usable(block, part, name, number)
                    found = repeats.between(seen, seen + len(usable)) if repeats else {}
                    found = {row - seen: each for row, each in found.items()}
                    seen += len(usable)
                    pairs, ids = self._fitting(usable, part, tokenizers, name, found)
                    if part == TRAIN:
                        self._lengths = sample_lengths(self._lengths, pairs, ids)
                    for side, rows in zip(sides, ids, strict=True):
                        side.update(rows)
                    if writer:
                        writer.append(*ids, index, [pair.line for pair in pairs])
                        if part == VALID:  # its text, for scores of decoded output
                            _append_text(self._folder / VALID, pairs)
        if repeats is not None and seen != repeats.count:
            raise DataError(
                "A training corpus changed while it was read.",
                fix="Prepare again when nothing writes to the corpora any more.",
            )
        _check_kept(part, sum((self._counts[name] for name in corpora), Counter[str]()))
        return sides

    def _usable(
        self, block: Sequence[AnyPair], part: str, name: str, number: int
    ) -> list[SentencePair]:
        """Return the pairs of a block whose texts are kept."""
        if part == TRAIN:  # examined in the first pass
            blocks = self._kept[name]
            known = blocks[number] if number < len(blocks) else np.zeros(0, np.uint8)
            is_kept = np.unpackbits(known, count=len(block))
            return [pair for pair in compress(block, is_kept) if isinstance(pair, SentencePair)]
        counts = self._counts.setdefault(name, Counter({READ: 0, KEPT: 0}))
        examined = examine(block, self._filters[part], name)
        self._add(part, examined.found)
        counts.update(examined.counts)
        counts[READ] += len(block)
        return examined.kept

    def _fitting(
        self,
        pairs: Sequence[SentencePair],
        part: str,
        tokenizers: Tokenizers,
        name: str,
        repeats: Mapping[int, Sequence[Finding]],
    ) -> tuple[Sequence[SentencePair], tuple[Ids, Ids]]:
        """Encode pairs, drop repetitions and those of unfit length; return the others' ids too."""
        source = tokenizers.source.encode_batch([pair.source for pair in pairs], self._threads)
        if tag := self._corpora.get(name, self._config.data.valid).tag:
            source = [[tokenizers.source.tag_id(tag), *ids] for ids in source]
        target = tokenizers.target.encode_batch([pair.target for pair in pairs], self._threads)
        filters, counts = self._filters[part], self._counts[name]
        kept, found = [], []
        for row, (pair, left, right) in enumerate(zip(pairs, source, target, strict=True)):
            findings = filters.length_findings(len(left), len(right))
            if row in repeats:
                findings = [*repeats[row], *findings]
            reason = filters.dropping(findings) if findings else None
            found += [Found(name, pair.line, each, *pair[:2]) for each in findings]
            counts[reason or KEPT] += 1
            if reason is None:
                kept.append(row)
        self._add(part, found)
        if len(kept) == len(pairs):
            return pairs, (source, target)
        return [pairs[i] for i in kept], ([source[i] for i in kept], [target[i] for i in kept])

    def _blocks(self, verb: str, name: str, corpus: CorpusConfig) -> Iterator[list[AnyPair]]:
        """Read a corpus, with a progress bar if somebody watches."""
        pairs, total = read_corpus(corpus, self._options), 0
        known = self._lines.get(name)
        with progress_bar(f"{verb} {name}", unit="pairs", total=known, leave=False) as progress:
            while block := list(islice(pairs, _BLOCK_PAIRS)):
                yield block
                total += len(block)
                progress.update(len(block))
        self._lines[name] = total


def sample_lengths(
    known: Sequence[tuple[int, tuple[int, int]]],
    pairs: Sequence[SentencePair],
    ids: tuple[Ids, Ids],
) -> list[tuple[int, tuple[int, int]]]:
    """Return a sample of the lengths of pairs that does not depend on how they come in blocks."""
    keys = (crc32(f"{pair.line} {pair.source}".encode()) for pair in pairs)
    lengths = zip(map(len, ids[0]), map(len, ids[1]), strict=True)
    return nsmallest(_NUM_LENGTHS, [*known, *zip(keys, lengths, strict=True)])


def _place(name: str) -> str:
    """Return what reports call a held-out set, as a training corpus may have its name."""
    return name if name == VALID else f"data.test.{name}"


def _check_kept(part: str, reasons: Counter[str]) -> None:
    if reasons[KEPT]:
        return
    counted = ", ".join(f"{what} {n:,}" for what, n in reasons.most_common() if what != READ)
    raise DataError(
        f"No {'training' if part == TRAIN else 'validation'} pair is left after the filters. "
        f"Dropped: {counted or 'nothing'}.",
        fix="Check the files, or relax the filters section.",
    )


def _append_text(folder: Path, pairs: Sequence[SentencePair]) -> None:
    for side in ("source", "target"):
        with (folder / f"{side}.txt").open("ab") as file:
            file.write("".join(f"{getattr(pair, side)}\n" for pair in pairs).encode())


def _plain(counts: Counter[str]) -> dict[str, int]:
    return {what: n for what, n in counts.items() if n or what in (READ, KEPT)}


class SideStatistics:
    """Adds up the figures of a `SideReport`, block by block."""

    def __init__(self, language: str, tokenizer: Tokenizer, max_length: int) -> None:
        self._language = language
        self._lengths = np.zeros(max_length + 1, dtype=np.int64)
        self._uses = np.zeros(tokenizer.vocab_size, dtype=np.int64)
        self._is_fallback = np.array([*map(tokenizer.is_fallback, range(tokenizer.vocab_size))])

    def update(self, rows: Sequence[Sequence[int]]) -> None:
        """Count the ids of kept sentences."""
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        ids = np.fromiter(chain.from_iterable(rows), np.int64, int(lengths.sum()))
        self._lengths += np.bincount(lengths, minlength=len(self._lengths))
        self._uses += np.bincount(ids, minlength=len(self._uses))

    def report(self) -> SideReport:
        """Return the figures; at least one sentence must have been seen."""
        upto = np.cumsum(self._lengths)
        tokens, sentences = int(self._uses.sum()), int(upto[-1])
        return SideReport(
            language=self._language,
            vocab_size=len(self._uses),
            tokens=tokens,
            mean_length=tokens / sentences,
            median_length=int(np.searchsorted(upto, 0.5 * sentences)),
            p99_length=int(np.searchsorted(upto, 0.99 * sentences)),
            max_length=int(np.flatnonzero(self._lengths)[-1]),
            fallback_rate=int(self._uses[self._is_fallback].sum()) / tokens,
            lengths=self._lengths[: int(np.searchsorted(upto, 0.999 * sentences)) + 1].tolist(),
        )


class Reservoir:
    """Keeps a uniform random sample of the pairs added, in bounded memory (Vitter 1985).

    The same pairs give the same sample.

    Args:
        capacity: Most pairs to keep.
        max_characters: Most characters to keep. When the sample outgrows them, a random half of
            it goes, which leaves it uniform.
        seed: Decides what is drawn.
    """

    def __init__(self, capacity: int, *, max_characters: int, seed: int) -> None:
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
