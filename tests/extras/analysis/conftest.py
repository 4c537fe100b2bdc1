"""A test set of 60 lines with two systems, and what `nmt evaluate` says of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.commands.test_evaluate import invoke, write

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
LINES = [f"sentence {WORDS[n % 10]} of {WORDS[n // 10]} in this set" for n in range(60)]


def found(*arguments: object) -> dict[str, Any]:
    (test_set,) = json.loads(invoke(*arguments, "--json").stdout)["test_sets"]
    return test_set


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """References; ``bad`` has a wrong word in every second line, ``same`` in none."""
    bad = [line.replace("this", "that") if n % 2 else line for n, line in enumerate(LINES)]
    texts = {"reference": LINES, "same": LINES, "bad": bad}
    return {name: write(tmp_path / f"{name}.en", lines) for name, lines in texts.items()}


def flags(files: dict[str, Path], system: str = "bad", baseline: object = None) -> list[object]:
    found: list[object] = ["--hypothesis", files[system], "--reference", files["reference"]]
    return [*found, "--baseline", baseline or files["same"]]
