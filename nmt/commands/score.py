"""``nmt score``: a model and sentence pairs -> one score per pair.

N pairs in, N lines out, in order, written as soon as they are ready. Input is split on LF only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import chain, zip_longest
from pathlib import Path
from typing import IO

from nmt.commands.loading import check_output, decoding_changes, loading_arguments
from nmt.commands.options import ScoreOptions, user_values
from nmt.errors import DataError
from nmt.files.atomic import open_output
from nmt.files.lines import MAX_CHUNK_LINES, LineDecoder, is_standard, open_input, read_chunks
from nmt.files.progress import file_bar
from nmt.inference.direction import LanguageOptions
from nmt.inference.scorer import PairScore, Scorer

_Pairs = list[tuple[str, str]]
_MOST_CHARACTERS = 1 << 22  # of a chunk, so that long lines do not fill the memory


def score(options: ScoreOptions) -> None:
    """Score the translations of two files, or of standard input.

    Raises:
        ConfigError: An option or the tag is wrong.
        CheckpointError: The model is missing or damaged.
        DataError: The input cannot be read or is not parallel, or the output cannot be written.
    """
    source = options.source
    target = options.target
    languages = LanguageOptions(options.from_, options.to, options.tag)
    check_output(options.output, source, target, options.model, *options.with_)
    decoding = user_values(options, "length_penalty", "batch_tokens")
    scorer = Scorer.load(options.model, **loading_arguments(options))
    scorer = scorer.with_options(**decoding_changes(options.model, options.set_, decoding))
    scorer.score([], languages)  # check languages and tag before reading
    chunks = _read_files(source, target) if source and target else _read_table()
    num_scored = 0
    with open_output(options.output) as writer, file_bar("scoring", source, unit="pairs") as bar:
        for chunk in chunks:
            for pair_score in scorer.score(chunk, languages, progress=bar.update):
                line = _line(pair_score, options)
                writer.write(line.encode("utf-8", "replace") + b"\n")
            writer.flush()
            num_scored += len(chunk)
            bar.update(num_scored - bar.n)  # `n` is what the bar shows already


def _line(score: PairScore, options: ScoreOptions) -> str:
    """Return the output line for the score of a pair."""
    if options.format == "json":
        return json.dumps(score.as_dict(), ensure_ascii=False)
    value = score.log_prob if options.sum else score.score
    return f"{value:.6f}"


def _read_table() -> Iterator[_Pairs]:
    """Yield chunks of pairs from ``source<TAB>target`` lines of standard input as they arrive.

    Raises:
        DataError: A line that is not blank has no tab or several tabs.
    """
    number = 0  # of the last line
    decoder = LineDecoder()
    with open_input(None) as stream:
        for chunk in read_chunks(stream):
            pairs = []
            for line in decoder.decode(chunk, number + 1):
                number += 1
                # A blank line is a pair of blank sentences.
                cells = line.split("\t") if line.strip() else ["", ""]
                if len(cells) != 2:
                    raise DataError(
                        f"Standard input, line {number:,} has {len(cells) - 1} tabs, not 1.",
                        fix="Write source, tab, target. `cut -f 1,2` selects two columns.",
                    )
                pairs.append((cells[0], cells[1]))
            yield pairs


def _read_files(*paths: Path) -> Iterator[_Pairs]:
    """Yield chunks of pairs from two files with the same number of lines."""
    decoder = LineDecoder()
    names = ["standard input" if is_standard(path) else str(path) for path in paths]
    with ExitStack() as stack:
        streams = [stack.enter_context(open_input(path)) for path in paths]
        sources = _read_texts(streams[0], names[0], decoder)
        targets = _read_texts(streams[1], names[1], decoder)
        chunk: _Pairs = []
        num_characters = 0
        for number, (source, target) in enumerate(zip_longest(sources, targets)):
            if source is None or target is None:
                # One file has ended after `number` lines. Count the remaining lines of the longer
                # file, of which one more has been read.
                longer = number + 1 + sum(1 for _ in chain(sources, targets))
                counts = (number, longer) if source is None else (longer, number)
                raise DataError.not_parallel(names[0], names[1], counts)
            chunk.append((source, target))
            num_characters += len(source) + len(target)
            if len(chunk) == MAX_CHUNK_LINES or num_characters >= _MOST_CHARACTERS:
                yield chunk
                chunk = []
                num_characters = 0
        if chunk:
            yield chunk


def _read_texts(stream: IO[bytes], name: str, decoder: LineDecoder) -> Iterator[str]:
    """Yield the lines of a file; ``name`` is its name in messages."""
    first_number = 1  # number of the first line of the chunk
    for chunk in read_chunks(stream, name=name):
        yield from decoder.decode(chunk, first_number, f"{name}, ")
        first_number += len(chunk)
