"""A model read from the files of another toolkit, before `conversion` writes it for nmt.

Also reads the settings of Hugging Face models. This module does not load torch, so that an
unsupported model is refused early, before its weights are downloaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import NonNegativeInt
from sentencepiece import SentencePieceProcessor
from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]
from typing_extensions import TypedDict

from nmt.config.data import LanguageTags
from nmt.config.model import DecodingConfig, ModelConfig
from nmt.errors import CheckpointError, shell_command
from nmt.files.foreign import parsing, read_json
from nmt.installation import read_toml
from nmt.text.tokenizer import is_tag

FloatArray = npt.NDArray[np.floating[Any]]
Weights = Mapping[str, FloatArray]
DEFAULT_MAX_LENGTH = 256
# Value of `embeddings` by two answers: do both sides share one embedding matrix, and is the output
# projection the same matrix as that of the target?
EMBEDDINGS: Mapping[tuple[bool, bool], Any] = {
    (False, False): "separate",
    (False, True): "decoder-tied",
    (True, False): "inputs-shared",
    (True, True): "tied",
}
# Output bias of subwords that an imported model lacks: far below the logit of any other subword,
# and finite in 16 bits.
MISSING_BIAS = -30.0
# Original names of activation functions -> ours.
ACTIVATIONS: Mapping[str, Any] = {"relu": "relu", "swish": "silu", "silu": "silu", "gelu": "gelu"}
# Our names of options and layers -> the original names, by system: "marian" or "hugging_face".
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
        "activation_function": tuple(ACTIVATIONS),
    },
    # Transformers ignores ``normalize_before``, and always normalizes before.
    "m2m_100": {"normalize_before": (True, None), "activation_function": (*ACTIVATIONS, None)},
}


class HuggingFaceConfig(TypedDict, total=False):
    """What is read of config.json and generation_config.json of Hugging Face."""

    _name_or_path: str | None
    model_type: str | None
    normalize_before: bool | None
    normalize_embedding: bool | None
    add_bias_logits: bool | None
    static_position_embeddings: bool | None
    activation_function: str | None
    d_model: int
    encoder_layers: int
    decoder_layers: int
    encoder_attention_heads: int
    decoder_attention_heads: int
    encoder_ffn_dim: int
    decoder_ffn_dim: int
    dropout: float
    attention_dropout: float
    activation_dropout: float
    scale_embedding: bool
    tie_word_embeddings: bool
    decoder_start_token_id: int | None
    pad_token_id: int | None
    num_beams: int | None
    max_length: NonNegativeInt | None
    early_stopping: bool | str | None
    length_penalty: float | None
    no_repeat_ngram_size: int | None
    repetition_penalty: float | None
    renormalize_logits: bool | None


@dataclass(frozen=True)
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


@dataclass(frozen=True)
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
        content = path.read_bytes()
        model = ModelProto.FromString(content)
        if not model.pieces:  # an empty file is a valid protobuf message, too
            raise ValueError("it is not a SentencePiece model")
        "".join(piece_texts(model)).encode()  # refuses text that is not UTF-8
        SentencePieceProcessor(model_proto=content)
    return model


def piece_texts(model: Any) -> list[str]:
    """Return the texts of the pieces of a SentencePiece model, in the order of their ids."""
    return [piece.piece for piece in model.pieces]


def refused(what: str) -> CheckpointError:
    """Return the error for a model with an unsupported feature, such as "an ensemble"."""
    return CheckpointError(
        f"The model uses {' '.join(what.split())}, which nmt does not support.",
        fix="Import a different model, or train a model: `nmt init`.",
    )


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Convert the errors of `parsing` and missing files to a `CheckpointError`."""
    try:
        with parsing(path):
            yield
    except FileNotFoundError as error:
        missing = Path(error.filename)
        # Folders of fine-tuned models have the name of their base model here.
        settings = load_json(missing.parent / HF_CONFIG, optional=True)
        base = settings.get("_name_or_path") or "the model that this one was trained from"
        raise CheckpointError(f"{missing} is missing.", fix=f"Copy it from {base}.") from error


def read_settings(source: Path) -> dict[str, Any]:
    """Read config.json and generation_config.json of a Hugging Face model.

    Raises:
        CheckpointError: A file is damaged, or nmt does not support the model.
    """
    settings = load_json(source / HF_CONFIG)
    model_type = str(settings.get("model_type"))
    if "model_type" not in settings:
        raise CheckpointError(
            f"{source / HF_CONFIG} has no model_type: it is not of a Transformers model.",
            fix=f"If it is a model of nmt, type: {shell_command('translate', source)}",
        )
    if model_type == "nllb_moe":
        raise refused("a mixture of experts (model_type: nllb_moe)")
    # Name of a setting -> its supported values. The type itself is checked first.
    supported = {"model_type": tuple(_SUPPORTED), **_SUPPORTED.get(model_type, {})}
    for name, supported_values in supported.items():
        value = settings.get(name)
        if value not in supported_values:
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
        weight_names = [name for name in names if re.fullmatch(pattern, name)]
        if weight_names:
            return weight_names
    problem = f"{place} has neither model.safetensors nor pytorch_model.bin"
    unsupported_names = sorted(name for name in names if _OTHER_WEIGHTS.fullmatch(name))
    if unsupported_names:
        problem += f", only {', '.join(unsupported_names)}"
    raise CheckpointError(
        f"{problem}.", fix="Download model.safetensors or pytorch_model.bin into the folder."
    )


def tokens_by_id(ids: Mapping[str, Any], path: Path) -> list[str]:
    """Return the tokens of a vocabulary in the order of their ids, which must be 0, 1, 2 ...

    Args:
        ids: Token -> id, a number or its text.
        path: The file that contains them, for messages.
    """
    with reading(path):
        "".join(ids).encode()  # refuses surrogates
        if "" in ids:
            raise ValueError("a token is empty")
        token_by_id = {int(index): token for token, index in ids.items()}
        if sorted(token_by_id) != list(range(len(ids))):
            raise ValueError("the ids are not 0, 1, 2 and so on")
        return [token_by_id[index] for index in range(len(token_by_id))]


def config_of(
    system: str, settings: Mapping[str, Any], activation: str, **options: Any
) -> ModelConfig:
    """Return the model section.

    Args:
        system: Key of `LAYERS`.
        settings: Settings of the model, by their original names.
        activation: The original name of the activation function.
        options: Further options of the model section, by our names, with our values.
    """
    names = LAYERS[system]["options"]
    values = {our_name: settings[name] for our_name, name in names.items()}
    return ModelConfig(**values, activation=ACTIVATIONS[activation], output_bias=True, **options)


def weights_of(
    config: ModelConfig,
    system: str,
    read_array: Callable[[str], FloatArray],
    matrices: Sequence[FloatArray],
    output_bias: FloatArray,
) -> dict[str, FloatArray]:
    """Return the weights by their names in nmt.

    Args:
        config: Configuration of the model.
        system: Key of `LAYERS`.
        read_array: Reads an array by its original name, which ends in ".weight" (outputs, inputs)
            or ".bias" (outputs,).
        matrices: Embedding matrices of source and target, and the output projection.
        output_bias: Bias of the output projection.
    """
    source, target, output = matrices
    weights = {"source_vectors": source, "output_bias": output_bias.reshape(-1)}
    if not config.shares_inputs:
        weights["target_vectors"] = target
    if not config.ties_output:
        weights["output_vectors"] = output
    for our_name, names in original_names(config, system).items():
        for kind in ("weight", "bias"):
            arrays = [read_array(f"{name}.{kind}") for name in names]
            weights[f"{our_name}.{kind}"] = np.concatenate(arrays)  # along the outputs
    return weights


def original_names(config: ModelConfig, system: str) -> dict[str, list[str]]:
    """Return, by the name of each of our layers, the original names of the layers that it joins.

    Ours has queries, keys and values in one matrix, for example.

    Args:
        config: Configuration of the model.
        system: Key of `LAYERS`.
    """
    layout = LAYERS[system]
    all_names = dict[str, list[str]]()
    depths = {"encoder": config.encoder_layers, "decoder": config.decoder_layers}
    for side, depth in depths.items():
        if config.norm_position == "pre":  # with a norm after the last layer
            all_names[f"{side}_norm"] = [layout["norm"].format(side=side)]
        for index in range(depth):
            # Hugging Face counts layers from 0 (index), Marian from 1 (number).
            prefix = layout["layer"].format(side=side, index=index, number=index + 1)
            for our_part, part_names in layout["parts"].items():
                # Only the decoder has cross-attention.
                if side == "decoder" or not our_part.startswith("cross"):
                    names = [prefix + name for name in part_names.split()]
                    all_names[f"{side}.{index}.{our_part}"] = names
    return all_names


def load_json(path: Path, kind: Any = HuggingFaceConfig, *, optional: bool = False) -> Any:
    """Read a JSON object; return an empty one if an ``optional`` file does not exist.

    Args:
        path: The file.
        kind: A TypedDict, or another type for pydantic.
        optional: Whether the file may be missing.
    """
    if optional and not path.is_file():
        return {}
    with reading(path):
        return read_json(path, kind)


def floats(name: str, array: npt.NDArray[Any]) -> FloatArray:
    """Return an array in float32.

    Raises:
        ValueError: Its numbers are complex, whole or truth values.
    """
    if array.dtype.kind != "f":
        raise ValueError(f"{name} has numbers of type {array.dtype}")
    return np.atleast_1d(np.asarray(array, np.float32))
