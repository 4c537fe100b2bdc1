"""``nmt import``: a model of another system -> a model folder."""

from __future__ import annotations

import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from nmt.checkpoint.new_model_folder import check_new_folder
from nmt.config.run import check_languages
from nmt.errors import CheckpointError, ConfigError, DataError
from nmt.extras.exchange.hugging_face import is_hugging_face, read_hugging_face
from nmt.extras.exchange.imported import Imported, damaged, write_imported
from nmt.extras.exchange.marian import is_marian, read_marian
from nmt.extras.exchange.options import ImportOptions
from nmt.files.lines import read_lines
from nmt.inference.scorer import Scorer

# Position encodings that other systems give models of Marian: Hugging Face's, and Marian's own.
POSITIONS = ("sinusoidal-concatenated", "sinusoidal-halves")
_MOST_BYTES = 1 << 34
_RATIO = 64  # bytes of the files of a .zip for each byte of it


@dataclass(frozen=True, slots=True)
class ImportSummary:
    """What was written."""

    output: Path  # The model folder.
    system: str  # Where the model is from: ``marian`` or ``hugging-face``.
    languages: tuple[str, str]  # Codes of source and target.
    positions: str  # Its position encoding.
    # Position encoding -> mean natural-log probability of a token of the pairs that were given.
    check: Mapping[str, float]

    def as_text(self) -> str:
        """Return the folder, and the scores of the pairs that were given."""
        scores = [f"{name}: {value:.4f} a token" for name, value in self.check.items()]
        return "\n".join([str(self.output), *scores])

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self) | {"output": str(self.output), "languages": list(self.languages)}


def import_model(options: ImportOptions) -> ImportSummary:
    """Write the model of another system as a model folder.

    Raises:
        CheckpointError: The files are missing or damaged, or the model has parts that we lack.
        ConfigError: ``output`` is taken, or the languages are not known or no codes.
        DataError: ``check`` holds a line without one tab, or no line.
    """
    source, output, positions = options.source, options.output, options.positions
    check_new_folder(output, source)
    pairs = [] if options.check is None else _read_pairs(options.check)
    with _unpacked(source) as place:
        system, found = _read(place, source)
    if positions is not None:
        if positions not in POSITIONS:
            fix = f"Use {' or '.join(POSITIONS)}."
            raise ConfigError(f"`positions` is {positions!r}.", fix=fix)
        found = with_positions(found, positions)
    codes = _codes(options.languages, found.languages)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", output.resolve().name).strip("-._") or "imported"
    scores = _mean_log_probs(found, pairs, codes) if pairs else {}
    write_imported(found, output, name, codes)
    return ImportSummary(output, system, codes, found.model.positions, scores)


def with_positions(model: Imported, name: str) -> Imported:
    """Return the same model with another position encoding."""
    return replace(model, model=model.model.model_copy(update={"positions": name}))


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


def _read_pairs(path: Path) -> list[tuple[str, str]]:
    lines = read_lines(path)
    fix = "Write some hundred pairs, one a line: paste in.en in.de > pairs.tsv"
    if bad := [number for number, line in enumerate(lines, 1) if line.count("\t") != 1]:
        raise DataError(f"{path}:{bad[0]} is not a source, one tab and a translation.", fix=fix)
    if not lines:
        raise DataError(f"{path} holds no line.", fix=fix)
    return [(source, target) for source, _, target in (line.partition("\t") for line in lines)]


def _mean_log_probs(
    found: Imported, pairs: Sequence[tuple[str, str]], codes: tuple[str, str]
) -> dict[str, float]:
    """Score pairs with each of `POSITIONS`."""
    means = {}
    for name in POSITIONS:
        with tempfile.TemporaryDirectory() as folder:
            write_imported(with_positions(found, name), Path(folder) / "model", "check", codes)
            scored = Scorer.load(Path(folder) / "model").score(pairs)
        usable = [pair for pair in scored if pair.tokens]
        num_tokens = sum(len(pair.tokens) for pair in usable)
        means[name] = sum(pair.log_prob for pair in usable) / max(num_tokens, 1)
    return means


def _codes(given: str | None, named: tuple[str, str] | None) -> tuple[str, str]:
    if given is None and named is not None:
        return named
    source, _, target = (given or "").partition("-")
    if not (source and target):
        problem = f"`languages` is {given!r}." if given else "The files do not name the languages."
        raise ConfigError(problem, fix="Pass both codes: `languages` en-de.")
    check_languages({"`languages`": source, "`languages` ": target})
    return source, target
