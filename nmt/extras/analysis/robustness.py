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
from itertools import chain, islice
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


JOINED = "joined"
SPLIT = "split"
ALL = "all"  # Category of all pairs of a file.
_Lines = Sequence[str]


def robustness_section(scored: EvaluatedSet) -> ReportSection:
    """Translate the noisy test set with every model; measure the loss under every metric."""
    test = scored.test
    values = list[dict[str, Any]]()  # from `noise_losses`: of each system, noise and metric
    # The first systems are the models; files of translations after them cannot be tested.
    for model, system in zip(scored.models, scored.systems, strict=False):
        source_language, target_language = model.config.languages
        source_joiner = joiner_for(test.source_language or source_language)
        target_joiner = joiner_for(test.target_language or target_language)
        for noisy in noisy_sources(test.source or (), source_joiner, scored.resampling.seed):
            name = f"{test.name} ({noisy.noise})"
            translated = model.translate(name, noisy.lines, test).lines
            values += noise_losses(system, noisy, translated, target_joiner, scored)
    # The table has a row for each system and noise, and a column for each metric.
    head = ["system", "noise"]
    rows = dict[tuple[str, str], list[str]]()  # (system, noise) -> cells
    for entry in values:
        text = partial(format_score, entry["metric"])
        cell = f"{text(entry['clean'])} -> {text(entry['noisy'])}, loss {text(entry['loss'])}"
        if "confidence" in entry:
            cell += f" ± {text(entry['confidence']['half_width'])}"
        row_labels = entry["system"], entry["noise"]
        rows.setdefault(row_labels, [*row_labels]).append(cell)
        label = label_of(entry["metric"])
        if label not in head:
            head.append(label)
    meaning = "robustness: score lost to each kind of noise in the source."
    return ReportSection("robustness", "Robustness", [head, *rows.values()], values, meaning)


@dataclass(frozen=True)
class NoisySource:
    """The source of a test set with one kind of noise."""

    noise: str
    lines: _Lines  # Noisy lines to translate.
    # For ``split``: number of noisy lines (1 or 2) that each source line was cut into.
    num_parts: Sequence[int] = ()

    def outputs(self, translated: _Lines, joiner: str) -> _Lines:
        """Return translations of the noisy lines as they are scored.

        For ``split``, the translations of the halves of a line are joined; otherwise nothing
        changes.
        """
        if not self.num_parts:
            return translated
        remaining = iter(translated)  # each join takes the next translations
        return [joiner.join(islice(remaining, count)) for count in self.num_parts]

    def scored(self, lines: _Lines, joiner: str) -> _Lines:
        """Return clean translations, source lines or references as they are scored.

        For ``joined``, every two lines are one; otherwise nothing changes.
        """
        if self.noise == JOINED:
            return _joined(lines, joiner)
        return lines


def noisy_sources(source: _Lines, joiner: str, seed: int) -> Iterator[NoisySource]:
    """Yield the whole source once for each kind of noise.

    Args:
        source: Source lines, one sentence each.
        joiner: Text between two sentences of the source language, such as a space.
        seed: Random seed. The noise of a line does not depend on other lines.
    """
    for name, noise in NOISES.items():
        lines = []
        for index, line in enumerate(source):
            random = Random(f"{seed} {name} {index}")
            lines.append(noise(line, random))
        yield NoisySource(name, lines)
    yield NoisySource(JOINED, _joined(source, joiner))
    halves = list(map(_halves, source))
    lines = list(chain.from_iterable(halves))
    num_parts = list(map(len, halves))
    yield NoisySource(SPLIT, lines, num_parts)


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

    Yields:
        The names of ``system``, ``noise`` and ``metric``; the scores ``clean`` and ``noisy``; the
        ``loss``; and, with resampling, the interval of the loss as ``confidence``.
    """
    test = scored.test
    references = [noisy.scored(stream, joiner) for stream in test.references]
    source = noisy.scored(test.source or (), joiner)
    scorers = scored.make_scorers(references, source)
    clean_lines = noisy.scored(system.lines, joiner)
    noisy_lines = noisy.outputs(translated, joiner)
    clean_tables = [scorer.statistics(clean_lines) for scorer in scorers]
    noisy_tables = [scorer.statistics(noisy_lines) for scorer in scorers]
    measured = measure([clean_tables, noisy_tables], scorers, scored.resampling)
    for clean, with_noise in zip(*measured, strict=True):
        metric = clean.score.metric
        clean_value = clean.score.value
        noisy_value = with_noise.score.value
        values = {"system": system.name, "noise": noisy.noise, "metric": metric}
        values |= {"clean": clean_value, "noisy": noisy_value}
        loss = as_quality(metric, clean_value - noisy_value)
        values["loss"] = loss or 0.0  # -0.0 becomes 0.0
        if clean.samples is not None and with_noise.samples is not None:
            losses = clean.samples - with_noise.samples
            losses *= as_quality(metric, 1.0)  # -1 if lower scores are better
            interval = confidence_interval(losses, seed=scored.resampling.seed)
            values["confidence"] = asdict(interval)
        yield values


def _joined(lines: _Lines, joiner: str) -> _Lines:
    return [joiner.join(lines[start : start + 2]) for start in range(0, len(lines), 2)]


def _halves(line: str) -> _Lines:
    """Cut a line in the middle; a line of one word stays whole."""
    words = line.split(" ")
    if len(words) == 1:
        return [line]
    # With an odd number of words, the first half has one word more.
    middle = (len(words) + 1) // 2
    halves = words[:middle], words[middle:]
    return list(map(" ".join, halves))


@dataclass(frozen=True)
class ContrastivePair:
    """A line with a right and a wrong translation."""

    source: str
    right: str
    wrong: str
    category: str = ""


class Contrastive:
    """Scores the contrastive pairs of a file, with the length normalisation of the search.

    Args:
        path: File in the format of `read_pairs`.
    """

    def __init__(self, path: Path) -> None:
        self._pairs = read_pairs(path)

    def __call__(self, models: Sequence[EvaluatedModel]) -> ReportSection:
        """Score the pairs with each model, and return the accuracies.

        The right translation must have the higher score; a tie counts as wrong.
        """
        rows = [["system", "contrastive pairs", "number", "accuracy"]]
        values = []
        for model in models:
            scorer = load_scorer(model)
            all_right = scorer.score([(pair.source, pair.right) for pair in self._pairs])
            all_wrong = scorer.score([(pair.source, pair.wrong) for pair in self._pairs])
            # Category -> number of pairs. Every pair also counts in the category of all pairs.
            num_pairs = Counter[str]()
            num_correct = Counter[str]()
            for pair, right, wrong in zip(self._pairs, all_right, all_wrong, strict=True):
                is_correct = right.score > wrong.score
                for category in filter(None, (ALL, pair.category)):
                    num_pairs[category] += 1
                    num_correct[category] += is_correct
            for category, count in num_pairs.items():
                correct = num_correct[category]
                accuracy = correct / count
                rows.append([model.name, category, f"{count:,}", f"{accuracy:.1%}"])
                values.append({
                    "system": model.name,
                    "category": category,
                    "num_pairs": count,
                    "num_correct": correct,
                    "accuracy": accuracy,
                })  # fmt: skip
        return ReportSection("contrastive", "Contrastive pairs", rows, values)


def read_pairs(path: Path) -> list[ContrastivePair]:
    """Read lines of ``source<TAB>right<TAB>wrong`` with an optional ``<TAB>category``.

    Raises:
        DataError: The file is missing or empty, or a line has a wrong number of columns.
    """
    pairs = []
    for number, line in enumerate(read_text(path), start=1):
        cells = line.split("\t")
        has_texts = all(cells[:3])  # only the category may be empty
        if len(cells) not in (3, 4) or not has_texts:
            problem = f"expected 3 or 4 non-empty columns, found {len(cells)}"
            columns = "source, right translation, wrong translation and optionally a category"
            fix = f"Write {columns}, separated by tabs."
            raise DataError(f"{path}, line {number:,}: {problem}.", fix=fix)
        pairs.append(ContrastivePair(*cells))
    if not pairs:
        raise DataError(f"{path} is empty.", fix="Pass a file with contrastive pairs.")
    return pairs


def load_scorer(model: EvaluatedModel) -> Scorer:
    """Load the weights of a model to score or align translations."""
    # The options of ``nmt evaluate`` that scoring needs, too.
    names = ("device", "checkpoint", "threads", "ensemble")
    scorer = load_attribute("nmt.inference.scorer:Scorer")  # imports torch only if it is needed
    options = {name: model.loading[name] for name in names}
    return scorer.load(model.folder, **options)
