"""The four commands on a small real model, in the hands of somebody who makes mistakes."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from nmt.cli.app import app
from tests.cli.commands import refused

NUMBERS = ["null", "eins", "zwei", "drei", "vier", "sechs", "sieben", "acht", "neun", "zehn", "elf"]
ENGLISH = ["zero", "one", "two", "three", "four", "six", "seven", "eight", "nine", "ten", "eleven"]


def nmt(*arguments: object, text: str | None = None) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=text)


def write_pairs(folder: Path, name: str, count: int, seed: int) -> None:
    generator = random.Random(seed)
    rows = [generator.choices(range(len(NUMBERS)), k=generator.randint(4, 9)) for _ in range(count)]
    for suffix, words in (("de", NUMBERS), ("en", ENGLISH)):
        lines = (" ".join(words[i] for i in row) + "\n" for row in rows)
        (folder / f"{name}.{suffix}").write_text("".join(lines), "utf-8")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with text, its configuration and a model trained for a few steps."""
    folder = tmp_path_factory.mktemp("world")
    for name, count in (("train", 300), ("valid", 10), ("test", 12)):
        write_pairs(folder, name, count, seed=count)

    def pair(name: str) -> str:
        return f"{{source: '@config/{name}.de', target: '@config/{name}.en'}}"

    (folder / "config.yaml").write_text(
        f"""
name: numbers
source_language: de
target_language: en
prepared_dir: "@config/prepared"
run_dir: "@config/run"
data: {{train: [{pair("train")}], valid: {pair("valid")}, test: {{numbers: {pair("test")}}}}}
tokenizer: {{vocab_size: 80, byte_fallback: false}}
filters: {{max_length: 40}}
batch: {{max_tokens: 512}}
model: {{preset: tiny, encoder_layers: 1, decoder_layers: 1, model_dim: 32, ff_dim: 64}}
training: {{max_steps: 6, validate_every: 3, save_every: 3, device: cpu, threads: 1}}
decoding: {{beam_size: 2, max_length_factor: 1.0, max_length_offset: 5}}
""",
        "utf-8",
    )
    result = nmt("train", folder / "config.yaml", "--quiet")
    assert result.exit_code == 0, result.stderr
    return folder


@pytest.fixture
def run(world: Path, tmp_path: Path) -> Path:
    """A copy of the run folder, to be damaged; without what was converted from whole weights."""
    ignore = shutil.ignore_patterns(".cache")
    return Path(shutil.copytree(world / "run", tmp_path / "run", ignore=ignore))


def test_scoring_a_model_is_scoring_what_it_translates(world: Path, tmp_path: Path) -> None:
    saved, piped = tmp_path / "saved.en", tmp_path / "piped.en"
    flags = ("--threads", 1, "--device", "cpu", "-b", 3)
    scored = nmt("evaluate", world / "run", "--save-hypotheses", saved, "--json", *flags)
    assert scored.exit_code == 0, scored.stderr
    translated = nmt("translate", world / "run", "-i", world / "test.de", "-o", piped, *flags)
    assert translated.exit_code == 0, translated.stderr
    assert saved.read_bytes() == piped.read_bytes()
    assert saved.read_bytes().count(b"\n") == 12
    again = nmt("evaluate", "--hypothesis", piped, "--reference", world / "test.en", "--json")
    first, second = (json.loads(result.stdout)["systems"][0] for result in (scored, again))
    assert first["scores"] == second["scores"]


def test_weights_that_were_changed_are_not_used(run: Path) -> None:
    """Faults 10 and 47."""
    for weights in run.glob("checkpoints/*/model.safetensors"):
        content = bytearray(weights.read_bytes())
        content[-9] ^= 1
        weights.write_bytes(content)
    for command in ("evaluate", "translate"):
        refused(nmt(command, run), 4, "model.safetensors")


def test_an_older_checkpoint_than_asked_for_is_not_used_in_silence(run: Path) -> None:
    """Fault 10."""
    weights = run / "checkpoints" / "step-00000006" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    for command in ("evaluate", "translate"):
        result = nmt(command, run, "--checkpoint", "last", text="eins zwei\n")
        assert "step-00000006" in result.stderr, result.exit_code


def test_a_model_that_may_not_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda _, mode: mode == os.F_OK)
    refused(nmt("translate", tmp_path), 4, f"{tmp_path} cannot be read", "fix:")


def test_a_place_that_cannot_be_written_is_named(world: Path) -> None:
    """Fault 9."""
    config = world / "config.yaml"
    place = world / "test.de" / "below"  # a file is no folder, even for the superuser
    for command in (
        ("prepare", config, "--set", f"prepared_dir={place}"),
        ("train", config, "--run-dir", place),
        ("translate", world / "run", "-i", world / "test.de", "-o", place),
        ("evaluate", world / "run", "--save-hypotheses", place),
    ):
        result = nmt(*command)
        assert result.exit_code in (2, 3, 4), (command, result.output)
        assert "test.de" in result.stderr
        assert "Traceback" not in result.stderr
