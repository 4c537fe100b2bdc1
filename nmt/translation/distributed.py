"""``nmt translate`` in the processes that torchrun has started: each answers a part of every chunk.

The first process reads and writes, so that all of them together behave as one. What it hands out,
what comes back and the end of the input are calls that all processes make in the same order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeAlias

from nmt.engine.distributed import PEER_LOST, PeerLostError, Processes, join
from nmt.errors import NmtError
from nmt.files.line_streams import MAX_CHUNK_LINES, first_few
from nmt.recipes.translate import answer_files
from nmt.translation.output_format import OutputFormat
from nmt.translation.results_of_lines import Answerer, Answers, Tally, answer_lines
from nmt.translation.translator import Translator

_Chunk: TypeAlias = tuple[Sequence[bytes], int]
"""Lines of the input, and the number of the first, from 1."""

_SECONDS_TO_TELL = 5


class TeammateLostError(NmtError):
    """Another process of the same translation has ended, or does not answer."""

    exit_code = PEER_LOST


def part_of(lines: Sequence[bytes], rank: int, size: int) -> tuple[int, Sequence[bytes]]:
    """Return where the part of a process begins, and the part; all parts are of like length.

    >>> [part_of([b"a", b"b", b"c"], rank, size=2) for rank in range(2)]
    [(0, [b'a']), (1, [b'b', b'c'])]
    """
    begin, end = (len(lines) * number // size for number in (rank, rank + 1))
    return begin, lines[begin:end]


def join_answers(parts: Iterable[Answers]) -> Answers:
    """Put the answers to the parts of a chunk together, up to a line that ends all.

    >>> join_answers([Answers(b"one "), Answers(b"two")]).output
    b'one two'
    """
    output, tally = b"", Tally()
    for part in parts:
        output, tally = output + part.output, tally.plus(part.tally)
        if part.end is not None:
            return Answers(output, tally, part.end)
    return Answers(output, tally)


class Team:
    """The processes that translate together, seen from one of them.

    Args:
        processes: Which all make the same calls.
    """

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._has_loaded = False
        self._is_between_chunks = True

    def make_note(self, note: Callable[[str], None]) -> Callable[[str], None]:
        """Return ``note`` for this process: what all find while they load, only the first says."""

        def say(text: str) -> None:
            if self._processes.rank == 0 or self._has_loaded:
                note(text)

        return say

    def translate_files(
        self,
        translator: Translator,
        source: Path | None,
        output: Path | None,
        style: OutputFormat,
        *,
        note: Callable[[str], None],
        lines_at_once: int | None = None,
        show_progress: bool = False,
    ) -> int:
        """Do what `nmt.recipes.translate.translate_files` does, together.

        Only the first process opens files, shows progress and raises what is wrong with them.
        """
        self._has_loaded = True
        answer = partial(answer_lines, translator, style, note=first_few(note))
        if self._processes.rank:
            return self._help(answer)
        try:
            return answer_files(
                lambda lines, number: self._answer(answer, (lines, number)),
                source,
                output,
                note=note,
                lines_at_once=(lines_at_once or MAX_CHUNK_LINES) * self._processes.size,
                show_progress=show_progress,
            )
        finally:
            self._dismiss()

    def _help(self, answer: Answerer) -> int:
        """Answer parts of what the first process reads, until it is done; return the lines."""
        num_lines = 0
        while (chunk := self._next_chunk()) is not None:
            num_lines += len(chunk[0])
            self._answer_part(answer, chunk)
        self._processes.leave()
        return num_lines

    def _next_chunk(self) -> _Chunk | None:
        chunk: _Chunk | None = self._processes.share(None)
        return chunk

    def _answer(self, answer: Answerer, chunk: _Chunk) -> Answers:
        """Have all processes answer their parts of a chunk that the first one has read."""
        self._is_between_chunks = False
        self._processes.share(chunk)
        found = self._answer_part(answer, chunk)
        self._is_between_chunks = True
        return join_answers(found)

    def _answer_part(self, answer: Answerer, chunk: _Chunk) -> list[Answers]:
        """Return what all processes answer to their parts."""
        lines, first_number = chunk
        begin, part = part_of(lines, self._processes.rank, self._processes.size)
        return self._processes.gather(answer(part, first_number + begin))

    def _dismiss(self) -> None:
        """Let the others end in order, unless they are not waiting for lines: something broke."""
        if self._is_between_chunks:
            with suppress(PeerLostError):  # no matter now: there is nothing more to ask it
                self._processes.share(None)
            self._processes.leave()


@contextmanager
def join_team() -> Iterator[Team]:
    """Join the other processes; what ends this one is told unless another one tells already.

    Raises:
        DeviceError: The processes do not find each other.
        TeammateLostError: Another one has ended, and has not told why.
    """
    processes = join()
    try:
        yield Team(processes)
    except Exception as error:
        if not processes.is_first_to_fail():
            # As soon as one has failed torchrun ends the others: also the one that is to tell.
            time.sleep(_SECONDS_TO_TELL)
            raise SystemExit(getattr(error, "exit_code", 1)) from None
        if isinstance(error, PeerLostError):
            raise _lost(error) from error
        raise


def _lost(error: PeerLostError) -> TeammateLostError:
    return TeammateLostError(
        f"Another process of this translation has ended or does not answer ({error.cause}).",
        fix="See what ended it, then start all again.",
    )
