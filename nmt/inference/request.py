"""A line to translate and its translation: `Request`, `Result`, their JSON and word alignments."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from itertools import accumulate
from typing import Any, Literal, NamedTuple, TypeAlias

from nmt.errors import DataError, nearest_word
from nmt.files.json_file import parse_json
from nmt.text import EOS_ID, without_surrogates
from nmt.text.tokenizer import Tokenizer

_SPACE, _SPACE_BYTES = "\u2581", ("<0xE2>", "<0x96>", "<0x81>")
# A row for each target word, with a number for each source word.
Matrix = tuple[tuple[float, ...], ...]
Links = tuple[tuple[int, int], ...]  # (source word, target word), from 0, sorted by the target.

# A sign that a translation is wrong: see `nmt.inference.guard`. ``truncated``, which comes from the
# length of the line, means that its end is not translated; ``constraint``, that a required phrase
# stands behind the end of the sentence instead of in it.
Alarm: TypeAlias = Literal[
    "loop", "repetition", "short", "long", "compression", "truncated", "constraint"
]


@dataclass(frozen=True, slots=True)
class Request:
    """One line to translate, and what its translation must be like."""

    text: str
    # Text that the translation begins with; with ``prefix_bias_beta``, is biased to.
    prefix: str = ""
    # Phrases that it contains. Phrases are compared as subwords: the same text in other subwords is
    # another phrase.
    required: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()  # Phrases that it does not contain.
    # Language or domain that it asks for, if the model was trained with tags; ``de`` names
    # ``<2de>`` or ``<de>``.
    tag: str | None = None
    # Fields of JSON that pass through to the output. None has the name of a field of results.
    others: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_constrained(self) -> bool:
        """Whether it has a prefix or phrases that are not blank."""
        return any(map(str.strip, (self.prefix, *self.required, *self.forbidden)))


@dataclass(frozen=True, slots=True)
class TokenScore:
    """The model's probability of one token of a given translation."""

    piece: str  # The subword, as the vocabulary spells it; the last one is EOS.
    log_prob: float  # Natural-log probability of the subword after those before it.


def score_tokens(
    pieces: Sequence[str], ids: Sequence[int], log_probs: Sequence[float]
) -> tuple[TokenScore, ...]:
    """Return the tokens of a translation with their log probabilities, EOS the last.

    Args:
        pieces: The text of each id of the target vocabulary.
        ids: Target ids, without BOS and EOS.
        log_probs: Of each of them, and of EOS.
    """
    texts = (pieces[index] for index in (*ids, EOS_ID))
    return tuple(TokenScore(*token) for token in zip(texts, log_probs, strict=True))


@dataclass(frozen=True, slots=True)
class Alternative:
    """One of several translations."""

    text: str
    score: float  # Length-normalised natural-log probability; higher is better.
    log_prob: float  # Natural-log probability of all its tokens and its end.

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, with the names that the best translation has."""
        return {"translation": self.text, "score": self.score, "log_prob": self.log_prob}


@dataclass(frozen=True, slots=True)
class Result:
    """The translation of one line."""

    source: str  # The line.
    text: str  # Its translation; empty for a blank line. Never holds a line break.
    score: float  # Length-normalised natural-log probability; 0 for a blank line.
    # The n best, best first, or samples or alternatives in their order; the first is the
    # translation itself. Empty for a blank line.
    alternatives: tuple[Alternative, ...] = ()
    # Signs that the translation is wrong, after a retry, too: see `nmt.inference.guard`. Without
    # the guard only ``truncated`` and ``constraint``.
    alarms: tuple[Alarm, ...] = ()
    # Alarms of the first translation that this one, of a stricter search, does not raise.
    retried: tuple[Alarm, ...] = ()
    # Pairs of source and target words, between spaces, that translate each other; None unless asked
    # for.
    alignment: Links | None = None
    # Attention of each target word to each source word, from which the alignment is taken. None
    # unless asked for.
    attention: Matrix | None = None
    # Natural-log probability of all tokens and of the end of each segment; 0 for a blank line.
    log_prob: float = 0.0
    # The tokens of the translation with their log probabilities, an EOS at the end of each segment;
    # None unless asked for.
    tokens: tuple[TokenScore, ...] | None = None
    # Tokens of the translation and ends of segments, over which ``log_prob`` is summed.
    num_tokens: int = 0
    # Expected sentence chrF, 0 to 100; None for a blank line, and without `confidence.json`.
    confidence: float | None = None
    # Its share of the time that second searches took.
    retry_seconds: float = field(default=0.0, compare=False)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, with both lists of alarms always there."""
        values: dict[str, Any] = {
            "source": self.source,
            "translation": self.text,
            "score": self.score,
            "log_prob": self.log_prob,
            "alternatives": [alternative.as_dict() for alternative in self.alternatives],
            "alarms": list(self.alarms),
            "retried": list(self.retried),
        }
        if self.confidence is not None:
            values["confidence"] = self.confidence
        if self.alignment is not None:
            values["alignment"] = as_pharaoh(self.alignment)
        if self.attention is not None:
            values["attention"] = [[round(x, 4) for x in row] for row in self.attention]
        if self.tokens is not None:
            values["tokens"] = [asdict(token) for token in self.tokens]
        return values


RESULT_FIELDS = {each.name for each in fields(Result)} | {"translation"}
RESULT_FIELDS -= {"text", "num_tokens", "retry_seconds"}
"""Names of all fields of `Result.as_dict`."""
ERROR = "error"  # Field of a line that has no translation.
_RESERVED = {"low_confidence", "prefix", "required", "forbidden", "tag", ERROR, *RESULT_FIELDS}
_MEANINGS = {name: name for name in ("source", "prefix", "required", "forbidden", "tag")}
_MEANINGS |= {"forced": "required", "constraints": "required"}
_MEANINGS |= {"forced_prefix": "prefix", "target_prefix": "prefix"}
"""The field that is meant, by a name that is written or is near to it."""


class RequestError(DataError):
    """A line of JSON that asks for nothing that can be done."""

    def __init__(self, problem: str, others: Mapping[str, Any]) -> None:
        fix = 'Write one object a line, such as {"source": "Ein Hund.", "prefix": "A"}.'
        super().__init__(problem, fix=fix)
        # Its fields that pass through; of a line that is no object, its number.
        self.others = others

    def __reduce__(self) -> tuple[Any, ...]:  # processes of a translation exchange it
        return type(self), (self.problem, self.others)


def parse_request(line: str, number: int) -> Request:
    """Read a JSON object: ``{"source": ..., "prefix": ..., "required": [...], ...}``.

    A blank line is a blank text. Lone surrogates, which JSON may escape, become U+FFFD in text.

    Raises:
        RequestError: The line is something else; says its number.
    """
    others: dict[str, Any] = {"line": number}

    def refused(what: str) -> RequestError:
        return RequestError(f"Line {number:,} {what}.", others)

    if not line.strip():
        return Request("")
    try:
        values = parse_json(line, finite=True)
    except json.JSONDecodeError as error:
        raise refused(f"is not JSON ({error.msg}, at column {error.colno})") from error
    except ValueError as error:  # a number too long, brackets too deep
        raise refused(f"cannot be read as JSON ({error})") from error
    if not isinstance(values, dict):
        raise refused("holds no JSON object")
    others = {x: values[x] for x in values if x not in _RESERVED or x == "source"}
    texts, phrases = {"source": None, "prefix": "", "tag": "", **values}, []
    for name in ("source", "prefix", "tag"):
        if not isinstance(texts[name], str):
            raise refused(f"has no text in {name}")
        texts[name] = without_surrogates(texts[name])
    for name in ("required", "forbidden"):
        given = values.get(name, [])
        if not (isinstance(given, list) and all(isinstance(each, str) for each in given)):
            raise refused(f"has no list of texts in {name}")
        phrases.append(tuple(without_surrogates(each) for each in given))
    # A line break would make two lines of one; other separators of Unicode are text.
    text = re.sub(r"[\r\n]+", " ", texts["source"].strip("\r\n"))
    others.pop("source", None)
    return Request(text, texts["prefix"], phrases[0], phrases[1], texts["tag"] or None, others)


@lru_cache(256)
def meant_field(name: str) -> str | None:
    """Return the field of a request that a field looks like."""
    near = nearest_word(name, list(_MEANINGS))
    return near and _MEANINGS[near]


def as_pharaoh(links: Links) -> str:
    """Return an alignment in Pharaoh format, ``source-target`` pairs.

    >>> as_pharaoh(((1, 0), (0, 1)))
    '1-0 0-1'
    """
    return " ".join(f"{source}-{target}" for source, target in links)


def words_of(pieces: Sequence[str]) -> list[int]:
    """Return the word, between spaces, that each subword belongs to, from 0.

    >>> words_of(["\u2581ein", "\u2581Hund", "e", "\u2581schl", "\u00e4ft"])
    [0, 1, 1, 2, 2]
    """
    begins = (
        number > 0 and (piece.startswith(_SPACE) or (*pieces[number : number + 3],) == _SPACE_BYTES)
        for number, piece in enumerate(pieces)
    )
    return list(accumulate(map(int, begins)))


class AlignedSegment(NamedTuple):
    """The alignment of one segment, by words."""

    links: Links
    weights: Matrix
    source_words: int


def align_words(
    weights: Sequence[Sequence[float]], source: Sequence[str], target: Sequence[str]
) -> AlignedSegment:
    """Align a segment by attention.

    Each target subword is linked to the source subword of most attention. The weight of a target
    word is the mean over its subwords of the sum over those of the source word; a row sums to at
    most 1, as EOS of the source gets attention, too.

    Args:
        weights: Attention of each target subword to each source subword. (T, S).
        source: The source subwords, without EOS.
        target: The target subwords, without EOS.

    >>> align_words([[0.5, 0.25], [0.25, 0.25]], ["\u2581a", "b"], ["\u2581c", "d"])
    AlignedSegment(links=((0, 0),), weights=((0.625,),), source_words=1)
    """
    of_source, of_target = words_of(source), words_of(target)
    source_words, target_words = (max(words, default=-1) + 1 for words in (of_source, of_target))
    matrix = [[0.0] * source_words for _ in range(target_words)]
    links: set[tuple[int, int]] = set()
    for word, row in zip(of_target, weights, strict=True):
        size = of_target.count(word)
        for place, weight in zip(of_source, row, strict=True):
            matrix[word][place] += weight / size
        if source:
            links.add((of_source[max(range(len(source)), key=row.__getitem__)], word))
    ordered = sorted(links, key=lambda link: link[::-1])
    return AlignedSegment(tuple(ordered), tuple(map(tuple, matrix)), source_words)


def join_alignments(parts: Sequence[AlignedSegment]) -> tuple[Links, Matrix]:
    """Number the words of all segments of a line through; no segment attends to another.

    >>> one = AlignedSegment(((0, 0),), ((0.5, 0.25),), 2)
    >>> join_alignments([one, AlignedSegment(((0, 0),), ((1.0,),), 1)])
    (((0, 0), (2, 1)), ((0.5, 0.25, 0.0), (0.0, 0.0, 1.0)))
    """
    width = sum(part.source_words for part in parts)
    links: list[tuple[int, int]] = []
    rows: list[tuple[float, ...]] = []
    before = 0
    for part in parts:
        links += [(before + source, len(rows) + target) for source, target in part.links]
        after = width - before - part.source_words
        rows += [(0.0,) * before + row + (0.0,) * after for row in part.weights]
        before += part.source_words
    return tuple(links), tuple(rows)


def subwords(tokenizer: Tokenizer) -> list[str]:
    """Return the text of each id."""
    return [piece for piece, _, _ in tokenizer.pieces()]
