"""Baselines from reports: an object of ``nmt evaluate`` -> translations of this set."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nmt.errors import ConfigError
from nmt.files.json_file import field, read_json
from nmt.metrics.metric import Scorer
from nmt.metrics.result import System, hash_references

_VERSION = re.compile(r"\|version:[^|]*")
_AGAIN = "Make it again with `report` FILE.json on this test set."


def read_baseline_report(
    path: Path, test: str, references: Sequence[Sequence[str]], scorers: Sequence[Scorer]
) -> System:
    """Return the system of a report, to be scored again beside the others.

    Args:
        path: What ``nmt evaluate`` printed as JSON or wrote as a report.
        test: Name of the test set, for messages.
        references: Of the test set.
        scorers: Metrics. Where the report has scores by them, the signatures must agree, but for
            the version of sacrebleu: all is scored by the same one now.

    Raises:
        ConfigError: It is no such report, is of another test set, has no or several systems or no
            translations, or was scored in another way.
    """
    try:
        document = field(read_json(path), kind=dict)
        found = document.get("evaluations", [document])
        wanted = hash_references(references)
        fitting = [each for each in found if each.get("references_sha256") == wanted]
        if not fitting:
            names = ", ".join(str(each.get("test")) for each in found)
            raise ConfigError(
                f"{path} is a baseline of another test set: its references ({names}) are not "
                f"those of {test}.",
                fix="Evaluate the baseline on the same sentences and references.",
            )
        (system, *others) = field(fitting[0], "systems", kind=list)
        if others:
            raise ConfigError(
                f"{path} holds {len(others) + 1} systems, so the baseline is not clear.",
                fix="Make a report of one system.",
            )
        _check_signatures(path, system, scorers)
        lines = system.get("hypotheses")
        if not lines or len(lines) != len(references[0]) or set(map(type, lines)) != {str}:
            raise ConfigError(
                f"{path} has no translations (hypotheses) of {test}, so nothing can be tested.",
                fix=_AGAIN,
            )
        return System(f"{field(system, 'name', kind=str)} ({path.name})", lines)
    except (OSError, ValueError, AttributeError, TypeError, KeyError) as error:
        raise ConfigError(
            f"{path} is not a report of an evaluation: {error}.", fix=_AGAIN
        ) from error


def _check_signatures(path: Path, system: Any, scorers: Sequence[Scorer]) -> None:
    then = {score["metric"]: score["signature"] for score in system.get("scores", ())}
    for scorer in scorers:
        now = scorer.metric.signature
        before = then.get(scorer.name, now)
        if _VERSION.sub("", before) != _VERSION.sub("", now):
            raise ConfigError(
                f"{path} has another signature of {scorer.name}: {before}, now {now}.",
                fix="Score both in the same way (`tokenize`, `lowercase`, references).",
            )
