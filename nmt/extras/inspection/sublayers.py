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
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt.extras.inspection import figure as fig
from nmt.extras.inspection.figure import DOT, ROOT, TIMES, isolated, number_text, vector_text
from nmt.extras.inspection.inspected import Inspected
from nmt.model.layers import CrossAttention, Residual, SelfAttention
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
_SUBLAYERS = ("self_attention", "cross_attention", "feed_forward")
_HEAD = ("sublayer", "stream before", "added", "stream after", "added / before",
         "gradient of stream", "gradient of weights")  # fmt: skip


class Heads(NamedTuple):
    """The intermediate results of all heads in one attention sublayer."""

    query: Tensor  # After norm and rotation, if the model has them. (H, T, E).
    key: Tensor  # As ``query``; grouped keys are repeated for each query head. (H, S, E).
    value: Tensor  # (H, S, E).
    products: Tensor  # Dot products of queries and keys. (H, T, S).
    # Products divided by sqrt(E), plus a position bias; minus infinity under the mask. (H, T, S).
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
    module: nn.Module
    residual: Residual
    # Input: the residual stream, in a pre-norm model after the norm. (T, D).
    inputs: Tensor
    memory: Tensor | None  # In cross-attention, the output of the encoder. (S, D').
    added: Tensor  # Output, which is added to the residual stream. (T, D).
    before: Tensor  # The residual stream below. (T, D).
    after: Tensor  # The residual stream above, in a post-norm model after the norm. (T, D).

    @property
    def kind(self) -> Kind | None:
        """The kind of attention; None for feed-forward."""
        kinds: dict[str, Kind] = {"self_attention": self.side, "cross_attention": "cross"}
        return kinds.get(self.name)

    def heads(self) -> Heads:
        """Recompute the intermediate results of all heads; for attention sublayers only."""
        module = self.module
        assert isinstance(module, SelfAttention | CrossAttention)
        width, vectors = module.head_dim, None
        if isinstance(module, SelfAttention):
            fused = module.query_key_value(self.inputs).unflatten(1, (-1, width))
            query, key, value = fused.split(module.sizes, 1)
            if module.heads:
                query, key = module.heads["query_norm"](query), module.heads["key_norm"](key)
            if (scheme := module.positions) is not None:
                order = torch.arange(len(self.inputs))
                query, key = scheme.rotate(query, order), scheme.rotate(key, order)
                vectors = scheme.vectors(order, order)
        else:
            assert self.memory is not None
            query = module.query(self.inputs).unflatten(1, (-1, width))
            query = module.heads["query_norm"](query) if module.heads else query
            key, value = module.project_cross_kv(self.memory)
        share = module.num_heads // module.num_kv_heads
        key, value = (x.repeat_interleave(share, 1).transpose(0, 1) for x in (key, value))
        query = query.transpose(0, 1)
        products = query @ key.mT
        # Shaw et al. (2018): additional keys and values that depend on the distance.
        if vectors is not None:
            products = products + torch.einsum("hte,tse->hts", query, vectors[0])
        scores = products * width**-0.5
        if self.kind == "decoder":
            future = torch.ones_like(scores[0], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(future, -torch.inf)
        weights = scores.softmax(-1)
        mixed = weights @ value
        if vectors is not None:
            mixed = mixed + torch.einsum("hts,tse->hte", weights, vectors[1])
        return Heads(query, key, value, products, scores, weights, mixed)


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded pass over one sentence pair."""

    sublayers: tuple[Sublayer, ...]  # Encoder, then decoder; each from bottom to top.
    hidden: Tensor  # The decoder's output. (T, D).

    def attention(self, kind: Kind) -> tuple[Sublayer, ...]:
        """Return the sublayers with one kind of attention, from bottom to top."""
        return tuple(each for each in self.sublayers if each.kind == kind)

    def weights(self, kind: Kind) -> Tensor:
        """Return the weights of one kind of attention, from bottom to top: (layers, H, T, S)."""
        return torch.stack([each.heads().weights for each in self.attention(kind)])


def record(model: Transformer, source: Packed, target: Packed) -> Recording:
    """Record one pass over a sentence pair, with teacher forcing and without dropout.

    Gradients are available unless the caller has disabled them.

    Args:
        model: Model in training or evaluation mode.
        source: Input of the encoder: one sentence.
        target: Input of the decoder: BOS and the target.
    """
    sublayers, seen = list[Sublayer](), dict[str, tuple[Any, Any, Any]]()

    def watch(side: Side, number: int, layer: nn.Module, name: str) -> None:
        module = layer.get_submodule(name)
        residual = getattr(layer, name.replace("_attention", "") + "_residual")

        def of_sublayer(_: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            seen[name] = args[0], args[1] if name == "cross_attention" else None, output

        def of_residual(_: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            place = side, number, name, module, residual
            sublayers.append(Sublayer(*place, *seen.pop(name), args[0], output))

        handles.enter_context(module.register_forward_hook(of_sublayer))
        handles.enter_context(residual.register_forward_hook(of_residual))

    with evaluating(model), ExitStack() as handles:
        for side in get_args(Side):
            for number, layer in enumerate(getattr(model, side), 1):
                for name in filter(partial(hasattr, layer), _SUBLAYERS):
                    watch(side, number, layer, name)
        hidden = model(source, target)
    return Recording(tuple(sublayers), hidden)


@contextmanager
def without_causal_mask(model: Transformer) -> Iterator[None]:
    """Inside this context, decoder tokens also read later tokens."""

    def see_all(_: nn.Module, args: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, {**options, "causal": False}

    with ExitStack() as handles:
        for layer in model.decoder:
            attention = layer.get_submodule("self_attention")
            handles.enter_context(attention.register_forward_pre_hook(see_all, with_kwargs=True))
        yield


@contextmanager
def without_head(attention: Attention, head: int) -> Iterator[None]:
    """Inside this context, the output of a head (numbered from 1) is 0."""
    columns = torch.arange((head - 1) * attention.head_dim, head * attention.head_dim)

    def silence(_: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        return (args[0].index_fill(-1, columns, 0),)

    with attention.output.register_forward_pre_hook(silence):
        yield


@torch.inference_mode()
def score(inspected: Inspected) -> Iterator[fig.Figure]:
    """The arithmetic of attention.

    The score of a query q and a key k is their dot product, divided by the square root of the head
    width. Softmax turns the scores of a query into weights that sum to 1. The output of a head is
    the sum of the values v, multiplied by these weights. The outputs of all heads are concatenated,
    multiplied by the matrix W^O, and added to the residual stream. For long vectors, only the first
    numbers are shown.
    """
    layers = record(inspected.model, inspected.source, inspected.target).attention("encoder")
    layer = max(inspected.layers(len(layers)), default=len(layers))
    sublayer, name = layers[layer - 1], layer_names(len(layers))[layer - 1]
    heads, labels = sublayer.heads(), inspected.source_labels
    for head in inspected.choice.head or (1,):
        steps = [
            fig.Step(f"query of {isolated(label)}", _query(labels, place, heads, head - 1))
            for place, label in enumerate(labels)
        ]
        yield fig.Steps(f"Encoder {name}, head {head}: one query at a time", steps)
    steps = [
        fig.Step(label, [_sublayer(sublayer, heads, place)]) for place, label in enumerate(labels)
    ]
    yield fig.Steps(f"Encoder {name}: all heads, W^O, addition and norm", steps)
    yield matrices(sublayer, "The same with matrices")


def _query(labels: Sequence[str], place: int, heads: Heads, head: int) -> list[fig.Figure]:
    """Return the calculation for one query: a row for each key, and the sum."""
    query, keys, values = heads.query[head, place], heads.key[head], heads.value[head]
    products, scores, weights = (
        x[head, place].tolist() for x in (heads.products, heads.scores, heads.weights)
    )
    rows: list[list[fig.Cell]] = [
        [labels[i], vector_text(keys[i]), products[i], scores[i], weights[i],
         vector_text(values[i]), vector_text(values[i] * weights[i])]
        for i in range(len(labels))
    ]  # fmt: skip
    mixed = vector_text(heads.mixed[head, place])
    rows.append(["sum", "", None, None, sum(weights), "", mixed])
    width, dot = len(query), f"q {DOT} k"
    head_row = ("key of", "k", dot, f"/ {ROOT}{width}", "softmax", "v", f"softmax {TIMES} v")
    pairs = list(zip(query.tolist(), keys[0].tolist(), strict=True))
    terms = " + ".join(f"{a:.4f} {TIMES} {b:.4f}" for a, b in pairs[:6])
    more, first = f" + ... ({width} terms)" if width > 6 else "", f"{products[0]:.4f}"
    lines = [
        f"q = {vector_text(query)}",
        f"{dot} of {isolated(labels[0])} = {terms}{more} = {first}",
        f"{first} / {ROOT}{width} = {first} / {width**0.5:.4f} = {products[0] / width**0.5:.4f}",
    ]
    return [fig.Text("First key", lines), fig.Table("All keys", head_row, rows, total=True)]


def _sublayer(sublayer: Sublayer, heads: Heads, place: int) -> fig.Table:
    """Return the vectors of one token after each stage: heads, W^O, addition and norm."""
    total = sublayer.before + sublayer.added
    stages = {f"head {number}": mixed for number, mixed in enumerate(heads.mixed, 1)} | {
        "all heads, concatenated": heads.concatenated,
        "multiplied by W^O": sublayer.added,
        "residual stream": sublayer.before,
        "sum of the last two": total,
    }
    note = "Pre-norm: q, k and v are computed from the output of the norm before the sublayer."
    if not torch.equal(sublayer.after, total):
        stages["norm of the sum"], note = sublayer.after, ""
    rows = [
        [name, rows.shape[1], float(rows[place].norm()), vector_text(rows[place])]
        for name, rows in stages.items()
    ]
    head = "", "width", "L2 norm", "numbers"
    return fig.Table("", head, rows, note=note)


def matrices(sublayer: Sublayer, title: str) -> fig.Table:
    """Return the calculation of one attention for all tokens, as matrices with shapes."""
    module, heads, (tokens, dim) = sublayer.module, sublayer.heads(), sublayer.inputs.shape
    assert isinstance(module, SelfAttention | CrossAttention)
    (h, _, width), keys, groups = heads.query.shape, heads.key.shape[1], module.num_kv_heads
    bias = " + b" if "output.bias" in module.state_dict() else ""
    suffix = ", then norm per head" if len(module.heads) else ""
    suffix += ", then position" if getattr(module, "positions", None) is not None else ""
    letters = {"encoder": ("X", "S", "S"), "decoder": ("X", "T", "T"), "cross": ("M", "T", "S")}
    (x, t, s), g = letters[sublayer.kind or "cross"], "H" if groups == h else "G"
    in_, out = (tokens, dim), (tokens, h * width)
    of_queries, of_keys, square = (h, tokens, width), (groups, keys, width), (h, tokens, keys)
    rows = [
        ("X", "input of the sublayer", f"{t}, d_model", in_, in_),
        ("Q", f"X W^Q{bias}{suffix}", f"H, {t}, d_k", of_queries, (tokens, h, width)),
        ("K", f"{x} W^K{bias}{suffix}", f"{g}, {s}, d_k", of_keys, (keys, groups, width)),
        ("V", f"{x} W^V{bias}", f"{g}, {s}, d_k", of_keys, (keys, groups, width)),
        ("scores", f"Q K^T / {ROOT}{width}", f"H, {t}, {s}", square, ""),
        ("A", "softmax(scores), row by row", f"H, {t}, {s}", square, ""),
        ("Z", "A V", f"H, {t}, d_k", of_queries, (tokens, h, width)),
        ("concat", "Z of all heads, concatenated", f"{t}, H d_k", out, out),
        ("output", f"concat W^O{bias}", f"{t}, d_model", in_, in_),
    ]
    difference: Tensor = (module.output(heads.concatenated) - sublayer.added).abs().max()
    most = number_text(difference.item(), "z.1e")
    note = f"Largest difference from the output of the model's attention: {most}."
    note += " M is the memory, the output of the encoder." if x == "M" else ""
    if groups < h:
        note += f" Each of G = {groups} keys and values is shared by {h // groups} queries."
    cells = [[*a, f"(B, {b})", str((1, *c)), str(d)] for *a, b, c, d in rows]
    head = ["matrix", "formula", "shape", "of this sentence", "packed"]
    return fig.Table(title, head, cells, note=note)


def flow(inspected: Inspected) -> Iterator[fig.Figure]:
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
    loss = F.cross_entropy(inspected.model.logits(recording.hidden), gold)
    # In a post-norm model, the topmost stream is the output. No gradients stay in the model.
    places = [x for each in recording.sublayers for x in (each.after, *each.module.parameters())]
    gradients = iter(torch.autograd.grad(loss, places))
    for side in get_args(Side):
        rows, layers = [], layer_names(len(getattr(inspected.model, side)))
        for each in (x for x in recording.sublayers if x.side == side):
            before, added, after = (
                x.detach().norm(dim=-1).mean().item() for x in (each.before, each.added, each.after)
            )
            stream = float(next(gradients).norm())
            squares = sum(float(next(gradients).square().sum()) for _ in each.module.parameters())
            name = f"{layers[each.layer - 1]}, {each.name.replace('_', '-')}"
            rows.append([name, before, added, after, added / before, stream, squares**0.5])
        note = "Rows are in order from the lowest to the highest sublayer."
        yield fig.Table(f"{side.capitalize()}: norms", _HEAD, rows, note=note)
    for kind, title in KINDS.items():
        weights = recording.weights(kind).detach()
        names = layer_names(len(weights)), [f"head {n}" for n in range(1, weights.shape[1] + 1)]
        note = "Mean distance to the tokens that are read, in tokens."
        if kind == "cross":
            note += " Target positions are scaled to the length of the source."
        values = entropy(weights).tolist(), distance(weights).tolist()
        yield fig.Heatmap(
            f"{title}: entropy", values[0], *names, 0.0, note="Mean over tokens, in nats."
        )
        yield fig.Heatmap(f"{title}: distance", values[1], *names, 0.0, note=note)


def entropy(weights: Tensor) -> Tensor:
    """Return the mean entropy of the rows of each head, in nats. (..., T, S) -> (...)."""
    return torch.special.entr(weights).sum(-1).mean(-1)


def distance(weights: Tensor) -> Tensor:
    """Return the mean distance between a token and the tokens it reads. (..., T, S) -> (...)."""
    return (weights * off_diagonal(*weights.shape[-2:])).sum(-1).mean(-1)


def layer_names(num_layers: int) -> list[str]:
    """Return labels for the layers of a stack, from 1.

    >>> layer_names(1), layer_names(3)
    (['layer 1'], ['layer 1', 'layer 2', 'layer 3 (top)'])
    """
    names = [f"layer {layer}" for layer in range(1, num_layers + 1)]
    return [*names[:-1], f"{names[-1]} (top)"] if num_layers > 1 else names


def off_diagonal(rows: int, columns: int) -> Tensor:
    """Return the distance of each cell from the diagonal, in columns: (T, S).

    If the sentences have different lengths, the diagonal connects their first and last tokens.
    """
    places = torch.arange(rows) * ((columns - 1) / max(rows - 1, 1))
    return (torch.arange(columns) - places.unsqueeze(1)).abs()
