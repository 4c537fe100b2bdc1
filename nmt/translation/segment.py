"""Lines -> segments that a model can read, and what belongs to segments -> what belongs to lines.

A segment is a line, or a part of one that is too long; see `nmt.translation.splitting`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TypeVar

from nmt.errors import CheckpointError, DataError, NmtError
from nmt.runtime.engine import Task
from nmt.search.constraints import NONE, Constraints
from nmt.search.hypothesis import Hypothesis
from nmt.text.tokenizer import Tokenizer
from nmt.translation.splitting import split_text

_CHARACTERS_OF_SUBWORD = 20  # SentencePiece makes none longer than 16

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Segment:
    """What is translated by itself."""

    line: int
    """The line it is of, from 0."""
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


def cut_lines(
    texts: Sequence[str],
    tokenizer: Tokenizer,
    max_length: int,
    note: Callable[[str], None] = lambda _: None,
    first_line: int | None = None,
) -> list[Segment]:
    """Encode lines: blank ones as no segment, over-long ones as several.

    Args:
        texts: The lines.
        tokenizer: Of the source language.
        max_length: Most subwords of a segment.
        note: Told about lines that had to be cut.
        first_line: What notes count the lines from; None if the caller does not know.

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
            parts = _cut(texts[i], tokenizer, max_length)
        if len(parts) > 1:
            name = "" if first_line is None else f"line {i + first_line:,}: a "
            note(
                f"{name}line of {len(texts[i]):,} characters cut into {len(parts):,} parts: the "
                f"model reads {max_length} subwords at once"
            )
        segments += [Segment(i, part) for part in parts]
    return segments


def constrain(
    segments: Iterable[Segment],
    wishes: Iterable[Constraints],
    *,
    no_repeat_ngram_size: int,
    most_tokens: int,
    first_line: int = 1,
) -> list[Segment]:
    """Give the segments what is wished for their lines; prefix and required phrases to the first.

    Args:
        segments: Of all lines, in order.
        wishes: Of each line.
        no_repeat_ngram_size: A rule of the search, which wishes may contradict.
        most_tokens: The longest output that there is without wishes.
        first_line: What messages count the lines from.

    Raises:
        DataError: The wishes of a line contradict each other, or that rule, or are too long.
    """
    by_line = list(wishes)
    constrained: list[Segment] = []
    for line, of_line in groupby(segments, key=lambda segment: segment.line):
        own = by_line[line]
        if problem := own.contradiction(no_repeat_ngram_size):
            raise DataError(
                f"Line {line + first_line:,}: {problem}.", fix="Take one of the wishes back."
            )
        if own.num_tokens > most_tokens:
            raise DataError(
                f"Line {line + first_line:,}: its prefix and required phrases have "
                f"{own.num_tokens:,} subwords, and a translation has at most {most_tokens:,}.",
                fix="Wish for less, or cut the line into sentences.",
            )
        first, *others = of_line
        later = Constraints(forbidden=own.forbidden)
        constrained.append(replace(first, constraints=own))
        constrained += [replace(other, constraints=later) for other in others]
    return constrained


def make_task(segments: Sequence[Segment]) -> Task:
    """Return a batch of segments as an engine takes it."""
    constraints = [segment.constraints for segment in segments]
    is_free = all(own == NONE for own in constraints)
    return Task([segment.ids for segment in segments], None if is_free else constraints)


def check_outputs(
    segments: Iterable[Segment], outputs: Iterable[Sequence[Hypothesis]], first_line: int = 1
) -> None:
    """Check that there is an output for every segment.

    Raises:
        DataError: There is none that a line's wishes allow.
        CheckpointError: There is none, for no wish of the user's.
    """
    for segment, own in zip(segments, outputs, strict=True):
        if not own:
            raise _without_output(segment, first_line)


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


def _cut(text: str, tokenizer: Tokenizer, max_length: int) -> list[list[int]]:
    """Token ids of the parts of a text that does not fit. Nothing comes of no ids."""

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


def _without_output(segment: Segment, first_line: int) -> NmtError:
    """Say why a search found nothing."""
    if segment.constraints != NONE:
        return DataError(
            f"Line {segment.line + first_line:,}: no output has its prefix and its required "
            "phrases and none of the forbidden ones.",
            fix="Take some of the wishes back, or the rule of repeated n-grams.",
        )
    return CheckpointError(
        "The model's probabilities are not numbers: its weights are broken.",
        fix="Use another checkpoint, or train again.",
    )
