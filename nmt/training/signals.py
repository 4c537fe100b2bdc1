"""SIGTERM and SIGINT -> a request to stop after the current update; how processes end together."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Self, TypeVar

from nmt.device import local_rank
from nmt.device.distributed import PEER_LOST, PeerLostError, Processes, tell_launcher

T = TypeVar("T")
logger = logging.getLogger(__name__)

_NOTICE = "stop"
_SECONDS_TO_REPORT = 5
_SECONDS_TO_END = 10.0


class StoppedBySignal(SystemExit):
    """Training was asked to stop and has saved. Exit code 130 (SIGINT) or 143 (SIGTERM)."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)


class Interrupted(Exception):  # noqa: N818 - not a failure: the work is left and done again later
    """Long work between two updates is given up, because the process was asked to stop."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number
        """The signal that came."""


class StopSignal:
    """Holds the request to stop while the context is open.

    The first SIGTERM or SIGINT lets the current update finish, then training saves and leaves.
    Several processes may make one more: they tell each other when an update begins. Work between
    updates that takes long, such as validation, is given up: see `SharedStop`. A second SIGINT ends
    the process at once; the last checkpoint is whole in any case. Both are answered on standard
    error when they come: what happens now, and what the second costs.

    Where there is nothing to save, `ending_at_once` ends the process instead.

    Outside the main thread, where Python takes no signals, nothing is changed.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        """The signal that came, or None."""
        self.unsaved: Callable[[], str] | None = None
        """Asked what ending at once would lose; None before the first update."""
        self.in_update = False
        """Whether a signal meets an update, which is finished; anything else is left."""
        self._before: dict[int, Any] = {}
        self._ends, self._is_ending = "", False
        self._has_ended = threading.Event()
        self._notices = -1, -1

    @property
    def requested(self) -> bool:
        """Whether to finish the current update, save and leave."""
        return self.number is not None

    def check(self) -> None:
        """Call in the middle of long work that may be given up and done again after a restart.

        Raises:
            Interrupted: A signal came.
        """
        if self.number is not None:
            raise Interrupted(self.number)

    @contextmanager
    def ending_at_once(self, answer: str = "Lost: nothing.") -> Iterator[None]:
        """Let a signal end the process while this is open, as there is nothing to save.

        Compilers take minutes, and Python runs no handler while the main thread waits inside of
        one; so a thread ends the process some seconds after the signal, if it is still there.

        Args:
            answer: What the user reads then, behind "ended at once."

        Raises:
            StoppedBySignal: A signal came.
        """
        self._ends = answer
        try:
            yield
        finally:
            self._ends = ""

    def _end_late(self, notices: int) -> None:
        """Read the signals from where Python writes them when they come, whatever else it does."""
        while read := os.read(notices, 1):
            if self._ends and (number := read[0]) in (signal.SIGINT, signal.SIGTERM):
                is_late = not self._has_ended.wait(_SECONDS_TO_END)
                if is_late and any((self._ends, self._is_ending)):
                    os._exit(128 + number)
        os.close(notices)

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        lost = self.unsaved() if self.unsaved else "nothing"
        if self.requested and number == signal.SIGINT:
            _answer(f"ended at once. Lost: {lost}.")
            os._exit(128 + number)
        if self._ends:
            self.number, self._is_ending = number, True
            _answer(f"ended at once. {self._ends}")
            raise StoppedBySignal(number)
        if not self.requested and self.unsaved is None:
            _answer("stopping before the first update: there is nothing to save.")
        elif not self.requested:
            again = "Ctrl-C again" if number == signal.SIGINT else "SIGINT"  # not SIGTERM again
            now = "finishing the update" if self.in_update else "stopping here"
            _answer(f"{now}, then saving. {again} ends at once and loses {lost}.")
        self.number = self.number or number

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._receive)
            read, write = os.pipe()
            os.set_blocking(write, False)
            self._notices = write, signal.set_wakeup_fd(write, warn_on_full_buffer=False)
            threading.Thread(target=self._end_late, args=(read,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._before:
            self._has_ended.set()
            write, before = self._notices
            signal.set_wakeup_fd(before)
            os.close(write)
        while self._before:
            number, handler = self._before.popitem()
            # None stands for a handler that was not set from Python, and cannot be put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _answer(text: str) -> None:
    """Write to standard error from a signal handler, where streams and locks may be in use.

    Nothing where warnings are not shown, as in the trial training of ``nmt doctor``.
    """
    if local_rank() == 0 and logger.getEffectiveLevel() <= logging.WARNING:
        begin = "\n" if os.isatty(2) else ""  # a progress bar may stand there
        with suppress(OSError):
            os.write(2, f"{begin}nmt: {text}\n".encode())


class SharedStop:
    """Lets all processes give up long work together, whichever of them a signal came to.

    Args:
        signal: The request to this process.
        processes: All of them; one alone will do.
    """

    def __init__(self, signal: StopSignal, processes: Processes) -> None:
        self._signal, self._processes = signal, processes

    def check(self) -> None:
        """Call often in `gather`: processes need not call it equally often.

        Raises:
            Interrupted: A signal came to this process, or another one has noticed one.
        """
        self._notify()
        self._signal.check()
        if (number := self._processes.posted(_NOTICE)) is not None:
            raise Interrupted(number)

    def gather(self, work: Callable[[], T]) -> list[T]:
        """Do the part of this process, which may take long; return the parts of all, by rank.

        Raises:
            Interrupted: It was given up in one process, and so it is in all.
        """
        number, part = None, []
        try:
            part.append(work())
        except Interrupted as interrupted:
            number = interrupted.number
        self._processes.wait(self._notify)
        gathered = self._processes.gather((number, part))
        for number, _ in gathered:
            if number is not None:
                raise Interrupted(number)
        return [result for _, part in gathered for result in part]

    def _notify(self) -> None:
        if self._signal.number is not None:
            self._processes.post(_NOTICE, self._signal.number)


@contextmanager
def report_one_failure(processes: Processes) -> Iterator[None]:
    """Let one process report why all of them end; a launcher reports a process that was lost."""
    try:
        yield
    except Exception as error:
        is_reported = isinstance(error, PeerLostError) and tell_launcher(error)
        if not is_reported and processes.is_first_to_fail():
            raise
        if not is_reported:  # the launcher ends this process once the reporting one has ended
            time.sleep(_SECONDS_TO_REPORT)
        raise SystemExit(PEER_LOST) from None
