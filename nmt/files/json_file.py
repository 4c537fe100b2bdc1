"""JSON from untrusted files, and manifests of folders.

File size, nesting depth and the length of numbers are limited. Problems raise `ValueError`, which
each caller converts to a specific error. A manifest lists the size and the hash of every file of a
folder. It is written last, so a folder that agrees with its manifest is complete.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from itertools import accumulate
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, Field, ValidationError
from pydantic.dataclasses import dataclass

from nmt.errors import CheckpointError
from nmt.version import __version__

MAX_BYTES = 1 << 28
MAX_DEPTH = 100
MAX_DIGITS = 40  # Of a whole number; the state of a 128-bit random generator has 39 digits.
# A string, or characters outside strings that are not brackets.
_NO_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[^\[{\]}"]+|"', re.DOTALL)

# Names of types in messages.
_NAMES: dict[type, str] = {dict: "an object", list: "a list", str: "a string", float: "a number"}
_NAMES |= {int: "a whole number", bool: "true or false", type(None): "null"}

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
# Key of the manifest's own hash. It tells a damaged manifest from one of another format version.
_SEAL = "sha256"

_Kind = TypeVar("_Kind")


def read_json(path: Path, *, max_bytes: int = MAX_BYTES, finite: bool = False) -> Any:
    """Read a JSON file of at most ``max_bytes``. For ``finite`` see `parse_json`.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file is too large, is not UTF-8, or `parse_json` raises.
    """
    with path.open("rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"it is larger than {max_bytes:,} bytes")
    return parse_json(content.decode("utf-8"), finite=finite)


def parse_json(text: str | bytes, *, finite: bool = False) -> Any:
    """Parse JSON. ``finite`` rejects NaN, Infinity, and numbers too large for a float.

    Raises:
        ValueError: The text is not valid JSON, is nested deeper than `MAX_DEPTH`, or contains a
            whole number of more than `MAX_DIGITS` digits.

    >>> parse_json('{"a": [1, 2.5]}')
    {'a': [1, 2.5]}
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8")
    if text.count("[") + text.count("{") > MAX_DEPTH:  # fewer brackets cannot be too deep
        _check_depth(text)
    parsers: dict[str, Any] = {}
    if finite:
        parsers = {"parse_float": _finite, "parse_constant": _finite}
    return json.loads(text, parse_int=_whole_number, **parsers)


def field(document: Any, name: str = "", *, kind: type[_Kind]) -> _Kind:
    """Return a field of parsed JSON after a check of its type; without a name, the whole document.

    Raises:
        ValueError: The field is missing or has a different type. The message names the field.

    >>> field({"size": 3}, "size", kind=int)
    3
    """
    if name:
        if name not in field(document, kind=dict):
            raise ValueError(f"{name} is missing")
        document = document[name]
    # For Python, true and false are also whole numbers.
    is_unwanted_bool = isinstance(document, bool) and kind is not bool
    if is_unwanted_bool or not isinstance(document, kind):
        actual = _NAMES[type(document)]
        raise ValueError(f"{name or 'the document'} must be {_NAMES[kind]}, not {actual}")
    return document


def _check_depth(text: str) -> None:
    """Raise a ValueError if brackets outside strings are nested too deeply."""
    brackets = _NO_BRACKETS.sub("", text)
    steps = (1 if bracket in "[{" else -1 for bracket in brackets)
    if max(accumulate(steps), default=0) > MAX_DEPTH:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")


def _whole_number(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"the number {digits[:9]}... has {len(digits):,} digits")
    return int(digits)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is not finite")
    return value


def what_is_wrong(error: Exception) -> str:
    """Describe an error in parsed JSON; of a failed validation, the first wrong field."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def sha256_of_file(path: Path) -> str:
    """Return the SHA-256 of a file's content in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_json(value: Any) -> str:
    """Return the SHA-256 of JSON data in hexadecimal. The order of keys does not matter."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


class UnknownFormatError(CheckpointError):
    """The manifest is undamaged, but has a format version that this release cannot read."""


def _inside(name: str) -> str:
    """Return the name of a file in a manifest, after a check that it is inside the folder."""
    path = PurePosixPath(name)
    # Backslashes and colons lead out of a folder on Windows. A name with NUL cannot be opened.
    has_bad_character = set("\0\\:").intersection(name)
    leads_out = path.is_absolute() or ".." in path.parts
    if not path.parts or leads_out or has_bad_character:
        raise ValueError(f"{name!r} is not inside the folder")
    return name


@dataclass(frozen=True)
class FileRecord:
    """Size and SHA-256 of one file."""

    size: Annotated[int, Field(ge=0)]  # Bytes.
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]

    @classmethod
    def of(cls, path: Path) -> FileRecord:
        """Compute the size and hash of a file."""
        return cls(path.stat().st_size, sha256_of_file(path))


def damage(folder: Path, files: Mapping[str, FileRecord], names: Iterable[str]) -> Iterator[str]:
    """Compare the named files of ``folder`` with their records; yield one message per problem."""
    for name in names:
        path = folder / name
        expected = files.get(name)
        try:
            if expected is None or not path.is_file():
                yield f"{path} is missing."
                continue
            size = path.stat().st_size
            if size != expected.size:
                yield f"{path} has {size:,} bytes; expected {expected.size:,}."
                continue
            sha256 = sha256_of_file(path)
            if sha256 != expected.sha256:
                problem = f"expected {expected.sha256[:12]}...: its content has changed"
                yield f"{path} has sha256 {sha256[:12]}...; {problem}."
        except OSError as error:
            yield f"{path} cannot be read: {error.strerror or error}."


@dataclass(frozen=True)
class SealedManifest:
    """Base class of manifests, which are written to ``manifest.json`` with their own hash."""

    format_version: int

    @staticmethod
    def sealed_values(path: Path, *, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
        """Read a manifest of any format version, without its own hash.

        Raises:
            OSError: The file cannot be read.
            ValueError: The file is damaged.
        """
        if not path.is_file():  # a pipe never ends
            raise FileNotFoundError(path)
        values = read_json(path, max_bytes=max_bytes)
        seal = field(values, _SEAL, kind=str)
        del values[_SEAL]
        if seal != sha256_of_json(values):
            raise ValueError("its content has changed")
        field(values, "format_version", kind=int)
        return dict(values)

    def write(self, folder: Path) -> None:
        """Write the manifest into ``folder``. Call this after all other files are written."""
        (folder / MANIFEST).write_bytes(self.text().encode())

    def text(self) -> str:
        """Return the manifest as JSON text, including its own hash."""
        values = asdict(self)
        values[_SEAL] = sha256_of_json(values)
        return json.dumps(values, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


@dataclass(frozen=True)
class Manifest(SealedManifest):
    """The files of a checkpoint or a model folder."""

    package_version: str
    step: Annotated[int, Field(ge=0)]
    files: Mapping[Annotated[str, AfterValidator(_inside)], FileRecord]

    @classmethod
    def of(cls, folder: Path, names: Iterable[str], step: int) -> Manifest:
        """Compute the size and hash of the named files of ``folder``."""
        files = {name: FileRecord.of(folder / name) for name in names}
        return cls(FORMAT_VERSION, __version__, step, files)

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read the manifest of ``folder``.

        Raises:
            CheckpointError: The manifest is missing or damaged.
            UnknownFormatError: The manifest has a different format version.
        """
        path = folder / MANIFEST
        try:
            values = cls.sealed_values(path, max_bytes=1 << 24)
            version = values["format_version"]
            if version == FORMAT_VERSION:  # for another version see the end
                return cls(**values)
        except FileNotFoundError as error:
            fix = "The folder is not a complete checkpoint: use a different checkpoint."
            raise CheckpointError(f"{path} is missing.", fix=fix) from error
        except (OSError, ValueError) as error:
            fix = "Use another checkpoint of the run, or copy or export the model folder again."
            raise CheckpointError(f"{path} is damaged: {what_is_wrong(error)}.", fix=fix) from error
        fix = f"Use the release that wrote it: nmt {values.get('package_version', '?')}."
        raise UnknownFormatError(f"{path} has a different format version: {version}.", fix=fix)

    def verify(self, folder: Path, names: Iterable[str] | None = None) -> None:
        """Check the sizes and hashes of the named files of ``folder``, or of all files.

        Raises:
            CheckpointError: A file is missing or changed. The message names the file, and its
                expected and actual size or hash.
        """
        if names is None:
            names = self.files
        for problem in damage(folder, self.files, names):  # the first one is raised
            fix = "Copy or export the folder again."
            if "state.json" in self.files:  # a checkpoint, not a model folder
                fix = "Use another checkpoint of the run: set `checkpoint` to last or to step-N."
            raise CheckpointError(problem, fix=fix)
