"""The stack diagram of a configuration: what stands on what, from the input up.

Drawn from the model section alone; a test walks the diagram with the modules of the model that is
built from it and gets that model's output.
"""

from __future__ import annotations

from collections.abc import Iterator

from nmt.config.model import ModelConfig
from nmt.extras.inspection.figure import Box, Diagram, Stack
from nmt.model.positions import POSITIONS

_NORMS = {"layer": "LayerNorm", "layer-std": "LayerNorm", "rms": "RMSNorm"}
_ACTIVATIONS = {"relu": "ReLU", "gelu": "GELU", "silu": "SiLU", "swiglu": "SwiGLU"}
ENCODER, DECODER = 0, 1  # Stacks of the diagram.


def stack_diagram(config: ModelConfig, vocab_sizes: tuple[int, int]) -> Diagram:
    """Return encoder and decoder side by side, with the memory and shared tables as arrows.

    Args:
        config: The model section.
        vocab_sizes: Entries of the source and of the target vocabulary.
    """
    encoder = _stack(config, vocab_sizes[0], is_decoder=False)
    decoder = _stack(config, vocab_sizes[1], is_decoder=True)
    cross = next(i for i, box in enumerate(decoder.boxes) if box.label == "cross-attention")
    projection = len(decoder.boxes) - 2
    arrows = [((ENCODER, len(encoder.boxes) - 1), (DECODER, cross), "memory: keys and values")]
    if config.shares_inputs:
        arrows.append(((ENCODER, 0), (DECODER, 0), "one table"))
    if config.ties_output:
        arrows.append(((DECODER, 0), (DECODER, projection), "one table"))
    order = "after each residual sum (post-norm)"
    if config.norm_position == "pre":
        order = "before each sub-layer and after the last layer (pre-norm)"
    return Diagram("Stacks", (encoder, decoder), arrows, f"Read upwards. Norms stand {order}.")


def _stack(config: ModelConfig, vocab_size: int, *, is_decoder: bool) -> Stack:
    """Boxes of one side, from the embedding up."""
    number = config.decoder_layers if is_decoder else config.encoder_layers
    boxes = list(_inputs(config, vocab_size, is_decoder=is_decoder))
    first = len(boxes)
    dim = config.decoder_dim if is_decoder else config.model_dim
    norm = Box("norm", _NORMS[config.norm], "norm")
    for sublayer in _sublayers(config, is_decoder=is_decoder):
        if config.norm_position == "pre":
            boxes += [norm, sublayer, Box("add", kind="add", residual=2)]
        else:
            boxes += [sublayer, Box("add", kind="add", residual=1), norm]
    last = len(boxes) - 1
    if config.norm_position == "pre":
        boxes.append(norm)
    if is_decoder:
        bias = " + bias" if config.output_bias else ""
        boxes.append(Box("output projection", f"{dim:,} to {vocab_size:,}{bias}"))
        boxes.append(Box("softmax", "a probability for each entry"))
    return Stack("decoder" if is_decoder else "encoder", boxes, (first, last, number))


def _inputs(config: ModelConfig, vocab_size: int, *, is_decoder: bool) -> Iterator[Box]:
    dim = config.decoder_dim if is_decoder else config.model_dim
    scale = f", times sqrt({dim:,})" if config.scale_embeddings else ""
    start = ", zeros at the start" if is_decoder and config.decoder_start == "zero" else ""
    yield Box("embedding", f"{vocab_size:,} x {dim:,}{scale}{start}", "embedding")
    if POSITIONS[config.positions].absolute is not None:
        yield Box("add positions", config.positions, "embedding")


def _sublayers(config: ModelConfig, *, is_decoder: bool) -> Iterator[Box]:
    dim = config.decoder_dim if is_decoder else config.model_dim
    ff_dim = config.decoder_ff if is_decoder else config.ff_dim
    heads = f"{config.num_heads} heads of {dim // config.num_heads}"
    if config.num_kv_heads not in (None, config.num_heads):
        heads += f", {config.num_kv_heads} of keys and values"
    if config.qk_norm:
        heads += ", queries and keys normalised"
    own = f"causal, {heads}" if is_decoder else heads
    if POSITIONS[config.positions].relative is not None:
        own += f", {config.positions} positions"
    yield Box("self-attention", own, "attention")
    if is_decoder:
        yield Box("cross-attention", heads, "attention")
    activation = _ACTIVATIONS[config.activation]
    yield Box("feed-forward", f"{dim:,} to {ff_dim:,} to {dim:,}, {activation}", "feed-forward")
