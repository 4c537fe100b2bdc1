"""SentencePiece: what goes in comes out, damage is named, and it keeps quiet."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece import SentencePieceTrainer

from nmt.config.data import TokenizerConfig
from nmt.errors import ConfigError, TokenizerError, VocabularySizeError
from nmt.text import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from nmt.text.tokenizer import Tokenizer, load_tokenizers, tokenizer_hash
from tests.learning import train_sentencepiece

TEXT = [
    "Ein kleiner Hund läuft über die große Wiese.",
    "Zwei Männer stehen vor einem Haus.",
    "A small dog runs across the big meadow.",
    "Two men are standing in front of a house.",
] * 3
SMALL = TokenizerConfig(vocab_size=350)


def trained(folder: Path, config: TokenizerConfig = SMALL, name: str = "joint.model") -> Path:
    folder.mkdir(exist_ok=True)
    train_sentencepiece(TEXT, folder / name, config, threads=2)
    return folder / name


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(trained(tmp_path_factory.mktemp("tokenizer")))


@given(text=st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z", "M"])))
def test_decoding_undoes_encoding_on_normalised_text(tokenizer: Tokenizer, text: str) -> None:
    """Bytes spell what the vocabulary lacks; normalised text comes back as it was."""
    normal = tokenizer.decode(tokenizer.encode(text))
    assert tokenizer.decode(tokenizer.encode(normal)) == normal


def test_unused_entries_fill_a_vocabulary_and_no_text_becomes_one(tmp_path: Path) -> None:
    config = TokenizerConfig.model_validate({
        "kind": "unigram", "vocab_size": 400, "pad_vocab_by": {"source": 0, "target": 355},
        "joint": False, "byte_fallback": False,
    })  # fmt: skip
    tokenizer = Tokenizer.load(trained(tmp_path, config, "target.model"))
    ids = tokenizer.encode(" ".join([*TEXT, *(f"<unused{number}>" for number in range(355))]))
    assert tokenizer.vocab_size == 400
    assert len({*ids}) <= 45
    assert tokenizer.decode([5, *ids]) == tokenizer.decode(ids)
    with pytest.raises(VocabularySizeError):
        trained(tmp_path, config, "source.model")


@pytest.mark.parametrize("byte_fallback", [True, False])
def test_unknown_quotes_and_dashes_are_read_as_plain_ones_that_are_known(
    tmp_path: Path, byte_fallback: bool
) -> None:
    config = TokenizerConfig(vocab_size=350 if byte_fallback else 120, byte_fallback=byte_fallback)
    text = [*TEXT, "A dog - it's \u2019 - a house... it's \u2019"]
    train_sentencepiece(text * 3, tmp_path / "joint.model", config, threads=1)
    learned = load_tokenizers(tmp_path).source
    curly = "\u2018a dog\u2014"
    assert any(map(learned.is_fallback, learned.encode(curly)))
    source = pickle.loads(pickle.dumps(learned.for_translation()))
    assert source.encode(curly) == learned.encode("'a dog-")
    assert source.encode("house\u2026") == learned.encode("house...")
    # The first is known. The second is not, and neither is its plain form.
    for kept in ("\u2019", "\u201c"):
        assert source.encode(kept) == learned.encode(kept)


@given(line=st.text())
def test_any_string_gives_ids_and_no_special_ones(tokenizer: Tokenizer, line: str) -> None:
    """FAULTS 45: lone surrogates, NUL and the rest of Unicode."""
    ids = tokenizer.encode(line)
    assert all(EOS_ID < index < tokenizer.vocab_size or index == UNK_ID for index in ids)
    assert tokenizer.encode_batch([line, "Hund"], threads=2)[0] == ids
    together = tokenizer.encode_batch(["Zwei Männer", "ab\ud800c", ""])
    assert together == [tokenizer.encode("Zwei Männer"), tokenizer.encode("ab\ufffdc"), []]


def test_special_ids_are_where_they_should_be_and_decode_to_nothing(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("Hund")
    assert tokenizer.vocab_size == 350
    assert tokenizer.decode([BOS_ID, *ids, EOS_ID, PAD_ID]) == "Hund"
    assert tokenizer.is_fallback(UNK_ID)
    assert not any(tokenizer.is_fallback(index) for index in ids)
    assert any(tokenizer.is_fallback(index) for index in tokenizer.encode("\u732b"))


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_learning_is_quiet_and_repeatable(
    tmp_path: Path, kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    values = {"kind": kind, "vocab_size": 50, "byte_fallback": False}
    config = TokenizerConfig.model_validate(values)
    first = trained(tmp_path / "first", config).read_bytes()
    assert trained(tmp_path / "second", config).read_bytes() == first
    with pytest.raises(TokenizerError):
        trained(tmp_path / "third", TokenizerConfig(vocab_size=9000))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_three_lines_name_the_largest_vocabulary_and_it_works(tmp_path: Path, kind: str) -> None:
    """FAULTS 41."""
    lines, path = ["Hello world.", "Guten Tag.", "ja"], tmp_path / "joint.model"
    values = {"kind": kind, "vocab_size": 8000, "byte_fallback": False}
    config = TokenizerConfig.model_validate(values)
    with pytest.raises(TokenizerError, match="too small for a vocabulary of 8,000") as raised:
        train_sentencepiece(lines, path, config, threads=1)
    assert not path.exists()
    largest = int("".join(filter(str.isdigit, raised.value.fix)))
    config = TokenizerConfig.model_validate(values | {"vocab_size": largest})
    train_sentencepiece(lines, path, config, threads=1)
    assert Tokenizer.load(path).vocab_size == largest


@pytest.mark.parametrize("bytes_", [False, True])
def test_words_are_tokens_and_make_up_the_vocabulary(tmp_path: Path, bytes_: bool) -> None:
    lines, path = ["merci", "je suis étudiant", "je suis là"], tmp_path / "joint.model"
    values = {"kind": "word", "vocab_size": 400, "byte_fallback": bytes_}
    with pytest.raises(VocabularySizeError, match=r"the maximum is \d+") as raised:
        train_sentencepiece(lines, path, TokenizerConfig.model_validate(values), threads=1)
    values["vocab_size"] = largest = int("".join(filter(str.isdigit, raised.value.fix)))
    assert largest == EOS_ID + 1 + 256 * bytes_ + 5
    assert raised.value.exit_code == 2
    train_sentencepiece(lines, path, TokenizerConfig.model_validate(values), threads=1)
    words = Tokenizer.load(path)
    texts = {text for text, _, is_plain in words.pieces() if is_plain}
    assert texts == {"\u2581" + word for word in ("merci", "je", "suis", "étudiant", "là")}
    assert len(words.encode("étudiant  je là")) == 3
    unseen = words.encode("je suis étudiante")
    assert len(unseen[2:]) == (len("\u2581étudiante".encode()) if bytes_ else 1)
    assert all(map(words.is_fallback, unseen[2:]))
    assert words.decode(unseen) == ("je suis étudiante" if bytes_ else "je suis \u2047 ")
    assert words.decode(words.encode("là-bas je suis")) == (
        "là-bas je suis" if bytes_ else " \u2047  je suis"
    )


@pytest.mark.parametrize("bytes_", [False, True])
def test_characters_are_tokens_and_there_may_be_few(tmp_path: Path, bytes_: bool) -> None:
    values = {"kind": "char", "vocab_size": 400, "byte_fallback": bytes_}
    path = trained(tmp_path / "characters", TokenizerConfig.model_validate(values))
    characters = Tokenizer.load(path)
    alphabet = set("\u2581" + "".join(TEXT).replace(" ", ""))
    assert characters.vocab_size == EOS_ID + 1 + 256 * bytes_ + len(alphabet)
    assert len(characters.encode(TEXT[0])) == len(TEXT[0]) + 1
    assert characters.decode(characters.encode(TEXT[0])) == TEXT[0]
    assert len(characters.encode("Q")) == 2
    assert characters.decode(characters.encode("Q")) == ("Q" if bytes_ else " \u2047 ")


def test_the_fix_is_one_that_the_configuration_allows(tmp_path: Path) -> None:
    """FAULTS 41: with byte_fallback no vocabulary below 300; and what many characters need."""
    many = ["".join(chr(0x4E00 + 60 * i + j) for j in range(60)) for i in range(10)]
    for lines, config, problem in (
        (["Guten Tag."] * 3, TokenizerConfig(kind="unigram"), "byte_fallback: false"),
        (many, TokenizerConfig(vocab_size=300), "need 861"),
    ):
        with pytest.raises(TokenizerError, match=problem):
            train_sentencepiece(lines, tmp_path / "m", config, threads=1)


@pytest.mark.parametrize("side", ["source", "target"])
def test_the_fix_names_the_side_whose_vocabulary_is_too_large(tmp_path: Path, side: str) -> None:
    sizes = {"source": 40, "target": 40, side: 8000}
    values = {"joint": False, "byte_fallback": False, "vocab_size": sizes}
    with pytest.raises(VocabularySizeError) as raised:
        trained(tmp_path, TokenizerConfig.model_validate(values), f"{side}.model")
    assert f"tokenizer.vocab_size.{side} " in raised.value.fix


@pytest.mark.parametrize(
    ("normalization", "text"),
    [("identity", "ﬁnd Café"), ("nmt_nfkc", "find Café"), ("nmt_nfkc_cf", "find café")],
)
def test_text_is_normalized_as_configured(tmp_path: Path, normalization: str, text: str) -> None:
    values = {"vocab_size": 300, "normalization": normalization}
    tokenizer = Tokenizer.load(trained(tmp_path, TokenizerConfig.model_validate(values)))
    assert tokenizer.decode(tokenizer.encode("ﬁnd Café")) == text


def test_tags_are_known_by_language_and_only_those_at_the_start_are_removed(
    tmp_path: Path,
) -> None:
    values = {"vocab_size": 350, "user_defined_symbols": ("<2de>", "<2pt_BR>", "<bt>")}
    tokenizer = Tokenizer.load(trained(tmp_path, TokenizerConfig.model_validate(values)))
    german, portuguese, back = (tokenizer.tags[tag] for tag in ("<2de>", "<2pt_BR>", "<bt>"))
    for code, expected in (("de", german), ("de-AT", german), ("pt", portuguese)):
        assert tokenizer.language_id(code) == expected
    for tag, expected in (("de", german), ("<2de>", german), ("bt", back), ("<bt>", back)):
        assert tokenizer.tag_id(tag) == expected
    for wrong in (tokenizer.language_id, tokenizer.tag_id):
        with pytest.raises(ConfigError, match=r"'(<2)?fr>?'"):
            wrong("fr")
    words = tokenizer.encode("Hund <bt> Haus")
    assert words.count(back) == 1
    assert tokenizer.without_tags([german, back, *words]) == words
    assert list(tokenizer.without_tags([german, back])) == []


def test_garbage_truncated_and_foreign_models_are_refused(tmp_path: Path) -> None:
    path, foreign, file = trained(tmp_path / "tokenizer"), "for pad, unk, bos, eos", io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT), model_writer=file, vocab_size=50, minloglevel=2
    )
    contents = dict.fromkeys((b"", b"garbage!" * 40, path.read_bytes()[:4000]), "is not a valid")
    for content, problem in (contents | {file.getvalue(): foreign}).items():
        path.write_bytes(content)
        with pytest.raises(TokenizerError, match=problem):
            load_tokenizers(path.parent)


def test_a_folder_holds_one_joint_or_two_separate_models(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"neither joint\.model nor source\.model nor target"):
        load_tokenizers(tmp_path)
    trained(tmp_path, name="source.model")
    with pytest.raises(TokenizerError, match=r"nor target\.model"):
        load_tokenizers(tmp_path)
    trained(tmp_path, name="target.model")
    separate = load_tokenizers(tmp_path)
    one_hash = tokenizer_hash(tmp_path)
    trained(tmp_path, name="joint.model")
    joint = load_tokenizers(tmp_path)
    assert (separate.is_joint, joint.is_joint) == (False, True)
    # After a journey to another process, they still share one model.
    assert pickle.loads(pickle.dumps(joint)).is_joint
    assert tokenizer_hash(tmp_path) != one_hash


def test_models_of_the_same_two_files_differ_when_their_sides_are_swapped(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("first", "second", "copy")]
    names = ("source.model", "target.model"), ("target.model", "source.model")
    for folder, (one, other) in zip(folders, (*names, names[0]), strict=True):
        folder.mkdir()
        (folder / one).write_bytes(b"one")
        (folder / other).write_bytes(b"other")
    first, second, copy = map(tokenizer_hash, folders)
    assert first == copy != second
