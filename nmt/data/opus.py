"""Corpora of OPUS, the collection of parallel texts of many projects, such as ``opus:Tatoeba``.

The API of OPUS finds the archive of a corpus in two languages: a zip file with two aligned text
files and a licence.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from zipfile import BadZipFile, ZipFile

from nmt.config.language_codes import matching
from nmt.errors import ConfigError, DataError, shell_command
from nmt.files.atomic import file_lock, sync, write_errors
from nmt.files.download import download, read_document
from nmt.report.page import visible

PREFIX = "opus:"
ADDRESS = "NMT_OPUS"  # Environment variable with another address of the API.
_API = "https://opus.nlpl.eu/opusapi/"
_SITE = "https://opus.nlpl.eu"
_OFFLINE = f"Connect to the internet, or download the corpus from {_SITE} on another machine in "
_OFFLINE += "Moses format, and pass the file: `nmt init FILE.zip`."
_LATEST = "latest"
_FORMAT = "moses"  # Two aligned text files.
_NAME = re.compile(r"[\w.+-]+")  # Of a corpus, a version or a language; it becomes a file name.
_KIBI = 1024
# In the zip files, and what their lines about the licence contain.
_LICENCE_FILES = {"LICENSE": r"\w", "README": "licen[cs]e"}
_LICENCE_BYTES = 1 << 14
_LICENCE_LINES = 3  # Number of lines that are shown.
_MOST_SHOWN = 10
_EXCERPT = 80

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Release:
    """A version of a corpus in two languages.

    Args:
        corpus: Name of the corpus, such as ``Tatoeba``.
        version: For example ``v2023-04-12``.
        languages: Codes of both languages, as OPUS orders and spells them.
        url: Address of the zip file.
        num_pairs: Number of sentence pairs; None if OPUS does not say.
        num_kibibytes: Size of the zip file; None if OPUS does not say.
    """

    corpus: str
    version: str
    languages: tuple[str, str]
    url: str
    num_pairs: int | None
    num_kibibytes: int | None

    def is_of(self, corpus: str, languages: tuple[str, str]) -> bool:
        """Whether this is a release of a corpus in two languages, in any order."""
        return self.corpus == corpus and set(self.languages) == set(languages)

    def __str__(self) -> str:
        """Return the corpus with its version, languages and size."""
        text = f"{self.corpus} {self.version} ({'-'.join(self.languages)})"
        if self.num_pairs is not None:
            text += f", {self.num_pairs:,} pairs"
        if self.num_kibibytes is not None:
            text += f", {self.num_kibibytes / _KIBI:.1f} MiB"
        return text


def opus_corpus(place: str, languages: tuple[str, str] | None, folder: Path) -> Path:
    """Download a corpus unless it is in the folder; return its zip file.

    Args:
        place: ``opus:NAME`` for the latest version, or ``opus:NAME/VERSION``.
        languages: Codes of both languages, in any order.
        folder: Where the zip file stays. An interrupted download is continued there.

    Raises:
        ConfigError: The languages are missing, or OPUS does not have the corpus in them.
        DataError: The corpus cannot be downloaded, or is damaged.
    """
    name, _, wanted_version = place.removeprefix(PREFIX).partition("/")
    version = wanted_version or _LATEST
    if languages is None:
        command = shell_command("init", place, languages="de-en")
        problem = f"{place} exists in many pairs of languages."
        raise ConfigError(problem, fix=f"Choose one, as in `{command}`.")
    if not (_NAME.fullmatch(name) and _NAME.fullmatch(version)):
        fix = f"Write {PREFIX}NAME or {PREFIX}NAME/VERSION."
        raise ConfigError(f"{place} is not the name of a corpus of OPUS.", fix=fix)
    archive = folder / _file_name(name, version, sorted(languages))
    if not archive.exists():
        release = _find(name, version, languages)
        archive = folder / _file_name(release.corpus, release.version, release.languages)
        with write_errors(folder, DataError):
            folder.mkdir(parents=True, exist_ok=True)
        with file_lock(folder / f".{archive.name}.lock", wait=True, remove=True):
            if not archive.exists():  # Another process may have downloaded it.
                _download(release, archive)
    logger.info("%s: %s", archive, _licence(archive))
    return archive


def _file_name(corpus: str, version: str, languages: Iterable[str]) -> str:
    return f"{'-'.join([corpus, version, *languages])}.zip"


def _find(name: str, version: str, languages: tuple[str, str]) -> Release:
    """Find the release of a corpus in two languages; OPUS may spell their codes otherwise."""
    releases = _releases(name, version, languages)
    if not releases:
        codes = _names("languages", corpus=name)
        spelled = [*matching(languages[0], codes), *matching(languages[1], codes)]
        if len(spelled) == 2 and spelled != list(languages):
            releases = _releases(name, version, (spelled[0], spelled[1]))
        if not releases:
            raise _not_found(name, version, languages, is_known=bool(codes))
    # Some corpora have a second, stricter alignment, which has a longer file name.
    return min(releases, key=lambda release: len(release.url))


def _not_found(
    name: str, version: str, languages: tuple[str, str], *, is_known: bool
) -> ConfigError:
    """Return the error for a corpus, a version or a language pair that OPUS does not have."""
    if not is_known:
        by_lower_name = {known.lower(): known for known in _names("corpora")}
        similar = get_close_matches(name.lower(), by_lower_name)
        fix = f"Choose a corpus of {_SITE}."
        if similar:
            fix = f"Did you mean {' or '.join(by_lower_name[key] for key in similar)}?"
        return ConfigError(f"OPUS does not have a corpus {name}.", fix=fix)
    problem = f"OPUS does not have {name} in {' and '.join(languages)}"
    versions = {release.version for release in _releases(name, "", languages)}
    if versions:
        fix = f"Its versions are {', '.join(sorted(versions))}."
        return ConfigError(f"{problem} in version {version}.", fix=fix)
    corpora = _names("corpora", source=languages[0], target=languages[1])
    fix = f"Choose a corpus of {_SITE}."
    if corpora:
        fix = f"Corpora in both languages: {', '.join(corpora[:_MOST_SHOWN])}."
    return ConfigError(f"{problem}.", fix=fix)


def _releases(name: str, version: str, languages: tuple[str, str]) -> list[Release]:
    """Return the releases of a corpus in two languages; those of all versions if it is empty."""
    parameters = {"preprocessing": _FORMAT}
    if version:
        parameters["version"] = version
    for source, target in (languages, languages[::-1]):
        answer = _ask("corpora", corpus=name, source=source, target=target, **parameters)
        entries = filter(None, map(_release, answer))
        releases = [release for release in entries if release.is_of(name, languages)]
        if releases:
            return releases
    return []


def _release(entry: Any) -> Release | None:
    """Read an entry of the API, whose values may be texts or numbers; None if it is not usable."""
    if not isinstance(entry, dict):
        return None
    values = {key: str(value) for key, value in entry.items()}
    names = [values.get(key, "") for key in ("corpus", "version", "source", "target")]
    are_names = all(map(_NAME.fullmatch, names))
    if not are_names or values.get("preprocessing", _FORMAT) != _FORMAT:
        return None
    corpus, version, source, target = names
    return Release(
        corpus,
        version,
        languages=(source, target),
        url=visible(values.get("url", "")),
        num_pairs=_number(values.get("alignment_pairs", "")),
        num_kibibytes=_number(values.get("size", "")),
    )


def _number(text: str) -> int | None:
    """Return a positive whole number; None for another text."""
    if not re.fullmatch("[0-9]{1,15}", text):
        return None
    return int(text) or None


def _names(kind: str, **parameters: str) -> list[str]:
    """Return the names of corpora or languages, for a message; empty if the API lists none."""
    try:
        names = _ask(kind, **{kind: "True"}, **parameters)
    except DataError:
        return []
    return [name for name in names if isinstance(name, str)]


def _ask(key: str, **parameters: str) -> list[Any]:
    """Return the list that the API of OPUS answers under a key."""
    url = f"{os.environ.get(ADDRESS) or _API}?{urlencode(parameters)}"
    answer = read_document(url, fix=_OFFLINE)
    try:
        entries = json.loads(answer)[key]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        start = visible(answer[:_EXCERPT].decode("utf-8", "replace"))
        problem = f"{url} does not answer as the API of OPUS does, but with {start!r}."
        fix = f"Try again later, or set {ADDRESS} to the address of the API."
        raise DataError(problem, fix=fix) from error
    return entries if isinstance(entries, list) else []


def _download(release: Release, archive: Path) -> None:
    """Download a release, and check it."""
    part = archive.with_name(f"{archive.name}.part")
    logger.info("downloading %s from %s", release, release.url)
    fix = "Run the command again to continue the download, or download the file elsewhere, and "
    fix += "pass it: `nmt init FILE.zip`."
    download(release.url, part, description=f"download {release.corpus}", fix=fix)
    try:
        with ZipFile(part) as zip_file:
            damaged_file = zip_file.testzip()
            if damaged_file is not None:
                raise BadZipFile(f"{damaged_file} is damaged")
    except Exception as error:  # zipfile and zlib have many exceptions for damage
        part.unlink()
        problem = f"{release.url} is not a complete zip file: {error}."
        raise DataError(problem, fix="Run the command again to download it again.") from error
    announced = release.num_kibibytes
    size = part.stat().st_size // _KIBI
    if announced not in (None, size):
        logger.warning("OPUS announces %d KiB for %s; it has %d", announced, archive, size)
    part.replace(archive)
    sync(archive.parent)


def _licence(archive: Path) -> str:
    """Return the first lines of the licence in a zip file, or where to look for it."""
    lines: list[str] = []
    # Reading the pairs reports damage.
    with suppress(BadZipFile), ZipFile(archive) as zip_file:
        for name, pattern in _LICENCE_FILES.items():
            if name in zip_file.namelist() and not lines:
                with zip_file.open(name) as file:
                    text = file.read(_LICENCE_BYTES).decode("utf-8", "replace")
                lines = [visible(line.strip()) for line in text.splitlines()]
                lines = [line for line in lines if re.search(pattern, line, re.IGNORECASE)]
    if not lines:
        return f"{_SITE} has the licence"
    return " ".join(lines[:_LICENCE_LINES])
