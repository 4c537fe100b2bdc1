"""A model folder is complete in itself, and says what it lacks."""

from __future__ import annotations

import errno
import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from nmt.checkpoint.files import checkpoint_name, save_checkpoint, write_best
from nmt.checkpoint.model_folder import ModelBundle, load_model
from nmt.checkpoint.new_model_folder import write_model_folder
from nmt.checkpoint.run import identity, write_run_files
from nmt.config.run import RunConfig
from nmt.errors import CheckpointError
from nmt.files.manifest import Manifest
from nmt.model.transformer import build_model
from nmt.text.tokenizer import tokenizer_hash, train_sentencepiece

CONFIG = RunConfig.model_validate(
    {
        "name": "toy",
        "source_language": "de",
        "target_language": "en",
        "data": {
            "train": [{"source": "train.de", "target": "train.en"}],
            "valid": {"source": "valid.de", "target": "valid.en"},
        },
        "tokenizer": {"vocab_size": 30, "byte_fallback": False},
        "model": {
            "model_dim": 16,
            "ff_dim": 32,
            "num_heads": 2,
            "encoder_layers": 1,
            "decoder_layers": 1,
        },
        "training": {"max_steps": 100},
    }
)


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


def assert_weights(bundle: ModelBundle, seed: int) -> None:
    expected = weights(seed)
    found = dict(bundle.model.named_parameters())
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("checkpoint", "step"), [("best", 10), ("last", 30), ("step-20", 20), ("step-00000020", 20)]
)
def test_a_run_folder_is_a_model_folder(run_dir: Path, checkpoint: str, step: int) -> None:
    bundle = load_model(run_dir, checkpoint)

    assert bundle.step == step
    assert bundle.config == CONFIG
    assert bundle.tokenizers.source.vocab_size == 30
    assert not bundle.model.training
    assert {p.dtype for p in bundle.model.parameters()} == {torch.float32}
    assert_weights(bundle, step)


def test_an_exported_folder_loads_by_itself(exported: Path) -> None:
    bundle = load_model(exported)

    assert bundle.step == 20
    assert_weights(bundle, 20)


def test_without_a_pointer_the_newest_checkpoint_is_taken(run_dir: Path) -> None:
    (run_dir / "best").unlink()
    assert load_model(run_dir).step == 30
    write_best(run_dir, checkpoint_name(15))
    assert load_model(run_dir).step == 30


def test_last_passes_a_damaged_checkpoint_over_with_a_warning(
    run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """FAULT 10."""
    (run_dir / "checkpoints" / "step-00000030" / "model.safetensors").write_bytes(b"")

    assert load_model(run_dir, "last").step == 20
    assert "step-00000030/model.safetensors has 0 bytes" in caplog.messages[0]


@pytest.fixture
def slim(run_dir: Path, tmp_path: Path) -> Path:
    """A model folder."""
    weights_dir = load_model(run_dir).folder

    def write(folder: Path) -> None:
        shutil.copy(weights_dir / "model.safetensors", folder)

    write_model_folder(tmp_path / "slim", run_dir, 10, write)
    return tmp_path / "slim"


def test_a_damaged_best_checkpoint_is_refused(run_dir: Path) -> None:
    path = run_dir / "checkpoints" / "step-00000010" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)

    with pytest.raises(CheckpointError, match=r"step-00000010/model\.safetensors has sha256"):
        load_model(run_dir)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("config.yaml", "has no config.yaml"),
        ("tokenizer", "tokenizer has neither joint.model nor source.model nor target.model"),
        ("tokenizer/joint.model", "tokenizer"),
        ("checkpoints", "but neither model.safetensors nor checkpoints"),
        ("checkpoints/step-00000010/model.safetensors", "model.safetensors is missing"),
        ("checkpoints/step-00000010/manifest.json", "manifest.json is missing"),
    ],
)
def test_a_missing_part_of_a_run_is_named(run_dir: Path, part: str, message: str) -> None:
    """FAULT 47."""
    path = run_dir / part
    shutil.rmtree(path) if path.is_dir() else path.unlink()

    with pytest.raises(CheckpointError, match=message) as caught:
        load_model(run_dir)
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(
    "part", ["config.yaml", "model.safetensors", "manifest.json", "tokenizer/joint.model"]
)
def test_a_missing_part_of_an_exported_model_is_named(exported: Path, part: str) -> None:
    """FAULT 47."""
    (exported / part).unlink()

    with pytest.raises(CheckpointError, match=part):
        load_model(exported)


def change_config(folder: Path, change: Callable[[dict[str, dict[str, object]]], object]) -> None:
    path = folder / "config.yaml"
    values = yaml.safe_load(path.read_text())
    change(values)
    path.write_text(yaml.safe_dump(values))


@pytest.mark.parametrize("name", ["config.yaml", "model.safetensors", "joint.model"])
def test_what_may_not_be_read_is_said_to_be_just_that(
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


def test_a_best_checkpoint_that_is_gone_is_told(
    run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert load_model(run_dir).step == 10
    shutil.rmtree(run_dir / "checkpoints" / checkpoint_name(10))
    assert caplog.messages == []
    assert load_model(run_dir).step == 30
    assert len(caplog.messages) == 1
    assert "best checkpoint" in caplog.messages[0]
    assert checkpoint_name(30) in caplog.messages[0]


def test_an_unknown_key_is_named_with_its_neighbour(run_dir: Path) -> None:
    """FAULT 47."""
    change_config(run_dir, lambda values: values["model"].update(modl_dim=3))

    with pytest.raises(CheckpointError, match=r"(?s)modl_dim.*model_dim"):
        load_model(run_dir)


@pytest.mark.parametrize(
    ("key", "value"), [("activation", "gelu"), ("num_heads", 4), ("positions", "none")]
)
def test_a_configuration_that_gives_the_weights_another_meaning_is_named(
    run_dir: Path, key: str, value: object
) -> None:
    """FAULT 47: their shapes are the same."""
    change_config(run_dir, lambda values: values["model"].update({key: value}))

    with pytest.raises(CheckpointError, match=rf"model\.{key}: was .*, is {value}"):
        load_model(run_dir)


@pytest.fixture
def unrecorded(run_dir: Path) -> Path:
    """A run whose checkpoint does not say what configuration it is of."""
    shutil.rmtree(run_dir / "checkpoints")
    save_checkpoint(run_dir, 10, model=weights(10), optimizer={}, state={})
    return run_dir


def test_weights_that_do_not_fit_the_configuration_are_named(unrecorded: Path) -> None:
    """FAULT 47."""
    change_config(unrecorded, lambda values: values["model"].update(encoder_layers=2))
    with pytest.raises(CheckpointError, match=r"missing: encoder\.1\."):
        load_model(unrecorded)
    change_config(
        unrecorded, lambda values: values["model"].update(encoder_layers=1, num_kv_heads=1)
    )
    with pytest.raises(CheckpointError, match=r"\(48, 16\), not \(32, 16\)"):
        load_model(unrecorded)
    change_config(
        unrecorded, lambda values: values["model"].update(num_kv_heads=None, output_bias=True)
    )
    with pytest.raises(CheckpointError, match="missing: "):
        load_model(unrecorded)
    change_config(unrecorded, lambda values: values["model"].update(output_bias=False, bias=False))
    with pytest.raises(CheckpointError, match="only here: "):
        load_model(unrecorded)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_dim": 192_000}, "model.model_dim is 192,000"),
        ({"ff_dim": 10**6}, "model.ff_dim is 1,000,000"),
        ({"decoder_ff_dim": 10**6, "ff_dim": 33}, "ff_dim is 33, model.decoder_ff_dim is 1,000"),
        (
            {"positions": "learned", "max_positions": 10**7},
            "model.max_positions is 10,000,000",
        ),
    ],
)
def test_a_width_that_the_weights_do_not_have_takes_no_memory(
    exported: Path, changes: dict[str, object], named: str
) -> None:
    """Finding 16: such a folder ended in a MemoryError."""
    change_config(exported, lambda values: values["model"].update(changes))
    seal(exported)

    with pytest.raises(CheckpointError, match=named) as caught:
        load_model(exported)
    assert caught.value.exit_code == 4


def test_another_tokenizer_is_refused_before_it_is_parsed(run_dir: Path) -> None:
    (run_dir / "tokenizer" / "joint.model").write_bytes(b"crafted")

    with pytest.raises(CheckpointError, match="not the tokenizer this model was trained with"):
        load_model(run_dir)


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        load_model(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"has no config\.yaml"):
        load_model(tmp_path)
