"""How a model knows where tokens stand (`positions`): its encoding as colours, numbers and laws.

Formulas are worked out here in float64, apart from `nmt.model.positions`, which a model computes
with: a figure that names a difference compares the two.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor

from nmt.extras.inspection.figure import Figure, Heatmap, Table, Text
from nmt.extras.inspection.subject import Subject
from nmt.model.layers import EncoderLayer
from nmt.model.positions import POSITIONS, sinusoids

NUM_POSITIONS = 20  # Rows of a heatmap.
MAX_WIDTH = 512  # Columns of a heatmap, at most.
TOY_WIDTH = 4
# Sinusoidal ``model.positions`` -> where sines and cosines stand.
LAYOUTS = {
    "sinusoidal": "interleaved",
    "sinusoidal-concatenated": "concatenated",
    "sinusoidal-halves": "in halves",
}
_POSITION, _SHIFT = 2, 3


def rates(dim: int, layout: str) -> Tensor:
    """Return what a position is multiplied with in each pair of sine and cosine: (D / 2,), float64.

    10000^(-2i / D), the paper's; for ``sinusoidal-halves`` 10000^(-i / (D / 2 - 1)).
    """
    half = dim // 2
    steps = max(half - 1, 1) if layout == "sinusoidal-halves" else half
    return 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / steps)


def pair_columns(dim: int, layout: str) -> tuple[Tensor, Tensor]:
    """Return the features that are sines, and those that are the cosines beside them."""
    half = torch.arange(dim // 2)
    return (2 * half, 2 * half + 1) if layout == "sinusoidal" else (half, half + dim // 2)


def shift_matrix(dim: int, layout: str, shift: int) -> Tensor:
    """Return the matrix that makes PE(p + shift) of PE(p), for every p: (D, D), float64.

    It turns each pair by the angle shift x rate: sin(a + b) = sin a cos b + cos a sin b, and
    cos(a + b) = cos a cos b - sin a sin b. Source: Vaswani et al. (2017), section 3.5.
    """
    angles = shift * rates(dim, layout)
    sines, cosines = pair_columns(dim, layout)
    matrix = torch.zeros(dim, dim, dtype=torch.float64)
    matrix[sines, sines] = matrix[cosines, cosines] = angles.cos()
    matrix[sines, cosines], matrix[cosines, sines] = angles.sin(), -angles.sin()
    return matrix


def similarity(table: Tensor) -> Tensor:
    """Return the cosine of each two rows of a table: (P, D) -> (P, P), float64."""
    rows = torch.nn.functional.normalize(table.double(), dim=1)
    return rows @ rows.T


def written_out(dim: int, layout: str, position: int) -> list[str]:
    """Return a line for each number of a position's vector, with its formula; the middle is cut.

    >>> written_out(4, "sinusoidal", 1)[1]
    'PE(1, 1) = cos(1 / 10000^(0/4)) = cos(1 / 1) = 0.540302'
    """
    divisors = (1 / rates(dim, layout)).tolist()
    values = sinusoids(position + 1, dim, layout)[position].tolist()
    step, whole = (1, max(dim // 2 - 1, 1)) if layout == "sinusoidal-halves" else (2, dim)
    lines = [""] * dim
    for name, columns in zip(("sin", "cos"), pair_columns(dim, layout), strict=True):
        for i, feature in enumerate(columns.tolist()):
            lines[feature] = (
                f"PE({position}, {feature}) = {name}({position} / 10000^({step * i}/{whole})) = "
                f"{name}({position} / {divisors[i]:.6g}) = {values[feature]:.6f}"
            )
    return lines if dim <= 2 * TOY_WIDTH else [*lines[:TOY_WIDTH], "...", *lines[-TOY_WIDTH:]]


def encoding_heatmap(table: Tensor, title: str, first: int = 0, note: str = "") -> Heatmap:
    """Return vectors of positions (P, D) as colours, a row for each position from ``first``."""
    if table.shape[1] > MAX_WIDTH:
        note = f"{note} The first {MAX_WIDTH} of {table.shape[1]:,} features.".strip()
    values = table[:, :MAX_WIDTH].tolist()
    rows = [str(first + row) for row in range(len(values))]
    columns = [str(column) for column in range(len(values[0]))]
    return Heatmap(title, values, rows, columns, down="position", across="feature", note=note)


def sinusoid_figures(layout: str, dim: int) -> Iterator[Figure]:
    """Yield one position's vector of a layout in numbers, and the map to a later position."""
    title = f"Position {_POSITION} of width {dim:,}, sines and cosines {LAYOUTS[layout]}"
    yield Text(title, written_out(dim, layout, _POSITION))
    table = sinusoids(NUM_POSITIONS, dim, layout).double()
    moved = table[:-_SHIFT] @ shift_matrix(dim, layout, _SHIFT).T
    error = (moved - table[_SHIFT:]).abs().max().item()
    note = (
        f"M turns each pair by an angle that is the same for every position p. Of width {dim:,}, "
        f"M PE(p) and PE(p + {_SHIFT}) differ by at most {error:.1e} for p below {len(moved)}."
    )
    before, after = sinusoids(NUM_POSITIONS, TOY_WIDTH, layout)[[_POSITION, _POSITION + _SHIFT]]
    rows = torch.column_stack([shift_matrix(TOY_WIDTH, layout, _SHIFT), before, after]).tolist()
    names = f"PE({_POSITION})", f"PE({_POSITION + _SHIFT}) = M PE({_POSITION})"
    head = "M", *[""] * (TOY_WIDTH - 1), *names
    yield Table(f"{_SHIFT} positions further, {LAYOUTS[layout]}", head, rows, note=note)


def positions(subject: Subject) -> Iterator[Figure]:
    """Positions.

    Attention alone does not see order: a scheme of positions shows it. Sinusoids are pairs of a
    sine and a cosine of many wavelengths: the vector some positions further is the same linear map
    of each vector, and the similarity of two depends on their distance alone. Numbers are as in the
    formulas, from the model's first position.
    """
    config, name = subject.config.model, subject.config.model.positions
    figures = [*_absolute(subject), *_relative(subject)]
    yield from figures or [Text("Positions", [f"{name} adds no vectors and turns none."])]
    layout, dim = (name, config.model_dim) if name in LAYOUTS else ("sinusoidal", TOY_WIDTH)
    yield from sinusoid_figures(layout, dim)
    for each, where in LAYOUTS.items():
        toy = sinusoids(NUM_POSITIONS, TOY_WIDTH, each)
        yield encoding_heatmap(toy, f"Width {TOY_WIDTH}, {where}")


def _absolute(subject: Subject) -> Iterator[Figure]:
    """Yield the tables that are added to embeddings; of both sides where they differ."""
    config = subject.config.model
    if (make := POSITIONS[config.positions].absolute) is None:
        return
    first, num_positions = config.first_position, config.position_limit or NUM_POSITIONS
    end = first + min(NUM_POSITIONS, num_positions)
    dims = {"source": config.model_dim, "target": config.decoder_dim}
    tables, is_learned = dict[str, Tensor](), False
    note = f"model.positions is {config.positions}; the first token stands at {first}."
    for side, dim in dims.items():
        module = make(config, dim)
        is_learned = next(module.parameters(), None) is not None
        if subject.has_weights:
            module = getattr(subject.model, f"{side}_embedding").positions or module
        elif is_learned:
            note = "Not trained yet: random."
        tables[f", {side}"] = module.table(end)[first:end].detach()
    if not is_learned and config.model_dim == config.decoder_dim:
        tables = {"": tables[", source"]}
    for side, table in tables.items():
        title = f"Position vectors{side}"
        yield encoding_heatmap(table, title, first, note)
        yield _similarity(table, title, first)


def _relative(subject: Subject) -> Iterator[Figure]:
    """Yield the angles by which self-attention turns queries and keys."""
    config = subject.config.model
    if (make := POSITIONS[config.positions].relative) is None:
        return
    dim = config.model_dim // config.num_heads
    scheme = make(config, dim)
    if subject.has_weights:
        scheme = cast(EncoderLayer, subject.model.encoder[0]).self_attention.positions or scheme
    unit = torch.zeros(NUM_POSITIONS, 1, dim)
    unit[..., : dim // 2] = 1  # along the first feature of each pair: turns into (cos, sin)
    turned = scheme.rotate(unit, torch.arange(NUM_POSITIONS))[:, 0].detach()
    if not torch.equal(turned, unit[:, 0]):
        cos, sin = turned.chunk(2, dim=1)
        note = "Radians, below 2 pi: by this a pair of features of a query or key is turned."
        yield encoding_heatmap(torch.atan2(sin, cos) % math.tau, "Rotation angles", note=note)
        yield _similarity(turned, "One vector, rotated")


def _similarity(table: Tensor, title: str, first: int = 0) -> Heatmap:
    note = "Cosine of the vectors of two positions: equal along each diagonal if distance decides."
    places = [str(first + row) for row in range(len(table))]
    values = similarity(table).tolist()
    return Heatmap(f"{title}: similarity", values, places, places, -1.0, 1.0, note=note)
