"""Model folders are self-contained, and errors name missing parts."""

from __future__ import annotations

import errno
import io
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from nmt.checkpoint.files import checkpoint_name, save_checkpoint, write_best
from nmt.checkpoint.model_folder import check_new_folder, find_model, load_model
from nmt.checkpoint.run import identity, write_run_files
from nmt.config.loader import dump_config
from nmt.errors import CheckpointError, ConfigError
from nmt.files.json_file import Manifest
from nmt.model.transformer import build_model
from nmt.text.tokenizer import tokenizer_hash
from tests.checkpoint.faults import flip_bit, toy_config
from tests.learning import train_sentencepiece

CONFIG = toy_config({
    "model.model_dim": 16, "model.ff_dim": 32, "model.num_heads": 2, "model.encoder_layers": 1,
    "model.decoder_layers": 1,
})  # fmt: skip


def weights(seed: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return dict(build_model(CONFIG.model, 30, 30).named_parameters())


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints of steps 10 (best), 20 and 30, whose weights have those seeds."""
    folder = tmp_path_factory.mktemp("bundle")
    (folder / "tokenizer").mkdir()
    lines = iter(["der hund sieht die katze", "the dog sees a cat", "abc xyz"] * 9)
    train_sentencepiece(lines, folder / "tokenizer" / "joint.model", CONFIG.tokenizer, threads=1)
    run_dir = folder / "run"
    write_run_files(run_dir, CONFIG, folder / "tokenizer")
    vocab_hash = tokenizer_hash(folder / "tokenizer")
    state = {"identity": identity(CONFIG, data_hash="d", vocab_hash=vocab_hash)}
    for step in (10, 20, 30):
        save_checkpoint(run_dir, step, model=weights(step), optimizer={}, state=state)
    write_best(run_dir, checkpoint_name(10))
    return run_dir


@pytest.fixture
def run_dir(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "run")


def seal(folder: Path) -> None:
    names = ("config.yaml", "model.safetensors", "tokenizer/joint.model")
    (folder / "manifest.json").write_text(Manifest.of(folder, names, 20).text())


@pytest.fixture
def exported(original: Path, tmp_path: Path) -> Path:
    """A folder of the weights, the configuration and the tokenizer, and nothing else."""
    folder = tmp_path / "model"
    shutil.copytree(original / "tokenizer", folder / "tokenizer")
    shutil.copy(original / "config.yaml", folder)
    shutil.copy(original / "checkpoints" / "step-00000020" / "model.safetensors", folder)
    seal(folder)
    return folder


@pytest.mark.parametrize(
    ("checkpoint", "step"),
    [("best", 10), ("last", 30), ("step-20", 20), ("step-00000020", 20), (None, 20)],
)
def test_a_run_folder_and_an_exported_one_are_model_folders(
    original: Path, exported: Path, checkpoint: str | None, step: int
) -> None:
    bundle = load_model(original, checkpoint) if checkpoint else load_model(exported)
    assert (bundle.step, bundle.config) == (step, CONFIG.inference)
    assert bundle.tokenizers.source.vocab_size == 30
    assert not bundle.model.training
    expected, found = weights(step), dict(bundle.model.named_parameters())
    assert {parameter.dtype for parameter in found.values()} == {torch.float32}
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_the_newest_checkpoint_is_used_if_the_best_does_not_exist(
    run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """FAULT 10: a damaged newest one is passed over. Both are told."""
    (run_dir / "checkpoints" / "step-00000030" / "model.safetensors").write_bytes(b"")
    assert load_model(run_dir, "last").step == 20
    (message,) = caplog.messages
    assert "step-00000030/model.safetensors has 0 bytes" in message
    shutil.rmtree(run_dir / "checkpoints" / "step-00000030")
    caplog.clear()
    assert load_model(run_dir).step == 10
    assert caplog.messages == []
    shutil.rmtree(run_dir / "checkpoints" / checkpoint_name(10))
    assert load_model(run_dir).step == 20
    (message,) = caplog.messages
    assert all(text in message for text in ("best checkpoint", checkpoint_name(20)))
    (run_dir / "best").unlink()
    assert load_model(run_dir).step == 20


def test_a_damaged_best_checkpoint_is_refused(run_dir: Path) -> None:
    flip_bit(run_dir / "checkpoints" / "step-00000010" / "model.safetensors", -1)
    with pytest.raises(CheckpointError, match=r"step-00000010/model\.safetensors has sha256"):
        load_model(run_dir)


@pytest.mark.parametrize(("part", "message"), [
    ("run", "does not exist"),
    ("run/config.yaml", "config.yaml is missing"),
    ("run/tokenizer", "tokenizer has neither joint.model nor source.model nor target.model"),
    ("run/tokenizer/joint.model", "tokenizer"),
    ("run/checkpoints", "but neither model.safetensors nor checkpoints"),
    ("run/checkpoints/step-00000010/model.safetensors", "model.safetensors is missing"),
    ("run/checkpoints/step-00000010/manifest.json", "manifest.json is missing"),
    ("model/config.yaml", "config.yaml"),
    ("model/model.safetensors", "model.safetensors"),
    ("model/manifest.json", "manifest.json"),
    ("model/tokenizer/joint.model", "tokenizer/joint.model"),
])  # fmt: skip
def test_a_missing_part_is_named(
    run_dir: Path, exported: Path, tmp_path: Path, part: str, message: str
) -> None:
    """FAULT 47."""
    path = tmp_path / part
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(CheckpointError, match=message) as caught:
        load_model(exported if part.startswith("model") else run_dir)
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(
    ("part", "checkpoint"),
    [
        ("checkpoints/step-00000020", "step-00000020"),
        ("best", "best"),
        ("average", "average"),
        ("tokenizer", None),
    ],
)
def test_the_fix_for_a_part_of_a_run_is_the_run_and_which_checkpoint(
    run_dir: Path, part: str, checkpoint: str | None
) -> None:
    with pytest.raises(CheckpointError) as caught:
        load_model(run_dir / part)
    words = caught.value.fix.removesuffix(".").split()
    assert str(run_dir) in words
    assert ("`checkpoint`" in words) == (checkpoint is not None)
    assert words[-1] == (checkpoint or str(run_dir))


def test_a_model_folder_is_not_written_among_checkpoints_or_over_another(
    run_dir: Path, tmp_path: Path
) -> None:
    """And that is found before any slow work."""
    (tmp_path / "empty").mkdir()
    for folder in (run_dir / "average", tmp_path / "empty"):
        check_new_folder(folder, run_dir)
    inside = run_dir / "checkpoints" / "mean"
    (tmp_path / "link").symlink_to(run_dir / "checkpoints")
    for folder in (inside, tmp_path / "link" / "mean", run_dir, run_dir / "best"):
        with pytest.raises(ConfigError) as caught:
            check_new_folder(folder, run_dir)
        assert "`output`" in caught.value.fix
        assert "delete" not in caught.value.fix  # it may be the trained run


@pytest.mark.parametrize(
    ("name", "is_on_hub"),
    [("org/name", True), ("hub:runs/x", True), ("runs/x", False), ("models/x", False),
     ("./runs/x", False), ("a/b/c", False), ("x", False)],
)  # fmt: skip
def test_only_a_name_of_the_hub_is_said_to_be_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_on_hub: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        load_model(Path(name))
    assert ("nmt pull" in caught.value.fix) == is_on_hub
    assert ("Train a model first: `nmt train CONFIG`" in caught.value.fix) != is_on_hub


@pytest.mark.parametrize(("name", "places"), [
    ("missing", ["runs/a", "runs/b"]),
    ("runs/mistyped", ["runs/a", "runs/b"]),
    ("models/mistyped", ["models/c", "runs/a", "runs/b"]),
    ("models/text.txt", ["models/c", "runs/a", "runs/b"]),
    ("runs", ["runs/a", "runs/b"]),
    ("models", ["models/c"]),
    ("runs/empty", []),
    ("runs/b/checkpoints/step-00000001", ["runs/b"]),
    ("runs/b/tokenizer/joint.model", ["runs/b"]),
    ("trained.yaml", ["runs/a"]),
    ("new.yaml", []),
    ("many", [f"many/{number}" for number in range(5)]),
])  # fmt: skip
def test_the_fix_for_what_is_no_model_names_the_models_near_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, places: list[str]
) -> None:
    """A run is one with checkpoints, and a model one with weights; a configuration is neither."""
    monkeypatch.chdir(tmp_path)
    for number in range(9):
        inside = tmp_path / "many" / str(number)
        (inside / "checkpoints").mkdir(parents=True)
        (inside / "config.yaml").touch()
    for folder in ("runs/a", "runs/b", "runs/empty", "runs/planned", "models/c"):
        Path(folder).mkdir(parents=True)
    for folder in ("runs/a", "runs/b", "runs/planned", "models/c"):
        Path(folder, "config.yaml").touch()
    for folder in ("runs/a", "runs/b"):
        Path(folder, "checkpoints").mkdir()
    for file in ("models/c/model.safetensors", "models/text.txt"):
        Path(file).touch()
    for config, run in (("trained", "runs/a"), ("new", "runs/planned")):
        values = CONFIG.model_copy(update={"run_dir": Path(run)})
        Path(f"{config}.yaml").write_text(dump_config(values))
    with pytest.raises(CheckpointError) as caught:
        load_model(Path(name))
    found = re.findall(r"(?<![\w/])(?:runs|models|many)/\w+", caught.value.fix)
    assert found == places
    command = f"nmt train {name}"
    assert (command in caught.value.fix) == (name == "new.yaml")


def test_the_fix_for_a_model_of_transformers_imports_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "marian"}')
    with pytest.raises(CheckpointError, match="a model of Hugging Face Transformers") as caught:
        find_model(tmp_path)
    command = f"nmt import {tmp_path} --output models/{tmp_path.name}"
    assert caught.value.fix == f"Convert it: {command}"


def test_the_fix_for_a_converted_model_is_to_import_its_origin(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"\x06\x00\x00\x00")
    (tmp_path / "config.json").write_text('{"add_source_bos": false}', "utf-8")
    with pytest.raises(CheckpointError, match=r"a CTranslate2 model.*\n.*converted from"):
        find_model(tmp_path)


def test_a_model_that_is_found_is_whole_but_for_its_weights(run_dir: Path, exported: Path) -> None:
    """The weights, which take time, are verified when they are loaded."""
    checkpoint = run_dir / "checkpoints" / checkpoint_name(10)
    for folder, part in (
        (run_dir, checkpoint / "state.json"),
        (exported, exported / "config.yaml"),
        (exported, exported / "tokenizer" / "joint.model"),
    ):
        before = part.read_bytes()
        part.write_bytes(before + b"\n")
        with pytest.raises(CheckpointError, match=re.escape(str(part))):
            find_model(folder)
        part.write_bytes(before)
    for folder, weights_dir in ((run_dir, checkpoint), (exported, exported)):
        flip_bit(weights_dir / "model.safetensors", -1)
        assert find_model(folder).folder == weights_dir
        with pytest.raises(CheckpointError, match=r"model\.safetensors"):
            load_model(folder)


def refused_with(folder: Path, message: str, **model: object) -> None:
    """Change the section ``model`` of a configuration; the folder is refused."""
    path = folder / "config.yaml"
    values = yaml.safe_load(path.read_text())
    values["model"] |= model
    path.write_text(yaml.safe_dump(values))
    if (folder / "manifest.json").exists():
        seal(folder)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_model(folder)
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("name", ["config.yaml", "model.safetensors", "joint.model"])
def test_an_unreadable_file_is_reported_as_unreadable(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The administrator, whom tests may be run by, may read everything."""
    opened = io.open

    def refusing(file: object, *arguments: Any, **options: Any) -> Any:
        if str(file).endswith(name):
            raise PermissionError(errno.EACCES, "Permission denied", str(file))
        return opened(file, *arguments, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(io, "open", refusing)
    with pytest.raises(CheckpointError, match=rf"{name} cannot be read: Permission denied"):
        load_model(run_dir)


@pytest.mark.parametrize(
    ("key", "value"), [("activation", "gelu"), ("num_heads", 4), ("positions", "none")]
)
def test_a_configuration_that_does_not_match_the_weights_is_refused(
    run_dir: Path, key: str, value: object
) -> None:
    """FAULT 47: their shapes are the same. And so is an unknown key, with its neighbour."""
    refused_with(run_dir, rf"model\.{key}: was .*, is {value}", **{key: value})
    refused_with(run_dir, r"(?s)modl_dim.*model_dim", modl_dim=3)


def test_a_model_of_a_newer_version_asks_for_that_version(run_dir: Path) -> None:
    path = run_dir / "config.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "format": 99}))
    with pytest.raises(CheckpointError, match="format 99") as caught:
        load_model(run_dir)
    assert "version of nmt" in str(caught.value.fix)


@pytest.mark.parametrize("key", ["source_language", "target_language"])
def test_other_languages_than_those_of_the_weights_are_refused(run_dir: Path, key: str) -> None:
    """FAULT 47: translations would be of the old languages all the same."""
    path = run_dir / "config.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), key: "fr"}))
    with pytest.raises(CheckpointError, match=f"{key}: was .*, is fr"):
        load_model(run_dir)


def test_weights_with_other_shapes_are_listed(run_dir: Path) -> None:
    """FAULT 47: where the checkpoint does not say what configuration it is of."""
    shutil.rmtree(run_dir / "checkpoints")
    save_checkpoint(run_dir, 10, model=weights(10), optimizer={}, state={})
    refused_with(run_dir, r"missing: encoder\.1\.", encoder_layers=2)
    refused_with(run_dir, r"\(48, 16\), expected \(32, 16\)", encoder_layers=1, num_kv_heads=1)
    refused_with(run_dir, "missing: ", num_kv_heads=None, output_bias=True)
    refused_with(run_dir, "unexpected: ", output_bias=False, bias=False)


@pytest.mark.parametrize(("changes", "named"), [
    ({"model_dim": 192_000}, "model.model_dim is 192,000"),
    ({"ff_dim": 10**6}, "model.ff_dim is 1,000,000"),
    ({"decoder_ff_dim": 10**6, "ff_dim": 33}, "ff_dim is 33, model.decoder_ff_dim is 1,000"),
    ({"positions": "learned", "max_positions": 10**7}, "model.max_positions is 10,000,000"),
])  # fmt: skip
def test_a_wrong_width_is_refused_before_memory_is_allocated(
    exported: Path, changes: dict[str, object], named: str
) -> None:
    """Finding 16: such a folder ended in a MemoryError."""
    refused_with(exported, named, **changes)


def test_another_tokenizer_is_refused_before_it_is_parsed(run_dir: Path) -> None:
    (run_dir / "tokenizer" / "joint.model").write_bytes(b"crafted")
    with pytest.raises(CheckpointError, match="is not the tokenizer of this model"):
        load_model(run_dir)
