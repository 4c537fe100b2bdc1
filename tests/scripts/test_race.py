"""The race skips what is done, takes the checkpoint of the right time, and draws its results."""

from __future__ import annotations

import json
import runpy
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(SCRIPTS))
    RACE = runpy.run_path(str(SCRIPTS / "race.py"))
CHART = runpy.run_path(str(SCRIPTS / "race_chart.py"))


def result(toolkit: str, minutes: float, seed: int, bleu: float, seconds: float = 299) -> Any:
    rest = {"version": "1", "updates": 9, "cpu": "Zen", "threads": 2, "date": "today", "load": 2.0}
    return RACE["Result"](
        toolkit=toolkit, minutes=minutes, seed=seed, bleu=bleu, seconds=seconds, **rest
    )


def test_results_of_the_file_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "race.jsonl"
    assert RACE["read_results"](path) == []
    done = [result("nmt", 5, 1, 30.0), result("nmt", 10, 2, 35.0)]
    path.write_text("".join(json.dumps(asdict(each)) + "\n" for each in done))
    assert RACE["read_results"](path) == done
    assert RACE["missing"](done, "nmt", 1, [10, 5, 20]) == [10, 20]
    assert RACE["missing"](done, "fairseq", 1, [5]) == [5]


def test_the_checkpoint_is_the_newest_that_was_complete_at_the_limit() -> None:
    written = {Path("50.ckpt"): 61.0, Path("25.ckpt"): 30.0, Path("75.ckpt"): 90.5}
    assert RACE["newest"](written, 90) == Path("50.ckpt")
    assert RACE["newest"](written, 29) is None


def test_a_training_is_ended_at_its_limit_and_a_failure_is_reported(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    begin = time.monotonic()
    assert RACE["execute"](["sh", "-c", "echo begun; sleep 600"], log, 0.5) is None
    assert time.monotonic() - begin < 300
    assert log.read_text() == "begun\n"
    assert RACE["execute"](["true"], log, 300) > 0
    with pytest.raises(RuntimeError, match="exit code 3:\noh no"):
        RACE["execute"](["sh", "-c", "echo oh no; exit 3"], log, 30)


def test_settings_fill_every_name_of_a_template(tmp_path: Path) -> None:
    settings = RACE["TOOLKITS"]["fairseq"].settings
    run = RACE["Run"](settings, tmp_path, tmp_path / "run", Path("python"), 7, 60.0, 2, 25)
    options = run.fill(RACE["FAIRSEQ"]).split()
    assert {"--seed=7", "--lr=0.001", "--max-tokens=1024", "--decoder-layers=3"} <= {*options}
    for name in ("OPENNMT", "JOEY", "JOEY_STACK"):
        text = run.fill(RACE[name], checkpoint="null", longest=1, stack="{}")
        assert f"{tmp_path}/pieces/train" in text or name == "JOEY_STACK"


def test_the_chart_and_the_table_show_means_and_the_range_of_the_seeds() -> None:
    results = [
        result("nmt", 5, 1, 30.0), result("nmt", 5, 2, 31.0), result("nmt", 10, 1, 35.04, 601),
        result("fairseq", 5, 1, 12.0), result("fairseq", 10, 1, 35.0),
    ]  # fmt: skip
    curves = RACE["curves_of"](results)
    root = ElementTree.fromstring(CHART["draw"](curves))
    texts = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"BLEU", "40", "5", "10", "nmt 35.0", "fairseq 35.0"} <= {*texts}
    lines = [each for each in root.iter() if "line" in each.get("class", "")]
    assert len(lines) == 2
    table = RACE["table"](results).splitlines()
    assert table[2:4] == ["| nmt | 30.5 ± 0.5 | 35.0 |", "| fairseq | 12.0 | 35.0 |"]
    assert "nmt, seed 1: 601 seconds, limit 10 minutes" in table
    assert "load at the end of a training: 2 to 2" in table


class Echo:
    """A tokenizer that does nothing."""

    def decode(self, pieces: list[str]) -> str:
        return " ".join(pieces)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A training of a toolkit that is a shell script: it writes checkpoints 1 to 3."""
    folder = tmp_path / "run"
    for path in (folder, tmp_path / "text", tmp_path / "pieces", tmp_path / "outputs"):
        path.mkdir()
    for name in ("text/test_2016_flickr.en", "pieces/test_2016_flickr.de"):
        (tmp_path / name).write_text("a b c d\n")

    def train(run: Any) -> list[str]:
        return ["sh", "-c", f"for i in 1 2 3; do echo $i > {run.folder}/$i.ckpt; done"]

    def translate(run: Any, checkpoint: Path) -> list[str]:
        if checkpoint.stem == "3":
            raise RuntimeError("damaged")
        return list(run.output_of("cat"))

    settings = RACE["Settings"]()
    fake = RACE["Toolkit"]("Fake", "pytest", "fake", train, translate, settings, "[0-9].ckpt")
    monkeypatch.setitem(RACE["TOOLKITS"], "fake", fake)
    return RACE["Run"](settings, tmp_path, folder, Path(sys.executable), 1, 60.0, 2, 25)


def test_each_checkpoint_is_translated_even_if_another_is_damaged(
    run: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = iter(run.folder / f"{number}.ckpt" for number in (1, 3, 2))
    score = RACE["train_and_score"]
    monkeypatch.setitem(score.__globals__, "newest", lambda *_: next(newest))
    results = list(score(run, "fake", [5, 10, 20], Echo()))
    assert [(each.minutes, each.updates, each.bleu) for each in results] == [
        (5, 1, 100.0), (20, 2, 100.0),
    ]  # fmt: skip
    assert "fake, 10 minutes: damaged" in capsys.readouterr().out


def test_a_training_without_checkpoints_must_end(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = replace(RACE["TOOLKITS"]["fake"], checkpoints="")
    monkeypatch.setitem(RACE["TOOLKITS"], "fake", fake)
    score = RACE["train_and_score"]
    monkeypatch.setitem(score.__globals__, "execute", lambda *_: None)
    with pytest.raises(RuntimeError, match="did not end within 480 seconds"):
        list(score(run, "fake", [1], Echo()))


def test_names_at_one_height_are_moved_apart_and_stay_above_the_bottom() -> None:
    assert CHART["spread"]([10, 12, 50], 5, 52) == [10, 15, 50]
    assert CHART["spread"]([10, 50, 51], 5, 52) == [10, 47, 52]
