"""Models of other systems in our form: what a reader returns, and the folder that is made of it.

Their tables have rows in the order of their vocabularies; ours begin with PAD, UNK, BOS and EOS.
Rows and SentencePiece models are put into one order together.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nmt.checkpoint.files import MODEL, tensor_differences
from nmt.checkpoint.model_folder import CONFIG, TOKENIZER
from nmt.checkpoint.new_model_folder import write_model_folder
from nmt.config.data import CorpusConfig, DataConfig
from nmt.config.decoding import DecodingConfig
from nmt.config.loader import dump_config
from nmt.config.model import ModelConfig
from nmt.config.run import RunConfig
from nmt.errors import CheckpointError
from nmt.text import BOS_ID, PAD_ID
from nmt.text.piece_list import SPECIAL, PieceList, is_tag, ordinary
from nmt.text.tokenizer import JOINT, SOURCE, TARGET
from nmt.version import __version__

FloatArray = npt.NDArray[np.floating[Any]]
_PAD, _UNK, _BOS, _EOS = SPECIAL
_NO_ROW = -1
_NEVER = -30.0
"""Logit of entries that their model does not have: far below any other, and finite in 16 bits."""
_SOURCE_TABLE, _TARGET_TABLE, _OUTPUT_TABLE = "source_vectors", "target_vectors", "output_vectors"
_OUTPUT_BIAS = "output_bias"
_UNKNOWN_FILE = "unknown"
_MAX_STEPS = 10_000
_COPY_AGAIN = "Copy it again from where the model comes from."

logger = logging.getLogger(__name__)


def refused(what: str) -> CheckpointError:
    """Return the error for a model that uses ``what``."""
    return CheckpointError(
        f"The model uses {what}, which nmt has no counterpart for.",
        fix="Import another model, or train one: `nmt init`.",
    )


def damaged(path: Path, problem: object) -> CheckpointError:
    """Return the error for a file that cannot be what it should be."""
    return CheckpointError(f"{path} is damaged: {problem}.", fix=_COPY_AGAIN)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """One side's entries in another system."""

    tokens: Sequence[str]
    """In the order of the rows of its table; ``<unk>`` and ``</s>`` are among them."""
    pieces: PieceList
    """The SentencePiece model that makes tokens of text; a piece that is no token is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A model of another system."""

    model: ModelConfig
    """Its shape in our words; ``output_bias`` is true."""
    weights: Mapping[str, FloatArray]
    """By our names; tables and output bias with rows in the order of the vocabularies."""
    source: Vocabulary
    target: Vocabulary
    """The same tokens where the model shares its inputs."""
    start: str | None
    """Token whose vector the decoder reads first; None for zeros."""
    decoding: DecodingConfig
    """As their files recommend it."""
    max_length: int
    """Longest line in subwords; longer ones are cut and joined."""
    languages: tuple[str, str] | None
    """Codes of source and target, where the files name them."""


def write_imported(
    found: Imported, folder: Path, name: str, languages: tuple[str, str]
) -> RunConfig:
    """Write a model folder; return its configuration.

    Raises:
        CheckpointError: Weights and shape disagree, or ``folder`` cannot be written.
    """
    sides = _tokens_in_our_order(found)
    weights = _reordered(found, sides)
    config = _run_config(found, name, languages, (len(sides[0].rows), len(sides[1].rows)))
    _check_shapes(config.model, weights, (len(sides[0].rows), len(sides[1].rows)))
    models = [
        side.pieces.reordered(own.tokens).dump()
        for side, own in zip((found.source, found.target), sides, strict=True)
    ]

    def write(place: Path) -> None:
        from safetensors.numpy import save_file  # noqa: PLC0415

        (place / CONFIG).write_text(dump_config(config), encoding="utf-8", newline="\n")
        (place / TOKENIZER).mkdir()
        names = [JOINT] if models[0] == models[1] else [SOURCE, TARGET]
        for file_name, content in zip(names, models, strict=False):
            (place / TOKENIZER / file_name).write_bytes(content)
        save_file({key: np.ascontiguousarray(x) for key, x in weights.items()}, place / MODEL)
        card = _card(config, sum(x.size for x in weights.values()))
        (place / "README.md").write_text(card, encoding="utf-8", newline="\n")

    write_model_folder(folder, None, 0, write)
    return config


@dataclass(frozen=True, slots=True)
class _Side:
    """One side's entries in our order."""

    tokens: Sequence[str]
    """After the special ones."""
    rows: npt.NDArray[np.int64]
    """Their row of each of our ids; `_NO_ROW` for none."""
    is_output: npt.NDArray[np.bool_]
    """Whether each of our ids may be output."""


def _tokens_in_our_order(found: Imported) -> tuple[_Side, _Side]:
    """Order the entries: special ones, theirs, then pieces that are unknown to the model.

    The latter make other pieces of a text than a shorter list would; they get the unknown token's
    vector, as there.
    """
    shared = found.model.shares_inputs
    if shared and list(found.source.tokens) != list(found.target.tokens):
        raise CheckpointError(
            "The model shares one table, but its vocabularies differ.", fix=_COPY_AGAIN
        )
    vocabularies = found.source, found.target
    return tuple(  # type: ignore[return-value]
        _side(own, vocabularies if shared else (own,), found.start) for own in vocabularies
    )


def _side(own: Vocabulary, readers: Sequence[Vocabulary], start: str | None) -> _Side:
    rows = {token: row for row, token in enumerate(own.tokens)}
    if missing := [token for token in (_UNK, _EOS) if token not in rows]:
        raise CheckpointError(f"The vocabulary has no {' and no '.join(missing)}.", fix=_COPY_AGAIN)
    theirs = [token for token in own.tokens if token not in SPECIAL]
    theirs.sort(key=lambda token: not is_tag(token))  # tags come first, as where we train
    pieces = {text: None for reader in readers for text in ordinary(reader.pieces.pieces)}
    unknown = [text for text in pieces if text not in rows]
    first = [rows.get(_PAD, _NO_ROW), rows[_UNK], rows.get(start or "", _NO_ROW), rows[_EOS]]
    order = [*first, *(rows[token] for token in theirs), *[rows[_UNK]] * len(unknown)]
    is_output = np.ones(len(order), bool)
    is_output[BOS_ID] = False
    is_output[PAD_ID] = _PAD in rows  # its mass counts, though it is never chosen
    is_output[len(order) - len(unknown) :] = False
    return _Side([*theirs, *unknown], np.array(order), is_output)


def _reordered(found: Imported, sides: tuple[_Side, _Side]) -> dict[str, FloatArray]:
    """Return the weights in float32, with tables in our order."""
    weights = {name: np.asarray(value, np.float32) for name, value in found.weights.items()}
    for name, side in zip(
        (_SOURCE_TABLE, _TARGET_TABLE, _OUTPUT_TABLE), (sides[0], *sides[1:] * 2), strict=True
    ):
        if name in weights:
            weights[name] = _take(weights[name], side.rows, name)
    bias = _take(weights[_OUTPUT_BIAS], sides[1].rows, _OUTPUT_BIAS)
    weights[_OUTPUT_BIAS] = np.where(sides[1].is_output, bias, np.float32(_NEVER))
    return weights


def _take(table: FloatArray, rows: npt.NDArray[np.int64], name: str) -> FloatArray:
    """Return these rows of a table, with zeros for `_NO_ROW`."""
    if rows.max() >= len(table):
        raise CheckpointError(
            f"{name} has {len(table):,} rows, fewer than the vocabulary has entries.",
            fix=_COPY_AGAIN,
        )
    there = (rows != _NO_ROW).reshape(-1, *[1] * (table.ndim - 1))
    return np.where(there, table[rows], np.float32(0))


def _check_shapes(
    config: ModelConfig, weights: Mapping[str, FloatArray], sizes: tuple[int, int]
) -> None:
    import torch  # noqa: PLC0415

    from nmt.model.transformer import build_model  # noqa: PLC0415

    with torch.device("meta"):
        expected = build_model(config, *sizes).state_dict()
    if problems := tensor_differences(weights, expected):
        raise CheckpointError(
            f"The weights are not those of the model that is described:\n  {problems}",
            fix=_COPY_AGAIN,
        )
    if broken := [name for name, value in weights.items() if not np.isfinite(value).all()]:
        raise CheckpointError(
            f"{broken[0]} holds values that are no finite numbers.", fix=_COPY_AGAIN
        )


def _run_config(
    found: Imported, name: str, languages: tuple[str, str], sizes: tuple[int, int]
) -> RunConfig:
    """Describe the model as if it had been trained here; its corpora are not known."""
    shared = found.model.shares_inputs
    corpus = CorpusConfig(
        name="not-known", source=Path(_UNKNOWN_FILE), target=Path(f"{_UNKNOWN_FILE}-too")
    )
    tokenizer = {
        "kind": found.target.pieces.algorithm,
        "vocab_size": sizes[0] if shared else {"source": sizes[0], "target": sizes[1]},
        "joint": shared,
    }
    return RunConfig.model_validate(
        {
            "name": name,
            "source_language": languages[0],
            "target_language": languages[1],
            "data": DataConfig(train=(corpus,), valid=corpus),
            "tokenizer": tokenizer,
            "filters": {"max_length": found.max_length},
            "model": found.model,
            "training": {"max_steps": _MAX_STEPS},
            "decoding": found.decoding,
        }
    )


def _card(config: RunConfig, num_parameters: int) -> str:
    source, target = config.source_language, config.target_language
    return f"""---
language:
- {source}
- {target}
pipeline_tag: translation
library_name: nmt
---

# {config.name}

Translates {source} to {target}. Imported by nmt {__version__} from another system's files: what it
was trained on, and under which license it may be used, is said where they come from.

{num_parameters:,} parameters. `nmt translate FOLDER < in.{source} > out.{target}`
"""
