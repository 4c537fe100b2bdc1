"""Communication of the processes that train one model. A single process is a special case.

Only this module uses torch.distributed. Either torchrun or `nmt train` with `devices` starts the
processes, and each process reads its rank from environment variables.
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

PEER_LOST = 75  # Exit code of a process that ends because another process has failed.
_STORE_TIMEOUT = timedelta(seconds=10)
_COLLECTIVE_TIMEOUT = timedelta(minutes=10)
_PREPARATION_TIMEOUT = timedelta(days=7)


class PeerLostError(NmtError):
    """Another process of the same training has ended or does not respond."""

    exit_code = PEER_LOST

    def __init__(self, cause: str) -> None:
        fix = "Look for the error of that process, then run the same command again to resume."
        super().__init__(f"Another process has ended or does not respond ({cause}).", fix=fix)


@contextmanager
def _or_peer_lost() -> Iterator[None]:
    """Raise PeerLostError if a collective call fails, usually because another process has ended.

    The message includes the first line of torch's message, because the cause may also be the
    network or a lack of memory.
    """
    try:
        yield
    except RuntimeError as error:
        raise PeerLostError(str(error).partition("\n")[0]) from error


class PendingSum:
    """A sum over all processes that has been started."""

    def __init__(self, work: Any = None) -> None:
        self._work = work

    @_or_peer_lost()
    def wait(self) -> None:
        """Make the device wait until the tensor contains the sum. On a CPU, wait now."""
        if self._work is not None:
            self._work.wait()


class Processes:
    """The processes of one training. Every process must make the same calls in the same order.

    Tensors on the CPU are exchanged through gloo, tensors on GPUs through NCCL.

    Args:
        launched: Whether a launcher has started several processes. If not, the methods return
            immediately.
    """

    rank, size = 0, 1  # Rank of this process, from 0, and number of processes.
    _store: Any = None

    def __init__(self, *, launched: bool = False) -> None:
        if not launched:
            return
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, timeout=_COLLECTIVE_TIMEOUT)
        self._patient = dist.new_group(backend="gloo", timeout=_PREPARATION_TIMEOUT)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        # A separate store, which still works when a collective call of the groups has failed.
        # Its class is documented, but missing from the type stubs of torch.distributed.
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        options: Any = {"is_master": False, "timeout": _STORE_TIMEOUT}
        store = dist.TCPStore(address, port, **options)  # type: ignore[attr-defined]
        # A launcher that restarts the processes keeps the store and its values of the last attempt.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._store = dist.PrefixStore(f"nmt/{attempt}", store)  # type: ignore[attr-defined]

    @_or_peer_lost()
    def begin_sum(self, tensor: Tensor) -> PendingSum:
        """Start to replace ``tensor``, on any device, by its sum over all processes."""
        if self._store is None:
            return PendingSum()
        return PendingSum(dist.all_reduce(tensor, async_op=True))

    @_or_peer_lost()
    def gather(self, value: T) -> list[T]:
        """Return the values of all processes, by rank. The values are pickled."""
        found: list[Any] = [value] * self.size
        if self._store is not None:
            dist.all_gather_object(found, value, group=self._patient)
        return found

    @_or_peer_lost()
    def share(self, value: T) -> T:
        """Return the value of the first process. The value is pickled."""
        box = [value]
        if self._store is not None:
            dist.broadcast_object_list(box, src=0, group=self._patient)
        return box[0]

    @_or_peer_lost()
    def wait(self) -> None:
        """Wait for all processes, for up to seven days, because one may have to prepare data."""
        if self._store is not None:
            dist.barrier(group=self._patient)

    def is_first_to_fail(self) -> bool:
        """Whether this process is the first one to fail, so that it should print its error."""
        try:
            return self._store is None or bool(self._store.add("failures", 1) == 1)
        except RuntimeError:
            return False

    def leave(self) -> None:
        """Leave the process group. No other method may be called afterwards."""
        if self._store is not None:
            dist.destroy_process_group()


def join() -> Processes:
    """Connect to the other processes that the launcher started.

    Raises:
        DeviceError: The processes cannot connect to each other.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return Processes()
    try:
        return Processes(launched=True)
    except (RuntimeError, ValueError) as error:
        problem = f"The {os.environ['WORLD_SIZE']} processes cannot connect to each other: {error}"
        fix = "Start the processes with torchrun, set `devices`, or unset WORLD_SIZE."
        raise DeviceError(problem, fix=fix) from error


def interleave(parts: Sequence[Sequence[T]]) -> list[T]:
    """Undo the split ``parts[rank] = values[rank::size]``; return ``values``.

    >>> interleave([[0, 3, 6], [1, 4], [2, 5]])
    [0, 1, 2, 3, 4, 5, 6]
    """
    longest = max(map(len, parts), default=0)
    return [part[i] for i in range(longest) for part in parts if i < len(part)]
