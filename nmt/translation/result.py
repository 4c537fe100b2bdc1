"""What a translator gives for each line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from nmt.translation.alignment import Links, Matrix, as_pharaoh
from nmt.translation.guard import Alarm
from nmt.translation.mending import Verdict
from nmt.translation.token_score import TokenScore

_DIGITS = 4  # of shares of attention: more would be noise
_UNSPACED = ("zh", "ja", "th", "lo", "km", "my")


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
    """Signs that it is no translation, also after a stricter search: see
    `nmt.translation.guard`. Empty without the guard."""
    mended: tuple[Alarm, ...] = ()
    """Signs that a stricter search took away. Read such a line with care: the model was lost."""
    alignment: Links | None = None
    """Words of the source and of the translation, between spaces, that belong together; None
    unless asked for."""
    attention: Matrix | None = None
    """How much of each source word was seen for each word of the translation: what the alignment is
    taken from, by words. None unless asked for."""
    tokens: tuple[TokenScore, ...] | None = None
    """The tokens of the translation with their log probabilities, an EOS at the end of each part of
    a line that was cut; None unless asked for."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, with both lists of alarms always there."""
        asked: dict[str, Any] = {}
        if self.alignment is not None:
            asked["alignment"] = as_pharaoh(self.alignment)
        if self.attention is not None:
            asked["attention"] = [[round(x, _DIGITS) for x in row] for row in self.attention]
        if self.tokens is not None:
            asked["tokens"] = [asdict(token) for token in self.tokens]
        return {
            "source": self.source,
            "translation": self.text,
            "score": self.score,
            "alternatives": [asdict(alternative) for alternative in self.alternatives],
            "alarms": list(self.alarms),
            "mended": list(self.mended),
            **asked,
        }


def joiner_for(language: str) -> str:
    """Return what stands between the segments of a line in ``language``.

    >>> joiner_for("de"), joiner_for("zh-Hant")
    (' ', '')
    """
    return "" if re.split("[-_]", language)[0].lower() in _UNSPACED else " "


def join_segments(
    source: str,
    outputs: Sequence[Sequence[Alternative]],
    verdicts: Sequence[Verdict],
    *,
    joiner: str,
    with_alternatives: bool,
) -> TranslationResult:
    """Return the translation of a line from those of its segments.

    The segments of a cut line are independent: only the best of each are joined.

    Args:
        source: The line.
        outputs: Translations of each of its segments, best first; of none for a blank line.
        verdicts: What the guard found in each segment.
        joiner: What stands between the segments; see `joiner_for`.
        with_alternatives: Whether the result has all its translations.
    """
    if not outputs:
        return TranslationResult(source, "", 0.0)
    if len(outputs) == 1:
        alternatives = tuple(outputs[0])
    else:
        text = joiner.join(best.text for best, *_ in outputs)
        score = sum(best.score for best, *_ in outputs) / len(outputs)
        alternatives = (Alternative(text, score),)
    return TranslationResult(
        source,
        alternatives[0].text,
        alternatives[0].score,
        alternatives if with_alternatives else (),
        alarms=_union(verdict.alarms for verdict in verdicts),
        mended=_union(verdict.mended for verdict in verdicts),
    )


def _union(alarms: Iterable[tuple[Alarm, ...]]) -> tuple[Alarm, ...]:
    """Return every alarm once, in the order of the first ones."""
    return tuple(dict.fromkeys(name for names in alarms for name in names))
