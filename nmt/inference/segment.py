"""Lines -> segments that a model can read, with their constraints -> batches.

A segment is a line, or a part of one that has more subwords than the model was trained for.
"""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

from nmt.config.decoding import DecodingConfig
from nmt.errors import CheckpointError, ConfigError, DataError
from nmt.inference.result import Alarm, AlignedSegment, TokenScore
from nmt.search.hypothesis import NONE, Constraints, Hypothesis, contains
from nmt.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

LONGEST_LINE = 50_000
"""Characters of a line that are translated. The rest is left out, with a warning and an alarm, so
that the time for one line is bounded."""
Phrases = Sequence[Sequence[str]]
"""Of each line, any number of phrases."""

_MOST_NAMED = 5
"""Long lines of one call that get a warning each."""
_CHARACTERS_OF_SUBWORD = 20  # SentencePiece makes none longer than 16
_UNSPACED = ("zh", "ja", "th", "lo", "km", "my")  # and the names of their characters:
_UNSPACED_SCRIPTS = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")
_BORDERS = (
    re.compile(r"(?<=[.!?])\s+|(?<=[\u3002\uff01\uff1f\u061f])\s*"),  # sentences
    re.compile(r"(?<=[,;:])\s+|(?<=[\uff0c\u3001\uff1b\uff1a\u060c\u061b])\s*"),  # clauses
    re.compile(r"\s+"),  # words
)


@dataclass(slots=True)
class Segment:
    """What is translated by itself, and what is found for it, step by step."""

    line: int
    """The line it is part of, from 0."""
    ids: list[int]
    """Its source ids, without tag and EOS; never empty."""
    tag: tuple[int, ...] = ()
    """The id that asks for a domain or a language, if one is asked for."""
    constraints: Constraints = NONE
    """What its translation must look like."""
    hypotheses: Sequence[Hypothesis] = ()
    """Its translations, the best first."""
    alarms: tuple[Alarm, ...] = ()
    """Of the best."""
    retried: tuple[Alarm, ...] = ()
    """Of the first output, where a stricter search has found one without them."""
    aligned: AlignedSegment | None = None
    """Its words and those of the best, where asked for."""
    tokens: tuple[TokenScore, ...] = ()
    """Of the best, where asked for."""

    @property
    def read_ids(self) -> list[int]:
        """What the model reads: tag and source."""
        return [*self.tag, *self.ids]


SearchResults: TypeAlias = Iterable[tuple[Segment, list[Hypothesis]]]


def joiner_for(language: str) -> str:
    """Return what stands between the segments of a line in ``language``.

    >>> joiner_for("de"), joiner_for("zh-Hant")
    (' ', '')
    """
    return "" if re.split("[-_]", language)[0].lower() in _UNSPACED else " "


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


def segment_lines(
    texts: Iterable[str], tokenizer: Tokenizer, max_length: int | None, first_line: int = 1
) -> list[Segment]:
    """Encode lines: a blank one gives no segment, an over-long one several.

    Args:
        texts: The lines; of each, `LONGEST_LINE` characters are taken.
        tokenizer: Of the source language.
        max_length: Most subwords of a segment; None: lines are not cut.
        first_line: The number of the first line in warnings about those that are cut.

    Returns:
        The segments of all lines, in order.
    """
    shortened = []
    for number, text in enumerate(texts, first_line):
        is_too_long = len(text) > LONGEST_LINE
        shortened.append(text.lstrip()[:LONGEST_LINE] if is_too_long else text)
        if is_too_long:
            logger.warning(
                "line %s has %s characters; only the first %s are translated",
                f"{number:,}",
                f"{len(text):,}",
                f"{LONGEST_LINE:,}",
            )
    segments: list[Segment] = []
    num_cut = 0
    encoded = encode_fitting(tokenizer, shortened, max_length)
    for row, (text, ids) in enumerate(zip(shortened, encoded, strict=True)):
        if not text.strip():
            continue
        parts = [ids or []]
        if ids is None and max_length is not None:
            parts = _encode_parts(text, tokenizer, max_length)
        num_cut += len(parts) > 1
        if len(parts) > 1 and num_cut <= _MOST_NAMED:
            logger.warning(
                "line %s: %s characters cut into %s segments: the model reads %d subwords at once",
                f"{row + first_line:,}",
                f"{len(text):,}",
                f"{len(parts):,}",
                max_length,
            )
        # A text of characters that normalisation drops is blank, too.
        segments += [Segment(row, part) for part in parts if part]
    if num_cut > _MOST_NAMED:
        logger.warning("%s more lines are cut likewise", f"{num_cut - _MOST_NAMED:,}")
    return segments


def tag_ids(
    tokenizer: Tokenizer, tag: str | Sequence[str | None] | None, num_lines: int, first_line: int
) -> list[tuple[int, ...]]:
    """Return the ids of the tag of each line: one, or none.

    Args:
        tokenizer: Of the source language.
        tag: Of all lines, or of each.
        num_lines: How many lines there are.
        first_line: The number of the first line in messages.

    Raises:
        ConfigError: The vocabulary has no such tag, of all lines.
        DataError: It has none such as that of a line.
    """
    if tag is None or isinstance(tag, str):
        return [() if tag is None else (tokenizer.tag_id(tag),)] * num_lines
    found: list[tuple[int, ...]] = []
    for number, own in enumerate(tag, first_line):
        try:
            found.append(() if own is None else (tokenizer.tag_id(own),))
        except ConfigError as error:
            raise DataError(f"Line {number:,}: {error.problem}", fix=error.fix) from error
    return found


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


def encode_constraints(
    tokenizer: Tokenizer,
    num_lines: int,
    prefixes: Sequence[str] | None,
    required: Phrases | None,
    forbidden: Phrases | None,
) -> list[Constraints]:
    """Return the constraints of each line. Blank text is no constraint.

    Raises:
        DataError: There are more or fewer entries than lines.
    """
    for name, given in (("prefixes", prefixes), ("required", required), ("forbidden", forbidden)):
        if given is not None and len(given) != num_lines:
            raise DataError(
                f"{name} has {len(given):,} entries for {num_lines:,} lines.",
                fix="Give one entry a line, an empty one for no constraint.",
            )
    none: Phrases = [()] * num_lines
    lines = zip(prefixes or [""] * num_lines, required or none, forbidden or none, strict=True)
    return [
        Constraints(
            prefix=tuple(tokenizer.encode(prefix)) if prefix else (),
            required=_phrases(tokenizer, phrases),
            forbidden=_phrases(tokenizer, banned) + _inside_words(tokenizer, banned),
        )
        for prefix, phrases, banned in lines
    ]


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


def constrain(
    segments: Iterable[Segment],
    constraints: Sequence[Constraints],
    options: DecodingConfig,
    *,
    longest_output: int,
    first_line: int = 1,
) -> None:
    """Give segments the constraints of their lines; prefix and required phrases to the first.

    Args:
        segments: Of all lines, in order.
        constraints: Of each line.
        options: Rules of the search, which constraints may contradict.
        longest_output: Most subwords of an output without constraints.
        first_line: The number of the first line in messages.

    Raises:
        DataError: The constraints of a line contradict each other or the search, or are too long.
    """
    for line, (first, *others) in groupby(segments, key=lambda segment: segment.line):
        own = constraints[line]
        problem, fix = (
            own.contradiction(options.no_repeat_ngram_size),
            "Drop one of the constraints.",
        )
        is_forced = not options.prefix_bias_beta
        if is_forced and any(contains(own.prefix, phrase) for phrase in own.forbidden):
            problem = "the prefix contains a forbidden phrase"
        elif problem is None and own.num_tokens > longest_output:
            problem = (
                f"its prefix and required phrases have {own.num_tokens:,} subwords, and a "
                f"translation has at most {longest_output:,}"
            )
            fix = "Require less, or cut the line into sentences."
        if problem is not None:
            raise DataError(f"Line {line + first_line:,}: {problem}.", fix=fix)
        first.constraints = own
        for other in others:
            other.constraints = Constraints(forbidden=own.forbidden)


def stands_past_end(source: str, text: str, phrases: Iterable[str]) -> bool:
    """Whether a translation has one sentence more than its source, of required phrases alone.

    >>> stands_past_end("A man walks his dog.", "Un homme marche. chat.", ["chat"])
    True
    >>> stands_past_end("A man walks. Cat!", "Un homme marche. chat.", ["chat"])
    False
    """
    count, found = (
        [part for part in _BORDERS[0].split(side) if part.strip()] for side in (source, text)
    )
    if len(found) <= max(1, len(count)):
        return False
    rest = found[-1]
    for phrase in phrases:
        rest = rest.replace(phrase, "")
    return rest != found[-1] and not any(map(str.isalnum, rest))


def check_outputs(segments: Iterable[Segment], first_line: int = 1) -> None:
    """Check that the search found an output for every segment.

    Raises:
        DataError: No output follows the constraints of a line.
        CheckpointError: There is none, and no constraint is to blame.
    """
    for segment in segments:
        if not segment.hypotheses and segment.constraints != NONE:
            raise DataError(
                f"Line {segment.line + first_line:,}: no output has its prefix and its required "
                "phrases and none of the forbidden ones.",
                fix="Drop some of the constraints, or the rule of repeated n-grams.",
            )
        if not segment.hypotheses:
            raise CheckpointError(
                "The model's probabilities are not numbers: its weights are broken.",
                fix="Use another checkpoint, or train again.",
            )
