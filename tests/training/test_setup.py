"""Training with compiled layers, from the configuration to the checkpoint."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from nmt.config.run import RunConfig
from nmt.recipes.prepare import prepare
from nmt.recipes.train import dry_run, train
from tests.compiling import Backend, use_backend
from tests.training.toy import CONFIG, setup_of, write_corpus


@pytest.fixture
def backend() -> Iterator[Backend]:
    yield from use_backend("eager")


# torch's compiler makes an object of an autograd function, which torch itself deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")


@pytest.fixture(autouse=True)
def _corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path)


def config_of(**training: Any) -> RunConfig:
    values = copy.deepcopy(CONFIG)
    values["model"]["dropout"] = 0.0
    values["training"] |= {"max_steps": 3, "save_every": 3, "validate_every": 3, **training}
    return RunConfig.model_validate(values)


def log() -> str:
    return Path("runs/toy/log.txt").read_text(encoding="utf-8")


def test_updates_begin_as_without(backend: Backend) -> None:
    prepare(config_of())
    found = []
    for compile_layers in (False, True):
        setup = setup_of(config_of(compile=compile_layers))
        assert setup.compilation.is_on == compile_layers
        random = torch.get_rng_state()
        plan = setup.loader.plan(0)
        losses = [setup.updater([setup.loader.batch(rows)], 0.01).loss_sum for rows in plan[:4]]
        found.append((losses, random))

    (expected, random), (losses, other_random) = found
    assert losses == pytest.approx(expected, rel=1e-4)
    assert torch.equal(random, other_random)
    assert backend.num_graphs == 4  # and the updates made no more


def test_a_run_says_and_records_that_its_layers_are_compiled(backend: Backend) -> None:
    train(config_of(compile=True))

    assert ", layers compiled in " in log()
    state = json.loads(Path("runs/toy/checkpoints/step-00000003/state.json").read_text())
    assert state["machine"]["compiled"] is True
    assert backend.num_graphs == 4
    train(config_of(max_steps=4))
    assert "not bit-exact: compiled: was true, is false" in log()


@pytest.mark.usefixtures("backend")
def test_a_dry_run_says_it_too() -> None:
    report = dry_run(config_of(compile=True), num_updates=4)

    assert report.as_dict()["compiled"] is True
    assert ", layers compiled in " in report.as_text().splitlines()[0]


def test_on_a_cpu_nothing_is_said_nor_done(backend: Backend) -> None:
    train(config_of())

    assert "compiled" not in log()
    assert backend.num_graphs == 0
