"""A prepared folder: its report, its manifest, and its data opened for reading."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from nmt.config.filters import FilterConfig
from nmt.data.findings import printable
from nmt.data.store import ParallelStore
from nmt.errors import DataError
from nmt.files.json_file import read_json
from nmt.files.lines import read_lines
from nmt.files.manifest import FileRecord, sha256_of_json

FORMAT_VERSION = 1
MANIFEST, REPORT = "manifest.json", "report.json"
TRAIN, VALID, TOKENIZER = "train", "valid", "tokenizer"
"""Parts of the folder."""
READ, KEPT = "read", "kept"
"""Keys of a corpus's counts that are no reasons."""
_SEAL = "sha256"
"""Key of the manifest's own hash."""
_MOST_RANGES, _TEXT_WIDTH = 10, 40
_AGAIN = "Run `nmt prepare CONFIG --force`."


@dataclass(frozen=True, slots=True, kw_only=True)
class SideReport:
    """The training text of one language, in subwords."""

    language: str
    vocab_size: int
    """Entries of its vocabulary."""
    tokens: int
    """Subwords in all."""
    mean_length: float
    """Subwords in a sentence."""
    median_length: int
    p99_length: int
    """99 of 100 sentences are no longer."""
    max_length: int
    """Subwords of the longest sentence."""
    fallback_rate: float
    """Share of the subwords that are single bytes, or unknown."""
    num_used: int = 0
    """Entries of its vocabulary that occur; 0 in reports of earlier releases."""
    num_for_most: int = 0
    """Entries that make up 99% of the subwords."""
    lengths: Sequence[int] = field(default_factory=list)
    """Sentences of 0, 1, 2, ... subwords, up to where 1 of 1,000 is longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareReport:
    """What was read, what was dropped and why, and what came out."""

    folder: str
    """The prepared folder."""
    up_to_date: bool
    """Whether it was there already: the figures are those of when it was made."""
    written: bool = True
    """Whether it was written; not if only a report was asked for."""
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Per corpus: pairs read, kept, and dropped for each reason."""
    findings: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Per training corpus: pairs that look odd but were not dropped for it."""
    reasons: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Per reason that is not off: ``count`` of the training pairs that have it, ``action``, and
    ``examples`` (corpus, line, source, target, value)."""
    shifts: Sequence[Mapping[str, Any]] = field(default_factory=list)
    """Ranges of a corpus (source lines ``start`` to ``end``) whose targets stand ``offset`` on."""
    unrelated: Sequence[Mapping[str, Any]] = field(default_factory=list)
    """Ranges of a corpus (``start`` to ``end``) whose sides do not translate each other."""
    leakage: Sequence[Mapping[str, Any]] = field(default_factory=list)
    """Held-out sentences (``set``, ``line``) that training has (``corpus``, ``train_line``), and
    whether ``exact`` or ``near`` (``kind``)."""
    overlap: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Per held-out set: its pairs, and how many sources, targets and whole pairs the training has
    too; ``near_sources_in_train``: with one or two words changed, or joined to others."""
    unchecked: Sequence[str] = ()
    """Held-out sets that were not looked for, as they might have to be downloaded."""
    lengths: Sequence[Sequence[int]] = field(default_factory=list)
    """Subwords of source and target of a few kept pairs."""
    sides: Sequence[SideReport] = ()
    """Source and target of the training data."""
    joint: bool = True
    """Whether both sides share one vocabulary."""
    warnings: Sequence[str] = ()
    """What a person should look at."""
    seconds: float = 0.0
    """Time taken."""
    stages: Mapping[str, float] = field(default_factory=dict)
    """Seconds of each stage of the work."""

    @classmethod
    def read(cls, folder: Path) -> PrepareReport:
        """Read what was reported when ``folder`` was made.

        Raises:
            DataError: It is missing or damaged.
        """
        path = folder / REPORT
        try:
            values = read_json(path)
            values["sides"] = [SideReport(**side) for side in values["sides"]]
            report = cls(**values)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} is damaged: {error}", fix=_AGAIN) from error
        return replace(report, folder=str(folder), up_to_date=True)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self) | {"seconds": round(self.seconds, 3)}

    def as_text(self) -> str:
        """Return a report to read."""
        if self.up_to_date:
            return f"{self.folder} is up to date: configuration and corpora have not changed."
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        for name, counts in self.counts.items():
            yield f"{name}: {counts[READ]:,} pairs read, {counts[KEPT]:,} kept"
            reasons = {what: n for what, n in counts.items() if what not in (READ, KEPT)}
            for word, numbers in (("dropped", reasons), ("reported", self.findings.get(name, {}))):
                for what, number in sorted(numbers.items(), key=lambda item: -item[1]):
                    yield f"  {word} {number:,}: {what}"
                    yield from self._examples(name, what) if word == "reported" else ()
        if any(self.findings.values()):
            yield "reported pairs are kept; to drop those of a reason, --set filters.REASON=drop"
        yield f"{'subwords':10}{'mean':>8}{'median':>8}{'99%':>6}{'longest':>9}   bytes or unknown"
        for side in self.sides:
            yield (
                f"  {side.language:8}{side.mean_length:8.1f}{side.median_length:8}"
                f"{side.p99_length:6}{side.max_length:9}   {side.fallback_rate:.2%}"
            )
        source, target = (f"{side.vocab_size:,}" for side in self.sides)
        both = f"vocabularies: {source} and {target} entries"
        yield f"vocabulary: {source} entries, joint" if self.joint else both
        yield from self._misaligned()
        yield from (f"overlap: {text}" for text in self._overlap())
        yield from (f"warning: {text}" for text in self.warnings)
        rate = sum(counts[READ] for counts in self.counts.values()) / max(self.seconds, 1e-3)
        what = self.folder if self.written else "report only, nothing written"
        yield f"{what}: {self.seconds:.1f} s, {rate:,.0f} pairs a second"

    def _examples(self, corpus: str, reason: str) -> Iterator[str]:
        """Say what a reason means, and show the first pair of a corpus that is an example of it."""
        key = FilterConfig.model_fields.get(reason)
        if key is not None and key.description:
            about = " ".join(key.description.replace("``", "").split())
            yield f"    {about.partition('. ')[0].rstrip('.')}"
        examples = self.reasons.get(reason, {}).get("examples", ())
        own = sorted(
            (each for each in examples if each["corpus"] == corpus), key=itemgetter("line")
        )
        for each in own[:1]:
            texts = (printable(each[side]) for side in ("source", "target"))
            cut = (f"{x[:_TEXT_WIDTH]}…" if len(x) > _TEXT_WIDTH else x for x in texts)
            yield f"    line {each['line']:,}: {' | '.join(cut)}"

    def _misaligned(self) -> Iterator[str]:
        """Name the largest misaligned ranges."""
        found = sorted(
            [*self.shifts, *self.unrelated], key=lambda each: each["start"] - each["end"]
        )
        for each in found[:_MOST_RANGES]:
            lines = f"{each['corpus']}: lines {each['start']:,} to {each['end']:,}"
            if offset := each.get("offset"):
                direction = "further down" if offset > 0 else "further up"
                yield f"shifted: {lines} have their targets {abs(offset)} {direction}"
            else:
                yield f"unrelated: {lines} do not translate each other"
        if len(found) > _MOST_RANGES:
            yield f"and {len(found) - _MOST_RANGES:,} smaller ranges that are misaligned"

    def _overlap(self) -> Iterator[str]:
        """Name the sets without overlap too: silence could mean that nobody looked."""
        clean = []
        for name, found in self.overlap.items():
            near = found.get("near_sources_in_train", 0)
            if found["sources_in_train"] or near:
                yield (
                    f"{found['sources_in_train']:,} of {found['pairs']:,} source sentences of "
                    f"{name} are in the training data, {found['pairs_in_train']:,} with the same "
                    f"translation, and {near:,} nearly"
                )
            else:
                clean.append(f"{name} ({found['pairs']:,} pairs)")
        if clean:
            yield f"no source sentence of {', '.join(clean)} is in the training data"
        if self.unchecked:
            names = ", ".join(self.unchecked)
            yield f"not compared with {names}, which might have to be downloaded"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedManifest:
    """What a prepared folder was made of. Written last: a folder without it is not finished."""

    format_version: int
    """Version of the folder's layout."""
    config_hash: str
    """sha256 of the parts of the configuration that change the result."""
    sources: Mapping[str, Mapping[str, Any]]
    """Size, time and sha256 of each file that was read, by path."""
    data_hash: str
    """sha256 of the training and validation token ids."""
    vocab_hash: str
    """sha256 of the SentencePiece models."""
    source_vocab_size: int
    """Entries of the source vocabulary."""
    target_vocab_size: int
    """Entries of the target vocabulary."""
    counts: Mapping[str, Mapping[str, int]]
    """Per corpus: pairs read, kept, and dropped for each reason."""
    repaired: Sequence[Mapping[str, Any]] | None = None
    """Shifted ranges that were paired again; None if that was not asked for."""
    scored_with: Sequence[str] | None = None
    """Models that have scored the pairs; None if that was not asked for."""
    files: Mapping[str, FileRecord] = field(default_factory=dict)
    """Size and sha256 of every other file of the folder; none in older folders."""

    def write(self, folder: Path) -> None:
        """Write ``manifest.json`` into ``folder``."""
        values = asdict(self)
        values[_SEAL] = sha256_of_json(values)
        text = json.dumps(values, indent=2, sort_keys=True, ensure_ascii=False)
        (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> PreparedManifest:
        """Read the manifest of ``folder``.

        Raises:
            DataError: There is none, it is damaged, or it has another format version.
        """
        path = folder / MANIFEST
        try:
            values = read_json(path)
            version, seal = values["format_version"], values.pop(_SEAL, None)
            if version == FORMAT_VERSION:
                if seal not in (None, sha256_of_json(values)):
                    raise ValueError("its content has changed")
                files = values.pop("files", {})
                records = {name: FileRecord(**each) for name, each in files.items()}
                return cls(**values, files=records)
        except FileNotFoundError as error:
            raise DataError(
                f"{folder} holds no prepared data: it has no {MANIFEST}.",
                fix="Run `nmt prepare CONFIG`.",
            ) from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} is damaged: {error}", fix=_AGAIN) from error
        raise DataError(
            f"{path} has format version {version}; this release reads {FORMAT_VERSION}.", fix=_AGAIN
        )


class PreparedData:
    """The prepared data of one experiment, read-only."""

    def __init__(self, folder: Path, manifest: PreparedManifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self.train = ParallelStore.open(folder / TRAIN)
        self.valid = ParallelStore.open(folder / VALID)

    @classmethod
    def open(cls, folder: Path) -> PreparedData:
        """Open a finished folder.

        Raises:
            DataError: It is missing, unfinished or damaged.
        """
        return cls(folder, PreparedManifest.read(folder))

    @property
    def tokenizer_dir(self) -> Path:
        """Folder of the SentencePiece models."""
        return self.folder / TOKENIZER

    @property
    def valid_source(self) -> list[str]:
        """Source text of the validation set, as it was read."""
        return read_lines(self.folder / VALID / "source.txt")

    @property
    def valid_target(self) -> list[str]:
        """Reference text of the validation set, as it was read."""
        return read_lines(self.folder / VALID / "target.txt")
