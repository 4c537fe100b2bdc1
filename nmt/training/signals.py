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
from nmt.device.distributed import PEER_LOST, Processes

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
        while self._before:
            number, handler = self._before.popitem()
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
