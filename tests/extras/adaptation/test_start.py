"""A model that only partly matches starts with what it has in common with `init_from`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from nmt.checkpoint.files import MODEL, checkpoint_dir, load_tensors
from nmt.checkpoint.model_folder import load_model
from nmt.commands.config import load_config
from nmt.errors import ConfigError
from nmt.extras.adaptation.start import layers_from
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


def test_a_difference_that_is_not_named_is_an_error_with_the_key_to_set(base: Path) -> None:
    with pytest.raises(ConfigError, match=r"encoder_layers: 1 in that model, 2") as caught:
        started(base, [], model=CONFIG["model"] | {"encoder_layers": 2})
    assert "Set training.init_differences to [layers]" in caught.value.fix
    with pytest.raises(ConfigError, match=r"model\.num_heads") as caught:
        started(base, ["layers", "encoder"], model=CONFIG["model"] | {"num_heads": 1})
    assert "Remove the model section" in caught.value.fix
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
