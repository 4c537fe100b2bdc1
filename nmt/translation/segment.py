"""Lines -> segments that a model can read -> batches.

A segment is a line, or a part of one that has more subwords than the model was trained for.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from nmt.runtime.engine import Task
from nmt.search.hypothesis import NONE, Constraints
from nmt.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

LONGEST_LINE = 50_000
"""Characters of a line that are translated. The rest is left out, with a warning and an alarm, so
that the time for one line is bounded."""
_CHARACTERS_OF_SUBWORD = 20  # SentencePiece makes none longer than 16
_MOST_PROBABILITIES = 1 << 26  # held at once for the next tokens of all beams: 256 MiB
_UNSPACED = ("zh", "ja", "th", "lo", "km", "my")
_BORDERS = (
    re.compile(r"(?<=[.!?])\s+|(?<=[\u3002\uff01\uff1f\u061f])\s*"),  # sentences
    re.compile(r"(?<=[,;:])\s+|(?<=[\uff0c\u3001\uff1b\uff1a\u060c\u061b])\s*"),  # clauses
    re.compile(r"\s+"),  # words
)

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Segment:
    """What is translated by itself."""

    line: int
    """The line it is part of, from 0."""
    ids: list[int]
    """Its source ids, without EOS; never empty."""
    constraints: Constraints = NONE
    """What its translation must look like."""


def is_far_too_long(text: str, max_length: int) -> bool:
    """Whether a text need not be encoded to know that it does not fit.

    >>> is_far_too_long("a" * 60, max_length=3), is_far_too_long("a" * 61, max_length=3)
    (False, True)
    """
    return len(text) > _CHARACTERS_OF_SUBWORD * max_length


def joiner_for(language: str) -> str:
    """Return what stands between the segments of a line in ``language``.

    >>> joiner_for("de"), joiner_for("zh-Hant")
    (' ', '')
    """
    return "" if re.split("[-_]", language)[0].lower() in _UNSPACED else " "


def truncate(texts: Sequence[str], first_line: int = 1) -> tuple[list[str], set[int]]:
    """Return the beginnings of lines that fit `LONGEST_LINE`, and which lines were longer.

    Args:
        texts: The lines.
        first_line: The number of the first line in warnings about longer ones.
    """
    longer = {row for row, text in enumerate(texts) if len(text) > LONGEST_LINE}
    for row in sorted(longer):
        logger.warning(
            "line %s has %s characters; only the first %s are translated",
            f"{row + first_line:,}",
            f"{len(texts[row]):,}",
            f"{LONGEST_LINE:,}",
        )
    shortened = [
        text.lstrip()[:LONGEST_LINE] if row in longer else text for row, text in enumerate(texts)
    ]
    return shortened, longer


def segment_lines(
    texts: Sequence[str], tokenizer: Tokenizer, max_length: int, first_line: int = 1
) -> list[Segment]:
    """Encode lines: a blank one gives no segment, an over-long one several.

    Args:
        texts: The lines.
        tokenizer: Of the source language.
        max_length: Most subwords of a segment.
        first_line: The number of the first line in warnings about those that are cut.

    Returns:
        The segments of all lines, in order.
    """
    full = [i for i, text in enumerate(texts) if text.strip()]
    short = [i for i in full if not is_far_too_long(texts[i], max_length)]
    encoded = dict(zip(short, tokenizer.encode_batch([texts[i] for i in short]), strict=True))
    segments: list[Segment] = []
    for i in full:
        ids = encoded.get(i)
        if ids is not None and len(ids) <= max_length:
            # A text of characters that normalisation drops is blank, too.
            parts = [ids] if ids else []
        else:
            parts = _encode_parts(texts[i], tokenizer, max_length)
        if len(parts) > 1:
            logger.warning(
                "line %s: %s characters cut into %s segments: the model reads %d subwords at once",
                f"{i + first_line:,}",
                f"{len(texts[i]):,}",
                f"{len(parts):,}",
                max_length,
            )
        segments += [Segment(i, part) for part in parts]
    return segments


def _encode_parts(text: str, tokenizer: Tokenizer, max_length: int) -> list[list[int]]:
    """Token ids of the parts of a text that does not fit. No part is empty."""

    def size(part: str) -> int:
        """Subwords of a part; more than fit if it is far too long."""
        if is_far_too_long(part, max_length):
            return max_length + 1
        return len(tokenizer.encode(part))

    parts = tokenizer.encode_batch(split_text(text, size, max_length))
    # Some are too long still: a character of many bytes, or parts that joined badly.
    return [
        ids[start : start + max_length] for ids in parts for start in range(0, len(ids), max_length)
    ]


class _Span(NamedTuple):
    """A part of the text."""

    start: int
    end: int
    size: int


def split_text(text: str, size_of: Callable[[str], int], limit: int) -> list[str]:
    """Return pieces of ``text`` of at most ``limit``, in order, as long as they can be.

    Borders are tried in the order sentences, clauses, words; a word that does not fit is cut in
    halves. Neighbours are joined by the sum of their sizes, so the time is linear in the text.

    Args:
        text: What to cut.
        size_of: Size of a text, for example its subwords. Any number above ``limit`` will do for
            a text that is too long.
        limit: Largest size of a piece. A single character is larger if it must.

    >>> split_text("One two. Three four, five. Six.", len, 12)
    ['One two.', 'Three four,', 'five. Six.']
    """
    merged: list[_Span] = []
    for span in _spans(text, 0, len(text), size_of, limit, 0):
        if merged and merged[-1].size + span.size <= limit:
            merged[-1] = _Span(merged[-1].start, span.end, merged[-1].size + span.size)
        else:
            merged.append(span)
    return [text[span.start : span.end] for span in merged]


def _spans(
    text: str, start: int, end: int, size_of: Callable[[str], int], limit: int, level: int
) -> Iterator[_Span]:
    """Yield parts that fit, without the white space at the borders between them."""
    piece = text[start:end].strip()
    if not piece:
        return
    start = text.index(piece[0], start)
    end = start + len(piece)
    size = size_of(piece)
    if size <= limit or len(piece) == 1:
        yield _Span(start, end, size)
        return
    cuts = [(len(piece) // 2, len(piece) // 2)]
    if level < len(_BORDERS):
        cuts = [border.span() for border in _BORDERS[level].finditer(piece)]
        level += 1
    begin = 0
    for cut_start, cut_end in (*cuts, (len(piece), len(piece))):
        yield from _spans(text, start + begin, start + cut_start, size_of, limit, level)
        begin = cut_end


def max_batch_rows(num_hypotheses: int, vocab_size: int, num_workers: int = 1) -> int:
    """Return how many sentences a batch may have, by the memory of their probabilities.

    Args:
        num_hypotheses: Of each sentence.
        vocab_size: Probabilities of each hypothesis.
        num_workers: Batches searched at the same time.
    """
    return max(1, _MOST_PROBABILITIES // num_workers // (num_hypotheses * vocab_size))


def batch_by_length(
    lengths: Sequence[int], *, max_tokens: int, max_rows: int
) -> Iterator[list[int]]:
    """Yield rows of similar length, the shortest first.

    Args:
        lengths: Source tokens of each row, without EOS.
        max_tokens: Most tokens of a batch, with EOS and padding; a longer row is one by itself.
        max_rows: Most rows of a batch; the limit for short lines and wide beams.

    >>> list(batch_by_length([7, 2, 3, 2], max_tokens=8, max_rows=2))
    [[1, 3], [2], [0]]
    """
    batch: list[int] = []
    for row in sorted(range(len(lengths)), key=lengths.__getitem__):
        tokens = (len(batch) + 1) * (lengths[row] + 1)  # and EOS
        if batch and (tokens > max_tokens or len(batch) == max_rows):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def make_task(segments: Sequence[Segment]) -> Task:
    """Return a batch of segments as an engine takes it."""
    constraints = [segment.constraints for segment in segments]
    is_free = all(own == NONE for own in constraints)
    return Task([segment.ids for segment in segments], None if is_free else constraints)


def group_by_line(
    segments: Iterable[Segment], values: Iterable[_Value], num_lines: int
) -> list[list[_Value]]:
    """Return the values of the segments of each line; none for a blank line.

    >>> group_by_line([Segment(0, [5]), Segment(2, [6]), Segment(2, [7])], "abc", num_lines=3)
    [['a'], [], ['b', 'c']]
    """
    grouped: list[list[_Value]] = [[] for _ in range(num_lines)]
    for segment, value in zip(segments, values, strict=True):
        grouped[segment.line].append(value)
    return grouped
