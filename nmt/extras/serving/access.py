"""Access control in front of the application: origins, API keys, rates, sizes and deadlines.

The Host and Origin headers are checked first. Then the whole body is read, within limits of size
and time, before any other code receives it. Keys and rates are checked on the paths that need them.
A request is cancelled at its deadline, or when its client disconnects.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated
from urllib.parse import parse_qs

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nmt.errors import ConfigError
from nmt.extras.serving.bodies import RETRY, RefusedError, as_response
from nmt.extras.serving.options import Rate, ServeOptions, address_of, is_loopback
from nmt.extras.serving.service import Service

_MAX_CLIENTS = 10_000  # whose rates are remembered
_MIN_KEY_CHARACTERS = 16
_DEFAULT_RATE = Rate(60, 60)
# The Host header: a name or an address, and a port. Group: the name or address.
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[\w.-]+)(?::\d{1,5})?")
_FORM = "application/x-www-form-urlencoded"
_MULTIPART = "multipart/form-data"
_BOUNDARY = re.compile(r'boundary="?([^";]+)', re.IGNORECASE)
_PART_NAME = re.compile(r'\bname="([^"]*)"')
_FILE_NAME = re.compile(r'\bfilename="([^"]*)"')
_CLOSE = {"Connection": "close"}
# A body over the limit is still read, up to this many times the limit: many clients read the answer
# only after they have sent the whole body.
_DISCARDED_SIZES = 64


def digest(key: str) -> str:
    """Return the hash of a key. Looking up hashes prevents timing attacks on the keys."""
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()


def read_keys(path: Path) -> dict[str, str]:
    """Read a file of API keys: ``KEY`` or ``NAME KEY`` on each line; ``#`` begins a comment.

    Returns:
        Hash of the key -> name of the client.

    Raises:
        ConfigError: The file cannot be read or is empty, or a key is too short or repeated.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}.", fix="Pass a file of keys.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} cannot be read: {error}.", fix="Use a UTF-8 text file."
        ) from error
    keys = {}  # hash of a key -> name of its client
    fix = f"Write NAME KEY, with a key of at least {_MIN_KEY_CHARACTERS} characters. "
    fix += "To create a key: openssl rand -hex 24"
    for line_number, line in enumerate(lines, 1):
        text, _, _ = line.partition("#")
        if not text.strip():
            continue
        *names, key = text.split()
        if len(names) > 1 or len(key) < _MIN_KEY_CHARACTERS:
            raise ConfigError(f"{path}:{line_number} does not contain a valid key.", fix=fix)
        if digest(key) in keys:
            raise ConfigError(f"{path}:{line_number} repeats a key.", fix=fix)
        keys[digest(key)] = names[0] if names else f"key {line_number}"
    if not keys:
        raise ConfigError(f"{path} does not contain any keys.", fix=fix)
    return keys


class RateLimiter:
    """Token buckets: each client can send a burst of ``rate.requests``, refilled at the same rate.

    Args:
        rate: Limit per client.
        clock: Returns the time in seconds.
    """

    def __init__(self, rate: Rate, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._clock = clock
        # Client -> the requests that it may send now (not a whole number while the bucket fills),
        # and the time of its last request. The client of the oldest request comes first.
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, client: str) -> float:
        """Count a request; return 0 if it is allowed, and otherwise the seconds to wait."""
        now = self._clock()
        max_requests, period_seconds = self._rate
        num_allowed, last_time = self._buckets.pop(client, (float(max_requests), now))
        num_refilled = (now - last_time) * max_requests / period_seconds
        num_allowed = min(max_requests, num_allowed + num_refilled)
        wait_seconds = 0.0
        if num_allowed >= 1:
            num_allowed -= 1
        else:
            # Until the bucket has one whole request again.
            wait_seconds = (1 - num_allowed) * period_seconds / max_requests
        self._buckets[client] = (num_allowed, now)
        if len(self._buckets) > _MAX_CLIENTS:  # by now the oldest bucket is full again
            self._buckets.popitem(last=False)
        return wait_seconds


class Gate:
    """Accepts or refuses requests, by their headers, keys and rates.

    Args:
        options: Options of the server.
        keys: Hash of a key -> name of the client; None accepts all clients.
    """

    def __init__(self, options: ServeOptions, keys: Mapping[str, str] | None) -> None:
        self.keys = keys
        # The default rate does not apply to clients on this machine, and not with `no_auth`.
        self._limits_loopback = options.rate is not None
        self._limits_others = options.rate is not None or not options.no_auth
        # Clients of a container use its name, without a dot. DNS rebinding needs a dot.
        self._allows_plain_names = not is_loopback(options.host)
        self._allowed_hosts = {"localhost", options.host.lower(), *options.allow_host}
        self._allowed_origins = options.allow_origin
        self._limiter = RateLimiter(options.rate or _DEFAULT_RATE)

    def check_site(self, request: Request) -> None:
        """Check the Host and Origin headers.

        The Host check prevents DNS rebinding. The Origin check prevents calls from other websites.

        Raises:
            RefusedError: A header is missing, malformed, or not allowed.
        """
        # Repeated headers do not match, because of the comma.
        host = ",".join(request.headers.getlist("host")).lower()
        match = _HOST.fullmatch(host)
        if match is None:
            raise RefusedError(
                400, "The Host header is missing, repeated or malformed.", "Send one Host header."
            )
        name = match[1]  # without the port
        # Addresses are always allowed: DNS rebinding needs a name. IPv6 addresses have brackets.
        is_plain = self._allows_plain_names and "." not in name
        is_known = is_plain or name in self._allowed_hosts
        if not is_known and address_of(name.strip("[]")) is None:
            raise RefusedError(
                403,
                f"Host {name[:80]} is not allowed.",
                "Use the IP address, or start the server with NMT_ALLOW_HOST=NAME.",
            )
        origin = request.headers.get("origin", "").lower()
        _, _, origin_host = origin.partition("://")
        # Programs send no origin. A page of this server has the origin of this server.
        if origin and origin_host != host and origin not in self._allowed_origins:
            raise RefusedError(
                403,
                f"Origin {origin[:80]} is not allowed (CORS).",
                f"Start the server with NMT_ALLOW_ORIGIN={origin[:80]}",
            )

    def client(self, request: Request, key: str | None) -> str:
        """Return the client: the name of its key, or its address if the server has no keys.

        Raises:
            RefusedError: The key is missing or unknown.
        """
        if self.keys is None:
            return request.client.host if request.client else "unknown"
        if not key:
            raise RefusedError(
                401,
                "This server needs an API key.",
                "Send the header Authorization: Bearer KEY.",
                {"WWW-Authenticate": "Bearer"},
            )
        name = self.keys.get(digest(key))
        if name is None:
            raise RefusedError(
                403, "The API key is not valid.", "Get a key from the operator of the server."
            )
        return f"key {name}"

    def count(self, client: str) -> str:
        """Count a request of a client; return the client.

        Raises:
            RefusedError: The client has exceeded its rate.
        """
        is_limited = self._limits_loopback if is_loopback(client) else self._limits_others
        if not is_limited:
            return client
        wait_seconds = math.ceil(self._limiter.wait(client))
        if wait_seconds:
            fix = f"Send the request again after {wait_seconds} s."
            headers = {"Retry-After": str(wait_seconds)}
            raise RefusedError(429, "Rate limit exceeded.", fix, headers)
        return client


Bearer = Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]


async def known_client(request: Request, bearer: Bearer) -> str:
    """Return the client of a request after checking its key."""
    gate: Gate = request.app.state.gate
    return gate.client(request, bearer.credentials if bearer else None)


async def counted_client(request: Request, client: Annotated[str, Depends(known_client)]) -> str:
    """Return the client of a request after checking its key and counting the request."""
    gate: Gate = request.app.state.gate
    return gate.count(client)


Client = Annotated[str, Depends(counted_client)]


def _parts(content_type: str, body: bytearray) -> Iterator[tuple[str, str]]:
    """Yield name and value of each field of a multipart form, in linear time.

    After a file ``file``, its name follows as ``file_name``.
    """
    boundary = _BOUNDARY.search(content_type)
    if boundary is None:
        return
    text = body.decode("utf-8", "replace")
    for part in text.split(f"--{boundary[1]}"):
        head, _, value = part.partition("\r\n\r\n")
        name = _PART_NAME.search(head)
        if name:
            yield name[1], value.removesuffix("\r\n")
        file_name = _FILE_NAME.search(head)
        if name and file_name:
            yield f"{name[1]}_name", file_name[1]


class Edge:
    """ASGI middleware around the application.

    Args:
        app: The application.
        service: Provides the limits, the metrics and the state of the server.
        gate: Checks the Host and Origin headers.
    """

    def __init__(self, app: ASGIApp, service: Service, gate: Gate) -> None:
        self._app = app
        self._service = service
        self._gate = gate
        self._options = service.options
        self._metrics = service.metrics
        self._num_active = 0  # Requests that are being answered now.

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request: check it, read its body, and pass it to the application."""
        if scope["type"] != "http":  # lifespan
            await self._app(scope, receive, send)
            return
        if scope["method"] == "HEAD":  # of monitors: uvicorn leaves out the body
            scope = {**scope, "method": "GET"}
        scope["root_path"] = self._options.root_path  # paths match with this prefix and without
        has_begun = asyncio.Event()  # Set when the first part of the answer is sent.

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                has_begun.set()
                headers = MutableHeaders(scope=message)
                headers["X-Content-Type-Options"] = "nosniff"
                headers["Referrer-Policy"] = "no-referrer"
                headers.setdefault("Cache-Control", "no-store")
                if self._service.is_stopping:
                    headers["Connection"] = "close"
                # The path as declared, so that labels never contain text from a client.
                path = getattr(scope.get("route"), "path", "other")
                self._metrics.responses.labels(path, message["status"]).inc()
            await send(message)

        try:
            request = Request(scope, receive)
            self._gate.check_site(request)
            if request.method != "POST":
                await self._app(scope, receive, send_with_headers)
                return
            body = await self._read_body(request)
            if self._num_active >= self._options.max_queue:
                raise RefusedError(
                    503,
                    "The server is busy with other requests.",
                    "Try again in a few seconds.",
                    RETRY,
                )
            self._num_active += 1
            try:
                with self._metrics.active.track_inprogress(), self._metrics.seconds.time():
                    await self._answer(scope, body, receive, send_with_headers, has_begun)
            finally:
                self._num_active -= 1
        except ClientDisconnect:
            return
        except Exception as error:
            # A second answer is not possible, so an error in the middle only ends the connection.
            if not has_begun.is_set():
                await as_response(error)(scope, receive, send_with_headers)

    async def _answer(
        self, scope: Scope, body: bytes, receive: Receive, send: Send, has_begun: asyncio.Event
    ) -> None:
        """Answer a request with its complete body. Raises TimeoutError at the deadline.

        The application runs as one task, and another task waits until the client disconnects. When
        one of them ends, or at the deadline, both are cancelled.
        """
        messages: list[Message] = [{"type": "http.request", "body": body}]

        async def receive_body() -> Message:
            """Return the body at the first call. Later calls wait until the task is cancelled."""
            if not messages:
                await asyncio.Event().wait()
            return messages.pop()

        async def wait_for_disconnect() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        work = asyncio.ensure_future(self._app(scope, receive_body, send))
        tasks = {work, asyncio.ensure_future(wait_for_disconnect())}
        try:
            # At the deadline, the application ends a streamed answer itself. Then its client has
            # some more time to read what was sent.
            for seconds in (self._options.deadline, self._options.body_seconds):
                ended_tasks, _ = await asyncio.wait(
                    tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
                )
                if work in ended_tasks:
                    work.result()  # raises its error, if any
                if ended_tasks:
                    return
                if not has_begun.is_set():
                    raise TimeoutError
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read_body(self, request: Request) -> bytes:
        """Return the body as JSON. A form, or a query without a body, is converted to JSON.

        Headers of the request that describe its body are replaced: they say JSON, too.

        Raises:
            RefusedError: The body is too large, or arrives too slowly.
        """
        max_bytes = self._options.max_bytes
        max_discarded = _DISCARDED_SIZES * max_bytes
        body = bytearray()
        num_received = 0
        num_declared = int(request.headers.get("content-length", "0"))
        if "content-length" in request.headers and "transfer-encoding" in request.headers:
            # A proxy may read another length, and so take a part of the body as a request.
            raise RefusedError(
                400,
                "Content-Length and Transfer-Encoding contradict each other.",
                "Send one of both headers.",
                _CLOSE,
            )
        try:
            async with asyncio.timeout(self._options.body_seconds):
                if num_declared <= max_discarded:
                    async for part in request.stream():
                        num_received += len(part)
                        if num_received <= max_bytes:
                            body += part
                        elif num_received > max_discarded:
                            break
        except TimeoutError:
            raise RefusedError(
                408,
                f"The upload took longer than {self._options.body_seconds:g} s.",
                "Send smaller requests.",
                _CLOSE,
            ) from None
        if max(num_declared, num_received) > max_bytes:
            raise RefusedError(
                413,
                f"The body is larger than {max_bytes:,} bytes.",
                "Send several smaller requests.",
                _CLOSE,
            )
        content_type = request.headers.get("content-type", "")
        headers = [(b"content-type", b"application/json")]
        for name, value in request.scope["headers"]:
            if not name.startswith(b"content-"):
                headers.append((name, value))
        request.scope["headers"] = headers
        is_json = body.lstrip().startswith(b"{")  # `curl -d` labels JSON as a form
        # Parameters such as the charset follow the type after a semicolon.
        kind = content_type.partition(";")[0].strip().lower()
        form = dict[str, list[str]]()
        if kind == _MULTIPART and not is_json:
            for name, value in _parts(content_type, body):
                form.setdefault(name, []).append(value)
        elif request.url.query and not body:
            form = parse_qs(request.url.query, keep_blank_values=True)
        elif kind == _FORM and not is_json:
            form = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True)
        else:
            return bytes(body)
        # A field that occurs once has one string; a field that is repeated, a list of strings.
        fields: dict[str, str | list[str]] = {**form}
        for name, values in form.items():
            if len(values) == 1:
                (fields[name],) = values
        return json.dumps(fields).encode()
