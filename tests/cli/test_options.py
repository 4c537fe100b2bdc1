"""What flags mean that several commands share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nmt.cli.app import app
from tests.cli.commands import refused


@pytest.mark.parametrize(("arguments", "name"), [
    (["translate", ""], "MODEL"),
    (["translate", "run", "-o", ""], "-o"),
    (["score", "run", "--source", "a", "--target", ""], "--target"),
])  # fmt: skip
def test_an_empty_name_is_not_that_of_the_working_directory(
    arguments: list[str], name: str
) -> None:
    refused(CliRunner().invoke(app, arguments), 2, name, "the name is empty")


def test_a_model_that_may_not_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda _, mode: mode == os.F_OK)
    result = CliRunner().invoke(app, ["translate", str(tmp_path)])
    refused(result, 4, f"{tmp_path} cannot be read", "fix:")
