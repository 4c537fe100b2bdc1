"""What is wrong with pairs, as values: findings, their counts and examples, and the drop list."""

from __future__ import annotations

import gzip
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import nsmallest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nmt.config.filters import Action
from nmt.data.pairs import BadPair, SentencePair

if TYPE_CHECKING:
    from nmt.data.filters import FilterChain

DROPPED, REPORTED = "dropped.tsv.gz", "reported.tsv.gz"
"""Lists of the pairs with a finding: corpus, line, reason, value, limit."""
_NUM_EXAMPLES = 5


class Finding(NamedTuple):
    """One thing that is wrong with a pair. Pairs may have several."""

    reason: str
    """Identifier, such as ``markup``; never changes its meaning."""
    value: float | str = ""
    """What was measured or seen."""
    limit: float | str = ""
    """What is allowed, where there is such a bound."""


class Found(NamedTuple):
    """A finding at its place."""

    corpus: str
    line: int
    """Line number in the corpus, from 1."""
    finding: Finding
    source: str = ""
    target: str = ""

    @property
    def _draw(self) -> tuple[int, str, int]:
        """Order in which examples are taken: spread over the corpora, and always the same."""
        return zlib.crc32(f"{self.corpus}:{self.line}".encode()), self.corpus, self.line

    def row(self) -> bytes:
        """Return the line of the drop list."""
        cells = (self.corpus, self.line, *self.finding)
        return ("\t".join(map(printable, cells)) + "\n").encode()


def printable(value: float | str) -> str:
    """Return a number or a text with its invisible characters as escapes."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in str(value))


@dataclass(slots=True)
class ReasonCounts:
    """Counts and examples of findings."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    """Per reason: pairs of each corpus."""
    examples: dict[str, list[Found]] = field(default_factory=dict)
    """Per reason: a few pairs."""
    languages: dict[tuple[str, str], list[Found]] = field(default_factory=dict)
    """The first pairs of each language of a side and other language that was found there."""
    num_in: Counter[tuple[str, str]] = field(default_factory=Counter)
    """The same: how many there are."""

    def update(self, found: Iterable[Found]) -> None:
        """Add findings."""
        by_reason: dict[str, list[Found]] = {}
        for each in found:
            by_reason.setdefault(each.finding.reason, []).append(each)
        for reason, group in by_reason.items():
            counts = self.counts.setdefault(reason, Counter())
            counts.update(each.corpus for each in group)
            self._keep(reason, group)
            if reason == "language":
                self._keep_languages(group)

    def _keep_languages(self, group: Sequence[Found]) -> None:
        for each in group:
            key = str(each.finding.limit), str(each.finding.value)
            self.num_in[key] += 1
            first = self.languages.setdefault(key, [])
            if len(first) < _NUM_EXAMPLES:
                first.append(each)

    def _languages(self) -> dict[str, Any]:
        """Return what is reported of languages: counts, and per side with the first lines."""
        values: Counter[str] = Counter()
        sides: dict[str, dict[str, Any]] = {}
        for (side, value), count in self.num_in.most_common():
            values[value] += count
            lines = [
                {"corpus": each.corpus, "line": each.line} for each in self.languages[side, value]
            ]
            sides.setdefault(side, {})[value] = {"count": count, "first": lines}
        return {"values": dict(values.most_common()), "sides": sides}

    def _keep(self, reason: str, group: Sequence[Found]) -> None:
        both = [*self.examples.get(reason, ()), *group]
        self.examples[reason] = nsmallest(_NUM_EXAMPLES, both, key=lambda each: each._draw)

    def reported(
        self, corpora: Iterable[str], actions: Mapping[str, Action]
    ) -> dict[str, dict[str, int]]:
        """Return per corpus how many pairs have each reason that is reported only."""
        reported = [name for name in self.counts if actions.get(name) == "report"]
        return {
            corpus: {name: n for name in reported if (n := self.counts[name][corpus])}
            for corpus in corpora
        }

    def report(self, actions: Mapping[str, Action]) -> dict[str, dict[str, Any]]:
        """Return for each reason its action, how many pairs have it, and examples of them."""
        names = [*actions, *(name for name in self.counts if name not in actions)]
        values = {"language": self._languages()}
        return {
            name: {
                "count": sum(self.counts.get(name, Counter()).values()),
                "action": actions.get(name, "drop"),
                "examples": [_example(each) for each in self.examples.get(name, ())],
                **values.get(name, {}),
            }
            for name in names
        }


def _example(found: Found) -> dict[str, Any]:
    return {
        "corpus": found.corpus, "line": found.line, "source": found.source,
        "target": found.target, "value": found.finding.value,
    }  # fmt: skip


@contextmanager
def open_table(path: Path, *columns: str) -> Iterator[gzip.GzipFile]:
    """Open a new compressed TSV file; the same rows give the same bytes."""
    # Without a file name and a time in it.
    with path.open("wb") as raw, gzip.GzipFile("", "wb", 6, raw, 0) as file:
        file.write("\t".join(columns).encode() + b"\n")
        yield file


class Examined(NamedTuple):
    """What is known of a block of pairs by themselves."""

    is_kept: npt.NDArray[np.bool_]
    """Of each line of the block."""
    found: list[Found]
    """In the order of the lines."""
    counts: Counter[str]
    """Dropped pairs, each under its first reason that drops."""


def examine(block: Sequence[SentencePair | BadPair], filters: FilterChain, corpus: str) -> Examined:
    """Ask filters about the texts of a block. Pure: blocks may be examined in any process."""
    found, counts = [], Counter[str]()
    is_kept = np.ones(len(block), dtype=np.bool_)
    for row, pair in enumerate(block):
        if isinstance(pair, BadPair):
            findings, texts = [Finding(pair.reason)], ("", "")
        else:
            texts = pair[:2]
            findings = filters.text_findings(*texts)
        reason = filters.dropping(findings) if findings else None
        found += [Found(corpus, pair.line, each, *texts) for each in findings]
        if reason is not None:
            is_kept[row] = False
            counts[reason] += 1
    return Examined(is_kept, found, counts)
