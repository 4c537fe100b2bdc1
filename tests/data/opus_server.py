"""A server of the OPUS API and of one corpus, for tests."""

from __future__ import annotations

import io
import json
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.process import LIMIT

API = "/opusapi/"
ARCHIVE = "/OPUS-Tatoeba/v2023-04-12/moses/de-en.txt.zip"
README = b"Corpus Name: Tatoeba\n     License: CC BY 2.0 FR\n"


def archive_of(pairs: Sequence[tuple[str, str]], **files: bytes) -> bytes:
    """Return a zip file as OPUS publishes it. Its texts are not compressed, so that it is long."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for side, code in enumerate(("de", "en")):
            text = "".join(f"{pair[side]}\n" for pair in pairs)
            archive.writestr(f"Tatoeba.de-en.{code}", text)
        for name, content in files.items():
            archive.writestr(name, content)
    return stream.getvalue()


class OpusServer(ThreadingHTTPServer):
    """Answers as the API of OPUS, and sends one archive.

    Attributes:
        archive: The zip file.
        entry: Fields of the API for it, in place of the usual ones.
        cuts: How many bytes each of the next answers sends before the connection breaks.
        answers: Answers to other paths and, for the API, in place of the usual ones: a status, the
            headers and a body.
        has_ranges: Whether parts of a file can be asked for.
        requests: The path of each request, and the range that it asked for.
    """

    daemon_threads = True

    def __init__(self, archive: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.archive = archive
        self.entry: dict[str, Any] = {}
        self.cuts: list[int] = []
        self.answers: dict[str, tuple[int, Mapping[str, str], bytes]] = {}
        self.has_ranges = True
        self.requests: list[tuple[str, str | None]] = []

    @property
    def address(self) -> str:
        """Return the address of the server, without a path."""
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def ranges(self) -> list[str | None]:
        """Return what the requests for the archive asked for."""
        return [wanted for path, wanted in self.requests if path == ARCHIVE]

    def api(self, query: dict[str, str]) -> dict[str, Any]:
        """Answer a query as the API does: it compares all values exactly."""
        entry = {
            "alignment_pairs": 324_043, "corpus": "Tatoeba", "documents": "", "id": 665_548,
            "latest": "True", "preprocessing": "moses", "size": len(self.archive) // 1024,
            "source": "de", "source_tokens": 2_600_000, "target": "en",
            "target_tokens": 2_500_000, "url": f"{self.address}{ARCHIVE}",
            "version": "v2023-04-12", **self.entry,
        }  # fmt: skip
        if query.pop("corpora", None):
            return {"corpora": ["Tatoeba", "TED2020", "OpenSubtitles"]}
        if query.pop("languages", None):
            return {"languages": ["de", "en", "pt_BR"] if query["corpus"] == "Tatoeba" else []}
        if query.get("version") == "latest":
            del query["version"]
            query["latest"] = "True"
        query["source"], query["target"] = sorted((query["source"], query["target"]))
        return {"corpora": [entry] if query.items() <= entry.items() else []}


class _Handler(BaseHTTPRequestHandler):
    server: OpusServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        wanted = self.headers["Range"]
        self.server.requests.append((url.path, wanted))
        if url.path in self.server.answers:
            self._send(*self.server.answers[url.path])
        elif url.path == API:
            answer = self.server.api(dict(parse_qsl(url.query)))
            self._send(200, {}, json.dumps(answer).encode())
        elif wanted is None or not self.server.has_ranges:
            self._send(200, {}, self.server.archive)
        else:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            size = len(self.server.archive)
            if start >= size:
                self._send(416, {"Content-Range": f"bytes */{size}"}, b"")
            else:
                place = {"Content-Range": f"bytes {start}-{size - 1}/{size}"}
                self._send(206, place, self.server.archive[start:])

    def _send(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        cuts = self.server.cuts
        if cuts and urlsplit(self.path).path == ARCHIVE:
            body = body[: cuts.pop(0)]
            self.close_connection = True
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - as above
        """Keep the output of the tests free of requests."""


@contextmanager
def serving(archive: bytes) -> Iterator[OpusServer]:
    """Run a server in a thread."""
    with OpusServer(archive) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(LIMIT)
