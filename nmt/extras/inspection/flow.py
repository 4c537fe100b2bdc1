"""``nmt inspect MODEL flow``: what each sublayer adds, how heads spread, and where gradients go."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Tensor

from nmt.extras.inspection.attention import KINDS, layer_name, off_diagonal
from nmt.extras.inspection.figure import Cell, Figure, Heatmap, Part, Table
from nmt.extras.inspection.recording import Recording, record
from nmt.extras.inspection.subject import Subject
from nmt.text import EOS_ID

_EXPLANATION = """\
Each sublayer reads the residual stream and adds to it; norms are means over the tokens. \
Gradients are those of the cross-entropy of the target, per token: by the stream above a sublayer, \
and by its own weights. The entropy of a head's weights is 0 if it reads one token, and the \
logarithm of the length if it reads all alike."""


def flow(subject: Subject) -> Part:
    """Norms of every sublayer, and entropy and distance of every head."""
    recording = record(subject.model, subject.source, subject.target)
    norms, figures = measured_norms(subject, recording), list[Figure]()
    head = ["sublayer", "stream before", "added", "stream after", "added / before"]
    head += ["gradient by stream", "gradient by weights"]
    for side in ("encoder", "decoder"):
        pairs = zip(recording.sublayers, norms, strict=True)
        of_side = [(each, row) for each, row in pairs if each.side == side]
        top = of_side[-1][0].layer
        rows: list[list[Cell]] = [
            [f"{layer_name(each.layer, top)}, {each.name.replace('_', '-')}", *row]
            for each, row in of_side
        ]
        title, note = f"{side.capitalize()}: norms", "From the lowest sublayer to the top."
        figures.append(Table(title, head, rows, note))
    for kind, title in KINDS.items():
        weights = [each.heads().weights.detach() for each in recording.attention(kind)]
        figures += _of_heads(title, weights, is_square=kind != "cross")
    return Part("flow", "Flow", _EXPLANATION, figures)


def measured_norms(subject: Subject, recording: Recording) -> list[list[float]]:
    """Return the numbers of each recorded sublayer; gradients are left nowhere.

    Mean norms over the tokens of the residual stream below it, of what it adds, and of the stream
    above it; the second over the first; norms of the gradients of the loss by the stream above it
    and by its weights.
    """
    gold = torch.tensor([*subject.target_ids, EOS_ID])
    loss = F.cross_entropy(subject.model.logits(recording.hidden), gold)
    # The topmost stream of a post-norm model is the output itself.
    places = [x for each in recording.sublayers for x in (each.after, *each.module.parameters())]
    found, gradients = [], iter(torch.autograd.grad(loss, places))
    for each in recording.sublayers:
        stream, *weights = islice(gradients, 1 + len(list(each.module.parameters())))
        before, added, after = (
            x.detach().norm(dim=-1).mean().item() for x in (each.before, each.added, each.after)
        )
        by_weights = sum(float(x.square().sum()) for x in weights) ** 0.5
        found.append([before, added, after, added / before, float(stream.norm()), by_weights])
    return found


def entropy(weights: Tensor) -> list[float]:
    """Return the mean entropy of the rows of each head, in nats. (H, T, S) -> H numbers."""
    return torch.special.entr(weights).sum(-1).mean(-1).tolist()


def distance(weights: Tensor) -> list[float]:
    """Return how far from itself a token reads, in tokens: the mean of each head.

    (H, T, S) -> H numbers.
    """
    return (weights * off_diagonal(*weights.shape[1:])).sum(-1).mean(-1).tolist()


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
