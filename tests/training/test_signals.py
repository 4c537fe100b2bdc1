"""Signals are wishes until the update is done."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import TypeVar, cast

import pytest
from typing_extensions import override

from nmt.engine.distributed import Processes
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
