"""Archives (.zip and .tar, which may be compressed) and their members, which are read as streams.

Nothing is unpacked to the disk. Memory does not grow with a member, and is bounded for hostile
archives, too.
"""

from __future__ import annotations

import io
import sys
import tarfile
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from posixpath import normpath
from stat import S_ISLNK
from typing import IO, Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

from nmt.errors import DataError, nearest_word
from nmt.files.compression import decompressed

HEADER_BYTES = tarfile.BLOCKSIZE  # Number of first bytes that identify an archive.
_ZIP_MARKS = (b"PK\x03\x04", b"PK\x05\x06")  # of a member, and of the end
_OFFICE_MEMBERS = frozenset(["[Content_Types].xml", "META-INF/manifest.xml"])
_ENCRYPTED = 1  # Bit in `ZipInfo.flag_bits`.
_MOST_HEADER_BYTES = 1 << 24  # of all headers of a .tar file, which bounds memory
_MOST_SHOWN = 10
_PIECE_BYTES = 1 << 20
_DOCUMENTS = ("readme", "license", "licence", "copying", "notice", "changelog", "citation")


@dataclass(frozen=True)
class Member:
    """A file in an archive.

    Args:
        name: Path in the archive.
        problem: Why it cannot be read; empty if it can.
        open_stream: Opens it; the archive must still be open.
        rest: What is read to its end after the file, because a checksum is there.
    """

    name: str
    problem: str
    open_stream: Callable[[], Any]
    rest: IO[bytes] | None = None


class _Headers:
    """The file of a .tar archive, of which only so many bytes may be headers."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.num_left = _MOST_HEADER_BYTES
        self.seek = stream.seek
        self.tell = stream.tell

    def read(self, size: int) -> bytes:
        """Read bytes of headers; or of a member, if ``num_left`` is `sys.maxsize`."""
        if size > self.num_left:
            raise tarfile.ReadError("its headers are too large")
        if self.num_left < sys.maxsize:
            self.num_left -= size
        return self._stream.read(size)


class PieceStream(io.RawIOBase):
    """A stream of the bytes that a generator yields in pieces; closing it closes the generator."""

    def __init__(self, pieces: Generator[bytes, None, None]) -> None:
        super().__init__()
        self._pieces = pieces
        # The first piece is read now, because only a generator that has begun can be closed.
        self._rest = memoryview(next(pieces, b""))

    def readable(self) -> bool:
        """Return True: the stream can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with the next bytes; return their number, 0 at the end."""
        if not self._rest:
            self._rest = memoryview(next(filter(None, self._pieces), b""))
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size

    def close(self) -> None:
        """Close the stream and the generator."""
        self._pieces.close()
        super().close()


def is_archive(start: bytes) -> bool:
    """Whether a file with these first bytes, decompressed, is an archive."""
    if start.startswith(_ZIP_MARKS):
        return True
    try:
        tarfile.TarInfo.frombuf(start[:HEADER_BYTES], "utf-8", "replace")
    except tarfile.TarError:
        return False
    return True


def is_archive_file(path: Path) -> bool:
    """Whether a file is an archive. A damaged file is not."""
    try:
        with path.open("rb") as file:
            return is_archive(decompressed(file).read(HEADER_BYTES))
    except Exception:  # reading the file reports the problem
        return False


def place_in_archive(path: Path) -> tuple[Path, str] | None:
    """Return the archive and the name of a member for a path that leads into an archive.

    None if no folder of the path is a file.
    """
    for parent in path.parents:
        if parent.is_file():
            return parent, path.relative_to(parent).as_posix()
    return None


def members_of(archive: Path) -> list[Member]:
    """Return the files in an archive, to look at their names.

    Raises:
        DataError: The archive is damaged or hostile.
    """
    with _damage_reported(archive), ExitStack() as stack:
        return list(_members(archive, stack))


def open_member(archive: Path, name: str) -> IO[bytes]:
    """Open a file in an archive to read bytes, decompressing it.

    Raises:
        DataError: The archive is damaged or hostile, or does not contain the file; or the file is
            itself an archive.
    """
    return io.BufferedReader(PieceStream(_content(archive, name)))


def open_single_member(archive: Path) -> IO[bytes]:
    """Open the only text in an archive, as `open_member` does.

    Raises:
        DataError: The archive has no text, or several. The message has their names.
    """
    members = members_of(archive)
    names = [each.name for each in members if not (each.problem or is_document(each.name))]
    if len(names) != 1:
        raise DataError(
            f"{archive} is an archive with {len(names)} texts, not a text file.",
            fix=_choice(archive, names),
        )
    return open_member(archive, names[0])


def is_document(name: str) -> bool:
    """Whether a name is that of a hidden file, or of a file that explains others.

    >>> is_document("Corpus/README.md"), is_document("__MACOSX/._x.en"), is_document("x.en")
    (True, True, False)
    """
    path = PurePosixPath(name)
    is_hidden = any(part.startswith((".", "__MACOSX")) for part in path.parts)
    return is_hidden or path.name.lower().startswith(_DOCUMENTS)


def _choice(archive: Path, names: list[str]) -> str:
    """Return a fix with the names of an archive."""
    if not names:
        return "Pass an archive with text files."
    shown = ", ".join(names[:_MOST_SHOWN])
    if len(names) > _MOST_SHOWN:
        shown += f" and {len(names) - _MOST_SHOWN:,} more"
    return f"Pass one of its files, such as {archive / names[0]}. It contains {shown}."


def _content(archive: Path, name: str) -> Generator[bytes, None, None]:
    """Yield the pieces of a file in an archive. Raises the errors of `open_member`."""
    names = []
    with _damage_reported(archive), ExitStack() as stack:
        for member in _members(archive, stack):
            names.append(member.name)
            if member.name != name:
                continue
            shown = archive / name
            if member.problem:
                raise DataError(
                    f"{shown} is {member.problem}.", fix="Unpack the archive, and pass the files."
                )
            packed = stack.enter_context(member.open_stream())
            stream = stack.enter_context(decompressed(packed))
            if is_archive(stream.peek(HEADER_BYTES)):
                raise DataError(
                    f"{shown} is an archive in an archive.", fix="Unpack the outer archive."
                )
            while piece := stream.read(_PIECE_BYTES):
                yield piece
            while member.rest is not None and member.rest.read(_PIECE_BYTES):
                pass
            return
    hint = ""
    similar_name = nearest_word(name, names)
    if similar_name:
        hint = f" Did you mean {archive / similar_name}?"
    raise DataError(f"{archive} does not contain {name}.{hint}", fix=_choice(archive, names))


@contextmanager
def _damage_reported(archive: Path) -> Iterator[None]:
    """Raise a DataError for the errors that damaged archives cause in several libraries."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        raise DataError(
            f"{archive} is not an archive that nmt reads, or is damaged: {error}",
            fix="Download it again, or pass text files.",
        ) from error


def _members(archive: Path, stack: ExitStack) -> Iterator[Member]:
    """Open an archive, to be closed with a stack, and yield its files.

    Raises:
        DataError: A name leads out of the archive.
    """
    file = stack.enter_context(archive.open("rb"))
    is_zip = file.peek().startswith(_ZIP_MARKS)
    members = _zip_members(file, stack) if is_zip else _tar_members(file, stack)
    for member in members:
        if member.name.startswith(("/", "../")):
            raise DataError(
                f"{archive} contains {member.name!a}, a name that leads out of the archive.",
                fix="Do not use it, or unpack the files that you trust.",
            )
        yield member


def _zip_members(file: IO[bytes], stack: ExitStack) -> Iterator[Member]:
    archive = stack.enter_context(ZipFile(file))
    if not _OFFICE_MEMBERS.isdisjoint(archive.namelist()):
        raise DataError(
            f"{file.name} is a document of an office program, not text.",
            fix="Save a table as .csv or .tsv in UTF-8, or a text as .txt.",
        )
    for info in archive.infolist():
        problem = ""
        if info.flag_bits & _ENCRYPTED:
            problem = "encrypted"
        elif info.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
            # The library reads the output of other methods as a whole, which a hostile archive may
            # make larger than memory.
            problem = "compressed with a method that nmt does not read"
        elif S_ISLNK(info.external_attr >> 16):
            problem = "a link"
        if not info.is_dir():
            yield Member(normpath(info.filename), problem, partial(archive.open, info))


def _tar_members(file: io.BufferedReader, stack: ExitStack) -> Iterator[Member]:
    stream = stack.enter_context(decompressed(file))
    headers: Any = _Headers(stream)
    archive = tarfile.open(fileobj=headers, mode="r:", encoding="utf-8")  # noqa: SIM115 - the stack closes the file

    def opened(info: tarfile.TarInfo) -> Any:
        headers.num_left = sys.maxsize  # from here on, bytes of a member are read
        return archive.extractfile(info)

    for info in archive:
        if not info.isdir():
            problem = "" if info.isfile() else "a link or a device"
            rest = None if stream is file else stream
            yield Member(normpath(info.name), problem, partial(opened, info), rest)
