"""MarianMT models of Hugging Face: ``config.json``, weights, two SentencePiece models, ids.

Old folders hold a ``pytorch_model.bin``, which is read without running code from it; here and
nowhere else is pickle read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError

from nmt.config.decoding import DecodingConfig
from nmt.config.model import ModelConfig
from nmt.errors import CheckpointError
from nmt.extras.exchange.imported import FloatArray, Imported, Vocabulary, damaged, refused
from nmt.files.json_file import read_json
from nmt.text.piece_list import PieceList

CONFIG = "config.json"
_SAFE, _PICKLE = "model.safetensors", "pytorch_model.bin"
_MAX_LENGTH = 256
_EPSILON = 1e-5
_ACTIVATIONS = {"relu": "relu", "swish": "silu", "silu": "silu", "gelu": "gelu"}
_TRUE, _FALSE = (True, None), (False, None)
_PLAIN: Mapping[str, tuple[Any, ...]] = {
    "model_type": ("marian",),
    "normalize_before": _FALSE,
    "normalize_embedding": _FALSE,
    "add_bias_logits": _FALSE,
    "static_position_embeddings": _TRUE,
}
"""Keys of the configuration -> the values that we have a counterpart for."""
_PROJECTIONS = ("q_proj", "k_proj", "v_proj")
_TAG = re.compile(r"opus-mt(?:-tc-big)?-([a-z]{2,3})-([a-z]{2,3})")


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
    sides, weights = _vocabularies(source, settings), _Weights(_arrays(source))
    embeddings = _embeddings(weights, is_joint=sides[0].tokens == sides[1].tokens)
    config = _model_config({**settings, "embeddings": embeddings}, source / CONFIG)
    start = settings.get("decoder_start_token_id", settings.get("pad_token_id"))
    tokens = sides[1].tokens
    if not isinstance(start, int) or not 0 <= start < len(tokens):
        raise damaged(source / CONFIG, f"decoder_start_token_id is {start}")
    generation = source / "generation_config.json"
    own = _json(generation) if generation.is_file() else settings
    return Imported(
        model=config,
        weights=dict(weights.all(config)),
        source=sides[0],
        target=sides[1],
        start=tokens[start],
        decoding=_decoding({**settings, **own}),
        max_length=_MAX_LENGTH,
        languages=_languages(source),
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        values = read_json(path)
        if not isinstance(values, dict):
            raise ValueError("it holds no object")
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing.", fix="Copy the whole folder again.") from error
    except (OSError, ValueError) as error:
        raise damaged(path, error) from error
    return values


def _model_config(settings: Mapping[str, Any], path: Path) -> ModelConfig:
    heads = settings.get("encoder_attention_heads"), settings.get("decoder_attention_heads")
    if heads[0] != heads[1]:
        raise refused(f"{heads[0]} heads in the encoder and {heads[1]} in the decoder")
    if settings.get("activation_function") not in _ACTIVATIONS:
        raise refused(f"activation_function: {settings.get('activation_function')}")
    try:
        return ModelConfig.model_validate(
            {
                "encoder_layers": settings["encoder_layers"],
                "decoder_layers": settings["decoder_layers"],
                "model_dim": settings["d_model"],
                "ff_dim": settings["encoder_ffn_dim"],
                "decoder_ff_dim": settings["decoder_ffn_dim"],
                "num_heads": heads[0],
                "norm_epsilon": _EPSILON,
                "positions": "sinusoidal-concatenated",
                "activation": _ACTIVATIONS[settings["activation_function"]],
                "embeddings": settings["embeddings"],
                "scale_embeddings": settings.get("scale_embedding", False),
                "output_bias": True,
            }
        )
    except KeyError as error:
        raise damaged(path, f"it has no {error}") from error
    except ValueError as error:
        raise damaged(path, error) from error


def _arrays(folder: Path) -> dict[str, FloatArray]:
    """Read the weights in float32."""
    import torch  # noqa: PLC0415 - the import of configurations needs none

    if (folder / _SAFE).is_file():
        from safetensors.torch import load_file  # noqa: PLC0415

        try:
            tensors: Any = load_file(folder / _SAFE)
        except (OSError, SafetensorError) as error:
            raise damaged(folder / _SAFE, error) from error
    elif (folder / _PICKLE).is_file():
        try:
            tensors = torch.load(folder / _PICKLE, map_location="cpu", weights_only=True)
        except Exception as error:
            raise damaged(folder / _PICKLE, str(error).split("\n")[0].rstrip(".")) from error
    else:
        raise CheckpointError(
            f"{folder} has neither {_SAFE} nor {_PICKLE}.",
            fix="Download the whole model; weights in several files are not read.",
        )
    if not isinstance(tensors, dict) or not all(map(torch.is_tensor, tensors.values())):
        raise damaged(folder, "its weights are no tensors by name")
    return {name: tensor.float().numpy() for name, tensor in tensors.items()}


class _Weights:
    """Their weights by our names."""

    def __init__(self, arrays: Mapping[str, FloatArray]) -> None:
        self._arrays = arrays

    def get(self, *names: str) -> FloatArray:
        """Return the first of these that is there."""
        for name in names:
            if name in self._arrays:
                return self._arrays[name]
        raise CheckpointError(f"The weights lack {names[0]}.", fix="Download the model again.")

    def tables(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return those of source and target, and the output projection."""
        shared = "model.shared.weight"
        source, target = (
            self.get(f"model.{side}.embed_tokens.weight", shared) for side in ("encoder", "decoder")
        )
        return source, target, self._arrays.get("lm_head.weight", target)

    def linear(self, ours: str, *theirs: str) -> Iterator[tuple[str, FloatArray]]:
        """Yield weight and bias of a layer, or a norm, that holds ``theirs`` one after another."""
        for kind in ("weight", "bias"):
            yield f"{ours}.{kind}", np.concatenate([self.get(f"model.{x}.{kind}") for x in theirs])

    def layer(self, side: str, index: int) -> Iterator[tuple[str, FloatArray]]:
        """Yield all of one layer."""
        ours, theirs = f"{side}.{index}", f"{side}.layers.{index}"
        own, cross = f"{theirs}.self_attn", f"{theirs}.encoder_attn"
        names = [f"{own}.{x}" for x in _PROJECTIONS]
        yield from self.linear(f"{ours}.self_attention.query_key_value", *names)
        yield from self.linear(f"{ours}.self_attention.output", f"{own}.out_proj")
        yield from self.linear(f"{ours}.self_residual.norm", f"{own}_layer_norm")
        if side == "decoder":
            names = [f"{cross}.{x}" for x in _PROJECTIONS]
            yield from self.linear(f"{ours}.cross_attention.query", names[0])
            yield from self.linear(f"{ours}.cross_attention.key_value", *names[1:])
            yield from self.linear(f"{ours}.cross_attention.output", f"{cross}.out_proj")
            yield from self.linear(f"{ours}.cross_residual.norm", f"{cross}_layer_norm")
        yield from self.linear(f"{ours}.feed_forward.inner", f"{theirs}.fc1")
        yield from self.linear(f"{ours}.feed_forward.outer", f"{theirs}.fc2")
        yield from self.linear(f"{ours}.feed_forward_residual.norm", f"{theirs}.final_layer_norm")

    def all(self, config: ModelConfig) -> Iterator[tuple[str, FloatArray]]:
        """Yield our name and value of each weight."""
        for side in ("encoder", "decoder"):
            for index in range(getattr(config, f"{side}_layers")):
                yield from self.layer(side, index)
        source, target, output = self.tables()
        yield "source_vectors", source
        if not config.shares_inputs:
            yield "target_vectors", target
        if not config.ties_output:
            yield "output_vectors", output
        yield "output_bias", self.get("final_logits_bias").reshape(-1)


def _embeddings(weights: _Weights, *, is_joint: bool) -> str:
    """Find which tables are one. The configuration leaves it open: releases read it differently."""
    source, target, output = weights.tables()
    shared, tied = is_joint and np.array_equal(source, target), np.array_equal(output, target)
    if shared:
        return "tied" if tied else "inputs-shared"
    return "decoder-tied" if tied else "separate"


def _vocabularies(folder: Path, settings: Mapping[str, Any]) -> tuple[Vocabulary, Vocabulary]:
    sizes = settings.get("vocab_size"), settings.get("decoder_vocab_size")
    names = ["vocab.json", "target_vocab.json"]
    if not (folder / names[1]).is_file():
        names[1] = names[0]
    found = []
    for side, name, size in zip(("source", "target"), names, sizes, strict=True):
        path = folder / f"{side}.spm"
        try:
            pieces = PieceList.parse(path.read_bytes(), str(path))
        except OSError as error:
            raise CheckpointError(
                f"{path} cannot be read: {error.strerror}.", fix="Copy the whole folder again."
            ) from error
        found.append(Vocabulary(_tokens(folder / name, size), pieces))
    return found[0], found[1]


def _tokens(path: Path, size: object) -> list[str]:
    """Return the tokens by id; rows of the table without a name get one."""
    ids = _json(path)
    count = max(len(ids), size if isinstance(size, int) else 0)
    if sorted(map(str, ids.values())) != sorted(map(str, range(len(ids)))):
        raise damaged(path, "its ids are not 0, 1, 2 and so on")
    tokens = {index: token for token, index in ids.items()}
    return [tokens.get(index, f"<row {index}>") for index in range(count)]


def _decoding(settings: Mapping[str, Any]) -> DecodingConfig:
    """Return how the folder says it is to be searched."""
    beams, penalty = settings.get("num_beams", 1), settings.get("length_penalty", 1.0)
    try:
        return DecodingConfig(beam_size=beams, length_penalty=penalty, keep_special_mass=True)
    except ValueError as error:
        raise damaged(Path(CONFIG), error) from error


def _languages(folder: Path) -> tuple[str, str] | None:
    path = folder / "tokenizer_config.json"
    settings = _json(path) if path.is_file() else {}
    codes = settings.get("source_lang"), settings.get("target_lang")
    if all(isinstance(code, str) and code.isalpha() for code in codes):
        return str(codes[0]), str(codes[1])
    match = _TAG.search(folder.resolve().name.lower())
    return (match[1], match[2]) if match else None
