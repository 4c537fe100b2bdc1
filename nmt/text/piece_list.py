"""SentencePiece model files as lists of pieces: read, put into another order, and written again.

A model file is a protocol buffer (sentencepiece_model.proto): pieces in field 1, the trainer's
options in field 2, those of normalisation in 3 and 5. Only pieces and the trainer's special ids are
understood here; everything else is copied.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from nmt.errors import CheckpointError
from nmt.text import BOS_ID, EOS_ID, PAD_ID, UNK_ID

_PIECES, _TRAINER = 1, 2
_TEXT, _SCORE, _KIND = 1, 2, 3
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_ALGORITHM, _VOCAB_SIZE = 3, 4
_ALGORITHMS = ("unigram", "bpe", "word", "char")
SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")
"""Texts of the special pieces, in the order of their ids."""
_SPECIAL_IDS = {40: UNK_ID, 41: BOS_ID, 42: EOS_ID, 43: PAD_ID}
_SPECIAL_TEXTS = {45: UNK_ID, 46: BOS_ID, 47: EOS_ID, 48: PAD_ID}
_LARGEST_VARINT = 10


class Kind(IntEnum):
    """What a piece is for."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Piece:
    """An entry of a vocabulary."""

    text: str
    score: float = 0.0
    """Natural-log probability (unigram), or minus the number of the merge (BPE)."""
    kind: Kind = Kind.NORMAL


@dataclass(frozen=True, slots=True)
class PieceList:
    """A SentencePiece model."""

    pieces: tuple[Piece, ...]
    """In the order of their ids."""
    trainer: bytes
    """The trainer's options, as they are stored."""
    rest: bytes
    """All other fields, as they are stored."""

    @classmethod
    def parse(cls, content: bytes, name: str) -> PieceList:
        """Read the content of a model file called ``name``.

        Raises:
            CheckpointError: It is no SentencePiece model.
        """
        pieces, trainer, rest = [], b"", b""
        try:
            for number, wire, value in _fields(content):
                if number == _PIECES and wire == _BYTES:
                    pieces.append(_piece(value))
                elif number == _TRAINER and wire == _BYTES:
                    trainer = value
                else:
                    rest += _field(number, wire, value)
            if not pieces:
                raise ValueError("no pieces")
        except (ValueError, IndexError, struct.error) as error:
            raise CheckpointError(
                f"{name} is not a readable SentencePiece model.",
                fix="Copy the file again from where the model comes from.",
            ) from error
        return cls(tuple(pieces), trainer, rest)

    @property
    def algorithm(self) -> str:
        """How text is cut: ``unigram``, ``bpe``, ``word`` or ``char``."""
        stored = [value for number, _, value in _fields(self.trainer) if number == _ALGORITHM]
        number = _read_varint(stored[-1], 0)[0] if stored else 1
        return _ALGORITHMS[number - 1] if 0 < number <= len(_ALGORITHMS) else _ALGORITHMS[0]

    def reordered(self, tokens: Sequence[str]) -> PieceList:
        """Return the model with the special pieces first, then ``tokens``, in this order.

        Tokens that this model has keep score and kind. Others are user-defined if they are tags,
        and unused otherwise: no part of a text becomes them but one that is unknown as a whole.
        """
        own = {piece.text: piece for piece in self.pieces}
        pieces = [Piece(text, kind=Kind.CONTROL) for text in SPECIAL]
        pieces[UNK_ID] = replace(pieces[UNK_ID], kind=Kind.UNKNOWN)
        for token in tokens:
            kind = Kind.USER_DEFINED if is_tag(token) else Kind.UNUSED
            pieces.append(own.get(token, Piece(token, kind=kind)))
        return PieceList(tuple(pieces), self.trainer, self.rest)

    def dump(self) -> bytes:
        """Return the content of a model file, whose special ids are those of `nmt.text`."""
        stored = b"".join(_field(_PIECES, _BYTES, _stored(piece)) for piece in self.pieces)
        # Of a field that is there twice the last one counts.
        trainer = self.trainer + _field(_VOCAB_SIZE, _VARINT, _varint(len(self.pieces)))
        for number, index in _SPECIAL_IDS.items():
            trainer += _field(number, _VARINT, _varint(index))
        for number, index in _SPECIAL_TEXTS.items():
            trainer += _field(number, _BYTES, SPECIAL[index].encode())
        return stored + _field(_TRAINER, _BYTES, trainer) + self.rest


def is_tag(token: str) -> bool:
    """Whether a token asks for a language, as OPUS-MT's ``>>fra<<`` does."""
    return len(token) > len(">><<") and token.startswith(">>") and token.endswith("<<")


def ordinary(pieces: Iterable[Piece]) -> Iterator[str]:
    """Yield the texts of all pieces but the special ones."""
    return (piece.text for piece in pieces if piece.text not in SPECIAL)


def _piece(content: bytes) -> Piece:
    text, score, kind = "", 0.0, Kind.NORMAL
    for number, wire, value in _fields(content):
        if (number, wire) == (_TEXT, _BYTES):
            text = value.decode()
        elif (number, wire) == (_SCORE, _FIXED32):
            (score,) = struct.unpack("<f", value)
        elif (number, wire) == (_KIND, _VARINT):
            kind = Kind(_read_varint(value, 0)[0])
    return Piece(text, score, kind)


def _stored(piece: Piece) -> bytes:
    return (
        _field(_TEXT, _BYTES, piece.text.encode())
        + _field(_SCORE, _FIXED32, struct.pack("<f", piece.score))
        + _field(_KIND, _VARINT, _varint(piece.kind))
    )


def _fields(content: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield number, wire type and content of each field of a message."""
    place = 0
    while place < len(content):
        key, place = _read_varint(content, place)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            stop = _read_varint(content, place)[1]
        elif wire == _BYTES:
            size, place = _read_varint(content, place)
            stop = place + size
        else:
            stop = place + {_FIXED64: 8, _FIXED32: 4}.get(wire, len(content) + 1)
        if stop > len(content):
            raise ValueError("a field goes beyond the end")
        yield number, wire, content[place:stop]
        place = stop


def _field(number: int, wire: int, value: bytes) -> bytes:
    size = _varint(len(value)) if wire == _BYTES else b""
    return _varint(number << 3 | wire) + size + value


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _read_varint(content: bytes, place: int) -> tuple[int, int]:
    """Return a variable-length integer and the place after it."""
    value = 0
    for shift in range(_LARGEST_VARINT):
        byte = content[place + shift]
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value, place + shift + 1
    raise ValueError("an integer is too long")
