"""Signals are wishes until the update is done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import TypeVar, cast

import pytest
from typing_extensions import override

from nmt.device.distributed import Processes
from nmt.training.signals import Interrupted, SharedStop, StoppedBySignal, StopSignal

T = TypeVar("T")


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
    ("signals", "codes"),
    [("SIGINT SIGINT", [130]), ("SIGTERM SIGINT", [130]), ("SIGTERM SIGTERM", []), ("SIGINT", [])],
)
def test_a_second_interrupt_ends_the_process_at_once(
    signals: str, codes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULT 20."""
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    with StopSignal():
        for name in signals.split():
            signal.raise_signal(getattr(signal, name))

    assert ended == codes


def test_before_the_first_update_a_signal_promises_no_save(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with StopSignal():
        signal.raise_signal(signal.SIGINT)
    text = "nmt: stopping before the first update: there is nothing to save.\n"
    assert capfd.readouterr().err == text


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_where_nothing_is_to_be_saved_a_signal_ends_the_process_at_once(
    number: signal.Signals, code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """Compiling takes minutes, and who asked for the end may not wait for so long."""
    with StopSignal() as stop:
        with pytest.raises(StoppedBySignal) as caught, stop.ending_at_once("Lost: all."):
            os.kill(os.getpid(), number)
        assert caught.value.code == code
        assert stop.requested  # should a library have swallowed the exception
    assert "ended at once. Lost: all." in capfd.readouterr().err


# The main thread waits inside of a library, where Python runs no handler: as `backward` does while
# another thread compiles.
STUCK = """
import ctypes, sys, time
from nmt.training import signals
signals._SECONDS_TO_END = 0.1
libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
libc.pthread_mutex_lock(mutex)
end = (ctypes.c_long * 2)(int(time.time()) + int(sys.argv[1]), 0)
with signals.StopSignal() as stop:
    with stop.ending_at_once() if sys.argv[2] == "ends" else signals.suppress():
        print("stuck", flush=True)
        libc.pthread_mutex_timedlock(mutex, end)
print(stop.number)
"""


@pytest.mark.parametrize(("seconds", "phase", "code"), [("100", "ends", 143), ("2", "asks", 0)])
def test_a_library_that_does_not_return_keeps_no_process(
    seconds: str, phase: str, code: int
) -> None:
    command = [sys.executable, "-c", STUCK, seconds, phase]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "stuck\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == code
        assert process.stdout.read() == ("" if code else "15\n")


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


class Peer(Processes):
    """This process, and another one that behaves as is known beforehand."""

    def __init__(self, outcome: tuple[int | None, list[str]], notice: int | None = None) -> None:
        self.calls: list[str] = []
        self.told: list[int] = []
        self._outcome, self._notice = outcome, notice

    @override
    def wait(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.calls.append("wait")
        meanwhile()

    @override
    def gather(self, value: T) -> list[T]:
        self.calls.append("gather")
        return [value, cast(T, self._outcome)]

    @override
    def post(self, name: str, number: int) -> None:
        self.told.append(number)

    @override
    def posted(self, name: str) -> int | None:
        return self._notice


def test_parts_are_gathered_by_rank() -> None:
    peer = Peer((None, ["theirs"]))

    assert SharedStop(StopSignal(), peer).gather(lambda: "ours") == ["ours", "theirs"]
    assert SharedStop(StopSignal(), Processes()).gather(lambda: "ours") == ["ours"]
    assert peer.told == []


@pytest.mark.parametrize(("own", "of_other", "number"), [(15, None, 15), (None, 2, 2), (15, 2, 15)])
def test_work_given_up_in_one_process_is_given_up_in_all_and_none_is_left_waiting(
    own: int | None, of_other: int | None, number: int
) -> None:
    signal_ = StopSignal()
    peer = Peer((of_other, [] if of_other else ["theirs"]))
    stop = SharedStop(signal_, peer)

    def work() -> str:
        signal_.number = own
        stop.check()
        return "ours"

    with pytest.raises(Interrupted) as caught:
        stop.gather(work)
    assert caught.value.number == number
    assert peer.calls == ["wait", "gather"]
    assert set(peer.told) == ({own} if own else set())


def test_what_another_process_has_noticed_interrupts_this_one() -> None:
    with pytest.raises(Interrupted) as caught:
        SharedStop(StopSignal(), Peer((None, []), notice=15)).check()
    assert caught.value.number == 15


def test_a_signal_to_one_that_waits_is_told_to_those_that_work_on() -> None:
    """It may come too late for that: then the work is done, in all processes."""
    signal_, peer = StopSignal(), Peer((None, ["theirs"]))

    def work() -> str:
        signal_.number = 15
        return "ours"

    assert SharedStop(signal_, peer).gather(work) == ["ours", "theirs"]
    assert peer.told == [15]
