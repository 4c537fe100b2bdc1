"""A model and a stream of lines -> a stream of translations, line by line.

The filter's contract: N lines in, N lines out, in order, blank to blank, written as soon as they
are ready. Input is read as bytes and split on LF only.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO

from tqdm import tqdm

from nmt.errors import DataError
from nmt.files.line_streams import (
    MAX_CHUNK_LINES,
    first_few,
    open_input,
    open_output,
    read_chunks,
)
from nmt.translation.output_format import OutputFormat
from nmt.translation.results_of_lines import Answerer, Tally, answer_lines
from nmt.translation.translator import Translator


def _answer_stream(
    answer: Answerer,
    source: IO[bytes],
    output: IO[bytes],
    *,
    lines_at_once: int,
    name: str,
    progress: Callable[[int], object],
    note: Callable[[str], None],
) -> Tally:
    """Write what ``answer`` makes of every line of ``source``, flushed after every chunk.

    Raises:
        DataError: The input is damaged, or a line ends the output.
    """
    tally = Tally()
    for lines in read_chunks(source, lines_at_once=lines_at_once, name=name):
        found = answer(lines, tally.num_lines + 1)
        output.write(found.output)
        output.flush()
        if found.end is not None:
            raise DataError(found.end.problem, fix=found.end.fix)
        progress(len(lines))
        tally = tally.plus(found.tally)
    for told in tally.notes():
        note(told)
    return tally


def translate(
    translator: Translator,
    source: IO[bytes],
    output: IO[bytes],
    style: OutputFormat,
    *,
    lines_at_once: int = MAX_CHUNK_LINES,
    note: Callable[[str], None] = lambda _: None,
) -> int:
    """Translate every line of ``source`` to ``output``; return how many there were.

    Args:
        translator: The model, with its decoding options.
        source: Bytes to read to the end.
        output: Where translations go, flushed after every chunk.
        style: How they are read and written.
        lines_at_once: Lines that are sorted and searched together; 1 answers each at once.
        note: Told about odd lines, and at the end what the guard found.

    Raises:
        DataError: The input is damaged, or there is a line that cannot be answered.
    """
    tally = _answer_stream(
        partial(answer_lines, translator, style, note=first_few(note)),
        source,
        output,
        lines_at_once=lines_at_once,
        name="standard input",
        progress=lambda _: None,
        note=note,
    )
    tally.check()
    return tally.num_lines


def translate_files(
    translator: Translator,
    source: Path | None,
    output: Path | None,
    style: OutputFormat,
    *,
    note: Callable[[str], None],
    lines_at_once: int | None = None,
    show_progress: bool = False,
) -> int:
    """Translate a file, or standard input, to a file, or standard output; return the lines.

    An output file appears when it is complete: until then it has a temporary name beside it. A line
    that cannot be answered ends text output, and gets an object of its own in JSON.
    Other arguments are as of `translate`.

    Raises:
        DataError: The input cannot be read or the output cannot be written, or there was such a
            line.
    """
    return answer_files(
        partial(answer_lines, translator, style, note=first_few(note)),
        source,
        output,
        note=note,
        lines_at_once=lines_at_once or MAX_CHUNK_LINES,
        show_progress=show_progress,
    )


def answer_files(
    answer: Answerer,
    source: Path | None,
    output: Path | None,
    *,
    note: Callable[[str], None],
    lines_at_once: int,
    show_progress: bool,
) -> int:
    """Do what `translate_files` does, with whatever answers the lines."""
    with ExitStack() as stack:
        reader = stack.enter_context(open_input(source))
        writer = stack.enter_context(open_output(output))
        bar = stack.enter_context(
            tqdm(desc="translating", unit=" lines", disable=not show_progress)
        )
        tally = _answer_stream(
            answer,
            reader,
            writer,
            lines_at_once=lines_at_once,
            name="standard input" if source is None else str(source),
            progress=bar.update,
            note=note,
        )
    tally.check()
    return tally.num_lines
