"""Scores for the lines of a corpus. Pairs with a low score can be reported or dropped.

Scores come from a file that any program has written, or from two translation models, one for each
direction: dual conditional cross-entropy (Junczys-Dowmunt 2018, section 2.1).
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nmt.config.language_codes import matching_pairs
from nmt.data.prepare_report import open_table
from nmt.errors import ConfigError, DataError
from nmt.files.lines import open_binary, split_lines
from nmt.registry import load_attribute

_WRITTEN_AT_ONCE = 1 << 16  # Lines of a table.
_AT_ONCE = 1 << 20  # Values of a column that are changed in memory.


class Column:
    """An array in a file, read and written by slices. Values that were never written are 0.

    A column can be pickled; the receiving process needs access to the file.

    Args:
        path: The file; an existing file is overwritten.
        dtype: Type of the values.
        size: Number of values.
    """

    def __init__(self, path: Path, dtype: npt.DTypeLike, size: int) -> None:
        self._path = path
        self._dtype = np.dtype(dtype)
        self._size = size
        with path.open("wb") as file:
            file.truncate(size * self._dtype.itemsize)

    def __len__(self) -> int:
        """Return the number of values."""
        return self._size

    def __getitem__(self, rows: slice) -> npt.NDArray[Any]:
        """Return the values of a range of rows."""
        start, stop, step = rows.indices(self._size)
        count = max(stop - start, 0)
        offset = start * self._dtype.itemsize  # bytes
        values = np.fromfile(self._path, self._dtype, count, offset=offset)
        return values[::step]

    def __setitem__(self, rows: slice, values: npt.NDArray[Any]) -> None:
        """Write all of ``values`` from the first of ``rows`` on; the end of ``rows`` is ignored."""
        start, _, _ = rows.indices(self._size)
        content = values.astype(self._dtype).tobytes()
        with self._path.open("r+b") as file:
            file.seek(start * self._dtype.itemsize)
            file.write(content)

    def raise_to(self, rows: npt.NDArray[np.int64], values: npt.NDArray[Any]) -> None:
        """Set rows to ``values`` where ``values`` are larger. Pass rows in rising order."""
        for start in range(0, self._size, _AT_ONCE):
            stop = start + _AT_ONCE
            # The rows from `start` to `stop` are rows[first:end].
            first, end = np.searchsorted(rows, (start, stop))
            if first < end:
                window = self[start:stop]
                indices = rows[first:end] - start
                window[indices] = np.maximum(window[indices], values[first:end])
                self[start:] = window


# Score of each line of a corpus; higher is better; NaN if a line has no score. (lines,).
Scores = npt.NDArray[np.float32] | Column
# Source and target texts -> the score of each pair.
ScorePairs = Callable[[Sequence[tuple[str, str]]], Sequence[float]]
# Files of scores, with the columns corpus, line and score.
LEXICAL = "lexical.tsv.gz"
DUAL = "dual_cross_entropy.tsv.gz"


def read_scores(path: Path, num_lines: int, *, is_part: bool) -> npt.NDArray[np.float32]:
    """Read a file with the score of each line of a corpus, one number per line.

    Args:
        path: A text file, plain or compressed. ``nan`` means that a line has no score.
        num_lines: Number of lines of the corpus that are used.
        is_part: Whether the corpus has more lines than are used; then the file may have more, too.

    Raises:
        DataError: A line is not a number, or file and corpus differ in their number of lines.
    """
    values = array("f")
    with open_binary(path) as stream:
        lines = split_lines(stream, str(path))
        for line_number, line in enumerate(lines, start=1):
            content = line or b""  # never None: `split_lines` has no limit of the length here
            try:
                values.append(float(content))
            except ValueError as error:
                shown = content.decode("utf-8", "replace")
                problem = f"{path}, line {line_number:,}: {shown[:40]!r} is not a number."
                fix = "Write one number per line, higher for better pairs, or nan for no score."
                raise DataError(problem, fix=fix) from error
    is_too_long = len(values) > num_lines and not is_part
    if len(values) < num_lines or is_too_long:
        problem = f"{path} has {len(values):,} scores, but the corpus has {num_lines:,} lines."
        raise DataError(problem, fix="Score the corpus again, with one number for every line.")
    return np.array(values[:num_lines], np.float32)


def parts_of(files: Mapping[int, str], num_pairs: int) -> Iterator[tuple[str, int, int]]:
    """Yield each file of a corpus, the number of pairs before it, and that of the pairs up to it.

    Args:
        files: The files by the number of pairs before each.
        num_pairs: Number of pairs of the corpus.
    """
    ends = [*files, num_pairs][1:]
    for (start, file), end in zip(files.items(), ends, strict=True):
        yield file, start, end


def write_scores(
    path: Path,
    scores: Mapping[str, Scores],
    lines: Mapping[str, Any],
    files: Mapping[str, Mapping[int, str]],
) -> None:
    """Write a compressed TSV file of corpus, line and score. The same scores give the same bytes.

    Args:
        path: A new file.
        scores: The scores of each corpus.
        lines: Line number of each score, by corpus, to be sliced.
        files: The files of each corpus: see `parts_of`.
    """
    with open_table(path, "corpus", "line", "score") as table:
        for corpus, corpus_scores in scores.items():
            for file, first, end in parts_of(files[corpus], len(corpus_scores)):
                for start in range(first, end, _WRITTEN_AT_ONCE):
                    block = slice(start, min(start + _WRITTEN_AT_ONCE, end))
                    block_scores = corpus_scores[block].tolist()
                    rows = zip(lines[corpus][block], block_scores, strict=True)
                    place = file or corpus
                    texts = [f"{place}\t{line}\t{score:.4f}\n" for line, score in rows]
                    text = "".join(texts)
                    table.write(text.encode())


def dual_scorer(runs: Sequence[Path], languages: tuple[str, str]) -> ScorePairs:
    """Load two models, and return a function that scores pairs with both of them.

    The function returns the `dual_score` of each pair of texts, in the order of the pairs; NaN if a
    model cannot score the pair.

    Args:
        runs: Run or model folders, one for each direction, in any order.
        languages: Source and target language.

    Raises:
        ConfigError: The models do not cover both directions between the languages.
        CheckpointError: A model is missing or damaged.
    """
    load = load_attribute("nmt.inference.scorer:Scorer").load  # which loads torch
    scorers = {scorer.languages: scorer for scorer in map(load, runs)}
    source, target = languages
    # Language pairs of the models that fit a direction; exactly one must fit.
    forward_pairs = matching_pairs((source, target), scorers)
    backward_pairs = matching_pairs((target, source), scorers)
    if len(forward_pairs) != 1 or len(backward_pairs) != 1:
        directions = ", ".join(map("-".join, scorers))
        both = f"{source}-{target} and {target}-{source}"
        problem = f"`score_with` needs two models, {both}, but got {directions or 'no model'}."
        raise ConfigError(problem, fix="Pass two run or model folders, separated by a comma.")
    forward = scorers[forward_pairs[0]]
    backward = scorers[backward_pairs[0]]

    def score(text_pairs: Sequence[tuple[str, str]]) -> list[float]:
        swapped = [(target_text, source_text) for source_text, target_text in text_pairs]
        forward_scores = forward.score(text_pairs)
        backward_scores = backward.score(swapped)
        forward_entropies = map(_entropy, forward_scores)
        backward_entropies = map(_entropy, backward_scores)
        return list(map(dual_score, forward_entropies, backward_entropies))

    return score


def dual_score(forward: float, backward: float) -> float:
    """Return the score of a pair, from 0 to 1.

    The score is high if both cross-entropies are low and nearly equal.

    Args:
        forward: Cross-entropy of the target given the source, in nats per token.
        backward: Cross-entropy of the source given the target, in nats per token.

    >>> dual_score(0, 0), dual_score(1, 3) == math.exp(-(2 + 2))
    (1.0, True)
    """
    mean = (forward + backward) / 2
    difference = abs(forward - backward)
    return math.exp(-(difference + mean))


def _entropy(scored_pair: Any) -> float:
    """Return nats per token; NaN for an empty pair, or a pair that is too long for the model."""
    num_tokens = len(scored_pair.tokens)
    if num_tokens == 0:
        return math.nan
    return -scored_pair.log_prob / num_tokens
