"""`datasets` (local files, folders, hub ids), and test sets that sacrebleu publishes."""

from __future__ import annotations

import csv
import json
import os
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from nmt.commands.prepare import recipe_of
from nmt.config.data import CorpusConfig, DataConfig
from nmt.data.corpus import corpus_files, read_corpus
from nmt.data.formats.pair import ReadOptions
from nmt.data.hubs import (
    cached_test_sets,
    check_hub,
    hub_address,
    published_test_set,
    reaches,
    save_data_set,
)
from nmt.data.prepare_report import current_report
from nmt.errors import ConfigError, DataError
from tests.commands.preparing import config_for, corpus, prepare
from tests.process import LIMIT

datasets = pytest.importorskip("datasets")

PAIRS = [("null", "zero"), ("NA, ja", 'say "so"'), ("1", "2"), ("schön\u2028", "")]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


def pairs_of(place: Path | str, **options: Any) -> list[tuple[str, str]]:
    config = CorpusConfig.model_validate({"huggingface": str(place), **options})
    return [(pair[0], str(pair[1])) for pair in read_corpus(config, ReadOptions("de", "en"))]


def parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    datasets.Dataset.from_list(rows).to_parquet(str(path))
    return path


def nested(pairs: list[tuple[str, str]]) -> list[dict[str, Any]]:
    return [{"id": i, "translation": {"de": s, "en": t}} for i, (s, t) in enumerate(pairs)]


def test_a_file_of_any_format_is_one_split_of_any_name(tmp_path: Path) -> None:
    """With a translation column or one for each language; words that look missing are words, and
    null is blank."""
    with (tmp_path / "a.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("en", "de"), *((t, s) for s, t in PAIRS)])
    path = parquet(tmp_path / "a.parquet", nested(PAIRS))
    assert pairs_of(path) == pairs_of(path, streaming=True, split="validation") == PAIRS
    assert pairs_of(tmp_path / "a.csv") == PAIRS
    rows = [*nested(PAIRS), {"id": 9, "translation": {"de": "x", "en": None}}]
    for path in (tmp_path / "a.json", tmp_path / "a.jsonl"):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        assert pairs_of(path) == [*PAIRS, ("x", "")]


@pytest.mark.parametrize("streaming", [False, True])
def test_words_that_look_missing_are_words_in_a_folder_of_tables(
    tmp_path: Path, streaming: bool
) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for split in ("train", "test"):
        with (folder / f"{split}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("en", "de"), *((t, s) for s, t in PAIRS)])
    assert pairs_of(folder, streaming=streaming) == PAIRS


@pytest.mark.parametrize("keys", [("source", "target"), ("src", "tgt"), ("deu_Latn", "eng_Latn")])
def test_columns_are_found_by_usual_names_and_by_those_of_the_user(
    tmp_path: Path, keys: tuple[str, str]
) -> None:
    rows = [dict(zip((*keys, "first", "second"), pair + pair, strict=True)) for pair in PAIRS]
    path = parquet(tmp_path / "a.parquet", rows)
    assert pairs_of(path) == PAIRS
    swapped = [(target, source) for source, target in PAIRS]
    assert pairs_of(path, columns=["second", "first"]) == swapped


@pytest.mark.parametrize("streaming", [False, True])
def test_a_folder_is_a_data_set_with_splits(tmp_path: Path, streaming: bool) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    files = [
        parquet(folder / f"{split}.parquet", nested(PAIRS[:count]))
        for split, count in (("test", 1), ("train", 3))
    ]
    assert pairs_of(folder, streaming=streaming) == PAIRS[:3]
    assert pairs_of(folder, streaming=streaming, split="test") == PAIRS[:1]
    assert corpus_files(CorpusConfig(huggingface=str(folder))) == tuple(files)


def test_the_hub_is_asked_for_what_the_configuration_says(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def load(**options: Any) -> Any:
        asked.update(options)
        return datasets.Dataset.from_list(nested(PAIRS)).to_iterable_dataset()

    monkeypatch.setattr("datasets.load_dataset", load)
    monkeypatch.setattr("datasets.load_dataset_builder", lambda **_: Mock(config=object()))
    monkeypatch.setattr("nmt.data.hubs.reaches", lambda _: True)
    assert pairs_of("wmt/wmt14", subset="de-en", split="test", streaming=True) == PAIRS
    # No trust_remote_code: code from a hub is never run.
    assert asked == {"path": "wmt/wmt14", "name": "de-en", "split": "test", "streaming": True}


@pytest.mark.parametrize("streaming", [False, True])
def test_of_local_text_only_a_folder_is_copied_into_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, streaming: bool
) -> None:
    """And a file is read by the loader of its format, as the split that is asked for."""
    asked: list[dict[str, Any]] = []

    def load(**options: Any) -> Any:
        asked.append(options)
        return datasets.Dataset.from_list(nested(PAIRS)).to_iterable_dataset()

    is_table = {"csv": Mock(config=Mock(keep_default_na=True))}
    other = Mock(config=object())
    monkeypatch.setattr(
        "datasets.load_dataset_builder", lambda path, **_: is_table.get(path, other)
    )
    monkeypatch.setattr("datasets.load_dataset", load)
    formats = {"parquet": "parquet", "csv": "csv", "json": "json", "jsonl": "json"}
    for name, loader in formats.items():
        path = tmp_path / f"a.{name}"
        path.touch()
        assert pairs_of(path, split="test", streaming=streaming) == PAIRS
        options = asked.pop()
        assert options.pop("keep_default_na", None) == (False if name == "csv" else None)
        files = {"test": str(path)}
        assert options == {
            "path": loader, "split": "test", "data_files": files, "streaming": True
        }  # fmt: skip
    assert pairs_of(tmp_path, split="test", streaming=streaming) == PAIRS
    place = {"path": str(tmp_path), "name": None}
    assert asked == [{**place, "split": "test", "streaming": streaming}]


def test_failures_become_an_error_with_a_fix(tmp_path: Path) -> None:
    wrong = parquet(tmp_path / "wrong.parquet", [{"left": "a", "right": "b"}])
    (tmp_path / "data.xlsx").touch()
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 not really")
    for place, message in (
        (wrong, "not certain which texts .* Keys with text: left, right"),
        (tmp_path / "data.xlsx", r"not \.xlsx"),
        (tmp_path / "bad.parquet", r"cannot read .*bad\.parquet"),
    ):
        with pytest.raises(DataError, match=message):
            pairs_of(place)


@pytest.mark.parametrize("answers", [True, False])
def test_an_unreachable_hub_is_tried_once(answers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def refuse(*_: object) -> None:
        if not answers:  # a firewall that drops packets
            released.wait(LIMIT)
        raise OSError("no network")

    modes: list[str] = []
    monkeypatch.setattr("socket.create_connection", refuse)
    monkeypatch.setattr("nmt.data.hubs._CONNECT_SECONDS", 0.01)
    monkeypatch.setattr("nmt.data.hubs.getproxies", dict)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setattr(
        "datasets.load_dataset_builder",
        lambda **_: modes.append(os.environ["HF_HUB_OFFLINE"]),
    )
    monkeypatch.setattr("datasets.load_dataset", Mock(side_effect=OSError("offline")))
    with pytest.raises(DataError, match="cannot read wmt/wmt14"):
        pairs_of("wmt/wmt14")
    released.set()
    assert modes == ["1"]


def test_a_mirror_of_the_hub_is_asked_at_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt.data.hubs._CONNECT_SECONDS", 20)  # a busy machine is not a dead one
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    assert hub_address() == "https://huggingface.co"
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}/hub"
        monkeypatch.setenv("HF_ENDPOINT", address)
        monkeypatch.setattr("nmt.data.hubs.getproxies", dict)
        assert hub_address() == address
        assert reaches(address)
    assert not reaches(address)  # nothing answers there now
    monkeypatch.setattr("nmt.data.hubs.getproxies", lambda: {"https": "http://proxy"})
    assert reaches(address)  # only the proxy knows
    # Without a number, the port is that of the scheme.
    connect = Mock(side_effect=OSError)
    monkeypatch.setattr("socket.create_connection", connect)
    for url in ("https://mirror", "http://mirror/path"):
        reaches(url)
    asked = [call.args[0] for call in connect.call_args_list]
    assert asked == [("mirror", 443), ("mirror", 80)]


def test_a_file_that_is_new_or_gone_in_a_folder_is_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    pairs = list(zip(*corpus(60), strict=True))
    first = parquet(folder / "train-0.parquet", nested(pairs))
    data = config_for(tmp_path).data.model_dump(mode="json", exclude_unset=True)
    config = config_for(
        tmp_path, data={**data, "train": [{"huggingface": str(folder), "streaming": True}]}
    )
    assert prepare(config).counts[str(folder)]["kept"] == 60
    more = folder / "train-1.parquet"
    more.write_bytes(first.read_bytes())
    assert current_report(config.prepared_dir, recipe_of(config)) is None
    more.unlink()
    assert current_report(config.prepared_dir, recipe_of(config)) is not None
    first.rename(more)
    assert current_report(config.prepared_dir, recipe_of(config)) is None


def test_without_the_hub_the_error_has_the_keys_of_local_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Local training data do not need the hub, whatever the test set is."""
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("nmt.data.hubs.reaches", lambda _: False)
    remote = CorpusConfig(huggingface="org/pairs")
    data = DataConfig(
        train=(remote,), valid=(remote,), test={"a": remote, "b": CorpusConfig(demo="test")}
    )
    with pytest.raises(DataError) as caught:
        check_hub(data)
    assert "org/pairs is neither" in caught.value.problem
    assert "huggingface.co cannot be reached" in caught.value.problem
    keys = re.findall(r"`set` '([\w.]+)={source: FILE, target: FILE}'", caught.value.fix)
    assert keys == ["data.train.0", "data.valid", "data.test.a"]
    local = CorpusConfig(demo="train")
    check_hub(data.model_copy(update={"train": (local,), "valid": (local,)}))


def test_without_the_hub_its_cache_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[tuple[str, str]] = []
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setattr("nmt.data.hubs.reaches", lambda _: False)
    monkeypatch.setattr("datasets.load_dataset_builder", lambda *names: loaded.append(names))
    pairs = CorpusConfig(huggingface="org/pairs", subset="de-en")
    check_hub(DataConfig(train=(CorpusConfig(demo="train"),), valid=(pairs,)))
    assert loaded == [("org/pairs", "de-en")]
    assert os.environ["HF_HUB_OFFLINE"] == "1"


def test_unknown_test_sets_and_pairs_are_refused_without_a_download() -> None:
    with pytest.raises(ConfigError, match="wmt14"):
        published_test_set("wmt14-", ("en", "de"))
    with pytest.raises(ConfigError, match=r"Use one of .*de-en"):
        published_test_set("wmt14", ("en", "xx"))


@pytest.mark.parametrize(
    ("is_here", "reaches", "tried"), [(0, 1, 1), (1, 0, 1), (1, 1, 1), (0, 0, 0)]
)
def test_a_download_that_fails_names_the_test_set(
    is_here: bool, reaches: bool, tried: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from sacrebleu import utils

    def exits(*_: str) -> str:
        raise SystemExit("a wrong checksum")  # as sacrebleu does

    monkeypatch.setattr(utils, "get_source_file", exits)
    monkeypatch.setattr(utils, "SACREBLEU_DIR", str(tmp_path))
    monkeypatch.setattr("nmt.data.hubs.reaches", lambda url: "statmt.org" in url and reaches)
    (tmp_path / "wmt14" / "raw").mkdir(parents=True)
    (tmp_path / "wmt14" / "raw" / f"a.tgz{'' if is_here else '.lock'}").touch()
    reason = "a wrong checksum" if tried else "no connection to https://"
    with pytest.raises(
        DataError, match=rf"Cannot download test set wmt14 \(en-de\): {reason}"
    ) as caught:
        published_test_set("wmt14", ("en", "de"))
    # What to type on another machine, and the folder to fill on this one.
    assert "`sacrebleu --download wmt14 -l en-de`" in caught.value.fix
    assert f"~/.sacrebleu/wmt14 to {tmp_path / 'wmt14'} here" in caught.value.fix


def test_downloaded_sets_are_found_with_all_references(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sacrebleu.utils.SACREBLEU_DIR", str(tmp_path))
    (tmp_path / "wmt21").mkdir()
    names = [f"wmt21.en-de.{field}" for field in ("src", "refA", "refB", "docid")]
    source, *references, _ = [tmp_path / "wmt21" / name for name in names]
    for name in names:
        (tmp_path / "wmt21" / name).touch()
    assert cached_test_sets(("en", "de")) == {"wmt21": (source, references)}
    assert cached_test_sets(("de", "en")) == {}


def test_a_copied_folder_of_sacrebleu_is_a_test_set(tmp_path: Path) -> None:
    """The remedy of the error above works without a connection."""
    from sacrebleu import DATASETS

    (tmp_path / "wmt14").mkdir()
    (tmp_path / "hypotheses").write_text("the ref line of two\nanother ref line\n")
    for name in DATASETS["wmt14"].fieldnames("en-de"):
        path = tmp_path / "wmt14" / f"wmt14.en-de.{name}"
        path.write_text(f"the {name} line of two\nanother {name} line\n")
    options = ["-t", "wmt14", "-l", "en-de", "--json"]
    result = subprocess.run(
        [sys.executable, "-m", "nmt", "evaluate", "hypotheses", *options],
        env={**os.environ, "SACREBLEU": str(tmp_path)}, capture_output=True, text=True, check=False,
        timeout=LIMIT,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["test_sets"][0]["systems"][0]["scores"][0][
        "value"
    ] == pytest.approx(100)


def data_set(folder: Path, subsets: dict[str, list[str]]) -> Path:
    """Write a data set in the layout of the hub: each subset with one file for each split."""
    lines = ["---", "configs:"]
    for subset, splits in subsets.items():
        lines += [f"- config_name: {subset}", "  data_files:"]
        for number, split in enumerate(splits, start=1):
            file = f"{subset}/{split}.parquet"
            lines += [f"  - split: {split}", f"    path: {file}"]
            (folder / subset).mkdir(parents=True, exist_ok=True)
            pairs = [*PAIRS, (f"{subset} {split}", "x")][-number:]
            parquet(folder / file, nested(pairs))
    (folder / "README.md").write_text("\n".join([*lines, "---", ""]), encoding="utf-8")
    return folder


def saved(folder: Path) -> dict[str, list[dict[str, str]]]:
    return {
        path.name: [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
        for path in folder.iterdir()
    }


def test_a_data_set_becomes_a_folder_with_its_parts(tmp_path: Path) -> None:
    """Only texts are kept, and of the splits only those that are a part of a project."""
    place = data_set(tmp_path / "org", {"only": ["train", "validation", "extra", "test"]})
    copy = save_data_set(f"hub:{place}", None, tmp_path / "downloads")
    last = {"de": "only train", "en": "x"}
    files = saved(copy)
    assert files["train.jsonl"] == [last]
    assert files["valid.jsonl"] == [
        {"de": "schön\u2028", "en": ""},
        {**last, "de": "only validation"},
    ]
    assert [len(texts) for _, texts in sorted(files.items())] == [4, 1, 2]
    assert save_data_set(f"hub:{place}", None, tmp_path / "downloads") == copy
    assert saved(copy) == files


def test_the_licence_in_the_card_of_a_data_set_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    place = data_set(tmp_path / "org", {"only": ["train"]})
    save_data_set(f"hub:{place}", None, tmp_path)
    assert f"{place}: the licence is not named in its card" in caplog.messages
    card = place / "README.md"
    text = card.read_text("utf-8").replace("---\n", "---\nlicense: cc-by-4.0\n", 1)
    card.write_text(text, encoding="utf-8")
    save_data_set(f"hub:{place}", None, tmp_path)
    assert f"{place}: the licence is cc-by-4.0" in caplog.messages


@pytest.mark.parametrize("languages", [("de", "en"), ("eng", "deu")])
def test_of_several_subsets_the_named_one_or_that_of_the_languages_is_read(
    tmp_path: Path, languages: tuple[str, str]
) -> None:
    place = data_set(
        tmp_path / "org", {"de-en": ["train"], "cs-en": ["train"], "all": ["train", "test"]}
    )

    def first_text(name: str, codes: tuple[str, str] | None) -> str:
        copy = save_data_set(f"hub:{name}", codes, tmp_path / "downloads")
        return saved(copy)["train.jsonl"][0]["de"]

    assert first_text(str(place), languages) == "de-en train"
    assert first_text(f"{place}/cs-en", languages) == "cs-en train"
    assert first_text(f"{place}/all", None) == "all train"
    for codes in (None, ("fr", "en")):
        with pytest.raises(ConfigError, match="3 subsets") as caught:
            first_text(str(place), codes)
        assert f"nmt init hub:{place}/cs-en" in caught.value.fix


def test_a_data_set_that_cannot_be_a_project_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = data_set(tmp_path / "org", {"only": ["devtest", "test"]})
    with pytest.raises(DataError, match="no split train, but devtest, test"):
        save_data_set(f"hub:{place}", None, tmp_path)
    monkeypatch.setattr("nmt.data.hubs.reaches", lambda _: False)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DataError, match="cannot read org/absent"):
        save_data_set("hub:org/absent/de-en", None, tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == ["org"]
