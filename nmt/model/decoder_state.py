"""Keys and values that decoding keeps between two steps, and how beams are reordered in them.

Shapes: B sentences, K beams of each, R = B * K rows, L layers, G key/value heads (their true
number, which grouped queries share), E head width, S source positions, t target positions so far, C
positions that fit, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

GROWTH = 8  # positions that caches grow by: a copy is as rare, and little room is left unused
LARGE = 1 << 20  # values in caches that are not copied whole when beams are reordered
LARGE_ON_GPU = 1 << 25  # less is copied sooner than the host counts what must be


class SelfCache(NamedTuple):
    """Keys and values of the target so far, in one layer."""

    # Keys, then values, with the place of the new token. (2, R, G, t + 1, E), or more positions
    # where ``mask`` is given.
    kv: Tensor
    position: Tensor  # Position of the new token, t. (1,), int64.
    # 0 up to ``position`` and minus infinity after it, for a cache of fixed size: (1, 1, 1, C).
    mask: Tensor | None = None

    @property
    def order(self) -> Tensor:
        """Positions of the keys."""
        return torch.arange(self.kv.shape[3], device=self.kv.device)

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Add those of the new token of each row (R, G, E), in place; return all, and the mask."""
        keys, values = self.kv.unbind(0)
        for heads, new in ((keys, key), (values, value)):
            if self.mask is None:
                heads.select(2, -1).copy_(new)
            else:
                heads.index_copy_(2, self.position, new.unsqueeze(2))
        return keys, values, self.mask


class CrossCache(NamedTuple):
    """Keys and values of the source in one layer."""

    key: Tensor  # (B, G, S, E).
    value: Tensor  # (B, G, S, E).
    mask: Tensor  # 0, and minus infinity where the source is padding. (B, G, 1, S).


LayerCache = tuple[SelfCache, CrossCache]


class StepInputs(NamedTuple):
    """What a step of the decoder reads."""

    ids: Tensor  # Tokens. (R,), int64.
    position: Tensor  # Where they stand. (1,), int64.
    table: Tensor | None  # From `nmt.model.positions.Embedding.position_table`.
    source_mask: Tensor  # See `DecoderState`, as the next two.
    cross_kv: Tensor  # Keys and values of the source.
    # Those of the target so far, with space for these tokens, which are filled in. (L, 2, R, G, t +
    # 1, E).
    self_kv: Tensor


@dataclass(frozen=True, slots=True)
class DecoderState:
    """The state of `nmt.model.transformer.Transformer`. Opaque to the search.

    The state after it may reuse its caches, in place: continue from one state once.
    """

    cross_kv: Tensor  # Keys and values of the encoded source, of each layer. (L, 2, B, G, S, E)
    source_mask: Tensor  # 0, and minus infinity where the source is padding. (B, G, 1, S)
    # Keys and values of the target so far, of each layer, and space for more: the first t of C
    # positions are filled. (L, 2, R, G, C, E).
    self_kv: Tensor
    num_beams: int  # Beams K of each sentence.
    length: int  # Target positions t so far.
    # How much of each source token all steps so far have read together. (R, S), float32; None
    # unless asked for.
    coverage: Tensor | None = None
    # 0 for tokens that may come, and minus infinity for the rest. (B, 1, V); None for all.
    allowed: Tensor | None = None
    # Row of ``self_kv`` of each beam, among those of its sentence. (B, K), int64; None where they
    # are in order.
    slots: Tensor | None = None

    @property
    def rows(self) -> Tensor | None:
        """Row of ``self_kv`` of each beam. (R,), int64; None where they are in order."""
        return None if self.slots is None else _rows(self.slots).to(self.self_kv.device)

    @property
    def _filled(self) -> Tensor:
        """The caches, without the spare space if that is much, as in those of recorded steps."""
        is_roomy = self.self_kv.shape[4] - self.length > GROWTH
        return self.self_kv.narrow(4, 0, self.length) if is_roomy else self.self_kv

    def with_room(self) -> DecoderState:
        """Return a state whose caches have space for one more position."""
        if self.length < self.self_kv.shape[4]:
            return self
        return replace(self, self_kv=F.pad(self.self_kv, (0, 0, 0, GROWTH)))

    def after_step(self, coverage: Tensor | None) -> DecoderState:
        """Return the state with one position more, and this coverage."""
        return replace(self, length=self.length + 1, coverage=coverage)

    def select(self, sentences: Tensor, beams: Tensor) -> DecoderState:
        """Keep some sentences, and in each some beams.

        Args:
            sentences: Which of the B sentences stay, ascending. (B',), int64.
            beams: Which of their K beams stay; one may do so more than once. (B', K'), int64.

        Both may be on the CPU though the state is not: fewer caches are then copied.
        """
        caches, device = self._filled, self.self_kv.device
        chosen = (sentences.unsqueeze(1) * self.num_beams + beams).flatten().to(device)
        coverage = None if self.coverage is None else self.coverage.index_select(0, chosen)
        stay_all = len(sentences) == len(self.source_mask)
        # To be counted without waiting for the device.
        is_large = beams.device.type == "cpu" and caches.numel() >= (
            LARGE if device.type == "cpu" else LARGE_ON_GPU
        )
        if stay_all and beams.shape[1] == self.num_beams and is_large:
            slots = reorder_cache(caches, self.slots, beams)
            return replace(self, coverage=coverage, slots=slots)
        if (rows := self.rows) is not None:
            chosen = rows.index_select(0, chosen)
        cross_kv, mask, allowed = self.cross_kv, self.source_mask, self.allowed
        if not stay_all:
            sentences = sentences.to(device)
            cross_kv = cross_kv.index_select(2, sentences)
            mask = mask.index_select(0, sentences)
            allowed = None if allowed is None else allowed.index_select(0, sentences)
        self_kv = caches.index_select(2, chosen)
        return DecoderState(cross_kv, mask, self_kv, beams.shape[1], self.length, coverage, allowed)


def _rows(slots: Tensor) -> Tensor:
    """Slots (B, K) within sentences -> rows of the batch (R,)."""
    first = torch.arange(len(slots), device=slots.device).unsqueeze(1) * slots.shape[1]
    return (slots + first).flatten()


def reorder_cache(self_kv: Tensor, slots: Tensor | None, beams: Tensor) -> Tensor:
    """Let every beam continue another one, with as little copying as possible.

    The first that continues a beam keeps its slot, and others get the slots of beams that are not
    continued. Of beams of five that is about a quarter, copied twice.

    Args:
        self_kv: Caches, changed in place. (L, 2, R, G, C, E).
        slots: Slots of the beams; in order if None. (B, K), int64.
        beams: Which beam each continues. (B, K), int64.

    Returns:
        The slots afterwards. (B, K), int64.
    """
    order = torch.arange(beams.shape[1], device=beams.device)
    before = beams if slots is None else slots.gather(1, beams)
    is_first = (before.unsqueeze(2) == before.unsqueeze(1)).int().argmax(2) == order
    is_free = torch.ones_like(is_first).scatter_(1, before, False)
    free = is_free.int().argsort(dim=1, descending=True, stable=True)
    after = free.gather(1, ((~is_first).cumsum(1) - 1).clamp_(min=0))
    after = torch.where(is_first, before, after)
    moves = (~is_first).flatten().nonzero().squeeze(1)
    origin, slot = (_rows(x).index_select(0, moves).to(self_kv.device) for x in (before, after))
    self_kv.index_copy_(2, slot, self_kv.index_select(2, origin))
    return after
