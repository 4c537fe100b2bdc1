"""Results of an evaluation, with full precision, and their text and JSON form."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

from pydantic import Field, TypeAdapter
from rich.cells import cell_len, set_cell_size

from nmt.config.migration import FORMAT, FORMAT_KEY, Kind, migrate
from nmt.errors import GateError, NmtError
from nmt.files.json_file import field, read_json
from nmt.files.terminal import columns_of, fitted
from nmt.metrics.metric import Floats, References, Score, format_score, label_of

_GAP = "  "  # Between two columns of a table.


@dataclass(frozen=True)
class SystemRecord:
    """The translations of one system and their scores, as in the JSON of ``nmt evaluate``.

    `as_dict` writes it, and `read_report` reads it; the settings are not read back.
    """

    name: str  # Model folder, or name of the file of translations.
    lines: Annotated[Sequence[str], Field(alias="hypotheses")] = ()
    # Settings of the translation, for example ``engine`` and ``beam_size``. Empty for a file.
    settings: Mapping[str, str | int | float] = dataclasses.field(default_factory=dict)
    # Number of source lines that are in the training data word for word; None if unknown.
    num_in_training: Annotated[int | None, Field(alias="in_training_data")] = None
    # One score for each metric, in the requested order. Empty before the system is scored.
    scores: tuple[Score, ...] = ()

    def as_dict(self, with_texts: bool) -> dict[str, Any]:
        """Return plain values for JSON, with the translations only if requested."""
        values: dict[str, Any] = {"name": self.name}
        values["scores"] = [score.as_dict() for score in self.scores]
        values |= self.settings
        if self.num_in_training is not None:
            values["in_training_data"] = self.num_in_training
        if with_texts:
            values["hypotheses"] = list(self.lines)
        return values


@dataclass(frozen=True)
class System(SystemRecord):
    """A system, with what its scores are computed from."""

    # Results of `nmt.inference`, with scores, confidence and alarms of each line. Empty for a file.
    results: Sequence[Any] = ()
    # For each metric, the statistics of each sentence. (n, D).
    tables: tuple[Floats, ...] = ()
    # By metric, the score of each sentence. Empty unless requested.
    sentence_scores: Mapping[str, Sequence[float]] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class ReportSection:
    """The result of an analysis: a table to read, and the same values as data."""

    key: str  # Name in JSON.
    title: str
    rows: Sequence[Sequence[str]]  # Cells of the table, head first. May be empty.
    values: Sequence[Mapping[str, Any]]  # Plain values for JSON, with full precision.
    meaning: str = ""  # One line below the tables that explains how to read the table.
    missed: Sequence[str] = ()  # Descriptions of missed gates, which make the command fail.


@dataclass(frozen=True, kw_only=True)
class EvaluationRecord:
    """The scores of systems on one test set, as in the JSON of ``nmt evaluate``.

    `as_dict` writes it, and `read_report` reads it; the sections are not read back.
    """

    systems: Annotated[tuple[SystemRecord, ...], Field(min_length=1)]
    test: str  # Name of the test set.
    num_sentences: int = 0
    num_references: int = 0  # References of each sentence.
    num_available: int = 0  # Sentences of the whole test set, if only its first ones are scored.
    references_sha256: str = ""  # Identifies the test set: `hash_references`.
    baseline: SystemRecord | None = None  # The system that all others are compared with.
    paired_test: str | None = None  # Description of the significance test; None without p-values.
    sections: Sequence[ReportSection] = ()  # Results of analyses.

    def as_dict(self, with_texts: bool) -> dict[str, Any]:
        """Return plain values for JSON. Empty values are left out."""
        values = {
            "systems": [system.as_dict(with_texts) for system in self.systems],
            "test": self.test,
            "num_sentences": self.num_sentences,
            "num_references": self.num_references,
            "num_available": self.num_available,
            "references_sha256": self.references_sha256,
            "baseline": self.baseline and self.baseline.as_dict(with_texts),
            "paired_test": self.paired_test,
            **section_values(self.sections),
        }
        return {name: value for name, value in values.items() if value}


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The scores of one or more systems on one test set."""

    test: str  # Name of the test set.
    # Streams of reference lines. Line i of each stream is a reference of sentence i.
    references: References
    source: Sequence[str] | None = None  # Source lines, if known.
    num_available: int = 0  # Sentences of the whole test set, if only its first ones are scored.
    # Source and target language, if the models translate several languages.
    languages: tuple[str | None, str | None] = (None, None)
    systems: tuple[System, ...]
    baseline: System | None = None  # The system that all others are compared with.
    paired_test: str | None = None  # Description of the significance test; None without p-values.
    sections: tuple[ReportSection, ...] = ()  # Results of analyses.

    @property
    def title(self) -> str:
        """Name and size of the test set, for example ``test: 300 sentences, 1 reference``."""
        size = size_of(len(self.references[0]), self.num_available)
        num_references = len(self.references)
        references = "reference" if num_references == 1 else "references"
        return f"{self.test}: {size}, {num_references} {references}"

    def named_systems(self) -> dict[str, System]:
        """Return the baseline, then all systems, by their names in tables."""
        named = {}
        if self.baseline:
            named[f"{self.baseline.name} (baseline)"] = self.baseline
        for system in self.systems:
            named[system.name] = system
        return named

    def as_dict(self, with_texts: bool) -> dict[str, Any]:
        """Return plain values for JSON. Empty values are left out."""
        record = EvaluationRecord(
            systems=self.systems,
            test=self.test,
            num_sentences=len(self.references[0]),
            num_references=len(self.references),
            num_available=self.num_available,
            references_sha256=hash_references(self.references),
            baseline=self.baseline,
            paired_test=self.paired_test,
            sections=self.sections,
        )
        return record.as_dict(with_texts)

    def sentences(self) -> Iterator[dict[str, Any]]:
        """Yield a JSON object for every sentence of every system: texts, scores and alarms."""
        for system in self.systems:
            for row, line in enumerate(system.lines):
                values: dict[str, Any] = {"test": self.test, "system": system.name, "line": row + 1}
                if self.source is not None:
                    values["source"] = self.source[row]
                values["hypothesis"] = line
                values["references"] = [stream[row] for stream in self.references]
                scores = system.sentence_scores
                values["scores"] = {metric: scores[metric][row] for metric in scores}
                if system.results:
                    result = system.results[row]
                    values["score"] = result.score  # of the search, not of a metric
                    values["log_prob"] = result.log_prob
                    values["alarms"] = list(result.alarms)
                    if result.confidence is not None:
                        values["confidence"] = result.confidence
                yield values


@dataclass(frozen=True, kw_only=True)
class EvaluationReport:
    """The result of ``nmt evaluate``: one evaluation for each test set."""

    evaluations: tuple[Evaluation, ...]
    sections: tuple[ReportSection, ...] = ()  # Sections that do not belong to a test set.
    failures: tuple[NmtError, ...] = ()  # Errors in computing or saving a part of the result.
    sentence_level: bool = False  # Whether `as_text` returns a line of JSON for each sentence.
    score_only: Sequence[str] = ()  # Metrics, if `as_text` returns only their scores.
    alpha: float = 0.05  # Significance level: smaller p-values are significant.

    @property
    def is_document(self) -> bool:
        """Whether the text is JSON, whose lines are not broken on a terminal."""
        return self.sentence_level

    @property
    def failure(self) -> NmtError | None:
        """The error to raise after the scores are printed: the first failure, or missed gates."""
        if self.failures:
            return self.failures[0]
        missed = list[str]()
        for _, section in self.titled_sections():
            missed += section.missed
        if not missed:
            return None
        listed = "\n  ".join(missed)
        fix = "Improve the system, lower `fail_under`, or remove `fail_if_worse`."
        return GateError(f"A quality gate was not met.\n  {listed}", fix=fix)

    def as_dict(self, with_texts: bool = False) -> dict[str, Any]:
        """Return plain values for JSON, of the same shape for one and for several test sets.

        Args:
            with_texts: Whether to add the translations, which a baseline needs.
        """
        values: dict[str, Any] = {
            FORMAT_KEY: FORMAT,
            "test_sets": [evaluation.as_dict(with_texts) for evaluation in self.evaluations],
            "mean": mean_scores(self.evaluations),
            **section_values(self.sections),
        }
        if self.sentence_level:
            values["sentences"] = list(self._sentences())
        return values

    def _sentences(self) -> Iterator[dict[str, Any]]:
        for evaluation in self.evaluations:
            yield from evaluation.sentences()

    def titled_sections(self) -> Iterator[tuple[str, ReportSection]]:
        """Yield all sections, each with the prefix of its test set: see `prefixed`."""
        for evaluation, prefix in prefixed(self.evaluations):
            for section in evaluation.sections:
                yield prefix, section
        for section in self.sections:
            yield "", section

    def as_text(self) -> str:
        """Return tables with rounded scores and 95% intervals, then one-line explanations."""
        if self.sentence_level:
            lines = (json.dumps(values, ensure_ascii=False) for values in self._sentences())
            return "\n".join(lines)
        evaluations = self.evaluations
        scores = list[Score]()
        for evaluation in evaluations:
            for system in evaluation.systems:
                scores += system.scores
        if self.score_only:
            chosen = [score for score in scores if score.metric in self.score_only]
            return "\n".join(format_score(score.metric, score.value) for score in chosen)
        titles = [evaluation.title for evaluation in evaluations]
        columns = columns_of(sys.stdout)
        rows = score_rows(evaluations)
        table = text_table(rows, columns)
        blocks = ["\n".join(titles), table]
        notes = list[str]()
        for prefix, section in self.titled_sections():
            if section.rows:
                table = text_table(section.rows, columns)
                blocks.append(prefix + table)
            if section.meaning:
                notes.append(section.meaning)
        descriptions = list[str]()  # The settings of each system with settings.
        for evaluation in evaluations:
            systems = evaluation.named_systems()
            for system in systems.values():
                settings = system.settings
                words = [f"{key.replace('_', ' ')} {settings[key]}" for key in settings]
                if words:
                    descriptions.append(f"{system.name}: {', '.join(words)}")
        if any(score.confidence for score in scores):
            notes.append("±: 95% confidence interval, by bootstrap resampling.")
        notes += paired_tests(evaluations)
        notes += descriptions
        if notes:
            distinct_notes = dict.fromkeys(notes)
            blocks.append("\n".join(distinct_notes))
        signatures = [(label_of(score.metric), score.signature) for score in scores]
        distinct_signatures = list(dict.fromkeys(signatures))
        # A signature that is too long for a terminal is broken after "|".
        spaced = text_table(distinct_signatures).replace("|", "| ")
        blocks.append(fitted(spaced, columns).replace("| ", "|"))
        return "\n\n".join(blocks)


def size_of(num_sentences: int, num_available: int = 0) -> str:
    """Return the size of a test set as text.

    Args:
        num_sentences: Sentences that are scored.
        num_available: Sentences of the whole test set, if only its first ones are scored.

    >>> size_of(300), size_of(200, 1_000)
    ('300 sentences', 'first 200 of 1,000 sentences')
    """
    if num_available:
        return f"first {num_sentences:,} of {num_available:,} sentences"
    sentences = "sentence" if num_sentences == 1 else "sentences"
    return f"{num_sentences:,} {sentences}"


def section_values(sections: Iterable[ReportSection]) -> dict[str, Any]:
    """Return the values of sections for JSON, by their keys."""
    return {section.key: list(section.values) for section in sections}


def read_report(path: Path) -> Sequence[EvaluationRecord]:
    """Read the JSON of an `EvaluationReport`, of this or an earlier version.

    Returns:
        The record of each test set.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file is not a JSON report of ``nmt evaluate``.
        NewerFormatError: A newer version of nmt wrote the report.
    """
    document = field(read_json(path), kind=dict)
    report = migrate(document, str(path), kind=Kind.REPORT)
    records = TypeAdapter(tuple[EvaluationRecord, ...])
    return records.validate_python(report.get("test_sets"))


def prefixed(evaluations: Sequence[Evaluation]) -> list[tuple[Evaluation, str]]:
    """Return each evaluation with a prefix for its tables.

    The prefix is the name of the test set, or empty if there is only one test set.
    """
    if len(evaluations) == 1:
        return [(evaluations[0], "")]
    return [(evaluation, f"{evaluation.test}: ") for evaluation in evaluations]


def mean_scores(evaluations: Sequence[Evaluation]) -> dict[str, dict[str, float]]:
    """Return the mean over all test sets, by system and metric.

    Only systems that have translated all test sets have means.
    """
    # For each test set: name -> system.
    first, *later = [evaluation.named_systems() for evaluation in evaluations]
    means = {}
    for name, system in first.items():
        if not all(name in systems for systems in later):
            continue
        # By metric, because the order of the metrics depends on the language of the test set.
        values = {score.metric: [score.value] for score in system.scores}
        for systems in later:
            for score in systems[name].scores:
                values.setdefault(score.metric, []).append(score.value)
        means[name] = {metric: fmean(numbers) for metric, numbers in values.items()}
    return means


def score_rows(evaluations: Sequence[Evaluation]) -> list[list[str]]:
    """Return a table: a row for each system, a column for each metric.

    Several test sets have a column each and one for their mean, with a row for each metric of each
    system. A system that has not translated a test set has ``-`` in its column.
    """
    if len(evaluations) == 1:
        (evaluation,) = evaluations
        scores = evaluation.systems[0].scores
        labels = [label_of(score.metric) for score in scores]
        table = [["system", *labels]]
        for name, system in evaluation.named_systems().items():
            table.append([name, *map(show_score, system.scores)])
        return table
    num_columns = len(evaluations) + 1
    rows = dict[tuple[str, str], list[str]]()  # Metric and system -> cells of the scores.
    for index, evaluation in enumerate(evaluations):
        for name, system in evaluation.named_systems().items():
            for score in system.scores:
                empty = ["-"] * num_columns
                row = rows.setdefault((score.metric, name), empty)
                row[index] = show_score(score)
    for name, mean in mean_scores(evaluations).items():
        for metric, value in mean.items():
            rows[metric, name][-1] = format_score(metric, value)
    tests = [evaluation.test for evaluation in evaluations]
    table = [["metric", "system", *tests, "mean"]]
    metrics = dict.fromkeys(metric for metric, _ in rows)
    for shown_metric in metrics:
        for (metric, name), row in rows.items():
            if metric == shown_metric:
                table.append([label_of(metric), name, *row])
    return table


def show_score(score: Score) -> str:
    """Format a score with its interval, and its difference from the baseline if there is one.

    For example ``26.31 ± 0.42 (+1.20, p = 0.012)``.
    """
    text = format_score(score.metric, score.value)
    if score.confidence is not None:
        text += f" ± {format_score(score.metric, score.confidence.half_width)}"
    comparison = score.comparison
    if comparison is not None:
        difference = format_score(score.metric, comparison.delta, "+")
        if comparison.p_value is not None:
            difference += f", {show_p_value(comparison.p_value)}"
        text += f" ({difference})"
    return text


def show_p_value(p_value: float) -> str:
    """Format a p-value with three decimals."""
    if p_value < 0.0005:  # three decimals would be 0.000
        return "p < 0.001"
    return f"p = {p_value:.3f}"


def paired_tests(evaluations: Iterable[Evaluation]) -> list[str]:
    """Return the different descriptions of the significance tests; empty without p-values."""
    tests = (evaluation.paired_test for evaluation in evaluations)
    return [f"p: {test}" for test in dict.fromkeys(tests) if test]


def hash_references(references: Iterable[Sequence[str]]) -> str:
    """Return the sha256 of the references, which identifies a test set."""
    digest = hashlib.sha256()
    for stream in references:
        text = "".join(f"{line}\n" for line in stream) + "\0"  # separates the streams
        content = text.encode("utf-8", "surrogatepass")
        digest.update(content)
    return digest.hexdigest()


def text_table(rows: Sequence[Sequence[str]], room: int | None = None) -> str:
    """Format rows as aligned columns with two spaces between, without trailing spaces.

    Wide characters count as two. If a terminal is too narrow, the columns become several tables,
    one below the other, each with the first column. No number is cut or left out.

    Args:
        rows: Cells. A row may be shorter than others.
        room: Width of the terminal; None for a file or a pipe.
    """
    columns = list[list[str]]()
    for column in zip_longest(*rows, fillvalue=""):
        width = max(map(cell_len, column))
        columns.append([set_cell_size(cell, width) for cell in column])
    tables = [columns[:1]]
    for padded in columns[1:]:
        table = tables[-1]
        widths = [cell_len(cells[0]) + len(_GAP) for cells in (*table, padded)]
        is_wide = room is not None and sum(widths) > room
        if is_wide and len(table) > 1:
            table = columns[:1]
            tables.append(table)
        table.append(padded)
    blocks = list[str]()
    for table in tables:
        padded_rows = zip(*table, strict=True)
        lines = [_GAP.join(cells).rstrip() for cells in padded_rows]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)
