"""What happens in training -> metrics.jsonl, log.txt, messages, a progress bar, TensorBoard.

Updates, validations, saves and notes are events: each reporter of a run is given all of them. To
add one, write a `Reporter` and put it into the list that `make_reporters` makes. Warnings are
logged; `RunLog` writes those of all packages into log.txt, too.
"""

from __future__ import annotations

import io
import json
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

from typing_extensions import override

from nmt.errors import ConfigError
from nmt.files.atomic import write_bytes
from nmt.files.json_file import parse_json
from nmt.files.progress import follow, progress_bar

logger = logging.getLogger(__name__)


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

    def __init__(self, path: Path | None = None) -> None:
        self._file: io.FileIO | None = None
        self._waiting = b""
        if path is not None:
            self.open(path)

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
        super().__init__(path)

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

    def __init__(
        self, start: int, total: int | None, step: Callable[[], int] | None = None
    ) -> None:
        self._bleu = ""
        self._step = step
        self._bar = progress_bar("training", unit="updates", total=total, initial=start)
        if step is not None:
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
        if self._step is not None:
            self._bar.update(self._step() - self._bar.n)
        self._bar.close()


_NO_SCALARS = ("epoch", "seconds", "source_tokens_per_second")


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
            raise ConfigError(
                "training.tensorboard is set, but tensorboard is not installed.",
                fix="pip install 'nmt[tensorboard]', or set training.tensorboard: false.",
            ) from error
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


class ReporterList:
    """Passes every event on to several reporters."""

    def __init__(self, reporters: Sequence[Reporter] = ()) -> None:
        self._reporters = reporters

    def report(self, event: Event) -> None:
        """Pass an event on."""
        for reporter in self._reporters:
            reporter.report(event)

    def close(self) -> None:
        """Close all."""
        for reporter in self._reporters:
            reporter.close()
