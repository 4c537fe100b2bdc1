"""Numbers on disk, one for each of very many rows; memory holds only what is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_AT_ONCE = 1 << 20


class Column:
    """An array in a file, read and changed by slices. Numbers not written yet are 0.

    It may be sent to any process that sees the file.

    Args:
        path: A new file; an old one is replaced.
        dtype: Of the numbers.
        size: How many.
    """

    def __init__(self, path: Path, dtype: npt.DTypeLike, size: int) -> None:
        self._path, self._dtype, self._size = path, np.dtype(dtype), size
        with path.open("wb") as file:
            file.truncate(size * self._dtype.itemsize)

    def __len__(self) -> int:
        """Return how many there are."""
        return self._size

    def __getitem__(self, rows: slice) -> npt.NDArray[Any]:
        """Return the numbers of a range of rows."""
        start, stop, step = rows.indices(self._size)
        place = start * self._dtype.itemsize
        return np.fromfile(self._path, self._dtype, max(stop - start, 0), offset=place)[::step]

    def __setitem__(self, rows: slice, values: npt.NDArray[Any]) -> None:
        """Change the numbers of a range of rows."""
        with self._path.open("r+b") as file:
            file.seek(rows.indices(self._size)[0] * self._dtype.itemsize)
            file.write(values.astype(self._dtype).tobytes())

    def raise_to(self, rows: npt.NDArray[np.int64], values: npt.NDArray[Any]) -> None:
        """Let no number of some rising rows be below that of ``values``."""
        for start in range(0, self._size, _AT_ONCE):
            low, high = np.searchsorted(rows, (start, start + _AT_ONCE))
            if low < high:
                window, places = self[start : start + _AT_ONCE], rows[low:high] - start
                window[places] = np.maximum(window[places], values[low:high])
                self[start:] = window
