"""Which lines of a test set a model was trained on."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from nmt.checkpoint.run import trained_on
from nmt.config.loader import load_config
from nmt.data.prepared import PreparedData
from nmt.text.tokenizer import load_tokenizers

logger = logging.getLogger(__name__)

_ROWS_AT_ONCE = 50_000
_Number = TypeVar("_Number", int, npt.NDArray[np.int64])


def training_data(folder: Path) -> Iterator[PreparedData]:
    """Yield what a model was trained on, then what the models were trained on that it began with.

    Data that are gone, or others by now, are left out with a note.
    """
    known: set[Path] = set()
    start: Path | None = folder
    while start is not None and start not in known and (start / "config.yaml").is_file():
        known.add(start)
        config = load_config(start / "config.yaml")
        if trained_on(start, config):
            yield PreparedData.open(config.prepared_dir)
        else:
            text = "the test set is not searched for in the training data of %s, which are not here"
            logger.info(text, start)
        start = config.training.start_from


def rows_in_training(folder: Path, lines: Sequence[str]) -> set[int] | None:
    """Return which source lines a model was trained on; None if its training data are gone.

    Lines are compared as token ids, so the text of the training data is not needed, and white space
    that the tokenizer normalises does not count. `nmt.extras.analysis.slices` finds near ones, too.
    """
    found: set[int] | None = None
    for data in training_data(folder):
        found = found or set()
        store, rows_of = data.train, defaultdict[tuple[int, ...], list[int]](list)
        encoded = load_tokenizers(data.tokenizer_dir).source.encode_batch(lines)
        for row, tokens in enumerate(encoded):
            rows_of[tuple(tokens)].append(row)
        known = np.array([_key(len(x), x[0], x[-1]) for x in rows_of if x], np.int64)
        for start in range(0, len(store), _ROWS_AT_ONCE):
            rows = np.arange(start, min(start + _ROWS_AT_ONCE, len(store)))
            stored, offsets = store.source_ids(rows)
            ids, starts, ends = stored.astype(np.int64), offsets[:-1], offsets[1:]
            keys = _key(ends - starts, ids[starts], ids[ends - 1])
            for place in np.flatnonzero(np.isin(keys, known)).tolist():
                line = ids[starts[place] : ends[place]].tolist()
                found.update(rows_of.get(tuple(line), ()))
    return found


def _key(length: _Number, first: _Number, last: _Number) -> _Number:
    # Equal for equal lines, and for few others: millions of rows are compared in a second.
    return (length << 40) | (first << 20) | last
