"""What a tokenizer is, and how the tokenizers of a folder are loaded."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from nmt.errors import TokenizerError
from nmt.text.sentencepiece import SentencePieceTokenizer

JOINT, SOURCE, TARGET = "joint.model", "source.model", "target.model"


class Tokenizer(Protocol):
    """Lines to subword ids and back. Ids of special tokens never come out of `encode`."""

    @property
    def vocab_size(self) -> int:
        """Entries of the vocabulary, special ones included."""
        ...

    def encode(self, line: str) -> list[int]:
        """Return the ids of ``line``, without BOS and EOS."""
        ...

    def encode_batch(self, lines: Sequence[str], threads: int = 1) -> list[list[int]]:
        """Encode many lines at once."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids``; special ids are left out."""
        ...

    def pieces(self) -> list[tuple[str, float, bool]]:
        """Return text, score and whether it is an ordinary piece, for each id."""
        ...


@dataclass(frozen=True, slots=True)
class Tokenizers:
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
        joint = SentencePieceTokenizer.load(folder / JOINT)
        return Tokenizers(joint, joint)
    missing = [name for name in (SOURCE, TARGET) if not (folder / name).is_file()]
    if missing:
        raise TokenizerError(
            f"{folder} has neither {JOINT} nor {' nor '.join(missing)}.",
            fix="Prepare the data again, or copy the tokenizer folder of the run here.",
        )
    return Tokenizers(
        SentencePieceTokenizer.load(folder / SOURCE), SentencePieceTokenizer.load(folder / TARGET)
    )


def tokenizer_hash(folder: Path) -> str:
    """Return the sha256 of names and contents of the models of a ``tokenizer`` folder."""
    whole = hashlib.sha256()
    for path in sorted(folder.glob("*.model")):
        whole.update(path.name.encode())
        whole.update(hashlib.sha256(path.read_bytes()).hexdigest().encode())
    return whole.hexdigest()
