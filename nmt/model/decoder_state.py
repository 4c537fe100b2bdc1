"""What decoding remembers between two steps, and how sentences leave it and beams change places.

Shapes: B sentences, K beams of each, L layers, H heads, E head width, S source positions, t target
positions so far, C positions that there is room for, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

GROWTH = 8  # positions that caches grow by: a copy is as rare, and little room is left unused
LARGE = 1 << 20  # values in caches of which not all are copied when beams change places


@dataclass(frozen=True, slots=True)
class DecoderState:
    """The state of `nmt.model.transformer.Transformer`. Opaque to the search.

    What comes after it may use its caches again, in place: go on from one state once.
    """

    memory: Tensor
    """Keys and values of the encoded source, of each layer. (L, 2, B, H, S, E)"""
    bias: Tensor
    """0, and minus infinity where the source is padding. (B, 1, 1, S)"""
    past: Tensor
    """Keys and values of the target so far, of each layer, and room for more: the first t of C
    positions are filled. (L, 2, B * K, H, C, E)"""
    num_beams: int
    """Beams K of each sentence."""
    length: int
    """Target positions t so far."""
    coverage: Tensor | None = None
    """How much of each source token all steps so far have read together, by `nmt.model.alignment`.
    (B * K, S), float32; None unless asked for."""
    choice: Tensor | None = None
    """0 for tokens that may come, and minus infinity for others. (B, 1, V); None for all."""
    slots: Tensor | None = None
    """Row of ``past`` of each beam, among those of its sentence. (B, K), int64; None where they are
    in order."""

    @property
    def rows(self) -> Tensor | None:
        """Row of ``past`` of each beam. (B * K,), int64; None where they are in order."""
        return None if self.slots is None else _rows(self.slots)

    def with_room(self) -> DecoderState:
        """Return a state whose caches have room for one more position."""
        if self.length < self.past.shape[4]:
            return self
        return replace(self, past=F.pad(self.past, (0, 0, 0, GROWTH)))

    def select(self, sentences: Tensor, beams: Tensor) -> DecoderState:
        """Keep some sentences, and in each some beams.

        Args:
            sentences: Which of the B sentences stay, ascending. (B',), int64.
            beams: Which of their K beams go on; one may go on more than once. (B', K'), int64.
        """
        chosen = (sentences.unsqueeze(1) * self.num_beams + beams).flatten()
        coverage = None if self.coverage is None else self.coverage.index_select(0, chosen)
        stay_all = len(sentences) == len(self.bias)
        is_large = self.past.device.type == "cpu" and self.past.numel() >= LARGE
        if stay_all and beams.shape[1] == self.num_beams and is_large:
            slots = change_places(self.past, self.slots, beams)
            return replace(self, coverage=coverage, slots=slots)
        rows = self.rows
        if rows is not None:
            chosen = rows.index_select(0, chosen)
        memory, bias, choice = self.memory, self.bias, self.choice
        if not stay_all:
            memory = memory.index_select(2, sentences)
            bias = bias.index_select(0, sentences)
            choice = None if choice is None else choice.index_select(0, sentences)
        past = self.past.index_select(2, chosen)
        return DecoderState(memory, bias, past, beams.shape[1], self.length, coverage, choice)


def _rows(slots: Tensor) -> Tensor:
    """Places (B, K) within sentences -> rows of the batch (B * K,)."""
    first = torch.arange(len(slots), device=slots.device).unsqueeze(1) * slots.shape[1]
    return (slots + first).flatten()


def change_places(past: Tensor, slots: Tensor | None, beams: Tensor) -> Tensor:
    """Let every beam go on from another, with as little copying as possible.

    The first that goes on from a beam keeps its place, and others get the places of beams from
    which none goes on: large caches are far from a CPU. (A GPU copies all sooner than the host
    knows which must be.)

    Args:
        past: Caches, changed in place. (L, 2, B * K, H, C, E).
        slots: Places of the beams; in order if None. (B, K), int64.
        beams: From which beam each goes on. (B, K), int64.

    Returns:
        The places afterwards. (B, K), int64.
    """
    order = torch.arange(beams.shape[1], device=beams.device)
    before = beams if slots is None else slots.gather(1, beams)
    is_first = (before.unsqueeze(2) == before.unsqueeze(1)).int().argmax(2) == order
    is_free = torch.ones_like(is_first).scatter_(1, before, False)
    free = is_free.int().argsort(dim=1, descending=True, stable=True)
    after = free.gather(1, ((~is_first).cumsum(1) - 1).clamp_(min=0))
    after = torch.where(is_first, before, after)
    moves = (~is_first).flatten().nonzero().squeeze(1)
    origin, place = (_rows(x).index_select(0, moves) for x in (before, after))
    past.index_copy_(2, place, past.index_select(2, origin))
    return after
