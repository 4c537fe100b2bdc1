"""A refusal to resume, or to start from a model, says what to type to go on with the weights."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import nmt
from nmt.checkpoint.files import MODEL, checkpoint_dir, list_checkpoints, load_tensors
from nmt.checkpoint.run import data_check, identity
from nmt.config.loader import dump_config
from nmt.config.section import bound_values
from nmt.data.prepared import PreparedManifest
from nmt.errors import CheckpointError, ConfigError, NmtError
from tests.cli.commands import all_commands
from tests.training.toy import CONFIG, make_config, write_corpus


def commands(text: str) -> list[list[str]]:
    """The words of the commands in a message, which the command line accepts."""
    found = [shlex.split(each) for each in re.findall(r"`(nmt [^`]+)`", text)]
    parsers = dict(all_commands())
    for _, name, *words in found:
        parsers[f"nmt {name}"].make_context(name, list(words))
    return found


def overrides(words: list[str]) -> list[str]:
    """What ``nmt train`` overrides."""
    values = list(words[3:])
    pairs = dict(zip(values[::2], values[1::2], strict=True))
    assert words[:3] == ["nmt", "train", "CONFIG"]
    settings = [
        value for flag, value in zip(values[::2], values[1::2], strict=True) if flag == "--set"
    ]
    if "--run-dir" in pairs:
        settings.append(f"run_dir={pairs['--run-dir']}")
    return settings


def leaves(value: Any, path: str = "") -> Iterator[str]:
    """The keys of all values in nested sections."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from leaves(item, f"{path}.{index}")
    else:
        yield path


def changed(values: Mapping[str, Any], path: str) -> dict[str, Any]:
    """A copy in which one value differs."""
    copy = json.loads(json.dumps(values))
    *parents, last = [int(word) if word.isdecimal() else word for word in path.split(".")]
    place = copy
    for word in parents:
        place = place[word]
    place[last] = "other"
    return copy


MANIFEST = PreparedManifest(
    config_hash="", sources={}, data_hash="d1", vocab_hash="v1", counts={},
    source_vocab_size=60, target_vocab_size=60, files={},
)  # fmt: skip
BINDING = [*leaves(bound_values(make_config(), "run"))]
PREPARED = [
    key
    for key in leaves(bound_values(make_config(), "data"))
    if key.startswith(("tokenizer.", "filters.", "data.t", "data.v"))
]


@pytest.mark.parametrize("key", BINDING)
def test_every_setting_that_binds_weights_names_the_command_for_a_new_run(key: str) -> None:
    config = make_config("runs/toy")
    recorded = identity(config, data_hash="d1", vocab_hash="v1")
    data_check(config, recorded, 1)(MANIFEST)
    with pytest.raises(CheckpointError) as caught:
        data_check(config, changed(recorded, key), 1)(MANIFEST)
    assert f"{key}: was other" in caught.value.problem
    (words,) = commands(caught.value.fix)
    expected = ["training.init_from=runs/toy", "run_dir=runs/toy-2"]
    if key.endswith("_layers"):
        expected.insert(1, "training.init_differences=[layers]")
    assert overrides(words) == expected


@pytest.mark.parametrize("key", PREPARED)
def test_every_setting_that_binds_data_is_named_with_the_command_for_a_new_run(
    key: str, tmp_path: Path
) -> None:
    config = make_config(str(tmp_path / "toy"))
    checkpoint_dir(config.run_dir, 5).mkdir(parents=True)
    values = yaml.safe_load(dump_config(config))
    if key.startswith("data.valid"):  # written as one section
        key = key.replace("data.valid.0", "data.valid")
    (config.run_dir / "config.yaml").write_text(yaml.safe_dump(changed(values, key)))
    recorded = identity(config, data_hash="d0", vocab_hash="v0")
    with pytest.raises(CheckpointError) as caught:
        data_check(config, recorded, 1)(MANIFEST)
    assert f"{key}: was other" in caught.value.problem
    (words,) = commands(caught.value.fix)
    assert overrides(words)[0] == f"training.init_from={config.run_dir}"
    learns = "training.init_differences=[vocabulary]" in overrides(words)
    assert learns == key.startswith("tokenizer.")


def test_a_path_that_yaml_would_read_otherwise_is_quoted() -> None:
    config = make_config("runs/my run #2, it's")
    recorded = changed(identity(config, data_hash="d1", vocab_hash="v1"), "training.seed")
    with pytest.raises(CheckpointError) as caught:
        data_check(config, recorded, 1)(MANIFEST)
    (words,) = commands(caught.value.fix)
    assert nmt.load_config(CONFIG, overrides(words)).training.init_from == config.run_dir


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus and a trained run."""
    folder = tmp_path_factory.mktemp("base")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_corpus(folder)
        Path("toy.yaml").write_text(yaml.safe_dump(CONFIG))
        train("run_dir=runs/base", "training.max_steps=10")
    return folder


@pytest.fixture
def base(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That run, in a copy of the folder, which is the working directory."""
    shutil.copytree(place, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return Path("runs/base")


def train(*settings: str, dry_run: bool = False) -> None:
    nmt.train(nmt.TrainOptions(config=Path("toy.yaml"), set_=settings, dry_run=dry_run))


def refusal(*settings: str) -> NmtError:
    """The error of training, which is that of a dry run, too; neither has changed a file."""
    before = contents()
    errors = list[NmtError]()
    for dry_run in (True, False):
        with pytest.raises(NmtError) as caught:
            train(*settings, dry_run=dry_run)
        errors.append(caught.value)
    assert str(errors[0]) == str(errors[1])
    assert contents() == before
    return errors[0]


def contents() -> dict[Path, bytes]:
    return {
        path: path.read_bytes()
        for path in Path().rglob("*")
        if path.is_file() and path.name not in (".lock", "users.json")
    }


SETTINGS = {
    "rate": ["training.schedule.peak_lr=0.001"],
    "vocabulary": ["tokenizer.vocab_size=64"],
    "layers": ["model.encoder_layers=2"],
    "filter": ["filters.max_length=3"],
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.long
def test_the_command_goes_on_with_the_same_weights(base: Path, name: str) -> None:
    settings = SETTINGS[name]
    error = refusal("run_dir=runs/base", "training.max_steps=20", *settings)
    (words,) = commands(error.fix)
    still = ["training.schedule={shape: constant, peak_lr: 1.0e-12, warmup_steps: 0}"]
    train(*settings, *still, *overrides(words), "training.max_steps=1")
    old = load_tensors(list_checkpoints(base)[-1][1] / MODEL)
    best = {path.name: load_tensors(path / MODEL) for _, path in list_checkpoints(base)}
    new = load_tensors(checkpoint_dir(Path("runs/base-2"), 1) / MODEL)
    key = next(name for name in old if name.startswith("encoder.0"))
    assert any(torch.allclose(new[key], weights[key], atol=1e-9) for weights in best.values())


def test_a_run_whose_checkpoints_are_gone_keeps_its_records(base: Path) -> None:
    shutil.rmtree(base / "checkpoints")
    error = refusal("run_dir=runs/base")
    assert error.exit_code == 4
    assert "runs/base is the folder of a run whose checkpoints are gone" in error.problem
    assert "Restore runs/base/checkpoints" in error.fix
    (words,) = commands(error.fix)
    train(*overrides(words), "training.max_steps=1")
    assert list_checkpoints(Path("FOLDER"))


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_again(base: Path) -> None:
    shutil.rmtree(base / "checkpoints")
    log = base / "log.txt"
    log.write_text("\n".join(x for x in log.read_text().splitlines() if " saved " not in x))
    train("run_dir=runs/base", "training.max_steps=5")


def test_checkpoints_without_the_state_of_the_optimizer_start_a_new_run(base: Path) -> None:
    for _, folder in list_checkpoints(base):
        (folder / "optimizer.safetensors").unlink()
    (base / "best").unlink()
    error = refusal("run_dir=runs/base", "training.max_steps=20")
    assert "optimizer.safetensors is missing" in error.problem
    (words,) = commands(error.fix)
    train(*overrides(words), "training.max_steps=1")


def start_from(value: str, *settings: str) -> NmtError:
    return refusal("run_dir=runs/new", f"training.init_from={value}", *settings)


@pytest.mark.usefixtures("base")
def test_a_checkpoint_in_place_of_a_run_is_averaged_alone() -> None:
    error = start_from("runs/base/checkpoints/step-00000005")
    assert "training.init_from: runs/base/checkpoints/step-00000005 is a checkpoint" in str(error)
    assert "Set training.init_from to runs/base," in error.fix
    (words,) = commands(error.fix)
    assert words == ["nmt", "average", "runs/base", "--step", "00000005", "--output", "FOLDER"]


@pytest.mark.usefixtures("base")
def test_the_best_checkpoint_in_place_of_a_run_is_that_of_the_run() -> None:
    """Training has no option for another checkpoint."""
    fix = start_from("runs/base/best").fix
    assert fix == "Set training.init_from to runs/base, for its best weights."


@pytest.mark.usefixtures("base")
def test_a_model_that_does_not_exist_is_named_with_those_that_do() -> None:
    error = start_from("runs/bse")
    assert error.problem == "training.init_from: runs/bse does not exist."
    assert error.fix.startswith("Set training.init_from to a run folder")
    assert "runs/base" in error.fix


@pytest.mark.usefixtures("base")
def test_the_value_of_a_variable_that_is_not_set_is_refused() -> None:
    """Otherwise training would start with random weights."""
    error = start_from("")
    assert isinstance(error, ConfigError)
    assert "`set` training.init_from=: a value is missing" in error.problem
    assert "training.init_from=null" in error.problem


@pytest.mark.usefixtures("base")
def test_another_tokenizer_section_is_never_ignored() -> None:
    error = start_from("runs/base", "tokenizer.vocab_size=64", "training.lora={}")
    assert commands(error.fix) == []  # which adapts the whole model
    assert "Remove these keys" in error.fix
    error = start_from("runs/base", "tokenizer.vocab_size=64", "model.encoder_layers=2")
    assert error.exit_code == 2
    assert "tokenizer.vocab_size: was 60, is 64" in error.problem
    (words,) = commands(error.fix)
    settings = overrides(words)
    train("run_dir=runs/new", "training.init_from=runs/base", "tokenizer.vocab_size=64",
          "model.encoder_layers=2", "training.max_steps=1", *settings)  # fmt: skip
    assert "vocabulary" in settings[0]
    assert "layers" in settings[0]


@pytest.mark.usefixtures("base")
def test_a_language_that_the_vocabulary_does_not_have_needs_another_vocabulary() -> None:
    shutil.copy("train.en", "train.fr")
    corpus = "data.train.1={source: train.de, target: train.fr, target_language: fr}"
    error = start_from("runs/base", corpus)
    assert "The vocabulary has no tag" in error.problem
    (words,) = commands(error.fix)
    train("run_dir=runs/new", "training.init_from=runs/base", corpus, "training.max_steps=1",
          *overrides(words))  # fmt: skip
    log = Path("runs/new/log.txt").read_text()
    assert "resized" in log
