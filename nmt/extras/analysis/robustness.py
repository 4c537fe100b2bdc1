"""Robustness tests: noise in the source; contrastive pairs of a right and a wrong translation.

Two kinds of noise change the lines. ``joined`` translates every two lines as one, and compares the
result with the two clean translations joined. ``split`` cuts every line of two or more words in the
middle, and joins the translations of the halves.

A contrastive pair tests whether the model gives the right translation a higher score than a wrong
one. Source: Sennrich (2017), How Grammatical is Character-level Neural Machine Translation?
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from nmt.commands.evaluate import EvaluatedModel, EvaluatedSet
from nmt.commands.evaluation_set import read_text
from nmt.errors import DataError
from nmt.inference.segment import joiner_for
from nmt.metrics.metric import as_quality, format_score, label_of
from nmt.metrics.result import ReportSection, System
from nmt.metrics.scoring import confidence_interval, measure
from nmt.registry import load_attribute
from nmt.text.noise import NOISES

if TYPE_CHECKING:
    from nmt.inference.scorer import Scorer


JOINED, SPLIT = "joined", "split"
ALL = "all"  # Category of all pairs of a file.
Pair = Sequence[str]  # Source, right translation, wrong translation, and optionally a category.
_Lines = Sequence[str]


def robustness_section(scored: EvaluatedSet) -> ReportSection:
    """Translate the noisy test set with every model; measure the loss under every metric."""
    test, values = scored.test, list[dict[str, Any]]()
    rows: dict[tuple[str, str], list[str]] = {}
    for model, system in zip(scored.models, scored.systems, strict=False):
        codes, own = model.config.languages, (test.source_language, test.target_language)
        read, written = (joiner_for(x or y) for x, y in zip(own, codes, strict=True))
        for noisy in noisy_sources(test.source or (), read, scored.resampling.seed):
            name = f"{test.name} ({noisy.noise})"
            translated = model.translate(name, noisy.lines, test).lines
            values += noise_losses(system, noisy, translated, written, scored)
    for x in values:  # a row for each system and noise, and a column for each metric
        shown = partial(format_score, x["metric"])
        cell = f"{shown(x['clean'])} -> {shown(x['noisy'])}, loss {shown(x['loss'])}"
        cell += f" ± {shown(x['confidence']['half_width'])}" if "confidence" in x else ""
        rows.setdefault((x["system"], x["noise"]), [x["system"], x["noise"]]).append(cell)
    head = ["system", "noise", *dict.fromkeys(label_of(x["metric"]) for x in values)]
    meaning = "robustness: score lost to each kind of noise in the source."
    return ReportSection("robustness", "Robustness", [head, *rows.values()], values, meaning)


@dataclass(frozen=True, slots=True)
class NoisySource:
    """The source of a test set with one kind of noise."""

    noise: str
    lines: _Lines  # Noisy lines to translate.
    groups: Sequence[int] = ()  # For ``split``: number of noisy lines for each source line.

    def outputs(self, translated: _Lines, joiner: str) -> _Lines:
        """For ``split``, join the translations of the halves; otherwise return all unchanged."""
        if not self.groups:
            return translated
        rest = iter(translated)
        return [joiner.join(next(rest) for _ in range(count)) for count in self.groups]

    def scored(self, lines: _Lines, joiner: str) -> _Lines:
        """Return clean translations or references; for ``joined``, every two lines as one."""
        return _joined(lines, joiner) if self.noise == JOINED else lines


def noisy_sources(source: _Lines, joiner: str, seed: int) -> Iterator[NoisySource]:
    """Yield the whole source once for each kind of noise.

    Args:
        source: Source lines, one sentence each.
        joiner: Text between two sentences of the source language, such as a space.
        seed: Random seed. The noise of a line does not depend on other lines.
    """
    for name, noise in NOISES.items():
        lines = [
            noise(line, Random(f"{seed} {name} {number}")) for number, line in enumerate(source)
        ]
        yield NoisySource(name, lines)
    yield NoisySource(JOINED, _joined(source, joiner))
    halves = [_halves(line) for line in source]
    yield NoisySource(SPLIT, [half for own in halves for half in own], list(map(len, halves)))


def noise_losses(
    system: System, noisy: NoisySource, translated: _Lines, joiner: str, scored: EvaluatedSet
) -> Iterator[dict[str, Any]]:
    """Yield for each metric how much a system loses by the noise.

    Clean and noisy scores are for the same sentences (pairs of sentences for ``joined``). A loss is
    positive if the system gets worse, for every metric. The 95% interval is by paired bootstrap
    resampling.

    Args:
        system: Translations of the clean source.
        noisy: The source with noise.
        translated: Translations of the noisy lines.
        joiner: Text between two sentences of the target language, such as a space.
        scored: The clean test set with its references and metrics.
    """
    references = [noisy.scored(stream, joiner) for stream in scored.test.references]
    source = noisy.scored(scored.test.source or (), joiner)
    scorers, resampling = scored.make_scorers(references, source), scored.resampling
    both = (noisy.scored(system.lines, joiner), noisy.outputs(translated, joiner))
    tables = [[scorer.statistics(lines) for scorer in scorers] for lines in both]
    for clean, found in zip(*measure(tables, scorers, resampling), strict=True):
        metric, old, new = clean.score.metric, clean.score.value, found.score.value
        values = {"system": system.name, "noise": noisy.noise, "metric": metric}
        # No loss is 0, not -0.0.
        values |= {"clean": old, "noisy": new, "loss": as_quality(metric, old - new) or 0.0}
        if clean.samples is not None and found.samples is not None:
            differences = as_quality(metric, 1.0) * (clean.samples - found.samples)
            values["confidence"] = asdict(confidence_interval(differences, seed=resampling.seed))
        yield values


def _joined(lines: _Lines, joiner: str) -> _Lines:
    return [joiner.join(lines[start : start + 2]) for start in range(0, len(lines), 2)]


def _halves(line: str) -> _Lines:
    words = line.split(" ")
    middle = (len(words) + 1) // 2
    return [" ".join(words[:middle]), " ".join(words[middle:])] if len(words) > 1 else [line]


class Contrastive:
    """Scores the contrastive pairs of a file, with the length normalisation of the search.

    Args:
        path: File in the format of `read_pairs`.
    """

    def __init__(self, path: Path) -> None:
        self._pairs = read_pairs(path)

    def __call__(self, models: Sequence[EvaluatedModel]) -> ReportSection:
        """Score the pairs with each model, and return the accuracies."""
        values = []
        for model in models:
            scorer = load_scorer(model)
            right = scorer.score([(source, right) for source, right, *_ in self._pairs])
            wrong = scorer.score([(source, wrong) for source, _, wrong, *_ in self._pairs])
            scores = ([each.score for each in side] for side in (right, wrong))
            values += accuracies(model.name, self._pairs, *scores)
        rows = [["system", "contrastive pairs", "number", "accuracy"]]
        for x in values:
            row = [x["system"], x["category"], f"{x['num_pairs']:,}", f"{x['accuracy']:.1%}"]
            rows.append(row)
        return ReportSection("contrastive", "Contrastive pairs", rows, values)


def accuracies(
    system: str, pairs: Sequence[Pair], right: Sequence[float], wrong: Sequence[float]
) -> list[dict[str, Any]]:
    """Return how often the right translation has the higher score. A tie counts as wrong.

    Args:
        system: Name of the model.
        pairs: The contrastive pairs.
        right: Scores of the right translations.
        wrong: Scores of the wrong translations.

    Returns:
        One object for all pairs, and one for each category.
    """
    num_pairs, num_correct = Counter[str](), Counter[str]()
    for (_, _, _, *categories), one, other in zip(pairs, right, wrong, strict=True):
        for category in filter(None, (ALL, *categories)):
            num_pairs[category] += 1
            num_correct[category] += one > other
    return [
        {"system": system, "category": name, "num_pairs": count,
         "num_correct": num_correct[name], "accuracy": num_correct[name] / count}
        for name, count in num_pairs.items()
    ]  # fmt: skip


def read_pairs(path: Path) -> list[Pair]:
    """Read lines of ``source<TAB>right<TAB>wrong`` with an optional ``<TAB>category``.

    Raises:
        DataError: The file is missing or empty, or a line has a wrong number of columns.
    """
    pairs = list[Pair]()
    for number, line in enumerate(read_text(path), start=1):
        cells = line.split("\t")
        if len(cells) not in (3, 4) or not all(cells[:3]):
            problem = f"expected 3 or 4 non-empty columns, found {len(cells)}"
            columns = "source, right translation, wrong translation and optionally a category"
            fix = f"Write {columns}, separated by tabs."
            raise DataError(f"{path}, line {number:,}: {problem}.", fix=fix)
        pairs.append(cells)
    if not pairs:
        raise DataError(f"{path} is empty.", fix="Pass a file with contrastive pairs.")
    return pairs


def load_scorer(model: EvaluatedModel) -> Scorer:
    """Load the weights of a model to score or align translations."""
    names = ("device", "checkpoint", "threads", "ensemble")
    scorer = load_attribute("nmt.inference.scorer:Scorer")  # imports torch only if it is needed
    return scorer.load(model.folder, **{name: model.loading[name] for name in names})
