"""Counts of parameters, the diagram walked with the modules of the model, and tensors of a pass."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nmt.config.filling import MODEL_PRESETS
from nmt.config.loader import load_config
from nmt.config.model import ModelConfig
from nmt.extras.inspection.command import make_part
from nmt.extras.inspection.figure import Stack, Table, figure_lines
from nmt.extras.inspection.inspected import Inspected
from nmt.extras.inspection.structure import PartCount, count_parts, stack_diagram, trace_tensors
from nmt.model.attention import Segments
from nmt.model.layers import DecoderLayer, EncoderLayer, Residual
from nmt.model.positions import POSITIONS, PositionScheme, RelativePositions
from nmt.model.transformer import Transformer, build_model
from nmt.packed import Packed
from tests.model.small import SMALL, VARIANTS, packed, random_parameters, small_model

SIZES = 50, 50
CONFIGS = Path(__file__).parents[3] / "configs"


def diagram_of(**options: Any) -> tuple[Stack, Stack]:
    encoder, decoder = stack_diagram(ModelConfig.model_validate({**SMALL, **options}), SIZES).stacks
    return encoder, decoder


def walk(model: Transformer, stack: Stack, source: Packed, target: Packed | None) -> Tensor:
    """Compute the boxes of a stack from bottom to top, each with its module of the model."""
    ids = target or source
    memory = model.encode(source) if target else torch.empty(0)
    layers = model.decoder if target else model.encoder
    embed = model.target_embedding if target else model.source_embedding
    table = model.target_embeddings if target else model.source_vectors
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
        "cross-attention": lambda x: layer.cross_attention(x, memory, Segments(ids, source)),
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


@pytest.mark.parametrize("variant", sorted(VARIANTS))
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
def test_arrows_join_the_boxes_that_share_weights(embeddings: str) -> None:
    model = small_model(embeddings=embeddings)
    found = stack_diagram(model.config, SIZES)
    tables = {
        (0, 0): model.source_vectors,
        (1, 0): model.target_embeddings,
        (1, len(found.stacks[1].boxes) - 2): model.output_weight,
    }
    arrows = {(start, end) for start, end, what in found.arrows if what == "shared weights"}
    assert all(tables[start] is tables[end] for start, end in arrows)
    uses = len(tables) - len({id(table) for table in tables.values()})
    assert len(arrows) == uses
    (start, end, _), *_ = found.arrows
    assert start == (0, len(found.stacks[0].boxes) - 1)
    assert found.stacks[end[0]].boxes[end[1]].label == "cross-attention"


@pytest.mark.parametrize("variant", sorted(VARIANTS))
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


def test_without_gains_the_parameters_are_the_matrices_and_biases_that_a_text_lists() -> None:
    """Of "Transformer Explained in One Single Page", section Variables, at the width of its file.

    d = 8, d_ff = 32, 13 subwords; two stacks of W^Q, W^K, W^V, W^O (4 d^2; the decoder has two
    attentions) and of W_1, b_1, W_2, b_2; one embedding matrix; W^S and b^S.
    """
    model = build_model(load_config(CONFIGS / "one-page.yaml").model, 13, 13)
    feed_forward = 8 * 32 + 32 + 32 * 8 + 8
    stacks = 2 * (4 * 64 + feed_forward) + 2 * (8 * 64 + feed_forward)
    assert count_parts(model)[-1].count == 13 * 8 + stacks + 8 * 13 + 13
    assert sum(parameter.numel() for parameter in model.parameters()) == 3_965


def test_the_diagrams_of_the_five_texts_differ() -> None:
    """The changes are those of the table in configs/README.md."""
    changes: list[tuple[str, list[str]]] = [
        ("matrix-form", []), ("from-scratch", []), ("base", []),
        ("base", ["model.first_position=1", "model.bias=[feed-forward, norm]"]),
        ("base", ["model.norm=layer-std", "model.norm_gain=false", "model.bias=[feed-forward]"]),
        ("base", ["model.positions=sinusoidal-halves"]),
    ]  # fmt: skip
    drawn = [
        "\n".join(
            figure_lines(stack_diagram(load_config(CONFIGS / f"{name}.yaml", x).model, SIZES))
        )
        for name, x in changes
    ]
    assert len({*drawn}) == len(drawn)
    annotated, notes = drawn[3:5]
    assert "8 heads of 64, no bias" in annotated
    assert "the first is 1" in annotated
    assert "divides by (std + 1 " in notes
    assert "(std + " not in annotated
    assert all("dropout" in text for text in drawn)


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_traced_tensors_equal_those_of_hooks(variant: str) -> None:
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
        ["source ids", "(6,)", "int64"],
        ["target ids", "(3,)", "int64"],
    ]
    assert len(found) == len(seen) + 3
    for (_, shape, dtype, mean, spread), tensor in zip(found[2:], seen, strict=False):
        assert (shape, dtype) == (str(tuple(tensor.shape)), "float32")
        assert mean == pytest.approx(float(tensor.double().mean()), abs=1e-6)
        assert spread == pytest.approx(float(tensor.double().std(correction=0)), abs=1e-6)
    assert found[-1][:2] == ["logits", "(3, 50)"]
    names = [row[0] for row in found]
    assert len(set(names)) == len(names)


def test_one_layer_of_each_stack_can_be_chosen_and_no_hook_stays() -> None:
    model = small_model()
    names = [str(row[0]) for row in trace_tensors(model, packed([4]), packed([3]), 2)]
    assert {"encoder layer 2: self attention", "decoder layer 2"} < set(names)
    assert not [name for name in names if "layer 1" in name]
    assert not any(module._forward_hooks for module in model.modules())


def meta_model(vocab_size: int, **options: object) -> Transformer:
    with torch.device("meta"):
        return build_model(ModelConfig.model_validate(options), vocab_size, vocab_size)


def by_name(model: Transformer) -> dict[str, PartCount]:
    return {part.name: part for part in count_parts(model)}


def formula(part: PartCount) -> str:
    return part.arithmetic.replace("\N{MULTIPLICATION SIGN}", "x")


def test_the_base_model_with_37_000_words_has_the_published_numbers() -> None:
    parts = by_name(meta_model(37_000))
    assert {name: part.count for name, part in parts.items()} == {
        "source, target and output embeddings": 18_944_000,
        "encoder": 18_914_304,
        "encoder layer": 3_152_384,
        "self-attention": 1_050_624,
        "norm": 1_024,
        "feed-forward": 2_099_712,
        "decoder": 25_224_192,
        "decoder layer": 4_204_032,
        "cross-attention": 1_050_624,
        "total": 63_082_496,
    }
    assert formula(parts["self-attention"]) == "4 x 8 x 512 x 64 + 4 x 512"
    assert formula(parts["feed-forward"]) == "2 x 512 x 2,048 + 2,048 + 512"
    assert formula(parts["encoder layer"]) == "1,050,624 + 2 x 1,024 + 2,099,712"
    assert formula(parts["decoder layer"]) == "1,050,624 + 3 x 1,024 + 1,050,624 + 2,099,712"
    assert formula(parts["encoder"]) == "6 x 3,152,384"
    assert formula(parts["total"]) == "18,944,000 + 18,914,304 + 25,224,192"


def check_sums(model: Transformer) -> None:
    """The total equals that of torch; the copies of all parts of a layer add up to the stack."""
    *parts, total = count_parts(model)
    assert total.count == sum(parameter.numel() for parameter in model.parameters())
    assert sum(part.count for part in parts if part.depth == 0) == total.count
    inner, layers = (
        sum(part.count * part.copies for part in parts if part.depth == depth) for depth in (2, 1)
    )
    stacks = [*model.encoder.parameters(), *model.decoder.parameters()]
    assert inner == layers == sum(parameter.numel() for parameter in stacks)


@pytest.mark.parametrize("options", [*VARIANTS.values(), *({"preset": x} for x in MODEL_PRESETS)])
def test_the_total_is_the_sum_of_all_parameters(options: dict[str, Any]) -> None:
    check_sums(meta_model(8_000, **options) if "preset" in options else small_model(**options))


@pytest.mark.parametrize("embeddings", ["separate", "decoder-tied", "inputs-shared", "tied"])
def test_shared_embeddings_are_counted_once_and_named_by_their_uses(embeddings: str) -> None:
    parts = count_parts(small_model(embeddings=embeddings))
    tables = [part for part in parts if not part.depth][:-3]
    assert [part.name for part in tables] == {
        "separate": ["source embeddings", "target embeddings", "output embeddings"],
        "decoder-tied": ["source embeddings", "target and output embeddings"],
        "inputs-shared": ["source and target embeddings", "output embeddings"],
        "tied": ["source, target and output embeddings"],
    }[embeddings]
    assert {formula(part) for part in tables} == {"50 x 32"}


def test_grouped_heads_and_gates_have_their_own_formulas() -> None:
    # 4 heads of 8 and 2 key/value heads: queries and output 32 x 32, keys and values 32 x 16.
    assert formula(by_name(small_model(num_kv_heads=2, qk_norm=True))["self-attention"]) == (
        "2 x 4 x 32 x 8 + 2 x 2 x 32 x 8 + 2 x 32 + 2 x 2 x 8 + 2 x 8"
    )
    gated = by_name(small_model(activation="swiglu"))
    assert formula(gated["feed-forward"]) == "3 x 32 x 64 + 2 x 64 + 32"
    # Keys and values of 48 features are made of the encoder's 32.
    assert formula(by_name(small_model(**VARIANTS["two-widths"]))["cross-attention"]) == (
        "2 x 4 x 48 x 12 + 2 x 4 x 32 x 12 + 2 x 48 + 2 x 4 x 12 + 2 x 12"
    )


def test_a_registered_position_scheme_is_counted_too() -> None:
    class Slopes(RelativePositions):
        def __init__(self, heads: int) -> None:
            super().__init__()
            self.slopes = nn.Parameter(torch.ones(heads))

    scheme = PositionScheme(relative=lambda config, _: Slopes(config.num_heads))
    POSITIONS.register("slopes", scheme)
    model = small_model(positions="slopes")
    check_sums(model)
    assert formula(by_name(model)["self-attention"]).endswith(" + 4")


def test_the_table_of_parameters_adds_up() -> None:
    """count = the formula; share = count x copies of all; 4 bytes for each float32."""
    (table,) = make_part("parameters", Inspected(CONFIGS / "base.yaml")).figures
    assert isinstance(table, Table)
    *_, (_, _, total, _, _) = table.rows
    assert isinstance(total, int)
    assert f"{4 * total:,} bytes" in table.note
    for _, arithmetic, count, copies, share in table.rows:
        products = [x.split("\N{MULTIPLICATION SIGN}") for x in str(arithmetic).split("+")]
        assert count == sum(prod(int(x.replace(",", "")) for x in each) for each in products)
        assert isinstance(count, int)
        assert isinstance(copies, int)
        assert share == f"{100 * count * copies / total:.1f}%"


def test_boxes_name_the_dropout_of_their_place() -> None:
    """A dropout of 0 is not named, also if only the decoder's attention has none."""
    options = {"dropout": 0.1, "attention_dropout": 0.2, "activation_dropout": 0.3}
    stacks = diagram_of(**options, decoder_attention_dropout=0.0)
    named = {"add positions": ["0.1"], "add": ["0.1"], "feed-forward": ["0.3"]}
    of_encoder = {**named, "self-attention": ["0.2"]}
    for stack, expected in zip(stacks, (of_encoder, named), strict=True):
        for box in stack.boxes:
            found = re.findall(r"dropout ([\d.]+)", box.detail)
            assert found == expected.get(box.label, []), (stack.title, box.label)


_ATTENTION = {(0, "self-attention"), (1, "self-attention"), (1, "cross-attention")}


def both(label: str) -> set[tuple[int, str]]:
    return {(0, label), (1, label)}


@pytest.mark.parametrize(
    ("change", "boxes"),
    [
        ({"scale_embeddings": False}, both("embedding")),
        ({"decoder_start": "zero"}, {(1, "embedding")}),
        ({"source_bos": True}, {(0, "embedding")}),
        ({"first_position": 1}, both("add positions")),
        ({"positions": "learned"}, both("add positions")),
        ({"num_kv_heads": 2}, _ATTENTION),
        ({"num_kv_heads": 4}, set()),  # the usual number
        ({"qk_norm": True}, _ATTENTION),
        ({"bias": ["feed-forward", "norm"]}, _ATTENTION),
        ({"bias": ["attention", "norm"]}, both("feed-forward")),
        ({"bias": ["attention", "feed-forward"]}, both("norm")),
        ({"attention_dropout": 0.2}, _ATTENTION),
        ({"decoder_attention_dropout": 0.2}, _ATTENTION - {(0, "self-attention")}),
        ({"activation_dropout": 0.2}, both("feed-forward")),
        ({"dropout": 0.2}, both("add positions") | both("add")),
        ({"activation": "silu"}, both("feed-forward")),
        ({"decoder_ff_dim": 48}, {(1, "feed-forward")}),
        ({"norm_epsilon": 0.01}, both("norm")),
        ({"norm": "layer-std"}, both("norm")),
        ({"norm_gain": False}, both("norm")),
        ({"output_bias": True}, {(1, "output projection")}),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",  # sets have no order
)
def test_each_option_is_named_in_the_boxes_of_its_place(
    change: dict[str, Any], boxes: set[tuple[int, str]]
) -> None:
    plain, changed = diagram_of(), diagram_of(**change)
    found = {
        (side, box.label)
        for side in (0, 1)
        for box, other in zip(plain[side].boxes, changed[side].boxes, strict=True)
        if box != other
    }
    assert found == boxes


@pytest.mark.parametrize(
    ("norm", "epsilon"),
    [
        ("layer", "10\N{SUPERSCRIPT MINUS}\N{SUPERSCRIPT FIVE}"),
        ("rms", "10\N{SUPERSCRIPT MINUS}\N{SUPERSCRIPT SIX}"),
    ],
)
@pytest.mark.parametrize("bias", [True, False, ["attention"], ["feed-forward"], ["norm"]])
def test_boxes_have_the_biases_of_their_modules(norm: str, epsilon: str, bias: object) -> None:
    """RMSNorm has none."""
    model = small_model(norm=norm, bias=bias)
    (_, decoder), layer = diagram_of(norm=norm, bias=bias), model.decoder[0]
    modules = {
        "self-attention": layer.get_submodule("self_attention.output"),
        "cross-attention": layer.get_submodule("cross_attention.output"),
        "feed-forward": layer.get_submodule("feed_forward.outer"),
        "norm": layer.get_submodule("self_residual.norm"),
    }
    expected = {
        label: getattr(module, "bias", None) is not None for label, module in modules.items()
    }
    details = {box.label: box.detail for box in decoder.boxes}
    assert {label: "no bias" not in details[label] for label in modules} == expected
    assert epsilon in details["norm"]


def test_every_line_of_a_repeated_layer_says_how_often() -> None:
    """The encoder of the paper: attention, add, norm, feed-forward, add, norm, two times."""
    diagram = stack_diagram(ModelConfig.model_validate(SMALL), SIZES)
    lines = figure_lines(diagram)
    encoder = lines[: lines.index("decoder, from top to bottom")]
    repeated = [
        line.split()[2] for line in encoder if line.startswith("   2 \N{MULTIPLICATION SIGN}")
    ]
    assert repeated == ["norm", "add", "feed-forward", "norm", "add", "self-attention"]
    assert len(encoder) == 1 + 6 + 2  # the title, and embedding and positions below


def test_a_configuration_is_counted_without_training() -> None:
    inspected = Inspected(CONFIGS / "base.yaml")
    (table,) = make_part("parameters", inspected).figures
    assert isinstance(table, Table)
    vocab_size = inspected.config.tokenizer.vocab_sizes[0]
    assert table.rows[-1][2] == 63_082_496 + (vocab_size - 37_000) * 512
    assert table.rows[-1][4] == "100.0%"
