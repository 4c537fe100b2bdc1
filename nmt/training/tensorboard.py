"""Events of training -> TensorBoard. It is an optional extra, imported here only."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from nmt.errors import ConfigError
from nmt.training.report import Event, PatientFile, UpdateReport, ValidationReport

_SCALARS = {
    UpdateReport.kind: (
        "loss",
        "learning_rate",
        "gradient_norm",
        "target_tokens_per_second",
        "padding_waste",
    ),
    ValidationReport.kind: ("loss", "perplexity"),
}


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
        if not isinstance(event, UpdateReport | ValidationReport):
            return
        group = "train" if isinstance(event, UpdateReport) else "validation"
        values = {name: getattr(event, name) for name in _SCALARS[event.kind]}
        if isinstance(event, ValidationReport):
            values |= event.scores
        for name, value in values.items():
            if value is not None:
                summary = self._summary.scalar(f"{group}/{name}", value)
                self._write(step=event.step, summary=summary)
        if isinstance(event, ValidationReport):
            for number, sample in enumerate(event.samples, 1):
                summary = self._summary.text(f"sample {number}", _as_code(sample))
                self._write(step=event.step, summary=summary)

    def _write(self, **fields: Any) -> None:
        event = self._proto.Event(wall_time=time.time(), **fields)
        self._records.write(event.SerializeToString())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _as_code(lines: Sequence[str]) -> str:
    # TensorBoard reads texts as Markdown. Four spaces make them code: shown as they are.
    return "".join(f"    {' '.join(line.splitlines())}\n" for line in lines)
