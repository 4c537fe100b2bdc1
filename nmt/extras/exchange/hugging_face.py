"""MarianMT models of Hugging Face: ``config.json``, weights, two SentencePiece models, ids.

Old folders hold a ``pytorch_model.bin``, which is read without running code from it; here and
nowhere else is pickle read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from nmt.config.model import DecodingConfig, ModelConfig
from nmt.errors import CheckpointError
from nmt.extras.exchange.imported import (
    EMBEDDINGS,
    FloatArray,
    Imported,
    Vocabulary,
    damaged,
    layer_weights,
    refused,
)
from nmt.extras.exchange.piece_list import PieceList
from nmt.files.json_file import read_json

CONFIG = "config.json"
_SAFE, _PICKLE = "model.safetensors", "pytorch_model.bin"
_ACTIVATIONS = {"relu": "relu", "swish": "silu", "silu": "silu", "gelu": "gelu"}
_TRUE, _FALSE = (True, None), (False, None)
# Keys of the configuration -> the values that we have a counterpart for.
_PLAIN: Mapping[str, tuple[Any, ...]] = {
    "model_type": ("marian",),
    "normalize_before": _FALSE,
    "normalize_embedding": _FALSE,
    "add_bias_logits": _FALSE,
    "static_position_embeddings": _TRUE,
    "activation_function": tuple(_ACTIVATIONS),
}
# Parts of our layers -> names of Hugging Face.
_PARTS = {
    **{f"self.{x}": f"self_attn.{x[0]}_proj" for x in ("query", "key", "value")},
    **{f"cross.{x}": f"encoder_attn.{x[0]}_proj" for x in ("query", "key", "value")},
    "self.output": "self_attn.out_proj",
    "self.norm": "self_attn_layer_norm",
    "cross.output": "encoder_attn.out_proj",
    "cross.norm": "encoder_attn_layer_norm",
    "inner": "fc1",
    "outer": "fc2",
    "norm": "final_layer_norm",
}


def is_hugging_face(source: Path) -> bool:
    """Whether ``source`` is a folder with a `CONFIG` file."""
    return (source / CONFIG).is_file()


def read_hugging_face(source: Path) -> Imported:
    """Read a folder of a MarianMT model.

    Raises:
        CheckpointError: A file is missing or damaged, or the model has parts that we lack.
    """
    settings = _json(source / CONFIG)
    for name, allowed in _PLAIN.items():
        if (found := settings.get(name)) not in allowed:
            raise refused(f"{name}: {found}")
    sides, arrays = _vocabularies(source, settings), _arrays(source)
    tables = _tables(arrays)
    tokens = sides[1].tokens
    start = settings.get("decoder_start_token_id", settings.get("pad_token_id"))
    if not isinstance(start, int) or not 0 <= start < len(tokens):
        raise damaged(source / CONFIG, f"decoder_start_token_id is {start}")
    generation = source / "generation_config.json"
    search = {**settings, **(_json(generation) if generation.is_file() else {})}
    try:
        # Which tables are one is found by looking: releases read the configuration differently.
        shares = sides[0].tokens == tokens and np.array_equal(tables[0], tables[1])
        config = _model_config(settings, shares=shares, ties=np.array_equal(tables[2], tables[1]))
        decoding = DecodingConfig(
            beam_size=search.get("num_beams", 1),
            length_penalty=search.get("length_penalty", 1.0),
            keep_special_mass=True,
        )
    except (KeyError, ValueError) as error:
        problem = f"it has no {error}" if isinstance(error, KeyError) else error
        raise damaged(source / CONFIG, problem) from error
    return Imported(
        model=config,
        weights=dict(_weights(arrays, config)),
        source=sides[0],
        target=sides[1],
        start=tokens[start],
        decoding=decoding,
        max_length=256,
        languages=_languages(source),
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        values = read_json(path)
        if not isinstance(values, dict):
            raise ValueError("it holds no object")
    except (OSError, ValueError) as error:
        raise damaged(path, getattr(error, "strerror", None) or error) from error
    return values


def _model_config(settings: Mapping[str, Any], *, shares: bool, ties: bool) -> ModelConfig:
    heads = settings.get("encoder_attention_heads"), settings.get("decoder_attention_heads")
    if heads[0] != heads[1]:
        raise refused(f"{heads[0]} heads in the encoder and {heads[1]} in the decoder")
    values = {
        "encoder_layers": settings["encoder_layers"],
        "decoder_layers": settings["decoder_layers"],
        "model_dim": settings["d_model"],
        "ff_dim": settings["encoder_ffn_dim"],
        "decoder_ff_dim": settings["decoder_ffn_dim"],
        "num_heads": heads[0],
        "norm_epsilon": 1e-5,
        "positions": "sinusoidal-concatenated",
        "activation": _ACTIVATIONS[settings["activation_function"]],
        "embeddings": EMBEDDINGS[shares, ties],
        "scale_embeddings": settings.get("scale_embedding", False),
        "output_bias": True,
    }
    return ModelConfig.model_validate(values)


def _arrays(folder: Path) -> dict[str, FloatArray]:
    """Read the weights in float32."""
    path = folder / (_SAFE if (folder / _SAFE).is_file() else _PICKLE)
    try:
        tensors: Any = (
            load_file(path)
            if path.name == _SAFE
            else torch.load(path, map_location="cpu", weights_only=True)
        )
    except FileNotFoundError as error:
        fix = "Download the whole model; weights in several files are not read."
        raise CheckpointError(f"{folder} has neither {_SAFE} nor {_PICKLE}.", fix=fix) from error
    except Exception as error:  # what a damaged pickle raises is anybody's guess
        raise damaged(path, str(error).split("\n")[0].rstrip(".")) from error
    if not isinstance(tensors, dict) or not all(map(torch.is_tensor, tensors.values())):
        raise damaged(folder, "its weights are not tensors by name")
    return {name: tensor.float().numpy() for name, tensor in tensors.items()}


def _get(arrays: Mapping[str, FloatArray], *names: str) -> FloatArray:
    """Return the first of these that is there."""
    if there := [name for name in names if name in arrays]:
        return arrays[there[0]]
    raise CheckpointError(f"The weights lack {names[0]}.", fix="Download the model again.")


def _tables(arrays: Mapping[str, FloatArray]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return those of source and target, and the output projection."""
    source, target = (
        _get(arrays, f"model.{side}.embed_tokens.weight", "model.shared.weight")
        for side in ("encoder", "decoder")
    )
    return source, target, arrays.get("lm_head.weight", target)


def _weights(
    arrays: Mapping[str, FloatArray], config: ModelConfig
) -> Iterator[tuple[str, FloatArray]]:
    """Yield our name and value of each weight."""

    def read(side: str, index: int, part: str) -> tuple[FloatArray, FloatArray]:
        name = f"model.{side}.layers.{index}.{_PARTS[part]}"
        return _get(arrays, f"{name}.weight"), _get(arrays, f"{name}.bias")

    yield from layer_weights(config, read)
    source, target, output = _tables(arrays)
    yield "source_vectors", source
    if not config.shares_inputs:
        yield "target_vectors", target
    if not config.ties_output:
        yield "output_vectors", output
    yield "output_bias", _get(arrays, "final_logits_bias").reshape(-1)


def _vocabularies(folder: Path, settings: Mapping[str, Any]) -> tuple[Vocabulary, Vocabulary]:
    names, found = ["vocab.json", "target_vocab.json"], []
    if not (folder / names[1]).is_file():
        names[1] = names[0]
    for side, name, key in zip(
        ("source", "target"), names, ("vocab_size", "decoder_vocab_size"), strict=True
    ):
        path = folder / f"{side}.spm"
        try:
            pieces = PieceList(path.read_bytes(), path)
        except OSError as error:
            raise damaged(path, error.strerror) from error
        found.append(Vocabulary(_tokens(folder / name, settings.get(key)), pieces))
    return found[0], found[1]


def _tokens(path: Path, size: object) -> list[str]:
    """Return the tokens by id; rows of the table without a name get one."""
    ids = _json(path)
    if sorted(map(str, ids.values())) != sorted(map(str, range(len(ids)))):
        raise damaged(path, "its ids are not 0, 1, 2 and so on")
    tokens = {index: token for token, index in ids.items()}
    count = max(len(ids), size if isinstance(size, int) else 0)
    return [tokens.get(index, f"<row {index}>") for index in range(count)]


def _languages(folder: Path) -> tuple[str, str] | None:
    path = folder / "tokenizer_config.json"
    settings = _json(path) if path.is_file() else {}
    codes = settings.get("source_lang"), settings.get("target_lang")
    is_pair = all(isinstance(code, str) and code.isalpha() for code in codes)
    return (str(codes[0]), str(codes[1])) if is_pair else None
