"""What a translator returns for each line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from nmt.text import EOS_ID
from nmt.translation.guard import Alarm, GuardOutcome

_ATTENTION_DIGITS = 4
_UNSPACED = ("zh", "ja", "th", "lo", "km", "my")

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
    translation itself. Empty unless asked for."""
    alarms: tuple[Alarm, ...] = ()
    """Signs that the translation is wrong, after a retry, too: see `nmt.translation.guard`. Without
    the guard only ``truncated``."""
    retried: tuple[Alarm, ...] = ()
    """Alarms of the first translation that this one, of a stricter search, does not raise."""
    alignment: Links | None = None
    """Pairs of source and target words, between spaces, that translate each other; None unless
    asked for."""
    attention: Matrix | None = None
    """Attention of each target word to each source word, from which the alignment is taken. None
    unless asked for."""
    tokens: tuple[TokenScore, ...] | None = None
    """The tokens of the translation with their log probabilities, an EOS at the end of each
    segment; None unless asked for."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, with both lists of alarms always there."""
        asked: dict[str, Any] = {}
        if self.alignment is not None:
            asked["alignment"] = as_pharaoh(self.alignment)
        if self.attention is not None:
            rows = self.attention
            asked["attention"] = [[round(x, _ATTENTION_DIGITS) for x in row] for row in rows]
        if self.tokens is not None:
            asked["tokens"] = [asdict(token) for token in self.tokens]
        return {
            "source": self.source,
            "translation": self.text,
            "score": self.score,
            "alternatives": [asdict(alternative) for alternative in self.alternatives],
            "alarms": list(self.alarms),
            "retried": list(self.retried),
            **asked,
        }


_OPTIONAL = ("alignment", "attention", "tokens")
RESULT_FIELDS = frozenset(
    ("source", "translation", "score", "alternatives", "alarms", "retried", *_OPTIONAL)
)
"""Names of all fields of `TranslationResult.as_dict`."""


def as_pharaoh(links: Links) -> str:
    """Return an alignment in Pharaoh format, ``source-target`` pairs.

    >>> as_pharaoh(((1, 0), (0, 1)))
    '1-0 0-1'
    """
    return " ".join(f"{source}-{target}" for source, target in links)


def joiner_for(language: str) -> str:
    """Return what stands between the segments of a line in ``language``.

    >>> joiner_for("de"), joiner_for("zh-Hant")
    (' ', '')
    """
    return "" if re.split("[-_]", language)[0].lower() in _UNSPACED else " "


def join_segments(
    source: str,
    outputs: Sequence[Sequence[Alternative]],
    outcomes: Sequence[GuardOutcome],
    *,
    joiner: str,
    with_alternatives: bool,
    is_truncated: bool = False,
) -> TranslationResult:
    """Return the translation of a line from those of its segments.

    The segments of a line are independent: only the best of each are joined.

    Args:
        source: The line.
        outputs: Translations of each of its segments, best first; of none for a blank line.
        outcomes: What the guard found in each segment.
        joiner: What stands between the segments; see `joiner_for`.
        with_alternatives: Whether the result has all its translations.
        is_truncated: Whether the end of the line is not translated.
    """
    if not outputs:
        return TranslationResult(source, "", 0.0)
    if len(outputs) == 1:
        alternatives = tuple(outputs[0])
    else:
        text = joiner.join(best.text for best, *_ in outputs)
        score = sum(best.score for best, *_ in outputs) / len(outputs)
        alternatives = (Alternative(text, score),)
    truncated: tuple[Alarm, ...] = ("truncated",) if is_truncated else ()
    return TranslationResult(
        source,
        alternatives[0].text,
        alternatives[0].score,
        alternatives if with_alternatives else (),
        alarms=(*truncated, *_union(outcome.alarms for outcome in outcomes)),
        retried=_union(outcome.retried for outcome in outcomes),
    )


def _union(alarms: Iterable[tuple[Alarm, ...]]) -> tuple[Alarm, ...]:
    """Return every alarm once, in the order of the first ones."""
    return tuple(dict.fromkeys(name for names in alarms for name in names))
