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
from collections.abc import Callable, Mapping
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

_MOST_CLIENTS = 10_000
_FEWEST_CHARACTERS = 16
_USUAL_RATE = Rate(60, 60)
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[\w.-]+)(?::\d{1,5})?")
_FORM = "application/x-www-form-urlencoded"
_CLOSE = {"Connection": "close"}
# A body over the limit is still read, up to this many times the limit: many clients read the answer
# only after they have sent the whole body.
_DISCARDED = 64


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
        raise ConfigError(f"{path} cannot be read: {error}.", fix="Check the path.") from error
    except UnicodeDecodeError as error:
        fix = "Use a UTF-8 text file."
        raise ConfigError(f"{path} cannot be read: {error}.", fix=fix) from error
    keys = {}
    fix = f"Write NAME KEY, with a key of at least {_FEWEST_CHARACTERS} characters. "
    fix += "To create a key: openssl rand -hex 24"
    for number, line in enumerate(lines, 1):
        text, _, _ = line.partition("#")
        if not text.strip():
            continue
        *names, key = text.split()
        if len(names) > 1 or len(key) < _FEWEST_CHARACTERS:
            raise ConfigError(f"{path}:{number} does not contain a valid key.", fix=fix)
        if digest(key) in keys:
            raise ConfigError(f"{path}:{number} repeats a key.", fix=fix)
        keys[digest(key)] = names[0] if names else f"key {number}"
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
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, client: str) -> float:
        """Count a request; return 0 if it is allowed, and otherwise the seconds to wait."""
        now = self._clock()
        count, seconds = self._rate
        left, then = self._buckets.pop(client, (float(count), now))
        left = min(count, left + (now - then) * count / seconds)
        wait = 0.0
        if left >= 1:
            left -= 1
        else:
            wait = (1 - left) * seconds / count
        self._buckets[client] = (left, now)
        if len(self._buckets) > _MOST_CLIENTS:  # by now the oldest bucket is full again
            self._buckets.popitem(last=False)
        return wait


class Gate:
    """Accepts or refuses requests, by their headers, keys and rates.

    Args:
        options: Options of the server.
        keys: Hash of a key -> name of the client; None accepts all clients.
    """

    def __init__(self, options: ServeOptions, keys: Mapping[str, str] | None) -> None:
        self.keys = keys
        self._limits_all = options.rate is not None
        self._hosts = {"localhost", options.host.lower(), *options.allow_host}
        self._origins = options.allow_origin
        self._limiter = RateLimiter(options.rate or _USUAL_RATE)

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
            problem = "The Host header is missing, repeated or malformed."
            raise RefusedError(400, problem, "Send one Host header.")
        name = match[1]
        if name not in self._hosts and address_of(name.strip("[]")) is None:
            fix = "Use the IP address, or start the server with `allow_host` NAME."
            raise RefusedError(403, f"Host {name[:80]} is not allowed.", fix)
        origin = request.headers.get("origin", "").lower()
        _, _, origin_host = origin.partition("://")
        if origin and origin_host != host and origin not in self._origins:
            fix = "Start the server with `allow_origin` URL."
            raise RefusedError(403, f"Origin {origin[:80]} is not allowed (CORS).", fix)

    def client(self, request: Request, key: str | None) -> str:
        """Return the client: the name of its key, or its address if the server has no keys.

        Raises:
            RefusedError: The key is missing or unknown.
        """
        if self.keys is None:
            return request.client.host if request.client else "unknown"
        if not key:
            fix = "Send the header Authorization: Bearer KEY."
            problem = "This server needs an API key."
            raise RefusedError(401, problem, fix, {"WWW-Authenticate": "Bearer"})
        name = self.keys.get(digest(key))
        if name is None:
            fix = "Get a key from the operator of the server."
            raise RefusedError(403, "The API key is not valid.", fix)
        return f"key {name}"

    def count(self, client: str) -> str:
        """Count a request of a client; return the client.

        Raises:
            RefusedError: The client has exceeded its rate.
        """
        if is_loopback(client) and not self._limits_all:
            return client
        seconds = math.ceil(self._limiter.wait(client))
        if seconds:
            fix = f"Send the request again after {seconds} s."
            headers = {"Retry-After": str(seconds)}
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
        self._num_active = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request: check it, read its body, and pass it to the application."""
        if scope["type"] != "http":  # lifespan
            await self._app(scope, receive, send)
            return
        scope["root_path"] = self._options.root_path  # paths match with this prefix and without
        begun = asyncio.Event()

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                begun.set()
                self._add_headers(scope, message)
            await send(message)

        try:
            request = Request(scope, receive)
            self._gate.check_site(request)
            if request.method != "POST":
                await self._app(scope, receive, sending)
                return
            body = await self._read(request)
            if self._num_active >= self._options.max_queue:
                problem = f"The server is busy with {self._num_active:,} requests."
                raise RefusedError(503, problem, "Try again in a few seconds.", RETRY)
            self._num_active += 1
            try:
                with self._metrics.active.track_inprogress(), self._metrics.seconds.time():
                    await self._answer(scope, body, receive, sending, begun)
            finally:
                self._num_active -= 1
        except ClientDisconnect:
            return
        except Exception as error:
            if not begun.is_set():
                await as_response(error)(scope, receive, sending)

    async def _answer(
        self, scope: Scope, body: bytes, receive: Receive, send: Send, begun: asyncio.Event
    ) -> None:
        """Answer a request with its complete body. Raises TimeoutError at the deadline."""
        messages: list[Message] = [{"type": "http.request", "body": body}]

        async def replay() -> Message:
            if not messages:
                await asyncio.Event().wait()  # `until_gone` detects a disconnected client
            return messages.pop()

        async def until_gone() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        work = asyncio.ensure_future(self._app(scope, replay, send))
        tasks = {work, asyncio.ensure_future(until_gone())}
        try:
            # A streamed answer ends at the deadline, and its client has time to read the rest.
            for seconds in (self._options.deadline, self._options.body_seconds):
                ended, _ = await asyncio.wait(
                    tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
                )
                if work in ended:
                    work.result()
                if ended:
                    return
                if not begun.is_set():
                    raise TimeoutError
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, request: Request) -> bytes:
        """Return the body as JSON. A form is converted to JSON.

        Raises:
            RefusedError: The body is too large, or arrives too slowly.
        """
        most = self._options.max_bytes
        parts = bytearray()
        total = 0
        declared = int(request.headers.get("content-length", "0"))
        try:
            async with asyncio.timeout(self._options.body_seconds):
                if declared <= _DISCARDED * most:
                    async for part in request.stream():
                        total += len(part)
                        if total <= most:
                            parts += part
                        elif total > _DISCARDED * most:
                            break
        except TimeoutError:
            problem = f"The upload took longer than {self._options.body_seconds:g} s."
            fix = "Send smaller requests."
            raise RefusedError(408, problem, fix, _CLOSE) from None
        if max(declared, total) > most:
            problem = f"The body is larger than {most:,} bytes."
            raise RefusedError(413, problem, "Send several smaller requests.", _CLOSE)
        kind = request.headers.get("content-type", "").lower()
        headers = [(b"content-type", b"application/json")]
        for name, value in request.scope["headers"]:
            if not name.startswith(b"content-"):
                headers.append((name, value))
        request.scope["headers"] = headers
        is_json = parts.lstrip().startswith(b"{")  # `curl -d` labels JSON as a form
        if is_json or kind.partition(";")[0].strip() != _FORM:
            return bytes(parts)
        form = parse_qs(parts.decode("utf-8", "replace"), keep_blank_values=True)
        fields: dict[str, str | list[str]] = {**form}
        for name, values in form.items():
            if len(values) == 1:
                (fields[name],) = values
        return json.dumps(fields).encode()

    def _add_headers(self, scope: Scope, message: Message) -> None:
        headers = MutableHeaders(scope=message)
        headers["X-Content-Type-Options"] = "nosniff"
        headers["Referrer-Policy"] = "no-referrer"
        headers.setdefault("Cache-Control", "no-store")
        if self._service.is_stopping:
            headers["Connection"] = "close"
        path = getattr(scope.get("route"), "path", "other")
        self._metrics.responses.labels(path, message["status"]).inc()
