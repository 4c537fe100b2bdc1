"""A training leaves in its folder what makes translating with it faster."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from nmt.checkpoint.files import checkpoint_dir
from nmt.checkpoint.model_folder import SHORTLIST
from nmt.commands.train import fit
from nmt.config.run import RunConfig
from nmt.inference.translator import Translator
from nmt.training.signals import StoppedBySignal
from tests.training.toy import make_config, write_corpus

BOTH = (SHORTLIST,)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus and a finished run."""
    folder = tmp_path_factory.mktemp("training")
    write_corpus(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        fit(make_config())
    return folder


@pytest.fixture
def config(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """Of that run, in a copy of its own."""
    folder = shutil.copytree(place, tmp_path / "copy")
    monkeypatch.chdir(folder)
    return make_config()


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in BOTH}


def load(folder: Path, **options: Any) -> Translator:
    return Translator.load(folder, device="cpu", threads=1, guard=False, **options)


def test_a_finished_run_that_lacks_them_gets_them_by_the_same_command(
    config: RunConfig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "nmt")
    before = contents(config.run_dir)
    checkpoint = checkpoint_dir(config.run_dir, 10)
    manifest = (checkpoint / "manifest.json").read_bytes()
    for name in BOTH:
        (config.run_dir / name).unlink()
    fit(config)  # nothing is left to train

    longer = "the same command with a larger training.max_steps goes on"
    assert f"training had ended at step 10; {longer}" in caplog.messages
    assert contents(config.run_dir) == before
    assert (checkpoint / "manifest.json").read_bytes() == manifest
    (config.run_dir / SHORTLIST).write_bytes(b"damaged")
    fit(config)
    assert contents(config.run_dir) == before


@pytest.mark.usefixtures("stopped_once")
def test_a_run_that_was_stopped_writes_them_when_it_goes_on_and_the_same_bytes(
    config: RunConfig,
) -> None:
    expected = contents(config.run_dir)
    other = make_config("other")
    with pytest.raises(StoppedBySignal):
        fit(other)
    assert not any((other.run_dir / name).exists() for name in BOTH)
    fit(other)
    assert contents(other.run_dir) == expected


def test_a_run_that_starts_anew_keeps_nothing_of_an_earlier_one(config: RunConfig) -> None:
    """Whole files, of the right sizes, from other data."""
    fresh = {name: (config.run_dir / name).read_bytes() for name in BOTH}
    parts = load_file(config.run_dir / SHORTLIST)
    parts["candidates"] = parts["candidates"].flip(0).contiguous()
    save_file(parts, config.run_dir / SHORTLIST)
    assert (config.run_dir / SHORTLIST).read_bytes() != fresh[SHORTLIST]
    shutil.rmtree(config.run_dir / "checkpoints")
    (config.run_dir / "best").unlink(missing_ok=True)
    fit(config)

    assert {name: (config.run_dir / name).read_bytes() for name in fresh} == fresh
