"""The page of a training run, report.html: state, scores, charts, samples and configuration.

The page shows the files that `nmt.training.events.JsonLines` and `record_evaluation` write. This
module does not import torch.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from nmt.files.atomic import is_locked, write_text
from nmt.files.json_file import parse_json
from nmt.metrics.metric import METRICS, REPORTED_METRICS, format_score, label_of, lower_is_better
from nmt.report.page import (
    LIMIT,
    NUM_AVERAGES,
    Chart,
    Curve,
    Point,
    render,
    render_chart,
    short_number,
)
from nmt.training.events import TrainingEvent

Line = Mapping[str, Any]  # A parsed line of one of the files of a run.
Lines = Sequence[Line]
_METRICS = "metrics.jsonl"
_STARTS = "starts.jsonl"
_EVALUATIONS = "evaluations.jsonl"
# Kinds of the lines of these files.
_KINDS = ("update", "validation", "start", "evaluation", "end")
_WIDE = (520, 280)  # width and height of a large chart: see `Chart.size`
_INCOMPARABLE = "; not comparable: "


class HtmlReport:
    """Writes ``report.html`` of a run after every validation and at the end.

    Args:
        run_dir: The run folder.
        title: Heading of the page: the name of the run.
    """

    def __init__(self, run_dir: Path, title: str) -> None:
        self._run_dir = run_dir
        self._title = title
        # Files that earlier reporters write: see `nmt.training.events.FileReader`.
        self.reads = (run_dir / _METRICS, run_dir / _STARTS)

    def report(self, event: TrainingEvent) -> None:
        """Write the page after a validation."""
        if event.kind == "validation":
            self.close()

    def close(self) -> None:
        """Write the page, with links to other pages in the folder."""
        path = self._run_dir / "report.html"
        with suppress(OSError):  # a full disk must not stop training; the old page stays
            config = _read(self._run_dir / "config.yaml")
            pages = sorted(page.name for page in self._run_dir.glob("*.html") if page != path)
            run = RunRecord.read(self._run_dir)
            write_text(path, render_report(self._title, run, config, pages))


def record_evaluation(run_dir: Path, title: str, line: Line) -> None:
    """Append the scores of a test set to ``evaluations.jsonl``, and add them to ``report.html``.

    Does nothing if the folder is not a run folder or cannot be written.

    Args:
        run_dir: The run folder, which contains ``metrics.jsonl``.
        title: Heading of the page: the name of the run.
        line: ``test`` (name), ``checkpoint`` (name), ``scores`` (by metric) and ``beam_size``.
    """
    if not (run_dir / _METRICS).is_file():
        return
    with suppress(OSError):
        best = RunRecord.read(run_dir).best
        if best and line["checkpoint"] == "best":
            validation, *_ = best.values()
            line = {**line, "best_step": validation["step"]}  # later steps may be better
        text = json.dumps({"kind": "evaluation", **line}, ensure_ascii=False)
        with (run_dir / _EVALUATIONS).open("a", encoding="utf-8", newline="\n") as file:
            file.write(text + "\n")
        HtmlReport(run_dir, title).close()


def read_events(run_dir: Path) -> Iterator[Line]:
    """Yield the lines of the files of a run, parsed. A folder without these files has none."""
    for name in (_METRICS, _STARTS, _EVALUATIONS):
        for line in _read(run_dir / name).split("\n"):
            with suppress(ValueError):  # the last line of a killed process may be incomplete
                yield parse_json(line)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


@dataclass(frozen=True)
class RunRecord:
    """What the files of a run say, by kind. Updates, validations and starts are sorted by step."""

    updates: Lines
    validations: Lines
    starts: Lines
    tests: Lines  # Scores of test sets.
    end: Line  # End of the last start; empty if it has not ended, or not in the normal way.
    is_running: bool

    @classmethod
    def read(cls, run_dir: Path) -> RunRecord:
        """Read the files of a run folder."""
        is_running = is_locked(run_dir)  # first, so that the lines of an ended run are complete
        return cls.of(read_events(run_dir), is_running=is_running)

    @classmethod
    def of(cls, events: Iterable[Line], *, is_running: bool = False) -> RunRecord:
        """Sort the lines of a run. Of several lines of the same kind and step, the last counts.

        Args:
            events: Parsed lines of ``metrics.jsonl``, ``starts.jsonl`` and ``evaluations.jsonl``.
            is_running: Whether a process is training.
        """
        # Lines of each kind, by step; those of evaluations by test set and checkpoint.
        kinds: dict[str, dict[Any, Line]] = {kind: {} for kind in _KINDS}
        for line in events:
            if line["kind"] == "start":
                kinds["end"].clear()  # of an earlier start
            key = line["step"] if "step" in line else (line["test"], line["checkpoint"])
            kinds[line["kind"]][key] = line
        return cls(
            updates=_by_step(kinds["update"]),
            validations=_by_step(kinds["validation"]),
            starts=_by_step(kinds["start"]),
            tests=list(kinds["evaluation"].values()),
            end=next(iter(kinds["end"].values()), {}),
            is_running=is_running and not kinds["end"],
        )

    @property
    def last_start(self) -> Line:
        """The last start; empty if there is none."""
        return self.starts[-1] if self.starts else {}

    @property
    def clock(self) -> str:
        """Target tokens and minutes at about `NUM_AVERAGES` updates, for the script of the page.

        "step tokens minutes" of each, from 0, separated by semicolons; "nan" after a line without
        them. Minutes are those of updates and validations.
        """
        tokens = 0.0
        seconds = 0.0
        moments = ["0 0 0"]
        lines = [*self.updates, *self.validations]
        for line in sorted(lines, key=lambda line: line["step"]):  # stable: updates come first
            seconds += _number(line, "seconds")
            if line["kind"] == "update":
                speed = _number(line, "target_tokens_per_second")
                tokens += line.get("target_tokens", speed * _number(line, "seconds"))
                moments.append(f"{line['step']} {tokens:.0f} {seconds / 60:.4g}")
        interval = math.ceil(len(moments) / NUM_AVERAGES)
        return ";".join([*moments[:-1:interval], moments[-1]])

    @property
    def best(self) -> dict[str, Line]:
        """The best validations, by metric: by the run's metric, and by perplexity."""
        metric = self.last_start.get("metric", "bleu")
        if metric == "loss" or _best(self.validations, metric) is None:
            metric = "perplexity"
        # Step 0 is before the first update: not a result of the run.
        validations = [line for line in self.validations if line["step"]]
        best = {name: _best(validations, name) for name in (metric, "perplexity")}
        return {name: line for name, line in best.items() if line}

    @property
    def reported(self) -> list[str]:
        """BLEU and chrF in the order of the validations: the metric that chooses is first."""
        first_line = self.validations[0] if self.validations else {}
        names = dict.fromkeys([*first_line, *REPORTED_METRICS])
        return [name for name in names if name in REPORTED_METRICS]

    def validations_of_sets(self) -> dict[str, Lines]:
        """Return the validations of each set by its name; of a single set by an empty name.

        If several sets choose the best checkpoint, the combination of their scores comes first, by
        its name, ``mean`` or ``minimum``.
        """
        names = dict[str, None]()  # Names of the sets in the order of the lines; no values.
        for line in self.validations:
            names |= dict.fromkeys(line.get("sets", ()))
        combination = self.last_start.get("combination")
        sets = dict[str, Lines]()
        if combination or not names:
            sets[combination or ""] = self.validations
        for name in names:
            # A validation without this set has only a step.
            sets[name] = [
                {**line.get("sets", {}).get(name, {}), "step": line["step"]}
                for line in self.validations
            ]
        return sets


def _by_step(lines: Mapping[int, Line]) -> Lines:
    return [lines[step] for step in sorted(lines)]


def render_report(
    title: str, run: RunRecord, config_text: str = "", pages: Sequence[str] = ()
) -> str:
    """Return ``report.html`` of a run as text.

    Long curves are reduced to about 400 points, which keep the extremes of every interval.

    Args:
        title: Heading of the page: the name of the run.
        run: The lines of the run.
        config_text: Contents of config.yaml.
        pages: Names of other pages in the folder of the page.
    """
    return render(
        "run.html.j2",
        title=title,
        run=run,
        charts=[render_chart(chart) for chart in _charts(run)],
        config_text=config_text,
        pages=pages,
        label_of=label_of,
        fixed=_fixed,
    )


def render_comparison(runs: Mapping[str, RunRecord], settings: Sequence[Mapping[str, Any]]) -> str:
    """Return a page that compares runs.

    Args:
        runs: The runs by their labels.
        settings: Settings of each run by their dotted keys.
    """

    def place(chart: Chart) -> tuple[bool, bool, bool]:
        """Return the sort key of a chart: large, comparable charts come first, and chrF."""
        return chart.size != _WIDE, _INCOMPARABLE in chart.unit, "chrF" not in chart.title

    charts = sorted(run_charts(runs), key=place)
    return render(
        "runs.html.j2",
        title=f"{len(runs)} training runs",
        runs=runs,
        settings=settings,
        incomparable=_incomparable(runs),
        charts=list(map(render_chart, charts)),
        label_of=label_of,
        fixed=_fixed,
    )


def _incomparable(runs: Mapping[str, RunRecord]) -> dict[str, str]:
    """Return why runs cannot be compared by some values, by the beginning of their unit."""

    def differs(fact: str) -> bool:
        values = {run.last_start.get(fact) for run in runs.values()}
        return len(values) > 1

    reasons = dict[str, str]()
    if differs("vocabulary"):  # what a token is
        reasons = dict.fromkeys(("nats", "target tokens"), "different vocabularies")
    if differs("validation"):
        reasons["score"] = "different validation sentences"
    return reasons


def run_charts(runs: Mapping[str, RunRecord]) -> list[Chart]:
    """Return the charts of a run, or charts that compare several runs.

    The unit of a chart says why its curves cannot be compared. Charts of test sets come last.

    Args:
        runs: Runs by their labels. Runs without lines are ignored.
    """
    charts = dict[str, list[Chart]]()  # Charts of each run with updates or validations.
    for name, run in runs.items():
        if run.updates or run.validations:
            charts[name] = _charts(run)
    if len(charts) < 2:
        return next(iter(charts.values()), [])
    # There is one comparing chart for each curve of a run's charts. It is identified by the title
    # of the run's chart and the label of the curve. Its curves are those of the runs.
    templates = dict[tuple[str, str], Chart]()
    curves = dict[tuple[str, str, str], Curve]()
    for name, charts_of_run in charts.items():
        for chart in charts_of_run:
            for curve in chart.curves:
                templates[chart.title, curve.label] = chart
                curves[chart.title, curve.label, name] = replace(curve, label=name)
    # All charts of a run have the same end.
    end = max(charts_of_run[0].end for charts_of_run in charts.values())
    reasons = _incomparable(runs)
    comparing_charts = []
    for (title, label), chart in templates.items():
        # A run without this curve has an empty one, so that the runs keep their colours.
        run_curves = [curves.get((title, label, name), Curve(name, ())) for name in charts]
        if label:
            title = f"{title}, {label}"
        unit = chart.unit
        is_validation = any(curve.marked for curve in run_curves)
        for beginning, reason in reasons.items():
            # A loss of validation sentences depends on them, as their scores do.
            if unit.startswith(beginning) or (beginning == "score" and is_validation):
                unit = f"{unit}{_INCOMPARABLE}{reason}"
        comparing_charts.append(
            replace(chart, title=title, unit=unit, curves=run_curves, end=end, marks=())
        )
    return comparing_charts + _test_charts({name: runs[name] for name in charts}, end)


def _test_charts(runs: Mapping[str, RunRecord], end: float) -> list[Chart]:
    """Return a chart for each test set that several runs have translated.

    It shows chrF of the best checkpoint of each run, at the step of this checkpoint. Lines of older
    versions do not have this step.
    """
    # Name and hash of the references of a test set -> run -> its only point.
    tests = defaultdict[tuple[str, str], dict[str, list[Point]]](dict)
    for name, run in runs.items():
        for line in run.tests:
            if "best_step" in line and "chrf" in line["scores"]:
                test = line["test"], line["references_sha256"]
                point = line["best_step"], line["scores"]["chrf"]
                tests[test][name] = [point]
    charts = []
    for (test_name, _), points in tests.items():
        if len(points) < 2:
            continue
        curves = [Curve(name, points.get(name, ()), marked=True) for name in runs]
        chart = Chart(
            title=f"Test set {test_name}, chrF",
            unit="score of the best checkpoint, 0 to 100",
            curves=curves,
            end=end,
            limits=(0, 100),
            size=_WIDE,
        )
        charts.append(chart)
    return charts


def _charts(run: RunRecord) -> list[Chart]:
    """Return the charts of one run: losses and scores, then learning rate, speed and norm."""
    end = 1.0  # Last step on the axis.
    for lines in (run.updates, run.validations):
        if lines:
            end = max(end, lines[-1]["step"])
    resumed_steps = [line["step"] for line in run.starts if 0 < line["step"] <= end]
    chart = partial(Chart, end=end, marks=resumed_steps)
    sets = run.validations_of_sets()

    def curves_of_sets(key: str, label: str = "") -> list[Curve]:
        """Return a curve of the value ``key`` for each set. ``label`` is for a single set."""
        return [_curve(lines, key, name or label, marked=True) for name, lines in sets.items()]

    training_loss = _curve(run.updates, "loss", "training", noisy=True)
    losses = [training_loss, *curves_of_sets("objective", "validation")]
    # Curves of a chart by its title.
    by_metric = {label_of(key): curves_of_sets(key, label_of(key)) for key in run.reported}
    if len(sets) > 1:
        # Training comes last, so that a set has the same position and colour in all charts.
        losses = [*losses[1:], training_loss]
    else:
        by_metric = {"Translation quality": list(chain.from_iterable(by_metric.values()))}
    unit = "nats per target token"
    smoothing = run.last_start.get("label_smoothing")
    if smoothing:
        unit += f", label smoothing {smoothing:g}"
    charts = [chart("Loss", unit, losses, size=_WIDE)]
    for title, curves in by_metric.items():
        charts.append(
            chart(title, "validation score, 0 to 100", curves, limits=(0, 100), size=_WIDE)
        )
    # A line of a validation has its scores by metric, among other values.
    scored_metrics = {*chain.from_iterable(run.validations)} & {*METRICS, "command"}
    added_metrics = sorted(scored_metrics - {*REPORTED_METRICS})
    charts += [chart(label_of(key), "score", curves_of_sets(key)) for key in added_metrics]
    learning_rate = _curve(run.updates, "learning_rate")
    speed = _curve(run.updates, "target_tokens_per_second", noisy=True)
    norm = _curve(run.updates, "gradient_norm", noisy=True)
    return [
        *charts,
        chart("Learning rate", "per update", [learning_rate], from_zero=True),
        chart("Speed", "target tokens per second", [speed], from_zero=True),
        chart("Gradient norm", "before clipping", [norm], log_if_wide=True),
    ]


def _curve(lines: Lines, key: str, label: str = "", **style: bool) -> Curve:
    """Return the curve of the value ``key`` over the steps of ``lines``."""
    points = [(line["step"], _number(line, key)) for line in lines]
    return Curve(label, points, **style)


def _number(line: Line, key: str) -> float:
    """Return ``line[key]``; NaN if it is missing, null or beyond `LIMIT`."""
    value = line.get(key)
    return value if value is not None and abs(value) < LIMIT else math.nan


def _best(lines: Lines, metric: str) -> Line | None:
    """Return the line with the best ``metric`` (or perplexity); None if all lines lack it.

    Of equal ones, the lowest perplexity is best, as for the checkpoints.
    """
    scored_lines = [line for line in lines if not math.isnan(_number(line, metric))]
    sign = -1 if metric == "perplexity" or lower_is_better(metric) else 1

    def quality(line: Line) -> tuple[float, float]:
        return sign * _number(line, metric), -_number(line, "perplexity")

    return max(scored_lines, key=quality, default=None)


def _fixed(line: Line, key: str, decimals: int | None = None) -> str:
    """Format ``line[key]``, by default with the decimals of the metric; a dash if missing."""
    value = _number(line, key)
    if math.isnan(value):
        return "\N{EN DASH}"
    if abs(value) >= 1e9:
        return short_number(value)
    return format_score(key, value, ",") if decimals is None else f"{value:,.{decimals}f}"
