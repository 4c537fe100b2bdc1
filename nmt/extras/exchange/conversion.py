"""Convert a model from `nmt.extras.exchange.imported` to a model folder; change vocabularies.

Vocabularies of nmt begin with PAD, UNK, BOS and EOS; those of other systems do not. The
import reorders the rows of the embedding matrices and the SentencePiece models in the same way.
"""

from __future__ import annotations

import logging
import re
import shutil
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
from nmt.config.language_codes import is_spelling
from nmt.config.model import DecodingConfig
from nmt.config.run import check_languages, name_of_folder
from nmt.errors import CheckpointError, ConfigError, did_you_mean, shell_command
from nmt.extras.exchange import vocabulary
from nmt.extras.exchange.export import ImportSummary, write_card
from nmt.extras.exchange.hugging_face import read_hugging_face
from nmt.extras.exchange.imported import (
    HF_CONFIG,
    MISSING_BIAS,
    Imported,
    Vocabulary,
    Weights,
    piece_texts,
    read_sentencepiece,
    reading,
)
from nmt.extras.exchange.marian import DECODER, read_marian
from nmt.extras.exchange.options import EXAMPLE, ImportOptions, is_resized
from nmt.extras.exchange.vocabulary import IdArray
from nmt.files.foreign import check_file, check_folder, check_sizes, damaged, parsing
from nmt.inference.torch_engine import TorchEngine
from nmt.model.transformer import VOCABULARY_SIDES, build_model
from nmt.text import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from nmt.text.tokenizer import JOINT, SOURCE, TARGET

logger = logging.getLogger(__name__)

_SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")  # in the order of their ids
_PAD, _UNK, _BOS, _EOS = _SPECIAL
_ADAPTER = "adapter_config.json"  # of the package peft
_NO_ROW = -1  # instead of the row of a token that the original embedding matrix lacks
_CHANGED_ORIGIN = "The vocabulary was changed after training."


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
    with _unpacked(source) as unpacked:
        model = _read(unpacked, source)
        # A file that is mapped into memory must exist until the model is written.
        return _write_imported(model, options, origin)


def _write_imported(model: Imported, options: ImportOptions, origin: str) -> ImportSummary:
    """Write a model folder: vocabularies and weights in the order of nmt."""
    model_config = model.model
    shared = model_config.shares_inputs
    if shared and model.source.tokens != model.target.tokens:
        raise damaged("The model has one embedding matrix for two different vocabularies.")
    sides = []
    for side in (model.source, model.target):
        # A shared vocabulary needs the subwords of both SentencePiece models.
        readers = (model.source, model.target) if shared else (side,)
        sides.append(_Side.of(side, readers, model.start))
    # Languages of source and target. Those of a multilingual model follow from its tags, and the
    # tags are known after the change of the vocabulary.
    codes = ("", "")
    if model.language_tags is None:
        codes = _codes(options.languages, model.languages, ())
    new_sides = _resize_sides(sides, codes, options, shared=shared)
    tags = list[str]()
    if model.language_tags is not None:
        tags = [*vocabulary.language_tags(new_sides[0].model)]
        codes = _codes(options.languages, model.languages, tags)
    new = _reorder(model.weights, new_sides)
    with torch.device("meta"):  # names and shapes without memory for the weights
        expected = build_model(model_config, *new.vocab_sizes)
    problems = tensor_differences(new.weights, expected.state_dict())
    if problems:
        raise damaged(f"The weights do not match the configuration of the model:\n  {problems}")
    for name, array in new.weights.items():
        if not np.isfinite(array).all():
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
        "model": model_config,
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
        rows = np.arange(len(model.pieces))  # the order of nmt already: each id is its own row
        sides.append(_Side(model, rows, rows))
    shared = config.model.shares_inputs
    new_sides = _resize_sides(sides, config.languages, options, shared=shared)
    tensors = bundle.model.state_dict()
    old = _Contents(sides, {name: tensor.numpy() for name, tensor in tensors.items()})
    new = _reorder(old.weights, new_sides)
    vocab_size = _vocab_size(new, joint=config.tokenizer.joint)
    tokenizer_changes = {"vocab_size": vocab_size, "pad_vocab_by": 0}
    changes = {
        "tokenizer": config.tokenizer.model_copy(update=tokenizer_changes),
        "decoding": config.decoding.model_copy(update={"shortlist": False}),
    }
    return _write(
        options,
        config.model_copy(update=changes),
        old,
        new,
        origin=_CHANGED_ORIGIN,
        step=bundle.step,
        record=bundle.record,
    )


def _read(unpacked: Path, source: Path) -> Imported:
    """Read the model in ``unpacked``, which is ``source`` or the unpacked contents of it."""
    if source.exists():
        check_folder(unpacked if unpacked.is_dir() else unpacked.parent)
    if (unpacked / HF_CONFIG).is_file():
        return read_hugging_face(unpacked)
    is_marian_folder = (unpacked / DECODER).is_file() or any(unpacked.glob("*.npz"))
    if is_marian_folder or unpacked.suffix == ".npz":
        return read_marian(unpacked)
    # Neither reader fits; the error says what ``source`` is instead. The user may have passed a
    # file of a model, or the model's folder in the cache of huggingface_hub, which has the files in
    # ``snapshots/COMMIT``.
    nearby_configs = [unpacked.parent / HF_CONFIG, *unpacked.glob(f"*/*/{HF_CONFIG}")]
    nearby_models = [path.parent for path in nearby_configs if path.is_file()]
    if not source.exists():
        problem = "does not exist"
        pull = shell_command("pull", EXAMPLE, output="models/en-de")
        fix = f"Check the path, or download a model: {pull}"
    elif (unpacked / _ADAPTER).is_file():
        problem = "is an adapter, not a whole model"
        fix = "Merge the adapter into the base model with the package peft, and import the result."
    elif (unpacked / CONFIG).is_file():
        problem = "is already an nmt model"
        fix = f"Type: {shell_command('translate', source)}"
    elif nearby_models:
        problem = "is not a model folder"
        fix = f"Pass {nearby_models[0]}."
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
        with reading(source):
            check_file(source, None)
            with zipfile.ZipFile(source) as archive:
                check_sizes(archive, source)
                for entry in archive.infolist():
                    if not entry.is_dir():
                        entry.filename = Path(entry.filename).name  # never outside the folder
                        archive.extract(entry, folder)
        yield Path(folder)


def _codes(
    pair: str | None, default_codes: Sequence[str] | None, tags: Sequence[str]
) -> tuple[str, str]:
    """Return the codes of source and target language.

    Args:
        pair: The option ``languages``, such as en-de; None chooses the default.
        default_codes: Codes in the files of the model, if any.
        tags: Language tags of a multilingual model, such as <2de>. Both codes must have one.
    """
    codes = [tag.removeprefix("<2").removesuffix(">") for tag in tags]
    if pair is None and default_codes is not None:
        source, target = default_codes
        return source, target
    source, _, target = (pair or "").partition("-")
    has_codes = re.fullmatch(LANGUAGE_CODE, source) and re.fullmatch(LANGUAGE_CODE, target)
    if not has_codes or is_spelling(source, target):
        problem = "The model files do not state the language pair."
        if pair:
            problem = f"`languages` {pair!r} is not a language pair."
        raise ConfigError(problem, fix="Pass both codes, such as `languages` en-de.")
    if not tags:
        # Keys are names in messages. The space makes the second key different from the first.
        check_languages({"`languages`": source, "`languages` ": target})
        return source, target
    tag_codes = []  # Codes as the model spells them: ``de`` may mean the tag <2deu_Latn>.
    for code in (source, target):
        symbol = language_symbol(code, tags)
        if symbol is None:
            raise ConfigError(
                f"`languages`: the model has no language {code}.{did_you_mean(code, codes)}",
                fix=f"Use codes of the model, such as {codes[0]}.",
            )
        tag_codes.append(symbol[2:-1])  # without "<2" and ">"
    source, target = tag_codes
    return source, target


@dataclass(frozen=True)
class _Contents:
    """The parts of a model folder that change with the vocabularies."""

    sides: Sequence[_Side]  # Source and target.
    weights: Weights  # All weights of the model, by our names.

    @property
    def vocab_sizes(self) -> tuple[int, int]:
        """Number of entries of the source and of the target vocabulary."""
        source, target = (len(side.model.pieces) for side in self.sides)
        return source, target

    def sizes(self) -> dict[str, float]:
        """Return the entries of both vocabularies, parameters, and megabytes of float32 weights."""
        source_entries, target_entries = self.vocab_sizes
        num_parameters = 0
        for name, array in self.weights.items():
            # Matrices of an imported model may have more rows than its vocabulary has entries.
            num_rows = len(array)
            if name in VOCABULARY_SIDES:
                num_rows = self.vocab_sizes[VOCABULARY_SIDES[name]]
            num_parameters += num_rows * prod(array.shape[1:])
        return {
            "source_entries": source_entries,
            "target_entries": target_entries,
            "parameters": num_parameters,
            "megabytes": round(4 * num_parameters / 1e6, 1),  # a float32 has 4 bytes
        }


@dataclass(frozen=True)
class _Side:
    """The vocabulary of one side in the order of nmt. V: its size, without new entries."""

    model: Any  # SentencePiece model.
    # For each of our ids, the row in the original embedding matrix; `_NO_ROW` if missing. (V,).
    input_rows: IdArray
    # The same for the output bias, with `_NO_ROW` also for tokens that are never an output. (V,).
    output_rows: IdArray
    change: vocabulary.VocabularyChange | None = None  # Has the new entries, without an original.

    @classmethod
    def of(cls, side: Vocabulary, readers: Sequence[Vocabulary], start: str | None) -> _Side:
        """Order the vocabulary: special tokens, tokens of the model, then unused subwords.

        Unused subwords are in the SentencePiece model of a reader, but not among the tokens of the
        model. Without unused subwords, text would be split differently. They get the vector of the
        unknown token, as in the original.

        Args:
            side: The vocabulary in the original order.
            readers: The vocabularies whose SentencePiece models split text of this side.
            start: First input token of the decoder, whose row becomes that of BOS. None for a
                vector of zeros.
        """
        rows = {token: row for row, token in enumerate(side.tokens)}
        if missing := [token for token in (_UNK, _EOS) if token not in rows]:
            raise damaged(f"The vocabulary lacks {' and '.join(missing)}.")
        tokens = [token for token in side.tokens if token not in _SPECIAL]
        # Symbols come first, as in vocabularies of nmt, because False sorts before True.
        tokens.sort(key=lambda token: token not in side.symbols)
        unused = dict[str, None]()  # Subwords in their order, without repetitions.
        for reader in readers:
            for text in piece_texts(reader.sentencepiece):
                if text not in rows and text not in _SPECIAL:
                    unused[text] = None
        # PAD is part of the softmax, but never chosen.
        pad_row = rows.get(_PAD, _NO_ROW)
        bos_row = rows.get(start or "", _NO_ROW)
        unk_row = rows[_UNK]
        used_rows = [pad_row, unk_row, bos_row, rows[_EOS]]
        used_rows += [rows[token] for token in tokens]
        input_rows = np.array(used_rows + [unk_row] * len(unused))
        output_rows = np.array(used_rows + [_NO_ROW] * len(unused))
        output_rows[BOS_ID] = _NO_ROW
        return cls(_sentencepiece(side, [*tokens, *unused]), input_rows, output_rows)


def _resize_sides(
    sides: Sequence[_Side], codes: Sequence[str], options: ImportOptions, *, shared: bool
) -> list[_Side]:
    """Trim and grow the vocabularies if the options say so; see `vocabulary.resize`.

    The rows are chosen here, before the weights are copied: the matrices may take gigabytes.
    """
    if not is_resized(options):
        return [*sides]
    models = [side.model for side in sides]
    changes = vocabulary.resize(models, codes, options, shared=shared)
    new_sides = []
    for side, change in zip(sides, changes, strict=True):
        ids = change.kept_ids
        new_sides.append(_Side(change.model, side.input_rows[ids], side.output_rows[ids], change))
    return new_sides


def _reorder(original: Weights, sides: Sequence[_Side]) -> _Contents:
    """Convert weights to float32, with embedding matrices and output bias in the new order."""
    weights = {name: np.asarray(array, np.float32) for name, array in original.items()}
    for name, side_index in VOCABULARY_SIDES.items():
        if name not in weights:
            continue
        side = sides[side_index]
        table = weights[name]
        rows = side.input_rows
        missing_value = 0.0
        if name == "output_bias":
            rows = side.output_rows
            missing_value = MISSING_BIAS
        if rows.max() >= len(table):
            raise damaged(f"{name} has {len(table):,} rows, fewer than the size of the vocabulary.")
        # One copy only: the matrix of a multilingual model takes a gigabyte. Missing rows are
        # copies of row 0 until they get their value.
        table = table[np.maximum(rows, 0)]
        table[rows == _NO_ROW] = missing_value
        if side.change is not None:
            table = side.change.grow(table)
        weights[name] = table
    return _Contents(sides, weights)


def _sentencepiece(side: Vocabulary, tokens: Sequence[str]) -> Any:
    """Return a SentencePiece model with the special tokens first, then ``tokens``, in this order.

    Subwords of ``side`` keep their score and type. New tokens are user-defined if they are
    symbols, and unused otherwise, so that text is still split as before.
    """
    old_pieces = {piece.piece: piece for piece in side.sentencepiece.pieces}
    piece_class = ModelProto.SentencePiece
    pieces = [piece_class(piece=text, score=0.0, type=piece_class.CONTROL) for text in _SPECIAL]
    pieces[UNK_ID].type = piece_class.UNKNOWN
    # BPE merges unused subwords too, in the order of the scores, and splits them again. Those
    # without a score get the lowest one, so that all other merges come first.
    unused_score = min(piece.score for piece in side.sentencepiece.pieces) - 1
    for token in tokens:
        new_piece = piece_class(piece=token, score=unused_score, type=piece_class.UNUSED)
        if token in side.symbols:
            new_piece = piece_class(piece=token, score=0.0, type=piece_class.USER_DEFINED)
        pieces.append(old_pieces.get(token, new_piece))
    model = vocabulary.with_pieces(side.sentencepiece, pieces)
    spec = model.trainer_spec
    spec.pad_id = PAD_ID
    spec.unk_id = UNK_ID
    spec.bos_id = BOS_ID
    spec.eos_id = EOS_ID
    spec.pad_piece, spec.unk_piece, spec.bos_piece, spec.eos_piece = _SPECIAL
    return model


def _vocab_size(contents: _Contents, *, joint: bool) -> int | dict[str, int]:
    """Return the value of ``tokenizer.vocab_size``: one number if the vocabulary is joint."""
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
    """Write a model folder; one SentencePiece model if both sides have the same.

    Args:
        options: Has the output folder.
        config: Configuration of the new model.
        old: Vocabularies and weights before a change of the vocabularies; only their sizes count.
        new: Vocabularies and weights to write.
        origin: Sentence about the origin of the model, for the model card.
        step: Updates that the model was trained for.
        record: The whole configuration of the training; empty for an imported model.
    """
    source, target = (side.model.SerializeToString(deterministic=True) for side in new.sides)
    tokenizer_files = {SOURCE: source, TARGET: target}
    if source == target:
        tokenizer_files = {JOINT: source}

    with new_model_folder(options.output, None, step) as folder:
        write_folder_config(folder, config, record)
        (folder / TOKENIZER).mkdir()
        for name, content in tokenizer_files.items():
            (folder / TOKENIZER / name).write_bytes(content)
        arrays = {name: np.ascontiguousarray(array) for name, array in new.weights.items()}
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
    try:
        with parsing(options.output):
            _translate_a_line(options.output)
    except CheckpointError:
        shutil.rmtree(options.output)
        raise
    log_next_commands(options.output)
    return summary


def _translate_a_line(folder: Path) -> None:
    """Load a model, and let it translate, so that no import succeeds whose model cannot be used."""
    bundle = load_model(folder)
    ids = bundle.tokenizers.source.encode("3 x 5")
    search = DecodingConfig(beam_size=1, max_length_factor=0, max_length_offset=8)
    ((hypothesis,),) = TorchEngine(bundle.model).search([ids], search)
    bundle.tokenizers.target.decode(hypothesis.ids)
