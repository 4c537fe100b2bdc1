"""Take placeholders and tags out of a text, and insert them into its translation.

In this module a *mark* is a placeholder, a tag or another element inside a text, such as a picture.
A *piece* is a part of a word: words are split at marks and at their punctuation.

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
import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from random import Random
from typing import Literal, NamedTuple

from nmt.config.data import ANNOTATION, PLACEHOLDER
from nmt.text import without_surrogates
from nmt.text.sentences import split_text

Kind = Literal["text", "open", "close", "void", "break", "space", "word", "piece", "end"]
Links = Iterable[tuple[int, int]]  # (source word, target word) of one sentence, from 0.
# The text of a sentence and its links. None links words by their relative positions.
Translation = tuple[str, Links | None]
Escape = Callable[[str], str]  # Escapes text for the format of a document.
# Limit for the sum of source pieces in all pairs of tags. Beyond it (tags nested hundreds deep), no
# tags are paired.
_MOST_WORK = 1 << 18
_MOST_INSERTED = 32  # words of placeholders between two words of a text
_EMOJI = "\ufffc\u231a-\u23ff\u2600-\u27bf\u2b1b-\u2b55\U0001f000-\U0001faff"
_EMOJI_PARTS = "\u200d\u20e3\ufe0e\ufe0f\U000e0020-\U000e007f"  # joiners and variants
_LIST_MARK = r"[-*+#>\u2022\u2013]{1,6}(?=\s)"
_ESCAPED_BREAK = r"(?:\\[nrt]){2,}+|\\[nrt](?![a-z])"  # not C:\new
_ATTRIBUTE = r"""\s++[\w:.-]++=(?:"[^"]*+"|'[^']*+'|[^\s"'<>]++)"""
_TAG = re.compile(rf"<(/?)([a-zA-Z][\w:.-]*+)(?:{_ATTRIBUTE})*+\s*+/?>")
# None of them contains a numbered group, because patterns of the user may count groups.
_PLACEHOLDERS = (
    r"""\b(?:https?://|www\.)[^\s<>"']*[^\s<>"'.,;:!?)\]}*_~]""",
    r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{2,24})+",
    r"\{\{[^{}]{0,100}\}\}|[$#%]?\{[^{}\s]{0,100}\}",
    # The percent sign of a number, as in 100%, is not a placeholder.
    r"(?<![\d%])%(?:\(\w+\)|\d+\$)?[-+#0]*\d*(?:\.\d+)?(?:hh?|ll?|z)?[a-zA-Z@](?!\w)",
    # A formula, such as $x^2$, has no words of several letters but the names of TeX.
    r"(?<!\w)\$(?!\s)(?:\\[a-zA-Z]++|[a-zA-Z](?![^\W\d_])|(?!\$)[\W\d_]){1,100}(?<!\s)\$(?!\w)",
    r"(?<!\w)\$[a-zA-Z_]\w*+(?:\$(?!\w))?",
    rf"</?[a-zA-Z][\w:.-]*+(?:{_ATTRIBUTE})*+\s*+/?>",
    f"(?:[{_EMOJI}][{_EMOJI_PARTS}]*)+",
    # Marks of a list, a heading or a quotation; and line breaks that a program has escaped.
    rf"^{_LIST_MARK}",
    _ESCAPED_BREAK,
    # Keys and other data: long, or with three places where letters follow digits.
    "[a-zA-Z0-9+/=_-]{64,}",
    r"(?<![\w+/=-])(?=(?:[a-zA-Z0-9+/=_-]*?[0-9][a-zA-Z]){3})[a-zA-Z0-9+/=_-]{16,}",
)
# Text without these signs has none of the placeholders above. Quicker than searching for each.
SIGNS = re.compile(
    rf"^{_LIST_MARK}|[{{<%$@\\{_EMOJI}]|://|www\.|[a-zA-Z0-9+/=_-]{{64}}|[0-9][a-zA-Z]"
)
_PIECES = ("word", "piece")  # kinds of elements


@dataclass(frozen=True, slots=True)
class Event:
    """A run of text, a tag, or another element of a paragraph."""

    # ``void`` is an element between or inside words, such as an image; ``break`` separates words.
    # Text is split into ``space``, ``word`` (the first piece of a word) and ``piece`` (the others).
    kind: Kind
    raw: str  # The characters of the document.
    text: str = ""  # If this is text: the characters without entities.
    name: str = ""  # Name of the tag: an ``open`` ends with the ``close`` of the same name.


@lru_cache
def placeholder_pattern(protect: Sequence[str] = ()) -> re.Pattern[str]:
    """Return a pattern for all placeholders.

    Args:
        protect: Further patterns, which come first; see `DecodingConfig`.
    """
    alternatives = [f"(?:{pattern})" for pattern in (*protect, *_PLACEHOLDERS)]
    return re.compile("|".join(alternatives))


def mask_placeholders(text: str, protect: Sequence[str] = ()) -> str:
    """Replace each placeholder by a word of the same length, in which no sentence ends.

    A closing tag, an emoji or a line break, which may follow the end of a sentence, becomes white
    space.
    """

    def mask(match: re.Match[str]) -> str:
        length = len(match[0])
        if match[0].startswith(("</", "\\")) or not any(map(str.isalnum, match[0])):
            return " " * length
        return ("x" * length).capitalize()  # it may begin a sentence

    return placeholder_pattern(protect).sub(mask, text)


def text_events(
    raw: str,
    protect: Sequence[str] = (),
    decode: Callable[[str], str] = str,
    symbols: Container[str] = (),
) -> Iterator[Event]:
    """Yield text and, as separate events, its placeholders.

    Args:
        raw: The characters of the document.
        protect: See `placeholder_pattern`.
        decode: Converts entities to characters.
        symbols: Symbols of the vocabulary, which stay in the text.

    >>> [event.raw for event in text_events("{count} of 100% <b>%1$s</b> for $5: www.a.org.")]
    ['{count}', ' of 100% ', '<b>', '%1$s', '</b>', ' for $5: ', 'www.a.org', '.']
    """
    start = 0
    for match in placeholder_pattern(protect).finditer(raw):
        if not match[0] or match[0] in symbols:
            continue
        before = raw[start : match.start()]
        if before:
            yield Event("text", before, decode(before))
        yield _placeholder(match[0])
        start = match.end()
    rest = raw[start:]
    if rest:
        yield Event("text", rest, decode(rest))


def _placeholder(raw: str) -> Event:
    tag = _TAG.fullmatch(raw)
    if re.fullmatch(_ESCAPED_BREAK, raw):
        return Event("break", raw)
    if tag is None or raw.endswith("/>"):
        return Event("void", raw)
    slash, name = tag.groups()
    return Event("close" if slash else "open", raw, name=name)


def as_symbol(event: Event) -> Event:
    """Return a placeholder, unless it is a tag, as text: the symbol that the model reads."""
    if event.kind != "void":
        return event
    return Event("text", event.raw, PLACEHOLDER)


def with_symbols(
    source: str, target: str, *, share: float, protect: Sequence[str]
) -> tuple[str, str]:
    """Replace the placeholders of a training pair by symbols: see `PlaceholderConfig`.

    The result depends on the arguments only.

    >>> with_symbols("Hallo {x}!", "Hi {x}!", share=1.0, protect=())
    ('Hallo \ufffc!', 'Hi \ufffc!')
    """
    if not share or not (protect or SIGNS.search(source)):  # quicker for most pairs
        return source, target
    texts = []
    placeholders = []
    for text in (source, target):
        events = list(text_events(text, protect))
        placeholders.append([event.raw for event in events if event.kind == "void"])
        symbols = map(as_symbol, events)
        texts.append("".join(event.text or event.raw for event in symbols))
    has_same = placeholders[0] == placeholders[1]
    if not has_same or Random(f"{source}\n{target}").random() >= share:
        return source, target
    return texts[0], texts[1]


def core_of(word: str) -> tuple[int, int]:
    """Return start and end of a word without punctuation. A word of punctuation has no core.

    >>> core_of('"Hi!"'), core_of("--")
    ((1, 3), (0, 0))
    """
    places = [place for place, character in enumerate(word) if character.isalnum()]
    return (places[0], places[-1] + 1) if places else (0, 0)


def _pieces_of(word: str) -> list[str]:
    """Split a word into leading punctuation, core and trailing punctuation."""
    start, end = core_of(word)
    return [piece for piece in (word[:start], word[start:end], word[end:]) if piece]


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph of a document, or a sentence. Tags may span several sentences."""

    events: tuple[Event, ...]
    sentences: tuple[str, ...]  # Words are separated by single spaces.
    # Kind, start and end of each piece of a word and of the white space between words, in the text
    # without marks.
    runs: tuple[tuple[Kind, int, int], ...]

    @classmethod
    def read(
        cls,
        events: Iterable[Event],
        language: str,
        max_sentences: int | None = 1,
        max_characters: int | None = None,
    ) -> Paragraph:
        """Split a paragraph into sentences and words, ignoring its marks.

        Args:
            events: Its text and marks.
            language: Language of the text, for splitting sentences.
            max_sentences: See `split_text`.
            max_characters: See `split_text`.
        """
        events = tuple(events)
        plain = "".join(" " if event.kind == "break" else event.text for event in events)
        plain = without_surrogates(plain)
        line = " ".join(plain.split())
        split = split_text(line, language, max_sentences, max_characters)
        sentences = split.sentences
        runs: list[tuple[Kind, int, int]] = []
        end = 0  # of the last run
        for word in " ".join(sentences).split():
            start = plain.index(word, end)  # skips only white space
            runs.append(("space", end, start))
            kind: Kind = "word"
            for piece in _pieces_of(word):
                end = start + len(piece)
                runs.append((kind, start, end))
                start = end
                kind = "piece"
        runs.append(("space", end, len(plain)))
        return cls(events, sentences, tuple(runs))

    @property
    def has_marks(self) -> bool:
        """Whether there is more than text and symbols."""
        return any(event.kind != "text" for event in self.events)

    def elements(self) -> Iterator[Event]:
        """Yield the events in order, with text split into white space and pieces of words."""
        index = 0  # of the run at `place`
        place = 0  # in the text without marks
        for event in self.events:
            if event.kind != "text":
                yield event
                place += event.kind == "break"
                continue
            start = place
            end = start + len(event.text)
            while place < end:
                kind, run_start, run_end = self.runs[index]
                if run_end <= place:
                    index += 1
                    continue
                if kind == "word" and place > run_start:  # a mark divides the piece
                    kind = "piece"
                stop = min(run_end, end)
                yield Event(kind, event.text[place - start : stop - start])
                place = stop

    def render(
        self, translations: Sequence[Translation], joiner: str = " ", escape: Escape = str
    ) -> str:
        """Write the translation with the marks of the source, and without the source's symbols.

        Args:
            translations: Text and alignment of each sentence.
            joiner: Separator between sentences of the target language.
            escape: Escapes text for the format of the document.
        """
        text = _Layout(self, translations).write(joiner, escape)
        hidden = iter([event.raw for event in self.events if event.text == PLACEHOLDER])
        return re.sub(PLACEHOLDER, lambda match: next(hidden, match[0]), text)


def ends_of(events: Sequence[Event]) -> dict[int, int]:
    """Return for each ``open`` the index of the ``close`` that ends it, if there is one.

    An unclosed tag ends with the tag around it, so the names of the two can differ.
    """
    stack: list[int] = []
    num_open = Counter[str]()  # by name
    ends: dict[int, int] = {}
    for place, event in enumerate(events):
        if event.kind == "open":
            stack.append(place)
            num_open[event.name] += 1
        while event.kind == "close" and num_open[event.name]:
            start = stack.pop()
            ends[start] = place
            open_name = events[start].name
            num_open[open_name] -= 1
            if open_name == event.name:
                break
    return ends


@dataclass(slots=True, eq=False)
class _Pair:
    """A pair of tags, or the whole paragraph, with its pieces in the source and the target."""

    opening: str = ""
    closing: str = ""
    first: int = 0  # Its first source piece.
    last: int = -1
    start: int = 0  # Its range of elements.
    end: int = 0
    pairs: list[_Pair] = field(default_factory=list)
    # Other marks and white space: the index of the next source piece, and the text.
    fillers: list[tuple[int, str]] = field(default_factory=list)
    left: int = 0  # Its first target piece.
    right: int = -1


def _tree_of(elements: Sequence[Event]) -> tuple[_Pair, list[list[str]]]:
    """Return the tree of tag pairs, and the pieces of each word."""
    # Number of source pieces before each element, and of all.
    num_before = [*accumulate((element.kind in _PIECES for element in elements), initial=0)]
    ends = {}
    work = 0
    for start, end in ends_of(elements).items():
        num_pieces = num_before[end] - num_before[start]
        # An empty pair, or a tag without its partner, is treated like a picture.
        if elements[start].name == elements[end].name and num_pieces:
            ends[start] = end
            work += num_pieces
    if work > _MOST_WORK:
        ends = {}
    closing = set(ends.values())
    root = _Pair(last=num_before[-1] - 1, end=len(elements))
    stack = [root]
    words: list[list[str]] = []
    filler = ""
    for index, element in enumerate([*elements, Event("end", "")]):
        is_border = index in ends or index in closing
        if not is_border and element.kind not in (*_PIECES, "end"):
            filler += element.raw
            continue
        if filler:
            stack[-1].fillers.append((num_before[index], filler))
            filler = ""
        if index in ends:
            end = ends[index]
            last = num_before[end] - 1
            pair = _Pair(element.raw, elements[end].raw, num_before[index], last, index, end + 1)
            stack[-1].pairs.append(pair)
            stack.append(pair)
        elif index in closing:
            stack.pop()
        elif element.kind == "word":
            words.append([element.raw])
        elif element.kind == "piece":
            words[-1].append(element.raw)
    return root, words


def _roles(pieces: Sequence[str]) -> list[int]:
    """Return for each piece of a word: -1 for leading punctuation, 0 for the core, 1 for trailing.

    >>> _roles(['"', "Hi", "!"]), _roles(["--"])
    ([-1, 0, 1], [1])
    """
    start, end = core_of("".join(pieces))
    roles = []
    offset = 0
    for piece in pieces:
        if offset >= end:
            roles.append(1)
        elif offset < start:
            roles.append(-1)
        else:
            roles.append(0)
        offset += len(piece)
    return roles


class _Sentence(NamedTuple):
    """The pieces of a sentence."""

    source: int  # Its first source piece.
    num_source: int
    target: int  # Its first target piece.
    num_target: int


class _Layout:
    """Places the marks of a source paragraph in its translation.

    Args:
        paragraph: The source.
        translations: Text and alignment of each sentence.
    """

    def __init__(self, paragraph: Paragraph, translations: Sequence[Translation]) -> None:
        self._elements = list(paragraph.elements())
        self._root, self._words = _tree_of(self._elements)
        # First piece of each source word, and the number of all pieces.
        self._first_pieces = [*accumulate(map(len, self._words), initial=0)]
        # The target pieces that are aligned to each source piece.
        self._links: list[list[int]] = [[] for _ in range(self._first_pieces[-1])]
        self._sentences: list[_Sentence] = []  # of each source piece
        self._pieces: list[str] = []  # of the target
        # What each target piece begins: ``word``, ``sentence`` (and its first word) or nothing.
        self._begins: list[str] = []
        plain = " ".join(paragraph.sentences)
        marks = set[str]()
        for event in paragraph.events:
            if event.kind != "text" or event.text == PLACEHOLDER:
                marks.add(event.raw)
        self._unread_marks = {mark for mark in marks if mark not in plain}
        first_word = 0
        for source, (text, links) in zip(paragraph.sentences, translations, strict=True):
            num_words = len(source.split())
            self._add_sentence(first_word, num_words, text.split(), links)
            first_word += num_words
        num_pieces = len(self._pieces)
        self._num_links = Counter(target for targets in self._links for target in targets)
        self._owners = [self._root] * num_pieces  # the innermost pair around each target piece
        self._before = [""] * num_pieces
        self._after: list[deque[str]] = [deque() for _ in self._pieces]
        self._gaps: dict[int, str] = {}  # marks that replace the white space before a piece
        if num_pieces:
            self._place()

    def _add_sentence(
        self, first_word: int, num_words: int, targets: Sequence[str], links: Links | None
    ) -> None:
        """Add the words of a translation.

        Args:
            first_word: First source word of the sentence in the paragraph.
            num_words: Number of its source words.
            targets: Words of the translation.
            links: Its alignment.
        """
        if links is None:
            links = [(word, word * len(targets) // num_words) for word in range(num_words)]
        linked: dict[int, list[int]] = defaultdict(list)  # target word -> source words
        for source, target in links:
            if 0 <= source < num_words:
                linked[target].append(first_word + source)
        first_target = len(self._pieces)
        begins = "sentence"
        for index, written in enumerate(targets):
            # The model may write marks itself, which are inserted later.
            word = placeholder_pattern().sub(self._without_mark, written)
            if not word:
                continue
            if word != written and begins == "word" and core_of(word) == (0, 0):
                begins = ""  # what is left is the punctuation of the word before
            self._add_word(word, linked[index], begins)
            begins = "word"
        first_source = self._first_pieces[first_word]
        num_source = self._first_pieces[first_word + num_words] - first_source
        num_target = len(self._pieces) - first_target
        sentence = _Sentence(first_source, num_source, first_target, num_target)
        self._sentences += [sentence] * num_source

    def _without_mark(self, match: re.Match[str]) -> str:
        return "" if match[0] in self._unread_marks else match[0]

    def _add_word(self, word: str, sources: Sequence[int], begins: str) -> None:
        """Add a target word that is aligned to the words ``sources`` of the paragraph."""
        # A word that the translation copies keeps the marks inside it.
        twins = [source for source in sources if "".join(self._words[source]) == word][:1]
        pieces = self._words[twins[0]] if twins else _pieces_of(word)
        first_piece = len(self._pieces)
        places: dict[int, list[int]] = defaultdict(list)  # role -> target pieces
        for place, role in enumerate(_roles(pieces), first_piece):
            places[role].append(place)
        for source in sources:
            for number, role in enumerate(_roles(self._words[source])):
                linked = places[role]
                if source in twins:
                    linked = [first_piece + number]
                self._links[self._first_pieces[source] + number] += linked
        self._pieces += pieces
        self._begins += [begins, *[""] * (len(pieces) - 1)]

    def _relative(self, piece: int) -> int:
        """Return the target piece with the relative position of a source piece in its sentence."""
        first_source, num_source, first_target, num_target = self._sentences[piece]
        # Rounded to the nearest.
        distance = ((piece - first_source) * num_target + num_source // 2) // num_source
        return min(first_target + distance, len(self._pieces) - 1)

    def _claim(self, pair: _Pair, around: _Pair) -> bool:
        """Find the run of target pieces for a pair of tags. Returns False if no piece is free."""
        num_inside = Counter[int]()  # links of each free target piece to pieces in the pair
        for targets in self._links[pair.first : pair.last + 1]:
            num_inside.update(target for target in targets if self._owners[target] is around)
        if not num_inside:
            places = range(around.left, around.right + 1)
            free = [place for place in places if self._owners[place] is around]
            if not free:
                return False
            middle = self._relative((pair.first + pair.last) // 2)
            nearest = min(free, key=lambda place: abs(place - middle))
            num_inside[nearest] = 1
        best = -math.inf
        total = 0.0
        start = 0
        for place in range(min(num_inside), max(num_inside) + 1):  # finds the run with largest sum
            if self._owners[place] is not around:
                total = 0.0
                continue
            if total <= 0:
                total = 0.0
                start = place
            if self._num_links[place]:  # from -1, if all links are outside, to 1
                total += 2 * num_inside[place] / self._num_links[place] - 1
            if total > best:
                best = total
                pair.left = start
                pair.right = place
        for place in range(pair.left, pair.right + 1):
            self._owners[place] = pair
        return True

    def _marks(self, pair: _Pair) -> str:
        """Return only the marks of a pair, without text, if the translation has no free piece."""
        inside = self._elements[pair.start : pair.end]
        marks = [element for element in inside if element.kind not in (*_PIECES, "space")]
        return "".join(mark.raw for mark in marks)

    def _place(self) -> None:
        """Place all tags and fillers, outer pairs before inner pairs."""
        self._root.right = len(self._pieces) - 1
        waiting = [self._root]
        while waiting:
            around = waiting.pop()
            self._before[around.left] += around.opening
            self._after[around.right].appendleft(around.closing)
            for pair in around.pairs:
                if self._claim(pair, around):
                    waiting.append(pair)
                else:
                    self._after[around.right].appendleft(self._marks(pair))
            behind = "".join(self._behind(around, *filler) for filler in around.fillers)
            self._after[around.right].appendleft(behind)

    def _behind(self, around: _Pair, number: int, filler: str) -> str:
        """Place a filler before a target piece; or return what follows the last piece of the pair.

        Args:
            around: The pair that contains the filler.
            number: The source piece after the filler.
            filler: Marks with white space, or only white space.
        """
        is_root = around is self._root
        is_mark = bool(filler.strip())
        if number <= around.first:
            self._before[around.left] += filler if is_root else filler.lstrip()
            return ""
        if number > around.last:
            return filler if is_root else filler.rstrip()
        gap = self._gap(number, around, is_mark=is_mark)
        if gap > around.right:
            return filler.rstrip()
        if is_mark:  # with its neighbouring white space
            if gap not in self._links[number]:
                filler = filler.rstrip()
                if self._begins[gap]:
                    filler += " "
            self._gaps[gap] = self._gaps.get(gap, "") + filler
        elif "\n" in filler and self._begins[gap]:
            self._gaps.setdefault(gap, filler)
        return ""

    def _gap(self, number: int, pair: _Pair, *, is_mark: bool) -> int:
        """Return the target piece before which a filler is placed.

        Args:
            number: The source piece after the filler.
            pair: The pair that contains the filler.
            is_mark: Whether the filler is a mark, not white space.
        """
        if not is_mark:
            gap = self._relative(number)
            while not self._begins[gap]:
                gap -= 1
            return max(gap, pair.left + 1)
        first = max(pair.left, self._sentences[number].target) + 1
        inside = range(first, pair.right + 2)  # gaps
        before = {place + 1 for place in self._links[number - 1]}.intersection(inside)
        after = set(self._links[number]).intersection(inside)
        # A gap between both neighbours, or behind the piece before, or else in front of the next.
        gaps = before & after or before
        gap = max(gaps) if gaps else min(after, default=self._relative(number - 1) + 1)
        if self._sentences[number - 1] != self._sentences[number]:
            gap = self._sentences[number].target
        elif gap not in self._links[number]:  # not inside a word that the translation copies
            inner_gap = gap
            while gap < len(self._pieces) and not self._begins[gap]:
                gap += 1
            is_end = gap == len(self._pieces) or self._begins[gap] == "sentence"
            if is_end and core_of("".join(self._pieces[inner_gap:gap])) == (0, 0):
                gap = inner_gap  # in front of the final punctuation, if there is some
        gap = max(gap, pair.left + 1)
        if gap > pair.right:
            return gap
        owner = self._owners[gap]
        if owner is not pair and owner is self._owners[gap - 1]:
            return owner.right + 1  # not inside an inner pair
        return gap

    def write(self, joiner: str, escape: Escape) -> str:
        """Return the translation with all marks; see `Paragraph.render`."""
        if not self._pieces:
            return self._marks(self._root)
        spaces = {"": "", "word": " ", "sentence": joiner}
        text = ""
        for place, piece in enumerate(self._pieces):
            if place:
                text += self._gaps.get(place, spaces[self._begins[place]])
            text += self._before[place]
            text += escape(piece) + "".join(self._after[place])
        return text


def links_of_words(
    links: Links, plain_texts: tuple[str, str], texts: tuple[str, str]
) -> tuple[tuple[int, int], ...]:
    """Return an alignment for the words with placeholders, which have no links.

    Args:
        links: Aligned words without placeholders.
        plain_texts: A sentence and its translation without placeholders, or with symbols.
        texts: Both with placeholders.
    """
    sources, targets = map(_places, plain_texts, texts)
    moved = []
    for source, target in links:
        if source < len(sources) and target < len(targets):
            moved.append((sources[source], targets[target]))
    return tuple(moved)


def _places(plain_text: str, text: str) -> list[int]:
    """Return the index of each word of a text among the words with placeholders and terms."""
    words = text.split()
    places = []
    place = -1  # of the last word that is in both texts
    opening, closing = ANNOTATION
    is_term = False  # whether the word belongs to the target term behind the word at ``place``
    for plain_word in plain_text.split():
        beginning = re.split(f"[{PLACEHOLDER}{opening}]", plain_word)[0]  # before a symbol
        next_words = words[place + 1 : place + 1 + _MOST_INSERTED]
        distances = [index for index, word in enumerate(next_words, 1) if beginning in word]
        index = place
        if distances and not is_term:
            place += distances[0]
            index = place
        elif not is_term:  # a term has replaced it
            index += 1
        places.append(max(0, min(index, len(words) - 1)))
        if opening in plain_word or closing in plain_word:
            is_term = opening in plain_word
    return places
