"""A paragraph: text and inline marks -> sentences of plain words, and where the marks stand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from nmt.text import without_surrogates
from nmt.text.sentences import split_sentences

Kind = Literal["text", "open", "close", "void", "break"]


@dataclass(frozen=True, slots=True)
class Event:
    """Part of a paragraph."""

    # ``void`` stands between or in words, as an image or a code span; ``break`` parts words.
    kind: Kind
    raw: str  # The characters of the document.
    text: str = ""  # What they say, if this is text: without entities.
    name: str = ""  # Pairs an ``open`` with its ``close``.


class Word(NamedTuple):
    """Text without white space."""

    text: str
    start: int  # Place in the text of the paragraph.
    sentence: int


def core_of(word: str) -> tuple[int, int]:
    """Return start and end of a word without the signs around it; a word of signs has no core.

    >>> core_of('"Hi!"'), core_of("--")
    ((1, 3), (0, 0))
    """
    places = [place for place, character in enumerate(word) if character.isalnum()]
    return (places[0], places[-1] + 1) if places else (0, 0)


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Text that is translated together: tags may span its sentences."""

    events: tuple[Event, ...]
    words: tuple[Word, ...]
    sentences: tuple[str, ...]  # With one space between words.

    def tape(self) -> Iterator[tuple[str, str, str]]:
        """Yield the paragraph in order, as kind, text and name.

        Kinds are those of events but ``text``; ``space``; and ``word`` and ``piece``, the first and
        further pieces of a word, which is cut at marks, and at its core.
        """
        place = number = 0
        for event in self.events:
            if event.kind != "text":
                yield event.kind, event.raw, event.name
                place += event.kind == "break"
                continue
            begin, end = place, place + len(event.text)
            while place < end:
                word = self.words[number] if number < len(self.words) else Word("", end, 0)
                if place < word.start:
                    kind, stop = "space", word.start
                else:
                    kind = "word" if place == word.start else "piece"
                    cuts = (*core_of(word.text), len(word.text))
                    stop = word.start + min(cut for cut in cuts if word.start + cut > place)
                stop = min(stop, end)
                yield kind, event.text[place - begin : stop - begin], ""
                place = stop
                number += kind != "space" and stop == word.start + len(word.text)


def read_paragraph(events: Iterable[Event], language: str) -> Paragraph:
    """Find the words of a paragraph and its sentences, which do not depend on its marks."""
    events = tuple(events)
    plain = "".join(" " if event.kind == "break" else event.text for event in events)
    plain = without_surrogates(plain)
    parts = map(str.strip, split_sentences(" ".join(plain.split()), language))
    sentences = tuple(filter(None, parts))
    words: list[Word] = []
    place = 0
    for number, sentence in enumerate(sentences):
        for text in sentence.split():
            start = plain.index(text, place)  # what stands before it is white space
            words.append(Word(text, start, number))
            place = start + len(text)
    return Paragraph(events, tuple(words), sentences)
