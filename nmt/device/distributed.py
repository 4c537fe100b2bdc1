"""Several processes that train one model together; one process is the simplest case of it.

The only module that knows torch.distributed. torchrun starts the processes, or `nmt train` by
itself for several devices; each finds its place in the environment variables that it sets.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from nmt.errors import DeviceError, NmtError

T = TypeVar("T")

PEER_LOST = 75  # Exit code of a process that ends because a peer has failed.
_STORE_TIMEOUT = timedelta(seconds=10)
_COLLECTIVE_TIMEOUT = timedelta(minutes=10)
_PREPARATION_TIMEOUT = timedelta(days=7)


class PeerLostError(NmtError):
    """Another process of the same work has ended, or does not answer."""

    exit_code = PEER_LOST

    def __init__(self, cause: str) -> None:
        fix = "See what ended it, then start all again: training resumes from its last checkpoint."
        super().__init__(f"Another process has ended or does not answer ({cause}).", fix=fix)


@contextmanager
def _or_peer_lost() -> Iterator[None]:
    """Raise PeerLostError where a collective call fails: most likely a peer has gone.

    A broken network or a lack of memory may be another: the first line of torch's message is kept.
    """
    try:
        yield
    except RuntimeError as error:
        raise PeerLostError(str(error).partition("\n")[0]) from error


class PendingSum:
    """A sum over all processes that is under way."""

    def __init__(self, work: Any = None) -> None:
        self._work = work

    @_or_peer_lost()
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
        options: Any = {"is_master": False, "timeout": _STORE_TIMEOUT}
        store = dist.TCPStore(address, port, **options)  # type: ignore[attr-defined]
        # A launcher that restarts all keeps its store, with the values of the last attempt.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._store = dist.PrefixStore(f"nmt/{attempt}", store)  # type: ignore[attr-defined]

    def sum(self, tensor: Tensor) -> None:
        """Replace ``tensor``, on any device, by its sum over all processes."""
        self.begin_sum(tensor).wait()

    @_or_peer_lost()
    def begin_sum(self, tensor: Tensor) -> PendingSum:
        """Begin to do that, and go on meanwhile; every process begins sums in the same order."""
        if self._store is None:
            return PendingSum()
        return PendingSum(dist.all_reduce(tensor, async_op=True))

    @_or_peer_lost()
    def gather(self, value: T) -> list[T]:
        """Return the values of all processes, by rank."""
        found: list[Any] = [value] * self.size
        if self._store is not None:
            dist.all_gather_object(found, value, group=self._patient)
        return found

    @_or_peer_lost()
    def share(self, value: T) -> T:
        """Return the value of the first process."""
        box = [value]
        if self._store is not None:
            dist.broadcast_object_list(box, src=0, group=self._patient)
        return box[0]

    @_or_peer_lost()
    def wait(self) -> None:
        """Wait until all are here, be it for days: one of them may prepare data meanwhile."""
        if self._store is not None:
            dist.barrier(group=self._patient)

    def is_first_to_fail(self) -> bool:
        """Whether this process reports its failure, as no other has reported one yet."""
        try:
            return self._store is None or bool(self._store.add("failures", 1) == 1)
        except RuntimeError:
            return False

    def leave(self) -> None:
        """Leave the group: no call may follow."""
        if self._store is not None:
            dist.destroy_process_group()


def join() -> Processes:
    """Join the processes that the launcher started beside this one.

    Raises:
        DeviceError: They do not find each other.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return Processes()
    try:
        return Processes(launched=True)
    except (RuntimeError, ValueError) as error:
        problem = f"The {os.environ['WORLD_SIZE']} processes do not find each other: {error}"
        fix = "Start them with torchrun, or set `devices`, or unset WORLD_SIZE."
        raise DeviceError(problem, fix=fix) from error


def interleave(parts: Sequence[Sequence[T]]) -> list[T]:
    """Put together what was dealt out by ``values[rank::size]``.

    >>> interleave([[0, 3, 6], [1, 4], [2, 5]])
    [0, 1, 2, 3, 4, 5, 6]
    """
    longest = max(map(len, parts), default=0)
    return [part[i] for i in range(longest) for part in parts if i < len(part)]
