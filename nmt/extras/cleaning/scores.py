"""A number for each line of a corpus, from any scorer: a low one is a reason against its pair."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from nmt.data.prepare_report import open_table
from nmt.errors import DataError
from nmt.extras.cleaning.column import Column
from nmt.files.lines import open_binary, split_lines

# Of each line of a corpus; higher is better, not a number where there is none. (lines,).
Scores = npt.NDArray[np.float32] | Column
# Source and target texts -> a score for each.
ScorePairs = Callable[[Sequence[tuple[str, str]]], Sequence[float]]
# Lists of scores: corpus, line, score.
LEXICAL, DUAL = "lexical.tsv.gz", "dual_cross_entropy.tsv.gz"
_WRITTEN_AT_ONCE = 1 << 16


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
