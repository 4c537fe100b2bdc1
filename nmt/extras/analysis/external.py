"""A metric computed by an external program, which reads JSON lines and writes one score for each.

Metrics with their own environment, such as COMET (Rei et al. 2020), thus get intervals,
significance tests and gates. The corpus score is the mean of sentence scores; higher is better.
"""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Iterator, Sequence

import numpy as np

from nmt.commands.evaluation_set import EvaluationSet
from nmt.errors import DataError
from nmt.metrics.metric import Floats, Metric, Scorer

NAME = "external"  # Name of the metric in results.
_SHOWN_CHARACTERS = 500


class ExternalMetric(Metric):
    """A metric computed by a shell command.

    The command reads one JSON object for each sentence: ``{"source": ..., "hypothesis": ...,
    "references": [...]}``; the source is null if unknown. It writes one line for each sentence: a
    number, or an object with a number ``score``.

    Args:
        command: The shell command.
        test: Test set with source and references.
    """

    label = NAME

    def __init__(self, command: str, test: EvaluationSet) -> None:
        self._command, self._test = command, test
        self.signature = f"mean of: {command}"

    def statistics(self, hypotheses: Sequence[str]) -> Floats:
        """Return the score and a count of 1 for each sentence. (n, 2).

        Raises:
            DataError: The command fails, or does not write one number for each sentence.
        """
        text = "".join(f"{line}\n" for line in self._objects(hypotheses))
        process = subprocess.run(
            self._command, shell=True, input=text.encode(), capture_output=True, check=False
        )
        if process.returncode:
            message = process.stderr.decode("utf-8", "replace").strip()[-_SHOWN_CHARACTERS:]
            raise self._error(f"failed with status {process.returncode}: {message or 'no message'}")
        lines = process.stdout.decode("utf-8", "replace").splitlines()
        if len(lines) != len(hypotheses):
            raise self._error(f"wrote {len(lines):,} lines for {len(hypotheses):,} sentences")
        values = [self._number(line, number) for number, line in enumerate(lines, start=1)]
        return np.column_stack([values, np.ones(len(values))])

    def score(self, sums: Floats) -> Floats:
        """Return the means. (R, 2) -> (R,)."""
        return sums[:, 0] / sums[:, 1]

    def _objects(self, hypotheses: Sequence[str]) -> Iterator[str]:
        sources = self._test.source or [None] * len(hypotheses)
        references = zip(*self._test.references, strict=True)
        for source, line, own in zip(sources, hypotheses, references, strict=True):
            yield json.dumps({"source": source, "hypothesis": line, "references": own})

    def _number(self, line: str, number: int) -> float:
        try:
            found = json.loads(line)
            value = float(found["score"] if isinstance(found, dict) else found)
        except (ValueError, TypeError, KeyError):
            value = math.nan
        if not math.isfinite(value):
            raise self._error(f"did not write a finite number in line {number:,}: {line[:80]!r}")
        return value

    def _error(self, problem: str) -> DataError:
        fix = "The command must write one number for each line of JSON that it reads."
        return DataError(f"The external metric `{self._command}` {problem}.", fix=fix)


class ExternalScorer(Scorer):
    """A `Scorer` with an external metric. For the arguments see `ExternalMetric`."""

    def __init__(self, command: str, test: EvaluationSet) -> None:
        self.name, self._reference = NAME, test.references[0]
        self.metric = ExternalMetric(command, test)
