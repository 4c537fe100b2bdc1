"""Splits lines into sentences and segments that a model can read, and encodes their constraints.

A line with more sentences or characters than the lines of training is split into its sentences. A
segment is what the model reads: a sentence without its placeholders, or a part of a sentence that
has more subwords than the model was trained for.
"""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import regex

from nmt.config.data import PLACEHOLDER
from nmt.config.model import DecodingConfig
from nmt.errors import ConfigError, DataError
from nmt.inference.direction import LanguageOptions, Tags
from nmt.inference.glossary import Forms, Glossary
from nmt.inference.placeholders import (
    SIGNS,
    Paragraph,
    as_symbol,
    mask_placeholders,
    text_events,
)
from nmt.inference.request import Request
from nmt.search.hypothesis import NONE, Constraints, Ids, Phrases, contains
from nmt.text.languages import UNSPACED, script_class, writes_spaces
from nmt.text.sentences import MAY_SPLIT, SplitText, split_text
from nmt.text.tokenizer import Tokenizer, Tokenizers

logger = logging.getLogger(__name__)
_CUT = "line %s: %s characters cut into %s segments: the model reads at most %d subwords"

# Maximum characters of a line. The rest is not translated, with a warning and an alarm, so that the
# time for one line is bounded.
LONGEST_LINE = 50_000

_MAX_WARNINGS = 5  # Long lines of one call that get a warning each; the others are only counted.
_MAX_NUMBERS = 64  # Characters of a text without letters that is translated.
# Text without letters and digits of other scripts, unless it is a number that languages write
# differently, such as 3,500.
_COPIED = re.compile(r"(?!\W*\d+([.,]\d+)+\W*$)[\W_0-9]*")
_MAX_SUBWORD_CHARACTERS = 20  # the longest subword of SentencePiece has 16
_LINE_BREAKS = re.compile(r"[\r\n]+")
_UNSPACED = regex.compile(script_class(*sorted(UNSPACED)))
_SENTENCE_BORDER = re.compile(r"(?<=[.!?])\s+|(?<=[\u3002\uff01\uff1f\u061f])\s*")
_BORDERS = (
    _SENTENCE_BORDER,
    re.compile(r"(?<=[,;:])\s+|(?<=[\uff0c\u3001\uff1b\uff1a\u060c\u061b])\s*"),  # clauses
    re.compile(r"\s+"),  # words
)


_NO_TAGS = Tags()
SizeOf = Callable[[str], int]  # Returns the size of a text, for example in subwords.


@dataclass(frozen=True, slots=True)
class Segment:
    """A sentence or a part of it, translated independently of other segments."""

    sentence: int  # Index of its sentence, from 0.
    ids: Sequence[int]  # Source ids, without tag and EOS; never empty.
    tag: Ids = ()  # Ids of the tags of language and domain, if any.
    constraints: Constraints = NONE  # Constraints on its translation.
    is_junk: bool = False  # Whether the search is bounded: see `bounded`.

    @property
    def read_ids(self) -> list[int]:
        """Input of the encoder: tags and source ids."""
        return [*self.tag, *self.ids]

    @property
    def start_ids(self) -> Ids:
        """Start token of the target, if any."""
        start = self.constraints.start
        return () if start is None else (start,)


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence of a line, or a line that is not split."""

    line: int  # Index of its line, from 0.
    text: str  # Without white space around it.
    model_text: str = ""  # What the model reads: the text without placeholders, or with symbols.
    placeholders: Sequence[str] = ()
    terms: Sequence[Forms] = ()  # Target forms of each term of the glossary.
    paragraph: Paragraph | None = None  # Text and placeholders, if the model does not read them.
    # Whether the model reads it in lower case, but for the first letter, if it is in capitals.
    lower_capitals: bool = False
    tags: Tags = _NO_TAGS
    # Ids of the tags of the first segment and of the later segments.
    first_tag: Ids = ()
    tag: Ids = ()

    @property
    def is_capitals(self) -> bool:
        """Whether it has several words, all in capitals."""
        return self.model_text.isupper() and len(self.model_text.split()) > 1

    @property
    def is_lowered(self) -> bool:
        """Whether the model reads it in lower case, and its translation is capitalized again."""
        return self.lower_capitals and self.is_capitals

    @property
    def joiner(self) -> str:
        """Separator between the translations of its segments."""
        return joiner_for(self.tags.direction.target)


@dataclass(frozen=True)
class SegmentedLines:
    """Lines with their segments."""

    requests: Sequence[Request]
    # For each line: text around the translations of its sentences, one more than it has sentences.
    gaps: Sequence[Sequence[str]]
    # Sentences of all lines, in order: at least one of each line that has not failed.
    sentences: Sequence[Sentence]
    # Segments of all sentences, in order. Blank and copied sentences do not have segments.
    segments: Sequence[Segment]
    failures: dict[int, DataError]  # Errors by line index, from 0.
    first_line: int = 1  # Number of the first line, for messages.

    def line_of(self, segment: Segment) -> int:
        """Return the index of the line of a segment, from 0."""
        return self.sentences[segment.sentence].line


def bounded(decoding: DecodingConfig) -> DecodingConfig:
    """Return the options for text without language, which a model often translates without end.

    Its translation has at most about as many subwords. Beam search becomes greedy.
    """
    changes: dict[str, float] = {"max_length_factor": min(1, decoding.max_length_factor)}
    is_plain = not (decoding.sampling or decoding.return_alternatives)
    if is_plain and decoding.n_best == decoding.diverse_beam_groups == 1:
        changes["beam_size"] = 1
    return decoding.model_copy(update=changes)


def joiner_for(language: str) -> str:
    """Return the separator between the segments of a line in ``language``.

    >>> joiner_for("de"), joiner_for("zh-Hant")
    (' ', '')
    """
    return " " if writes_spaces(language) else ""


def segment(
    requests: Sequence[Request],
    tokenizers: Tokenizers,
    decoding: DecodingConfig,
    max_length: int | None,
    tags_of: Callable[[LanguageOptions, bool], Tags] = lambda *_: Tags(),
    *,
    first_line: int = 1,
    max_sentences: int | None = None,
    max_characters: int | None = None,
    reads_symbols: bool = False,
    lower_capitals: bool = False,
    glossary: Glossary | None = None,
    annotates: bool = False,
) -> SegmentedLines:
    """Split lines into sentences and segments, and encode them. A blank line has no segment.

    At most `LONGEST_LINE` characters of a line are used. The first segment of a line gets the
    prefix and the required phrases. All segments get the forbidden phrases. Lines with constraints,
    and lines of which several translations are requested, are not split into sentences.

    Args:
        requests: One request for each line.
        tokenizers: Source and target tokenizer.
        decoding: Options of the search, to detect constraints that contradict them.
        max_length: Maximum subwords of a segment, tags included; None does not split sentences.
        tags_of: Returns the tags for the languages of a request; raises `ConfigError`. The second
            argument is whether the text begins with the tag of its language.
        first_line: Number of the first line, for warnings.
        max_sentences: Most sentences of a line that is not split; None splits no line.
        max_characters: See `split_text`.
        reads_symbols: Whether the model reads a symbol for each placeholder that is not a tag.
        lower_capitals: Whether sentences in capitals are read in lower case, except in lines with
            constraints.
        glossary: Terms of requests without a glossary.
        annotates: Whether the model reads the target terms in place of the source terms.
    """
    sentences = []
    gaps: list[Sequence[str]] = []
    failures = {}
    tokenizer = tokenizers.source
    for line, request in enumerate(requests):
        text = _limited(request.text, line + first_line)
        gaps.append(("", ""))
        if not text.strip():
            sentences.append(Sentence(line, ""))
            continue
        try:
            # If the text begins with the tag of its language, its ids begin with this tag, too.
            # Only the segments after the first need the tag as an addition.
            tag_in_text = tokenizer.language_of(text)
            tags = tags_of(request.languages, tag_in_text is not None)
            added_ids = () if tag_in_text is None else (tokenizer.tag_id(tag_in_text),)
        except ConfigError as error:  # unknown tag
            failures[line] = DataError(error.problem, fix=error.fix)
            continue
        is_whole = decoding.n_best > 1 or request.is_constrained
        max_of_line = None if is_whole else max_sentences
        split = SplitText(("", ""), (text.strip(),))
        if MAY_SPLIT.match(text):  # quicker for most lines
            split = split_line(
                text, tags.direction.source, max_of_line, decoding.protect, max_characters
            )
        if len(split.sentences) > 1:
            _, *inner_gaps, _ = split.gaps_for(joiner_for(tags.direction.target))
            gaps[line] = ("", *inner_gaps, "")
        first_tag = tags.source_ids
        tag = first_tag + added_ids
        lowers = lower_capitals and not request.is_constrained
        # A prefix may contain placeholders, which the model then has to read.
        is_read_whole = bool(request.prefix.strip())
        for part in split.sentences:
            sentence = Sentence(
                line, part, part, tags=tags, first_tag=first_tag, tag=tag, lower_capitals=lowers
            )
            terms = request.glossary or glossary
            if terms or decoding.protect or SIGNS.search(part):  # quicker for most sentences
                sentence = _with_placeholders(
                    sentence,
                    tokenizer.symbols.keys() - {PLACEHOLDER},
                    decoding.protect,
                    terms or Glossary({}),
                    is_read_whole=is_read_whole,
                    reads_symbols=reads_symbols,
                    annotates=annotates,
                )
            sentences.append(sentence)
            first_tag = tag
    segments = []
    num_split = 0
    texts = [
        sentence.model_text.capitalize() if sentence.is_lowered else sentence.model_text
        for sentence in sentences
    ]
    for row, ids in enumerate(encode_fitting(tokenizer, texts, max_length)):
        sentence = sentences[row]
        text = texts[row]
        is_prescribed = requests[sentence.line].is_constrained or sentence.terms
        if not is_prescribed and not _is_translated(text):  # it is copied
            continue
        ids_of_parts = [ids or []]  # one part, if it is not too long
        # Without a limit, a sentence is never too long.
        longest = max_length or len(ids_of_parts[0]) + len(sentence.tag)
        if ids is None or len(ids) + len(sentence.tag) > longest:
            ids_of_parts = _encode_parts(text, tokenizer, longest - len(sentence.tag))
        request = requests[sentence.line]
        start = sentence.tags.start
        try:
            constraints = _constraints(request, tokenizers.target, decoding, longest, start)
        except DataError as error:
            failures[sentence.line] = error
            continue
        num_parts = len(ids_of_parts)
        if num_parts > 1:
            num_split += 1
            if num_split <= _MAX_WARNINGS:
                shown_number = f"{sentence.line + first_line:,}"
                logger.warning(_CUT, shown_number, f"{len(text):,}", f"{num_parts:,}", longest)
        added_tag = sentence.first_tag
        # A part has no ids if normalization drops all of its characters: it becomes no segment.
        for part_ids in filter(None, ids_of_parts):
            is_junk = not constraints.num_tokens and tokenizer.is_junk(part_ids)
            segments.append(Segment(row, part_ids, added_tag, constraints, is_junk))
            # The segments after the first get all tags, and only the forbidden phrases.
            added_tag = sentence.tag
            constraints = Constraints(forbidden=constraints.forbidden, start=start)
    num_without_warning = num_split - _MAX_WARNINGS
    if num_without_warning > 0:
        logger.warning("%s more lines were cut into segments", f"{num_without_warning:,}")
    return SegmentedLines(requests, gaps, sentences, segments, failures, first_line)


def _is_translated(text: str) -> bool:
    """Whether a text has letters, or is short and has digits that another language may change.

    >>> [_is_translated(text) for text in ("a 1", "3,500", "\u0663", "1.", "00:01,500 - 2", "?!")]
    [True, True, True, False, False, False]
    """
    if any(map(str.isalpha, text)):
        return True
    return len(text) <= _MAX_NUMBERS and not _COPIED.fullmatch(text)


def split_line(
    text: str,
    language: str,
    max_sentences: int | None,
    protect: Sequence[str],
    max_characters: int | None = None,
) -> SplitText:
    """Split a line into sentences, none of which ends inside a placeholder.

    Args:
        text: The line, or a text of several lines.
        language: Language of the text.
        max_sentences: Most sentences of a line that is not split; None splits no line.
        protect: See `DecodingConfig`.
        max_characters: See `split_text`.
    """
    mask = partial(mask_placeholders, protect=protect)
    return split_text(text, language, max_sentences, max_characters, mask)


def _with_placeholders(
    sentence: Sentence,
    symbols: Container[str],
    protect: Sequence[str],
    glossary: Glossary,
    *,
    is_read_whole: bool,
    reads_symbols: bool,
    annotates: bool,
) -> Sentence:
    """Return the sentence with its placeholders, which the model does not read, and its terms.

    Args:
        sentence: The sentence.
        symbols: Symbols of the vocabulary, which are not placeholders.
        protect: See `DecodingConfig`.
        glossary: The terms.
        is_read_whole: Whether the model reads the placeholders after all, and no terms.
        reads_symbols: See `segment`.
        annotates: See `segment`.
    """
    events = list(text_events(sentence.text, protect, symbols=symbols))
    placeholders = [event.raw for event in events if event.kind != "text"]
    sentence = replace(sentence, placeholders=placeholders)
    if is_read_whole:
        return sentence
    if reads_symbols:
        events = list(map(as_symbol, events))
    source = sentence.tags.direction.source
    events, terms = glossary.mark(events, source, annotates=annotates)
    if not (placeholders or terms):
        return sentence
    paragraph = Paragraph.read(events, "", None)
    model_text = "".join(paragraph.sentences)
    return replace(sentence, model_text=model_text, terms=terms, paragraph=paragraph)


def _limited(text: str, line_number: int) -> str:
    """Return at most `LONGEST_LINE` characters of a line; log a warning if it has more.

    Line breaks become spaces.
    """
    text = _LINE_BREAKS.sub(" ", text)
    if len(text) <= LONGEST_LINE:
        return text
    counts = (f"{line_number:,}", f"{len(text):,}", f"{LONGEST_LINE:,}")
    logger.warning("line %s has %s characters; only the first %s are translated", *counts)
    return text.lstrip()[:LONGEST_LINE]  # leading white space does not use up the limit


def encode_fitting(
    tokenizer: Tokenizer, texts: Sequence[str], max_length: int | None
) -> list[list[int] | None]:
    """Encode texts. A text with more than ``max_length`` subwords becomes None.

    A ``max_length`` of None means no limit.
    """
    if max_length is None:
        return [*tokenizer.encode_batch(texts)]
    # Skip the encoding of texts that are certainly too long.
    max_characters = _MAX_SUBWORD_CHARACTERS * max_length
    rows = [row for row, text in enumerate(texts) if len(text) <= max_characters]
    ids_of_rows = tokenizer.encode_batch([texts[row] for row in rows])
    ids_of_texts: list[list[int] | None] = [None] * len(texts)
    for row, ids in zip(rows, ids_of_rows, strict=True):
        if len(ids) <= max_length:
            ids_of_texts[row] = ids
    return ids_of_texts


def _encode_parts(text: str, tokenizer: Tokenizer, max_length: int) -> list[list[int]]:
    """Split a text into parts of at most ``max_length`` subwords, and return their ids."""

    def num_subwords(part: str) -> int:
        """Return the number of subwords, or ``max_length + 1`` if the part is too long."""
        (ids,) = encode_fitting(tokenizer, [part], max_length)
        return max_length + 1 if ids is None else len(ids)

    ids_of_parts = []
    for ids in tokenizer.encode_batch(cut_text(text, num_subwords, max_length)):
        # Some parts are still too long: a character of many bytes, or subwords that changed when
        # parts were joined. Their ids are cut.
        starts = range(0, len(ids), max_length)
        ids_of_parts += [ids[start : start + max_length] for start in starts]
    return ids_of_parts


def cut_text(text: str, size_of: SizeOf, limit: int) -> list[str]:
    """Split ``text`` into as few parts as possible of at most ``limit``, in order.

    The text is split at sentence ends, then at clauses, then at spaces. A word that is too long is
    cut in half. Neighbouring parts are joined while the sum of their sizes fits, so the time is
    linear in the length of the text.

    Args:
        text: Text to split.
        size_of: Returns the size of a text, for example in subwords. If the size exceeds
            ``limit``, any number above ``limit`` is allowed.
        limit: Maximum size of a part. A single character may exceed it.

    >>> cut_text("One two. Three four, five. Six.", len, 12)
    ['One two.', 'Three four,', 'five. Six.']
    """
    parts = list[str]()
    part_start = 0  # of the last part
    part_size = 0  # of the last part
    for start, end, size in _pieces(text, 0, len(text), size_of, limit, 0):
        part_size += size
        if not parts or part_size > limit:  # the piece begins a new part
            part_start = start
            part_size = size
            parts.append("")
        parts[-1] = text[part_start:end]
    return parts


def _pieces(
    text: str, start: int, end: int, size_of: SizeOf, limit: int, level: int
) -> Iterator[tuple[int, int, int]]:
    """Cut ``text[start:end]`` into pieces within ``limit``, without surrounding white space.

    Args:
        text: The text.
        start: Start of the range to cut.
        end: End of the range to cut.
        size_of: Returns the size of a text.
        limit: Maximum size of a piece. A single character may exceed it.
        level: Index in `_BORDERS` of the borders to cut at. After the last ones, cut in half.

    Yields:
        Start and end of a piece in ``text``, and its size.
    """
    piece = text[start:end].strip()
    if not piece:
        return
    # From here on the range is that of the piece, without the white space around it.
    start = text.index(piece[0], start)
    end = start + len(piece)
    size = size_of(piece)
    if size <= limit or len(piece) == 1:
        yield start, end, size
        return
    # Start and end of each border in the piece. The text of a border, white space, is dropped.
    middle = len(piece) // 2
    borders = [(middle, middle)]
    if level < len(_BORDERS):
        borders = [match.span() for match in _BORDERS[level].finditer(piece)]
        level += 1
    borders.append((len(piece), len(piece)))
    smaller_start = start
    for border_start, border_end in borders:
        yield from _pieces(text, smaller_start, start + border_start, size_of, limit, level)
        smaller_start = start + border_end


def _constraints(
    request: Request,
    tokenizer: Tokenizer,
    decoding: DecodingConfig,
    max_source_length: int,
    start: int | None,
) -> Constraints:
    """Encode the constraints of a request. Blank phrases are ignored.

    Args:
        request: The line with its constraints.
        tokenizer: Target tokenizer.
        decoding: Options of the search.
        max_source_length: Maximum source length in subwords, which limits the output length.
        start: Start token of the target.

    Raises:
        DataError: The constraints contradict each other or the search, or are too long.
    """
    if not request.is_constrained:
        return Constraints(start=start)
    prefix: Ids = ()
    completions: Phrases = ()
    if request.prefix:
        completions = tokenizer.completions(request.prefix)
        prefix = completions[0]
    forbidden = _phrases(tokenizer, request.forbidden)
    constraints = Constraints(
        prefix,
        required=_phrases(tokenizer, request.required),
        forbidden=forbidden + _inside_words(tokenizer, request.forbidden),
        start=start,
        completions=completions,
    )
    num_tokens = constraints.num_tokens
    factor = decoding.max_length_factor
    max_target_length = int(factor * max_source_length + decoding.max_length_offset)
    problem = constraints.contradiction(decoding.no_repeat_ngram_size)
    fix = "Remove one of the constraints."
    # With a bias, the prefix is only more probable, so the search can avoid a forbidden phrase.
    is_forced = not decoding.prefix_bias_beta
    if is_forced and any(contains(prefix, phrase) for phrase in constraints.forbidden):
        problem = "the prefix contains a forbidden phrase"
    elif problem is None and num_tokens > max_target_length:
        problem = f"the prefix and the required phrases have {num_tokens:,} subwords, but a "
        problem += f"translation may have at most {max_target_length:,}"
        fix = "Remove required phrases, or split the line into sentences."
    if problem is not None:
        raise DataError(f"{problem}.", fix=fix)
    return constraints


def _phrases(tokenizer: Tokenizer, texts: Sequence[str]) -> Phrases:
    """Encode phrases as they appear after a space."""
    phrases = [tuple(tokenizer.encode(text)) for text in texts]
    return tuple(filter(None, phrases))


def _inside_words(tokenizer: Tokenizer, texts: Sequence[str]) -> Phrases:
    """Encode phrases as they appear after a letter, if this is possible without a space."""
    phrases = []
    for text in filter(str.strip, texts):
        # The first letter of a Unicode category: L are letters, M are marks, N are numbers.
        starts_word = unicodedata.category(text[0])[0] in "LMN"
        if not starts_word or _UNSPACED.match(text):
            # Encode the phrase after a letter, and cut off the ids of the letter. This fails if
            # the letter and the beginning of the phrase are in one subword.
            letter_ids, ids = tokenizer.encode_batch(["a", "a" + text])
            num_letter_ids = len(letter_ids)
            if ids[:num_letter_ids] == letter_ids and len(ids) > num_letter_ids:
                phrases.append(tuple(ids[num_letter_ids:]))
    return tuple(phrases)
