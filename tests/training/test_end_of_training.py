"""A training leaves in its folder what makes translating with it faster."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from nmt.checkpoint import model_folder
from nmt.checkpoint.files import checkpoint_dir
from nmt.checkpoint.model_folder import SHORTLIST
from nmt.commands.average import average
from nmt.commands.average_options import AverageOptions
from nmt.commands.train import fit
from nmt.config.run import RunConfig
from nmt.data.prepared import PreparedData
from nmt.errors import CheckpointError
from nmt.extras.exchange.export import export
from nmt.extras.exchange.options import ExportOptions
from nmt.inference.shortlist_file import make_shortlist
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


def test_the_shortlist_is_of_the_training_data(config: RunConfig) -> None:
    parts = load_file(config.run_dir / SHORTLIST)
    data = PreparedData.open(config.prepared_dir)
    sizes = data.manifest.source_vocab_size, data.manifest.target_vocab_size
    counts = data.train.token_counts("target", sizes[1])

    assert parts["candidates"].dtype == torch.int32
    assert parts["candidates"].shape == (sizes[0], 30)
    assert -1 <= int(parts["candidates"].min()) <= int(parts["candidates"].max()) < sizes[1]
    # The vocabulary has fewer than 200 tokens, so all are common; the most frequent come first.
    assert sorted(parts["common"].tolist()) == list(range(sizes[1]))
    assert counts[parts["common"]].tolist() == sorted(counts.tolist(), reverse=True)


def test_what_was_written_is_used(config: RunConfig) -> None:
    lines = Path("train.de").read_text().splitlines()[:20]
    plain = load(config.run_dir).translate(lines)
    # The shortlist holds the whole vocabulary, so nothing changes but rounding.
    short = load(config.run_dir, shortlist=True).translate(lines)
    assert [x.text for x in short] == [x.text for x in plain]


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


def test_model_folders_have_them_and_their_manifests_too(
    config: RunConfig, caplog: pytest.LogCaptureFixture
) -> None:
    average(AverageOptions(run=config.run_dir, output=Path("mean"), last=2))
    export(ExportOptions(model=config.run_dir, output=Path("slim"), to="safetensors"))
    export(ExportOptions(model=Path("mean"), output=Path("slim mean"), to="safetensors"))
    for folder, origin in (("mean", "mean"), ("slim", config.run_dir), ("slim mean", "mean")):
        assert contents(Path(folder)) == contents(Path(origin))
        files = json.loads((Path(folder) / "manifest.json").read_text())["files"]
        assert {*BOTH} <= {*files}
        assert load(Path(folder), shortlist=True).translate(["abc"])[0].text
    assert not caplog.messages


def test_a_folder_that_cannot_be_written_is_named(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = PreparedData.open(config.prepared_dir)
    with pytest.raises(CheckpointError, match=rf"{SHORTLIST} cannot be written"):
        make_shortlist(Path("missing"), data)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    (config.run_dir / SHORTLIST).unlink()
    monkeypatch.setattr(model_folder, "write_bytes", full)
    with pytest.raises(CheckpointError, match=rf"{SHORTLIST} cannot be written: No space left"):
        make_shortlist(config.run_dir, data)


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
