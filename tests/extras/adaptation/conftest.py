"""A trained base model in the folder where the tests run."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nmt.commands.train import fit
from nmt.config.run import RunConfig
from tests.training.toy import CONFIG, write_corpus

Train = Callable[..., Path]


def train(name: str, values: dict[str, Any] | None = None, **training: object) -> Path:
    """Train a toy model for ten updates; return its run folder."""
    config = copy.deepcopy(CONFIG) | {"run_dir": f"runs/{name}", "prepared_dir": f"prepared/{name}"}
    config |= values or {}
    config["training"] |= {"max_steps": 10, "validate_every": 5, **training}
    run = RunConfig.model_validate(config)
    fit(run)
    return run.run_dir


@pytest.fixture(scope="session")
def _trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    write_corpus(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        train("base")
    return folder


@pytest.fixture
def base(_trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The base model, in a copy of its folder; the working directory is that folder."""
    shutil.copytree(_trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return Path("runs/base")
