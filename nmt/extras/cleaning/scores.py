"""A number for each line of a corpus, from any scorer: a low one is a reason against its pair.

Two translation models, one for each direction, are such a scorer: dual conditional cross-entropy
(Junczys-Dowmunt 2018, section 2.1).
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nmt.data.prepare_report import open_table
from nmt.errors import ConfigError, DataError
from nmt.files.lines import open_binary, split_lines
from nmt.registry import load_attribute

_WRITTEN_AT_ONCE = 1 << 16
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


# Of each line of a corpus; higher is better, not a number where there is none. (lines,).
Scores = npt.NDArray[np.float32] | Column
# Source and target texts -> a score for each.
ScorePairs = Callable[[Sequence[tuple[str, str]]], Sequence[float]]
# Lists of scores: corpus, line, score.
LEXICAL, DUAL = "lexical.tsv.gz", "dual_cross_entropy.tsv.gz"


def read_scores(path: Path, num_lines: int, *, is_part: bool) -> npt.NDArray[np.float32]:
    """Read the score of each line of a corpus, one a line, as any scorer writes them.

    Args:
        path: A text file, plain or compressed; ``nan`` is no score.
        num_lines: Lines of the corpus.
        is_part: Whether these are only the first ones.

    Raises:
        DataError: A line holds no number, or there are more or fewer than the corpus has lines.
    """
    values = array("f")
    with open_binary(path) as stream:
        for number, line in enumerate(split_lines(stream, str(path)), start=1):
            try:
                values.append(float(line or b""))
            except ValueError as error:
                raise DataError(
                    f"{path}, line {number:,}: {(line or b'').decode('utf-8', 'replace')[:40]!r} "
                    "is no number.",
                    fix="Write one number a line, higher for better pairs; nan is none.",
                ) from error
    if len(values) < num_lines or (len(values) > num_lines and not is_part):
        raise DataError(
            f"{path} has {len(values):,} scores, but its corpus has {num_lines:,} lines.",
            fix="Score the corpus as it is, a number for every line.",
        )
    return np.frombuffer(values, np.float32)[:num_lines] if values else np.zeros(0, np.float32)


def write_scores(
    path: Path, scores: Mapping[str, Scores], lines: Mapping[str, Sequence[int]] | None = None
) -> None:
    """Write compressed TSV of corpus, line and score; the same bytes each time.

    Args:
        path: A new file.
        scores: By corpus.
        lines: Line of each score; None for all lines.
    """
    with open_table(path, "corpus", "line", "score") as file:
        for corpus, values in scores.items():
            numbers = range(1, len(values) + 1) if lines is None else lines[corpus]
            for start in range(0, len(values), _WRITTEN_AT_ONCE):
                part = values[start : start + _WRITTEN_AT_ONCE].tolist()
                rows = zip(numbers[start : start + _WRITTEN_AT_ONCE], part, strict=True)
                text = "".join(f"{corpus}\t{line}\t{value:.4f}\n" for line, value in rows)
                file.write(text.encode())


def dual_scorer(runs: Sequence[Path], languages: tuple[str, str]) -> ScorePairs:
    """Load two models, and return a function that scores pairs with both.

    Args:
        runs: Run or model folders, one for each direction, in any order.
        languages: Of source and target.

    Raises:
        ConfigError: They are not two, or do not translate between the languages.
        CheckpointError: A model is missing or damaged.
    """
    scorers = map(load_attribute("nmt.inference.scorer:Scorer").load, runs)  # which loads torch
    found = {scorer.languages: scorer for scorer in scorers}
    if not found.keys() >= {languages, languages[::-1]}:
        directions = ", ".join("-".join(each) for each in found)
        raise ConfigError(
            f"`score_with` needs a model from {languages[0]} to {languages[1]} and one back, not "
            f"{directions or 'none'}.",
            fix="Name two run or model folders with a comma between them.",
        )
    forward, backward = found[languages], found[languages[::-1]]

    def score(pairs: Sequence[tuple[str, str]]) -> list[float]:
        back = backward.score([(target, source) for source, target in pairs])
        return [
            dual_score(_entropy(one), _entropy(other))
            for one, other in zip(forward.score(pairs), back, strict=True)
        ]

    return score


def dual_score(forward: float, backward: float) -> float:
    """Return the score of a pair, from 0 to 1: high if it is likely, and alike in both directions.

    Args:
        forward: Cross-entropy of the target given the source, in nats per token.
        backward: That of the source given the target.

    >>> dual_score(0, 0), dual_score(1, 3) == math.exp(-(2 + 2))
    (1.0, True)
    """
    return math.exp(-(abs(forward - backward) + (forward + backward) / 2))


def _entropy(pair: Any) -> float:
    """Return nats per token; not a number for what has none, or is too long for the model."""
    return -pair.log_prob / len(pair.tokens) if pair.tokens else math.nan
