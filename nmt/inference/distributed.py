"""``nmt translate`` under torchrun: each process translates a part of every chunk of lines.

The first process reads and writes, so that all of them together behave as one. Chunks, results and
the end of the input are collective calls that all processes make in the same order: what decides
about that order, such as whether a chunk is ready, is what the first one says.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any, Literal, TypeVar, TypeVarTuple

from typing_extensions import override

from nmt.device.distributed import PEER_LOST, PeerLostError, Processes, join
from nmt.errors import NmtError
from nmt.files.lines import MAX_CHUNK_LINES
from nmt.inference.stream import LineTranslator, TranslationRun, errors_only, translate_files
from nmt.inference.turns import Turns

R = TypeVar("R")
Ts = TypeVarTuple("Ts")

_SECONDS_TO_REPORT = 5


class TeammateLostError(NmtError):
    """Another process of the same translation has ended, or does not answer."""

    exit_code = PEER_LOST


def part_of(lines: Sequence[bytes], rank: int, size: int) -> tuple[int, Sequence[bytes]]:
    """Return where the part of a process begins, and the part; all parts are about as long.

    >>> [part_of([b"a", b"b", b"c"], rank, size=2) for rank in range(2)]
    [(0, [b'a']), (1, [b'b', b'c'])]
    """
    begin, end = (len(lines) * number // size for number in (rank, rank + 1))
    return begin, lines[begin:end]


class Team:
    """The processes that translate together, seen from one of them.

    Args:
        processes: Which all make the same calls.
    """

    def __init__(self, processes: Processes) -> None:
        self._processes = processes

    @property
    def is_first(self) -> bool:
        """Whether this process reads and writes."""
        return self._processes.rank == 0

    def loading(self) -> AbstractContextManager[None]:
        """Let only the first process log what all of them find while they load the model."""
        return errors_only() if self._processes.rank else nullcontext()

    def translate_files(
        self,
        translate: LineTranslator,
        source: Path | None,
        output: Path | None,
        *,
        lines_at_once: int | None = None,
        progress: Callable[[int], object] = lambda _: None,
        turns: Turns | None = None,
    ) -> TranslationRun:
        """Do what `nmt.inference.stream.translate_files` does, together.

        Only the first process opens files, shows progress and raises what is wrong with them.
        """
        shared = SharedTurns(self._processes, turns or Turns())
        if not self.is_first:
            with closing(shared.map(translate, iter(()))) as runs:
                num_lines = sum(run.num_lines for run in runs)
            self._processes.leave()
            return TranslationRun(num_lines=num_lines)
        try:
            together = (lines_at_once or MAX_CHUNK_LINES) * self._processes.size
            return translate_files(
                translate, source, output, lines_at_once=together, progress=progress, turns=shared
            )
        finally:
            shared.end()


class SharedTurns(Turns):
    """Turns of several processes; each translates a part of every chunk.

    All of them make the same calls; chunks, and whether they are ready, are those of the first.

    Args:
        processes: All of them.
        own: What this one does when.
    """

    def __init__(self, processes: Processes, own: Turns) -> None:
        self._processes, self._own = processes, own
        self._others: Literal["wait", "work", "are done"] = "wait"
        """To the first process: for its word, on chunks that it has shared, or at all."""

    @override
    def map(
        self,
        translate: Callable[[*Ts], R],
        chunks: Iterator[tuple[*Ts]],
        is_ready: Callable[[], bool] = lambda: True,
    ) -> Generator[R, None, None]:
        processes = self._processes
        own = self._own.map(translate, self._parts(chunks), lambda: processes.share(is_ready()))
        with closing(own) as results:
            for result in results:
                gathered: list[Any] = processes.gather(result)
                before, self._others = self._others, "wait"
                yield reduce(add, gathered)
                if not processes.share(processes.rank == 0):
                    return
                self._others = before

    def _parts(self, chunks: Iterator[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """Yield the part of this process of every chunk, with the number of its first line."""
        processes, self._others = self._processes, "work"
        while True:
            try:
                chunk = next(chunks, None)
            except Exception:  # the input is damaged: what was read before is translated
                processes.share(None)
                self._others = "are done"
                raise
            if (shared := processes.share(chunk)) is None:
                self._others = "are done"
                return
            lines, number = shared
            begin, part = part_of(lines, processes.rank, processes.size)
            yield part, number + begin

    def end(self) -> None:
        """In the first process: let the others end in order, unless they work: then it failed."""
        if self._others == "wait":
            with suppress(PeerLostError):  # no matter now: there is nothing more to ask it
                self._processes.share(None)
        if self._others != "work":
            self._processes.leave()


@contextmanager
def join_team() -> Iterator[Team]:
    """Join the other processes; the first one that fails reports why.

    Raises:
        DeviceError: The processes do not find each other.
        TeammateLostError: Another one has ended without a report.
    """
    processes = join()
    try:
        yield Team(processes)
    except Exception as error:
        if not processes.is_first_to_fail():
            # As soon as one has failed torchrun ends the others: also the one that is to report.
            time.sleep(_SECONDS_TO_REPORT)
            raise SystemExit(getattr(error, "exit_code", 1)) from None
        if isinstance(error, PeerLostError):
            raise TeammateLostError(
                "Another process of this translation has ended or does not answer "
                f"({error.cause}).",
                fix="See what ended it, then start all again.",
            ) from error
        raise
