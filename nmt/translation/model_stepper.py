"""A Transformer as a `Stepper`."""

from __future__ import annotations

from torch import Tensor

from nmt.model.transformer import DecoderState, Transformer


class ModelStepper:
    """Gives log probabilities of one model. See `nmt.search.stepper.Stepper`."""

    def __init__(self, model: Transformer) -> None:
        self._model = model

    def start(self, source: Tensor, source_lengths: Tensor) -> DecoderState:
        """Encode the source."""
        return self._model.start(source, source_lengths)

    def step(self, state: DecoderState, tokens: Tensor) -> tuple[Tensor, DecoderState]:
        """Log probabilities after ``tokens`` (B, K): (B, K, V), float32."""
        logits, state = self._model.step(state, tokens)
        return logits.float().log_softmax(dim=-1), state

    def select(self, state: DecoderState, sentences: Tensor, beams: Tensor) -> DecoderState:
        """Keep sentences and beams."""
        return self._model.select(state, sentences, beams)
