"""Models of Marian: an ``.npz`` with the weights, ``decoder.yml`` and vocabularies beside it.

OPUS-MT releases are such folders, with SentencePiece models for the text and one YAML vocabulary
for both sides. Names of weights and options are Marian's (Junczys-Dowmunt et al. 2018).
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml

from nmt.config.loader import parse_document
from nmt.config.model import DecodingConfig, ModelConfig
from nmt.errors import ConfigError
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

DECODER = "decoder.yml"
_OPTIONS = "special:model.yml"
_MOST_BYTES = 64  # of an archive's arrays for each byte of the archive
_MAX_VOCABULARY = 1 << 26  # bytes
_MAX_LENGTH, _LONGEST = 256, 10_000
_ACTIVATIONS = {"relu": "relu", "swish": "silu"}
_NORMS = ("preprocess", "postprocess", "postprocess-top")
_PLACES: Mapping[tuple[str, ...], str] = {("", "dan", ""): "post", ("n", "da", "n"): "pre"}
# Options of Marian -> the values that we have a counterpart for.
_OFF = (
    "right-left", "ulr", "transformer-no-affine", "transformer-no-bias", "transformer-pool",
    "transformer-no-projection", "transformer-rnn-projection",
    "transformer-train-position-embeddings",
)  # fmt: skip
_PLAIN: Mapping[str, Sequence[Any]] = {
    **dict.fromkeys(_OFF, (False,)),
    **dict.fromkeys(("factors-dim-emb", "lemma-dim-emb"), (0,)),
    **dict.fromkeys(("input-types", "transformer-tied-layers"), ([],)),
    "type": ("transformer",),
    "transformer-decoder-autoreg": ("self-attention",),
    "transformer-ffn-activation": tuple(_ACTIVATIONS),
    "transformer-ffn-depth": (2,),
    "transformer-decoder-ffn-depth": (0, 2),
    "transformer-postprocess-emb": ("d", ""),
    "transformer-attention-mask": ("default", "none"),
}
# Parts of our layers -> Marian's names of their weight and bias.
_PARTS: Mapping[str, tuple[str, str]] = {
    **{f"self.{x}": (f"self_W{x[0]}", f"self_b{x[0]}") for x in ("query", "key", "value")},
    **{f"cross.{x}": (f"context_W{x[0]}", f"context_b{x[0]}") for x in ("query", "key", "value")},
    "self.output": ("self_Wo", "self_bo"),
    "cross.output": ("context_Wo", "context_bo"),
    "inner": ("ffn_W1", "ffn_b1"),
    "outer": ("ffn_W2", "ffn_b2"),
}
_NORM_OF = {"self.norm": "self_Wo", "cross.norm": "context_Wo", "norm": "ffn_ffn"}


def is_marian(source: Path) -> bool:
    """Whether ``source`` is an .npz file or a folder with a `DECODER` file or one .npz."""
    return source.suffix == ".npz" or (
        source.is_dir() and ((source / DECODER).is_file() or len(list(source.glob("*.npz"))) == 1)
    )


def read_marian(source: Path) -> Imported:
    """Read a model of Marian.

    Args:
        source: Folder, or its .npz file.

    Raises:
        CheckpointError: A file is missing or damaged, or the model has parts that we lack.
    """
    folder = source if source.is_dir() else source.parent
    decoder, settings = folder / DECODER, dict[str, Any]()
    if decoder.is_file():
        settings = _yaml(decoder.read_text("utf-8"), decoder)
    weights_file = source if source.is_file() else _weights_file(folder, settings)
    arrays = read_npz(weights_file)
    config = _model_config(_options(arrays, weights_file))
    source_side, target_side = _vocabularies(folder, settings)
    # Marian's limit is three times the longest source of a batch, whichever lines come together
    # there. Its beam also loses a place with each hypothesis that ends; ours does not.
    decoding = DecodingConfig(
        beam_size=int(settings.get("beam-size", 12)),
        length_penalty=float(settings.get("normalize", 0)),
        max_length_factor=3,
        max_length_offset=20,
        keep_special_mass=True,
    )
    return Imported(
        model=config,
        weights=dict(_weights(arrays, config, weights_file)),
        source=source_side,
        target=target_side,
        start=None,
        decoding=decoding,
        max_length=min(int(settings.get("max-length", _MAX_LENGTH)), _LONGEST),
        languages=None,
    )


def read_npz(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Read an .npz archive, without Python objects; a small file takes little memory.

    Raises:
        CheckpointError: It is missing or damaged, or holds Python objects.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            sizes = [entry.file_size for entry in archive.infolist()]
        if sum(sizes) > _MOST_BYTES * path.stat().st_size:
            raise ValueError("its parts claim to be far larger than the file")
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    except Exception as error:  # of zipfile, zlib and numpy: each has its own for damage
        raise damaged(path, error) from error


def _yaml(text: str, path: Path) -> dict[str, Any]:
    try:
        values = parse_document(text, name=str(path)).values
    except ConfigError as error:
        raise damaged(path, error.problem.rstrip(".")) from error
    if not isinstance(values, dict):
        raise damaged(path, "it holds no keys and values")
    return values


def _weights_file(folder: Path, settings: Mapping[str, Any]) -> Path:
    named = settings.get("models", [])
    if len(named) > 1:
        raise refused(f"an ensemble of {len(named)} models")
    found = [folder / Path(str(each)).name for each in named] or sorted(folder.glob("*.npz"))
    if len(found) != 1 or not found[0].is_file():
        raise damaged(folder, "it does not hold the one .npz file of the weights")
    return found[0]


def _options(arrays: Mapping[str, npt.NDArray[Any]], path: Path) -> dict[str, Any]:
    """Read the options of the training, which stand among the weights; refuse what we lack."""
    if _OPTIONS not in arrays:
        raise damaged(path, f"it has no {_OPTIONS}, so it is not a model of Marian")
    try:
        text = arrays[_OPTIONS].astype(np.uint8).tobytes().rstrip(b"\0").decode()
    except UnicodeDecodeError as error:
        raise damaged(path, f"{_OPTIONS} is not UTF-8") from error
    options = _yaml(text, path)
    for name, value in options.items():
        is_alibi = name.startswith("transformer-alibi")
        if value not in ((False, None) if is_alibi else _PLAIN.get(name, (value,))):
            raise refused(f"{name}: {value}")
    return options


def _model_config(options: Mapping[str, Any]) -> ModelConfig:
    places = tuple(str(options.get(f"transformer-{name}", "")) for name in _NORMS)
    if places not in _PLACES:
        raise refused(f"transformer-{', '.join(_NORMS)}: {places}")
    has_positions = not options.get("transformer-disable-position-embeddings", False)
    shares, ties = (
        bool(options.get("tied-embeddings-all") or options.get(name))
        for name in ("tied-embeddings-src", "tied-embeddings")
    )
    try:
        values = {
            "encoder_layers": options["enc-depth"],
            "decoder_layers": options["dec-depth"],
            "model_dim": options["dim-emb"],
            "ff_dim": options["transformer-dim-ffn"],
            "decoder_ff_dim": options.get("transformer-decoder-dim-ffn") or None,
            "num_heads": options["transformer-heads"],
            "norm_position": _PLACES[places],
            "norm_epsilon": 1e-6,
            "positions": "sinusoidal-halves" if has_positions else "none",
            "activation": _ACTIVATIONS[options["transformer-ffn-activation"]],
            "embeddings": EMBEDDINGS[shares, ties],
            "output_bias": True,
            "decoder_start": "zero",
        }
        return ModelConfig.model_validate(values)
    except (KeyError, ValueError, TypeError) as error:
        problem = f"its options lack {error}" if isinstance(error, KeyError) else error
        raise damaged(Path(_OPTIONS), problem) from error


def _weights(
    arrays: Mapping[str, npt.NDArray[Any]], config: ModelConfig, path: Path
) -> Iterator[tuple[str, FloatArray]]:
    """Yield our name and value of each weight."""
    is_pre = config.norm_position == "pre"

    def get(name: str) -> FloatArray:
        if name not in arrays:
            raise damaged(path, f"it has no {name}")
        return np.asarray(arrays[name], np.float32)

    def norm(name: str, suffix: str = "") -> tuple[FloatArray, FloatArray]:
        names = f"{name}_ln_scale{suffix}", f"{name}_ln_bias{suffix}"
        return get(names[0]).reshape(-1), get(names[1]).reshape(-1)

    def read(side: str, index: int, part: str) -> tuple[FloatArray, FloatArray]:
        layer = f"{side}_l{index + 1}"
        if part in _NORM_OF:
            return norm(f"{layer}_{_NORM_OF[part]}", "_pre" if is_pre else "")
        weight, bias = _PARTS[part]
        return get(f"{layer}_{weight}").T, get(f"{layer}_{bias}").reshape(-1)

    yield from layer_weights(config, read)
    if is_pre:
        for side in ("encoder", "decoder"):
            weight, bias = norm(f"{side}_top")
            yield from ((f"{side}_norm.weight", weight), (f"{side}_norm.bias", bias))
    shared = config.shares_inputs
    target = get("Wemb" if shared else "decoder_Wemb")
    yield "source_vectors", target if shared else get("encoder_Wemb")
    if not shared:
        yield "target_vectors", target
    if not config.ties_output:
        yield "output_vectors", get("decoder_ff_logit_out_W").T
    bias = arrays.get("decoder_ff_logit_out_b", np.zeros(len(target), np.float32))
    yield "output_bias", bias.reshape(-1)


def _vocabularies(folder: Path, settings: Mapping[str, Any]) -> tuple[Vocabulary, Vocabulary]:
    named = [folder / Path(str(each)).name for each in settings.get("vocabs", [])]
    of_text = [folder / f"{side}.spm" for side in ("source", "target")]
    there = {*folder.glob("*.spm"), *folder.glob("*vocab.yml")} - {*of_text}
    found = named or sorted(there) * (2 if len(there) == 1 else 1)
    if len(found) != 2:
        raise damaged(folder, "it does not hold the vocabularies of source and target")
    return _vocabulary(found[0], of_text[0]), _vocabulary(found[1], of_text[1])


def _vocabulary(path: Path, of_text: Path) -> Vocabulary:
    """Read an .spm, or a YAML vocabulary whose entries are pieces of the .spm ``of_text``."""
    if path.suffix == ".spm":
        pieces = PieceList(path.read_bytes(), path)
        return Vocabulary(pieces.texts, pieces)
    if not of_text.is_file():
        raise refused(f"{path.name} without {of_text.name} (subwords of another program)")
    return Vocabulary(read_vocabulary(path), PieceList(of_text.read_bytes(), of_text))


def read_vocabulary(path: Path) -> list[str]:
    """Read a vocabulary of ``token: id`` lines; return the tokens by id.

    Raises:
        CheckpointError: A line is something else, or the ids are not 0, 1, 2 and so on.
    """
    with path.open("rb") as file:
        content = file.read(_MAX_VOCABULARY + 1)
    if len(content) > _MAX_VOCABULARY:
        raise damaged(path, f"it is larger than {_MAX_VOCABULARY:,} bytes")
    # The loader in C, where it is there, is ten times as fast; neither makes anything but text:
    # to others the tokens `yes`, `null` and `1` are no text.
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    try:
        ids = yaml.load(content.decode("utf-8", "replace"), loader)
        tokens = {int(index): token for token, index in ids.items()}
    except (yaml.YAMLError, AttributeError, TypeError, ValueError) as error:
        raise damaged(path, "its lines are not entries `token: id`") from error
    if sorted(tokens) != list(range(len(ids))):
        raise damaged(path, "its ids are not 0, 1, 2 and so on")
    return [tokens[index] for index in range(len(tokens))]
