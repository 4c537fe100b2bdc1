"""Corpora -> tokenizers, token stores and a report, in two passes.

The first checks, and draws the sample that the tokenizers learn from. Then all lines are encoded,
and compared with each other; the second pass decides which pairs are kept. Memory holds the
sample, one block of pairs and a few bytes a line, however large the corpora.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from heapq import nsmallest
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

from nmt.config.data import CorpusConfig
from nmt.config.run import RunConfig
from nmt.data.augment import noisy_texts
from nmt.data.blocks import NUM_LENGTHS, Decide, Look, LookedAt, Task
from nmt.data.checks import CorpusCheck
from nmt.data.cluster import Workers
from nmt.data.corpus import corpus_names
from nmt.data.filters import held_out_filters, training_filters
from nmt.data.held_out import HeldOut, held_out_sets
from nmt.data.lines import Encode, LineStore, LineWriter, selected
from nmt.data.pairs import SentencePair
from nmt.data.passes import Passes
from nmt.data.prepared import READ, TOKENIZER, TRAIN, VALID, PrepareReport
from nmt.data.records import Records
from nmt.data.statistics import SideStatistics
from nmt.data.store import StoreWriter
from nmt.data.vocabulary import Reservoir, learn_tokenizers
from nmt.extras.cleaning.alignment import Alignment, align_corpora
from nmt.extras.cleaning.corpus_findings import CorpusFindings
from nmt.extras.cleaning.filters import reasons_not_found
from nmt.extras.cleaning.repeats import RepeatFinder
from nmt.extras.cleaning.scores import (
    DUAL,
    LEXICAL,
    LineScores,
    ScorePairs,
    Scores,
    read_scores,
    write_scores,
)
from nmt.files.progress import progress_bar
from nmt.text.tokenizer import Tokenizers, tokenizer_hash

_NOISE_SEED = 1


class Preparation:
    """One preparation of all corpora.

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
        self._config, self._folder, self._stores = config, folder, stores
        self._workers, self._score_pairs = workers, score_pairs
        self._passes = Passes(config, workers, shards, repairs)
        self._languages = config.source_language, config.target_language
        self._filters = {
            TRAIN: training_filters(config.filters, *self._languages),
            VALID: held_out_filters(config.filters),
        }
        train = config.data.train
        self._corpora = dict(zip(corpus_names(train), train, strict=True))
        self._scores: dict[str, Mapping[str, Scores]] = {}
        self._checks: dict[str, CorpusCheck] = {}
        self._random = Random(_NOISE_SEED)
        self._kept: dict[str, list[npt.NDArray[np.uint8]]] = {}  # of each block, packed bits
        self._stages: dict[str, float] = {}
        self._pending: Future[None] | None = None  # writes a file meanwhile
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
            Records(self._folder, self._filters) as self._records,
            tempfile.TemporaryDirectory(dir=self._folder) as scratch,
        ):
            return self._run(start, Path(scratch))

    def _run(self, start: float, scratch: Path) -> tuple[PrepareReport, Tokenizers]:
        sets, remote = held_out_sets(self._config.data, self._languages)
        held_out = HeldOut({
            name: self._held_out(name, corpus) for name, corpus in sets.items()
        })  # fmt: skip
        sample, finder = self._look(held_out, scratch)
        actions = self._filters[TRAIN].actions
        with self._stage("repeats"), progress_bar("finding repetitions", leave=False):
            limits = self._config.filters.limits
            repeating = self._workers.submit(finder.findings, actions, limits)
        with self._stage("vocabulary"), progress_bar("learning subwords", leave=False):
            tokenizers = self._learn(sample)
        is_scanned = "lexical" in actions or "misaligned" in actions
        others = {
            _place(name): corpus
            for name, corpus in sets.items()
            if name == VALID or (is_scanned and name in self._config.data.test)
        }
        lines = self._encode({**self._corpora, **others}, tokenizers, scratch / "lines")
        xray = self._x_ray(lines, tokenizers, scratch, others) if is_scanned else Alignment()
        if self._score_pairs:
            with self._stage("scoring"):
                found = {
                    name: self._passes.scored(name, corpus, self._score_pairs)
                    for name, corpus in self._corpora.items()
                }
            write_scores(self._folder / DUAL, found)
            self._scores["dual_cross_entropy"] = found
        with self._stage("repeats"), progress_bar("finding repetitions", leave=False):
            repeats = repeating.result()
        with self._stage("writing"):
            known = CorpusFindings(repeats, self._line_scores(), xray.ranges)
            sides = self._write(TRAIN, self._corpora, tokenizers, lines, known)
            self._write(VALID, {VALID: self._config.data.valid}, tokenizers, lines)
            if self._pending is not None:
                self._pending.result()
        misaligned: dict[str, list[dict[str, Any]]] = {"shifts": [], "unrelated": []}
        for name, ranges in xray.ranges.items():
            for each in ranges:
                values = {"corpus": name, "start": each.start, "end": each.end}
                if each.offset is None:
                    misaligned["unrelated"].append(values)
                else:
                    misaligned["shifts"].append(values | {"offset": each.offset})
        report = PrepareReport(
            folder=str(self._folder),
            up_to_date=False,
            written=self._stores,
            **self._records.report(self._corpora),
            leakage=held_out.leaks,
            shifts=misaligned["shifts"],
            unrelated=misaligned["unrelated"],
            overlap=held_out.overlap(),
            unchecked=remote,
            lengths=[[*pair] for _, pair in self._lengths],
            sides=[side.report() for side in sides],
            joint=self._config.tokenizer.joint,
            warnings=list(self._warnings()),
            seconds=time.perf_counter() - start,
            stages=self._stages,
        )
        return report, tokenizers

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        seconds = self._stages.get(name, 0.0) + time.perf_counter() - start
        self._stages[name] = round(seconds, 3)

    def _warnings(self) -> Iterator[str]:
        yield from reasons_not_found(self._filters[TRAIN].actions, *self._languages)
        for name, check in self._checks.items():
            yield from (f"{name}: {text}" for text in check.warnings())
        if self._config.filters.limits.scores is None:
            for name, each in self._scores["scores"].items():
                low, usual = np.nanquantile(each[:], (0.01, 0.5))
                yield (
                    f"{name}: no pair has the reason scores: set filters.limits.scores; "
                    f"1% of the scores are below {low:.4g}, and half below {usual:.4g}"
                )

    def _held_out(self, name: str, corpus: CorpusConfig) -> list[SentencePair]:
        """Return the usable pairs of a held-out set, and check them as those of training."""
        where = _place(name)
        look = Look(self._filters[VALID], where, sketches=False)
        usable = []
        for seen in map(look, self._passes.blocks(corpus)):
            self._checked(where, seen.lengths, seen.kept)
            usable += seen.kept
        return usable

    def _checked(
        self, name: str, lengths: npt.NDArray[np.int64], usable: Sequence[SentencePair]
    ) -> list[tuple[str, str]]:
        """Look for signs that a block of a corpus is not what it should be; return its texts."""
        check = self._checks.setdefault(name, CorpusCheck(*self._languages))
        found = [pair[:2] for pair in usable]
        check.update(found, lengths)
        return found

    def _look(self, held_out: HeldOut, scratch: Path) -> tuple[Reservoir, RepeatFinder]:
        """First pass. Return the sample to learn from, and what compares the kept pairs."""
        sample = Reservoir(self._config.tokenizer.sample_sentences // 2)
        finder, scores = RepeatFinder(scratch), {}
        sketches = "near_duplicate" in self._filters[TRAIN].actions
        with self._stage("reading"):
            for name, corpus in self._corpora.items():
                look = Look(self._filters[TRAIN], name, sketches, held_out.index)
                for seen in self._passes.stored("reading", name, corpus, look, held_out.sources):
                    self._seen_block(name, seen, held_out, sample)
                    finder.add(seen.hashes)
                if corpus.scores is not None:
                    num = self._passes.lines[name]
                    read = read_scores(corpus.scores, num, is_part=corpus.max_pairs == num)
                    scores[name] = read
        self._scores["scores"] = scores
        return sample, finder

    def _seen_block(self, name: str, seen: LookedAt, held_out: HeldOut, sample: Reservoir) -> None:
        counts = self._records.of(name)
        self._records.add(TRAIN, seen.examined.found)
        counts.update(seen.examined.counts)
        counts[READ] += seen.num_lines
        self._kept.setdefault(name, []).append(np.packbits(seen.examined.is_kept))
        usable = self._checked(name, seen.lengths, seen.kept)
        held_out.update(seen.kept, name, seen.leaks)
        rates = self._corpora[name].augment.rates
        for texts in usable:
            sample.add(*(noisy_texts(texts, rates, self._random) if rates else texts))

    def _learn(self, sample: Reservoir) -> Tokenizers:
        start_from = self._config.training.start_from
        known = None if start_from is None else start_from / TOKENIZER
        update = {"user_defined_symbols": self._config.tag_symbols}
        config = self._config.tokenizer.model_copy(update=update)
        return learn_tokenizers(sample, self._folder / TOKENIZER, config, known)

    def _encode(
        self, corpora: Mapping[str, CorpusConfig], tokenizers: Tokenizers, folder: Path
    ) -> LineStore:
        """Encode all lines."""
        models = tokenizer_hash(self._folder / TOKENIZER)
        with (
            self._stage("encoding"),
            LineWriter(folder, max(tokenizers.vocab_sizes)) as writer,
        ):
            for name, corpus in corpora.items():
                encode = Encode(name, tokenizers, self._workers.threads)
                for lines in self._passes.stored("encoding", name, corpus, encode, models):
                    writer.add(name, lines)
        return LineStore(folder, writer.spans)

    def _x_ray(
        self, lines: LineStore, tokenizers: Tokenizers, scratch: Path, held_out: Container[str]
    ) -> Alignment:
        """Compare the words of all lines."""
        with self._stage("lexicon"):
            sizes, mapped = tokenizers.vocab_sizes, self._workers.mapped
            found = align_corpora(lines, sizes, lines.spans, scratch, held_out, mapped)
        self._scores["lexical"] = found.z_scores
        self._pending = self._workers.submit(write_scores, self._folder / LEXICAL, found.scores)
        return found if "misaligned" in self._filters[TRAIN].actions else replace(found, ranges={})

    def _line_scores(self) -> list[LineScores]:
        """Return the scores of the lines for which a low one is a reason."""
        limits, actions = self._config.filters.limits, self._filters[TRAIN].actions
        return [
            LineScores(reason, limit, values)
            for reason, values in self._scores.items()
            if reason in actions and (limit := getattr(limits, reason)) is not None
        ]

    def _write(
        self,
        part: str,
        corpora: Mapping[str, CorpusConfig],
        tokenizers: Tokenizers,
        lines: LineStore,
        known: CorpusFindings | None = None,
    ) -> list[SideStatistics]:
        """Second pass over the corpora of a part. Return the statistics of both sides."""
        sides = [
            SideStatistics(language, tokenizer, self._config.filters.max_length)
            for language, tokenizer in zip(self._languages, tokenizers, strict=True)
        ]
        writing: AbstractContextManager[StoreWriter | None] = nullcontext()
        if self._stores:
            writing = StoreWriter(self._folder / part, max(tokenizers.vocab_sizes))
        with writing as writer:
            for index, (name, corpus) in enumerate(corpora.items()):
                counts = self._records.of(name)
                tag = None if corpus.tag is None else tokenizers.source.tag_id(corpus.tag)
                decide = Decide(self._filters[part], name, texts=part == VALID)
                tasks = self._tasks(name, corpus, lines, known)
                start = 0
                for done in self._passes.done("writing", name, decide, tasks):
                    self._records.add(part, done.found)
                    counts.update(done.counts)
                    own = lines.block(name, start, start + done.num_lines)
                    start += done.num_lines
                    if part == VALID:
                        counts[READ] += done.num_lines
                    source, target = own.ids
                    ids = selected(source, done.is_kept, tag), selected(target, done.is_kept)
                    for side, flat in zip(sides, ids, strict=True):
                        side.update(flat)
                    if part == TRAIN:
                        self._lengths = nsmallest(NUM_LENGTHS, [*self._lengths, *done.lengths])
                    if writer:
                        writer.append_flat(ids, index, own.numbers[done.is_kept])
                        if part == VALID:  # its text, for scores of decoded output
                            _append_text(self._folder / VALID, done.texts)
        self._records.check_kept(part, corpora)
        return sides

    def _tasks(
        self, name: str, corpus: CorpusConfig, lines: LineStore, known: CorpusFindings | None
    ) -> Iterator[Task]:
        """Yield the blocks of a corpus with all that is known of each."""
        start = 0
        for number, block in enumerate(self._passes.blocks(corpus)):
            stop = start + len(block)
            source, target = lines.block(name, start, stop).ids
            lengths = source.lengths + (corpus.tag is not None), target.lengths
            if known is None:
                yield Task(block, lengths)
            else:
                bits = np.unpackbits(self._kept[name][number], count=len(block))
                is_kept = bits.astype(np.bool_)
                yield Task(block, lengths, is_kept, known.of_block(name, start, is_kept))
            start = stop


def _place(name: str) -> str:
    """Return what reports call a held-out set, as a training corpus may have its name."""
    return name if name == VALID else f"data.test.{name}"


def _append_text(folder: Path, pairs: Sequence[tuple[str, str]]) -> None:
    for column, side in enumerate(("source", "target")):
        with (folder / f"{side}.txt").open("ab") as file:
            file.write("".join(f"{pair[column]}\n" for pair in pairs).encode())
