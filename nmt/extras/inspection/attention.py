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
_MAX_WEIGHTS = 100_000
"""That one kind of attention draws: a page is to stay below a few megabytes."""
_EXPLANATION = """\
Each row is a softmax: how much of every token in the columns one token reads. The decoder's rows \
name its input and the token that it is about to predict from it; what stands right of the \
diagonal of its self-attention is masked. The mean over the heads of the upper half of the \
decoder's layers is what `nmt translate --attention` sums to words."""


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
    layers, note = _shown_layers(subject, len(weights), weights[0][0].numel())
    if not layers:  # --layer names one of a taller stack
        return []
    heads = {f"head {head}": head - 1 for head in subject.heads}
    names = [layer_name(layer, len(weights)) for layer in layers]
    grid, steps = [], []
    for name, layer in zip(names, layers, strict=True):
        of_layer = weights[layer - 1]
        found = {label: _rows(of_layer[head], kind) for label, head in heads.items()}
        grid.append([
            _heatmap(subject, kind, f"{name}, {label}", rows) for label, rows in found.items()
        ])  # fmt: skip
        shown = (
            found if subject.choice.heads else {"mean of all heads": _rows(of_layer.mean(0), kind)}
        )
        own = [_heatmap(subject, kind, f"{title}, {name}, {k}", rows) for k, rows in shown.items()]
        arcs = Links(f"{title}, {name}", *axes(subject, kind), found)
        steps.append(Step(name, [arcs, *own]))
    overview = Grid(title, names, list(heads), grid, note)
    return [overview, Steps(f"{title}, layer by layer", steps)]


def _heatmap(subject: Subject, kind: Kind, title: str, rows: Matrix, note: str = "") -> Heatmap:
    down = "token that reads" if kind == "encoder" else _DECODED
    return Heatmap(title, rows, *axes(subject, kind), note, 0.0, 1.0, "token read", down)


def _shown_layers(subject: Subject, num_layers: int, num_cells: int) -> tuple[list[int], str]:
    """Return the layers to draw, and a note where they are the top one for want of room.

    Raises:
        ConfigError: One layer alone is too much.
    """
    layers, heads = subject.layers(num_layers), len(subject.heads)
    if _fits(len(layers) * heads, num_cells):
        return layers, ""
    if not _fits(heads, num_cells):
        raise ConfigError(
            f"{heads} heads are too many to draw, with {num_cells:,} weights each.",
            fix="Choose some with --head, as in --head 1,2, or give a shorter sentence.",
        )
    return [num_layers], f"Only the top one of {num_layers} layers is drawn; --layer shows others."


def _fits(num_heads: int, num_cells: int) -> bool:
    return num_heads <= MAX_HEADS and num_heads * num_cells <= _MAX_WEIGHTS


def axes(subject: Subject, kind: Kind) -> tuple[Sequence[str], Sequence[str]]:
    """Labels of rows and columns."""
    columns = {"encoder": subject.source_labels, "decoder": subject.read_labels}
    rows = subject.source_labels if kind == "encoder" else subject.target_labels
    return rows, columns.get(kind, subject.source_labels)


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
