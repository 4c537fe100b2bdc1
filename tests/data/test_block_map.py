"""Results of blocks come in order, and what a killed command has done is not done again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from nmt.commands.prepare import recipe_of
from nmt.data import reading
from nmt.data.corpus import Block
from nmt.data.diagnosis import Diagnosis, Material
from nmt.data.filters import PairProblem
from nmt.data.prepare_report import REPORT
from nmt.data.prepared import TIMES, PreparedManifest
from nmt.data.reading import CorpusReader, EncodingPass, TextPass
from nmt.data.workers import BlockResult, map_blocks, open_workers, work_folder
from nmt.errors import DataError
from nmt.files.json_file import MANIFEST
from tests.commands.preparing import config_for, corpus, decoded, prepare, write, write_pairs
from tests.process import LIMIT

SIZE = 13
NUM_BLOCKS = 10  # of 120 pairs: 9 whole ones and a rest


def write_odd_pairs(folder: Path) -> None:
    """Some pairs are blank, marked up or repeated."""
    source, target = corpus(120)
    source[10], target[40], source[70], target[71] = "", "<b>null</b>", source[3], target[3]
    write_pairs(folder, source, target)


def run(folder: Path, *, kill_at: int | None = None, **changes: Any) -> Counter[str]:
    """Prepare small blocks, and count those that are made; perhaps be killed at one of them."""
    made = Counter[str]()
    with pytest.MonkeyPatch.context() as patch:
        for kind in (TextPass, EncodingPass):
            patch.setattr(kind, "__call__", _counted(made, kind.__call__, kill_at))
        patch.setattr(reading, "BLOCK_PAIRS", SIZE)
        patch.setattr("nmt.data.corpus.BLOCK_PAIRS", SIZE)
        prepare(config_for(folder, **changes), force=True)
    return made


def _counted(
    made: Counter[str], make: Callable[..., Any], kill_at: int | None
) -> Callable[..., Any]:
    def counted(self: TextPass | EncodingPass, block: Block) -> Any:
        if len(block) != 5:  # not the validation set
            made[type(self).__name__] += 1
            if made.total() == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
        return make(self, block)

    return counted


def stop_late(folder: Path, **changes: Any) -> list[Path]:
    """Do all the work, fail at the end, and return the stored results."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PreparedManifest, "write", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(folder, **changes)
    return sorted((folder / ".prepared.work").glob("*.shard"))


def files(folder: Path) -> dict[Path, bytes]:
    """Content of what is made, but of files that hold times."""
    found = [path for path in (folder / "prepared").rglob("*") if path.is_file()]
    return {path: path.read_bytes() for path in found if path.name not in (REPORT, MANIFEST, TIMES)}


@pytest.mark.parametrize(
    ("kill_at", "again"),
    [(6, {"TextPass": 5, "EncodingPass": 10}), (14, {"TextPass": 1, "EncodingPass": 7})],
)
def test_after_a_kill_only_missing_results_are_computed(
    tmp_path: Path, kill_at: int, again: dict[str, int]
) -> None:
    write_odd_pairs(tmp_path)
    prepare(config_for(tmp_path))
    whole = files(tmp_path)
    place = repr(str(tmp_path))
    code = f"import tests.data.test_block_map as t; t.run(t.Path({place}), kill_at={kill_at})"
    where = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    killed = subprocess.run([sys.executable, "-c", code], check=False, env=where, timeout=LIMIT)
    assert killed.returncode == -signal.SIGKILL
    assert run(tmp_path) == again
    assert not (tmp_path / ".prepared.work").exists()
    assert files(tmp_path) == whole


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("", "all its lines are blank"),
        ("\u3000", "dropped all training pairs of numbers: blank 120"),
    ],
)
def test_blank_lines_are_refused_and_leave_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, line: str, problem: str
) -> None:
    """There is nothing to continue from: results of blocks without kept pairs are not stored."""
    write_pairs(tmp_path, [line] * 120, [line] * 120)
    with pytest.raises(DataError, match=problem):
        run(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"train.de", "train.en", "valid.de", "valid.en"}
    assert "interrupted" not in caplog.text


@pytest.mark.parametrize("damage", ["cut", "changed", "empty"])
def test_a_damaged_result_is_reported_and_computed_again(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    write_odd_pairs(tmp_path)
    prepare(config_for(tmp_path))
    whole, stored = files(tmp_path), stop_late(tmp_path)
    assert len(stored) == 2 * (NUM_BLOCKS - 1)
    victim = stored[-3]
    content = victim.read_bytes()
    middle = len(content) // 2
    changed = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    victim.write_bytes({"cut": content[:-1], "changed": changed, "empty": b""}[damage])
    assert run(tmp_path).total() == 3  # the victim, and the last block twice
    assert f"{victim} is damaged: computing it again" in caplog.text
    assert files(tmp_path) == whole


def test_results_of_other_text_or_another_configuration_are_not_reused(tmp_path: Path) -> None:
    write_odd_pairs(tmp_path)
    stop_late(tmp_path)
    source = tmp_path / "train.de"
    lines = source.read_text(encoding="utf-8").splitlines(keepends=True)
    lines[30] = "eins zwei drei\n"
    source.write_text("".join(lines), encoding="utf-8")
    assert run(tmp_path)["TextPass"] == 2  # the block of the line, and the rest
    stop_late(tmp_path)
    changed = run(tmp_path, filters={"max_length_ratio": 3.0})
    assert changed == {"TextPass": NUM_BLOCKS, "EncodingPass": NUM_BLOCKS}
    stop_late(tmp_path)
    # Texts are read and filtered as before, but other subwords have other ids.
    changed = run(tmp_path, tokenizer={"vocab_size": 50, "byte_fallback": False})
    assert changed == {"TextPass": 1, "EncodingPass": NUM_BLOCKS}


@pytest.mark.parametrize("library", ["ftfy", "py3langid", "fasttext-predict"])
@pytest.mark.long
def test_results_of_another_version_of_a_library_are_not_reused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    """A library that is missing has no version."""
    versions = {"fasttext-predict": "1", "ftfy": "1", "py3langid": "1"}
    del versions[library]

    def version(name: str) -> str:
        if name not in versions:
            raise PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(reading, "version", version)
    write_odd_pairs(tmp_path)
    stop_late(tmp_path)
    assert run(tmp_path) == {"TextPass": 1, "EncodingPass": 1}  # the last block is not stored
    for new in ("1", "2"):
        stop_late(tmp_path)
        versions[library] = new
        assert run(tmp_path) == {"TextPass": NUM_BLOCKS, "EncodingPass": NUM_BLOCKS}


def test_results_of_other_columns_of_the_same_file_are_not_reused(tmp_path: Path) -> None:
    """A pair that is blank in the wrong column is not dropped from the right one."""
    data = config_for(tmp_path).data.model_dump(mode="json", exclude_unset=True)
    source, target = corpus(120)
    other = [*target[:4], "", *target[5:]]
    rows = zip(source, other, target, strict=True)
    path = write(tmp_path, "pairs.tsv", ["\t".join(row) for row in rows])

    def columns(*numbers: int) -> dict[str, Any]:
        return {**data, "train": [{"name": "numbers", "tsv": path, "columns": numbers}]}

    stop_late(tmp_path, data=columns(0, 1))
    run(tmp_path, data=columns(0, 2))
    assert decoded(tmp_path / "prepared") == list(zip(source, target, strict=True))


@pytest.mark.parametrize("has_failed", [False, True])
@pytest.mark.parametrize("name", ["1.shard", "lines.bin", None])
def test_only_shards_outlive_a_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str | None, has_failed: bool
) -> None:
    """Then the next start is said to go on from them."""
    place = tmp_path / ".prepared.work"
    with suppress(ZeroDivisionError), work_folder(tmp_path / "prepared") as folder:
        assert folder == place
        if name:
            (folder / name).touch()
        _ = 1 / (not has_failed)
    is_kept = has_failed and name == "1.shard"
    assert [*tmp_path.iterdir()] == [place] * is_kept
    assert (str(place) in caplog.text) == is_kept
    with work_folder(tmp_path / "prepared") as again:
        assert [path.name for path in again.iterdir()] == ["1.shard"] * is_kept
    assert not place.exists()


class Asked(Diagnosis):
    """Finds fault with line 30 of the corpus ``second``, and keeps what it is told."""

    compares_words = True

    def __init__(self, material: Material) -> None:
        super().__init__(material)
        self.num_seen = Counter[str]()
        self.kept: dict[str, list[bool]] = {}
        self.ends: list[Mapping[str, int]] = []
        self.learned: list[Any] = []

    def see(self, corpus: str, pairs: Sequence[Any], *_: Any) -> None:
        self.num_seen[corpus] += len(pairs)

    def end(self, num_lines: Mapping[str, int]) -> None:
        self.ends.append(dict(num_lines))

    def learn(self, lines: Any, spans: Any, sizes: tuple[int, int]) -> None:
        self.learned += [len(lines), dict(spans), sizes]

    def of_block(
        self, corpus: str, start: int, is_kept: Any
    ) -> Mapping[int, Sequence[PairProblem]]:
        before = self.kept.setdefault(corpus, [])
        assert start == len(before)
        before += is_kept.tolist()
        row = 30 - 1 - start
        if corpus == "second" and 0 <= row < len(is_kept):
            return {row: [PairProblem("mine")]}
        return {}


def test_a_diagnosis_is_asked_about_every_line_of_the_training_corpora_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its findings drop the line that they are about, and no pair that is held out."""
    source, target = corpus(120)
    both = {"first": source[:50], "second": source[50:]}
    both["first"][10] = ""
    train = [
        {"name": "first", **write_pairs(tmp_path, both["first"], target[:50], "first")},
        {"name": "second", **write_pairs(tmp_path, both["second"], target[50:], "second")},
    ]
    held_out = {"name": "held", **write_pairs(tmp_path, source[:40], target[:40], "held")}
    tests = {"news": write_pairs(tmp_path, source[:7], target[:7], "news")}
    made: list[Asked] = []

    def make(material: Material, _: Any) -> Asked:
        made.append(Asked(material))
        return made[-1]

    monkeypatch.setattr("nmt.commands.prepare.make_diagnosis", make)
    data = {"train": train, "valid": [held_out], "test": tests}
    monkeypatch.setattr(reading, "BLOCK_PAIRS", SIZE)
    monkeypatch.setattr("nmt.data.corpus.BLOCK_PAIRS", SIZE)
    config = config_for(tmp_path, data=data)
    report = prepare(config)
    (asked,) = made
    kept = {"first": [number != 10 for number in range(50)], "second": [True] * 70}
    assert asked.kept == kept
    assert asked.num_seen == {"first": 49, "second": 70}
    assert asked.ends == [{"first": 50, "second": 70}]
    num_lines, spans, sizes = asked.learned
    assert list(spans.values()) == [(0, 50), (50, 120), (120, 160), (160, 167)]
    assert (num_lines, sizes) == (167, (60, 60))
    right = [*zip(both["first"], target[:50], strict=True)]
    right += zip(both["second"], target[50:], strict=True)
    del right[50 + 29]
    del right[10]
    assert decoded(tmp_path / "prepared") == right
    assert report.counts["first"] == {"read": 50, "kept": 49, "blank": 1}
    assert report.counts["second"] == {"read": 70, "kept": 69, "mine": 1}


@pytest.mark.parametrize("total", [1, 3])
def test_a_corpus_with_more_or_fewer_lines_than_before_is_refused(total: int) -> None:
    block = Block(list, ([("eins", "one", 1), ("zwei", "two", 2)],), 1)
    with pytest.raises(DataError, match="corpus numbers changed"):
        list(map_blocks("reading numbers", iter([block]), lambda _: BlockResult({}), total=total))


def test_stages_have_the_sum_of_their_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([10.0, 11.5, 20.0, 20.25, 30.0, 30.0625])
    monkeypatch.setattr("time.perf_counter", lambda: next(times))
    with open_workers(None, None) as workers:
        timed = CorpusReader(recipe_of(config_for(tmp_path)), tmp_path, workers)
    for name in ("reading", "writing", "reading"):
        with timed.stage(name):
            pass
    assert timed.stages == {"reading": 1.562, "writing": 0.25}
