"""Change the vocabulary of a model: the step of ``nmt import`` between reading and writing.

`resize` chooses the entries to keep, from text, and learns new entries. The caller applies the
result to the weights, because the matrices of a multilingual model take gigabytes.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain, islice
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from nmt.checkpoint import model_folder
from nmt.checkpoint.files import MODEL
from nmt.checkpoint.model_folder import CONFIG, TOKENIZER
from nmt.config.data import language_symbol
from nmt.config.loader import dump_config
from nmt.config.run import RunConfig
from nmt.device import usable_cores
from nmt.errors import CheckpointError, ConfigError, did_you_mean
from nmt.extras.exchange import vocabulary
from nmt.extras.exchange.export import write_card
from nmt.extras.exchange.imported import FloatArray, read_sentencepiece
from nmt.extras.exchange.options import ImportOptions
from nmt.files.lines import decoded_lines, open_binary
from nmt.files.progress import progress_bar
from nmt.text.tokenizer import JOINT, SOURCE, TARGET, Tokenizer, is_tag

logger = logging.getLogger(__name__)

IdArray = npt.NDArray[np.int64]
# Names of the matrices with a row for each entry of a vocabulary; the side of the vocabulary.
TABLES = {"source_vectors": 0, "target_vectors": 1, "output_vectors": 1, "output_bias": 1}
ADD_PIECES = 2000  # Maximum number of new pieces by default.
_LINES_AT_ONCE = 5000


@dataclass(frozen=True)
class Resized:
    """The new vocabulary of one side. Old entries that stay keep their order."""

    model: Any  # SentencePiece model.
    kept: IdArray  # Old ids of the entries that stay, in rising order.
    place: int  # Id of the first new tag. New pieces are at the end.
    # For each new tag and piece, ids after trimming: it starts at the mean of their rows.
    tags: Sequence[Sequence[int]]
    pieces: Sequence[Sequence[int]]
    otherwise: Sequence[int]  # The same for a new entry without ids.

    def grow(self, table: FloatArray) -> FloatArray:
        """Add the rows of new entries to a matrix or vector with the rows of ``kept``."""
        if not (new := [*self.tags, *self.pieces]):
            return table
        rest = table[self.otherwise].mean(0)
        rows = np.stack([table[[*ids]].mean(0) if ids else rest for ids in new])
        tags, pieces = rows[: len(self.tags)], rows[len(self.tags) :]
        return np.concatenate([table[: self.place], tags, table[self.place :], pieces])


def sizes_of(models: Sequence[Any], weights: Mapping[str, FloatArray]) -> dict[str, float]:
    """Return the entries of two vocabularies, parameters, and megabytes of float32 weights.

    Args:
        models: SentencePiece models of source and target.
        weights: By name; their tables may have the rows of another vocabulary.
    """
    entries = [len(model.pieces) for model in models]
    count = sum(
        (entries[TABLES[name]] if name in TABLES else len(array)) * prod(array.shape[1:])
        for name, array in weights.items()
    )
    names = ("source_entries", "target_entries", "parameters", "megabytes")
    return dict(zip(names, (*entries, count, round(4 * count / 1e6, 1)), strict=True))


def log_sizes(before: Mapping[str, float], after: Mapping[str, float]) -> None:
    """Log a table of the sizes of a model before and after."""
    lines = [f"{x.replace('_', ' '):<16}{before[x]:>15,}{after[x]:>15,}" for x in before]
    logger.info("%s", "\n".join([f"{'':<16}{'before':>15}{'after':>15}", *lines]))


def is_resized(options: ImportOptions) -> bool:
    """Whether the options change the vocabulary.

    Raises:
        ConfigError: An option has no effect without another one.
    """
    for name, needed in (("add_pieces", "add_vocabulary"), ("like", "add_language")):
        if getattr(options, name) and not getattr(options, needed):
            fix = f"Pass `{needed}`, or remove `{name}`."
            raise ConfigError(f"`{name}` has no effect without `{needed}`.", fix=fix)
    kept, added = options.keep_vocabulary, options.add_vocabulary
    return bool(kept or added or options.keep_language or options.add_language)


def resize(
    models: Sequence[Any], codes: Sequence[str], options: ImportOptions, *, shared: bool
) -> list[Resized]:
    """Trim and grow the vocabularies of both sides.

    Args:
        models: SentencePiece models of source and target, in the layout of nmt.
        codes: Languages of source and target. A file such as ``train.de.gz`` counts for the side
            with the language de only, unless both sides have the same SentencePiece model.
        options: Files and languages.
        shared: Whether both sides have one embedding matrix.

    Raises:
        ConfigError: A language is unknown, or a side has no text.
        DataError: A file is missing, damaged or not UTF-8.
        CheckpointError: nmt cannot grow this kind of model, or the kept text would change.
    """
    is_joint = models[0] == models[1]

    def texts(name: str, side: int) -> list[Path]:
        paths: Sequence[Path] = getattr(options, name)
        ends = [path.name.split(".")[1:] for path in paths]
        counts = [is_joint or codes[side] in x or codes[1 - side] not in x for x in ends]
        if paths and not any(counts):
            fix = "Pass text of both languages: the model has a vocabulary for each."
            raise ConfigError(f"`{name}` has no text for the language {codes[side]}.", fix=fix)
        return [path for path, is_read in zip(paths, counts, strict=True) if is_read]

    there = dict.fromkeys(tag for model in models for tag in language_tags(model))
    known = [tag.strip("<>").removeprefix("2") for tag in there]
    for code in filter(None, (*options.keep_language, options.like)):
        if language_symbol(code, there) is None:
            problem = f"The model has no tag of the language {code}.{did_you_mean(code, known)}"
            raise ConfigError(problem, fix=f"Its tags are: {', '.join(known) or 'none'}.")
    if doubled := sorted({*options.add_language} & {*known}):
        fix = "Remove it from `add_language`."
        raise ConfigError(f"The model has a tag of the language {doubled[0]} already.", fix=fix)
    sides: list[Resized] = []
    # Vocabularies with the same entries change together.
    for group in [(0,)] if is_joint else [(0, 1)] if shared else [(0,), (1,)]:
        members = [models[side] for side in group]
        kept = _trim(members, options, [texts("keep_vocabulary", side) for side in group])
        members = [vocabulary.with_pieces(x, [x.pieces[i] for i in kept]) for x in members]
        sides += _grow(members, kept, options, [texts("add_vocabulary", side) for side in group])
    return sides * 2 if is_joint else sides


def language_tags(model: Any) -> dict[str, int]:
    """Return the language tags of a model and their ids."""
    tags = vocabulary.tokenizer_of(model).tags.items()
    return {tag: row for tag, row in tags if is_tag(tag) or tag.startswith("<2")}


def _blocks(paths: Sequence[Path], what: str) -> Iterator[tuple[str, list[str]]]:
    """Yield blocks of lines, each with its place in the files."""
    with progress_bar(what, unit="lines", leave=False) as bar:
        for path in paths:
            with open_binary(path) as stream:
                lines, number = decoded_lines(stream, str(path)), 1
                while block := list(islice(lines, _LINES_AT_ONCE)):
                    yield f"{path}, lines {number:,} to {number + len(block) - 1:,}", block
                    number += len(block)
                    bar.update(len(block))


def _ids(tokenizer: Tokenizer, lines: Sequence[str]) -> IdArray:
    """Return the ids of some lines; -1 after each line."""
    rows = tokenizer.encode_batch(lines, usable_cores())
    return np.fromiter(chain.from_iterable((*row, -1) for row in rows), np.int64)


def _trim(
    models: Sequence[Any], options: ImportOptions, texts: Sequence[Sequence[Path]]
) -> IdArray:
    """Return the ids to keep, after comparing the tokens of all kept text before and after.

    Memory holds one block of lines, and 16 bytes for each earlier block.
    """
    tags, digests = language_tags(models[0]), list[bytes]()
    wanted = {language_symbol(code, tags) for code in options.keep_language} or {*tags}
    # The last entry is for -1. Without text, all entries stay.
    used = np.full(len(models[0].pieces) + 1, not options.keep_vocabulary)
    for model, paths in zip(models, texts, strict=True):
        tokenizer = vocabulary.tokenizer_of(model)
        tracer = vocabulary.tokenizer_of(model, shows_unused=True)
        for _, lines in _blocks(paths, "counting subwords"):
            ids = _ids(tokenizer, lines)
            digests.append(blake2b(ids.tobytes(), digest_size=16).digest())
            used[ids] = True
            if tokenizer.is_imported and vocabulary.is_bpe(model):
                used[_ids(tracer, lines)] = True
    masks = [vocabulary.kept_pieces(model, used[:-1], {*tags} - wanted) for model in models]
    kept, before = np.flatnonzero(np.any(masks, axis=0)), iter(digests)
    for model, paths in zip(models, texts, strict=True):
        pieces = [model.pieces[row] for row in kept]
        tokenizer = vocabulary.tokenizer_of(vocabulary.with_pieces(model, pieces))
        for place, lines in _blocks(paths, "comparing subwords"):
            ids = np.append(kept, -1)[_ids(tokenizer, lines)]
            if blake2b(ids.tobytes(), digest_size=16).digest() != next(before):
                fix = "Keep all tags in the text, and do not change the file during the import."
                raise CheckpointError(f"{place}: these tokens would change.", fix=fix)
    return kept


def _grow(
    models: Sequence[Any], kept: IdArray, options: ImportOptions, texts: Sequence[Sequence[Path]]
) -> list[Resized]:
    """Add tags and pieces to trimmed models of vocabularies with the same entries."""
    model, tags = models[-1], language_tags(models[-1])
    like = language_symbol(options.like or "", tags)
    form = ">>{}<<" if any(map(is_tag, tags)) else "<2{}>"
    # Of separate vocabularies, only those with the related language get the tags.
    added = options.add_language if like or not options.like else ()
    new_tags, learned = [form.format(code) for code in added], dict[str, float]()
    if options.add_vocabulary:
        if model.trainer_spec.model_type not in (1, 2):
            problem = "Only BPE and unigram vocabularies can grow; this one has whole words."
            raise CheckpointError(problem, fix="Remove `add_vocabulary`.")
        words = Counter[str]()
        for each, paths in zip(models, texts, strict=True):
            tokenizer = vocabulary.tokenizer_of(each)
            for _, lines in _blocks(paths, "counting words"):
                vocabulary.count_words(tokenizer, lines, words)
        learned = vocabulary.learned_pieces(models, words, options.add_pieces or ADD_PIECES)
    first = Resized(
        model,
        kept,
        vocabulary.tags_end(model),
        [[tags[like]] if like else [*tags.values()]] * len(new_tags),
        vocabulary.old_pieces(model, [*learned]),
        [row for row, piece in enumerate(model.pieces) if piece.type == piece.NORMAL],
    )
    return [replace(first, model=vocabulary.grown(each, new_tags, learned)) for each in models]


def write_model(
    folder: Path, config: RunConfig, models: Sequence[Any], weights: Mapping[str, Any], origin: str
) -> None:
    """Write all files of a model folder; one SentencePiece model if both sides have the same."""
    (folder / CONFIG).write_text(dump_config(config), encoding="utf-8", newline="\n")
    (folder / TOKENIZER).mkdir()
    contents = [model.SerializeToString(deterministic=True) for model in models]
    names = [JOINT] if contents[0] == contents[1] else [SOURCE, TARGET]
    for name, content in zip(names, contents, strict=False):
        (folder / TOKENIZER / name).write_bytes(content)
    save_file({key: np.ascontiguousarray(x) for key, x in weights.items()}, folder / MODEL)
    facts: dict[str, Any] = {"parameters": sum(x.size for x in weights.values())}
    facts |= {"vocab_sizes": [len(model.pieces) for model in models], "weights": "float32"}
    write_card(folder, config, origin, **facts)


def resize_folder(options: ImportOptions, origin: str) -> tuple[tuple[str, str], Any, Any]:
    """Write a copy of the best checkpoint of an nmt model, with another vocabulary.

    The copy has no shortlist and no confidence scores: both belong to the old vocabulary.

    Returns:
        The languages, and the sizes before and after.

    Raises:
        CheckpointError: The model is missing or damaged, or cannot be resized.
        ConfigError: A language is unknown, or a side has no text.
        DataError: A text file is missing, damaged or not UTF-8.
    """
    bundle, place = model_folder.load_model(options.source), options.source / TOKENIZER
    names = [JOINT] * 2 if (place / JOINT).is_file() else [SOURCE, TARGET]
    old, config = [read_sentencepiece(place / name) for name in names], bundle.config
    codes = config.source_language, config.target_language
    sides = resize(old, codes, options, shared=config.model.shares_inputs)
    models, state = [side.model for side in sides], bundle.model.state_dict()
    weights = {name: tensor.numpy() for name, tensor in state.items()}
    before = sizes_of(old, weights)
    for name in weights.keys() & TABLES.keys():
        side = sides[TABLES[name]]
        weights[name] = side.grow(weights[name][side.kept])
    sizes = tuple(len(model.pieces) for model in models)
    size = sizes[0] if config.tokenizer.joint else {"source": sizes[0], "target": sizes[1]}
    tokenizer = config.tokenizer.model_copy(update={"vocab_size": size, "pad_vocab_by": 0})
    decoding = config.decoding.model_copy(update={"shortlist": False})
    config = config.model_copy(update={"tokenizer": tokenizer, "decoding": decoding})

    def write(folder: Path) -> None:
        write_model(folder, config, models, weights, origin)

    model_folder.write_model_folder(options.output, None, bundle.step, write)
    return codes, before, sizes_of(models, weights)
