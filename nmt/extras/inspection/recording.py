"""One pass of a model over a sentence pair, recorded through hooks; nothing is changed in it.

Hooks see the input and the output of each sublayer. Queries, keys and weights, which stay
inside, are recomputed from that with the sublayer's own projections, in the form of the
paper: softmax(Q K^T / sqrt(E)) V. Without hooks the model has no cost.

Shapes: T tokens that a sublayer reads for, S tokens whose keys it reads, H heads, E head width, D
model width.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from nmt.model.layers import CrossAttention, Residual, SelfAttention
from nmt.model.transformer import Transformer, evaluating
from nmt.packed import Packed

# Attention of the encoder, of the decoder to itself, and of the decoder to the source.
Kind = Literal["encoder", "decoder", "cross"]
Side = Literal["encoder", "decoder"]
Attention = SelfAttention | CrossAttention
_SUBLAYERS = ("self_attention", "cross_attention", "feed_forward")


class Heads(NamedTuple):
    """What the heads of one attention sublayer work out, step by step."""

    query: Tensor  # After norm and rotation, if the model has them. (H, T, E).
    key: Tensor  # The same; those of a group are repeated for each of its queries. (H, S, E).
    value: Tensor  # (H, S, E).
    products: Tensor  # Of each query and each key. (H, T, S).
    # Divided by sqrt(E), with the bias of a position scheme; minus infinity under the mask.
    scores: Tensor
    weights: Tensor  # Softmax of the scores: each row sums to 1. (H, T, S).
    mixed: Tensor  # Sum of the values times their weights. (H, T, E).

    @property
    def concatenated(self) -> Tensor:
        """All heads side by side: (T, H * E)."""
        return self.mixed.transpose(0, 1).flatten(1)


@dataclass(frozen=True, slots=True)
class Sublayer:
    """A sublayer in one pass, with the residual connection around it."""

    side: Side
    layer: int  # From 1, upward.
    name: str  # ``self_attention``, ``cross_attention`` or ``feed_forward``.
    module: nn.Module
    residual: Residual
    # What it reads: the residual stream, after the norm in a pre-norm model. (T, D).
    inputs: Tensor
    memory: Tensor | None  # What its keys come from, where that is the encoder's output. (S, D').
    added: Tensor  # What it adds to the residual stream. (T, D).
    before: Tensor  # The residual stream. (T, D).
    after: Tensor  # The residual stream above it, after the norm in a post-norm model. (T, D).

    @property
    def kind(self) -> Kind | None:
        """The kind of attention; None for feed-forward."""
        kinds: dict[str, Kind] = {"self_attention": self.side, "cross_attention": "cross"}
        return kinds.get(self.name)

    def heads(self) -> Heads:
        """Work out again what its heads do."""
        module = self.module
        assert isinstance(module, SelfAttention | CrossAttention)
        width, bias, vectors = module.head_dim, None, None
        if isinstance(module, SelfAttention):
            fused = module.query_key_value(self.inputs).unflatten(1, (-1, width))
            query, key, value = fused.split(module.sizes, 1)
            if module.heads:
                query, key = module.heads["query_norm"](query), module.heads["key_norm"](key)
            if (scheme := module.positions) is not None:
                order = torch.arange(len(self.inputs))
                query, key = scheme.rotate(query, order), scheme.rotate(key, order)
                bias, vectors = scheme.bias(order, order), scheme.vectors(order, order)
        else:
            assert self.memory is not None
            query = module.query(self.inputs).unflatten(1, (-1, width))
            query = module.heads["query_norm"](query) if module.heads else query
            key, value = module.project_cross_kv(self.memory)
        share = module.num_heads // module.num_kv_heads
        key, value = (x.repeat_interleave(share, 1).transpose(0, 1) for x in (key, value))
        query = query.transpose(0, 1)
        products = query @ key.mT
        # Shaw et al. (2018): keys and values that depend on the distance, too.
        if vectors is not None:
            products = products + torch.einsum("hte,tse->hts", query, vectors[0])
        scores = products * width**-0.5
        scores = scores if bias is None else scores + bias
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
    """A pass over one sentence pair."""

    sublayers: tuple[Sublayer, ...]  # From below: those of the encoder, then those of the decoder.
    hidden: Tensor  # The decoder's output. (T, D).

    def attention(self, kind: Kind) -> tuple[Sublayer, ...]:
        """Sublayers of one kind of attention, the lowest first."""
        return tuple(each for each in self.sublayers if each.kind == kind)

    def weights(self, kind: Kind) -> Tensor:
        """What the heads of one kind read, the lowest layer first: (layers, H, T, S)."""
        return torch.stack([each.heads().weights for each in self.attention(kind)])

    def mean_attention(self) -> Tensor:
        """Attention to the source: mean over the heads of the upper half of the layers. (T, S)."""
        weights = self.weights("cross")
        return weights[len(weights) // 2 :].mean(1).mean(0)


def record(model: Transformer, source: Packed, target: Packed) -> Recording:
    """Record one pass over a sentence pair: teacher forcing, as in training, but no dropout.

    Gradients can be taken of it unless the caller turned them off.

    Args:
        model: In any mode.
        source: What the encoder reads: one sentence.
        target: What the decoder reads: BOS and the target.
    """
    sublayers: list[Sublayer] = []
    seen: dict[str, tuple[Tensor, Tensor | None, Tensor]] = {}

    def watch(side: Side, number: int, layer: nn.Module, name: str) -> None:
        module = layer.get_submodule(name)
        residual = getattr(layer, name.replace("_attention", "") + "_residual")

        def of_sublayer(_: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            memory = args[1] if name == "cross_attention" else None
            seen[name] = args[0], memory, output

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
    """Let the decoder's tokens read those after them, too, in passes that are made inside."""

    def see_all(_: nn.Module, args: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, {**options, "causal": False}

    with ExitStack() as handles:
        for layer in model.decoder:
            attention = layer.get_submodule("self_attention")
            handles.enter_context(attention.register_forward_pre_hook(see_all, with_kwargs=True))
        yield


@contextmanager
def without_head(attention: Attention, head: int) -> Iterator[None]:
    """Set what a head (numbered from 1) gives to 0, in passes that are made inside."""
    columns = torch.arange((head - 1) * attention.head_dim, head * attention.head_dim)

    def silence(_: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        return (args[0].index_fill(-1, columns, 0),)

    with attention.output.register_forward_pre_hook(silence):
        yield
