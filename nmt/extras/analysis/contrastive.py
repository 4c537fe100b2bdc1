"""Contrastive pairs: does a model find the right translation more probable than a wrong one?

Source: Sennrich (2017), How Grammatical is Character-level Neural Machine Translation?
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmt.commands.evaluate import EvaluatedModel
from nmt.commands.evaluation_set import read_text
from nmt.errors import DataError
from nmt.extras.analysis.models import load_scorer
from nmt.metrics.result import Section

ALL = "all"  # Category of the whole file.


@dataclass(frozen=True, slots=True)
class ContrastivePair:
    """A source with a right and a wrong translation."""

    source: str
    right: str
    wrong: str
    category: str = ""  # What is wrong, for example ``number`` or ``negation``.


class Contrastive:
    """The pairs of a file, to be scored by models with the length normalisation of the search."""

    def __init__(self, path: Path) -> None:
        self._pairs = read_pairs(path)

    def __call__(self, models: Sequence[EvaluatedModel]) -> Section:
        """Return the accuracy of each model."""
        values = []
        for model in models:
            scorer = load_scorer(model)
            right = scorer.score([(pair.source, pair.right) for pair in self._pairs])
            wrong = scorer.score([(pair.source, pair.wrong) for pair in self._pairs])
            scores = ([each.score for each in side] for side in (right, wrong))
            values += accuracies(model.name, self._pairs, *scores)
        rows = [
            [x["system"], x["category"], f"{x['num_pairs']:,}", f"{x['accuracy']:.1%}"]
            for x in values
        ]
        return Section(
            key="contrastive",
            title="Contrastive pairs",
            rows=[["system", "contrastive pairs", "number", "accuracy"], *rows],
            values=values,
        )


def accuracies(
    system: str, pairs: Sequence[ContrastivePair], right: Sequence[float], wrong: Sequence[float]
) -> list[dict[str, Any]]:
    """Return how often the right translation has the higher score; a tie is no success.

    Args:
        system: Name of the model.
        pairs: What was scored.
        right: Scores of the right translations.
        wrong: Scores of the wrong ones.

    Returns:
        An object for the whole file, and one for each category.
    """
    num_pairs, num_correct = Counter[str](), Counter[str]()
    for pair, one, other in zip(pairs, right, wrong, strict=True):
        for category in filter(None, (ALL, pair.category)):
            num_pairs[category] += 1
            num_correct[category] += one > other
    return [
        {"system": system, "category": name, "num_pairs": count,
         "num_correct": num_correct[name], "accuracy": num_correct[name] / count}
        for name, count in num_pairs.items()
    ]  # fmt: skip


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
