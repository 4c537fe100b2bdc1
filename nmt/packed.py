"""Batches of sentences of different lengths, concatenated without padding.

Embeddings, linear layers, norms, dropout and the loss run on packed tokens, so padding costs
nothing there. Only attention uses padded batches.

Shapes: B sentences, N tokens in total, S length of the longest sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
# Steps of `round_up`: of the number of tokens, and of the number of sentences and their length.
_TOKEN_STEP = 32
_CELL_STEP = 4


@dataclass(frozen=True, eq=False)
class Packed:
    """Token ids of a batch, created by `nmt.data.loader.collate` or an engine.

    Frozen, because masks and indices of the sentences are cached at first use.
    """

    ids: Tensor  # Tokens of all sentences, concatenated. (N,), int64.
    # Start of each sentence, and the end of the last sentence. (B + 1,), int32.
    cu_seqlens: Tensor
    max_length: int  # Length S of the longest sentence in tokens, or a larger number.
    num_filler: int = 0  # Tokens at the end that only round sizes up: see `round_up`.
    # Results of `derived` by function and arguments.
    _derived: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[int]], device: torch.device | str = "cpu") -> Packed:
        """Pack lists of token ids. No list may be empty."""
        lengths = [len(row) for row in rows]
        bounds = list(accumulate(lengths, initial=0))  # see `cu_seqlens`
        ids = list(chain.from_iterable(rows))
        packed = cls(
            torch.tensor(ids, dtype=torch.int64),
            torch.tensor(bounds, dtype=torch.int32),
            max(lengths, default=0),
        )
        return packed.to(torch.device(device))

    def rows(self) -> list[list[int]]:
        """Return the token ids of each sentence."""
        ids = self.ids.tolist()
        bounds = self.cu_seqlens.tolist()
        return [ids[start:end] for start, end in pairwise(bounds)]

    def __len__(self) -> int:
        """Number of sentences B."""
        return len(self.cu_seqlens) - 1

    @property
    def num_tokens(self) -> int:
        """Number of tokens N, filler included."""
        return len(self.ids)

    @property
    def num_cells(self) -> int:
        """Number of cells of the padded batch, B * S."""
        return len(self) * self.max_length

    @property
    def has_padding(self) -> bool:
        """Whether the padded batch has a cell without a token."""
        return self.num_tokens < self.num_cells

    @property
    def lengths(self) -> Tensor:
        """Number of tokens of each sentence. (B,), int32."""
        return self.cu_seqlens.diff()

    def derived(self, make: Callable[..., T], *args: Hashable) -> T:
        """Return ``make(self, *args)``, computed once per batch and cached.

        The result never contains inference tensors. Training cannot save inference tensors for the
        backward pass, and compiled layers would be compiled again for them.
        """
        key = (make, *args)
        if key not in self._derived:
            with torch.inference_mode(False):
                self._derived[key] = make(self, *args)
        value: T = self._derived[key]
        return value

    @property
    def sentences(self) -> Tensor:
        """Index of the sentence that each token belongs to. (N,), int64."""
        return self.derived(Packed._sentences)

    @property
    def positions(self) -> Tensor:
        """Position of each token in its sentence, from 0. (N,), int64."""
        return self.derived(Packed._positions)

    @property
    def cells(self) -> Tensor:
        """Cell of each token in the flattened padded batch (B, S). (N,), int64."""
        return self.derived(Packed._cells)

    def _sentences(self) -> Tensor:
        sentences = torch.arange(len(self), device=self.ids.device)
        # `output_size` avoids waiting for the GPU to compute the sum of the lengths.
        return sentences.repeat_interleave(self.lengths, output_size=self.num_tokens)

    def _positions(self) -> Tensor:
        tokens = torch.arange(self.num_tokens, device=self.ids.device)
        starts = self.cu_seqlens.index_select(0, self.sentences)
        return tokens - starts

    def _cells(self) -> Tensor:
        return torch.add(self.positions, self.sentences, alpha=self.max_length)

    def mask(self) -> Tensor:
        """True where the padded batch has a token. (B, S), bool."""
        positions = torch.arange(self.max_length, device=self.ids.device)
        return positions < self.lengths.unsqueeze(1)

    def pad(self, packed: Tensor) -> Tensor:
        """Pad with zeros: (N, ...) -> (B, S, ...)."""
        cells = packed.new_zeros(self.num_cells, *packed.shape[1:])
        # The backward pass of index_copy only selects. That of an indexed assignment sums, which is
        # slower.
        cells = cells.index_copy(0, self.cells, packed)
        return cells.unflatten(0, (len(self), self.max_length))

    def prepend(self, token: int) -> Packed:
        """Return the sentences with ``token`` added in front of each."""
        device = self.ids.device
        # Before each token there is one added token for its sentence, and one for each earlier one.
        new_indices = torch.arange(self.num_tokens, device=device) + self.sentences + 1
        ids = self.ids.new_full((self.num_tokens + len(self),), token)
        ids.index_copy_(0, new_indices, self.ids)
        # Tokens added before the start of each sentence, and before the end of the last one.
        num_added = torch.arange(len(self) + 1, device=device, dtype=torch.int32)
        return Packed(ids, self.cu_seqlens + num_added, self.max_length + 1)

    def part(self, start: int, stop: int) -> Packed:
        """Return the sentences ``start`` (included) to ``stop`` (excluded)."""
        bounds = self.cu_seqlens[start : stop + 1]
        first_token = int(bounds[0])
        end_token = int(bounds[-1])
        max_length = int(bounds.diff().max())
        return Packed(self.ids[first_token:end_token], bounds - first_token, max_length)

    def to(self, device: torch.device) -> Packed:
        """Return a copy on ``device`` without waiting for the transfer. ``self`` is unchanged."""
        if self.ids.device.type == device.type:
            return self
        ids = move(self.ids, device)
        cu_seqlens = move(self.cu_seqlens, device)
        return Packed(ids, cu_seqlens, self.max_length, self.num_filler)

    def _filled(self, num_added: int, longest: int) -> Packed | None:
        """Add filler sentences of about equal length; see `round_up`.

        Args:
            num_added: Number of filler sentences.
            longest: Upper limit of the rounded length, in tokens.

        Returns:
            None if the filler sentences would be longer than the rounded length.
        """
        max_length = min(rounded(self.max_length, _CELL_STEP), longest)
        max_length = max(max_length, self.max_length)
        # At least one token in each filler sentence.
        num_filler = rounded(self.num_tokens + num_added, _TOKEN_STEP) - self.num_tokens
        if num_filler > num_added * max_length:
            return None
        filler = self.ids[:1].expand(num_filler)  # any id will do: repeat the first one
        ids = torch.cat((self.ids, filler))
        # Filler sentence i of n ends after i / n of the filler.
        ends = self.num_tokens + torch.arange(1, num_added + 1) * num_filler // max(num_added, 1)
        cu_seqlens = torch.cat((self.cu_seqlens, ends.to(self.cu_seqlens.dtype)))
        return Packed(ids, cu_seqlens, max_length, num_filler)


def round_up(source: Packed, target: Packed, longest: int) -> tuple[Packed, Packed]:
    """Add filler sentences, so that batches have few different sizes. Costs 1 to 2% more tokens.

    The number of tokens becomes a multiple of 32, or of 1/64 to 1/32 of a large batch. The number
    of sentences and the longest length become multiples of 4.
    `nmt.model.transformer.Transformer.forward` drops the filler, so it has no loss and no gradient.

    Args:
        source: Source sentences, on the CPU.
        target: The same number of target sentences, on the CPU.
        longest: Upper limit of the rounded length, in tokens.

    Returns:
        Source and target with the same number of filler sentences.
    """
    # A compiled layer or a recorded GPU graph only serves one size.
    num_added = rounded(len(source), _CELL_STEP) - len(source)
    while True:
        filled_source = source._filled(num_added, longest)
        filled_target = target._filled(num_added, longest)
        if filled_source is not None and filled_target is not None:
            return filled_source, filled_target
        num_added += _CELL_STEP  # more sentences, so that the filler fits into them


def rounded(size: int, step: int) -> int:
    """Round ``size`` up to a multiple of ``step``.

    The step of large sizes is larger: a power of two between 1/64 and 1/32 of ``size``.

    >>> rounded(33, 32), rounded(3000, 32), rounded(9, 4), rounded(8, 4)
    (64, 3008, 12, 8)
    """
    step = max(step, 1 << max(size.bit_length() - 6, 0))
    return -(-size // step) * step  # the next multiple of the step


def move(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy to ``device`` without waiting for the transfer."""
    # Only copies from pinned memory are asynchronous. MPS does not have pinned memory.
    if device.type in ("cpu", "mps"):
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
