"""Trim and grow vocabularies, with the law that other text is tokenized as before.

This is the step of ``nmt import`` between reading and writing. `resize` chooses the entries to keep
and learns new entries. The caller applies the result to the weights, because the matrices of a
multilingual model take gigabytes.

SentencePiece's BPE joins the adjacent pair whose joined text is the piece with the best score, the
leftmost of equal pairs first, and finally splits unused pieces again. Two facts follow. The merges
inside a piece depend on that piece only, because no merge crossed its borders; so a smaller
vocabulary needs the pieces of these merges, and no others. And merges with worse scores than all
old pieces come after all old merges; so new pieces only join old ones. An old piece that its own
text never reaches is the exception: new pieces must not be its beginning or end.

A unigram model takes the path with the highest sum of scores, so pieces outside of the path do not
matter. Two exceptions: the scores of unknown characters and of user-defined symbols derive from the
lowest and the highest score.

Source: Sennrich et al. (2016), "Neural Machine Translation of Rare Words with Subword Units"; Kudo
(2018), "Subword Regularization"; trimming as in Abdaoui et al. (2020), "Load What You Need".
"""

from __future__ import annotations

import logging
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import compress, islice, pairwise
from math import inf, log
from pathlib import Path
from typing import Any
from unicodedata import category

import numpy as np
import numpy.typing as npt
from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

from nmt.config.data import language_symbol, tag_symbol
from nmt.config.language_codes import matching
from nmt.device import usable_cores
from nmt.errors import CheckpointError, ConfigError
from nmt.extras.exchange.imported import FloatArray, piece_texts
from nmt.extras.exchange.options import ImportOptions
from nmt.files.lines import decoded_lines, open_binary
from nmt.files.progress import progress_bar
from nmt.text import NUM_SPECIAL
from nmt.text.tokenizer import Tokenizer, is_tag

logger = logging.getLogger(__name__)

IdArray = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
_Pair = tuple[str, str]
_Texts = Sequence[Sequence[Path]]  # Files of each side.
ADD_PIECES = 2000  # Maximum number of new pieces by default.
_LINES_AT_ONCE = 5000
_KINDS = ModelProto.SentencePiece
_SPACE = "\u2581"
_WORD = re.compile(f"{_SPACE}?[^{_SPACE}]+|{_SPACE}")
_FEWEST = 2  # A new piece occurs at least twice.
_CLASSES = {"L": "letter", "M": "letter", "N": "digit"}  # by category; others are punctuation
_LONGEST = 16  # Maximum characters of a new piece, as in SentencePiece.


def is_bpe(model: Any) -> bool:
    """Whether a SentencePiece model merges pairs (BPE)."""
    return bool(model.trainer_spec.model_type == model.trainer_spec.BPE)


def tokenizer_of(model: Any, *, is_raw: bool = False, shows_unused: bool = False) -> Tokenizer:
    """Return a tokenizer that applies a SentencePiece model.

    Args:
        model: The model.
        is_raw: Split text as it is, without normalization and first space.
        shows_unused: Show the unused pieces that BPE builds, and otherwise splits again.
    """
    changed = with_pieces(model, model.pieces)
    for piece in changed.pieces:
        if shows_unused and piece.type == _KINDS.UNUSED:
            piece.type = _KINDS.NORMAL
    if is_raw:
        spec = changed.normalizer_spec
        spec.CopyFrom(type(spec)(add_dummy_prefix=False, remove_extra_whitespaces=False))
    return Tokenizer.parse(changed.SerializeToString(deterministic=True))


def with_pieces(model: Any, pieces: Iterable[Any]) -> Any:
    """Return a copy of a SentencePiece model with other pieces."""
    specs = {kind.name: value for kind, value in model.ListFields() if kind.name != "pieces"}
    changed = ModelProto(pieces=pieces, **specs)
    changed.trainer_spec.vocab_size = len(changed.pieces)
    return changed


def _kinds_of(model: Any) -> IdArray:
    return np.array([piece.type for piece in model.pieces])


def _merges(text: str, scores: Mapping[str, float]) -> Iterator[str]:
    """Yield the pieces that BPE builds from the characters of ``text``."""
    symbols = list(text)
    while True:
        candidates = []
        for place, (left, right) in enumerate(pairwise(symbols)):
            if left + right in scores:
                candidates.append((-scores[left + right], place))
        if not candidates:
            return
        _, place = min(candidates)
        merged = symbols[place] + symbols[place + 1]
        symbols[place : place + 2] = [merged]
        yield merged


def kept_pieces(model: Any, used: Mask, dropped: Collection[str] = ()) -> Mask:
    """Return which pieces a trimmed vocabulary needs.

    These are the special tokens, user-defined symbols, bytes, the used pieces, all pieces that BPE
    builds on the way to them, their characters, and ASCII characters.

    Args:
        model: SentencePiece model in the layout of nmt: the special tokens come first.
        used: Pieces that occur in the text, for BPE also with the unused ones that it builds. (V,).
        dropped: User-defined symbols to drop.

    Returns:
        True for pieces to keep. (V,).
    """
    texts = piece_texts(model)
    kinds = _kinds_of(model)
    is_plain = np.isin(kinds, (_KINDS.NORMAL, _KINDS.UNUSED))
    ids = {texts[row]: row for row in np.flatnonzero(is_plain)}
    kept = used | np.isin(kinds, (_KINDS.USER_DEFINED, _KINDS.BYTE))
    kept[:NUM_SPECIAL] = True
    scores = np.array([piece.score for piece in model.pieces])
    if is_bpe(model):
        scores_by_text = {text: scores[row] for text, row in ids.items()}
        for row in np.flatnonzero(used & is_plain):
            for text in _merges(texts[row], scores_by_text):
                kept[ids[text]] = True
    else:
        is_normal = kinds == _KINDS.NORMAL
        lowest = np.argmin(np.where(is_normal, scores, np.inf))  # the first, as below
        highest = np.argmax(np.where(is_normal, scores, -np.inf))
        kept[[lowest, highest]] = True
    characters = {_SPACE, *map(chr, range(128))}
    for row in np.flatnonzero(kept & is_plain):
        characters.update(texts[row])
    for character in characters & ids.keys():
        kept[ids[character]] = True
    kept[[text in dropped for text in texts]] = False
    return kept


def count_words(tokenizer: Tokenizer, lines: Sequence[str], words: Counter[str]) -> None:
    """Add the words of normalized lines to ``words``; a space is part of the word after it."""
    for line in tokenizer.normalize(lines):
        words.update(_WORD.findall(line))


def learned_pieces(models: Sequence[Any], words: Mapping[str, int], num: int) -> dict[str, float]:
    """Learn pieces for new text by BPE on top of the segmentation that the text has today.

    Frequent characters without a piece come first. Pieces have at most 16 characters, and do not
    join letters, digits and punctuation.

    Args:
        models: SentencePiece models that will get these pieces. The last one segments the words.
        words: Words as `count_words` counts them.
        num: Maximum number of pieces.

    Returns:
        Pieces in the order in which they were learned, and the logarithm of their share of all
        pieces.
    """
    known = set[str]()
    barred = set[str]()
    for model in models:
        known.update(piece_texts(model))
        if is_bpe(model):
            barred |= _barred(model)
    characters = Counter[str]()
    for word, count in words.items():
        characters.update(dict.fromkeys(word, count))
    new = dict[str, int]()
    for character, count in characters.most_common():
        if len(new) == num or count < _FEWEST:
            break
        if character not in known and category(character) != "Cc":
            new[character] = count

    def is_possible(text: str) -> bool:
        characters = text.lstrip(_SPACE)
        classes = {_CLASSES.get(category(each)[0]) for each in characters}
        is_new = text not in known and text not in barred
        return len(classes) <= 1 and len(text) <= _LONGEST and is_new

    today = grown(models[-1], (), dict.fromkeys(new, -inf))
    texts = np.array(piece_texts(today), object)
    texts[_kinds_of(today) != _KINDS.NORMAL] = ""  # unknown characters and bytes: never joined
    rows = tokenizer_of(today, is_raw=True).encode_batch([*words])
    segmented = [texts[ids].tolist() for ids in rows]
    for text, count in _frequent_pairs(segmented, [*words.values()], is_possible):
        if len(new) >= num:
            break
        new.setdefault(text, count)
    total = 0
    for count, parts in zip(words.values(), segmented, strict=True):
        total += count * len(parts)
    return {text: log(count / max(total, count)) for text, count in new.items()}


def _barred(model: Any) -> set[str]:
    """Return the beginnings and ends of old pieces that their own text does not reach."""
    texts = piece_texts(model)
    is_plain = np.isin(_kinds_of(model), (_KINDS.NORMAL, _KINDS.UNUSED))
    tokenizer = tokenizer_of(model, is_raw=True, shows_unused=True)
    parts = set()
    for row, ids in enumerate(tokenizer.encode_batch(texts)):
        if is_plain[row] and ids != [row]:
            for cut in range(1, len(texts[row])):
                parts |= {texts[row][:cut], texts[row][cut:]}
    return parts


def _frequent_pairs(
    words: list[list[str]], counts: Sequence[int], is_possible: Callable[[str], bool]
) -> Iterator[tuple[str, int]]:
    """Join the most frequent pair of pieces in all words, again and again.

    Args:
        words: The pieces of each word; changed in place. Empty strings are never joined.
        counts: Frequency of each word.
        is_possible: Whether a text can be a piece.

    Yields:
        The joined text and its frequency.
    """
    frequency = Counter[_Pair]()
    places = defaultdict[_Pair, set[int]](set)  # Words with the pair.
    touched = set[_Pair]()
    heap = list[tuple[int, _Pair]]()

    def add(place: int, sign: int) -> None:
        for pair in filter(all, pairwise(words[place])):
            frequency[pair] += sign * counts[place]
            touched.add(pair)
            places[pair].add(place)

    for place in range(len(words)):
        add(place, 1)
    while True:
        for pair in touched:
            heappush(heap, (-frequency[pair], pair))
        touched.clear()
        if not heap:
            return
        count, pair = heappop(heap)
        if -count < _FEWEST:
            return
        text = "".join(pair)
        # Entries with an old frequency are skipped: the pair has a newer entry.
        if -count == frequency[pair] and is_possible(text):
            yield text, -count
            for place in places.pop(pair):
                add(place, -1)
                words[place] = _joined(words[place], pair)
                add(place, 1)


def _joined(symbols: Sequence[str], pair: _Pair) -> list[str]:
    joined = list[str]()
    for symbol in symbols:
        if joined and (joined[-1], symbol) == pair:
            joined[-1] += symbol
        else:
            joined.append(symbol)
    return joined


def grown(model: Any, tags: Sequence[str], pieces: Mapping[str, float]) -> Any:
    """Return a SentencePiece model with more pieces.

    Args:
        model: SentencePiece model in the layout of nmt: the special tokens come first.
        tags: New user-defined symbols, placed after those that the model has.
        pieces: New pieces, placed at the end, and the logarithm of the share of each. A unigram
            model gets them as scores, between its lowest and highest score. In a BPE model, the
            order counts, and all new pieces follow all old ones.
    """
    if is_bpe(model):
        lowest = min(piece.score for piece in model.pieces)
        scores = [lowest - rank for rank in range(1, len(pieces) + 1)]
    else:
        normal = [piece.score for piece in model.pieces if piece.type == _KINDS.NORMAL]
        low = min(normal, default=0.0)
        high = max(normal, default=0.0)
        scores = [min(max(score, low), high) for score in pieces.values()]
    place = tags_end(model)
    old = list(model.pieces)
    kind = _KINDS.USER_DEFINED
    old[place:place] = [_KINDS(piece=tag, score=0.0, type=kind) for tag in tags]
    scored = zip(pieces, scores, strict=True)
    new = [_KINDS(piece=text, score=score) for text, score in scored]
    return with_pieces(model, old + new)


def tags_end(model: Any) -> int:
    """Return the id after the user-defined symbols at the beginning of a vocabulary."""
    first = (_KINDS.CONTROL, _KINDS.USER_DEFINED, _KINDS.UNKNOWN)
    return int(np.argmin(np.isin(_kinds_of(model), first)))


@dataclass(frozen=True)
class Resized:
    """The new vocabulary of one side. Old entries that stay keep their order."""

    model: Any  # SentencePiece model.
    kept: IdArray  # Old ids of the entries that stay, in rising order.
    # For each new entry, the id after trimming before which it is placed, and the ids after
    # trimming at whose mean row it starts.
    places: Sequence[int]
    starts: Sequence[Sequence[int]]
    otherwise: Sequence[int]  # As ``starts``, for new entries without ids.

    def grow(self, table: FloatArray) -> FloatArray:
        """Add the rows of new entries to a matrix or vector with the rows of ``kept``."""
        if not self.starts:
            return table
        rest = table[self.otherwise].mean(0)
        rows = []
        for ids in self.starts:
            row = rest
            if ids:
                row = table[[*ids]].mean(0)
            rows.append(row)
        return np.insert(table, self.places, rows, axis=0)


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
    tags = language_tags(models[0]) | language_tags(models[1])
    related = [options.like] if options.like else []
    for code in [*options.keep_language, *related]:
        if language_symbol(code, tags) is None:  # the message names the tags of one side
            tokenizer_of(models[0]).language_id(code)
    for code in options.add_language:
        if tag_symbol(code, tags):
            problem = f"The model has a tag of the language {code} already."
            raise ConfigError(problem, fix="Remove it from `add_language`.")

    def texts(name: str, side: int) -> list[Path]:
        paths: Sequence[Path] = getattr(options, name)
        if is_joint:
            return [*paths]
        other = codes[1 - side]
        chosen = []
        for path in paths:
            suffixes = path.name.split(".")[1:]
            if matching(codes[side], suffixes) or not matching(other, suffixes):
                chosen.append(path)
        if paths and not chosen:
            fix = "Pass text of both languages: the model has a vocabulary for each."
            raise ConfigError(f"`{name}` has no text for the language {codes[side]}.", fix=fix)
        return chosen

    # Vocabularies with the same entries change together.
    groups: list[list[int]] = [[0], [1]]
    if is_joint:
        groups = [[0]]
    elif shared:
        groups = [[0, 1]]
    sides = list[Resized]()
    for group in groups:
        kept_texts = [texts("keep_vocabulary", side) for side in group]
        members = [models[side] for side in group]
        trimmed, kept = _trim(members, options, kept_texts)
        new_texts = [texts("add_vocabulary", side) for side in group]
        sides += _grow(trimmed, kept, options, new_texts)
    return sides * 2 if is_joint else sides


def language_tags(model: Any) -> dict[str, int]:
    """Return the language tags of a model and their ids."""
    tags = tokenizer_of(model).tags.items()
    return {tag: row for tag, row in tags if is_tag(tag) or tag.startswith("<2")}


def _blocks(texts: _Texts, what: str) -> Iterator[tuple[int, str, list[str]]]:
    """Yield blocks of lines, each with the index in ``texts`` and its place in the file."""
    with progress_bar(what, unit="lines", leave=False) as bar:
        for index, paths in enumerate(texts):
            for path in paths:
                with open_binary(path) as stream:
                    lines = decoded_lines(stream, str(path))
                    first = 1
                    while block := list(islice(lines, _LINES_AT_ONCE)):
                        end = first + len(block)
                        yield index, f"{path}, lines {first:,} to {end - 1:,}", block
                        first = end
                        bar.update(len(block))


def _ids(tokenizer: Tokenizer, lines: Sequence[str]) -> IdArray:
    """Return the ids of some lines; -1 after each line."""
    ids = list[int]()
    for row in tokenizer.encode_batch(lines, usable_cores()):
        ids += row
        ids.append(-1)
    return np.array(ids, np.int64)


def _trim(
    models: Sequence[Any], options: ImportOptions, texts: _Texts
) -> tuple[list[Any], IdArray]:
    """Return trimmed models and the old ids of their entries.

    The tokens of all kept text are compared before and after.

    Memory holds one block of lines.
    """
    first = models[0]
    tags = language_tags(first)
    dropped = set[str]()
    if options.keep_language:
        dropped = {*tags}.difference(language_symbol(x, tags) for x in options.keep_language)
    before = [tokenizer_of(model) for model in models]
    readers = [[tokenizer] for tokenizer in before]
    for model, tokenizers in zip(models, readers, strict=True):
        if tokenizers[0].is_imported and is_bpe(model):
            tokenizers.append(tokenizer_of(model, shows_unused=True))
    # The last entry is for -1. Without text, all entries stay.
    num_pieces = len(first.pieces)
    used = np.full(num_pieces + 1, not options.keep_vocabulary)
    for index, _, lines in _blocks(texts, "counting subwords"):
        for tokenizer in readers[index]:
            used[_ids(tokenizer, lines)] = True
    masks = [kept_pieces(model, used[:-1], dropped) for model in models]
    is_kept = np.any(masks, axis=0)
    kept = np.flatnonzero(is_kept)
    trimmed = [with_pieces(model, compress(model.pieces, is_kept)) for model in models]
    after = [tokenizer_of(model) for model in trimmed]
    old_ids = np.append(kept, -1)
    for index, place, lines in _blocks(texts, "comparing subwords"):
        ids = old_ids[_ids(after[index], lines)]
        if not np.array_equal(ids, _ids(before[index], lines)):
            fix = "Keep the tags that occur in the text."
            raise CheckpointError(f"{place}: these tokens would change.", fix=fix)
    return trimmed, kept


def _grow(
    models: Sequence[Any], kept: IdArray, options: ImportOptions, texts: _Texts
) -> list[Resized]:
    """Add tags and pieces to trimmed models of vocabularies with the same entries."""
    model = models[-1]
    tags = language_tags(model)
    like = language_symbol(options.like or "", tags)
    form = ">>{}<<" if any(map(is_tag, tags)) else "<2{}>"
    new_tags = [form.format(code) for code in options.add_language]
    if options.like and not like:
        new_tags = []  # Of separate vocabularies, only those with the related language get tags.
    learned = dict[str, float]()
    if options.add_vocabulary:
        spec = model.trainer_spec
        if spec.model_type not in (spec.BPE, spec.UNIGRAM):
            problem = "Only BPE and unigram vocabularies can grow; this one has whole words."
            raise CheckpointError(problem, fix="Remove `add_vocabulary`.")
        tokenizers = [tokenizer_of(each) for each in models]
        words = Counter[str]()
        for index, _, lines in _blocks(texts, "counting words"):
            count_words(tokenizers[index], lines, words)
        learned = learned_pieces(models, words, options.add_pieces or ADD_PIECES)
    related = [tags[like]] if like else [*tags.values()]
    kinds = _kinds_of(model)
    is_known = np.isin(kinds, (_KINDS.NORMAL, _KINDS.BYTE))
    known = {*np.flatnonzero(is_known)}
    rows = tokenizer_of(model, is_raw=True).encode_batch([*learned])
    starts = [related] * len(new_tags)
    starts += [list(filter(known.__contains__, ids)) for ids in rows]
    places = [tags_end(model)] * len(new_tags)
    places += [len(kept)] * len(learned)
    return [
        Resized(
            model=grown(each, new_tags, learned),
            kept=kept,
            places=places,
            starts=starts,
            otherwise=np.flatnonzero(kinds == _KINDS.NORMAL).tolist(),
        )
        for each in models
    ]
