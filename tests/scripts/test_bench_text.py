"""The benchmarks translate a test set of the run, read as `nmt evaluate` reads it."""

from __future__ import annotations

import argparse
import runpy
from pathlib import Path

import pytest
import yaml

from nmt.errors import ConfigError
from tests.inference.models import run_config

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "bench_text.py"))


def read(*arguments: str) -> tuple[list[str], list[str]]:
    parser = argparse.ArgumentParser()
    SCRIPT["add_text_options"](parser)
    sources, references = SCRIPT["read_text"](parser.parse_args(arguments))
    return [*sources], [*references]


def test_the_text_is_the_first_test_set_of_the_run_or_the_chosen_one(tmp_path: Path) -> None:
    values = run_config().model_dump(mode="json")
    for name in ("a", "b"):
        for side, text in (("source", "Hund"), ("target", "dog")):
            (tmp_path / f"{name}.{side}").write_text(f"{text} {name}\n")
    values["data"]["test"] = {
        name: {side: str(tmp_path / f"{name}.{side}") for side in ("source", "target")}
        for name in ("a", "b")
    }
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(yaml.safe_dump(values))
    assert read(str(run)) == (["Hund a"], ["dog a"])
    assert read(str(run), "--test", "b") == (["Hund b"], ["dog b"])
    files = ["--source", str(tmp_path / "b.source"), "--reference", str(tmp_path / "a.target")]
    assert read(str(run), *files) == (["Hund b"], ["dog a"])
    with pytest.raises(ConfigError, match="reference"):
        read(str(run), *files[:2])
