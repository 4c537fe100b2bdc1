"""What flags mean that several commands share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nmt.cli.app import app
from nmt.config.loader import dump_config
from nmt.config.run import RunConfig
from nmt.recipes.translate import decoding_changes


def test_a_flag_beats_set_and_set_beats_the_configuration(tmp_path: Path) -> None:
    corpus = {"source": "a.en", "target": "a.de"}
    config = RunConfig.model_validate({
        "name": "some", "source_language": "en", "target_language": "de",
        "data": {"train": [corpus], "valid": corpus}, "training": {"max_steps": 1},
        "decoding": {"beam_size": 7, "length_penalty": 0.1, "batch_tokens": 99},
    })  # fmt: skip
    (tmp_path / "config.yaml").write_text(dump_config(config), "utf-8")
    overrides = ["decoding.beam_size=3", "decoding.length_penalty=0.3"]

    changes = decoding_changes(tmp_path, overrides, {"beam_size": 2})

    assert changes.items() >= {"beam_size": 2, "length_penalty": 0.3, "batch_tokens": 99}.items()


def test_without_set_only_given_flags_change_anything_and_no_file_is_read(tmp_path: Path) -> None:
    assert decoding_changes(tmp_path / "none", [], {"beam_size": 2}) == {"beam_size": 2}


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["translate", ""], "MODEL"),
        (["translate", "run", "-i", ""], "-i"),
        (["translate", "run", "-o", ""], "-o"),
        (["score", "run", "--source", "a", "--target", ""], "--target"),
        (["train", ""], "CONFIG"),
    ],
)
def test_an_empty_name_is_not_that_of_the_working_directory(
    arguments: list[str], name: str
) -> None:
    result = CliRunner().invoke(app, arguments)

    assert result.exit_code == 2
    assert name in result.stderr
    assert "the name is empty" in result.stderr


def test_a_model_that_may_not_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = os.access
    monkeypatch.setattr(
        os,
        "access",
        lambda path, mode, **flags: (
            access(path, mode, **flags) and (path != tmp_path or mode == os.F_OK)
        ),
    )
    result = CliRunner().invoke(app, ["translate", str(tmp_path)])

    assert result.exit_code == 4
    assert f"{tmp_path} cannot be read" in result.stderr
    assert "fix:" in result.stderr
