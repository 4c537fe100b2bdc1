"""Systems and a test set -> scores with confidence intervals, significance and gates. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from typing import Any, TypeAlias

from nmt.errors import ConfigError, DataError, GateError
from nmt.metrics.metric import METRICS, Score, Scorer
from nmt.metrics.sacrebleu import default_tokenizer
from nmt.metrics.significance import (
    DEFAULT_RESAMPLES,
    DEFAULT_SEED,
    Comparison,
    Floats,
    confidence_interval,
    paired_p_value,
    resample_scores,
)

_Measured: TypeAlias = tuple[Score, Floats | None]
"""A score, and those of the resampled test sets if there are any."""
_TOKENIZED_ENDINGS = 100
"""So many lines ending in a space and a full stop look as if they were tokenized."""


@dataclass(frozen=True, slots=True)
class System:
    """Translations, what they are called, and their scores."""

    name: str
    """The model folder or the name of the file of translations."""
    lines: Sequence[str]
    engine: str | None = None
    """What translated: ``torch`` or ``ctranslate2``; None for a file of translations."""
    dtype: str | None = None
    """What the model's weights were multiplied in."""
    scores: tuple[Score, ...] = ()
    """One for each metric, in the order asked for; none before it is scored."""

    def as_dict(self) -> dict[str, Any]:
        """Return name and scores as plain values for JSON."""
        found = {"name": self.name, "scores": [score.as_dict() for score in self.scores]}
        return found | ({"engine": self.engine, "dtype": self.dtype} if self.engine else {})


@dataclass(frozen=True, slots=True)
class Resampling:
    """Bootstrap resampling behind confidence intervals and p-values."""

    count: int = DEFAULT_RESAMPLES
    """Resampled test sets; 0 leaves intervals and p-values out."""
    seed: int = DEFAULT_SEED


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """One system at one gate."""

    system: str
    """Name of the system."""
    metric: str
    """Name of the metric."""
    required: float
    """What was asked for."""
    value: float
    """What was found; full precision."""
    met: bool
    """The value is not below what was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairComparison:
    """Two systems under one metric."""

    first: str
    second: str
    metric: str
    delta: float
    """Score of the second minus that of the first."""
    p_value: float
    """Of paired bootstrap resampling; not corrected for the number of pairs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The scores of some systems on one test set."""

    test: str
    """Name of the test set."""
    num_sentences: int
    """Sentences scored."""
    num_references: int
    """References of each sentence."""
    systems: tuple[System, ...]
    """What was scored."""
    baseline: System | None = None
    """What it was compared with."""
    pairs: tuple[PairComparison, ...] = ()
    """Every two of several systems; none with a baseline, or without resampling."""
    gates: tuple[GateResult, ...] = ()
    """Every system at every gate."""
    unsaved: DataError | None = None
    """Why the model's translations could not be saved; to be raised once the scores are printed."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; what was not asked for is left out."""
        found = {
            "systems": [system.as_dict() for system in self.systems],
            "test": self.test,
            "num_sentences": self.num_sentences,
            "num_references": self.num_references,
            "baseline": self.baseline and self.baseline.as_dict(),
            "pairs": list(map(asdict, self.pairs)),
            "gates": list(map(asdict, self.gates)),
        }
        return {name: value for name, value in found.items() if value}

    def as_text(self) -> str:
        """Return a table with two decimals, the 95% intervals, and the signatures below."""
        plural = "" if self.num_references == 1 else "s"
        sentences = "1 sentence" if self.num_sentences == 1 else f"{self.num_sentences:,} sentences"
        named = [(system.name, system) for system in self.systems]
        if self.baseline:
            named.insert(0, (f"{self.baseline.name} (baseline)", self.baseline))
        scores = self.systems[0].scores
        rows = [[name, *map(_cell, system.scores)] for name, system in named]
        engines = [
            f"{system.name}: engine {system.engine}, dtype {system.dtype}"
            for system in self.systems
            if system.engine is not None
        ]
        return "\n\n".join([
            f"{self.test}: {sentences}, {self.num_references} reference{plural}",
            _columns([["system", *(score.metric for score in scores)], *rows]),
            *self._pairs(),
            *engines,
            _columns([[score.metric, score.signature] for score in scores]),
        ])  # fmt: skip

    def _pairs(self) -> Iterator[str]:
        """Yield a table of every two systems, if they are compared."""
        if not self.pairs:
            return
        rows: dict[str, list[str]] = {}
        for pair in self.pairs:
            name = f"{pair.second} - {pair.first}"
            cell = f"{pair.delta:+.2f} (p = {pair.p_value:.3f})"
            rows.setdefault(name, [name]).append(cell)
        metrics = dict.fromkeys(pair.metric for pair in self.pairs)
        yield _columns([["difference", *metrics], *rows.values()])


def _cell(score: Score) -> str:
    text = f"{score.value:.2f}"
    if score.confidence is not None:
        text += f" ± {score.confidence.half_width:.2f}"
    if (found := score.comparison) is not None:
        p_value = "" if found.p_value is None else f", p = {found.p_value:.3f}"
        text += f" ({found.delta:+.2f}{p_value})"
    return text


def _columns(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def score_systems(
    systems: Sequence[System],
    scorers: Sequence[Scorer],
    *,
    baseline: System | None,
    resampling: Resampling,
) -> tuple[tuple[System, ...], System | None, tuple[PairComparison, ...]]:
    """Score systems, and compare each with the baseline, or else every two of several.

    Returns:
        The systems and the baseline, with one score for each scorer, in their order; and the pairs.

    Raises:
        DataError: A system has more or fewer lines than the references.
    """
    bases = [measure(scorer, baseline.lines, resampling) for scorer in scorers] if baseline else []
    scored, measured = [], []
    for system in systems:
        found = [measure(scorer, system.lines, resampling) for scorer in scorers]
        measured.append(found)
        scores = [score for score, _ in found]
        if baseline:
            pairs = zip(found, bases, strict=True)
            scores = [_compared(*pair, baseline.name, resampling) for pair in pairs]
        scored.append(replace(system, scores=tuple(scores)))
    if baseline:
        baseline = replace(baseline, scores=tuple(score for score, _ in bases))
    names = [system.name for system in systems]
    compared = () if baseline else tuple(_every_two(names, measured))
    return tuple(scored), baseline, compared


def _every_two(
    names: Sequence[str], measured: Sequence[Sequence[_Measured]]
) -> Iterator[PairComparison]:
    """Yield the differences of every two systems under each metric."""
    for first, second in combinations(range(len(names)), 2):
        for (one, samples), (other, others) in zip(measured[first], measured[second], strict=True):
            if samples is not None and others is not None:
                delta = other.value - one.value
                yield PairComparison(
                    first=names[first],
                    second=names[second],
                    metric=one.metric,
                    delta=delta,
                    p_value=paired_p_value(others, samples, delta=delta),
                )


def _compared(found: _Measured, base: _Measured, name: str, resampling: Resampling) -> Score:
    (score, samples), (base_score, base_samples) = found, base
    delta, p_value = score.value - base_score.value, None
    if samples is not None and base_samples is not None:
        p_value = paired_p_value(samples, base_samples, delta=delta)
    options = {"resamples": resampling.count, "seed": resampling.seed}
    comparison = Comparison(baseline=name, delta=delta, p_value=p_value, **options)
    return replace(score, comparison=comparison)


def measure(scorer: Scorer, lines: Sequence[str], resampling: Resampling) -> _Measured:
    """Score one system, with a confidence interval if resampling is asked for.

    Raises:
        DataError: There are more or fewer lines than the references have.
    """
    table = scorer.statistics(lines)
    score = scorer.total(table)
    if not resampling.count:
        return score, None
    options = {"resamples": resampling.count, "seed": resampling.seed}
    samples = resample_scores(table, scorer.metric.score, **options)
    confidence = confidence_interval(samples, seed=resampling.seed)
    return replace(score, confidence=confidence), samples


def odd_texts(
    systems: Sequence[System], reference: Sequence[str], tokenize: str | None, language: str | None
) -> Iterator[str]:
    """Yield warnings: systems that look tokenized, and a script that BLEU's tokenizer does not fit.

    Args:
        systems: Translations.
        reference: Lines of text.
        tokenize: The tokenizer asked for; None for that of the language.
        language: Code of the target language, if known.
    """
    for system in systems:
        endings = sum(line.endswith(" .") for line in system.lines)
        if endings >= min(_TOKENIZED_ENDINGS, len(system.lines)):
            yield (
                f"{system.name}: {endings:,} lines end in a space and a full stop; scores of "
                "tokenized text cannot be compared with others."
            )
    sample = "".join(reference[:100])
    is_east_asian = sum("\u3040" <= c <= "\u9fff" for c in sample) > len(sample) / 3
    if is_east_asian and (tokenize or default_tokenizer(language)) == "13a":
        is_japanese = sum("\u3041" <= c <= "\u30fa" for c in sample) > len(sample) / 10  # kana
        name, code, fitting = (
            ("Japanese", "ja", "ja-mecab or char") if is_japanese else ("Chinese", "zh", "zh")
        )
        yield (
            f"The references look {name}, but BLEU's tokenizer is 13a; name the languages "
            f"(-l en-{code}) or the tokenizer (--tokenize {fitting})."
        )


def parse_gates(texts: Iterable[str]) -> dict[str, float]:
    """Read ``bleu=27,chrf=55``.

    Args:
        texts: Each holds one or more ``metric=score`` parts with commas between.

    Returns:
        The lowest score allowed, by metric, in the order given.

    Raises:
        ConfigError: A part is malformed, or names an unknown metric, an error rate, a metric twice,
            or a score that is not between 0 and 100. Lists every such part.

    >>> parse_gates(["bleu=27,chrf=55.5"])
    {'bleu': 27.0, 'chrf': 55.5}
    """
    gates: dict[str, float] = {}
    problems = []
    for part in (part.strip() for text in texts for part in text.split(",")):
        name, equals, number = (piece.strip() for piece in part.partition("="))
        value = math.nan
        with suppress(ValueError):
            value = float(number)
        if not equals:
            problems.append(f"{part!r} has no equals sign")
        elif name not in METRICS:
            problems.append(f"there is no metric {name!r} (there are {', '.join(METRICS)})")
        elif METRICS[name].lower_is_better:
            problems.append(
                f"{name} counts errors: less is better, and a lowest score says nothing"
            )
        elif name in gates:
            problems.append(f"{name} is given twice")
        elif not 0 <= value <= 100:
            problems.append(f"{number!r} in {part!r} is not a number between 0 and 100")
        gates[name] = value
    if problems:
        raise ConfigError(
            "--fail-under cannot be understood: " + "; ".join(problems) + ".",
            fix="Write metric=score with commas between, for example bleu=27,chrf=55.",
        )
    return gates


def check_gates(
    system: str, scores: Iterable[Score], gates: Mapping[str, float]
) -> list[GateResult]:
    """Compare the scores of one system with the gates.

    Args:
        system: Name of the system.
        scores: Its scores; one for each gate at least.
        gates: What `parse_gates` returned.

    Returns:
        One result for each gate, in the order of the gates.
    """
    values = {score.metric: score.value for score in scores}
    return [
        GateResult(
            system=system,
            metric=metric,
            required=required,
            value=values[metric],
            met=values[metric] >= required,
        )
        for metric, required in gates.items()
    ]


def raise_if_missed(results: Iterable[GateResult]) -> None:
    """Raise one error that names every gate that was not met, and by how much.

    Raises:
        GateError: At least one result is not met.
    """
    missed = []
    for result in results:
        if not result.met:
            # Two decimals, or more where two would hide that the value is too low.
            texts = (f"{result.value:.{places}f}" for places in (2, 4, 6))
            shown = next((text for text in texts if float(text) < result.required), result.value)
            below = f"{result.required - result.value:.2g} below {result.required:g}"
            missed.append(f"{result.system}: {result.metric} is {shown}, {below}")
    if missed:
        raise GateError(
            "A quality gate was not met.\n  " + "\n  ".join(missed),
            fix="Improve the system, or lower --fail-under if the gate is too strict.",
        )
