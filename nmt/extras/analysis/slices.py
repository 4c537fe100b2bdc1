"""Parts of a test set that have something in common: where a system is weak. Pure.

Every group of slices tells all sentences apart, so its counts add up to the test set.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nmt.metrics.metric import Scorer
from nmt.metrics.result import Slice, SliceScores, System
from nmt.metrics.scoring import Resampling, measure
from nmt.metrics.significance import Floats

if TYPE_CHECKING:
    from nmt.data.word_counts import LineCounts

LEAKAGE, NOT_SEEN = "source in training data", "not found"
_EAST_ASIAN = "\u3040-\u30ff\u3400-\u9fff"
_WORD = re.compile(f"[{_EAST_ASIAN}]|[^\\W{_EAST_ASIAN}]+")
_NUMBER = re.compile(r"\d+(?:[.,:'\u00a0\u202f]\d+)*")
_LENGTHS = {10.0: "below 10", 20.0: "10-19", 30.0: "20-29", 40.0: "30-39"}
_COUNTS = {1.0: "unseen", 10.0: "1-9 times", 100.0: "10-99 times"}
_COVERED = {0.25: "below 25%", 0.5: "25-49%", 0.75: "50-74%"}
_RATIOS = {0.8: "below 0.8", 1.25: "0.8-1.25"}


@dataclass(frozen=True, slots=True)
class Group:
    """What tells sentences apart, with the slice of each sentence."""

    name: str
    labels: Sequence[str]
    """Name of the slice of each sentence."""
    slices: Sequence[str]
    """Names of all slices, in the order to show; some may be empty."""


def user_group(name: str, labels: Sequence[str]) -> Group:
    """Return a group by the user's own labels, in the order in which they come."""
    return Group(name, labels, list(dict.fromkeys(labels)))


def leakage_group(kinds: Mapping[int, str], num_sentences: int) -> Group:
    """Return the group by what a model has seen in training.

    Args:
        kinds: ``exact`` or ``near``, by sentence; see `nmt.extras.cleaning.leakage`.
        num_sentences: Of the test set.
    """
    labels = [kinds.get(number, NOT_SEEN) for number in range(num_sentences)]
    return Group(LEAKAGE, labels, [NOT_SEEN, "near", "exact"])


def groups_of_source(
    source: Sequence[str], counts: Sequence[LineCounts] | None = None
) -> Iterator[Group]:
    """Yield the groups that depend on nothing but the source, and on the training data if known."""
    lengths = [len(_WORD.findall(line)) for line in source]
    yield _binned("source words", lengths, _LENGTHS, "40 and more")
    cases = ["both cases", "no capitals", "all capitals", "no letters with case"]
    yield Group("source case", [cases[_case(line)] for line in source], cases)
    if counts is None:
        return
    rarest = [min(each.words, default=1 << 62) for each in counts]
    yield _binned("rarest source word in training", rarest, _COUNTS, "100 times and more")
    shares = [sum(n > 0 for n in x.pairs) / len(x.pairs) if x.pairs else 1.0 for x in counts]
    yield _binned("source word pairs in training", shares, _COVERED, "75% and more")


def groups_of_system(
    system: System, source: Sequence[str] | None, references: Sequence[Sequence[str]]
) -> Iterator[Group]:
    """Yield the groups that depend on what a system wrote."""
    names = ["nothing to keep", "kept", "lost"]
    if source is not None:
        numbers = [
            _kept(_numbers(line), _numbers(output))
            for line, output in zip(source, system.lines, strict=True)
        ]
        yield Group("numbers", [names[kind] for kind in numbers], names)
        streams = [[_tokens(line) for line in stream] for stream in references]
        copied = []
        for number, line in enumerate(source):
            allowed = set().union(*(stream[number] for stream in streams))
            tokens = {token for token in _tokens(line) & allowed if _is_name(token)}
            copied.append(names[_kept(tokens, _tokens(system.lines[number]))])
        yield Group("names and copied tokens", copied, names)
    pairs = zip(system.lines, references[0], strict=True)
    ratios = [(len(output) + 1) / (len(reference) + 1) for output, reference in pairs]
    yield _binned("length ratio to reference", ratios, _RATIOS, "above 1.25")
    if system.results:
        labels = ["alarm" if result.alarms else "no alarm" for result in system.results]
        yield Group("guard", labels, ["no alarm", "alarm"])


def score_slices(
    systems: Sequence[System],
    tables: Sequence[Sequence[Floats]],
    scorers: Sequence[Scorer],
    resampling: Resampling,
    groups: Mapping[str, Iterable[Group]],
) -> Iterator[Slice]:
    """Score the slices of every group.

    Args:
        systems: What is scored.
        tables: For each system, the statistics of each sentence under each metric. (n, D).
        scorers: The metrics.
        resampling: For intervals.
        groups: Of each system, by its name.
    """
    found: dict[tuple[str, str], dict[str, SliceScores]] = {}
    for system, own in zip(systems, tables, strict=True):
        for group in groups[system.name]:
            labels = np.array(group.labels, dtype=object)
            for name in group.slices:
                (rows,) = np.nonzero(labels == name)
                parts = [[table[rows] for table in own]] if len(rows) else []
                scores = [x.score for part in measure(parts, scorers, resampling) for x in part]
                slices = found.setdefault((group.name, name), {})
                slices[system.name] = SliceScores(len(rows), tuple(scores))
    for (group_name, name), scored in found.items():
        yield Slice(group=group_name, name=name, systems=scored)


def _binned(name: str, values: Iterable[float], limits: Mapping[float, str], rest: str) -> Group:
    """Return a group by the first limit that is above a value."""
    names = [*limits.values(), rest]
    bins = np.searchsorted(list(limits), list(values), side="right")
    return Group(name, [names[index] for index in bins], names)


def _case(line: str) -> int:
    has_upper, has_lower = any(map(str.isupper, line)), any(map(str.islower, line))
    if not has_upper:
        return 1 if has_lower else 3
    return 0 if has_lower else 2


def _numbers(line: str) -> set[str]:
    """Return the numbers of a line, without separators, in ASCII digits."""
    return {
        "".join(str(unicodedata.digit(c)) for c in number if c.isdecimal())
        for number in _NUMBER.findall(line)
    }


def _tokens(line: str) -> set[str]:
    return {stripped for token in line.split() if (stripped := token.strip(".,;:!?\"'()[]«»„“”"))}


def _is_name(token: str) -> bool:
    """Whether a token that is copied could have been translated: it looks like a name."""
    return not token.isnumeric() and (not token.islower() or not token.isalpha())


def _kept(wanted: set[str], written: set[str]) -> int:
    """Return 0 for nothing to keep, 1 for all kept, 2 for some lost."""
    return 0 if not wanted else 1 if wanted <= written else 2
