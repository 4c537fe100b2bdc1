"""Read Marian models, from Marian's own files or from a MarianMT folder of Hugging Face.

A Marian model (Junczys-Dowmunt et al. 2018) is an ``.npz`` file with the weights, ``decoder.yml``
and vocabularies. An OPUS-MT release is such a folder, with two SentencePiece models and one YAML
vocabulary for both sides. A MarianMT folder has ``config.json``, weights, two SentencePiece models
and ``vocab.json``. Old folders contain ``pytorch_model.bin``, a pickle; nmt reads only the
weights and runs no code from the file. No other part of nmt reads pickles.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import yaml
from pydantic import ValidationError
from safetensors.torch import load_file
from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

from nmt.config.loader import parse_document
from nmt.config.model import DecodingConfig, ModelConfig
from nmt.config.run import LANGUAGE_CODE
from nmt.errors import CheckpointError
from nmt.extras.exchange.options import EXAMPLE
from nmt.files.json_file import field, read_json

FloatArray = npt.NDArray[np.floating[Any]]
DECODER, HF_CONFIG = "decoder.yml", "config.json"
COPY_AGAIN = "Download or copy the model again."
_OPTIONS = "special:model.yml"
_MOST_BYTES = 64  # Highest compression ratio of an archive, against zip bombs.
_MAX_LENGTH, _LONGEST = 256, 10_000
# Files with weights that are read: those of the first pattern, otherwise those of the second.
_WEIGHTS = (r"model(-\d+-of-\d+)?\.safetensors", r"pytorch_model(-\d+-of-\d+)?\.bin")
# Files with weights that are not read.
_OTHER_WEIGHTS = re.compile(r".*\.(h5|msgpack|ot|onnx|gguf|bin|safetensors)")
_ACTIVATIONS: Mapping[str, Any] = {"relu": "relu", "swish": "silu", "silu": "silu", "gelu": "gelu"}
# Index: 2 if both sides share the embedding matrix, plus 1 if the output projection is tied.
_EMBEDDINGS: Sequence[Any] = ("separate", "decoder-tied", "inputs-shared", "tied")
_NORMS = ("preprocess", "postprocess", "postprocess-top")
_PLACES: Mapping[tuple[str, ...], Any] = {("", "dan", ""): "post", ("n", "da", "n"): "pre"}
# Options of Marian, and keys of Hugging Face -> the values that nmt supports.
_OFF = (
    "right-left", "ulr", "transformer-no-affine", "transformer-no-bias", "transformer-pool",
    "transformer-no-projection", "transformer-rnn-projection",
    "transformer-train-position-embeddings",
)  # fmt: skip
_MARIAN_OPTIONS: Mapping[str, Sequence[Any]] = {
    **dict.fromkeys(_OFF, (False,)),
    **dict.fromkeys(("factors-dim-emb", "lemma-dim-emb"), (0,)),
    **dict.fromkeys(("input-types", "transformer-tied-layers"), ([],)),
    "type": ("transformer",),
    "transformer-decoder-autoreg": ("self-attention",),
    "transformer-ffn-activation": ("relu", "swish"),  # Marian's gelu is a different function
    "transformer-ffn-depth": (2,),
    "transformer-decoder-ffn-depth": (0, 2),
    "transformer-postprocess-emb": ("d", ""),
    "transformer-attention-mask": ("default", "none"),
}
_HF_KEYS: Mapping[str, Sequence[Any]] = {
    **dict.fromkeys(("normalize_before", "normalize_embedding", "add_bias_logits"), (False, None)),
    "model_type": ("marian",),
    "static_position_embeddings": (True, None),
    "activation_function": tuple(_ACTIVATIONS),
}
# Settings of a search that have the same name and meaning in Hugging Face.
_SEARCH_KEYS = ("length_penalty", "no_repeat_ngram_size", "repetition_penalty")
# Our layers -> the layers of Marian and of Hugging Face that are concatenated in them. For Marian,
# {} stands for W or b, or for the scale or bias of a norm.
_PARTS: Mapping[str, tuple[str, str]] = {
    "self_attention.query_key_value": (
        "self_{}q self_{}k self_{}v", "self_attn.q_proj self_attn.k_proj self_attn.v_proj"
    ),
    "self_attention.output": ("self_{}o", "self_attn.out_proj"),
    "self_residual.norm": ("self_Wo_ln_{}", "self_attn_layer_norm"),
    "cross_attention.query": ("context_{}q", "encoder_attn.q_proj"),
    "cross_attention.key_value": (
        "context_{}k context_{}v", "encoder_attn.k_proj encoder_attn.v_proj"
    ),
    "cross_attention.output": ("context_{}o", "encoder_attn.out_proj"),
    "cross_residual.norm": ("context_Wo_ln_{}", "encoder_attn_layer_norm"),
    "feed_forward.inner": ("ffn_{}1", "fc1"),
    "feed_forward.outer": ("ffn_{}2", "fc2"),
    "feed_forward_residual.norm": ("ffn_ffn_ln_{}", "final_layer_norm"),
}  # fmt: skip
MARIAN, HUGGING_FACE = 0, 1  # columns of `_PARTS`


class Vocabulary:
    """The vocabulary of one side in Marian or MarianMT.

    Args:
        path: SentencePiece model. A subword that is not among ``tokens`` is unknown to the model.
        tokens: Tokens in the order of the embedding matrix, including ``<unk>`` and ``</s>``. If
            None, the subwords of the SentencePiece model.

    Raises:
        CheckpointError: The file is missing, or not a SentencePiece model.
    """

    def __init__(self, path: Path, tokens: Sequence[str] | None = None) -> None:
        with reading(path):
            self.sentencepiece: Any = ModelProto.FromString(path.read_bytes())
            if not self.sentencepiece.pieces:  # an empty file is a valid protobuf message, too
                raise ValueError("it is not a SentencePiece model")
        self.pieces = [piece.piece for piece in self.sentencepiece.pieces]
        self.tokens = self.pieces if tokens is None else tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A Marian or MarianMT model in memory, with settings converted to those of nmt."""

    model: ModelConfig  # With `output_bias` true.
    # By our names. Rows of matrices and output bias are in the order of the original vocabularies.
    weights: Mapping[str, FloatArray]
    source: Vocabulary
    target: Vocabulary  # Has the tokens of ``source`` if the model shares its embedding matrix.
    start: str | None = None  # First input token of the decoder; None for a vector of zeros.
    decoding: DecodingConfig  # The search options in the files of the model.
    max_length: int = _MAX_LENGTH  # Longest line in subwords; longer lines are split.
    languages: tuple[str, str] | None = None  # Language codes, if the files contain them.


def refused(what: str) -> CheckpointError:
    """Return the error for a model with an unsupported feature, such as "an ensemble"."""
    problem = f"The model uses {what}, which nmt does not support."
    return CheckpointError(problem, fix="Import a different model, or train a model: `nmt init`.")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Convert every exception while reading ``path`` to a `CheckpointError`."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:  # zipfile, zlib, numpy and pickle have many exceptions for damage
        problem = getattr(error, "problem", None) or getattr(error, "strerror", None) or str(error)
        if isinstance(error, KeyError):
            problem = f"{error} is missing"
        elif isinstance(error, UnpicklingError):  # torch's message recommends unsafe loading
            problem = "the pickle contains more than weights"
        elif isinstance(error, ValidationError):
            problem = "; ".join(
                f"{'.'.join(map(str, x['loc']))}: {x['msg']}" for x in error.errors()
            )
        problem = problem.split("\n")[0].rstrip(".")
        raise CheckpointError(f"{path} is damaged: {problem}.", fix=COPY_AGAIN) from error


def check_sizes(archive: zipfile.ZipFile, path: Path) -> None:
    """Raise a ValueError if the unpacked files would be far larger than the archive."""
    if sum(entry.file_size for entry in archive.infolist()) > _MOST_BYTES * path.stat().st_size:
        raise ValueError("the unpacked contents would be far larger than the file")


def _weights(
    config: ModelConfig,
    system: int,
    read: Callable[[str, int, str, str], FloatArray],
    vectors: Sequence[FloatArray],
    output_bias: FloatArray,
) -> dict[str, FloatArray]:
    """Return the weights by their names in nmt, except the norms after the last layers.

    Args:
        config: Configuration of the model.
        system: `MARIAN` or `HUGGING_FACE`.
        read: Reads an array, given the side, the layer number from 0, the original name of the
            sublayer, and "weight" (outputs, inputs) or "bias" (outputs,).
        vectors: Embedding matrices of source and target, and the output projection.
        output_bias: Bias of the output projection.
    """
    weights = {"source_vectors": vectors[0], "output_bias": output_bias.reshape(-1)}
    if not config.shares_inputs:
        weights["target_vectors"] = vectors[1]
    if not config.ties_output:
        weights["output_vectors"] = vectors[2]
    for side, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        for index in range(layers):
            for ours, parts in _PARTS.items():
                if side == "encoder" and ours.startswith("cross"):
                    continue
                for kind in ("weight", "bias"):
                    arrays = [read(side, index, part, kind) for part in parts[system].split()]
                    weights[f"{side}.{index}.{ours}.{kind}"] = np.concatenate(arrays)
    return weights


def _by_id(ids: Mapping[str, Any], path: Path) -> list[str]:
    with reading(path):
        tokens = {int(index): token for token, index in ids.items()}
        if sorted(tokens) != list(range(len(ids))):
            raise ValueError("the ids are not 0, 1, 2 and so on")
        return [tokens[index] for index in range(len(tokens))]


def read_marian(source: Path) -> Imported:
    """Read a model from files of Marian, not of Hugging Face.

    Args:
        source: The folder of the model, or its .npz file.

    Raises:
        CheckpointError: A file is missing or damaged, or nmt does not support the model.
    """
    folder = source if source.is_dir() else source.parent
    decoder, settings = folder / DECODER, dict[str, Any]()
    with reading(folder):
        if decoder.is_file():
            settings = _yaml(decoder.read_text("utf-8"), decoder)
        named = settings.get("models", [])
        if len(named) > 1:
            raise refused(f"an ensemble of {len(named)} models")
        paths = [folder / Path(name).name for name in named] or list(folder.glob("*.npz"))
        if not source.is_file() and len(paths) != 1:
            raise ValueError(f"the folder contains {len(paths)} .npz files instead of 1")
        path = source if source.is_file() else paths[0]
        source_side, target_side = _vocabularies(folder, settings)
        # Marian limits the output to three times the longest source of the batch, so the limit
        # depends on the batch. Marian's beam also shrinks with each finished hypothesis; ours does
        # not.
        decoding = DecodingConfig(
            beam_size=int(settings.get("beam-size", 12)),
            length_penalty=float(settings.get("normalize", 0)),
            max_length_factor=3,
            max_length_offset=20,
            keep_special_mass=True,
        )
        max_length = min(int(settings.get("max-length", _MAX_LENGTH)), _LONGEST)
    arrays = read_npz(path)
    with reading(path):
        options = _yaml(arrays[_OPTIONS].astype(np.uint8).tobytes().rstrip(b"\0").decode(), path)
        config = _config_of_marian(options)
        weights = _weights_of_marian(arrays, config)
    return Imported(
        model=config,
        weights=weights,
        source=source_side,
        target=target_side,
        decoding=decoding,
        max_length=max_length,
    )


def read_npz(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Read an .npz archive safely: without Python objects, and with limited memory.

    Raises:
        CheckpointError: The file is missing or damaged, or contains Python objects.
    """
    with reading(path):
        with zipfile.ZipFile(path) as archive:
            check_sizes(archive, path)
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)


def _yaml(text: str, path: Path) -> dict[str, Any]:
    return field(parse_document(text, name=str(path)).values, kind=dict)


def _config_of_marian(options: Mapping[str, Any]) -> ModelConfig:
    """Convert Marian's training options, which the .npz contains; refuse unsupported options."""
    for name, value in options.items():
        is_alibi = name.startswith("transformer-alibi")
        if value not in ((False, None) if is_alibi else _MARIAN_OPTIONS.get(name, (value,))):
            raise refused(f"{name}: {value}")
    places = tuple(str(options.get(f"transformer-{name}", "")) for name in _NORMS)
    if places not in _PLACES:
        raise refused(f"transformer-{', '.join(_NORMS)}: {places}")
    shares, ties = (
        bool(options.get("tied-embeddings-all") or options.get(name))
        for name in ("tied-embeddings-src", "tied-embeddings")
    )
    no_positions = options.get("transformer-disable-position-embeddings", False)
    return ModelConfig(
        encoder_layers=options["enc-depth"],
        decoder_layers=options["dec-depth"],
        model_dim=options["dim-emb"],
        ff_dim=options["transformer-dim-ffn"],
        decoder_ff_dim=options.get("transformer-decoder-dim-ffn") or None,
        num_heads=options["transformer-heads"],
        norm_position=_PLACES[places],
        norm_epsilon=1e-6,
        positions="none" if no_positions else "sinusoidal-halves",
        activation=_ACTIVATIONS[options["transformer-ffn-activation"]],
        embeddings=_EMBEDDINGS[2 * shares + ties],
        output_bias=True,
        decoder_start="zero",
    )


def _weights_of_marian(
    arrays: Mapping[str, npt.NDArray[Any]], config: ModelConfig
) -> dict[str, FloatArray]:
    is_pre = config.norm_position == "pre"

    def read(name: str, kind: str, suffix: str = "") -> FloatArray:
        is_norm, is_bias = "_ln_" in name, kind == "bias"
        kinds = ("scale", "bias") if is_norm else ("W", "b")
        array = np.asarray(arrays[name.format(kinds[is_bias]) + suffix], np.float32)
        return array.reshape(-1) if is_norm or is_bias else array.T

    def read_part(side: str, index: int, part: str, kind: str) -> FloatArray:
        suffix = "_pre" if is_pre and "_ln_" in part else ""
        return read(f"{side}_l{index + 1}_{part}", kind, suffix)

    names = ["Wemb"] * 2 if config.shares_inputs else ["encoder_Wemb", "decoder_Wemb"]
    vectors = [np.asarray(arrays[name], np.float32) for name in names]
    if not config.ties_output:
        vectors.append(read("decoder_ff_logit_out_{}", "weight"))
    bias = arrays.get("decoder_ff_logit_out_b", np.zeros(len(vectors[1]), np.float32))
    weights = _weights(config, MARIAN, read_part, vectors, bias)
    for side in ("encoder", "decoder") if is_pre else ():
        for kind in ("weight", "bias"):
            weights[f"{side}_norm.{kind}"] = read(f"{side}_top_ln_{{}}", kind)
    return weights


def _vocabularies(folder: Path, settings: Mapping[str, Any]) -> tuple[Vocabulary, Vocabulary]:
    named = [folder / Path(name).name for name in settings.get("vocabs", [])]
    of_text = [folder / f"{side}.spm" for side in ("source", "target")]
    there = {*folder.glob("*.spm"), *folder.glob("*vocab.yml")} - {*of_text}
    files = named or sorted(there) * (2 if len(there) == 1 else 1)
    if len(files) != 2:
        raise ValueError(f"expected two vocabulary files, found {len(files)}")
    return _vocabulary(files[0], of_text[0]), _vocabulary(files[1], of_text[1])


def _vocabulary(path: Path, of_text: Path) -> Vocabulary:
    """Read the vocabulary of one side of a Marian model.

    Args:
        path: An .spm file, or a file with the ids of subwords: see `read_vocabulary`.
        of_text: The SentencePiece model, if ``path`` is a file with ids.
    """
    if path.suffix == ".spm":
        return Vocabulary(path)
    if not of_text.is_file():
        raise refused(f"{path.name} without {of_text.name} (subwords without SentencePiece)")
    return Vocabulary(of_text, read_vocabulary(path))


def read_vocabulary(path: Path) -> list[str]:
    """Return the tokens of a vocabulary in the order of their ids.

    Args:
        path: A YAML file of ``token: id`` lines, or a ``.vocab`` file with one token in each line.

    Raises:
        CheckpointError: A line is malformed, or the ids are not 0, 1, 2 and so on.
    """
    # The base loaders read all values as text; other loaders would convert the tokens `yes`, `null`
    # and `1`. The loader in C is ten times as fast, but not always installed.
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    with reading(path):
        text = path.read_text(encoding="utf-8", errors="replace")
        if path.suffix == ".vocab":
            return [line.partition("\t")[0] for line in text.removesuffix("\n").split("\n")]
        ids = yaml.load(text, loader)
    return _by_id(ids, path)


def read_hugging_face(source: Path) -> Imported:
    """Read a MarianMT folder of Hugging Face.

    Raises:
        CheckpointError: A file is missing or damaged, or nmt does not support the model.
    """
    settings = read_settings(source)
    arrays: dict[str, FloatArray] = {}
    for name in weight_files(source, [path.name for path in source.iterdir()]):
        with reading(path := source / name):
            is_safe = path.suffix == ".safetensors"
            tensors = load_file(path) if is_safe else torch.load(path, "cpu", weights_only=True)
            arrays |= {name: tensor.float().numpy() for name, tensor in tensors.items()}
    ids = [source / "vocab.json", source / "target_vocab.json"]
    source_side, target_side = (
        Vocabulary(source / f"{side}.spm", _by_id(_json(file), file))
        for side, file in (("source", ids[0]), ("target", ids[ids[1].is_file()]))
    )
    with reading(source):
        start: Any = settings.get("decoder_start_token_id", settings.get("pad_token_id"))
        if start not in range(len(target_side.tokens)):
            raise ValueError(f"decoder_start_token_id {start} is not a token")
        # Shared matrices may be stored once, under any of their names. Compare them, because the
        # versions of the library interpret the configuration differently.
        shared = next((x for x in ("model.shared.weight", "lm_head.weight") if x in arrays), None)
        names = (f"model.{side}.embed_tokens.weight" for side in ("encoder", "decoder"))
        vectors = [arrays[x if x in arrays else shared or x] for x in names]
        vectors.append(arrays.get("lm_head.weight", vectors[1]))
        same_tokens = source_side.tokens == target_side.tokens
        shares = same_tokens and np.array_equal(vectors[0], vectors[1])
        ties = np.array_equal(vectors[2], vectors[1])
        config = ModelConfig(
            encoder_layers=settings["encoder_layers"],
            decoder_layers=settings["decoder_layers"],
            model_dim=settings["d_model"],
            ff_dim=settings["encoder_ffn_dim"],
            decoder_ff_dim=settings["decoder_ffn_dim"],
            num_heads=settings["encoder_attention_heads"],
            norm_epsilon=1e-5,
            positions="sinusoidal-concatenated",
            activation=_ACTIVATIONS[settings["activation_function"]],
            embeddings=_EMBEDDINGS[2 * shares + ties],
            scale_embeddings=settings.get("scale_embedding", False),
            output_bias=True,
        )
        weights = _weights(
            config,
            HUGGING_FACE,
            lambda side, index, part, kind: arrays[f"model.{side}.layers.{index}.{part}.{kind}"],
            vectors,
            arrays["final_logits_bias"],
        )
        decoding = _decoding(settings)
    tokenizer = _json(source / "tokenizer_config.json", optional=True)
    codes = [str(tokenizer.get(f"{side}_lang") or "") for side in ("source", "target")]
    # A group of languages, such as ROMANCE or deu+eng+fra, has no code of its own.
    codes = [code if re.fullmatch(LANGUAGE_CODE, code) else code and "mul" for code in codes]
    return Imported(
        model=config,
        weights=weights,
        source=source_side,
        target=target_side,
        start=target_side.tokens[start],
        decoding=decoding,
        languages=(codes[0], codes[1]) if all(codes) and codes[0] != codes[1] else None,
    )


def read_settings(source: Path) -> dict[str, Any]:
    """Read config.json and generation_config.json of a MarianMT folder of Hugging Face.

    Raises:
        CheckpointError: A file is damaged, or nmt does not support the model.
    """
    settings = _json(source / HF_CONFIG)
    if settings.get("model_type") == "m2m_100":
        problem = "nmt cannot import M2M-100 and NLLB models (model_type: m2m_100) yet."
        raise CheckpointError(problem, fix=f"Use an OPUS-MT model, such as {EXAMPLE}.")
    for name, allowed in _HF_KEYS.items():
        if (value := settings.get(name)) not in allowed:
            raise refused(f"{name}: {value}")
    heads: Any = [settings.get(f"{side}_attention_heads") for side in ("encoder", "decoder")]
    if heads[0] != heads[1]:
        raise refused(f"{heads[0]} heads in the encoder and {heads[1]} in the decoder")
    return settings | _json(source / "generation_config.json", optional=True)


def _decoding(settings: Mapping[str, Any]) -> DecodingConfig:
    """Convert the search options that `read_settings` has read to a decoding section."""
    named = {x: settings[x] for x in _SEARCH_KEYS if settings.get(x) is not None}
    options: dict[str, Any] = {"beam_size": settings.get("num_beams") or 1, **named}
    if longest := settings.get("max_length"):  # counts the start token and EOS
        options |= {"max_length_factor": 0, "max_length_offset": max(longest - 2, 1)}
    return DecodingConfig(
        # Renormalized, the other tokens share the probability of PAD, as in a search of nmt.
        keep_special_mass=not settings.get("renormalize_logits"),
        # Without early stopping, full beams are searched on for better hypotheses.
        patience=1.0 if settings.get("early_stopping") is True else 2.0,
        **options,
    )


def weight_files(place: object, names: Sequence[str]) -> list[str]:
    """Return the names of the weight files: one file, or several parts of a split file.

    Args:
        place: Folder or repository, for the error message.
        names: Names of all files there.

    Raises:
        CheckpointError: There are no weights, or only weights in formats of other libraries.
    """
    for pattern in _WEIGHTS:
        if found := [name for name in names if re.fullmatch(pattern, name)]:
            return found
    others = ", ".join(sorted(name for name in names if _OTHER_WEIGHTS.fullmatch(name)))
    problem = f"{place} has neither model.safetensors nor pytorch_model.bin"
    fix = "Download model.safetensors or pytorch_model.bin into the folder."
    raise CheckpointError(f"{problem}{others and f', only {others}'}.", fix=fix)


def _json(path: Path, *, optional: bool = False) -> dict[str, Any]:
    with reading(path):
        return {} if optional and not path.is_file() else field(read_json(path), kind=dict)
