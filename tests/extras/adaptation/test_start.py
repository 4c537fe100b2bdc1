"""A model that only partly matches starts with what it has in common with `init_from`."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from nmt.checkpoint.files import MODEL, checkpoint_dir, load_tensors
from nmt.checkpoint.model_folder import load_model
from nmt.commands.config import load_config
from nmt.errors import ConfigError
from nmt.extras.adaptation.start import initial_weights, layers_from
from tests.extras.adaptation.conftest import train
from tests.training.toy import CONFIG

# A learning rate of next to nothing: the saved weights are those of the start.
STILL = {"schedule": {"shape": "constant", "peak_lr": 1e-12, "warmup_steps": 0}, "max_steps": 1}


def started(base: Path, differences: list[str], **values: Any) -> tuple[dict[str, Any], str]:
    """Return the weights that a run begins with, and its log."""
    run = train("new", values, init_from=str(base), init_differences=differences, **STILL)
    return load_tensors(checkpoint_dir(run, 1) / MODEL), (run / "log.txt").read_text()


@given(old=st.integers(1, 40), new=st.integers(1, 40))
def test_layers_are_taken_in_order_from_the_first_to_the_last(old: int, new: int) -> None:
    found = layers_from(old, new)
    taken = [index for index in found if index is not None]
    assert len(found) == new
    assert taken == sorted({*taken})
    assert len(taken) == min(old, new)
    assert (taken[0], taken[-1]) == (0, old - 1 if new > 1 else 0)


def test_rows_of_equal_subwords_are_taken(base: Path) -> None:
    tokenizer = CONFIG["tokenizer"] | {"vocab_size": 45}
    weights, log = started(base, ["vocabulary"], tokenizer=tokenizer)
    old, new = load_model(base), load_model(Path("runs/new"))
    ours, theirs = (each.tokenizers.target for each in (new, old))
    places = {theirs.piece(index): index for index in range(theirs.vocab_size)}
    expected, found = old.model.source_vectors, weights["source_vectors"]
    taken = [index for index in range(45) if ours.piece(index) in places]
    assert (len(found), len(expected)) == (45, 60)
    assert found[taken].allclose(expected[[places[ours.piece(index)] for index in taken]])
    name = "encoder.0.feed_forward.inner.weight"
    assert weights[name].allclose(old.model.state_dict()[name])
    assert f"resized: {len(taken)} of 45 rows taken, by subword" in log


def test_one_side_can_be_new_and_the_other_have_more_layers(base: Path) -> None:
    model = CONFIG["model"] | {"encoder_layers": 2}
    weights, log = started(base, ["layers", "decoder"], model=model)
    old, name = load_model(base).model.state_dict(), "0.self_attention.output.weight"
    assert weights[f"encoder.{name}"].allclose(old[f"encoder.{name}"])
    assert not weights[f"decoder.{name}"].allclose(old[f"decoder.{name}"])
    assert weights["source_vectors"].allclose(old["source_vectors"])
    rows = [line.split() for line in log.splitlines()]
    origins = {row[0]: " ".join(row[2:]) for row in rows if len(row) > 2}
    assert (origins["encoder.0"], origins["encoder.1"]) == ("taken", "new")
    assert (origins["decoder.0"], origins["source_vectors"]) == ("new", "taken")


def test_each_side_has_its_vocabulary_and_each_part_its_parameters() -> None:
    """Row i of the old model is i, and everything new is -1."""

    def tokenizer(pieces: str) -> Any:
        texts = ["<pad>", "<unk>", "<s>", "</s>", *pieces]
        return SimpleNamespace(vocab_size=len(texts), piece=texts.__getitem__)

    def model(num_source: int, num_target: int, value: float) -> dict[str, torch.Tensor]:
        shapes = {
            "source_vectors": (num_source, 1), "target_vectors": (num_target, 1),
            "output_bias": (num_target,), "encoder.0.a.weight": (2, 3), "encoder.0.a.bias": (2,),
            "decoder.0.a.weight": (2, 2), "encoder_norm.weight": (5,), "decoder_norm.weight": (5,),
        }  # fmt: skip
        return {name: torch.full(shape, value) for name, shape in shapes.items()}

    old = model(6, 7, 9.0)
    for name in ("source_vectors", "target_vectors", "output_bias"):
        old[name] = torch.arange(float(len(old[name]))).reshape(old[name].shape)
    layers = SimpleNamespace(encoder_layers=1, decoder_layers=1)
    differences = SimpleNamespace(init_differences=["vocabulary", "decoder"])
    config: Any = SimpleNamespace(model=layers, training=differences)
    start: Any = SimpleNamespace(
        config=config, tokenizers=(tokenizer("ab"), tokenizer("abc")),
        model=SimpleNamespace(state_dict=lambda: old),
    )  # fmt: skip
    new: Any = tokenizer("bx"), tokenizer("cxa")
    weights, table = initial_weights(config, start, new, model(6, 7, -1.0))
    special = [0, 1, 2, 3]
    assert weights["source_vectors"].flatten().tolist() == [*special, 5, -1]
    for name in ("target_vectors", "output_bias"):
        assert weights[name].flatten().tolist() == [*special, 6, -1, 4]
    taken = {name for name, value in weights.items() if (value == 9).all()}
    assert taken == {"encoder.0.a.weight", "encoder.0.a.bias", "encoder_norm.weight"}
    rows = [line.split() for line in table.splitlines()[1:]]
    assert [(row[0], int(row[1]), row[2].rstrip(":")) for row in rows] == [
        ("source_vectors", 6, "resized"), ("target_vectors", 7, "resized"),
        ("output_bias", 7, "resized"), ("encoder.0", 8, "taken"), ("decoder.0", 4, "new"),
        ("encoder_norm", 5, "taken"), ("decoder_norm", 5, "new"),
    ]  # fmt: skip


def test_a_difference_that_is_not_named_is_an_error_with_the_key_to_set(base: Path) -> None:
    with pytest.raises(ConfigError, match=r"encoder_layers: was 1, is 2") as caught:
        started(base, [], model=CONFIG["model"] | {"encoder_layers": 2})
    assert "--set 'training.init_differences=[layers]'" in caught.value.fix
    with pytest.raises(ConfigError, match=r"model\.num_heads") as caught:
        started(base, ["layers", "encoder"], model=CONFIG["model"] | {"num_heads": 1})
    assert caught.value.fix == "Remove these keys, so that the values of that model are used."
    with pytest.raises(ValueError, match="lora adapts the whole model"):
        train("new", init_from=str(base), init_differences=["layers"], lora={})


def test_omitted_keys_of_a_model_are_those_of_init_from(base: Path) -> None:
    recorded = yaml.safe_load((base / "config.yaml").read_text())
    recorded["data"]["language_tags"] = "both"
    (base / "config.yaml").write_text(yaml.safe_dump(recorded), encoding="utf-8")
    values = {key: CONFIG[key] for key in ("name", "source_language", "target_language", "data")}
    values["training"] = {"init_from": str(base), "max_steps": 1}
    values["model"] = {"dropout": 0.2}
    Path("new.yaml").write_text(yaml.safe_dump(values))
    found = load_config("new.yaml").model_dump(mode="json")
    assert found["model"] == recorded["model"] | {"dropout": 0.2}
    for name in ("tokenizer", "decoding"):
        assert found[name] == recorded[name]
    assert found["data"]["language_tags"] == "both"
    other = load_config("new.yaml", ["model.preset=tiny", "training.init_differences=[vocabulary]"])
    assert other.model.model_dim != recorded["model"]["model_dim"]
    assert other.tokenizer.vocab_size != recorded["tokenizer"]["vocab_size"]
    assert other.language_tags is None
