"""What the model gave to every token of a translation. Loads no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nmt.text import EOS_ID
from nmt.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TokenScore:
    """One step of the model along a given translation."""

    piece: str
    """The subword, as the vocabulary spells it; the last one is EOS."""
    log_prob: float
    """Natural-log probability of the subword after those before it."""


def spell(
    pieces: Sequence[str], ids: Sequence[int], log_probs: Sequence[float]
) -> tuple[TokenScore, ...]:
    """Return the tokens of a translation with their log probabilities, EOS the last.

    Args:
        pieces: The text of each id; see `subwords`.
        ids: Target ids, without BOS and EOS.
        log_probs: Of each of them, and of EOS.
    """
    texts = (pieces[index] for index in (*ids, EOS_ID))
    return tuple(TokenScore(*token) for token in zip(texts, log_probs, strict=True))


def subwords(tokenizer: Tokenizer) -> list[str]:
    """Return the text of each id."""
    return [piece for piece, _, _ in tokenizer.pieces()]
