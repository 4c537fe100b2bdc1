"""What keeps it readable: flags in one place, few late imports, a clean top."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

from tests.process import LIMIT

NMT = Path(__file__).parents[2] / "nmt"
MODULES = {path: ast.parse(path.read_text("utf-8")) for path in sorted(NMT.rglob("*.py"))}
MOST_LATE_IMPORTS = 20
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
OURS = set(FLAG.findall(Path(__file__).with_name("flags.txt").read_text("utf-8")))


def late_imports(tree: ast.Module) -> set[ast.stmt]:
    """Imports in functions."""
    functions = (x for x in ast.walk(tree) if isinstance(x, ast.FunctionDef | ast.AsyncFunctionDef))
    inside = (node for function in functions for node in ast.walk(function))
    return {node for node in inside if isinstance(node, ast.Import | ast.ImportFrom)}


def test_only_the_command_line_spells_flags() -> None:
    """Elsewhere an option is named by its field in backticks, or by `shell_command`."""
    found = [
        f"{path.relative_to(NMT)}:{node.lineno}: {node.value.strip()[:60]}"
        for path, tree in MODULES.items()
        if path.parent != NMT / "cli"
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if OURS.intersection(FLAG.findall(node.value))
    ]
    assert found == []


def test_imports_stand_at_the_top_with_few_exceptions() -> None:
    late = [
        f"{path.relative_to(NMT)}:{x.lineno}"
        for path, tree in MODULES.items()
        for x in late_imports(tree)
    ]
    assert len(late) <= MOST_LATE_IMPORTS, "\n".join(sorted(late))


def test_nothing_else_lies_at_the_top() -> None:
    if not (NMT.parent / ".git").exists():
        pytest.skip("no git repository: what is part of it is not known")
    listing = subprocess.check_output(
        ["git", "-C", str(NMT.parent), "ls-files", "-z"], text=True, timeout=LIMIT
    )
    top = {name.split("/")[0] for name in listing.rstrip("\0").split("\0")}
    assert {name for name in top if not name.startswith(".")} == {
        *("Makefile", "README.md", "configs", "nmt", "pyproject.toml", "scripts", "tests")
    }
