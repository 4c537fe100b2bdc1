"""Convert a model from `nmt.extras.exchange.imported` to a model folder; change vocabularies.

Vocabularies of nmt begin with PAD, UNK, BOS and EOS; those of other systems do not. The
import reorders the rows of the embedding matrices and the SentencePiece models in the same way.
"""

from __future__ import annotations

import logging
import re
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

from nmt.checkpoint.files import MODEL, tensor_differences
from nmt.checkpoint.model_folder import (
    CONFIG,
    TOKENIZER,
    load_model,
    log_next_commands,
    new_model_folder,
    write_folder_config,
)
from nmt.config.data import LANGUAGE_CODE, language_symbol
from nmt.config.inference import InferenceConfig
from nmt.config.language_codes import is_spelling, primary_code
from nmt.config.run import check_languages, name_of_folder
from nmt.errors import CheckpointError, ConfigError, did_you_mean, shell_command
from nmt.extras.exchange import vocabulary
from nmt.extras.exchange.export import ImportSummary, write_card
from nmt.extras.exchange.hugging_face import read_hugging_face
from nmt.extras.exchange.imported import (
    HF_CONFIG,
    Imported,
    Vocabulary,
    Weights,
    check_sizes,
    damaged,
    piece_texts,
    read_sentencepiece,
    reading,
)
from nmt.extras.exchange.marian import DECODER, read_marian
from nmt.extras.exchange.options import EXAMPLE, ImportOptions, is_resized
from nmt.extras.exchange.vocabulary import IdArray
from nmt.model.transformer import VOCABULARY_SIDES, build_model
from nmt.text import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from nmt.text.tokenizer import JOINT, SOURCE, TARGET

logger = logging.getLogger(__name__)

_SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")  # in the order of their ids
_PAD, _UNK, _BOS, _EOS = _SPECIAL
_ADAPTER = "adapter_config.json"  # of the package peft
_NO_ROW = -1
_RESIZED = "The vocabulary was changed after training."
# Logit of subwords that the imported model lacks: far below any other, and finite in 16 bits.
_NEVER = -30.0
# Codes of the usual source and the usual target language of a multilingual model.
_USUAL = ("en", "fr")


def convert(options: ImportOptions, origin: str) -> ImportSummary:
    """Convert a local model of another toolkit, or change the vocabulary of a model of nmt.

    Args:
        options: Source, output, languages, and changes of the vocabulary.
        origin: Sentence about the origin of an imported model, for the model card.

    Raises:
        CheckpointError: A file is missing or damaged, or nmt does not support the model.
        ConfigError: The languages are unknown or not valid codes, or a side has no text.
        DataError: A text file is missing, damaged or not UTF-8.
    """
    source = options.source
    if is_resized(options) and (source / CONFIG).is_file():
        return _resize_folder(options)
    with _unpacked(source) as place:
        model = _read(place, source)
        # A file that is mapped into memory must exist until the model is written.
        return _write_imported(model, options, origin)


def _write_imported(model: Imported, options: ImportOptions, origin: str) -> ImportSummary:
    """Write a model folder: vocabularies and weights in the order of nmt."""
    shape = model.model
    shared = shape.shares_inputs
    if shared and model.source.tokens != model.target.tokens:
        problem = "The model has one embedding matrix for two different vocabularies."
        raise damaged(problem)
    sides = []
    for side in (model.source, model.target):
        readers = (model.source, model.target) if shared else (side,)
        sides.append(_Side.of(side, readers, model.start))
    codes = ("", "")  # Those of a multilingual model follow from the new vocabulary.
    if model.language_tags is None:
        codes = _codes(options.languages, model.languages, ())
    new_sides = _resized(sides, codes, options, shared=shared)
    tags = list[str]()
    if model.language_tags is not None:
        tags = [*vocabulary.language_tags(new_sides[0].model)]
        codes = _codes(options.languages, model.languages, tags)
    new = _reordered(model.weights, new_sides)
    with torch.device("meta"):
        expected = build_model(shape, *new.vocab_sizes)
    problems = tensor_differences(new.weights, expected.state_dict())
    if problems:
        problem = f"The weights do not match the configuration of the model:\n  {problems}"
        raise damaged(problem)
    for name, value in new.weights.items():
        if not np.isfinite(value).all():
            raise damaged(f"{name} contains NaN or infinity.")
    spec = model.target.sentencepiece.trainer_spec
    values = {
        "name": name_of_folder(options.output),
        "source_language": codes[0],
        "target_language": codes[1],
        "directions": [codes],
        "language_tags": model.language_tags,
        "tokenizer": {
            "kind": spec.ModelType.Name(spec.model_type).lower(),
            "vocab_size": _vocab_size(new, joint=shared),
            "joint": shared,
            "byte_fallback": spec.byte_fallback,
            "user_defined_symbols": tags,
        },
        "max_length": model.max_length,
        "model": shape,
        "decoding": model.decoding,
    }
    config = InferenceConfig.model_validate(values)
    old = _Contents(sides, model.weights)
    return _write(options, config, old, new, origin=origin)


def _resize_folder(options: ImportOptions) -> ImportSummary:
    """Write a copy of the best checkpoint of an nmt model, with another vocabulary.

    The copy has no shortlist and no confidence scores: both belong to the old vocabulary.
    """
    bundle = load_model(options.source)
    config = bundle.config
    folder = options.source / TOKENIZER
    names = [SOURCE, TARGET]
    if (folder / JOINT).is_file():
        names = [JOINT, JOINT]
    sides = []
    for name in names:
        model = read_sentencepiece(folder / name)
        rows = np.arange(len(model.pieces))
        sides.append(_Side(model, rows, rows))
    shared = config.model.shares_inputs
    new_sides = _resized(sides, config.languages, options, shared=shared)
    tensors = bundle.model.state_dict()
    old = _Contents(sides, {name: tensor.numpy() for name, tensor in tensors.items()})
    new = _reordered(old.weights, new_sides)
    vocab_size = _vocab_size(new, joint=config.tokenizer.joint)
    tokenizer = {"vocab_size": vocab_size, "pad_vocab_by": 0}
    changes = {
        "tokenizer": config.tokenizer.model_copy(update=tokenizer),
        "decoding": config.decoding.model_copy(update={"shortlist": False}),
    }
    new_config = config.model_copy(update=changes)
    step = bundle.step
    return _write(options, new_config, old, new, origin=_RESIZED, step=step, record=bundle.record)


def _read(place: Path, source: Path) -> Imported:
    """Read the model in ``place``, which is ``source`` or its unpacked contents."""
    if (place / HF_CONFIG).is_file():
        return read_hugging_face(place)
    is_folder = (place / DECODER).is_file() or any(place.glob("*.npz"))
    if is_folder or place.suffix == ".npz":
        return read_marian(place)
    # The cache of huggingface_hub has the files of a model in ``snapshots/COMMIT``.
    around = [place.parent / HF_CONFIG, *place.glob(f"*/*/{HF_CONFIG}")]
    near = [path.parent for path in around if path.is_file()]
    if not source.exists():
        problem = "does not exist"
        pull = shell_command("pull", EXAMPLE, output="models/en-de")
        fix = f"Check the path, or download a model: {pull}"
    elif (place / _ADAPTER).is_file():
        problem = "is an adapter, not a whole model"
        fix = "Merge the adapter into the base model with the package peft, and import the result."
    elif (place / CONFIG).is_file():
        problem = "is already an nmt model"
        fix = f"Type: {shell_command('translate', source)}"
    elif near:
        problem = "is not a model folder"
        fix = f"Pass {near[0]}."
    else:
        kinds = "neither config.json (Hugging Face) nor an .npz file (Marian)"
        problem = f"is not a model: it has {kinds}"
        fix = "Pass the folder of a Marian, MarianMT, M2M-100 or NLLB-200 model."
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
        source, target = named
        return source, target
    source, _, target = (given or "").partition("-")
    are_codes = re.fullmatch(LANGUAGE_CODE, source) and re.fullmatch(LANGUAGE_CODE, target)
    if not are_codes or is_spelling(source, target):
        problem = "The model files do not state the language pair."
        if given:
            problem = f"`languages` {given!r} is not a language pair."
        raise ConfigError(problem, fix="Pass both codes, such as `languages` en-de.")
    if not tags:
        check_languages({"`languages`": source, "`languages` ": target})
        return source, target
    symbols = []
    for code in (source, target):
        symbol = language_symbol(code, tags)
        if symbol is None:
            problem = f"`languages`: the model has no language {code}.{did_you_mean(code, codes)}"
            raise ConfigError(problem, fix=f"Use codes of the model, such as {named[0]}.")
        symbols.append(symbol[2:-1])
    source, target = symbols
    return source, target


@dataclass(frozen=True)
class _Contents:
    """What changes with the vocabularies."""

    sides: Sequence[_Side]  # Source and target.
    weights: Weights

    @property
    def vocab_sizes(self) -> tuple[int, int]:
        source, target = (len(side.model.pieces) for side in self.sides)
        return source, target

    def sizes(self) -> dict[str, float]:
        """Return the entries of both vocabularies, parameters, and megabytes of float32 weights."""
        source_entries, target_entries = self.vocab_sizes
        count = 0
        for name, array in self.weights.items():
            # Matrices of an imported model may have more rows than its vocabulary has entries.
            num_rows = len(array)
            if name in VOCABULARY_SIDES:
                num_rows = self.vocab_sizes[VOCABULARY_SIDES[name]]
            count += num_rows * prod(array.shape[1:])
        return {
            "source_entries": source_entries,
            "target_entries": target_entries,
            "parameters": count,
            "megabytes": round(4 * count / 1e6, 1),
        }


@dataclass(frozen=True)
class _Side:
    """The vocabulary of one side in the order of nmt. V: its size."""

    model: Any  # SentencePiece model.
    rows: IdArray  # For each of our ids, the row in the original; `_NO_ROW` if missing. (V,).
    outputs: IdArray  # As ``rows``, with `_NO_ROW` also for tokens that are never an output. (V,).
    growth: vocabulary.Resized | None = None  # New entries, which have no original.

    @classmethod
    def of(cls, side: Vocabulary, readers: Sequence[Vocabulary], start: str | None) -> _Side:
        """Order the vocabulary: special tokens, tokens of the model, then unused subwords.

        Unused subwords are in the SentencePiece model of a reader, but not among the tokens of the
        model. Without unused subwords, text would be split differently. They get the vector of the
        unknown token, as in the original.
        """
        rows = {token: row for row, token in enumerate(side.tokens)}
        if missing := [token for token in (_UNK, _EOS) if token not in rows]:
            raise damaged(f"The vocabulary lacks {' and '.join(missing)}.")
        tokens = [token for token in side.tokens if token not in _SPECIAL]
        tokens.sort(key=lambda token: token not in side.symbols)  # first, as in vocabularies of nmt
        unused = dict[str, None]()
        for reader in readers:
            for text in piece_texts(reader.sentencepiece):
                if text not in rows and text not in _SPECIAL:
                    unused[text] = None
        # PAD is part of the softmax, but never chosen.
        pad = rows.get(_PAD, _NO_ROW)
        bos = rows.get(start or "", _NO_ROW)
        unk = rows[_UNK]
        known = [pad, unk, bos, rows[_EOS]]
        known += [rows[token] for token in tokens]
        inputs = np.array(known + [unk] * len(unused))
        outputs = np.array(known + [_NO_ROW] * len(unused))
        outputs[BOS_ID] = _NO_ROW
        return cls(_sentencepiece(side, [*tokens, *unused]), inputs, outputs)


def _resized(
    sides: Sequence[_Side], codes: Sequence[str], options: ImportOptions, *, shared: bool
) -> list[_Side]:
    """Trim and grow the vocabularies if the options say so; see `vocabulary.resize`."""
    if not is_resized(options):
        return [*sides]
    models = [side.model for side in sides]
    resized = vocabulary.resize(models, codes, options, shared=shared)
    return [  # before the weights are copied: the matrices may take gigabytes
        _Side(new.model, side.rows[new.kept], side.outputs[new.kept], new)
        for side, new in zip(sides, resized, strict=True)
    ]


def _reordered(theirs: Weights, sides: Sequence[_Side]) -> _Contents:
    """Convert weights to float32, with embedding matrices and output bias in the new order."""
    weights = {name: np.asarray(value, np.float32) for name, value in theirs.items()}
    for name, index in VOCABULARY_SIDES.items():
        if name not in weights:
            continue
        side = sides[index]
        table = weights[name]
        rows = side.rows
        missing = 0.0
        if name == "output_bias":
            rows = side.outputs
            missing = _NEVER
        if rows.max() >= len(table):
            problem = f"{name} has {len(table):,} rows, fewer than the size of the vocabulary."
            raise damaged(problem)
        # One copy only: the matrix of a multilingual model takes a gigabyte.
        table = table[np.maximum(rows, 0)]
        table[rows == _NO_ROW] = missing
        if side.growth is not None:
            table = side.growth.grow(table)
        weights[name] = table
    return _Contents(sides, weights)


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
    spec.pad_id = PAD_ID
    spec.unk_id = UNK_ID
    spec.bos_id = BOS_ID
    spec.eos_id = EOS_ID
    spec.pad_piece, spec.unk_piece, spec.bos_piece, spec.eos_piece = _SPECIAL
    return model


def _vocab_size(contents: _Contents, *, joint: bool) -> int | dict[str, int]:
    source, target = contents.vocab_sizes
    return source if joint else {"source": source, "target": target}


def _write(
    options: ImportOptions,
    config: InferenceConfig,
    old: _Contents,
    new: _Contents,
    *,
    origin: str,
    step: int = 0,
    record: Mapping[str, Any] = MappingProxyType({}),
) -> ImportSummary:
    """Write a model folder; one SentencePiece model if both sides have the same."""
    source, target = (side.model.SerializeToString(deterministic=True) for side in new.sides)
    contents = {SOURCE: source, TARGET: target}
    if source == target:
        contents = {JOINT: source}

    with new_model_folder(options.output, None, step) as folder:
        write_folder_config(folder, config, record)
        (folder / TOKENIZER).mkdir()
        for name, content in contents.items():
            (folder / TOKENIZER / name).write_bytes(content)
        arrays = {name: np.ascontiguousarray(x) for name, x in new.weights.items()}
        save_file(arrays, folder / MODEL)
        write_card(
            folder,
            config,
            origin,
            parameters=sum(array.size for array in new.weights.values()),
            vocab_sizes=new.vocab_sizes,
            weights="float32",
        )
    summary = ImportSummary(options.output, config.languages)
    if is_resized(options):
        before = old.sizes()
        after = new.sizes()
        lines = [f"{'':<16}{'before':>15}{'after':>15}"]
        for name, size in before.items():
            lines.append(f"{name.replace('_', ' '):<16}{size:>15,}{after[name]:>15,}")
        logger.info("%s", "\n".join(lines))
        summary = replace(summary, before=before, after=after)
    log_next_commands(options.output)
    return summary
