"""Corpora in which each line names its target language: a tag, a column or a file of codes."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import nmt.data.corpus
from nmt.cli.app import app
from nmt.commands.evaluation_set import ConfiguredSets, load_test_sets
from nmt.commands.options import EvaluateOptions
from nmt.config.loader import dump_config, load_config
from nmt.config.run import RunConfig
from nmt.data.corpus import read_blocks
from nmt.data.formats.pair import ReadOptions
from nmt.data.prepared import PreparedData
from nmt.errors import ConfigError, DataError
from nmt.text.tokenizer import load_tokenizers
from tests.commands.preparing import decoded, prepare, write

CODES = {"de": "deu", "fr": "fra", "el": "ell"}  # of the configuration, and of the lines
WORDS = {
    "en": ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"],
    "de": ["eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn"],
    "fr": ["un", "deux", "trois", "quatre", "cinq", "six", "sept", "huit", "neuf", "dix"],
    "el": ["ένα", "δύο", "τρία", "τέσσερα", "πέντε", "έξι", "επτά", "οκτώ", "εννέα", "δέκα"],
}
Rows = list[tuple[str, str, str]]  # Language, source and target of each line.
TAGGED = {"source": "train.src", "target": "train.tgt", "target_languages": [*CODES]}


def sentence(language: str, number: int) -> str:
    return " ".join(WORDS[language][int(digit)] for digit in str(7919 * (number + 3)))


def rows_of(count: int = 120, languages: tuple[str, ...] = ("de", "fr", "el", "fr")) -> Rows:
    rows = []
    for number in range(count):
        language = languages[number % len(languages)]
        rows.append((language, sentence("en", number), sentence(language, number)))
    return rows


def write_tagged(folder: Path, rows: Rows, part: str = "train") -> None:
    write(folder, f"{part}.src", [f">>{CODES.get(row[0], row[0])}<< {row[1]}" for row in rows])
    write(folder, f"{part}.tgt", [row[2] for row in rows])


def config_for(folder: Path, *corpora: dict[str, Any], **changes: Any) -> RunConfig:
    """The files of the corpora are in the working folder, which is ``folder``."""
    write(folder, "valid.en", [sentence("en", number) for number in range(500, 505)])
    write(folder, "valid.de", [sentence("de", number) for number in range(500, 505)])
    valid = {"source": "valid.en", "target": "valid.de", "target_language": "de"}
    data = {"train": list(corpora), "valid": valid, **changes.pop("data", {})}
    values: dict[str, Any] = {
        "name": "lines", "source_language": "en", "target_language": "de", "data": data,
        "tokenizer": {"vocab_size": 90, "byte_fallback": False}, "training": {"max_steps": 1},
    }  # fmt: skip
    return RunConfig.model_validate(values | changes)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read_lines(prepared: Path) -> list[tuple[str, int, str, str]]:
    """Return first subword, line, source without its tag, and target of each training pair."""
    data = PreparedData.open(prepared)
    tokenizers = load_tokenizers(data.tokenizer_dir)
    lines = []
    for row in range(len(data.train)):
        source = data.train.source.ids(np.array([row])).ids.tolist()
        target = data.train.target.ids(np.array([row])).ids.tolist()
        [tag] = tokenizers.source.subwords(source[:1])
        texts = tokenizers.source.decode(source[1:]), tokenizers.target.decode(target)
        lines.append((tag, int(data.train.lines[row]), *texts))
    return lines


def expected_lines(rows: Rows) -> list[tuple[str, int, str, str]]:
    lines = []
    for language in CODES:
        for number, (code, source, target) in enumerate(rows, start=1):
            if code == language:
                lines.append((f"<2{language}>", number, source, target))
    return lines


def place_of(kind: str, folder: Path, rows: Rows) -> dict[str, Any]:
    """Write the rows in one of the forms, and return the keys of the corpus."""
    if kind == "tag":
        write_tagged(folder, rows)
        return TAGGED
    if kind == "file":
        write(folder, "plain.src", [row[1] for row in rows])
        write(folder, "plain.tgt", [row[2] for row in rows])
        write(folder, "plain.codes", [CODES[row[0]] for row in rows])
        place = {"source": "plain.src", "target": "plain.tgt", "language_file": "plain.codes"}
        return {**place, "target_languages": [*CODES]}
    path = folder / f"rows.{kind}"
    columns: list[Any] = ["from", "to", "language"]
    with path.open("w", encoding="utf-8", newline="") as file:
        if kind == "jsonl":
            for code, source, target in rows:
                record = {"language": CODES[code], "from": source, "to": target}
                file.write(f"{json.dumps(record)}\n")
        elif kind == "csv":
            csv.writer(file, lineterminator="\n").writerows(rows)
            columns = [1, 2, 0]
        else:
            file.writelines(f"{source}\t{CODES[code]}\t{target}\n" for code, source, target in rows)
            columns = [0, 2, 1]
    return {"path": path.name, "columns": columns, "target_languages": [*CODES]}


@pytest.mark.parametrize("kind", ["tag", "file", "tsv", "csv", "jsonl"])
def test_a_tag_a_file_or_a_column_names_the_language_of_each_line(kind: str, folder: Path) -> None:
    rows = rows_of()
    config = config_for(folder, place_of(kind, folder, rows))
    assert list(map(str, config.directions)) == ["en-de", "en-fr", "en-el"]
    report = prepare(config)
    lines = read_lines(config.prepared_dir)
    assert lines == expected_lines(rows)
    assert [counts["read"] for counts in report.counts.values()] == [30, 60, 30, 5]


def test_the_data_are_those_of_one_corpus_for_each_language(folder: Path) -> None:
    rows = rows_of()
    write_tagged(folder, rows)
    separate = []
    for language in CODES:
        part = [row for row in rows if row[0] == language]
        write(folder, f"{language}.src", [row[1] for row in part])
        write(folder, f"{language}.tgt", [row[2] for row in part])
        place = {"source": f"{language}.src", "target": f"{language}.tgt"}
        separate.append({**place, "target_language": language})
    prepare(config_for(folder, TAGGED, prepared_dir="together"))
    prepare(config_for(folder, *separate, prepared_dir="separate"))
    paths = [*Path("separate").rglob("*.bin"), *Path("separate").rglob("*.model")]
    assert len(paths) > 4
    for path in paths:
        if path.name != "lines.bin":  # the lines of the text of all languages
            assert Path("together", *path.parts[1:]).read_bytes() == path.read_bytes()


def test_every_block_has_the_pairs_that_name_its_language_by_their_lines(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks without such a pair are left out; the language of the last line begins late."""
    monkeypatch.setattr(nmt.data.corpus, "_FIRST_PAIRS", 10)
    rows = rows_of(50, ("de",)) + rows_of(3, ("fr",))
    write_tagged(folder, rows)
    config = config_for(folder, TAGGED | {"target_languages": ["de", "fr"]})
    french = config.data.train[1]
    blocks = list(read_blocks(french, ReadOptions("en", "fr")))
    assert [[pair.line for pair in block.pairs] for block in blocks] == [[51, 52, 53]]
    assert [(block.first, block.num_others) for block in blocks] == [(1, 50)]


def test_a_line_without_a_language_of_the_corpus_is_counted_with_its_text(folder: Path) -> None:
    rows = rows_of()
    rows[70] = ("rus", "some words", "ein paar Worte")
    write_tagged(folder, rows)
    report = prepare(config_for(folder, TAGGED))
    for name in ("train.src-de", "train.src-fr", "train.src-el"):
        assert report.counts[name]["language_code"] == 1
        assert report.example(name, "language_code") == "line 71: >>rus<< some words"
    assert read_lines(Path("prepared/lines")) == expected_lines(rows)


@pytest.mark.parametrize("languages", [["de", "fr"], ["el", "de", "fr"]])
def test_more_than_1_percent_of_the_text_without_a_language_stops(
    languages: list[str], folder: Path
) -> None:
    """The share is that of the whole text, not of the lines in one language: here 2 of 7."""
    rows = rows_of(295, ("de", "fr")) + rows_of(5, ("el",))
    rows[7] = rows[8] = ("", "no code", "kein Code")
    write_tagged(folder, rows)
    config = config_for(folder, TAGGED | {"target_languages": languages})
    if len(languages) == 3:
        prepare(config)
        return
    with pytest.raises(DataError) as caught:
        prepare(config)
    assert caught.value.problem == (
        "train.src-de: 7 of 300 pairs name no language of target_languages or source_languages "
        "(language_code). "
        "The first is train.src, line 8: '>><< no code'."
    )
    assert "target_languages (such as [fr, de])" in caught.value.fix
    skipping = config.filters.model_copy(update={"on_bad_row": "skip"})
    report = prepare(config.model_copy(update={"filters": skipping}))
    assert report.counts["train.src-de"]["language_code"] == 7


def test_a_tag_in_front_of_a_source_is_never_read_as_text_in_silence(folder: Path) -> None:
    write_tagged(folder, rows_of(40, ("de",)))
    place = {"source": "train.src", "target": "train.tgt"}
    with pytest.raises(DataError, match="40 of 40 pairs name no language") as caught:
        prepare(config_for(folder, place))
    assert "target_languages (such as [fr, de])" in caught.value.fix
    # A corpus in one language has lines with tags, too.
    report = prepare(config_for(folder, {**place, "target_languages": ["de"]}))
    assert report.counts["train.src-de"] == {"read": 40, "kept": 40}
    with pytest.raises(DataError, match="40 of 40 pairs name no language"):
        prepare(config_for(folder, {**place, "target_languages": ["de"]}, data={"valid": place}))


def test_a_tag_that_the_vocabulary_has_stays_in_the_text(folder: Path) -> None:
    write_tagged(folder, rows_of(40, ("de",)))
    symbols = {"vocab_size": 90, "byte_fallback": False, "user_defined_symbols": [">>deu<<"]}
    config = config_for(folder, {"source": "train.src", "target": "train.tgt"}, tokenizer=symbols)
    prepare(config)
    assert {line[0] for line in read_lines(config.prepared_dir)} == {">>deu<<"}


def test_init_refuses_lines_with_tags(folder: Path) -> None:
    write_tagged(folder, rows_of(400, ("de", "fr")))
    command = ["init", "train.src", "train.tgt", "--languages", "en-de", "--output", "project"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 3
    assert "400 of 400 pairs: with the tag of a language" in result.output
    assert "target_languages in data.train" in result.output
    assert not Path("project").exists()


def test_filters_judge_a_line_by_its_own_language(folder: Path) -> None:
    """Greek letters are wrong in the German line, and right in the Greek one."""
    rows = rows_of()
    rows[0] = ("de", rows[0][1], sentence("el", 0))
    write_tagged(folder, rows)
    report = prepare(config_for(folder, TAGGED, filters={"script": "drop"}))
    dropped = [counts.get("script", 0) for counts in report.counts.values()]
    assert dropped == [1, 0, 0, 0]


def test_a_held_out_set_becomes_one_for_each_language(folder: Path) -> None:
    write_tagged(folder, rows_of())
    rows = rows_of(12)
    write_tagged(folder, rows, "test")
    held_out = TAGGED | {"source": "test.src", "target": "test.tgt"}
    config = config_for(folder, TAGGED, data={"valid": held_out, "test": {"news": held_out}})
    assert list(config.data.test) == ["news-de", "news-fr", "news-el"]
    report = prepare(config)
    assert [report.counts[f"test.src-{code}"]["kept"] for code in CODES] == [3, 6, 3]
    sets = ConfiguredSets(("en", "de"), config.directions, config.data)
    [french] = load_test_sets(EvaluateOptions(models=(Path("x"),), test=("news-fr",)), sets)
    assert french.target_language == "fr"
    pairs = [(source, target) for code, source, target in rows if code == "fr"]
    assert list(zip(french.source or (), french.references[0], strict=True)) == pairs
    with pytest.raises(ConfigError, match="Did you mean news-"):
        load_test_sets(EvaluateOptions(models=(Path("x"),), test=("news",)), sets)


def test_each_line_has_its_references_and_its_language(folder: Path) -> None:
    rows = rows_of(12)
    place = place_of("file", folder, rows)
    write(folder, "second.tgt", [f"{row[2]} again" for row in rows])
    held_out = place | {"target": ["plain.tgt", "second.tgt"]}
    config = config_for(folder, place, data={"test": {"news": held_out}})
    sets = ConfiguredSets(("en", "de"), config.directions, config.data)
    [greek] = load_test_sets(EvaluateOptions(models=(Path("x"),), test=("news-el",)), sets)
    targets = [row[2] for row in rows if row[0] == "el"]
    assert greek.references == (tuple(targets), tuple(f"{text} again" for text in targets))


def test_lines_keep_their_file_if_the_corpus_has_several(folder: Path) -> None:
    for part in ("a", "b"):
        write_tagged(folder, rows_of(40, ("de", "fr")), part)
    place = {"source": ["a.src", "b.src"], "target": ["a.tgt", "b.tgt"]}
    config = config_for(folder, {**place, "target_languages": ["de", "fr"]})
    blocks = list(read_blocks(config.data.train[1], ReadOptions("en", "fr")))
    assert [(block.shard, block.first, block.num_before) for block in blocks] == [
        ("a.src", 1, 0), ("b.src", 21, 20)
    ]  # fmt: skip
    assert [[pair.line for pair in block.pairs] for block in blocks] == [[*range(2, 41, 2)]] * 2


def test_the_complete_configuration_reads_the_same_lines_again(folder: Path) -> None:
    write_tagged(folder, rows_of())
    corpus = {**TAGGED, "name": "all"}
    config = config_for(folder, corpus, data={"test": {"news": TAGGED}})
    assert [corpus.name for corpus in config.data.train] == ["all-de", "all-fr", "all-el"]
    Path("complete.yaml").write_text(dump_config(config), "utf-8")
    assert load_config(Path("complete.yaml")) == config


def test_one_language_can_be_chosen(folder: Path) -> None:
    write_tagged(folder, rows_of())
    report = prepare(config_for(folder, {**TAGGED, "target_language": "de", "name": "german"}))
    assert report.counts["german"] == {"read": 30, "kept": 30}


@pytest.mark.parametrize("kind", ["tag", "file", "tsv", "csv", "jsonl"])
def test_the_language_of_each_source_is_named_in_the_same_ways(kind: str, folder: Path) -> None:
    rows = [(code, target, source) for code, source, target in rows_of()]
    place = place_of(kind, folder, rows) | {"target_languages": [], "source_languages": [*CODES]}
    changes = {"source_language": "de", "target_language": "en", "tokenizer": {"vocab_size": 400}}
    valid = {"source": "valid.de", "target": "valid.en"}
    config = config_for(folder, place, **changes, data={"valid": valid})
    assert list(map(str, config.directions)) == ["de-en", "fr-en", "el-en"]
    report = prepare(config)
    assert [counts["read"] for counts in report.counts.values()] == [30, 60, 30, 5]
    expected = {(source, target) for _, source, target in rows}
    assert set(decoded(config.prepared_dir)) == expected


def test_files_of_codes_have_a_code_for_each_line(folder: Path) -> None:
    place = place_of("file", folder, rows_of())
    write(folder, "plain.codes", ["deu"] * 100)
    with pytest.raises(DataError, match=r"plain\.src has 120 lines but plain\.codes has 100"):
        prepare(config_for(folder, place))


def test_a_language_that_no_line_names_is_reported(folder: Path) -> None:
    write_tagged(folder, rows_of(40, ("de", "fr")))
    with pytest.raises(DataError, match=r"train\.src: no line names the language 'el'"):
        prepare(config_for(folder, TAGGED))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target_languages": [], "language_file": "x"}, "language_file need target_languages or"),
        ({"source_languages": ["en"]}, "target_languages and source_languages cannot be combined"),
        ({"scores": "x"}, "scores and the languages of lines cannot be combined"),
        (
            {"source": [], "target": [], "path": "x", "language_file": "x"},
            "needs source and target",
        ),
    ],
)
def test_keys_that_contradict_each_other_are_refused(
    changes: dict[str, Any], message: str, folder: Path
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        config_for(folder, TAGGED | changes)
