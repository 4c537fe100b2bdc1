"""Records the sublayers in a forward pass, for the views `score` (calculation) and `flow`.

Hooks record the input and the output of each sublayer. Queries, keys and weights are internal to a
sublayer; here they are recomputed from the input and projections of the sublayer, as in the paper:
softmax(Q K^T / sqrt(E)) V. The model is not changed.

Shapes: T tokens with queries, S tokens with keys, H heads, E head width, D model width.
"""

from __future__ import annotations

import math
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
    Bars,
    Block,
    Figure,
    Heatmap,
    Product,
    Rows,
    Step,
    Steps,
    Table,
    TextFigure,
    Words,
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
# Name of a sublayer in a layer -> name of the residual connection around it.
_RESIDUALS = {
    "self_attention": "self_residual",
    "cross_attention": "cross_residual",
    "feed_forward": "feed_forward_residual",
}
_CORNER = 4  # Rows and columns of a large matrix that are drawn.
_MATRIX_COLUMNS = ("matrix", "formula", "shape", "of this sentence", "packed")
_FLOW_COLUMNS = ("sublayer", "stream before", "added", "stream after", "added / before",
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


@dataclass(frozen=True)
class Sublayer:
    """A sublayer in one pass, with the residual connection around it."""

    side: Side
    layer: int  # From 1, upward.
    name: str  # ``self_attention``, ``cross_attention`` or ``feed_forward``.
    module: Attention | FeedForward
    residual: Residual
    # Positional arguments of the module: the input (T, D); in cross-attention, then the output of
    # the encoder (S, D').
    arguments: tuple[Any, ...]
    output: Tensor  # What the sublayer adds to the residual stream. (T, D).
    stream_below: Tensor  # The residual stream before the addition. (T, D).
    # The residual stream after the addition; in a post-norm model, after the norm, too. (T, D).
    stream_above: Tensor

    @property
    def inputs(self) -> Tensor:
        """The input: ``stream_below``, in a pre-norm model after the norm. (T, D)."""
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
        # Queries, keys and values are (tokens, heads, E) until they are transposed below.
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
        scheme = getattr(module, "positions", None)  # only self-attention can have one
        positions = torch.arange(len(self.inputs), device=self.inputs.device)
        if scheme is not None:
            query = scheme.rotate(query, positions)
            key = scheme.rotate(key, positions)
        # Grouped-query attention: several query heads read the same key and the same value.
        group_size = module.num_heads // module.num_kv_heads
        query = query.transpose(0, 1)  # (H, T, E)
        key = key.repeat_interleave(group_size, 1).transpose(0, 1)  # (H, S, E)
        value = value.repeat_interleave(group_size, 1).transpose(0, 1)  # (H, S, E)
        products = query @ key.mT  # (H, T, S)
        # Shaw et al. (2018): vectors to add to keys and to values, which depend on the distance
        # between query and key. (T, S, E) each. None for other schemes.
        distance_vectors = scheme and scheme.vectors(positions, positions)
        if distance_vectors is not None:
            key_vectors, _ = distance_vectors
            more_products = torch.einsum("hte,tse->hts", query, key_vectors)
            products = products + more_products
        scores = products * width**-0.5
        if self.kind == "decoder":
            future = torch.ones_like(scores[0], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(future, -torch.inf)
        weights = scores.softmax(-1)
        mixed = weights @ value
        if distance_vectors is not None:
            _, value_vectors = distance_vectors
            more_values = torch.einsum("hts,tse->hte", weights, value_vectors)
            mixed = mixed + more_values
        return Heads(query, key, value, products, scores, weights, mixed)


@dataclass(frozen=True)
class Recording:
    """A recorded pass over one sentence pair."""

    sublayers: tuple[Sublayer, ...]  # Encoder, then decoder; each from bottom to top.
    hidden: Tensor  # The decoder's output. (T, D).

    def attention(self, kind: Kind) -> tuple[Sublayer, ...]:
        """Return the sublayers with one kind of attention, from bottom to top."""
        return tuple(sublayer for sublayer in self.sublayers if sublayer.kind == kind)

    def weights(self, kind: Kind) -> Tensor:
        """Return the weights of one kind of attention, from bottom to top.

        (layers, H, T, S), on the CPU.
        """
        layers = self.attention(kind)
        weights = [sublayer.heads().weights for sublayer in layers]
        return torch.stack(weights).cpu()


def record(model: Transformer, source: Packed, target: Packed) -> Recording:
    """Record one pass over a sentence pair, with teacher forcing and without dropout.

    Gradients are available unless the caller has disabled them.

    Args:
        model: Model in training or evaluation mode.
        source: Input of the encoder: one sentence.
        target: Input of the decoder: BOS and the target.
    """
    # Module -> its positional arguments and its output in this pass.
    calls = dict[nn.Module, tuple[tuple[Any, ...], Tensor]]()

    def record_call(module: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> None:
        calls[module] = (arguments, output)

    with evaluating(model), ExitStack() as handles:
        for module in model.modules():
            if isinstance(module, Attention | FeedForward | Residual):
                handles.enter_context(module.register_forward_hook(record_call))
        hidden = model(source, target)
    sublayers = []
    for side in get_args(Side):
        for number, layer in enumerate(getattr(model, side), 1):
            modules = dict(layer.named_children())
            for name, residual_name in _RESIDUALS.items():
                if name in modules:  # encoder layers have no cross-attention
                    module = modules[name]
                    residual = modules[residual_name]
                    arguments, output = calls[module]
                    # A residual connection is called with the stream and the sublayer's output.
                    (below, _), above = calls[residual]
                    sublayers.append(
                        Sublayer(
                            side, number, name, module, residual, arguments, output, below, above
                        )
                    )
    return Recording(tuple(sublayers), hidden)


@contextmanager
def without_causal_mask(model: Transformer) -> Iterator[None]:
    """Inside this context, decoder tokens also read later tokens."""

    # A hook that changes the arguments returns the new positional and the new keyword arguments.
    def drop_mask(_: nn.Module, args: Any, options: dict[str, Any]) -> Any:
        return args, {**options, "causal": False}

    with ExitStack() as handles:
        for layer in model.decoder:
            attention = layer.get_submodule("self_attention")
            hook = attention.register_forward_pre_hook(drop_mask, with_kwargs=True)
            handles.enter_context(hook)
        yield


@contextmanager
def without_head(attention: Attention, head: int) -> Iterator[None]:
    """Inside this context, the output of a head (numbered from 1) is 0."""
    # The input of the output projection is the concatenation of all heads: a head is a range of
    # columns.
    end = head * attention.head_dim
    columns = torch.arange(end - attention.head_dim, end)

    def set_to_zero(_: nn.Module, args: tuple[Tensor]) -> Tensor:
        (heads,) = args
        return heads.index_fill(-1, columns.to(heads.device), 0)

    with attention.output.register_forward_pre_hook(set_to_zero):
        yield


@torch.no_grad()
def score(inspected: Inspected) -> Iterator[Figure]:
    """The arithmetic of attention.

    The score of a query q and a key k is their dot product, divided by the square root of the head
    width. Softmax turns the scores of a query into weights that sum to 1. The output of a head is
    the sum of the values v, multiplied by these weights. The outputs of all heads are concatenated,
    multiplied by the matrix W^O, and added to the residual stream. Some models normalise or rotate
    queries and keys after the product with W^Q and W^K. For long vectors, only the first numbers
    are shown; of large matrices, the upper left corner.
    """
    recording = record(inspected.model, inspected.source, inspected.target)
    sublayers = recording.attention("encoder")
    # The chosen layer, numbered from 1; the top layer if no layer is chosen, or if only the decoder
    # has the chosen layer.
    layer = max(inspected.layers(len(sublayers)), default=len(sublayers))
    name = f"Encoder {layer_names(len(sublayers))[layer - 1]}"
    sublayer = sublayers[layer - 1]
    all_heads = sublayer.heads()
    labels = inspected.source_labels
    yield from _projections(sublayer, labels)
    for head in inspected.choice.head or (1,):
        one_head = Heads(*(tensor[head - 1] for tensor in all_heads))  # without the dimension H
        yield from _products_of_head(one_head, f"Head {head}", labels)
        steps = []
        for position, label in enumerate(labels):
            figures = _query_figures(labels, position, one_head)
            title = f"query of {isolated(label)}"
            steps.append(Step(title, figures))
        title = f"{name}, head {head}: one query at a time"
        yield Steps(title, steps)
    steps = []
    for position, label in enumerate(labels):
        stages = _stages(sublayer, all_heads, position)
        steps.append(Step(label, [stages]))
    title = f"{name}: all heads, W^O, addition and norm"
    yield Steps(title, steps)
    yield matrices(sublayer, "The same with matrices")


def _block(label: str, matrix: Tensor, sign: str = "", rows: Sequence[str] = ()) -> Block:
    """Return the corner of a matrix, with labels of its rows."""
    corner = matrix[:_CORNER, :_CORNER].tolist()
    return Block(label, corner, tuple(matrix.shape), sign, rows[:_CORNER])


def _projections(sublayer: Sublayer, labels: Sequence[str]) -> Iterator[Product]:
    """Yield X W^Q = Q, and the same for keys and values. The columns are those of all heads."""
    module = sublayer.module
    assert isinstance(module, SelfAttention)
    sizes = [size * module.head_dim for size in module.sizes]
    linear = module.query_key_value
    inputs = _block("X", sublayer.inputs, rows=labels)
    results = linear(sublayer.inputs).split(sizes, 1)
    weights = linear.weight.split(sizes)
    for i, letter in enumerate("QKV"):
        blocks = [inputs, _block(f"W^{letter}", weights[i].T, TIMES)]
        if "bias" in linear.state_dict():
            bias = linear.bias.split(sizes)[i]
            blocks.append(_block("b", bias.unsqueeze(0), "+"))
        blocks.append(_block(letter, results[i], "="))
        yield Product(f"{letter} of all heads", blocks)


def _products_of_head(head: Heads, name: str, labels: Sequence[str]) -> Iterator[Product]:
    """Yield the weights of a head as a product, and the weighted sum of the values.

    With relative positions, which add vectors to keys and values, nothing is yielded.

    Args:
        head: Results of one head, without the dimension H.
        name: Name of the head.
        labels: Label of each token.
    """
    if not torch.allclose(head.weights @ head.value, head.mixed, atol=1e-4):
        return
    queries = _block("Q", head.query, rows=labels)
    keys = _block("K^T", head.key.T, TIMES)
    products = _block("Q K^T", head.products, "=")
    softmax = f"/ {ROOT}{head.query.shape[1]}, softmax ="
    weights = _block("weights", head.weights, softmax)
    yield Product(f"{name}: weights", [queries, keys, products, weights])
    values = _block("V", head.value, TIMES)
    mixed = _block("Z", head.mixed, "=")
    weights = _block("weights", head.weights, rows=labels)
    yield Product(f"{name}: weighted sum of the values", [weights, values, mixed])


def _query_figures(labels: Sequence[str], position: int, head: Heads) -> list[Figure]:
    """Return the calculation for one query of one head: the first key, then a table of all keys.

    Args:
        labels: Label of each token.
        position: Position of the query, from 0.
        head: Results of one head, without the dimension H.
    """
    query = head.query[position]
    products = head.products[position].tolist()
    scores = head.scores[position].tolist()
    weights = head.weights[position].tolist()
    rows: Rows = []
    for i, label in enumerate(labels):
        key = vector_text(head.key[i])
        value = head.value[i]
        weighted_value = vector_text(value * weights[i])
        numbers = [products[i], scores[i], weights[i]]
        rows.append([label, key, *numbers, vector_text(value), weighted_value])
    mixed = vector_text(head.mixed[position])
    rows.append(["sum", "", None, None, sum(weights), "", mixed])
    width = len(query)
    dot = f"q {DOT} k"
    columns = ("key of", "k", dot, f"/ {ROOT}{width}", "softmax", "v", f"softmax {TIMES} v")
    product = products[0]
    first_product = f"{product:.4f}"
    # At most six terms of the dot product, each a number of q and a number of k.
    pairs = torch.stack([query, head.key[0]], 1)[:6].tolist()
    terms = " + ".join(f"{a:.4f} {TIMES} {b:.4f}" for a, b in pairs)
    if width > 6:
        terms += f" + ... ({width} terms)"
    first_score = f"{product / width**0.5:.4f}"
    lines = [
        f"q = {vector_text(query)}",
        f"{dot} of {isolated(labels[0])} = {terms} = {first_product}",
        f"{first_product} / {ROOT}{width} = {first_product} / {width**0.5:.4f} = {first_score}",
    ]
    first_key = TextFigure("First key", lines)
    return [first_key, Table("All keys", columns, rows, total=True)]


def _stages(sublayer: Sublayer, heads: Heads, position: int) -> Table:
    """Return the vectors of one token after each stage: heads, W^O, addition and norm."""
    total = sublayer.stream_below + sublayer.output
    # Name of the stage -> vectors of all tokens: (T, E), later (T, H * E) and (T, D).
    stages = {f"head {number}": mixed for number, mixed in enumerate(heads.mixed, 1)}
    stages["all heads, concatenated"] = heads.concatenated
    stages["multiplied by W^O"] = sublayer.output
    stages["residual stream"] = sublayer.stream_below
    stages["sum of the last two"] = total
    note = ""
    if torch.equal(sublayer.stream_above, total):
        note = "Pre-norm: q, k and v are computed from the output of the norm before the sublayer."
    else:
        stages["norm of the sum"] = sublayer.stream_above
    rows: Rows = []
    for name, vectors in stages.items():
        vector = vectors[position]
        norm = float(vector.norm())
        rows.append([name, len(vector), norm, vector_text(vector)])
    return Table("", ("", "width", "L2 norm", "numbers"), rows, note=note)


def matrices(sublayer: Sublayer, title: str) -> Table:
    """Return the calculation of one attention for all tokens, as matrices with shapes."""
    module = sublayer.module
    assert not isinstance(module, FeedForward)
    heads = sublayer.heads()
    num_heads, num_queries, width = heads.query.shape
    num_groups = module.num_kv_heads
    bias = ""
    if "output.bias" in module.state_dict():
        bias = " + b"
    # What is done to queries and keys after the product with a matrix. Values get only the bias.
    suffix = bias
    if module.heads:
        suffix += ", then norm per head"
    if getattr(module, "positions", None) is not None:
        suffix += ", then position"
    # Letters in formulas and shapes. In self-attention, queries and keys belong to the same tokens;
    # in cross-attention, keys are computed from the memory M.
    key_input = "X"
    queries = "T"
    keys = "S"
    key_heads = "H"
    if sublayer.kind == "encoder":
        queries = "S"
    elif sublayer.kind == "decoder":
        keys = "T"
    else:
        key_input = "M"
    if num_groups < num_heads:
        key_heads = "G"
    sizes = {
        "H": num_heads,
        "G": num_groups,
        "d_k": width,
        "d_model": sublayer.inputs.shape[1],
        "H d_k": num_heads * width,
        queries: num_queries,
        keys: heads.key.shape[1],
    }
    # Name, formula, and shape in the order of packed tensors: tokens, then heads, then features.
    rows = [
        ("X", "input of the sublayer", f"{queries}, d_model"),
        ("Q", f"X W^Q{suffix}", f"{queries}, H, d_k"),
        ("K", f"{key_input} W^K{suffix}", f"{keys}, {key_heads}, d_k"),
        ("V", f"{key_input} W^V{bias}", f"{keys}, {key_heads}, d_k"),
        ("scores", f"Q K^T / {ROOT}{width}", f"{queries}, H, {keys}"),
        ("A", "softmax(scores), row by row", f"{queries}, H, {keys}"),
        ("Z", "A V", f"{queries}, H, d_k"),
        ("concat", "Z of all heads, concatenated", f"{queries}, H d_k"),
        ("output", f"concat W^O{bias}", f"{queries}, d_model"),
    ]
    cells = []  # columns as in `_MATRIX_COLUMNS`
    for name, formula, packed_shape in rows:
        letters = packed_shape.split(", ")
        tokens, *middle, last = letters
        # In a padded batch, heads come before tokens. The batch has one sentence.
        padded_letters = [*middle, tokens, last]
        padded_sizes = (1, *(sizes[letter] for letter in padded_letters))
        packed_sizes = ""
        if last != keys:  # the model computes scores and weights only in padded form
            packed_sizes = str(tuple(sizes[letter] for letter in letters))
        padded_shape = f"(B, {', '.join(padded_letters)})"
        cells.append([name, formula, padded_shape, str(padded_sizes), packed_sizes])
    differences = (module.output(heads.concatenated) - sublayer.output).abs()
    largest = number_text(differences.max().item(), "z.1e")
    note = f"Largest difference from the output of the model's attention: {largest}."
    if key_input == "M":
        note += " M is the memory, the output of the encoder."
    if num_groups < num_heads:
        group_size = num_heads // num_groups
        note += f" Each of G = {num_groups} keys and values is shared by {group_size} queries."
    return Table(title, _MATRIX_COLUMNS, cells, note=note)


def flow(inspected: Inspected) -> Iterator[Figure]:
    """Flow.

    The residual stream has one vector for each token. Each sublayer reads it and adds its output.
    The tables show the norms of these vectors, averaged over the tokens, and two gradients of the
    cross-entropy per token: with respect to the stream above a sublayer, and with respect to the
    weights of the sublayer. The heatmaps show the entropy of each head, and the mean distance
    between a token and the tokens that it reads. The entropy is 0 if a head reads a single token,
    and the logarithm of the length if it reads all tokens equally.
    """
    recording = record(inspected.model, inspected.source, inspected.target)
    gold = torch.tensor([*inspected.target_ids, EOS_ID])
    logits = inspected.model.logits(recording.hidden).cpu()
    loss = F.cross_entropy(logits, gold)
    # Of each sublayer, the gradient of the stream above it, then the gradients of its weights. In a
    # post-norm model, the topmost stream is the output. `grad` stores no gradients in the model.
    tensors = list[Tensor]()
    for sublayer in recording.sublayers:
        tensors += [sublayer.stream_above, *sublayer.module.parameters()]
    gradients = iter(torch.autograd.grad(loss, tensors))
    yield _words(recording, "encoder", inspected.source_labels)
    yield _words(recording, "decoder", inspected.read_labels)
    rows: dict[Side, Rows] = {"encoder": [], "decoder": []}
    sizes = dict[str, float]()
    for sublayer in recording.sublayers:
        norm_below = _mean_norm(sublayer.stream_below)
        norm_added = _mean_norm(sublayer.output)
        norm_above = _mean_norm(sublayer.stream_above)
        stream_gradient = float(next(gradients).norm())
        # The norm of all weights of a sublayer as one vector: the root of the sum of the squares.
        squares = 0.0
        for _ in sublayer.module.parameters():
            squared = next(gradients).square()
            squares += float(squared.sum())
        stack = getattr(inspected.model, sublayer.side)
        names = layer_names(len(stack))
        name = f"{names[sublayer.layer - 1]}, {sublayer.name.replace('_', '-')}"
        ratio = norm_added / norm_below
        numbers = [norm_below, norm_added, norm_above, ratio, stream_gradient, squares**0.5]
        rows[sublayer.side].append([name, *numbers])
        sizes[f"{sublayer.side} {name}"] = norm_above
    norms = {"L2 norm": list(sizes.values())}
    yield Bars("Size of the stream", list(sizes), norms, max(sizes.values()))
    for side, side_rows in rows.items():
        note = "Rows are in order from the lowest to the highest sublayer."
        title = f"{side.capitalize()}: norms"
        yield Table(title, _FLOW_COLUMNS, side_rows, note=note)
    # One scale for all kinds of attention.
    longest = max(len(inspected.source_ids), len(gold))
    for kind, title in KINDS.items():
        weights = recording.weights(kind).detach()  # (layers, H, T, S)
        layer_labels = layer_names(len(weights))
        num_heads = weights.shape[1]
        head_labels = [f"head {number}" for number in range(1, num_heads + 1)]
        note = "Mean over tokens, in nats."
        entropies = entropy(weights).tolist()
        name = f"{title}: entropy"
        yield Heatmap(name, entropies, layer_labels, head_labels, 0.0, math.log(longest), note=note)
        note = "Mean distance to the tokens that are read, in tokens."
        if kind == "cross":
            note += " Target positions are scaled to the length of the source."
        distances = distance(weights).tolist()
        name = f"{title}: distance"
        yield Heatmap(name, distances, layer_labels, head_labels, 0.0, longest, note=note)


def _words(recording: Recording, side: Side, words: Sequence[str]) -> Words:
    """Return the way of the words through a stack: their vectors after each sublayer."""
    sublayers = [sublayer for sublayer in recording.sublayers if sublayer.side == side]
    vectors = {"embedding": sublayers[0].stream_below}
    for sublayer in sublayers:
        label = f"{sublayer.layer}: {sublayer.name.replace('_', '-')}"
        vectors[label] = sublayer.stream_above
    stages = {}
    for label, stream in vectors.items():
        corner = stream[:, :_CORNER]
        stages[label] = corner.tolist()
    note = f"The boxes have the first {_CORNER} numbers of each vector."
    return Words(f"Words through the {side}", words, stages, note=note)


def _mean_norm(vectors: Tensor) -> float:
    """Return the mean L2 norm of the vectors of all tokens: (T, D)."""
    norms = vectors.detach().norm(dim=-1)
    return float(norms.mean())


def entropy(weights: Tensor) -> Tensor:
    """Return the mean entropy of the rows of each head, in nats. (..., T, S) -> (...)."""
    return torch.special.entr(weights).sum(-1).mean(-1)


def distance(weights: Tensor) -> Tensor:
    """Return the mean distance between a token and the tokens it reads. (..., T, S) -> (...)."""
    distances = off_diagonal(*weights.shape[-2:])
    # The weights of a row sum to 1, so the sum of a row is its mean distance.
    weighted_distances = weights * distances
    return weighted_distances.sum(-1).mean(-1)


def layer_names(num_layers: int) -> list[str]:
    """Return labels for the layers of a stack, from 1.

    >>> layer_names(1), layer_names(3)
    (['layer 1'], ['layer 1', 'layer 2', 'layer 3 (top)'])
    """
    names = [f"layer {layer}" for layer in range(1, num_layers + 1)]
    if num_layers > 1:
        names[-1] += " (top)"
    return names


def off_diagonal(num_rows: int, num_columns: int) -> Tensor:
    """Return the distance of each cell from the diagonal, in columns: (T, S).

    If the sentences have different lengths, the diagonal connects their first and last tokens.
    """
    slope = (num_columns - 1) / max(num_rows - 1, 1)  # columns per row
    diagonal = torch.arange(num_rows) * slope  # column of the diagonal in each row
    return (torch.arange(num_columns) - diagonal.unsqueeze(1)).abs()
