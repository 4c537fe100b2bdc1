"""The source is cleaned once, and the target comes out as it went in."""

# ruff: noqa: RUF001 - texts in many scripts
from __future__ import annotations

import re
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nmt.config.data import TokenizerConfig
from nmt.text.cleaning import clean_source
from nmt.text.loss import loss_of
from nmt.text.tokenizer import SPACE, Tokenizers, load_tokenizers
from tests.learning import train_sentencepiece

NTREX = Path(__file__).parents[3] / "shared" / "data" / "ntrex_sample"
LINES = ["Ein Hund läuft durch den Schnee.", "Zwei Katzen", "你好，世界！", "کتاب‌ها روی میز هستند."]
TEXT = LINES * 3
ASSIGNED = st.characters(exclude_categories=["Cs", "Cn"], exclude_characters=SPACE)


@pytest.fixture(scope="module", params=["bpe", "unigram", "char", "word"])
def tokenizers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Tokenizers:
    folder = tmp_path_factory.mktemp("tokenizer")
    sizes = {"bpe": 310, "unigram": 305, "char": 302, "word": 271}
    values = {"kind": request.param, "vocab_size": sizes[request.param]}
    config = TokenizerConfig.model_validate(values)
    train_sentencepiece(TEXT, folder / "joint.model", config, threads=1)
    return load_tokenizers(folder)


def without_blanks(text: str) -> str:
    return re.sub(" +", " ", text).strip(" ")


@example("<unk> <s> </s> <pad> <0x41> \u2047")
@example("\ufeffa\u00a0b\u202fc\u3000d")
@example("\u0e33\u0eb3 \u200c\u200d \u1e9b\u0323 \ufb01 \u00b2\u00bd")
@given(st.text(ASSIGNED))
def test_a_target_comes_out_as_it_went_in(tokenizers: Tokenizers, text: str) -> None:
    target = tokenizers.target
    assert without_blanks(target.decode(target.encode(text))) == without_blanks(text)


def test_every_assigned_character_comes_out_as_it_went_in(tokenizers: Tokenizers) -> None:
    assigned = list[str]()
    for code in range(sys.maxunicode + 1):
        if unicodedata.category(chr(code)) not in ("Cn", "Cs") and chr(code) != SPACE:
            assigned.append(chr(code))
    lines = list[str]()
    for first in range(0, len(assigned), 50):
        lines.append("x".join(assigned[first : first + 50]) + "x")
    loss = loss_of(lines, tokenizers.target)
    assert (loss.changed, loss.example) == ((), "")


@given(st.text(ASSIGNED))
def test_a_source_is_read_as_its_clean_text(tokenizers: Tokenizers, text: str) -> None:
    source = tokenizers.source
    ids = source.encode(text)
    clean = clean_source(text)
    assert clean_source(clean) == clean
    assert ids == tokenizers.target.encode(clean)
    assert without_blanks(source.decode(ids)) == without_blanks(clean)


def test_the_law_holds_for_real_lines_in_many_languages(tmp_path: Path) -> None:
    if not NTREX.is_dir():
        pytest.skip("needs ../shared/data/ntrex_sample")
    lines = list[str]()
    for path in sorted(NTREX.glob("*.txt")):
        lines += path.read_text("utf-8").split("\n")
    assert len(lines) > 5000
    config = TokenizerConfig(vocab_size=8000)
    train_sentencepiece(lines[::10], tmp_path / "joint.model", config, threads=1)
    tokenizers = load_tokenizers(tmp_path)
    assert not loss_of(lines, tokenizers.target).changed
    clean = [clean_source(line) for line in lines]
    assert not loss_of(clean, tokenizers.source).changed


def test_characters_that_nobody_sees_give_the_plain_text() -> None:
    plain = "Im Schnee 12 Grad."
    invisible = [
        0xAD,
        0x61C,
        *range(0x200B, 0x2010),
        *range(0x202A, 0x202F),
        *range(0x2060, 0x2070),
    ]
    invisible += [0xFEFF, 0, 7, 0x1B, 0x7F, 0x80, 0x9F]
    for code in set(invisible) - {0x200C, 0x200D, 0x2065}:
        assert clean_source(f"Im Sch{chr(code)}nee 12 Grad.{chr(code)}") == plain
    for code in (9, 0xB, 0xC, 0xD, 0x85, 0x2028, 0x2029, 0xA0, 0x202F, 0x3000, 0x2003):
        assert clean_source(f"Im{chr(code)}Schnee 12{chr(code)}Grad.") == plain
    assert clean_source("\uff29\uff4d \uff33chnee \uff11\uff12 Grad.") == plain


def test_what_a_language_needs_stays() -> None:
    for text in (
        "می\u200cخواهم", "క్\u200dష", "\U0001f3f4\U000e0067\U000e0062\U000e007f", "❤\ufe0f",
        "你好，世界！", "10² gramos, 2½", "ﬁnd", "\u0e19\u0e49\u0e33", "\u06dd١",
    ):  # fmt: skip
        assert clean_source(text) == text


def test_accents_are_composed_across_what_is_removed() -> None:
    assert clean_source("a\u0308 o\u00ad\u0308 e\u0302\u0323") == "ä ö ệ"


def test_models_of_other_origin_keep_their_own_rule(tmp_path: Path) -> None:
    """The mark in the file decides, so that a model of nmt 0.1 translates as it did."""
    config = TokenizerConfig(vocab_size=310, normalization="nmt_nfkc")
    for name in ("source.model", "target.model"):
        train_sentencepiece(TEXT, tmp_path / name, config, threads=1)
    assert load_tokenizers(tmp_path).source.cleans
    (tmp_path / "source.model").write_bytes((tmp_path / "target.model").read_bytes())
    old = load_tokenizers(tmp_path).source
    assert not old.cleans
    assert old.decode(old.encode("ﬁnd\u00a02½")) == "find 21⁄2"


def test_a_loss_names_the_line_the_place_and_the_character(tmp_path: Path) -> None:
    config = TokenizerConfig(vocab_size=310, normalization="nmt_nfkc")
    train_sentencepiece(TEXT, tmp_path / "target.model", config, threads=1)
    train_sentencepiece(TEXT, tmp_path / "source.model", config, threads=1)
    target = load_tokenizers(tmp_path).target
    loss = loss_of(["Hund  und ", "你好，世界！", f"a{SPACE}b"], target)
    assert loss.changed == (1, 2)
    assert loss.nearest == ("Hund  und ", "你好,世界!", "a b")
    assert str(loss) == (
        "2 of 3 lines (67%) that no output can equal, for example line 2: "
        "'你好，世界！' becomes '你好,世界!' (U+FF0C)"
    )
    reason = "which SentencePiece reads as a space"
    assert reason in loss_of([f"a{SPACE}b"], target).example
