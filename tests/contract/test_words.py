"""Keeps patterns that need a second reading out of messages, help texts and docstrings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "nmt"
# "x is no y" for "x is not a y"; "there is no y" is fine. On the public index, nmt[...] is another
# package, and only a clone has a folder to install from: `install_command` knows what works.
INSTALLATION = re.compile(r"\bnmt\[|pip install -e")
IN_ANY_TEXT = re.compile(
    r"(?<!there )\b(?:is|are) no (?!longer|more)[a-z]|\b(?:does|do) not go with\b|"
    + INSTALLATION.pattern,
    re.IGNORECASE,
)
# "Name" means to give a name. Use Pass, Use or Choose.
AT_THE_START = re.compile(r"(?:Name|Give) ")


def texts_of(source: str) -> Iterator[tuple[int, str, bool]]:
    """Line, text, and whether it is a docstring, of every string."""
    tree = ast.parse(source)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, " ".join(node.value.split()), id(node) in docstrings


def faults(source: str) -> list[tuple[int, str]]:
    return [
        (line, text)
        for line, text, is_docstring in texts_of(source)
        if IN_ANY_TEXT.search(text) or (not is_docstring and AT_THE_START.match(text))
    ]


@pytest.mark.parametrize(("text", "is_fault"), [
    ("x is no number.", True), ("There is no model x.", False), ("It is no longer there.", False),
    ("pip install 'nmt[serve]'", True), ("pip install 'nmt-toolkit[serve]'", False),
    ("pip install -e '.[serve]'", True),
    ("--a does not go with --b.", True), ("Name a folder.", True), ("Pass a folder.", False),
])  # fmt: skip
def test_the_patterns_find_what_they_should(text: str, is_fault: bool) -> None:
    assert bool(faults(repr(text) + "\nx = " + repr(text))) is is_fault


def test_no_text_of_nmt_has_a_pattern_that_needs_a_second_reading() -> None:
    found = {
        f"{path.relative_to(PACKAGE)}:{line}": text
        for path in PACKAGE.rglob("*.py")
        for line, text in faults(path.read_text(encoding="utf-8"))
    }
    assert found == {}


def test_help_texts_templates_and_configurations_install_nmt_as_it_is_published() -> None:
    kinds, configs = {".toml", ".txt", ".j2", ".html", ".md", ".yaml"}, PACKAGE.parent / "configs"
    files = [path for path in PACKAGE.rglob("*") if path.suffix in kinds - {".md"}]
    files += [path for path in configs.iterdir() if path.suffix in kinds]
    assert {path.suffix for path in files} == kinds
    assert [path for path in files if INSTALLATION.search(path.read_text("utf-8"))] == []
