"""The report of `nmt prepare`: counts of pairs by reason, example pairs, and statistics."""

from __future__ import annotations

import gzip
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from heapq import nsmallest
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from pydantic import TypeAdapter

from nmt.config.data import Direction, FilterConfig
from nmt.config.flag import meanings_of
from nmt.data.advice import ReasonSets
from nmt.data.filters import NEAR, UNREAD, FilterChain, ListedProblem
from nmt.data.prepared import AGAIN, TIMES, TOKENIZER, PreparedData, Recipe, are_unchanged
from nmt.data.store import IntArray, ParallelStore
from nmt.errors import DataError
from nmt.files.atomic import write_bytes, write_errors, write_json
from nmt.files.json_file import read_json
from nmt.report.page import Chart, Curve, render, render_chart
from nmt.text.loss import loss_of
from nmt.text.tokenizer import SPACE, Tokenizer, Tokenizers, tokenizer_hash

REPORT = "report.json"
PAGE = "report.html"
_TEXT_WIDTH = 40  # characters of an example text in a message
_NUM_LENGTHS = 400  # pairs whose lengths the report lists
# Files that list the pairs with a problem, with the columns `_COLUMNS`.
DROPPED = "dropped.tsv.gz"
REPORTED = "reported.tsv.gz"
# Keys of the counts of a corpus that are not reasons.
READ = "read"
KEPT = "kept"
_COLUMNS = ("corpus", "line", "reason", "value", "limit")
_EXAMPLE = ("corpus", "line", "source", "target", "value", "file")
_NUM_EXAMPLES = 5
_SIDES = ("source", "target")
# A character without a subword becomes three bytes or more, so 5% of the subwords means that about
# one character in fifty of a text with short subwords is unseen. Usual text has less than 0.5%.
_MOST_FALLBACK = 0.05
_SHARES = np.array([0.5, 0.99, 0.999])  # Of the sentences, for quantiles of lengths.
# Fields that equal preparations can have in different forms.
_IN_TIMES = ("seconds", "stages", "sources")
_FEWEST_KEPT = 0.5  # A corpus that keeps a smaller share of its pairs has a problem.


def printable(value: float | str) -> str:
    """Format a number, or a text with escapes for invisible characters."""
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    if text.isprintable():
        return text
    # Without the quotes of `repr`.
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


@contextmanager
def open_table(path: Path, *columns: str) -> Iterator[gzip.GzipFile]:
    """Open a new gzipped TSV file and write its header. The same rows give the same bytes."""
    # Level 6; no file name and the time 0 in the gzip header.
    with path.open("wb") as raw, gzip.GzipFile("", "wb", 6, raw, 0) as file:
        file.write("\t".join(columns).encode() + b"\n")
        yield file


def _random_rank(problem: ListedProblem) -> tuple[int, str, int]:
    """Return a sort key that chooses the same pseudo-random examples every time.

    Of pairs that cannot be read, it chooses the first ones.
    """
    if problem.reason in UNREAD:
        return 0, problem.corpus, problem.line
    checksum = zlib.crc32(f"{problem.corpus}:{problem.line}".encode())
    return checksum, problem.corpus, problem.line


def _example(problem: ListedProblem) -> dict[str, Any]:
    return {key: getattr(problem, key) for key in _EXAMPLE}


class ProblemLog(ExitStack):
    """Collects counts and examples of problems, and lists the dropped and the reported pairs.

    Args:
        folder: Folder for the lists.
        training: Filters of the training pairs.
        corpora: Names of the training corpora.
        held_out: Names of the validation sets, in which every problem drops the pair.
    """

    def __init__(
        self, folder: Path, training: FilterChain, corpora: Iterable[str], held_out: Iterable[str]
    ) -> None:
        super().__init__()
        self._training = training
        self._corpora = list(corpora)
        self._dropped = self.enter_context(open_table(folder / DROPPED, *_COLUMNS))
        self._reported = self.enter_context(open_table(folder / REPORTED, *_COLUMNS))
        # Of the training corpora. By reason: the number of pairs by corpus, and some examples.
        self._reasons = defaultdict[str, Counter[str]](Counter)
        self._examples = defaultdict[str, list[ListedProblem]](list)
        # By corpus: pairs read, pairs kept, and dropped pairs by the first reason that drops them.
        names = (*self._corpora, *held_out)
        self.counts = {name: Counter({READ: 0, KEPT: 0}) for name in names}
        # By training corpus: the number of kept pairs by their set of reasons.
        self.kept_sets = {name: Counter[int]() for name in self._corpora}

    def take(
        self, corpus: str, values: tuple[Sequence[Any], Mapping[str, int]]
    ) -> list[ListedProblem]:
        """Add the problems and the counts of a block, and return the problems.

        Args:
            corpus: Name of the corpus.
            values: ``BlockResult.values`` of a pass: the problems, as tuples or lists of the fields
                of a `ListedProblem`, and the counts.
        """
        problem_rows, counts = values
        self.counts[corpus].update(counts)
        problems = [ListedProblem(*row) for row in problem_rows]  # stored rows are lists
        is_training = corpus in self._corpora
        for problem in problems:
            is_dropped = not is_training or self._training.drops(problem.reason)
            table = self._dropped if is_dropped else self._reported
            shown = problem.place, *problem[1 : len(_COLUMNS)]  # the texts are left out
            cells = map(printable, shown)
            line = "\t".join(cells)
            table.write(f"{line}\n".encode())
            if is_training:
                self._reasons[problem.reason][corpus] += 1
                self._examples[problem.reason].append(problem)
        # Keep a few examples of each reason that this block has.
        for reason in {problem.reason for problem in problems}:
            examples = self._examples[reason]
            self._examples[reason] = nsmallest(_NUM_EXAMPLES, examples, key=_random_rank)
        return problems

    def count_reasons(self, corpus: str, found: ReasonSets) -> None:
        """Count the kept pairs of a block of a training corpus by their sets of reasons."""
        sets, counts = np.unique(found, return_counts=True)
        by_set = dict(zip(sets.tolist(), counts.tolist(), strict=True))
        self.kept_sets[corpus].update(by_set)

    def check_kept(self, kind: str, corpora: Iterable[str]) -> None:
        """Check that at least one pair of each corpus is kept.

        Args:
            kind: ``training`` or ``validation``, for the message.
            corpora: Names of the corpora.

        Raises:
            DataError: All pairs of a corpus were dropped. The message lists the reasons.
        """
        for name in corpora:
            if not self.counts[name][KEPT]:
                raise self.nothing_left(kind, name)

    def nothing_left(self, kind: str, name: str) -> DataError:
        """Return the error that no pair of a corpus is left, with the reasons."""
        counts = self.counts[name].most_common()
        reasons = [f"{reason} {count:,}" for reason, count in counts if count and reason != READ]
        problem = f"{name} contains no {kind} pairs."
        if reasons:
            problem = f"The filters dropped all {kind} pairs of {name}: {', '.join(reasons)}."
        return DataError(problem, fix="Check the files, or relax the filters section.")

    def report(self) -> PrepareReport:
        """Return the counts, the findings and the reasons."""
        actions = self._training.actions
        counts = {}
        findings = {}
        reasons = {}
        for corpus, corpus_counts in self.counts.items():
            # Reasons that have dropped no pair are left out.
            counts[corpus] = {
                key: count for key, count in corpus_counts.items() if count or key in (READ, KEPT)
            }
        for corpus in self._corpora:
            reported = {}
            for reason, count_by_corpus in self._reasons.items():
                if count_by_corpus[corpus] and actions.get(reason) == "report":
                    reported[reason] = count_by_corpus[corpus]
            findings[corpus] = reported
        for reason in dict.fromkeys((*actions, *self._reasons)):
            reasons[reason] = {
                "count": self._reasons[reason].total(),
                "action": actions.get(reason, "drop"),
                "examples": list(map(_example, self._examples[reason])),
            }
        with_findings = {}
        for corpus, by_set in self.kept_sets.items():
            with_findings[corpus] = by_set.total() - by_set[0]
        return PrepareReport(
            counts=counts, findings=findings, with_findings=with_findings, reasons=reasons
        )


@dataclass(frozen=True, kw_only=True)
class SideReport:
    """Statistics of one side of the training data. Lengths are in subwords per sentence."""

    language: str
    side: str = ""  # source or target
    vocab_size: int
    tokens: int  # total number of subwords
    mean_length: float
    median_length: int
    p99_length: int  # 99th percentile
    max_length: int
    fallback_rate: float  # share of the subwords that are single bytes or unknown
    num_used: int = 0  # subwords of the vocabulary that occur in the text
    num_for_most: int = 0  # most frequent subwords that cover 99% of the text
    lengths: Sequence[int] = ()  # number of sentences by length, up to the 99.9th percentile


def report_sides(
    store: ParallelStore, directions: Sequence[Direction], tokenizers: Tokenizers
) -> list[SideReport]:
    """Compute the statistics of each language: first on the source side, then on the target side.

    Args:
        store: Training or validation pairs.
        directions: Languages of each corpus in the store.
        tokenizers: Tokenizers of both sides.
    """
    reports = []
    for side, stored in enumerate((store.source, store.target)):
        tokenizer = tokenizers[side]
        languages = [direction[side] for direction in directions]  # of each corpus
        for language in dict.fromkeys(languages):
            uses = np.zeros(tokenizer.vocab_size, np.int64)
            lengths = []  # an array for each corpus in this language
            for corpus, corpus_language in enumerate(languages):
                if corpus_language == language:
                    rows = store.rows_of(corpus)
                    uses += stored.counts(tokenizer.vocab_size, rows)
                    lengths.append(stored.lengths[rows])
            if uses.any():  # every sentence may have been dropped
                report = _report_side(language, tokenizer, np.concatenate(lengths), uses)
                reports.append(replace(report, side=_SIDES[side]))
    return reports


def _report_side(
    language: str, tokenizer: Tokenizer, lengths: IntArray, uses: IntArray
) -> SideReport:
    """Compute the statistics of one side in one language.

    Args:
        language: Code of the language.
        tokenizer: Tokenizer of the side.
        lengths: Subwords of each sentence. (n,)
        uses: Occurrences of each subword. (V,)
    """
    num_tokens = int(uses.sum())
    counts = np.bincount(lengths)  # item i: number of sentences with i subwords
    num_up_to_length = np.cumsum(counts)  # item i: number of sentences with at most i subwords
    # Item i: occurrences of the i + 1 most frequent subwords.
    num_covered = np.cumsum(np.sort(uses)[::-1])
    # For each share: the smallest length such that so many sentences are not longer.
    num_shorter = _SHARES * len(lengths)
    median, p99, p999 = np.searchsorted(num_up_to_length, num_shorter).tolist()
    is_fallback = list(map(tokenizer.is_fallback, range(len(uses))))
    return SideReport(
        language=language,
        vocab_size=len(uses),
        tokens=num_tokens,
        mean_length=num_tokens / len(lengths),
        median_length=median,
        p99_length=p99,
        max_length=len(counts) - 1,
        fallback_rate=int(uses[is_fallback].sum()) / num_tokens,
        num_used=int(np.count_nonzero(uses)),
        # The index of the first item that is enough, plus 1, because it counts from 0.
        num_for_most=int(np.searchsorted(num_covered, 0.99 * num_tokens)) + 1,
        lengths=counts[: p999 + 1].tolist(),
    )


def coverage_warnings(valid: Iterable[SideReport]) -> Iterator[str]:
    """Yield a warning for each language of validation pairs that the vocabulary covers badly."""
    for side in valid:
        if side.fallback_rate > _MOST_FALLBACK:
            text = f"the vocabulary covers the validation text in {side.language} ({side.side}) "
            text += f"badly: {side.fallback_rate:.0%} of its subwords are single bytes or unknown. "
            text += "Add text in this language to data.train, raise tokenizer.vocab_size, or "
            yield f"{text}choose a training.init_from that has learned this language"


def loss_warnings(targets: Sequence[str], tokenizer: Tokenizer) -> Iterator[str]:
    """Yield a warning if a model cannot write some of the validation targets."""
    loss = loss_of(targets, tokenizer)
    if loss.changed:
        text = f"the tokenizer changes validation targets: {loss}. A translation with the changed "
        text += "characters never counts as correct. "
        if SPACE in loss.lost:
            yield f"{text}Replace U+2581 in the text by another character"
        else:
            text += "Set tokenizer.normalization to identity and tokenizer.byte_fallback to true, "
            yield f"{text}or choose another vocabulary (tokenizer.from, training.init_from)"


def lost_pairs(counts: Mapping[str, Mapping[str, int]], corpora: Iterable[str]) -> Iterator[str]:
    """Yield a warning for each training corpus that has lost most of its pairs.

    Args:
        counts: Counts of each corpus, as in a `PrepareReport`.
        corpora: Names of the training corpora.
    """
    for name in corpora:
        dropped = dict(counts[name])
        num_read = dropped.pop(READ)
        num_kept = dropped.pop(KEPT)
        # What is left are the dropped pairs by reason.
        if num_kept < _FEWEST_KEPT * num_read:
            reason = max(dropped, key=dropped.__getitem__)  # the most frequent one
            text = f"{name}: only {num_kept:,} of {num_read:,} sentence pairs are left; the "
            yield f"{text}reason {reason} dropped {dropped[reason]:,}. Check the examples below"


def sample_lengths(store: ParallelStore) -> list[list[int]]:
    """Return the lengths of source and target, in subwords, of 400 evenly spaced pairs."""
    positions = np.linspace(0, len(store) - 1, _NUM_LENGTHS)
    rows = np.unique(positions.astype(np.int64))  # a small store has fewer rows than positions
    lengths = store.source.lengths[rows], store.target.lengths[rows]
    return np.stack(lengths, axis=1).tolist()


@dataclass(frozen=True, kw_only=True)
class PrepareReport:
    """The report of `nmt prepare`, as written to ``report.json``."""

    folder: str = ""  # the prepared folder
    # Whether the folder was already prepared. Then the report is the old one.
    up_to_date: bool = False
    written: bool = True  # False with ``report_only``
    # By corpus: pairs ``read``, pairs ``kept``, and dropped pairs by reason.
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    # By training corpus: reported (but kept) pairs by reason.
    findings: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    with_findings: Mapping[str, int] = field(default_factory=dict)  # these pairs by corpus
    # By corpus and held-out set: its files, each with the date of its last change.
    sources: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    # The filters section with the recommended drops, and the number of pairs that it would keep.
    recommended: Mapping[str, Any] = field(default_factory=dict)
    kept_with_recommended: int = 0
    # Whether this number was counted by a second reading with these filters. Else it is estimated,
    # because without the dropped pairs, another vocabulary is learned: lengths in subwords change.
    is_counted: bool = False
    # By reason that is not off: ``count`` of training pairs, ``action``, and ``examples`` (corpus,
    # line, source, target, value, file).
    reasons: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # Ranges of source lines (``corpus``; ``file``, if it has several; ``start`` and ``end`` in the
    # file) whose translations are ``offset`` lines below; above if negative. ``pairs_before`` are
    # in the corpus before the range.
    shifts: Sequence[Mapping[str, Any]] = field(default_factory=list)
    # Such ranges of lines that are not translations.
    unrelated: Sequence[Mapping[str, Any]] = field(default_factory=list)
    # Held-out sentences (``set``, ``line``) in training lines (``corpus``, ``train_line``). Of
    # several files, ``set`` or ``corpus`` is the file. ``kind`` is ``exact`` or ``near``. The first
    # leak of a kind has both texts: ``sentence`` and ``train_text``.
    leakage: Sequence[Mapping[str, Any]] = field(default_factory=list)
    # By held-out set: its number of pairs, and how many sources, targets and pairs are also in the
    # training data, with any of their references. ``near_sources_in_train``: with one or two words
    # changed, or inside a line. ``repeats``: 1 if an earlier set has the same pairs.
    overlap: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    unchecked: Sequence[str] = ()  # held-out sets that are not downloaded, so not compared
    lengths: Sequence[Sequence[int]] = ()  # source and target length of some kept pairs
    sides: Sequence[SideReport] = ()  # statistics of source and target of the training data
    joint: bool = True  # whether both sides share one vocabulary
    max_sentences: int = 1  # 90% of the training lines do not have more sentences
    max_characters: int | None = None  # 99% of the training lines are not longer
    skipped: Mapping[str, str] = field(default_factory=dict)  # check that did not run -> reason
    notes: Sequence[str] = ()  # further lines of the text report
    warnings: Sequence[str] = ()
    seconds: float = 0.0
    stages: Mapping[str, float] = field(default_factory=dict)  # seconds of each stage

    @classmethod
    def read(cls, folder: Path) -> PrepareReport:
        """Read the report of a prepared folder.

        Raises:
            DataError: The report is missing or damaged.
        """
        path = folder / REPORT
        try:
            values = read_json(path)
            with suppress(FileNotFoundError):  # older versions have the times in the report
                values = values | read_json(folder / TIMES)
            report = TypeAdapter(cls).validate_python(values)
        except (OSError, ValueError) as error:
            raise DataError(f"{path} is damaged: {error}", fix=AGAIN) from error
        return replace(report, folder=str(folder), up_to_date=True)

    def write(self, folder: Path) -> None:
        """Write ``report.json``, its times beside it, and ``report.html`` into ``folder``."""
        values = self.as_dict()
        del values["folder"]  # equal preparations give equal files
        write_json(folder / TIMES, {name: values.pop(name) for name in _IN_TIMES})
        write_json(folder / REPORT, values)
        write_bytes(folder / PAGE, self.as_page().encode())

    def as_page(self) -> str:
        """Return the report as an HTML page."""
        sides = [side for side in self.sides if side.lengths]  # that have a curve
        svg = ""  # no chart
        if sides:
            chart = Chart(
                "Sentences by length",
                "kept sentences",
                [Curve(side.language, list(enumerate(side.lengths))) for side in sides],
                # The largest length. The chart needs at least the lengths 0 and 1.
                end=max(2, *(len(side.lengths) for side in sides)) - 1,
                size=(500, 260),
                from_zero=True,
                x_name="subwords",
            )
            svg = render_chart(chart)
        return render(
            "corpus.html.j2",
            title="Data preparation report",
            report=self,
            meanings=_meanings(),
            lengths=svg,
        )

    def written_to(self, folder: Path | None, *, lists: Path) -> PrepareReport:
        """Write all files of the report into a folder, and return the report.

        Args:
            folder: Output folder; None writes no files.
            lists: Folder that contains the lists of dropped and reported pairs.

        Raises:
            DataError: A file cannot be written.
        """
        if folder is not None:
            with write_errors(folder, DataError):
                folder.mkdir(parents=True, exist_ok=True)
                self.write(folder)
                for path in lists.glob("*.tsv.gz"):
                    write_bytes(folder / path.name, path.read_bytes())
        return self

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON data."""
        return asdict(self) | {"seconds": round(self.seconds, 3)}

    @property
    def recommendation(self) -> str:
        """Lines of YAML that drop what is usually dropped; empty without any."""
        if not self.recommended:
            return ""
        section = yaml.safe_dump({"filters": dict(self.recommended)}, sort_keys=False)
        num_read = sum(self.counts[name][READ] for name in self.findings)
        about = "" if self.is_counted else "about "
        kept = f"would keep {about}{self.kept_with_recommended:,} of {num_read:,} pairs"
        return f"# {kept}\n{section.strip()}"

    def as_text(self) -> str:
        """Return the report as text."""
        if self.up_to_date:
            return f"{self.folder} is up to date: configuration and corpora have not changed."
        num_read = sum(counts[READ] for counts in self.counts.values())
        text = render(
            "prepare.txt.j2",
            report=self,
            page=PAGE,
            rate=num_read / max(self.seconds, 1e-3),
            meanings=_meanings(),
            near_is_checked=NEAR not in self.skipped,
        )
        return str(text).rstrip()

    def example(self, corpus: str, reason: str) -> str:
        """Return an example line of a corpus for a reason; an empty text without examples."""
        all_examples = self.reasons.get(reason, {}).get("examples", ())
        examples = [example for example in all_examples if example["corpus"] == corpus]
        # The value of a pair that could not be read is the beginning of its line.
        is_unread = reason in UNREAD
        shown = [x for x in examples if x["source"] or x["target"] or (is_unread and x["value"])]
        if not shown:
            return ""
        example = min(shown, key=itemgetter("line"))
        texts = []
        for key in ("value",) if is_unread else _SIDES:
            text = printable(example[key])
            if len(text) > _TEXT_WIDTH:
                text = text[:_TEXT_WIDTH] + "…"
            texts.append(text)
        place = ""
        if example.get("file"):  # older reports lack the key
            place = f"{example['file']}, "
        return f"{place}line {example['line']:,}: {' | '.join(texts)}"


def find_prepared(recipe: Recipe, scored_with: tuple[str, ...] = ()) -> PrepareReport | None:
    """Return the report of an up-to-date folder with the data of a recipe, or None.

    Args:
        recipe: The configuration to compare the folders with.
        scored_with: See `current_report`.
    """
    for folder in recipe.folders:
        report = current_report(folder, recipe, scored_with)
        if report is not None:
            return report
    return None


def current_report(
    folder: Path, recipe: Recipe, scored_with: tuple[str, ...] = (), piped: Path | None = None
) -> PrepareReport | None:
    """Return the report of a prepared folder if it is complete and up to date, else None.

    Args:
        folder: The prepared folder.
        recipe: The configuration to compare the folder with.
        scored_with: Models that must have scored the pairs; if empty, scores are not compared.
        piped: A copy of standard input; None assumes that standard input is unchanged.
    """
    try:
        manifest = PreparedData.open(folder).manifest
        if scored_with and tuple(manifest.scored_with) != scored_with:
            return None
        if not recipe.accepts(manifest):
            return None
        if manifest.vocab_hash != tokenizer_hash(folder / TOKENIZER):
            return None
        # Files may have been added to a Hugging Face folder, or removed.
        has_files = set(manifest.sources) == set(map(str, recipe.files))
        has_text = has_files and are_unchanged(manifest.sources, piped)
        if folder != recipe.folder_of_run and not has_text:
            return None
        return PrepareReport.read(folder)
    except (DataError, OSError):
        return None


def _meanings() -> dict[str, str]:
    """Return a short explanation of each reason, from the docstring of `FilterConfig`."""
    meanings = {}
    for reason, text in meanings_of(FilterConfig.__doc__).items():
        first_sentence = text.partition(". ")[0]
        meanings[reason] = first_sentence.replace("``", "").rstrip(".")
    return meanings
