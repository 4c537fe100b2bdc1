"""What a folder holds, written last: a folder whose manifest agrees with it is whole."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from nmt.errors import CheckpointError
from nmt.files.json_file import field, read_json
from nmt.version import __version__

FORMAT_VERSION = 1
NAME = "manifest.json"
# Key of the manifest's own hash, so that damage is not taken for another release's work.
_SEAL = "sha256"
_OF_CHECKPOINTS = "state.json"  # A file that model folders do not have.
_MAX_BYTES = 1 << 24
_SHA256_DIGITS = 64


def sha256_of_file(path: Path) -> str:
    """Return the sha256 of a file's content, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_json(value: Any) -> str:
    """Return the sha256 of plain data, whatever the order of its keys. Hexadecimal."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


class UnknownFormatError(CheckpointError):
    """A whole manifest of another format version: nothing is damaged, and nothing can be read."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    """Size and hash of one file."""

    size: int  # Bytes.
    sha256: str  # Hexadecimal.

    @classmethod
    def of(cls, path: Path) -> FileRecord:
        """Describe a file."""
        return cls(path.stat().st_size, sha256_of_file(path))


def damage(folder: Path, files: Mapping[str, FileRecord], names: Iterable[str]) -> Iterator[str]:
    """Yield what is wrong with each of some files of ``folder``: what was expected and found."""
    for name in names:
        path, expected = folder / name, files.get(name)
        try:
            if expected is None or not path.is_file():
                yield f"{path} is missing."
            elif (size := path.stat().st_size) != expected.size:
                yield f"{path} has {size:,} bytes, but {expected.size:,} were written."
            elif (found := sha256_of_file(path)) != expected.sha256:
                was = f"{expected.sha256[:12]}... was written: its content has changed"
                yield f"{path} has sha256 {found[:12]}..., but {was}."
        except OSError as error:
            yield f"{path} cannot be read: {error.strerror or error}."


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files of a checkpoint or a model folder."""

    format_version: int
    package_version: str
    step: int
    files: Mapping[str, FileRecord]

    @classmethod
    def of(cls, folder: Path, names: Iterable[str], step: int) -> Manifest:
        """Describe the files of ``folder``."""
        files = {name: FileRecord.of(folder / name) for name in names}
        return cls(FORMAT_VERSION, __version__, step, files)

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read the manifest of ``folder``.

        Raises:
            CheckpointError: It is missing or damaged; names the field.
            UnknownFormatError: It is of another format version.
        """
        path = folder / NAME
        try:
            values = read_json(path, max_bytes=_MAX_BYTES)
            seal = field(values, _SEAL, kind=str)
            del values[_SEAL]
            if seal != sha256_of_json(values):
                raise ValueError("its content has changed")
            version = field(values, "format_version", kind=int)
            if version == FORMAT_VERSION:
                return cls._parsed(values)
        except FileNotFoundError as error:
            fix = "The folder is not a complete checkpoint: use another."
            raise CheckpointError(f"{path} is missing.", fix=fix) from error
        except (OSError, ValueError) as error:
            fix = "Use another checkpoint of the run; copy or export a model folder again."
            raise CheckpointError(f"{path} is damaged: {error}.", fix=fix) from error
        fix = f"Use the release that wrote it: nmt {values.get('package_version', '?')}."
        problem = f"has format version {version}, but this release reads {FORMAT_VERSION}"
        raise UnknownFormatError(f"{path} {problem}.", fix=fix)

    @classmethod
    def _parsed(cls, values: Any) -> Manifest:
        files = {}
        for name in field(values, "files", kind=dict):
            place = PurePosixPath(name)
            if place.is_absolute() or ".." in place.parts or not place.parts or "\0" in name:
                raise ValueError(f"files names {name!r}, which is not inside the folder")
            size = field(values, "files", name, "size", kind=int)
            files[name] = FileRecord(size, field(values, "files", name, "sha256", kind=str))
            if size < 0 or len(files[name].sha256) != _SHA256_DIGITS:
                raise ValueError(f"files.{name} has no possible size and sha256")
        if (step := field(values, "step", kind=int)) < 0:
            raise ValueError(f"step is {step}")
        return cls(FORMAT_VERSION, field(values, "package_version", kind=str), step, files)

    def write(self, folder: Path) -> None:
        """Write the manifest into ``folder``: the last of its files."""
        (folder / NAME).write_text(self.text(), encoding="utf-8")

    def text(self) -> str:
        """Return the file's content."""
        values = asdict(self)
        return json.dumps(values | {_SEAL: sha256_of_json(values)}, indent=2, sort_keys=True) + "\n"

    def verify(self, folder: Path, names: Iterable[str] | None = None) -> None:
        """Compare the files with what was written: some of a checkpoint, or all of a model folder.

        Raises:
            CheckpointError: Names the file, what was expected and what was found.
        """
        for problem in damage(folder, self.files, self.files if names is None else names):
            fix = "Copy or export the folder again."
            if _OF_CHECKPOINTS in self.files:
                fix = "Use another checkpoint of the run: `checkpoint` last, or one of its step-N."
            raise CheckpointError(problem, fix=fix)
