"""The arithmetic of a model's parameters: formula and count of every part, to the last one.

A formula is a sum of products, and a count is what it comes to, so the two cannot disagree. The
parts are found in the built module tree; only sizes are read, so that a model on torch's ``meta``
device, without memory for weights, does as well as a trained one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from torch import nn

from nmt.model.layers import CrossAttention, FeedForward, Residual, SelfAttention
from nmt.model.transformer import Transformer

Formula = tuple[tuple[int, ...], ...]  # Products, to be added.
# ``model.embeddings`` -> names of the tables with several uses.
_SHARED: Mapping[str, Mapping[str, str]] = {
    "separate": {},
    "decoder-tied": {"target_vectors": "target and output table"},
    "inputs-shared": {"source_vectors": "source and target table"},
    "tied": {"source_vectors": "source, target and output table"},
}


@dataclass(frozen=True, slots=True)
class PartCount:
    """A part of a model and its parameters."""

    name: str
    formula: Formula
    depth: int = 0  # How many parts it is within.
    copies: int = 1  # How many of it the model has.

    @property
    def count(self) -> int:
        """Parameters of one copy."""
        return sum(map(prod, self.formula))

    @property
    def arithmetic(self) -> str:
        """The formula in numbers.

        >>> PartCount("attention", ((4, 8, 512, 64), (4, 512))).arithmetic
        '4 x 8 x 512 x 64 + 4 x 512'
        """
        return " + ".join(" x ".join(f"{n:,}" for n in product) for product in self.formula)


def count_parts(model: Transformer) -> list[PartCount]:
    """Return every part with its parameters, a part before what it consists of; the sum is last.

    The counts at depth 0, but for the last, add up to the last: ``sum(p.numel())`` of the model.
    """
    names = _SHARED[model.config.embeddings]
    parts: list[PartCount] = []
    for name, parameter in model.named_parameters(recurse=False):
        label = names.get(name, name.replace("vectors", "table").replace("_", " "))
        parts.append(PartCount(label, (tuple(parameter.shape),)))
    for name, module in model.named_children():
        label = name.replace("embedding", "positions").replace("_", " ")
        if isinstance(module, nn.ModuleList):
            parts += _stack(label, module)
        elif formula := formula_of(module):
            parts.append(PartCount(label, formula))
    sums = tuple((part.count,) for part in parts if part.depth == 0)
    return [*parts, PartCount("total", sums)]


def formula_of(module: nn.Module) -> Formula:
    """Return the parameters of a module as a sum of products; empty where it has none."""
    if isinstance(module, SelfAttention | CrossAttention):
        relative = getattr(module, "positions", None)
        rest = () if relative is None else _shapes(relative)
        return (*_attention(module), *_shapes(module.heads), *rest)
    if isinstance(module, FeedForward):
        width, dim = module.outer.in_features, module.outer.out_features
        gates = module.inner.out_features // width
        biases = ((gates, width) if gates > 1 else (width,), (dim,))
        has_bias = module.inner.bias is not None
        return ((gates + 1, dim, width), *(biases if has_bias else ()))
    return _shapes(module)


def _attention(module: SelfAttention | CrossAttention) -> Formula:
    """Matrices and biases of queries, keys, values and output."""
    heads, groups, size = module.num_heads, module.num_kv_heads, module.head_dim
    dim = module.output.out_features
    memory = module.key_value.in_features if isinstance(module, CrossAttention) else dim
    has_bias = module.output.bias is not None
    if (heads, dim) == (groups, memory):
        return ((4, heads, dim, size), *([(4, dim)] if has_bias else ()))
    matrices = (2, heads, dim, size), (2, groups, memory, size)
    return (*matrices, *([(2, dim), (2, groups, size)] if has_bias else ()))


def _shapes(module: nn.Module) -> Formula:
    """One product for parameters of one shape: how many there are, times their sizes."""
    shapes = Counter(tuple(parameter.shape) for parameter in module.parameters())
    return tuple((number, *shape) if number > 1 else shape for shape, number in shapes.items())


def _stack(name: str, layers: nn.ModuleList) -> Iterator[PartCount]:
    """Yield a stack of equal layers, its layer, and the sub-layers and norms of that."""
    modules: Counter[tuple[str, Formula]] = Counter()
    for child_name, child in layers[0].named_children():
        label = "norm" if isinstance(child, Residual) else child_name.replace("_", "-")
        modules[label, formula_of(child)] += 1
    inner = [
        (PartCount(label, formula, depth=2, copies=times * len(layers)), times)
        for (label, formula), times in modules.items()
    ]
    sums = tuple((times, part.count) if times > 1 else (part.count,) for part, times in inner)
    layer = PartCount(f"{name} layer", sums, depth=1, copies=len(layers))
    yield PartCount(name, ((len(layers), layer.count),))
    yield layer
    yield from (part for part, _ in inner)
