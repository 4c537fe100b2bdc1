"""``nmt inspect MODEL flow``: what each sublayer adds, how heads spread, and where gradients go."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from nmt.extras.inspection.attention import KINDS, layer_names, off_diagonal
from nmt.extras.inspection.figure import Figure, Heatmap, Table
from nmt.extras.inspection.recording import record
from nmt.extras.inspection.subject import Subject
from nmt.text import EOS_ID

_HEAD = ("sublayer", "stream before", "added", "stream after", "added / before",
         "gradient by stream", "gradient by weights")  # fmt: skip


def flow(subject: Subject) -> Iterator[Figure]:
    """Flow.

    Each sublayer reads the residual stream and adds to it; norms are means over the tokens.
    Gradients are those of the cross-entropy of the target, per token: by the stream above a
    sublayer, and by its own weights. The entropy of a head's weights is 0 if it reads one token,
    and the logarithm of the length if it reads all alike.
    """
    recording = record(subject.model, subject.source, subject.target)
    gold = torch.tensor([*subject.target_ids, EOS_ID])
    loss = F.cross_entropy(subject.model.logits(recording.hidden), gold)
    # The topmost stream of a post-norm model is the output itself. Gradients are left nowhere.
    places = [x for each in recording.sublayers for x in (each.after, *each.module.parameters())]
    gradients = iter(torch.autograd.grad(loss, places))
    for side, num_layers in (("encoder", len(subject.model.encoder)),
                             ("decoder", len(subject.model.decoder))):  # fmt: skip
        rows = []
        for each in (x for x in recording.sublayers if x.side == side):
            before, added, after = (
                x.detach().norm(dim=-1).mean().item() for x in (each.before, each.added, each.after)
            )
            stream = float(next(gradients).norm())
            squares = sum(float(next(gradients).square().sum()) for _ in each.module.parameters())
            name = f"{layer_names(num_layers)[each.layer - 1]}, {each.name.replace('_', '-')}"
            rows.append([name, before, added, after, added / before, stream, squares**0.5])
        note = "From the lowest sublayer to the top."
        yield Table(f"{side.capitalize()}: norms", _HEAD, rows, note=note)
    for kind, title in KINDS.items():
        weights = recording.weights(kind).detach()
        names = layer_names(len(weights)), [f"head {n}" for n in range(1, weights.shape[1] + 1)]
        note = "Tokens between the one that reads and those it reads."
        if kind == "cross":
            note += " The target is laid along the source, first on first and last on last."
        for name, values, unit in (
            ("entropy", entropy(weights), "In nats."), ("distance", distance(weights), note),
        ):  # fmt: skip
            yield Heatmap(f"{title}: {name}", values.tolist(), *names, 0.0, note=unit)


def entropy(weights: Tensor) -> Tensor:
    """Return the mean entropy of the rows of each head, in nats. (..., T, S) -> (...)."""
    return torch.special.entr(weights).sum(-1).mean(-1)


def distance(weights: Tensor) -> Tensor:
    """Return how far from itself a token reads: the mean of each head. (..., T, S) -> (...)."""
    return (weights * off_diagonal(*weights.shape[-2:])).sum(-1).mean(-1)
