"""An interrupted translation to a file continues where it was."""

from __future__ import annotations

import gzip
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nmt
from nmt.commands import translate as command
from nmt.errors import DataError
from nmt.files.part import resumable_output
from nmt.inference.translator import Translator
from tests.inference.conftest import sentences

LINES = [*sentences(9, seed=4, longest=8), ""]
Translate = Callable[..., list[str]]


@pytest.fixture
def translate(runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Translate:
    """Translates in chunks of two lines; ``crash_at`` interrupts a chunk. Returns what it read."""
    monkeypatch.setattr(command, "MAX_CHUNK_LINES", 2)
    finish = Translator.finish

    def run(lines: list[str], crash_at: int | None = None, out: str = "out", **flags: Any) -> Any:
        (tmp_path / "in").write_text("\n".join(lines) + "\n", "utf-8")
        texts = list[str]()

        def spied(translator: Translator, segmented: Any) -> Any:
            if crash_at is not None and len(texts) >= crash_at:
                raise KeyboardInterrupt
            texts.extend(request.text for request in segmented.requests)
            return finish(translator, segmented)

        monkeypatch.setattr(Translator, "finish", spied)
        options = nmt.TranslateOptions(
            model=runs["plain"], input=tmp_path / "in", output=tmp_path / out, device="cpu",
            threads=1, **flags,
        )  # fmt: skip
        nmt.translate(options)
        return texts

    return run


def crash(translate: Translate, lines: list[str] = LINES, at: int = 4, **flags: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        translate(lines, crash_at=at, **flags)


@pytest.fixture
def expected(translate: Translate, tmp_path: Path) -> bytes:
    assert translate(LINES, out="expected") == LINES
    return (tmp_path / "expected").read_bytes()


@pytest.mark.parametrize("more", [[], ["Hund"]], ids=["", "a longer input"])
def test_finished_chunks_are_not_translated_again(
    more: list[str], translate: Translate, expected: bytes, tmp_path: Path
) -> None:
    crash(translate)
    assert not (tmp_path / "out").exists()
    assert expected.startswith((tmp_path / "out.part").read_bytes())
    assert translate([*LINES, *more]) == [*LINES[4:], *more]
    assert (tmp_path / "out").read_bytes().startswith(expected)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["expected", "in", "out"]


def test_a_part_of_a_chunk_is_dropped(
    translate: Translate, expected: bytes, tmp_path: Path
) -> None:
    crash(translate)
    with (tmp_path / "out.part").open("ab") as part:
        part.write(b"half of a li")
    assert translate(LINES) == LINES[4:]
    assert (tmp_path / "out").read_bytes() == expected


@pytest.mark.parametrize("change", ["input", "shorter input", "options"])
def test_other_inputs_and_options_start_again(
    change: str, translate: Translate, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = LINES
    flags: dict[str, Any] = {}
    crash(translate)
    if change == "input":
        lines = ["Hund", *LINES[1:]]
    elif change == "shorter input":
        lines = LINES[:3]
    else:
        flags = {"beam_size": 1}
    with caplog.at_level(logging.WARNING):
        assert translate(lines, **flags) == lines
    assert "starting again" in caplog.text
    assert len((tmp_path / "out").read_bytes().splitlines()) == len(lines)


def test_a_part_that_was_deleted_or_cut_without_its_record_starts_again(
    translate: Translate, expected: bytes, tmp_path: Path
) -> None:
    crash(translate)
    (tmp_path / "out.part").unlink()
    assert translate(LINES) == LINES
    assert (tmp_path / "out").read_bytes() == expected


def test_a_compressed_output_is_resumed(
    translate: Translate, expected: bytes, tmp_path: Path
) -> None:
    crash(translate, out="out.gz")
    translate(LINES, out="out.gz")
    assert gzip.decompress((tmp_path / "out.gz").read_bytes()) == expected


def test_a_file_of_somebody_else_is_kept(translate: Translate, tmp_path: Path) -> None:
    (tmp_path / "out.part").write_text("mine", "utf-8")
    with pytest.raises(DataError, match=r"out\.part exists, and nmt has not written it"):
        translate(LINES)
    assert (tmp_path / "out.part").read_text("utf-8") == "mine"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("record", ["{", "{}", "[1]", '{"lines": "4", "bytes": null}'])
@pytest.mark.parametrize("part", ["mine", None])
def test_a_record_of_somebody_else_is_kept(
    record: str, part: str | None, translate: Translate, tmp_path: Path
) -> None:
    files = {"out.part.json": record}
    if part is not None:
        files["out.part"] = part
    for name, content in files.items():
        (tmp_path / name).write_text(content, "utf-8")
    with pytest.raises(DataError, match="exists, and nmt has not written it"):
        translate(LINES)
    assert {name: (tmp_path / name).read_text("utf-8") for name in files} == files


def test_a_kill_before_the_first_record_does_not_refuse_the_next_start(
    translate: Translate, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with resumable_output(tmp_path / "out", "settings") as (_, part):
        assert part is not None
        part.stream.write(b"not recorded")
        part.stream.flush()
        shutil.copytree(tmp_path, tmp_path / "killed")
    (tmp_path / "killed" / "out.part").rename(tmp_path / "out.part")
    (tmp_path / "killed" / "out.part.json").rename(tmp_path / "out.part.json")
    assert translate(LINES) == LINES
    assert "starting again" not in caplog.text
