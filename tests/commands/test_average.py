"""``nmt average`` as a user and a script see it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

from nmt.checkpoint.files import checkpoint_dir, save_checkpoint
from nmt.checkpoint.model_folder import load_model
from nmt.checkpoint.run import identity, write_run_files
from nmt.cli.app import app
from nmt.model.transformer import build_model
from nmt.text.tokenizer import load_tokenizers, tokenizer_hash
from tests.checkpoint.faults import flip_bit
from tests.extras.exchange.exported import run_config
from tests.inference.conftest import sentences
from tests.inference.models import train_tokenizer

STEPS = (10, 20, 30, 40)
# Of step 15 the score is known, but the checkpoint is gone.
HISTORY = [[10, 8.0], [15, 99.0], [20, 9.0], [30, 5.0], [40, 7.0]]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with four checkpoints of a model that was never trained."""
    folder = tmp_path_factory.mktemp("average")
    tokenizer, config = train_tokenizer(folder / "tokenizer"), run_config({"num_heads": 2})
    sizes = load_tokenizers(tokenizer).vocab_sizes
    write_run_files(folder / "run", config, tokenizer)
    record = identity(config, data_hash="d", vocab_hash=tokenizer_hash(tokenizer))
    for step in STEPS:
        torch.manual_seed(step)
        weights = dict(build_model(config.model, *sizes).named_parameters())
        known = [entry for entry in HISTORY if entry[0] <= step]
        state = {"identity": record, "progress": {"history": known}}
        save_checkpoint(folder / "run", step, model=weights, optimizer={}, state=state)
    return folder / "run"


@pytest.fixture
def run_dir(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "run"))


def average(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["average", *map(str, arguments)])


def averaged(*arguments: object) -> dict[str, Any]:
    result = average(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def refused(code: int, message: str, run: Path, output: Path, *flags: object) -> None:
    """The command fails with ``code`` and a message, prints no data and writes nothing."""
    before = sorted(output.parent.glob("*"))
    result = average(run, "-o", output, *flags)
    assert (result.exit_code, result.stdout) == (code, ""), result.stderr
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert sorted(output.parent.glob("*")) == before


@pytest.mark.parametrize(
    ("flags", "steps"),
    [
        ([], [10, 20, 30, 40]),
        (["--last", 2], [30, 40]),
        (["--best", 2], [10, 20]),
        (["--best", 9], [10, 20, 30, 40]),
        (["--step", 40, "--step", 10], [10, 40]),
        (["--step", 30], [30]),
    ],
)
def test_the_flags_choose_the_checkpoints(
    original: Path, tmp_path: Path, flags: list[object], steps: list[int]
) -> None:
    output = tmp_path / "mean"
    assert averaged(original, "-o", output, *flags) == {"output": str(output), "steps": steps}
    assert json.loads((output / "average.json").read_text("utf-8"))["steps"] == steps
    bundle = load_model(output)
    assert bundle.step == max(steps)
    models = [load_model(original, f"step-{step}").model for step in steps]
    parameters = [dict(model.named_parameters()) for model in models]
    for name, parameter in bundle.model.named_parameters():
        mean = torch.stack([each[name] for each in parameters]).double().mean(0).float()
        torch.testing.assert_close(parameter, mean, rtol=2**-23, atol=0)


def test_the_folder_goes_to_standard_output_and_translates(original: Path, tmp_path: Path) -> None:
    output = tmp_path / "a b"
    result = average(original, "--last", 3, "--output", output)
    assert (result.exit_code, result.stdout) == (0, f"{output}\n")
    assert "averaging the checkpoints of step 20, 30, 40" in result.stderr
    assert "next: nmt translate" in result.stderr  # its configuration has no test set to evaluate
    for flags, told in (
        ([], f"{original} has only 4 checkpoints, not 10; to keep more, set training.keep_last"),
        # What was asked for is a warning.
        (["--best", 5], f"warning: {original} has only 4 checkpoints, not 5; to keep more, set"),
        (["--last", 9, "-q"], f"warning: {original} has only 4 checkpoints, not 9; to keep"),
    ):
        said = average(original, "-o", tmp_path / str(len(flags)), *flags).stderr
        assert f"nmt: {told}" in said
    translate = ["translate", str(output), "--device", "cpu", "--threads", "1"]
    lines = "".join(f"{line}\n" for line in sentences(4, seed=4, longest=8))
    translated = CliRunner().invoke(app, translate, input=lines)
    assert (translated.exit_code, translated.stdout.count("\n")) == (0, 4)


@pytest.mark.parametrize(
    ("code", "flags", "message"),
    [
        (2, "--last 2 --best 2", "--last and --best cannot be combined"),
        (2, "--last 2 --step 10", "--last and --step cannot be combined"),
        (2, "--step 10 --step 10", "--step 10 is repeated"),
        (2, "--step best", "--step"),
        (4, "--step 10 --step 15 --step 99", "no checkpoint of step 15, 99"),
    ],
)
def test_a_choice_that_means_nothing_is_refused(
    original: Path, tmp_path: Path, code: int, flags: str, message: str
) -> None:
    refused(code, message, original, tmp_path / "mean", *flags.split())


def test_unwritable_files_are_named_and_nothing_is_lost(original: Path, tmp_path: Path) -> None:
    kept = tmp_path / "mean" / "notes.txt"
    kept.parent.mkdir()
    kept.write_text("mine", "utf-8")
    refused(2, f"{kept.parent} already exists", original, kept.parent)
    refused(2, f"{kept} already exists", original, kept)
    refused(4, "mean was not written", original, kept / "mean")
    refused(2, "cannot be written: File name too long", original, tmp_path / ("x" * 300))
    assert [path.name for path in tmp_path.rglob("*")] == ["mean", "notes.txt"]
    assert kept.read_text("utf-8") == "mine"


def test_the_checkpoints_of_a_run_are_not_mixed_with_its_mean(run_dir: Path) -> None:
    refused(2, "among the checkpoints", run_dir, run_dir / "checkpoints" / "step-00000099")
    assert averaged(run_dir, "-o", run_dir / "mean")["steps"] == list(STEPS)
    assert load_model(run_dir).step == 40
    for source in ("mean", "nowhere"):
        refused(4, "has no checkpoints", run_dir / source, run_dir / "again")


def test_damage_is_named(run_dir: Path, tmp_path: Path) -> None:
    weights = checkpoint_dir(run_dir, 20) / "model.safetensors"
    flip_bit(weights, -1)
    refused(4, f"{weights} has sha256", run_dir, tmp_path / "mean")
    assert averaged(run_dir, "-o", tmp_path / "mean", "--last", 2)["steps"] == [30, 40]
    scores, other = checkpoint_dir(run_dir, 40) / "state.json", tmp_path / "other"
    scores.write_text(scores.read_text("utf-8").replace("99.0", "11.0"), "utf-8")
    refused(4, f"{scores} has sha256", run_dir, other, "--best", 2)
    (run_dir / "tokenizer" / "joint.model").write_bytes(b"crafted")
    refused(4, "not the tokenizer of this model", run_dir, other, "--step", 10)
    assert {path.name for path in tmp_path.iterdir()} == {"run", "mean"}


def test_renamed_checkpoints_and_runs_without_scores_fail(run_dir: Path, tmp_path: Path) -> None:
    checkpoint_dir(run_dir, 20).rename(checkpoint_dir(run_dir, 35))
    refused(4, "step-00000035 contains the checkpoint of step 20", run_dir, tmp_path / "mean")
    save_checkpoint(run_dir, 50, model={}, optimizer={}, state={})
    refused(4, "contains no validation score", run_dir, tmp_path / "mean", "--best", 2)
