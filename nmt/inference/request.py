"""`Request` (a line to translate) and `Result` (its translation): JSON and word alignments."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from itertools import chain
from statistics import fmean
from typing import Any, Literal, NamedTuple

from nmt.errors import DataError, nearest_word
from nmt.files.json_file import parse_json
from nmt.inference.direction import LanguageOptions
from nmt.inference.glossary import Glossary
from nmt.text import EOS_ID, without_surrogates
from nmt.text.tokenizer import SPACE, Tokenizer

_SPACE_BYTES = ["<0xE2>", "<0x96>", "<0x81>"]
# One row for each target word, one column for each source word.
Matrix = tuple[tuple[float, ...], ...]
Links = tuple[tuple[int, int], ...]  # (source word, target word), from 0, sorted by the target.

# A sign that a translation is wrong: see `nmt.inference.guard`. ``truncated``: the line is too
# long, and its end is not translated. ``constraint``: a required phrase follows the end of the
# sentence instead of being part of it. ``numbers``: a number of the source is missing. ``lost``: a
# placeholder of the source or a term of the glossary is missing. ``unknown``: the vocabulary lacks
# a source character.
# ``source_language``, ``output_language``: the text is clearly in another language. ``copied``: the
# translation is the source. ``capitals``: the source is in capitals, which the model may not know.
Alarm = Literal[
    "loop", "repetition", "short", "long", "compression", "truncated", "constraint", "numbers",
    "lost", "unknown", "source_language", "output_language", "copied", "capitals",
]  # fmt: skip
Alarms = tuple[Alarm, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """One line to translate, with optional constraints on its translation."""

    text: str
    # The translation begins with this text, which may end inside a word. With ``prefix_bias_beta``
    # it is only more probable.
    prefix: str = ""
    # Phrases that the translation must contain. Phrases are compared as subwords: the same text in
    # other subwords is a different phrase.
    required: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()  # Phrases that the translation must not contain.
    # Domain or target language, for models trained with tags: ``bt`` means ``<bt>`` or ``<2bt>``.
    tag: str | None = None
    source_language: str | None = None  # Language codes, for models with several directions.
    target_language: str | None = None
    # Terms; None for those of the translator.
    glossary: Glossary | None = field(default=None, hash=False)
    # Other JSON fields, copied to the output. They must not have the name of a result field.
    others: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def is_constrained(self) -> bool:
        """Whether the request has a non-blank prefix or phrase."""
        return any(map(str.strip, (self.prefix, *self.required, *self.forbidden)))

    @property
    def languages(self) -> LanguageOptions:
        """Languages and tag of this line."""
        return LanguageOptions(self.source_language, self.target_language, self.tag)


@dataclass(frozen=True, slots=True)
class TokenScore:
    """One token of a translation with the model's log probability."""

    piece: str  # The subword as spelled in the vocabulary. The last token is EOS.
    log_prob: float  # Natural-log probability, given the source and all earlier tokens.


TokenScores = tuple[TokenScore, ...]


def score_tokens(
    tokenizer: Tokenizer, ids: Sequence[int], log_probs: Sequence[float]
) -> TokenScores:
    """Return the tokens of a translation with their log probabilities. EOS is the last token.

    Args:
        tokenizer: Target tokenizer.
        ids: Target ids, without BOS and EOS.
        log_probs: Log probability of each id, and of EOS at the end. Values of a start token before
            them are ignored.
    """
    pieces = tokenizer.subwords([*ids, EOS_ID])
    log_probs_of_pieces = log_probs[-len(pieces) :]  # without those of start tokens
    pairs = zip(pieces, log_probs_of_pieces, strict=True)
    return tuple(TokenScore(piece, log_prob) for piece, log_prob in pairs)


@dataclass(frozen=True, slots=True)
class Alternative:
    """One of several translations of a line."""

    text: str
    score: float  # Length-normalised natural-log probability; higher is better.
    log_prob: float  # Natural-log probability of all tokens, EOS included.

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, with the same field names as `Result.as_dict`."""
        return {"translation": self.text, "score": self.score, "log_prob": self.log_prob}


@dataclass(frozen=True, slots=True)
class Result:
    """The translation of one line."""

    source: str  # The source line.
    text: str  # The translation, without line breaks; empty for a blank line.
    score: float  # Length-normalised natural-log probability; 0 for a blank line.
    # The n-best list, best first, or samples or alternatives by number. The first is the
    # translation itself. Empty for a blank line.
    alternatives: tuple[Alternative, ...] = ()
    # Signs that the translation is wrong, after the second search if there was one: see
    # `nmt.inference.guard`. Without the guard only ``truncated`` and ``constraint`` are set.
    alarms: Alarms = ()
    # Alarms of the first translation that the second search removed.
    retried: Alarms = ()
    # Aligned source and target words (split at spaces). None unless requested.
    alignment: Links | None = None
    # Attention of each target word to each source word, the basis of ``alignment``. None unless
    # requested.
    attention: Matrix | None = None
    # Natural-log probability of all tokens, with one EOS for each segment; 0 for a blank line.
    log_prob: float = 0.0
    # Tokens of the translation with log probabilities, with one EOS for each segment. None unless
    # requested.
    tokens: TokenScores | None = None
    num_tokens: int = 0  # Number of tokens in ``log_prob``, EOS included.
    num_terms: int = 0  # Number of terms of a glossary in the source.
    # Expected sentence chrF, 0 to 100. None for a blank line, for a translation unlike those of the
    # validation set, and without `confidence.json`.
    confidence: float | None = None
    # Why the translation is not rated: the feature outside the range of the validation set.
    unrated: str | None = None
    parts: tuple[Result, ...] = ()  # Results of the sentences, if the line was split.
    # Share of this line in the time of second searches.
    retry_seconds: float = field(default=0.0, compare=False)

    @property
    def is_copied(self) -> bool:
        """Whether the text was copied, because it contains no language."""
        return not self.num_tokens and self.text == self.source.strip()

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON. Optional fields are left out if they are None."""
        values: dict[str, Any] = {
            "source": self.source,
            "translation": self.text,
            "score": self.score,
            "log_prob": self.log_prob,
            "alternatives": [alternative.as_dict() for alternative in self.alternatives],
            "alarms": list(self.alarms),
            "retried": list(self.retried),
            "confidence": self.confidence,
        }
        if self.unrated is not None:
            values["unrated"] = self.unrated
        if self.alignment is not None:
            values["alignment"] = as_pharaoh(self.alignment)
        if self.attention is not None:
            values["attention"] = [_rounded(row) for row in self.attention]
        if self.tokens is not None:
            values["tokens"] = [asdict(token) for token in self.tokens]
        if self.parts:
            values["parts"] = [part.as_dict() for part in self.parts]
        return values


def _rounded(row: Sequence[float]) -> list[float]:
    return [round(weight, 4) for weight in row]


RESULT_FIELDS = {attribute.name for attribute in fields(Result)} | {"translation"}
RESULT_FIELDS -= {"text", "num_tokens", "num_terms", "retry_seconds"}
"""Names of all possible fields of `Result.as_dict`."""
ERROR = "error"  # JSON field of a line that could not be translated.
_TEXTS = ("prefix", "tag", "from", "to", "glossary")  # Request fields with an optional string.
_PHRASES = ("required", "forbidden")  # Request fields with an optional list of strings.
# Fields that are not copied from a request to its result, because nmt reads or writes them.
_RESERVED = {"low_confidence", ERROR, *_TEXTS, *_PHRASES, *RESULT_FIELDS}
# Name of a request field, in nmt or in another toolkit -> name in nmt.
_MEANINGS = {name: name for name in ("source", *_PHRASES, *_TEXTS)}
_MEANINGS |= {"forced": "required", "constraints": "required"}
_MEANINGS |= {"forced_prefix": "prefix", "target_prefix": "prefix"}


class RequestError(DataError):
    """A line of JSON that is not a valid request."""

    def __init__(self, problem: str, others: Mapping[str, Any]) -> None:
        fix = 'Write one object per line, such as {"source": "Ein Hund.", "prefix": "A"}.'
        super().__init__(problem, fix=fix)
        # Fields to copy to the output; the line number if the line is not an object.
        self.others = others

    def __reduce__(self) -> tuple[Any, ...]:  # errors are pickled between processes
        return type(self), (self.problem, self.others)


def parse_request(line: str, line_number: int) -> Request:
    """Read a JSON object: ``{"source": ..., "prefix": ..., "required": [...], ...}``.

    A blank line is a request with blank text. Lone surrogates become U+FFFD.

    Args:
        line: One line of JSON.
        line_number: Line number for error messages, from 1.

    Raises:
        RequestError: The line is not a JSON object of this form.
    """
    # Copied to the output. An error copies the source, too; if the line is not an object, there is
    # only the line number to copy.
    others: dict[str, Any] = {"line": line_number}

    def refused(problem: str) -> RequestError:
        """Return the error, with the value that ``others`` has at this moment."""
        return RequestError(f"Line {line_number:,} {problem}.", others)

    if not line.strip():
        return Request("")
    try:
        values = parse_json(line, finite=True)
    except json.JSONDecodeError as error:
        raise refused(f"is not JSON ({error.msg}, at column {error.colno})") from error
    except ValueError as error:  # a number too long, brackets too deep
        raise refused(f"cannot be read as JSON ({error})") from error
    if not isinstance(values, dict):
        raise refused("is not a JSON object")
    others = {name: values[name] for name in values if name not in _RESERVED or name == "source"}
    # First the default of each field, then its value. A missing source has no valid default.
    texts: dict[str, Any] = {"source": None}
    texts.update(dict.fromkeys(_TEXTS, ""))
    for name in texts:
        text = values.get(name, texts[name])
        if not isinstance(text, str):
            raise refused(f"needs a string in {name}")
        texts[name] = without_surrogates(text)
    phrases = {}
    for name in _PHRASES:
        strings = values.get(name, [])
        is_list = isinstance(strings, list)
        if not is_list or not all(isinstance(string, str) for string in strings):
            raise refused(f"needs a list of strings in {name}")
        phrases[name] = tuple(map(without_surrogates, strings))
    glossary = None
    if "glossary" in values:
        try:
            glossary = Glossary.parse(texts["glossary"].splitlines())
        except DataError as error:
            raise refused(f"has a bad glossary: {error.problem}") from error
    return Request(
        # Replace line breaks, so that one request stays one line of output.
        text=re.sub(r"[\r\n]+", " ", texts["source"].strip("\r\n")),
        prefix=texts["prefix"],
        tag=texts["tag"] or None,
        source_language=texts["from"] or None,
        target_language=texts["to"] or None,
        glossary=glossary,
        others=others,
        required=phrases["required"],
        forbidden=phrases["forbidden"],
    )


@lru_cache(256)
def meant_field(name: str) -> str | None:
    """Return the field with the most similar name, in nmt or other toolkits; None if unclear."""
    similar = nearest_word(name, _MEANINGS)
    return None if similar is None else _MEANINGS[similar]


def as_pharaoh(links: Links) -> str:
    """Return an alignment in Pharaoh format: ``source-target`` pairs of word indices from 0.

    >>> as_pharaoh(((1, 0), (0, 1)))
    '1-0 0-1'
    """
    return " ".join(f"{source}-{target}" for source, target in links)


def words_of(pieces: Sequence[str]) -> list[int]:
    """Return the index of the word (split at spaces) that each subword belongs to, from 0.

    >>> words_of(["\u2581ein", "\u2581Hund", "e", "\u2581schl", "\u00e4ft"])
    [0, 1, 1, 2, 2]
    """
    words = []
    word = 0
    for index, piece in enumerate(pieces):
        # A space is the first character of a subword, or spelled in three subwords of a byte.
        next_three = list(pieces[index : index + 3])
        has_space = piece.startswith(SPACE) or next_three == _SPACE_BYTES
        if index and has_space:  # the first subword belongs to word 0 also after a space
            word += 1
        words.append(word)
    return words


class AlignedSegment(NamedTuple):
    """Word alignment of one segment."""

    links: Links
    weights: Matrix  # Attention of each target word to each source word.
    source_words: int  # Number of source words.


def align_words(
    weights: Sequence[Sequence[float]], source: Sequence[str], target: Sequence[str]
) -> AlignedSegment:
    """Align the words of a segment by attention.

    The weight of a word pair is summed over the subwords of the source word, and averaged over the
    subwords of the target word. Each target word is linked to the source word with the largest
    weight. A row of weights sums to at most 1, because the source EOS also gets attention.

    Args:
        weights: Attention of each target subword to each source subword. (T, S). Rows and columns
            of tags before the subwords are ignored.
        source: Source subwords, without EOS.
        target: Target subwords, without EOS.

    >>> align_words([[0.5, 0.25], [0.25, 0.25]], ["\u2581a", "b"], ["\u2581c", "d"])
    AlignedSegment(links=((0, 0),), weights=((0.625,),), source_words=1)
    """
    # The index of the word that each subword belongs to. Of no subwords, the last index is -1.
    source_words = words_of(source)
    target_words = words_of(target)
    num_source_words = max(source_words, default=-1) + 1
    num_target_words = max(target_words, default=-1) + 1
    word_weights = [[0.0] * num_source_words for _ in range(num_target_words)]
    # The last rows and the last columns: those of tags come before.
    rows = weights[len(weights) - len(target) :]
    for target_word, row in zip(target_words, rows, strict=True):
        subword_weights = row[len(row) - len(source) :]
        num_subwords = target_words.count(target_word)
        for source_word, weight in zip(source_words, subword_weights, strict=True):
            word_weights[target_word][source_word] += weight / num_subwords
    links = []
    for target_word, row in enumerate(word_weights):
        if row:
            links.append((row.index(max(row)), target_word))
    return AlignedSegment(tuple(links), tuple(map(tuple, word_weights)), num_source_words)


def join_alignments(segments: Sequence[AlignedSegment]) -> tuple[Links, Matrix]:
    """Join the alignments of the segments of a line. Attention between segments is 0.

    >>> one = AlignedSegment(((0, 0),), ((0.5, 0.25),), 2)
    >>> join_alignments([one, AlignedSegment(((0, 0),), ((1.0,),), 1)])
    (((0, 0), (2, 1)), ((0.5, 0.25, 0.0), (0.0, 0.0, 1.0)))
    """
    num_words = sum(segment.source_words for segment in segments)
    links = list[tuple[int, int]]()
    rows = list[tuple[float, ...]]()  # One for each target word of the segments so far.
    num_before = 0  # Source words of the segments so far.
    for segment in segments:
        num_rows = len(rows)
        links += [(num_before + source, num_rows + target) for source, target in segment.links]
        num_after = num_words - num_before - segment.source_words
        zeros_before = (0.0,) * num_before
        zeros_after = (0.0,) * num_after
        rows += [zeros_before + weights + zeros_after for weights in segment.weights]
        num_before += segment.source_words
    return tuple(links), tuple(rows)


def strong_links(links: Links, attention: Matrix) -> Links:
    """Return the links with at least half of the highest attention to their source word.

    An article is often aligned to the noun, too, but the noun attends to it more.

    Args:
        links: Aligned words.
        attention: Attention of each target word to each source word.

    >>> strong_links(((0, 0), (0, 1)), ((0.3,), (0.7,)))
    ((0, 1),)
    """
    peaks = list(map(max, zip(*attention, strict=True)))
    return tuple(
        (source, target)
        for source, target in links
        if attention[target][source] >= peaks[source] / 2
    )


def join_results(source: str, gaps: Sequence[str], results: Sequence[Result]) -> Result:
    """Join the results of the sentences of a text.

    A single result only gets the gaps around it. Of several, ``score`` is the mean, ``log_prob``
    the sum, and ``confidence`` the mean weighted by source characters (None if a translated
    sentence has none). The attention between sentences is 0.

    Args:
        source: The text.
        gaps: Text around the translations, one more than there are results.
        results: Results of the sentences, in order.
    """
    text = gaps[0]
    for gap, result in zip(gaps[1:], results, strict=True):
        text += result.text + gap
    if len(results) == 1:
        (result,) = results
        return result if result.source == source else replace(result, source=source, text=text)
    translated = [result for result in results if not result.is_copied]
    score = sum(result.score for result in translated) / max(1, len(translated))
    log_prob = math.fsum(result.log_prob for result in results)
    confidences = [result.confidence for result in translated if result.confidence is not None]
    confidence = None
    if translated and len(confidences) == len(translated):
        lengths = [len(result.source) for result in translated]
        confidence = round(fmean(confidences, lengths), 2)
    reasons = [result.unrated for result in results if result.unrated]
    links, attention = join_alignments(list(map(_aligned_words, results)))
    tokens = [result.tokens for result in results if result.tokens is not None]
    return Result(
        source,
        text,
        score,
        alternatives=(Alternative(text, score, log_prob),) if results else (),
        alarms=each_once(result.alarms for result in results),
        retried=each_once(result.retried for result in results),
        alignment=links if any(result.alignment is not None for result in results) else None,
        attention=attention if any(result.attention is not None for result in results) else None,
        log_prob=log_prob,
        tokens=tuple(chain.from_iterable(tokens)) if tokens else None,
        num_tokens=sum(result.num_tokens for result in results),
        num_terms=sum(result.num_terms for result in results),
        confidence=confidence,
        unrated=reasons[0] if reasons else None,
        parts=tuple(results),
        retry_seconds=sum(result.retry_seconds for result in results),
    )


def _aligned_words(result: Result) -> AlignedSegment:
    """Return the alignment of a sentence, with a row or column for each of its words.

    If the tokenizer changes word borders, the model's words differ from the words of the text. Then
    the attention is 0 everywhere, and the alignment is empty.
    """
    num_sources = len(result.source.split())
    num_targets = len(result.text.split())
    rows = result.attention or ()
    links = result.alignment or ()
    if len(rows) != num_targets or any(len(row) != num_sources for row in rows):
        if rows:
            links = ()
        rows = ((0.0,) * num_sources,) * num_targets
    inside = [link for link in links if link[0] < num_sources and link[1] < num_targets]
    return AlignedSegment(tuple(inside), rows, num_sources)


def each_once(alarms: Iterable[Alarms]) -> Alarms:
    """Return each alarm once, in order of first occurrence."""
    return tuple(dict.fromkeys(chain.from_iterable(alarms)))
