"""Sources and their translations -> alignments, by the attention of an engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nmt.text.tokenizer import Tokenizer, Tokenizers
from nmt.translation.alignment import Part
from nmt.translation.engine import Engine


def align_by_attention(
    engine: Engine,
    tokenizers: Tokenizers,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    batches: Iterable[Sequence[int]],
) -> list[Part]:
    """Align each source with its translation.

    Args:
        engine: The model that translated.
        tokenizers: Of both languages.
        sources: Source ids of each segment, without EOS.
        targets: Target ids of each, without BOS and EOS.
        batches: Which segments the engine reads at once; each is in one batch.

    Raises:
        ConfigError: The engine does not tell its attention.
    """
    of_source, of_target = _subwords(tokenizers.source), _subwords(tokenizers.target)
    parts: dict[int, Part] = {}
    for rows in batches:
        weights = engine.attention([sources[row] for row in rows], [targets[row] for row in rows])
        for row, own in zip(rows, weights, strict=True):
            source = [of_source[i] for i in sources[row]]
            target = [of_target[i] for i in targets[row]]
            parts[row] = Part.of(own, source, target)
    return [parts[row] for row in range(len(sources))]


def _subwords(tokenizer: Tokenizer) -> list[str]:
    """Return the text of each id."""
    return [piece for piece, _, _ in tokenizer.pieces()]
