"""Communication of the processes that train or translate together. One process is a special case.

Only this module uses torch.distributed, which it imports only if there are several processes. A
launcher starts them: torchrun, or `nmt train` with `devices`. Each process reads its rank from
environment variables.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any, TypeVar

from typing_extensions import override

from nmt.device import is_one_of_torchrun
from nmt.errors import DeviceError, NmtError

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")

logger = logging.getLogger(__name__)

PEER_LOST = 75  # Exit code of a process that ends because another process has failed.
_STORE_TIMEOUT = timedelta(seconds=10)
_COLLECTIVE_TIMEOUT = timedelta(minutes=10)
_PREPARATION_TIMEOUT = timedelta(days=7)
_SECONDS_TO_REPORT = 5
_MISSING: Any = object()  # fills up short parts in `interleave`


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
    """The processes of one job. Every process must make the same calls in the same order.

    This class is a single process, so its methods return at once. `join` returns several processes.
    """

    rank = 0  # Rank of this process, from 0.
    size = 1  # Number of processes.

    def begin_sum(self, tensor: Tensor) -> PendingSum:
        """Start to replace ``tensor``, on any device, by its sum over all processes."""
        del tensor
        return PendingSum()

    def gather(self, value: T) -> list[T]:
        """Return the values of all processes, by rank. The values are pickled."""
        return [value]

    def share(self, value: T) -> T:
        """Return the value of the first process. The value is pickled."""
        return value

    def wait(self) -> None:
        """Wait for all processes, for up to seven days, because one may have to prepare data."""

    def is_first_to_fail(self) -> bool:
        """Whether this process is the first one to fail, so that it should print its error."""
        return True

    def leave(self) -> None:
        """Leave the other processes. No other method may be called afterwards."""


class ProcessGroup(Processes):
    """Several processes that a launcher has started.

    Tensors on the CPU are exchanged through gloo, tensors on GPUs through NCCL.
    """

    def __init__(self) -> None:
        from torch import cuda, distributed  # noqa: PLC0415 - a single process may not need torch

        backend = "cpu:gloo,cuda:nccl" if cuda.is_available() else "gloo"
        distributed.init_process_group(backend, timeout=_COLLECTIVE_TIMEOUT)
        self.rank = distributed.get_rank()
        self.size = distributed.get_world_size()
        self._distributed: Any = distributed
        # For calls before which other processes may have to wait for one that prepares data.
        self._patient = distributed.new_group(backend="gloo", timeout=_PREPARATION_TIMEOUT)
        # A separate store, which still works when a collective call of the groups has failed.
        # Its class is documented, but missing from the type stubs of torch.distributed.
        store = self._distributed.TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=False,
            timeout=_STORE_TIMEOUT,
        )
        # A launcher that restarts the processes keeps the store and its values of the last attempt.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._store = self._distributed.PrefixStore(f"nmt/{attempt}", store)

    @_or_peer_lost()
    @override
    def begin_sum(self, tensor: Tensor) -> PendingSum:
        return PendingSum(self._distributed.all_reduce(tensor, async_op=True))

    @_or_peer_lost()
    @override
    def gather(self, value: T) -> list[T]:
        values = [value] * self.size
        self._distributed.all_gather_object(values, value, group=self._patient)
        return values

    @_or_peer_lost()
    @override
    def share(self, value: T) -> T:
        box = [value]  # its item is replaced by the value of the first process
        self._distributed.broadcast_object_list(box, src=0, group=self._patient)
        return box[0]

    @_or_peer_lost()
    @override
    def wait(self) -> None:
        self._distributed.barrier(group=self._patient)

    @override
    def is_first_to_fail(self) -> bool:
        try:
            return bool(self._store.add("failures", 1) == 1)  # `add` returns the sum so far
        except RuntimeError:  # out of reach: the launcher, which keeps the store, may have ended
            return False

    @override
    def leave(self) -> None:
        self._distributed.destroy_process_group()


def join() -> Processes:
    """Connect to the other processes that the launcher started.

    Raises:
        DeviceError: The processes cannot connect to each other.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return Processes()
    if not is_one_of_torchrun():  # the cluster has set the variable, perhaps for another program
        logger.warning("waiting for all processes: WORLD_SIZE is %d; unset it to use one", size)
    try:
        return ProcessGroup()
    except (RuntimeError, ValueError) as error:
        raise DeviceError(
            f"The {size} processes cannot connect to each other: {error}",
            fix="Start the processes with torchrun, set `devices`, or unset WORLD_SIZE.",
        ) from error


@contextmanager
def report_one_failure(processes: Processes) -> Iterator[None]:
    """Make only the first failing process print an error; all other processes exit silently."""
    try:
        yield
    except Exception:
        if processes.is_first_to_fail():
            raise
        # torchrun kills all processes as soon as one exits: give the failed one time to report.
        time.sleep(_SECONDS_TO_REPORT)
        raise SystemExit(PEER_LOST) from None


def interleave(parts: Sequence[Sequence[T]]) -> list[T]:
    """Undo the split ``parts[rank] = values[rank::size]``; return ``values``.

    >>> interleave([[0, 3, 6], [1, 4], [2, 5]])
    [0, 1, 2, 3, 4, 5, 6]
    """
    rows = zip_longest(*parts, fillvalue=_MISSING)  # the first items of all parts, and so on
    return [value for value in chain.from_iterable(rows) if value is not _MISSING]
