"""The page of a training run, report.html: state, scores, charts, samples and configuration.

The page shows the files that `nmt.training.events.JsonLines` and `record_evaluation` write. This
module does not import torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from nmt.files.atomic import write_text
from nmt.files.json_file import parse_json
from nmt.metrics.metric import METRICS, format_score, label_of, lower_is_better
from nmt.metrics.selection import REPORTED_METRICS
from nmt.report.page import LIMIT, NUM_AVERAGES, Chart, Curve, render, render_chart, short_number
from nmt.training.events import Event

Line = Mapping[str, Any]  # A parsed line of one of `_RECORDS`.
Lines = Sequence[Line]
_RECORDS = ("metrics.jsonl", "starts.jsonl", "evaluations.jsonl")
_WIDE = 520, 280


class HtmlReport:
    """Writes ``report.html`` of a run after every validation and at the end.

    Reads the files that `JsonLines` writes, so it must come after `JsonLines` in the list of
    reporters.

    Args:
        run_dir: The run folder.
        title: Heading of the page: the name of the run.
    """

    def __init__(self, run_dir: Path, title: str) -> None:
        self._run_dir, self._title = run_dir, title

    def report(self, event: Event) -> None:
        """Write the page after a validation."""
        if event.kind == "validation":
            self.close()

    def close(self) -> None:
        """Write the page, with links to other pages in the folder."""
        with suppress(OSError):  # a full disk must not stop training; the old page stays
            config, place = _read(self._run_dir / "config.yaml"), self._run_dir / "report.html"
            pages = sorted(path.name for path in self._run_dir.glob("*.html") if path != place)
            write_text(place, render_report(self._title, _records(self._run_dir), config, pages))


def record_evaluation(run_dir: Path, title: str, line: Line) -> None:
    """Append the scores of a test set to ``evaluations.jsonl``, and add them to ``report.html``.

    Does nothing if the folder is not a run folder or cannot be written.

    Args:
        run_dir: The run folder, which contains ``metrics.jsonl``.
        title: Heading of the page: the name of the run.
        line: ``test`` (name), ``checkpoint`` (name) and ``scores`` (by metric).
    """
    if (run_dir / _RECORDS[0]).is_file():
        with suppress(OSError):
            text = json.dumps({"kind": "evaluation", **line}, ensure_ascii=False)
            with (run_dir / _RECORDS[2]).open("a", encoding="utf-8", newline="\n") as file:
                file.write(text + "\n")
            HtmlReport(run_dir, title).close()


def run_charts(runs: Mapping[str, Path]) -> list[Chart]:
    """Return the charts of a run, or charts that compare several runs.

    Args:
        runs: Run folders by their labels. Other folders are ignored.
    """
    lines = {name: _by_kind(_records(folder))[:3] for name, folder in runs.items()}
    charts = {name: _charts(*each) for name, each in lines.items() if each[0] or each[1]}
    if len(charts) < 2:
        return next(iter(charts.values()), [])
    curves = {
        name: {(chart.title, x.label): (chart, x) for chart in own for x in chart.curves}
        for name, own in charts.items()
    }
    both = {key: chart for own in curves.values() for key, (chart, _) in own.items()}
    return [
        replace(
            chart,
            title=", ".join(filter(None, key)),
            # A run without this curve has an empty one, so that the runs keep their colours.
            curves=[
                replace(own[key][1], label=name) if key in own else Curve(name, ())
                for name, own in curves.items()
            ],
            end=max(own[0].end for own in charts.values()),
            marks=(),
        )
        for key, chart in both.items()
    ]


def _records(run_dir: Path) -> Iterator[Line]:
    for name in _RECORDS:
        for line in _read(run_dir / name).split("\n"):
            with suppress(ValueError):  # the last line of a killed process may be incomplete
                yield parse_json(line)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def render_report(
    title: str, events: Iterable[Line], config_text: str = "", pages: Sequence[str] = ()
) -> str:
    """Return ``report.html`` of a run as text.

    Long curves are reduced to about 400 points, which keep the extremes of every interval.

    Args:
        title: Heading of the page: the name of the run.
        events: Parsed lines of ``metrics.jsonl``, ``starts.jsonl`` and ``evaluations.jsonl``. Of
            several lines of the same kind and step, the last one counts.
        config_text: Contents of config.yaml.
        pages: Names of other pages in the folder of the page.
    """
    facts = run_facts(events)
    charts = _charts(facts["updates"], facts["validations"], facts["starts"])
    return render(
        "run.html.j2", title=title, **facts, config_text=config_text, pages=pages,
        is_noisy=len(facts["updates"]) > 2 * NUM_AVERAGES, charts=[*map(render_chart, charts)],
        label_of=label_of, fixed=_fixed,
    )  # fmt: skip


def render_comparison(
    runs: Mapping[str, Path], settings: Sequence[tuple[str, Sequence[str]]]
) -> str:
    """Return a page that compares runs.

    Args:
        runs: Run folders by their labels.
        settings: Keys of the configuration that differ, with the value of each run.
    """
    return render(
        "runs.html.j2", title=f"{len(runs)} training runs", settings=settings, fixed=_fixed,
        runs={name: run_facts(_records(folder)) for name, folder in runs.items()},
        charts=[*map(render_chart, run_charts(runs))], label_of=label_of,
    )  # fmt: skip


def run_facts(events: Iterable[Line]) -> dict[str, Any]:
    """Return the lines by kind, and the best validations: by the run's metric, by perplexity.

    Args:
        events: As for `render_report`.
    """
    updates, validations, starts, tests = _by_kind(events)
    metric = starts[-1].get("metric", "bleu") if starts else "bleu"
    if metric == "loss" or _best(validations, metric) is None:
        metric = "perplexity"
    # Step 0 is before the first update: not a result of the run.
    of_run = [line for line in validations if line["step"]]
    best = {name: _best(of_run, name) for name in (metric, "perplexity")}
    return {
        "updates": updates, "validations": validations, "starts": starts, "tests": tests,
        "best": {name: line for name, line in best.items() if line},
        "reported": _reported(validations),
    }  # fmt: skip


def _reported(validations: Lines) -> list[str]:
    """Return BLEU and chrF in the order of the validations: the metric that chooses is first."""
    first = next(iter(validations), {})
    names = dict.fromkeys([*first, *REPORTED_METRICS])
    return [name for name in names if name in REPORTED_METRICS]


def _by_kind(events: Iterable[Line]) -> list[list[Line]]:
    """Return updates, validations and starts, each sorted by step, and the test scores."""
    kinds = ("update", "validation", "start", "evaluation")
    found: dict[str, dict[Any, Line]] = {kind: {} for kind in kinds}
    for line in events:
        place = line["step"] if "step" in line else (line["test"], line["checkpoint"])
        found[line["kind"]][place] = line
    tests = list(found.pop("evaluation").values())
    return [*([lines[step] for step in sorted(lines)] for lines in found.values()), tests]


def _charts(updates: Lines, validations: Lines, starts: Lines) -> list[Chart]:
    end = max([1.0, *(lines[-1]["step"] for lines in (updates, validations) if lines)])
    resumes = [line["step"] for line in starts if line["step"] > 0]
    chart = partial(Chart, end=end, marks=[step for step in resumes if step <= end])
    wide = partial(chart, size=_WIDE)

    def curve(lines: Lines, key: str, label: str = "", **style: bool) -> Curve:
        return Curve(label, [(line["step"], _number(line, key)) for line in lines], **style)

    loss = curve(updates, "loss", "training", noisy=True)
    sets = _lines_of_sets(validations, starts)

    def of_sets(key: str, label: str) -> list[Curve]:
        return [curve(lines, key, name or label, marked=True) for name, lines in sets.items()]

    losses = [loss, *of_sets("objective", "validation")]
    by_metric = {label_of(key): of_sets(key, label_of(key)) for key in _reported(validations)}
    quality = {"Translation quality": [*chain.from_iterable(by_metric.values())]}
    if len(sets) > 1:  # a set has the same colour in all charts
        losses = [*losses[1:], loss]
        quality = by_metric
    speed = curve(updates, "target_tokens_per_second", noisy=True)
    norm = curve(updates, "gradient_norm", noisy=True)
    smoothing = starts[-1].get("label_smoothing") if starts else None
    smoothed = f", label smoothing {smoothing:g}" if smoothing else ""
    scores = {key for line in validations for key in line if key in (*METRICS, "command")}
    others = sorted(scores - {*REPORTED_METRICS})
    return [
        wide("Loss", f"nats per target token{smoothed}", losses),
        *(wide(title, "score, 0 to 100", x, limits=(0, 100)) for title, x in quality.items()),
        *(chart(label_of(x), "score", of_sets(x, "")) for x in others),
        chart("Learning rate", "per update", [curve(updates, "learning_rate")], from_zero=True),
        chart("Speed", "target tokens per second", [speed], from_zero=True),
        chart("Gradient norm", "before clipping", [norm], log_if_wide=True),
    ]


def _lines_of_sets(validations: Lines, starts: Lines) -> dict[str, Lines]:
    """Return the validations of each set by its name; of a single set by an empty name.

    If several sets choose the best checkpoint, their mean or minimum comes first.
    """
    names = dict.fromkeys(name for line in validations for name in line.get("sets", ()))
    combination = starts[-1].get("combination") if starts else None
    combined = {combination or "": validations} if combination or not names else {}
    return combined | {
        name: [{**x.get("sets", {}).get(name, {}), "step": x["step"]} for x in validations]
        for name in names
    }


def _number(line: Line, key: str) -> float:
    """Return ``line[key]``; NaN if it is missing, null or beyond `LIMIT`."""
    value = line.get(key)
    return value if value is not None and abs(value) < LIMIT else math.nan


def _best(lines: Lines, metric: str) -> Line | None:
    """Return the line with the best ``metric`` (or perplexity); None if all lines lack it."""
    scored = [line for line in lines if not math.isnan(_number(line, metric))]
    choose = min if metric == "perplexity" or lower_is_better(metric) else max
    return choose(scored, key=lambda line: _number(line, metric)) if scored else None


def _fixed(line: Line, key: str, decimals: int | None = None) -> str:
    """Format ``line[key]``, by default with the decimals of the metric; a dash if missing."""
    value = _number(line, key)
    if math.isnan(value):
        return "\N{EN DASH}"
    text = format_score(key, value, ",") if decimals is None else f"{value:,.{decimals}f}"
    return text if abs(value) < 1e9 else short_number(value)
