"""`nmt prepare --verify` names what is missing or damaged in a prepared folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from nmt.config.run import RunConfig
from nmt.data.prepared import verify_prepared
from nmt.errors import DataError
from tests.commands.preparing import config_for, prepare


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    config = config_for(tmp_path)
    prepare(config)
    return config


def files_of(config: RunConfig) -> list[Path]:
    found = sorted(path for path in config.prepared_dir.rglob("*") if path.is_file())
    return [path for path in found if path.name != "manifest.json"]


def test_a_whole_folder_is_whole_until_its_manifest_changes(config: RunConfig) -> None:
    files = files_of(config)
    assert {"train", "valid", "tokenizer"} <= {path.parent.name for path in files}
    found = verify_prepared(config.prepared_dir)
    assert found.files == len(files)
    assert found.bytes == sum(path.stat().st_size for path in files)
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
