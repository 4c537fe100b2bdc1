"""``nmt import``: a model of another system -> a model folder."""

from __future__ import annotations

import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from nmt.checkpoint.model_folder import check_new_folder
from nmt.config.run import check_languages
from nmt.errors import CheckpointError, ConfigError
from nmt.extras.exchange.hugging_face import is_hugging_face, read_hugging_face
from nmt.extras.exchange.imported import Imported, damaged, write_imported
from nmt.extras.exchange.marian import is_marian, read_marian
from nmt.extras.exchange.options import ImportOptions

# Position encodings that other systems give models of Marian: Hugging Face's, and Marian's own.
_POSITIONS = ("sinusoidal-concatenated", "sinusoidal-halves")
_MOST_BYTES = 1 << 34
_RATIO = 64  # bytes of the files of a .zip for each byte of it


@dataclass(frozen=True, slots=True)
class ImportSummary:
    """What was written."""

    output: Path  # The model folder.
    system: str  # Where the model is from: ``marian`` or ``hugging-face``.
    languages: tuple[str, str]  # Codes of source and target.
    positions: str  # Its position encoding.

    def as_text(self) -> str:
        """Return the folder, for a script to read."""
        return str(self.output)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self) | {"output": str(self.output), "languages": list(self.languages)}


def import_model(options: ImportOptions) -> ImportSummary:
    """Write the model of another system as a model folder.

    Raises:
        CheckpointError: The files are missing or damaged, or the model has parts that we lack.
        ConfigError: ``output`` is taken, or the languages are not known or no codes.
    """
    source, output, positions = options.source, options.output, options.positions
    check_new_folder(output, source)
    if positions not in (None, *_POSITIONS):
        fix = f"Use {' or '.join(_POSITIONS)}."
        raise ConfigError(f"`positions` is {positions!r}.", fix=fix)
    with _unpacked(source) as place:
        system, found = _read(place, source)
    if positions is not None:
        found = replace(found, model=found.model.model_copy(update={"positions": positions}))
    codes = _codes(options.languages, found.languages)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", output.resolve().name).strip("-._") or "imported"
    write_imported(found, output, name, codes)
    return ImportSummary(output, system, codes, found.model.positions)


def _read(place: Path, source: Path) -> tuple[str, Imported]:
    if not place.exists():
        raise CheckpointError(f"{source} does not exist.", fix="Pass a folder or file.")
    if is_hugging_face(place):
        return "hugging-face", read_hugging_face(place)
    if is_marian(place):
        return "marian", read_marian(place)
    raise CheckpointError(
        f"{source} holds no config.json of Hugging Face, and no decoder.yml or .npz of Marian.",
        fix="Pass the folder of the model, or Marian's .npz file itself.",
    )


@contextmanager
def _unpacked(source: Path) -> Iterator[Path]:
    """Give the folder of a model: of a .zip, a temporary one with the files of its top level."""
    if source.suffix != ".zip":
        yield source
        return
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        try:
            with zipfile.ZipFile(source) as archive:
                entries = [entry for entry in archive.infolist() if not entry.is_dir()]
                total = sum(entry.file_size for entry in entries)
                if total > min(_MOST_BYTES, _RATIO * source.stat().st_size):
                    raise ValueError("its files claim to be far larger than it is")
                for entry in entries:  # by their names alone: no path leads out of the folder
                    name = Path(entry.filename).name
                    with archive.open(entry) as packed, (place / name).open("xb") as file:
                        shutil.copyfileobj(packed, file)
        except Exception as error:  # of zipfile and zlib: each has its own for damage
            raise damaged(source, error) from error
        yield place


def _codes(given: str | None, named: tuple[str, str] | None) -> tuple[str, str]:
    if given is None and named is not None:
        return named
    source, _, target = (given or "").partition("-")
    if not (source and target):
        problem = f"`languages` is {given!r}." if given else "The files do not name the languages."
        raise ConfigError(problem, fix="Pass both codes: `languages` en-de.")
    check_languages({"`languages`": source, "`languages` ": target})
    return source, target
