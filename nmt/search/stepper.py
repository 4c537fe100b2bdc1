"""The seam between search and whatever gives probabilities.

Shapes: B sentences, S source positions, K beams of each sentence, V vocabulary.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from torch import Tensor

S = TypeVar("S")


class Stepper(Protocol[S]):
    """Gives the log probabilities of the next token. Its state is opaque to the search.

    What comes after a state may use its memory again: the search goes on from each state once.
    """

    @property
    def tokens(self) -> Tensor | None:
        """What the ids of the search stand for. (V,), int64; None where they are themselves."""
        ...

    def start(self, source: Tensor, source_lengths: Tensor) -> S:
        """Read the source, padded (B, S), of these lengths (B,); one beam for each sentence."""
        ...

    def step(self, state: S, tokens: Tensor) -> tuple[Tensor, S]:
        """Append ``tokens`` (B, K), int64; return log probabilities (B, K, V), float32, and state.

        The search may overwrite the log probabilities.
        """
        ...

    def select(self, state: S, sentences: Tensor, beams: Tensor) -> S:
        """Keep ``sentences`` (B',), ascending, and in each the given ``beams`` (B', K').

        A beam may go on several times: K' need not be K.
        """
        ...

    def coverage(self, state: S) -> Tensor:
        """How much of each source token all steps so far have read together: (B, K, S), float32.

        The search asks only where it has a coverage penalty; what is not made for it may refuse.
        """
        ...
