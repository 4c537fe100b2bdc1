"""The top of the repository holds what its owner fixed, and no output of a script."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_nothing_else_lies_at_the_top() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("no git repository: what is part of it is not known")
    listing = subprocess.check_output(["git", "-C", str(ROOT), "ls-files", "-z"], text=True)
    top = {name.split("/")[0] for name in listing.rstrip("\0").split("\0")}
    assert {name for name in top if not name.startswith(".")} == {
        *("Makefile", "README.md", "configs", "nmt", "pyproject.toml", "scripts", "tests")
    }
