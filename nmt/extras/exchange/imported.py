"""A model read from the files of another toolkit, before `conversion` writes it for nmt.

Also reads the settings of Hugging Face models. This module does not load torch, so that an
unsupported model is refused early, before its weights are downloaded.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError
from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

from nmt.config.data import LanguageTags
from nmt.config.model import DecodingConfig, ModelConfig
from nmt.errors import CheckpointError
from nmt.files.json_file import field, read_json
from nmt.installation import read_toml
from nmt.text.tokenizer import is_tag

FloatArray = npt.NDArray[np.floating[Any]]
Weights = Mapping[str, FloatArray]
DEFAULT_MAX_LENGTH = 256
# Do both sides share the embedding matrix? Is the output projection tied to that of the target?
EMBEDDINGS: Mapping[tuple[bool, bool], Any] = {
    (False, False): "separate",
    (False, True): "decoder-tied",
    (True, False): "inputs-shared",
    (True, True): "tied",
}
_ACTIVATIONS: Mapping[str, Any] = {"relu": "relu", "swish": "silu", "silu": "silu", "gelu": "gelu"}
# By system, "marian" or "hugging_face": names of sizes and layers.
LAYERS = read_toml(__file__, "layers.toml")
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
        "activation_function": tuple(_ACTIVATIONS),
    },
    # Transformers ignores ``normalize_before``, and always normalizes before.
    "m2m_100": {"normalize_before": (True, None), "activation_function": (*_ACTIVATIONS, None)},
}
_MOST_BYTES = 64  # Highest compression ratio of an archive, against zip bombs.


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
        if tokens is None:
            tokens = piece_texts(model)
        return cls(model, tokens, frozenset(filter(is_tag, tokens)))


@dataclass(frozen=True, slots=True)
class Imported:
    """A model in memory, with settings converted to those of nmt."""

    model: ModelConfig  # With `output_bias` true.
    # By our names. Rows of matrices and output bias are in the order of the original vocabularies.
    weights: Weights
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


def piece_texts(model: Any) -> list[str]:
    """Return the texts of the pieces of a SentencePiece model, in the order of their ids."""
    return [piece.piece for piece in model.pieces]


def damaged(problem: str) -> CheckpointError:
    """Return the error for files that are not as their own toolkit wrote them."""
    return CheckpointError(problem, fix="Download or copy the model again.")


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
            faults = [f"{'.'.join(map(str, x['loc']))}: {x['msg']}" for x in error.errors()]
            problem = "; ".join(faults)
        problem = problem.split("\n")[0].rstrip(".")
        raise damaged(f"{path} is damaged: {problem}.") from error


def read_settings(source: Path) -> dict[str, Any]:
    """Read config.json and generation_config.json of a Hugging Face model.

    Raises:
        CheckpointError: A file is damaged, or nmt does not support the model.
    """
    settings = load_json(source / HF_CONFIG)
    kind = str(settings.get("model_type"))
    if kind == "nllb_moe":
        raise refused("a mixture of experts (model_type: nllb_moe)")
    supported = {"model_type": tuple(_SUPPORTED), **_SUPPORTED.get(kind, {})}
    for name, values in supported.items():
        value = settings.get(name)
        if value not in values:
            raise refused(f"{name}: {value}")
    encoder_heads = settings.get("encoder_attention_heads")
    decoder_heads = settings.get("decoder_attention_heads")
    if encoder_heads != decoder_heads:
        raise refused(f"{encoder_heads} heads in the encoder and {decoder_heads} in the decoder")
    return settings | load_json(source / "generation_config.json", optional=True)


def weight_files(place: object, names: Sequence[str]) -> list[str]:
    """Return the names of the weight files: one file, or several parts of a split file.

    Args:
        place: Folder or repository, for the error message.
        names: Names of all files there.

    Raises:
        CheckpointError: There are no weights, or only weights in formats of other libraries.
    """
    for pattern in _WEIGHTS:
        weights = [name for name in names if re.fullmatch(pattern, name)]
        if weights:
            return weights
    problem = f"{place} has neither model.safetensors nor pytorch_model.bin"
    others = ", ".join(sorted(name for name in names if _OTHER_WEIGHTS.fullmatch(name)))
    if others:
        problem += f", only {others}"
    fix = "Download model.safetensors or pytorch_model.bin into the folder."
    raise CheckpointError(f"{problem}.", fix=fix)


def check_sizes(archive: zipfile.ZipFile, path: Path) -> None:
    """Raise a ValueError if the unpacked files would be far larger than the archive."""
    if sum(entry.file_size for entry in archive.infolist()) > _MOST_BYTES * path.stat().st_size:
        raise ValueError("the unpacked contents would be far larger than the file")


def tokens_by_id(ids: Mapping[str, Any], path: Path) -> list[str]:
    """Return the tokens of a vocabulary in the order of their ids, which must be 0, 1, 2 ..."""
    with reading(path):
        tokens = {int(index): token for token, index in ids.items()}
        if sorted(tokens) != list(range(len(ids))):
            raise ValueError("the ids are not 0, 1, 2 and so on")
        return [tokens[index] for index in range(len(tokens))]


def config_of(
    system: str, settings: Mapping[str, Any], activation: str, **others: Any
) -> ModelConfig:
    """Return the model section.

    Args:
        system: Key of `LAYERS`.
        settings: Settings of the model, by their original names.
        activation: The original name of the activation function.
        others: Values that the settings do not contain in this form.
    """
    names = LAYERS[system]["sizes"]
    sizes = {ours: settings[theirs] for ours, theirs in names.items()}
    return ModelConfig(**sizes, activation=_ACTIVATIONS[activation], output_bias=True, **others)


def weights_of(
    config: ModelConfig,
    system: str,
    read: Callable[[str], FloatArray],
    vectors: Sequence[FloatArray],
    output_bias: FloatArray,
) -> dict[str, FloatArray]:
    """Return the weights by their names in nmt.

    Args:
        config: Configuration of the model.
        system: Key of `LAYERS`.
        read: Reads an array by its original name, which ends in ".weight" (outputs, inputs) or
            ".bias" (outputs,).
        vectors: Embedding matrices of source and target, and the output projection.
        output_bias: Bias of the output projection.
    """
    source, target, output = vectors
    weights = {"source_vectors": source, "output_bias": output_bias.reshape(-1)}
    if not config.shares_inputs:
        weights["target_vectors"] = target
    if not config.ties_output:
        weights["output_vectors"] = output
    layout = LAYERS[system]
    parts_of: dict[str, list[str]] = {}  # Our layers -> the original layers in them.
    depths = {"encoder": config.encoder_layers, "decoder": config.decoder_layers}
    for side, depth in depths.items():
        if config.norm_position == "pre":
            parts_of[f"{side}_norm"] = [layout["norm"].format(side=side)]
        for index in range(depth):
            prefix = layout["layer"].format(side=side, index=index, number=index + 1)
            for ours, theirs in layout["parts"].items():
                if side == "decoder" or not ours.startswith("cross"):
                    parts = [prefix + name for name in theirs.split()]
                    parts_of[f"{side}.{index}.{ours}"] = parts
    for ours, parts in parts_of.items():
        for kind in ("weight", "bias"):
            arrays = [read(f"{name}.{kind}") for name in parts]
            weights[f"{ours}.{kind}"] = np.concatenate(arrays)
    return weights


def load_json(path: Path, *, optional: bool = False) -> dict[str, Any]:
    """Read a JSON object; return an empty one if an ``optional`` file does not exist."""
    with reading(path):
        if optional and not path.is_file():
            return {}
        return field(read_json(path), kind=dict)
