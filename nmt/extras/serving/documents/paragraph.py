"""A paragraph: text and inline marks -> sentences of plain words, and where the marks stand."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, NamedTuple

from nmt.text.sentences import SURROGATES, split_sentences

Kind = Literal["text", "open", "close", "void", "break"]


@dataclass(frozen=True, slots=True)
class Event:
    """A piece of a paragraph, as it stands in the document."""

    kind: Kind
    """``void`` stands between or in words, as an image or a code span; ``break`` parts words."""
    raw: str
    """The document's characters."""
    text: str = ""
    """What they say, if this is text: without entities and escapes."""
    name: str = ""
    """What pairs an ``open`` with its ``close``."""


class Word(NamedTuple):
    """Text without white space."""

    text: str
    start: int
    """Place in the text of the paragraph."""
    sentence: int

    @property
    def end(self) -> int:
        """Place behind it."""
        return self.start + len(self.text)


@dataclass(frozen=True, slots=True)
class Paragraph:
    """What is translated together: the words of all sentences are aligned, and tags span them."""

    events: tuple[Event, ...]
    words: tuple[Word, ...]
    """Sorted by sentence, and these numbered from 0."""

    @property
    def raw(self) -> str:
        """The paragraph as it stands in the document."""
        return "".join(event.raw for event in self.events)

    @property
    def sentences(self) -> list[str]:
        """The text of each sentence, with one space between words."""
        found: list[list[str]] = []
        for word in self.words:
            if word.sentence == len(found):
                found.append([])
            found[-1].append(word.text)
        return [" ".join(words) for words in found]

    def tape(self) -> Iterator[tuple[str, str, int]]:
        """Yield what stands in the paragraph, in order: kind, text, number.

        Kinds are those of events but ``text``, with the number of the event; ``space``; and
        ``part``, of the word of that number: all of it, or what stands before or behind a mark.
        """
        place, number, words = 0, 0, self.words
        for index, event in enumerate(self.events):
            if event.kind != "text":
                yield event.kind, event.raw, index
                place += event.kind == "break"
                continue
            begin, end = place, place + len(event.text)
            while place < end:
                start, stop = (
                    (words[number].start, words[number].end) if number < len(words) else (end, end)
                )
                inside = start <= place
                border = min(end, stop if inside else start)
                kind = "part" if inside else "space"
                yield kind, event.text[place - begin : border - begin], number
                place = border
                number += inside and place == stop


def read_paragraph(events: Iterable[Event], language: str) -> Paragraph:
    """Find the words of a paragraph and its sentences, which do not depend on its marks."""
    events = tuple(events)
    plain = "".join(" " if event.kind == "break" else event.text for event in events)
    plain = SURROGATES.sub("\ufffd", plain)
    runs = [(match[0], match.start()) for match in re.finditer(r"\S+", plain)]
    sentences = split_sentences(" ".join(text for text, _ in runs), language)
    ends = list(accumulate(map(len, sentences)))
    words: list[Word] = []
    current, count, place = 0, -1, 0  # place: in the text with one space between words
    last = -1
    for text, start in runs:
        begin = 0
        while begin < len(text):
            while ends[current] <= place + begin:
                current += 1
            stop = min(len(text), ends[current] - place)
            count += current != last
            last = current
            words.append(Word(text[begin:stop], start + begin, count))
            begin = stop
        place += len(text) + 1
    return Paragraph(events, tuple(words))
