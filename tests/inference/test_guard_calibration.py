"""A training leaves the limits of the guard in its folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from nmt.checkpoint.model_folder import GUARD as NAME
from nmt.commands.train import train
from nmt.config.run import RunConfig
from nmt.data.prepared import PreparedData
from nmt.errors import CheckpointError
from nmt.inference import calibration
from nmt.inference.calibration import calibrate_guard
from nmt.inference.guard import GuardThresholds, read_thresholds
from nmt.inference.translator import Translator
from nmt.training.signals import StoppedBySignal
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
    """For the mean of the last checkpoints, too; the same data gives the same bytes."""
    train(make_config(save_every=5, keep_last=2, average_last=2))
    path = config.run_dir / NAME
    limits, content = read_thresholds(config.run_dir), path.read_bytes()

    assert limits != GuardThresholds()
    assert limits.characters_low < 1 < limits.characters_high  # words, and the same reversed
    assert (config.run_dir / "average" / NAME).read_bytes() == content
    translator = Translator.load(config.run_dir, device="cpu", threads=1)
    assert translator._guard is not None
    assert translator._guard.limits == limits
    assert Translator.load(config.run_dir, device="cpu", threads=1, guard=False)._guard is None
    path.write_text("old")
    train(make_config(save_every=5, keep_last=2, average_last=2))  # nothing is left
    assert path.read_bytes() == content


@pytest.mark.usefixtures("stopped_once")
def test_a_training_that_is_stopped_writes_none_and_one_that_goes_on_does(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StoppedBySignal):
        train(config)
    assert not (config.run_dir / NAME).exists()
    train(config)
    assert read_thresholds(config.run_dir) != GuardThresholds()

    # Few lines say nothing.
    data = PreparedData.open(config.prepared_dir)
    monkeypatch.setattr(calibration, "_MOST_LINES", 99)
    calibrate_guard(config.run_dir, data)
    assert read_thresholds(config.run_dir) == GuardThresholds()
    with pytest.raises(CheckpointError, match=r"guard\.json cannot be written"):
        calibrate_guard(Path("missing"), data)
