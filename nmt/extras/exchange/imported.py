"""A model read from the files of another toolkit, before `import_model` writes it for nmt."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
MARIAN, HUGGING_FACE = 0, 1  # columns of `LAYERS`


class Vocabulary:
    """The vocabulary of one side: a SentencePiece model and the tokens of the embedding matrix.

    Args:
        sentencepiece: A ``ModelProto``. A subword that is not among ``tokens`` is unknown to the
            model.
        tokens: Tokens in the order of the embedding matrix, including ``<unk>`` and ``</s>``. If
            None, the subwords of the SentencePiece model.
        symbols: Tokens that are never split and never learned from text, such as language tags. If
            None, the OPUS-MT tags among ``tokens``.
    """

    def __init__(
        self,
        sentencepiece: Any,
        tokens: Sequence[str] | None = None,
        symbols: Collection[str] | None = None,
    ) -> None:
        self.sentencepiece: Any = sentencepiece
        self.pieces = [piece.piece for piece in sentencepiece.pieces]
        self.tokens = self.pieces if tokens is None else tokens
        self.symbols = frozenset(filter(is_tag, self.tokens) if symbols is None else symbols)

    @classmethod
    def read(cls, path: Path, tokens: Sequence[str] | None = None) -> Vocabulary:
        """Read the SentencePiece model ``path``.

        Raises:
            CheckpointError: The file is missing, or not a SentencePiece model.
        """
        return cls(read_sentencepiece(path), tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A model in memory, with settings converted to those of nmt."""

    model: ModelConfig  # With `output_bias` true.
    # By our names. Rows of matrices and output bias are in the order of the original vocabularies.
    weights: Mapping[str, FloatArray]
    source: Vocabulary
    target: Vocabulary  # Has the tokens of ``source`` if the model shares its embedding matrix.
    start: str | None = None  # First input token of the decoder; None for a vector of zeros.
    decoding: DecodingConfig  # The search options in the files of the model.
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
            problem = "; ".join(
                f"{'.'.join(map(str, x['loc']))}: {x['msg']}" for x in error.errors()
            )
        problem = problem.split("\n")[0].rstrip(".")
        raise CheckpointError(f"{path} is damaged: {problem}.", fix=COPY_AGAIN) from error


def weights_of(
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
            for ours, parts in LAYERS.items():
                if side == "encoder" and ours.startswith("cross"):
                    continue
                for kind in ("weight", "bias"):
                    arrays = [read(side, index, part, kind) for part in parts[system].split()]
                    weights[f"{side}.{index}.{ours}.{kind}"] = np.concatenate(arrays)
    return weights
