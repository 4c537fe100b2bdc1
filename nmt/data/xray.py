"""The lines of all corpora -> a lexical score of each pair, and the ranges that are misaligned."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from nmt.data.corpus import BadPair, Block, SentencePair
from nmt.data.lexicon import MOST_MEETINGS, Lexicon, Lines
from nmt.data.misalignment import Range, find_ranges, joined, likely_offsets
from nmt.data.store import FlatIds, StoreWriter
from nmt.text.tokenizer import Tokenizers

MOST_TOKENS = 64
"""Of a line; what is beyond them says little more about what it means."""
_ROUNDS = 3
_AGREED = 0.01
"""Share of the lines whose offset may differ from what the lexicon was taught."""
_PART = 1 << 20


@dataclass(frozen=True, slots=True)
class XRay:
    """What the lines of some corpora say about each other."""

    scores: Mapping[str, npt.NDArray[np.float32]] = field(default_factory=dict)
    """Per corpus, for each line: how much likelier its tokens are as a translation than anywhere,
    in nats per token; not a number where a side is blank or unreadable."""
    ranges: Mapping[str, Sequence[Range]] = field(default_factory=dict)
    """Per corpus: its misaligned ranges."""
    z_scores: Mapping[str, npt.NDArray[np.float32]] = field(default_factory=dict)
    """Per corpus, for each line: standard deviations by which its score, on a scale on which lines
    of all lengths are alike, lies above what is usual; not a number where that is not known."""

    def findings(self) -> dict[str, list[dict[str, str | int]]]:
        """Return the ranges as reports spell them."""
        found: dict[str, list[dict[str, str | int]]] = {"shifts": [], "unrelated": []}
        for corpus, ranges in self.ranges.items():
            for each in ranges:
                values: dict[str, str | int] = {"corpus": corpus}
                values |= {"start": each.start, "end": each.end}
                if each.offset is None:
                    found["unrelated"].append(values)
                else:
                    found["shifts"].append(values | {"offset": each.offset})
        return found


class LineIds(NamedTuple):
    """The start of every line of a block as token ids."""

    ids: tuple[FlatIds, FlatIds]
    """Of source and target; none for what cannot be read."""
    numbers: list[int]
    """Line numbers."""

    @property
    def num_lines(self) -> int:
        """Lines of the block."""
        return len(self.numbers)


def encode_lines(tokenizers: Tokenizers, threads: int, block: Block) -> LineIds:
    """Return the ids of all lines of a block. Pure: any process may do it."""
    return _line_ids(tokenizers, threads, block.pairs())


def _line_ids(
    tokenizers: Tokenizers, threads: int, pairs: Sequence[SentencePair | BadPair]
) -> LineIds:
    texts = [("", "") if isinstance(pair, BadPair) else pair[:2] for pair in pairs]
    source, target = (
        FlatIds.of([ids[:MOST_TOKENS] for ids in tokenizer.encode_batch(side, threads)])
        for tokenizer, side in zip(tokenizers, zip(*texts, strict=True), strict=True)
    )
    return LineIds((source, target), [pair.line for pair in pairs])


class LineWriter:
    """Writes the token ids of all lines of some corpora to a new folder, in order."""

    def __init__(self, folder: Path, tokenizers: Tokenizers, threads: int) -> None:
        self._tokenizers, self._threads = tokenizers, threads
        self._writer = StoreWriter(folder, max(tokenizers.vocab_sizes))
        self.spans: dict[str, tuple[int, int]] = {}
        """First row of each corpus, and the row behind its last."""

    def add(self, corpus: str, block: Sequence[SentencePair | BadPair]) -> None:
        """Add the next lines of a corpus; unreadable ones are blank."""
        self.append(corpus, _line_ids(self._tokenizers, self._threads, block))

    def append(self, corpus: str, lines: LineIds) -> None:
        """Add the next lines of a corpus, encoded."""
        self._writer.append_flat(lines.ids, 0, lines.numbers)
        end = max((stop for _, stop in self.spans.values()), default=0)
        self.spans[corpus] = self.spans.get(corpus, (end, end))[0], end + lines.num_lines

    def __enter__(self) -> Self:
        self._writer.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._writer.__exit__(*error)


def x_ray(
    lines: Lines,
    vocab_sizes: tuple[int, int],
    spans: Mapping[str, tuple[int, int]],
    held_out: Container[str] = (),
) -> XRay:
    """Score all pairs and find misaligned ranges.

    The lexicon is learned from lines that lengths have aligned. Where it then finds other ranges,
    it is learned again from lines aligned by these.

    Args:
        lines: The lines of all corpora, cut off after some tokens.
        vocab_sizes: Entries of the source and of the target vocabulary.
        spans: First row of each corpus, and the row behind its last.
        held_out: Corpora that the lexicon must not be learned from.
    """
    num = len(lines.source_lengths)
    offsets, is_taught = np.zeros(num, np.int8), np.zeros(num, np.bool_)
    for name, span in spans.items():
        for low, high in _parts(*span) if name not in held_out else ():
            lengths = lines.source_lengths[low:high], lines.target_lengths[low:high]
            offsets[low:high] = likely_offsets(*lengths)
            is_taught[low:high] = True
    rounds = count(1)
    while True:
        lexicon = Lexicon(lines, vocab_sizes, *_lessons(lines, offsets, is_taught, spans))
        judged = {name: _judged(lexicon, lines, span, offsets) for name, span in spans.items()}
        ranges = {name: found for name, (found, _) in judged.items()}
        changed = 0
        for name, (low, high) in spans.items():
            if name not in held_out:
                own, fits = _as_found(ranges[name], high - low)
                different = (own != offsets[low:high]) | (fits != is_taught[low:high])
                changed += int(different.sum())
                offsets[low:high], is_taught[low:high] = own, fits
        if changed <= _AGREED * num or next(rounds) == _ROUNDS:
            scores = {name: _scores(lexicon, lines, span) for name, span in spans.items()}
            return XRay(scores, ranges, {name: each for name, (_, each) in judged.items()})


def _judged(
    lexicon: Lexicon, lines: Lines, span: tuple[int, int], offsets: npt.NDArray[np.int8]
) -> tuple[list[Range], npt.NDArray[np.float32]]:
    """Return the ranges of a corpus, and the z-score of each of its lines."""
    ranges: list[Range] = []
    z_scores = np.empty(span[1] - span[0], np.float32)
    for low, high in _parts(*span):
        found, own = find_ranges(lexicon, lines, low, high, offsets[low:high])
        ranges += (each.moved(low - span[0]) for each in found)
        z_scores[low - span[0] : high - span[0]] = own
    return joined(ranges), z_scores


def _as_found(
    ranges: Sequence[Range], num: int
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.bool_]]:
    """Return the offset of each line of a corpus, and whether it has a translation."""
    offsets, fits = np.zeros(num, np.int8), np.ones(num, np.bool_)
    for each in ranges:
        offsets[each.start - 1 : each.end] = each.offset or 0
        fits[each.start - 1 : each.end] = each.offset is not None
    return offsets, fits


def _parts(low: int, high: int) -> Iterator[tuple[int, int]]:
    """Cut a corpus into parts of a size that memory holds; a small rest goes with the last."""
    starts = list(range(low, max(high - _PART // 2, low + 1), _PART))
    return pairwise([*starts, high])


def _lessons(
    lines: Lines,
    offsets: npt.NDArray[np.int8],
    is_taught: npt.NDArray[np.bool_],
    spans: Mapping[str, tuple[int, int]],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the rows of pairs to learn from: of very many, a part that is evenly spread."""
    meetings = sum(
        int(
            (lines.source_lengths[low:high].astype(np.int64) * lines.target_lengths[low:high]).sum()
        )
        for span in spans.values()
        for low, high in _parts(*span)
    )
    step = max(1, -(-meetings // MOST_MEETINGS))
    found: list[npt.NDArray[np.int64]] = [np.empty((2, 0), np.int64)]
    for low, high in spans.values():
        rows = np.arange(low, high, step)
        targets = rows + offsets[rows]
        inside = is_taught[rows] & (targets >= low) & (targets < high)
        found.append(np.stack((rows[inside], targets[inside])))
    sources, targets = np.concatenate(found, axis=1)
    return sources, targets


def _scores(lexicon: Lexicon, lines: Lines, span: tuple[int, int]) -> npt.NDArray[np.float32]:
    scores = np.full(span[1] - span[0], np.nan, np.float32)
    for low, high in _parts(*span):
        rows = np.arange(low, high)
        lengths = lines.source_lengths[low:high], lines.target_lengths[low:high]
        usable = (lengths[0] > 0) & (lengths[1] > 0)
        totals = lexicon.score(rows[usable], rows[usable])
        scores[low - span[0] : high - span[0]][usable] = totals / (lengths[0] + lengths[1])[usable]
    return scores
