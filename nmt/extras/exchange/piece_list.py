"""SentencePiece models as lists of pieces: read, and written again in another order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf.message import DecodeError
from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

from nmt.errors import CheckpointError
from nmt.text import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from nmt.text.tokenizer import is_tag

SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")  # in the order of their ids


class PieceList:
    """A SentencePiece model.

    Args:
        content: Of its file.
        name: What messages call it.

    Raises:
        CheckpointError: It is not a SentencePiece model.
    """

    def __init__(self, content: bytes, name: object) -> None:
        self._model: Any = ModelProto()
        try:
            self._model.ParseFromString(content)
            if not self._model.pieces:  # nothing at all is a valid message, too
                raise DecodeError
        except DecodeError as error:
            raise CheckpointError(
                f"{name} is not a readable SentencePiece model.",
                fix="Copy the file again from where the model comes from.",
            ) from error

    @property
    def texts(self) -> list[str]:
        """The pieces, in the order of their ids."""
        return [piece.piece for piece in self._model.pieces]

    @property
    def algorithm(self) -> str:
        """How text is cut: ``unigram``, ``bpe``, ``word`` or ``char``."""
        spec = self._model.trainer_spec
        return str(spec.ModelType.Name(spec.model_type)).lower()

    def reordered(self, tokens: Sequence[str]) -> bytes:
        """Return the file of a model with the special pieces first, then ``tokens``, in this order.

        Tokens that this model has keep score and type. Others are user-defined if they are tags,
        and unused otherwise: no part of a text becomes them but one that is unknown as a whole.
        """
        own = {piece.piece: piece for piece in self._model.pieces}
        kinds = ModelProto.SentencePiece
        model = ModelProto()
        model.CopyFrom(self._model)
        del model.pieces[:]
        for index, text in enumerate(SPECIAL):
            kind = kinds.UNKNOWN if index == UNK_ID else kinds.CONTROL
            model.pieces.add(piece=text, score=0.0, type=kind)
        for token in tokens:
            kind = kinds.USER_DEFINED if is_tag(token) else kinds.UNUSED
            new = kinds(piece=token, score=0.0, type=kind)
            model.pieces.append(own.get(token, new))
        spec = model.trainer_spec
        spec.vocab_size = len(model.pieces)
        spec.pad_id, spec.unk_id, spec.bos_id, spec.eos_id = PAD_ID, UNK_ID, BOS_ID, EOS_ID
        spec.pad_piece, spec.unk_piece, spec.bos_piece, spec.eos_piece = SPECIAL
        return bytes(model.SerializeToString(deterministic=True))
