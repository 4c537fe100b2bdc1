"""Events of training, and reporters that write them: metrics.jsonl, log.txt, the progress bar.

Updates, validations, saves and notes are events, and every reporter receives every event. To add a
reporter, implement `Reporter` and register it in `nmt.commands.train_setup.TRACKERS`.
`nmt.training.report` writes report.html. `RunLog` also writes the warnings of all `nmt` packages
into log.txt. This module does not import torch.
"""

from __future__ import annotations

import io
import json
import logging
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

from typing_extensions import override

from nmt.files.atomic import write_bytes
from nmt.files.json_file import parse_json
from nmt.files.progress import follow, progress_bar
from nmt.files.terminal import USUAL_COLUMNS, columns_of
from nmt.metrics.metric import REPORTED_METRICS, label_of

logger = logging.getLogger(__name__)

# The speed is shown in tokens, not in updates, so that the bar fits a usual terminal.
_BAR = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
_NARROW_BAR = "{desc}: {n_fmt}/{total_fmt}, {remaining} left{postfix}"


@dataclass(frozen=True)
class TrainingEvent:
    """An update, validation, save, note, or the start or end of training, to be reported."""

    step: int  # Updates made so far.
    text: str  # One line for the log.
    # ``start``, ``update``, ``validation``, ``saved``, ``plan``, ``end`` or ``note``.
    kind: str = "note"
    # Values of a start, an update or a validation, which `JsonLines` writes; `total_steps` of a
    # plan; `reason` of an end: ``budget``, ``patience``, ``signal``, or the problem of an error.
    values: Mapping[str, Any] = field(default_factory=dict)
    level: int = logging.INFO  # Level of the log message; ``-q`` still shows warnings.


class Reporter(Protocol):
    """Receives the events of a run."""

    def report(self, event: TrainingEvent) -> None:
        """Record an event."""
        ...

    def close(self) -> None:
        """Write pending data, and release files."""
        ...


class PatientFile:
    """Appends to a file, and keeps data in memory while the disk is full or before `open`.

    A full disk must not stop training.
    """

    def __init__(self) -> None:
        self._file: io.FileIO | None = None
        self._pending = b""  # data that is not in the file yet

    def open(self, path: Path) -> None:
        """Open the file, and write the data kept so far.

        Raises:
            OSError: The file cannot be written.
        """
        self._file = path.open("ab", buffering=0)
        self.write(b"")

    def write(self, data: bytes) -> None:
        """Append without buffering. If the disk is full, keep the data for the next call."""
        self._pending += data
        with suppress(OSError):
            while self._file and self._pending:
                # The system may write only a part.
                num_written = self._file.write(self._pending)
                self._pending = self._pending[num_written:]

    def close(self) -> None:
        """Close the file."""
        if self._file:
            self._file.close()


class JsonLines(PatientFile):
    """Appends one JSON object per line to a file, such as ``metrics.jsonl``.

    Numbers that are not finite, such as the gradient norm of a skipped update, become null, and
    bytes of a file name that are not UTF-8 become "?". Apart from times, a resumed run writes the
    same lines as an uninterrupted run.

    Args:
        path: The file; created if missing.
        resume_step: Step at which training resumes. Lines of later steps are removed.
        last_validation: Step of the last validation in the checkpoint. Later validations are
            removed, because training repeats them.
        kinds: Kinds of events to write.
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
        # Last step to keep, of each kind of event.
        last_steps = dict.fromkeys(kinds, resume_step) | {"validation": last_validation}
        lines = path.read_bytes().split(b"\n") if path.exists() else []
        # Atomic: a kill here must not lose the lines.
        write_bytes(path, b"".join(lines_of_checkpoint(lines, last_steps)))
        super().__init__()
        self.path = path
        self.open(path)

    def report(self, event: TrainingEvent) -> None:
        """Append the event, if its kind is among ``kinds``."""
        if event.kind in self._kinds:
            line = {"kind": event.kind, "step": event.step, **event.values}
            text = json.dumps(_finite(line), ensure_ascii=False, allow_nan=False)
            self.write(f"{text}\n".encode("utf-8", "replace"))


def lines_of_checkpoint(lines: Iterable[bytes], last_steps: Mapping[str, int]) -> Iterator[bytes]:
    """Yield the lines of events that a checkpoint contains, each as soon as it is read.

    Args:
        lines: Lines of a file that `JsonLines` has written, without line breaks. Incomplete lines,
            which a killed process leaves behind, are dropped.
        last_steps: Last step of each kind of event. Other kinds are dropped.
    """
    for line in lines:
        try:
            values = parse_json(line)
            is_kept = values["step"] <= last_steps[values["kind"]]
        except (ValueError, KeyError, TypeError):
            continue
        if is_kept:
            yield line + b"\n"


def _finite(value: Any) -> Any:
    """Replace numbers that are not finite by None: JSON has no NaN and no infinity.

    Looks into mappings, but not into sequences.
    """
    if isinstance(value, Mapping):
        return {key: _finite(entry) for key, entry in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


class RunLog(logging.Handler):
    """Writes all events, and the warnings of all `nmt` packages, to ``log.txt`` with the time.

    A context manager. Warnings logged before `open` are kept and written later.
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
        """Open the file, and write the warnings kept so far.

        Raises:
            OSError: The file cannot be written.
        """
        self._file.open(path)
        return self

    @override
    def emit(self, record: logging.LogRecord) -> None:
        if record.name != __name__:  # `Console` logs events, which `report` receives anyway
            self._write(record.getMessage())

    def report(self, event: TrainingEvent) -> None:
        """Append the text of the event."""
        self._write(event.text)

    def _write(self, text: str) -> None:
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}\n"
        self._file.write(line.encode("utf-8", "replace"))

    @override
    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


class Console:
    """Shows the progress of training, and logs events.

    On a terminal, the bar replaces the log messages of updates and saves.

    Args:
        start: Updates made before training resumed.
        total: Planned updates, or None if unknown.
        step: Returns the updates made so far; called about once a second.
    """

    def __init__(self, start: int, total: int | None, step: Callable[[], int]) -> None:
        # Text about the first score of the last validation with a score, such as ", BLEU 21.50".
        self._score = ""
        self._update: Mapping[str, Any] = {}  # values of the last update
        self._step = step
        terminal_columns = columns_of(sys.stderr)
        self._is_drawn = terminal_columns is not None
        columns = terminal_columns or USUAL_COLUMNS
        self._is_narrow = columns < USUAL_COLUMNS
        bar_format = _NARROW_BAR if self._is_narrow else _BAR
        self._bar = progress_bar(
            "training", unit="updates", total=total, initial=start, bar_format=bar_format
        )
        follow(self._bar, step)

    def report(self, event: TrainingEvent) -> None:
        """Advance the bar, and log the event unless the bar shows it."""
        values = event.values
        if event.kind == "validation":
            metric = next((name for name in values if name in REPORTED_METRICS), None)
            # The value is null if the validation has no score.
            if metric is not None and values[metric] is not None:
                self._score = f", {label_of(metric)} {values[metric]:.2f}"
                self._show()
        if event.kind == "plan":
            self._bar.total = values["total_steps"]
        if event.kind == "update":
            self._bar.update(event.step - self._bar.n)  # takes the number of new updates
            self._update = values
            self._show()
        # The bar is off in quiet mode, and in a program that does not log notes.
        is_shown = self._is_drawn and not self._bar.disable
        if not is_shown or event.kind not in ("update", "saved"):
            logger.log(event.level, event.text)

    def _show(self) -> None:
        """Write loss, score and speed beside the bar, once there is an update."""
        if self._update:
            text = f"loss {self._update['loss']:.3f}{self._score}"
            if not self._is_narrow:  # a narrow terminal cannot show the speed, too
                text += f", {self._update['target_tokens_per_second']:,.0f} tok/s"
            self._bar.set_postfix_str(text, refresh=False)

    def close(self) -> None:
        """Complete and close the bar."""
        self._bar.update(self._step() - self._bar.n)
        self._bar.close()


@runtime_checkable
class FileReader(Protocol):
    """A reporter that reads files of other reporters, which must receive each event before it."""

    reads: Sequence[Path]  # Each is the `path` of an earlier reporter.


class ReporterList(list[Reporter]):
    """Passes every event to several reporters, in order.

    Args:
        reporters: The reporters. A `FileReader` comes after the reporters that write its files.

    Raises:
        ValueError: A `FileReader` comes before a reporter that writes one of its files.
    """

    def __init__(self, reporters: Iterable[Reporter] = ()) -> None:
        super().__init__(reporters)
        written_files = set[Path]()  # by the reporters so far
        for reporter in self:
            if isinstance(reporter, FileReader) and not written_files.issuperset(reporter.reads):
                names = ", ".join(path.name for path in reporter.reads)
                raise ValueError(
                    f"{type(reporter).__name__} must come after the writers of {names}"
                )
            if isinstance(reporter, JsonLines):
                written_files.add(reporter.path)

    def report(self, event: TrainingEvent) -> None:
        """Pass the event to each reporter."""
        for reporter in self:
            reporter.report(event)

    def close(self) -> None:
        """Close the reporters in reverse order: the log receives warnings of later reporters."""
        for reporter in reversed(self):
            reporter.close()
