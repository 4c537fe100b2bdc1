"""Corpora -> a prepared folder: tokenizers, token stores, manifest and report.

Two passes: the first counts, checks and draws the sample that the tokenizers learn from; the
second encodes. Memory holds the sample and one block of lines, however large the corpus. All is
written under a temporary name beside the folder and renamed at the end.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from nmt.config.data import CorpusConfig
from nmt.config.run import RunConfig
from nmt.data.corpus import (
    BadPair,
    ReadOptions,
    SentencePair,
    corpus_files,
    corpus_name,
    read_corpus,
)
from nmt.data.filters import DUPLICATE, length_problem, text_problem
from nmt.data.prepared import FORMAT_VERSION, PreparedManifest
from nmt.data.store import ParallelStore, StoreWriter
from nmt.errors import DataError
from nmt.text.sentencepiece import SentencePieceTokenizer, train_sentencepiece
from nmt.text.tokenizer import JOINT, SOURCE, TARGET, Tokenizers, load_tokenizers, tokenizer_hash

_BLOCK_PAIRS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareReport:
    """What was read, what was dropped and why, and what came out."""

    folder: str
    up_to_date: bool
    """Whether nothing had to be done."""
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Per corpus: pairs read, kept, and dropped for each reason."""
    lengths: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Subwords of source and target: mean, median, 99th percentile, longest."""
    vocabulary: Mapping[str, float] = field(default_factory=dict)
    """Sizes of the vocabularies, and the share of tokens spelt in bytes or unknown."""
    findings: Mapping[str, int] = field(default_factory=dict)
    """Pairs that look odd but were kept: overlap with test sets, HTML, identical sides, ..."""
    warnings: tuple[str, ...] = ()
    """What a person should look at."""
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        names = ("folder", "up_to_date", "counts", "lengths", "vocabulary", "findings")
        return {name: getattr(self, name) for name in names} | {
            "warnings": list(self.warnings),
            "seconds": round(self.seconds, 3),
        }

    def as_text(self) -> str:
        """Return a report to read."""
        if self.up_to_date:
            return f"{self.folder} is up to date: configuration and corpora have not changed."
        lines = []
        for name, counts in self.counts.items():
            lines.append(f"{name}: {counts['read']:,} pairs read, {counts['kept']:,} kept")
            reasons = sorted(counts.items(), key=lambda item: -item[1])
            lines += [
                f"  dropped {number:,}: {reason}"
                for reason, number in reasons
                if reason not in ("read", "kept")
            ]
        for side, stats in self.lengths.items():
            lines.append(
                f"{side} subwords: mean {stats['mean']:.1f}, median {stats['median']:.0f}, "
                f"99% below {stats['p99']:.0f}, longest {stats['longest']:.0f}"
            )
        if self.vocabulary:
            lines.append(
                f"vocabulary: {self.vocabulary['source']:,.0f} source and "
                f"{self.vocabulary['target']:,.0f} target entries; "
                f"{self.vocabulary['fallback_share']:.3%} of tokens are bytes or unknown"
            )
        lines += [f"found {number:,} pairs: {what}" for what, number in self.findings.items()]
        lines += [f"warning: {text}" for text in self.warnings]
        lines.append(f"{self.folder} done in {self.seconds:.1f} s")
        return "\n".join(lines)


def prepare(
    config: RunConfig, *, force: bool = False, report_only: bool = False, quiet: bool = False
) -> PrepareReport:
    """Make ``config.prepared_dir``, unless it is up to date.

    Args:
        config: The experiment.
        force: Make it anew in any case.
        report_only: Read and report, but write nothing.
        quiet: Show no progress.

    Raises:
        DataError: A corpus is missing, damaged, not parallel, or leaves no pair; or the folder
            cannot be written.
        TokenizerError: The text allows no vocabulary of this size.
    """
    folder = config.prepared_dir
    if not force and not report_only and _is_current(config):
        return PrepareReport(folder=str(folder), up_to_date=True)
    try:
        return _make(config, folder, report_only=report_only, quiet=quiet)
    except OSError as error:
        raise DataError(
            f"{folder} cannot be written: {error.strerror or error}.",
            fix="Set prepared_dir to a folder you can write to, with room on its disk.",
        ) from error


def _make(config: RunConfig, folder: Path, *, report_only: bool, quiet: bool) -> PrepareReport:
    folder.parent.mkdir(parents=True, exist_ok=True)
    for left_over in folder.parent.glob(f".{folder.name}.tmp-*"):
        shutil.rmtree(left_over, ignore_errors=True)
    temporary = folder.parent / f".{folder.name}.tmp-{os.getpid()}"
    try:
        report = _Preparation(config, temporary, quiet=quiet).run()
        if not report_only:
            _replace(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return report


def _replace(temporary: Path, folder: Path) -> None:
    """Put the finished folder in place; an older one goes first."""
    if folder.exists():
        if not (folder / "manifest.json").exists() and any(folder.iterdir()):
            raise DataError(
                f"{folder} exists, but was not made by `nmt prepare`.",
                fix="Set prepared_dir to another folder, or remove this one.",
            )
        shutil.rmtree(folder)
    temporary.rename(folder)


def config_hash(config: RunConfig) -> str:
    """Return the hash of everything in the configuration that changes the prepared data."""
    parts = {
        "data": config.data.model_dump(mode="json", exclude={"test"}),
        "tokenizer": config.tokenizer.model_dump(mode="json"),
        "filters": config.filters.model_dump(mode="json"),
        "languages": [config.source_language, config.target_language],
        "format": FORMAT_VERSION,
    }
    for corpus in parts["data"]["train"]:  # type: ignore[index]
        corpus.pop("weight")
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _is_current(config: RunConfig) -> bool:
    try:
        manifest = PreparedManifest.read(config.prepared_dir)
    except DataError:
        return False
    if manifest.config_hash != config_hash(config):
        return False
    return all(_is_same_file(Path(p), known) for p, known in manifest.sources.items())


def _is_same_file(path: Path, known: Mapping[str, Any]) -> bool:
    try:
        status = path.stat()
    except OSError:
        return False
    if status.st_size != known["size"]:
        return False
    return status.st_mtime_ns == known["mtime_ns"] or _sha256(path) == known["sha256"]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _describe(path: Path) -> dict[str, Any]:
    status = path.stat()
    return {
        "size": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "sha256": _sha256(path),
    }


class _Preparation:
    """One run of `prepare`, writing into ``folder``."""

    def __init__(self, config: RunConfig, folder: Path, *, quiet: bool) -> None:
        self.config = config
        self.folder = folder
        self.quiet = quiet
        self.options = ReadOptions(
            config.source_language,
            config.target_language,
            config.filters.on_bad_utf8,
            config.filters.max_characters,
        )
        self.threads = os.cpu_count() or 1
        self.counts: dict[str, Counter[str]] = {}
        self.findings: Counter[str] = Counter()
        self.seen: set[bytes] = set()

    def run(self) -> PrepareReport:
        """Do both passes and write the manifest last."""
        start = time.perf_counter()
        data = self.config.data
        names = _unique_names(data.train)
        test_hashes = self._test_hashes()
        sample = self._sample(zip(names, data.train, strict=True), test_hashes)
        self._learn(sample)
        tokenizers = load_tokenizers(self.folder / "tokenizer")
        for index, (name, corpus) in enumerate(zip(names, data.train, strict=True)):
            self._encode("train", name, corpus, index, tokenizers)
        self._encode("valid", "valid", data.valid, 0, tokenizers)
        train = ParallelStore.open(self.folder / "train")
        if len(train) == 0:
            raise DataError(
                "No training pair is left after the filters.",
                fix="Look at the counts of `nmt prepare CONFIG --report-only` and relax filters.",
            )
        report = self._report(train, tokenizers, time.perf_counter() - start)
        text = json.dumps(report.as_dict(), indent=2, ensure_ascii=False)
        (self.folder / "report.json").write_text(text + "\n", encoding="utf-8")
        self._manifest(tokenizers).write(self.folder)
        return report

    def _pairs(
        self, name: str, corpus: CorpusConfig, verb: str
    ) -> Iterator[SentencePair | BadPair]:
        pairs = tqdm(
            read_corpus(corpus, self.options),
            desc=f"{verb} {name}",
            unit=" pairs",
            disable=True if self.quiet else None,
            leave=False,
        )
        return iter(pairs)

    def _test_hashes(self) -> dict[bytes, str]:
        """Hashes of the held-out source sentences, to find them in the training data."""
        hashes: dict[bytes, str] = {}
        held_out = {"valid": self.config.data.valid, **self.config.data.test}
        for name, corpus in held_out.items():
            if corpus.sacrebleu or corpus.huggingface:  # not downloaded just to be counted
                continue
            for pair in read_corpus(corpus, self.options):
                if isinstance(pair, SentencePair) and pair.source.strip():
                    hashes.setdefault(_hash(pair.source), name)
        return hashes

    def _sample(
        self,
        corpora: Iterable[tuple[str, CorpusConfig]],
        test_hashes: Mapping[bytes, str],
    ) -> list[tuple[str, str]]:
        """First pass: check every corpus, and draw pairs at random (reservoir sampling)."""
        wanted = self.config.tokenizer.sample_sentences
        chosen: list[tuple[str, str]] = []
        draw, usable = random.Random(1), 0
        for name, corpus in corpora:
            for pair in self._pairs(name, corpus, "reading"):
                if isinstance(pair, BadPair) or text_problem(pair.source, pair.target):
                    continue
                self._look(pair, test_hashes)
                usable += 1
                if len(chosen) < wanted:
                    chosen.append((pair.source, pair.target))
                elif (slot := draw.randrange(usable)) < wanted:
                    chosen[slot] = (pair.source, pair.target)
        return chosen

    def _look(self, pair: SentencePair, test_hashes: Mapping[bytes, str]) -> None:
        """Count what looks odd in a training pair."""
        found = self.findings
        if pair.source == pair.target:
            found["both sides identical"] += 1
        if "<" in pair.source and ("</" in pair.source or "/>" in pair.source):
            found["HTML or XML tags"] += 1
        if not (pair.source.isprintable() and pair.target.isprintable()):
            found["control characters"] += 1
        where = test_hashes.get(_hash(pair.source))
        if where is not None:
            found[f"source sentence also in {where}"] += 1

    def _learn(self, sample: list[tuple[str, str]]) -> None:
        if not sample:
            raise DataError(
                "The training corpora hold no pair with text on both sides.",
                fix="Check the files that data.train names.",
            )
        folder = self.folder / "tokenizer"
        folder.mkdir(parents=True)
        config = self.config.tokenizer
        sources, targets = (pair[0] for pair in sample), (pair[1] for pair in sample)
        if config.joint:
            both = (text for pair in sample for text in pair)
            train_sentencepiece(both, folder / JOINT, config, threads=self.threads)
        else:
            train_sentencepiece(sources, folder / SOURCE, config, threads=self.threads)
            train_sentencepiece(targets, folder / TARGET, config, threads=self.threads)

    def _encode(
        self, part: str, name: str, corpus: CorpusConfig, index: int, tokenizers: Tokenizers
    ) -> None:
        """Second pass over one corpus."""
        counts = self.counts.setdefault(name, Counter(read=0, kept=0))
        is_train = part == "train"
        vocab_size = max(tokenizers.source.vocab_size, tokenizers.target.vocab_size)
        pairs = self._pairs(name, corpus, "encoding")
        folder = self.folder / part
        with StoreWriter(folder, vocab_size, append=index > 0) as writer:
            while block := list(islice(pairs, _BLOCK_PAIRS)):
                usable = [
                    pair
                    for pair in block
                    if self._keep_text(pair, counts, is_train) and isinstance(pair, SentencePair)
                ]
                source = tokenizers.source.encode_batch([p.source for p in usable], self.threads)
                target = tokenizers.target.encode_batch([p.target for p in usable], self.threads)
                kept = [
                    i
                    for i in range(len(usable))
                    if self._keep_length(len(source[i]), len(target[i]), counts, is_train)
                ]
                counts["kept"] += len(kept)
                writer.append(
                    [source[i] for i in kept],
                    [target[i] for i in kept],
                    index,
                    [usable[i].line for i in kept],
                )
                if not is_train:
                    _append_text(folder, [usable[i] for i in kept])

    def _keep_text(
        self, pair: SentencePair | BadPair, counts: Counter[str], is_train: bool
    ) -> bool:
        counts["read"] += 1
        if isinstance(pair, BadPair):
            counts[pair.reason] += 1
            return False
        problem = text_problem(pair.source, pair.target)
        if problem is None and is_train and self.config.filters.deduplicate:
            key = _hash(f"{pair.source}\n{pair.target}")
            if key in self.seen:
                problem = DUPLICATE
            self.seen.add(key)
        if problem is not None:
            counts[problem] += 1
        return problem is None

    def _keep_length(self, source: int, target: int, counts: Counter[str], is_train: bool) -> bool:
        filters = self.config.filters
        if not is_train:  # held-out pairs are dropped only when the model cannot hold them
            filters = filters.model_copy(update={"max_length_ratio": float("inf")})
        problem = length_problem(source, target, filters)
        if problem is not None:
            counts[problem] += 1
        return problem is None

    def _report(
        self, train: ParallelStore, tokenizers: Tokenizers, seconds: float
    ) -> PrepareReport:
        lengths = {"source": train.source_lengths, "target": train.target_lengths}
        fallback = tokens = 0
        for tokenizer, side in ((tokenizers.source, "source"), (tokenizers.target, "target")):
            counts = train.token_counts(side, tokenizer.vocab_size)
            tokens += int(counts.sum())
            if isinstance(tokenizer, SentencePieceTokenizer):
                used = np.flatnonzero(counts)
                fallback += sum(int(counts[i]) for i in used if tokenizer.is_fallback(int(i)))
        return PrepareReport(
            folder=str(self.config.prepared_dir),
            up_to_date=False,
            counts={name: dict(counts) for name, counts in self.counts.items()},
            lengths={
                side: {
                    "mean": float(values.mean()),
                    "median": float(np.median(values)),
                    "p99": float(np.percentile(values, 99)),
                    "longest": float(values.max()),
                }
                for side, values in lengths.items()
            },
            vocabulary={
                "source": tokenizers.source.vocab_size,
                "target": tokenizers.target.vocab_size,
                "fallback_share": fallback / max(tokens, 1),
            },
            findings=dict(self.findings),
            warnings=tuple(self._warnings(train)),
            seconds=seconds,
        )

    def _warnings(self, train: ParallelStore) -> Iterator[str]:
        num_pairs = len(train)
        if self.findings["both sides identical"] > 0.1 * num_pairs:
            yield "more than a tenth of the pairs have identical sides: is one file given twice?"
        if num_pairs >= 100:
            correlation = np.corrcoef(train.source_lengths, train.target_lengths)[0, 1]
            if correlation < 0.3:
                yield (
                    f"lengths of the two sides hardly agree (correlation {correlation:.2f}): "
                    "are the files shifted against each other?"
                )

    def _manifest(self, tokenizers: Tokenizers) -> PreparedManifest:
        data = self.config.data
        files = {path for corpus in (*data.train, data.valid) for path in corpus_files(corpus)}
        arrays = sorted(
            path for part in ("train", "valid") for path in (self.folder / part).glob("*.bin")
        )
        return PreparedManifest(
            format_version=FORMAT_VERSION,
            config_hash=config_hash(self.config),
            sources={str(path): _describe(path) for path in sorted(files)},
            data_hash=_hash_all(arrays),
            vocab_hash=tokenizer_hash(self.folder / "tokenizer"),
            source_vocab_size=tokenizers.source.vocab_size,
            target_vocab_size=tokenizers.target.vocab_size,
            counts={name: dict(counts) for name, counts in self.counts.items()},
        )


def _append_text(folder: Path, pairs: list[SentencePair]) -> None:
    for side in ("source", "target"):
        with (folder / f"{side}.txt").open("ab") as file:
            file.write("".join(f"{getattr(pair, side)}\n" for pair in pairs).encode())


def _unique_names(corpora: Iterable[CorpusConfig]) -> list[str]:
    names: list[str] = []
    for corpus in corpora:
        name = corpus_name(corpus)
        names.append(name if name not in names else f"{name} ({len(names) + 1})")
    return names


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.strip().encode("utf-8", "surrogatepass"), digest_size=8).digest()


def _hash_all(paths: Iterable[Path]) -> str:
    whole = hashlib.sha256()
    for path in paths:
        whole.update(path.name.encode())
        whole.update(_sha256(path).encode())
    return whole.hexdigest()
