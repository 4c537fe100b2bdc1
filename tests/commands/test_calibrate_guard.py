"""A training leaves the limits of the guard in its folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from nmt.checkpoint.model_folder import GUARD as NAME
from nmt.config.run import RunConfig
from nmt.data.prepared import PreparedData
from nmt.errors import CheckpointError
from nmt.recipes.train import train
from nmt.training.signals import StoppedBySignal
from nmt.translation import guard_calibration as module
from nmt.translation.guard import GuardThresholds, read_thresholds
from nmt.translation.guard_calibration import calibrate_guard
from nmt.translation.translator import Translator
from tests.training.toy import make_config, write_corpus


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """Of a training of a few updates, with enough lines to validate on."""
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path)
    for side in ("de", "en"):
        Path(f"valid.{side}").write_bytes(Path(f"train.{side}").read_bytes())
    return make_config()


def test_the_end_of_training_writes_limits_that_the_translator_reads(config: RunConfig) -> None:
    train(config)
    limits = read_thresholds(config.run_dir)

    assert limits != GuardThresholds()
    assert limits.characters_low < 1 < limits.characters_high  # words, and the same reversed
    translator = Translator.load(config.run_dir, device="cpu", threads=1)
    assert translator._guard is not None
    assert translator._guard.limits == limits
    assert Translator.load(config.run_dir, device="cpu", threads=1, guard=False)._guard is None


def test_the_same_data_gives_the_same_bytes_whatever_was_there(config: RunConfig) -> None:
    train(config)
    path = config.run_dir / NAME
    before = path.read_bytes()
    path.write_text("old")
    train(config)  # nothing is left to train
    assert path.read_bytes() == before
    path.unlink()
    train(make_config(max_steps=11))
    assert path.read_bytes() == before


@pytest.mark.usefixtures("stopped_once")
def test_a_training_that_is_stopped_writes_none_and_one_that_goes_on_does(
    config: RunConfig,
) -> None:
    with pytest.raises(StoppedBySignal):
        train(config)
    assert not (config.run_dir / NAME).exists()
    train(config)
    assert (config.run_dir / NAME).is_file()


def test_the_mean_at_the_end_of_training_has_the_limits_too(config: RunConfig) -> None:
    train(make_config(save_every=5, keep_last=2, average_last=2))
    limits = (config.run_dir / NAME).read_bytes()
    assert (config.run_dir / "average" / NAME).read_bytes() == limits


def test_few_lines_leave_the_defaults_and_many_are_cut(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(config)
    data = PreparedData.open(config.prepared_dir)
    monkeypatch.setattr(module, "_MOST_LINES", 99)
    calibrate_guard(config.run_dir, data)
    assert read_thresholds(config.run_dir) == GuardThresholds()

    with pytest.raises(CheckpointError, match=r"guard\.json cannot be written"):
        calibrate_guard(Path("missing"), data)
