"""TensorBoard files of a run; and the list of all reporters that a run has."""

from __future__ import annotations

import time
from importlib import import_module
from pathlib import Path
from typing import Any

from nmt.config.run import RunConfig
from nmt.errors import CheckpointError, ConfigError
from nmt.files.atomic import write_errors
from nmt.training.html_report import HtmlReport
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

_NO_SCALARS = {
    "epoch",
    "seconds",
    "source_tokens_per_second",
    "bleu_tokenizer",
    "samples",
    "sample_chrf",
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
        group = "train" if event.kind == "update" else "validation"
        is_measured = event.kind in ("update", "validation")
        for name, value in event.values.items() if is_measured else ():
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
    """Return the reporters of a run: JSON lines, log.txt, the console, report.html, TensorBoard.

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
            JsonLines(run_dir / "starts.jsonl", start, last, kinds=("start",)),
            log.open(run_dir / "log.txt"),
            Console(start, progress.total_steps, lambda: progress.step),
            HtmlReport(run_dir, config.name),
        ]
    if config.training.tensorboard:
        reporters.append(TensorBoard(run_dir, start))
    return ReporterList(reporters)
