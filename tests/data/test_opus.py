"""Corpora of OPUS, downloaded from a server of this machine."""

from __future__ import annotations

import logging
import socket
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request

import pytest

from nmt.data.opus import ADDRESS, opus_corpus
from nmt.errors import ConfigError, DataError
from nmt.files.download import _Redirects
from tests.data.opus_server import API, ARCHIVE, README, OpusServer, archive_of, serving
from tests.process import LIMIT

PAIRS = [(f"Hier steht Satz {i}.", f"Here is sentence {i}.") for i in range(20_000)]
NAME = "Tatoeba-v2023-04-12-de-en.zip"
CODES = ("de", "en")


@pytest.fixture
def opus(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpusServer]:
    """A server that the address of OPUS points to."""
    monkeypatch.setattr("nmt.files.download._PAUSE_SECONDS", 0.01)
    with serving(archive_of(PAIRS, LICENSE=b"CC BY 2.0 FR\n\nby Tatoeba\n")) as server:
        monkeypatch.setenv(ADDRESS, f"{server.address}{API}")
        yield server


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("languages", [("de", "en"), ("en", "de"), ("deu", "eng")])
def test_a_corpus_is_downloaded_once_in_any_order_of_its_languages(
    opus: OpusServer, languages: tuple[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    folder = tmp_path / "new" / "folder"
    archive = opus_corpus("opus:Tatoeba", languages, folder)
    assert archive.read_bytes() == opus.archive
    assert names_in(folder) == {NAME}
    size = len(opus.archive) / (1 << 20)
    assert f"Tatoeba v2023-04-12 (de-en), 324,043 pairs, {size:.1f} MiB" in caplog.text
    assert "CC BY 2.0 FR by Tatoeba" in caplog.text
    assert opus_corpus("opus:Tatoeba", languages, folder) == archive
    assert opus.ranges == [None]


def test_a_version_that_is_there_needs_no_network(opus: OpusServer, tmp_path: Path) -> None:
    archive = opus_corpus("opus:Tatoeba/v2023-04-12", CODES, tmp_path)
    num_requests = len(opus.requests)
    for content in (opus.archive, b"damaged"):  # reading the pairs reports the damage
        archive.write_bytes(content)
        assert opus_corpus("opus:Tatoeba/v2023-04-12", ("en", "de"), tmp_path) == archive
    assert len(opus.requests) == num_requests


@pytest.mark.parametrize("has_ranges", [True, False])
def test_a_broken_connection_is_resumed_where_the_server_can(
    opus: OpusServer, tmp_path: Path, has_ranges: bool
) -> None:
    opus.has_ranges = has_ranges
    opus.cuts = [300_000, 200_000]
    archive = opus_corpus("opus:Tatoeba", CODES, tmp_path)
    assert archive.read_bytes() == opus.archive
    # A server without ranges sends its second answer from the start.
    second = 500_000 if has_ranges else 200_000
    assert opus.ranges == [None, "bytes=300000-", f"bytes={second}-"]


def test_breaks_with_new_data_between_them_do_not_end_a_download(
    opus: OpusServer, tmp_path: Path
) -> None:
    opus.cuts = [100_000] * 8
    assert opus_corpus("opus:Tatoeba", CODES, tmp_path).read_bytes() == opus.archive


def test_the_next_command_continues_a_download(opus: OpusServer, tmp_path: Path) -> None:
    opus.cuts = [400_000, 0, 0]
    with pytest.raises(DataError, match=r"ended after 400,000 of [\d,]+ bytes") as caught:
        opus_corpus("opus:Tatoeba", CODES, tmp_path)
    assert "Run the command again" in caught.value.fix
    assert names_in(tmp_path) == {f"{NAME}.part"}
    opus_corpus("opus:Tatoeba", CODES, tmp_path)
    assert opus.ranges[-1] == "bytes=400000-"
    assert names_in(tmp_path) == {NAME}


@pytest.mark.parametrize("surplus", [b"", b"of another file"])
def test_a_part_as_long_as_the_file_is_checked(
    opus: OpusServer, tmp_path: Path, surplus: bytes
) -> None:
    """The process may have ended before it renamed the file; or the file is another one now."""
    (tmp_path / f"{NAME}.part").write_bytes(opus.archive + surplus)
    assert opus_corpus("opus:Tatoeba", CODES, tmp_path).read_bytes() == opus.archive
    assert opus.ranges[1:] == [None] * bool(surplus)


def test_a_part_of_another_file_is_found_and_deleted(opus: OpusServer, tmp_path: Path) -> None:
    part = tmp_path / f"{NAME}.part"
    part.write_bytes(b"x" * 1000)
    with pytest.raises(DataError, match="is not a complete zip file"):
        opus_corpus("opus:Tatoeba", CODES, tmp_path)
    assert names_in(tmp_path) == set()
    assert opus_corpus("opus:Tatoeba", CODES, tmp_path).read_bytes() == opus.archive


def test_a_page_in_place_of_the_archive_is_refused(opus: OpusServer, tmp_path: Path) -> None:
    opus.archive = b"<html>Log in to this network</html>"
    with pytest.raises(DataError, match="not a complete zip file"):
        opus_corpus("opus:Tatoeba", CODES, tmp_path)
    assert names_in(tmp_path) == set()


def test_another_size_than_that_of_the_catalogue_is_said(
    opus: OpusServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    opus.entry = {"size": "7", "alignment_pairs": ""}
    opus_corpus("opus:Tatoeba", CODES, tmp_path)
    assert f"OPUS announces 7 KiB for {tmp_path / NAME}" in caplog.text


def test_numbers_may_be_texts_or_absent(
    opus: OpusServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    opus.entry = {"size": None, "alignment_pairs": "1234"}
    opus_corpus("opus:Tatoeba", CODES, tmp_path)
    assert "Tatoeba v2023-04-12 (de-en), 1,234 pairs from http" in caplog.text


def test_a_missing_file_is_asked_for_once(opus: OpusServer, tmp_path: Path) -> None:
    opus.answers[ARCHIVE] = (404, {}, b"")
    with pytest.raises(DataError, match=r"zip cannot be downloaded: HTTP Error 404: Not Found\."):
        opus_corpus("opus:Tatoeba", CODES, tmp_path)
    assert opus.ranges == [None]


@pytest.mark.parametrize("place", ["ftp://127.0.0.1/x.zip", "file:///etc/passwd"])
def test_only_web_addresses_are_read(opus: OpusServer, tmp_path: Path, place: str) -> None:
    """Neither those of the API, nor those that a server redirects to."""
    opus.answers[ARCHIVE] = (302, {"Location": place}, b"")
    with pytest.raises(DataError, match="cannot be downloaded"):
        opus_corpus("opus:Tatoeba", CODES, tmp_path)
    opus.entry = {"url": place}
    with pytest.raises(DataError, match="cannot be downloaded"):
        opus_corpus("opus:Tatoeba", CODES, tmp_path)


def test_a_redirect_does_not_leave_encryption() -> None:
    with pytest.raises(ValueError, match="redirects to a http address"):
        _Redirects().redirect_request(Request("https://a"), None, 302, "", {}, "http://a")


def test_a_redirect_on_the_web_is_followed(opus: OpusServer, tmp_path: Path) -> None:
    opus.answers["/old.zip"] = (301, {"Location": ARCHIVE}, b"")
    opus.entry = {"url": f"{opus.address}/old.zip"}
    assert opus_corpus("opus:Tatoeba", CODES, tmp_path).read_bytes() == opus.archive


@pytest.mark.parametrize("body", [b"<html>\x1b[31mnot found", b"[]", b'{"error": 1}', b"\xff"])
def test_an_answer_that_is_not_of_the_api_is_shown(
    opus: OpusServer, tmp_path: Path, body: bytes
) -> None:
    opus.answers[API] = (200, {}, body)
    with pytest.raises(DataError, match="does not answer as the API of OPUS") as caught:
        opus_corpus("opus:Tatoeba", CODES, tmp_path)
    assert ADDRESS in caught.value.fix
    assert "\x1b" not in caught.value.problem


@pytest.mark.parametrize(
    ("place", "languages", "problem", "fix"),
    [
        ("opus:tatoba", CODES, "does not have a corpus tatoba", "Did you mean Tatoeba?"),
        ("opus:Nothing", CODES, "does not have a corpus Nothing", "opus.nlpl.eu"),
        ("opus:Tatoeba/v1", CODES, "in de and en in version v1", "versions are v2023-04-12."),
        ("opus:Tatoeba", ("de", "xh"), "Tatoeba in de and xh.", "Tatoeba, TED2020, OpenSub"),
        ("opus:Tatoeba", None, "in many pairs", "nmt init opus:Tatoeba --languages de-en"),
        ("opus:Tatoeba/../x", CODES, "not the name of a corpus", "opus:NAME/VERSION"),
        ("opus:", CODES, "not the name of a corpus", "opus:NAME/VERSION"),
    ],
)
def test_what_opus_does_not_have_is_an_error_with_what_it_has(
    opus: OpusServer, tmp_path: Path, place: str, languages: Any, problem: str, fix: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        opus_corpus(place, languages, tmp_path)
    assert problem in caught.value.problem
    assert fix in caught.value.fix
    assert opus.ranges == []
    assert names_in(tmp_path) == set()


def test_of_two_alignments_the_plain_one_is_taken(
    opus: OpusServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain_answer = opus.api

    def answer(query: dict[str, str]) -> dict[str, Any]:
        [entry] = plain_answer(query)["corpora"]
        strict = {**entry, "url": entry["url"].replace(".txt.", ".strict.txt.")}
        return {"corpora": [strict, "nonsense", entry]}

    monkeypatch.setattr(opus, "api", answer)
    assert opus_corpus("opus:Tatoeba", CODES, tmp_path).read_bytes() == opus.archive
    assert len(opus.ranges) == 1


@pytest.mark.parametrize(
    ("files", "licence"),
    [
        ({"LICENSE": b"\n CC0 \x1b[1m\n", "README": README}, r"CC0 \x1b[1m"),
        ({"README": README}, "License: CC BY 2.0 FR"),
        ({}, "https://opus.nlpl.eu has the licence"),
    ],
)
def test_the_licence_is_said(
    opus: OpusServer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    files: dict[str, bytes],
    licence: str,
) -> None:
    caplog.set_level(logging.INFO)
    opus.archive = archive_of(PAIRS[:9], **files)
    archive = opus_corpus("opus:Tatoeba", CODES, tmp_path)
    assert f"{archive}: {licence}" in caplog.messages


def test_without_a_network_the_error_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nmt.files.download._PAUSE_SECONDS", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setenv(ADDRESS, f"http://127.0.0.1:{port}/")  # nobody listens there now
    with pytest.raises(DataError, match="cannot be downloaded") as caught:
        opus_corpus("opus:Tatoeba", CODES, tmp_path)
    assert "nmt init FILE.zip" in caught.value.fix


def test_a_silent_server_does_not_hold_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nmt.files.download._PAUSE_SECONDS", 0.01)
    monkeypatch.setattr("nmt.files.download._SILENT_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as server:  # accepts, and never answers
        monkeypatch.setenv(ADDRESS, f"http://127.0.0.1:{server.getsockname()[1]}/")
        with pytest.raises(DataError, match="timed out"):
            opus_corpus("opus:Tatoeba", CODES, tmp_path)


def test_two_commands_share_one_download(opus: OpusServer, tmp_path: Path) -> None:
    opus.cuts = [100_000]
    threads = [
        threading.Thread(target=opus_corpus, args=("opus:Tatoeba", CODES, tmp_path))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert opus.ranges == [None, "bytes=100000-"]
    with zipfile.ZipFile(tmp_path / NAME) as archive:
        assert archive.testzip() is None
