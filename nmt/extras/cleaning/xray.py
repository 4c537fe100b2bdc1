"""The lines of all corpora -> a lexical score of each pair, and the ranges that are misaligned."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from nmt.data.lines import Lines, Rows
from nmt.data.workers import Mapped, map_here, watched
from nmt.extras.cleaning.column import Column
from nmt.extras.cleaning.lexicon import MOST_MEETINGS, Lexicon
from nmt.extras.cleaning.misalignment import Judged, find_ranges
from nmt.extras.cleaning.offsets import far_offsets, first_offsets
from nmt.extras.cleaning.ranges import Range, joined
from nmt.extras.cleaning.scores import Scores

_ROUNDS = 4
_AGREED = 0.01
"""Share of the lines whose offset may differ from what the lexicon was taught."""
_PART = _MOST_LESSONS = 1 << 20
Offsets = npt.NDArray[np.int16]
"""Of each line. (lines,)."""
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class XRay:
    """What the lines of some corpora say about each other."""

    scores: Mapping[str, Scores] = field(default_factory=dict)
    """Per corpus, for each line: how much more probable its tokens are as a translation than
    anywhere, in nats per token; not a number where a side is blank or unreadable."""
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
    progress: Callable[[], object] = lambda: None,
) -> XRay:
    """Score all pairs and find misaligned ranges.

    The lexicon is learned from lines that lengths have aligned. Where it then finds other ranges,
    or lines that it doubts, it is learned again from lines aligned by these, without those.

    Args:
        lines: The lines of all corpora, cut off after some tokens.
        vocab_sizes: Entries of the source and of the target vocabulary.
        spans: First row of each corpus, and the row behind its last.
        folder: For the scores and other large arrays. They stay there.
        held_out: Corpora that the lexicon must not be learned from.
        mapped: Has something done with batches of lines, perhaps by processes that see the folder.
        progress: Called once a batch is done.
    """
    num = len(lines.source_lengths)
    offsets, is_taught = np.zeros(num, np.int16), np.zeros(num, np.bool_)
    for name, span in spans.items():
        for low, high in _parts(*span) if name not in held_out else ():
            offsets[low:high] = first_offsets(lines, low, high)
            is_taught[low:high] = True
    scores, z_scores = (
        {
            name: Column(folder / f"{kind}-{number}.bin", np.float32, high - low)
            for number, (name, (low, high)) in enumerate(spans.items())
        }
        for kind in ("score", "z")
    )
    ranges: dict[str, list[Range]] = {}
    saved = None if mapped is map_here else folder
    mapped = watched(mapped, progress)
    for number in count(1):
        lessons = _lessons(lines, offsets, is_taught, spans)
        lexicon = Lexicon(lines, vocab_sizes, *lessons, mapped=mapped, folder=saved)
        ranges, changed = {name: [] for name in spans}, 0
        for name, (start, end) in spans.items():
            for low, high in _parts(start, end):
                rows, part = np.arange(low, high), slice(low - start, high - start)
                standing = lexicon.score(rows, rows)
                judged = find_ranges(lexicon, lines, low, high, offsets[low:high], standing)
                scores[name][part] = _per_token(standing, lines, low, high)
                z_scores[name][part] = judged.z_scores
                ranges[name] += (each.moved(low - start) for each in judged.ranges)
                if name not in held_out:
                    own, fits = _as_found(judged, lines, low, offsets[low:high])
                    different = (own != offsets[low:high]) | (fits != is_taught[low:high])
                    changed += int(different.sum())
                    offsets[low:high], is_taught[low:high] = own, fits
        if changed <= _AGREED * num or number == _ROUNDS:
            break
    return XRay(scores, {name: joined(found) for name, found in ranges.items()}, z_scores)


def _as_found(judged: Judged, lines: Lines, low: int, offsets: Offsets) -> tuple[Offsets, Mask]:
    """Return the offset of each of the lines from ``low`` on, and whether it is to teach at it."""
    own, fits = np.zeros(len(offsets), np.int16), np.ones(len(offsets), np.bool_)
    rows = slice(low, low + len(offsets))
    lengths = lines.source_lengths[rows], lines.target_lengths[rows]
    for each in judged.ranges:
        here = slice(each.start - 1, each.end)
        if each.offset is None:
            own[here] = far_offsets(*lengths, each.start - 1, each.end)
            fits[here] = own[here] != 0
        else:
            own[here] = each.offset
    return own, fits & ~(judged.is_doubtful & (own == offsets))


def _parts(low: int, high: int) -> Iterator[tuple[int, int]]:
    """Cut a corpus into parts of a size that memory holds; a small rest goes with the last."""
    starts = list(range(low, max(high - _PART // 2, low + 1), _PART))
    return pairwise([*starts, high])


def _lessons(
    lines: Lines, offsets: Offsets, is_taught: Mask, spans: Mapping[str, tuple[int, int]]
) -> tuple[Rows, Rows]:
    """Return the rows of pairs to learn from: of very many, a part that is evenly spread."""
    meetings = sum(
        int(
            (lines.source_lengths[low:high].astype(np.int64) * lines.target_lengths[low:high]).sum()
        )
        for span in spans.values()
        for low, high in _parts(*span)
    )
    step = max(1, -(-meetings // MOST_MEETINGS), -(-len(offsets) // _MOST_LESSONS))
    found: list[npt.NDArray[np.int64]] = [np.empty((2, 0), np.int64)]
    for low, high in spans.values():
        rows = np.arange(low, high, step)
        targets = rows + offsets[rows]
        inside = is_taught[rows] & (targets >= low) & (targets < high)
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
