"""The page of a training run, report.html: state, scores, charts, samples and configuration.

It shows the files that `nmt.training.events.JsonLines` and `record_evaluation` write. This module
does not import torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from nmt.files.atomic import write_text
from nmt.files.json_file import parse_json
from nmt.metrics.metric import METRICS, label_of
from nmt.report.page import LIMIT, NUM_AVERAGES, Chart, Curve, render, render_chart, short_number
from nmt.training.events import Event

Line = Mapping[str, Any]  # A parsed line of one of `_RECORDS`.
_Fact = tuple[str, str, str]  # Name, value and note.
_RECORDS = ("metrics.jsonl", "starts.jsonl", "evaluations.jsonl")
# Values of the latest start that report.html shows.
_ABOUT = {
    "schedule": "Schedule", "device": "Device", "precision": "Precision", "threads": "CPU threads",
    "parameters": "Parameters", "pairs": "Sentence pairs", "dropped": "Dropped pairs",
}  # fmt: skip
_MAX_ROWS = 100
_WIDE = 520, 280
_COLUMNS = ("Step", "Epoch", "Perplexity", "BLEU", "chrF", "Flagged", "Seconds")
_DECIMALS = {"epoch": 0, "perplexity": 2, "bleu": 2, "chrf": 2, "alarms": 0, "seconds": 1}
_SAMPLE_PARTS = ("Source", "Translation", "Reference")
_SAMPLE_RANKS = ("best", "median", "worst")


class HtmlReport:
    """Writes ``report.html`` of a run after every validation and at the end.

    It reads the files that `JsonLines` writes, so it must follow them in the list of reporters.

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
        """Write the page."""
        with suppress(OSError):  # a full disk must not stop training; the old page stays
            config = _read(self._run_dir / "config.yaml")
            page = render_report(self._title, _records(self._run_dir), config)
            write_text(self._run_dir / "report.html", page)


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
            with (run_dir / _RECORDS[2]).open("a", encoding="utf-8") as file:
                file.write(text + "\n")
            HtmlReport(run_dir, title).close()


def learning_curves(run_dir: Path) -> list[Chart]:
    """Return charts of loss and translation quality by step; empty if it is not a run folder."""
    updates, validations, starts, _ = _by_kind(_records(run_dir))
    return _charts(updates, validations, starts)[:2] if updates or validations else []


def _records(run_dir: Path) -> Iterator[Line]:
    for name in _RECORDS:
        for line in _read(run_dir / name).split("\n"):
            with suppress(ValueError):  # the last line of a killed process may be incomplete
                yield parse_json(line)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def render_report(title: str, events: Iterable[Line], config_text: str = "") -> str:
    """Return ``report.html`` of a run as text.

    Long curves are reduced to about 400 points, which keep the extremes of every interval.

    Args:
        title: Heading of the page: the name of the run.
        events: Parsed lines of ``metrics.jsonl``, ``starts.jsonl`` and ``evaluations.jsonl``. Of
            several lines of the same kind and step, the last one counts.
        config_text: Contents of config.yaml.
    """
    updates, validations, starts, tests = _by_kind(events)
    last = validations[-1] if validations else {}
    metric = starts[-1].get("metric", "bleu") if starts else "bleu"
    if metric not in METRICS or _best(validations, metric) is None:
        metric = "perplexity"
    rows, note = _table(validations, metric)
    return render(
        "run.html.j2",
        title=title,
        facts=_facts(updates, validations, metric),
        about=_about(starts, tests),
        is_noisy=len(updates) > 2 * NUM_AVERAGES,
        charts=[render_chart(chart) for chart in _charts(updates, validations, starts)],
        sampled_at=f" at step {last['step']:,}" if last.get("samples") else "",
        samples=_samples(last),
        columns=_COLUMNS,
        validations=rows,
        table_note=note,
        config_text=config_text,
    )


def _by_kind(events: Iterable[Line]) -> list[list[Line]]:
    """Return updates, validations and starts, each sorted by step, and the test scores."""
    kinds = ("update", "validation", "start", "evaluation")
    found: dict[str, dict[Any, Line]] = {kind: {} for kind in kinds}
    for line in events:
        place = line["step"] if "step" in line else (line["test"], line["checkpoint"])
        found[line["kind"]][place] = line
    tests = list(found.pop("evaluation").values())
    return [*([lines[step] for step in sorted(lines)] for lines in found.values()), tests]


def _table(validations: Sequence[Line], metric: str) -> tuple[list[dict[str, Any]], str]:
    """Return rows for the latest validations, newest first, and the best one; and a note."""
    best = _best(validations, metric)
    latest = validations[-_MAX_ROWS:]
    shown = latest if best is None or best in latest else [best, *latest]
    rows = [
        {
            "step": f"{line['step']:,}",
            "cells": [_fixed(_number(line, key), n) for key, n in _DECIMALS.items()],
            "is_best": line is best,
        }
        for line in reversed(shown)
    ]
    all_shown = len(shown) == len(validations)
    note = "" if all_shown else f"Shows {len(shown)} of {len(validations):,}: latest and best. "
    tokenizer = validations[-1].get("bleu_tokenizer") if validations else None
    note += f"BLEU uses the tokenizer {tokenizer}. " if tokenizer else ""
    note += "Flagged: translations that look degenerate. "
    return rows, note + (f"Bold: best {label_of(metric)}." if best else "")


def _facts(updates: Sequence[Line], validations: Sequence[Line], metric: str) -> list[_Fact]:
    """Return step, time, speed and best scores of the run; empty before the first update."""
    if not (both := [*updates, *validations]):
        return []
    last = max(both, key=lambda line: line["step"])
    minutes = round(sum(line["seconds"] for line in both) / 60)
    facts = [
        ("Step", f"{last['step']:,}", ""),
        ("Epoch", f"{last['epoch']:,}", ""),
        ("Time", f"{minutes // 60:,} h " * (minutes >= 60) + f"{minutes % 60} min", ""),
    ]
    if updates:
        tokens = sum(line["seconds"] * line["target_tokens_per_second"] for line in updates)
        rate = tokens / sum(line["seconds"] for line in updates)
        facts.append(("Average speed", _fixed(rate, 0), "target tokens/s"))
    for key in dict.fromkeys((metric, "perplexity")):
        if best := _best(validations, key):
            label = f"Best {METRICS[key].label}" if key in METRICS else f"Lowest {key}"
            facts.append((label, _fixed(_number(best, key), 2), f"at step {best['step']:,}"))
    return facts


def _about(starts: Sequence[Line], tests: Sequence[Line]) -> list[_Fact]:
    """Return device, data and model of the latest start, the resumed steps, and test scores."""
    latest = starts[-1] if starts else {}
    facts = [(_ABOUT[name], _shown(latest[name]), "") for name in _ABOUT if name in latest]
    if resumes := _resumes(starts):
        facts.append(("Resumed at step", ", ".join(f"{step:,}" for step in resumes), ""))
    for line in tests:
        scores = line["scores"]
        shown = (f"{label_of(each)} {_fixed(_number(scores, each), 2)}" for each in scores)
        note = f"checkpoint {line['checkpoint']}"
        facts.append((f"Test: {line['test']}", ", ".join(shown), note))
    return facts


def _resumes(starts: Sequence[Line]) -> list[int]:
    return [line["step"] for line in starts if line["step"] > 0]


def _shown(value: Any) -> str:
    """Format a recorded value; a mapping becomes a list of numbers with their names.

    >>> _shown(1200), _shown({"too long": 3, "empty": 1}), _shown({})
    ('1,200', '3 too long, 1 empty', 'none')
    """
    if isinstance(value, Mapping):
        return ", ".join(f"{_shown(each)} {name}" for name, each in value.items()) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _samples(validation: Line) -> list[list[tuple[str, str]]]:
    """Return (name, text) pairs for each sample: its rank, source, translation and reference."""
    chosen = zip(_SAMPLE_RANKS, validation.get("sample_chrf", ()), strict=False)
    return [
        [("Chosen as", f"{rank} (chrF {chrf:.1f})"), *zip(_SAMPLE_PARTS, sample, strict=True)]
        for (rank, chrf), sample in zip(chosen, validation.get("samples", ()), strict=True)
    ]


def _charts(
    updates: Sequence[Line], validations: Sequence[Line], starts: Sequence[Line]
) -> list[Chart]:
    end = max([1.0, *(lines[-1]["step"] for lines in (updates, validations) if lines)])
    chart = partial(Chart, end=end, marks=[step for step in _resumes(starts) if step <= end])

    def curve(lines: Sequence[Line], key: str, label: str = "", **style: bool) -> Curve:
        return Curve(label, [(line["step"], _number(line, key)) for line in lines], **style)

    loss = curve(updates, "loss", "training (smoothed loss)", noisy=True)
    objective = curve(validations, "objective", "validation (same loss)", marked=True)
    quality = [curve(validations, key, METRICS[key].label, marked=True) for key in ("bleu", "chrf")]
    speed = curve(updates, "target_tokens_per_second", noisy=True)
    norm = curve(updates, "gradient_norm", noisy=True)
    return [
        chart("Loss", "nats per target token", [loss, objective], size=_WIDE),
        chart("Translation quality", "score, 0 to 100", quality, size=_WIDE),
        chart("Learning rate", "per update", [curve(updates, "learning_rate")], from_zero=True),
        chart("Speed", "target tokens per second", [speed], from_zero=True),
        chart("Gradient norm", "before clipping", [norm], log_if_wide=True),
    ]


def _number(line: Line, key: str) -> float:
    """Return a value; NaN if the value is missing, null or beyond `LIMIT`."""
    value = line.get(key)
    return value if value is not None and abs(value) < LIMIT else math.nan


def _best(lines: Sequence[Line], metric: str) -> Line | None:
    """Return the line with the best ``metric``, or ``perplexity``; None if no line has it."""
    scored = [line for line in lines if not math.isnan(_number(line, metric))]
    choose = min if metric not in METRICS or METRICS[metric].lower_is_better else max
    return choose(scored, key=lambda line: _number(line, metric)) if scored else None


def _fixed(value: float, decimals: int) -> str:
    if math.isnan(value):
        return "\N{EN DASH}"
    return f"{value:,.{decimals}f}" if abs(value) < 1e9 else short_number(value)
