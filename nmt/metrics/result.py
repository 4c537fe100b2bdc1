"""What an evaluation found, as frozen values with full precision, and its text and JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from rich.cells import cell_len, set_cell_size

from nmt.errors import GateError, NmtError
from nmt.metrics.metric import Floats, Score


@dataclass(frozen=True, slots=True)
class System:
    """Translations, what they are called, and their scores."""

    name: str  # The model folder or the name of the file of translations.
    lines: Sequence[str]
    # How a model translated, for example ``engine`` and ``beam_size``; empty for a file of
    # translations.
    settings: Mapping[str, str | int | float] = field(default_factory=dict)
    # What the model says of each line (a `Result` of `nmt.inference`): its score, its
    # confidence and the alarms of the guard. Empty for a file of translations.
    results: Sequence[Any] = ()
    # Source lines that are in the model's training data word for word, if that is known.
    num_in_training: int | None = None
    # One for each metric, in the order asked for; empty before the system is scored.
    scores: tuple[Score, ...] = ()
    # For each metric, the statistics of each sentence, whose sums give the score. (n, D).
    tables: tuple[Floats, ...] = ()
    # By metric, the score of each sentence; empty unless asked for.
    sentence_scores: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return name, scores and translations as plain values for JSON."""
        seen = {} if self.num_in_training is None else {"in_training_data": self.num_in_training}
        return {
            "name": self.name,
            "scores": [score.as_dict() for score in self.scores],
            **self.settings,
            **seen,
            "hypotheses": list(self.lines),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """What an analysis adds to the scores: a table to read, and the same as data."""

    key: str  # Name in JSON.
    title: str
    # Cells of the table; the first row is its head. Empty if ``meaning`` says all.
    rows: Sequence[Sequence[str]]
    values: Sequence[Mapping[str, Any]]  # Plain values for JSON, with full precision.
    meaning: str = ""  # How to read it.
    missed: Sequence[str] = ()  # Gates that were missed, in words: they make the command fail.


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The scores of some systems on one test set."""

    test: str  # Name of the test set.
    # Streams of reference lines; line i of each is a reference of sentence i.
    references: Sequence[Sequence[str]]
    source: Sequence[str] | None = None  # Source lines, if they are known.
    systems: tuple[System, ...]  # What was scored.
    baseline: System | None = None  # What it was compared with.
    paired_test: str | None = None  # Where p-values come from, in words; None where there are none.
    sections: tuple[Section, ...] = ()  # What was computed beside the scores.

    @property
    def title(self) -> str:
        """The test set and its size in words."""
        count, references = len(self.references[0]), len(self.references)
        sentences = "1 sentence" if count == 1 else f"{count:,} sentences"
        return f"{self.test}: {sentences}, {references} reference{'s' * (references != 1)}"

    def named_systems(self) -> dict[str, System]:
        """Return baseline and systems by their names in tables."""
        base = {f"{self.baseline.name} (baseline)": self.baseline} if self.baseline else {}
        return base | {system.name: system for system in self.systems}

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; what was not asked for is left out."""
        values = {
            "systems": [system.as_dict() for system in self.systems],
            "test": self.test,
            "num_sentences": len(self.references[0]),
            "num_references": len(self.references),
            "references_sha256": hash_references(self.references),
            "baseline": self.baseline and self.baseline.as_dict(),
            "paired_test": self.paired_test,
            **{section.key: list(section.values) for section in self.sections},
        }
        return {name: value for name, value in values.items() if value}

    def sentences(self) -> Iterator[dict[str, Any]]:
        """Yield an object for every sentence of every system, with scores and the model's view."""
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
    """The result of one call of ``nmt evaluate``: one evaluation for each test set."""

    evaluations: tuple[Evaluation, ...]
    sections: tuple[Section, ...] = ()  # What belongs to no test set.
    failures: tuple[NmtError, ...] = ()  # What could not be computed or saved.
    sentence_level: bool = False  # Whether the text is a line of JSON for each sentence.

    @property
    def failure(self) -> NmtError | None:
        """What ends the command once the scores are printed: a failure, or the missed gates."""
        if self.failures:
            return self.failures[0]
        sections = [section for each in self.evaluations for section in each.sections]
        missed = [text for section in sections for text in section.missed]
        if not missed:
            return None
        return GateError(
            "A quality gate was not met.\n  " + "\n  ".join(missed),
            fix="Improve the system, or loosen `fail_under` or `fail_if_worse`.",
        )

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: those of the test set, or a list of them for several."""
        several = [each.as_dict() for each in self.evaluations]
        values = several[0] if len(several) == 1 else {"evaluations": several}
        values |= {section.key: list(section.values) for section in self.sections}
        if self.sentence_level:
            values["sentences"] = list(self._sentences())
        return values

    def _sentences(self) -> Iterator[dict[str, Any]]:
        return (sentence for each in self.evaluations for sentence in each.sentences())

    def as_text(self) -> str:
        """Return tables with two decimals and 95% intervals, and below them how to read them."""
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
        signatures = dict.fromkeys((score.metric, score.signature) for score in scores)
        blocks += ["\n".join(dict.fromkeys(notes))] if notes else []
        return "\n\n".join([*blocks, text_table(list(signatures))])


def prefixed(evaluations: Sequence[Evaluation]) -> list[tuple[Evaluation, str]]:
    """Return each evaluation with its test set's name for tables, if there are several."""
    return [(each, f"{each.test}: " if len(evaluations) > 1 else "") for each in evaluations]


def score_rows(evaluations: Sequence[Evaluation]) -> list[list[str]]:
    """Return a table with a row for each system and a column for each metric of each test set."""
    columns = [each.named_systems() for each in evaluations]
    head, rows = ["system"], {name: [name] for named in columns for name in named}
    for each, named in zip(evaluations, columns, strict=True):
        prefix = f"{each.test} " if len(evaluations) > 1 else ""
        metrics = [score.metric for score in each.systems[0].scores]
        head += (prefix + metric for metric in metrics)
        for name, row in rows.items():
            row += map(show_score, named[name].scores) if name in named else ["-"] * len(metrics)
    return [head, *rows.values()]


def show_score(score: Score) -> str:
    """Return a score with its interval, and its difference from the baseline."""
    text = f"{score.value:.2f}"
    if score.confidence is not None:
        text += f" ± {score.confidence.half_width:.2f}"
    if (found := score.comparison) is not None:
        p_value = "" if found.p_value is None else f", {show_p_value(found.p_value)}"
        text += f" ({found.delta:+.2f}{p_value})"
    return text


def show_p_value(p_value: float) -> str:
    """Return a p-value with three decimals."""
    return f"p = {p_value:.3f}" if p_value >= 0.0005 else "p < 0.001"


def paired_tests(evaluations: Iterable[Evaluation]) -> list[str]:
    """Return where the p-values come from; nothing where there are none."""
    return list(dict.fromkeys(f"p: {x.paired_test}" for x in evaluations if x.paired_test))


def hash_references(references: Iterable[Sequence[str]]) -> str:
    """Return what tells one test set from another: sha256 of its references."""
    text = "".join("".join(f"{line}\n" for line in stream) + "\0" for stream in references)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as aligned columns, with two spaces between and none at the end of a line.

    Cells may hold any script: a wide character counts as two. Nothing is cut or wrapped, whatever
    the terminal's width, so that output can be searched and compared.
    """
    columns = zip_longest(*rows, fillvalue="")
    widths = [max(map(cell_len, column)) for column in columns]
    lines = (map(set_cell_size, row, widths) for row in rows)
    return "\n".join("  ".join(line).rstrip() for line in lines)
