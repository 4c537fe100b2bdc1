"""Results of an evaluation, with full precision, and their text and JSON form."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import defaultdict
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
from nmt.metrics.metric import Floats, Score, format_score, label_of


@dataclass(frozen=True, slots=True)
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

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        values: dict[str, Any] = {"name": self.name}
        values["scores"] = [score.as_dict() for score in self.scores]
        values |= self.settings
        if self.num_in_training is not None:
            values["in_training_data"] = self.num_in_training
        values["hypotheses"] = list(self.lines)
        return values


@dataclass(frozen=True, slots=True)
class System(SystemRecord):
    """A system, with what its scores are computed from."""

    # Results of `nmt.inference`, with scores, confidence and alarms of each line. Empty for a file.
    results: Sequence[Any] = ()
    # For each metric, the statistics of each sentence. (n, D).
    tables: tuple[Floats, ...] = ()
    # By metric, the score of each sentence. Empty unless requested.
    sentence_scores: Mapping[str, Sequence[float]] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReportSection:
    """The result of an analysis: a table to read, and the same values as data."""

    key: str  # Name in JSON.
    title: str
    rows: Sequence[Sequence[str]]  # Cells of the table, head first. May be empty.
    values: Sequence[Mapping[str, Any]]  # Plain values for JSON, with full precision.
    meaning: str = ""  # One line below the tables that explains how to read the table.
    missed: Sequence[str] = ()  # Descriptions of missed gates, which make the command fail.


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRecord:
    """The scores of systems on one test set, as in the JSON of ``nmt evaluate``.

    `as_dict` writes it, and `read_report` reads it; the sections are not read back.
    """

    systems: Annotated[tuple[SystemRecord, ...], Field(min_length=1)]
    test: str  # Name of the test set.
    num_sentences: int = 0
    num_references: int = 0  # References of each sentence.
    references_sha256: str = ""  # Identifies the test set: `hash_references`.
    baseline: SystemRecord | None = None  # The system that all others are compared with.
    paired_test: str | None = None  # Description of the significance test; None without p-values.
    sections: Sequence[ReportSection] = ()  # Results of analyses.

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON. Empty values are left out."""
        values = {
            "systems": [system.as_dict() for system in self.systems],
            "test": self.test,
            "num_sentences": self.num_sentences,
            "num_references": self.num_references,
            "references_sha256": self.references_sha256,
            "baseline": self.baseline and self.baseline.as_dict(),
            "paired_test": self.paired_test,
            **section_values(self.sections),
        }
        return {name: value for name, value in values.items() if value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The scores of one or more systems on one test set."""

    test: str  # Name of the test set.
    # Streams of reference lines. Line i of each stream is a reference of sentence i.
    references: Sequence[Sequence[str]]
    source: Sequence[str] | None = None  # Source lines, if known.
    # Source and target language, if the models translate several languages.
    languages: tuple[str | None, str | None] = (None, None)
    systems: tuple[System, ...]
    baseline: System | None = None  # The system that all others are compared with.
    paired_test: str | None = None  # Description of the significance test; None without p-values.
    sections: tuple[ReportSection, ...] = ()  # Results of analyses.

    @property
    def title(self) -> str:
        """Name and size of the test set, for example ``test: 300 sentences, 1 reference``."""
        count, references = len(self.references[0]), len(self.references)
        sentences = "1 sentence" if count == 1 else f"{count:,} sentences"
        return f"{self.test}: {sentences}, {references} reference{'s' * (references != 1)}"

    def named_systems(self) -> dict[str, System]:
        """Return the baseline, then all systems, by their names in tables."""
        base = {f"{self.baseline.name} (baseline)": self.baseline} if self.baseline else {}
        return base | {system.name: system for system in self.systems}

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON. Empty values are left out."""
        record = EvaluationRecord(
            systems=self.systems,
            test=self.test,
            num_sentences=len(self.references[0]),
            num_references=len(self.references),
            references_sha256=hash_references(self.references),
            baseline=self.baseline,
            paired_test=self.paired_test,
            sections=self.sections,
        )
        return record.as_dict()

    def sentences(self) -> Iterator[dict[str, Any]]:
        """Yield a JSON object for every sentence of every system: texts, scores and alarms."""
        for system in self.systems:
            for row, line in enumerate(system.lines):
                values: dict[str, Any] = {"test": self.test, "system": system.name, "line": row + 1}
                if self.source is not None:
                    values["source"] = self.source[row]
                values["hypothesis"] = line
                values["references"] = [stream[row] for stream in self.references]
                values["scores"] = {name: x[row] for name, x in system.sentence_scores.items()}
                if system.results:
                    result = system.results[row]
                    values |= {"score": result.score, "log_prob": result.log_prob}
                    values["alarms"] = list(result.alarms)
                    if result.confidence is not None:
                        values["confidence"] = result.confidence
                yield values


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationReport:
    """The result of ``nmt evaluate``: one evaluation for each test set."""

    evaluations: tuple[Evaluation, ...]
    sections: tuple[ReportSection, ...] = ()  # Sections that do not belong to a test set.
    failures: tuple[NmtError, ...] = ()  # Errors in computing or saving a part of the result.
    sentence_level: bool = False  # Whether `as_text` returns a line of JSON for each sentence.

    @property
    def failure(self) -> NmtError | None:
        """The error to raise after the scores are printed: the first failure, or missed gates."""
        if self.failures:
            return self.failures[0]
        sections = [section for each in self.evaluations for section in each.sections]
        missed = [text for section in sections for text in section.missed]
        if not missed:
            return None
        fix = "Improve the system, lower `fail_under`, or remove `fail_if_worse`."
        return GateError("A quality gate was not met.\n  " + "\n  ".join(missed), fix=fix)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON.

        Several test sets are a list under ``evaluations``; ``mean`` has the means of their scores.
        """
        several = [each.as_dict() for each in self.evaluations]
        together = {"evaluations": several, "mean": mean_scores(self.evaluations)}
        values: dict[str, Any] = several[0] if len(several) == 1 else together
        values |= section_values(self.sections)
        values[FORMAT_KEY] = FORMAT
        if self.sentence_level:
            values["sentences"] = list(self._sentences())
        return values

    def _sentences(self) -> Iterator[dict[str, Any]]:
        return (sentence for each in self.evaluations for sentence in each.sentences())

    def as_text(self) -> str:
        """Return tables with rounded scores and 95% intervals, then one-line explanations."""
        if self.sentence_level:
            return "\n".join(json.dumps(x, ensure_ascii=False) for x in self._sentences())
        titles = "\n".join(each.title for each in self.evaluations)
        blocks = [titles, text_table(score_rows(self.evaluations))]
        notes: list[str] = []
        sections = [(x, name) for each, name in prefixed(self.evaluations) for x in each.sections]
        for section, name in [*sections, *((section, "") for section in self.sections)]:
            blocks += [name + text_table(section.rows)] if section.rows else []
            notes += [section.meaning] if section.meaning else []
        scores = [score for each in self.evaluations for x in each.systems for score in x.scores]
        if any(score.confidence for score in scores):
            notes.append("±: 95% confidence interval, by bootstrap resampling.")
        notes += paired_tests(self.evaluations)
        for each in self.evaluations:
            for system in each.named_systems().values():
                pairs = system.settings.items()
                shown = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in pairs)
                notes += [f"{system.name}: {shown}"] if shown else []
        signatures = dict.fromkeys((label_of(x.metric), x.signature) for x in scores)
        blocks += ["\n".join(dict.fromkeys(notes))] if notes else []
        return "\n\n".join([*blocks, text_table(list(signatures))])


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
    return records.validate_python(report.get("evaluations", [report]))


def prefixed(evaluations: Sequence[Evaluation]) -> list[tuple[Evaluation, str]]:
    """Return each evaluation with a prefix for tables: the test set's name if there are several."""
    return [(each, f"{each.test}: " if len(evaluations) > 1 else "") for each in evaluations]


def mean_scores(evaluations: Sequence[Evaluation]) -> dict[str, dict[str, float]]:
    """Return the mean over all test sets, by system and metric, for systems of all test sets."""
    columns = [each.named_systems() for each in evaluations]
    means = dict[str, dict[str, float]]()
    for name in columns[0]:
        if not all(name in named for named in columns):
            continue
        # The order of the metrics depends on the language of the test set.
        values = defaultdict[str, list[float]](list)
        for named in columns:
            for score in named[name].scores:
                values[score.metric].append(score.value)
        means[name] = {metric: fmean(each) for metric, each in values.items()}
    return means


def score_rows(evaluations: Sequence[Evaluation]) -> list[list[str]]:
    """Return a table: a row for each system, a column for each metric of each test set.

    Several test sets are followed by their mean.
    """
    columns = [each.named_systems() for each in evaluations]
    head, rows = ["system"], {name: [name] for named in columns for name in named}
    for each, named in zip(evaluations, columns, strict=True):
        prefix = f"{each.test} " if len(evaluations) > 1 else ""
        metrics = [label_of(score.metric) for score in each.systems[0].scores]
        head += (prefix + metric for metric in metrics)
        for name, row in rows.items():
            row += map(show_score, named[name].scores) if name in named else ["-"] * len(metrics)
    if len(evaluations) > 1:
        means, metrics = mean_scores(evaluations), [x.metric for x in each.systems[0].scores]
        head += (f"mean {label_of(metric)}" for metric in metrics)
        for name, row in rows.items():
            own = means.get(name, {})
            row += (format_score(x, own[x]) if x in own else "-" for x in metrics)
    return [head, *rows.values()]


def show_score(score: Score) -> str:
    """Format a score with its interval, and its difference from the baseline if there is one."""
    text = format_score(score.metric, score.value)
    if score.confidence is not None:
        text += f" ± {format_score(score.metric, score.confidence.half_width)}"
    if (found := score.comparison) is not None:
        p_value = "" if found.p_value is None else f", {show_p_value(found.p_value)}"
        text += f" ({format_score(score.metric, found.delta, '+')}{p_value})"
    return text


def show_p_value(p_value: float) -> str:
    """Format a p-value with three decimals."""
    return f"p = {p_value:.3f}" if p_value >= 0.0005 else "p < 0.001"


def paired_tests(evaluations: Iterable[Evaluation]) -> list[str]:
    """Return the descriptions of the significance tests; empty without p-values."""
    return list(dict.fromkeys(f"p: {x.paired_test}" for x in evaluations if x.paired_test))


def hash_references(references: Iterable[Sequence[str]]) -> str:
    """Return the sha256 of the references, which identifies a test set."""
    text = "".join("".join(f"{line}\n" for line in stream) + "\0" for stream in references)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of ``values`` without None."""
    return {name: value for name, value in values.items() if value is not None}


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Format rows as aligned columns with two spaces between, without trailing spaces.

    Wide characters count as two. Nothing is cut or wrapped, whatever the width of the terminal, so
    that the output can be searched and compared.
    """
    widths = [max(map(cell_len, column)) for column in zip_longest(*rows, fillvalue="")]
    lines = (map(set_cell_size, row, widths) for row in rows)
    return "\n".join("  ".join(line).rstrip() for line in lines)
