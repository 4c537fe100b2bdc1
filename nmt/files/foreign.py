"""Files that other people's programs wrote, such as models to import. Nothing in them is trusted.

`check_folder` decides which files may be opened, and `parsing` turns what a parser raises for
damaged or hostile content into one error. The limits are documented in nmt/README.md.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain, islice
from pathlib import Path
from pickle import UnpicklingError
from pickletools import genops
from tokenize import TokenError
from typing import IO, Any
from zipfile import BadZipFile, ZipFile

import yaml
from google.protobuf.message import DecodeError
from pydantic import TypeAdapter
from safetensors import SafetensorError

from nmt.errors import CheckpointError, NmtError
from nmt.files.json_file import parse_json, what_is_wrong

# Suffix -> largest size in bytes; None for weights, which must have the sizes in the configuration.
LIMITS: dict[str, int | None] = {
    ".json": 1 << 25,
    ".yml": 1 << 22,
    ".vocab": 1 << 22,
    ".spm": 1 << 23,
    ".model": 1 << 23,
    ".npz": None,
    ".bin": None,
    ".safetensors": None,
}
MAX_VALUES = 3_000_000  # of a JSON file: each takes up to 70 bytes of memory
MAX_RATIO = 4  # Size of the unpacked files, as a multiple of the archive: against zip bombs.
_MAX_MEMBERS = 10_000  # of an archive
MAX_HEADER = 1 << 22  # bytes of a .safetensors file that list its tensors
MAX_OPERATIONS = 300_000  # of a pickle: each takes up to 100 bytes of memory, or a tensor's share
_NUM_PICKLES = 5  # in a file of torch before 1.6, before its weights
# What parsers raise for damaged content. Other exceptions are errors of nmt.
_DAMAGE = (
    ArithmeticError, BadZipFile, DecodeError, EOFError, LookupError, MemoryError, NmtError, OSError,
    RuntimeError, SafetensorError, TokenError, TypeError, UnpicklingError, ValueError,
    yaml.YAMLError, zlib.error,
)  # fmt: skip


def damaged(problem: str) -> CheckpointError:
    """Return the error for files that are not as their own toolkit wrote them."""
    return CheckpointError(problem, fix="Download or copy the model again.")


@contextmanager
def parsing(path: Path) -> Iterator[None]:
    """Convert what parsers raise for damaged content to a `CheckpointError`.

    Raises:
        FileNotFoundError: A file is missing.
    """
    try:
        yield
    except (CheckpointError, FileNotFoundError):
        raise
    except _DAMAGE as error:
        # Errors of nmt have a problem, and errors of the system a message without the path.
        problem = getattr(error, "problem", None) or getattr(error, "strerror", None)
        problem = str(problem or what_is_wrong(error) or type(error).__name__)
        if isinstance(error, KeyError):
            problem = f"{error} is missing"
        elif isinstance(error, UnpicklingError):  # torch's message recommends unsafe loading
            problem = "the pickle contains more than weights"
        problem = problem.split("\n")[0].rstrip(".")  # the first line is enough for a message
        shown = problem.encode("utf-8", "backslashreplace").decode()
        raise damaged(f"{path} is damaged: {shown}.") from error


def check_folder(folder: Path) -> None:
    """Check all files of a folder that may be read, before any is opened.

    Raises:
        CheckpointError: A name is that of a pipe, a device or a link to another folder; or a file
            is too large.
    """
    root = folder.resolve()
    if root.parent.name == "snapshots":  # the cache of huggingface_hub, with links to ``blobs``
        root = root.parent.parent
    for path in sorted(folder.iterdir()):
        if path.suffix not in LIMITS or path.is_dir():
            continue
        if not path.is_file() or not path.resolve().is_relative_to(root):
            raise damaged(f"{path} is not a regular file of this folder.")
        check_file(path, LIMITS[path.suffix])


def check_file(path: Path, limit: int | None) -> None:
    """Check a file before it is opened.

    Raises:
        OSError: The file is missing.
        CheckpointError: It is a pipe, a device or a folder; or it has more than ``limit`` bytes.
    """
    if path.exists() and not path.is_file():
        raise damaged(f"{path} is not a regular file.")
    size = path.stat().st_size
    if limit is not None and size > limit:
        raise damaged(f"{path} has {size:,} bytes; the limit is {limit:,}.")


def read_json(path: Path, kind: Any) -> Any:
    """Read a JSON file, and validate it; see `validated`.

    Raises:
        CheckpointError: The content is damaged.
        FileNotFoundError: The file is missing.
    """
    with parsing(path):
        content = path.read_bytes()
        if content.count(b",") > MAX_VALUES:
            raise ValueError(f"it has more than {MAX_VALUES:,} values")
        return validated(parse_json(content), kind)


def validated(document: Any, kind: Any) -> Any:
    """Validate parsed JSON or YAML; ``kind`` is a TypedDict, or another type for pydantic.

    Raises:
        ValueError: A value has another type, or a text contains half of a surrogate pair.
    """
    document = TypeAdapter(kind).validate_python(document)
    json.dumps(document, ensure_ascii=False).encode()
    return document


def check_sizes(archive: ZipFile, path: Path) -> None:
    """Raise a ValueError if the unpacked files would be far larger than the archive, or many."""
    entries = archive.infolist()
    if len(entries) > _MAX_MEMBERS:
        raise ValueError(f"it contains {len(entries):,} files")
    if sum(entry.file_size for entry in entries) > MAX_RATIO * path.stat().st_size:
        raise ValueError("the unpacked contents would be far larger than the file")


def check_weights(path: Path) -> None:
    """Raise a ValueError if a .safetensors file or a file of torch lists far too many tensors."""
    with ExitStack() as stack:
        file = stack.enter_context(path.open("rb"))
        if path.suffix == ".safetensors":
            if int.from_bytes(file.read(8), "little") > MAX_HEADER:
                raise ValueError("its header is too large")
            return
        streams: list[IO[bytes]] = [file] * _NUM_PICKLES
        if file.peek(4).startswith(b"PK\3\4"):  # an archive for torch
            archive = stack.enter_context(ZipFile(file))
            check_sizes(archive, path)
            entries = [entry for entry in archive.infolist() if "data.pkl" in entry.filename]
            streams = [stack.enter_context(archive.open(entry)) for entry in entries]
        operations = chain.from_iterable(map(genops, streams))
        if sum(1 for _ in islice(operations, MAX_OPERATIONS)) == MAX_OPERATIONS:
            raise ValueError("the pickle contains more than weights")
