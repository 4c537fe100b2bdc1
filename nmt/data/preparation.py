"""Corpora -> tokenizers, token stores and a report, in two passes.

The first checks, and draws the sample that the tokenizers learn from; the second encodes. Memory
holds the sample and one block of pairs, however large the corpora.
"""

from __future__ import annotations

import logging
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from heapq import nsmallest
from itertools import chain, compress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from nmt.config.data import CorpusConfig
from nmt.config.run import RunConfig
from nmt.data.blocks import NUM_LENGTHS, Encode, Look, LookedAt, Task
from nmt.data.checks import CorpusCheck
from nmt.data.cluster import Workers
from nmt.data.corpus import (
    BLOCK_PAIRS,
    ReadOptions,
    SentencePair,
    cached_test_sets,
    corpus_names,
    read_blocks,
)
from nmt.data.filters import held_out_filters, training_filters
from nmt.data.findings import (
    DROPPED,
    REPORTED,
    FindingList,
    Found,
    ReasonTally,
)
from nmt.data.leakage import HeldOut
from nmt.data.prepared import KEPT, READ, TOKENIZER, TRAIN, VALID, PrepareReport, SideReport
from nmt.data.reasons import reasons_not_found
from nmt.data.repeats import RepeatFinder, Repeats
from nmt.data.scores import (
    DUAL,
    LEXICAL,
    LineScores,
    ScorePairs,
    Scores,
    read_scores,
    write_scores,
)
from nmt.data.shards import OfBlock, Sharded, Storable
from nmt.data.store import FlatIds, ParallelStore, StoreWriter
from nmt.data.workers import map_in_order
from nmt.data.xray import LineWriter, XRay, encode_lines, x_ray
from nmt.errors import DataError
from nmt.files.manifest import sha256_of_json
from nmt.files.progress import progress_bar
from nmt.text.tokenizer import (
    JOINT,
    SOURCE,
    TARGET,
    Tokenizer,
    Tokenizers,
    load_tokenizers,
    tokenizer_hash,
    train_sentencepiece,
)
from nmt.version import __version__

_SAMPLE_CHARACTERS = 100_000_000
_SAMPLE_SEED = 1
# Fixed: the unigram model depends on it, and should not depend on the machine.
_LEARNING_THREADS = 16

logger = logging.getLogger(__name__)

T = TypeVar("T")


R = TypeVar("R", bound=OfBlock)


class Preparation:
    """One reading of all corpora.

    Args:
        config: The experiment.
        folder: An existing, empty folder to work in.
        workers: Who works on the blocks.
        stores: Whether to write the token ids too, not only to report.
        repairs: Shifted ranges that an earlier reading has reported, to be paired again.
        shards: Folder of results that an earlier preparation has left, and where to keep them.
        score_pairs: Scores texts by two models (``dual_cross_entropy``).

    Raises:
        ConfigError: A filter does not exist.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        workers: Workers,
        *,
        stores: bool,
        repairs: Sequence[Mapping[str, Any]] = (),
        shards: Path | None = None,
        score_pairs: ScorePairs | None = None,
    ) -> None:
        self._config, self._shards = config, shards
        self._folder, self._stores = folder, stores
        filters, train = config.filters, config.data.train
        self._languages = config.source_language, config.target_language
        self._options = ReadOptions(*self._languages, filters.on_bad_utf8, filters.max_characters)
        self._filters = {
            TRAIN: training_filters(filters, *self._languages),
            VALID: held_out_filters(filters),
        }
        self._corpora = dict(zip(corpus_names(train), train, strict=True))
        self._workers, self._score_pairs = workers, score_pairs
        for name, corpus in self._corpora.items():
            if corpus.source is not None and corpus.target is not None:
                own = [each for each in repairs if each["corpus"] == name]
                self._options.shifts[corpus.source, corpus.target] = own
        self._scores: dict[str, dict[str, Scores]] = {"lexical": {}, "scores": {}}
        self._lines: dict[str, int] = {}
        self._checks: dict[str, CorpusCheck] = {}
        self._counts: dict[str, Counter[str]] = {}
        self._kept: dict[str, list[npt.NDArray[np.uint8]]] = {}  # of each block, packed bits
        self._tally = ReasonTally()
        self._stages: dict[str, float] = {}
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
        with self._stage("vocabulary"):
            tokenizers = self._learn(sample)
        xray = self._x_ray(tokenizers, {
            _place(name): corpus
            for name, corpus in sets.items()
            if name == VALID or name in self._config.data.test
        })  # fmt: skip
        self._scores["lexical"] |= xray.z_scores
        if self._score_pairs:
            with self._stage("scoring"):
                self._scores["dual_cross_entropy"] = self._model_scores(self._score_pairs)
        with self._stage("encoding"):
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
            *(
                f"{name}: no pair has the reason scores: set filters.limits.scores, of which 1% of "
                f"the scores are below {np.nanquantile(each, 0.01):.4g} and half below "
                f"{np.nanmedian(each):.4g}"
                for name, each in self._scores["scores"].items()
                if self._config.filters.limits.scores is None
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
            stages=self._stages,
        )
        return report, tokenizers

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._stages[name] = round(time.perf_counter() - start, 3)

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
        where = _place(name)
        look = Look(self._filters[VALID], where, sketches=False)
        usable = []
        for seen in map(look, map(Task, read_blocks(corpus, self._options))):
            self._checked(where, seen.lengths, seen.examined.kept)
            usable += seen.examined.kept
        return usable

    def _checked(
        self, name: str, lengths: npt.NDArray[np.int64], usable: Sequence[SentencePair]
    ) -> list[tuple[str, str]]:
        """Look for signs that a block of a corpus is not what it should be; return its texts."""
        check = self._checks.setdefault(name, CorpusCheck(*self._languages))
        found = [pair[:2] for pair in usable]
        check.update(found, lengths)
        return found

    def _look(self, held_out: HeldOut) -> tuple[Reservoir, Repeats]:
        """First pass. Return the sample to learn from, and what repeats among the kept pairs."""
        size = self._config.tokenizer.sample_sentences // 2
        sample = Reservoir(size, max_characters=_SAMPLE_CHARACTERS, seed=_SAMPLE_SEED)
        actions = self._filters[TRAIN].actions
        with RepeatFinder(self._folder) as finder:
            with self._stage("reading"):
                for name, corpus in self._corpora.items():
                    sketches = "near_duplicate" in actions
                    look = Look(self._filters[TRAIN], name, sketches, held_out.index)
                    tasks = map(Task, read_blocks(corpus, self._options))
                    for seen in self._sharded("reading", name, look, tasks, held_out.sources):
                        self._seen_block(name, seen, held_out, sample)
                        finder.add(seen.hashes)
                    if corpus.scores is not None:
                        num = self._counts.get(name, Counter())[READ]
                        read = read_scores(corpus.scores, num, is_part=corpus.max_pairs == num)
                        self._scores["scores"][name] = read
            with self._stage("repeats"):
                return sample, finder.findings(actions, self._config.filters.limits)

    def _seen_block(self, name: str, seen: LookedAt, held_out: HeldOut, sample: Reservoir) -> None:
        counts = self._counts.setdefault(name, Counter({READ: 0, KEPT: 0}))
        self._add(TRAIN, seen.examined.found)
        counts.update(seen.examined.counts)
        counts[READ] += seen.num_lines
        self._kept.setdefault(name, []).append(np.packbits(seen.examined.is_kept))
        usable = self._checked(name, seen.lengths, seen.examined.kept)
        held_out.update(seen.examined.kept, name, seen.leaks)
        for source, target in usable:
            sample.add(source, target)

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
            encode = partial(encode_lines, tokenizers, self._workers.threads)
            writing = LineWriter(folder, tokenizers, self._workers.threads)
            with self._stage("aligning"), writing as writer:
                for name, corpus in {**self._corpora, **held_out}.items():
                    blocks = read_blocks(corpus, self._options)
                    for lines in self._done("aligning", name, encode, blocks):
                        writer.append(name, lines)
            with self._stage("lexicon"):
                found = x_ray(
                    ParallelStore.open(folder),
                    tokenizers.vocab_sizes,
                    writer.spans,
                    held_out.keys(),
                )
        write_scores(self._folder / LEXICAL, found.scores)
        return found

    def _model_scores(self, score: ScorePairs) -> dict[str, Scores]:
        """Return the scores that models give to every line of the training corpora."""
        found: dict[str, Scores] = {}
        for name, corpus in self._corpora.items():
            values: list[float] = []
            bar = progress_bar(f"scoring {name}", unit="pairs", total=self._lines[name])
            with bar as progress:
                for block in read_blocks(corpus, self._options):
                    pairs = block.pairs()
                    values += score([
                        each[:2] if isinstance(each, SentencePair) else ("", "") for each in pairs
                    ])  # fmt: skip
                    progress.update(len(pairs))
            found[name] = np.array(values, np.float32)
        write_scores(self._folder / DUAL, found)
        return found

    def _line_scores(self) -> list[LineScores]:
        """Return the scores of the lines for which a low one is a reason."""
        limits, actions = self._config.filters.limits, self._filters[TRAIN].actions
        return [
            LineScores(reason, limit, values)
            for reason, values in self._scores.items()
            if reason in actions and (limit := getattr(limits, reason)) is not None
        ]

    def _encode(
        self,
        part: str,
        corpora: Mapping[str, CorpusConfig],
        tokenizers: Tokenizers,
        repeats: Repeats | None = None,
    ) -> list[SideStatistics]:
        """Second pass over the corpora of a part. Return the statistics of both sides."""
        filters, self._seen = self._config.filters, 0
        sides = [
            SideStatistics(language, tokenizer, filters.max_length)
            for language, tokenizer in zip(self._languages, tokenizers, strict=True)
        ]
        writing: AbstractContextManager[StoreWriter | None] = nullcontext()
        if self._stores:
            writing = StoreWriter(self._folder / part, max(tokenizers.vocab_sizes))
        with writing as writer:
            for index, (name, corpus) in enumerate(corpora.items()):
                counts = self._counts.setdefault(name, Counter({READ: 0, KEPT: 0}))
                encode = Encode(
                    filters=self._filters[part],
                    corpus=name,
                    tokenizers=tokenizers,
                    threads=self._workers.threads,
                    tag=corpus.tag,
                    texts=part == VALID,
                )
                tasks = self._tasks(name, corpus, repeats)
                models = tokenizer_hash(self._folder / TOKENIZER)
                for done in self._sharded("encoding", name, encode, tasks, models):
                    self._add(part, done.found)
                    counts.update(done.counts)
                    if part == VALID:
                        counts[READ] += done.num_lines
                    for side, ids in zip(sides, done.ids, strict=True):
                        side.update(ids)
                    if part == TRAIN:
                        self._lengths = nsmallest(NUM_LENGTHS, [*self._lengths, *done.lengths])
                    if writer:
                        writer.append_flat(done.ids, index, done.lines)
                        if part == VALID:  # its text, for scores of decoded output
                            _append_text(self._folder / VALID, done.texts)
        if repeats is not None and self._seen != repeats.count:
            raise DataError(
                "A training corpus changed while it was read.",
                fix="Prepare again when nothing writes to the corpora any more.",
            )
        _check_kept(part, sum((self._counts[name] for name in corpora), Counter[str]()))
        return sides

    def _tasks(self, name: str, corpus: CorpusConfig, repeats: Repeats | None) -> Iterator[Task]:
        """Yield the blocks of a corpus with what the first pass and the repeats say of each."""
        line_scores, start = self._line_scores(), 0
        for number, block in enumerate(read_blocks(corpus, self._options)):
            if repeats is None:
                yield Task(block)
                continue
            blocks = self._kept[name]
            is_kept = blocks[number] if number < len(blocks) else np.zeros(0, np.uint8)
            rows = start + np.flatnonzero(np.unpackbits(is_kept, count=len(block)))
            first, start = self._seen, start + len(block)
            self._seen += len(rows)
            repeated = repeats.between(first, self._seen)
            found = {row - first: each for row, each in repeated.items()}
            for scores in line_scores:
                for place, finding in scores.low(name, rows).items():
                    found.setdefault(place, []).append(finding)
            yield Task(block, is_kept, found)

    def _sharded(
        self, verb: str, name: str, make: Storable[R], tasks: Iterator[Task], depends_on: Any
    ) -> Iterator[R]:
        """Do as `_done`, and keep the results for the case that the preparation does not end.

        Beside the blocks and the configuration they depend on ``depends_on``, plain data.
        """
        corpus = self._corpora.get(name, self._config.data.valid)
        parts = [each.model_dump(mode="json") for each in (corpus, self._config.filters)]
        key = sha256_of_json([__version__, verb, name, *self._languages, *parts, depends_on])
        sharded = Sharded(make, self._shards, verb, key, BLOCK_PAIRS)
        for made in self._done(verb, name, sharded, tasks):
            if made.damaged is not None:
                logger.warning("%s was damaged, and has been made again", made.damaged)
            yield made.result

    def _done(
        self, verb: str, name: str, make: Callable[[T], R], items: Iterator[T]
    ) -> Iterator[R]:
        """Have the workers do something with every block, with a progress bar if somebody watches.

        Yields:
            The results, in the order of the blocks.
        """
        total, known = 0, self._lines.get(name)
        with progress_bar(f"{verb} {name}", unit="pairs", total=known, leave=False) as progress:
            for result in map_in_order(
                self._workers.executor, make, items, ahead=self._workers.ahead
            ):
                yield result
                total += result.num_lines
                progress.update(result.num_lines)
        self._lines[name] = total


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


def _append_text(folder: Path, pairs: Sequence[tuple[str, str]]) -> None:
    for column, side in enumerate(("source", "target")):
        with (folder / f"{side}.txt").open("ab") as file:
            file.write("".join(f"{pair[column]}\n" for pair in pairs).encode())


def _plain(counts: Counter[str]) -> dict[str, int]:
    return {what: n for what, n in counts.items() if n or what in (READ, KEPT)}


class SideStatistics:
    """Adds up the figures of a `SideReport`, block by block."""

    def __init__(self, language: str, tokenizer: Tokenizer, max_length: int) -> None:
        self._language = language
        self._lengths = np.zeros(max_length + 1, dtype=np.int64)
        self._uses = np.zeros(tokenizer.vocab_size, dtype=np.int64)
        self._is_fallback = np.array([*map(tokenizer.is_fallback, range(tokenizer.vocab_size))])

    def update(self, rows: FlatIds) -> None:
        """Count the ids of kept sentences."""
        self._lengths += np.bincount(rows.lengths, minlength=len(self._lengths))
        self._uses += np.bincount(rows.ids, minlength=len(self._uses))

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
