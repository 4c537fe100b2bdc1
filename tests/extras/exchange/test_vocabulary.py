"""Trimmed and grown vocabularies: other text is tokenized as before, for each kind of model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece.sentencepiece_model_pb2 import (  # type: ignore[attr-defined]
    ModelProto,
    TrainerSpec,
)

from nmt.config.data import TokenizerConfig
from nmt.extras.exchange import vocabulary
from nmt.text.tokenizer import Tokenizer
from tests.learning import train_sentencepiece

TEXT = [
    "Ein kleiner Hund läuft über die große Wiese, und ein großer Hund schläft.",
    "Zwei Männer stehen vor einem Haus und laufen über die Straße.",
    "A small dog runs across the big meadow while the dogs are sleeping.",
    "Two men are standing in front of a house; the houses stand in a row of 123.",
    "aaaa abab babab abba baba aabb bbaa",
] * 3
KINDS = {
    "bpe": {"kind": "bpe", "vocab_size": 160, "byte_fallback": False},
    "bytes": {"kind": "bpe", "vocab_size": 400},
    "unigram": {"kind": "unigram", "vocab_size": 80, "byte_fallback": False},
    "word": {"kind": "word", "vocab_size": 40, "byte_fallback": False},
}
WORDS = sorted({word for line in TEXT for word in line.split()})
# Words of the text, parts of them, and other text: unknown characters, spaces, tags.
SOME = st.one_of(
    st.sampled_from(WORDS),
    st.text("abodr猫 ", max_size=8),
    st.text(st.characters(codec="utf-8", exclude_categories=["C"]), max_size=4),
    st.sampled_from(["<2de>", "مرحبا", "السلام", "\u2581", "a猫b"]),
)
LINES = st.lists(st.lists(SOME, max_size=6).map(" ".join), min_size=1, max_size=6)


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("tokenizer") / "joint.model"
    values = KINDS[request.param] | {"user_defined_symbols": ["<2de>", "<2fr>"]}
    train_sentencepiece(TEXT, path, TokenizerConfig.model_validate(values), threads=1)
    return ModelProto.FromString(path.read_bytes())


class Oddity(NamedTuple):
    """A piece that SentencePiece does not learn, but that imported or edited models have."""

    text: str
    share: float  # Score, from the lowest (0) to the highest (1) of the model.
    is_unused: bool


def odd(model: Any, oddities: list[Oddity]) -> Any:
    """Add pieces: unused, that their own text does not reach, or with unknown characters."""
    scores = [piece.score for piece in model.pieces if piece.type == piece.NORMAL]
    changed = vocabulary.with_pieces(model, model.pieces)
    present = {piece.piece: piece for piece in changed.pieces}
    for text, share, is_unused in oddities:
        piece = present.get(text) or changed.pieces.add(piece=text)
        if piece.type in (piece.NORMAL, piece.UNUSED):
            piece.score = min(scores) + share * (max(scores) - min(scores))
            piece.type = piece.UNUSED if is_unused else piece.NORMAL
    return vocabulary.with_pieces(changed, {x.piece: x for x in changed.pieces}.values())


ODD = st.lists(
    st.builds(
        Oddity,
        st.one_of(
            st.text("abodr", min_size=2, max_size=4), st.sampled_from(["猫a", "o猫", "a猫b"])
        ),
        st.floats(0, 1),
        st.booleans(),
    ),
    max_size=12,
)


def pieces_of(tokenizer: Tokenizer, lines: list[str]) -> list[list[str]]:
    return [[tokenizer.piece(index) for index in ids] for ids in tokenizer.encode_batch(lines)]


@given(lines=LINES, oddities=ODD)
def test_a_trimmed_vocabulary_tokenizes_the_kept_text_as_before(
    model: Any, lines: list[str], oddities: list[Oddity]
) -> None:
    model = odd(model, oddities)
    used = np.zeros(len(model.pieces), np.bool_)
    before = vocabulary.tokenizer_of(model)
    for tokenizer in (before, vocabulary.tokenizer_of(model, shows_unused=True)):
        used[[index for ids in tokenizer.encode_batch(lines) for index in ids]] = True
    kept = np.flatnonzero(vocabulary.kept_pieces(model, used))
    trimmed = vocabulary.with_pieces(model, [model.pieces[row] for row in kept])
    after = vocabulary.tokenizer_of(trimmed)
    assert [kept[ids].tolist() for ids in after.encode_batch(lines)] == before.encode_batch(lines)
    assert after.tags.keys() == before.tags.keys() == {"<2de>", "<2fr>"}
    # Later text may contain any ASCII character.
    texts = [piece.piece for piece in model.pieces if piece.type == piece.NORMAL]
    missing = {*texts} - {piece.piece for piece in trimmed.pieces}
    assert not [text for text in missing if len(text) == 1 and text.isascii()]


def placed(pieces: list[str], without: Collection[str] = ()) -> set[tuple[int, str]]:
    """Return the pieces with the number of characters up to their end."""
    ends = accumulate(map(len, pieces))
    return {(end, piece) for end, piece in zip(ends, pieces, strict=True) if piece not in without}


@given(new=LINES, lines=LINES, oddities=ODD, num=st.integers(1, 60))
def test_text_without_new_pieces_is_tokenized_as_before(
    model: Any, new: list[str], lines: list[str], oddities: list[Oddity], num: int
) -> None:
    model = odd(model, oddities)
    before, words = vocabulary.tokenizer_of(model), Counter[str]()
    vocabulary.count_words(before, new * 2, words)
    learned = vocabulary.learned_pieces([model], words, num)
    grown = vocabulary.grown(model, ["<2ary>"], learned)
    assert len(grown.pieces) == len(model.pieces) + 1 + len(learned)
    assert len({piece.piece for piece in grown.pieces}) == len(grown.pieces)
    after = vocabulary.tokenizer_of(grown)
    assert after.tags.keys() == {"<2de>", "<2fr>", "<2ary>"}
    some = {*learned, "<2ary>"}
    pairs = zip(pieces_of(before, lines + new), pieces_of(after, lines + new), strict=True)
    for old, now in pairs:
        assert old == now or some & {*now}
        # More than the law: BPE only joins pieces, so between new pieces all old ones stay.
        if vocabulary.is_bpe(model) and "".join(old) == "".join(now):
            assert placed(now, without=some) <= placed(old)


def made_of(kind: int, pieces: dict[str, float], unused: str = "") -> Any:
    """A SentencePiece model without a first space, written by hand."""
    model = ModelProto()
    model.trainer_spec.model_type = kind
    model.trainer_spec.pad_id, model.trainer_spec.unk_id = 0, 1
    model.trainer_spec.bos_id, model.trainer_spec.eos_id = 2, 3
    model.normalizer_spec.add_dummy_prefix = False
    for text, kind in zip(("<pad>", "<unk>", "<s>", "</s>"), (3, 2, 3, 3), strict=True):
        model.pieces.add(piece=text, type=kind)
    for text, score in pieces.items():
        model.pieces.add(piece=text, score=score, type=5 if text == unused else 1)
    return model


def trimmed_to(model: Any, line: str) -> list[str]:
    used = np.zeros(len(model.pieces), np.bool_)
    for tokenizer in (
        vocabulary.tokenizer_of(model),
        vocabulary.tokenizer_of(model, shows_unused=True),
    ):
        used[tokenizer.encode(line)] = True
    kept = np.flatnonzero(vocabulary.kept_pieces(model, used))
    return [model.pieces[row].piece for row in kept[4:]]


def test_trimming_keeps_what_unused_pieces_and_unknown_characters_need() -> None:
    # x|ab is split again: x|a|b. Without "ab", the text would become xa|b.
    scores = {"ab": -1.0, "xa": -2.0, "x": -3.0, "a": -4.0, "b": -5.0, "bb": -6.0}
    bpe = made_of(TrainerSpec.BPE, scores, unused="ab")
    assert pieces_of(vocabulary.tokenizer_of(bpe), ["xab"]) == [["x", "a", "b"]]
    assert trimmed_to(bpe, "xab") == ["ab", "x", "a", "b"]
    # \u732ba|\u00e9 has -24, and unknown|a\u00e9 has -20 - 10 - 1. Without the lowest score,
    # the second path would have -12 - 10 - 1 = -23.
    scores = {"\u732ba": -12.0, "\u00e9": -12.0, "a\u00e9": -1.0, "\u00fc": -20.0, "\u00e4": -3.0}
    unigram = made_of(TrainerSpec.UNIGRAM, scores)
    line = "\u732ba\u00e9"
    assert pieces_of(vocabulary.tokenizer_of(unigram), [line]) == [[line[:2], line[2]]]
    assert trimmed_to(unigram, line) == ["\u732ba", "\u00e9", "a\u00e9", "\u00fc"]


def test_old_merges_come_before_new_ones_and_new_ones_in_the_order_they_were_learned() -> None:
    """ "bc" is more frequent than "cd", and "ab" is older than both, but has the lowest score.

    So abc is still ab|c, although bc is a piece now, cab is c|ab, although ca is left of ab, and
    bcd is bc|d. An unused ab is joined first and split at the end.
    """
    scores = {"a": -1.0, "b": -2.0, "c": -3.0, "d": -4.0, "ab": -6.0}
    for unused, old_merge in (("", ["ab"]), ("ab", ["a", "b"])):
        model = made_of(TrainerSpec.BPE, scores, unused)
        learned = vocabulary.learned_pieces([model], {"ca": 12, "bc": 9, "cd": 5}, 9)
        assert [*learned] == ["ca", "bc", "cd"]
        after = vocabulary.tokenizer_of(vocabulary.grown(model, [], learned))
        lines = ["abc", "cab", "bc", "bcd", "cd"]
        expected = [[*old_merge, "c"], ["c", *old_merge], ["bc"], ["bc", "d"], ["cd"]]
        assert pieces_of(after, lines) == expected


def test_a_new_piece_never_leads_to_an_old_one_and_letters_stay_apart_from_digits() -> None:
    # Nothing builds "abc" today: with a piece "ab" or "bc", its text would become "abc".
    model = made_of(TrainerSpec.BPE, {"abc": -1.0, "a": -2.0, "b": -3.0, "c": -4.0, "1": -5.0})
    words = Counter({"abc": 9, "cab": 8, "ca1": 7, "\u732b": 2, "\u00e9": 1})
    assert [*vocabulary.learned_pieces([model], words, 9)] == ["\u732b", "ca", "cab"]
