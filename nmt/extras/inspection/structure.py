"""The structure of a model: parameters, architecture, and the tensors of a forward pass.

Parameters and architecture need only names and shapes, so they also work for a model on torch's
``meta`` device, which has no memory for weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from math import prod

import torch
from torch import Tensor, nn

from nmt.config.model import ModelConfig
from nmt.extras.inspection import figure as fig
from nmt.extras.inspection.figure import ROOT, TIMES, number_text
from nmt.extras.inspection.inspected import Inspected
from nmt.extras.inspection.sublayers import KINDS, matrices, record
from nmt.model.layers import CrossAttention, FeedForward, Residual, SelfAttention
from nmt.model.positions import POSITIONS
from nmt.model.transformer import Transformer
from nmt.packed import Packed

Formula = tuple[tuple[int, ...], ...]  # A sum of products.
_INDENT = "\N{NO-BREAK SPACE}" * 3
# ``model.embeddings`` -> labels of the matrices that are shared.
_SHARED = {
    "separate": {},
    "decoder-tied": {"target_vectors": "target and output embeddings"},
    "inputs-shared": {"source_vectors": "source and target embeddings"},
    "tied": {"source_vectors": "source, target and output embeddings"},
}
_NORMS = {
    "layer": f"LayerNorm: divides by {ROOT}(variance + {{}})",
    "layer-std": "LayerNorm: divides by (std + {})",
    "rms": f"RMSNorm: divides by {ROOT}(mean square + {{}})",
}
_ACTIVATIONS = {"relu": "ReLU", "gelu": "GELU", "silu": "SiLU", "swiglu": "SwiGLU"}


@dataclass(frozen=True)
class PartCount:
    """A part of a model, with a formula for the number of its parameters."""

    name: str
    formula: Formula
    depth: int = 0  # Level in the tree of parts, from 0.
    copies: int = 1  # Copies of this part in the model.

    @property
    def count(self) -> int:
        """Parameters of one copy."""
        return sum(map(prod, self.formula))

    @property
    def arithmetic(self) -> str:
        """The formula as text.

        >>> PartCount("attention", ((4, 8, 512, 64), (4, 512))).arithmetic
        '4 \u00d7 8 \u00d7 512 \u00d7 64 + 4 \u00d7 512'
        """
        products = ([f"{n:,}" for n in product] for product in self.formula)
        return " + ".join(f" {TIMES} ".join(product) for product in products)


def parameters(inspected: Inspected) -> Iterator[fig.Figure]:
    """Parameters.

    Parameters are the numbers that training adjusts. A weight matrix has rows times columns
    parameters; each bias and each norm adds a vector. The formula and the count are for one copy of
    a part; multiply them by the number of copies. An embedding matrix that several parts share
    counts once.
    """
    yield parameter_table(inspected.structure, "Parameters")


def parameter_table(model: Transformer, title: str, more: str = "") -> fig.Table:
    """Return a table with the formula, count, copies and share of each part of a model."""
    parts = count_parts(model)
    total = parts[-1].count
    rows = [
        (_INDENT * part.depth + part.name, part.arithmetic, part.count, part.copies,
         f"{part.count * part.copies / total:.1%}")
        for part in parts
    ]  # fmt: skip
    head = "part", "formula", "parameters", "copies", "share of total"
    return fig.Table(title, head, rows, total=True, note=f"{4 * total:,} bytes in float32.{more}")


def count_parts(model: Transformer) -> list[PartCount]:
    """Return all parts, each followed by its subparts; the last entry is the total.

    The total is the sum of the counts at depth 0, and equals ``sum(p.numel())`` of the model.
    """
    names = _SHARED[model.config.embeddings]
    parts: list[PartCount] = []
    for name, parameter in model.named_parameters(recurse=False):
        label = names.get(name, name.replace("vectors", "embeddings").replace("_", " "))
        parts.append(PartCount(label, (tuple(parameter.shape),)))
    for name, module in model.named_children():
        label = name.replace("embedding", "positions").replace("_", " ")
        if isinstance(module, nn.ModuleList):
            parts += _count_stack(label, module)
        elif formula := _formula(module):
            parts.append(PartCount(label, formula))
    sums = tuple((part.count,) for part in parts if part.depth == 0)
    return [*parts, PartCount("total", sums)]


def _count_stack(name: str, layers: nn.ModuleList) -> list[PartCount]:
    """Return entries for a stack, for one layer, and for the layer's sublayers and norms."""
    num_layers, modules = len(layers), Counter[tuple[str, Formula]]()
    for child_name, child in layers[0].named_children():
        label = "norm" if isinstance(child, Residual) else child_name.replace("_", "-")
        modules[label, _formula(child)] += 1
    inner = [
        PartCount(label, formula, 2, times * num_layers)
        for (label, formula), times in modules.items()
    ]
    products = zip(modules.values(), (part.count for part in inner), strict=True)
    sums = tuple((times, count) if times > 1 else (count,) for times, count in products)
    layer = PartCount(f"{name} layer", sums, 1, num_layers)
    return [PartCount(name, ((num_layers, layer.count),)), layer, *inner]


def _formula(module: nn.Module) -> Formula:
    """Return the number of parameters of a module as a sum of products; empty for 0."""
    if isinstance(module, FeedForward):
        width, dim = module.outer.in_features, module.outer.out_features
        gates = module.inner.out_features // width
        biases = ((gates, width) if gates > 1 else (width,), (dim,))
        has_bias = "inner.bias" in module.state_dict()
        return ((gates + 1, dim, width), *(biases if has_bias else ()))
    if not isinstance(module, SelfAttention | CrossAttention):
        # One product for all parameters with the same shape: their number times their sizes.
        shapes = Counter(tuple(parameter.shape) for parameter in module.parameters())
        return tuple((number, *shape) if number > 1 else shape for shape, number in shapes.items())
    heads, groups, size = module.num_heads, module.num_kv_heads, module.head_dim
    dim, has_bias = module.output.out_features, "output.bias" in module.state_dict()
    memory = module.key_value.in_features if isinstance(module, CrossAttention) else dim
    if (heads, dim) == (groups, memory):  # queries, keys, values and output have the same size
        products: Formula = (4, heads, dim, size), (4, dim)
    else:
        matrices = (2, heads, dim, size), (2, groups, memory, size)
        products = *matrices, (2, dim), (2, groups, size)
    scheme = getattr(module, "positions", None)
    positions = () if scheme is None else _formula(scheme)
    weights = products if has_bias else products[: len(products) // 2]
    return (*weights, *_formula(module.heads), *positions)


def diagram(inspected: Inspected) -> Iterator[fig.Figure]:
    """Architecture.

    The encoder turns the source into one vector per token, called the memory. The decoder reads the
    target so far and, in every layer, the memory. An "add" box is a residual connection: the sum
    of the input and the output of a sublayer. Layers are numbered from the bottom.
    """
    yield stack_diagram(inspected.config.model, inspected.vocab_sizes)


def stack_diagram(config: ModelConfig, vocab_sizes: tuple[int, int]) -> fig.Diagram:
    """Return encoder and decoder side by side, with arrows for the memory and shared embeddings.

    Args:
        config: The model section.
        vocab_sizes: Sizes of the source and the target vocabulary.
    """
    encoder = _stack(config, vocab_sizes[0], is_decoder=False)
    decoder = _stack(config, vocab_sizes[1], is_decoder=True)
    cross = next(i for i, box in enumerate(decoder.boxes) if box.label == "cross-attention")
    arrows = [((0, len(encoder.boxes) - 1), (1, cross), "memory: keys and values")]
    if config.shares_inputs:
        arrows.append(((0, 0), (1, 0), "shared weights"))
    if config.ties_output:
        arrows.append(((1, 0), (1, len(decoder.boxes) - 2), "shared weights"))
    is_pre = config.norm_position == "pre"
    where = "before each sublayer and after the last" if is_pre else "after each addition"
    note = (
        f"Read from bottom to top. Norms come {where} ({config.norm_position}-norm). Dropout is "
        "active in training only."
    )
    return fig.Diagram("Stacks", (encoder, decoder), arrows, note=note)


def _stack(config: ModelConfig, vocab_size: int, *, is_decoder: bool) -> fig.Stack:
    """Return the boxes of one side, from bottom to top."""
    dim, ff_dim, number = config.model_dim, config.ff_dim, config.encoder_layers
    attention_dropout = config.attention_dropout
    if is_decoder:
        dim, ff_dim, number = config.decoder_dim, config.decoder_ff, config.decoder_layers
        if config.decoder_attention_dropout is not None:
            attention_dropout = config.decoder_attention_dropout
    scheme, is_pre = POSITIONS[config.positions], config.norm_position == "pre"
    drop = _dropout(config.dropout)
    start = f", times {ROOT}{dim:,}" if config.scale_embeddings else ""
    start += ", zeros at the start" if is_decoder and config.decoder_start == "zero" else ""
    start += ", BOS at the start" if config.source_bos and not is_decoder else ""
    start += "" if scheme.absolute is not None else drop
    boxes = [fig.Box("embedding", f"{vocab_size:,} {TIMES} {dim:,}{start}", "embedding")]
    if scheme.absolute is not None:
        places = f"{config.positions}, the first is {config.first_position}{drop}"
        boxes.append(fig.Box("add positions", places, "embedding"))
    heads = f"{config.num_heads} heads of {dim // config.num_heads}"
    if config.num_kv_heads not in (None, config.num_heads):
        heads += f", {config.num_kv_heads} of keys and values"
    heads += ", queries and keys normalised" if config.qk_norm else ""
    heads += _bias(config.has_bias("attention")) + _dropout(attention_dropout)
    relative = f", {config.positions} positions" if scheme.relative is not None else ""
    sizes = f"{dim:,} to {ff_dim:,} to {dim:,}, {_ACTIVATIONS[config.activation]}"
    sizes += _bias(config.has_bias("feed-forward")) + _dropout(config.activation_dropout)
    causal, is_rms = "causal, " if is_decoder else "", config.norm == "rms"
    epsilon = number_text(config.norm_epsilon or (1e-6 if is_rms else 1e-5), "z.0e")
    bias = _bias(config.has_bias("norm") and not is_rms)
    first, norm = len(boxes), fig.Box("norm", _NORMS[config.norm].format(epsilon) + bias, "norm")
    for sublayer in (
        fig.Box("self-attention", f"{causal}{heads}{relative}", "attention"),
        *([fig.Box("cross-attention", heads, "attention")] if is_decoder else []),
        fig.Box("feed-forward", sizes, "feed-forward"),
    ):
        add = fig.Box("add", drop.removeprefix(", "), "add", residual=2 if is_pre else 1)
        boxes += [norm, sublayer, add] if is_pre else [sublayer, add, norm]
    last = len(boxes) - 1
    boxes += [norm] if is_pre else []
    if is_decoder:
        output = f"{dim:,} to {vocab_size:,}{_bias(config.output_bias)}"
        boxes.append(fig.Box("output projection", output))
        boxes.append(fig.Box("softmax", "a probability for each subword"))
    return fig.Stack("decoder" if is_decoder else "encoder", boxes, (first, last, number))


def _bias(is_there: bool) -> str:
    return ", bias" if is_there else ", no bias"


def _dropout(share: float) -> str:
    return f", dropout {share:g}" if share else ""


def shapes(inspected: Inspected) -> Iterator[fig.Figure]:
    """Tensors.

    Papers and tutorials write tensors with a batch of B padded sentences: S source positions, T
    target positions, H heads of width d_k. The model packs sentences without padding, so its
    tensors begin with the number of tokens. The first tables show both forms for each attention.
    The last table lists the output of every module in one pass, in the order in which the modules
    finish. Spread is the standard deviation over all numbers of a tensor.
    """
    recording = record(inspected.model, inspected.source, inspected.target)
    for kind, title in KINDS.items():
        layers = recording.attention(kind)
        if chosen := inspected.layers(len(layers)):
            yield matrices(layers[chosen[-1] - 1], f"{title}, layer {chosen[-1]}")
    rows = trace_tensors(
        inspected.model, inspected.source, inspected.target, inspected.choice.layer
    )
    head = "tensor", "packed shape", "dtype", "mean", "spread"
    yield fig.Table("Tensors of one pass", head, rows)


def trace_tensors(
    model: Transformer, source: Packed, target: Packed, layer: int | None = None
) -> list[list[fig.Cell]]:
    """Run a model once, and describe the output of each module and the logits.

    Args:
        model: Model in evaluation mode.
        source: Source ids.
        target: BOS and target ids.
        layer: Include only this layer of each stack, from 1; all layers if None.

    Returns:
        Rows of name, shape, dtype, mean and standard deviation. The last two are None for ids.
    """
    rows: list[list[fig.Cell]] = []

    def note(name: str, _module: object, _inputs: object, output: Tensor) -> None:
        rows.append([name, str(tuple(output.shape)), str(output.dtype).removeprefix("torch.")])
        spread, mean = torch.std_mean(output.double(), correction=0)
        rows[-1] += [mean.item(), spread.item()] if output.is_floating_point() else [None, None]

    note("source ids", None, None, source.ids)
    note("target ids", None, None, target.ids)
    with ExitStack() as handles, torch.inference_mode():
        for path, module in model.named_modules():
            if (name := _label(path, layer)) and not isinstance(module, nn.Identity):
                handles.enter_context(module.register_forward_hook(partial(note, name)))
        logits = model.logits(model(source, target))
    note("logits", None, None, logits)
    return rows


def _label(path: str, layer: int | None) -> str:
    """Return the label of a module's output; empty if the module is not shown."""
    stack, _, rest = path.partition(".")
    if not rest:
        return path.replace("_", " ") or "decoder output"
    number, _, inner = rest.partition(".")
    if not number.isdecimal() or layer not in (None, int(number) + 1):
        return ""
    name = inner.replace("_", " ").replace(".", ", ")
    return f"{stack} layer {int(number) + 1}" + (f": {name}" if name else "")
