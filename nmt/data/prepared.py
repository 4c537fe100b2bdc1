"""A prepared folder: token stores, tokenizers and the manifest that says what they were made of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nmt.data.store import ParallelStore
from nmt.errors import DataError

FORMAT_VERSION = 1
MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedManifest:
    """What a prepared folder was made of. Written last: a folder without it is not finished."""

    format_version: int
    """Version of the folder's layout."""
    config_hash: str
    """sha256 of the parts of the configuration that change the result."""
    sources: Mapping[str, Mapping[str, Any]]
    """Size, time and sha256 of each file that was read, by path."""
    data_hash: str
    """sha256 of the training and validation token ids."""
    vocab_hash: str
    """sha256 of the SentencePiece models."""
    source_vocab_size: int
    """Entries of the source vocabulary."""
    target_vocab_size: int
    """Entries of the target vocabulary."""
    counts: Mapping[str, Mapping[str, int]]
    """Per corpus: pairs read, kept, and dropped for each reason."""

    def write(self, folder: Path) -> None:
        """Write ``manifest.json`` into ``folder``."""
        text = json.dumps(asdict(self), indent=2, sort_keys=True, ensure_ascii=False)
        (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> PreparedManifest:
        """Read the manifest of ``folder``.

        Raises:
            DataError: There is none, it is damaged, or it has another format version.
        """
        path = folder / MANIFEST
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            version = values["format_version"]
            if version == FORMAT_VERSION:
                return cls(**values)
        except FileNotFoundError as error:
            raise DataError(
                f"{folder} holds no prepared data: it has no {MANIFEST}.",
                fix="Run `nmt prepare CONFIG`.",
            ) from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path} is damaged: {error}", fix="Run `nmt prepare CONFIG --force`."
            ) from error
        raise DataError(
            f"{path} has format version {version}; this release reads {FORMAT_VERSION}.",
            fix="Run `nmt prepare CONFIG --force`.",
        )


class PreparedData:
    """The prepared data of one experiment, read-only."""

    def __init__(self, folder: Path, manifest: PreparedManifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self.train = ParallelStore.open(folder / "train")
        self.valid = ParallelStore.open(folder / "valid")

    @classmethod
    def open(cls, folder: Path) -> PreparedData:
        """Open a finished folder.

        Raises:
            DataError: It is missing, unfinished or damaged.
        """
        return cls(folder, PreparedManifest.read(folder))

    @property
    def tokenizer_dir(self) -> Path:
        """Folder of the SentencePiece models."""
        return self.folder / "tokenizer"

    @property
    def valid_source(self) -> list[str]:
        """Source text of the validation set, as it was read."""
        return _lines(self.folder / "valid" / "source.txt")

    @property
    def valid_target(self) -> list[str]:
        """Reference text of the validation set, as it was read."""
        return _lines(self.folder / "valid" / "target.txt")


def _lines(path: Path) -> list[str]:
    return path.read_bytes().decode("utf-8").split("\n")[:-1]
