"""Corpora in, a prepared folder out: what is kept, dropped, refused and left alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nmt.commands.prepare import prepare
from nmt.config.run import RunConfig
from nmt.data.prepared import PreparedData
from nmt.errors import DataError, NmtError, TokenizerError
from nmt.text.tokenizer import load_tokenizers

NUMBERS = ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]
ENGLISH = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def corpus(count: int) -> tuple[list[str], list[str]]:
    """Pairs of spelt numbers."""
    digits = [[int(d) for d in str(7919 * (i + 3))] for i in range(count)]
    return (
        [" ".join(NUMBERS[d] for d in row) for row in digits],
        [" ".join(ENGLISH[d] for d in row) for row in digits],
    )


def write(folder: Path, name: str, lines: list[str] | bytes) -> str:
    path = folder / name
    path.write_bytes(
        lines if isinstance(lines, bytes) else "".join(f"{x}\n" for x in lines).encode()
    )
    return str(path)


def config_for(folder: Path, **changes: Any) -> RunConfig:
    source, target = corpus(120)
    if not (folder / "train.de").exists():
        write(folder, "train.de", source)
        write(folder, "train.en", target)
    write(folder, "valid.de", source[:5])
    write(folder, "valid.en", target[:5])
    files = {side: str(folder / f"train.{side}") for side in ("de", "en")}
    values: dict[str, Any] = {
        "name": "numbers",
        "source_language": "de",
        "target_language": "en",
        "prepared_dir": str(folder / "prepared"),
        "run_dir": str(folder / "run"),
        "data": {
            "train": [{"name": "numbers", "source": files["de"], "target": files["en"]}],
            "valid": {"source": str(folder / "valid.de"), "target": str(folder / "valid.en")},
        },
        "tokenizer": {"vocab_size": 60, "byte_fallback": False},
        "training": {"max_steps": 1},
    }
    return RunConfig.model_validate(values | changes)


def decoded(folder: Path) -> list[tuple[str, str]]:
    data = PreparedData.open(folder)
    tokenizers = load_tokenizers(data.tokenizer_dir)
    pairs = []
    for row in range(len(data.train)):
        source, _ = data.train.source_ids(np.array([row]))
        target, _ = data.train.target_ids(np.array([row]))
        pairs.append(
            (tokenizers.source.decode(source.tolist()), tokenizers.target.decode(target.tolist()))
        )
    return pairs


def test_what_is_stored_is_what_was_read(tmp_path: Path) -> None:
    prepare(config_for(tmp_path), quiet=True)

    assert decoded(tmp_path / "prepared") == list(zip(*corpus(120), strict=True))


def test_blank_lines_drop_the_pair_and_shift_nothing(tmp_path: Path) -> None:
    """FAULTS 36."""
    source, target = corpus(120)
    source[10], target[20], source[30], target[30] = "", "  ", "", ""
    write(tmp_path, "train.de", source)
    write(tmp_path, "train.en", target)

    report = prepare(config_for(tmp_path), quiet=True)

    counts = report.counts["numbers"]
    assert counts["read"] == 120
    assert counts["kept"] == 117
    assert (counts["blank source"], counts["blank target"]) == (1, 1)
    assert counts["blank on both sides"] == 1
    expected = [p for i, p in enumerate(zip(source, target, strict=True)) if i not in (10, 20, 30)]
    assert decoded(tmp_path / "prepared") == expected
    lines = PreparedData.open(tmp_path / "prepared").train.lines
    assert lines[9:12].tolist() == [10, 12, 13]


def test_unequal_line_counts_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    """FAULTS 32."""
    source, target = corpus(120)
    write(tmp_path, "train.de", source)
    write(tmp_path, "train.en", target[:-3])

    with pytest.raises(DataError, match=r"120 lines but .*117") as caught:
        prepare(config_for(tmp_path), quiet=True)

    assert caught.value.exit_code == 3
    assert not list(tmp_path.glob("*prepared*"))


@pytest.mark.parametrize("kind", ["empty", "missing", "folder"])
def test_files_without_text_are_named(tmp_path: Path, kind: str) -> None:
    """FAULTS 33."""
    config = config_for(tmp_path)
    path = tmp_path / "train.de"
    path.unlink()
    if kind == "empty":
        path.touch()
        (tmp_path / "train.en").write_bytes(b"")
    elif kind == "folder":
        path.mkdir()

    with pytest.raises(DataError, match=r"train\.de") as caught:
        prepare(config, quiet=True)

    assert caught.value.exit_code == 3


def test_bad_utf_8_stops_or_drops_both_sides(tmp_path: Path) -> None:
    """FAULTS 34."""
    source, target = corpus(120)
    raw = "".join(f"{x}\n" for x in source).encode().split(b"\n")
    raw[4] = b"zwei \xff drei"
    write(tmp_path, "train.de", b"\n".join(raw))
    write(tmp_path, "train.en", target)

    with pytest.raises(DataError, match=r"train\.de, line 5, byte 6: 0xff"):
        prepare(config_for(tmp_path), quiet=True)
    report = prepare(config_for(tmp_path, filters={"on_bad_utf8": "skip"}), quiet=True)

    assert report.counts["numbers"]["bad utf-8"] == 1
    expected = [p for i, p in enumerate(zip(source, target, strict=True)) if i != 4]
    assert decoded(tmp_path / "prepared") == expected


def test_a_line_of_a_megabyte_is_dropped(tmp_path: Path) -> None:
    """FAULTS 37."""
    source, target = corpus(120)
    source[7] = "eins " * 200_000
    write(tmp_path, "train.de", source)
    write(tmp_path, "train.en", target)

    report = prepare(config_for(tmp_path), quiet=True)

    assert report.counts["numbers"]["too many characters"] == 1
    assert report.counts["numbers"]["kept"] == 119


def test_files_shifted_against_each_other_or_identical_are_warned_about(tmp_path: Path) -> None:
    """FAULTS 38."""
    source, target = corpus(400)
    lengths = [1 + (i * 37) % 11 for i in range(400)]
    source = [" ".join(["eins"] * n) for n in lengths]
    target = [" ".join(["one"] * n) for n in lengths]
    write(tmp_path, "train.de", source)
    write(tmp_path, "train.en", target[1:] + target[:1])
    small = {"vocab_size": 16, "byte_fallback": False}

    shifted = prepare(config_for(tmp_path, tokenizer=small), quiet=True)
    write(tmp_path, "train.en", source)
    identical = prepare(config_for(tmp_path, tokenizer=small), quiet=True)

    assert any("shifted" in warning for warning in shifted.warnings)
    assert any("identical" in warning for warning in identical.warnings)


def test_overlap_markup_and_control_characters_are_counted(tmp_path: Path) -> None:
    """FAULTS 39 and 40: the first five training pairs are the validation set."""
    source, target = corpus(120)
    source[50], target[60] = "<b>eins</b>", "one\x07two"
    write(tmp_path, "train.de", source)
    write(tmp_path, "train.en", target)

    found = prepare(config_for(tmp_path), quiet=True).findings

    assert found["source sentence also in valid"] == 5
    assert found["HTML or XML tags"] == 1
    assert found["control characters"] == 1


def test_duplicates_go_if_that_is_wished(tmp_path: Path) -> None:
    """FAULTS 40."""
    source, target = corpus(60)
    write(tmp_path, "train.de", source + source)
    write(tmp_path, "train.en", target + target)

    assert prepare(config_for(tmp_path), quiet=True).counts["numbers"]["kept"] == 120
    report = prepare(config_for(tmp_path, filters={"deduplicate": True}), quiet=True)

    assert report.counts["numbers"]["duplicate"] == 60


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_vocabulary_the_text_does_not_allow_names_the_largest(tmp_path: Path, kind: str) -> None:
    """FAULTS 41: and the size it names works."""
    big = {"kind": kind, "vocab_size": 5000, "byte_fallback": False}
    with pytest.raises(TokenizerError, match=r"Set tokenizer\.vocab_size to \d+") as caught:
        prepare(config_for(tmp_path, tokenizer=big), quiet=True)

    largest = int("".join(filter(str.isdigit, caught.value.fix)))
    report = prepare(config_for(tmp_path, tokenizer={**big, "vocab_size": largest}), quiet=True)
    assert report.vocabulary["source"] == largest


def test_unchanged_input_is_left_alone_and_changed_input_is_not(tmp_path: Path) -> None:
    config = config_for(tmp_path)
    first = prepare(config, quiet=True)
    again = prepare(config, quiet=True)
    weighted = config.model_dump(mode="json")
    weighted["data"]["train"][0]["weight"] = 2.0

    assert not first.up_to_date
    assert again.up_to_date
    assert "up to date" in again.as_text()
    assert prepare(RunConfig.model_validate(weighted), quiet=True).up_to_date
    assert not prepare(config, force=True, quiet=True).up_to_date
    source, target = corpus(121)
    write(tmp_path, "train.de", source)
    write(tmp_path, "train.en", target)
    assert prepare(config, quiet=True).counts["numbers"]["kept"] == 121


def test_report_only_writes_nothing(tmp_path: Path) -> None:
    config = config_for(tmp_path, prepared_dir=str(tmp_path / "new" / "prepared"))

    report = prepare(config, report_only=True, quiet=True)

    assert report.counts["numbers"]["kept"] == 120
    assert not (tmp_path / "new" / "prepared").exists()


def test_an_interrupted_prepare_leaves_nothing_that_looks_finished(tmp_path: Path) -> None:
    config = config_for(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(config.model_dump_json(), encoding="utf-8")
    program = (
        "import os, signal, sys, pathlib\n"
        "from nmt.config.run import RunConfig\n"
        "from nmt.data import prepared\n"
        "import nmt.commands.prepare as p\n"
        "p.PreparedManifest.write = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "p.prepare(RunConfig.model_validate_json(pathlib.Path(sys.argv[1]).read_text()))\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], check=False)

    assert done.returncode == -9
    assert list(tmp_path.glob(".prepared.tmp-*"))
    with pytest.raises(NmtError, match="no prepared data"):
        PreparedData.open(tmp_path / "prepared")
    prepare(config, quiet=True)
    assert not list(tmp_path.glob(".prepared.tmp-*"))
    assert len(PreparedData.open(tmp_path / "prepared").train) == 120


def test_separate_vocabularies_and_tsv_and_json_lines(tmp_path: Path) -> None:
    source, target = corpus(120)
    pairs = list(zip(source, target, strict=True))
    tsv = write(tmp_path, "train.tsv", [f"{t}\t{s}" for s, t in pairs])
    rows = [json.dumps({"translation": {"de": s, "en": t}}, ensure_ascii=False) for s, t in pairs]
    jsonl = write(tmp_path, "train.jsonl", rows)
    base = config_for(tmp_path).model_dump(mode="json")
    base["tokenizer"] |= {"joint": False, "vocab_size": 40}
    base["model"] = {"embeddings": "decoder-tied"}
    for place in ({"tsv": tsv, "columns": [1, 0]}, {"jsonl": jsonl}):
        base["data"]["train"] = [place]
        prepare(RunConfig.model_validate(base), quiet=True)
        assert decoded(tmp_path / "prepared") == pairs
        assert (tmp_path / "prepared" / "tokenizer" / "source.model").exists()


def test_hugging_face_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    source, target = corpus(120)
    pairs = list(zip(source, target, strict=True))
    base = config_for(tmp_path).model_dump(mode="json")
    program = (
        "import sys, json, pyarrow as pa, pyarrow.parquet as pq\n"
        "pairs = json.load(open(sys.argv[1]))\n"
        "rows = [{'translation': {'de': s, 'en': t}} for s, t in pairs]\n"
        "pq.write_table(pa.Table.from_pylist(rows), sys.argv[2])\n"
    )
    pairs_path = tmp_path / "pairs.json"
    pairs_path.write_text(json.dumps(pairs), encoding="utf-8")
    parquet = str(tmp_path / "train.parquet")
    subprocess.run([sys.executable, "-c", program, str(pairs_path), parquet], check=True)
    csv = write(tmp_path, "train.csv", ["de,en", *(f"{s},{t}" for s, t in pairs)])
    rows = [json.dumps({"de": s, "en": t}) for s, t in pairs]
    jsonl = write(tmp_path, "hf.json", rows)
    for name, streaming in ((parquet, False), (parquet, True), (csv, False), (jsonl, True)):
        base["data"]["train"] = [{"huggingface": name, "streaming": streaming}]
        path = tmp_path / "config.json"
        path.write_text(json.dumps(base), encoding="utf-8")
        # In a process of its own: `datasets` reads its cache folder from HF_HOME when imported.
        run = (
            "import sys, pathlib\n"
            "from nmt.config.run import RunConfig\n"
            "from nmt.commands.prepare import prepare\n"
            "c = RunConfig.model_validate_json(pathlib.Path(sys.argv[1]).read_text())\n"
            "prepare(c, quiet=True, force=True)\n"
        )
        subprocess.run([sys.executable, "-c", run, str(path)], check=True)
        assert decoded(tmp_path / "prepared") == pairs


def test_preparing_does_not_load_torch(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(config_for(tmp_path).model_dump_json(), encoding="utf-8")
    program = (
        "import sys, pathlib\n"
        "from nmt.config.run import RunConfig\n"
        "from nmt.commands.prepare import prepare\n"
        "text = pathlib.Path(sys.argv[1]).read_text()\n"
        "prepare(RunConfig.model_validate_json(text), quiet=True)\n"
        "assert 'torch' not in sys.modules\n"
    )

    subprocess.run([sys.executable, "-c", program, str(path)], check=True)
    assert (tmp_path / "prepared" / "manifest.json").exists()
