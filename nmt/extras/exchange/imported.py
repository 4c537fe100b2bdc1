"""Models of other systems in our form: what a reader returns, and the folder that is made of it.

Their tables have rows in the order of their vocabularies; ours begin with PAD, UNK, BOS and EOS.
Rows and SentencePiece models are put into one order together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.numpy import save_file

from nmt.checkpoint.files import MODEL, tensor_differences
from nmt.checkpoint.model_folder import CONFIG, TOKENIZER, write_model_folder
from nmt.config.data import CorpusConfig, DataConfig
from nmt.config.loader import dump_config
from nmt.config.model import DecodingConfig, ModelConfig
from nmt.config.run import RunConfig
from nmt.errors import CheckpointError
from nmt.extras.exchange.export import write_card
from nmt.extras.exchange.piece_list import SPECIAL, PieceList
from nmt.model.transformer import build_model
from nmt.text import BOS_ID, PAD_ID
from nmt.text.tokenizer import JOINT, SOURCE, TARGET, is_tag

FloatArray = npt.NDArray[np.floating[Any]]
ReadPart = Callable[[str, int, str], tuple[FloatArray, FloatArray]]
_PAD, _UNK, _BOS, _EOS = SPECIAL
# Whether both sides' inputs are one table, and whether the output is the target's table.
EMBEDDINGS = {
    (True, True): "tied",
    (True, False): "inputs-shared",
    (False, True): "decoder-tied",
    (False, False): "separate",
}
_NO_ROW = -1
# Logit of entries that their model does not have: far below any other, and finite in 16 bits.
_NEVER = -30.0
_COPY_AGAIN = "Copy it again from where the model comes from."
# Our layers -> the parts of theirs that are fused in them, one above the other.
_LAYER: Mapping[str, tuple[str, ...]] = {
    "self_attention.query_key_value": ("self.query", "self.key", "self.value"),
    "self_attention.output": ("self.output",),
    "self_residual.norm": ("self.norm",),
    "cross_attention.query": ("cross.query",),
    "cross_attention.key_value": ("cross.key", "cross.value"),
    "cross_attention.output": ("cross.output",),
    "cross_residual.norm": ("cross.norm",),
    "feed_forward.inner": ("inner",),
    "feed_forward.outer": ("outer",),
    "feed_forward_residual.norm": ("norm",),
}


def refused(what: str) -> CheckpointError:
    """Return the error for a model that uses ``what``."""
    problem = f"The model uses {what}, which nmt has no counterpart for."
    return CheckpointError(problem, fix="Import another model, or train one: `nmt init`.")


def damaged(path: Path, problem: object) -> CheckpointError:
    """Return the error for a file that cannot be what it should be."""
    return CheckpointError(f"{path} is damaged: {problem}.", fix=_COPY_AGAIN)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """One side's entries in another system."""

    # In the order of the rows of its table; ``<unk>`` and ``</s>`` are among them.
    tokens: Sequence[str]
    # Makes tokens of text; a piece that is not a token is unknown.
    pieces: PieceList


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A model of another system."""

    model: ModelConfig  # its shape in our words; `output_bias` is true
    # By our names; tables and output bias with rows in the order of the vocabularies.
    weights: Mapping[str, FloatArray]
    source: Vocabulary
    target: Vocabulary  # with the same tokens where the model shares its inputs
    start: str | None  # token whose vector the decoder reads first; None for zeros
    decoding: DecodingConfig  # as their files recommend it
    max_length: int  # longest line in subwords; longer ones are cut and joined
    languages: tuple[str, str] | None  # codes, where the files name them


def layer_weights(config: ModelConfig, read: ReadPart) -> Iterator[tuple[str, FloatArray]]:
    """Yield our name and value of the weights of all layers.

    Args:
        config: The model's shape.
        read: Side, number of the layer from 0 and part -> weight (outputs, inputs) and bias.
    """
    for side in ("encoder", "decoder"):
        for index in range(getattr(config, f"{side}_layers")):
            for ours, parts in _LAYER.items():
                if side == "encoder" and ours.startswith("cross"):
                    continue
                pairs = [read(side, index, part) for part in parts]
                for kind, arrays in zip(("weight", "bias"), zip(*pairs, strict=True), strict=True):
                    yield f"{side}.{index}.{ours}.{kind}", np.concatenate(arrays)


def write_imported(found: Imported, folder: Path, name: str, languages: tuple[str, str]) -> None:
    """Write a model folder.

    Raises:
        CheckpointError: Weights and shape disagree, or ``folder`` cannot be written.
    """
    shared, sides = found.model.shares_inputs, (found.source, found.target)
    if shared and list(found.source.tokens) != list(found.target.tokens):
        problem = "The model shares one table, but its vocabularies differ."
        raise CheckpointError(problem, fix=_COPY_AGAIN)
    source, target = (_side(side, sides if shared else (side,), found.start) for side in sides)
    sizes = len(source.rows), len(target.rows)
    weights = _reordered(found, source, target)
    with torch.device("meta"):
        expected = build_model(found.model, *sizes).state_dict()
    if problems := tensor_differences(weights, expected):
        problem = f"The weights are not those of the model that is described:\n  {problems}"
        raise CheckpointError(problem, fix=_COPY_AGAIN)
    if broken := [name for name, value in weights.items() if not np.isfinite(value).all()]:
        raise CheckpointError(f"{broken[0]} holds values that are not finite.", fix=_COPY_AGAIN)
    config = _run_config(found, name, languages, sizes)
    models = [x.pieces.reordered(y.tokens) for x, y in zip(sides, (source, target), strict=True)]

    def write(place: Path) -> None:
        (place / CONFIG).write_text(dump_config(config), encoding="utf-8", newline="\n")
        (place / TOKENIZER).mkdir()
        names = [JOINT] if models[0] == models[1] else [SOURCE, TARGET]
        for file_name, content in zip(names, models, strict=False):
            (place / TOKENIZER / file_name).write_bytes(content)
        save_file({key: np.ascontiguousarray(x) for key, x in weights.items()}, place / MODEL)
        facts = {"parameters": f"{sum(x.size for x in weights.values()):,}"}
        origin = "Imported from another system; see there for its training data and license."
        write_card(place, config, origin, facts)

    write_model_folder(folder, None, 0, write)


@dataclass(frozen=True, slots=True)
class _Side:
    """One side's entries in our order."""

    tokens: Sequence[str]  # after the special ones
    rows: npt.NDArray[np.int64]  # their row of each of our ids; `_NO_ROW` for none
    is_output: npt.NDArray[np.bool_]  # whether each of our ids may be output


def _side(own: Vocabulary, readers: Sequence[Vocabulary], start: str | None) -> _Side:
    """Order the entries: special ones, theirs, then pieces that are unknown to the model.

    The latter make other pieces of a text than a shorter list would; they get the unknown token's
    vector, as there.
    """
    rows = {token: row for row, token in enumerate(own.tokens)}
    if missing := [token for token in (_UNK, _EOS) if token not in rows]:
        raise CheckpointError(f"The vocabulary has no {' and no '.join(missing)}.", fix=_COPY_AGAIN)
    theirs = [token for token in own.tokens if token not in SPECIAL]
    theirs.sort(key=lambda token: not is_tag(token))  # tags come first, as where we train
    texts = dict.fromkeys(text for reader in readers for text in reader.pieces.texts)
    unknown = [text for text in texts if text not in rows and text not in SPECIAL]
    first = [rows.get(_PAD, _NO_ROW), rows[_UNK], rows.get(start or "", _NO_ROW), rows[_EOS]]
    order = [*first, *(rows[token] for token in theirs), *[rows[_UNK]] * len(unknown)]
    is_output = np.ones(len(order), bool)
    is_output[BOS_ID] = False
    is_output[PAD_ID] = _PAD in rows  # its mass counts, though it is never chosen
    is_output[len(order) - len(unknown) :] = False
    return _Side([*theirs, *unknown], np.array(order), is_output)


def _reordered(found: Imported, source: _Side, target: _Side) -> dict[str, FloatArray]:
    """Return the weights in float32, with tables in our order: zeros for `_NO_ROW`."""
    weights = {name: np.asarray(value, np.float32) for name, value in found.weights.items()}
    tables = {
        "source_vectors": source, "target_vectors": target, "output_vectors": target,
        "output_bias": target,
    }  # fmt: skip
    for name in tables.keys() & weights.keys():
        table, rows = weights[name], tables[name].rows
        if rows.max() >= len(table):
            problem = f"{name} has {len(table):,} rows, fewer than the vocabulary has entries."
            raise CheckpointError(problem, fix=_COPY_AGAIN)
        there = (rows != _NO_ROW).reshape(-1, *[1] * (table.ndim - 1))
        weights[name] = np.where(there, table[rows], np.float32(0))
    bias = weights["output_bias"]
    weights["output_bias"] = np.where(target.is_output, bias, np.float32(_NEVER))
    return weights


def _run_config(
    found: Imported, name: str, languages: tuple[str, str], sizes: tuple[int, int]
) -> RunConfig:
    """Describe the model as if it had been trained here; its corpora are not known."""
    shared, unknown = found.model.shares_inputs, Path("unknown")
    corpus = CorpusConfig(name="not-known", source=unknown, target=Path(f"{unknown}-too"))
    tokenizer = {
        "kind": found.target.pieces.algorithm,
        "vocab_size": sizes[0] if shared else {"source": sizes[0], "target": sizes[1]},
        "joint": shared,
    }
    values = {
        "name": name,
        "source_language": languages[0],
        "target_language": languages[1],
        "data": DataConfig(train=(corpus,), valid=corpus),
        "tokenizer": tokenizer,
        "filters": {"max_length": found.max_length},
        "model": found.model,
        "training": {"max_steps": 10_000},
        "decoding": found.decoding,
    }
    return RunConfig.model_validate(values)
