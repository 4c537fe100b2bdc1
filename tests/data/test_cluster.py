"""Blocks of a corpus go to any executor, and what comes out does not depend on it."""

from __future__ import annotations

import importlib.util
import json
import sys
from functools import partial
from pathlib import Path

import pytest

from nmt.commands.prepare import prepare
from nmt.data import lexicon, passes
from nmt.data.cluster import open_workers
from nmt.data.corpus import read_blocks
from nmt.data.prepared import REPORT
from nmt.errors import ConfigError
from tests.commands.test_prepare import config_for, corpus, write_pairs

needs_dask = pytest.mark.skipif(
    importlib.util.find_spec("distributed") is None, reason="needs the extra `cluster` (Dask)"
)


def prepared(folder: Path, *, workers: int | None = None, scheduler: str | None = None) -> object:
    """Everything that is made of some corpora, but times and the folder's name."""
    source, target = corpus(120)
    source[10], target[40], source[70], target[71] = "", "<b>null</b>", source[3], target[3]
    write_pairs(folder, source, target)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passes, "read_blocks", partial(read_blocks, size=13))
        patch.setattr(lexicon, "_MEETINGS_AT_ONCE", 1000)  # several batches, too
        prepare(config_for(folder), force=True, workers=workers, scheduler=scheduler)
    files = [path for path in sorted((folder / "prepared").rglob("*")) if path.is_file()]
    report = json.loads((folder / "prepared" / REPORT).read_text(encoding="utf-8"))
    del report["seconds"], report["stages"]
    return report, {
        path.name: path.read_bytes() for path in files if path.name not in (REPORT, "manifest.json")
    }


def test_any_number_of_workers_gives_the_same_bytes(tmp_path: Path) -> None:
    assert prepared(tmp_path, workers=3) == prepared(tmp_path)


@needs_dask
@pytest.mark.slow
def test_dask_gives_the_same_bytes(tmp_path: Path) -> None:
    assert prepared(tmp_path, workers=2, scheduler="local") == prepared(tmp_path)


@needs_dask
def test_a_scheduler_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt.data.cluster._CONNECT_SECONDS", 0.2)
    with (
        pytest.raises(ConfigError, match="No Dask scheduler answers at tcp://127"),
        open_workers(None, "tcp://127.0.0.1:9"),
    ):
        pass


def test_without_dask_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with (
        pytest.raises(ConfigError, match=r"not installed.*\n.*pip install 'nmt\[cluster\]'"),
        open_workers(2, "local"),
    ):
        pass
