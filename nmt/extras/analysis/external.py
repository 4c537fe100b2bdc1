"""A metric computed by an external program, which writes one score for each line of JSON.

So metrics that need a separate environment get intervals, significance tests and gates. The corpus
score is the mean of sentence scores; higher is better.
"""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Sequence

import numpy as np

from nmt.errors import ConfigError, DataError
from nmt.metrics.metric import Floats, Metric, MetricOptions, References

_SHOWN_CHARACTERS = 500


class ExternalMetric(Metric):
    """A metric computed by a shell command.

    The command reads one JSON object for each sentence: ``{"source": ..., "hypothesis": ...,
    "references": [...]}``; the source is null if unknown. The command writes one line for each
    sentence: a number, or an object with a number ``score``.

    Args:
        references: Streams of reference lines.
        options: ``argument`` is the shell command; ``source`` may be None.

    Raises:
        ConfigError: There is no command.
    """

    label, argument = "external", "COMMAND"

    def __init__(self, references: References, options: MetricOptions) -> None:
        self._command, self._references, self._source = options.argument, references, options.source
        self.signature = f"mean of: {self._command}"
        if not self._command:
            raise ConfigError("external needs a command.", fix="Add `external` COMMAND.")

    def statistics(self, hypotheses: Sequence[str]) -> Floats:
        """Return the score of each sentence, and a count of 1, for the mean. (n, 2).

        Raises:
            DataError: The command fails, or does not write one number for each sentence.
        """
        sources: Sequence[str | None] = self._source or [None] * len(hypotheses)
        references = zip(*self._references, strict=True)
        text = "".join(
            json.dumps({"source": source, "hypothesis": line, "references": own}) + "\n"
            for source, line, own in zip(sources, hypotheses, references, strict=True)
        )
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
        fix = "For each line of JSON, the command must write one line with a number."
        return DataError(f"The external metric `{self._command}` {problem}.", fix=fix)
