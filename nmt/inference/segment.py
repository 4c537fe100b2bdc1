"""Requests -> segments that a model can read, with their constraints.

A segment is a line, or a part of one that has more subwords than the model was trained for.
"""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nmt.config.model import DecodingConfig
from nmt.errors import ConfigError, DataError
from nmt.inference.request import Request
from nmt.search.hypothesis import NONE, Constraints, contains
from nmt.text.tokenizer import Tokenizer, Tokenizers

logger = logging.getLogger(__name__)

# Characters of a line that are translated. The rest is left out, with a warning and an alarm, so
# that the time for one line is bounded.
LONGEST_LINE = 50_000

_MOST_NAMED = 5  # Long lines of one call that get a warning each.
_CHARACTERS_OF_SUBWORD = 20  # SentencePiece makes none longer than 16
_UNSPACED = ("zh", "ja", "th", "lo", "km", "my")  # and the names of their characters:
_UNSPACED_SCRIPTS = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")
SENTENCE_BORDER = re.compile(r"(?<=[.!?])\s+|(?<=[\u3002\uff01\uff1f\u061f])\s*")
_BORDERS = (
    SENTENCE_BORDER,
    re.compile(r"(?<=[,;:])\s+|(?<=[\uff0c\u3001\uff1b\uff1a\u060c\u061b])\s*"),  # clauses
    re.compile(r"\s+"),  # words
)


@dataclass(frozen=True, slots=True)
class Segment:
    """What is translated by itself."""

    line: int  # The line it is part of, from 0.
    ids: Sequence[int]  # Its source ids, without tag and EOS; never empty.
    tag: tuple[int, ...] = ()  # The id that asks for a domain or a language, if one is asked for.
    constraints: Constraints = NONE  # What its translation must look like.

    @property
    def read_ids(self) -> list[int]:
        """What the model reads: tag and source."""
        return [*self.tag, *self.ids]


@dataclass(frozen=True, slots=True)
class SegmentedLines:
    """Lines as a model reads them."""

    requests: Sequence[Request]
    # Of all lines, in order. A blank line has none, and neither has one that fails.
    segments: Sequence[Segment]
    failures: Mapping[int, DataError]  # Why lines, counted from 0, cannot be translated.


def joiner_for(language: str) -> str:
    """Return what stands between the segments of a line in ``language``.

    >>> joiner_for("de"), joiner_for("zh-Hant")
    (' ', '')
    """
    return "" if re.split("[-_]", language)[0].lower() in _UNSPACED else " "


def segment(
    requests: Sequence[Request],
    tokenizers: Tokenizers,
    decoding: DecodingConfig,
    max_length: int | None,
    tag: str | None = None,
    first_line: int = 1,
) -> SegmentedLines:
    """Encode lines: a blank one gives no segment, an over-long one several.

    Of each, `LONGEST_LINE` characters are taken. The first segment of a line gets its prefix and
    its required phrases; all get what is forbidden.

    Args:
        requests: A line each.
        tokenizers: Of both languages.
        decoding: Rules of the search, which constraints may contradict.
        max_length: Most subwords of a segment, tag included; None: lines are not cut.
        tag: Of lines that name none.
        first_line: The number of the first line in warnings.
    """
    texts = [_shortened(x.text, number) for number, x in enumerate(requests, first_line)]
    segments: list[Segment] = []
    failures: dict[int, DataError] = {}
    num_cut = 0
    encoded = encode_fitting(tokenizers.source, texts, max_length)
    for row, (request, text, ids) in enumerate(zip(requests, texts, encoded, strict=True)):
        if not text.strip():
            continue
        try:
            name = request.tag or tag
            tag_ids = () if name is None else (tokenizers.source.tag_id(name),)
            longest = None if max_length is None else max_length - len(tag_ids)
            parts = [ids or []]
            if longest is not None and (ids is None or len(ids) > longest):
                parts = _encode_parts(text, tokenizers.source, longest)
            longest = max_length or len(parts[0]) + len(tag_ids)
            first = _constraints(request, tokenizers.target, decoding, longest)
        except (ConfigError, DataError) as error:  # the former: there is no such tag
            failures[row] = DataError(error.problem, fix=error.fix)
            continue
        num_cut += len(parts) > 1
        if len(parts) > 1 and num_cut <= _MOST_NAMED:
            logger.warning(
                "line %s: %s characters cut into %s segments: the model reads %d subwords at once",
                *(f"{x:,}" for x in (row + first_line, len(text), len(parts))),
                longest,
            )
        others = Constraints(forbidden=first.forbidden) if first.forbidden else NONE
        # A text of characters that normalisation drops is blank, too.
        for number, part in enumerate(filter(None, parts)):
            segments.append(Segment(row, part, tag_ids, others if number else first))
    if num_cut > _MOST_NAMED:
        logger.warning("%s more lines are cut likewise", f"{num_cut - _MOST_NAMED:,}")
    return SegmentedLines(requests, segments, failures)


def _shortened(text: str, number: int) -> str:
    if len(text) <= LONGEST_LINE:
        return text
    logger.warning(
        "line %s has %s characters; only the first %s are translated",
        *(f"{x:,}" for x in (number, len(text), LONGEST_LINE)),
    )
    return text.lstrip()[:LONGEST_LINE]


def encode_fitting(
    tokenizer: Tokenizer, texts: Sequence[str], max_length: int | None
) -> list[list[int] | None]:
    """Encode texts; None for each that has more subwords than ``max_length``, if that is one."""
    if max_length is None:
        return [*tokenizer.encode_batch(texts)]
    # Texts that are far too long are not even encoded.
    short = [i for i, x in enumerate(texts) if len(x) <= _CHARACTERS_OF_SUBWORD * max_length]
    encoded = dict(zip(short, tokenizer.encode_batch([texts[i] for i in short]), strict=True))
    found = map(encoded.get, range(len(texts)))
    return [ids if ids is not None and len(ids) <= max_length else None for ids in found]


def _encode_parts(text: str, tokenizer: Tokenizer, max_length: int) -> list[list[int]]:
    """Token ids of the parts of a text that does not fit. No part is empty."""

    def size(part: str) -> int:
        """Subwords of a part; more than fit if it is far too long."""
        (ids,) = encode_fitting(tokenizer, [part], max_length)
        return max_length + 1 if ids is None else len(ids)

    parts = tokenizer.encode_batch(split_text(text, size, max_length))
    # Some are too long still: a character of many bytes, or parts that joined badly.
    return [
        ids[start : start + max_length] for ids in parts for start in range(0, len(ids), max_length)
    ]


def split_text(text: str, size_of: Callable[[str], int], limit: int) -> list[str]:
    """Return pieces of ``text`` of at most ``limit``, in order, as long as they can be.

    Borders are tried in the order sentences, clauses, words; a word that does not fit is cut in
    halves. Neighbours are joined by the sum of their sizes, so the time is linear in the text.

    Args:
        text: What to cut.
        size_of: Size of a text, for example its subwords. Any number above ``limit`` will do for
            a text that is too long.
        limit: Largest size of a piece. A single character is larger if it must.

    >>> split_text("One two. Three four, five. Six.", len, 12)
    ['One two.', 'Three four,', 'five. Six.']
    """
    merged: list[tuple[int, int, int]] = []  # start, end and size
    for start, end, size in _spans(text, 0, len(text), size_of, limit, 0):
        if merged and merged[-1][2] + size <= limit:
            first, _, before = merged.pop()
            merged.append((first, end, before + size))
        else:
            merged.append((start, end, size))
    return [text[start:end] for start, end, _ in merged]


def _spans(
    text: str, start: int, end: int, size_of: Callable[[str], int], limit: int, level: int
) -> Iterator[tuple[int, int, int]]:
    """Yield start, end and size of parts that fit, without the white space between them."""
    piece = text[start:end].strip()
    if not piece:
        return
    start = text.index(piece[0], start)
    end = start + len(piece)
    size = size_of(piece)
    if size <= limit or len(piece) == 1:
        yield start, end, size
        return
    cuts = [(len(piece) // 2, len(piece) // 2)]
    if level < len(_BORDERS):
        cuts = [border.span() for border in _BORDERS[level].finditer(piece)]
        level += 1
    begin = 0
    for cut_start, cut_end in (*cuts, (len(piece), len(piece))):
        yield from _spans(text, start + begin, start + cut_start, size_of, limit, level)
        begin = cut_end


def _constraints(
    request: Request, tokenizer: Tokenizer, decoding: DecodingConfig, longest: int
) -> Constraints:
    """Return the constraints of a line. Blank text is no constraint.

    Args:
        request: The line.
        tokenizer: Of the target language.
        decoding: Rules of the search.
        longest: Most subwords of a source; an output may be so much longer as ``decoding`` says.

    Raises:
        DataError: They contradict each other or the search, or are too long.
    """
    if not request.is_constrained:
        return NONE
    forbidden = _phrases(tokenizer, request.forbidden)
    found = Constraints(
        prefix=tuple(tokenizer.encode(request.prefix)) if request.prefix else (),
        required=_phrases(tokenizer, request.required),
        forbidden=forbidden + _inside_words(tokenizer, request.forbidden),
    )
    most = int(decoding.max_length_factor * longest + decoding.max_length_offset)
    problem = found.contradiction(decoding.no_repeat_ngram_size)
    fix, is_forced = "Drop one of the constraints.", not decoding.prefix_bias_beta
    if is_forced and any(contains(found.prefix, phrase) for phrase in found.forbidden):
        problem = "the prefix contains a forbidden phrase"
    elif problem is None and found.num_tokens > most:
        problem = (
            f"its prefix and required phrases have {found.num_tokens:,} subwords, and a "
            f"translation has at most {most:,}"
        )
        fix = "Require less, or cut the line into sentences."
    if problem is None:
        return found
    raise DataError(f"{problem}.", fix=fix)


def _phrases(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Encode phrases as they follow a space."""
    return tuple(ids for text in texts if (ids := tuple(tokenizer.encode(text))))


def _inside_words(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Encode phrases as they follow a letter, if they need no space before them."""
    found = []
    for text in filter(str.strip, texts):
        starts_word = unicodedata.category(text[0])[0] in "LMN"
        if not starts_word or unicodedata.name(text[0], "").startswith(_UNSPACED_SCRIPTS):
            before, both = tokenizer.encode_batch(["a", "a" + text])
            if both[: len(before)] == before and len(both) > len(before):
                found.append(tuple(both[len(before) :]))
    return tuple(found)
