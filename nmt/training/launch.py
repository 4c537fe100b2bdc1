"""Several processes of `nmt train` on this machine, started and watched by torch's launcher."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import torch
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from nmt.device import usable_cores
from nmt.device.distributed import CAUSE, LAUNCHED, PEER_LOST, PeerLostError
from nmt.errors import DeviceError, NmtError
from nmt.training.signals import StoppedBySignal

_SECONDS_TO_SAVE = 600


class ProcessKilledError(NmtError):
    """A process was ended from outside, as by the system when memory runs out."""

    exit_code = PEER_LOST


def launch(
    arguments: Sequence[str], *, num_processes: int, threads: int | None, device: str = "auto"
) -> None:
    """Run ``nmt`` with ``arguments`` in several processes; return when all have ended well.

    Args:
        arguments: Of the command line, without those that started several processes.
        num_processes: How many; on GPUs, each takes one.
        threads: CPU threads of each; the cores shared evenly when None.
        device: What the configuration says: ``auto``, ``cpu`` or ``cuda``.

    Raises:
        DeviceError: There are fewer GPUs.
        ProcessKilledError: Names the process.
        PeerLostError: They lost each other, and none has failed.
        SystemExit: A process failed and has printed why; the code is its own.
        StoppedBySignal: All were asked to stop, and have saved.
    """
    num_gpus = torch.cuda.device_count()
    if device != "cpu" and num_gpus and num_gpus < num_processes:
        raise DeviceError(
            f"{num_processes} processes were asked for, but there are {num_gpus} GPUs.",
            fix=f"Use --devices {num_gpus}, or --set training.device=cpu.",
        )
    share = max(1, usable_cores() // num_processes)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads or share))
    # What these say, `nmt` says itself, in fewer words. Some have a level of their own.
    for name in ("torch.distributed.elastic", *logging.root.manager.loggerDict):
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    with TemporaryDirectory(prefix="nmt-") as logs:
        os.environ[LAUNCHED] = logs
        try:
            _launch(arguments, num_processes, logs)
        finally:
            del os.environ[LAUNCHED]


def _launch(arguments: Sequence[str], num_processes: int, logs: str) -> None:
    # How long processes may save before they are killed: torch 2.11 does not know it.
    has_timeout = any(field.name == "shutdown_timeout" for field in fields(LaunchConfig))
    options: dict[str, Any] = {"shutdown_timeout": _SECONDS_TO_SAVE} if has_timeout else {}
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_processes,
        run_id="nmt",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.2,
        **options,
        signals_to_handle="SIGHUP,SIGQUIT",
        logs_specs=DefaultLogsSpecs(log_dir=logs),  # nothing is written, but the folder is made
    )
    try:
        with _signals_as_in_one_process():
            elastic_launch(config, sys.executable)("-m", "nmt", *arguments)
    except SignalException as stopped:
        raise StoppedBySignal(stopped.sigval) from None
    except ChildFailedError as error:
        raise _explained(error, num_processes, Path(logs)) from None


@contextmanager
def _signals_as_in_one_process() -> Iterator[None]:
    """Make all save and leave at the first SIGINT or SIGTERM, and end them at a second SIGINT.

    The launcher's own handler ends no sooner at the second, and leaves the processes behind at a
    later one.
    """
    asked = False

    def receive(number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if not asked:
            asked = True
            raise SignalException(f"signal {number}", sigval=signal.Signals(number))
        # Each with all that it has started. On Linux; elsewhere they save and leave.
        for children in (
            Path("/proc/self/task").glob("*/children") if number == signal.SIGINT else ()
        ):
            for pid in map(int, children.read_text().split()):
                with suppress(ProcessLookupError):  # it leads no group: it is none of them
                    os.killpg(pid, signal.SIGKILL)

    before = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _explained(error: ChildFailedError, num_processes: int, logs: Path) -> BaseException:
    """Find the process whose failure ended the others."""
    # The launcher ends the others by SIGTERM, some of them before they have noticed.
    failures = sorted(
        error.failures.items(),
        key=lambda item: (item[1].exitcode == -signal.SIGTERM, item[1].timestamp),
    )
    causes = [item for item in failures if item[1].exitcode != PEER_LOST] or failures
    rank, failure = causes[0]
    code = failure.exitcode
    if code in (128 + signal.SIGINT, 128 + signal.SIGTERM):
        return StoppedBySignal(code - 128)
    if code < 0:
        return ProcessKilledError(
            f"Process {rank} of {num_processes} (pid {failure.pid}) was killed by "
            f"{signal.Signals(-code).name}; the others have ended.",
            fix="If memory ran out, lower batch.max_tokens. Start the same command again: it "
            "resumes from the last checkpoint.",
        )
    if code == PEER_LOST and (logs / CAUSE).is_file():  # nobody failed but for a peer
        return PeerLostError((logs / CAUSE).read_text(encoding="utf-8"))
    return SystemExit(code)
