"""``nmt score`` as a user and a script see it."""

from __future__ import annotations

import gzip
import json
import os
import select
import threading
from functools import partial
from pathlib import Path

import pytest
from typer.testing import Result

from nmt.commands import score as score_module
from nmt.commands.options import ScoreOptions
from nmt.files.lines import read_chunks
from tests.cli.commands import call, lines_of, refused
from tests.inference.conftest import sentences

SOURCE, TARGET = sentences(30, seed=4, longest=8), sentences(30, seed=5, longest=8)
TABLE = "".join(f"{source}\t{target}\n" for source, target in zip(SOURCE, TARGET, strict=True))
PATIENCE_SECONDS = 60


@pytest.fixture(scope="session")
def run(runs: dict[str, Path]) -> Path:
    return runs["learned"]


def score(run: Path, *arguments: object, text: str | bytes = "") -> Result:
    return call("score", run, *arguments, text=text)


def scored(run: Path, *arguments: object, text: str | bytes = TABLE) -> list[str]:
    return lines_of(score(run, *arguments, text=text))


def numbers(run: Path, *arguments: object, text: str | bytes = TABLE) -> list[float]:
    return [float(line) for line in scored(run, *arguments, text=text)]


def test_as_many_lines_come_out_as_pairs_go_in(run: Path) -> None:
    found = scored(run)
    assert len(found) == len(SOURCE)
    assert all(-100 < float(line) < 0 for line in found)
    odd = "\n" + TABLE + "\t\n \t \n\tdog\nHund\t\nHund\tdog\r\nHund\tdog"
    lines = scored(run, text=odd)
    assert len(lines) == len(SOURCE) + 7
    again = [float(line) for line in lines[1 : 1 + len(SOURCE)]]
    assert again == pytest.approx([float(line) for line in found], abs=1e-5)
    assert (lines[0], *lines[-6:-3]) == ("0.000000", "0.000000", "0.000000", "-inf")
    assert -100 < float(lines[-3]) < 0
    assert lines[-1] == lines[-2]
    assert scored(run, text="") == []


def test_files_are_scored_as_the_table_is(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target, output = (tmp_path / name for name in ("in.de.gz", "in.en", "out.gz"))
    source.write_bytes(gzip.compress("\n".join(SOURCE).encode()))
    target.write_text("\n".join(TARGET) + "\n", "utf-8")
    files = ("--source", source, "--target", target)
    expected = scored(run)
    assert scored(run, *files) == expected
    assert scored(run, *files, "-o", output) == []
    assert gzip.decompress(output.read_bytes()).decode().split("\n")[:-1] == expected
    monkeypatch.setattr(score_module, "_MOST_CHARACTERS", 100)
    near = pytest.approx([float(line) for line in expected], abs=1e-5)
    assert numbers(run, *files) == near
    assert numbers(run, "--source", "-", "--target", target, text="\n".join(SOURCE)) == near


def test_pairs_are_answered_before_more_come(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, pairs = os.pipe()
    answers, writing = os.pipe()
    with os.fdopen(reading) as stdin, os.fdopen(writing, "w") as stdout, os.fdopen(answers) as told:
        monkeypatch.setattr("sys.stdin", stdin)
        monkeypatch.setattr("sys.stdout", stdout)
        options = ScoreOptions(model=run)
        thread = threading.Thread(target=score_module.score, args=[options], daemon=True)
        thread.start()
        for _ in range(2):
            os.write(pairs, b"Hund\tdog\n")
            assert select.select([told], [], [], PATIENCE_SECONDS)[0], "no answer"
            assert float(told.readline()) < 0
        os.close(pairs)
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


def test_json_has_the_score_of_every_token(run: Path) -> None:
    found = [json.loads(line) for line in scored(run, "--format", "json")]
    columns = (found, SOURCE, TARGET, numbers(run), numbers(run, "--sum"))
    for item, source, target, *values in zip(*columns, strict=True):
        assert set(item) == {"source", "target", "score", "log_prob", "tokens"}
        assert (item["source"], item["target"]) == (source, target)
        assert [item["score"], item["log_prob"]] == pytest.approx(values, abs=1e-5)
    blank = json.loads(scored(run, "--format", "json", text="\tdog\n")[0])
    assert (blank["score"], blank["tokens"]) == (None, [])


def test_what_translate_wrote_has_the_score_it_wrote(run: Path) -> None:
    text = "\n".join(SOURCE)
    flags = ("--no-guard", "--n-best", 3, "-b", 3, "--format", "json")
    pairs = [
        (line["source"], item["translation"], item["score"])
        for line in map(json.loads, lines_of(call("translate", run, *flags, text=text)))
        for item in line["alternatives"]
    ]
    assert len(pairs) == 3 * len(SOURCE)
    table = "".join(f"{source}\t{target}\n" for source, target, _ in pairs)
    assert numbers(run, text=table) == pytest.approx([score for _, _, score in pairs], abs=1e-4)


def test_options_change_the_score_as_they_change_the_search(run: Path) -> None:
    plain = scored(run, "--sum")
    assert scored(run, "--length-penalty", 0) == plain
    assert scored(run, "--set", "decoding.length_penalty=0") == plain
    refused(score(run, "--set", "batch.max_tokens=99"), 2, "max_tokens=99 has no effect")
    refused(score(run, "--ensemble-mean", "geometric"), 2, "needs --with")
    assert scored(run, "--length-penalty", 0.5) != plain
    assert numbers(run, "--batch-tokens", 1) == pytest.approx(numbers(run), abs=1e-5)


def test_several_models_score_together(runs: dict[str, Path]) -> None:
    first, second = runs["learned"], runs["modern"]
    together = numbers(first, "--with", second)
    assert together == pytest.approx(numbers(second, "--with", first, "--weights", "1,1"), abs=1e-5)
    assert together != numbers(first, "--with", second, "--ensemble-mean", "geometric")
    weighted = numbers(first, "--with", second, "--weights", "1,0")
    assert weighted == pytest.approx(numbers(first), abs=1e-5)


def test_files_that_are_not_parallel_are_refused(run: Path) -> None:
    long, short = Path("long.de"), Path("short.en")
    long.write_text("Hund\n" * 5, "utf-8")
    short.write_text("dog\n" * 3, "utf-8")
    words = ("has 5", "has 3", "long.de", "short.en")
    refused(score(run, "--source", long, "--target", short), 3, *words)
    refused(score(run, "--source", short, "--target", long), 3, *words)


def test_no_input_is_overwritten(run: Path, tmp_path: Path) -> None:
    source = tmp_path / "in.de"
    source.write_text("Hund\n", "utf-8")
    for other in (source, tmp_path / "other"):
        for files in ((source, other), (other, source)):
            flags = ("--source", files[0], "--target", files[1], "-o", source)
            refused(score(run, *flags), 2, f"{source} is also an input file", "fix:")


def test_a_line_without_its_tab_is_named(run: Path) -> None:
    refused(score(run, text="Hund\tdog\nHund dog\n"), 3, "line 2 has 0 tabs, not 1")
    refused(score(run, text="Hund\tdog\t0.5\n"), 3, "line 1 has 2 tabs", "cut -f 1,2")


def test_bytes_that_are_not_utf_8_give_a_line_and_a_note(run: Path, tmp_path: Path) -> None:
    result = score(run, text=b"Hund\tdog\nKat\xffze\tcat\n")
    assert result.exit_code == 0
    assert result.stdout.count("\n") == 2
    assert "nmt: warning: line 2, byte 4: 0xff is not UTF-8" in result.stderr
    source, target = tmp_path / "a.de", tmp_path / "a.en"
    source.write_bytes(b"Hund\nKatze\n")
    target.write_bytes(b"dog\nc\xffat\n")
    result = score(run, "--source", source, "--target", target)
    assert result.stdout.count("\n") == 2
    assert f"nmt: warning: {target}, line 2, byte 2: 0xff is not UTF-8" in result.stderr


def test_damaged_lines_are_numbered_across_chunks(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(score_module, "read_chunks", partial(read_chunks, lines_at_once=2))
    assert "line 5, byte 2: 0xff" in score(run, text=b"a\tb\n" * 4 + b"a\xff\tb\n").stderr
    source, target = tmp_path / "a.de", tmp_path / "a.en"
    source.write_bytes(b"a\n" * 5)
    target.write_bytes(b"a\n" * 4 + b"a\xff\n")
    result = score(run, "--source", source, "--target", target)
    assert f"{target}, line 5, byte 2: 0xff" in result.stderr


def test_the_languages_of_the_model_can_be_named_and_no_others(run: Path) -> None:
    assert scored(run, "--from", "de", "--to", "en") == scored(run)
    refused(score(run, "--from", "en"), 2, "fix:")
    refused(score(run, "--to", "de"), 2, "fix:")


def test_bad_flags_fail(run: Path, tmp_path: Path) -> None:
    refused(score(run, "--source", tmp_path / "a"), 2, "--target is missing")
    refused(score(run, "--source", "-", "--target", "-"), 2, "once")
