"""The structure of a model: parameters, architecture, and the tensors of a forward pass.

Parameters and architecture need only names and shapes, so they also work for a model on torch's
``meta`` device, which has no memory for weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from math import prod

import torch
from torch import Tensor, nn

from nmt.config.model import ModelConfig
from nmt.extras.inspection.figure import (
    ROOT,
    TIMES,
    Box,
    BoxKind,
    Diagram,
    Figure,
    Rows,
    Stack,
    Table,
    number_text,
)
from nmt.extras.inspection.inspected import Inspected
from nmt.extras.inspection.sublayers import KINDS, Attention, matrices, record
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
# ``model.norm`` -> formula, with a place for epsilon.
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
    formula: Formula  # Of one copy.
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
        return " + ".join(map(_product, self.formula))


def _product(numbers: Sequence[int]) -> str:
    return f" {TIMES} ".join(f"{number:,}" for number in numbers)


def parameters(inspected: Inspected) -> Iterator[Figure]:
    """Parameters.

    Parameters are the numbers that training adjusts. A weight matrix has rows times columns
    parameters; each bias and each norm adds a vector. The formula and the count are for one copy of
    a part; multiply them by the number of copies. An embedding matrix that several parts share
    counts once.
    """
    model = inspected.structure
    yield parameter_table(model, "Parameters")


def parameter_table(model: Transformer, title: str, remark: str = "") -> Table:
    """Return a table with the formula, count, copies and share of each part of a model.

    ``remark`` is appended to the note; it begins with a space.
    """
    parts = count_parts(model)
    total = parts[-1].count
    rows: Rows = []
    for part in parts:
        name = _INDENT * part.depth + part.name
        share = f"{part.count * part.copies / total:.1%}"
        rows.append([name, part.arithmetic, part.count, part.copies, share])
    head = ("part", "formula", "parameters", "copies", "share of total")
    note = f"{4 * total:,} bytes in float32.{remark}"
    return Table(title, head, rows, total=True, note=note)


def count_parts(model: Transformer) -> list[PartCount]:
    """Return all parts, each followed by its subparts; the last entry is the total.

    The total is the sum of the counts at depth 0, and equals ``sum(p.numel())`` of the model.
    """
    shared_labels = _SHARED[model.config.embeddings]
    parts = list[PartCount]()
    # The parameters of the model itself are the embedding matrices and the output bias.
    for name, parameter in model.named_parameters(recurse=False):
        label = name.replace("vectors", "embeddings").replace("_", " ")
        label = shared_labels.get(name, label)
        shape = tuple(parameter.shape)
        parts.append(PartCount(label, (shape,)))
    for name, module in model.named_children():
        label = name.replace("embedding", "positions").replace("_", " ")
        if isinstance(module, nn.ModuleList):
            parts += _count_stack(label, module)
        elif formula := _formula(module):
            parts.append(PartCount(label, formula))
    # Parts at depth 0 contain all others. Each product of the total has one factor.
    counts = tuple((part.count,) for part in parts if part.depth == 0)
    return [*parts, PartCount("total", counts)]


def _count_stack(name: str, layers: nn.ModuleList) -> list[PartCount]:
    """Return entries for a stack, for one layer, and for the layer's sublayers and norms.

    Their depths are 0, 1 and 2. All layers of a stack have the same parts.
    """
    num_layers = len(layers)
    # Label and formula of a part -> how often the part occurs in one layer.
    copies_in_layer = Counter[tuple[str, Formula]]()
    for child_name, child in layers[0].named_children():
        label = child_name.replace("_", "-")
        if isinstance(child, Residual):
            label = "norm"
        copies_in_layer[label, _formula(child)] += 1
    parts_of_layer = []
    layer_formula = []
    for (label, formula), copies in copies_in_layer.items():
        part = PartCount(label, formula, 2, copies * num_layers)
        parts_of_layer.append(part)
        layer_formula.append(_times(copies, (part.count,)))
    layer = PartCount(f"{name} layer", tuple(layer_formula), 1, num_layers)
    return [PartCount(name, ((num_layers, layer.count),)), layer, *parts_of_layer]


def _times(count: int, product: tuple[int, ...]) -> tuple[int, ...]:
    """Return the factors of a product multiplied by a count, which is left out if it is 1."""
    if count == 1:
        return product
    return (count, *product)


def _formula(module: nn.Module) -> Formula:
    """Return the number of parameters of a module as a sum of products; empty for 0."""
    if isinstance(module, FeedForward):
        width = module.outer.in_features
        dim = module.outer.out_features
        # SwiGLU has two inner projections in one matrix, other activations have one. The outer
        # projection has the same size as each of them.
        num_inner = module.inner.out_features // width
        formula: Formula = ((num_inner + 1, dim, width),)
        if "inner.bias" in module.state_dict():
            inner_bias = _times(num_inner, (width,))
            formula += (inner_bias, (dim,))
        return formula
    if isinstance(module, SelfAttention | CrossAttention):
        return _attention_formula(module)
    # One product for all parameters with the same shape: their number times their sizes.
    shapes = Counter(tuple(parameter.shape) for parameter in module.parameters())
    return tuple(_times(count, shape) for shape, count in shapes.items())


def _attention_formula(module: Attention) -> Formula:
    """Return the parameters of the four projections, then those of norms and positions."""
    num_heads = module.num_heads
    num_groups = module.num_kv_heads
    head_dim = module.head_dim
    dim = module.output.out_features
    memory_dim = dim  # width of the vectors from which keys and values are computed
    if isinstance(module, CrossAttention):
        memory_dim = module.key_value.in_features
    # Queries and output have the same size, and so have keys and values.
    formula: Formula = ((2, num_heads, dim, head_dim), (2, num_groups, memory_dim, head_dim))
    biases: Formula = ((2, dim), (2, num_groups, head_dim))
    if (num_heads, dim) == (num_groups, memory_dim):  # all four have the same size
        formula = ((4, num_heads, dim, head_dim),)
        biases = ((4, dim),)
    if "output.bias" in module.state_dict():
        formula += biases
    formula += _formula(module.heads)  # norms of queries and keys, if there are any
    scheme = getattr(module, "positions", None)
    if scheme is not None:
        formula += _formula(scheme)
    return formula


def diagram(inspected: Inspected) -> Iterator[Figure]:
    """Architecture.

    The encoder turns the source into one vector per token, called the memory. The decoder reads the
    target so far and, in every layer, the memory. An "add" box is a residual connection: the sum
    of the input and the output of a sublayer. Layers are numbered from the bottom.
    """
    yield stack_diagram(inspected.config.model, inspected.vocab_sizes)


def stack_diagram(config: ModelConfig, vocab_sizes: tuple[int, int]) -> Diagram:
    """Return encoder and decoder side by side, with arrows for the memory and shared embeddings.

    Args:
        config: The model section.
        vocab_sizes: Sizes of the source and the target vocabulary.
    """
    encoder = _stack(config, vocab_sizes[0], is_decoder=False)
    decoder = _stack(config, vocab_sizes[1], is_decoder=True)
    labels = [box.label for box in decoder.boxes]
    # Arrows connect (stack, box): stack 0 is the encoder, stack 1 the decoder; box 0 the embedding.
    cross_attention = labels.index("cross-attention")
    top = len(encoder.boxes) - 1
    arrows = [((0, top), (1, cross_attention), "memory: keys and values")]
    if config.shares_inputs:
        arrows.append(((0, 0), (1, 0), "shared weights"))
    if config.ties_output:
        output = labels.index("output projection")
        arrows.append(((1, 0), (1, output), "shared weights"))
    norm_places = "after each addition"
    if config.norm_position == "pre":
        norm_places = "before each sublayer and after the last"
    note = (
        f"Read from bottom to top. Norms come {norm_places} ({config.norm_position}-norm). "
        "Dropout is active in training only."
    )
    stacks = (encoder, decoder)
    return Diagram("Stacks", stacks, arrows, note=note)


def _stack(config: ModelConfig, vocab_size: int, *, is_decoder: bool) -> Stack:
    """Return the boxes of one side, from bottom to top."""
    title = "encoder"
    dim = config.model_dim
    ff_dim = config.ff_dim
    num_layers = config.encoder_layers
    attention_dropout = config.attention_dropout
    if is_decoder:
        title = "decoder"
        dim = config.decoder_dim
        ff_dim = config.decoder_ff
        num_layers = config.decoder_layers
        if config.decoder_attention_dropout is not None:
            attention_dropout = config.decoder_attention_dropout
    scheme = POSITIONS[config.positions]
    dropout = _dropout(config.dropout)
    # The lists are details below the labels of the boxes.
    embedding = [f"{vocab_size:,} {TIMES} {dim:,}"]
    if config.scale_embeddings:
        embedding.append(f"times {ROOT}{dim:,}")
    if is_decoder and config.decoder_start == "zero":
        embedding.append("zeros at the start")
    if config.source_bos and not is_decoder:
        embedding.append("BOS at the start")
    # Dropout comes after the addition of position vectors, if there are any.
    if scheme.absolute is None:
        boxes = [_box("embedding", embedding + dropout, "embedding")]
    else:
        positions = [config.positions, f"the first is {config.first_position}", *dropout]
        boxes = [
            _box("embedding", embedding, "embedding"),
            _box("add positions", positions, "embedding"),
        ]
    attention = [f"{config.num_heads} heads of {dim // config.num_heads}"]
    if config.num_kv_heads not in (None, config.num_heads):
        attention.append(f"{config.num_kv_heads} of keys and values")
    if config.qk_norm:
        attention.append("queries and keys normalised")
    attention += _bias(config.has_bias("attention")) + _dropout(attention_dropout)
    self_attention = list(attention)
    if is_decoder:
        self_attention.insert(0, "causal")
    if scheme.relative is not None:
        self_attention.append(f"{config.positions} positions")
    feed_forward = [f"{dim:,} to {ff_dim:,} to {dim:,}", _ACTIVATIONS[config.activation]]
    feed_forward += _bias(config.has_bias("feed-forward")) + _dropout(config.activation_dropout)
    sublayers = [_box("self-attention", self_attention, "attention")]
    if is_decoder:
        sublayers.append(_box("cross-attention", attention, "attention"))
    sublayers.append(_box("feed-forward", feed_forward, "feed-forward"))
    norm = _norm(config)
    first_of_layer = len(boxes)
    add = partial(Box, "add", ", ".join(dropout), "add")
    for sublayer in sublayers:
        if config.norm_position == "pre":  # the residual connection bypasses norm and sublayer
            boxes += [norm, sublayer, add(residual=2)]
        else:
            boxes += [sublayer, add(residual=1), norm]
    last_of_layer = len(boxes) - 1
    if config.norm_position == "pre":
        boxes.append(norm)
    if is_decoder:
        output = [f"{dim:,} to {vocab_size:,}", *_bias(config.output_bias)]
        boxes.append(_box("output projection", output))
        boxes.append(Box("softmax", "a probability for each subword"))
    return Stack(title, boxes, (first_of_layer, last_of_layer, num_layers))


def _box(label: str, details: Sequence[str], kind: BoxKind = "output") -> Box:
    return Box(label, ", ".join(details), kind)


def _norm(config: ModelConfig) -> Box:
    is_rms = config.norm == "rms"
    default_epsilon = 1e-5
    if is_rms:
        default_epsilon = 1e-6
    epsilon = number_text(config.norm_epsilon or default_epsilon, "z.0e")
    formula = _NORMS[config.norm].format(epsilon)
    details = [formula]
    if not config.norm_gain:
        details.append("no gain")
    details += _bias(config.has_bias("norm") and not is_rms)  # RMSNorm never has a bias
    return _box("norm", details, "norm")


def _bias(has_bias: bool) -> list[str]:
    if has_bias:
        return ["bias"]
    return ["no bias"]


def _dropout(probability: float) -> list[str]:
    if not probability:
        return []
    return [f"dropout {probability:g}"]


def shapes(inspected: Inspected) -> Iterator[Figure]:
    """Tensors.

    Papers and tutorials write tensors with a batch of B padded sentences: S source positions, T
    target positions, H heads of width d_k. The model packs sentences without padding, so its
    tensors begin with the number of tokens. The first tables show both forms for each attention.
    The last table lists the output of every module in one pass, in the order in which the modules
    finish. Spread is the standard deviation over all numbers of a tensor.
    """
    recording = record(inspected.model, inspected.source, inspected.target)
    for kind, title in KINDS.items():
        sublayers = recording.attention(kind)
        layers = inspected.layers(len(sublayers))
        if layers:  # the stack may not have the chosen layer
            highest = layers[-1]
            yield matrices(sublayers[highest - 1], f"{title}, layer {highest}")
    layer = inspected.choice.layer
    rows = trace_tensors(inspected.model, inspected.source, inspected.target, layer)
    head = ("tensor", "packed shape", "dtype", "mean", "spread")
    yield Table("Tensors of one pass", head, rows)


def trace_tensors(
    model: Transformer, source: Packed, target: Packed, layer: int | None = None
) -> Rows:
    """Run a model once, and describe the output of each module and the logits.

    Args:
        model: Model in evaluation mode.
        source: Source ids.
        target: BOS and target ids.
        layer: Include only this layer of each stack, from 1; all layers if None.

    Returns:
        Rows of name, shape, dtype, mean and standard deviation. The last two are None for ids.
    """
    rows: Rows = []

    # A hook of PyTorch also gets the module and its inputs; neither is used.
    def add_row(name: str, _module: object, _inputs: object, output: Tensor) -> None:
        dtype = str(output.dtype).removeprefix("torch.")
        rows.append([name, str(tuple(output.shape)), dtype, None, None])
        if output.is_floating_point():
            spread, mean = torch.std_mean(output.cpu().double(), correction=0)
            rows[-1][3:] = [mean.item(), spread.item()]  # instead of the two None

    add_row("source ids", None, None, source.ids)
    add_row("target ids", None, None, target.ids)
    with ExitStack() as handles, torch.inference_mode():
        for path, module in model.named_modules():
            name = _label(path, layer)
            if name and not isinstance(module, nn.Identity):  # an identity repeats a tensor
                hook = partial(add_row, name)
                handles.enter_context(module.register_forward_hook(hook))
        logits = model.logits(model(source, target))
    add_row("logits", None, None, logits)
    return rows


def _label(path: str, layer: int | None) -> str:
    """Return the label of a module's output; empty if the module is not shown.

    Args:
        path: Path of a module in the model, as in `named_modules`; empty for the model itself.
        layer: The only layer to show, from 1; None shows all layers.

    >>> _label("decoder.3.self_attention.out_proj", None)
    'decoder layer 4: self attention, out proj'
    """
    if not path:  # the whole model
        return "decoder output"
    child, *descendants = path.split(".")
    if not descendants:  # an embedding or a final norm
        return child.replace("_", " ")
    index, *inner = descendants
    if not index.isdecimal():  # the inside of an embedding
        return ""
    number = int(index) + 1
    if layer is not None and number != layer:
        return ""
    label = f"{child} layer {number}"
    if inner:
        label += ": " + ", ".join(inner).replace("_", " ")
    return label
