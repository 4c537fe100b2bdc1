"""What happens in training -> metrics.jsonl, log.txt, messages and a progress bar.

Updates, validations, saves and notes are events: each reporter of a run is given all of them. To
add one, write a `Reporter` and put it into the list that `nmt.recipes.train` makes. Warnings are
logged; `RunLog` writes those of all rooms into log.txt, too.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from typing_extensions import override

from nmt.files.atomic import write_bytes
from nmt.files.json_file import parse_json
from nmt.files.progress import progress_bar
from nmt.metrics.metric import METRICS

logger = logging.getLogger(__name__)

_READABLE = 1e6  # perplexities above are shown by their magnitude


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateReport:
    """The updates since the last such report."""

    kind: ClassVar[str] = "update"
    step: int
    """Updates so far."""
    epoch: int
    """Epochs read to the end."""
    loss: float
    """Training objective (smoothed) per target token, in nats; NaN if all were skipped."""
    learning_rate: float
    """Of the last update."""
    gradient_norm: float
    """Of the last update, before clipping."""
    target_tokens_per_second: float
    """Real target tokens; time of updates only."""
    source_tokens_per_second: float
    """Real source tokens; time of updates only."""
    padding_waste: float
    """Share of padding in the rectangles of both sides."""
    seconds: float
    """Time of these updates."""

    def line(self) -> str:
        """Return one line to read."""
        return (
            f"step {self.step:,}  epoch {self.epoch}  loss {self.loss:.3f}  "
            f"lr {self.learning_rate:.2e}  norm {self.gradient_norm:.2f}  "
            f"{self.target_tokens_per_second:,.0f} target tokens/s"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationReport:
    """One validation."""

    kind: ClassVar[str] = "validation"
    step: int
    """Updates so far."""
    epoch: int
    """Epochs read to the end."""
    loss: float
    """Cross-entropy of the references per token, without smoothing, in nats."""
    perplexity: float
    """exp(loss)."""
    scores: Mapping[str, float | None]
    """Scores of the decoded translations by metric; None where there is no text."""
    bleu_tokenizer: str | None = None
    """What BLEU's words were found with; scores by different ones cannot be compared."""
    seconds: float
    """Time of the validation."""
    samples: Sequence[tuple[str, str, str]] = ()
    """A few of (source, translation, reference)."""

    def line(self) -> str:
        """Return one line to read."""
        text = f"validation at step {self.step:,}: perplexity {shown_perplexity(self.perplexity)}"
        for metric, value in self.scores.items():
            if value is not None:
                is_other = metric == "bleu" and self.bleu_tokenizer not in (None, "13a")
                label = f" (tokenizer {self.bleu_tokenizer})" if is_other else ""
                text += f", {METRICS[metric].label} {value:.2f}{label}"
        return f"{text} ({self.seconds:.1f} s)"


def shown_perplexity(value: float) -> str:
    """Write it for people: of a model that has gone astray it may have hundreds of digits.

    >>> shown_perplexity(7.391), shown_perplexity(float("1e200"))
    ('7.39', '1e+200')
    """
    return f"{value:.2f}" if value < _READABLE else f"{value:.3g}"


@dataclass(frozen=True, slots=True)
class SavedReport:
    """A checkpoint was written."""

    kind: ClassVar[str] = "saved"
    step: int
    """Updates so far."""
    name: str
    """Folder of the checkpoint."""
    seconds: float
    """Time it took."""

    def line(self) -> str:
        """Return one line to read."""
        return f"saved {self.name} ({self.seconds:.2f} s)"


@dataclass(frozen=True, slots=True)
class NoteReport:
    """Something a person should know."""

    kind: ClassVar[str] = "note"
    step: int
    """Updates so far."""
    text: str
    """What happened."""
    level: int = logging.INFO
    """Of the log message; a warning is shown also with ``-q``."""

    def line(self) -> str:
        """Return one line to read."""
        return self.text


Event = UpdateReport | ValidationReport | SavedReport | NoteReport


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

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._waiting = b""

    def write(self, data: bytes) -> None:
        """Write at once, if there is room."""
        self._waiting += data
        with suppress(OSError):
            while self._waiting:
                self._waiting = self._waiting[self._file.write(self._waiting) :]

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class JsonLines:
    """Appends one JSON object a line to ``metrics.jsonl``: updates and validations.

    A number that is not finite, such as the norm of a skipped update's gradient, is null.
    But for times, the file of a run that was stopped and resumed equals that of one that was not.

    Args:
        path: The file; made if missing.
        resume_step: Lines of later steps are left over from a run that was cut off, and go.
        last_validation: The same for validations, as one of ``resume_step`` may be made again.
    """

    def __init__(self, path: Path, resume_step: int, last_validation: int | None = None) -> None:
        if path.exists():
            last = resume_step if last_validation is None else last_validation
            _keep_lines(path, {UpdateReport.kind: resume_step, ValidationReport.kind: last})
        self._file = PatientFile(path)

    def report(self, event: Event) -> None:
        """Write one line at once."""
        if not isinstance(event, UpdateReport | ValidationReport):
            return
        values = asdict(event)
        values |= values.pop("scores", {})
        line = {"kind": event.kind, **{key: _json(value) for key, value in values.items()}}
        text = json.dumps(line, ensure_ascii=False, allow_nan=False)
        self._file.write(f"{text}\n".encode())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _json(value: Any) -> Any:
    """Numbers that are not finite have no form in JSON: None."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _keep_lines(path: Path, last_steps: Mapping[str, int]) -> None:
    kept = []
    for line in path.read_bytes().split(b"\n"):
        try:
            values: dict[str, Any] = parse_json(line)
            if values["step"] <= last_steps[values["kind"]]:
                kept.append(line + b"\n")
        except (ValueError, KeyError, TypeError):
            continue  # the last line of a killed process may be half a line
    write_bytes(path, b"".join(kept))  # a kill here must not cost the lines


class RunLog(logging.Handler):
    """Writes events and the warnings of all rooms, with the time, to ``log.txt`` of a run.

    A context: warnings that come before `open` wait in memory.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._early = b""
        self._file: PatientFile | None = None

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
        self._file = PatientFile(path)
        self._file.write(self._early)
        return self

    @override
    def emit(self, record: logging.LogRecord) -> None:
        if record.name != __name__:  # those of `Console` come as events
            self._write(record.getMessage())

    def report(self, event: Event) -> None:
        """Write one line at once."""
        self._write(event.line())

    def _write(self, text: str) -> None:
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}\n".encode()
        if self._file is None:
            self._early += line
        else:
            self._file.write(line)

    @override
    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
        super().close()


class Console:
    """A progress bar on a terminal; elsewhere, and for all but updates and saves, log messages.

    Args:
        start: Updates made before.
        total: Updates in all, if known.
    """

    def __init__(self, start: int, total: int | None) -> None:
        self._bleu = ""
        self._bar = progress_bar("training", unit="updates", total=total, initial=start)

    def report(self, event: Event) -> None:
        """Move the bar, or log a line."""
        if isinstance(event, ValidationReport) and event.scores.get("bleu") is not None:
            self._bleu = f", BLEU {event.scores['bleu']:.2f}"
        if isinstance(event, NoteReport):
            logger.log(event.level, event.line())
        elif self._bar.disable or isinstance(event, ValidationReport):
            logger.info(event.line())
        elif isinstance(event, UpdateReport):
            self._bar.update(event.step - self._bar.n)
            rate = f"{event.target_tokens_per_second:,.0f} tok/s"
            text = f"loss {event.loss:.3f}{self._bleu}, {rate}, padding {event.padding_waste:.0%}"
            self._bar.set_postfix_str(text, refresh=True)

    def close(self) -> None:
        """Leave the terminal clean."""
        self._bar.close()


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
