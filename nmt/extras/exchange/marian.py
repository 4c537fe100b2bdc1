"""Read models from Marian's own files.

A Marian model (Junczys-Dowmunt et al. 2018) is an ``.npz`` file with the weights, ``decoder.yml``
and vocabularies. An OPUS-MT release is such a folder, with two SentencePiece models and one YAML
vocabulary for both sides.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml
from pydantic import PositiveInt
from typing_extensions import TypedDict

from nmt.config.document import MAX_BYTES, parse_document
from nmt.config.model import DecodingConfig, ModelConfig
from nmt.errors import CheckpointError
from nmt.extras.exchange.imported import (
    DEFAULT_MAX_LENGTH,
    EMBEDDINGS,
    FloatArray,
    Imported,
    Vocabulary,
    config_of,
    floats,
    reading,
    refused,
    tokens_by_id,
    weights_of,
)
from nmt.files.foreign import check_sizes, validated
from nmt.installation import read_toml

DECODER = "decoder.yml"
_OPTIONS = "special:model.yml"  # Name of the array with the training options, as YAML.
_MAX_SUBWORDS = 10_000  # of a line
# Names of Marian's options for what is done before a layer, after it, and after the last layer.
_PROCESSING_OPTIONS = ("preprocess", "postprocess", "postprocess-top")
# Their values -> our `norm_position`. Marian writes n for a norm, d for dropout, and a for adding
# the input of the layer.
_NORM_POSITIONS: Mapping[tuple[str, ...], Any] = {
    ("", "dan", ""): "post",
    ("n", "da", "n"): "pre",
}
# Characters that YAML forbids or reads as the end of a line, but vocabularies contain -> stand-ins
# from the last private use area of Unicode.
_CONTROLS = {
    code: 0x10_0000 + code
    for code in (*range(9), 11, 12, *range(14, 32), *range(127, 160), 0x2028, 0x2029)
}
# Options of Marian -> the values that nmt supports. Other options can have any value.
_SUPPORTED = read_toml(__file__, "marian.toml")


# What is read of decoder.yml.
_Decoder = TypedDict(
    "_Decoder",
    {
        "models": list[str],
        "vocabs": list[str],
        "beam-size": int,
        "normalize": float,
        "max-length": PositiveInt,
    },
    total=False,
)


def read_marian(source: Path) -> Imported:
    """Read a model from files of Marian, not of Hugging Face.

    Args:
        source: The folder of the model, or its .npz file.

    Raises:
        CheckpointError: A file is missing or damaged, or nmt does not support the model.
    """
    folder = source if source.is_dir() else source.parent
    with reading(folder):
        settings: _Decoder = {}
        if (folder / DECODER).is_file():
            settings = _yaml((folder / DECODER).read_text("utf-8"), folder / DECODER, _Decoder)
        weights_path = _archive(source, folder, settings)
        source_side, target_side = _vocabularies(folder, settings)
        # Marian limits the output to three times the longest source of the batch, so the limit
        # depends on the batch. Marian's beam also shrinks with each finished hypothesis; ours does
        # not.
        decoding = DecodingConfig(
            beam_size=settings.get("beam-size", 12),
            length_penalty=settings.get("normalize", 0),
            max_length_factor=3,
            max_length_offset=20,
            keep_special_mass=True,
        )
        max_length = min(settings.get("max-length", DEFAULT_MAX_LENGTH), _MAX_SUBWORDS)
    arrays = read_npz(weights_path)
    with reading(weights_path):
        # The text of a YAML file as an array of its bytes, with zeros at the end.
        encoded = arrays[_OPTIONS].astype(np.uint8).tobytes()
        text = encoded.rstrip(b"\0").decode()
        config = _config_of_marian(_yaml(text, weights_path))
        weights = _weights_of_marian(arrays, config)
    return Imported(config, weights, source_side, target_side, decoding, max_length=max_length)


def _archive(source: Path, folder: Path, settings: _Decoder) -> Path:
    """Return the .npz file of a model: ``source`` or the only one in ``folder``."""
    model_names = settings.get("models", [])
    if len(model_names) > 1:
        raise refused(f"an ensemble of {len(model_names)} models")
    if source.is_file():
        return source
    # Only the last part of a path counts: its folder is that of the machine that wrote the file.
    paths = [folder / Path(name).name for name in model_names]
    if not paths:
        paths = [*folder.glob("*.npz")]
    if len(paths) != 1:
        raise ValueError(f"the folder contains {len(paths)} .npz files instead of 1")
    return paths[0]


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


def _yaml(text: str, path: Path, kind: Any = dict[str, Any]) -> Any:
    """Parse and validate YAML ``text``; ``path`` is the file that contains it, for messages."""
    if len(text) > MAX_BYTES:
        raise ValueError(f"its options have more than {MAX_BYTES:,} characters")
    document = parse_document(text, name=str(path))
    return validated(document.values, kind)


def _config_of_marian(options: Mapping[str, Any]) -> ModelConfig:
    """Convert Marian's training options, which the .npz contains; refuse unsupported options."""
    for name, value in options.items():
        supported = _SUPPORTED.get(name, [value])
        if name.startswith("transformer-alibi"):
            supported = [False, None]
        if value not in supported:
            raise refused(f"{name}: {value}")
    processing = tuple(str(options.get(f"transformer-{name}", "")) for name in _PROCESSING_OPTIONS)
    if processing not in _NORM_POSITIONS:
        raise refused(f"transformer-{', '.join(_PROCESSING_OPTIONS)}: {processing}")
    ties_all = bool(options.get("tied-embeddings-all"))
    shares_inputs = ties_all or bool(options.get("tied-embeddings-src"))
    ties_output = ties_all or bool(options.get("tied-embeddings"))
    lacks_positions = options.get("transformer-disable-position-embeddings", False)
    return config_of(
        "marian",
        options,
        options["transformer-ffn-activation"],
        decoder_ff_dim=options.get("transformer-decoder-dim-ffn") or None,
        norm_position=_NORM_POSITIONS[processing],
        norm_epsilon=1e-6,
        positions="none" if lacks_positions else "sinusoidal-halves",
        embeddings=EMBEDDINGS[shares_inputs, ties_output],
        decoder_start="zero",
    )


def _weights_of_marian(
    arrays: Mapping[str, npt.NDArray[Any]], config: ModelConfig
) -> dict[str, FloatArray]:
    """Return the weights by our names, from Marian's arrays by their names."""

    def read_array(name: str) -> FloatArray:
        """Read an array for `weights_of`.

        Marian stores vectors as matrices with one row, and linear layers as (inputs, outputs).

        Args:
            name: A name of layers.toml, such as ``encoder_l1_self_{}q``, and .weight or .bias.
                Marian's word for weight or bias replaces the braces.
        """
        pattern, _, kind = name.rpartition(".")
        is_weight = kind == "weight"
        if "_ln_" in pattern:  # a norm
            array_name = pattern.format("scale" if is_weight else "bias")
            if config.norm_position == "pre" and "_top_" not in pattern:
                array_name += "_pre"  # except for the norm after the last layer
            return floats(array_name, arrays[array_name]).reshape(-1)
        array_name = pattern.format("W" if is_weight else "b")
        array = floats(array_name, arrays[array_name])
        return array.T if is_weight else array.reshape(-1)

    names = ["encoder_Wemb", "decoder_Wemb"]
    if config.shares_inputs:
        names = ["Wemb", "Wemb"]
    source, target = (floats(name, arrays[name]) for name in names)
    output = target
    if not config.ties_output:
        output = read_array("decoder_ff_logit_out_{}.weight")
    zero_bias = np.zeros(len(target), np.float32)
    bias = floats("decoder_ff_logit_out_b", arrays.get("decoder_ff_logit_out_b", zero_bias))
    return weights_of(config, "marian", read_array, (source, target, output), bias)


def _vocabularies(folder: Path, settings: _Decoder) -> tuple[Vocabulary, Vocabulary]:
    """Read the vocabularies of source and target."""
    source_spm = folder / "source.spm"
    target_spm = folder / "target.spm"
    paths = [folder / Path(name).name for name in settings.get("vocabs", [])]
    if not paths:
        candidates = {*folder.glob("*.spm"), *folder.glob("*vocab.yml")}
        # source.spm and target.spm split text, and another file has the ids of their subwords.
        paths = sorted(candidates - {source_spm, target_spm})
        if len(paths) == 1:  # one file for both sides
            paths *= 2
    if len(paths) != 2:
        raise ValueError(f"expected two vocabulary files, found {len(paths)}")
    return _vocabulary(paths[0], source_spm), _vocabulary(paths[1], target_spm)


def _vocabulary(path: Path, spm_path: Path) -> Vocabulary:
    """Read the vocabulary of one side of a Marian model.

    Args:
        path: An .spm file, or a file with the ids of subwords: see `read_vocabulary`.
        spm_path: The SentencePiece model that splits text, if ``path`` is a file with ids.
    """
    if path.suffix == ".spm":
        return Vocabulary.read(path)
    if not spm_path.is_file():
        raise CheckpointError(
            f"{spm_path} is missing: {path.name} does not say how text is split.",
            fix="Copy it from the release of this model, or of the model that it was trained from. "
            "nmt does not support subwords without SentencePiece.",
        )
    return Vocabulary.read(spm_path, read_vocabulary(path))


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
            lines = text.removesuffix("\n").split("\n")
            tokens = [line.partition("\t")[0] for line in lines]  # a tab and a score may follow
            return tokens_by_id(dict(zip(tokens, range(len(tokens)), strict=True)), path)
        # As events: a tree would take much memory, and the one in C crashes if nested deeply.
        scalars = []
        num_mappings = 0
        for event in yaml.parse(text.translate(_CONTROLS), loader):
            num_mappings += isinstance(event, yaml.MappingStartEvent)
            if isinstance(event, yaml.ScalarEvent):
                scalars.append(event.value)
            elif num_mappings > 1 or isinstance(event, yaml.SequenceStartEvent | yaml.AliasEvent):
                raise ValueError("it must have lines of the form `token: id`")
        ids = dict(zip(scalars[::2], scalars[1::2], strict=True))
    originals = {stand_in: code for code, stand_in in _CONTROLS.items()}
    return [token.translate(originals) for token in tokens_by_id(ids, path)]
