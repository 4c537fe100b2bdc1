"""What is told of a translation besides its text, when asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from nmt.runtime.engine import Engine
from nmt.text.tokenizer import Tokenizers
from nmt.translation.alignment import Part, joined, joined_weights
from nmt.translation.result import TranslationResult
from nmt.translation.segment import Segment, group_by_line
from nmt.translation.token_score import spell, subwords

_Value = TypeVar("_Value")
_Ids = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Details:
    """What is asked for."""

    alignments: bool = False
    """Which words belong together."""
    attention: bool = False
    """How much of each source word each word of the translation goes back to."""
    token_scores: bool = False
    """How probable each token is."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """The best output of each segment."""

    segments: Sequence[Segment]
    """What was translated."""
    ids: _Ids
    """To what: target ids, without BOS and EOS."""
    batches: Sequence[Sequence[int]]
    """Which segments an engine reads at once; each is in one batch."""

    def ask(self, read: Callable[[_Ids, _Ids], Sequence[_Value]]) -> list[_Value]:
        """Return what ``read`` says of the source and target ids of each segment."""
        found: dict[int, _Value] = {}
        for rows in self.batches:
            sources = [self.segments[row].ids for row in rows]
            found.update(zip(rows, read(sources, [self.ids[row] for row in rows]), strict=True))
        return [found[row] for row in range(len(self.segments))]


def add_details(
    results: Sequence[TranslationResult],
    wanted: Details,
    outputs: Outputs,
    engine: Engine,
    tokenizers: Tokenizers,
) -> list[TranslationResult]:
    """Return the results of all lines with what is wanted.

    Raises:
        ConfigError: The engine does not tell that.
    """
    detailed = list(results)
    if wanted.alignments or wanted.attention:
        lines = _parts(len(results), outputs, engine, tokenizers)
        if wanted.alignments:
            detailed = [
                replace(result, alignment=joined(own))
                for result, own in zip(detailed, lines, strict=True)
            ]
        if wanted.attention:
            detailed = [
                replace(result, attention=joined_weights(own))
                for result, own in zip(detailed, lines, strict=True)
            ]
    if wanted.token_scores:
        detailed = _scored(detailed, outputs, engine, tokenizers)
    return detailed


def _parts(
    num_lines: int, outputs: Outputs, engine: Engine, tokenizers: Tokenizers
) -> list[list[Part]]:
    """Align the parts of each line by attention."""
    of_source, of_target = subwords(tokenizers.source), subwords(tokenizers.target)
    parts = [
        Part.of(weights, [of_source[i] for i in segment.ids], [of_target[i] for i in ids])
        for weights, segment, ids in zip(
            outputs.ask(engine.attention), outputs.segments, outputs.ids, strict=True
        )
    ]
    return group_by_line(outputs.segments, parts, num_lines)


def _scored(
    results: Sequence[TranslationResult], outputs: Outputs, engine: Engine, tokenizers: Tokenizers
) -> list[TranslationResult]:
    pieces = subwords(tokenizers.target)
    tokens = [
        spell(pieces, ids, log_probs)
        for ids, log_probs in zip(outputs.ids, outputs.ask(engine.token_log_probs), strict=True)
    ]
    by_line = group_by_line(outputs.segments, tokens, len(results))
    return [
        replace(result, tokens=tuple(token for segment in own for token in segment))
        for result, own in zip(results, by_line, strict=True)
    ]
