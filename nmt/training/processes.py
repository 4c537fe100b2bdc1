"""Start and end of the processes of `nmt train` on one machine.

nmt calls torchrun, which starts the processes. SIGTERM, SIGINT and SIGHUP stop training after the
current update, but ``nohup`` makes processes ignore SIGHUP. SIGUSR1 requests a checkpoint. The
processes also stop when their launcher has ended.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, Self, TypeVar

import torch
from torch.distributed import run
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from nmt.config.training import TrainingConfig
from nmt.device import is_one_of_torchrun, local_rank, usable_cores
from nmt.device.distributed import PEER_LOST, Processes
from nmt.errors import DeviceError, NmtError

T = TypeVar("T")
# Environment variable of the processes that `launch` starts, with a folder: each process creates an
# empty file there, with its process id as name.
_PROCESSES = "NMT_PROCESSES"

logger = logging.getLogger(__name__)


class StoppedBySignal(SystemExit):
    """A signal stopped the process. Exit code 129 (SIGHUP), 130 (SIGINT) or 143 (SIGTERM)."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number  # Number of the signal.


class StopSignal:
    """Records signals while the context is open, so that training can stop cleanly or save.

    After SIGTERM, SIGINT or SIGHUP, training finishes the current update, saves a checkpoint and
    exits. Several processes may make one more update, because they exchange the signal at the start
    of an update. A second SIGINT raises KeyboardInterrupt at once; saved checkpoints stay intact.
    After SIGUSR1, training saves a checkpoint and continues.

    Outside the main thread Python cannot handle signals, and the context does nothing.
    """

    def __init__(self) -> None:
        # Number of the signal that stops training; None before the first.
        self.number: int | None = None
        self.save_requested = False  # By SIGUSR1; the reader sets it to False.
        self._raises = False  # Whether a signal raises `StoppedBySignal` now: see `at_once`.
        self._handlers = ExitStack()

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Interrupt the code in the context at a signal. The code must be safe to repeat later.

        Raises:
            StoppedBySignal: A signal arrived, now or earlier.
        """
        outer_value = self._raises
        self._raises = True
        try:
            if self.number is not None:
                raise StoppedBySignal(self.number)
            yield
        finally:
            self._raises = outer_value

    def gather(self, work: Callable[[], T], processes: Processes) -> list[T]:
        """Run ``work`` in every process; return the results of all processes, by rank.

        A signal interrupts ``work``, as in `at_once`.

        Raises:
            StoppedBySignal: A signal interrupted at least one process. All processes raise.
        """
        results = []  # The result of this process; empty if a signal interrupted `work`.
        with suppress(StoppedBySignal), self.at_once():
            results.append(work())
        # Outside `at_once`: a process that raised inside this call would leave the others waiting.
        gathered = processes.gather((self.number, results))
        for number, process_results in gathered:
            if not process_results:  # interrupted, so `number` is set: SIGTERM is never used
                raise StoppedBySignal(number or signal.SIGTERM)
        return [process_results[0] for _, process_results in gathered]

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        """Handle a signal."""
        self.number = self.number or number
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a second SIGINT quits at once
        if self._raises:
            self._raises = False
            raise StoppedBySignal(self.number)
        _answer("stopping after this update and saving; press Ctrl-C again to quit without saving")

    def _receive_request(self, _number: int, _frame: FrameType | None) -> None:
        self.save_requested = True
        _answer("saving after this update")

    def __enter__(self) -> Self:
        handlers: dict[int, Any] = dict.fromkeys(_stop_signals(), self._receive)
        if hasattr(signal, "SIGUSR1"):
            handlers[signal.SIGUSR1] = self._receive_request
        self._handlers.enter_context(_handled(handlers))
        if is_one_of_torchrun():
            watch = threading.Thread(target=_stop_with, args=(os.getppid(),), daemon=True)
            watch.start()
            if _PROCESSES in os.environ:
                (Path(os.environ[_PROCESSES]) / str(os.getpid())).touch()
        return self

    def __exit__(self, *error: object) -> None:
        self._handlers.close()


def _stop_signals() -> list[signal.Signals]:
    """Return the signals that stop training: SIGHUP only if the process does not ignore it."""
    signals = [signal.SIGINT, signal.SIGTERM]
    # Windows has no SIGHUP.
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signals.append(signal.SIGHUP)
    return signals


@contextmanager
def _handled(handlers: Mapping[int, Any]) -> Iterator[None]:
    """Set handlers by the number of the signal, and restore the old ones at the end.

    Does nothing outside the main thread, where Python cannot handle signals.
    """
    old_handlers = {}
    if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():
            old_handlers[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old_handler in old_handlers.items():
            # None is a handler that was not set from Python. It cannot be restored.
            signal.signal(number, signal.SIG_DFL if old_handler is None else old_handler)


def _stop_with(parent: int) -> None:
    """Send SIGTERM to this process when its parent, the launcher, has ended."""
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)


def _answer(text: str) -> None:
    """Write to standard error from a signal handler, which must not use streams or locks."""
    if local_rank() == 0 and logger.isEnabledFor(logging.WARNING):
        message = f"nmt: {text}\n"
        if os.isatty(2):  # leave the line of a progress bar
            message = f"\n{message}"
        with suppress(OSError):
            os.write(2, message.encode())


class ProcessKilledError(NmtError):
    """A signal killed a process, for example because the system ran out of memory."""

    exit_code = PEER_LOST


def launch(arguments: Sequence[str], num_processes: int, training: TrainingConfig) -> None:
    """Run ``nmt`` with ``arguments`` in several processes; return when all have succeeded.

    Args:
        arguments: Command line of each process, without the option `devices`.
        num_processes: Number of processes. On GPUs, each process uses one GPU.
        training: The ``training`` section, for `device` and `threads`. If `threads` is None, the
            processes share the CPU cores evenly.

    Raises:
        DeviceError: The machine has fewer GPUs than ``num_processes``.
        ProcessKilledError: A signal killed a process.
        SystemExit: A process failed and has printed an error. The exit code is that of the process.
        StoppedBySignal: A signal stopped all processes, and the last update is saved.
    """
    num_gpus = torch.cuda.device_count()
    if training.device != "cpu" and num_gpus and num_gpus < num_processes:
        raise DeviceError(
            f"`devices` is {num_processes}, but this machine has {num_gpus} GPUs.",
            fix=f"Set `devices` to {num_gpus}, or training.device to cpu.",
        )
    cores_per_process = max(1, usable_cores() // num_processes)
    os.environ.setdefault("OMP_NUM_THREADS", str(training.threads or cores_per_process))
    # By default torchrun handles SIGHUP, too, even if it is ignored.
    signals = [number.name for number in _stop_signals()]
    options = ["--standalone", f"--nproc-per-node={num_processes}"]
    options.append("--local-addr=127.0.0.1")  # the host name may have no address
    options.append(f"--signals-to-handle={','.join(signals)},SIGQUIT")
    python = [os.environ.get("PYTHON_EXEC", sys.executable), "-u"]  # as torchrun does
    if not {"", str(Path.cwd())} & {*sys.path}:
        python.append("-P")  # a random.py of the user does not replace the module of Python
    with TemporaryDirectory() as folder, ExitStack() as stack:
        os.environ[_PROCESSES] = folder
        stack.callback(os.environ.pop, _PROCESSES)
        if hasattr(signal, "SIGUSR1"):
            stack.enter_context(_handled({signal.SIGUSR1: partial(_pass_on, Path(folder))}))
        try:
            run.main([*options, "--no-python", *python, "-m", "nmt", *arguments])
        except SignalException as stopped:
            raise StoppedBySignal(stopped.sigval) from None
        except ChildFailedError as error:
            raise _cause(error, num_processes) from None


def _pass_on(folder: Path, number: int, _frame: FrameType | None) -> None:
    """Send a signal to all processes that have a file in ``folder``."""
    for path in folder.iterdir():
        with suppress(ProcessLookupError):
            os.kill(int(path.name), number)


def _cause(error: ChildFailedError, num_processes: int) -> BaseException:
    """Return the error of the first process that failed by itself.

    Skips processes that only lost the connection to a failed process, or that torchrun terminated.
    """
    secondary = (PEER_LOST, -signal.SIGTERM)
    failures = error.failures
    # `min` returns the first process for which this is False; if there is none, the first process.
    rank = min(failures, key=lambda rank: failures[rank].exitcode in secondary)
    failure = failures[rank]
    # Exit code of `StoppedBySignal`: 128 plus the number of the signal.
    if failure.exitcode - 128 in _stop_signals():
        return StoppedBySignal(failure.exitcode - 128)
    if failure.exitcode > 0:
        return SystemExit(failure.exitcode)
    # A negative exit code is the number of the signal that killed the process.
    signal_name = signal.Signals(-failure.exitcode).name
    process = f"Process {rank} of {num_processes} (pid {failure.pid})"
    return ProcessKilledError(
        f"{process} was killed by {signal_name}; all processes ended.",
        fix="Run the same command again to resume. If memory ran out, lower batch.max_tokens.",
    )
