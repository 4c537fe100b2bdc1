"""Create a model of twice the size with exactly the same outputs, for speed measurements.

    python scripts/widen_model.py runs/multi30k-de-en runs/multi30k-de-en-wide

Layers, width, heads and inner width are doubled (Net2Net, Chen et al. 2016). For example, 3 + 3
layers of width 256 become 6 + 6 layers of width 512, the size of the base Transformer. Random
weights are not suitable for measurements: they do not produce EOS, and they have no BLEU that
reveals wrong results of an engine.

Why the outputs stay the same:

- Every vector x becomes [x, x]. Its mean and variance do not change, so norms only repeat their
  gains.
- A matrix W becomes [[W/2, W/2], [W/2, W/2]]. It adds two equal halves, and returns the result
  twice. This doubles the heads and the inner layers, too.
- Sinusoidal positions of twice the width would differ, so they become learned positions.
- If the model multiplies token vectors by sqrt(width), they are divided by sqrt(2). The last norm
  compensates for this factor, and for the doubled sums in the logits.
- Each layer is followed by a copy whose output projections are zero, so that it adds nothing to the
  residual stream. This works only in a pre-norm model.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from nmt.checkpoint.files import MODEL
from nmt.checkpoint.model_folder import (
    check_new_folder,
    load_model,
    new_model_folder,
    write_folder_config,
)
from nmt.config.inference import InferenceConfig
from nmt.config.model import ModelConfig
from nmt.errors import ConfigError, NmtError
from nmt.model.positions import sinusoids
from nmt.model.transformer import Transformer, build_model, fused_rows
from nmt.search.hypothesis import limits_of

_DOUBLED = (
    "encoder_layers", "decoder_layers", "model_dim", "ff_dim", "num_heads", "num_kv_heads",
    "decoder_model_dim", "decoder_ff_dim",
)  # fmt: skip
_TOKEN_VECTORS = ("source_vectors", "target_vectors", "output_vectors")
_OUTPUTS = re.compile(r"\.(output|outer)\.(weight|bias)$")
"""Output projections, whose results are added to the residual stream."""
_LAYER = re.compile(r"^((?:en|de)coder)\.(\d+)\.")


def doubled_config(config: ModelConfig, num_positions: int) -> ModelConfig:
    """Return the ``model`` section of the widened model.

    Args:
        config: The ``model`` section of the original model.
        num_positions: Number of positions, if sinusoidal positions become learned ones.

    Raises:
        ConfigError: The model is post-norm.
    """
    if config.norm_position != "pre":
        raise ConfigError(
            "A post-norm model cannot be widened, because no weights make its layers an identity.",
            fix="Use a model with model.norm_position pre.",
        )
    changes: dict[str, Any] = {"preset": None}
    for name in _DOUBLED:
        value = getattr(config, name)
        if value is not None:
            changes[name] = 2 * value
    if config.positions.startswith("sinusoidal"):
        changes["positions"] = "learned"
        changes["max_positions"] = num_positions
    return config.model_copy(update=changes)


def widen(model: Transformer, num_positions: int = 1024) -> Transformer:
    """Return a model of twice the size with the logits of ``model``.

    Args:
        model: The original model; not changed.
        num_positions: Number of positions, if sinusoidal positions become learned ones.
    """
    config = doubled_config(model.config, num_positions)
    wide = build_model(config, len(model.source_vectors), len(model.target_embeddings))
    values = {}
    for name, initial_value in wide.state_dict().items():
        values[name] = _value(name, initial_value, model)
    wide.load_state_dict(values)
    return wide.eval()


def _value(name: str, template: Tensor, model: Transformer) -> Tensor:
    """Return the parameter ``name`` of the widened model, with the shape of ``template``.

    The docstring of this file explains the factors.
    """
    is_scaled = model.config.scale_embeddings
    parameters = model.state_dict()
    if name in _TOKEN_VECTORS:
        value = parameters[name].repeat(1, 2)
        if is_scaled:
            value = value * 0.5**0.5
        return value
    if name.endswith("positions.weight"):
        positions = _positions(name, len(template), model)
        return positions.repeat(1, 2)
    # Layers 2i and 2i + 1 come from layer i. The second one is the copy that adds nothing.
    layer = _LAYER.match(name)
    is_copy = layer is not None and int(layer[2]) % 2
    if is_copy and _OUTPUTS.search(name):
        return torch.zeros_like(template)
    original_name = _LAYER.sub(lambda match: f"{match[1]}.{int(match[2]) // 2}.", name)
    value = parameters[original_name]
    if value.shape == template.shape:  # the bias of the logits, or a norm inside of a head
        return value
    weight_name = re.sub(r"bias$", "weight", original_name)
    row_counts = fused_rows(model).get(weight_name, [len(value)])
    value = _doubled(value, row_counts)
    if name.startswith("decoder_norm."):
        factor = 0.5
        if is_scaled:
            factor = 0.5**0.5
        value = value * factor
    return value


def _doubled(value: Tensor, row_counts: Sequence[int]) -> Tensor:
    """Double a parameter.

    Args:
        value: One or several matrices or vectors, stacked.
        row_counts: Number of rows of each of them. Each one is doubled alone.
    """
    parts = value.split(list(row_counts))
    if value.ndim == 1:
        return torch.cat([part.repeat(2) for part in parts])
    return torch.cat([part.repeat(2, 2) / 2 for part in parts])


def _positions(name: str, num_positions: int, model: Transformer) -> Tensor:
    """Return the positions (P, D) of the encoder or decoder of the original model.

    Args:
        name: Name of the parameter, which the model has if its positions are learned.
        num_positions: P, if the positions are sinusoidal.
        model: The original model.
    """
    config = model.config
    parameters = model.state_dict()
    if name in parameters:
        return parameters[name]
    dim = config.decoder_dim
    if name.startswith("source"):
        dim = config.model_dim
    layout = config.positions
    assert layout in ("sinusoidal", "sinusoidal-halves")
    return sinusoids(num_positions, dim, layout)


def write_widened(source: Path, output: Path) -> ModelConfig:
    """Widen the model in ``source``, a run or model folder, and write the model folder ``output``.

    Returns:
        The ``model`` section of the widened model.

    Raises:
        ConfigError: ``output`` is not empty, or the model cannot be widened.
        CheckpointError: The model is missing or damaged, or the folder cannot be written.
    """
    check_new_folder(output, source)
    bundle = load_model(source)
    wide = widen(bundle.model, _num_positions(bundle.config))
    config = bundle.config.model_copy(update={"model": wide.config})
    with new_model_folder(output, source, bundle.step) as folder:
        write_folder_config(folder, config, bundle.record)
        save_file(wide.state_dict(), folder / MODEL)
    return wide.config


def _num_positions(config: InferenceConfig) -> int:
    """Return a number of positions that is enough for the longest source and output."""
    longest_source = config.max_length
    longest_output = limits_of(longest_source, config.decoding).longest
    return max(config.model.max_positions, longest_source + 1, longest_output)  # 1 for EOS.


def main() -> None:
    """Widen the model of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path, metavar="RUN", help="run or model folder")
    parser.add_argument("output", type=Path, metavar="OUT", help="folder to write")
    chosen = parser.parse_args()
    try:
        config = write_widened(chosen.model, chosen.output)
    except NmtError as error:
        sys.exit(f"error: {error}")
    print(
        f"{chosen.output}: {config.encoder_layers} + {config.decoder_layers} layers, width "
        f"{config.model_dim}, inner width {config.ff_dim}, {config.num_heads} heads"
    )


if __name__ == "__main__":
    main()
