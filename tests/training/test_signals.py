"""Signals are wishes until the update is done; what can be done again ends at once."""

from __future__ import annotations

import os
import signal
import threading
from typing import TypeVar, cast

import pytest
from typing_extensions import override

from nmt.device.distributed import Processes
from nmt.training.processes import StoppedBySignal, StopSignal

T = TypeVar("T")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_the_first_signal_only_asks_and_an_interrupt_after_it_is_python_s_own(
    number: signal.Signals, code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """FAULTS 19 and 20. Afterwards all signals do what they did before."""
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with StopSignal() as stop:
        os.kill(os.getpid(), number)
        assert stop.number == number
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.number == number
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert StoppedBySignal(number).code == code
    # So "except Exception" catches none: not where a compiler's failure is passed over, say.
    assert not issubclass(StoppedBySignal, Exception)
    assert "finishing the update, then saving" in capfd.readouterr().err
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_where_nothing_is_to_be_saved_a_signal_ends_the_work_at_once(
    number: signal.Signals, code: int
) -> None:
    """Also where parts of it are gathered from processes; and one that came before counts."""
    with StopSignal() as stop:
        with stop.at_once():
            assert stop.gather(lambda: 3, Processes()) == [3]
            with pytest.raises(StoppedBySignal) as caught:
                os.kill(os.getpid(), number)
        assert caught.value.code == code
        with pytest.raises(StoppedBySignal), stop.at_once():
            pytest.fail("began")


def test_outside_the_main_thread_nothing_is_changed() -> None:
    found: list[object] = []

    def work() -> None:
        with StopSignal():
            found.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [before]


class Peer(Processes):
    """This process, and another one that behaves as is known beforehand."""

    def __init__(self, number: int | None, part: list[str]) -> None:
        self._outcome = number, part

    @override
    def gather(self, value: T) -> list[T]:
        return [value, cast(T, self._outcome)]


@pytest.mark.parametrize(("own", "of_other", "number"), [(15, None, 15), (None, 2, 2), (15, 2, 15)])
def test_work_given_up_in_one_process_is_given_up_in_all(
    own: int | None, of_other: int | None, number: int
) -> None:
    def work() -> str:
        if own is not None:
            signal.raise_signal(own)
        return "ours"

    with StopSignal() as stop:
        with pytest.raises(StoppedBySignal) as caught:
            stop.gather(work, Peer(of_other, [] if of_other else ["theirs"]))
        assert caught.value.number == number


def test_a_signal_that_comes_when_the_work_is_done_takes_nothing_away() -> None:
    with StopSignal() as stop:
        assert stop.gather(lambda: "ours", Peer(15, ["theirs"])) == ["ours", "theirs"]
