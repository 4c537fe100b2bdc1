"""Read Marian models, from Marian's own files or from a MarianMT folder of Hugging Face.

A Marian model (Junczys-Dowmunt et al. 2018) is an ``.npz`` file with the weights, ``decoder.yml``
and vocabularies. An OPUS-MT release is such a folder, with two SentencePiece models and one YAML
vocabulary for both sides. A MarianMT folder has ``config.json``, weights, two SentencePiece models
and ``vocab.json``.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml

from nmt.config.data import LANGUAGE_CODE
from nmt.config.document import parse_document
from nmt.config.model import DecodingConfig, ModelConfig
from nmt.extras.exchange.imported import (
    ACTIVATIONS,
    DEFAULT_MAX_LENGTH,
    EMBEDDINGS,
    HUGGING_FACE,
    MARIAN,
    FloatArray,
    Imported,
    TensorFiles,
    Vocabulary,
    config_of,
    decoding_of,
    load_json,
    reading,
    refused,
    tokens_by_id,
    weights_of,
)
from nmt.files.json_file import field

DECODER = "decoder.yml"
_OPTIONS = "special:model.yml"
_MOST_BYTES = 64  # Highest compression ratio of an archive, against zip bombs.
_LONGEST = 10_000  # subwords of a line
_NORMS = ("preprocess", "postprocess", "postprocess-top")
_PLACES: Mapping[tuple[str, ...], Any] = {("", "dan", ""): "post", ("n", "da", "n"): "pre"}
# Options of Marian -> the values that nmt supports.
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


def check_sizes(archive: zipfile.ZipFile, path: Path) -> None:
    """Raise a ValueError if the unpacked files would be far larger than the archive."""
    if sum(entry.file_size for entry in archive.infolist()) > _MOST_BYTES * path.stat().st_size:
        raise ValueError("the unpacked contents would be far larger than the file")


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
        sides = _vocabularies(folder, settings)
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
        max_length = min(int(settings.get("max-length", DEFAULT_MAX_LENGTH)), _LONGEST)
    arrays = read_npz(path)
    with reading(path):
        options = _yaml(arrays[_OPTIONS].astype(np.uint8).tobytes().rstrip(b"\0").decode(), path)
        config = _config_of_marian(options)
        weights = _weights_of_marian(arrays, config)
    return Imported(config, weights, *sides, decoding, max_length=max_length)


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
    ties_all = bool(options.get("tied-embeddings-all"))
    shares = ties_all or bool(options.get("tied-embeddings-src"))
    ties = ties_all or bool(options.get("tied-embeddings"))
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
        activation=ACTIVATIONS[options["transformer-ffn-activation"]],
        embeddings=EMBEDDINGS[2 * shares + ties],
        output_bias=True,
        decoder_start="zero",
    )


def _weights_of_marian(
    arrays: Mapping[str, npt.NDArray[Any]], config: ModelConfig
) -> dict[str, FloatArray]:
    is_pre = config.norm_position == "pre"

    def read(name: str) -> FloatArray:
        place, _, kind = name.rpartition(".")
        is_norm, is_bias = "_ln_" in place, kind == "bias"
        suffix = "_pre" if is_pre and is_norm and "_top_" not in place else ""
        kinds = ("scale", "bias") if is_norm else ("W", "b")
        array = np.asarray(arrays[place.format(kinds[is_bias]) + suffix], np.float32)
        return array.reshape(-1) if is_norm or is_bias else array.T

    names = ["Wemb"] * 2 if config.shares_inputs else ["encoder_Wemb", "decoder_Wemb"]
    vectors = [np.asarray(arrays[name], np.float32) for name in names]
    if not config.ties_output:
        vectors.append(read("decoder_ff_logit_out_{}.weight"))
    bias = arrays.get("decoder_ff_logit_out_b", np.zeros(len(vectors[1]), np.float32))
    return weights_of(config, MARIAN, read, vectors, bias)


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
        return Vocabulary.read(path)
    if not of_text.is_file():
        raise refused(f"{path.name} without {of_text.name} (subwords without SentencePiece)")
    return Vocabulary.read(of_text, read_vocabulary(path))


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
    return tokens_by_id(ids, path)


def read_marian_mt(source: Path, settings: Mapping[str, Any]) -> Imported:
    """Read a MarianMT folder of Hugging Face.

    Args:
        source: The folder.
        settings: From `nmt.extras.exchange.imported.read_settings`.

    Raises:
        CheckpointError: A file is missing or damaged, or nmt does not support the model.
    """
    arrays, files = TensorFiles(source), [source / "vocab.json", source / "target_vocab.json"]
    tokens = [tokens_by_id(load_json(x), x) for x in (files[0], files[files[1].is_file()])]
    source_side = Vocabulary.read(source / "source.spm", tokens[0])
    target_side = Vocabulary.read(source / "target.spm", tokens[1])
    with reading(source):
        start: Any = settings.get("decoder_start_token_id", settings.get("pad_token_id"))
        if start not in range(len(tokens[1])):
            raise ValueError(f"decoder_start_token_id {start} is not a token")
        # Shared matrices may be stored once, under any of their names. Compare them, because the
        # versions of the library interpret the configuration differently.
        shared = next((x for x in ("model.shared.weight", "lm_head.weight") if x in arrays), None)
        names = (f"model.{side}.embed_tokens.weight" for side in ("encoder", "decoder"))
        vectors = [arrays[x if x in arrays else shared or x] for x in names]
        vectors.append(arrays["lm_head.weight"] if "lm_head.weight" in arrays else vectors[1])
        shares = tokens[0] == tokens[1] and np.array_equal(vectors[0], vectors[1])
        ties = np.array_equal(vectors[2], vectors[1])
        config = config_of(
            settings,
            norm_epsilon=1e-5,
            positions="sinusoidal-concatenated",
            embeddings=EMBEDDINGS[2 * shares + ties],
            scale_embeddings=settings.get("scale_embedding", False),
        )
        bias = arrays["final_logits_bias"]
        weights = weights_of(config, HUGGING_FACE, arrays.__getitem__, vectors, bias)
        decoding = decoding_of(settings)
    tokenizer = load_json(source / "tokenizer_config.json", optional=True)
    codes = [str(tokenizer.get(f"{side}_lang") or "") for side in ("source", "target")]
    # A group of languages, such as ROMANCE or deu+eng+fra, has no code of its own.
    codes = [code if re.fullmatch(LANGUAGE_CODE, code) else code and "mul" for code in codes]
    languages = (codes[0], codes[1]) if all(codes) and codes[0] != codes[1] else None
    sides = source_side, target_side
    return Imported(config, weights, *sides, decoding, tokens[1][start], languages=languages)
