"""Translate one paragraph with inline tags, and insert the tags into the translation.

In this module a *mark* is a tag or another element inside a paragraph, such as a picture. A *piece*
is a part of a word: words are split at marks and at their punctuation.

Each pair of tags encloses one run of target pieces: the run with the most pieces that are aligned
to source pieces inside the pair, and the fewest aligned to source pieces outside. Inner pairs stay
inside outer pairs, and neighbouring pairs do not overlap. So the result is balanced and nested like
the source, and each tag is written once. (Bergamot instead closes and reopens inline tags wherever
the aligned words are apart.)

A mark between two pieces follows the translation of the piece before it. A target piece is
free if no other inner pair encloses it. If no source piece of a pair is aligned to a free piece,
the pair encloses the free piece nearest to the pair's relative position in the sentence. If the
outer pair has no free piece, the empty pair is put at its end. Line breaks keep their relative
positions; other white space becomes a single space.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Literal, NamedTuple

from nmt.text import without_surrogates
from nmt.text.sentences import split_sentences

Kind = Literal["text", "open", "close", "void", "break"]
Links = Iterable[tuple[int, int]]  # (source word, target word) of one sentence, from 0.
# The text of a sentence and its links. None links words by their relative positions.
Translation = tuple[str, Links | None]
Escape = Callable[[str], str]  # Escapes text for the format of a document.
# Limit for the sum of source pieces in all pairs of tags. Beyond it (tags nested hundreds deep), no
# tags are paired.
_MOST_WORK = 1 << 18


@dataclass(frozen=True, slots=True)
class Event:
    """A run of text, a tag, or another element of a paragraph."""

    # ``void`` is an element between or inside words, such as an image; ``break`` separates words.
    kind: Kind
    raw: str  # The characters of the document.
    text: str = ""  # If this is text: the characters without entities.
    name: str = ""  # Name of the tag: an ``open`` ends with the ``close`` of the same name.


class Word(NamedTuple):
    """A run of characters without white space."""

    text: str
    start: int  # Offset in the text of the paragraph.
    sentence: int


def core_of(word: str) -> tuple[int, int]:
    """Return start and end of a word without punctuation. A word of punctuation has no core.

    >>> core_of('"Hi!"'), core_of("--")
    ((1, 3), (0, 0))
    """
    places = [place for place, character in enumerate(word) if character.isalnum()]
    return (places[0], places[-1] + 1) if places else (0, 0)


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph of a document. Tags may span several of its sentences."""

    events: tuple[Event, ...]
    words: tuple[Word, ...]
    sentences: tuple[str, ...]  # Words are separated by single spaces.

    @classmethod
    def read(cls, events: Iterable[Event], language: str) -> Paragraph:
        """Split a paragraph into sentences and words, ignoring its marks."""
        events = tuple(events)
        plain = "".join(" " if event.kind == "break" else event.text for event in events)
        plain = without_surrogates(plain)
        parts = map(str.strip, split_sentences(" ".join(plain.split()), language))
        sentences = tuple(filter(None, parts))
        words = list[Word]()
        place = 0
        for number, sentence in enumerate(sentences):
            for text in sentence.split():
                start = plain.index(text, place)  # skips only white space
                words.append(Word(text, start, number))
                place = start + len(text)
        return cls(events, tuple(words), sentences)

    def tape(self) -> Iterator[tuple[str, str, str]]:
        """Yield the elements of the paragraph in order, as kind, text and name.

        Text is split into ``space``, ``word`` (the first piece of a word) and ``piece`` (its other
        pieces). The other kinds are the kinds of events.
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

    def render(self, translations: Sequence[Translation], joiner: str, escape: Escape) -> str:
        """Write the translation with the marks of the source.

        Args:
            translations: Text and alignment of each sentence.
            joiner: Separator between sentences of the target language.
            escape: Escapes text for the format of the document.
        """
        layout = _Layout(self, translations)
        if not layout.pieces:
            return layout.marks(layout.root)
        layout.place()
        return "".join(layout.text(joiner, escape))


def ends_of(marks: Sequence[tuple[str, str]]) -> dict[int, int]:
    """Return for each ``open`` the index of the ``close`` that ends it, if there is one.

    An unclosed tag ends with the tag around it, so the names of the two marks can differ.

    Args:
        marks: Kind and name of each mark.
    """
    stack = list[int]()
    waiting = Counter[str]()
    found = dict[int, int]()
    for place, (kind, name) in enumerate(marks):
        if kind == "open":
            stack.append(place)
            waiting[name] += 1
        while kind == "close" and waiting[name]:
            start = stack.pop()
            found[start] = place
            waiting[marks[start][1]] -= 1
            if marks[start][1] == name:
                break
    return found


@dataclass(slots=True, eq=False)
class _Pair:
    """A pair of tags, or the whole paragraph, with its pieces in the source and the target."""

    opening: str = ""
    closing: str = ""
    first: int = 0  # Its first source piece.
    last: int = -1
    start: int = 0  # Its range in the tape.
    end: int = 0
    pairs: list[_Pair] = field(default_factory=list)
    # Other marks and white space: the index of the next source piece, and the text.
    fillers: list[tuple[int, str]] = field(default_factory=list)
    left: int = 0  # Its first target piece.
    right: int = -1


def _read(tape: Sequence[tuple[str, str, str]]) -> tuple[_Pair, list[list[str]]]:
    """Return the tree of tag pairs, and the pieces of each word."""
    before = [*accumulate((kind in ("word", "piece") for kind, _, _ in tape), initial=0)]  # pieces
    ends = ends_of([(kind, name) for kind, _, name in tape])
    # An empty pair, or a tag without its partner, is treated like a picture.
    ends = {a: b for a, b in ends.items() if tape[a][2] == tape[b][2] and before[a] < before[b]}
    if sum(before[b] - before[a] for a, b in ends.items()) > _MOST_WORK:
        ends = {}
    closing = set(ends.values())
    root, words, filler = _Pair(last=before[-1] - 1, end=len(tape)), list[list[str]](), ""
    stack = [root]
    for index, (kind, text, _) in enumerate([*tape, ("end", "", "")]):
        if not (kind in ("word", "piece", "end") or index in ends or index in closing):
            filler += text
            continue
        if filler:
            stack[-1].fillers.append((before[index], filler))
            filler = ""
        if index in ends:
            end = ends[index]
            pair = _Pair(text, tape[end][1], before[index], before[end] - 1, index, end + 1)
            stack[-1].pairs.append(pair)
            stack.append(pair)
        elif index in closing:
            stack.pop()
        elif kind == "word":
            words.append([text])
        elif kind == "piece":
            words[-1].append(text)
    return root, words


def _roles(pieces: Sequence[str]) -> Iterator[int]:
    """Yield for each piece of a word: -1 for leading punctuation, 0 for the core, 1 for trailing.

    >>> [*_roles(['"', "Hi", "!"])], [*_roles(["--"])]
    ([-1, 0, 1], [1])
    """
    start, end = core_of("".join(pieces))
    for offset in accumulate(map(len, pieces[:-1]), initial=0):
        yield (offset >= end) - (offset < start)


class _Layout:
    """Places the marks of a source paragraph in its translation.

    Args:
        paragraph: The source.
        translations: Text and alignment of each sentence.
    """

    def __init__(self, paragraph: Paragraph, translations: Sequence[Translation]) -> None:
        self.tape = [*paragraph.tape()]
        self.root, words = _read(self.tape)
        numbers = [*accumulate(map(len, words), initial=0)]
        # For each source piece: the aligned target pieces, and its sentence (see `relative`).
        self.links: list[list[int]] = [[] for _ in range(numbers[-1])]
        self.sentences = list[tuple[int, int, int, int]]()
        self.pieces = list[str]()
        self.begins = list[str]()  # for each target piece: "word", "sentence" or ""
        start = 0
        for source, (text, links) in zip(paragraph.sentences, translations, strict=True):
            size, targets, first = len(source.split()), text.split(), len(self.pieces)
            linked: dict[int, list[int]] = defaultdict(list)
            diagonal = ((i, i * len(targets) // size) for i in range(size))
            for i, j in diagonal if links is None else links:
                if 0 <= i < size:
                    linked[j].append(start + i)
            for j, word in enumerate(targets):
                # A word that the translation copies keeps the marks inside it.
                twin = next((i for i in linked[j] if "".join(words[i]) == word), -1)
                a, b = core_of(word)
                cut = [*filter(None, (word[:a], word[a:b], word[b:]))]
                parts = words[twin] if twin >= 0 else cut
                places: dict[int, list[int]] = defaultdict(list)
                for place, role in enumerate(_roles(parts), len(self.pieces)):
                    places[role].append(place)
                for i in linked[j]:
                    for p, role in enumerate(_roles(words[i])):
                        own = [len(self.pieces) + p] if i == twin else places[role]
                        self.links[numbers[i] + p] += own
                self.pieces += parts
                self.begins += ["word" if j else "sentence", *[""] * (len(parts) - 1)]
            begin, start = numbers[start], start + size
            count = numbers[start] - begin
            self.sentences += [(begin, count, first, len(self.pieces) - first)] * count
        self.num_links = Counter(q for own in self.links for q in own)
        self.owners: list[_Pair | None] = [None] * len(self.pieces)
        self.before = [""] * len(self.pieces)
        self.after: list[deque[str]] = [deque() for _ in self.pieces]
        self.gaps = dict[int, str]()  # marks that replace the white space before a piece

    def relative(self, piece: int) -> int:
        """Return the target piece with the relative position of a source piece in its sentence."""
        source, size, target, count = self.sentences[piece]
        return min(target + ((piece - source) * count + size // 2) // size, len(self.pieces) - 1)

    def claim(self, pair: _Pair, around: _Pair) -> bool:
        """Find the run of target pieces for a pair of tags. Returns False if no piece is free."""
        links = chain(*self.links[pair.first : pair.last + 1])
        own = Counter(q for q in links if self.owners[q] is around)
        if not own:
            free = [q for q in range(around.left, around.right + 1) if self.owners[q] is around]
            if not free:
                return False
            middle = self.relative((pair.first + pair.last) // 2)
            own[min(free, key=lambda q: abs(q - middle))] = 1
        best, total, start = -math.inf, 0.0, 0
        for q in range(min(own), max(own) + 1):  # finds the run with the largest sum
            if self.owners[q] is not around:
                total = 0.0
                continue
            if total <= 0:
                total, start = 0.0, q
            total += 2 * own[q] / self.num_links[q] - 1 if self.num_links[q] else 0
            if total > best:
                best, pair.left, pair.right = total, start, q
        self.owners[pair.left : pair.right + 1] = [pair] * (pair.right + 1 - pair.left)
        return True

    def marks(self, pair: _Pair) -> str:
        """Return only the marks of a pair, without text, if the translation has no free piece."""
        inside = self.tape[pair.start : pair.end]
        return "".join(text for kind, text, _ in inside if kind not in ("word", "piece", "space"))

    def place(self) -> None:
        """Place all tags and fillers, outer pairs before inner pairs."""
        root = self.root
        root.right = len(self.pieces) - 1
        self.owners = [root] * len(self.pieces)
        waiting = [root]
        while waiting:
            around = waiting.pop()
            self.before[around.left] += around.opening
            self.after[around.right].appendleft(around.closing)
            for pair in around.pairs:
                if self.claim(pair, around):
                    waiting.append(pair)
                else:
                    self.after[around.right].appendleft(self.marks(pair))
            behind = ""
            for number, text in around.fillers:
                is_mark = bool(text.strip())
                if number <= around.first:
                    self.before[around.left] += text if around is root else text.lstrip()
                elif number > around.last:
                    behind += text if around is root else text.rstrip()
                elif (gap := self.gap(number, around, is_mark=is_mark)) > around.right:
                    behind += text.rstrip()
                elif not is_mark:
                    if "\n" in text and self.begins[gap]:
                        self.gaps.setdefault(gap, text)
                else:  # with its neighbouring white space
                    space = " " * (not text[-1].isspace() and gap not in self.links[number])
                    text = text + space if self.begins[gap] else text.strip()
                    self.gaps[gap] = self.gaps.get(gap, "") + text
            self.after[around.right].appendleft(behind)

    def gap(self, number: int, pair: _Pair, *, is_mark: bool) -> int:
        """Return the target piece before which a filler is placed.

        Args:
            number: The source piece after the filler.
            pair: The pair that contains the filler.
            is_mark: Whether the filler is a mark, not white space.
        """
        if not is_mark:
            gap = self.relative(number)
            while not self.begins[gap]:
                gap -= 1
            return max(gap, pair.left + 1)
        before = [q for q in self.links[number - 1] if pair.left <= q <= pair.right]
        gap = max(before or [self.relative(number - 1)]) + 1
        if self.sentences[number - 1] != self.sentences[number]:
            gap = self.sentences[number][2]
        elif gap not in self.links[number]:  # not inside a word that the translation copies
            while gap < len(self.pieces) and not self.begins[gap]:
                gap += 1
        gap = max(gap, pair.left + 1)
        if gap <= pair.right and (owner := self.owners[gap]) is self.owners[gap - 1] is not pair:
            gap = owner.right + 1 if owner else gap  # not inside an inner pair
        return gap

    def text(self, joiner: str, escape: Escape) -> Iterator[str]:
        """Yield the pieces with all placed marks."""
        spaces = {"": "", "word": " ", "sentence": joiner}
        for q, piece in enumerate(self.pieces):
            yield self.gaps.get(q, spaces[self.begins[q]]) if q else ""
            yield self.before[q] + escape(piece)
            yield from self.after[q]
