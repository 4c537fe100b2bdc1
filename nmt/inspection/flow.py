"""``nmt inspect MODEL flow``: what each sublayer adds, how heads spread, and where gradients go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from nmt.inspection.attention import KINDS, layer_name
from nmt.inspection.figure import Cell, Figure, Heatmap, Lines, Part, Table
from nmt.inspection.recording import Recording, Sublayer, record
from nmt.inspection.subject import Subject
from nmt.text import EOS_ID

_EXPLANATION = """\
Every token has a vector that runs upward through the stack, the residual stream; each sublayer \
reads it and adds to it. Norms are means over the tokens. In a post-norm model the stream is \
normalised after each sum, in a pre-norm model it grows. Gradients are those of the cross-entropy \
of the target, per token: by the stream above a sublayer, and by its own weights. The entropy of \
a head is that of its weights in nats: 0 for a head that reads one token, the logarithm of the \
length for one that reads all alike."""


class SublayerFlow(NamedTuple):
    """Norms in one sublayer."""

    before: list[float]
    """Of the residual stream below it, for each token."""
    added: list[float]
    """Of what it adds."""
    after: list[float]
    """Of the residual stream above it."""
    stream_gradient: float
    """Of the gradient of the loss by the residual stream above it."""
    weight_gradient: float
    """Of the gradient of the loss by its weights."""


def flow(subject: Subject) -> Part:
    """Norms of every sublayer, and entropy and distance of every head."""
    recording = record(subject.model, subject.source, subject.target)
    measured = measure_flow(subject, recording)
    figures: list[Figure] = []
    for side in ("encoder", "decoder"):
        pairs = zip(recording.sublayers, measured, strict=True)
        of_side = [(each, found) for each, found in pairs if each.side == side]
        figures += _of_side(subject, side, of_side)
    for kind, title in KINDS.items():
        weights = [each.heads().weights.detach() for each in recording.attention(kind)]
        figures += _of_heads(title, weights, is_square=kind != "cross")
    return Part("flow", "Flow", _EXPLANATION, figures)


def measure_flow(subject: Subject, recording: Recording) -> list[SublayerFlow]:
    """Return the norms of each recorded sublayer; gradients are left nowhere."""
    gold = torch.tensor([*subject.target_ids, EOS_ID])
    loss = F.cross_entropy(subject.model.logits(recording.hidden), gold)
    above = [each.after for each in recording.sublayers]
    weights = [list(each.module.parameters()) for each in recording.sublayers]
    flat = [parameter for own in weights for parameter in own]
    # The topmost stream of a post-norm model is the output itself.
    gradients = torch.autograd.grad(loss, [*above, *flat])
    of_streams, of_weights = gradients[: len(above)], iter(gradients[len(above) :])
    found = []
    for each, own, gradient in zip(recording.sublayers, weights, of_streams, strict=True):
        streams = each.before, each.added, each.after
        before, added, after = (x.detach().norm(dim=-1).tolist() for x in streams)
        squares = sum(float(next(of_weights).square().sum()) for _ in own)
        norms = float(gradient.norm()), squares**0.5
        found.append(SublayerFlow(before, added, after, *norms))
    return found


def entropy(weights: Tensor) -> list[float]:
    """Return the mean entropy of the rows of each head, in nats. (H, T, S) -> H numbers."""
    return torch.special.entr(weights).sum(-1).mean(-1).tolist()


def distance(weights: Tensor) -> list[float]:
    """Return how far from itself a token reads, in tokens: the mean of each head.

    (H, T, S) -> H numbers. Between sentences of other lengths a token stands where it would if both
    were as long: the first at the first and the last at the last.
    """
    rows, columns = weights.shape[1:]
    places = torch.arange(rows) * ((columns - 1) / max(rows - 1, 1))
    apart = (torch.arange(columns) - places.unsqueeze(1)).abs()
    return (weights * apart).sum(-1).mean(-1).tolist()


def _of_side(
    subject: Subject, side: str, flows: Sequence[tuple[Sublayer, SublayerFlow]]
) -> list[Figure]:
    """A table, a chart of norms over sublayers, and what is added to each token."""
    num_layers = flows[-1][0].layer
    names = [
        f"{layer_name(each.layer, num_layers)}, {each.name.replace('_', '-')}" for each, _ in flows
    ]
    rows: list[list[Cell]] = []
    for name, (_, found) in zip(names, flows, strict=True):
        norms = [_mean(values) for values in (found.before, found.added, found.after)]
        rows.append([name, *norms, norms[1] / norms[0], *found[3:]])
    head = ["sublayer", "stream before", "added", "stream after", "added / before"]
    head += ["gradient by stream", "gradient by weights"]
    curves = {label: [(float(i), float(row[column] or 0)) for i, row in enumerate(rows, 1)]
              for label, column in (("stream after", 3), ("added", 2))}  # fmt: skip
    labels = subject.source_labels if side == "encoder" else subject.target_labels
    title = side.capitalize()
    added = [found.added for _, found in flows]
    return [
        Table(f"{title}: norms", head, rows, "From the lowest sublayer to the top."),
        Lines(f"{title}: norms upward", curves, "sublayer", "norm"),
        Heatmap(f"{title}: norm of what is added", added, names, labels, "", 0.0, None,
                "token", "sublayer"),
    ]  # fmt: skip


def _of_heads(title: str, weights: Sequence[Tensor], *, is_square: bool) -> list[Figure]:
    rows = [layer_name(number, len(weights)) for number in range(1, len(weights) + 1)]
    columns = [f"head {head}" for head in range(1, len(weights[0]) + 1)]
    note = "Tokens between the one that reads and those it reads."
    if not is_square:
        note += " The target is laid along the source, first on first and last on last."
    return [
        Heatmap(f"{title}: entropy", list(map(entropy, weights)), rows, columns, "In nats.", 0.0),
        Heatmap(f"{title}: distance", list(map(distance, weights)), rows, columns, note, 0.0),
    ]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
