"""``training.init_from`` takes weights and vocabulary of another model, and nothing else."""

from __future__ import annotations

import copy
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nmt.checkpoint.files import list_checkpoints, load_checkpoint
from nmt.checkpoint.model_folder import load_model
from nmt.commands.train import fit
from nmt.config.run import RunConfig
from nmt.errors import CheckpointError, ConfigError
from nmt.text.tokenizer import tokenizer_hash
from tests.training.toy import CONFIG, write_corpus

Values = dict[str, Any]
Start = Callable[[Values], Path]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus and a trained model."""
    folder = tmp_path_factory.mktemp("base")
    write_corpus(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        start(new("base"))
    return folder


@pytest.fixture
def base(place: Path, tmp_path: Path) -> Path:
    """That model, in a copy."""
    shutil.copytree(place, tmp_path, dirs_exist_ok=True)
    return Path("runs/base")


def new(name: str, **training: object) -> Values:
    values: Values = copy.deepcopy(CONFIG)
    values |= {"run_dir": f"runs/{name}", "prepared_dir": f"prepared/{name}"}
    values["training"] |= {"max_steps": 10, "validate_every": 5, **training}
    return values


def tuned(name: str = "tuned", **training: object) -> Values:
    """Other text in the same letters."""
    values = new(name, init_from="runs/base", **training)
    draw = random.Random(2)
    lines = ["".join(draw.choices("abcdefghij", k=6)) for _ in range(200)]
    Path("other.de").write_text("".join(f"{line}\n" for line in lines))
    Path("other.en").write_text("".join(f"{line.upper().lower()}\n" for line in lines))
    values["data"] = {**values["data"], "train": [{"source": "other.de", "target": "other.en"}]}
    return values


def start(values: Values) -> Path:
    config = RunConfig.model_validate(values)
    fit(config)
    return config.run_dir


def weights(run_dir: Path) -> dict[str, Tensor]:
    return load_checkpoint(list_checkpoints(run_dir)[-1][1]).model


def test_it_begins_with_the_weights_and_keeps_the_vocabulary(base: Path) -> None:
    # A learning rate of next to nothing: what comes out is what went in.
    schedule = {"shape": "constant", "peak_lr": 1e-12, "warmup_steps": 0}
    run_dir = start(tuned(max_steps=1, schedule=schedule))
    found, expected = weights(run_dir), load_model(base).model.state_dict()
    assert all(torch.allclose(found[name], expected[name], atol=1e-9) for name in expected)
    assert tokenizer_hash(run_dir / "tokenizer") == tokenizer_hash(base / "tokenizer")
    assert load_checkpoint(list_checkpoints(run_dir)[-1][1]).step == 1
    log = (run_dir / "log.txt").read_text()
    assert "starting with the weights of runs/base" in log
    assert "runs/base was trained" not in log


def test_init_from_reports_a_wrong_model_before_reading_data(base: Path) -> None:
    values = tuned()
    values["model"] = {**values["model"], "ff_dim": 64, "dropout": 0.3}
    with pytest.raises(ConfigError) as caught:
        start(values)
    assert "model.ff_dim: was 32, is 64" in caught.value.problem
    assert "dropout" not in caught.value.problem
    assert str(base) in caught.value.problem
    shutil.rmtree(base)
    with pytest.raises(CheckpointError, match=r"training\.init_from: runs/base does not exist"):
        start(tuned())
    assert not Path("prepared/tuned").exists()


@pytest.mark.usefixtures("base")
def test_fine_tuning_logs_other_languages() -> None:
    log = (start(tuned(max_steps=1) | {"source_language": "fr"}) / "log.txt").read_text()
    assert "from de to en, but this run translates from fr to en" in log


def test_bpe_dropout_is_refused_for_a_vocabulary_that_is_not_bpe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path)
    values = new("base")
    values["tokenizer"] = {**values["tokenizer"], "kind": "unigram"}
    config = start(values) / "config.yaml"
    config.write_text(config.read_text().replace("kind: unigram", "kind: bpe"))
    values = tuned()
    values["batch"] = {**values["batch"], "bpe_dropout": 0.1}
    with pytest.raises(ConfigError, match=r"bpe_dropout needs a BPE vocabulary"):
        start(values)
