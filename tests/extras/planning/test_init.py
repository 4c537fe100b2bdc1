"""Parallel text in; three sets without a common sentence, and a configuration that trains, out."""

from __future__ import annotations

import gzip
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import polib
import pytest
from typer.testing import CliRunner

from nmt.cli.app import app
from nmt.commands.config import load_config
from nmt.config.data import CorpusConfig
from nmt.config.filling import SCALES, TextSize, scale_of
from nmt.config.run import RunConfig
from nmt.data.corpus import measure_text
from nmt.data.demo import demo_pairs
from nmt.data.formats.pair import BadReason
from nmt.errors import ConfigError, DataError, join_words
from nmt.extras.planning import init as init_module
from nmt.extras.planning.init import Start, init
from nmt.extras.planning.options import InitOptions
from tests.commands import preparing

PARTS = ("train", "valid", "test")


def corpus(count: int = 400, words: int = 90) -> tuple[Path, Path]:
    """A corpus with sentences that come again, with the same and with other translations."""
    sides = [[f"{letter} {i * step % words}" for i in range(count)] for letter, step in
             (("satz", 7), ("line", 11))]  # fmt: skip
    sides[0][3], sides[1][5] = "  ", ""
    Path("c.de").write_text("\n".join(sides[0]) + "\n", "utf-8")
    Path("c.en.gz").write_bytes(gzip.compress(("\n".join(sides[1]) + "\n").encode()))
    return Path("c.de"), Path("c.en.gz")


def started(files: tuple[Path, ...], **options: Any) -> Start:
    return init(InitOptions(places=files, **options))


def bare(more: str = "") -> Path:
    """A configuration without the sections that go with the size of its corpus."""
    config = started(corpus()).config
    path = config.with_name("bare.yaml")
    path.write_text(config.read_text("utf-8").partition("tokenizer:")[0] + more, "utf-8")
    return path


def read(folder: Path, part: str) -> list[tuple[str, str]]:
    sides = [(folder / f"{part}.{code}").read_text("utf-8").splitlines() for code in ("de", "en")]
    return list(zip(*sides, strict=True))


def test_no_set_shares_a_sentence_with_another_and_every_pair_is_accounted_for() -> None:
    source, target = corpus()
    start = started((source, target))
    lines = source.read_text("utf-8"), gzip.decompress(target.read_bytes()).decode()
    whole = list(zip(*(text.splitlines() for text in lines), strict=True))
    parts = {part: read(Path("de-en"), part) for part in PARTS}
    for side in range(2):
        sets = [{pair[side] for pair in parts[part]} for part in PARTS]
        assert len(set.union(*sets)) == sum(map(len, sets))
    for part in PARTS:
        assert set(parts[part]) <= set(whole)
        assert start.counts[part] == len(parts[part]) > 0
    assert start.left_out == {"blank": 2}
    assert start.counts["read"] == 400
    assert sum(start.counts[part] for part in (*PARTS, "copies")) == 398
    # The others stand in their order, and each as often as before.
    held = [{pair[side] for part in PARTS[1:] for pair in parts[part]} for side in range(2)]
    assert parts["train"] == [
        pair for pair in whole if all(pair[i].strip() and pair[i] not in held[i] for i in range(2))
    ]


@pytest.mark.parametrize("names", [("valid",), ("test",), ("valid", "test")])
def test_training_has_no_sentence_of_the_sets_that_the_user_passes(names: tuple[str, ...]) -> None:
    """The sets are copied, so that a project that has moved finds them from anywhere."""
    source, target = corpus()
    given = {"valid": ("satz 3", "line 9"), "test": ("neu", "line 20")}
    command = ["init", str(source), str(target), "-o", "new", "-l", "de-en"]
    for name in names:
        for code, text in zip(("de", "en"), given[name], strict=True):
            Path(f"own, {name} #1.{code}").write_text(f"{text}\n", "utf-8")
        command += [f"--{name}", *(f"own, {name} #1.{code}" for code in ("de", "en"))]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.stderr
    assert f"({' and '.join(names)} from your files" in result.stdout
    assert ("drawn with seed 1" in result.stdout) == (len(names) < 2)
    for path in Path().glob("*.*"):
        path.unlink()
    Path("new").rename("moved")
    data = load_config("moved/config.yaml").data
    sets: dict[str, Any] = {"train": data.train[0], "valid": data.valid[0], **data.test}
    texts = {}
    for name, each in sets.items():
        sides = [path.read_text("utf-8").splitlines() for [path] in (each.source, each.target)]
        texts[name] = list(zip(*sides, strict=True))
    assert all(texts[name] == [given[name]] for name in names)
    for side in range(2):
        own = [{pair[side] for pair in texts[name]} for name in PARTS]
        assert own[0]
        assert len(set.union(*own)) == sum(map(len, own))
    # Every pair of the corpus is drawn, a copy, blank or for training.
    copies = int(re.findall(r"left out: (\d+) that share", result.stdout)[0])
    assert sum(len(texts[name]) for name in {*PARTS} - {*names}) + copies + 2 == 400


def test_no_more_pairs_are_held_out_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt.extras.planning.init._MOST_HELD_OUT", 5)
    counts = started(corpus()).counts  # a twentieth would be 19
    assert (counts["valid"], counts["test"]) == (5, 5)


def test_a_byte_that_is_not_text_stops_before_anything_is_written() -> None:
    source, target = corpus(60)
    text = source.read_bytes()
    assert text.count(b"satz 7\n") == 1
    source.write_bytes(text.replace(b"satz 7\n", b"satz \xfc\n"))
    with pytest.raises(DataError, match=r"c\.de, line \d+, byte 6") as caught:
        started((source, target), output=Path("sub/folder/new"))
    assert "`encoding`" in caught.value.fix
    assert not Path("sub").exists()
    start = started((source, target), encoding="latin-1")
    assert start.layout["encoding"] == "iso8859-1"
    texts = [path.read_text("utf-8") for path in Path("de-en").glob("*.de")]
    assert "satz ü" in "".join(texts)
    source.write_bytes(text.replace(b"satz 7\n", "satz ü\n".encode()))
    with pytest.raises(DataError, match=r"c\.de is UTF-8, and not iso8859-1"):
        started((source, target), encoding="latin-1", output=Path("new"))


def test_the_same_seed_draws_the_same_pairs() -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        started(corpus(), output=Path(name), seed=seed)
    assert read(Path("a"), "test") == read(Path("b"), "test") != read(Path("c"), "test")


def test_the_configuration_has_the_values_that_a_bare_one_gets() -> None:
    """`training:` may be absent."""
    path = bare()
    written = load_config(path.with_name("config.yaml"))
    size = written.tokenizer.vocab_size  # fits the small text
    assert load_config(path, [f"tokenizer.vocab_size={size}"]) == written
    assert "training" not in RunConfig.model_json_schema()["required"]
    assert written.training.max_minutes == SCALES[0].sections["training"]["max_minutes"]
    assert written.training.schedule.warmup_ratio == 0.06


def test_a_tiny_corpus_gets_a_vocabulary_that_it_allows_and_little_hope() -> None:
    for name, lines in zip(("c.de", "c.en"), preparing.corpus(60), strict=True):
        Path(name).write_text("\n".join(lines) + "\n", "utf-8")
    start = started((Path("c.de"), Path("c.en")))
    assert "less than 4 to 17 BLEU" in start.as_text()
    assert preparing.prepare(load_config(start.config)).written


def test_explicit_values_override_those_for_the_size() -> None:
    path = bare("model: {dropout: 0.2}\n")
    config = load_config(path, ["training.seed=7", "batch.max_tokens=1000"])
    model, training = config.model, config.training
    assert (model.preset, model.positions, model.dropout) == ("tiny", "rotary", 0.2)
    assert (training.seed, config.batch.max_tokens) == (7, 1000)
    assert training.max_minutes == SCALES[0].sections["training"]["max_minutes"]


def test_the_size_of_a_hub_is_not_guessed() -> None:
    Path("hub.yaml").write_text(
        "{name: h, source_language: en, target_language: de, "
        "data: {train: [{huggingface: wmt/wmt14}], valid: {demo: valid}}}", "utf-8"
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"size of wmt/wmt14 is unknown"):
        load_config("hub.yaml")


def test_size_is_text_not_lines(tmp_path: Path) -> None:
    """Characters of both sides, however many bytes they have, and as often as an epoch reads."""
    source, target = tmp_path / "x.de", tmp_path / "x.ar.gz"
    source.write_text("für\nab\n", "utf-8")
    target.write_bytes(gzip.compress("سلام\n\n".encode()))
    (tmp_path / "x.tsv").write_text("a\tb\nc\td\n")
    files = CorpusConfig(source=(source,), target=(target,))
    some = files.model_copy(update={"max_pairs": 1, "weight": 3.0})
    columns = CorpusConfig(tsv=tmp_path / "x.tsv")
    sizes = [measure_text([each], ("de", "ar")) for each in (files, some, columns)]
    # The pairs have 3 + 4 and 2 + 0 characters, and two line ends each.
    assert sizes == [TextSize(2, 13), TextSize(3, 3 * 9), TextSize(2, 8)]
    assert measure_text([CorpusConfig(demo="train")], ("en", "de")).num_characters > 10_000
    batches = [scale_of(size).sections["batch"] for size in (1, 6_500_001, 10**9)]
    assert [batch["max_tokens"] for batch in batches] == [2048, 4096, 16_384]


def test_wrong_input_is_an_error() -> None:
    files = corpus()
    Path("there").mkdir()
    for options, message in (
        ({"languages": "de"}, "`languages` de is not a pair"),
        ({"languages": "de-de"}, "`languages` de-de is not a pair"),
        ({"languages": "cz-en"}, "cz is a country"),
        ({"columns": ("1",)}, "`columns` 1: expected two columns"),
        ({"columns": ("1", "2")}, "`columns` has no effect on aligned text files"),
        ({"encoding": "latin-99"}, "no encoding 'latin-99'"),
        ({"output": Path("there")}, "there already exists"),
    ):
        with pytest.raises(ConfigError, match=message):
            started(files, **options)
    Path("there/config.yaml").touch()
    with pytest.raises(ConfigError) as caught:
        started(files, output=Path("there"))
    assert "`nmt train there/config.yaml`" in caught.value.fix
    with pytest.raises(DataError, match=r"Too few pairs .*: 19"):
        started(corpus(21), output=Path("x/y"))
    assert not Path("x").exists()


def test_more_than_one_percent_of_wrong_rows_is_an_error_unless_they_may_be_skipped() -> None:
    german, english = preparing.corpus(300)
    rows = [f"{left}\t{right}" for left, right in zip(german, english, strict=True)]
    for number in (7, 70, 170, 270):
        rows[number] = "keine Spalte"
    Path("rows.tsv").write_text("\n".join(rows) + "\n", "utf-8")
    rows[7] = rows[8]
    Path("few.tsv").write_text("\n".join(rows) + "\n", "utf-8")
    options = {"languages": "de-en", "format": "tsv"}
    with pytest.raises(
        DataError, match=r"4 of 300 pairs: with too few or too many columns\. The first is line 8"
    ):
        started((Path("rows.tsv"),), **options)
    assert not Path("de-en").exists()
    skipping = started((Path("rows.tsv"),), output=Path("a"), skip_unreadable=True, **options)
    assert (skipping.left_out, skipping.counts["read"]) == ({"columns": 4}, 300)
    few = started((Path("few.tsv"),), output=Path("b"), **options)
    assert few.left_out == {"columns": 3}
    assert "left out: 3 with too few or too many columns (line 71: 'keine Spalte')" in few.as_text()


def test_it_prints_what_it_has_read_in_five_lines_and_three_pairs() -> None:
    german, english = preparing.corpus(60)
    rows = [f"{right};{left}" for left, right in zip(german, english, strict=True)]
    Path("table.csv").write_bytes("\n".join(["English;German", *rows]).encode("utf-16"))
    lines = started((Path("table.csv"),), languages="de-en").as_text().splitlines()
    assert lines[:5] == [
        "format:    csv",
        "encoding:  utf-16-le",
        "columns:   1 and 0",
        "languages: de-en (German to English)",
        "pairs:     60",
    ]
    shown = [line.strip().split(" | ") for line in lines[5:8]]
    assert [[side.strip() for side in pair] for pair in shown] == [
        list(pair) for pair in zip(german[:3], english[:3], strict=True)
    ]


def test_parts_of_a_folder_are_used_and_shards_are_joined() -> None:
    german, english = preparing.corpus(90)
    for part, lines in (("train1", slice(40)), ("train2", slice(40, 70)), ("dev", slice(70, 80)),
                        ("test", slice(80, 90))):  # fmt: skip
        for code, side in (("de", german), ("en", english)):
            path = Path("data") / f"{part}.{code}"
            path.parent.mkdir(exist_ok=True)
            path.write_text("\n".join(side[lines]) + "\n", "utf-8")
    start = started((Path("data"),), languages="de-en")
    assert start.given == ["valid", "test"]
    assert {part: start.counts[part] for part in PARTS} == {"train": 70, "valid": 10, "test": 10}
    assert read(Path("de-en"), "test") == list(zip(german[80:], english[80:], strict=True))
    of_shards = started((Path("data/train*.de"), Path("data/train*.en")), output=Path("x"))
    assert of_shards.counts["read"] == 70


def write_part(name: str, pairs: Sequence[tuple[str, str]]) -> None:
    """Write a part of the folder `data`."""
    for code, side in zip(("de", "en"), zip(*pairs, strict=True), strict=True):
        path = Path("data") / f"{name}.{code}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in side), "utf-8")


def test_several_test_sets_keep_their_names_unless_the_user_passes_another() -> None:
    pairs = list(zip(*preparing.corpus(90), strict=True))
    sets = {"newstest2013": pairs[60:70], "newstest2014": pairs[70:80], "2016_test": pairs[80:]}
    write_part("train", pairs[:60])
    for name, part in sets.items():
        write_part(name, part)
    command = ["init", "data", "--languages", "de-en", "-o"]
    result = CliRunner().invoke(app, [*command, "new"])
    assert result.exit_code == 0, result.stderr
    for name, part in sets.items():
        assert read(Path("new"), name) == part
        assert name in result.stdout
    assert "3 for validation, 30 for testing" in result.stdout
    tests = load_config("new/config.yaml").data.test
    assert {name: read(corpus.source[0].parent, name) for name, corpus in tests.items()} == sets
    other = ["x", "--test", "data/newstest2014.de", "--test", "data/newstest2014.en"]
    assert CliRunner().invoke(app, [*command, *other]).exit_code == 0
    assert list(load_config("x/config.yaml").data.test) == ["test"]
    assert read(Path("x"), "test") == sets["newstest2014"]


@pytest.mark.parametrize("text", ["pt-BR-en", "en-pt-BR", "de-DE-en-US", "zh-Hans-en", "deu-eng"])
def test_codes_with_regions_are_a_pair(text: str) -> None:
    start = started(corpus(), languages=text, output=Path("p"))
    assert "-".join(start.languages) == text
    assert {len(code.split("-")[0]) for code in start.languages} <= {2, 3}


@pytest.mark.parametrize("text", ["de", "de-de", "de-", "a-b-c"])
def test_what_is_not_a_pair_of_codes_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not a pair of language codes"):
        started(corpus(), languages=text)


@pytest.mark.parametrize("option", ["valid", "test"])
def test_a_place_with_several_sets_is_not_one_of_them(option: str) -> None:
    """Its training set was the test set."""
    pairs = list(zip(*preparing.corpus(90), strict=True))
    write_part("train", pairs[:60])
    write_part("test", pairs[60:])
    with pytest.raises(DataError, match=r"contains several sets: (test, train|train, test)\."):
        started(corpus(), languages="de-en", **{option: (Path("data"),)})


def test_what_changes_a_set_of_the_user_is_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    pairs = list(zip(*preparing.corpus(90), strict=True))
    write_part("train", pairs[:60])
    write_part("dev2010", pairs[60:70])
    write_part("dev2011", [*pairs[70:80], ("", "line"), ("satz", " ")])
    start = started((Path("data"),), languages="de-en")
    assert start.counts["valid"] == 20
    assert "`valid` consists of 2 files" in caplog.text
    assert "`valid`: 2 pairs are left out" in caplog.text


def test_the_format_of_a_set_that_is_not_plain_text_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    pairs = list(zip(*preparing.corpus(20), strict=True))
    for side, (tag, name) in enumerate((("srcset", "dev.de.sgm"), ("refset", "dev.en.sgm"))):
        segments = [f"<seg id='{i}'>{pair[side]}</seg>\n" for i, pair in enumerate(pairs)]
        Path(name).write_text(f"<{tag}><doc docid='a'>\n{''.join(segments)}</doc></{tag}>", "utf-8")
    Path("test.tsv").write_text("".join(f"{de}\t{en}\n" for de, en in pairs), "utf-8")
    valid = Path("dev.de.sgm"), Path("dev.en.sgm")
    start = started(corpus(), languages="de-en", valid=valid, test=(Path("test.tsv"),))
    assert "`valid`: dev.de.sgm is read as wmt: 20 pairs" in caplog.text
    assert "`test`: test.tsv is read as tsv, columns 0 and 1: 20 pairs" in caplog.text
    config = load_config(start.config)
    data = config.data.model_dump(mode="json")
    data["valid"] = {"source": "dev.de.sgm", "target": "dev.en.sgm"}
    data["test"] = {"t": {"path": "test.tsv"}}
    changed = preparing.config_for(Path(), data=data)
    notes = preparing.prepare(changed).notes
    assert "dev.en.sgm is read as wmt: 20 pairs" in notes
    assert "test.tsv is read as tsv, columns 0 and 1: 20 pairs" in notes


@pytest.mark.parametrize("has_sets", [False, True])
@pytest.mark.parametrize("first", [400, 800])
@pytest.mark.long
def test_shifted_lines_are_a_warning_with_their_place_and_are_not_held_out(
    first: int, has_sets: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if most lines are shifted, and if no set is drawn."""
    pairs = list(dict.fromkeys(demo_pairs("train", "de", "en")))[:1220]
    german, english = map(list, zip(*pairs[:1200], strict=True))
    shifted = english[:first] + english[first + 1 :] + ["The end."]
    write_part("train", list(zip(german, shifted, strict=True)))
    if has_sets:
        write_part("dev", pairs[1200:1210])
        write_part("test", pairs[1210:])
    started((Path("data"),), languages="de-en", output=Path("new"))
    [warning] = [text for text in caplog.messages if "misaligned" in text]
    percent, start, end = map(int, re.findall(r"\d+", warning))
    assert percent == pytest.approx(100 * (1200 - first) / 1200, abs=2)
    assert start == pytest.approx(first, abs=5)
    assert end == pytest.approx(1200, abs=5)
    held_out = [pair for part in PARTS[1:] for pair in read(Path("new"), part)]
    assert len(held_out) >= 20
    assert set(held_out) <= set(pairs)


def test_a_frequent_sentence_of_a_set_stays_in_training() -> None:
    german, english = preparing.corpus(100)
    rows = {
        "de": german + ["Ja."] * 20 + ["Nein."] * 3,
        "en": english + ["Yes."] * 20 + ["No."] * 3,
    }
    for code, lines in rows.items():
        Path(f"c.{code}").write_text("\n".join(lines) + "\n", "utf-8")
        Path(f"t.{code}").write_text("\n".join(lines[-4:]) + "\n", "utf-8")
    start = started((Path("c.de"), Path("c.en")), test=(Path("t.de"), Path("t.en")))
    train = read(Path("de-en"), "train")
    assert train.count(("Ja.", "Yes.")) == 20
    assert ("Nein.", "No.") not in train
    assert start.counts["copies"] == 3
    assert ("Ja.", "Yes.") not in read(Path("de-en"), "valid")


def test_both_directions_hold_out_the_same_sentences() -> None:
    files = corpus()
    started(files, languages="de-en", output=Path("a"))
    started(files[::-1], languages="en-de", output=Path("b"))
    for part in PARTS[1:]:
        assert Path(f"a/{part}.de").read_bytes() == Path(f"b/{part}.de").read_bytes()
        assert Path(f"a/{part}.en").read_bytes() == Path(f"b/{part}.en").read_bytes()


@pytest.mark.parametrize("folder", ["mein Modell", "数据", "run.1", "x/_neu", "2026", "null"])
def test_every_folder_name_becomes_a_valid_experiment(folder: str) -> None:
    start = started(corpus(60), output=Path(folder))
    config = load_config(start.config)
    assert config.run_dir == Path("runs", Path(folder).name)
    assert f"nmt evaluate {join_words([str(config.run_dir)])}" in start.as_text()


def test_without_a_gpu_a_large_corpus_gets_a_small_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(init_module, "scale_of", lambda _: SCALES[-1])
    sizes = {}
    for has_gpu in (True, False):
        machine = "GPU" if has_gpu else "CPU with AMX"
        monkeypatch.setattr(init_module, "_kind_of_machine", lambda machine=machine: machine)
        start = started(corpus(), output=Path(f"gpu-{has_gpu}"))
        config = load_config(start.config)
        sizes[has_gpu] = config.model.model_dim, config.training.max_minutes
        assert start.max_minutes == config.training.max_minutes
        assert ("has no GPU" in start.as_text()) == (not has_gpu)
        assert f"on this kind of machine ({machine}): " in start.as_text()
    assert sizes == {True: (512, 1440), False: (256, 480)}


def test_a_small_corpus_gets_a_configuration_for_a_pretrained_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = started(corpus())
    text = start.as_text()
    assert (
        "nmt import facebook/nllb-200-distilled-600M --output de-en/nllb --keep-vocabulary" in text
    )
    assert "nmt train de-en/pretrained.yml" in text
    assert "excludes commercial use (CC-BY-NC-4.0)" in text
    assert "facebook/m2m100_418M (MIT)" in text
    assert "CC-BY-NC-4.0" in Path("de-en/pretrained.yml").read_text(encoding="utf-8")
    config = load_config("de-en/pretrained.yml")
    assert config.training.init_from == Path("de-en/nllb")
    assert config.training.lora is not None
    monkeypatch.setattr(init_module, "FEW_PAIRS", 100)
    enough = started(corpus(), output=Path("b"))
    assert "pretrained" not in enough.as_text()
    assert not Path("b/pretrained.yml").exists()


@pytest.mark.parametrize("part", PARTS)
def test_segmented_text_is_refused_in_each_set(part: str) -> None:
    files = {name: (Path(f"{name}.de"), Path(f"{name}.en")) for name in PARTS}
    for name, sides in files.items():
        for side in sides:
            lines = [f"{name} {number}" for number in range(40)]
            if name == part and side.suffix == ".en":
                lines = [f"{line}@@ 0" for line in lines]
            side.write_text("\n".join(lines), "utf-8")
    with pytest.raises(DataError, match=rf"{part}\.en was segmented by subword-nmt"):
        started(files["train"], valid=files["valid"], test=files["test"])
    assert not Path("de-en").exists()


def test_tokenized_text_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    files = Path("c.de"), Path("c.ja")
    for path, line in zip(files, ("ein Hund {} .", "犬 が {} を 見 て い る 。"), strict=True):
        path.write_text("\n".join(line.format(number) for number in range(40)), "utf-8")
    started(files)
    german, japanese = caplog.messages
    assert german.startswith("the text in de looks tokenized: punctuation marks have spaces")
    assert "sacremoses -l de detokenize < FILE > NEW" in german
    assert japanese.startswith("the text in ja looks tokenized: words have spaces")


def test_swapped_sides_are_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """In the corpus, or in a set that the user passes."""
    sides = ["Das ist der Hund und die Katze {}.", "This is the dog and the cat {}."]
    for code, text in zip(("de", "en"), sides, strict=True):
        for part, first in (("train", 0), ("valid", 200), ("test", 400)):
            lines = (text.format(i) + "\n" for i in range(first, first + 200))
            Path(f"{part}.{code}").write_text("".join(lines), "utf-8")
    train, valid, test = ((Path(f"{x}.de"), Path(f"{x}.en")) for x in PARTS)
    swapped = "the source looks like en and the target like de. Are the sides swapped?"
    mixed_up = [path.rename(f"x{number}.txt") for number, path in enumerate(train)]
    started((mixed_up[1], mixed_up[0]), languages="de-en", output=Path("s"))
    assert caplog.messages[0] == swapped
    assert "nmt init x0.txt x1.txt --languages de-en --output s" in caplog.messages[1]
    for old, path in zip(mixed_up, train, strict=True):
        old.rename(path)
    caplog.clear()
    (source, target), valid = valid, (Path("v0.txt"), Path("v1.txt"))
    started(train, valid=(target.rename(valid[0]), source.rename(valid[1])), test=test)
    assert caplog.messages == [f"`valid`: {swapped}"]


def test_every_reason_for_leaving_out_a_pair_has_words() -> None:
    assert {*get_args(BadReason), "blank"} == set(init_module._MEANINGS)


def test_entries_without_a_translation_are_counted_with_an_example() -> None:
    catalogue = polib.POFile()
    for number in range(60):
        translation = f"Haus Nummer {number}." if number % 10 else ""
        catalogue.append(polib.POEntry(msgid=f"House number {number}.", msgstr=translation))
    catalogue.save("x.po")
    report = init(InitOptions(places=(Path("x.po"),), languages="en-de")).as_text()
    assert re.search(r"left out: 6 without a finished translation \(.*House number 0", report)


def test_a_language_that_the_text_does_not_have_is_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for code, text in (("fr", "Das ist der Hund und die Katze {}."), ("en", "This is the dog {}.")):
        lines = (text.format(number) + "\n" for number in range(100))
        Path(f"x.{code}").write_text("".join(lines), "utf-8")
    started((Path("x.fr"), Path("x.en")))
    assert "the text in fr looks like de: are `languages` right?" in caplog.messages
