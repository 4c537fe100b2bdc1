"""What is wrong with the pairs of a preparation: counts, examples, and lists of all findings."""

from __future__ import annotations

import gzip
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from heapq import nsmallest
from pathlib import Path
from typing import Any, NamedTuple, Self

from nmt.data.filters import FilterChain
from nmt.errors import DataError

# Lists of the pairs with a finding: corpus, line, reason, value, limit.
DROPPED, REPORTED = "dropped.tsv.gz", "reported.tsv.gz"
# Keys of a corpus's counts that are not reasons.
READ, KEPT = "read", "kept"
_COLUMNS = "corpus", "line", "reason", "value", "limit"
_EXAMPLE = "corpus", "line", "source", "target", "value"
_NUM_EXAMPLES = 5


class Found(NamedTuple):
    """A `Finding` at its place."""

    corpus: str
    line: int  # in the corpus, from 1
    reason: str
    value: float | str = ""
    limit: float | str = ""
    source: str = ""
    target: str = ""

    @property
    def draw(self) -> tuple[int, str, int]:
        """Order in which examples are taken: spread over the corpora, and always the same."""
        return zlib.crc32(f"{self.corpus}:{self.line}".encode()), self.corpus, self.line


def printable(value: float | str) -> str:
    """Return a number or a text with its invisible characters as escapes."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in str(value))


@contextmanager
def open_table(path: Path, *columns: str) -> Iterator[gzip.GzipFile]:
    """Open a new compressed TSV file; the same rows give the same bytes."""
    # Without a file name and a time in it.
    with path.open("wb") as raw, gzip.GzipFile("", "wb", 6, raw, 0) as file:
        file.write("\t".join(columns).encode() + b"\n")
        yield file


class Findings:
    """Counts of each corpus, examples of each reason, and both lists, written as they come.

    Args:
        folder: Where to write the lists.
        training: Filters of the training pairs.
        corpora: Names of the training corpora.
        held_out: Name of the set that is prepared beside them; all its findings drop.
    """

    def __init__(
        self, folder: Path, training: FilterChain, corpora: Iterable[str], held_out: str
    ) -> None:
        self._training, self._corpora, self._files = training, [*corpora], ExitStack()
        self._dropped, self._reported = (
            self._files.enter_context(open_table(folder / name, *_COLUMNS))
            for name in (DROPPED, REPORTED)
        )
        self._reasons: dict[str, Counter[str]] = {}  # pairs of each corpus
        self._examples: dict[str, list[Found]] = {}
        # Pairs read, kept, and dropped under their first reason that drops.
        self.counts = {name: Counter({READ: 0, KEPT: 0}) for name in (*self._corpora, held_out)}

    def take(self, corpus: str, values: tuple[Sequence[Any], Mapping[str, int]]) -> list[Found]:
        """Count and list what a function found in a block; return the findings."""
        rows, counts = values
        self.counts[corpus].update(counts)
        found = [Found(*row) for row in rows]  # of a file they are lists
        is_training, by_reason = corpus in self._corpora, dict[str, list[Found]]()
        for each in found:
            is_dropped = not is_training or self._training.drops(each.reason)
            row = "\t".join(map(printable, each[: len(_COLUMNS)])) + "\n"
            (self._dropped if is_dropped else self._reported).write(row.encode())
            if is_training:
                by_reason.setdefault(each.reason, []).append(each)
        for reason, group in by_reason.items():
            self._reasons.setdefault(reason, Counter()).update(each.corpus for each in group)
            both = [*self._examples.get(reason, ()), *group]
            self._examples[reason] = nsmallest(_NUM_EXAMPLES, both, key=lambda each: each.draw)
        return found

    def check_kept(self, kind: str, corpora: Iterable[str]) -> None:
        """Check that some pair of some corpora is left.

        Raises:
            DataError: No pair is; says why.
        """
        reasons = sum((self.counts[name] for name in corpora), Counter[str]())
        if not reasons[KEPT]:
            counts = (f"{what} {n:,}" for what, n in reasons.most_common() if what != READ)
            raise DataError(
                f"No {kind} pair is left after the filters. "
                f"Dropped: {', '.join(counts) or 'nothing'}.",
                fix="Check the files, or relax the filters section.",
            )

    def report(self) -> dict[str, Any]:
        """Return ``counts``, ``findings`` and ``reasons`` of a `PrepareReport`."""
        actions = self._training.actions
        reported = [name for name in self._reasons if actions.get(name) == "report"]
        names = dict.fromkeys((*actions, *self._reasons))
        return {
            "counts": {
                name: {what: n for what, n in counts.items() if n or what in (READ, KEPT)}
                for name, counts in self.counts.items()
            },
            "findings": {
                corpus: {name: n for name in reported if (n := self._reasons[name][corpus])}
                for corpus in self._corpora
            },
            "reasons": {
                name: {
                    "count": self._reasons.get(name, Counter()).total(),
                    "action": actions.get(name, "drop"),
                    "examples": [
                        {field: getattr(each, field) for field in _EXAMPLE}
                        for each in self._examples.get(name, ())
                    ],
                }
                for name in names
            },
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()
