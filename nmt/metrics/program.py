"""Programs of the user that score translations: in `nmt evaluate`, and in the validation.

``external`` of `nmt evaluate` reads one line of JSON and writes one score for each sentence. So
metrics that need a separate environment get intervals, significance tests and gates.
`training.validation.command` reads files, and its last word is the score of all sentences.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from nmt.errors import ConfigError, DataError
from nmt.metrics.metric import Floats, Metric, MetricOptions, References

# Variables of a launcher. A program that uses torch would take itself for one of our processes.
_OF_LAUNCHER = re.compile(r"(\w+_)?(RANK|WORLD_SIZE)|(MASTER|TORCHELASTIC)_\w+")
_SHOWN_LINES = 5  # Lines of standard error in a message.
_SHOWN_CHARACTERS = 500


def run_program(command: str | Sequence[str], text: str = "") -> str:
    """Run a program in the current directory without a time limit; return what it prints.

    Args:
        command: Words of the command, or a command for the shell.
        text: Standard input of the program.

    Raises:
        OSError: The program cannot be started.
        CalledProcessError: The program fails.
    """
    environment = {
        name: os.environ[name] for name in os.environ if not _OF_LAUNCHER.fullmatch(name)
    }
    process = subprocess.run(
        command,
        shell=isinstance(command, str),
        input=text.encode(),
        env=environment,
        capture_output=True,
        check=True,
    )
    return process.stdout.decode("utf-8", "replace")


def _errors_of(error: subprocess.CalledProcessError) -> str:
    return error.stderr.decode("utf-8", "replace").strip()


def score_by_program(command: Sequence[str], texts: Mapping[str, References]) -> float:
    """Return the score that a program prints as its last word.

    Args:
        command: Words of the command. The name of a text in braces is replaced by its file. A word
            is repeated for each file if the text has several.
        texts: By name: the lines of the text in each of its files.

    Raises:
        DataError: The program cannot be started, fails, or does not print a finite number.
    """
    shown_command = shlex.join(command)
    with TemporaryDirectory(prefix="nmt-") as folder:
        for name, files in texts.items():
            paths = []
            for number, lines in enumerate(files, start=1):
                path = Path(folder, f"{name}.{number}")
                path.write_bytes("".join(f"{line}\n" for line in lines).encode())
                paths.append(str(path))
            words = list[str]()
            for word in command:
                words += dict.fromkeys(word.replace(f"{{{name}}}", path) for path in paths)
            command = words
        try:
            score = float(run_program(command).split()[-1])
            if math.isfinite(score):
                return score
            problem = f"printed {score}"
        except OSError as error:
            problem = f"cannot be started: {error}"
        except subprocess.CalledProcessError as error:
            error_lines = _errors_of(error).splitlines()
            last_lines = error_lines[-_SHOWN_LINES:]
            problem = "\n    ".join([f"failed with status {error.returncode}:", *last_lines])
        except (IndexError, ValueError):  # no words, or the last one is not a number
            problem = "did not print a number as its last word"
    fix = "Correct training.validation.command."
    raise DataError(f"The program `{shown_command}` {problem}.", fix=fix)


class ExternalMetric(Metric):
    """A metric computed by a shell command: the mean of sentence scores; higher is better.

    The command reads one JSON object for each sentence: ``{"source": ..., "hypothesis": ...,
    "references": [...]}``; the source is null if unknown. The command writes one line for each
    sentence: a number, or an object with a number ``score``.

    Args:
        references: Streams of reference lines.
        options: ``argument`` is the shell command; ``source`` may be None.

    Raises:
        ConfigError: There is no command.
    """

    label = "external"
    argument = "COMMAND"

    def __init__(self, references: References, options: MetricOptions) -> None:
        self._command = options.argument
        self._references = references
        self._source = options.source
        self.signature = f"mean of: {self._command}"
        if not self._command:
            raise ConfigError("external needs a command.", fix="Add `external` COMMAND.")

    def statistics(self, hypotheses: Sequence[str]) -> Floats:
        """Return the score of each sentence, and a count of 1, for the mean. (n, 2).

        Raises:
            DataError: The command fails, or does not write one number for each sentence.
        """
        inputs = []
        for index, hypothesis in enumerate(hypotheses):
            source = self._source[index] if self._source else None
            references = [stream[index] for stream in self._references]
            sentence = {"source": source, "hypothesis": hypothesis, "references": references}
            inputs.append(f"{json.dumps(sentence)}\n")
        try:
            outputs = run_program(self._command, "".join(inputs)).splitlines()
        except subprocess.CalledProcessError as error:
            message = _errors_of(error)[-_SHOWN_CHARACTERS:] or "no message"
            raise self._error(f"failed with status {error.returncode}: {message}") from error
        if len(outputs) != len(hypotheses):
            raise self._error(f"wrote {len(outputs):,} lines for {len(hypotheses):,} sentences")
        scores = []
        for line_number, line in enumerate(outputs, start=1):
            scores.append(self._parse_score(line, line_number))
        return np.column_stack([scores, np.ones(len(scores))])

    def _parse_score(self, line: str, line_number: int) -> float:
        """Return the score in a line of output: a number, or an object with the key ``score``."""
        try:
            parsed = json.loads(line)
            score = float(parsed["score"] if isinstance(parsed, dict) else parsed)
        except (ValueError, TypeError, KeyError):
            score = math.nan  # refused below, as infinite scores are
        if not math.isfinite(score):
            problem = f"did not write a finite number in line {line_number:,}: {line[:80]!r}"
            raise self._error(problem)
        return score

    def _error(self, problem: str) -> DataError:
        fix = "For each line of JSON, the command must write one line with a number."
        return DataError(f"The external metric `{self._command}` {problem}.", fix=fix)
