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
_Pair = tuple[str, str]  # Texts of two adjacent pieces.
_Texts = Sequence[Sequence[Path]]  # For each model that changes: the text files of its side.
ADD_PIECES = 2000  # Maximum number of new pieces by default.
_LINES_AT_ONCE = 5000
_Piece = ModelProto.SentencePiece  # The class of a piece, and the names of the types of pieces.
_SPACE = "\u2581"
_WORD = re.compile(f"{_SPACE}?[^{_SPACE}]+|{_SPACE}")
_MIN_FREQUENCY = 2  # of a new piece
# First letter of a Unicode category -> class of characters. Other categories are punctuation.
_CLASSES = {"L": "letter", "M": "letter", "N": "digit"}
_MAX_CHARACTERS = 16  # of a new piece, as in SentencePiece


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
    changed_model = with_pieces(model, model.pieces)
    for piece in changed_model.pieces:
        if shows_unused and piece.type == _Piece.UNUSED:
            piece.type = _Piece.NORMAL
    if is_raw:
        spec = changed_model.normalizer_spec
        spec.CopyFrom(type(spec)(add_dummy_prefix=False, remove_extra_whitespaces=False))
    return Tokenizer.parse(changed_model.SerializeToString(deterministic=True))


def with_pieces(model: Any, pieces: Iterable[Any]) -> Any:
    """Return a copy of a SentencePiece model with other pieces."""
    # A model consists of its pieces and of specifications: of trainer, normalizer and so on.
    specs = {kind.name: value for kind, value in model.ListFields() if kind.name != "pieces"}
    changed_model = ModelProto(pieces=pieces, **specs)
    changed_model.trainer_spec.vocab_size = len(changed_model.pieces)
    return changed_model


def _types_of(model: Any) -> IdArray:
    """Return the type of each piece, such as `_Piece.NORMAL`. (V,)."""
    return np.array([piece.type for piece in model.pieces])


def _merges(text: str, scores: Mapping[str, float]) -> Iterator[str]:
    """Yield the pieces that BPE builds from the characters of ``text``, in the order of merges.

    ``scores`` has the text of each piece that a merge can build, and its score.
    """
    symbols = list(text)
    while True:
        candidates = []  # negative score of the merged piece, and index of its left half
        for index, (left, right) in enumerate(pairwise(symbols)):
            if left + right in scores:
                candidates.append((-scores[left + right], index))
        if not candidates:
            return
        _, index = min(candidates)  # the best score, and the leftmost of equal scores
        merged = symbols[index] + symbols[index + 1]
        symbols[index : index + 2] = [merged]
        yield merged


def kept_pieces(model: Any, is_used: Mask, dropped_symbols: Collection[str] = ()) -> Mask:
    """Return which pieces a trimmed vocabulary needs.

    These are the special tokens, user-defined symbols, bytes, the used pieces, all pieces that BPE
    builds on the way to them, their characters, and ASCII characters.

    Args:
        model: SentencePiece model in the layout of nmt: the special tokens come first.
        is_used: True for pieces that occur in the text, and for BPE also for the unused pieces that
            it builds from the text. (V,).
        dropped_symbols: User-defined symbols to drop.

    Returns:
        True for pieces to keep. (V,).
    """
    texts = piece_texts(model)
    types = _types_of(model)
    is_plain = np.isin(types, (_Piece.NORMAL, _Piece.UNUSED))
    ids_by_text = {texts[index]: index for index in np.flatnonzero(is_plain)}
    is_kept = is_used | np.isin(types, (_Piece.USER_DEFINED, _Piece.BYTE))
    is_kept[:NUM_SPECIAL] = True
    scores = np.array([piece.score for piece in model.pieces])
    if is_bpe(model):
        scores_by_text = {text: scores[index] for text, index in ids_by_text.items()}
        for index in np.flatnonzero(is_used & is_plain):
            for text in _merges(texts[index], scores_by_text):
                is_kept[ids_by_text[text]] = True
    else:
        # Scores of unknown characters and of user-defined symbols derive from these two. Of equal
        # scores, argmin and argmax choose the first.
        is_normal = types == _Piece.NORMAL
        lowest_id = np.argmin(np.where(is_normal, scores, np.inf))
        highest_id = np.argmax(np.where(is_normal, scores, -np.inf))
        is_kept[[lowest_id, highest_id]] = True
    characters = {_SPACE, *map(chr, range(128))}
    for index in np.flatnonzero(is_kept & is_plain):
        characters.update(texts[index])
    for character in characters & ids_by_text.keys():
        is_kept[ids_by_text[character]] = True
    is_kept[[text in dropped_symbols for text in texts]] = False
    return is_kept


def count_words(tokenizer: Tokenizer, lines: Sequence[str], words: Counter[str]) -> None:
    """Add the words of normalized lines to ``words``; a space is part of the word after it."""
    for line in tokenizer.normalize(lines):
        words.update(_WORD.findall(line))


def learned_pieces(
    models: Sequence[Any], words: Mapping[str, int], max_pieces: int
) -> dict[str, float]:
    """Learn pieces for new text by BPE on top of the segmentation that the text has today.

    Frequent characters without a piece come first. Pieces have at most 16 characters, and do not
    join letters, digits and punctuation.

    Args:
        models: SentencePiece models with the same entries, which will get these pieces. The last
            one segments the words of both sides.
        words: Words and their frequencies, as `count_words` counts them.
        max_pieces: Maximum number of pieces.

    Returns:
        Pieces in the order in which they were learned, and the logarithm of their share of all
        pieces.
    """
    old_texts = set[str]()
    forbidden_texts = set[str]()
    for model in models:
        old_texts.update(piece_texts(model))
        if is_bpe(model):
            forbidden_texts |= _affixes_of_unreachable_pieces(model)
    character_counts = Counter[str]()
    for word, count in words.items():
        # A character that occurs several times in a word counts once.
        character_counts.update(dict.fromkeys(word, count))
    frequencies = dict[str, int]()  # new piece -> how often it occurs
    for character, count in character_counts.most_common():
        if len(frequencies) == max_pieces or count < _MIN_FREQUENCY:
            break
        if character not in old_texts and category(character) != "Cc":  # control characters
            frequencies[character] = count

    def is_possible(text: str) -> bool:
        """Whether a text may become a piece: it is new, short, and of one class of characters."""
        classes = {_CLASSES.get(category(character)[0]) for character in text.lstrip(_SPACE)}
        is_new = text not in old_texts and text not in forbidden_texts
        return len(classes) <= 1 and len(text) <= _MAX_CHARACTERS and is_new

    # The segmentation of today, except that the new characters are pieces, too.
    base_model = grown(models[-1], (), dict.fromkeys(frequencies, -inf))
    texts = np.array(piece_texts(base_model), object)
    # `_frequent_pairs` never joins empty strings: here, unknown characters and bytes.
    texts[_types_of(base_model) != _Piece.NORMAL] = ""
    id_lists = tokenizer_of(base_model, is_raw=True).encode_batch([*words])
    segmented_words = [texts[ids].tolist() for ids in id_lists]
    for text, count in _frequent_pairs(segmented_words, [*words.values()], is_possible):
        if len(frequencies) >= max_pieces:
            break
        frequencies.setdefault(text, count)
    num_pieces = 0  # in the text, with the new pieces
    for count, pieces in zip(words.values(), segmented_words, strict=True):
        num_pieces += count * len(pieces)
    # Joining reduces the number of pieces, so an early piece can be more frequent than the number
    # of all pieces at the end. The share must not be above 1.
    return {text: log(count / max(num_pieces, count)) for text, count in frequencies.items()}


def _affixes_of_unreachable_pieces(model: Any) -> set[str]:
    """Return the beginnings and ends of the pieces that BPE does not build from their own text.

    If a beginning or end became a piece, text might be joined to the old piece, which would change
    its tokens.
    """
    texts = piece_texts(model)
    is_plain = np.isin(_types_of(model), (_Piece.NORMAL, _Piece.UNUSED))
    tokenizer = tokenizer_of(model, is_raw=True, shows_unused=True)
    affixes = set()
    for index, ids in enumerate(tokenizer.encode_batch(texts)):
        if is_plain[index] and ids != [index]:
            for cut in range(1, len(texts[index])):
                affixes |= {texts[index][:cut], texts[index][cut:]}
    return affixes


def _frequent_pairs(
    words: list[list[str]], counts: Sequence[int], is_possible: Callable[[str], bool]
) -> Iterator[tuple[str, int]]:
    """Join the most frequent pair of pieces in all words, again and again.

    A pair is joined when the caller asks for the next one.

    Args:
        words: The pieces of each word; changed in place. Empty strings are never joined.
        counts: Frequency of each word.
        is_possible: Whether a text can be a piece.

    Yields:
        The joined text and its frequency.
    """
    frequency = Counter[_Pair]()
    words_with = defaultdict[_Pair, set[int]](set)  # Indices of words that have or had the pair.
    changed_pairs = set[_Pair]()  # Pairs whose frequency is newer than their entry in the heap.
    heap = list[tuple[int, _Pair]]()  # Negative frequency, so that the smallest entry is the best.

    def count_pairs(index: int, sign: int) -> None:
        """Add the pairs of a word to the frequencies (``sign`` 1), or subtract them (-1)."""
        for pair in filter(all, pairwise(words[index])):  # pairs without an empty string
            frequency[pair] += sign * counts[index]
            changed_pairs.add(pair)
            words_with[pair].add(index)

    for index in range(len(words)):
        count_pairs(index, 1)
    while True:
        for pair in changed_pairs:
            heappush(heap, (-frequency[pair], pair))
        changed_pairs.clear()
        if not heap:
            return
        negative_count, pair = heappop(heap)
        if -negative_count < _MIN_FREQUENCY:
            return
        text = "".join(pair)
        # Entries with an old frequency are skipped: the pair has a newer entry.
        if -negative_count == frequency[pair] and is_possible(text):
            yield text, -negative_count
            for index in words_with.pop(pair):
                count_pairs(index, -1)
                words[index] = _join_pair(words[index], pair)
                count_pairs(index, 1)


def _join_pair(pieces: Sequence[str], pair: _Pair) -> list[str]:
    """Return the pieces of a word, with each occurrence of ``pair`` joined to one piece."""
    joined_pieces = list[str]()
    for piece in pieces:
        if joined_pieces and (joined_pieces[-1], piece) == pair:
            joined_pieces[-1] += piece
        else:
            joined_pieces.append(piece)
    return joined_pieces


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
        # Pairs are merged in the order of the scores.
        lowest = min(piece.score for piece in model.pieces)
        scores = [lowest - rank for rank in range(1, len(pieces) + 1)]
    else:
        normal_scores = [piece.score for piece in model.pieces if piece.type == _Piece.NORMAL]
        lowest = min(normal_scores, default=0.0)
        highest = max(normal_scores, default=0.0)
        scores = [min(max(score, lowest), highest) for score in pieces.values()]
    new_tags = [_Piece(piece=tag, score=0.0, type=_Piece.USER_DEFINED) for tag in tags]
    scored_pieces = zip(pieces, scores, strict=True)
    new_pieces = [_Piece(piece=text, score=score) for text, score in scored_pieces]
    end = tags_end(model)
    return with_pieces(model, [*model.pieces[:end], *new_tags, *model.pieces[end:], *new_pieces])


def tags_end(model: Any) -> int:
    """Return the id after the user-defined symbols at the beginning of a vocabulary."""
    leading_types = (_Piece.CONTROL, _Piece.USER_DEFINED, _Piece.UNKNOWN)
    return int(np.argmin(np.isin(_types_of(model), leading_types)))  # the first False


@dataclass(frozen=True)
class VocabularyChange:
    """The new vocabulary of one side. Old entries that stay keep their order."""

    model: Any  # SentencePiece model with the new vocabulary.
    kept_ids: IdArray  # Old ids of the entries that stay, in rising order.
    # For each new entry, the id after trimming before which it is inserted, and the ids after
    # trimming whose mean embedding is its first embedding.
    insertion_ids: Sequence[int]
    initial_ids: Sequence[Sequence[int]]
    default_ids: Sequence[int]  # Replace an empty list in ``initial_ids``.

    def grow(self, table: FloatArray) -> FloatArray:
        """Add the rows of new entries to a matrix or vector with the rows of ``kept_ids``."""
        if not self.initial_ids:
            return table
        default_row = table[self.default_ids].mean(0)
        new_rows = []
        for ids in self.initial_ids:
            row = default_row
            if ids:
                row = table[[*ids]].mean(0)
            new_rows.append(row)
        return np.insert(table, self.insertion_ids, new_rows, axis=0)


def resize(
    models: Sequence[Any], codes: Sequence[str], options: ImportOptions, *, shared: bool
) -> list[VocabularyChange]:
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
    related_codes = [options.like] if options.like else []
    for code in [*options.keep_language, *related_codes]:
        if language_symbol(code, tags) is None:
            # Raises the error for an unknown language. The message names the tags of one side.
            tokenizer_of(models[0]).language_id(code)
    for code in options.add_language:
        if tag_symbol(code, tags):
            raise ConfigError(
                f"The model has a tag of the language {code} already.",
                fix="Remove it from `add_language`.",
            )

    def texts_of(option: str, side: int) -> list[Path]:
        """Return those files of an option that count for one side: 0 is source, 1 is target."""
        paths: Sequence[Path] = getattr(options, option)
        if is_joint:
            return [*paths]
        other_code = codes[1 - side]
        side_paths = []
        for path in paths:
            suffixes = path.name.split(".")[1:]
            # Files that name neither language count for both sides.
            if matching(codes[side], suffixes) or not matching(other_code, suffixes):
                side_paths.append(path)
        if paths and not side_paths:
            raise ConfigError(
                f"`{option}` has no text for the language {codes[side]}.",
                fix="Pass text of both languages: the model has a vocabulary for each.",
            )
        return side_paths

    # Groups of sides. Vocabularies with the same entries change together.
    groups: list[list[int]] = [[0], [1]]
    if is_joint:
        groups = [[0]]
    elif shared:
        groups = [[0, 1]]
    changes = list[VocabularyChange]()
    for group in groups:
        kept_texts = [texts_of("keep_vocabulary", side) for side in group]
        group_models = [models[side] for side in group]
        trimmed_models, kept_ids = _trim(group_models, options, kept_texts)
        new_texts = [texts_of("add_vocabulary", side) for side in group]
        changes += _grow(trimmed_models, kept_ids, options, new_texts)
    return changes * 2 if is_joint else changes  # one change for both sides


def language_tags(model: Any) -> dict[str, int]:
    """Return the language tags of a model and their ids."""
    tags = tokenizer_of(model).tags.items()
    # Tags of OPUS-MT, such as >>deu<<, and of nmt, such as <2de>. Tags of domains are left out.
    return {tag: index for tag, index in tags if is_tag(tag) or tag.startswith("<2")}


def _blocks(texts: _Texts, description: str) -> Iterator[tuple[int, str, list[str]]]:
    """Read text files in blocks of lines, so that memory holds one block only.

    Args:
        texts: Files for each model.
        description: Text in front of the progress bar.

    Yields:
        Index of the model, place of the block for messages, and the lines of the block.
    """
    with progress_bar(description, unit="lines", leave=False) as bar:
        for model_index, paths in enumerate(texts):
            for path in paths:
                with open_binary(path) as stream:
                    lines = decoded_lines(stream, str(path))
                    first_number = 1
                    while block := list(islice(lines, _LINES_AT_ONCE)):
                        next_number = first_number + len(block)
                        place = f"{path}, lines {first_number:,} to {next_number - 1:,}"
                        yield model_index, place, block
                        first_number = next_number
                        bar.update(len(block))


def _encode_block(tokenizer: Tokenizer, lines: Sequence[str]) -> IdArray:
    """Return the ids of all lines in one array, with -1 after each line."""
    block_ids = list[int]()
    for line_ids in tokenizer.encode_batch(lines, usable_cores()):
        block_ids += line_ids
        block_ids.append(-1)
    return np.array(block_ids, np.int64)


def _trim(
    models: Sequence[Any], options: ImportOptions, texts: _Texts
) -> tuple[list[Any], IdArray]:
    """Return trimmed models and the old ids of their entries.

    The tokens of all kept text are compared before and after.

    Args:
        models: SentencePiece models with the same entries. Every entry that one of them needs stays
            in all of them.
        options: Text and languages to keep.
        texts: For each model, the files of its side.
    """
    first_model = models[0]
    tags = language_tags(first_model)
    dropped_tags = set[str]()
    if options.keep_language:
        kept_tags = {language_symbol(code, tags) for code in options.keep_language}
        dropped_tags = tags.keys() - kept_tags
    old_tokenizers = [tokenizer_of(model) for model in models]
    # For each model, the tokenizers that find the pieces in use. BPE of an imported model also
    # needs the unused pieces that it builds and splits again: a second tokenizer shows them.
    usage_tokenizers = [[tokenizer] for tokenizer in old_tokenizers]
    for model, tokenizers in zip(models, usage_tokenizers, strict=True):
        if tokenizers[0].is_imported and is_bpe(model):
            tokenizers.append(tokenizer_of(model, shows_unused=True))
    # Without text, all entries stay. One more entry at the end is that of the ids -1 between lines.
    is_used = np.full(len(first_model.pieces) + 1, not options.keep_vocabulary)
    for index, _, lines in _blocks(texts, "counting subwords"):
        for tokenizer in usage_tokenizers[index]:
            is_used[_encode_block(tokenizer, lines)] = True
    masks = [kept_pieces(model, is_used[:-1], dropped_tags) for model in models]
    is_kept = np.any(masks, axis=0)
    kept_ids = np.flatnonzero(is_kept)
    trimmed_models = [with_pieces(model, compress(model.pieces, is_kept)) for model in models]
    new_tokenizers = [tokenizer_of(model) for model in trimmed_models]
    # New id -> old id. The last entry is that of the ids -1, which stay -1.
    old_ids = np.append(kept_ids, -1)
    for index, place, lines in _blocks(texts, "comparing subwords"):
        ids = old_ids[_encode_block(new_tokenizers[index], lines)]
        if not np.array_equal(ids, _encode_block(old_tokenizers[index], lines)):
            raise CheckpointError(
                f"{place}: these tokens would change.", fix="Keep the tags that occur in the text."
            )
    return trimmed_models, kept_ids


def _grow(
    models: Sequence[Any], kept_ids: IdArray, options: ImportOptions, texts: _Texts
) -> list[VocabularyChange]:
    """Add tags and pieces to trimmed models of vocabularies with the same entries.

    Args:
        models: Trimmed SentencePiece models.
        kept_ids: Old ids of their entries.
        options: Languages and text to add.
        texts: For each model, the files of its side.
    """
    # One model segments the new text of both sides, so that a new piece has one initial embedding.
    last_model = models[-1]
    tags = language_tags(last_model)
    related_tag = language_symbol(options.like or "", tags)
    tag_format = ">>{}<<" if any(map(is_tag, tags)) else "<2{}>"
    new_tags = [tag_format.format(code) for code in options.add_language]
    if options.like and not related_tag:
        new_tags = []  # Of separate vocabularies, only those with the related language get tags.
    learned = dict[str, float]()
    if options.add_vocabulary:
        spec = last_model.trainer_spec
        if spec.model_type not in (spec.BPE, spec.UNIGRAM):
            raise CheckpointError(
                "Only BPE and unigram vocabularies can grow; this one has whole words.",
                fix="Remove `add_vocabulary`.",
            )
        tokenizers = [tokenizer_of(model) for model in models]
        words = Counter[str]()
        for index, _, lines in _blocks(texts, "counting words"):
            count_words(tokenizers[index], lines, words)
        learned = learned_pieces(models, words, options.add_pieces or ADD_PIECES)
    # A new tag starts at the embedding of the related language, or at the mean of all languages; a
    # new piece, at the mean of the pieces that it was split into.
    related_ids = [tags[related_tag]] if related_tag else [*tags.values()]
    initial_ids = [related_ids] * len(new_tags)
    types = _types_of(last_model)
    is_text = np.isin(types, (_Piece.NORMAL, _Piece.BYTE))  # and not UNK or a tag, for example
    for ids in tokenizer_of(last_model, is_raw=True).encode_batch([*learned]):
        initial_ids.append([index for index in ids if is_text[index]])
    insertion_ids = [tags_end(last_model)] * len(new_tags)
    insertion_ids += [len(kept_ids)] * len(learned)  # at the end
    return [
        VocabularyChange(
            model=grown(model, new_tags, learned),
            kept_ids=kept_ids,
            insertion_ids=insertion_ids,
            initial_ids=initial_ids,
            default_ids=np.flatnonzero(types == _Piece.NORMAL).tolist(),
        )
        for model in models
    ]
