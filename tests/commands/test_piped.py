"""A training corpus that is standard input: read once, known by its hash afterwards."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nmt.cli.app import app
from nmt.commands.options import PrepareOptions
from nmt.commands.prepare import prepare as run_prepare
from nmt.config.run import RunConfig
from nmt.data.corpus import measure_text
from nmt.data.prepared import PreparedData
from nmt.errors import ConfigError, DataError
from tests.cli.commands import refused
from tests.commands.preparing import config_for, corpus, prepare

TEXT = "".join(f"{one}\t{other}\n" for one, other in zip(*corpus(120), strict=True)).encode()


class Pipe(io.BytesIO):
    """What can be read once, and has no length."""

    def seek(self, *_: int) -> int:
        raise io.UnsupportedOperation("a pipe")


def piped_config(folder: Path, **data: Any) -> RunConfig:
    values = config_for(folder).model_dump(mode="json")
    values["data"] |= {"train": [{"tsv": "-"}]} | data
    return RunConfig.model_validate(values)


def test_it_is_prepared_like_a_file_and_recognized_by_its_hash(tmp_path: Path) -> None:
    path, prepared = tmp_path / "pairs.tsv", tmp_path / "prepared"
    path.write_bytes(TEXT)
    prepare(piped_config(tmp_path, train=[{"tsv": str(path)}]))
    expected = PreparedData.open(prepared).manifest
    config = piped_config(tmp_path)
    assert not prepare(config, piped=Pipe(TEXT)).up_to_date
    manifest = PreparedData.open(prepared).manifest
    assert manifest.data_hash == expected.data_hash
    assert manifest.sources["-"]["sha256"] == expected.sources[str(path)]["sha256"]
    assert [path.name for path in tmp_path.glob(".prepared*")] == []
    assert prepare(config, piped=Pipe(TEXT)).up_to_date
    assert prepare(config).up_to_date  # as training asks
    assert not prepare(config, piped=Pipe(TEXT + TEXT[: TEXT.index(b"\n") + 1])).up_to_date


def test_its_format_may_be_named(tmp_path: Path) -> None:
    rows = [line.split("\t") for line in TEXT.decode().splitlines()]
    objects = [json.dumps({"de": row[0], "en": row[1]}) + "\n" for row in rows]
    named = piped_config(tmp_path, train=[{"path": "-", "format": "jsonl"}])
    report = prepare(named, piped=Pipe("".join(objects).encode()))
    assert report.counts["standard input"]["kept"] == 120
    assert report.notes[0] == "standard input is read as jsonl, columns de and en: 120 pairs"


def test_its_report_alone_writes_nothing_and_its_size_is_unknown(tmp_path: Path) -> None:
    config = piped_config(tmp_path)
    report = prepare(config, report_only=True, piped=Pipe(TEXT))
    assert report.counts["standard input"]["kept"] == 120
    assert not (tmp_path / "prepared").exists()
    with pytest.raises(ConfigError, match="size of standard input is unknown"):
        measure_text(config.data.train, ("de", "en"))


@pytest.mark.parametrize(
    "data",
    [
        {"train": [{"tsv": "-"}, {"tsv": "-"}]},
        {"valid": {"tsv": "-"}},
        {"train": [{"source": "-", "target": "x"}]},
        {"train": [{"path": "-", "format": "tsv"}, {"tsv": "-"}]},
    ],
)
def test_it_is_one_training_corpus_and_nothing_else(tmp_path: Path, data: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="of a single training corpus"):
        prepare(piped_config(tmp_path, **data), piped=Pipe(TEXT))


@pytest.mark.parametrize("options", [{}, {"force": True}, {"report_only": True}])
def test_without_standard_input_nothing_waits(tmp_path: Path, options: dict[str, bool]) -> None:
    if options:
        prepare(piped_config(tmp_path), piped=Pipe(TEXT))
    with pytest.raises(ConfigError, match=r"nmt prepare CONFIG < FILE"):
        prepare(piped_config(tmp_path), **options)  # type: ignore[arg-type]


def test_training_asks_for_the_command_that_reads_standard_input(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_bytes(TEXT)
    demo = str(Path(__file__).parents[2] / "configs" / "demo.yaml")
    flags = [f"{part}_dir={tmp_path / part}" for part in ("prepared", "run")]
    flags += ["data={train: [{tsv: -}], valid: {tsv: train.tsv}}", "tokenizer.vocab_size=300"]
    arguments = [demo, *(word for each in flags for word in ("--set", each))]
    early = CliRunner().invoke(app, ["train", *arguments], input=TEXT)
    refused(early, 2, "standard input", "nmt prepare CONFIG < FILE")
    result = CliRunner().invoke(app, ["prepare", *arguments], input=TEXT)
    assert "standard input: 120 sentence pairs read" in result.stdout + result.stderr


@pytest.mark.parametrize("is_prepared", [False, True])
def test_standard_input_that_is_not_connected_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_prepared: bool
) -> None:
    """As cron and systemd start programs."""
    values = piped_config(tmp_path).model_dump(mode="json", by_alias=True, exclude_unset=True)
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps(values), encoding="utf-8")
    if is_prepared:
        prepare(piped_config(tmp_path), piped=Pipe(TEXT))
    with Path(os.devnull).open(encoding="utf-8") as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        with pytest.raises(ConfigError, match=r"not connected \(/dev/null\)") as caught:
            run_prepare(PrepareOptions(config=path))
    assert "nmt prepare CONFIG < FILE" in str(caught.value.fix)
    prepared_files = [file.name for file in tmp_path.glob("*prepared*")]
    assert prepared_files == ["prepared"] * is_prepared


def test_a_corpus_in_files_does_not_need_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = config_for(tmp_path).model_dump(mode="json", by_alias=True, exclude_unset=True)
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps(values), encoding="utf-8")
    with Path(os.devnull).open(encoding="utf-8") as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        report = run_prepare(PrepareOptions(config=path))
    assert report.as_dict()["counts"]["numbers"]["kept"] == 120


def test_empty_standard_input_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^standard input is empty"):
        prepare(piped_config(tmp_path), piped=Pipe(b""))
    assert [path.name for path in tmp_path.glob(".prepared*")] == []


def test_segmented_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="standard input was segmented by subword-nmt") as caught:
        prepare(piped_config(tmp_path), piped=Pipe(TEXT.replace(b"e", b"e@@ ")))
    assert "sed -E 's/@@( |$)//g' < FILE > NEW" in str(caught.value.fix)
    assert not [*tmp_path.glob("*prepared*")]
