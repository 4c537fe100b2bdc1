"""Members of archives, which the programs that usually write archives have written."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import shutil
import subprocess
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.errors import DataError
from nmt.files import archive as archives
from nmt.files.encoding import open_text
from nmt.files.lines import open_binary, read_chunks, read_lines
from tests.process import LIMIT

SIDES = {"Corpus.en": b"one\ntwo\n", "Corpus.de": b"eins\nzwei\n"}


def zipped(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def tarred(path: Path, members: dict[str, bytes]) -> Path:
    mode = {".tgz": "w:gz", ".gz": "w:gz", ".bz2": "w:bz2", ".xz": "w:xz"}.get(path.suffix, "w")
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def written(path: Path, members: dict[str, bytes]) -> Path:
    return zipped(path, members) if path.suffix == ".zip" else tarred(path, members)


@pytest.mark.parametrize("name", ["x.zip", "x.tar", "x.tar.gz", "x.tgz", "x.tar.bz2", "x.tar.xz"])
def test_two_members_are_read_side_by_side(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / name, {"en-de/x.en": b"one\n" * 50_000, "en-de/x.de": b"eins\n" * 9})
    with open_binary(path / "en-de/x.en") as source, open_binary(path / "en-de/x.de") as target:
        lines = list(zip_longest(source, target))
    assert lines[0] == (b"one\n", b"eins\n")
    assert lines[8:10] == [(b"one\n", b"eins\n"), (b"one\n", None)]
    assert len(lines) == 50_000


@given(
    contents=st.lists(st.binary(max_size=2000), min_size=1, max_size=3),
    suffix=st.sampled_from([".zip", ".tar", ".tgz", ".tar.xz"]),
    compress=st.sampled_from([bytes, gzip.compress, bz2.compress, lzma.compress]),
)
def test_members_are_read_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory,
    contents: list[bytes],
    suffix: str,
    compress: Callable[[bytes], bytes],
) -> None:
    """Those that are compressed themselves are decompressed."""
    folder = tmp_path_factory.mktemp("archive")
    members = {f"part/{number}.en": content for number, content in enumerate(contents)}
    packed = {name: compress(b"text\n" + content) for name, content in members.items()}
    path = written(folder / f"x{suffix}", packed)
    for name, content in members.items():
        with open_binary(path / name) as stream:
            assert stream.read() == b"text\n" + content


@pytest.mark.parametrize("command", [["tar", "czf"], ["tar", "cf"], ["zip", "-qr"]])
def test_the_output_of_programs_is_read(tmp_path: Path, command: list[str]) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    (tmp_path / "en-de").mkdir()
    (tmp_path / "en-de" / "x.en").write_text("one\n", encoding="utf-8")
    subprocess.run([*command, "packed", "./en-de"], cwd=tmp_path, check=True, timeout=LIMIT)
    [path] = [path for path in tmp_path.iterdir() if path.is_file()]
    assert read_lines(path / "en-de" / "x.en") == ["one"]
    assert read_lines(path) == ["one"]  # its only text


@pytest.mark.parametrize("name", ["x.en.tgz", "x.en.gz", "x.en.zip", "x.en"])
def test_an_archive_with_a_single_text_is_that_text(tmp_path: Path, name: str) -> None:
    """Its name does not matter, and neither do files that explain it."""
    members = {"x.en": b"one\n", "README": b"read me\n", "__MACOSX/._x.en": b"\0"}
    path = written(tmp_path / "packed.tgz", members).rename(tmp_path / name)
    if name == "x.en.zip":
        zipped(path, members)
    assert read_lines(path) == ["one"]


@pytest.mark.parametrize("name", ["x.zip", "x.tgz"])
def test_an_archive_with_several_texts_is_refused_with_their_names(
    tmp_path: Path, name: str
) -> None:
    path = written(tmp_path / name, SIDES)
    with pytest.raises(DataError, match="an archive with 2 texts") as raised:
        read_lines(path)
    assert "Corpus.en, Corpus.de" in raised.value.fix
    assert str(path / "Corpus.en") in raised.value.fix
    with pytest.raises(DataError, match="an archive with 0 texts"):
        read_lines(written(tmp_path / f"empty-{name}", {"README": b"read me\n"}))


def test_a_missing_member_is_named_with_a_similar_one(tmp_path: Path) -> None:
    path = zipped(tmp_path / "x.zip", SIDES)
    with pytest.raises(
        DataError, match=r"does not contain corpus\.en\. Did you mean .*/Corpus\.en"
    ):
        read_lines(path / "corpus.en")
    text = tmp_path / "x.txt"
    text.write_text("text\n" * 500)
    with pytest.raises(DataError, match=r"x\.txt is not an archive"):
        read_lines(text / "x.en")


def test_an_encoding_is_found_out_in_an_archive(tmp_path: Path) -> None:
    path = zipped(tmp_path / "x.zip", {"x.de": "schön\r\n".encode("utf-16")})
    with open_text(path / "x.de") as stream:
        assert stream.read() == "\ufeffschön\r\n".encode()


@pytest.mark.parametrize("name", ["../x.en", "/x.en", "a/../../x.en"])
@pytest.mark.parametrize("suffix", [".zip", ".tgz"])
def test_names_that_lead_out_of_an_archive_are_refused(
    tmp_path: Path, name: str, suffix: str
) -> None:
    path = written(tmp_path / f"x{suffix}", {name: b"text\n", "x.de": b"text\n"})
    with pytest.raises(DataError, match="leads out of the archive"):
        read_lines(path / "x.de")
    with pytest.raises(DataError, match="leads out of the archive"):
        read_lines(path)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_are_not_read(tmp_path: Path, kind: bytes) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret\n")
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as archive:
        info = tarfile.TarInfo("x.en")
        info.type = kind
        info.linkname = str(secret)
        archive.addfile(info)
    with pytest.raises(DataError, match="a link or a device"):
        read_lines(path / "x.en")
    linked = tmp_path / "x.zip"
    with zipfile.ZipFile(linked, "w") as archive_of_links:
        link = zipfile.ZipInfo("x.en")
        link.external_attr = 0o120777 << 16
        archive_of_links.writestr(link, str(secret))
    with pytest.raises(DataError, match="is a link"):
        read_lines(linked / "x.en")


def test_a_tar_file_with_endless_headers_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name of 300 MB, compressed to 300 kB, is not read into memory."""
    info = tarfile.TarInfo("././@LongLink")
    info.type = tarfile.GNUTYPE_LONGNAME
    info.size = 300 << 20
    path = tmp_path / "x.tgz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(info.tobuf())
        for _ in range(300):
            file.write(b"a" * (1 << 20))
    tracemalloc.start()
    with pytest.raises(DataError, match="headers are too large"):
        read_lines(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50 << 20
    # Many small files have many headers.
    many = tarred(tmp_path / "many.tar", {f"{number}.en": b"a" for number in range(100)})
    assert len(archives.members_of(many)) == 100
    monkeypatch.setattr(archives, "_MOST_HEADER_BYTES", 100 * 512)
    with pytest.raises(DataError, match="headers are too large"):
        archives.members_of(many)


@pytest.mark.parametrize("suffix", [".zip", ".tgz"])
@pytest.mark.long
def test_memory_does_not_grow_with_a_member(tmp_path: Path, suffix: str) -> None:
    path = written(tmp_path / f"bomb{suffix}", {"x.en": b"word\n" * (40 << 20)})
    tracemalloc.start()
    num_bytes = 0
    with open_binary(path / "x.en") as stream:
        while piece := stream.read(1 << 20):
            num_bytes += len(piece)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert num_bytes == 200 << 20
    assert peak < 20 << 20


def test_sizes_that_lie_are_damage(tmp_path: Path) -> None:
    path = zipped(tmp_path / "x.zip", {"x.en": b"word\n" * 1000})
    content = bytearray(path.read_bytes())
    directory = content.index(b"PK\x01\x02")
    content[directory + 24 : directory + 28] = (5).to_bytes(4, "little")  # uncompressed size
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"damaged.*CRC"):
        read_lines(path / "x.en")


@pytest.mark.parametrize("suffix", [".zip", ".tar", ".tgz"])
def test_a_truncated_archive_is_named(tmp_path: Path, suffix: str) -> None:
    path = written(tmp_path / f"x{suffix}", {"x.en": os.urandom(100_000), "x.de": b"eins\n"})
    path.write_bytes(path.read_bytes()[:50_000])
    for place in (path / "x.en", path / "x.de"):
        with pytest.raises(DataError, match=rf"x\{suffix}.* is .*(damaged|truncated)"):
            read_lines(place)


def test_encrypted_and_unknown_methods_are_refused(tmp_path: Path) -> None:
    path = zipped(tmp_path / "bz.zip", SIDES, zipfile.ZIP_BZIP2)
    with pytest.raises(DataError, match="a method that nmt does not read"):
        read_lines(path / "Corpus.en")
    if shutil.which("zip") is None:
        pytest.skip("zip is not installed")
    (tmp_path / "x.en").write_text("one\n")
    subprocess.run(
        ["zip", "-q", "-P", "secret", "x.zip", "x.en"], cwd=tmp_path, check=True, timeout=LIMIT
    )
    with pytest.raises(DataError, match=r"x\.en is encrypted"):
        read_lines(tmp_path / "x.zip" / "x.en")


def test_documents_of_office_programs_are_refused_with_the_way_out(tmp_path: Path) -> None:
    for name, member in (("x.xlsx", "[Content_Types].xml"), ("x.ods", "META-INF/manifest.xml")):
        path = zipped(tmp_path / name, {member: b"<x/>", "xl/sheet1.xml": b"<x/>"})
        with pytest.raises(DataError, match=rf"{name} is a document of an office") as raised:
            read_lines(path)
        assert "Save a table as .csv" in raised.value.fix


@pytest.mark.parametrize("suffix", [".zip", ".tgz"])
def test_an_archive_in_an_archive_is_refused(tmp_path: Path, suffix: str) -> None:
    inner = written(tmp_path / f"inner{suffix}", SIDES)
    outer = zipped(tmp_path / "outer.zip", {inner.name: inner.read_bytes()})
    with pytest.raises(DataError, match="an archive in an archive"):
        read_lines(outer / inner.name)


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
def test_several_streams_in_a_file_are_one_text(
    tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "x.en"
    path.write_bytes(compress(b"one\n") + compress(b"two\n"))
    assert read_lines(path) == ["one", "two"]


def test_zstandard_with_a_long_window_and_archives_of_it_are_read(tmp_path: Path) -> None:
    pytest.importorskip("backports.zstd")
    if shutil.which("zstd") is None:
        pytest.skip("zstd is not installed")
    text = tmp_path / "x.en"
    text.write_bytes(b"one\n" * 1000)
    tarred(tmp_path / "y.tar", {"x.en": b"one\n", "x.de": b"eins\n"})
    # From standard input, the size is unknown, so the window is not reduced to it.
    for name in ("x.en", "y.tar"):
        with (tmp_path / name).open("rb") as file, (tmp_path / f"{name}.zst").open("wb") as packed:
            subprocess.run(
                ["zstd", "-q", "--long=30"], stdin=file, stdout=packed, check=True, timeout=LIMIT
            )
    assert read_lines(tmp_path / "x.en.zst") == ["one"] * 1000
    assert read_lines(tmp_path / "y.tar.zst" / "x.de") == ["eins"]


@given(data=st.data(), suffix=st.sampled_from([".zip", ".tar", ".tgz"]))
def test_a_damaged_archive_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, suffix: str
) -> None:
    path = tmp_path_factory.mktemp("damaged") / f"x{suffix}"
    content = bytearray(written(path, SIDES).read_bytes())
    place = st.integers(0, min(len(content), 1100) - 1)
    for index, byte in data.draw(st.dictionaries(place, st.integers(0, 255), max_size=9)).items():
        content[index] = byte
    path.write_bytes(content)
    for name in ("Corpus.en", "Corpus.de"):
        try:
            lines = read_lines(path / name)
        except DataError:
            continue
        # Only .tar files do not have checksums of their members.
        assert suffix == ".tar" or lines == SIDES[name].decode().splitlines()


def test_an_archive_as_standard_input_is_refused(tmp_path: Path) -> None:
    content = tarred(tmp_path / "x.tar", SIDES).read_bytes()
    with pytest.raises(DataError, match="standard input is an archive"):
        list(read_chunks(io.BytesIO(content)))
