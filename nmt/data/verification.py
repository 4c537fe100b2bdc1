"""Whether a prepared folder is still what was written: all its files are read and hashed again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nmt.data.prepared import TOKENIZER, TRAIN, VALID, PreparedManifest
from nmt.errors import DataError
from nmt.files.manifest import damage, sha256_of_file
from nmt.text.tokenizer import tokenizer_hash


@dataclass(frozen=True, slots=True)
class Verified:
    """A prepared folder that is whole."""

    folder: str
    files: int
    """Files that were compared."""
    bytes: int
    """Their size."""
    unverified: bool
    """Whether reports and texts could not be compared: an older folder has no hash of them."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)

    def as_text(self) -> str:
        """Return a line to read."""
        text = f"{self.folder}: {self.files:,} files, {self.bytes:,} bytes, all as written"
        again = "the hash of other files was not kept then; `nmt prepare CONFIG --force` keeps it"
        return f"{text}\nonly token ids and tokenizers: {again}" if self.unverified else text


def data_hash(folder: Path) -> str:
    """Return the sha256 of the names and hashes of the token stores of a prepared folder."""
    whole = hashlib.sha256()
    for path in _stored(folder):
        whole.update(path.name.encode() + sha256_of_file(path).encode())
    return whole.hexdigest()


def _stored(folder: Path) -> list[Path]:
    return [path for part in (TRAIN, VALID) for path in sorted((folder / part).glob("*.bin"))]


def verify_prepared(folder: Path) -> Verified:
    """Compare all files of a prepared folder with its manifest.

    Raises:
        DataError: There is none; or files are missing or damaged: names each.
    """
    manifest = PreparedManifest.read(folder)
    problems = list(damage(folder, manifest.files, manifest.files))
    paths = [folder / name for name in manifest.files]
    if not manifest.files:
        problems = list(_changes(folder, manifest))
        paths = [*_stored(folder), *(folder / TOKENIZER).glob("*.model")]
    if problems:
        raise DataError("\n  ".join(problems), fix="Run `nmt prepare CONFIG --force`.")
    size = sum(path.stat().st_size for path in paths)
    return Verified(str(folder), len(paths), size, not manifest.files)


def _changes(folder: Path, manifest: PreparedManifest) -> Iterator[str]:
    """Yield what is wrong with a folder whose manifest holds no hash of single files."""
    for what, found, written in (
        (f"{TRAIN} and {VALID}", data_hash(folder), manifest.data_hash),
        (TOKENIZER, tokenizer_hash(folder / TOKENIZER), manifest.vocab_hash),
    ):
        if found != written:
            yield f"{folder}: files of {what} are missing or have changed."
