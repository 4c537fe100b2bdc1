"""A paragraph: text and inline marks -> sentences, and their translations with the marks again.

Words are cut into pieces, at marks and at the signs around them, and a pair of tags goes around one
run of target pieces: the run with most pieces aligned to the source pieces of the pair, and fewest
aligned to others. A pair inside another stays inside it, and neighbours do not overlap, so the
result is balanced and nested as the source is, and each tag is written once. (The inline tags of
Bergamot are closed and opened again wherever the aligned words are apart.)

What stands between two pieces, such as a picture, follows the translation of the piece before it. A
pair none of whose pieces is aligned goes around the free piece nearest to its relative position; if
its surroundings have no free piece, to their end, around nothing. A line break in the text keeps
its relative position; other white space becomes one space.
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
# The text of a sentence, and its links; None: words are linked by their relative position.
Translation = tuple[str, Links | None]
Escape = Callable[[str], str]  # Writes text in the format of a document.
# Source pieces inside of all pairs of tags; beyond, in tags nested hundreds deep, no tag is paired.
_MOST_WORK = 1 << 18


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

    @classmethod
    def read(cls, events: Iterable[Event], language: str) -> Paragraph:
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
        return cls(events, tuple(words), sentences)

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

    def render(self, translations: Sequence[Translation], joiner: str, escape: Escape) -> str:
        """Write the translation with the marks.

        Args:
            translations: Of each sentence.
            joiner: What stands between sentences of the target language.
            escape: Of the document's format.
        """
        layout = _Layout(self, translations)
        if not layout.pieces:
            return layout.marks(layout.root)
        layout.place()
        return "".join(layout.text(joiner, escape))


def ends_of(marks: Sequence[tuple[str, str]]) -> dict[int, int]:
    """Return for each ``open`` the place of the ``close`` that ends it, if there is one.

    Args:
        marks: Kind and name. What is not closed ends with what it stands in: with another name.
    """
    stack: list[int] = []
    waiting: Counter[str] = Counter()
    found: dict[int, int] = {}
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
    """A pair of tags, or the whole paragraph: what it is around, in the source and the target."""

    opening: str = ""
    closing: str = ""
    first: int = 0  # Its first source piece.
    last: int = -1
    start: int = 0  # its places in the tape
    end: int = 0
    pairs: list[_Pair] = field(default_factory=list)
    # Other marks, and white space: the source piece that follows, and the text.
    fillers: list[tuple[int, str]] = field(default_factory=list)
    left: int = 0  # Its first target piece.
    right: int = -1


def _read(tape: Sequence[tuple[str, str, str]]) -> tuple[_Pair, list[list[str]]]:
    """Return the tree of tags, and the pieces of each word."""
    before = [*accumulate((kind in ("word", "piece") for kind, _, _ in tape), initial=0)]  # pieces
    ends = ends_of([(kind, name) for kind, _, name in tape])
    # A pair around no piece is a mark like a picture, as is a tag without its partner.
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
    """Yield for each piece of a word: -1 for signs before it, 0 for its core, 1 for signs behind.

    >>> [*_roles(['"', "Hi", "!"])], [*_roles(["--"])]
    ([-1, 0, 1], [1])
    """
    start, end = core_of("".join(pieces))
    for offset in accumulate(map(len, pieces[:-1]), initial=0):
        yield (offset >= end) - (offset < start)


class _Layout:
    """The translation of a paragraph under construction.

    Args:
        paragraph: The source.
        translations: Of each sentence.
    """

    def __init__(self, paragraph: Paragraph, translations: Sequence[Translation]) -> None:
        self.tape = [*paragraph.tape()]
        self.root, words = _read(self.tape)
        numbers = [*accumulate(map(len, words), initial=0)]
        self.links: list[list[int]] = [[] for _ in range(numbers[-1])]  # of each source piece
        self.sentences: list[tuple[int, int, int, int]] = []  # of each source piece: see `relative`
        self.pieces: list[str] = []
        self.begins: list[str] = []  # "word", "sentence" or nothing, of each target piece
        start = 0
        for source, (text, links) in zip(paragraph.sentences, translations, strict=True):
            size, targets, first = len(source.split()), text.split(), len(self.pieces)
            linked: dict[int, list[int]] = defaultdict(list)
            diagonal = ((i, i * len(targets) // size) for i in range(size))
            for i, j in diagonal if links is None else links:
                if 0 <= i < size:
                    linked[j].append(start + i)
            for j, word in enumerate(targets):
                # A word that stays as it was keeps the marks in it.
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
        self.gaps: dict[int, str] = {}  # marks before a piece, in place of white space

    def relative(self, piece: int) -> int:
        """Return the target piece at the relative position of a source piece in its sentence."""
        source, size, target, count = self.sentences[piece]
        return min(target + ((piece - source) * count + size // 2) // size, len(self.pieces) - 1)

    def claim(self, pair: _Pair, around: _Pair) -> bool:
        """Find the run of pieces for a pair of tags; False if no piece is free."""
        links = chain(*self.links[pair.first : pair.last + 1])
        own = Counter(q for q in links if self.owners[q] is around)
        if not own:
            free = [q for q in range(around.left, around.right + 1) if self.owners[q] is around]
            if not free:
                return False
            middle = self.relative((pair.first + pair.last) // 2)
            own[min(free, key=lambda q: abs(q - middle))] = 1
        best, total, start = -math.inf, 0.0, 0
        for q in range(min(own), max(own) + 1):  # the run of the largest sum
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
        """Return all of a pair but its text, for which there is no place."""
        inside = self.tape[pair.start : pair.end]
        return "".join(text for kind, text, _ in inside if kind not in ("word", "piece", "space"))

    def place(self) -> None:
        """Place all tags and fillers; surroundings first."""
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
                else:  # with the white space that was beside it
                    space = " " * (not text[-1].isspace() and gap not in self.links[number])
                    text = text + space if self.begins[gap] else text.strip()
                    self.gaps[gap] = self.gaps.get(gap, "") + text
            self.after[around.right].appendleft(behind)

    def gap(self, number: int, pair: _Pair, *, is_mark: bool) -> int:
        """Return the target piece before which a filler stands that a source piece follows."""
        if not is_mark:
            gap = self.relative(number)
            while not self.begins[gap]:
                gap -= 1
            return max(gap, pair.left + 1)
        before = [q for q in self.links[number - 1] if pair.left <= q <= pair.right]
        gap = max(before or [self.relative(number - 1)]) + 1
        if self.sentences[number - 1] != self.sentences[number]:
            gap = self.sentences[number][2]
        elif gap not in self.links[number]:  # as in a word that stayed
            while gap < len(self.pieces) and not self.begins[gap]:
                gap += 1
        gap = max(gap, pair.left + 1)
        if gap <= pair.right and (owner := self.owners[gap]) is self.owners[gap - 1] is not pair:
            gap = owner.right + 1 if owner else gap  # not in a pair inside
        return gap

    def text(self, joiner: str, escape: Escape) -> Iterator[str]:
        """Yield the pieces, with all that was placed."""
        spaces = {"": "", "word": " ", "sentence": joiner}
        for q, piece in enumerate(self.pieces):
            yield self.gaps.get(q, spaces[self.begins[q]]) if q else ""
            yield self.before[q] + escape(piece)
            yield from self.after[q]
