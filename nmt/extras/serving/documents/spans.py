"""The tags of a paragraph as a tree of spans, with what stands between words beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from nmt.extras.serving.documents.paragraph import Paragraph


@dataclass(frozen=True, slots=True)
class Filler:
    """What stands between two words, or in one: white space, void tags, pictures, code."""

    text: str
    word: int
    """The source word before it, or around it; -1 if there is none."""
    offset: int
    """Characters of that word before it."""
    index: int
    """Place in the tape, of its end."""
    is_mark: bool
    """Whether it is more than white space."""


@dataclass(slots=True, eq=False)
class Span:
    """A pair of tags, or the whole paragraph: what it is around, in the source and the target."""

    opening: str = ""
    closing: str = ""
    first: int = 0
    """Its first source word."""
    start: int = 0
    """Characters of that word before it."""
    last: int = -1
    """Its last source word."""
    end: int = 0
    """Characters of that word in it or before it."""
    indices: tuple[int, int] = (0, 0)
    """Places of both tags in the tape."""
    fillers: list[Filler] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    left: int = 0
    """Its first target word."""
    right: int = -1
    """Its last."""
    open_at: int = 0
    """Characters of its first target word before it: as many signs as in the source."""
    close_at: int = 0
    """Characters of its last target word in it or before it."""
    is_kept: bool = False
    """Whether it stands in a word that stays as it was."""


def read_spans(paragraph: Paragraph) -> Span | None:
    """Return the tree of tags; None if a tag between words lacks its partner."""
    tape, words = [*paragraph.tape()], paragraph.words
    partners = _pairs(paragraph, tape)
    closing = set(partners.values())
    stack = [Span(last=len(words) - 1)]
    word, used, filler, is_mark = -1, 0, "", False
    parts_before = [0]
    for kind, _, _ in tape:
        parts_before.append(parts_before[-1] + (kind == "part"))
    index = 0
    while index < len(tape):
        kind, text, number = tape[index]
        end = partners.get(index, index)
        is_pair = end != index and parts_before[index] < parts_before[end]
        if (kind == "part" or is_pair or index in closing) and filler:
            stack[-1].fillers.append(Filler(filler, word, used, index - 1, is_mark))
            filler, is_mark = "", False
        in_word = word >= 0 and used < len(words[word].text)
        if kind == "part":
            word, used = number, len(text) + (used if number == word else 0)
        elif is_pair:
            first, start = (word, used) if in_word else (word + 1, 0)
            span = Span(text, tape[end][1], first, start, indices=(index, end))
            stack[-1].spans.append(span)
            stack.append(span)
        elif index in closing:
            span = stack.pop()
            span.last, span.end = word, used
        else:
            at_edge = word < 0 or (word == len(words) - 1 and not in_word)
            if kind in ("open", "close") and end == index and not at_edge:
                return None
            filler += "".join(text for _, text, _ in tape[index : end + 1])  # a pair around nothing
            is_mark |= kind != "space"
            index = end
        index += 1
    if filler:
        stack[-1].fillers.append(Filler(filler, word, used, index - 1, is_mark))
    return stack[0]


def _pairs(paragraph: Paragraph, tape: Sequence[tuple[str, str, int]]) -> dict[int, int]:
    """Return the place of the closing tag for each opening tag that has one."""
    stack: list[tuple[str, int]] = []
    waiting: Counter[str] = Counter()
    found: dict[int, int] = {}
    for index, (kind, _, number) in enumerate(tape):
        if kind == "open":
            stack.append((name := paragraph.events[number].name, index))
            waiting[name] += 1
        elif kind == "close" and waiting[name := paragraph.events[number].name]:
            opened = None
            while opened != name:
                opened, start = stack.pop()
                waiting[opened] -= 1
                found[start] = index
                if opened != name:
                    del found[start]
    return found
