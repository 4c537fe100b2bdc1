"""Contrastive pairs: does a model find the right translation more probable than a wrong one?

Source: Sennrich (2017), How Grammatical is Character-level Neural Machine Translation?
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nmt.errors import DataError
from nmt.metrics.result import ContrastiveAccuracy
from nmt.metrics.test_set import read_text

ALL = "all"
"""Category of the whole file."""


@dataclass(frozen=True, slots=True)
class ContrastivePair:
    """A source with a right and a wrong translation."""

    source: str
    right: str
    wrong: str
    category: str = ""
    """What is wrong, for example ``number`` or ``negation``."""


def read_pairs(path: Path) -> list[ContrastivePair]:
    """Read lines of ``source<TAB>right<TAB>wrong`` with an optional ``<TAB>category``.

    Raises:
        DataError: Missing, empty, or a line with another number of columns.
    """
    pairs = []
    for number, line in enumerate(read_text(path), start=1):
        cells = line.split("\t")
        if len(cells) not in (3, 4) or not all(cells[:3]):
            raise DataError(
                f"{path}, line {number:,} has {len(cells)} columns, not 3 or 4 with text in them.",
                fix="Write source, right translation, wrong translation and, if you like, a "
                "category, with tabs between.",
            )
        pairs.append(ContrastivePair(*cells))
    if not pairs:
        raise DataError(f"{path} has no lines.", fix="Give a file with contrastive pairs in it.")
    return pairs


def contrastive_accuracy(
    system: str,
    pairs: Sequence[ContrastivePair],
    score: Callable[[list[tuple[str, str]]], Sequence[float]],
) -> Iterator[ContrastiveAccuracy]:
    """Yield the accuracy of a model in all and in each category; a tie is no success.

    Args:
        system: Name of the model.
        pairs: What to compare.
        score: Scores pairs of source and target; higher is better.
    """
    right = score([(pair.source, pair.right) for pair in pairs])
    wrong = score([(pair.source, pair.wrong) for pair in pairs])
    is_correct = [one > other for one, other in zip(right, wrong, strict=True)]
    categories = dict.fromkeys(pair.category for pair in pairs if pair.category)
    for category in (ALL, *categories):
        own = [
            found
            for pair, found in zip(pairs, is_correct, strict=True)
            if category in (ALL, pair.category)
        ]
        yield ContrastiveAccuracy(
            system=system,
            category=category,
            num_pairs=len(own),
            num_correct=sum(own),
            accuracy=sum(own) / len(own),
        )
