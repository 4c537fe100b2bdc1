"""Key/value caches of the decoder, and how they follow reordered beams.

Shapes: B sentences, K beams of each sentence, R = B * K rows, L layers, G key/value heads (not
repeated for grouped queries), E head width, S source positions, t target positions so far, C
allocated target positions, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

GROWTH = 8  # positions that caches grow by: few copies, little unused memory
# Caches with at least as many values are not copied as a whole when beams are reordered. On a GPU,
# copying smaller caches is faster than planning.
LARGE = 1 << 20
LARGE_ON_GPU = 1 << 25


class SelfCache(NamedTuple):
    """Self-attention cache of one layer: keys and values of the target tokens so far."""

    # Keys, then values, with space for the new token. (2, R, G, t + 1, E), or more positions if
    # ``mask`` is set.
    kv: Tensor
    position: Tensor  # Position t of the new token. (1,), int64.
    # For a cache of fixed size: 0 up to ``position``, minus infinity after it. (1, 1, 1, C).
    mask: Tensor | None = None

    @property
    def order(self) -> Tensor:
        """Positions of the keys: 0, 1, 2 and so on. int64."""
        return torch.arange(self.kv.shape[3], device=self.kv.device)

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Store key and value of the new token of each row, (R, G, E) each, in place.

        Returns:
            All keys, all values, (R, G, t + 1, E) each, and the mask.
        """
        keys, values = self.kv.unbind(0)
        if self.mask is None:
            keys.select(2, -1).copy_(key)
            values.select(2, -1).copy_(value)
        else:
            keys.index_copy_(2, self.position, key.unsqueeze(2))
            values.index_copy_(2, self.position, value.unsqueeze(2))
        return keys, values, self.mask


class CrossCache(NamedTuple):
    """Cross-attention cache of one layer: keys and values of the source."""

    key: Tensor  # (B, G, S, E).
    value: Tensor  # (B, G, S, E).
    mask: Tensor  # 0 for source tokens, minus infinity for padding. (B, G, 1, S).


LayerCache = tuple[SelfCache, CrossCache]


class StepInputs(NamedTuple):
    """Inputs of one decoding step."""

    ids: Tensor  # The new token of each row. (R,), int64.
    position: Tensor  # Position of the new tokens. (1,), int64.
    table: Tensor | None  # From `nmt.model.positions.Embedding.position_table`.
    source_mask: Tensor  # See `DecoderState`.
    cross_kv: Tensor  # See `DecoderState`.
    # Self-attention caches with space for the new tokens, which the step fills in.
    # (L, 2, R, G, t + 1, E).
    self_kv: Tensor


@dataclass(frozen=True, slots=True)
class DecoderState:
    """State of `nmt.model.transformer.Transformer` between two decoding steps.

    The next state may reuse the caches in place, so continue from each state only once.
    """

    cross_kv: Tensor  # Keys and values of the source in every layer. (L, 2, B, G, S, E).
    source_mask: Tensor  # 0 for source tokens, minus infinity for padding. (B, G, 1, S).
    # Keys and values of the target in every layer. The first t of C positions are filled.
    # (L, 2, R, G, C, E).
    self_kv: Tensor
    num_beams: int  # Beams K of each sentence.
    length: int  # Target positions t so far.
    # Attention to each source token, summed over all steps. (R, S), float32; None unless requested.
    coverage: Tensor | None = None
    # 0 for allowed tokens, minus infinity for the rest. (B, 1, V); None if all are allowed.
    allowed: Tensor | None = None
    # Row of ``self_kv`` of each beam, relative to its sentence. (B, K), int64; None if in order.
    slots: Tensor | None = None

    @property
    def rows(self) -> Tensor | None:
        """Row of ``self_kv`` of each beam. (R,), int64; None if the rows are in order."""
        if self.slots is None:
            return None
        return _rows(self.slots).to(self.self_kv.device)

    def with_room(self) -> DecoderState:
        """Return a state whose caches have space for one more position."""
        if self.length < self.self_kv.shape[4]:
            return self
        # `pad` takes pairs from the last dimension on: none for E, then `GROWTH` after C.
        return replace(self, self_kv=F.pad(self.self_kv, (0, 0, 0, GROWTH)))

    def select(self, sentences: Tensor, beams: Tensor) -> DecoderState:
        """Keep ``sentences``, and in each of them ``beams``.

        Both tensors may be on the CPU, even if the state is not. Less memory is then copied.

        Args:
            sentences: Sentences to keep, ascending. (B',), int64.
            beams: Beams to keep in each sentence, possibly several times. (B', K'), int64.
        """
        caches = self.self_kv
        device = caches.device
        if caches.shape[4] - self.length > GROWTH:  # many are unused, as in CUDA graphs
            caches = caches.narrow(4, 0, self.length)
        # Index of each beam to keep, among all R beams.
        beam_rows = sentences.unsqueeze(1) * self.num_beams + beams
        beam_rows = beam_rows.flatten().to(device)
        coverage = _selected(self.coverage, beam_rows)
        num_sentences, num_beams = beams.shape
        keeps_all_sentences = num_sentences == len(self.source_mask)
        large_size = LARGE_ON_GPU
        if device.type == "cpu":
            large_size = LARGE
        # Only with `beams` on the CPU: `reorder_cache` would wait for the device.
        is_large = beams.device.type == "cpu" and caches.numel() >= large_size
        if keeps_all_sentences and num_beams == self.num_beams and is_large:
            slots = reorder_cache(caches, self.slots, beams)
            return replace(self, coverage=coverage, slots=slots)
        # Rows of the caches may be in a different order than beams. The copy is in order.
        cache_rows = self.rows
        if cache_rows is not None:
            beam_rows = cache_rows.index_select(0, beam_rows)
        state = replace(
            self,
            self_kv=caches.index_select(2, beam_rows),
            num_beams=num_beams,
            coverage=coverage,
            slots=None,
        )
        if keeps_all_sentences:
            return state
        sentences = sentences.to(device)
        cross_kv = self.cross_kv.index_select(2, sentences)
        source_mask = self.source_mask.index_select(0, sentences)
        allowed = _selected(self.allowed, sentences)
        return replace(state, cross_kv=cross_kv, source_mask=source_mask, allowed=allowed)


def _selected(rows: Tensor | None, indices: Tensor) -> Tensor | None:
    return None if rows is None else rows.index_select(0, indices)


def _rows(slots: Tensor) -> Tensor:
    """Convert slots (B, K), relative to sentences, to rows (R,) of the batch."""
    num_sentences, num_beams = slots.shape
    sentences = torch.arange(num_sentences, device=slots.device)
    rows = sentences.unsqueeze(1) * num_beams + slots
    return rows.flatten()


def reorder_cache(self_kv: Tensor, slots: Tensor | None, beams: Tensor) -> Tensor:
    """Reorder the caches of beams with as little copying as possible.

    The first beam that continues a parent keeps the parent's slot. Further beams of the same parent
    are copied to slots of beams that end. With five beams about a quarter of the cache is copied.

    Args:
        self_kv: Caches, changed in place. (L, 2, R, G, C, E).
        slots: Slot of each beam before this step; None if in order. (B, K), int64.
        beams: Parent of each new beam. (B, K), int64.

    Returns:
        Slot of each new beam. (B, K), int64.
    """
    order = torch.arange(beams.shape[1], device=beams.device)
    parent_slots = beams if slots is None else slots.gather(1, beams)  # (B, K)
    # The first beam with the same parent: `argmax` returns the first True of each row.
    is_equal = parent_slots.unsqueeze(2) == parent_slots.unsqueeze(1)
    is_first = is_equal.int().argmax(2) == order
    is_copy = ~is_first
    # A slot is free if its beam ends, that is, if it is no parent.
    is_free = torch.ones_like(is_first).scatter_(1, parent_slots, False)
    free_slots = is_free.int().argsort(dim=1, descending=True, stable=True)  # free ones first
    # The first copy of a sentence gets its first free slot, and so on.
    copy_index = (is_copy.cumsum(1) - 1).clamp_(min=0)
    new_slots = torch.where(is_first, parent_slots, free_slots.gather(1, copy_index))
    copies = is_copy.flatten().nonzero().squeeze(1)
    origins = _rows(parent_slots).index_select(0, copies).to(self_kv.device)
    destinations = _rows(new_slots).index_select(0, copies).to(self_kv.device)
    self_kv.index_copy_(2, destinations, self_kv.index_select(2, origins))
    return new_slots
