"""Counts of parameters: the published numbers, and torch's own sum for models of every kind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from nmt.config.model import MODEL_PRESETS, ModelConfig
from nmt.extras.inspection.command import make_part
from nmt.extras.inspection.figure import Diagram, Table
from nmt.extras.inspection.parameters import PartCount, count_parts
from nmt.extras.inspection.subject import Subject
from nmt.model.positions import POSITIONS, PositionScheme, RelativePositions
from nmt.model.transformer import Transformer, build_model
from tests.model.small import VARIANTS, small_model


def meta_model(vocab_size: int, **options: object) -> Transformer:
    with torch.device("meta"):
        return build_model(ModelConfig.model_validate(options), vocab_size, vocab_size)


def by_name(model: Transformer) -> dict[str, PartCount]:
    return {part.name: part for part in count_parts(model)}


def test_the_base_model_with_37_000_words_has_the_published_numbers() -> None:
    parts = by_name(meta_model(37_000))
    assert {name: part.count for name, part in parts.items()} == {
        "source, target and output table": 18_944_000,
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
    assert parts["self-attention"].arithmetic == "4 x 8 x 512 x 64 + 4 x 512"
    assert parts["feed-forward"].arithmetic == "2 x 512 x 2,048 + 2,048 + 512"
    assert parts["encoder layer"].arithmetic == "1,050,624 + 2 x 1,024 + 2,099,712"
    assert parts["decoder layer"].arithmetic == "1,050,624 + 3 x 1,024 + 1,050,624 + 2,099,712"
    assert parts["encoder"].arithmetic == "6 x 3,152,384"
    assert parts["total"].arithmetic == "18,944,000 + 18,914,304 + 25,224,192"


def test_an_output_bias_adds_one_number_a_word() -> None:
    parts = by_name(meta_model(37_000, output_bias=True))
    assert parts["output bias"].count == 37_000
    assert parts["total"].count == 63_119_496


def check_sums(model: Transformer) -> None:
    """The total is torch's; the copies of what a layer holds add up to the stacks."""
    *parts, total = count_parts(model)
    assert total.count == sum(parameter.numel() for parameter in model.parameters())
    assert sum(part.count for part in parts if part.depth == 0) == total.count
    inner = sum(part.count * part.copies for part in parts if part.depth == 2)
    assert inner == sum(part.count * part.copies for part in parts if part.depth == 1)
    layers = [*model.encoder.parameters(), *model.decoder.parameters()]
    assert inner == sum(parameter.numel() for parameter in layers)


@pytest.mark.parametrize("variant", sorted(VARIANTS.keys() - {"ssru"}))
def test_the_total_is_the_sum_of_all_parameters(variant: str) -> None:
    check_sums(small_model(**VARIANTS[variant]))


@pytest.mark.parametrize("preset", MODEL_PRESETS)
def test_the_presets_add_up_on_the_meta_device(preset: str) -> None:
    check_sums(meta_model(8_000, preset=preset))


@pytest.mark.parametrize("embeddings", ["separate", "decoder-tied", "inputs-shared", "tied"])
def test_tables_are_counted_once_and_named_by_their_uses(embeddings: str) -> None:
    tables = [part for part in count_parts(small_model(embeddings=embeddings)) if not part.depth][
        :-3
    ]
    assert [part.name for part in tables] == {
        "separate": ["source table", "target table", "output table"],
        "decoder-tied": ["source table", "target and output table"],
        "inputs-shared": ["source and target table", "output table"],
        "tied": ["source, target and output table"],
    }[embeddings]
    assert {part.arithmetic for part in tables} == {"50 x 32"}


def test_grouped_heads_and_gates_have_their_own_formulas() -> None:
    # 4 heads of 8 and 2 key/value heads: queries and output 32 x 32, keys and values 32 x 16.
    grouped = by_name(small_model(num_kv_heads=2, qk_norm=True))
    assert grouped["self-attention"].arithmetic == (
        "2 x 4 x 32 x 8 + 2 x 2 x 32 x 8 + 2 x 32 + 2 x 2 x 8 + 2 x 8"
    )
    gated = by_name(small_model(activation="swiglu"))
    assert gated["feed-forward"].arithmetic == "3 x 32 x 64 + 2 x 64 + 32"
    wide = by_name(small_model(**VARIANTS["two-widths"]))
    # Keys and values of 48 features are made of the encoder's 32.
    assert wide["cross-attention"].arithmetic == (
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
    assert by_name(model)["self-attention"].arithmetic.endswith(" + 4")


def test_a_configuration_is_counted_and_drawn_without_training() -> None:
    subject = Subject(Path(__file__).parents[3] / "configs" / "base.yaml")
    (table,) = make_part("parameters", subject).figures
    assert isinstance(table, Table)
    vocab_size = subject.config.tokenizer.vocab_sizes[0]
    assert table.rows[-1][2] == 63_082_496 + (vocab_size - 37_000) * 512
    assert table.rows[-1][4] == "100.0%"
    (stacks,) = make_part("diagram", subject).figures
    assert isinstance(stacks, Diagram)
    assert [stack.title for stack in stacks.stacks] == ["encoder", "decoder"]
