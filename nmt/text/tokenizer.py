"""Tokenizers: trains, loads and applies SentencePiece models (Kudo and Richardson 2018).

Only this module runs SentencePiece; nmt/extras/exchange also uses its file format.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import sentencepiece
from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

from nmt.config.data import TAG_PATTERN, TokenizerConfig, language_symbol, tag_symbol
from nmt.errors import ConfigError, TokenizerError, VocabularySizeError, did_you_mean
from nmt.files.foreign import check_file
from nmt.text import BOS_ID, EOS_ID, PAD_ID, UNK_ID, without_surrogates
from nmt.text.cleaning import PLAIN_CHARACTERS, clean_source

JOINT = "joint.model"
SOURCE = "source.model"
TARGET = "target.model"
_OPUS_TAG = re.compile(r">>[^<>\s]+<<")
_MAX_SENTENCE_BYTES = 40_000
_MAX_MODEL_BYTES = 1 << 25  # for the largest vocabulary that a configuration allows
TAGS_SHOWN = 8  # Maximum tags in an error message.
_USUAL_CHARACTERS = 3  # of a subword
# Junk has more subwords, whose mean size is below this share of the vocabulary's mean; or the share
# of its subwords that are different is smaller.
_MIN_JUNK = 32
_SPELLED_SHARE = 0.27
_FEW_WORDS = 0.1
_MAX_COMPLETIONS = 64  # of the most frequent subwords
# Options of SentencePiece, which are also the names of its functions that return these ids.
_IDS: dict[str, Any] = {"pad_id": PAD_ID, "unk_id": UNK_ID, "bos_id": BOS_ID, "eos_id": EOS_ID}
SPACE = "\u2581"
_USER_DEFINED = ModelProto.SentencePiece.USER_DEFINED
# End of the name of the normalization in a model file, if it was learned from a cleaned source. The
# models of nmt 0.1 and of other toolkits do not have it, so their sources stay as they are.
_CLEANED = ", after nmt's cleaning of the source"
_BORDER = "\x1f"  # Replaces characters that no subword may contain, while a model is learned.


def is_tag(token: str) -> bool:
    """Whether a token is an OPUS-MT language tag, such as ``>>fra<<``."""
    return _OPUS_TAG.fullmatch(token) is not None


class Tokenizers(NamedTuple):
    """The tokenizers of both languages. With a joint vocabulary, both have the same model."""

    source: Tokenizer
    target: Tokenizer

    @property
    def is_joint(self) -> bool:
        """Whether both languages share one vocabulary."""
        return self.source._processor is self.target._processor

    @property
    def vocab_sizes(self) -> tuple[int, int]:
        """Size of the source and of the target vocabulary, special ids included."""
        return self.source.vocab_size, self.target.vocab_size


def load_tokenizers(folder: Path) -> Tokenizers:
    """Load the SentencePiece models of a ``tokenizer`` folder.

    Raises:
        TokenizerError: A model is missing or unreadable.
    """
    if (folder / JOINT).is_file():
        joint = Tokenizer.load(folder / JOINT)
        return Tokenizers(joint.for_source(), joint)
    missing = [name for name in (SOURCE, TARGET) if not (folder / name).is_file()]
    if missing:
        raise TokenizerError(
            f"{folder} has neither {JOINT} nor {' nor '.join(missing)}.",
            fix="Prepare the data again, or copy the tokenizer folder of the run here.",
        )
    source = Tokenizer.load(folder / SOURCE)
    return Tokenizers(source.for_source(), Tokenizer.load(folder / TARGET))


def tokenizer_hash(folder: Path) -> str:
    """Return the SHA-256 of the names and contents of the models in a ``tokenizer`` folder."""
    hash_of_all = hashlib.sha256()
    for path in sorted(folder.glob("*.model")):
        hash_of_all.update(path.name.encode())
        hash_of_all.update(hashlib.sha256(path.read_bytes()).hexdigest().encode())
    return hash_of_all.hexdigest()


class Tokenizer:
    """One SentencePiece model: converts lines to subword ids and back.

    Args:
        processor: The model.
        cleans: Whether to clean lines before (`nmt.text.cleaning`), as those of the source.
        replacements: Code points to replace in lines that are encoded, and their replacements.
    """

    def __init__(
        self,
        processor: sentencepiece.SentencePieceProcessor,
        *,
        cleans: bool = False,
        replacements: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        self._processor = processor
        self.cleans = cleans
        self._replacements = replacements

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """Read a model file.

        Raises:
            CheckpointError: It is not a regular file, or too large.
            TokenizerError: The file is not a SentencePiece model, or its special ids are not
                0 to 3.
        """
        try:
            check_file(path, _MAX_MODEL_BYTES)
            model = path.read_bytes()
        except OSError as error:
            raise TokenizerError(
                f"{path} cannot be read: {error.strerror}.",
                fix="Correct the path, or restore the file.",
            ) from error
        try:
            if not model:  # SentencePiece accepts an empty file without an error
                raise RuntimeError("empty")
            processor = sentencepiece.SentencePieceProcessor(model_proto=model)
            processor.id_to_piece([*range(len(processor))])  # refuses text that is not UTF-8
        except (RuntimeError, UnicodeError) as error:
            raise TokenizerError(
                f"{path} is not a valid SentencePiece model.",
                fix="Restore the file, or prepare the data again. `tokenizer.from` takes a model "
                "that SentencePiece has written (NAME.model).",
            ) from error
        ids = tuple(getattr(processor, name)() for name in _IDS)
        needed_ids = tuple(_IDS.values())
        if ids != needed_ids:
            problem = f"{path} has the ids {ids} for pad, unk, bos, eos; nmt needs {needed_ids}."
            options = " ".join(f"--{name}={value}" for name, value in _IDS.items())
            raise TokenizerError(
                problem,
                fix="Use a model of `nmt prepare`, or one that SentencePiece learned with "
                f"{options}.",
            )
        return cls(processor)

    @classmethod
    def parse(cls, model: bytes) -> Tokenizer:
        """Return the tokenizer of the content of a model file, without checks."""
        return cls(sentencepiece.SentencePieceProcessor(model_proto=model))

    def for_source(self) -> Tokenizer:
        """Return the tokenizer of the source: it cleans lines if it was learned from clean ones."""
        name = self._proto.normalizer_spec.name
        return Tokenizer(self._processor, cleans=name.endswith(_CLEANED))

    def for_translation(self) -> Tokenizer:
        """Return a source tokenizer that replaces what the model has not learned to read.

        Quotes, dashes and ellipses that the vocabulary lacks, or only spells in bytes, become the
        plain equivalents that it has: see `PLAIN_CHARACTERS`.
        """
        replacements = {}
        for character, plain in PLAIN_CHARACTERS.items():
            if not self._knows(character) and self._knows(plain):
                replacements[ord(character)] = plain
        return Tokenizer(self._processor, cleans=self.cleans, replacements=replacements)

    def _knows(self, text: str) -> bool:
        """Whether subwords spell ``text`` at the beginning of a word and inside of one."""
        ids = self._processor.encode(f"{text} a{text}")
        return not any(map(self.is_fallback, ids))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the model only. The receiving process caches it, so it loads each model once."""
        model = self._processor.serialized_model_proto()
        return _tokenizer_of, (model, self.cleans, dict(self._replacements))

    @cached_property
    def _proto(self) -> Any:
        return ModelProto.FromString(self._processor.serialized_model_proto())

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary, special ids included."""
        return int(self._processor.get_piece_size())

    def encode(self, line: str) -> list[int]:
        """Return the subword ids of ``line``, without BOS and EOS."""
        return self.encode_batch([line])[0]

    def completions(self, text: str) -> tuple[tuple[int, ...], ...]:
        """Return the ids of a text, and if it may end inside a word, those that complete the word.

        In a completion, one subword replaces some of the last subwords, and begins with them.
        """
        ids = self.encode(text)
        completions = [tuple(ids)]
        if text[-1].isalnum():
            subwords = self.subwords(ids)
            rest = ""
            for index in reversed(range(len(ids))):
                rest = subwords[index] + rest
                for number, (piece, _, is_usual) in enumerate(self.pieces()):
                    if is_usual and piece.startswith(rest) and piece != subwords[index]:
                        completions.append((*ids[:index], number))
                if rest.startswith(SPACE):
                    break
        return tuple(completions[:_MAX_COMPLETIONS])

    def encode_batch(self, lines: Sequence[str], threads: int = 1) -> list[list[int]]:
        """Return the subword ids of each line, without BOS and EOS."""
        lines = self._readable(lines)
        ids_of_lines = list(self._processor.encode(lines, num_threads=threads))
        if not self.is_imported:
            return ids_of_lines
        return list(map(self._as_imported, lines, ids_of_lines))

    def _readable(self, lines: Sequence[str]) -> list[str]:
        """Return each line as SentencePiece gets it."""
        try:  # all lines at once: surrogates are rare, and a check of every line would be slow
            "".join(lines).encode()
        except UnicodeEncodeError:
            lines = list(map(without_surrogates, lines))
        if self.cleans:
            lines = list(map(clean_source, lines))
        if self._replacements:
            lines = [line.translate(self._replacements) for line in lines]
        return list(lines)

    def normalize(self, lines: Sequence[str]) -> list[str]:
        """Return each line as it is before segmentation, with spaces as U+2581."""
        return list(self._processor.normalize(self._readable(lines)))

    @cached_property
    def is_imported(self) -> bool:
        """Whether the vocabulary has ids that SentencePiece never produces: an imported model."""
        model = self._processor
        return bool(self.languages) or any(map(model.is_unused, range(self.vocab_size)))

    def _as_imported(self, line: str, ids: list[int]) -> list[int]:
        """Return the ids of ``line`` as the original toolkit of an imported model encodes it.

        A tag at the beginning becomes a single id. Subwords that are unknown on this side are
        looked up in the joint vocabulary, where SentencePiece marks them as unused.

        Args:
            line: The text, as SentencePiece gets it.
            ids: Its ids according to SentencePiece.
        """
        tag = self.language_of(line)
        if tag is not None and tag in self.tags:
            return [self.tags[tag], *self.encode(line.removeprefix(tag))]
        if UNK_ID not in ids:
            return ids
        model = self._processor
        imported_ids = list(ids)
        for index, piece in enumerate(model.encode(line, out_type=str)):
            joint_id = int(model.piece_to_id(piece))
            if ids[index] == UNK_ID and model.is_unused(joint_id):
                imported_ids[index] = joint_id
        return imported_ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids``. PAD, BOS and EOS are ignored."""
        shown_ids = [int(index) for index in ids if index not in (PAD_ID, BOS_ID, EOS_ID)]
        text = str(self._processor.decode(shown_ids))
        # A word spelled in bytes begins with the bytes of U+2581, which SentencePiece keeps.
        if SPACE in text:
            return text.replace(SPACE, " ").lstrip(" ")
        return text

    def pieces(self) -> list[tuple[str, float, bool]]:
        """Return, for each id, its text, its score, and whether it is an ordinary subword."""
        model = self._processor
        symbol_ids = set(self.symbols.values())
        tests = (model.is_byte, model.is_unknown, model.is_control, model.is_unused)
        pieces = []
        for index in range(self.vocab_size):
            is_special = index in symbol_ids or any(test(index) for test in tests)
            pieces.append((self.piece(index), float(model.get_score(index)), not is_special))
        return pieces

    def usual_subwords(self) -> list[float]:
        """Return, for each id, how many subwords it counts in text that the vocabulary covers.

        Such text has about three characters in a subword, in scripts of few letters. So the first
        byte of a character counts a third, and the others do not count.
        """
        counts = [1.0] * self.vocab_size
        for index in range(self.vocab_size):
            if self._processor.is_byte(index):
                byte = int(self.piece(index)[1:-1], 16)  # such as ``<0x41>``, without the brackets
                # In UTF-8, all bytes of a character but the first have the bits 10xxxxxx.
                is_first = byte & 0xC0 != 0x80
                counts[index] = is_first / _USUAL_CHARACTERS
        return counts

    @cached_property
    def _sizes(self) -> list[int]:
        """Bytes of each subword; 1 for special ids."""
        pieces = self.pieces()
        return [len(text.strip(SPACE).encode()) if usual else 1 for text, _, usual in pieces]

    def is_junk(self, ids: Sequence[int]) -> bool:
        """Whether subwords spell something that is hardly language, or repeat a few words.

        The subwords of keys, numbers or a foreign script are much shorter than those of the
        vocabulary. Text of up to 32 subwords never counts.
        """
        if len(ids) <= _MIN_JUNK:
            return False
        num_bytes = sum(self._sizes[index] for index in ids)
        usual_size = sum(self._sizes) / len(self._sizes)
        is_spelled = num_bytes < len(ids) * usual_size * _SPELLED_SHARE
        return is_spelled or len(set(ids)) < len(ids) * _FEW_WORDS

    @cached_property
    def symbols(self) -> dict[str, int]:
        """Ids of the user-defined symbols, which are never split."""
        pieces = enumerate(self._proto.pieces)
        return {piece.piece: index for index, piece in pieces if piece.type == _USER_DEFINED}

    @cached_property
    def tags(self) -> dict[str, int]:
        """Ids of the vocabulary's language tags, such as ``<2de>`` or OPUS-MT's ``>>deu<<``."""
        return {
            symbol: index
            for symbol, index in self.symbols.items()
            if re.fullmatch(TAG_PATTERN, symbol) or is_tag(symbol)
        }

    @cached_property
    def languages(self) -> list[str]:
        """Tags of the target languages of an imported model, such as ``>>deu<<``."""
        return [tag for tag in self.tags if is_tag(tag)]

    def language_of(self, line: str) -> str | None:
        """Return the tag of a target language that ``line`` begins with, known or not."""
        if not self.languages:
            return None
        match = _OPUS_TAG.match(line)
        return match[0] if match else None

    def tag_id(self, tag: str) -> int:
        """Return the id of a tag, written as in `nmt.config.data.tag_symbol`.

        Raises:
            ConfigError: The vocabulary does not contain the tag.
        """
        symbol = tag_symbol(tag, self.tags)
        if symbol is None:
            fix = "Remove the tag: no tag exists."
            if self.tags:
                examples = [name.strip("<>") for name in list(self.tags)[:TAGS_SHOWN]]
                fix = f"Use a tag such as {', '.join(examples)}."
            raise ConfigError(
                f"The vocabulary has no tag {tag!r}.{did_you_mean(tag, self.tags)}", fix=fix
            )
        return self.tags[symbol]

    def language_id(self, code: str) -> int:
        """Return the id of the tag of a language; see `nmt.config.data.language_symbol`.

        Raises:
            ConfigError: The vocabulary does not contain a tag of this language.
        """
        symbol = language_symbol(code, self.tags)
        return self.tag_id(f"<2{code}>" if symbol is None else symbol)

    def without_tags(self, ids: Sequence[int]) -> Sequence[int]:
        """Return ids without the tags at the start, which `nmt prepare` adds to a text."""
        start = 0
        while start < len(ids) and ids[start] in self.tag_ids:
            start += 1
        return ids[start:]

    @cached_property
    def tag_ids(self) -> frozenset[int]:
        """The ids of `tags`."""
        return frozenset(self.tags.values())

    def piece(self, index: int) -> str:
        """Return the subword of an id, with U+2581 at the beginning of a word."""
        return str(self._processor.id_to_piece(index))

    def subwords(self, ids: Sequence[int]) -> list[str]:
        """Return the subword text of each id."""
        return list(map(self.piece, ids))

    def is_fallback(self, index: int) -> bool:
        """Whether an id is a single byte or the unknown symbol."""
        return bool(self._processor.is_byte(index) or self._processor.is_unknown(index))


@lru_cache(maxsize=4)
def _processor_of(model: bytes) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_proto=model)


def _tokenizer_of(model: bytes, cleans: bool, replacements: Mapping[int, str]) -> Tokenizer:
    return Tokenizer(_processor_of(model), cleans=cleans, replacements=replacements)


def train_sentencepiece(
    lines: Iterable[tuple[str, int]],
    path: Path,
    config: TokenizerConfig,
    *,
    threads: int,
    characters: Collection[str] | None = None,
) -> None:
    """Train a SentencePiece model and write it to ``path``. The same input gives the same bytes.

    Args:
        lines: The training text, and how often to count each line. The order matters. Lines above
            40,000 bytes are ignored. Lines of the source are clean.
        path: The new file. Its name (`JOINT`, `SOURCE` or `TARGET`) selects the vocabulary size
            from ``config``. No file is left if training fails.
        config: Kind and vocabulary sizes, and symbols of this vocabulary.
        threads: Number of CPU threads. It changes the last digits of unigram probabilities, and the
            model file records it.
        characters: The only characters that the vocabulary contains; None for all characters.

    Raises:
        VocabularySizeError: The vocabulary size is too large or too small for the text. The message
            contains a size that works.
        TokenizerError: There is no text.
    """
    side = int(path.name == TARGET)  # 0 for the source or a joint vocabulary
    vocab_size = config.vocab_sizes[side]
    num_unused = config.unused[side]
    # Characters outside of the vocabulary become a border. Subwords do not cross the border, which
    # is not part of the vocabulary either. For other kinds of models, the characters are removed.
    has_borders = characters is not None and config.kind in ("bpe", "unigram")
    border = _BORDER if has_borders else ""
    replacement = _Replacement(characters, border)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(
                f"{line.translate(replacement)}\t{count}" for line, count in lines if count
            ),
            input_format="tsv",
            model_writer=model,
            model_type=config.kind,
            vocab_size=vocab_size,
            user_defined_symbols=list(config.user_defined_symbols),
            control_symbols=[f"<unused{number}>" for number in range(num_unused)],
            character_coverage=1.0,
            pretokenization_delimiter=border,
            byte_fallback=config.byte_fallback,
            normalization_rule_name=config.normalization,
            max_sentence_length=_MAX_SENTENCE_BYTES,
            num_threads=threads,
            minloglevel=2,
            **_IDS,
        )
    except RuntimeError as error:
        raise _explained(str(error), config, path.name, vocab_size) from error
    _write(model.getvalue(), path)


def adopt(model: Path, path: Path) -> None:
    """Copy the SentencePiece model of a user to ``path``, as if it had been trained there.

    Raises:
        TokenizerError: See `Tokenizer.load`.
    """
    Tokenizer.load(model)
    _write(model.read_bytes(), path)


def _write(model: bytes, path: Path) -> None:
    """Write a new model. Unless it is the model of the target, note that its source is cleaned."""
    proto = ModelProto.FromString(model)
    if path.name != TARGET and not proto.normalizer_spec.name.endswith(_CLEANED):
        proto.normalizer_spec.name += _CLEANED
    path.write_bytes(proto.SerializeToString(deterministic=True))


class _Replacement(dict[int, str | int]):
    """A table for `str.translate`: code of a character -> its replacement.

    Tabs and null characters become spaces: in the training format, a tab ends the text.

    Args:
        characters: Characters that stay; None for all characters.
        border: Replaces all other characters.
    """

    def __init__(self, characters: Collection[str] | None, border: str) -> None:
        super().__init__({ord("\t"): " ", 0: " "})
        self._characters = characters
        self._border = border

    def __missing__(self, code: int) -> str | int:
        character = without_surrogates(chr(code))
        stays = self._characters is None or character in self._characters
        self[code] = character if stays else self._border
        return self[code]


def _explained(message: str, config: TokenizerConfig, name: str, size: int) -> TokenizerError:
    """Convert an error message of SentencePiece to an error with a vocabulary size that works.

    Args:
        message: The message.
        config: Kind and vocabulary sizes.
        name: File name of the model: `JOINT`, `SOURCE` or `TARGET`.
        size: The vocabulary size that does not work.
    """
    side = Path(name).stem
    vocabulary = f"vocabulary of {size:,} subwords"
    if name != JOINT:
        vocabulary = f"{side} {vocabulary}"
    key = "tokenizer.vocab_size"
    if isinstance(config.vocab_size, dict):
        key += f".{side}"
    too_large = re.search(r"value <= (\d+)", message)
    if too_large:
        max_size = int(too_large[1])
        fix = f"Set {key} to {max_size} or less."
        if max_size < config.min_vocab_size:
            fix = "Set tokenizer.byte_fallback: false, or use more training text."
        return VocabularySizeError(
            f"The training text is too small for a {vocabulary}; the maximum is {max_size:,}.",
            fix=fix,
        )
    too_small = re.search(r"smaller than required_chars.*vs (\d+)", message)
    if too_small:
        min_size = int(too_small[1])
        return VocabularySizeError(
            f"A {vocabulary} is too small: the characters alone need {min_size:,}.",
            fix=f"Set {key} to {min_size} or more, or lower character_coverage.",
        )
    problem = f"SentencePiece could not learn a vocabulary: {message.strip()}"
    if "sentences_.empty()" in message or "all_chars_count" in message:
        problem = "The training corpora are empty: cannot learn a vocabulary."
    return TokenizerError(problem, fix="Check that the corpora have text, or lower vocab_size.")
