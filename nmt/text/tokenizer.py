"""Tokenizers: SentencePiece models, learned, and read from a folder.

The only module that imports sentencepiece (Kudo and Richardson 2018).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import sentencepiece

from nmt.config.data import TAG_PATTERN, TokenizerConfig, tag_symbol
from nmt.errors import ConfigError, TokenizerError, VocabularySizeError, did_you_mean
from nmt.text import BOS_ID, EOS_ID, NUM_SPECIAL, PAD_ID, UNK_ID, without_surrogates

JOINT, SOURCE, TARGET = "joint.model", "source.model", "target.model"
_OPUS_TAG = re.compile(r">>[^<>\s]+<<")
_MAX_SENTENCE_BYTES = 40_000
_IDS: dict[str, Any] = {"pad_id": PAD_ID, "unk_id": UNK_ID, "bos_id": BOS_ID, "eos_id": EOS_ID}
_SPACE = "\u2581"


def is_tag(token: str) -> bool:
    """Whether a token asks for a language, as OPUS-MT's ``>>fra<<`` does."""
    return _OPUS_TAG.fullmatch(token) is not None


class Tokenizers(NamedTuple):
    """The tokenizers of both languages; one object when the vocabulary is joint."""

    source: Tokenizer
    target: Tokenizer

    @property
    def vocab_sizes(self) -> tuple[int, int]:
        """Entries of the source and of the target vocabulary."""
        return self.source.vocab_size, self.target.vocab_size


def load_tokenizers(folder: Path) -> Tokenizers:
    """Load the SentencePiece models of a ``tokenizer`` folder.

    Raises:
        TokenizerError: A model is missing or unreadable.
    """
    if (folder / JOINT).is_file():
        joint = Tokenizer.load(folder / JOINT)
        return Tokenizers(joint, joint)
    missing = [name for name in (SOURCE, TARGET) if not (folder / name).is_file()]
    if missing:
        problem = f"{folder} has neither {JOINT} nor {' nor '.join(missing)}."
        fix = "Prepare the data again, or copy the tokenizer folder of the run here."
        raise TokenizerError(problem, fix=fix)
    return Tokenizers(Tokenizer.load(folder / SOURCE), Tokenizer.load(folder / TARGET))


def tokenizer_hash(folder: Path) -> str:
    """Return the sha256 of names and contents of the models of a ``tokenizer`` folder."""
    whole = hashlib.sha256()
    for path in sorted(folder.glob("*.model")):
        whole.update(path.name.encode())
        whole.update(hashlib.sha256(path.read_bytes()).hexdigest().encode())
    return whole.hexdigest()


class Tokenizer:
    """One SentencePiece model: lines to subword ids and back. `encode` gives no special ids."""

    def __init__(self, processor: sentencepiece.SentencePieceProcessor) -> None:
        self._processor = processor

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """Read a model file.

        Raises:
            TokenizerError: It is no SentencePiece model, or has other special ids than ours.
        """
        try:
            model = path.read_bytes()
            if not model:  # SentencePiece takes no bytes for no model, and says nothing
                raise RuntimeError("empty")
            processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except (RuntimeError, OSError) as error:
            problem = f"{path} is not a readable SentencePiece model."
            fix = "Restore the file from the prepared folder, or prepare the data again."
            raise TokenizerError(problem, fix=fix) from error
        found = tuple(getattr(processor, name)() for name in _IDS)
        wanted = tuple(_IDS.values())
        if found != wanted:
            problem = f"{path} has pad, unk, bos, eos at {found}, not at {wanted}."
            raise TokenizerError(problem, fix="Use a model made by `nmt prepare`.")
        return cls(processor)

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel as a model: another process reads it once, however often it gets it."""
        return _tokenizer_of, (self._processor.serialized_model_proto(),)

    @property
    def vocab_size(self) -> int:
        """Entries of the vocabulary, special ones included."""
        return int(self._processor.get_piece_size())

    def encode(self, line: str) -> list[int]:
        """Return the ids of ``line``, without BOS and EOS."""
        return self.encode_batch([line])[0]

    def encode_batch(self, lines: Sequence[str], threads: int = 1) -> list[list[int]]:
        """Encode many lines at once, with this many threads."""
        try:
            "".join(lines).encode()
        except UnicodeEncodeError:  # rare, and dear to look for line by line
            lines = [without_surrogates(line) for line in lines]
        ids = list(self._processor.encode(list(lines), num_threads=threads))
        if not self._is_imported:
            return ids
        return [self._as_imported(*pair) for pair in zip(lines, ids, strict=True)]

    @cached_property
    def _is_imported(self) -> bool:
        """Whether it has entries that SentencePiece makes of no text, as imported models do."""
        model = self._processor
        return any(map(model.is_unused, range(self.vocab_size))) or any(map(is_tag, self.tags))

    def _as_imported(self, line: str, ids: list[int]) -> list[int]:
        """Return ``ids`` of ``line`` as the system has them that the model is from.

        A tag at the beginning is one id; and what is unknown to this side's pieces is looked up in
        a vocabulary of both sides.
        """
        if (match := _OPUS_TAG.match(line)) and match[0] in self.tags:
            return [self.tags[match[0]], *self.encode(line[match.end() :])]
        if UNK_ID not in ids:
            return ids
        model = self._processor
        known = [int(model.piece_to_id(piece)) for piece in model.encode(line, out_type=str)]
        pairs = zip(ids, known, strict=True)
        return [b if a == UNK_ID and model.is_unused(b) else a for a, b in pairs]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids``; special ids are left out."""
        plain = [int(index) for index in ids if index not in (PAD_ID, BOS_ID, EOS_ID)]
        text = str(self._processor.decode(plain))
        # An unseen word in bytes begins with those of this, which SentencePiece takes for a letter.
        return text.replace(_SPACE, " ").lstrip(" ") if _SPACE in text else text

    def pieces(self) -> list[tuple[str, float, bool]]:
        """Return text, score and whether it is an ordinary piece, for each id."""
        model, tags = self._processor, set(self.tags.values())
        kinds = (model.is_byte, model.is_unknown, model.is_control, model.is_unused)
        return [
            (self.piece(i), float(model.get_score(i)), not (i in tags or any(f(i) for f in kinds)))
            for i in range(self.vocab_size)
        ]

    @cached_property
    def tags(self) -> dict[str, int]:
        """User-defined symbols such as ``<2de>``, or OPUS-MT's ``>>deu<<``, with their ids."""
        # SentencePiece tells their kind to nobody. They come first, and score 0; of ordinary
        # pieces at most the first merge does, which joins two characters.
        is_other, found = self._processor.is_control, {}
        for index in range(NUM_SPECIAL, self.vocab_size):
            piece, score = self.piece(index), self._processor.get_score(index)
            if self._processor.is_byte(index) or score:
                break
            if (re.fullmatch(TAG_PATTERN, piece) or is_tag(piece)) and not is_other(index):
                found[piece] = index
        return found

    def tag_id(self, tag: str) -> int:
        """Return the id of the symbol that a tag names: see `nmt.config.data.tag_symbol`.

        Raises:
            ConfigError: There is none.
        """
        symbol = tag_symbol(tag, self.tags)
        if symbol is None:
            known = ", ".join(self.tags)
            fix = f"Use one of {known}." if known else "Leave it out: it was made without tags."
            problem = f"The vocabulary has no tag {tag!r}.{did_you_mean(tag, self.tags)}"
            raise ConfigError(problem, fix=fix)
        return self.tags[symbol]

    def piece(self, index: int) -> str:
        """Return the text of one id, with U+2581 where a word begins."""
        return str(self._processor.id_to_piece(index))

    def is_fallback(self, index: int) -> bool:
        """Whether an id stands for a single byte or for an unknown piece."""
        return bool(self._processor.is_byte(index) or self._processor.is_unknown(index))


@lru_cache(maxsize=4)
def _tokenizer_of(model: bytes) -> Tokenizer:
    return Tokenizer(sentencepiece.SentencePieceProcessor(model_proto=model))


def train_sentencepiece(
    lines: Iterable[str], path: Path, config: TokenizerConfig, *, threads: int
) -> None:
    """Learn a model from ``lines`` and write it to ``path``: the same bytes for the same input.

    Args:
        lines: The text, in an order that matters; lines above 40,000 bytes are left out.
        path: The new file, with one of the names above, which says whose size it gets; none is
            left where learning fails.
        config: Kind and size.
        threads: Processors to use. Part of the input: unigram probabilities depend on it in the
            last digits, and the file records it.

    Raises:
        VocabularySizeError: The text allows no vocabulary of this size; names one that it allows.
        TokenizerError: There is no text.
    """
    is_target = path.name == TARGET
    size, unused = config.vocab_sizes[is_target], config.unused[is_target]
    usable = (without_surrogates(line).replace("\0", " ") for line in lines)
    try:
        with path.open("wb") as file:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=usable,
                model_writer=file,
                model_type=config.kind,
                vocab_size=size,
                user_defined_symbols=[] if is_target else list(config.user_defined_symbols),
                control_symbols=[f"<unused{number}>" for number in range(unused)],
                # Of words, it would leave out all that have a rare character.
                character_coverage=1.0 if config.kind == "word" else config.character_coverage,
                byte_fallback=config.byte_fallback,
                normalization_rule_name=config.normalization,
                max_sentence_length=_MAX_SENTENCE_BYTES,
                num_threads=threads,
                minloglevel=2,
                **_IDS,
            )
    except RuntimeError as error:
        path.unlink(missing_ok=True)
        raise _explained(str(error), config, path.name, size) from error


def _explained(message: str, config: TokenizerConfig, name: str, size: int) -> TokenizerError:
    """Say what SentencePiece means in one sentence, with a size that works."""
    side, key = "" if name == JOINT else f"{Path(name).stem} ", "tokenizer.vocab_size"
    what = f"{side}vocabulary of {size:,} entries"
    if isinstance(config.vocab_size, dict):
        key += f".{side.strip()}"
    if found := re.search(r"value <= (\d+)", message):
        largest = int(found[1])
        fix = f"Set {key} to {largest} or less."
        if largest < config.min_vocab_size:
            fix = "Set tokenizer.byte_fallback: false, or give it more text."
        problem = f"The training text allows no {what}; the largest is {largest:,}."
        return VocabularySizeError(problem, fix=fix)
    if found := re.search(r"smaller than required_chars.*vs (\d+)", message):
        problem = f"A {what} does not hold the text's characters: {int(found[1]):,} are needed."
        fix = f"Set {key} to {found[1]} or more, or lower character_coverage."
        return VocabularySizeError(problem, fix=fix)
    problem = f"SentencePiece could not learn from the training text: {message.strip()}"
    if "sentences_.empty()" in message or "all_chars_count" in message:
        problem = "There is no text to learn a vocabulary from."
    return TokenizerError(problem, fix="Check that the corpora have text, or lower vocab_size.")
