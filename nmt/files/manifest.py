"""What a checkpoint holds, written last: a folder whose manifest agrees with it is whole."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nmt.errors import CheckpointError
from nmt.version import __version__

FORMAT_VERSION = 1
NAME = "manifest.json"
_SEAL = "sha256"
"""Key of the manifest's own hash, so that damage is not taken for another release's work."""
_OF_CHECKPOINTS = "state.json"
"""A file that model folders do not have."""
_OF_RUN = "Use another checkpoint of the run: --checkpoint last, or one of its step-N."


class UnknownFormatError(CheckpointError):
    """A whole manifest of another format version: nothing is damaged, and nothing can be read."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    """Size and hash of one file."""

    size: int
    """Bytes."""
    sha256: str
    """Hexadecimal."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files of a checkpoint."""

    format_version: int
    package_version: str
    step: int
    files: Mapping[str, FileRecord]

    @classmethod
    def of(cls, folder: Path, names: Iterable[str], step: int) -> Manifest:
        """Describe the files of ``folder``."""
        records = {name: _record(folder / name) for name in names}
        return cls(FORMAT_VERSION, __version__, step, records)

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read the manifest of ``folder``.

        Raises:
            CheckpointError: It is missing or damaged.
            UnknownFormatError: It is of another format version.
        """
        path = folder / NAME
        try:
            values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if values.pop(_SEAL) != _hash_of(values):
                raise ValueError("its content has changed")
            version = values["format_version"]
            if version == FORMAT_VERSION:
                files = {name: FileRecord(**record) for name, record in values["files"].items()}
                return cls(version, values["package_version"], values["step"], files)
        except FileNotFoundError as error:
            raise CheckpointError(
                f"{path} is missing.", fix="The folder is no complete checkpoint: use another."
            ) from error
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{path} is damaged ({type(error).__name__}: {error}).",
                fix="Use another checkpoint of the run; copy or export a model folder again.",
            ) from error
        raise UnknownFormatError(
            f"{path} has format version {version}, but this release reads {FORMAT_VERSION}.",
            fix=f"Use the release that wrote it: nmt {values.get('package_version', '?')}.",
        )

    def text(self) -> str:
        """Return the file's content."""
        values = asdict(self)
        return json.dumps(values | {_SEAL: _hash_of(values)}, indent=2, sort_keys=True) + "\n"

    def verify(self, folder: Path, names: Iterable[str] | None = None) -> None:
        """Compare the files with what was written: some of a checkpoint, or all of a model folder.

        Raises:
            CheckpointError: Names the file, what was expected and what was found.
        """
        fix = _OF_RUN if _OF_CHECKPOINTS in self.files else "Copy or export the folder again."
        for name in self.files if names is None else names:
            expected = self.files.get(name)
            path = folder / name
            if expected is None or not path.is_file():
                raise CheckpointError(f"{path} is missing.", fix=fix)
            size = path.stat().st_size
            if size != expected.size:
                raise CheckpointError(
                    f"{path} has {size:,} bytes, but {expected.size:,} were written.", fix=fix
                )
            if (found := _record(path).sha256) != expected.sha256:
                raise CheckpointError(
                    f"{path} has sha256 {found[:12]}..., but {expected.sha256[:12]}... was "
                    "written: its content has changed.",
                    fix=fix,
                )


def _hash_of(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _record(path: Path) -> FileRecord:
    with path.open("rb") as file:
        return FileRecord(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())
