"""What stands before the application: who may send requests, how often, how much, how long.

Host and Origin are checked first. A body is read here, whole, before anything else sees it: at most
so many bytes in so many seconds. Keys and rates are checked where a path needs them. A request is
given up at its deadline, or when its client goes away.
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
from functools import partial
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
# Times the limit that is read of a body that is too large: its client reads the answer only then.
_DISCARDED = 64


def digest(key: str) -> str:
    """Return the hash under which a key is looked up, so that comparing takes no telling time."""
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()


def read_keys(path: Path) -> dict[str, str]:
    """Read a file of API keys: one a line, or ``NAME KEY``; ``#`` begins a comment.

    Returns:
        Hash of the key -> name of the client.

    Raises:
        ConfigError: The file cannot be read or has no key, or a key is too short or repeated.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.", fix="Name a text file.") from error
    keys: dict[str, str] = {}
    fix = f"Write NAME KEY, with a key of {_FEWEST_CHARACTERS} characters or more; "
    fail = partial(ConfigError, fix=f"{fix}`openssl rand -hex 24` makes one.")
    for number, line in enumerate(lines, 1):
        if not (words := line.partition("#")[0].split()):
            continue
        if len(words) > 2 or len(words[-1]) < _FEWEST_CHARACTERS:
            raise fail(f"{path}, line {number} does not have a valid key.")
        if digest(words[-1]) in keys:
            raise fail(f"{path}, line {number} repeats a key.")
        keys[digest(words[-1])] = words[0] if len(words) == 2 else f"key {number}"
    if not keys:
        raise fail(f"{path} does not have a key.")
    return keys


class RateLimiter:
    """Token buckets: ``rate.count`` requests at once, and as many again in ``rate.seconds``.

    Args:
        rate: Of each client.
        clock: Seconds.
    """

    def __init__(self, rate: Rate, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._clock = rate, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, client: str) -> float:
        """Count a request; return 0 if it may come, and otherwise the seconds to wait."""
        now, (count, seconds) = self._clock(), self._rate
        left, then = self._buckets.pop(client, (float(count), now))
        left = min(count, left + (now - then) * count / seconds)
        is_allowed = left >= 1
        self._buckets[client] = (left - is_allowed, now)
        if len(self._buckets) > _MOST_CLIENTS:  # the client of the oldest request is full again
            self._buckets.popitem(last=False)
        return 0.0 if is_allowed else (1 - left) * seconds / count


class Gate:
    """Lets requests in, or refuses them.

    Args:
        options: Of the server.
        keys: Hash of a key -> name of the client; None lets anybody in.
    """

    def __init__(self, options: ServeOptions, keys: Mapping[str, str] | None) -> None:
        self.keys, self._limits_all = keys, options.rate is not None
        self._hosts = {"localhost", options.host.lower(), *options.allow_host}
        self._origins = options.allow_origin
        self._limiter = RateLimiter(options.rate or _USUAL_RATE)

    def check_site(self, request: Request) -> None:
        """Check Host, against DNS rebinding, and Origin, against pages of other sites.

        Raises:
            RefusedError: A header is missing, malformed, or not allowed.
        """
        hosts = [name.lower() for name in request.headers.getlist("host")]
        found = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if found is None:
            raise RefusedError(400, "The request has no valid Host.", "Send one header Host.")
        if found[1] not in self._hosts and address_of(found[1].strip("[]")) is None:
            fix = "Use the address, or start the server with `allow_host`."
            raise RefusedError(403, "The server does not have this Host.", fix)
        origin = request.headers.get("origin", "").lower()
        if origin and origin.partition("://")[2] != hosts[0] and origin not in self._origins:
            fix = "Start the server with `allow_origin`."
            raise RefusedError(403, "Pages of this origin may not send requests.", fix)

    def client(self, request: Request, key: str | None) -> str:
        """Return the name of the key, or the address.

        Raises:
            RefusedError: A key is missing or unknown.
        """
        if self.keys is None:
            return request.client.host if request.client else "unknown"
        if not key:
            fix = "Send the header Authorization: Bearer KEY."
            raise RefusedError(401, "A key is needed.", fix, {"WWW-Authenticate": "Bearer"})
        if (name := self.keys.get(digest(key))) is None:
            fix = "Get a key from whoever runs the server."
            raise RefusedError(403, "The key is unknown.", fix)
        return f"key {name}"

    def count(self, client: str) -> str:
        """Count a request of a client; return the client.

        Raises:
            RefusedError: The client has sent too many.
        """
        is_limited = self._limits_all or not is_loopback(client)
        if is_limited and (seconds := self._limiter.wait(client)):
            wait = {"Retry-After": str(math.ceil(seconds))}
            raise RefusedError(429, "Too many requests.", "Wait a little.", wait)
        return client


Bearer = Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]


async def known_client(request: Request, bearer: Bearer) -> str:
    """Return who sends a request."""
    gate: Gate = request.app.state.gate
    return gate.client(request, bearer.credentials if bearer else None)


async def counted_client(request: Request, client: Annotated[str, Depends(known_client)]) -> str:
    """Return who sends a request, which counts."""
    gate: Gate = request.app.state.gate
    return gate.count(client)


Client = Annotated[str, Depends(counted_client)]


class Edge:
    """The outer part of the application.

    Args:
        app: The inner part.
        service: Its limits, counts and state.
        gate: Which sites may send requests.
    """

    def __init__(self, app: ASGIApp, service: Service, gate: Gate) -> None:
        self._app, self._service, self._gate = app, service, gate
        self._options, self._metrics = service.options, service.metrics
        self._num_active = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":  # lifespan
            await self._app(scope, receive, send)
            return
        scope["root_path"] = self._options.root_path  # paths are found with it and without
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
                problem = f"{self._num_active:,} requests wait already."
                raise RefusedError(503, problem, "Try again in a moment.", RETRY)
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
        """Answer a request whose body is read; raises TimeoutError at the deadline."""
        messages: list[Message] = [{"type": "http.request", "body": body}]

        async def replay() -> Message:
            if not messages:
                await asyncio.Event().wait()  # a client that goes away is noticed below
            return messages.pop()

        async def until_gone() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        work = asyncio.ensure_future(self._app(scope, replay, send))
        tasks = {work, asyncio.ensure_future(until_gone())}
        try:
            # Lines end by themselves at the deadline, if their client reads.
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
        """Return the body as JSON, which forms become.

        Raises:
            RefusedError: It is too large or too slow.
        """
        most, parts, total = self._options.max_bytes, bytearray(), 0
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
            fix = "Send it faster."
            raise RefusedError(408, "The body did not come in time.", fix, _CLOSE) from None
        if max(declared, total) > most:
            problem = f"The body is larger than {most:,} bytes."
            raise RefusedError(413, problem, "Send several smaller requests.", _CLOSE)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        headers = [pair for pair in request.scope["headers"] if not pair[0].startswith(b"content-")]
        request.scope["headers"] = [*headers, (b"content-type", b"application/json")]
        if kind == _FORM and not parts.lstrip().startswith(b"{"):  # `curl -d` calls JSON a form
            fields = parse_qs(parts.decode("utf-8", "replace"), keep_blank_values=True)
            return json.dumps({x: y[0] if len(y) == 1 else y for x, y in fields.items()}).encode()
        return bytes(parts)

    def _add_headers(self, scope: Scope, message: Message) -> None:
        headers = MutableHeaders(scope=message)
        headers["X-Content-Type-Options"] = "nosniff"
        headers["Referrer-Policy"] = "no-referrer"
        headers.setdefault("Cache-Control", "no-store")
        if self._service.is_stopping:
            headers["Connection"] = "close"
        path = getattr(scope.get("route"), "path", "other")
        self._metrics.responses.labels(path, message["status"]).inc()
