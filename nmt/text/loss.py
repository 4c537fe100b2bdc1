"""Finds text that a model cannot write, because its tokenizer changes or loses characters."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from nmt.text.tokenizer import SPACE, Tokenizer

_BLANKS = re.compile(" +")
_CONTEXT = 12  # characters before and after a difference in an example


@dataclass(frozen=True)
class Loss:
    """Which of some target lines a model cannot write."""

    # Each line, as close to it as the model can write. A line without loss is unchanged.
    nearest: tuple[str, ...]
    changed: tuple[int, ...]  # indices of the lines with a loss
    example: str  # the first difference, for a message; empty without loss
    lost: str  # the characters of the first line with a loss that its nearest text lacks

    def __str__(self) -> str:
        share = len(self.changed) / max(len(self.nearest), 1)
        lines = f"{len(self.changed):,} of {len(self.nearest):,} lines ({share:.0%})"
        return f"{lines} that no output can equal, for example line {self.example}"


def loss_of(lines: Sequence[str], tokenizer: Tokenizer) -> Loss:
    """Encode and decode lines, and compare them. Blanks at the ends and double spaces are equal.

    Args:
        lines: Target lines.
        tokenizer: Tokenizer of the target.
    """
    nearest_lines = list(lines)
    changed = list[int]()
    example = ""
    lost_characters = ""
    for index, ids in enumerate(tokenizer.encode_batch(lines)):
        line = _with_single_blanks(lines[index])
        nearest = _with_single_blanks(tokenizer.decode(ids))
        if nearest == line:
            continue
        nearest_lines[index] = nearest
        changed.append(index)
        if not example:
            example = f"{index + 1:,}: {_difference(line, nearest)}"
            lost_characters = "".join(sorted(set(line) - set(nearest)))
    return Loss(tuple(nearest_lines), tuple(changed), example, lost_characters)


def _with_single_blanks(line: str) -> str:
    return _BLANKS.sub(" ", line).strip()


def _difference(line: str, nearest: str) -> str:
    """Describe the first difference between a line and its nearest text."""
    index = 0
    # Slices, because the nearest text may be shorter than the line.
    while line[index : index + 1] == nearest[index : index + 1] and index < len(line):
        index += 1
    start = max(index - _CONTEXT, 0)
    end = index + _CONTEXT
    difference = f"'{line[start:end]}' becomes '{nearest[start:end]}'"
    lost_character = line[index : index + 1]  # empty if the nearest text is longer
    if lost_character:
        difference += f" (U+{ord(lost_character):04X})"
    if lost_character == SPACE:
        difference += ", which SentencePiece reads as a space"
    return difference
