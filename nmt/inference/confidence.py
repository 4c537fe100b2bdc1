"""Estimates the quality of each translation from its probability and its length.

Ridge regression predicts the sentence chrF of a translation. It is fitted at the end of training,
on the model's translations of the validation set. Every search of every engine returns the
features, so the estimate adds almost no work.

Four more features were tried and left out: probabilities of single tokens, agreement of the n-best
list, rare subwords, and the alarms of the guard. These features add little on text like the
training data, and some reduce the quality of the estimate on different text.

Source: quality estimation from model probabilities as in Fomicheva et al. (2020), "Unsupervised
Quality Estimation for Neural Machine Translation", section 3.1, here fitted to a score.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import ConfigDict, Field

from nmt.checkpoint.model_folder import CONFIDENCE, read_extra, write_extra
from nmt.files.progress import progress_bar
from nmt.inference.request import Request, Result
from nmt.metrics.metric import MetricOptions, MetricScorer, References

_RIDGE = 10.0  # for features with variance 1, summed over all lines
_SMOOTH_CHARACTERS = 10  # added to both lengths of a ratio, because short lines vary more
_MAX_TRANSLATED = 1000
_DIGITS = 6  # after the decimal point of the numbers in ``confidence.json``
_MIN_LINES = 100  # fewer lines do not cover rare kinds of sentences
# In the order that `features` returns; see the terms of `ConfidenceModel`.
_FEATURES = ("log_prob", "probability", "length", "ratio")

# Takes lines and a callback that receives the number of finished lines; returns translations.
Translate = Callable[[Sequence[Request], Callable[[int], object]], Sequence[Result]]
_Number = Annotated[float, Field(strict=True, ge=-1e6, le=1e6)]


@dataclass(frozen=True, kw_only=True)
class Term:
    """One term of the prediction: ``weight`` times a feature, valid from ``low`` to ``high``."""

    weight: _Number
    low: _Number  # Smallest value in the fitted lines.
    high: _Number  # Largest value in the fitted lines.


@dataclass(frozen=True, kw_only=True)
class ConfidenceModel:
    """A linear model that predicts the sentence chrF of a translation, 0 to 100."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    intercept: _Number
    log_prob: Term  # Mean log probability per token, EOS included.
    probability: Term  # Geometric mean of the token probabilities.
    length: Term  # Logarithm of the number of tokens.
    ratio: Term  # Logarithm of the smoothed ratio of output to source characters.
    num_lines: int  # Number of lines used to fit the model.
    # Whether sentences in capitals are translated better in lower case. None: not measured.
    lower_capitals: bool | None = None

    def rate(self, result: Result) -> Result:
        """Return a result with its confidence, the expected chrF.

        A translation that is easier (shorter or more probable) than all fitted lines is rated like
        the easiest of them. If another feature is outside their range, nothing validates the
        estimate: ``unrated`` is the name of this feature. A blank line has neither.
        """
        if not result.num_tokens:
            return result
        total = self.intercept
        for name, value in zip(_FEATURES, features(result), strict=True):
            term: Term = getattr(self, name)
            value = round(value, _DIGITS)  # as the limits were
            if name in ("log_prob", "probability"):
                value = min(value, term.high)
            elif name == "length":
                value = max(value, term.low)
            if not term.low <= value <= term.high:
                return replace(result, unrated=name)
            total += term.weight * value
        bounded = min(max(total, 0.0), 100.0)
        confidence = round(bounded, 2)
        return replace(result, confidence=confidence)

    def text(self) -> str:
        """Return the model as JSON, as stored in ``confidence.json``."""
        return json.dumps(asdict(self), indent=2) + "\n"


def features(result: Result) -> tuple[float, float, float, float]:
    """Return the features of a non-blank translation: log_prob, probability, length, ratio.

    >>> [round(x, 2) for x in features(Result("ab", "abc", -1, log_prob=-2, num_tokens=4))]
    [-0.5, 0.61, 1.39, 0.08]
    """
    mean_log_prob = result.log_prob / result.num_tokens
    log_length = math.log(result.num_tokens)
    output_size = len(result.text) + _SMOOTH_CHARACTERS
    source_size = len(result.source) + _SMOOTH_CHARACTERS
    log_ratio = math.log(output_size / source_size)
    return mean_log_prob, math.exp(mean_log_prob), log_length, log_ratio


def fit_confidence(results: Sequence[Result], scores: Sequence[float]) -> ConfidenceModel:
    """Fit a model to translations.

    Args:
        results: Translations of non-blank lines.
        scores: Sentence chrF of each translation, 0 to 100.
    """
    # n lines, F features.
    values = np.array([features(result) for result in results])  # (n, F)
    targets = np.array(scores)
    mean_target = targets.mean()
    means = values.mean(0)
    deviations = values.std(0) + 1e-9  # above 0, because they divide
    # The normal equations of ridge regression, for features with mean 0 and variance 1:
    # (X' X + ridge * I) w = X' y.
    scaled = (values - means) / deviations
    squares = scaled.T @ scaled + _RIDGE * np.eye(len(means))  # (F, F)
    products = scaled.T @ (targets - mean_target)  # (F,)
    # The weights and the intercept for features that are not scaled.
    weights = np.linalg.solve(squares, products) / deviations
    columns = (weights, values.min(0), values.max(0))
    terms = dict[str, Any]()
    for name, row in zip(_FEATURES, np.stack(columns, axis=1), strict=True):
        weight, low, high = row.round(_DIGITS).tolist()
        terms[name] = Term(weight=weight, low=low, high=high)
    intercept = round(float(mean_target - means @ weights), _DIGITS)
    return ConfidenceModel(intercept=intercept, num_lines=len(results), **terms)


def read_confidence(folder: Path) -> ConfidenceModel | None:
    """Read ``confidence.json`` of a run or model folder; None if the file does not exist.

    Raises:
        CheckpointError: The file is damaged.
    """
    fix = "Restore the file, or delete it to translate without confidence."
    return read_extra(folder / CONFIDENCE, ConfidenceModel, fix=fix)


def num_calibrated(num_lines: int, share: float = 1.0) -> int:
    """Return how many of the lines of the validation sets are translated to fit a model.

    Args:
        num_lines: Number of these lines.
        share: Which part of the usual number.

    >>> num_calibrated(3000), num_calibrated(800, share=0.25), num_calibrated(800, share=0.1)
    (1000, 200, 0)
    """
    count = int(share * min(num_lines, _MAX_TRANSLATED))
    return count if count >= _MIN_LINES else 0


def calibrate_confidence(
    run_dir: Path,
    sources: Sequence[Request],
    references: References,
    translate: Translate,
    *,
    share: float = 1.0,
) -> None:
    """Fit a model to translations of the validation set, and write ``confidence.json``.

    Translates `num_calibrated` lines. Does nothing if these are none.

    Args:
        run_dir: Run folder to write to.
        sources: Source lines of the validation sets that choose the best checkpoint.
        references: References of the same sets; the lines that a set does not have are empty.
        translate: Translates lines with the trained model.
        share: See `num_calibrated`.

    Raises:
        CheckpointError: The folder is not writable.
    """
    all_pairs = zip(sources, *references, strict=True)
    pairs = [pair for pair in all_pairs if pair[0].text.strip()]
    num_lines = num_calibrated(len(pairs), share)
    if not num_lines:
        return
    # Lines at equal distances, from the first to the last one.
    rows = np.linspace(0, len(pairs) - 1, num_lines, dtype=np.int64)
    lines, *chosen_references = zip(*[pairs[row] for row in rows], strict=True)
    text = "fitting confidence"
    with progress_bar(text, unit="lines", total=num_lines, leave=False) as bar:
        results = translate(lines, bar.update)
    scorer = MetricScorer("chrf", chosen_references, MetricOptions())
    statistics = scorer.statistics([result.text for result in results])
    scores = scorer.sentence_scores(statistics)
    # Normalization may drop all characters of a line. Its translation is empty and has no features.
    results_and_scores = zip(results, scores, strict=True)
    usable_pairs = [(result, score) for result, score in results_and_scores if result.num_tokens]
    model = fit_confidence(*zip(*usable_pairs, strict=True))
    first_references = [reference[:_MIN_LINES] for reference in chosen_references]
    lower = _translates_lower(lines[:_MIN_LINES], first_references, translate)
    model = replace(model, lower_capitals=lower)
    write_extra(run_dir / CONFIDENCE, model.text().encode())


def _upper_lines(lines: Sequence[str]) -> list[str]:
    return [line.upper() for line in lines]


def _translates_lower(
    lines: Sequence[Request], references: References, translate: Translate
) -> bool:
    """Whether lines in capitals are translated worse than lines in lower case (chrF)."""
    means = []
    capitals = [_upper_lines(reference) for reference in references]
    scorer = MetricScorer("chrf", capitals, MetricOptions())
    for change in (str.upper, str.capitalize):
        changed_lines = [replace(line, text=change(line.text)) for line in lines]
        results = translate(changed_lines, lambda _: None)
        translations = [result.text for result in results]
        statistics = scorer.statistics(_upper_lines(translations))
        scores = scorer.sentence_scores(statistics)
        mean = fmean(scores)
        means.append(mean)
    of_capitals, of_lower_case = means
    return of_lower_case > of_capitals
