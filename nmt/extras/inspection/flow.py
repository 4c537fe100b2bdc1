"""``nmt inspect MODEL flow``: what each sublayer adds, how heads spread, and where gradients go."""

from __future__ import annotations

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
_HEAD = ("sublayer", "stream before", "added", "stream after", "added / before",
         "gradient by stream", "gradient by weights")  # fmt: skip


def flow(subject: Subject) -> Part:
    """Norms of every sublayer, and entropy and distance of every head."""
    recording = record(subject.model, subject.source, subject.target)
    rows: dict[str, list[list[Cell]]] = {"encoder": [], "decoder": []}
    tops = {each.side: each.layer for each in recording.sublayers}
    for each, norms in zip(recording.sublayers, _norms(subject, recording), strict=True):
        name = f"{layer_name(each.layer, tops[each.side])}, {each.name.replace('_', '-')}"
        rows[each.side].append([name, *norms])
    note = "From the lowest sublayer to the top."
    figures: list[Figure] = [
        Table(f"{side.capitalize()}: norms", _HEAD, rows[side], note) for side in rows
    ]
    for kind, title in KINDS.items():
        weights = [each.heads().weights.detach() for each in recording.attention(kind)]
        layers = [layer_name(number, len(weights)) for number in range(1, len(weights) + 1)]
        heads = [f"head {head}" for head in range(1, len(weights[0]) + 1)]
        note = "Tokens between the one that reads and those it reads."
        if kind == "cross":
            note += " The target is laid along the source, first on first and last on last."
        for measure, unit in ((entropy, "In nats."), (distance, note)):
            values = [measure(each) for each in weights]
            title_ = f"{title}: {measure.__name__}"
            figures.append(Heatmap(title_, values, layers, heads, unit, 0.0))
    return Part("flow", "Flow", _EXPLANATION, figures)


def _norms(subject: Subject, recording: Recording) -> list[list[float]]:
    """Return the numbers of each recorded sublayer, as `_HEAD` names them."""
    gold = torch.tensor([*subject.target_ids, EOS_ID])
    loss = F.cross_entropy(subject.model.logits(recording.hidden), gold)
    # The topmost stream of a post-norm model is the output itself. Gradients are left nowhere.
    places = [x for each in recording.sublayers for x in (each.after, *each.module.parameters())]
    gradients = iter(torch.autograd.grad(loss, places))
    rows = []
    for each in recording.sublayers:
        before, added, after = (
            x.detach().norm(dim=-1).mean().item() for x in (each.before, each.added, each.after)
        )
        stream = float(next(gradients).norm())
        squares = sum(float(next(gradients).square().sum()) for _ in each.module.parameters())
        rows.append([before, added, after, added / before, stream, squares**0.5])
    return rows


def entropy(weights: Tensor) -> list[float]:
    """Return the mean entropy of the rows of each head, in nats. (H, T, S) -> H numbers."""
    return torch.special.entr(weights).sum(-1).mean(-1).tolist()


def distance(weights: Tensor) -> list[float]:
    """Return how far from itself a token reads: the mean of each head. (H, T, S) -> H numbers."""
    return (weights * off_diagonal(*weights.shape[1:])).sum(-1).mean(-1).tolist()
