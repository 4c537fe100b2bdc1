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
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlencode
from zipfile import BadZipFile, ZipFile

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)

from nmt.config.language_codes import Languages, matching
from nmt.errors import ConfigError, DataError, shell_command
from nmt.files.archive import open_member
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
_NAME = re.compile(r"[\w.+-]+")  # Of a corpus, a version or a language; it becomes a file name.
_KIBI = 1024
# In the zip files, and what their lines about the licence contain.
_LICENCE_FILES = {"LICENSE": r"\w", "README": "licen[cs]e"}
_LICENCE_BYTES = 1 << 14
_LICENCE_LINES = 3  # Number of lines that are shown.
_MOST_SHOWN = 10
_EXCERPT = 80

logger = logging.getLogger(__name__)


def _number(value: object) -> int | None:
    """Return a positive whole number from a number or its digits; None for another value."""
    text = str(value)
    if not re.fullmatch("[0-9]{1,15}", text):
        return None
    return int(text) or None


_Name = Annotated[str, Field(pattern=f"^{_NAME.pattern}$")]
_Number = Annotated[int | None, BeforeValidator(_number)]


class Release(BaseModel):
    """A version of a corpus in two languages, as the API of OPUS describes it.

    Args:
        corpus: Name of the corpus, such as ``Tatoeba``.
        version: For example ``v2023-04-12``.
        source: Code of one language, as OPUS spells it.
        target: Code of the other language. OPUS orders both.
        url: Address of the zip file.
        preprocessing: Format of the text in it.
        alignment_pairs: Number of sentence pairs; None if OPUS does not say.
        size: Size of the zip file in KiB; None if OPUS does not say.
    """

    model_config = ConfigDict(coerce_numbers_to_str=True)

    corpus: _Name
    version: _Name
    source: _Name
    target: _Name
    url: Annotated[str, AfterValidator(visible)]
    preprocessing: Literal["moses"] = "moses"  # two aligned text files
    alignment_pairs: _Number = None
    size: _Number = None

    def __str__(self) -> str:
        """Return the corpus with its version, languages and size."""
        text = f"{self.corpus} {self.version} ({self.source}-{self.target})"
        if self.alignment_pairs is not None:
            text += f", {self.alignment_pairs:,} pairs"
        if self.size is not None:
            text += f", {self.size / _KIBI:.1f} MiB"
        return text


def opus_corpus(place: str, languages: Languages | None, folder: Path) -> Path:
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
        raise ConfigError(
            f"{place} exists in many pairs of languages.", fix=f"Choose one, as in `{command}`."
        )
    if not (_NAME.fullmatch(name) and _NAME.fullmatch(version)):
        raise ConfigError(
            f"{place} is not the name of a corpus of OPUS.",
            fix=f"Write {PREFIX}NAME or {PREFIX}NAME/VERSION.",
        )
    archive = folder / _file_name(name, version, sorted(languages))
    if not archive.exists():
        release = _find(name, version, languages)
        archive = folder / _file_name(
            release.corpus, release.version, [release.source, release.target]
        )
        with write_errors(folder, DataError):
            folder.mkdir(parents=True, exist_ok=True)
        with file_lock(folder / f".{archive.name}.lock", wait=True, remove=True):
            if not archive.exists():  # Another process may have downloaded it.
                _download(release, archive)
    logger.info("%s: %s", archive, _licence(archive))
    return archive


def _file_name(corpus: str, version: str, languages: Iterable[str]) -> str:
    return f"{'-'.join([corpus, version, *languages])}.zip"


def _find(name: str, version: str, languages: Languages) -> Release:
    """Find the release of a corpus in two languages; OPUS may spell their codes otherwise.

    Raises:
        ConfigError: OPUS does not have the corpus, the version or the pair of languages.
    """
    releases = _releases(name, version, languages)
    codes: list[str] = []
    if not releases:
        codes = _names("languages", corpus=name)
        spelled = [*matching(languages[0], codes), *matching(languages[1], codes)]
        if len(spelled) == 2:
            releases = _releases(name, version, (spelled[0], spelled[1]))
    if releases:
        # Some corpora have a second, stricter alignment, which has a longer file name.
        return min(releases, key=lambda release: len(release.url))
    problem = f"OPUS does not have {name} in {' and '.join(languages)}"
    fix = f"Choose a corpus of {_SITE}."
    if not codes:
        problem = f"OPUS does not have a corpus {name}"
        by_lower_name = {known.lower(): known for known in _names("corpora")}
        similar = get_close_matches(name.lower(), by_lower_name)
        if similar:
            fix = f"Did you mean {' or '.join(by_lower_name[key] for key in similar)}?"
    elif versions := {release.version for release in _releases(name, "", languages)}:
        problem += f" in version {version}"
        fix = f"Its versions are {', '.join(sorted(versions))}."
    elif corpora := _names("corpora", source=languages[0], target=languages[1]):
        fix = f"Corpora in both languages: {', '.join(corpora[:_MOST_SHOWN])}."
    raise ConfigError(f"{problem}.", fix=fix)


def _releases(name: str, version: str, languages: Languages) -> list[Release]:
    """Return the releases of a corpus in two languages; those of all versions if it is empty."""
    parameters = {"corpus": name, "preprocessing": "moses"}
    if version:
        parameters["version"] = version
    releases: list[Release] = []
    for source, target in (languages, languages[::-1]):
        for entry in _ask("corpora", source=source, target=target, **parameters):
            with suppress(ValidationError):
                release = Release.model_validate(entry)
                codes = {release.source, release.target}
                if release.corpus == name and codes == {*languages}:
                    releases.append(release)
        if releases:
            break
    return releases


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
        raise DataError(
            f"{url} does not answer as the API of OPUS does, but with {start!r}.",
            fix=f"Try again later, or set {ADDRESS} to the address of the API.",
        ) from error
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
        raise DataError(
            f"{release.url} is not a complete zip file: {error}.",
            fix="Run the command again to download it again.",
        ) from error
    size = part.stat().st_size // _KIBI
    if release.size not in (None, size):
        logger.warning("OPUS announces %d KiB for %s; it has %d", release.size, archive, size)
    part.replace(archive)
    sync(archive.parent)


def _licence(archive: Path) -> str:
    """Return the first lines of the licence in a zip file, or where to look for it."""
    for name, pattern in _LICENCE_FILES.items():
        # Reading the pairs reports damage.
        with suppress(DataError), open_member(archive, name) as file:
            text = file.read(_LICENCE_BYTES).decode("utf-8", "replace")
            lines = [line for line in text.splitlines() if re.search(pattern, line, re.IGNORECASE)]
            if lines:
                return visible(" ".join(map(str.strip, lines[:_LICENCE_LINES])))
    return f"{_SITE} has the licence"
