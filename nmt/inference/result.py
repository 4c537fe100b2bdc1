"""What a translator returns for each line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, TypeAlias

from nmt.inference.alignment import Links, Matrix, as_pharaoh
from nmt.text import EOS_ID

# A sign that a translation is wrong: see `nmt.inference.guard`. ``truncated``, which comes from the
# length of the line, means that its end is not translated; ``constraint``, that a required phrase
# stands behind the end of the sentence instead of in it.
Alarm: TypeAlias = Literal[
    "loop", "repetition", "short", "long", "compression", "truncated", "constraint"
]


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
