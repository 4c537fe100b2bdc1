"""A model read from the files of another toolkit, before `import_model` writes it for nmt.

Also reads what all folders of Hugging Face models have: settings, weights and search options. Old
folders contain ``pytorch_model.bin``, a pickle; nmt reads only the weights and runs no code from
the file. No other part of nmt reads pickles.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from pydantic import ValidationError
from safetensors import safe_open
from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

from nmt.config.data import LanguageTags
from nmt.config.model import DecodingConfig, ModelConfig
from nmt.errors import CheckpointError
from nmt.files.json_file import field, read_json
from nmt.text.tokenizer import is_tag

FloatArray = npt.NDArray[np.floating[Any]]
COPY_AGAIN = "Download or copy the model again."
DEFAULT_MAX_LENGTH = 256
# Index: 2 if both sides share the embedding matrix, plus 1 if the output projection is tied.
EMBEDDINGS: Sequence[Any] = ("separate", "decoder-tied", "inputs-shared", "tied")
ACTIVATIONS: Mapping[str, Any] = {"relu": "relu", "swish": "silu", "silu": "silu", "gelu": "gelu"}
# Our layers -> the layers of Marian and of Hugging Face that are concatenated in them. For Marian,
# {} stands for W or b, or for the scale or bias of a norm.
LAYERS: Mapping[str, tuple[str, str]] = {
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
MARIAN, HUGGING_FACE = 0, 1  # columns of `LAYERS` and `_STACKS`
# Beginning of the names in a layer, and name of the norm after the last layer.
_STACKS: Sequence[tuple[str, str]] = (
    ("{side}_l{number}_", "{side}_top_ln_{{}}"),
    ("model.{side}.layers.{index}.", "model.{side}.layer_norm"),
)
HF_CONFIG = "config.json"
# Files with weights that are read: those of the first pattern, otherwise those of the second.
_WEIGHTS = (r"model(-\d+-of-\d+)?\.safetensors", r"pytorch_model(-\d+-of-\d+)?\.bin")
# Files with weights that are not read.
_OTHER_WEIGHTS = re.compile(r".*\.(h5|msgpack|ot|onnx|gguf|bin|safetensors)")
# Type of model -> the values of config.json that nmt supports.
_SUPPORTED: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "marian": {
        **dict.fromkeys(
            ("normalize_before", "normalize_embedding", "add_bias_logits"), (False, None)
        ),
        "static_position_embeddings": (True, None),
        "activation_function": tuple(ACTIVATIONS),
    },
    # Transformers ignores ``normalize_before``, and always normalizes before.
    "m2m_100": {"normalize_before": (True, None), "activation_function": (*ACTIVATIONS, None)},
}
# Settings of a search that have the same name and meaning in Hugging Face.
_SEARCH_KEYS = ("length_penalty", "no_repeat_ngram_size", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The vocabulary of one side: a SentencePiece model and the tokens of the embedding matrix."""

    sentencepiece: Any  # A ``ModelProto``. Subwords not among ``tokens`` are unknown to the model.
    tokens: Sequence[str]  # In the order of the embedding matrix, with ``<unk>`` and ``</s>``.
    symbols: Set[str]  # Tokens never split and never learned from text, such as language tags.

    @classmethod
    def read(cls, path: Path, tokens: Sequence[str] | None = None) -> Vocabulary:
        """Read the SentencePiece model ``path``. Symbols are the OPUS-MT tags among the tokens.

        Args:
            path: The file.
            tokens: If None, the subwords of the SentencePiece model.

        Raises:
            CheckpointError: The file is missing, or not a SentencePiece model.
        """
        model = read_sentencepiece(path)
        tokens = [piece.piece for piece in model.pieces] if tokens is None else tokens
        return cls(model, tokens, frozenset(filter(is_tag, tokens)))


@dataclass(frozen=True, slots=True)
class Imported:
    """A model in memory, with settings converted to those of nmt."""

    model: ModelConfig  # With `output_bias` true.
    # By our names. Rows of matrices and output bias are in the order of the original vocabularies.
    weights: Mapping[str, FloatArray]
    source: Vocabulary
    target: Vocabulary  # Has the tokens of ``source`` if the model shares its embedding matrix.
    decoding: DecodingConfig  # The search options in the files of the model.
    start: str | None = None  # First input token of the decoder; None for a vector of zeros.
    max_length: int = DEFAULT_MAX_LENGTH  # Longest line in subwords; longer lines are split.
    languages: tuple[str, str] | None = None  # Language codes, if the files contain them.
    language_tags: LanguageTags | None = None  # Place of the tags, if there are several languages.


def read_sentencepiece(path: Path) -> Any:
    """Return the ``ModelProto`` in a file.

    Raises:
        CheckpointError: The file is missing, or not a SentencePiece model.
    """
    with reading(path):
        model = ModelProto.FromString(path.read_bytes())
        if not model.pieces:  # an empty file is a valid protobuf message, too
            raise ValueError("it is not a SentencePiece model")
    return model


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
            parts = (f"{'.'.join(map(str, x['loc']))}: {x['msg']}" for x in error.errors())
            problem = "; ".join(parts)
        problem = problem.split("\n")[0].rstrip(".")
        raise CheckpointError(f"{path} is damaged: {problem}.", fix=COPY_AGAIN) from error


def weights_of(
    config: ModelConfig,
    system: int,
    read: Callable[[str], FloatArray],
    vectors: Sequence[FloatArray],
    output_bias: FloatArray,
) -> dict[str, FloatArray]:
    """Return the weights by their names in nmt.

    Args:
        config: Configuration of the model.
        system: `MARIAN` or `HUGGING_FACE`.
        read: Reads an array by its original name, which ends in ".weight" (outputs, inputs) or
            ".bias" (outputs,).
        vectors: Embedding matrices of source and target, and the output projection.
        output_bias: Bias of the output projection.
    """
    weights = {"source_vectors": vectors[0], "output_bias": output_bias.reshape(-1)}
    if not config.shares_inputs:
        weights["target_vectors"] = vectors[1]
    if not config.ties_output:
        weights["output_vectors"] = vectors[2]
    originals, (layer, norm) = dict[str, list[str]](), _STACKS[system]
    for side, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        if config.norm_position == "pre":
            originals[f"{side}_norm"] = [norm.format(side=side)]
        for index, (ours, parts) in product(range(layers), LAYERS.items()):
            if side == "decoder" or not ours.startswith("cross"):
                place = layer.format(side=side, index=index, number=index + 1)
                originals[f"{side}.{index}.{ours}"] = [place + x for x in parts[system].split()]
    for (ours, theirs), kind in product(originals.items(), ("weight", "bias")):
        weights[f"{ours}.{kind}"] = np.concatenate([read(f"{name}.{kind}") for name in theirs])
    return weights


def config_of(settings: Mapping[str, Any], **others: Any) -> ModelConfig:
    """Convert what all types of models have in common, from `read_settings`; add ``others``."""
    return ModelConfig(
        encoder_layers=settings["encoder_layers"],
        decoder_layers=settings["decoder_layers"],
        model_dim=settings["d_model"],
        ff_dim=settings["encoder_ffn_dim"],
        decoder_ff_dim=settings["decoder_ffn_dim"],
        num_heads=settings["encoder_attention_heads"],
        activation=ACTIVATIONS[settings.get("activation_function") or "relu"],
        output_bias=True,
        **others,
    )


def read_settings(source: Path) -> dict[str, Any]:
    """Read config.json and generation_config.json of a Hugging Face model.

    Raises:
        CheckpointError: A file is damaged, or nmt does not support the model.
    """
    settings = load_json(source / HF_CONFIG)
    kind = str(settings.get("model_type"))
    if kind == "nllb_moe":
        raise refused("a mixture of experts (model_type: nllb_moe)")
    for name, allowed in {"model_type": tuple(_SUPPORTED), **_SUPPORTED.get(kind, {})}.items():
        if (value := settings.get(name)) not in allowed:
            raise refused(f"{name}: {value}")
    heads: Any = [settings.get(f"{side}_attention_heads") for side in ("encoder", "decoder")]
    if heads[0] != heads[1]:
        raise refused(f"{heads[0]} heads in the encoder and {heads[1]} in the decoder")
    return settings | load_json(source / "generation_config.json", optional=True)


class TensorFiles:
    """The weights of a model, read from its files one tensor at a time.

    Only one file is open at a time, so memory holds at most that file besides the tensors in use.

    Args:
        folder: The model folder.

    Raises:
        CheckpointError: A file is damaged, or there are no weights in a supported format.
    """

    def __init__(self, folder: Path) -> None:
        self._open: tuple[Path, Any] = (folder, None)
        self._paths = dict[str, Path]()
        for path in map(folder.joinpath, weight_files(folder, [x.name for x in folder.iterdir()])):
            with reading(path):
                self._paths |= dict.fromkeys(self._opened(path).keys(), path)

    def _opened(self, path: Path) -> Any:
        if path != self._open[0]:
            self._open = path, None  # closes the other file first
            if path.suffix == ".safetensors":
                self._open = path, safe_open(path, "pt")
            else:  # files of torch before 1.6 are not archives, and cannot be mapped
                is_zip = zipfile.is_zipfile(path)
                self._open = path, torch.load(path, "cpu", weights_only=True, mmap=is_zip)
        return self._open[1]

    def __contains__(self, name: str) -> bool:
        return name in self._paths

    def __getitem__(self, name: str) -> FloatArray:
        """Return a tensor in float32.

        Raises:
            KeyError: There is no such tensor.
            CheckpointError: The file is damaged.
        """
        path = self._paths[name]
        with reading(path):
            file = self._opened(path)
            tensor = file[name] if isinstance(file, dict) else file.get_tensor(name)
            return tensor.float().numpy()


def decoding_of(settings: Mapping[str, Any]) -> DecodingConfig:
    """Convert search options, from `read_settings`, to a decoding section."""
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


def tokens_by_id(ids: Mapping[str, Any], path: Path) -> list[str]:
    """Return the tokens of a vocabulary in the order of their ids, which must be 0, 1, 2 ..."""
    with reading(path):
        tokens = {int(index): token for token, index in ids.items()}
        if sorted(tokens) != list(range(len(ids))):
            raise ValueError("the ids are not 0, 1, 2 and so on")
        return [tokens[index] for index in range(len(tokens))]


def load_json(path: Path, *, optional: bool = False) -> dict[str, Any]:
    """Read a JSON object; return an empty one if an ``optional`` file does not exist."""
    with reading(path):
        return {} if optional and not path.is_file() else field(read_json(path), kind=dict)
