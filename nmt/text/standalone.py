"""SentencePiece models that contain nmt's cleaning of the source, for programs without nmt.

SentencePiece replaces characters, and sequences of characters, by a table before it splits a text.
The table is built by SentencePiece itself, from the result of `Tokenizer.normalize`.
"""

from __future__ import annotations

import io
import sys
import unicodedata
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from tempfile import TemporaryDirectory

import sentencepiece
from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

from nmt.text.tokenizer import SPACE, Tokenizer

_NOT_TEXT = frozenset({"Cn", "Co", "Cs"})  # categories: unassigned, private, surrogate
# Around a text whose replacement is looked up. It is not composed with accents, and not trimmed.
_GUARD = "0"


def standalone_model(path: Path, tokenizer: Tokenizer) -> bytes:
    """Return a SentencePiece model that reads text as ``tokenizer`` does, without nmt.

    One difference remains: accents that no single letter contains keep their order in the text.

    Args:
        path: The model of the tokenizer.
        tokenizer: The tokenizer of the source.
    """
    proto = ModelProto.FromString(path.read_bytes())
    if tokenizer.cleans:
        rules = _rules(tokenizer)
        proto.normalizer_spec.precompiled_charsmap = _compile(rules)
    return bytes(proto.SerializeToString(deterministic=True))


def _rules(tokenizer: Tokenizer) -> dict[str, str]:
    """Return what the tokenizer replaces: characters, and letters with separate accents."""
    characters = map(chr, range(1, sys.maxunicode + 1))  # U+0000 would end a text of the table
    texts = [text for text in characters if unicodedata.category(text) not in _NOT_TEXT]
    for text in list(texts):
        texts += _spellings(text)
    guarded = [f"{_GUARD}{text}{_GUARD}" for text in texts]
    rules = {}
    for text, normalized in zip(texts, tokenizer.normalize(guarded), strict=True):
        start = normalized.index(_GUARD) + 1
        end = normalized.rindex(_GUARD)
        replacement = normalized[start:end].replace(SPACE, " ")
        if replacement != text:
            rules[text] = replacement
    return rules


def _spellings(character: str) -> Iterator[str]:
    """Yield the sequences that NFC composes to ``character``, with accents in any order."""
    letter, *accents = list(unicodedata.normalize("NFD", character))
    for order in permutations(accents):
        for num_composed in range(len(order)):
            # Some of the accents may be composed with the letter already.
            composed = unicodedata.normalize("NFC", letter + "".join(order[:num_composed]))
            text = composed + "".join(order[num_composed:])
            if text != character and unicodedata.normalize("NFC", text) == character:
                yield text


def _compile(rules: dict[str, str]) -> bytes:
    """Return rules in SentencePiece's binary form, which only its training can make."""
    model = io.BytesIO()
    with TemporaryDirectory() as folder:
        table = Path(folder) / "rules.tsv"
        with table.open("w", encoding="utf-8") as file:
            for text, replacement in rules.items():
                file.write(f"{_code_points(text)}\t{_code_points(replacement)}\n")
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([_GUARD]),
            model_writer=model,
            model_type="char",
            vocab_size=5,
            hard_vocab_limit=False,
            normalization_rule_tsv=str(table),
            minloglevel=2,
        )
    return bytes(ModelProto.FromString(model.getvalue()).normalizer_spec.precompiled_charsmap)


def _code_points(text: str) -> str:
    return " ".join(f"{ord(character):X}" for character in text)
