"""SIGTERM and SIGINT -> a wish to stop, granted after the current update."""

from __future__ import annotations

import os
import signal
from types import FrameType, TracebackType
from typing import Self


class StoppedBySignal(SystemExit):
    """Training was asked to stop and has saved. Exit code 130 (SIGINT) or 143 (SIGTERM)."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)


class StopSignal:
    """Holds the wish to stop while the context is open.

    The first SIGTERM or SIGINT lets the current update finish, then training saves and leaves. A
    second SIGINT ends the process at once; the last checkpoint is whole in any case.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        """The signal that came, or None."""
        self._before: dict[int, object] = {}

    @property
    def requested(self) -> bool:
        """Whether to finish the current update, save and leave."""
        return self.number is not None

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            os._exit(128 + number)
        self.number = self.number or number

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
