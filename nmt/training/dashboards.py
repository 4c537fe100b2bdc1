"""The reporters that draw: a page in HTML and TensorBoard; and the list of all that a run has."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from nmt.config.run import RunConfig
from nmt.errors import CheckpointError, ConfigError
from nmt.files.atomic import write_errors
from nmt.files.json_file import parse_json
from nmt.report.page import (
    LIMIT,
    NUM_AVERAGES,
    Chart,
    Curve,
    Point,
    finite,
    render,
    render_chart,
    short_number,
)
from nmt.training.progress import Progress
from nmt.training.report import (
    Console,
    Event,
    JsonLines,
    PatientFile,
    Reporter,
    ReporterList,
    RunLog,
)

_Line = Mapping[str, Any]
_MAX_ROWS = 100
_WIDE = 520, 280
_COLUMNS = ("Step", "Epoch", "Perplexity", "BLEU", "chrF", "Seconds")
_DECIMALS = {"epoch": 0, "perplexity": 2, "bleu": 2, "chrf": 2, "seconds": 1}
_SAMPLE_PARTS = ("Source", "Translation", "Reference")

_NO_SCALARS = {"epoch", "seconds", "source_tokens_per_second", "bleu_tokenizer", "samples"}


def render_report(title: str, events: Iterable[_Line], config_text: str = "") -> str:
    """Return the page of a run.

    Long curves are thinned to about 400 points: the lowest and highest of each stretch stay.

    Args:
        title: Name of the run.
        events: The lines of ``metrics.jsonl``, parsed. Later ones win where steps are equal.
        config_text: The configuration the run goes by.
    """
    updates, validations = _sorted_by_step(events)
    samples = validations[-1].get("samples") if validations else None
    rows, note = _table(validations)
    return render(
        "run.html.j2",
        title=title,
        facts=_facts(updates, validations),
        is_noisy=len(updates) > 2 * NUM_AVERAGES,
        charts=[render_chart(chart) for chart in _charts(updates, validations)],
        sampled_at=f" at step {validations[-1]['step']:,.0f}" if samples else "",
        samples=[list(zip(_SAMPLE_PARTS, sample, strict=False)) for sample in samples or ()],
        columns=_COLUMNS,
        validations=rows,
        table_note=note,
        config_text=config_text,
    )


def _table(validations: Sequence[_Line]) -> tuple[list[dict[str, Any]], str]:
    """Return the latest validations, newest first, with that of the best BLEU; and a note."""
    best = _best(validations, "bleu", max)
    start = len(validations) - _MAX_ROWS
    shown = [each for number, each in enumerate(validations) if number >= start or each is best]
    rows = [
        {
            "step": f"{line['step']:,.0f}",
            "cells": [_fixed(_number(line, key), n) for key, n in _DECIMALS.items()],
            "is_best": line is best,
        }
        for line in reversed(shown)
    ]
    all_shown = len(shown) == len(validations)
    note = "" if all_shown else f"{len(shown)} of {len(validations):,}: the latest and the best. "
    tokenizer = validations[-1].get("bleu_tokenizer") if validations else None
    note += f"BLEU with tokenizer {tokenizer}. " if tokenizer else ""
    return rows, note + ("Bold: best BLEU." if best else "")


def _facts(updates: Sequence[_Line], validations: Sequence[_Line]) -> list[dict[str, str]]:
    """Return the state of the run in a few numbers; nothing before the first update."""
    both = [*updates, *validations]
    if not both:
        return []
    last = max(both, key=lambda line: line["step"])
    minutes = round(sum(value for _, value in finite(_points(both, "seconds"))) / 60)
    facts = [
        ("Step", f"{last['step']:,.0f}", ""),
        ("Epoch", _fixed(_number(last, "epoch"), 0), ""),
        ("Time", f"{minutes // 60:,} h " * (minutes >= 60) + f"{minutes % 60} min", ""),
    ]
    kinds = (("bleu", "Best BLEU", max), ("perplexity", "Lowest perplexity", min))
    for key, label, choose in kinds:
        if best := _best(validations, key, choose):
            facts.append((label, _fixed(_number(best, key), 2), f"at step {best['step']:,.0f}"))
    return [{"name": name, "value": value, "note": note} for name, value, note in facts]


def _charts(updates: Sequence[_Line], validations: Sequence[_Line]) -> list[Chart]:
    end = max([1.0, *(lines[-1]["step"] for lines in (updates, validations) if lines)])
    loss = Curve("training (smoothed objective)", _points(updates, "loss"), noisy=True)
    loss_of_references = Curve("validation", _points(validations, "loss"), marked=True)
    bleu = Curve("BLEU", _points(validations, "bleu"), marked=True)
    chrf = Curve("chrF", _points(validations, "chrf"), marked=True)
    rate = Curve("", _points(updates, "learning_rate"))
    speed = Curve("", _points(updates, "target_tokens_per_second"), noisy=True)
    norm = Curve("", _points(updates, "gradient_norm"), noisy=True)
    return [
        Chart("Loss", "nats per target token", [loss, loss_of_references], end, _WIDE),
        Chart("Translation quality", "score, 0 to 100", [bleu, chrf], end, _WIDE),
        Chart("Learning rate", "per update", [rate], end, from_zero=True),
        Chart("Speed", "target tokens per second", [speed], end, from_zero=True),
        Chart("Gradient norm", "before clipping", [norm], end, log_if_wide=True),
    ]


def _sorted_by_step(events: Iterable[_Line]) -> list[list[_Line]]:
    found: dict[str, dict[float, _Line]] = {"update": {}, "validation": {}}
    for line in events:
        if line.get("kind") in found and _number(line, "step") >= 0:
            found[line["kind"]][line["step"]] = line
    return [[by_step[step] for step in sorted(by_step)] for by_step in found.values()]


def _points(lines: Sequence[_Line], key: str) -> list[Point]:
    return [(line["step"], _number(line, key)) for line in lines]


def _number(line: _Line, key: str) -> float:
    value = line.get(key, math.nan)
    try:
        return value if -LIMIT < value < LIMIT else math.nan
    except TypeError:  # null, say
        return math.nan


def _best(lines: Sequence[_Line], key: str, choose: Callable[..., _Line]) -> _Line | None:
    known = [line for line in lines if not math.isnan(_number(line, key))]
    return choose(known, key=lambda line: _number(line, key)) if known else None


def _fixed(value: float, decimals: int) -> str:
    if math.isnan(value):
        return "\N{EN DASH}"
    return f"{value:,.{decimals}f}" if abs(value) < 1e9 else short_number(value)


class HtmlReport:
    """Keeps ``report.html`` of a run up to date: at every validation and at the end.

    It reads ``metrics.jsonl``, so it comes after ``JsonLines`` among the reporters.

    Args:
        run_dir: Folder of the run.
        title: Name of the run.
    """

    def __init__(self, run_dir: Path, title: str) -> None:
        self._run_dir, self._title = run_dir, title

    def report(self, event: Event) -> None:
        """Write the page after a validation."""
        if event.kind == "validation":
            self.close()

    def close(self) -> None:
        """Write the page."""
        temporary = self._run_dir / ".tmp-report.html"
        try:
            metrics, config = (_read(self._run_dir / n) for n in ("metrics.jsonl", "config.yaml"))
            page = render_report(self._title, _parsed(metrics), config)
            temporary.write_text(page, encoding="utf-8")
            temporary.replace(self._run_dir / "report.html")
        except OSError:  # a full disk stops no training; the page before stays
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def _parsed(lines: str) -> Iterable[_Line]:
    for line in lines.split("\n"):
        with suppress(ValueError):  # the last line of a killed process may be half a line
            values = parse_json(line)
            if isinstance(values, dict):
                yield values


class TensorBoard:
    """Writes scalars and sample translations of a run under ``tensorboard/``, each at once.

    Not by torch's ``SummaryWriter``: its thread dies of a full disk and never writes again. Here,
    as in ``metrics.jsonl``, events wait in memory until there is room.

    Args:
        run_dir: Folder of the run.
        resume_step: Events of later steps are left over from a run that was cut off; they will
            not be shown.

    Raises:
        ConfigError: TensorBoard is not installed.
        OSError: The folder cannot be written.
    """

    def __init__(self, run_dir: Path, resume_step: int = 0) -> None:
        try:
            self._proto: Any = import_module("tensorboard.compat.proto.event_pb2")
            records: Any = import_module("tensorboard.summary.writer.record_writer")
            self._summary: Any = import_module("torch.utils.tensorboard.summary")
        except ImportError as error:
            raise ConfigError(
                "training.tensorboard is set, but tensorboard is not installed.",
                fix="pip install 'nmt[tensorboard]', or set training.tensorboard: false.",
            ) from error
        folder = run_dir / "tensorboard"
        folder.mkdir(exist_ok=True)
        # Files are read in the order of their names, and each hides what it purges before it.
        self._file = PatientFile(folder / f"events.out.tfevents.{time.time():017.6f}")
        self._records = records.RecordWriter(self._file)
        self._write(file_version="brain.Event:2")
        if resume_step:
            start = self._proto.SessionLog(status=self._proto.SessionLog.START)
            self._write(step=resume_step + 1, session_log=start)

    def report(self, event: Event) -> None:
        """Write the values of an update or a validation."""
        group = "train" if event.kind == "update" else "validation"
        for name, value in event.values.items():
            if value is not None and name not in _NO_SCALARS:
                summary = self._summary.scalar(f"{group}/{name}", value)
                self._write(step=event.step, summary=summary)
        for number, sample in enumerate(event.values.get("samples", ()), 1):
            # Texts are read as Markdown. Four spaces make them code: shown as they are.
            code = "".join(f"    {' '.join(line.splitlines())}\n" for line in sample)
            self._write(step=event.step, summary=self._summary.text(f"sample {number}", code))

    def _write(self, **fields: Any) -> None:
        event = self._proto.Event(wall_time=time.time(), **fields)
        self._records.write(event.SerializeToString())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def make_reporters(config: RunConfig, log: RunLog, progress: Progress) -> ReporterList:
    """Return the reporters of a run: metrics.jsonl, log.txt, the console, report.html, TensorBoard.

    Args:
        config: Says where, and whether TensorBoard files are written.
        log: Opened on log.txt.
        progress: Where training stands.

    Raises:
        CheckpointError: The files cannot be written.
        ConfigError: TensorBoard is not installed.
    """
    run_dir, start, last = config.run_dir, progress.step, max(progress.history, default=0)
    fix = "Set run_dir to a folder you can write to, or free disk space."
    with write_errors(run_dir, CheckpointError, fix=fix):
        reporters: list[Reporter] = [
            JsonLines(run_dir / "metrics.jsonl", start, last),
            log.open(run_dir / "log.txt"),
            Console(start, progress.total_steps),
            HtmlReport(run_dir, config.name),
        ]
    if config.training.tensorboard:
        reporters.append(TensorBoard(run_dir, start))
    return ReporterList(reporters)
