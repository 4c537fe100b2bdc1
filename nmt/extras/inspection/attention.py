"""``nmt inspect MODEL attention``: which tokens each head reads, and how much of each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nmt.errors import ConfigError
from nmt.extras.inspection.figure import Figure, Grid, Heatmap, Links, Matrix, Part, Step, Steps
from nmt.extras.inspection.recording import Kind, record
from nmt.extras.inspection.subject import MAX_HEADS, Subject

KINDS: dict[Kind, str] = {
    "encoder": "Encoder self-attention",
    "decoder": "Decoder self-attention",
    "cross": "Attention of the decoder to the source",
}
_DECODED = "token read \N{RIGHTWARDS ARROW} token predicted"
_MAX_WEIGHTS = 100_000  # That one kind of attention draws: a page is to stay below a few megabytes.
_EXPLANATION = """\
Each row is a softmax: how much of every token in the columns one token reads. The decoder's rows \
name its input and the token that it is about to predict from it; what stands right of the \
diagonal of its self-attention is masked. The mean over the heads of the upper half of the \
decoder's layers is what `nmt translate` sums to words with `attention`."""


@torch.inference_mode()
def attention(subject: Subject) -> Part:
    """Grid, arcs and heatmaps of the encoder, the decoder and the attention between them."""
    recording = record(subject.model, subject.source, subject.target)
    figures: list[Figure] = []
    for kind, title in KINDS.items():
        weights = [each.heads().weights for each in recording.attention(kind)]
        figures += _figures(subject, kind, title, weights)
    mean = recording.mean_attention().tolist()
    note = "Mean over the heads of the upper half of the decoder's layers."
    figures.append(_heatmap(subject, "cross", f"{KINDS['cross']}, mean", mean, note))
    return Part("attention", "Attention", _EXPLANATION, figures)


def _figures(subject: Subject, kind: Kind, title: str, weights: Sequence[Tensor]) -> list[Figure]:
    """One kind of attention: all heads small, then layer by layer as arcs and as a heatmap."""
    num_layers, num_cells, heads = len(weights), weights[0][0].numel(), subject.heads
    layers, note = subject.layers(num_layers), ""
    if len(heads) > MAX_HEADS or len(heads) * num_cells > _MAX_WEIGHTS:
        raise ConfigError(
            f"{len(heads)} heads are too many to draw, with {num_cells:,} weights each.",
            fix="Choose a few, such as `head` 1,2, or pass a shorter sentence.",
        )
    num_heads = len(layers) * len(heads)
    if num_heads > MAX_HEADS or num_heads * num_cells > _MAX_WEIGHTS:
        layers = [num_layers]
        note = f"Only the top one of {num_layers} layers is drawn; set `layer` for another one."
    if not layers:  # the chosen layer exists in the taller stack only
        return []
    names, grid, steps = [layer_name(layer, num_layers) for layer in layers], [], []
    for name, layer in zip(names, layers, strict=True):
        of_layer = weights[layer - 1]
        rows = {f"head {head}": _rows(of_layer[head - 1], kind) for head in heads}
        grid.append([_heatmap(subject, kind, f"{name}, {k}", x) for k, x in rows.items()])
        shown = rows
        if not subject.choice.head:
            shown = {"mean of all heads": _rows(of_layer.mean(0), kind)}
        maps = [_heatmap(subject, kind, f"{title}, {name}, {k}", x) for k, x in shown.items()]
        arcs = Links(f"{title}, {name}", *_axes(subject, kind), rows)
        steps.append(Step(name, [arcs, *maps]))
    overview = Grid(title, names, [f"head {head}" for head in heads], grid, note)
    return [overview, Steps(f"{title}, layer by layer", steps)]


def _heatmap(subject: Subject, kind: Kind, title: str, rows: Matrix, note: str = "") -> Heatmap:
    down = "token that reads" if kind == "encoder" else _DECODED
    return Heatmap(title, rows, *_axes(subject, kind), note, 0.0, 1.0, "token read", down)


def _axes(subject: Subject, kind: Kind) -> tuple[Sequence[str], Sequence[str]]:
    """Labels of rows and columns."""
    rows = subject.source_labels if kind == "encoder" else subject.target_labels
    return rows, subject.read_labels if kind == "decoder" else subject.source_labels


def _rows(weights: Tensor, kind: Kind) -> Matrix:
    """(T, S) -> rows of numbers; None under the causal mask."""
    rows = weights.tolist()
    if kind != "decoder":
        return rows
    return [[*row[:end], *[None] * (len(row) - end)] for end, row in enumerate(rows, 1)]


def layer_name(layer: int, num_layers: int) -> str:
    """Return what to call a layer, numbered from 1.

    >>> layer_name(1, 1), layer_name(2, 3), layer_name(3, 3)
    ('layer 1', 'layer 2', 'layer 3 (top)')
    """
    return f"layer {layer}{' (top)' if layer == num_layers > 1 else ''}"


def off_diagonal(rows: int, columns: int) -> Tensor:
    """Return how far each column is from where a row stands: (T, S), in columns.

    Between sentences of other lengths a token stands where it would if both were as long: the
    first at the first and the last at the last.
    """
    places = torch.arange(rows) * ((columns - 1) / max(rows - 1, 1))
    return (torch.arange(columns) - places.unsqueeze(1)).abs()
