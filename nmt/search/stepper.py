"""What a search needs of a model: a `Stepper`."""

from __future__ import annotations

from typing import Protocol, TypeVar

from torch import Tensor

from nmt.packed import Packed

S = TypeVar("S")


class Stepper(Protocol[S]):
    """Gives the log probabilities of the next token. Its state is opaque to the search.

    What comes after a state may use its memory again: the search continues each state once.

    Shapes: B sentences still active, S source positions, K beams of each sentence, V vocabulary.
    """

    @property
    def tokens(self) -> Tensor | None:
        """What the ids of the search stand for. (V,), int64; None where they are themselves."""
        ...

    @property
    def max_positions(self) -> int | None:
        """Positions of the decoder: the longest output, with EOS; None if there is no limit."""
        ...

    def start(self, source: Packed) -> S:
        """Read the source ids of B sentences; one beam for each."""
        ...

    def step(self, state: S, tokens: Tensor) -> tuple[Tensor, S]:
        """Append ``tokens`` (B, K), int64; return log probabilities (B, K, V), float32, and state.

        The search may overwrite the log probabilities.
        """
        ...

    def select(self, state: S, sentences: Tensor, beams: Tensor) -> S:
        """Keep ``sentences`` (B',), ascending, and in each the given ``beams`` (B', K').

        Both may be on the CPU, wherever the state is. A beam may be kept several times: K' need not
        be K.
        """
        ...

    def coverage(self, state: S) -> Tensor:
        """Attention that each source token got in all steps so far: (B, K, S), float32.

        The search asks only where it has a coverage penalty; a stepper not made for it may refuse.
        """
        ...
