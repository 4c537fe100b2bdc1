"""The lines of all corpora -> a lexical score of each pair, and the ranges that are misaligned."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from nmt.data.column import Column
from nmt.data.lexicon import MOST_MEETINGS, Lexicon
from nmt.data.lines import Lines, Rows
from nmt.data.misalignment import Range, find_ranges, joined, likely_offsets
from nmt.data.scores import Scores
from nmt.data.workers import Mapped, map_here

_ROUNDS = 3
_AGREED = 0.01
"""Share of the lines whose offset may differ from what the lexicon was taught."""
_PART = 1 << 20
_NONE = -128
"""In the place of an offset: a line without translation."""
Offsets = npt.NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class XRay:
    """What the lines of some corpora say about each other."""

    scores: Mapping[str, Scores] = field(default_factory=dict)
    """Per corpus, for each line: how much likelier its tokens are as a translation than anywhere,
    in nats per token; not a number where a side is blank or unreadable."""
    ranges: Mapping[str, Sequence[Range]] = field(default_factory=dict)
    """Per corpus: its misaligned ranges."""
    z_scores: Mapping[str, Scores] = field(default_factory=dict)
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


def x_ray(
    lines: Lines,
    vocab_sizes: tuple[int, int],
    spans: Mapping[str, tuple[int, int]],
    folder: Path,
    held_out: Container[str] = (),
    *,
    mapped: Mapped = map_here,
) -> XRay:
    """Score all pairs and find misaligned ranges.

    The lexicon is learned from lines that lengths have aligned. Where it then finds other ranges,
    it is learned again from lines aligned by these.

    Args:
        lines: The lines of all corpora, cut off after some tokens.
        vocab_sizes: Entries of the source and of the target vocabulary.
        spans: First row of each corpus, and the row behind its last.
        folder: For the scores and other large arrays. They stay there.
        held_out: Corpora that the lexicon must not be learned from.
        mapped: Has something done with batches of lines, perhaps by processes that see the folder.
    """
    offsets = np.full(len(lines.source_lengths), _NONE, np.int8)
    for name, span in spans.items():
        for low, high in _parts(*span) if name not in held_out else ():
            lengths = lines.source_lengths[low:high], lines.target_lengths[low:high]
            offsets[low:high] = likely_offsets(*lengths)
    scores, z_scores = (
        {
            name: Column(folder / f"{kind}-{number}.bin", np.float32, high - low)
            for number, (name, (low, high)) in enumerate(spans.items())
        }
        for kind in ("score", "z")
    )
    ranges: dict[str, list[Range]] = {}
    for number in count(1):
        lessons = _lessons(lines, offsets, spans)
        saved = None if mapped is map_here else folder
        lexicon = Lexicon(lines, vocab_sizes, *lessons, mapped=mapped, folder=saved)
        ranges, changed = {name: [] for name in spans}, 0
        for name, (start, end) in spans.items():
            for low, high in _parts(start, end):
                rows, part = np.arange(low, high), slice(low - start, high - start)
                standing = lexicon.score(rows, rows)
                taught = np.where(offsets[low:high] == _NONE, 0, offsets[low:high])
                found, own = find_ranges(lexicon, lines, low, high, taught, standing)
                scores[name][part] = _per_token(standing, lines, low, high)
                z_scores[name][part] = own
                ranges[name] += (each.moved(low - start) for each in found)
                if name not in held_out:
                    fitting = _as_found(found, high - low)
                    changed += int((fitting != offsets[low:high]).sum())
                    offsets[low:high] = fitting
        if changed <= _AGREED * len(offsets) or number == _ROUNDS:
            break
    return XRay(scores, {name: joined(found) for name, found in ranges.items()}, z_scores)


def _as_found(ranges: Sequence[Range], num: int) -> Offsets:
    """Return the offset of each of some lines, or that it has no translation."""
    offsets = np.zeros(num, np.int8)
    for each in ranges:
        offsets[each.start - 1 : each.end] = _NONE if each.offset is None else each.offset
    return offsets


def _parts(low: int, high: int) -> Iterator[tuple[int, int]]:
    """Cut a corpus into parts of a size that memory holds; a small rest goes with the last."""
    starts = list(range(low, max(high - _PART // 2, low + 1), _PART))
    return pairwise([*starts, high])


def _lessons(
    lines: Lines, offsets: Offsets, spans: Mapping[str, tuple[int, int]]
) -> tuple[Rows, Rows]:
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
        inside = (offsets[rows] != _NONE) & (targets >= low) & (targets < high)
        found.append(np.stack((rows[inside], targets[inside])))
    sources, targets = np.concatenate(found, axis=1)
    return sources, targets


def _per_token(
    totals: npt.NDArray[np.float64], lines: Lines, low: int, high: int
) -> npt.NDArray[np.float64]:
    """Return scores per token, of the lines from ``low`` to before ``high`` as they stand."""
    lengths = lines.source_lengths[low:high], lines.target_lengths[low:high]
    tokens = np.where((lengths[0] > 0) & (lengths[1] > 0), lengths[0] + lengths[1], 0)
    return np.where(tokens > 0, totals / np.maximum(tokens, 1), np.nan)
