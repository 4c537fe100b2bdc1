"""A metric of another program: JSON lines in, a score for each out.

So metrics that need an environment of their own, such as COMET (Rei et al. 2020), get intervals,
paired tests and gates like the others. The score of a corpus is the mean; higher is better.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from nmt.errors import DataError
from nmt.metrics.metric import References, Scorer
from nmt.metrics.significance import Floats

NAME = "external"
"""Name of the metric in results."""
_SHOWN_CHARACTERS = 500


class ExternalError(DataError):
    """The command of an external metric failed, or wrote something else than scores."""


@dataclass(frozen=True, slots=True)
class ExternalMetric:
    """A metric that a command computes; see `nmt.metrics.metric.Metric`.

    It reads one object for each sentence, ``{"source": ..., "hypothesis": ..., "references":
    [...]}``, and writes as many lines: a number, or an object with a number ``score``.
    """

    command: str
    """What the shell runs."""
    references: References
    source: Sequence[str] | None = None
    """Source lines; null in the objects where there are none."""

    @property
    def signature(self) -> str:
        """The command."""
        return f"mean of: {self.command}"

    def statistics(self, hypotheses: Sequence[str]) -> Floats:
        """Return score and 1 of each sentence. (n, 2).

        Raises:
            ExternalError: The command fails, or writes too few or too many lines, or no numbers.
        """
        import subprocess  # noqa: PLC0415 - external metrics are rare

        text = "".join(f"{line}\n" for line in self._objects(hypotheses))
        process = subprocess.run(
            self.command, shell=True, input=text.encode(), capture_output=True, check=False
        )
        if process.returncode:
            message = process.stderr.decode("utf-8", "replace").strip()[-_SHOWN_CHARACTERS:]
            raise self._error(f"ended with status {process.returncode}: {message or 'no message'}")
        lines = process.stdout.decode("utf-8", "replace").splitlines()
        if len(lines) != len(hypotheses):
            raise self._error(f"wrote {len(lines):,} lines for {len(hypotheses):,} sentences")
        values = [self._number(line, number) for number, line in enumerate(lines, start=1)]
        return np.column_stack([values, np.ones(len(values))])

    def score(self, sums: Floats) -> Floats:
        """Return the means. (R, 2) -> (R,)."""
        return sums[:, 0] / sums[:, 1]

    def _objects(self, hypotheses: Sequence[str]) -> Iterator[str]:
        for number, hypothesis in enumerate(hypotheses):
            source = None if self.source is None else self.source[number]
            references = [stream[number] for stream in self.references]
            found = {"source": source, "hypothesis": hypothesis, "references": references}
            yield json.dumps(found)

    def _number(self, line: str, number: int) -> float:
        try:
            found = json.loads(line)
            value = float(found["score"] if isinstance(found, dict) else found)
        except (ValueError, TypeError, KeyError):
            value = math.nan
        if not math.isfinite(value):
            raise self._error(f"wrote no finite number in line {number:,}: {line[:80]!r}")
        return value

    def _error(self, problem: str) -> ExternalError:
        return ExternalError(
            f"The external metric `{self.command}` {problem}.",
            fix="It must write one number for each line of JSON that it reads.",
        )


class ExternalScorer(Scorer):
    """An external metric with its references read in."""

    def __init__(
        self, command: str, references: References, source: Sequence[str] | None = None
    ) -> None:
        self.name, self._reference = NAME, references[0]
        self.metric = ExternalMetric(command, references, source)
