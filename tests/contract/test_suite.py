"""The settings of the tests: one that hangs ends, and a property that fails can be tried again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process import LIMIT

ROOT = Path(__file__).parents[2]
HANGS = """
import threading

def test_hangs():
    threading.Event().wait()

def test_passes():
    pass
"""
FAILS = """
from hypothesis import given, strategies
from tests import conftest

@given(strategies.integers())
def test_fails(number):
    assert number < 100
"""


def run_tests(folder: Path, text: str, *options: str) -> str:
    """Run the tests of a text with the settings of this repository; return the output."""
    path = folder / "test_it.py"
    path.write_text(text, encoding="utf-8")
    config = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder)]
    command = [
        sys.executable,
        "-m",
        "pytest",
        *config,
        "-p",
        "no:cacheprovider",
        *options,
        str(path),
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.long
def test_a_test_that_hangs_fails_with_its_traceback_and_the_others_go_on(tmp_path: Path) -> None:
    shown = run_tests(tmp_path, HANGS, "-n", "1", "-o", "faulthandler_timeout=3")
    assert "in test_hangs" in shown
    assert "crashed while running 'test_it.py::test_hangs'" in shown
    assert "1 failed, 1 passed" in shown


@pytest.mark.long
def test_a_property_that_fails_says_how_to_try_it_again(tmp_path: Path) -> None:
    assert "@reproduce_failure(" in run_tests(tmp_path, FAILS, "-p", "no:xdist")
