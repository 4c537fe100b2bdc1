"""Word alignment -> where the marks of a paragraph stand in its translation.

Each pair of tags goes around one run of target words: the run that holds most words aligned to its
own and fewest aligned to others. A pair inside another stays inside it, and neighbours do not
overlap, so the result is balanced and nested as the source is, and each tag is written once. (The
inline tags of Bergamot are closed and opened again wherever the aligned words are apart.)

A pair none of whose words is aligned goes around the free word nearest to its relative position; if
its surroundings have no free word, to their end, around nothing. A line break in the text keeps its
relative position; other white space becomes one space.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from nmt.extras.serving.documents.paragraph import Paragraph, Word
from nmt.extras.serving.documents.spans import Filler, Span, read_spans

Links = Iterable[tuple[int, int]]
"""(source word, target word) of one sentence, from 0."""
Translation = tuple[str, Links | None]
"""The text of a sentence, and its links; None: words are linked by their relative position."""
Escape = Callable[[str, bool], str]
"""Writes text in the format of a document; True: it stands at the start of a line."""

_MOST_TAGS, _MOST_WORK = 400, 1 << 16
"""Pairs of tags in a paragraph, and pairs times words; beyond, marks keep their order."""


class _Layout:
    """The translation of a paragraph under construction."""

    def __init__(
        self, paragraph: Paragraph, translations: Sequence[Translation], joiner: str
    ) -> None:
        self.words: list[str] = []
        self.links: list[list[int]] = []  # of each source word
        self.starts: list[tuple[int, int, int, int]] = []  # of each source word's sentence
        self.gaps: list[str] = []  # before each word
        sizes = Counter(word.sentence for word in paragraph.words)
        for sentence, (text, links) in enumerate(translations):
            found, size = text.split(), sizes[sentence]
            source, target = len(self.links), len(self.words)
            self.starts += [(source, size, target, len(found))] * size
            self.links += [[] for _ in range(size)]
            self.words += found
            self.gaps += ([joiner] + [" "] * len(found))[: len(found)]
            for i, j in _diagonal(size, len(found)) if links is None else links:
                if 0 <= i < size and 0 <= j < len(found):
                    self.links[source + i].append(target + j)
        count = len(self.words)
        self.num_links = Counter(j for own in self.links for j in own)
        self.owners: list[Span | None] = [None] * count
        # Marks of each word, with the number of its characters before them; in order.
        self.opened: list[list[tuple[int, str]]] = [[] for _ in range(count)]
        self.closed: list[deque[tuple[int, str]]] = [deque() for _ in range(count)]
        # Words that stay as they were, with marks in them: source word; marks.
        self.kept: dict[int, int] = {}
        self.inside: dict[int, list[tuple[int, int, str]]] = {}  # index, offset, mark
        self.filled: set[int] = set()  # gaps

    def relative(self, word: int) -> int:
        """Return the target word at the relative position of a source word in its sentence."""
        if word == len(self.links):
            return len(self.words)
        source, size, target, count = self.starts[word]
        return target + ((word - source) * count + size // 2) // size

    def kept_word(self, word: int, text: str, around: Span) -> int | None:
        """Return the target word that a source word became unchanged, in what is ``around`` it."""
        for j in self.links[word]:
            is_free = self.owners[j] is around or self.kept.get(j) == word
            if self.words[j] == text and is_free:
                return j
        return None

    def claim(self, span: Span, around: Span) -> bool:
        """Find the run of words for a pair of tags; False if no word is free."""
        own = Counter(
            j
            for links in self.links[span.first : span.last + 1]
            for j in links
            if self.owners[j] is around
        )
        if not own:
            free = [j for j in range(around.left, around.right + 1) if self.owners[j] is around]
            if not free:
                return False
            middle = self.relative((span.first + span.last) // 2)
            own[min(free, key=lambda j: abs(j - middle))] = 1
        best, total, start = -math.inf, 0.0, 0
        for j in range(min(own), max(own) + 1):
            if self.owners[j] is not around:
                total = 0.0
                continue
            if total <= 0:
                total, start = 0.0, j
            total += 2 * own[j] / self.num_links[j] - 1 if self.num_links[j] else 0
            if total > best:
                best, span.left, span.right = total, start, j
        self.owners[span.left : span.right + 1] = [span] * (span.right + 1 - span.left)
        return True

    def place(self, root: Span, words: Sequence[Word]) -> None:
        """Place all that stands in a paragraph, but not at its ends; surroundings first."""
        root.right = len(self.words) - 1
        root.close_at = len(self.words[-1])
        self.owners = [root] * len(self.words)
        waiting = [root]
        while waiting:
            around = waiting.pop()
            for span in around.spans:
                if not (self.keep(span, around, words) or self.claim(span, around)):
                    self.close_in(around, _hollow(span))
                    span.left = -1
            for filler in around.fillers:
                self.add_filler(filler, around, words)
            placed = [span for span in around.spans if span.left >= 0]
            for span in placed:
                if not span.is_kept:
                    self.add_tags(span, around, words)
            waiting += placed

    def keep(self, span: Span, around: Span, words: Sequence[Word]) -> bool:
        """Place a pair of tags in a word that stays as it was."""
        text = words[span.first].text
        if span.first != span.last or (span.start == 0 and span.end == len(text)):
            return False
        if (j := self.kept_word(span.first, text, around)) is None:
            return False
        span.left = span.right = j
        span.is_kept = True
        span.open_at, span.close_at = span.start, span.end
        self.kept[j], self.owners[j] = span.first, span
        opening = (span.indices[0], span.start, span.opening)
        self.inside.setdefault(j, []).extend([opening, (span.indices[1], span.end, span.closing)])
        return True

    def add_tags(self, span: Span, around: Span, words: Sequence[Word]) -> None:
        """Put tags around the words of a span, with as many signs in them as there were."""
        head, tail = words[span.first].text[span.start :], words[span.last].text[: span.end]
        first, last = self.words[span.left], self.words[span.right]
        signs = _core(head)[0], len(tail) - _core(tail)[1]  # those in it
        span.open_at = max(0, _core(first)[0] - signs[0])
        span.close_at = min(len(last), _core(last)[1] + signs[1])
        if span.left == around.left:
            span.open_at = max(span.open_at, around.open_at)
        if span.right == around.right:
            span.close_at = min(span.close_at, around.close_at)
        self.open_in(span, span.opening)
        self.close_in(span, span.closing)

    def open_in(self, span: Span, text: str) -> None:
        """Put a mark at the start of a span."""
        self.opened[span.left].append((span.open_at, text))

    def close_in(self, span: Span, text: str) -> None:
        """Put a mark at the end of a span, before those that are there."""
        if span.close_at < len(self.words[span.right]):
            text = text.strip()
        self.closed[span.right].appendleft((span.close_at, text))

    def add_filler(self, filler: Filler, span: Span, words: Sequence[Word]) -> None:
        """Place what stands between words of a span, or in one; not at the ends of the text."""
        text, word = filler.text, filler.word
        if span.is_kept or (word >= 0 and filler.offset < len(words[word].text)):
            self.add_in_word(filler, span, words)
        elif not filler.is_mark:
            gap = self.relative(word + 1)
            is_inner = span.first <= word < span.last and span.left < gap <= span.right
            # One line break is enough: two would end a paragraph.
            if "\n" in text and is_inner and gap not in self.filled:
                self.gaps[gap] = text
                self.filled.add(gap)
        elif word < span.first:
            self.open_in(span, text.strip() if span.open_at else text.lstrip())
        elif word >= span.last:
            self.close_in(span, text.rstrip())
        elif words[word].sentence != words[word + 1].sentence:
            self.add_to_gap(self.relative(word + 1), text, span)
        elif not text[0].isspace() or text[-1].isspace():
            self.add_to_gap(max(self.near(word, span)) + 1, text, span)
        else:
            source, target = words[word + 1].text, min(self.near(word + 1, span))
            if _is_signs(source) and not _is_signs(self.words[target]):  # they joined a word
                self.add_before_signs(max(self.near(word, span)), filler, span)
            else:
                self.add_to_gap(target, text, span)

    def add_in_word(self, filler: Filler, span: Span, words: Sequence[Word]) -> None:
        """Place what stands in a word: in its translation only if that is the same."""
        word = filler.word
        if span.is_kept:
            offset = filler.offset if word == span.first else span.start
            self.inside[span.left].append((filler.index, offset, filler.text))
        elif (j := self.kept_word(word, words[word].text, span)) is not None:
            self.inside.setdefault(j, []).append((filler.index, filler.offset, filler.text))
        else:
            self.add_to_gap(max(self.near(word, span)) + 1, filler.text, span, replaces=False)

    def add_before_signs(self, word: int, filler: Filler, span: Span) -> None:
        """Put a filler behind a target word, but before its last signs."""
        end = _core(self.words[word])[1]
        if end < len(self.words[word]) and self.owners[word] is span:
            self.inside.setdefault(word, []).append((filler.index, end, filler.text))
        else:
            self.add_to_gap(word + 1, filler.text + " ", span)

    def near(self, word: int, span: Span) -> list[int]:
        """Return the target words of a source word, in a span; else the one at its place."""
        found = [j for j in self.links[word] if span.left <= j <= span.right]
        return found or [min(max(self.relative(word), span.left), span.right)]

    def add_to_gap(self, gap: int, text: str, span: Span, *, replaces: bool = True) -> None:
        """Put text before a target word, at the place of the space, but in no span of a span."""
        gap = max(gap, span.left + 1)
        if gap <= span.right and (owner := self.owners[gap]) is self.owners[gap - 1] is not span:
            gap = owner.right + 1 if owner else gap
        if gap > span.right:
            self.close_in(span, text.rstrip())
        elif not replaces:
            self.gaps[gap] = text + self.gaps[gap]
        elif gap in self.filled:
            self.gaps[gap] += " ".join(text.split())
        else:
            self.gaps[gap] = text
        self.filled.add(gap)

    def text(self, escape: Escape) -> Iterator[str]:
        """Yield the words, with all that was placed."""
        for j, word in enumerate(self.words):
            gap = self.gaps[j] if j else ""
            starts_line = not j or "\n" in gap
            marks = [*self.opened[j], *(mark[1:] for mark in sorted(self.inside.get(j, ())))]
            middle = len(marks)
            marks += self.closed[j]
            if starts_line and escape(word, True) != escape(word, False):  # in one piece
                marks = [(len(word) * (i >= middle), mark) for i, (_, mark) in enumerate(marks)]
            yield gap
            place = 0
            for offset, mark in (*marks, (len(word), "")):
                if offset > place:
                    yield escape(word[place:offset], starts_line and not place)
                    place = offset
                yield mark


def _core(word: str) -> tuple[int, int]:
    """Return start and end of a word without the signs before and behind it.

    >>> _core('"Hi!"'), _core("--")
    ((1, 3), (0, 2))
    """
    places = [place for place, character in enumerate(word) if character.isalnum()]
    return (places[0], places[-1] + 1) if places else (0, len(word))


def _is_signs(text: str) -> bool:
    return not any(map(str.isalnum, text))


def _hollow(span: Span) -> str:
    """Write a pair of tags for which there is no word; emphasis of Markdown needs one."""
    inner = "".join(x.text for x in span.fillers if x.is_mark) + "".join(map(_hollow, span.spans))
    return span.opening + inner + span.closing if span.opening.strip("*_~") else inner


def _diagonal(size: int, count: int) -> Iterator[tuple[int, int]]:
    """Link words of two texts by their relative positions.

    >>> list(_diagonal(2, 4)), list(_diagonal(2, 1))
    ([(0, 0), (0, 1), (1, 2), (1, 3)], [(0, 0), (1, 0)])
    """
    for i in range(size):
        start = i * count // size
        for j in range(start, max(start + 1, (i + 1) * count // size)):
            yield i, j


def render(
    paragraph: Paragraph, translations: Sequence[Translation], joiner: str, escape: Escape
) -> str:
    """Write a paragraph's translation with its marks.

    Args:
        paragraph: The source.
        translations: Of each sentence.
        joiner: What stands between sentences of the target language.
        escape: Of the document's format.
    """
    layout, root = _Layout(paragraph, translations, joiner), read_spans(paragraph)
    num_tags = sum(event.kind == "open" for event in paragraph.events)
    is_costly = num_tags > _MOST_TAGS or num_tags * len(layout.words) > _MOST_WORK
    if root is None or is_costly or not layout.words:
        return "".join(_in_order(paragraph, layout, escape))
    ends = (
        [x for x in root.fillers if x.word < 0],
        [
            x
            for x in root.fillers
            if x.word >= root.last and x.offset == len(paragraph.words[-1].text)
        ],
    )
    root.fillers = [x for x in root.fillers if x not in (*ends[0], *ends[1])]
    layout.place(root, paragraph.words)
    before, after = ("".join(x.text for x in side) for side in ends)
    return before + "".join(layout.text(escape)) + after


def _in_order(paragraph: Paragraph, layout: _Layout, escape: Escape) -> Iterator[str]:
    """Yield all marks in the order of the source, words at their relative positions."""
    done, gap, last = 0, "", -1
    is_parted = True  # whether something stands behind the last word that parts it from the next
    for kind, text, number in paragraph.tape():
        if kind == "space":
            gap = text
        elif kind != "part":
            if kind != "close":
                yield gap
                is_parted, gap = is_parted or bool(gap) or kind == "break", ""
            yield text
        elif number != last:
            last = number
            is_last = number + 1 == len(paragraph.words)
            stop = len(layout.words) if is_last else max(done, layout.relative(number + 1))
            for j in range(done, stop):
                between = gap or ("" if is_parted else layout.gaps[j])
                yield between
                yield escape(layout.words[j], not j or "\n" in between)
                is_parted, gap = False, ""
            done = stop
    yield gap
