"""Downloads over HTTP: with progress, resumed after interruptions, and checked for their size."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from nmt.errors import DataError
from nmt.files.atomic import sync, write_errors
from nmt.files.progress import progress_bar

_SCHEMES = ("http", "https")
_SILENT_SECONDS = 30.0  # A connection that is silent for so long counts as broken.
_MAX_FAILURES = 3  # In a row, without new data between them.
_PAUSE_SECONDS = 1.0  # After the first failure; twice as long after the second.
_TEMPORARY = (408, 429)  # Status codes: a timeout, and too many requests.
_FIRST_OF_SERVER = 500  # Status codes from here on are faults of the server.
_WRONG_RANGE = 416  # Status code: the file has no bytes there.
_READ_BYTES = 1 << 18
_MAX_DOCUMENT_BYTES = 1 << 24

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")


class _Redirects(HTTPRedirectHandler):
    """Follows redirects to the same scheme or to https, but not to files, FTP or plain HTTP."""

    def redirect_request(self, req: Request, *arguments: Any) -> Request | None:
        scheme = urlsplit(arguments[-1]).scheme
        if scheme not in (req.type, "https"):
            raise ValueError(f"the server redirects to a {scheme} address")
        return super().redirect_request(req, *arguments)


def read_document(url: str, *, fix: str) -> bytes:
    """Return a small document, of at most 16 MiB.

    Args:
        url: Address of the document.
        fix: What the user can do if it cannot be downloaded.

    Raises:
        DataError: The address is not one of HTTP, or the server cannot be reached or reports an
            error.
    """

    def read() -> bytes:
        with _open(url) as response:
            return response.read(_MAX_DOCUMENT_BYTES)

    return _persist(read, lambda: 0, url, fix)


def download(url: str, path: Path, *, description: str, fix: str) -> None:
    """Download a file, or what an interrupted download left to do.

    Args:
        url: Address of the file.
        path: The file. After an error it keeps what has arrived, for the next call.
        description: Text in front of the progress bar.
        fix: What the user can do if the file cannot be downloaded.

    Raises:
        DataError: See `read_document`; or ``path`` cannot be written.
    """
    _persist(lambda: _receive(url, path, description), lambda: _size(path), url, fix)
    sync(path)


def _size(path: Path) -> int:
    if not path.exists():
        return 0
    return path.stat().st_size


def _persist(
    action: Callable[[], _Result], num_bytes: Callable[[], int], url: str, fix: str
) -> _Result:
    """Call ``action``, again after an error of the network unless no call brings more bytes."""
    num_failures = 0
    most_bytes = 0
    while True:
        try:
            return action()
        except (OSError, HTTPException, ValueError) as error:
            if num_bytes() > most_bytes:
                most_bytes = num_bytes()
                num_failures = 0
            num_failures += 1
            may_succeed = not isinstance(error, ValueError)
            if isinstance(error, HTTPError):
                may_succeed = error.code >= _FIRST_OF_SERVER or error.code in _TEMPORARY
            if num_failures == _MAX_FAILURES or not may_succeed:
                raise DataError(
                    f"{url} cannot be downloaded: {_reason(error)}.", fix=fix
                ) from error
            logger.info("%s: %s; trying again", urlsplit(url).hostname, _reason(error))
            time.sleep(_PAUSE_SECONDS * num_failures)


def _reason(error: Exception) -> str:
    if isinstance(error, URLError) and not isinstance(error, HTTPError):
        return str(error.reason)
    return str(error) or type(error).__name__


def _open(url: str, start: int = 0) -> HTTPResponse:
    """Send a request for a file without its first ``start`` bytes."""
    if urlsplit(url).scheme not in _SCHEMES:
        raise ValueError("the address must begin with http:// or https://")
    headers = {"User-Agent": "nmt"}
    if start:
        headers["Range"] = f"bytes={start}-"
    opener = build_opener(_Redirects)
    response = opener.open(Request(url, headers=headers), timeout=_SILENT_SECONDS)
    return cast("HTTPResponse", response)


def _receive(url: str, path: Path, description: str) -> None:
    """Add the missing bytes to a file."""
    start = _size(path)
    try:
        response = _open(url, start)
    except HTTPError as error:
        if error.code != _WRONG_RANGE:
            raise
        if error.headers.get("Content-Range") == f"bytes */{start}":
            return  # No byte is missing.
        path.unlink(missing_ok=True)
        raise ConnectionError("the file has changed") from error
    with response:
        content_range = response.headers.get("Content-Range", "")
        if not content_range.startswith(f"bytes {start}-"):
            start = 0  # The server sends the whole file.
        num_bytes = response.headers.get("Content-Length")
        total = None if num_bytes is None else start + int(num_bytes)
        bar = progress_bar(
            description, unit="B", unit_scale=True, unit_divisor=1024, total=total, initial=start
        )
        with write_errors(path, DataError):
            file = path.open("ab" if start else "wb")
        with bar, file:
            while piece := response.read(_READ_BYTES):
                with write_errors(path, DataError):
                    file.write(piece)
                bar.update(len(piece))
    size = _size(path)
    if total not in (None, size):
        raise ConnectionError(f"the connection ended after {size:,} of {total:,} bytes")
