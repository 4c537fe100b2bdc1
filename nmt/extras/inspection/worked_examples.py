"""Numbers from well-known explanations of the Transformer, computed by the code of the models."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from nmt.config.model import ModelConfig
from nmt.extras.inspection.figure import DOT, ROOT, TIMES, Figure, Heatmap, Table
from nmt.extras.inspection.inputs import LAYOUTS, NUM_POSITIONS, encoding_heatmap, sinusoid_figures
from nmt.extras.inspection.structure import parameter_table
from nmt.model.attention import mean_weights
from nmt.model.positions import sinusoids
from nmt.model.transformer import build_model

# Base model of Vaswani et al. (2017).
_VOCAB_SIZE = 37_000
_WIDTH = 512
_HEAD_DIM = 64
_NOTES_WIDTH = 256  # In lecture notes.
_NUM_SAMPLES = 20_000  # Random pairs of q and k.


def worked_examples() -> Iterator[Figure]:
    """Worked examples.

    Many explanations of the Transformer contain these numbers. Here they are computed with the same
    code that runs your models, so you can check each step.
    """
    # Keys with equal numbers, so that the products with a query of ones are 112 and 96. Shapes: one
    # sentence, one or two tokens, one head, and its width.
    query = torch.ones(1, 1, 1, _HEAD_DIM)
    keys = torch.tensor([112.0, 96.0]) / _HEAD_DIM
    keys = keys.view(1, 2, 1, 1).expand(1, 2, 1, _HEAD_DIM)
    products = (query * keys).sum(-1).flatten()
    scores = products * _HEAD_DIM**-0.5
    mask = torch.ones(1, 2, dtype=torch.bool)
    weights = mean_weights(query, keys, mask).flatten()
    rows = [
        (f"q {DOT} k", *products.tolist()),
        (f"divided by {ROOT}{_HEAD_DIM}", *scores.tolist()),
        ("softmax", *weights.tolist()),
    ]
    title = "Attention of one query to two keys"
    yield Table(title, ("", "key 1", "key 2"), rows)

    # The vectors q and k of each pair: normal numbers with variance 1.
    generator = torch.Generator().manual_seed(0)
    shape = (2, _NUM_SAMPLES, _HEAD_DIM)
    vectors = torch.randn(shape, generator=generator)
    products = vectors.prod(0).sum(1)  # dot product of each pair: (20,000,)
    scores = products * _HEAD_DIM**-0.5
    variances = [
        (f"q {DOT} k", _HEAD_DIM, products.var().item()),
        (f"q {DOT} k / {ROOT}{_HEAD_DIM}", 1, scores.var().item()),
    ]
    head = ("", "expected", f"measured on {_NUM_SAMPLES:,} random pairs")
    note = "Variances of independent terms add up. Without the division, softmax would saturate."
    title = f"Variance of q {DOT} k, a sum of {_HEAD_DIM} products of variance 1"
    yield Table(title, head, variances, note=note)

    for layout, order in LAYOUTS.items():
        yield from sinusoid_figures(layout, 4)
        table = sinusoids(NUM_POSITIONS, _WIDTH, layout)
        title = f"{NUM_POSITIONS} positions of width {_WIDTH}, sines and cosines {order}"
        yield encoding_heatmap(table, title)
    # As in some lecture notes: a row for each dimension, and a column for each position.
    table = sinusoids(NUM_POSITIONS, _NOTES_WIDTH, "sinusoidal")
    title = f"{_NOTES_WIDTH} dimensions as rows, {NUM_POSITIONS} positions as columns"
    dimensions = list(map(str, range(_NOTES_WIDTH)))
    yield Heatmap(title, table.T.tolist(), dimensions, dimensions[:NUM_POSITIONS])

    with torch.device("meta"):
        model = build_model(ModelConfig(), _VOCAB_SIZE, _VOCAB_SIZE)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    note = (
        f" With an output bias there are {num_parameters + _VOCAB_SIZE:,} parameters. A well-known "
        f"text writes 4 {TIMES} 8 {TIMES} 512 {TIMES} 64 = 1,050,624 for attention. The product is "
        f"{4 * 8 * 512 * 64:,}; biases add the rest."
    )
    title = f"Parameters of the base model with {_VOCAB_SIZE:,} subwords and tied embeddings"
    yield parameter_table(model, title, note)
