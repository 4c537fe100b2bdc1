"""Every language has its letters in the vocabulary, and the text that training reads decides."""

# ruff: noqa: RUF001 - texts in many scripts
from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from nmt.config.data import DataConfig, Direction, TokenizerConfig
from nmt.data.prepared import PreparedData, Recipe
from nmt.data.vocabulary import TextSample, cover, training_weights
from nmt.errors import ConfigError, DataError, TokenizerError
from nmt.text.tokenizer import Tokenizer, load_tokenizers
from tests.commands.preparing import config_for, corpus, prepare, write, write_pairs
from tests.learning import train_sentencepiece

# A made-up small language in a script of its own: the digits of numbers as Tibetan letters.
LETTERS = [chr(0xF40 + number) for number in range(10)]


def small_language(count: int, start: int = 0) -> tuple[list[str], list[str]]:
    sources, _ = corpus(start + count)
    targets = list[str]()
    for number in range(start, start + count):
        digits = str(7919 * (number + 3))
        targets.append("\u0f0b".join(LETTERS[int(digit)] * 9 for digit in digits))
    return sources[start:], targets


def with_small_language(folder: Path, count: int, **changes: Any) -> Any:
    sources, targets = small_language(count)
    small = {
        "name": "small", "weight": 20.0, "target_language": "bo",
        "source": write(folder, "small.de", sources), "target": write(folder, "small.bo", targets),
    }  # fmt: skip
    large = {"name": "large", **write_pairs(folder, *corpus(2000))}
    valid = write_pairs(folder, *corpus(5), part="valid")
    data = {"train": [large, small], "valid": valid, "temperature": 5}
    tokenizer = {"vocab_size": 400}
    return config_for(folder, data=data, tokenizer=tokenizer, **changes)


def test_a_small_language_beside_a_large_one_keeps_its_letters_and_pairs(tmp_path: Path) -> None:
    config = with_small_language(tmp_path, 30)
    report = prepare(config)
    assert report.counts["small"]["kept"] == 30
    target = PreparedData.open(config.prepared_dir)
    tokenizer = load_tokenizers(target.tokenizer_dir).target
    _, targets = small_language(30)
    for ids in tokenizer.encode_batch(targets):
        assert not any(tokenizer.is_fallback(index) for index in ids)
        assert len(ids) < 40  # of 50 to 60 characters: there are subwords of several letters


def test_equal_weights_count_every_line_once() -> None:
    sample = TextSample({"a": Direction("de", "en"), "b": Direction("de", "fr")}, 100)
    for number in range(30):
        sample.add("a" if number % 3 else "b", str(number), "x")
    data = {"train": [{"demo": "train"}, {"demo": "train"}], "valid": {"demo": "valid"}}
    sample.weigh(DataConfig.model_validate(data))
    assert {count for _, count in sample.lines((0, 1), is_last=True)} == {1}


def test_lines_count_as_often_as_training_reads_them() -> None:
    """Shares by hand: with temperature 2, sqrt(900) : sqrt(4 x 25) = 30 : 10."""
    sample = TextSample({"a": Direction("de", "en"), "b": Direction("de", "fr")}, 50)
    for number in range(900):
        sample.add("a", str(number), "x")
    for number in range(25):
        sample.add("b", f"b{number}", "x")
    train = [{"demo": "train"}, {"demo": "train", "weight": 4.0}]
    values = {"train": train, "valid": {"demo": "valid"}, "temperature": 2.0}
    sample.weigh(DataConfig.model_validate(values))
    totals = Counter[bool]()
    for line, count in sample.lines((0,), is_last=True):
        totals[line.startswith("b")] += count
    assert totals[False] / totals[True] == pytest.approx(3, rel=0.01)


def test_the_weights_of_a_curriculum_are_the_mean_of_its_stages() -> None:
    train = [{"name": name, "demo": "train"} for name in ("a", "b")]
    first = {"mix": {"a": 1.0}, "until": {"steps": 10.0}}
    second = {"mix": {"a": 1.0, "b": 3.0}}
    data = {"train": train, "valid": {"demo": "valid"}, "stages": [first, second]}
    # An epoch of the first stage reads a once; one of the second has 300 pairs, 75 of a.
    weights = training_weights(DataConfig.model_validate(data), [100, 200])
    assert weights == pytest.approx([(1 + 0.75) / 2, (0 + 225 / 200) / 2])


def test_a_change_of_the_weights_learns_the_vocabulary_again(tmp_path: Path) -> None:
    def recipe_hash(**data: Any) -> str:
        base = config_for(tmp_path)
        train = [
            each.model_copy(update={"weight": data.pop("weight", 1.0)}) for each in base.data.train
        ]
        train.append(train[0].model_copy(update={"name": "other", "weight": 1.0}))
        changed = base.data.model_copy(update={"train": tuple(train), **data})
        config = base.model_copy(update={"data": changed})
        return Recipe(config=config, bound={}).hash()

    assert recipe_hash() == recipe_hash(weight=1.0) == recipe_hash(temperature=1.0)
    assert len({recipe_hash(), recipe_hash(weight=2.0), recipe_hash(temperature=5.0)}) == 3


@given(
    st.dictionaries(st.sampled_from(["de", "el", "shn"]), st.text(min_size=1), min_size=1),
    st.integers(1, 20),
)
def test_each_language_loses_only_what_does_not_fit(texts: dict[str, str], room: int) -> None:
    counts = {language: Counter(text) for language, text in texts.items()}
    unlimited = cover(counts, 1.0, None)
    assert unlimited.characters == {" "}.union(*texts.values())
    assert not unlimited.lacking
    limited = cover(counts, 1.0, room)
    assert len(limited.characters) == min(room, unlimited.num_wanted)
    assert limited.characters <= unlimited.characters
    for language, text in texts.items():
        missing = set(text) - limited.characters
        number, share = limited.lacking.get(language, (0, 0.0))
        assert number == len(missing)
        assert share == pytest.approx(sum(map(text.count, missing)) / len(text))


def test_rare_characters_of_a_language_are_left_out_as_configured(tmp_path: Path) -> None:
    """One of 200 characters is rare: 0.5% of the text of its language."""
    lines = [*(["ab" * 50] * 19), "ab" * 45 + "q" * 10]
    for coverage, is_known in ((0.99, False), (1.0, True)):
        tokenizer = {"vocab_size": 290, "kind": "char", "character_coverage": coverage}
        data = {"train": [write_pairs(tmp_path, lines, lines)], "valid": write_pairs(
            tmp_path, lines[:2], lines[:2], "valid")}  # fmt: skip
        if not is_known:
            tokenizer["vocab_size"] = 263
        else:
            tokenizer["vocab_size"] = 264
        config = config_for(tmp_path, data=data, tokenizer=tokenizer)
        prepare(config)
        model = load_tokenizers(config.prepared_dir / "tokenizer").target
        assert not any(map(model.is_fallback, model.encode("ab")))
        assert any(map(model.is_fallback, model.encode("q"))) is not is_known


def test_characters_without_room_are_counted_with_the_size_that_holds_them(tmp_path: Path) -> None:
    characters = [chr(0x4E00 + number) for number in range(400)]
    lines = ["".join(characters[at : at + 20]) for at in range(0, 400, 20)] * 2
    data = {
        "train": [write_pairs(tmp_path, lines, lines)],
        "valid": write_pairs(tmp_path, lines[:2], lines[:2], "valid"),
    }

    def warnings(size: int) -> list[str]:
        config = config_for(tmp_path, data=data, tokenizer={"vocab_size": size})
        return [text for text in prepare(config).warnings if "no room" in text]

    (german, english) = warnings(500)
    # Half of 500 are 250, but 240 are left beside 260 fixed ones; one of the 240 is the space.
    assert "no room for 161 characters of de (40.2% of its text)" in german
    assert "characters of en" in english
    assert "set tokenizer.vocab_size to 802 or more" in german
    assert not warnings(802)


def test_an_existing_model_is_used_as_it_is(tmp_path: Path) -> None:
    sources, targets = corpus(50)
    path = tmp_path / "own.model"
    train_sentencepiece([*sources, *targets], path, TokenizerConfig(vocab_size=320), threads=1)
    config = config_for(tmp_path, tokenizer={"from": str(path), "vocab_size": 999})
    report = prepare(config)
    tokenizers = load_tokenizers(config.prepared_dir / "tokenizer")
    assert tokenizers.vocab_sizes == (320, 320)
    assert tokenizers.source.cleans
    assert not report.up_to_date
    assert prepare(config).up_to_date
    # Another model under the same name is another vocabulary.
    train_sentencepiece(sources, path, TokenizerConfig(vocab_size=300), threads=1)
    assert not prepare(config).up_to_date
    assert load_tokenizers(config.prepared_dir / "tokenizer").vocab_sizes == (300, 300)


def test_an_existing_model_for_each_side(tmp_path: Path) -> None:
    paths = {side: str(tmp_path / f"{side}-own.model") for side in ("source", "target")}
    for path, lines, size in zip(paths.values(), corpus(50), (310, 320), strict=True):
        train_sentencepiece(lines, Path(path), TokenizerConfig(vocab_size=size), threads=1)
    model = {"embeddings": "decoder-tied"}
    config = config_for(tmp_path, tokenizer={"from": paths, "joint": False}, model=model)
    prepare(config)
    tokenizers = load_tokenizers(config.prepared_dir / "tokenizer")
    assert tokenizers.vocab_sizes == (310, 320)
    with pytest.raises(ValueError, match="from has a value for each side"):
        TokenizerConfig.model_validate({"from": paths, "joint": True})


@pytest.mark.parametrize("content", [None, b"", b"no model"])
def test_a_model_that_cannot_be_read_is_refused_before_the_corpora_are_read(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "own.model"
    if content is not None:
        path.write_bytes(content)
    config = config_for(tmp_path, tokenizer={"from": str(path)})
    with pytest.raises((TokenizerError, DataError, ConfigError), match=r"own\.model"):
        prepare(config)
    assert not config.prepared_dir.exists()


def test_a_model_with_other_special_symbols_is_refused_with_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "own.model"
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(corpus(50)[0]), model_writer=file, vocab_size=30, minloglevel=2
        )
    with pytest.raises(TokenizerError, match="has the ids") as caught:
        prepare(config_for(tmp_path, tokenizer={"from": str(path)}))
    assert "--pad_id=0 --unk_id=1 --bos_id=2 --eos_id=3" in str(caught.value.fix)


@pytest.mark.parametrize("joint", [True, False])
def test_symbols_of_any_shape_stay_whole_in_both_vocabularies(tmp_path: Path, joint: bool) -> None:
    symbols = ["__NUM__", "<url>", "\uff5fmail\uff60", "[X]", "@@", "ＡＢ"]
    sources, targets = corpus(60)
    lines = [
        [f"{line} {symbol}" for line in side for symbol in symbols] for side in (sources, targets)
    ]
    tokenizer = {"vocab_size": 320, "joint": joint, "user_defined_symbols": symbols}
    data = {
        "train": [write_pairs(tmp_path, lines[0], lines[1])],
        "valid": write_pairs(tmp_path, lines[0][:5], lines[1][:5], "valid"),
    }
    model = {"embeddings": "decoder-tied"}
    config = config_for(tmp_path, data=data, tokenizer=tokenizer, model=model)
    prepare(config)
    tokenizers = load_tokenizers(config.prepared_dir / "tokenizer")
    for side in tokenizers:
        for symbol in symbols:
            ids = side.encode(f"a {symbol} b{symbol}")
            assert len([index for index in ids if index in side.symbols.values()]) == 2
    assert tokenizers.target.decode(tokenizers.target.encode("a ＡＢ [X]")) == "a ＡＢ [X]"
    for symbol in ("a b", "", "\u2581", "<s>", "<unk>", "<0x41>"):
        with pytest.raises(ValueError, match="user_defined_symbols"):
            TokenizerConfig.model_validate({"user_defined_symbols": [symbol]})


def test_a_corpus_that_loses_most_pairs_warns_first_and_one_that_loses_all_is_refused(
    tmp_path: Path,
) -> None:
    sources, targets = ([" ".join([line] * 4) for line in side] for side in corpus(60))
    short = ["x"] * 50 + targets[50:]
    data = {
        "train": [
            {"name": "good", **write_pairs(tmp_path, sources, targets)},
            {"name": "odd", **write_pairs(tmp_path, sources, short, "odd")},
        ],
        "valid": write_pairs(tmp_path, sources[:5], targets[:5], "valid"),
    }
    config = config_for(tmp_path, data=data)
    text = prepare(config).as_text()
    first = text.splitlines()[0]
    assert first.startswith("warning: odd: only 10 of 60 sentence pairs are left; the reason ratio")
    write(tmp_path, "odd.en", ["x"] * 60)
    with pytest.raises(DataError, match="dropped all training pairs of odd: ratio 60"):
        prepare(config)


def test_a_script_that_is_spelled_in_bytes_is_not_longer_text(tmp_path: Path) -> None:
    train_sentencepiece(
        corpus(50)[0], tmp_path / "joint.model", TokenizerConfig(vocab_size=310), threads=1
    )
    model = Tokenizer.load(tmp_path / "joint.model")
    counts = model.usual_subwords()
    (ids,) = model.encode_batch(["\u1075\u1062\u1019"])  # three letters of three bytes
    assert len(ids) == 10
    assert sum(counts[index] for index in ids) == pytest.approx(2)  # the space, and one subword


def test_a_model_that_splits_a_symbol_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.model"
    config = TokenizerConfig(vocab_size=320, user_defined_symbols=("__A__",))
    train_sentencepiece(corpus(50)[0], path, config, threads=1)
    values: dict[str, Any] = {"from": str(path), "user_defined_symbols": ["__A__"]}
    prepare(config_for(tmp_path, tokenizer=values))
    values["user_defined_symbols"] = ["__A__", "__B__"]
    with pytest.raises(ConfigError, match=r"own\.model splits __B__"):
        prepare(config_for(tmp_path, tokenizer=values))


def test_a_target_that_no_model_can_write_is_told_with_the_way_out(tmp_path: Path) -> None:
    sources, targets = corpus(60)
    for lost, advice in (("\u2581", "Replace U+2581"), ("\uff0c", "normalization to identity")):
        valid = write_pairs(tmp_path, sources[:2], ["one", f"a{lost}b"], "held")
        data = {"train": [write_pairs(tmp_path, sources, targets)], "valid": valid}
        tokenizer = {"vocab_size": 320, "normalization": "nmt_nfkc"}
        warnings = prepare(config_for(tmp_path, data=data, tokenizer=tokenizer)).warnings
        (warning,) = (text for text in warnings if "the tokenizer changes" in text)
        assert "1 of 2 lines (50%)" in warning
        assert advice in warning
