"""The numbers of the field's best-known explanations, from the functions that run a model."""

from __future__ import annotations

from dataclasses import replace

import torch

from nmt.config.model import ModelConfig
from nmt.extras.inspection.figure import Figure, Part, Table
from nmt.extras.inspection.positions import (
    LAYOUTS,
    NUM_POSITIONS,
    encoding_heatmap,
    sinusoid_figures,
)
from nmt.extras.inspection.structure import parameter_table
from nmt.model.attention import mean_weights
from nmt.model.positions import sinusoids
from nmt.model.transformer import build_model

_VOCAB_SIZE, _WIDTH, _HEAD_DIM = 37_000, 512, 64  # Of the base model of Vaswani et al. (2017).
_NUM_SAMPLES = 20_000


def worked_examples() -> Part:
    """Return scores, variances, positions and parameters as texts print them; needs no model."""
    figures: list[Figure] = [_scores(), _variances()]
    for layout, where in LAYOUTS.items():
        figures += sinusoid_figures(layout, 4)
        table = sinusoids(NUM_POSITIONS, _WIDTH, layout)
        title = f"{NUM_POSITIONS} positions of width {_WIDTH}, sines and cosines {where}"
        figures.append(encoding_heatmap(table, title))
    return Part(
        "worked-examples",
        "Worked examples",
        "Numbers that explanations of the Transformer print, by the functions of models here.",
        [*figures, _parameters()],
    )


def _scores() -> Table:
    """Two scores of a query of ones, scaled, and the weights that attention makes of them."""
    query, scores = torch.ones(1, 1, 1, _HEAD_DIM), torch.tensor([112.0, 96.0])
    keys = (scores / _HEAD_DIM).view(1, 2, 1, 1).expand(1, 2, 1, _HEAD_DIM)
    products = (query * keys).sum(-1).flatten()
    weights = mean_weights(query, keys, torch.ones(1, 2, dtype=torch.bool)).flatten()
    rows = [
        ("q . k", *products.tolist()),
        (f"divided by sqrt({_HEAD_DIM})", *(products * _HEAD_DIM**-0.5).tolist()),
        ("softmax", *weights.tolist()),
    ]
    return Table("Attention of one query to two keys", ("", "key 1", "key 2"), rows)


def _variances() -> Table:
    """Measured and expected variance of products of random vectors."""
    generator = torch.Generator().manual_seed(0)
    shape = 2, _NUM_SAMPLES, _HEAD_DIM
    products = torch.randn(shape, generator=generator).prod(0).sum(1)
    scaled = products * _HEAD_DIM**-0.5
    return Table(
        f"Variance of q . k, a sum of {_HEAD_DIM} products of variance 1",
        ("", "expected", f"of {_NUM_SAMPLES:,} random pairs"),
        [
            ("q . k", _HEAD_DIM, products.var().item()),
            (f"q . k / sqrt({_HEAD_DIM})", 1, scaled.var().item()),
        ],
        "Variances of independent terms add up. Undivided, softmax would saturate.",
    )


def _parameters() -> Table:
    """The base model, with what a bias of the output adds."""
    with torch.device("meta"):
        model = build_model(ModelConfig(), _VOCAB_SIZE, _VOCAB_SIZE)
    table = parameter_table(model, f"Parameters of the base model, {_VOCAB_SIZE:,} words, tied")
    total = sum(parameter.numel() for parameter in model.parameters())
    note = (
        f"With an output bias: {total + _VOCAB_SIZE:,}. A well-known text prints 4 x 8 x 512 x 64 "
        f"= 1,050,624 for attention; the product is {4 * 8 * 512 * 64:,}, and its biases are the "
        "rest."
    )
    return replace(table, note=f"{table.note} {note}")
