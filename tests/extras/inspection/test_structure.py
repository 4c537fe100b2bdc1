"""The diagram walked with the modules of the built model, and tensors against hand-set hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nmt.config.model import ModelConfig
from nmt.extras.inspection.diagram import stack_diagram
from nmt.extras.inspection.figure import Stack
from nmt.extras.inspection.structure import trace_tensors
from nmt.model.layers import DecoderLayer, EncoderLayer, Residual
from nmt.model.transformer import Transformer
from nmt.packed import Packed
from tests.model.small import SMALL, VARIANTS, packed, random_parameters, small_model

SIZES = 50, 50


def diagram_of(**options: Any) -> tuple[Stack, Stack]:
    encoder, decoder = stack_diagram(ModelConfig.model_validate({**SMALL, **options}), SIZES).stacks
    return encoder, decoder


def boxes_of(stack: Stack) -> list[str]:
    """Labels, with the layers written out."""
    assert stack.repeated
    first, last, number = stack.repeated
    labels = [box.label for box in stack.boxes]
    return labels[:first] + labels[first : last + 1] * number + labels[last + 1 :]


def test_the_paper_has_its_norms_after_the_sums_and_pre_norm_before_the_sublayers() -> None:
    encoder, decoder = diagram_of(encoder_layers=1, decoder_layers=1)
    inputs = ["embedding", "add positions"]
    assert boxes_of(encoder) == [
        *inputs, "self-attention", "add", "norm", "feed-forward", "add", "norm",
    ]  # fmt: skip
    assert boxes_of(decoder) == [
        *inputs, "self-attention", "add", "norm", "cross-attention", "add", "norm",
        "feed-forward", "add", "norm", "output projection", "softmax",
    ]  # fmt: skip
    encoder, _ = diagram_of(encoder_layers=1, norm_position="pre", positions="rotary")
    assert boxes_of(encoder) == [
        "embedding", "norm", "self-attention", "add", "norm", "feed-forward", "add", "norm",
    ]  # fmt: skip
    assert "rotary" in encoder.boxes[2].detail


def walk(model: Transformer, stack: Stack, source: Packed, target: Packed | None) -> Tensor:
    """Follow a stack's boxes upwards, each by the module of the model that it stands for."""
    ids = target or source
    memory = model.encode(source) if target else torch.empty(0)
    layers = model.decoder if target else model.encoder
    embed = model.target_embedding if target else model.source_embedding
    table = model.target_table if target else model.source_vectors
    vectors = embed.position_table(ids.max_length)
    assert stack.repeated
    first, last, number = stack.repeated
    upper = iter(layers)
    norms: Iterator[nn.Module] = iter(())
    layer: Any = None

    def next_norm(values: Tensor) -> Tensor:
        final = model.decoder_norm if target else model.encoder_norm
        return next(norms, final)(values)

    run: dict[str, Callable[[Tensor], Tensor]] = {
        "embedding": lambda _: embed(ids.ids, ids.positions, table, None),
        "add positions": lambda _: embed(ids.ids, ids.positions, table, vectors),
        "self-attention": lambda x: layer.self_attention(x, ids, causal=target is not None),
        "cross-attention": lambda x: layer.cross_attention(x, memory, (ids, source)),
        "feed-forward": lambda x: layer.feed_forward(x),
        "add": lambda x: x + seen[-1 - box.residual],
        "norm": next_norm,
        "output projection": model.logits,
        "softmax": lambda x: x.softmax(-1),
    }
    seen = [torch.empty(0)]
    inner = list(range(first, last + 1)) * number
    for index in [*range(first), *inner, *range(last + 1, len(stack.boxes))]:
        if index == first:
            assert next(norms, None) is None
            layer = next(upper)
            norms = iter([m.norm for m in layer.children() if isinstance(m, Residual)])
        box = stack.boxes[index]
        assert ("causal" in box.detail) == (target is not None and box.label == "self-attention")
        seen.append(run[box.label](seen[-1]))
    assert next(upper, None) is None
    return seen[-1]


@pytest.mark.parametrize("variant", sorted(VARIANTS.keys() - {"ssru"}))
@torch.inference_mode()
def test_walking_the_diagram_gives_the_output_of_the_model(variant: str) -> None:
    model = small_model(**VARIANTS[variant])
    random_parameters(model)
    source, target = packed([5]), packed([4])
    encoder, decoder = diagram_of(**VARIANTS[variant])
    torch.testing.assert_close(walk(model, encoder, source, None), model.encode(source))
    expected = model.logits(model(source, target)).softmax(-1)
    torch.testing.assert_close(walk(model, decoder, source, target), expected)


@pytest.mark.parametrize("embeddings", ["separate", "decoder-tied", "inputs-shared", "tied"])
def test_arrows_join_the_boxes_whose_table_is_one_parameter(embeddings: str) -> None:
    model = small_model(embeddings=embeddings)
    found = stack_diagram(model.config, SIZES)
    tables = {
        (0, 0): model.source_vectors,
        (1, 0): model.target_table,
        (1, len(found.stacks[1].boxes) - 2): model.output_weight,
    }
    arrows = {(start, end) for start, end, what in found.arrows if what == "one table"}
    assert all(tables[start] is tables[end] for start, end in arrows)
    uses = len(tables) - len({id(table) for table in tables.values()})
    assert len(arrows) == uses
    (start, end, _), *_ = found.arrows
    assert start == (0, len(found.stacks[0].boxes) - 1)
    assert found.stacks[end[0]].boxes[end[1]].label == "cross-attention"


@pytest.mark.parametrize("variant", sorted(VARIANTS.keys() - {"ssru"}))
def test_sizes_in_the_diagram_are_those_of_the_modules(variant: str) -> None:
    model = small_model(**VARIANTS[variant])
    for stack, layers in zip(
        diagram_of(**VARIANTS[variant]), (model.encoder, model.decoder), strict=True
    ):
        layer = layers[0]
        assert isinstance(layer, EncoderLayer | DecoderLayer)
        details = {box.label: box.detail for box in stack.boxes}
        attention, ff = layer.self_attention, layer.feed_forward
        assert f"{attention.num_heads} heads of {attention.head_dim}" in details["self-attention"]
        grouped = attention.num_kv_heads != attention.num_heads
        assert (f"{attention.num_kv_heads} of keys" in details["self-attention"]) == grouped
        assert ("normalised" in details["self-attention"]) == bool(len(attention.heads))
        width, inner = ff.outer.out_features, ff.outer.in_features
        assert details["feed-forward"].startswith(f"{width} to {inner} to {width}")


@pytest.mark.parametrize("variant", sorted(VARIANTS.keys() - {"ssru"}))
def test_tensors_are_those_that_hooks_see(variant: str) -> None:
    model = small_model(**VARIANTS[variant])
    source, target = packed([6]), packed([3])
    seen: list[Tensor] = []
    handles = [
        module.register_forward_hook(lambda _module, _inputs, output: seen.append(output.clone()))
        for module in model.modules()
        if not isinstance(module, nn.Identity)
    ]
    found = trace_tensors(model, source, target)
    for handle in handles:
        handle.remove()
    assert [row[:3] for row in found[:2]] == [
        ("source ids", "(6,)", "int64"),
        ("target ids", "(3,)", "int64"),
    ]
    assert len(found) == len(seen) + 3
    for (_, shape, dtype, mean, spread), tensor in zip(found[2:], seen, strict=False):
        assert (shape, dtype) == (str(tuple(tensor.shape)), "float32")
        assert mean == pytest.approx(float(tensor.double().mean()), abs=1e-6)
        assert spread == pytest.approx(float(tensor.double().std(correction=0)), abs=1e-6)
    assert found[-1][:2] == ("logits", "(3, 50)")
    names = [row[0] for row in found]
    assert len(set(names)) == len(names)


def test_one_layer_of_each_stack_can_be_chosen_and_no_hook_stays() -> None:
    model = small_model()
    everything = trace_tensors(model, packed([4]), packed([3]))
    chosen = trace_tensors(model, packed([4]), packed([3]), 2)
    names = [row[0] for row in chosen]
    assert "encoder layer 2: self attention" in names
    assert "decoder layer 2" in names
    assert not [name for name in names if "layer 1" in name]
    assert set(names) < {row[0] for row in everything}
    assert not any(module._forward_hooks for module in model.modules())
