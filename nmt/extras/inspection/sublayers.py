"""Records the sublayers in a forward pass, for the views `score` (calculation) and `flow`.

Hooks record the input and the output of each sublayer. Queries, keys and weights are internal to a
sublayer; here they are recomputed from the input and projections of the sublayer, as in the paper:
softmax(Q K^T / sqrt(E)) V. The model is not changed.

Shapes: T tokens with queries, S tokens with keys, H heads, E head width, D model width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt.extras.inspection.figure import (
    DOT,
    ROOT,
    TIMES,
    Figure,
    Heatmap,
    Rows,
    Step,
    Steps,
    Table,
    TextFigure,
    isolated,
    number_text,
    vector_text,
)
from nmt.extras.inspection.inspected import Inspected
from nmt.model.layers import CrossAttention, FeedForward, Residual, SelfAttention
from nmt.model.transformer import Transformer, evaluating
from nmt.packed import Packed
from nmt.text import EOS_ID

# Encoder self-attention, decoder self-attention and cross-attention.
Kind = Literal["encoder", "decoder", "cross"]
Side = Literal["encoder", "decoder"]
Attention = SelfAttention | CrossAttention
KINDS: dict[Kind, str] = {
    "encoder": "Encoder self-attention",
    "decoder": "Decoder self-attention",
    "cross": "Cross-attention (decoder to source)",
}
_RESIDUALS = {
    "self_attention": "self_residual",
    "cross_attention": "cross_residual",
    "feed_forward": "feed_forward_residual",
}
_MATRICES = ("matrix", "formula", "shape", "of this sentence", "packed")
_NORMS = ("sublayer", "stream before", "added", "stream after", "added / before",
         "gradient of stream", "gradient of weights")  # fmt: skip


class Heads(NamedTuple):
    """The intermediate results of all heads in one attention sublayer."""

    query: Tensor  # After norm and rotation, if the model has them. (H, T, E).
    key: Tensor  # As ``query``; grouped keys are repeated for each query head. (H, S, E).
    value: Tensor  # (H, S, E).
    products: Tensor  # Dot products of queries and keys. (H, T, S).
    # Products divided by sqrt(E); minus infinity under the mask. (H, T, S).
    scores: Tensor
    weights: Tensor  # Softmax of the scores: each row sums to 1. (H, T, S).
    mixed: Tensor  # Sum of the values, multiplied by their weights. (H, T, E).

    @property
    def concatenated(self) -> Tensor:
        """The outputs of all heads, concatenated: (T, H * E)."""
        return self.mixed.transpose(0, 1).flatten(1)


@dataclass(frozen=True, slots=True)
class Sublayer:
    """A sublayer in one pass, with the residual connection around it."""

    side: Side
    layer: int  # From 1, upward.
    name: str  # ``self_attention``, ``cross_attention`` or ``feed_forward``.
    module: Attention | FeedForward
    residual: Residual
    # The input, and in cross-attention also the output of the encoder (S, D').
    arguments: tuple[Any, ...]
    added: Tensor  # Output, which is added to the residual stream. (T, D).
    before: Tensor  # The residual stream below. (T, D).
    after: Tensor  # The residual stream above, in a post-norm model after the norm. (T, D).

    @property
    def inputs(self) -> Tensor:
        """The residual stream, in a pre-norm model after the norm. (T, D)."""
        return self.arguments[0]

    @property
    def kind(self) -> Kind | None:
        """The kind of attention; None for feed-forward."""
        if self.name == "feed_forward":
            return None
        return "cross" if self.name == "cross_attention" else self.side

    def heads(self) -> Heads:
        """Recompute the intermediate results of all heads; for attention sublayers only."""
        module = self.module
        assert not isinstance(module, FeedForward)
        width = module.head_dim
        if isinstance(module, SelfAttention):
            fused = module.query_key_value(self.inputs).unflatten(1, (-1, width))
            query, key, value = fused.split(module.sizes, 1)
            if module.heads:
                key = module.heads["key_norm"](key)
        else:
            query = module.query(self.inputs).unflatten(1, (-1, width))
            key, value = module.project_cross_kv(self.arguments[1])
        if module.heads:
            query = module.heads["query_norm"](query)
        scheme = getattr(module, "positions", None)
        order = torch.arange(len(self.inputs))
        if scheme is not None:
            query = scheme.rotate(query, order)
            key = scheme.rotate(key, order)
        share = module.num_heads // module.num_kv_heads
        query = query.transpose(0, 1)
        key = key.repeat_interleave(share, 1).transpose(0, 1)
        value = value.repeat_interleave(share, 1).transpose(0, 1)
        products = query @ key.mT
        # Shaw et al. (2018): additional keys and values that depend on the distance.
        vectors = scheme and scheme.vectors(order, order)
        if vectors is not None:
            of_distance = torch.einsum("hte,tse->hts", query, vectors[0])
            products = products + of_distance
        scores = products * width**-0.5
        if self.kind == "decoder":
            future = torch.ones_like(scores[0], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(future, -torch.inf)
        weights = scores.softmax(-1)
        mixed = weights @ value
        if vectors is not None:
            of_distance = torch.einsum("hts,tse->hte", weights, vectors[1])
            mixed = mixed + of_distance
        return Heads(query, key, value, products, scores, weights, mixed)


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded pass over one sentence pair."""

    sublayers: tuple[Sublayer, ...]  # Encoder, then decoder; each from bottom to top.
    hidden: Tensor  # The decoder's output. (T, D).

    def attention(self, kind: Kind) -> tuple[Sublayer, ...]:
        """Return the sublayers with one kind of attention, from bottom to top."""
        return tuple(sublayer for sublayer in self.sublayers if sublayer.kind == kind)

    def weights(self, kind: Kind) -> Tensor:
        """Return the weights of one kind of attention, from bottom to top: (layers, H, T, S)."""
        layers = self.attention(kind)
        weights = [sublayer.heads().weights for sublayer in layers]
        return torch.stack(weights)


def record(model: Transformer, source: Packed, target: Packed) -> Recording:
    """Record one pass over a sentence pair, with teacher forcing and without dropout.

    Gradients are available unless the caller has disabled them.

    Args:
        model: Model in training or evaluation mode.
        source: Input of the encoder: one sentence.
        target: Input of the decoder: BOS and the target.
    """
    calls: dict[nn.Module, tuple[tuple[Any, ...], Tensor]] = {}

    def keep(module: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> None:
        calls[module] = (arguments, output)

    with evaluating(model), ExitStack() as handles:
        for module in model.modules():
            if isinstance(module, Attention | FeedForward | Residual):
                handles.enter_context(module.register_forward_hook(keep))
        hidden = model(source, target)
    sublayers = []
    for side in get_args(Side):
        for number, layer in enumerate(getattr(model, side), 1):
            modules = dict(layer.named_children())
            for name, residual_name in _RESIDUALS.items():
                if name in modules:
                    module = modules[name]
                    residual = modules[residual_name]
                    arguments, added = calls[module]
                    (before, _), after = calls[residual]
                    sublayers.append(
                        Sublayer(
                            side, number, name, module, residual, arguments, added, before, after
                        )
                    )
    return Recording(tuple(sublayers), hidden)


@contextmanager
def without_causal_mask(model: Transformer) -> Iterator[None]:
    """Inside this context, decoder tokens also read later tokens."""

    def see_all(_: nn.Module, args: Any, options: dict[str, Any]) -> Any:
        return args, {**options, "causal": False}

    with ExitStack() as handles:
        for layer in model.decoder:
            attention = layer.get_submodule("self_attention")
            hook = attention.register_forward_pre_hook(see_all, with_kwargs=True)
            handles.enter_context(hook)
        yield


@contextmanager
def without_head(attention: Attention, head: int) -> Iterator[None]:
    """Inside this context, the output of a head (numbered from 1) is 0."""
    end = head * attention.head_dim
    columns = torch.arange(end - attention.head_dim, end)

    def silence(_: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        return (args[0].index_fill(-1, columns, 0),)

    with attention.output.register_forward_pre_hook(silence):
        yield


@torch.inference_mode()
def score(inspected: Inspected) -> Iterator[Figure]:
    """The arithmetic of attention.

    The score of a query q and a key k is their dot product, divided by the square root of the head
    width. Softmax turns the scores of a query into weights that sum to 1. The output of a head is
    the sum of the values v, multiplied by these weights. The outputs of all heads are concatenated,
    multiplied by the matrix W^O, and added to the residual stream. For long vectors, only the first
    numbers are shown.
    """
    recording = record(inspected.model, inspected.source, inspected.target)
    layers = recording.attention("encoder")
    layer = max(inspected.layers(len(layers)), default=len(layers))
    name = f"Encoder {layer_names(len(layers))[layer - 1]}"
    sublayer = layers[layer - 1]
    heads = sublayer.heads()
    labels = inspected.source_labels
    for head in inspected.choice.head or (1,):
        of_head = Heads(*(tensor[head - 1] for tensor in heads))
        steps = []
        for place, label in enumerate(labels):
            figures = _query(labels, place, of_head)
            title = f"query of {isolated(label)}"
            steps.append(Step(title, figures))
        title = f"{name}, head {head}: one query at a time"
        yield Steps(title, steps)
    steps = []
    for place, label in enumerate(labels):
        stages = _stages(sublayer, heads, place)
        steps.append(Step(label, [stages]))
    title = f"{name}: all heads, W^O, addition and norm"
    yield Steps(title, steps)
    yield matrices(sublayer, "The same with matrices")


def _query(labels: Sequence[str], place: int, head: Heads) -> list[Figure]:
    """Return the calculation for one query of one head: a row for each key, and the sum."""
    query = head.query[place]
    products = head.products[place].tolist()
    scores = head.scores[place].tolist()
    weights = head.weights[place].tolist()
    rows: Rows = []
    for i, label in enumerate(labels):
        key = vector_text(head.key[i])
        value = head.value[i]
        share = vector_text(value * weights[i])
        numbers = [products[i], scores[i], weights[i]]
        rows.append([label, key, *numbers, vector_text(value), share])
    mixed = vector_text(head.mixed[place])
    rows.append(["sum", "", None, None, sum(weights), "", mixed])
    width = len(query)
    dot = f"q {DOT} k"
    columns = ("key of", "k", dot, f"/ {ROOT}{width}", "softmax", "v", f"softmax {TIMES} v")
    product = products[0]
    first = f"{product:.4f}"
    pairs = torch.stack([query, head.key[0]], 1)[:6].tolist()
    terms = " + ".join(f"{a:.4f} {TIMES} {b:.4f}" for a, b in pairs)
    if width > 6:
        terms += f" + ... ({width} terms)"
    lines = [
        f"q = {vector_text(query)}",
        f"{dot} of {isolated(labels[0])} = {terms} = {first}",
        f"{first} / {ROOT}{width} = {first} / {width**0.5:.4f} = {product / width**0.5:.4f}",
    ]
    first_key = TextFigure("First key", lines)
    return [first_key, Table("All keys", columns, rows, total=True)]


def _stages(sublayer: Sublayer, heads: Heads, place: int) -> Table:
    """Return the vectors of one token after each stage: heads, W^O, addition and norm."""
    total = sublayer.before + sublayer.added
    stages = {f"head {number}": mixed for number, mixed in enumerate(heads.mixed, 1)}
    stages["all heads, concatenated"] = heads.concatenated
    stages["multiplied by W^O"] = sublayer.added
    stages["residual stream"] = sublayer.before
    stages["sum of the last two"] = total
    note = ""
    if torch.equal(sublayer.after, total):
        note = "Pre-norm: q, k and v are computed from the output of the norm before the sublayer."
    else:
        stages["norm of the sum"] = sublayer.after
    rows: Rows = []
    for name, vectors in stages.items():
        vector = vectors[place]
        norm = float(vector.norm())
        rows.append([name, len(vector), norm, vector_text(vector)])
    return Table("", ("", "width", "L2 norm", "numbers"), rows, note=note)


def matrices(sublayer: Sublayer, title: str) -> Table:
    """Return the calculation of one attention for all tokens, as matrices with shapes."""
    module = sublayer.module
    assert not isinstance(module, FeedForward)
    heads = sublayer.heads()
    num_heads, num_queries, width = heads.query.shape
    groups = module.num_kv_heads
    bias = ""
    if "output.bias" in module.state_dict():
        bias = " + b"
    suffix = bias
    if module.heads:
        suffix += ", then norm per head"
    if getattr(module, "positions", None) is not None:
        suffix += ", then position"
    # Letters: input of the keys, tokens of queries and of keys, heads of keys.
    x = "X"
    t = "T"
    s = "S"
    g = "H"
    if sublayer.kind == "encoder":
        t = "S"
    elif sublayer.kind == "decoder":
        s = "T"
    else:
        x = "M"
    if groups < num_heads:
        g = "G"
    sizes = {
        "H": num_heads,
        "G": groups,
        "d_k": width,
        "d_model": sublayer.inputs.shape[1],
        "H d_k": num_heads * width,
        t: num_queries,
        s: heads.key.shape[1],
    }
    # Tokens, then the other letters; in a matrix of a batch, heads come before tokens.
    rows = [
        ("X", "input of the sublayer", f"{t}, d_model"),
        ("Q", f"X W^Q{suffix}", f"{t}, H, d_k"),
        ("K", f"{x} W^K{suffix}", f"{s}, {g}, d_k"),
        ("V", f"{x} W^V{bias}", f"{s}, {g}, d_k"),
        ("scores", f"Q K^T / {ROOT}{width}", f"{t}, H, {s}"),
        ("A", "softmax(scores), row by row", f"{t}, H, {s}"),
        ("Z", "A V", f"{t}, H, d_k"),
        ("concat", "Z of all heads, concatenated", f"{t}, H d_k"),
        ("output", f"concat W^O{bias}", f"{t}, d_model"),
    ]
    cells = []
    for name, formula, letters in rows:
        tokens, *heads_of, last = letters.split(", ")
        of_batch = [*heads_of, tokens, last]
        shape = (1, *(sizes[letter] for letter in of_batch))
        packed = ""
        if last != s:  # scores and weights are computed in padded form
            packed = str(tuple(sizes[letter] for letter in letters.split(", ")))
        cells.append([name, formula, f"(B, {', '.join(of_batch)})", str(shape), packed])
    difference = (module.output(heads.concatenated) - sublayer.added).abs().max()
    most = number_text(difference.item(), "z.1e")
    note = f"Largest difference from the output of the model's attention: {most}."
    if x == "M":
        note += " M is the memory, the output of the encoder."
    if groups < num_heads:
        note += f" Each of G = {groups} keys and values is shared by {num_heads // groups} queries."
    return Table(title, _MATRICES, cells, note=note)


def flow(inspected: Inspected) -> Iterator[Figure]:
    """Flow.

    Each sublayer reads the residual stream and adds its output to the stream. The tables show the
    norms of these vectors, averaged over the tokens, and two gradients of the cross-entropy per
    token: with respect to the stream above a sublayer, and with respect to the weights of the
    sublayer. The heatmaps show the entropy of each head, and the mean distance between a token and
    the tokens that it reads. The entropy is 0 if a head reads a single token, and the logarithm of
    the length if it reads all tokens equally.
    """
    recording = record(inspected.model, inspected.source, inspected.target)
    gold = torch.tensor([*inspected.target_ids, EOS_ID])
    logits = inspected.model.logits(recording.hidden)
    loss = F.cross_entropy(logits, gold)
    # In a post-norm model, the topmost stream is the output. No gradients stay in the model.
    places: list[Tensor] = []
    for sublayer in recording.sublayers:
        places += [sublayer.after, *sublayer.module.parameters()]
    gradients = iter(torch.autograd.grad(loss, places))
    rows: dict[Side, Rows] = {"encoder": [], "decoder": []}
    for sublayer in recording.sublayers:
        before = _mean_norm(sublayer.before)
        added = _mean_norm(sublayer.added)
        after = _mean_norm(sublayer.after)
        stream = float(next(gradients).norm())
        squares = 0.0
        for _ in sublayer.module.parameters():
            squared = next(gradients).square()
            squares += float(squared.sum())
        stack = getattr(inspected.model, sublayer.side)
        names = layer_names(len(stack))
        name = f"{names[sublayer.layer - 1]}, {sublayer.name.replace('_', '-')}"
        ratio = added / before
        numbers = [before, added, after, ratio, stream, squares**0.5]
        rows[sublayer.side].append([name, *numbers])
    for side, of_side in rows.items():
        note = "Rows are in order from the lowest to the highest sublayer."
        title = f"{side.capitalize()}: norms"
        yield Table(title, _NORMS, of_side, note=note)
    for kind, title in KINDS.items():
        weights = recording.weights(kind).detach()
        layers = layer_names(len(weights))
        num_heads = weights.shape[1]
        heads = [f"head {n}" for n in range(1, num_heads + 1)]
        note = "Mean over tokens, in nats."
        values = entropy(weights).tolist()
        name = f"{title}: entropy"
        yield Heatmap(name, values, layers, heads, 0.0, note=note)
        note = "Mean distance to the tokens that are read, in tokens."
        if kind == "cross":
            note += " Target positions are scaled to the length of the source."
        values = distance(weights).tolist()
        name = f"{title}: distance"
        yield Heatmap(name, values, layers, heads, 0.0, note=note)


def _mean_norm(vectors: Tensor) -> float:
    norms = vectors.detach().norm(dim=-1)
    return float(norms.mean())


def entropy(weights: Tensor) -> Tensor:
    """Return the mean entropy of the rows of each head, in nats. (..., T, S) -> (...)."""
    return torch.special.entr(weights).sum(-1).mean(-1)


def distance(weights: Tensor) -> Tensor:
    """Return the mean distance between a token and the tokens it reads. (..., T, S) -> (...)."""
    distances = off_diagonal(*weights.shape[-2:])
    products = weights * distances
    return products.sum(-1).mean(-1)


def layer_names(num_layers: int) -> list[str]:
    """Return labels for the layers of a stack, from 1.

    >>> layer_names(1), layer_names(3)
    (['layer 1'], ['layer 1', 'layer 2', 'layer 3 (top)'])
    """
    names = [f"layer {layer}" for layer in range(1, num_layers + 1)]
    if num_layers > 1:
        names[-1] += " (top)"
    return names


def off_diagonal(rows: int, columns: int) -> Tensor:
    """Return the distance of each cell from the diagonal, in columns: (T, S).

    If the sentences have different lengths, the diagonal connects their first and last tokens.
    """
    slope = (columns - 1) / max(rows - 1, 1)
    places = torch.arange(rows) * slope
    return (torch.arange(columns) - places.unsqueeze(1)).abs()
