"""``nmt import``: convert a pretrained model to a model folder.

Vocabularies of nmt begin with PAD, UNK, BOS and EOS; those of other systems do not. The
import reorders the rows of the embedding matrices and the SentencePiece models in the same way.
"""

from __future__ import annotations

import re
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

from nmt.checkpoint.files import tensor_differences
from nmt.checkpoint.model_folder import (
    CONFIG,
    check_new_folder,
    load_folder_config,
    log_next_commands,
)
from nmt.config.data import LANGUAGE_CODE, language_symbol
from nmt.config.inference import InferenceConfig
from nmt.config.language_codes import is_spelling, primary_code
from nmt.config.run import check_languages, name_of_folder
from nmt.errors import CheckpointError, ConfigError, did_you_mean, shell_command
from nmt.extras.exchange import vocabulary
from nmt.extras.exchange.export import IMPORTED, WrittenFolder
from nmt.extras.exchange.hub import NAME, fetch
from nmt.extras.exchange.imported import (
    COPY_AGAIN,
    HF_CONFIG,
    FloatArray,
    Imported,
    Vocabulary,
    read_settings,
    reading,
)
from nmt.extras.exchange.m2m import read_m2m
from nmt.extras.exchange.marian import DECODER, check_sizes, read_marian, read_marian_mt
from nmt.extras.exchange.options import EXAMPLE, ImportOptions, is_resized
from nmt.model.transformer import build_model
from nmt.text import BOS_ID, EOS_ID, PAD_ID, UNK_ID

_SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")  # in the order of their ids
_PAD, _UNK, _, _EOS = _SPECIAL
_ADAPTER = "adapter_config.json"  # of the package peft
_NO_ROW = -1
_RESIZED = "The vocabulary was changed after training."
# Logit of subwords that the imported model lacks: far below any other, and finite in 16 bits.
_NEVER = -30.0
# Codes of the usual source and the usual target language of a multilingual model.
_USUAL = ("en", "fr")


@dataclass(frozen=True)
class ImportSummary(WrittenFolder):
    """What `nmt import` has written."""

    languages: tuple[str, str]  # Codes of source and target.
    before: Mapping[str, float] | None = None  # If the vocabulary was changed.
    after: Mapping[str, float] | None = None


def import_model(options: ImportOptions, *, origin: str = IMPORTED) -> ImportSummary:
    """Convert a model of another toolkit, or change the vocabulary of a model of nmt.

    Args:
        options: Source, output, languages, and changes of the vocabulary.
        origin: Sentence about the origin of the model, for the model card.

    Raises:
        CheckpointError: A file is missing or damaged, nmt does not support the model, or the hub
            cannot be reached.
        ConfigError: ``output`` exists, or the languages are unknown or not valid codes.
        DataError: A text file is missing, damaged or not UTF-8.
    """
    check_new_folder(options.output, options.source)
    source, output = options.source, options.output
    # ORG/NAME is a path or a name on the hub.
    if NAME.fullmatch(str(source)) and not source.parent.exists():
        summary = fetch(options)[1]
        config = load_folder_config(output)
        return summary or ImportSummary(output, (config.source_language, config.target_language))
    if is_resized(options) and (options.source / CONFIG).is_file():
        summary = ImportSummary(options.output, *vocabulary.resize_folder(options, _RESIZED))
    else:
        with _unpacked(options.source) as place:
            model = _read(place, options.source)
            # A file that is mapped into memory must exist until the model is written.
            summary = write_imported(model, options, origin)
    if summary.before and summary.after:
        vocabulary.log_sizes(summary.before, summary.after)
    log_next_commands(options.output)
    return summary


def write_imported(model: Imported, options: ImportOptions, origin: str) -> ImportSummary:
    """Write a model folder: vocabularies and weights in the order of nmt.

    Args:
        model: The model.
        options: Output, languages, and changes of the vocabulary.
        origin: Sentence about the origin of the model, for the model card.
    """
    output, shape = options.output, model.model
    sides, shared = (model.source, model.target), shape.shares_inputs
    if shared and model.source.tokens != model.target.tokens:
        problem = "The model has one embedding matrix for two different vocabularies."
        raise CheckpointError(problem, fix=COPY_AGAIN)
    orders = [_ordered(x, sides if shared else (x,), model.start) for x in sides]
    models = [_sentencepiece(x, y.tokens) for x, y in zip(sides, orders, strict=True)]
    before, resized = None, list[vocabulary.Resized]()
    if is_resized(options):
        # The languages of a multilingual model are known afterwards.
        codes = () if model.language_tags else _codes(options.languages, model.languages, ())
        resized = vocabulary.resize(models, codes, options, shared=shared)
        before = vocabulary.sizes_of(models, model.weights)
        models = [side.model for side in resized]
        orders = [  # before the weights are copied: the matrices may take gigabytes
            _Order((), [x.rows[i] for i in y.kept], [x.outputs[i] for i in y.kept])
            for x, y in zip(orders, resized, strict=True)
        ]
    tags = [*vocabulary.language_tags(models[0])] if model.language_tags else []
    codes = _codes(options.languages, model.languages, tags)
    sizes = len(models[0].pieces), len(models[1].pieces)
    weights = _reordered(model.weights, orders)
    for name in weights.keys() & vocabulary.TABLES.keys() if resized else ():
        weights[name] = resized[vocabulary.TABLES[name]].grow(weights[name])
    with torch.device("meta"):
        expected = build_model(shape, *sizes).state_dict()
    if problems := tensor_differences(weights, expected):
        problem = f"The weights do not match the configuration of the model:\n  {problems}"
        raise CheckpointError(problem, fix=COPY_AGAIN)
    if broken := [name for name, value in weights.items() if not np.isfinite(value).all()]:
        raise CheckpointError(f"{broken[0]} contains NaN or infinity.", fix=COPY_AGAIN)
    spec = model.target.sentencepiece.trainer_spec
    values = {
        "name": name_of_folder(output),
        "source_language": codes[0],
        "target_language": codes[1],
        "directions": [codes],
        "language_tags": model.language_tags,
        "tokenizer": {
            "kind": spec.ModelType.Name(spec.model_type).lower(),
            "vocab_size": sizes[0] if shared else {"source": sizes[0], "target": sizes[1]},
            "joint": shared,
            "byte_fallback": spec.byte_fallback,
            "user_defined_symbols": tags,
        },
        "max_length": model.max_length,
        "model": shape,
        "decoding": model.decoding,
    }
    config = InferenceConfig.model_validate(values)
    vocabulary.write_model(output, config, models, weights, origin=origin)
    return ImportSummary(output, codes, before, before and vocabulary.sizes_of(models, weights))


def _read(place: Path, source: Path) -> Imported:
    """Read the model in ``place``, which is ``source`` or its unpacked contents."""
    if (place / HF_CONFIG).is_file():
        settings = read_settings(place)
        read = read_m2m if settings["model_type"] == "m2m_100" else read_marian_mt
        return read(place, settings)
    if place.suffix == ".npz" or (place / DECODER).is_file() or any(place.glob("*.npz")):
        return read_marian(place)
    problem = "is not a model: it has neither config.json (Hugging Face) nor an .npz file (Marian)"
    fix = "Pass the folder of a Marian, MarianMT, M2M-100 or NLLB-200 model."
    # The cache of huggingface_hub has the files of a model in ``snapshots/COMMIT``.
    around = (place.parent / HF_CONFIG, *place.glob(f"*/*/{HF_CONFIG}"))
    if not source.exists():
        pull = shell_command("pull", EXAMPLE, output="models/en-de")
        problem, fix = "does not exist", f"Check the path, or download a model: {pull}"
    elif (place / _ADAPTER).is_file():
        problem = "is an adapter, not a whole model"
        fix = "Merge the adapter into the base model with the package peft, and import the result."
    elif (place / CONFIG).is_file():
        problem, fix = "is already an nmt model", f"Type: {shell_command('translate', source)}"
    elif near := [x.parent for x in around if x.is_file()]:
        problem, fix = "is not a model folder", f"Pass {near[0]}."
    raise CheckpointError(f"{source} {problem}.", fix=fix)


@contextmanager
def _unpacked(source: Path) -> Iterator[Path]:
    """Yield ``source``; for a .zip, yield a temporary folder with the unpacked files."""
    if source.suffix != ".zip":
        yield source
        return
    with tempfile.TemporaryDirectory() as folder:
        with reading(source), zipfile.ZipFile(source) as archive:
            check_sizes(archive, source)
            for entry in archive.infolist():
                if not entry.is_dir():
                    entry.filename = Path(entry.filename).name  # never outside the folder
                    archive.extract(entry, folder)
        yield Path(folder)


def _codes(given: str | None, named: Sequence[str] | None, tags: Sequence[str]) -> tuple[str, str]:
    """Return the codes of source and target language: given, named by the files, or usual."""
    codes = [tag.removeprefix("<2").removesuffix(">") for tag in tags]
    codes.sort(key=lambda code: ([primary_code(code) != usual for usual in _USUAL], code))
    named = named or codes[:2]
    if given is None and len(named) == 2:
        return named[0], named[1]
    source, _, target = (given or "").partition("-")
    are_codes = all(re.fullmatch(LANGUAGE_CODE, x) for x in (source, target))
    if is_spelling(source, target) or not are_codes:
        unknown = "The model files do not state the language pair."
        problem = f"`languages` {given!r} is not a language pair." if given else unknown
        raise ConfigError(problem, fix="Pass both codes, such as `languages` en-de.")
    if not tags:
        check_languages({"`languages`": source, "`languages` ": target})
        return source, target
    symbols = {code: language_symbol(code, tags) for code in (source, target)}
    for code in (code for code, symbol in symbols.items() if symbol is None):
        problem = f"`languages`: the model has no language {code}.{did_you_mean(code, codes)}"
        raise ConfigError(problem, fix=f"Use codes of the model, such as {named[0]}.")
    return str(symbols[source])[2:-1], str(symbols[target])[2:-1]


class _Order(NamedTuple):
    """The vocabulary of one side in the order of nmt."""

    tokens: Sequence[str]  # Without the four special tokens.
    rows: Sequence[int]  # For each of our ids, the row in the original; `_NO_ROW` if missing.
    outputs: Sequence[int]  # As ``rows``, with `_NO_ROW` also for tokens that are never an output.


def _ordered(side: Vocabulary, readers: Sequence[Vocabulary], start: str | None) -> _Order:
    """Order the vocabulary: special tokens, tokens of the model, then unused subwords.

    Unused subwords are in the SentencePiece model, but not among the tokens of the model. Without
    unused subwords, text would be split differently. They get the vector of the unknown token, as
    in the original.
    """
    rows = {token: row for row, token in enumerate(side.tokens)}
    if missing := [token for token in (_UNK, _EOS) if token not in rows]:
        raise CheckpointError(f"The vocabulary lacks {' and '.join(missing)}.", fix=COPY_AGAIN)
    theirs = [token for token in side.tokens if token not in _SPECIAL]
    theirs.sort(key=lambda token: token not in side.symbols)  # first, as in vocabularies of nmt
    pieces = (piece.piece for reader in readers for piece in reader.sentencepiece.pieces)
    unknown = [x for x in dict.fromkeys(pieces) if x not in rows and x not in _SPECIAL]
    known = [rows[_EOS], *(rows[token] for token in theirs)]
    first = [rows.get(_PAD, _NO_ROW), rows[_UNK]]  # PAD is part of the softmax, but never chosen
    return _Order(
        [*theirs, *unknown],
        [*first, rows.get(start or "", _NO_ROW), *known, *[rows[_UNK]] * len(unknown)],
        [*first, _NO_ROW, *known, *[_NO_ROW] * len(unknown)],
    )


def _reordered(theirs: Mapping[str, FloatArray], orders: Sequence[_Order]) -> dict[str, FloatArray]:
    """Return the weights in float32, with embedding matrices and output bias in the new order."""
    weights = {name: np.asarray(value, np.float32) for name, value in theirs.items()}
    for name, side in vocabulary.TABLES.items():
        _, rows, outputs = orders[side]
        rows, otherwise = (outputs, _NEVER) if name == "output_bias" else (rows, 0.0)
        if (table := weights.get(name)) is not None:
            if max(rows) >= len(table):
                problem = f"{name} has {len(table):,} rows, fewer than the size of the vocabulary."
                raise CheckpointError(problem, fix=COPY_AGAIN)
            # One copy only: the matrix of a multilingual model takes a gigabyte.
            weights[name] = table[np.maximum(rows, 0)]
            weights[name][np.equal(rows, _NO_ROW)] = otherwise
    return weights


def _sentencepiece(side: Vocabulary, tokens: Sequence[str]) -> Any:
    """Return a SentencePiece model with the special tokens first, then ``tokens``, in this order.

    Subwords of ``side`` keep their score and type. New tokens are user-defined if they are
    symbols, and unused otherwise, so that text is still split as before.
    """
    present = {piece.piece: piece for piece in side.sentencepiece.pieces}
    kinds = ModelProto.SentencePiece
    pieces = [kinds(piece=text, score=0.0, type=kinds.CONTROL) for text in _SPECIAL]
    pieces[UNK_ID].type = kinds.UNKNOWN
    # BPE merges unused subwords too, and splits them again: after all other merges.
    unused = min(piece.score for piece in side.sentencepiece.pieces) - 1
    for token in tokens:
        is_symbol = token in side.symbols
        kind = kinds.USER_DEFINED if is_symbol else kinds.UNUSED
        new = kinds(piece=token, score=0.0 if is_symbol else unused, type=kind)
        pieces.append(present.get(token, new))
    model = vocabulary.with_pieces(side.sentencepiece, pieces)
    spec = model.trainer_spec
    spec.pad_id, spec.unk_id, spec.bos_id, spec.eos_id = PAD_ID, UNK_ID, BOS_ID, EOS_ID
    spec.pad_piece, spec.unk_piece, spec.bos_piece, spec.eos_piece = _SPECIAL
    return model
