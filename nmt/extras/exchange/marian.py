"""Models of Marian: an ``.npz`` with the weights, ``decoder.yml`` and vocabularies beside it.

OPUS-MT releases are such folders, with SentencePiece models for the text and one YAML vocabulary
for both sides. Names of weights and options are Marian's (Junczys-Dowmunt et al. 2018).

Shapes: D model width, V vocabulary.
"""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nmt.config.decoding import DecodingConfig
from nmt.config.document import parse_document
from nmt.config.model import ModelConfig
from nmt.errors import ConfigError
from nmt.extras.exchange.imported import FloatArray, Imported, Vocabulary, damaged, refused
from nmt.text.piece_list import PieceList

DECODER = "decoder.yml"
_OPTIONS = "special:model.yml"
_MOST_BYTES = 64
"""Bytes of an archive's arrays for each byte of the archive, at most."""
_MAX_VOCABULARY = 1 << 26
_EPSILON = 1e-6
_POSITIONS = "sinusoidal-halves"
_ACTIVATIONS = {"relu": "relu", "swish": "silu"}
_MAX_LENGTH, _LONGEST = 256, 10_000
_LENGTH_FACTOR, _LENGTH_OFFSET = 3, 20
_ENTRY = re.compile(
    r"""(?:"((?:[^"\\]|\\.)*)"|'((?:[^']|'')*)'|(\S.*?)):[ \t]+(\d{1,7})[ \t]*\r?"""
)
_ESCAPE = re.compile(r"\\(.)")
_NORMS = ("preprocess", "postprocess", "postprocess-top")
_PLACES: Mapping[tuple[str, ...], str] = {("", "dan", ""): "post", ("n", "da", "n"): "pre"}
_PLAIN: Mapping[str, Sequence[Any]] = {
    "type": ("transformer",),
    "right-left": (False,),
    "factors-dim-emb": (0,),
    "lemma-dim-emb": (0,),
    "input-types": ([],),
    "ulr": (False,),
    "transformer-decoder-autoreg": ("self-attention",),
    "transformer-ffn-activation": tuple(_ACTIVATIONS),
    "transformer-ffn-depth": (2,),
    "transformer-decoder-ffn-depth": (0, 2),
    "transformer-no-affine": (False,),
    "transformer-no-bias": (False,),
    "transformer-no-projection": (False,),
    "transformer-pool": (False,),
    "transformer-postprocess-emb": ("d", ""),
    "transformer-rnn-projection": (False,),
    "transformer-tied-layers": ([],),
    "transformer-train-position-embeddings": (False,),
    "transformer-attention-mask": ("default", "none"),
}
"""Options of Marian -> the values that we have a counterpart for."""


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
    settings = (
        _yaml((folder / DECODER).read_text("utf-8"), folder / DECODER)
        if (folder / DECODER).is_file()
        else {}
    )
    weights_file = source if source.is_file() else _weights_file(folder, settings)
    arrays = read_npz(weights_file)
    options = _options(arrays, weights_file)
    config = _model_config(options)
    source_side, target_side = _vocabularies(folder, settings)
    return Imported(
        model=config,
        weights=dict(_Weights(arrays, config, weights_file).all()),
        source=source_side,
        target=target_side,
        start=None,
        decoding=_decoding(settings),
        max_length=min(int(settings.get("max-length", _MAX_LENGTH)), _LONGEST),
        languages=None,
    )


def read_npz(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Read an .npz archive. What its headers claim is compared with its size beforehand.

    Raises:
        CheckpointError: It is missing or damaged, or holds Python objects.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            size = path.stat().st_size
            entries = archive.infolist()
            if sum(entry.file_size for entry in entries) > _MOST_BYTES * size:
                raise ValueError("its parts claim to be far larger than the file")
            return {
                entry.filename.removesuffix(".npy"): _array(archive, entry) for entry in entries
            }
    except Exception as error:  # of zipfile, zlib and numpy: each has its own for damage
        raise damaged(path, error) from error


def _array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> npt.NDArray[Any]:
    with archive.open(entry) as file:
        version = np.lib.format.read_magic(file)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }.get(version)
        if read is None:
            raise ValueError(f"{entry.filename} is of an unknown format")
        shape, is_fortran, dtype = read(file)
        num_bytes = math.prod(shape) * dtype.itemsize
        is_plain = not dtype.hasobject and dtype.kind in "fiu" and min(shape, default=0) >= 0
        if not is_plain or num_bytes > entry.file_size:
            raise ValueError(f"{entry.filename} is no array of numbers of its size")
        values = np.frombuffer(file.read(num_bytes), dtype)
        return values.reshape(shape, order="F" if is_fortran else "C")


def _yaml(text: str, name: object) -> dict[str, Any]:
    try:
        values = parse_document(text, name=str(name)).values
    except ConfigError as error:
        raise damaged(Path(str(name)), error.problem.rstrip(".")) from error
    if not isinstance(values, dict):
        raise damaged(Path(str(name)), "it holds no keys and values")
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
    if _OPTIONS not in arrays:
        raise damaged(path, f"it has no {_OPTIONS}, so it is no model of Marian")
    try:
        text = arrays[_OPTIONS].astype(np.uint8).tobytes().rstrip(b"\0").decode()
    except UnicodeDecodeError as error:
        raise damaged(path, f"{_OPTIONS} is not UTF-8") from error
    options = _yaml(text, path)
    for name, allowed in _PLAIN.items():
        if name in options and options[name] not in allowed:
            raise refused(f"{name}: {options[name]}")
    for name in options:
        if name.startswith("transformer-alibi") and options[name] not in (False, None):
            raise refused(f"{name}: {options[name]}")
    return options


def _model_config(options: Mapping[str, Any]) -> ModelConfig:
    places = tuple(str(options.get(f"transformer-{name}", "")) for name in _NORMS)
    norm = _PLACES.get(places)
    if norm is None:
        raise refused(f"transformer-{', '.join(_NORMS)}: {places}")
    has_positions = not options.get("transformer-disable-position-embeddings", False)
    try:
        return ModelConfig.model_validate(
            {
                "encoder_layers": options["enc-depth"],
                "decoder_layers": options["dec-depth"],
                "model_dim": options["dim-emb"],
                "ff_dim": options["transformer-dim-ffn"],
                "decoder_ff_dim": options.get("transformer-decoder-dim-ffn") or None,
                "num_heads": options["transformer-heads"],
                "norm_position": norm,
                "norm_epsilon": _EPSILON,
                "positions": _POSITIONS if has_positions else "none",
                "activation": _ACTIVATIONS[options["transformer-ffn-activation"]],
                "embeddings": _embeddings(options),
                "output_bias": True,
                "decoder_start": "zero",
            }
        )
    except (KeyError, ValueError, TypeError) as error:
        problem = f"its options lack {error}" if isinstance(error, KeyError) else error
        raise damaged(Path(_OPTIONS), problem) from error


def _embeddings(options: Mapping[str, Any]) -> str:
    """Say which tables are one."""
    ties_output = options.get("tied-embeddings")
    if options.get("tied-embeddings-all") or (options.get("tied-embeddings-src") and ties_output):
        return "tied"
    if options.get("tied-embeddings-src"):
        return "inputs-shared"
    return "decoder-tied" if ties_output else "separate"


class _Weights:
    """Their weights by our names.

    Args:
        arrays: By Marian's names.
        config: The model's shape.
        path: Where they are from.
    """

    def __init__(
        self, arrays: Mapping[str, npt.NDArray[Any]], config: ModelConfig, path: Path
    ) -> None:
        self._arrays, self._config, self._path = arrays, config, path

    def get(self, name: str) -> FloatArray:
        """Return a weight in float32."""
        if name not in self._arrays:
            raise damaged(self._path, f"it has no {name}")
        return np.asarray(self._arrays[name], np.float32)

    def linear(self, ours: str, *theirs: tuple[str, str]) -> Iterator[tuple[str, FloatArray]]:
        """Yield weight and bias of a layer that holds ``theirs`` one after another."""
        yield f"{ours}.weight", np.concatenate([self.get(weight).T for weight, _ in theirs])
        yield f"{ours}.bias", np.concatenate([self.get(bias).reshape(-1) for _, bias in theirs])

    def norm(self, ours: str, theirs: str, suffix: str = "") -> Iterator[tuple[str, FloatArray]]:
        """Yield weight and bias of a norm."""
        yield f"{ours}.weight", self.get(f"{theirs}_ln_scale{suffix}").reshape(-1)
        yield f"{ours}.bias", self.get(f"{theirs}_ln_bias{suffix}").reshape(-1)

    def residual(self, ours: str, theirs: str) -> Iterator[tuple[str, FloatArray]]:
        """Yield the norm around a sub-layer."""
        return self.norm(ours, theirs, "_pre" if self._config.norm_position == "pre" else "")

    def attention(self, ours: str, theirs: str) -> Iterator[tuple[str, FloatArray]]:
        """Yield self- or cross-attention."""
        query, key, value, output = ((f"{theirs}_W{x}", f"{theirs}_b{x}") for x in "qkvo")
        if ours.endswith("self_attention"):
            yield from self.linear(f"{ours}.query_key_value", query, key, value)
        else:
            yield from self.linear(f"{ours}.query", query)
            yield from self.linear(f"{ours}.key_value", key, value)
        yield from self.linear(f"{ours}.output", output)

    def layer(self, side: str, index: int) -> Iterator[tuple[str, FloatArray]]:
        """Yield all of one layer."""
        ours, theirs = f"{side}.{index}", f"{side}_l{index + 1}"
        own, ff = f"{ours}.self_attention", f"{ours}.feed_forward"
        yield from self.attention(own, f"{theirs}_self")
        yield from self.residual(f"{ours}.self_residual.norm", f"{theirs}_self_Wo")
        if side == "decoder":
            yield from self.attention(f"{ours}.cross_attention", f"{theirs}_context")
            yield from self.residual(f"{ours}.cross_residual.norm", f"{theirs}_context_Wo")
        yield from self.linear(f"{ff}.inner", (f"{theirs}_ffn_W1", f"{theirs}_ffn_b1"))
        yield from self.linear(f"{ff}.outer", (f"{theirs}_ffn_W2", f"{theirs}_ffn_b2"))
        yield from self.residual(f"{ff}_residual.norm", f"{theirs}_ffn_ffn")

    def all(self) -> Iterator[tuple[str, FloatArray]]:
        """Yield our name and value of each weight."""
        config = self._config
        for side in ("encoder", "decoder"):
            for index in range(getattr(config, f"{side}_layers")):
                yield from self.layer(side, index)
            if config.norm_position == "pre":
                yield from self.norm(f"{side}_norm", f"{side}_top")
        yield "source_vectors", self.get("Wemb" if config.shares_inputs else "encoder_Wemb")
        target = self.get("Wemb" if config.shares_inputs else "decoder_Wemb")
        if not config.shares_inputs:
            yield "target_vectors", target
        if not config.ties_output:
            yield "output_vectors", self.get("decoder_ff_logit_out_W").T
        bias = self._arrays.get("decoder_ff_logit_out_b", np.zeros(len(target), np.float32))
        yield "output_bias", bias.reshape(-1)


def _vocabularies(folder: Path, settings: Mapping[str, Any]) -> tuple[Vocabulary, Vocabulary]:
    named = [folder / Path(str(each)).name for each in settings.get("vocabs", [])]
    found = named or sorted([*folder.glob("*.spm"), *folder.glob("*vocab.yml")])
    of_text = {side: folder / f"{side}.spm" for side in ("source", "target")}
    if not named:
        found = [path for path in found if path not in of_text.values()]
        found = found * 2 if len(found) == 1 else found
    if len(found) != 2:
        raise damaged(folder, "it does not hold the vocabularies of source and target")
    return _vocabulary(found[0], of_text["source"]), _vocabulary(found[1], of_text["target"])


def _vocabulary(path: Path, of_text: Path) -> Vocabulary:
    """Read an .spm, or a YAML vocabulary whose entries are pieces of the .spm ``of_text``."""
    if path.suffix == ".spm":
        pieces = PieceList.parse(path.read_bytes(), str(path))
        return Vocabulary([piece.text for piece in pieces.pieces], pieces)
    if not of_text.is_file():
        raise refused(f"{path.name} without {of_text.name} (subwords of another program)")
    return Vocabulary(read_vocabulary(path), PieceList.parse(of_text.read_bytes(), str(of_text)))


def read_vocabulary(path: Path) -> list[str]:
    """Read a vocabulary of ``token: id`` lines; return the tokens by id.

    Raises:
        CheckpointError: A line is something else, or the ids are not 0, 1, 2 and so on.
    """
    with path.open("rb") as file:
        content = file.read(_MAX_VOCABULARY + 1)
    if len(content) > _MAX_VOCABULARY:
        raise damaged(path, f"it is larger than {_MAX_VOCABULARY:,} bytes")
    ids: dict[int, str] = {}
    for number, line in enumerate(content.decode("utf-8", "replace").split("\n"), 1):
        if not line.strip() or line.startswith(("#", "---", "...")):
            continue
        match = _ENTRY.fullmatch(line)
        if match is None or int(match[4]) in ids:
            raise damaged(path, f"line {number} is no entry `token: id` of its own")
        double, single, plain, index = match.groups()
        ids[int(index)] = (
            _ESCAPE.sub(r"\1", double)
            if double is not None
            else single.replace("''", "'")
            if single is not None
            else plain
        )
    if sorted(ids) != list(range(len(ids))):
        raise damaged(path, "its ids are not 0, 1, 2 and so on")
    return [ids[index] for index in range(len(ids))]


def _decoding(settings: Mapping[str, Any]) -> DecodingConfig:
    """Return what `DECODER` recommends.

    Marian's limit is three times the longest source of a batch, whichever lines come together
    there. Its beam also loses a place with each hypothesis that ends; ours does not.
    """
    normalize = settings.get("normalize", 0)
    return DecodingConfig(
        beam_size=int(settings.get("beam-size", 12)),
        length_penalty=float(normalize),
        max_length_factor=_LENGTH_FACTOR,
        max_length_offset=_LENGTH_OFFSET,
        keep_special_mass=True,
    )
