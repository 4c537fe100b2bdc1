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
    nearest = list(lines)
    changed = list[int]()
    example = ""
    lost = ""
    for index, ids in enumerate(tokenizer.encode_batch(lines)):
        line = _without_blanks(lines[index])
        text = _without_blanks(tokenizer.decode(ids))
        if text == line:
            continue
        nearest[index] = text
        changed.append(index)
        if not example:
            example = f"{index + 1:,}: {_difference(line, text)}"
            lost = "".join(sorted(set(line) - set(text)))
    return Loss(tuple(nearest), tuple(changed), example, lost)


def _without_blanks(line: str) -> str:
    return _BLANKS.sub(" ", line).strip()


def _difference(line: str, text: str) -> str:
    """Describe the first difference between a line and its nearest text."""
    place = 0
    while line[place : place + 1] == text[place : place + 1] and place < len(line):
        place += 1
    start = max(place - _CONTEXT, 0)
    end = place + _CONTEXT
    difference = f"'{line[start:end]}' becomes '{text[start:end]}'"
    lost = line[place : place + 1]
    if lost:
        difference += f" (U+{ord(lost):04X})"
    if lost == SPACE:
        difference += ", which SentencePiece reads as a space"
    return difference
