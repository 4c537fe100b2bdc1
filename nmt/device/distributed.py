"""Several processes that train one model together; one process is the simplest case of it.

The only module that knows torch.distributed. Processes are started by torchrun, or by
`nmt.training.launch`; each finds its place in the environment variables that these set.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from nmt.errors import DeviceError, NmtError

T = TypeVar("T")
P = ParamSpec("P")

logger = logging.getLogger(__name__)

PEER_LOST = 75  # Exit code of a process that ends because a peer has failed.
# Environment variable of a launcher that reports why processes ended: its own folder.
LAUNCHED = "NMT_LAUNCHED"
CAUSE = "peer-lost"  # File in that folder: what a process saw of a peer that was lost.
_PR_SET_PDEATHSIG = 1
_SECONDS_BETWEEN_LOOKS = 0.01
_BEAT_SECONDS, _MAX_SILENT_SECONDS = 10.0, 90.0
_HAS_LEFT = 1 << 40  # More signs of life than there will be.
_STORE_TIMEOUT = timedelta(seconds=10)
_COLLECTIVE_TIMEOUT = timedelta(minutes=10)
_PREPARATION_TIMEOUT = timedelta(days=7)


class PeerLostError(NmtError):
    """Another process of the same training has ended, or does not answer."""

    exit_code = PEER_LOST

    def __init__(self, cause: str) -> None:
        super().__init__(
            f"Another process of this training has ended or does not answer ({cause}).",
            fix="See what ended it, then start all again: training resumes from the last "
            "checkpoint.",
        )
        self.cause = cause


def _or_peer_lost(call: Callable[P, T]) -> Callable[P, T]:
    """Raise PeerLostError where a collective call fails: most likely a peer has gone.

    A broken network or a lack of memory may be another: the first line of torch's message is kept.
    """

    @wraps(call)
    def guarded(*arguments: P.args, **options: P.kwargs) -> T:
        try:
            return call(*arguments, **options)
        except RuntimeError as error:
            raise PeerLostError(str(error).partition("\n")[0]) from error

    return guarded


class PendingSum:
    """A sum over all processes that is under way."""

    def __init__(self, work: Any = None) -> None:
        self._work = work

    @_or_peer_lost
    def wait(self) -> None:
        """Have the tensor's device wait until it holds the sum; on a CPU, wait."""
        if self._work is not None:
            self._work.wait()


class Processes:
    """All processes of one training, seen from one of them. Every one makes the same calls.

    They talk through gloo, for tensors on the CPU, and NCCL, for those on GPUs.

    Args:
        launched: Whether a launcher has started several; else this process is alone.
    """

    rank, size = 0, 1  # The number of this process, from 0, and how many there are.
    _store: Any = None
    _left: threading.Event | None = None

    def __init__(self, *, launched: bool = False) -> None:
        if not launched:
            return
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, timeout=_COLLECTIVE_TIMEOUT)
        self._patient = dist.new_group(backend="gloo", timeout=_PREPARATION_TIMEOUT)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        # A store beside the one that the groups use: it answers when they do not any more.
        # Its class is documented, but torch.distributed does not list it among its names.
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(  # type: ignore[attr-defined]
            address, port, is_master=False, timeout=_STORE_TIMEOUT
        )
        # A launcher that restarts all keeps its store, with the values of the last attempt.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._store = dist.PrefixStore(f"nmt/{attempt}", store)  # type: ignore[attr-defined]

    def sum(self, tensor: Tensor) -> None:
        """Replace ``tensor``, on any device, by its sum over all processes."""
        self.begin_sum(tensor).wait()

    @_or_peer_lost
    def begin_sum(self, tensor: Tensor) -> PendingSum:
        """Begin to do that, and go on meanwhile; every process begins sums in the same order."""
        if self._store is None:
            return PendingSum()
        return PendingSum(dist.all_reduce(tensor, async_op=True))

    @_or_peer_lost
    def gather(self, value: T) -> list[T]:
        """Return the values of all processes, by rank."""
        found: list[Any] = [value] * self.size
        if self._store is not None:
            dist.all_gather_object(found, value, group=self._patient)
        return found

    @_or_peer_lost
    def share(self, value: T) -> T:
        """Return the value of the first process."""
        box = [value]
        if self._store is not None:
            dist.broadcast_object_list(box, src=0, group=self._patient)
        return box[0]

    @_or_peer_lost
    def wait(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Wait until all are here, be it for days; call ``meanwhile`` many times a second."""
        if self._store is None:
            return
        barrier = dist.barrier(group=self._patient, async_op=True)
        while not barrier.is_completed():
            meanwhile()
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        barrier.wait()

    def post(self, name: str, number: int) -> None:
        """Leave a number that the others find when they look; they need not make this call."""
        with suppress(RuntimeError):  # the store has ended with the process that kept it
            if self._store is not None:
                self._store.set(name, str(number))

    def posted(self, name: str) -> int | None:
        """Return the number that any process has left, or None."""
        with suppress(RuntimeError):
            if self._store is not None and self._store.check([name]):
                return int(self._store.get(name))
        return None

    def is_first_to_fail(self) -> bool:
        """Whether this process reports its failure, as no other has reported one yet."""
        try:
            return self._store is None or bool(self._store.add("failures", 1) == 1)
        except RuntimeError:
            return False

    def watch(self) -> None:
        """End this process when another one is gone, even while it waits for its device.

        gloo notices at once when a peer has closed its connections, but a GPU that adds up with
        others waits for ever, and its host with it. So each process tells the store every few
        seconds that it is there; a thread looks whether all the others do.
        """
        if self._store is not None:
            self._left = threading.Event()
            threading.Thread(target=self._watch, args=(self._left,), daemon=True).start()

    def _watch(self, left: threading.Event) -> None:
        others = [rank for rank in range(self.size) if rank != self.rank]
        beats, heard = dict.fromkeys(others, 0), dict.fromkeys(others, time.monotonic())
        while not left.wait(_BEAT_SECONDS):
            with suppress(RuntimeError):  # the store does not answer: then nobody is heard
                self._store.add(f"beats/{self.rank}", 1)
                for rank in others:
                    if (count := self._store.add(f"beats/{rank}", 0)) != beats[rank]:
                        beats[rank], heard[rank] = count, time.monotonic()
            silent = time.monotonic() - _MAX_SILENT_SECONDS
            lost = [rank for rank in others if heard[rank] < silent and beats[rank] < _HAS_LEFT]
            if lost and not left.is_set():
                error = PeerLostError(f"process {lost[0]}: no sign of life")
                if not tell_launcher(error) and self.is_first_to_fail():
                    logger.error("%s", error)
                os._exit(PEER_LOST)

    def leave(self) -> None:
        """Leave the group: no call may follow."""
        if self._left is not None:
            self._left.set()
            with suppress(RuntimeError):
                self._store.add(f"beats/{self.rank}", _HAS_LEFT)
        if self._store is not None:
            dist.destroy_process_group()


def join() -> Processes:
    """Join the processes that the launcher started beside this one.

    Raises:
        DeviceError: They do not find each other.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return Processes()
    if "TORCHELASTIC_RUN_ID" in os.environ:
        _save_when_the_launcher_dies()
    try:
        return Processes(launched=True)
    except (RuntimeError, ValueError) as error:
        raise DeviceError(
            f"The {os.environ['WORLD_SIZE']} processes do not find each other: {error}",
            fix="Start them with torchrun, or a training with --devices, or unset WORLD_SIZE.",
        ) from error


def _save_when_the_launcher_dies() -> None:
    """Ask for SIGTERM then: nobody else would end this process. Does nothing but on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def tell_launcher(error: PeerLostError) -> bool:
    """Leave the report to the launcher, which knows what became of the peer.

    Returns:
        Whether there is one that will.
    """
    try:
        (Path(os.environ[LAUNCHED]) / CAUSE).write_text(error.cause, encoding="utf-8")
    except (KeyError, OSError):  # torchrun, or a launcher that has ended
        return False
    return True


def interleave(parts: Sequence[Sequence[T]]) -> list[T]:
    """Put together what was dealt out by ``values[rank::size]``.

    >>> interleave([[0, 3, 6], [1, 4], [2, 5]])
    [0, 1, 2, 3, 4, 5, 6]
    """
    longest = max(map(len, parts), default=0)
    return [part[i] for i in range(longest) for part in parts if i < len(part)]
