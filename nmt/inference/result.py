"""What a translator returns for each line, with the word alignment that attention gives it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import accumulate
from typing import Any, Literal, NamedTuple, TypeAlias

from nmt.text import EOS_ID
from nmt.text.tokenizer import Tokenizer

_SPACE, _SPACE_BYTES = "\u2581", ("<0xE2>", "<0x96>", "<0x81>")

Alarm: TypeAlias = Literal[
    "loop", "repetition", "short", "long", "compression", "coverage", "truncated", "constraint"
]
"""A sign that a translation is wrong: see `nmt.inference.guard`. ``truncated``, which comes from
the length of the line, means that its end is not translated; ``constraint``, that a required phrase
stands behind the end of the sentence instead of in it."""
_SIGNS: dict[str, str] = {
    **dict.fromkeys(("loop", "repetition", "compression"), "loops"),
    **dict.fromkeys(("short", "long", "truncated"), "length"),
    "coverage": "coverage",
    "constraint": "required phrases",
}
_USUAL_SHARE, _FEWEST_LINES = 0.1, 20  # of alarms, and to say that there are more than that
_NAMED_LINES = 5
Matrix = tuple[tuple[float, ...], ...]
"""A row for each target word, with a number for each source word."""
Links = tuple[tuple[int, int], ...]
"""(source word, target word), from 0, sorted by the target."""


@dataclass(frozen=True, slots=True)
class TokenScore:
    """The model's probability of one token of a given translation."""

    piece: str
    """The subword, as the vocabulary spells it; the last one is EOS."""
    log_prob: float
    """Natural-log probability of the subword after those before it."""


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
    score: float
    """Length-normalised natural-log probability; higher is better."""
    log_prob: float
    """Natural-log probability of all its tokens and its end."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, with the names that the best translation has."""
        return {"translation": self.text, "score": self.score, "log_prob": self.log_prob}


@dataclass(frozen=True, slots=True)
class TranslationResult:
    """The translation of one line."""

    source: str
    """The line."""
    text: str
    """Its translation; empty for a blank line. Never holds a line break."""
    score: float
    """Length-normalised natural-log probability; 0 for a blank line."""
    alternatives: tuple[Alternative, ...] = ()
    """The n best, best first, or samples or alternatives in their order; the first is the
    translation itself. Empty for a blank line."""
    alarms: tuple[Alarm, ...] = ()
    """Signs that the translation is wrong, after a retry, too: see `nmt.inference.guard`. Without
    the guard only ``truncated`` and ``constraint``."""
    retried: tuple[Alarm, ...] = ()
    """Alarms of the first translation that this one, of a stricter search, does not raise."""
    alignment: Links | None = None
    """Pairs of source and target words, between spaces, that translate each other; None unless
    asked for."""
    attention: Matrix | None = None
    """Attention of each target word to each source word, from which the alignment is taken. None
    unless asked for."""
    log_prob: float = 0.0
    """Natural-log probability of all tokens and of the end of each segment; 0 for a blank line."""
    tokens: tuple[TokenScore, ...] | None = None
    """The tokens of the translation with their log probabilities, an EOS at the end of each
    segment; None unless asked for."""
    num_tokens: int = 0
    """Tokens of the translation and ends of segments, over which ``log_prob`` is summed."""
    confidence: float | None = None
    """Expected sentence chrF, 0 to 100; None for a blank line, and without `confidence.json`."""

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


RESULT_FIELDS = {each.name for each in fields(TranslationResult)}
RESULT_FIELDS = RESULT_FIELDS - {"text", "num_tokens"} | {"translation"}
"""Names of all fields of `TranslationResult.as_dict`."""


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


@dataclass(frozen=True, slots=True)
class GuardCounts:
    """What the guard saw in some lines, and what it cost. Counts of several parts add up."""

    num_alarmed: int = 0
    """Lines whose first translation had an alarm."""
    num_cleared: int = 0
    """Of these, lines whose second translation has none."""
    signs: frozenset[str] = frozenset()
    """What the alarms were about: ``loops``, ``length``, ``coverage``."""
    retry_seconds: float = 0.0
    """Time of the second searches."""
    seconds: float = 0.0
    """Time of all searches, these included."""
    left: tuple[int, ...] = ()
    """Numbers of the first lines that still have an alarm."""

    @classmethod
    def of(
        cls,
        results: Mapping[int, TranslationResult],
        *,
        retry_seconds: float = 0.0,
        seconds: float = 0.0,
    ) -> GuardCounts:
        """Count what raised alarms in some results, by the numbers of their lines."""
        lines = [(result.alarms, result.retried) for result in results.values()]
        names = {name for pair in lines for own in pair for name in own}
        return cls(
            sum(bool(now or before) for now, before in lines),
            sum(bool(before and not now) for now, before in lines),
            frozenset(_SIGNS[name] for name in names),
            retry_seconds,
            seconds,
            tuple(number for number, result in results.items() if result.alarms)[:_NAMED_LINES],
        )

    def __add__(self, other: GuardCounts) -> GuardCounts:
        return GuardCounts(
            self.num_alarmed + other.num_alarmed,
            self.num_cleared + other.num_cleared,
            self.signs | other.signs,
            self.retry_seconds + other.retry_seconds,
            self.seconds + other.seconds,
            (*self.left, *other.left)[:_NAMED_LINES],
        )

    def message(self, num_lines: int) -> str | None:
        """Return what the user should know of so many lines; None without alarms.

        >>> GuardCounts(3, 2, frozenset({"loops", "length"}), left=(7,)).message(1000)
        'guard: 3 of 1,000 lines looked degenerate (length, loops); 1 still does: line 7'
        """
        if not self.num_alarmed:
            return None
        left, named = self.num_alarmed - self.num_cleared, ", ".join(map(str, self.left))
        which = f"line{'s' * (left > 1)} {named}{', ...' * (left > len(self.left))}"
        signs = ", ".join(sorted(self.signs))
        parts = [
            f"guard: {self.num_alarmed:,} of {num_lines:,} lines looked degenerate ({signs})",
            f"{left:,} still {'does' if left == 1 else 'do'}: {which}"
            if left
            else "now none raises an alarm",
        ]
        if self.num_alarmed > _USUAL_SHARE * num_lines and num_lines >= _FEWEST_LINES:
            parts.append("input unlike the validation set, or a model trained too little?")
        if self.retry_seconds:
            cost = f"{self.retry_seconds:.1f} of {self.seconds:.1f} s"
            parts.append(f"translating them again took {cost} (--no-guard turns it off)")
        return "; ".join(parts)
