"""Around the application: sites, limits of bytes and time, headers of every answer, and counts.

A body is read here, whole, before anything else sees it: at most so many bytes in so many seconds.
A request is given up at its deadline, or when its client goes away.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from urllib.parse import parse_qs

from fastapi import Request
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nmt.extras.serving.access import Gate
from nmt.extras.serving.faults import RETRY, RefusedError, as_response
from nmt.extras.serving.service import Service

_FORM = "application/x-www-form-urlencoded"
_CLOSE = {"Connection": "close"}
# Times the limit that is read of a body that is too large: its client reads the answer only then.
_DISCARDED = 64


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
        has_begun = False

        async def sending(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
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
                    await self._answer(scope, body, receive, sending, lambda: has_begun)
            finally:
                self._num_active -= 1
        except ClientDisconnect:
            return
        except Exception as error:
            if not has_begun:
                await as_response(error)(scope, receive, sending)

    async def _answer(
        self, scope: Scope, body: bytes, receive: Receive, send: Send, has_begun: Callable[[], bool]
    ) -> None:
        """Answer a request whose body is read; raises TimeoutError at the deadline."""
        is_read = False

        async def replay() -> Message:
            nonlocal is_read
            if is_read:
                await asyncio.Event().wait()  # a client that goes away is noticed below
            is_read = True
            return {"type": "http.request", "body": body}

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
                if not has_begun():
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
