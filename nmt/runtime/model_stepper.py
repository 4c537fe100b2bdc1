"""A Transformer as a `Stepper`."""

from __future__ import annotations

from torch import Tensor

from nmt.model.decoder_state import DecoderState
from nmt.model.transformer import DecodeToken, Transformer
from nmt.packed import Packed
from nmt.runtime.shortlist import BatchVocabulary


class ModelStepper:
    """Gives log probabilities of one model. See `nmt.search.loop.Stepper`.

    Args:
        model: On its device.
        run: Does what `Transformer.decode_token` does, faster.
        with_coverage: Whether a search will ask for the coverage of the source.
        vocabulary: The few tokens that the batch to be translated may need; all if None. Ids are
            then places in it.
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

    def start(self, source: Tensor, source_lengths: Tensor) -> DecoderState:
        """Encode the source."""
        return self._model.start(
            Packed.from_rectangle(source, source_lengths),
            with_coverage=self._with_coverage,
            choice=None if self._vocabulary is None else self._vocabulary.choice,
        )

    def step(self, state: DecoderState, tokens: Tensor) -> tuple[Tensor, DecoderState]:
        """Log probabilities after ``tokens`` (B, K): (B, K, V), float32."""
        if self._vocabulary is not None:
            tokens = self._vocabulary.tokens.take(tokens)
        hidden, state = self._model.decode_step(state, tokens, self._run)
        logits = self._logits(hidden)
        if state.choice is not None:
            logits.add_(state.choice)
        return logits.float().log_softmax(dim=-1), state

    def select(self, state: DecoderState, sentences: Tensor, beams: Tensor) -> DecoderState:
        """Keep sentences and beams."""
        return state.select(sentences, beams)

    def coverage(self, state: DecoderState) -> Tensor:
        """How much of each source token was read so far: (B, K, S), float32."""
        if state.coverage is None:
            raise ValueError("this stepper was not made for a search with a coverage penalty")
        return state.coverage.unflatten(0, (-1, state.num_beams))
