"""Lengths of pairs -> the rows of an epoch by length, in memory that 100 million pairs fit.

One packed number a pair is sorted instead of its four keys, and keys are made a chunk at a time:
beside the lengths there are two numbers of 64 bits for each pair, and never more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nmt.data.resegment import IntArray
from nmt.data.store import Lengths

_CHUNK_ROWS = 1 << 20
_DOUBLE_BITS = 53  # random bits of a number in [0, 1)


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Stored lengths with special tokens, of all rows or of those that an epoch reads."""

    stored: npt.NDArray[np.integer]  # tokens of every row of the store
    special: int  # BOS and EOS of this side
    rows: IntArray | None = None  # of the epoch; None: every row once

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.stored if self.rows is None else self.rows)

    def __getitem__(self, rows: slice | IntArray, /) -> IntArray:
        """Return the tokens of some pairs of the epoch."""
        own = rows if self.rows is None else self.rows[rows]
        return self.stored[own].astype(np.int64) + self.special


def chunks(count: int) -> Iterator[slice]:
    """Yield slices that cover ``count`` rows in order."""
    for start in range(0, count, _CHUNK_ROWS):
        yield slice(start, min(start + _CHUNK_ROWS, count))


def length_order(
    source: Lengths, target: Lengths, *, noise: float, random: np.random.Generator
) -> IntArray:
    """Return all rows by the longer side with noise, then source, then target, then at random.

    Draws ``n`` float32 and ``n`` float64 from ``random``, in this order. Equal to
    ``np.lexsort((float64, target, source, rint(max(source, target) * (1 + noise * spread))))``
    as long as 64 bits hold the lengths and enough of the chance: two pairs of the same lengths may
    change places where the bits of chance that have room are the same.

    Args:
        source: Tokens of each source. (n,)
        target: Tokens of each target. (n,)
        noise: Spread of the first key, as a share of the length.
        random: Where noise and chance come from.

    Returns:
        Rows. (n,), int64.
    """
    count = len(source)
    longest = [max((int(side[part].max()) for part in chunks(count)), default=0)
               for side in (source, target)]  # fmt: skip
    source_bits, target_bits = (most.bit_length() for most in longest)
    key_bits = int(max(longest) * (1 + noise) + 1).bit_length()
    spare = min(64 - key_bits - source_bits - target_bits, _DOUBLE_BITS)
    packed = np.empty(count, dtype=np.uint64)
    for part in chunks(count):
        left, right = (side[part].astype(np.int64) for side in (source, target))
        spread = random.random(len(left), dtype=np.float32) - 0.5
        key = np.rint(np.maximum(left, right) * (1 + noise * spread)).astype(np.int64)
        packed[part] = ((key << source_bits | left) << target_bits | right) << spare
    for part in chunks(count):
        chance = random.random(part.stop - part.start) * 2.0**spare
        packed[part] |= chance.astype(np.uint64)
    return np.argsort(packed)
