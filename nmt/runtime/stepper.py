"""A Transformer, or several together, as a `Stepper` of the search.

Averaging the predictions of networks that were trained apart is old (Hansen and Salamon 1990);
for translation see Sutskever et al. (2014), table 1.

Shapes: B sentences, K beams, S source positions, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nmt.model.decoder_state import DecoderState
from nmt.model.transformer import DecodeToken, Transformer
from nmt.packed import Packed
from nmt.runtime.engine import Mean
from nmt.runtime.shortlist import BatchVocabulary
from nmt.search.loop import Stepper


class ModelStepper:
    """Gives log probabilities of one model. See `nmt.search.loop.Stepper`.

    Args:
        model: On its device.
        run: Does what `Transformer.decode_token` does, faster.
        with_coverage: Whether a search will ask for the coverage of the source.
        vocabulary: The few tokens that the batch to be translated may need; all if None. Ids are
            then indices into it.
    """

    def __init__(
        self,
        model: Transformer,
        run: DecodeToken | None = None,
        *,
        with_coverage: bool = False,
        vocabulary: BatchVocabulary | None = None,
    ) -> None:
        self._model, self._with_coverage, self._vocabulary = model, with_coverage, vocabulary
        self._run = run
        self._logits = (
            model.logits if vocabulary is None else model.narrow_output(vocabulary.tokens)
        )

    @property
    def tokens(self) -> Tensor | None:
        """What ids of the search stand for. (V',), int64; None where they are themselves."""
        return None if self._vocabulary is None else self._vocabulary.tokens

    @property
    def max_positions(self) -> int | None:
        """Size of a learned table of positions; None without one."""
        config = self._model.config
        return config.max_positions if config.positions == "learned" else None

    def start(self, source: Packed) -> DecoderState:
        """Encode the source."""
        allowed = None if self._vocabulary is None else self._vocabulary.allowed
        return self._model.start(source, with_coverage=self._with_coverage, allowed=allowed)

    def step(self, state: DecoderState, tokens: Tensor) -> tuple[Tensor, DecoderState]:
        """Log probabilities after ``tokens`` (B, K): (B, K, V), float32."""
        if self._vocabulary is not None:
            tokens = self._vocabulary.tokens.take(tokens)
        hidden, state = self._model.decode_step(state, tokens, self._run)
        logits = self._logits(hidden)
        if state.allowed is not None:
            logits.add_(state.allowed)
        return logits.float().log_softmax(dim=-1), state

    def select(self, state: DecoderState, sentences: Tensor, beams: Tensor) -> DecoderState:
        """Keep sentences and beams."""
        return state.select(sentences, beams)

    def coverage(self, state: DecoderState) -> Tensor:
        """How much of each source token was read so far: (B, K, S), float32."""
        if state.coverage is None:
            raise ValueError("this stepper was made without coverage")
        return state.coverage.unflatten(0, (-1, state.num_beams))


@dataclass(frozen=True, slots=True)
class Mixture:
    """How the log probabilities of several models become one."""

    shares: tuple[float, ...] = (1.0,)
    """Weight of each model, above 0; they sum to 1."""
    mean: Mean = "arithmetic"
    """``arithmetic``: log of the weighted mean of probabilities: what one model finds likely stays
    possible. ``geometric``: weighted mean of log probabilities, normalised again: every model can
    veto."""

    def combine(self, log_probs: Sequence[Tensor]) -> Tensor:
        """Return the log probabilities of all models together. Overwrites its argument.

        What is impossible (minus infinity) to one model is so to all: it is at the end of its
        positions.

        Args:
            log_probs: Of each model. (..., V), float32.
        """
        if len(log_probs) == 1:
            return log_probs[0]
        if self.mean == "geometric":
            total = log_probs[0].mul_(self.shares[0])
            for share, values in zip(self.shares[1:], log_probs[1:], strict=True):
                total.add_(values, alpha=share)
            return total.log_softmax(dim=-1)
        total = log_probs[0].add_(math.log(self.shares[0]))
        for share, values in zip(self.shares[1:], log_probs[1:], strict=True):
            impossible = torch.isneginf(total) | torch.isneginf(values)
            torch.logaddexp(total, values.add_(math.log(share)), out=total)
            total.masked_fill_(impossible, -torch.inf)
        return total


class EnsembleStepper:
    """Gives the mean of several steppers. See `nmt.search.loop.Stepper`.

    Args:
        steppers: One for each share of the mixture; all over the same vocabulary.
        mixture: How they are averaged.
    """

    def __init__(self, steppers: Sequence[Stepper[Any]], mixture: Mixture) -> None:
        self._steppers, self._mixture = steppers, mixture

    @property
    def tokens(self) -> Tensor | None:
        """What ids of the search stand for: the same for all."""
        return self._steppers[0].tokens

    @property
    def max_positions(self) -> int | None:
        """Positions that all of them have."""
        found = (stepper.max_positions for stepper in self._steppers)
        return min((count for count in found if count is not None), default=None)

    def start(self, source: Packed) -> tuple[Any, ...]:
        """Let every model read the source."""
        return tuple(stepper.start(source) for stepper in self._steppers)

    def step(self, state: tuple[Any, ...], tokens: Tensor) -> tuple[Tensor, tuple[Any, ...]]:
        """Log probabilities after ``tokens`` (B, K): (B, K, V), float32."""
        steps = [
            stepper.step(own, tokens) for stepper, own in zip(self._steppers, state, strict=True)
        ]
        return self._mixture.combine([values for values, _ in steps]), tuple(
            after for _, after in steps
        )

    def select(self, state: tuple[Any, ...], sentences: Tensor, beams: Tensor) -> tuple[Any, ...]:
        """Keep sentences and beams in every model."""
        return tuple(
            stepper.select(own, sentences, beams)
            for stepper, own in zip(self._steppers, state, strict=True)
        )

    def coverage(self, state: tuple[Any, ...]) -> Tensor:
        """Mean over the models, which count alike as for alignments: (B, K, S), float32."""
        found = [stepper.coverage(own) for stepper, own in zip(self._steppers, state, strict=True)]
        return torch.stack(found).mean(0)
