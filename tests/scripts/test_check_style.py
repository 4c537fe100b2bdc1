"""The checks of style find what they should."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

CHECK = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "check_style.py"))


@pytest.mark.parametrize(("text", "is_fault"), [
    ("x is no number.", True), ("There is no model x.", False), ("It is no longer there.", False),
    ("pip install 'nmt[serve]'", True), ("pip install 'nmt-toolkit[serve]'", False),
    ("pip install -e '.[serve]'", True),
    ("--a does not go with --b.", True), ("Name a folder.", True), ("Pass a folder.", False),
])  # fmt: skip
def test_words_that_need_a_second_reading_are_found(text: str, is_fault: bool) -> None:
    source = repr(text) + "\nx = " + repr(text)
    assert bool(list(CHECK["faults_of_code"](source))) is is_fault


@pytest.mark.parametrize(("call", "is_fault"), [
    ("subprocess.run(command)", True), ("subprocess.run(command, timeout=9)", False),
    ("process.wait()", True), ("process.wait(9)", False), ("thread.join()", True),
    ("''.join(words)", False), ("process.communicate(timeout=9)", False),
    ("subprocess.check_output(command, **options)", False),
])  # fmt: skip
def test_calls_that_may_wait_for_ever_are_found(call: str, is_fault: bool) -> None:
    assert bool(list(CHECK["waits_without_limit"](call))) is is_fault


def test_a_configuration_says_what_it_needs() -> None:
    head = "# data 1\n# hardware 2\n# time 3\n# expect 4\n"
    assert list(CHECK["faults_of_configuration"](f"{head}name: x")) == []
    assert len(list(CHECK["faults_of_configuration"](f"\nname: x\n{head}"))) == 4


def test_a_long_readme_is_found() -> None:
    assert list(CHECK["faults_of_readme"]("a word\n| " + "x " * 15 + "|\n")) == []
    assert len(list(CHECK["faults_of_readme"]("| " + "x " * 16 + "|\n"))) == 1
    assert len(list(CHECK["faults_of_readme"]("x " * 1101))) == 1
    assert len(list(CHECK["faults_of_readme"]("x\n" * 181))) == 1
