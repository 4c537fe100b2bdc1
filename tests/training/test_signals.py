"""Signals are wishes until the update is done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from nmt.training.signals import Interrupted, StoppedBySignal, StopSignal


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["SIGTERM", "SIGINT"]
)
def test_the_first_signal_only_asks(number: signal.Signals, code: int) -> None:
    """FAULTS 19 and 20."""
    with StopSignal() as stop:
        stop.check()
        os.kill(os.getpid(), number)
        assert stop.requested
        assert stop.number == number
        with pytest.raises(Interrupted):
            stop.check()

    assert StoppedBySignal(number).code == code
    assert isinstance(StoppedBySignal(number), SystemExit)


def test_the_first_signal_gives_the_exit_code() -> None:
    with StopSignal() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
    assert stop.number == signal.SIGTERM


def test_the_handlers_before_are_put_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with StopSignal():
        now = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        assert not set(map(repr, now)) & set(map(repr, before))
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    with pytest.raises(ZeroDivisionError), StopSignal():
        _ = 1 / 0
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize(
    ("signals", "code"),
    [("SIGINT SIGINT", 130), ("SIGTERM SIGINT", 130), ("SIGTERM SIGTERM", 7), ("SIGINT", 7)],
)
def test_a_second_interrupt_ends_the_process_at_once(signals: str, code: int) -> None:
    """FAULT 20."""
    script = f"""
import os, signal, sys
from nmt.training.signals import StopSignal
with StopSignal():
    try:
        for name in {signals.split()}:
            os.kill(os.getpid(), getattr(signal, name))
    finally:
        sys.exit(7)
"""
    result = subprocess.run([sys.executable, "-c", script], check=False, timeout=60)

    assert result.returncode == code


def test_outside_the_main_thread_nothing_is_changed() -> None:
    found: list[object] = []

    def work() -> None:
        with StopSignal() as stop:
            stop.check()
            found.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert found == [before]
