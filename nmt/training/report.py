"""What happens in training -> metrics.jsonl, log.txt, report.html, a progress bar, TensorBoard.

Updates, validations, saves and notes are events: each reporter of a run is given all of them. To
add one, write a `Reporter` and put it into the list that `make_reporters` makes. Warnings are
logged; `RunLog` writes those of all packages into log.txt, too. Loads no torch.
"""

from __future__ import annotations

import io
import json
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self

from typing_extensions import override

from nmt.errors import ConfigError
from nmt.files.atomic import write_bytes, write_text
from nmt.files.json_file import parse_json
from nmt.files.progress import follow, progress_bar
from nmt.metrics.metric import METRICS, label_of
from nmt.report.page import (
    LIMIT,
    NUM_AVERAGES,
    Chart,
    Curve,
    render,
    render_chart,
    short_number,
)

logger = logging.getLogger(__name__)

Line = Mapping[str, Any]  # Of a record, parsed.
_Fact = tuple[str, str, str]  # Name, value and note.
_NO_SCALARS = ("epoch", "seconds", "source_tokens_per_second")  # Of TensorBoard.
_RECORDS = ("metrics.jsonl", "starts.jsonl", "evaluations.jsonl")
# What the page shows of the latest start.
_ABOUT = ("schedule", "device", "precision", "threads", "parameters", "pairs", "dropped")
_MAX_ROWS = 100
_WIDE = 520, 280
_COLUMNS = ("Step", "Epoch", "Perplexity", "BLEU", "chrF", "Alarms", "Seconds")
_DECIMALS = {"epoch": 0, "perplexity": 2, "bleu": 2, "chrf": 2, "alarms": 0, "seconds": 1}
_SAMPLE_PARTS = ("Source", "Translation", "Reference")
_SAMPLE_RANKS = ("best", "median", "worst")


@dataclass(frozen=True, slots=True)
class Event:
    """What happened in training, in one line."""

    step: int  # Updates so far.
    text: str  # For people.
    kind: str = "note"  # ``start``, ``update``, ``validation``, ``saved`` or ``note``.
    # What `JsonLines` record of updates, validations and starts.
    values: Mapping[str, Any] = field(default_factory=dict)
    level: int = logging.INFO  # Of the log message; a warning is shown also with ``-q``.


class Reporter(Protocol):
    """Is given the events of a run."""

    def report(self, event: Event) -> None:
        """Take note of an event."""
        ...

    def close(self) -> None:
        """Finish."""
        ...


class PatientFile:
    """Appends to a file. While the disk is full, data wait in memory: that stops no training.

    So do data that come before `open`, which raises OSError if the file cannot be written.
    """

    def __init__(self) -> None:
        self._file: io.FileIO | None = None
        self._waiting = b""

    def open(self, path: Path) -> None:
        """Begin to append to a file."""
        self._file = path.open("ab", buffering=0)
        self.write(b"")

    def write(self, data: bytes) -> None:
        """Write at once, if there is room."""
        self._waiting += data
        with suppress(OSError):
            while self._file and self._waiting:
                self._waiting = self._waiting[self._file.write(self._waiting) :]

    def close(self) -> None:
        """Close the file."""
        if self._file:
            self._file.close()


class JsonLines(PatientFile):
    """Appends one JSON object a line to a file: ``metrics.jsonl`` has updates and validations.

    A number that is not finite, such as the norm of a skipped update's gradient, is null.
    But for times, the file of a run that was stopped and resumed equals that of one that was not.

    Args:
        path: The file; made if missing.
        resume_step: Lines of later steps are left over from a run that was cut off, and go.
        last_validation: The same for validations, as one of ``resume_step`` may be made again.
        kinds: Of the events that it takes.
    """

    def __init__(
        self,
        path: Path,
        resume_step: int,
        last_validation: int,
        *,
        kinds: Sequence[str] = ("update", "validation"),
    ) -> None:
        self._kinds = kinds
        kept, last_steps = b"", dict.fromkeys(kinds, resume_step) | {"validation": last_validation}
        for line in path.read_bytes().split(b"\n") if path.exists() else ():
            # The last line of a killed process may be half a line.
            with suppress(ValueError, KeyError, TypeError):
                values: dict[str, Any] = parse_json(line)
                kept += line + b"\n" if values["step"] <= last_steps[values["kind"]] else b""
        write_bytes(path, kept)  # a kill here must not cost the lines
        super().__init__()
        self.open(path)

    def report(self, event: Event) -> None:
        """Write one line at once."""
        if event.kind in self._kinds:
            line = {"kind": event.kind, "step": event.step, **event.values}
            for key, value in line.items():
                if isinstance(value, float) and not math.isfinite(value):
                    line[key] = None  # JSON has no form of it
            text = json.dumps(line, ensure_ascii=False, allow_nan=False)
            self.write(f"{text}\n".encode())


class RunLog(logging.Handler):
    """Writes events and the warnings of all rooms, with the time, to ``log.txt`` of a run.

    A context: warnings that come before `open` wait in memory.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._file = PatientFile()

    def __enter__(self) -> Self:
        logging.getLogger("nmt").addHandler(self)
        return self

    def __exit__(self, *error: object) -> None:
        logging.getLogger("nmt").removeHandler(self)
        self.close()

    def open(self, path: Path) -> Self:
        """Begin to append to a file.

        Raises:
            OSError: It cannot be written.
        """
        self._file.open(path)
        return self

    @override
    def emit(self, record: logging.LogRecord) -> None:
        if record.name != __name__:  # those of `Console` come as events
            self._write(record.getMessage())

    def report(self, event: Event) -> None:
        """Write one line at once."""
        self._write(event.text)

    def _write(self, text: str) -> None:
        self._file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}\n".encode())

    @override
    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


class Console:
    """A progress bar on a terminal; elsewhere, and for all but updates and saves, log messages.

    Args:
        start: Updates made before.
        total: Updates in all, if known.
        step: Asked for the updates made, about once a second.
    """

    def __init__(self, start: int, total: int | None, step: Callable[[], int]) -> None:
        self._bleu, self._step = "", step
        self._bar = progress_bar("training", unit="updates", total=total, initial=start)
        follow(self._bar, step)

    def report(self, event: Event) -> None:
        """Move the bar, or log a line."""
        values = event.values
        if event.kind == "validation" and values.get("bleu") is not None:
            self._bleu = f", BLEU {values['bleu']:.2f}"
        if self._bar.disable or event.kind in ("start", "validation", "note"):
            logger.log(event.level, event.text)
        elif event.kind == "update":
            self._bar.update(event.step - self._bar.n)
            rate = f"{values['target_tokens_per_second']:,.0f} tok/s"
            self._bar.set_postfix_str(f"loss {values['loss']:.3f}{self._bleu}, {rate}")

    def close(self) -> None:
        """Leave the terminal clean."""
        self._bar.update(self._step() - self._bar.n)
        self._bar.close()


class TensorBoard:
    """Writes scalars and sample translations of a run under ``tensorboard/``.

    Args:
        run_dir: Folder of the run.
        resume_step: Events of later steps are left over from a run that was cut off; they will
            not be shown.

    Raises:
        ConfigError: TensorBoard is not installed.
    """

    def __init__(self, run_dir: Path, resume_step: int = 0) -> None:
        try:
            # Late, as it is optional and takes a second to load.
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415
        except ImportError as error:
            problem = "training.tensorboard is set, but tensorboard is not installed."
            fix = "pip install 'nmt[tensorboard]', or set training.tensorboard: false."
            raise ConfigError(problem, fix=fix) from error
        purge = resume_step + 1 if resume_step else None
        self._writer: Any = SummaryWriter(run_dir / "tensorboard", purge_step=purge)

    def report(self, event: Event) -> None:
        """Write the values of an update or a validation."""
        if event.kind not in ("update", "validation"):
            return
        group = "train" if event.kind == "update" else "validation"
        for name, value in event.values.items():
            if isinstance(value, int | float) and name not in _NO_SCALARS:
                self._writer.add_scalar(f"{group}/{name}", value, event.step)
        for number, sample in enumerate(event.values.get("samples", ()), 1):
            # Texts are read as Markdown. Four spaces make them code: shown as they are.
            code = "".join(f"    {' '.join(line.splitlines())}\n" for line in sample)
            self._writer.add_text(f"sample {number}", code, event.step)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


class ReporterList(list[Reporter]):
    """Passes every event on to several reporters."""

    def report(self, event: Event) -> None:
        """Pass an event on."""
        for reporter in self:
            reporter.report(event)

    def close(self) -> None:
        """Close all."""
        for reporter in self:
            reporter.close()


class HtmlReport:
    """Keeps ``report.html`` of a run up to date: at every validation and at the end.

    It reads what `JsonLines` write, so it comes after them among the reporters.

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
        with suppress(OSError):  # a full disk stops no training; the page before stays
            config = _read(self._run_dir / "config.yaml")
            page = render_report(self._title, _records(self._run_dir), config)
            write_text(self._run_dir / "report.html", page)


def record_evaluation(run_dir: Path, title: str, line: Line) -> None:
    """Append scores of a test set to ``evaluations.jsonl`` of a run, and show them on its page.

    Args:
        run_dir: A folder without ``metrics.jsonl`` is no run, and is left as it is; so is one that
            cannot be written.
        title: Name of the run.
        line: ``test``, ``checkpoint`` and ``scores`` by metric.
    """
    if (run_dir / _RECORDS[0]).is_file():
        with suppress(OSError):
            text = json.dumps({"kind": "evaluation", **line}, ensure_ascii=False)
            with (run_dir / _RECORDS[2]).open("a", encoding="utf-8") as file:
                file.write(text + "\n")
            HtmlReport(run_dir, title).close()


def learning_curves(run_dir: Path) -> list[Chart]:
    """Return charts of a run's loss and quality by step; none of a folder that is no run."""
    updates, validations, starts, _ = _by_kind(_records(run_dir))
    return _charts(updates, validations, starts)[:2] if updates or validations else []


def _records(run_dir: Path) -> Iterator[Line]:
    for name in _RECORDS:
        for line in _read(run_dir / name).split("\n"):
            with suppress(ValueError):  # the last line of a killed process may be half a line
                yield parse_json(line)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def render_report(title: str, events: Iterable[Line], config_text: str = "") -> str:
    """Return the page of a run.

    Long curves are thinned to about 400 points: the lowest and highest of each stretch stay.

    Args:
        title: Name of the run.
        events: The lines of ``metrics.jsonl``, ``starts.jsonl`` and ``evaluations.jsonl``, parsed.
            Later ones win where steps are equal.
        config_text: The configuration the run goes by.
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
    """Return updates, validations and starts by step, and the tests of each checkpoint."""
    kinds = ("update", "validation", "start", "evaluation")
    found: dict[str, dict[Any, Line]] = {kind: {} for kind in kinds}
    for line in events:
        place = line["step"] if "step" in line else (line["test"], line["checkpoint"])
        found[line["kind"]][place] = line
    tests = list(found.pop("evaluation").values())
    return [*([lines[step] for step in sorted(lines)] for lines in found.values()), tests]


def _table(validations: Sequence[Line], metric: str) -> tuple[list[dict[str, Any]], str]:
    """Return the latest validations, newest first, with that of the best score; and a note."""
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
    note = "" if all_shown else f"{len(shown)} of {len(validations):,}: the latest and the best. "
    tokenizer = validations[-1].get("bleu_tokenizer") if validations else None
    note += f"BLEU with tokenizer {tokenizer}. " if tokenizer else ""
    note += "Alarms: translations that look degenerate. "
    return rows, note + (f"Bold: best {label_of(metric)}." if best else "")


def _facts(updates: Sequence[Line], validations: Sequence[Line], metric: str) -> list[_Fact]:
    """Return the state of the run in a few numbers; nothing before the first update."""
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
    """Return what the latest start trains, on what, where training was resumed, and test scores."""
    latest = starts[-1] if starts else {}
    facts = [(name.capitalize(), _shown(latest[name]), "") for name in _ABOUT if name in latest]
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
    """Return a recorded value to read; of several named numbers each with its name.

    >>> _shown(1200), _shown({"too long": 3, "empty": 1}), _shown({})
    ('1,200', '3 too long, 1 empty', 'none')
    """
    if isinstance(value, Mapping):
        return ", ".join(f"{_shown(each)} {name}" for name, each in value.items()) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _samples(validation: Line) -> list[list[tuple[str, str]]]:
    """Return why each sample was chosen, and its parts, with their names."""
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

    loss = curve(updates, "loss", "training (smoothed objective)", noisy=True)
    objective = curve(validations, "objective", "validation (the same objective)", marked=True)
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
    """Return a value; NaN where it is missing, null or as good as infinite."""
    value = line.get(key)
    return value if value is not None and abs(value) < LIMIT else math.nan


def _best(lines: Sequence[Line], metric: str) -> Line | None:
    """Return the line with the best score by a metric, or of the lowest perplexity."""
    scored = [line for line in lines if not math.isnan(_number(line, metric))]
    choose = min if metric not in METRICS or METRICS[metric].lower_is_better else max
    return choose(scored, key=lambda line: _number(line, metric)) if scored else None


def _fixed(value: float, decimals: int) -> str:
    if math.isnan(value):
        return "\N{EN DASH}"
    return f"{value:,.{decimals}f}" if abs(value) < 1e9 else short_number(value)
