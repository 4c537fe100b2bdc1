"""Corpora in, a prepared folder out: what is kept, dropped, refused and left alone."""

from __future__ import annotations

import gzip
import json
import logging
import os
import re
import shutil
import subprocess
import sys
from contextlib import AbstractContextManager
from itertools import groupby
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from nmt.checkpoint.model_folder import load_folder_config
from nmt.commands.evaluation_set import rows_in_training
from nmt.commands.prepare import prepare_data, recipe_of
from nmt.commands.train import fit
from nmt.config.data import PLACEHOLDER, FilterConfig, TokenizerConfig
from nmt.config.loader import dump_config
from nmt.config.run import RunConfig
from nmt.data.filters import FilterChain, training_filters
from nmt.data.prepare_report import current_report
from nmt.data.prepared import PreparedData, PreparedManifest, verify_prepared
from nmt.errors import ConfigError, DataError, NmtError
from nmt.text import tokenizer
from nmt.text.tokenizer import load_tokenizers
from tests.commands.preparing import (
    ENGLISH,
    config_for,
    corpus,
    decoded,
    prepare,
    write,
    write_pairs,
)
from tests.learning import train_sentencepiece
from tests.process import LIMIT, started
from tests.terminal import terminal


def refused(config: RunConfig, match: str, **options: Any) -> DataError:
    """Nothing is written."""
    with pytest.raises(DataError, match=match) as caught:
        prepare(config, **options)
    assert caught.value.exit_code == 3
    assert not [*config.prepared_dir.parent.glob("*prepared*")]
    return caught.value


def without(dropped: set[int], source: list[str], target: list[str]) -> list[tuple[str, str]]:
    pairs = enumerate(zip(source, target, strict=True))
    return [pair for number, pair in pairs if number not in dropped]


def in_python(
    program: str, *arguments: object, **options: Any
) -> AbstractContextManager[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", program, *arguments]
    return started(command, stdout=subprocess.PIPE, **options)


def test_blank_lines_drop_the_pair_and_shift_nothing(tmp_path: Path) -> None:
    """FAULTS 36."""
    source, target = corpus(120)
    source[10], target[20], source[30], target[30] = "", "  ", "", ""
    write_pairs(tmp_path, source, target)
    assert prepare(config_for(tmp_path)).counts["numbers"] == {"read": 120, "kept": 117, "blank": 3}
    assert gzip.decompress((tmp_path / "prepared" / "dropped.tsv.gz").read_bytes()).decode() == (
        "corpus\tline\treason\tvalue\tlimit\nnumbers\t11\tblank\tsource\t\n"
        "numbers\t21\tblank\ttarget\t\nnumbers\t31\tblank\tboth\t\n"
    )
    assert decoded(tmp_path / "prepared") == without({10, 20, 30}, source, target)
    assert PreparedData.open(tmp_path / "prepared").train.lines[9:12].tolist() == [10, 12, 13]


@pytest.mark.parametrize("kind", ["empty", "folder", "pipe", "unequal"])
def test_files_without_text_or_of_other_lengths_are_named(tmp_path: Path, kind: str) -> None:
    """FAULTS 32 and 33."""
    config, path = config_for(tmp_path), tmp_path / "train.de"
    path.unlink()
    if kind in ("empty", "unequal"):
        source, target = corpus(120 if kind == "unequal" else 0)
        write_pairs(tmp_path, source, target[:-3])
    else:
        path.mkdir() if kind == "folder" else os.mkfifo(path)  # corpora are read twice
    problems = {"pipe": r"train\.de is a pipe", "unequal": r"120 lines but .*117"}
    refused(config, problems.get(kind, r"train\.de"))


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """FAULTS 9: a file is no folder, even for the superuser."""
    config = config_for(tmp_path)
    place = tmp_path / "valid.de" / "below"
    refused(config.model_copy(update={"prepared_dir": place}), r"valid\.de/below")


def test_bad_utf_8_stops_or_drops_both_sides(tmp_path: Path) -> None:
    """FAULTS 34."""
    source, target = corpus(120)
    raw = [line.encode() for line in source]
    raw[4] = b"zwei \xff drei"
    write_pairs(tmp_path, b"\n".join(raw), target)
    refused(config_for(tmp_path), r"train\.de, line 5, byte 6: 0xff")
    report = prepare(config_for(tmp_path, filters={"on_bad_utf8": "skip"}))
    assert report.counts["numbers"]["bad_utf8"] == 1
    assert decoded(tmp_path / "prepared") == without({4}, source, target)


def test_test_sets_in_the_cache_of_sacrebleu_are_looked_for(tmp_path: Path) -> None:
    source, _ = corpus(120)
    sets = {"wmt13": [source[7], "ganz etwas anderes"], "wmt14/full": ["nichts davon", source[9]]}
    for name, lines in sets.items():
        folder = tmp_path / "cache" / name
        folder.mkdir(parents=True)
        start = f"{name.replace('/', '_')}.de-en"
        write(folder, f"{start}.src", lines)
        write(folder, f"{start}.ref", ["one", "two"])
    write(tmp_path / "cache" / "wmt13", "wmt13.fr-en.src", source)  # of other languages
    config_for(tmp_path)  # writes the corpora
    code = (
        "import sacrebleu, sys; from pathlib import Path\n"
        "from tests.commands.preparing import config_for, prepare\n"
        "here = Path(sys.argv[1])\n"
        "for name, start in (('wmt13', 'wmt13.de-en'), ('wmt14/full', 'wmt14_full.de-en')):\n"
        "    for field in sacrebleu.DATASETS[name].fieldnames('de-en'):\n"
        "        (here / 'cache' / name / f'{start}.{field}').touch()\n"
        "    sacrebleu.utils.get_source_file(name, 'de-en')  # is where it looks: no download\n"
        "data = config_for(here).data.model_dump(mode='json')\n"
        "data['test'] = {'news': {'sacrebleu': 'wmt13'}, 'far': {'sacrebleu': 'wmt15'}}\n"
        "prepare(config_for(here, data=data), report_only=True, report_dir=here / 'report')\n"
    )
    places = {"SACREBLEU": str(tmp_path / "cache"), "PYTHONPATH": str(Path(__file__).parents[2])}
    with in_python(code, tmp_path, env={**os.environ, **places}) as run:
        assert run.wait(LIMIT) == 0
    report = json.loads((tmp_path / "report" / "report.json").read_text(encoding="utf-8"))
    found = {name: each["sources_in_train"] for name, each in report["overlap"].items()}
    assert found == {"valid": 5, "news": 1, "wmt14/full": 1}
    assert report["unchecked"] == ["far"]


def test_what_is_dropped_or_overlaps_is_counted_and_listed(tmp_path: Path) -> None:
    """FAULTS 37 and 39: the first five training pairs are the validation set."""
    source, target = corpus(120)
    source[3], source[7] = "", "eins " * 200_000  # a megabyte
    write_pairs(tmp_path, source, target)
    report = prepare(config_for(tmp_path))
    for side in report.sides:
        assert 0 < side.num_for_most <= side.num_used <= side.vocab_size
    assert report.counts["numbers"] == {"read": 120, "kept": 118, "blank": 1, "characters": 1}
    found = {"pairs": 5, "sources_in_train": 4, "targets_in_train": 4, "pairs_in_train": 4}
    near = {"near_sources_in_train": 0}
    assert {**report.overlap["valid"], **near} == {**found, **near}
    text = report.as_text()
    assert text.startswith("numbers: 120 sentence pairs read, 118 kept")
    assert "\n  dropped 1 pair: blank\n" in text
    assert "overlap: valid: the training data contains 4 of 5 source sentences (4 with" in text
    assert "vocabulary: 60 subwords, shared by both languages" in text
    written = json.loads((tmp_path / "prepared" / "report.json").read_text())
    assert written.items() <= report.as_dict().items()


def test_report_only_writes_nothing_and_tells_what_was_compared(tmp_path: Path) -> None:
    strange = write(tmp_path, "test.de", ["hundert", "tausend"])
    tests = {"far": {"source": strange, "target": strange}, "wmt": {"sacrebleu": "wmt14"}}
    data = config_for(tmp_path).data.model_dump(mode="json") | {"test": tests}
    config = config_for(tmp_path, data=data, prepared_dir=str(tmp_path / "new" / "prepared"))
    report = prepare(config, report_only=True)
    lines = report.as_text().splitlines()
    assert "overlap: the training data contains no source sentence of far (2 pairs)" in lines
    assert "overlap: not checked, because not downloaded: wmt" in lines
    assert report.as_dict()["unchecked"] == ["wmt"]
    assert report.counts["numbers"]["kept"] == 120
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").touch()
    refused(config, "file", report_only=True, report_dir=tmp_path / "file")


def test_a_report_is_copied_although_the_folder_is_up_to_date(tmp_path: Path) -> None:
    source, target = corpus(120)
    write_pairs(tmp_path, ["", *source[1:]], target)
    config, copy = config_for(tmp_path), tmp_path / "reports" / "new"
    prepare(config)
    again = prepare(config, report_dir=copy)
    written = json.loads((copy / "report.json").read_text(encoding="utf-8"))
    times = json.loads((copy / "times.json").read_text(encoding="utf-8"))
    assert {**written, **times, "folder": str(config.prepared_dir)} == again.as_dict()
    assert again.up_to_date
    assert "<html" in (copy / "report.html").read_text(encoding="utf-8")
    for name in ("dropped.tsv.gz", "reported.tsv.gz"):
        assert (copy / name).read_bytes() == (config.prepared_dir / name).read_bytes()


def test_all_missing_files_are_told_with_their_keys(tmp_path: Path) -> None:
    """FAULTS 33."""
    data = config_for(tmp_path).data.model_dump(mode="json")
    data["train"].append({"tsv": "nope.tsv"})
    data["test"] = {"bad": {"source": str(tmp_path / "valid.de"), "target": "nope.en"}}
    assert refused(config_for(tmp_path, data=data), "nope").problem.split("\n  ") == [
        "data.train.1.path: nope.tsv does not exist.",
        "data.test.bad.target: nope.en does not exist.",
    ]


def test_unchanged_input_is_left_alone_and_changed_input_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "nmt")
    config = config_for(tmp_path)
    first = prepare(config)
    (tmp_path / ".prepared.tmp-1").mkdir()  # goes even where nothing has to be done
    again = prepare(config)
    assert not list(tmp_path.glob(".prepared*"))
    weighted = config.model_dump(mode="json")
    weighted["data"]["train"][0]["weight"] = 2.0
    assert not first.up_to_date
    assert again.as_dict() == first.as_dict() | {"up_to_date": True}
    assert "up to date" in again.as_text()
    assert prepare(RunConfig.model_validate(weighted)).up_to_date
    assert not prepare(config, force=True).up_to_date
    source = tmp_path / "train.de"
    os.utime(source, (1, 1))  # it is known by its contents
    assert prepare(config).up_to_date
    source.write_bytes(source.read_bytes().replace(b"eins", b"zwei", 1))
    assert "preparing it again" not in caplog.text
    assert not prepare(config).up_to_date
    assert f"{tmp_path / 'prepared'} was prepared from other corpora or settings" in caplog.text
    write_pairs(tmp_path, *corpus(121))
    assert prepare(config).counts["numbers"]["kept"] == 121


def test_an_interrupted_prepare_leaves_nothing_that_looks_finished(tmp_path: Path) -> None:
    config = config_for(tmp_path)
    program = (
        "import os, signal, sys\n"
        "from nmt.config.run import RunConfig\n"
        "import nmt.commands.prepare as p\n"
        "p.PreparedManifest.write = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "p.prepare_data(RunConfig.model_validate_json(sys.argv[1]))\n"
    )
    with in_python(program, config.model_dump_json()) as run:
        assert run.wait(LIMIT) == -9
    assert list(tmp_path.glob(".prepared.tmp-*"))
    with pytest.raises(NmtError, match="is not a prepared folder"):
        PreparedData.open(tmp_path / "prepared")
    prepare(config)
    assert not list(tmp_path.glob(".prepared.tmp-*"))
    assert len(PreparedData.open(tmp_path / "prepared").train) == 120


def test_an_error_midway_leaves_the_older_folder_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_for(tmp_path)
    prepare(config)
    before = PreparedData.open(tmp_path / "prepared").manifest
    with monkeypatch.context() as patch:
        failing = Mock(side_effect=RuntimeError("midway"))
        patch.setattr("nmt.commands.prepare.PreparedManifest.write", failing)
        with pytest.raises(RuntimeError, match="midway"):
            prepare(config, force=True)
    assert PreparedData.open(tmp_path / "prepared").manifest == before
    assert not list(tmp_path.glob(".prepared*"))


def test_separate_vocabularies_and_tsv_and_json_lines(tmp_path: Path) -> None:
    pairs = list(zip(*corpus(120), strict=True))
    tsv = write(tmp_path, "train.tsv", [f"{t}\t{s}" for s, t in pairs])
    rows = [json.dumps({"translation": {"de": s, "en": t}}, ensure_ascii=False) for s, t in pairs]
    jsonl = write(tmp_path, "train.jsonl", rows)
    base = config_for(tmp_path).model_dump(mode="json")
    base["tokenizer"] |= {"joint": False, "vocab_size": 40}
    base["model"] = {"embeddings": "decoder-tied"}
    for place in ({"tsv": tsv, "columns": [1, 0]}, {"jsonl": jsonl}):
        base["data"]["train"] = [place]
        prepare(RunConfig.model_validate(base))
        assert decoded(tmp_path / "prepared") == pairs
        assert (tmp_path / "prepared" / "tokenizer" / "source.model").exists()


def test_shards_are_prepared_as_one_corpus_and_their_lines_belong_to_them(tmp_path: Path) -> None:
    source, target = corpus(120)
    source[70] = ""
    whole = config_for(tmp_path)
    write_pairs(tmp_path, source, target)
    expected = prepare(whole)
    manifest = PreparedData.open(whole.prepared_dir).manifest
    for part, rows in (("10", slice(60, 120)), ("2", slice(0, 60))):
        write_pairs(tmp_path, source[rows], target[rows], f"part{part}")
    pattern = {"source": f"{tmp_path}/part*.de", "target": f"{tmp_path}/part*.en"}
    data = whole.data.model_dump(mode="json") | {"train": [{"name": "numbers", **pattern}]}
    config = config_for(tmp_path, data=data)
    report = prepare(config)
    assert report.counts == expected.counts
    assert decoded(config.prepared_dir) == [
        pair for pair in zip(source, target, strict=True) if pair[0]
    ]
    assert PreparedData.open(config.prepared_dir).manifest.vocab_hash == manifest.vocab_hash
    (example,) = report.reasons["blank"]["examples"]
    assert (example["file"], example["line"]) == (f"{tmp_path}/part10.de", 11)
    assert f"for example {tmp_path}/part10.de, line 11: " in report.as_text()
    page = (config.prepared_dir / "report.html").read_text()
    assert f'{tmp_path}/part10.de</td><td class="short">11</td>' in page
    assert prepare(config).up_to_date
    write_pairs(tmp_path, source[:1], target[:1], "part11")
    assert not prepare(config).up_to_date


def test_rows_that_cannot_be_read_are_counted_and_too_many_are_an_error(tmp_path: Path) -> None:
    rows = [f"{s}\t{t}" for s, t in zip(*corpus(200), strict=True)]
    rows[7] = "only the first column"
    path = write(tmp_path, "train.tsv", rows)
    data = config_for(tmp_path).data.model_dump(mode="json")
    data["train"] = [{"name": "numbers", "path": path}]
    report = prepare(config_for(tmp_path, data=data))
    assert report.counts["numbers"] == {"read": 200, "kept": 199, "columns": 1}
    assert "for example line 8: only the first column" in report.as_text()
    assert f"{path} is read as tsv, columns 0 and 1: 200 pairs" in report.notes
    rows[150] = "a\0b\tc"  # NUL has a count of its own: 1 of 200 is not too many
    rows[151] = rows[152] = "another"
    write(tmp_path, "train.tsv", rows)
    config = config_for(tmp_path, data=data, prepared_dir=str(tmp_path / "new" / "prepared"))
    error = refused(config, r"numbers: 3 of 200 pairs have too few or too many columns \(columns\)")
    assert f"The first is {path}, line 8: 'only the first column'" in error.problem
    assert "filters.on_bad_row: skip" in str(error.fix)
    config = config_for(tmp_path, data=data, filters={"on_bad_row": "skip"})
    counts = prepare(config).counts["numbers"]
    assert counts == {"read": 200, "kept": 196, "columns": 3, "nul": 1}


def test_folders_of_older_versions_with_text_files_are_up_to_date() -> None:
    """The hash is the one that the version before format 4 of configurations has computed."""
    data = {
        "train": [
            {"source": "train.de", "target": "train.en"},
            {"huggingface": "wmt/wmt14", "subset": "de-en", "weight": 2.0},
        ],
        "valid": {"source": "valid.de", "target": "valid.en"},
        "test": {"t": {"sacrebleu": "wmt14"}},
        "replay": {"train": [{"demo": "train"}], "valid": {"demo": "valid"}},
    }
    values: dict[str, Any] = {
        "name": "numbers", "source_language": "de", "target_language": "en", "data": data,
        "tokenizer": {"vocab_size": 300}, "training": {"max_steps": 1},
    }  # fmt: skip
    config = RunConfig.model_validate(values)
    old_hash = "a65b209cb4fb38841fe739c9906c03b8a8537a76ed5e64973426b308deef71b5"
    assert recipe_of(config).hash() == old_hash
    data["train"] = [{"source": "train.de", "target": "train.en", "encoding": "latin-1"}]
    assert recipe_of(RunConfig.model_validate(values)).hash() != old_hash
    values["filters"] = {"on_bad_row": "skip"}
    assert recipe_of(RunConfig.model_validate(values)).hash() != old_hash


def test_validation_text_has_all_references(tmp_path: Path) -> None:
    source, target = corpus(9)
    pairs = write_pairs(tmp_path, ["", *source[1:]], target, "held")
    second = write(tmp_path, "second.en", [line.upper() for line in target])
    data = config_for(tmp_path).data.model_dump(mode="json")
    other = write_pairs(tmp_path, source[:2], target[:2], "other")
    several = {"source": pairs["source"], "target": [pairs["target"], second]}
    data["valid"] = [other, several]
    config = config_for(tmp_path, data=data)
    prepare(config)
    prepared = PreparedData.open(config.prepared_dir)
    assert prepared.valid_target == [*target[:2], *target[1:]]
    second_lines = ["", "", *map(str.upper, target[1:])]
    assert prepared.valid_references == [prepared.valid_target, second_lines]
    write(tmp_path, "second.en", target[1:])
    config = config_for(tmp_path, data=data, prepared_dir=str(tmp_path / "new" / "prepared"))
    refused(config, r"held\.de has 9 lines but .*second\.en has 8")


@pytest.mark.parametrize("kind", ["bpe", "unigram", "word", "char"])
def test_each_side_has_a_vocabulary_of_its_own_size(tmp_path: Path, kind: str) -> None:
    sizes = {"source": 14, "target": 13} if kind == "word" else {"source": 30, "target": 24}
    tokenizer = {"kind": kind, "joint": False, "vocab_size": sizes, "byte_fallback": False}
    config = config_for(tmp_path, tokenizer=tokenizer, model={"embeddings": "separate"})
    report = prepare(config)
    found = {"source": report.sides[0].vocab_size, "target": report.sides[1].vocab_size}
    assert all(found[side] <= sizes[side] for side in sizes)
    assert kind == "char" or found == sizes
    assert prepare(config).up_to_date


def test_filters_that_leave_nothing_are_named(tmp_path: Path) -> None:
    """FAULTS 36."""
    short = config_for(tmp_path, filters={"max_length": 1})
    refused(short, r"dropped all training pairs of numbers: length 120")
    config = config_for(tmp_path)
    write_pairs(tmp_path, ["", "eins"], ["one", ""], "valid")
    refused(config, r"dropped all validation pairs of valid: blank 2")


def test_short_validation_pairs_are_kept_and_short_training_pairs_are_not(tmp_path: Path) -> None:
    config = config_for(tmp_path, filters={"min_length": 8, "max_length_ratio": 1.0})
    write_pairs(tmp_path, ["eins", "eins zwei drei vier"], ["one", "one"], "valid")
    report = prepare(config)
    assert report.counts["valid"] == {"read": 2, "kept": 2}
    assert report.counts["numbers"]["length"] > 0


@pytest.mark.parametrize(
    "change", ["a line less", "a line more", "other lines", "another validation set"]
)
def test_a_corpus_that_changes_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Between the pass that learns the vocabulary and the pass that encodes the text."""
    source, target = corpus(120)
    changed = {
        "a line less": ("train", source[:-1], target[:-1]),
        "a line more": ("train", [*source, "eins"], [*target, "one"]),
        "other lines": ("train", source[::-1], target),  # no more lines and no more bytes
        "another validation set": ("valid", source[5:10], target[:5]),
    }
    part, new_source, new_target = changed[change]

    def learn(*args: Any, **options: Any) -> None:
        original(*args, **options)
        write_pairs(tmp_path, new_source, new_target, part)

    original = tokenizer.train_sentencepiece
    monkeypatch.setattr("nmt.text.tokenizer.train_sentencepiece", learn)
    refused(config_for(tmp_path), "changed during `nmt prepare`")


def test_a_foreign_folder_is_left_alone(tmp_path: Path) -> None:
    config = config_for(tmp_path)
    (tmp_path / "prepared").mkdir()
    path = write(tmp_path / "prepared", "thesis.tex", ["important"])
    with pytest.raises(DataError, match="was not created by") as caught:
        prepare(config, force=True)
    assert "remove" not in caught.value.fix  # it may be the corpus
    assert Path(path).exists()


def test_damage_is_repaired_by_preparing_again(tmp_path: Path) -> None:
    config = config_for(tmp_path)
    prepare(config)
    for damage in ("tokenizer/joint.model", "train/source.ids.bin", "manifest.json"):
        path = tmp_path / "prepared" / damage
        whole = path.read_bytes()
        path.write_bytes(whole[:-2])
        assert not prepare(config, force=damage == "manifest.json").up_to_date
        if damage != "manifest.json":  # it holds times
            assert path.read_bytes() == whole


def test_two_concurrent_commands_prepare_only_once(tmp_path: Path) -> None:
    config = config_for(tmp_path).model_dump_json()
    program = (
        "import sys\n"
        "from nmt.config.run import RunConfig\n"
        "from nmt.commands.prepare import prepare_data as prepare\n"
        "print(prepare(RunConfig.model_validate_json(sys.argv[1])).up_to_date)\n"
    )
    with in_python(program, config) as first, in_python(program, config) as second:
        outputs = [run.communicate(timeout=LIMIT)[0] for run in (first, second)]
    assert sorted(outputs) == [b"False\n", b"True\n"]
    assert not list(tmp_path.glob(".prepared*"))


def test_pairs_of_several_corpora_know_their_origin(tmp_path: Path, tiny_corpus: Path) -> None:
    values = config_for(tmp_path).model_dump(mode="json")
    tiny = {"source": str(tiny_corpus / "train.de"), "target": str(tiny_corpus / "train.en")}
    values["data"]["train"].append({"name": "tiny", **tiny})
    counts = prepare(RunConfig.model_validate(values)).counts
    kept = {name: each["kept"] for name, each in counts.items()}
    assert kept == {"numbers": 120, "tiny": 20, "valid": 5}
    store = PreparedData.open(tmp_path / "prepared").train
    assert store.corpus.tolist() == [0] * 120 + [1] * 20
    assert store.lines[118:122].tolist() == [119, 120, 1, 2]


def test_validation_text_is_kept_as_it_was_read(tmp_path: Path) -> None:
    """FAULTS 35: odd characters inside a line do not split it."""
    config = config_for(tmp_path)
    source = ["eins\u2028zwei", "", "drei\x85vier\r"]
    write_pairs(tmp_path, source, ["one two", "", "three four"], "valid")
    report = prepare(config)
    assert report.counts["valid"] == {"read": 3, "kept": 2, "blank": 1}
    assert report.reasons["blank"]["count"] == 0  # of training pairs
    data = PreparedData.open(tmp_path / "prepared")
    assert data.valid_source == ["eins\u2028zwei", "drei\x85vier"]
    assert data.valid_target == ["one two", "three four"]
    assert len(data.valid) == 2


def test_sources_begin_with_the_tag_of_their_corpus(tmp_path: Path) -> None:
    plain = config_for(tmp_path)
    data = plain.data.model_dump()
    train = [{**data["train"][0], "tag": tag, "name": tag} for tag in ("<2en>", "<bt>")]
    valid = {**data["valid"][0], "tag": "en"}
    prepare(config_for(tmp_path, data={**data, "train": train, "valid": valid}))
    prepared = PreparedData.open(plain.prepared_dir)
    tags = load_tokenizers(prepared.tokenizer_dir).source.tags
    rows = [np.array([0]), np.array([len(prepared.train) - 1])]
    assert [*tags] == ["<2en>", "<bt>"]
    assert [int(prepared.train.source.ids(row).ids[0]) for row in rows] == [*tags.values()]
    assert int(prepared.valid.source.ids(rows[0]).ids[0]) == tags["<2en>"]
    assert not {*tags.values()} & {*map(int, prepared.train.target.ids(np.arange(9)).ids)}
    assert not prepare(plain).up_to_date


FRENCH = ["zéro", "un", "deux", "trois", "quatre", "cinq", "six", "sept", "huit", "neuf"]


def several(folder: Path, **changes: Any) -> RunConfig:
    """German to English, French and, in replay, back: each in a format with codes of its own."""
    data = config_for(folder).data.model_dump(mode="json", exclude_unset=True)
    source, target = corpus(120)
    lines = [" ".join(FRENCH[ENGLISH.index(word)] for word in x.split()) for x in target]
    rows = [{"translation": {"de": a, "fr": b}} for a, b in zip(source, lines, strict=True)]
    jsonl = {"jsonl": write(folder, "fr.jsonl", [json.dumps(row) for row in rows])}
    table = ["fr,de", *(f"{b},{a}" for a, b in zip(source, lines, strict=True))]
    back = {"csv": write(folder, "fr.csv", table), "name": "back"}
    french = {**jsonl, "target_language": "fr", "name": "french", "tag": "<bt>"}
    names = {"source_language": "fr", "target_language": "de"}
    data |= {
        "train": [*data["train"], french],
        "valid": [
            {**data["valid"][0], "name": "first"},
            {**french, "name": "held out", "max_pairs": 3},
        ],
        "replay": {
            "train": [{**back, **names}],
            "valid": {**back, **names, "name": "old", "max_pairs": 4},
        },
    }
    tokenizer = {"vocab_size": 90, "byte_fallback": False}
    return config_for(folder, tokenizer=tokenizer, **{**changes, "data": data | changes["data"]})


@pytest.mark.parametrize(("mode", "joint", "first"), [
    (None, True, [("<2en>", ""), ("<2fr> <bt>", ""), ("<2de>", "")]),
    ("target", False, [("", "<2en>"), ("<bt>", "<2fr>"), ("", "<2de>")]),
    ("both", False, [("<2de>", "<2en>"), ("<2de> <bt>", "<2fr>"), ("<2fr>", "<2de>")]),
])  # fmt: skip
def test_corpora_of_several_languages_begin_with_their_tags(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str | None,
    joint: bool,
    first: list[tuple[str, str]],
) -> None:
    tied = {"embeddings": "tied" if joint else "decoder-tied"}
    config = several(tmp_path, data={"language_tags": mode}, model=tied)
    tokenizer = config.tokenizer.model_copy(update={"joint": joint})
    config = config.model_copy(update={"tokenizer": tokenizer})
    report = prepare(config)
    assert [*report.counts] == ["numbers", "french", "back", "first", "held out", "old"]
    data = PreparedData.open(config.prepared_dir)
    models = load_tokenizers(data.tokenizer_dir)
    assert np.bincount(data.train.corpus).tolist() == [120, 120, 120]
    assert np.bincount(data.valid.corpus).tolist() == [5, 3, 4]
    for store, rows in ((data.train, (0, 120, 240)), (data.valid, (0, 5, 8))):
        for row, tags in zip(rows, first, strict=True):
            sides = store.source.ids(np.array([row])).ids, store.target.ids(np.array([row])).ids
            for model, ids, tag in zip(models, sides, tags, strict=True):
                num_tags = len(ids) - len(model.without_tags(ids.tolist()))
                assert [model.piece(int(x)) for x in ids[:num_tags]] == tag.split()
    for row in range(12):  # the text of every set, in the order of the store
        ids = data.valid.source.ids(np.array([row])).ids.tolist()
        assert models.source.decode(models.source.without_tags(ids)) == data.valid_source[row]
    monkeypatch.setattr("nmt.commands.evaluation_set.training_data", lambda _: [data])
    assert rows_in_training(tmp_path, [corpus(2)[0][1], "acht"]) == {0}
    assert [(x.side, x.language) for x in report.sides] == [
        ("source", "de"), ("source", "fr"), ("target", "en"), ("target", "fr"), ("target", "de"),
    ]  # fmt: skip
    assert not [text for text in report.warnings if "swapped" in text or "badly" in text]


def test_the_notes_of_all_directions_are_in_the_report_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def filters_of(config: FilterConfig, source: str, target: str, *_: object) -> FilterChain:
        chain = training_filters(config, source, target)
        chain.notes = ["for all", f"for {source}-{target}"]
        return chain

    monkeypatch.setattr("nmt.data.filters.training_filters", filters_of)
    report = prepare(several(tmp_path, data={"language_tags": "target"}))
    notes = ["for all", "for de-en", "for de-fr", "for fr-de"]
    assert sorted(note for note in report.notes if note.startswith("for ")) == notes
    assert all(note in report.as_text() for note in notes)


def test_a_text_that_the_vocabulary_covers_badly_is_told_before_training(tmp_path: Path) -> None:
    target = write(tmp_path, "greek.el", ["μηδέν ένα δύο τρία"] * 5)
    sets = {"source": str(tmp_path / "valid.de"), "target": target}
    report = prepare(several(tmp_path, data={"valid": sets, "replay": None}))
    (warning,) = [text for text in report.warnings if "badly" in text]
    assert warning.startswith("the vocabulary covers the validation text in en (target) badly: ")


def test_a_model_to_start_from_must_have_the_tags_in_the_same_places(tmp_path: Path) -> None:
    run = several(tmp_path, data={"language_tags": "both"})
    prepare(run)
    (run.prepared_dir / "config.yaml").write_text(dump_config(run), "utf-8")
    start = {"training": {"max_steps": 1, "init_from": str(run.prepared_dir)}}
    again = {"prepared_dir": str(tmp_path / "again"), **start}
    with pytest.raises(ConfigError, match=r"language_tags is null, but both in training.init_from"):
        prepare(config_for(tmp_path, **again))
    data = config_for(tmp_path).data.model_dump(mode="json", exclude_unset=True)
    data |= {"language_tags": "both", "test": {"x": {"demo": "test", "target_language": "nl"}}}
    with pytest.raises(ConfigError, match="no tag '<2nl>'"):
        prepare(config_for(tmp_path, **again, data=data))


def test_models_score_the_pairs_of_a_single_direction(tmp_path: Path) -> None:
    config = several(tmp_path, data={"replay": None})
    with pytest.raises(ConfigError, match="de-en, de-fr"):
        prepare(config, score_with=(tmp_path / "model",))


def test_a_folder_outlives_the_model_whose_vocabulary_it_has(tmp_path: Path) -> None:
    """A resumed run asks whether the folder is up to date, but needs no model to start from."""
    vocabulary = tmp_path / "start" / "tokenizer"
    vocabulary.mkdir(parents=True)
    source, target = corpus(120)
    small = TokenizerConfig(vocab_size=50, byte_fallback=False)
    train_sentencepiece(source + target, vocabulary / "joint.model", small, threads=1)
    training = {"max_steps": 1, "init_from": str(tmp_path / "start")}
    config = config_for(tmp_path, training=training)
    report = prepare(config)
    assert [side.vocab_size for side in report.sides] == [50, 50]
    model = (vocabulary / "joint.model").read_bytes()
    other = TokenizerConfig(vocab_size=49, byte_fallback=False)
    train_sentencepiece(source + target, vocabulary / "joint.model", other, threads=1)
    assert current_report(config.prepared_dir, recipe_of(config)) is None
    (vocabulary / "joint.model").write_bytes(model)
    assert prepare(config).up_to_date
    shutil.rmtree(vocabulary.parent)
    assert prepare(config).up_to_date


def test_the_vocabulary_knows_the_noise_that_training_will_draw(tmp_path: Path) -> None:
    data = config_for(tmp_path).data.model_dump(mode="json", exclude_unset=True)
    is_unknown = []
    for rate in (0.0, 0.5):  # the second finds the folder of the first
        data["train"][0]["noise"] = {"upper_case": rate}
        config = config_for(tmp_path, data=data)
        prepare(config)
        tokenizer = load_tokenizers(config.prepared_dir / "tokenizer").source
        is_unknown.append(any(map(tokenizer.is_fallback, tokenizer.encode("NULL EINS"))))
    assert is_unknown == [True, False]


def test_a_terminal_shows_every_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as frames:
        prepare(config_for(tmp_path))
    shown = [frame.split(":")[0].strip() for frame in re.split(r"[\r\n]+", frames.text)]
    stages = [
        "reading numbers", "learning subwords", "encoding numbers", "encoding valid",
        "writing numbers", "writing valid", "making shortlists",
    ]  # fmt: skip
    assert [name for name, _ in groupby(shown) if name in stages] == stages


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    config = config_for(tmp_path)
    prepare(config)
    return config


def files_of(config: RunConfig) -> list[Path]:
    found = sorted(path for path in config.prepared_dir.rglob("*") if path.is_file())
    return [path for path in found if path.name not in ("manifest.json", "times.json")]


def test_a_whole_folder_is_whole_until_its_manifest_changes(config: RunConfig) -> None:
    files = files_of(config)
    assert {"train", "valid", "tokenizer"} <= {path.parent.name for path in files}
    sizes = sorted(each.size for each in verify_prepared(config.prepared_dir).values())
    assert sizes == sorted(path.stat().st_size for path in files)
    path = config.prepared_dir / "manifest.json"
    path.write_text(path.read_text().replace('"kept": 120', '"kept": 121'), encoding="utf-8")
    with pytest.raises(DataError, match=r"manifest\.json is damaged: its content has changed"):
        verify_prepared(config.prepared_dir)


@pytest.mark.parametrize("damage", ["changed", "longer", "missing"])
def test_every_damaged_file_is_named(config: RunConfig, damage: str) -> None:
    for path in (files := [each for each in files_of(config) if each.stat().st_size]):
        content = path.read_bytes()
        if damage == "missing":
            path.unlink()
        else:
            last = bytes([content[-1] ^ 1])
            path.write_bytes(content + b"x" if damage == "longer" else content[:-1] + last)
    with pytest.raises(DataError) as caught:
        verify_prepared(config.prepared_dir)
    said = str(caught.value)
    assert [path for path in files if f"{path} " not in said] == []
    assert said.count("\n") == len(files)  # one a line, and the fix


@pytest.mark.parametrize("part", ["valid", "test"])
def test_segmented_text_is_refused_before_anything_is_written(tmp_path: Path, part: str) -> None:
    source, target = corpus(30)
    segmented = [f"{line} ze@@ ro" for line in target]
    data = config_for(tmp_path).model_dump(mode="json")["data"]
    corpora = write_pairs(tmp_path, source, segmented, part)
    data[part] = {"set": corpora} if part == "test" else corpora
    config = config_for(tmp_path, data=data)
    write_pairs(tmp_path, source, segmented, part)
    refused(config, rf"{part}\.en was segmented by subword-nmt \(@@\)")


def test_tokenized_text_is_prepared_with_a_warning(tmp_path: Path) -> None:
    source, target = corpus(120)
    write_pairs(tmp_path, source, [f"{line} ." for line in target])
    report = prepare(config_for(tmp_path), report_only=True)
    (warning,) = report.warnings
    assert warning.startswith("numbers: the text in en looks tokenized: ")


@pytest.mark.long
def test_symbols_replace_placeholders_of_training_pairs_only(tmp_path: Path) -> None:
    source, target = corpus(120)
    for side in (source, target):
        for row in range(0, 120, 2):
            side[row] += f" {{x{row}}}"
    write_pairs(tmp_path, source, target)
    config_for(tmp_path)
    write_pairs(tmp_path, source[:5], target[:5], "valid")
    base = config_for(tmp_path).model_dump(mode="json", include={"data"})
    write_pairs(tmp_path, source[:5], target[:5], "valid")

    def prepared(name: str, workers: int | None = None, **changes: Any) -> dict[str, bytes]:
        data = {**base["data"], **changes}
        config = config_for(tmp_path, data=data, prepared_dir=str(tmp_path / name))
        write_pairs(tmp_path, source[:5], target[:5], "valid")
        prepare(config, workers=workers)
        folders = [config.prepared_dir / part for part in ("tokenizer", "train", "valid")]
        files = [path for folder in folders for path in sorted(folder.iterdir())]
        return {path.name: path.read_bytes() for path in files}

    plain = prepared("plain")
    assert prepared("none", placeholders={"share": 0.0}) == plain
    half = prepared("half", placeholders={"share": 0.5})
    assert prepared("workers", 2, placeholders={"share": 0.5}) == half
    rows = decoded(tmp_path / "half")
    replaced = [row for row in range(120) if PLACEHOLDER in rows[row][0]]
    assert 15 < len(replaced) < 45
    for row in range(120):
        name = f"{{x{row}}}" if row in replaced else PLACEHOLDER
        texts = [text.replace(PLACEHOLDER, f"{{x{row}}}") for text in rows[row]]
        assert texts == [source[row], target[row]]
        assert not any(name in text for text in rows[row])
    tokenizers = load_tokenizers(tmp_path / "half" / "tokenizer")
    valid = PreparedData.open(tmp_path / "half").valid.source.ids(np.arange(5))
    assert tokenizers.source.symbols[PLACEHOLDER] not in valid.ids


def test_a_vocabulary_without_the_symbol_cannot_learn_placeholders(tmp_path: Path) -> None:
    plain = config_for(tmp_path, filters={"max_length": 40})
    prepare(plain)
    (model,) = (plain.prepared_dir / "tokenizer").iterdir()
    data = {**plain.model_dump(mode="json")["data"], "placeholders": {"share": 0.1}}
    adopted = {"from": str(model)}
    with pytest.raises(ConfigError, match=f"splits {PLACEHOLDER}"):
        prepare(config_for(tmp_path, data=data, tokenizer=adopted))
    start = {"max_steps": 1, "init_from": str(plain.prepared_dir)}
    with pytest.raises(ConfigError, match="U\\+FFFC, which is not in the vocabulary"):
        prepare(config_for(tmp_path, data=data, training=start))


@pytest.mark.parametrize(("num_joined", "expected"), [(0, 1), (10, 1), (40, 2)])
def test_a_model_knows_how_many_sentences_its_training_lines_have(
    tmp_path: Path, num_joined: int, expected: int
) -> None:
    """One more than a tenth of the lines do not have: two in 10 of 120 lines are too few."""
    source, target = ([f"{line.capitalize()}." for line in side] for side in corpus(120))
    for side in (source, target):
        for row in range(num_joined):
            side[row] = f"{side[row]} {side[-1]}"
    write_pairs(tmp_path, source, target)
    model = {
        "encoder_layers": 1,
        "decoder_layers": 1,
        "model_dim": 32,
        "ff_dim": 32,
        "num_heads": 2,
    }
    tokenizer = {"vocab_size": 80, "byte_fallback": False}
    config = config_for(tmp_path, tokenizer=tokenizer, model=model)
    report = prepare_data(config)
    assert report.max_sentences == expected
    # 118.8 of 120 lines are 99%: all but the longest one.
    longest = sorted(map(len, source))[-2]
    assert report.max_characters == longest
    manifest = PreparedManifest.read(config.prepared_dir)
    assert (manifest.max_sentences, manifest.max_characters) == (expected, longest)
    fit(config)
    known = load_folder_config(config.run_dir)
    assert (known.max_sentences, known.max_characters) == (expected, longest)
    data = config.data.model_copy(update={"max_sentences": 7, "max_characters": 5})
    fit(config.model_copy(update={"data": data}))  # the user's own values count
    known = load_folder_config(config.run_dir)
    assert (known.max_sentences, known.max_characters) == (7, 5)
