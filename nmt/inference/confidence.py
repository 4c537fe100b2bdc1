"""How good each translation is expected to be, from what every search says of it anyway.

Ridge regression predicts the sentence chrF of a translation from its probability and its length. It
is fitted when training ends, on the model's own translations of the validation set. Nothing is
computed for it while translating, and all engines have what it reads. Probabilities of single
tokens, agreement of the n best, rare subwords and alarms were tried, and left out: they add little
in domain, and some harm out of it (scripts/README.md).

Source: quality estimation by the model's own probabilities as in Fomicheva et al. (2020),
"Unsupervised Quality Estimation for Neural Machine Translation", section 3.1; fitted to a score.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
from pydantic import ConfigDict, Field

from nmt.checkpoint.model_folder import CONFIDENCE, read_extra, write_extra
from nmt.files.progress import progress_bar
from nmt.inference.request import Result
from nmt.metrics.metric import MetricOptions, Scorer

_RIDGE = 10.0  # beside as many lines as there are, of features with variance 1
_SMOOTH_CHARACTERS = 10
_MOST_TRANSLATED = 1000
_FEWEST_LINES = 100  # fewer say nothing about rare lines

# Lines, and a function that is called with how many are done -> their translations.
Translate = Callable[[Sequence[str], Callable[[int], object]], Sequence[Result]]
_Number = Annotated[float, Field(strict=True, ge=-1e6, le=1e6)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One summand of a prediction: ``weight`` times a feature, which is cut to what was seen."""

    weight: _Number
    low: _Number  # Least value among the lines that it was fitted on.
    high: _Number  # Greatest one.


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidenceModel:
    """Predicts sentence chrF, 0 to 100."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    intercept: _Number
    log_prob: Term  # Mean log probability of a token, its end counted.
    probability: Term  # Geometric mean of the probabilities of the tokens.
    length: Term  # Logarithm of the number of tokens.
    ratio: Term  # Logarithm of the smoothed ratio of output to source characters.
    num_lines: int  # Lines that it was fitted on.

    def estimate(self, result: Result) -> float | None:
        """Return the expected chrF of a translation; None for a blank line."""
        if not result.num_tokens:
            return None
        terms = (self.log_prob, self.probability, self.length, self.ratio)
        pairs = zip(terms, features(result), strict=True)
        total = self.intercept + sum(t.weight * min(max(x, t.low), t.high) for t, x in pairs)
        return round(min(max(total, 0.0), 100.0), 2)

    def text(self) -> str:
        """Return the content of the file."""
        return json.dumps(asdict(self), indent=2) + "\n"


def features(result: Result) -> tuple[float, float, float, float]:
    """Return what a prediction reads of a translation that is not blank, in the order of terms.

    >>> [round(x, 2) for x in features(Result("ab", "abc", -1, log_prob=-2, num_tokens=4))]
    [-0.5, 0.61, 1.39, 0.08]
    """
    mean = result.log_prob / result.num_tokens
    sizes = len(result.text) + _SMOOTH_CHARACTERS, len(result.source) + _SMOOTH_CHARACTERS
    return mean, math.exp(mean), math.log(result.num_tokens), math.log(sizes[0] / sizes[1])


def fit_confidence(results: Sequence[Result], scores: Sequence[float]) -> ConfidenceModel:
    """Fit a model to translations.

    Args:
        results: None of a blank line.
        scores: The chrF of each, 0 to 100.
    """
    table, wanted = np.array([features(result) for result in results]), np.array(scores)
    means, widths = table.mean(0), table.std(0) + 1e-9
    scaled = (table - means) / widths
    squares = scaled.T @ scaled + _RIDGE * np.eye(table.shape[1])
    weights = np.linalg.solve(squares, scaled.T @ (wanted - wanted.mean())) / widths
    names = ("log_prob", "probability", "length", "ratio")
    rows = np.stack([weights, table.min(0), table.max(0)], axis=1).tolist()
    terms = {
        name: Term(weight=round(weight, 6), low=round(low, 6), high=round(high, 6))
        for name, (weight, low, high) in zip(names, rows, strict=True)
    }
    intercept = round(float(wanted.mean() - means @ weights), 6)
    return ConfidenceModel(intercept=intercept, num_lines=len(results), **terms)


def read_confidence(folder: Path) -> ConfidenceModel | None:
    """Read the model of a run or model folder; None if it has none.

    Raises:
        CheckpointError: The file is damaged.
    """
    fix = "Restore it, or remove it: translations have no confidence then."
    return read_extra(folder / CONFIDENCE, ConfidenceModel, fix=fix)


def calibrate_confidence(
    run_dir: Path, sources: Sequence[str], targets: Sequence[str], translate: Translate
) -> None:
    """Fit a model to translations of a validation set, and write ``confidence.json``.

    Translates 1,000 lines at most. Does nothing if fewer than 100 lines have text.

    Args:
        run_dir: Of the run.
        sources: Source lines of the validation set.
        targets: Their references.
        translate: Translates with the trained model; is given what to tell of lines done.

    Raises:
        CheckpointError: The folder cannot be written.
    """
    pairs = [pair for pair in zip(sources, targets, strict=True) if pair[0].strip()]
    if len(pairs) < _FEWEST_LINES:
        return
    rows = np.linspace(0, len(pairs) - 1, min(len(pairs), _MOST_TRANSLATED), dtype=np.int64)
    lines, references = zip(*(pairs[row] for row in rows.tolist()), strict=True)
    with progress_bar("fitting confidence", unit="lines", total=len(lines), leave=False) as bar:
        results = translate(lines, bar.update)
    scorer = Scorer("chrf", [references], MetricOptions())
    scores = scorer.sentence_scores(scorer.statistics([result.text for result in results]))
    kept = [pair for pair in zip(results, scores, strict=True) if pair[0].num_tokens]
    fitted = fit_confidence(*zip(*kept, strict=True))
    write_extra(run_dir / CONFIDENCE, fitted.text().encode())
