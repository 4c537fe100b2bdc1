"""Processes of `nmt train` on this machine: how several are started, and how all of them end.

torchrun, called from Python, starts them. SIGTERM and SIGINT become a request to stop after the
current update.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Self, TypeVar

import torch
from torch.distributed import run
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from nmt.config.training import TrainingConfig
from nmt.device import local_rank, usable_cores
from nmt.device.distributed import PEER_LOST, Processes
from nmt.errors import DeviceError, NmtError

T = TypeVar("T")
logger = logging.getLogger(__name__)

_SECONDS_TO_REPORT = 2


class StoppedBySignal(SystemExit):
    """The process was asked to stop. Exit code 130 (SIGINT) or 143 (SIGTERM)."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number  # The signal that came.


class StopSignal:
    """Holds the request to stop while the context is open.

    The first SIGTERM or SIGINT lets the current update finish, then training saves and leaves.
    Several processes may make one more: they tell each other when an update begins. A second SIGINT
    is Python's own: it ends the process wherever that is, and the last checkpoint is whole.

    Outside the main thread, where Python takes no signals, nothing is changed.
    """

    def __init__(self) -> None:
        self.number: int | None = None  # The signal that came, or None.
        self._raises = False
        self._before: dict[int, Any] = {}

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Let a signal end the work inside at once, as it can be given up and done again later.

        Raises:
            StoppedBySignal: A signal came.
        """
        before, self._raises = self._raises, True
        try:
            if self.number is not None:
                raise StoppedBySignal(self.number)
            yield
        finally:
            self._raises = before

    def gather(self, work: Callable[[], T], processes: Processes) -> list[T]:
        """Do the part of this process at once, as above; return the parts of all, by rank.

        Raises:
            StoppedBySignal: It was given up in one process, and so it is in all.
        """
        part = []
        with suppress(StoppedBySignal), self.at_once():
            part.append(work())
        # Outside: who raised in the middle of this call would leave the others waiting in it.
        gathered = processes.gather((self.number, part))
        for number, own in gathered:
            if not own:
                raise StoppedBySignal(number or signal.SIGTERM)
        return [own[0] for _, own in gathered]

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        self.number = self.number or number
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if self._raises:
            self._raises = False
            raise StoppedBySignal(self.number)
        _answer("finishing the update, then saving; Ctrl-C ends at once, without saving.")

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            # None stands for a handler that was not set from Python, and cannot be put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _answer(text: str) -> None:
    """Write to standard error from a signal handler, where streams and locks may be in use."""
    if local_rank() == 0 and logger.isEnabledFor(logging.WARNING):
        begin = "\n" if os.isatty(2) else ""  # a progress bar may stand there
        with suppress(OSError):
            os.write(2, f"{begin}nmt: {text}\n".encode())


@contextmanager
def report_one_failure(processes: Processes) -> Iterator[None]:
    """Let one process report why all of them end."""
    try:
        yield
    except Exception:
        if processes.is_first_to_fail():
            raise
        time.sleep(_SECONDS_TO_REPORT)  # torchrun ends all once one has: let that one report first
        raise SystemExit(PEER_LOST) from None


class ProcessKilledError(NmtError):
    """A process was ended from outside, as by the system when memory runs out."""

    exit_code = PEER_LOST


def launch(arguments: Sequence[str], num_processes: int, training: TrainingConfig) -> None:
    """Run ``nmt`` with ``arguments`` in several processes; return when all have ended well.

    Args:
        arguments: Of the command line, without those that started several processes.
        num_processes: How many; on GPUs, each takes one.
        training: Says how many CPU threads each gets (the cores shared evenly when None), and on
            what they compute.

    Raises:
        DeviceError: There are fewer GPUs.
        ProcessKilledError: Names the process.
        SystemExit: A process failed and has printed why; the code is its own.
        StoppedBySignal: All were asked to stop, and have saved.
    """
    num_gpus = torch.cuda.device_count()
    if training.device != "cpu" and num_gpus and num_gpus < num_processes:
        problem = f"{num_processes} processes were asked for, but there are {num_gpus} GPUs."
        raise DeviceError(problem, fix=f"Set `devices` to {num_gpus}, or training.device to cpu.")
    share = max(1, usable_cores() // num_processes)
    os.environ.setdefault("OMP_NUM_THREADS", str(training.threads or share))
    options = ["--standalone", f"--nproc-per-node={num_processes}", "--module", "nmt"]
    try:
        run.main([*options, *arguments])
    except SignalException as stopped:
        raise StoppedBySignal(stopped.sigval) from None
    except ChildFailedError as error:
        raise _cause(error, num_processes) from None


def _cause(error: ChildFailedError, num_processes: int) -> BaseException:
    """Say which process ended the others: not one that lost a peer, nor one ended by torchrun."""
    secondary = (PEER_LOST, -signal.SIGTERM)
    rank, failure = min(error.failures.items(), key=lambda item: item[1].exitcode in secondary)
    if failure.exitcode - 128 in (signal.SIGINT, signal.SIGTERM):
        return StoppedBySignal(failure.exitcode - 128)
    if failure.exitcode > 0:
        return SystemExit(failure.exitcode)
    name = f"Process {rank} of {num_processes} (pid {failure.pid})"
    number = signal.Signals(-failure.exitcode).name
    fix = "If memory ran out, lower batch.max_tokens. Start the same command again to resume."
    return ProcessKilledError(f"{name} was killed by {number}; the others have ended.", fix=fix)
