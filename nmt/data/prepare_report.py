"""What `nmt prepare` reports: what was read, what was dropped and why, and what came out."""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from heapq import nsmallest
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import TypeAdapter

from nmt.config.data import FilterConfig
from nmt.config.flag import meanings_of
from nmt.data.filters import FilterChain, Found
from nmt.data.prepared import AGAIN, TOKENIZER, PreparedData, Recipe, are_unchanged
from nmt.data.store import ParallelStore
from nmt.errors import ConfigError, DataError
from nmt.files.atomic import write_bytes, write_errors
from nmt.files.json_file import read_json
from nmt.registry import Registry
from nmt.text.tokenizer import Tokenizer, tokenizer_hash

REPORT = "report.json"
_TEXT_WIDTH = 40
_NUM_LENGTHS = 400
# Lists of the pairs with a finding: corpus, line, reason, value, limit.
DROPPED, REPORTED = "dropped.tsv.gz", "reported.tsv.gz"
# Keys of a corpus's counts that are not reasons.
READ, KEPT = "read", "kept"
_COLUMNS = "corpus", "line", "reason", "value", "limit"
_EXAMPLE = "corpus", "line", "source", "target", "value"
_NUM_EXAMPLES = 5


def printable(value: float | str) -> str:
    """Return a number or a text with its invisible characters as escapes."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in str(value))


@contextmanager
def open_table(path: Path, *columns: str) -> Iterator[gzip.GzipFile]:
    """Open a new compressed TSV file; the same rows give the same bytes."""
    # Without a file name and a time in it.
    with path.open("wb") as raw, gzip.GzipFile("", "wb", 6, raw, 0) as file:
        file.write("\t".join(columns).encode() + b"\n")
        yield file


def _draw(each: Found) -> tuple[int, str, int]:
    """Order in which examples are taken: spread over the corpora, and always the same."""
    return zlib.crc32(f"{each.corpus}:{each.line}".encode()), each.corpus, each.line


class Findings(ExitStack):
    """Counts of each corpus, examples of each reason, and both lists, written as they come.

    Args:
        folder: Where to write the lists.
        training: Filters of the training pairs.
        corpora: Names of the training corpora.
        held_out: Name of the set that is prepared beside them; all its findings drop.
    """

    def __init__(
        self, folder: Path, training: FilterChain, corpora: Iterable[str], held_out: str
    ) -> None:
        super().__init__()
        self._training, self._corpora = training, [*corpora]
        self._dropped, self._reported = (
            self.enter_context(open_table(folder / name, *_COLUMNS)) for name in (DROPPED, REPORTED)
        )
        # By reason: pairs of each corpus, and examples.
        self._reasons = defaultdict[str, Counter[str]](Counter)
        self._examples = defaultdict[str, list[Found]](list)
        # Pairs read, kept, and dropped under their first reason that drops.
        self.counts = {name: Counter({READ: 0, KEPT: 0}) for name in (*self._corpora, held_out)}

    def take(self, corpus: str, values: tuple[Sequence[Any], Mapping[str, int]]) -> list[Found]:
        """Count and list what a function found in a block; return the findings."""
        rows, counts = values
        self.counts[corpus].update(counts)
        found = [Found(*row) for row in rows]  # of a file they are lists
        is_training = corpus in self._corpora
        for each in found:
            is_dropped = not is_training or self._training.drops(each.reason)
            row = "\t".join(map(printable, each[: len(_COLUMNS)])) + "\n"
            (self._dropped if is_dropped else self._reported).write(row.encode())
            if is_training:
                self._reasons[each.reason][corpus] += 1
                self._examples[each.reason].append(each)
        for reason in {each.reason for each in found}:
            self._examples[reason] = nsmallest(_NUM_EXAMPLES, self._examples[reason], key=_draw)
        return found

    def check_kept(self, kind: str, corpora: Iterable[str]) -> None:
        """Check that some pair of some corpora is left.

        Raises:
            DataError: No pair is; says why.
        """
        reasons = sum((self.counts[name] for name in corpora), Counter[str]())
        if not reasons[KEPT]:
            counts = (f"{what} {n:,}" for what, n in reasons.most_common() if what != READ)
            dropped = ", ".join(counts) or "nothing"
            problem = f"No {kind} pair is left after the filters. Dropped: {dropped}."
            raise DataError(problem, fix="Check the files, or relax the filters section.")

    def report(self) -> dict[str, Any]:
        """Return ``counts``, ``findings`` and ``reasons`` of a `PrepareReport`."""
        actions, reasons = self._training.actions, self._reasons
        reported = [name for name in reasons if actions.get(name) == "report"]
        return {
            "counts": {
                name: {what: n for what, n in counts.items() if n or what in (READ, KEPT)}
                for name, counts in self.counts.items()
            },
            "findings": {
                corpus: {name: n for name in reported if (n := reasons[name][corpus])}
                for corpus in self._corpora
            },
            "reasons": {
                name: {
                    "count": reasons[name].total(),
                    "action": actions.get(name, "drop"),
                    "examples": [
                        {field: getattr(each, field) for field in _EXAMPLE}
                        for each in self._examples[name]
                    ],
                }
                for name in dict.fromkeys((*actions, *reasons))
            },
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SideReport:
    """The training text of one language, in subwords."""

    language: str
    vocab_size: int
    tokens: int  # in all
    mean_length: float  # of a sentence
    median_length: int
    p99_length: int  # 99 of 100 sentences are no longer
    max_length: int
    fallback_rate: float  # share of the subwords that are single bytes, or unknown
    num_used: int = 0  # entries of the vocabulary that occur
    num_for_most: int = 0  # entries that make up 99% of the subwords
    lengths: Sequence[int] = ()  # sentences of 0, 1, 2, ... subwords; 1 of 1,000 is longer


def report_side(
    store: ParallelStore, side: Literal["source", "target"], language: str, tokenizer: Tokenizer
) -> SideReport:
    """Return the figures of one side of a store that is not empty."""
    lengths = np.bincount(store.source_lengths if side == "source" else store.target_lengths)
    uses = store.token_counts(side, tokenizer.vocab_size)
    is_fallback = np.array([*map(tokenizer.is_fallback, range(tokenizer.vocab_size))])
    upto, most_used = np.cumsum(lengths), np.cumsum(np.sort(uses)[::-1])
    tokens, sentences = int(most_used[-1]), int(upto[-1])
    return SideReport(
        language=language,
        vocab_size=len(uses),
        tokens=tokens,
        mean_length=tokens / sentences,
        median_length=int(np.searchsorted(upto, 0.5 * sentences)),
        p99_length=int(np.searchsorted(upto, 0.99 * sentences)),
        max_length=len(lengths) - 1,
        fallback_rate=int(uses[is_fallback].sum()) / tokens,
        num_used=int((uses > 0).sum()),
        num_for_most=int(np.searchsorted(most_used, 0.99 * tokens)) + 1,
        lengths=lengths[: int(np.searchsorted(upto, 0.999 * sentences)) + 1].tolist(),
    )


def sample_lengths(store: ParallelStore) -> list[list[int]]:
    """Return the subwords of source and target of a few pairs, spread over a store."""
    rows = np.unique(np.linspace(0, len(store) - 1, _NUM_LENGTHS).astype(np.int64))
    return np.stack((store.source_lengths[rows], store.target_lengths[rows]), axis=1).tolist()


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareReport:
    """What was read, what was dropped and why, and what came out."""

    folder: str  # the prepared folder
    up_to_date: bool  # whether it was there already: the figures are those of when it was made
    written: bool = True  # not if only a report was asked for
    # Per corpus: pairs read, kept, and dropped for each reason.
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    # Per training corpus: pairs that look odd but were not dropped for it.
    findings: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    # Per reason that is not off: ``count`` of the training pairs that have it, ``action``, and
    # ``examples`` (corpus, line, source, target, value).
    reasons: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # Ranges of a corpus (source ``start`` to ``end``) whose targets stand ``offset`` lines on.
    shifts: Sequence[Mapping[str, Any]] = ()
    # Ranges of a corpus (``start`` to ``end``) whose sides do not translate each other.
    unrelated: Sequence[Mapping[str, Any]] = ()
    # Held-out sentences (``set``, ``line``) that training has (``corpus``, ``train_line``), and
    # whether ``exact`` or ``near`` (``kind``).
    leakage: Sequence[Mapping[str, Any]] = ()
    # Per held-out set: its pairs, and how many sources, targets and whole pairs the training has
    # too; ``near_sources_in_train``: with one or two words changed, or joined to others.
    overlap: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    unchecked: Sequence[str] = ()  # held-out sets that might have to be downloaded
    lengths: Sequence[Sequence[int]] = ()  # subwords of source and target of a few kept pairs
    sides: Sequence[SideReport] = ()  # source and target of the training data
    joint: bool = True  # whether both sides share one vocabulary
    notes: Sequence[str] = ()  # what a diagnosis has found, to read
    warnings: Sequence[str] = ()  # what a person should look at
    seconds: float = 0.0
    stages: Mapping[str, float] = field(default_factory=dict)  # seconds of each

    @classmethod
    def read(cls, folder: Path) -> PrepareReport:
        """Read what was reported when ``folder`` was made.

        Raises:
            DataError: It is missing or damaged.
        """
        path = folder / REPORT
        try:
            report = TypeAdapter(cls).validate_python(read_json(path))
        except (OSError, ValueError) as error:
            raise DataError(f"{path} is damaged: {error}", fix=AGAIN) from error
        return replace(report, folder=str(folder), up_to_date=True)

    def write(self, folder: Path) -> None:
        """Write ``report.json``."""
        text = json.dumps(self.as_dict(), indent=2, ensure_ascii=False) + "\n"
        write_bytes(folder / REPORT, text.encode())

    def written_to(self, folder: Path | None, *, lists: Path) -> PrepareReport:
        """Write all files of the report into a folder, if there is one; return the report.

        Args:
            folder: Where to write.
            lists: Folder that holds the lists of pairs.

        Raises:
            DataError: They cannot be written.
        """
        if folder is not None:
            fix = "Name a folder you can write to, with room on its disk."
            with write_errors(folder, DataError, fix=fix):
                folder.mkdir(parents=True, exist_ok=True)
                self.write(folder)
                for path in lists.glob("*.tsv.gz"):
                    write_bytes(folder / path.name, path.read_bytes())
                with suppress(ConfigError):  # the extra that draws the page is missing
                    write_bytes(folder / "report.html", PAGES["prepare"](self).encode())
        return self

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
            yield "reported pairs are kept; set filters.REASON to drop them"
        yield f"{'subwords':10}{'mean':>8}{'median':>8}{'99%':>6}{'longest':>9}   bytes or unknown"
        for side in self.sides:
            yield (
                f"  {side.language:8}{side.mean_length:8.1f}{side.median_length:8}"
                f"{side.p99_length:6}{side.max_length:9}   {side.fallback_rate:.2%}"
            )
        source, target = (f"{side.vocab_size:,}" for side in self.sides)
        both = f"vocabularies: {source} and {target} entries"
        yield f"vocabulary: {source} entries, joint" if self.joint else both
        yield from self.notes
        yield from (f"overlap: {text}" for text in self._overlap())
        yield from (f"warning: {text}" for text in self.warnings)
        rate = sum(counts[READ] for counts in self.counts.values()) / max(self.seconds, 1e-3)
        what = self.folder if self.written else "report only, nothing written"
        yield f"{what}: {self.seconds:.1f} s, {rate:,.0f} pairs a second"

    def _examples(self, corpus: str, reason: str) -> Iterator[str]:
        """Say what a reason means, and show the first pair of a corpus that is an example of it."""
        if about := meanings_of(FilterConfig.__doc__).get(reason):
            yield f"    {about.replace('``', '').partition('. ')[0].rstrip('.')}"
        examples = self.reasons.get(reason, {}).get("examples", ())
        own = (each for each in examples if each["corpus"] == corpus)
        if each := min(own, key=itemgetter("line"), default=None):
            texts = (printable(each[side]) for side in ("source", "target"))
            cut = (f"{x[:_TEXT_WIDTH]}…" if len(x) > _TEXT_WIDTH else x for x in texts)
            yield f"    line {each['line']:,}: {' | '.join(cut)}"

    def _overlap(self) -> Iterator[str]:
        """Name the sets without overlap too: silence could mean that nobody looked."""
        clean = []
        for name, found in self.overlap.items():
            near, sources = found["near_sources_in_train"], found["sources_in_train"]
            if sources or near:
                yield (
                    f"{sources:,} of {found['pairs']:,} source sentences of {name} are in the "
                    f"training data, {found['pairs_in_train']:,} with the same translation, and "
                    f"{near:,} nearly"
                )
            else:
                clean.append(f"{name} ({found['pairs']:,} pairs)")
        if clean:
            yield f"no source sentence of {', '.join(clean)} is in the training data"
        if names := ", ".join(self.unchecked):
            yield f"not compared with {names}, which might have to be downloaded"


def current_report(
    folder: Path, recipe: Recipe, scored_with: tuple[str, ...] = (), piped: Path | None = None
) -> PrepareReport | None:
    """Return the report of a prepared folder if it is whole and would be made again as it is.

    Args:
        folder: The prepared folder.
        recipe: What would be made.
        scored_with: Models that would score the pairs; a folder with scores is as good as without.
        piped: A copy of standard input; without it, that is taken to be what it was.
    """
    try:
        manifest = PreparedData.open(folder).manifest
        is_current = (
            (not scored_with or tuple(manifest.scored_with) == scored_with)
            and manifest.config_hash == recipe.hash(manifest.vocab_hash)
            and manifest.vocab_hash == tokenizer_hash(folder / TOKENIZER)
            # A folder of Hugging Face files may have more or fewer.
            and set(manifest.sources) == {str(path) for path in recipe.files}
            and are_unchanged(manifest.sources, piped)
        )
        return PrepareReport.read(folder) if is_current else None
    except (DataError, OSError):
        return None


PAGES: Registry[Callable[[PrepareReport], str]] = Registry(
    "report page", {"prepare": "nmt.extras.cleaning.page:render_report"}
)
