"""LoRA: only adapters are trained and saved; everything else sees the merged model."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from nmt.checkpoint.files import MODEL, adapter_record, checkpoint_dir, load_tensors
from nmt.checkpoint.model_folder import find_model, load_model
from nmt.commands.average import average
from nmt.commands.options import AverageOptions
from nmt.config.training import LoraConfig, OptimizerConfig
from nmt.device.precision import Precision
from nmt.errors import CheckpointError, ConfigError
from nmt.extras.adaptation.lora import AdaptedLinear, add_adapters, find_base, merge
from nmt.extras.exchange.export import export
from nmt.extras.exchange.hub import push
from nmt.extras.exchange.options import ExportOptions, PushOptions
from nmt.model.transformer import Transformer
from nmt.training.optimizer import ModelOptimizer, freeze
from tests.examples import FEW
from tests.extras.adaptation.conftest import train
from tests.training.small import BF16, batch_of, small_model, updater_of

LORA = {"rank": 2, "alpha": 8.0}


def adapted(config: LoraConfig, **options: object) -> tuple[Transformer, dict[str, Tensor]]:
    """A small model whose adapters are not zero, and the weights that training would save."""
    model = small_model(**options)
    add_adapters(model, config)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    for parameter in trained.values():
        nn.init.normal_(parameter, std=0.3)
    return model.eval(), {name: p.detach() for name, p in trained.items()}


def test_an_adapter_adds_alpha_by_rank_times_b_a_x() -> None:
    # A x = 2 * 1 + 1 * 3 = 5; B A x = (5, -10); alpha / rank = 6 / 1; W x + b = (1, 3) + (1, 0).
    layer = nn.Linear(2, 2)
    layer.weight.data, layer.bias.data = torch.eye(2), torch.tensor([1.0, 0.0])
    found = AdaptedLinear(layer, [2], LoraConfig(rank=1, alpha=6.0))
    found.lora_a[0].data = torch.tensor([[2.0, 1.0]])
    found.lora_b[0].data = torch.tensor([[1.0], [-2.0]])
    assert found(torch.tensor([[1.0, 3.0]])).tolist() == [[2 + 30, 3 - 60]]


def test_dropout_leaves_out_inputs_of_the_adapter_but_not_of_the_layer() -> None:
    # x = 1: the layer gives 3, and the adapter 0 or, with dropout 0.5, 1 / (1 - 0.5).
    layer = nn.Linear(1, 1)
    layer.weight.data, layer.bias.data = torch.tensor([[2.0]]), torch.tensor([1.0])
    adapted = AdaptedLinear(layer, [1], LoraConfig(rank=1, alpha=1.0, dropout=0.5))
    for matrix in (*adapted.lora_a, *adapted.lora_b):
        matrix.data.fill_(1.0)
    ones = torch.ones(400, 1)
    outputs = adapted.train()(ones)
    assert {*outputs.flatten().tolist()} == {3.0, 5.0}
    assert 0.4 < (outputs == 3).float().mean() < 0.6
    assert (adapted.eval()(ones) == 4).all()


@FEW
@given(
    rank=st.integers(1, 5),
    alpha=st.floats(0.5, 64),
    layers=st.sets(st.sampled_from(["attention", "feed-forward", "embeddings"]), min_size=1),
    options=st.sampled_from([
        {}, {"num_kv_heads": 1}, {"activation": "swiglu"}, {"bias": False}, {"embeddings": "tied"},
        {"embeddings": "separate", "output_bias": True}, {"decoder_model_dim": 12},
    ]),
)  # fmt: skip
def test_the_merged_model_computes_what_the_adapted_model_computes(
    rank: int, alpha: float, layers: set[str], options: dict[str, Any]
) -> None:
    if "decoder_model_dim" in options:
        options = options | {"embeddings": "decoder-tied"}
    config = LoraConfig.model_validate({"rank": rank, "alpha": alpha, "layers": tuple(layers)})
    model, saved = adapted(config, **options)
    merged, batch = small_model(**options).eval().double(), batch_of([3, 5])
    before = merged(batch.source, batch.target)
    merge(
        merged.state_dict(), {name: tensor.double() for name, tensor in saved.items()}, alpha / rank
    )
    expected = model.double()(batch.source, batch.target)
    assert not torch.allclose(before, expected, atol=1e-3)
    assert torch.allclose(merged(batch.source, batch.target), expected, atol=1e-10)


def test_an_adapted_model_starts_as_the_base_model_and_trains_adapters_only() -> None:
    model, batch = small_model(), batch_of([4, 2])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    expected = model.eval()(batch.source, batch.target)
    freeze(model, ["encoder"])
    add_adapters(model, LoraConfig(rank=2))
    assert torch.equal(model(batch.source, batch.target), expected)
    optimizer = ModelOptimizer(
        model, OptimizerConfig(kind="muon"), torch.float32, frozen_dtype=torch.float32
    )
    updater = updater_of(model, optimizer)
    for _ in range(2):  # B is zero at first, so A has no gradient
        updater([batch], 0.1)
    after = model.state_dict()
    changed = {name for name in after if name not in before or not after[name].equal(before[name])}
    assert changed == {*optimizer.weights()}
    assert all(re.fullmatch(r"decoder\..*\.lora_[ab]\.\d", name) for name in changed)


@pytest.mark.parametrize("precision", [BF16, Precision("float16", "cpu")])
def test_frozen_weights_are_held_once_in_16_bits_and_lent_in_32(precision: Precision) -> None:
    """The second is like a GPU: under autocast, trained weights and vectors have 32 bits."""
    model, dtype = small_model(), precision.dtype
    add_adapters(model, LoraConfig(rank=2, layers=("attention",)))
    optimizer = ModelOptimizer(model, OptimizerConfig(), precision.weight_dtype, frozen_dtype=dtype)
    trained = [p for p in model.parameters() if p.requires_grad]
    frozen = [p for p in model.parameters() if not p.requires_grad]
    assert {p.dtype for p in trained} == {precision.weight_dtype}
    assert {p.dtype for p in frozen if p.ndim > 1} == {dtype}
    assert optimizer.parameters._master.numel() == sum(p.numel() for p in trained)
    updater = updater_of(model, optimizer, precision)
    assert not updater([batch_of([4, 2])], 0.1).skipped
    with optimizer.parameters.lend(optimizer.weights()):
        assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert {p.dtype for p in frozen if p.ndim > 1} == {dtype}


def test_nothing_to_train_is_an_error() -> None:
    model = small_model()
    freeze(model, ["encoder", "decoder"])
    with pytest.raises(ConfigError, match=r"lora\.layers and training\.freeze leave no parameter"):
        add_adapters(model, LoraConfig())


@pytest.mark.parametrize("ema_decay", [None, 0.9])
@pytest.mark.long
def test_a_resumed_run_ends_with_the_same_bytes(base: Path, ema_decay: float | None) -> None:
    options: dict[str, Any] = {"init_from": str(base), "lora": {**LORA, "dropout": 0.1}}
    options |= {"ema_decay": ema_decay, "optimizer": {"kind": "muon"}}
    whole = train("whole", **options)
    train("cut", **options, max_steps=7)
    cut = train("cut", **options)
    for name in (MODEL, "optimizer.safetensors"):
        first, second = (checkpoint_dir(run, 10) / name for run in (whole, cut))
        assert first.read_bytes() == second.read_bytes()
    assert adapter_record(checkpoint_dir(cut, 10) / MODEL) == {
        "base": find_model(base).sha256,
        "scale": 4.0,
    }
    assert "the other weights are frozen and are not saved" in (whole / "log.txt").read_text()


def test_all_readers_get_merged_weights_from_any_working_directory(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lora = {"rank": 2, "layers": ["attention", "embeddings"]}
    run = train("lora", init_from=str(base), lora=lora)
    average(AverageOptions(run=run, output=Path("mean")))
    export(ExportOptions(model=run, output=Path("out"), checkpoint="last"))
    with pytest.raises(ConfigError, match="mean contains adapters only"):
        push(PushOptions(folder=Path("mean"), name="org/name", dry_run=True))
    saved = [load_tensors(checkpoint_dir(run, step) / MODEL) for step in (5, 10)]
    assert {*saved[0]} > {"source_vectors"}
    mean = {name: (value + saved[1][name]) / 2 for name, value in saved[0].items()}
    # The export needs no base model; the other two find it beside their folder.
    for name, adapters, needs in (
        ("runs/lora", saved[1], True),
        ("mean", mean, True),
        ("out", saved[1], False),
    ):
        expected = load_model(base).model.state_dict()
        merge(expected, adapters, 16.0)
        with monkeypatch.context() as patch:
            place = Path(name).resolve()
            patch.chdir("/")
            found = load_model(place, "last")
        assert bool(adapter_record(found.folder / MODEL)) == needs
        state = found.model.state_dict()
        assert all(torch.allclose(state[key], expected[key], atol=1e-6) for key in expected)


def test_the_base_of_adapters_can_be_any_checkpoint_of_a_run_or_their_average(base: Path) -> None:
    average(AverageOptions(run=base, output=base / "average"))
    for name in ("step-5", "step-10", "average"):
        files = find_model(base, name)
        assert find_base(base, Path("runs/lora"), files.sha256).folder == files.folder


def test_a_base_model_that_is_missing_or_changed_is_one_error_with_its_fix(base: Path) -> None:
    options: dict[str, Any] = {"init_from": str(base), "lora": LORA, "max_steps": 5}
    run = train("lora", **options)
    # The base model is trained further: its last checkpoint is another one, but the old one exists.
    shutil.copytree(base / "checkpoints/step-00000010", base / "checkpoints/step-00000012")
    load_model(run)
    aside = base.rename("aside")
    with pytest.raises(
        CheckpointError, match="of the base model runs/base, which does not exist"
    ) as caught:
        load_model(run)
    assert "`nmt train CONFIG --set training.init_from=FOLDER`" in caught.value.fix
    shutil.copytree(run, run.with_name("copy"))
    train("copy", **options | {"init_from": str(aside), "max_steps": 6})
    train("base", seed=2)
    for action in (lambda: load_model(run), lambda: train("lora", **options | {"max_steps": 9})):
        with pytest.raises(CheckpointError, match="weights of runs/base have changed") as caught:
            action()
        assert "Restore the weights" in caught.value.fix
    shutil.rmtree(base)
    aside.rename(base)
    train("lora", **options | {"max_steps": 9})
