"""Reading requests and writing answers: bounded in bytes and time, and given up with the client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar
from urllib.parse import parse_qs

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from nmt.extras.serving.faults import RefusedError, error_body, refusal
from nmt.extras.serving.options import Limits
from nmt.extras.serving.requests import parse_body

R = TypeVar("R")
LINES = "application/x-ndjson"
_JSON, _FORM = "application/json", "application/x-www-form-urlencoded"
_DISCARDED = 64
_FIELDS = 1000


async def read_body(request: Request, limits: Limits, *, form: bool = False) -> Any:
    """Return the JSON of a request, or with ``form`` the fields of one.

    Raises:
        RefusedError: It is of another type, too large, too slow, or malformed.
        ClientDisconnect: The client went away.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _JSON and not (form and kind == _FORM):
        other = f" or {_FORM}" if form else ""
        raise RefusedError(
            415, "The body is not declared as JSON.", f"Send Content-Type: {_JSON}{other}."
        )
    try:
        async with asyncio.timeout(limits.body_seconds):
            body = await _bytes(request, limits.max_bytes)
    except TimeoutError:
        raise RefusedError(
            408, "The body did not come in time.", "Send it faster.", {"Connection": "close"}
        ) from None
    if kind == _FORM and body.lstrip().startswith(b"{"):  # `curl -d` declares a form
        raise RefusedError(
            415, "The body is JSON, but declared as a form.", f"Send Content-Type: {_JSON}."
        )
    try:
        return parse_body(body) if kind == _JSON else _parse_form(body)
    except ValueError as error:
        message = str(error).partition(":")[0]
        fix = "Send one JSON object in UTF-8." if kind == _JSON else "Send name=value&name=value."
        raise RefusedError(400, f"The body cannot be read: {message}.", fix) from None


async def _bytes(request: Request, most: int) -> bytes:
    """Read a body. One that is too large is read on, to a bound: its client reads only then."""
    declared = request.headers.get("content-length", "")
    is_large = len(declared) > 18 or int(declared or 0) > most
    parts, total = bytearray(), 0
    if not is_large or int(declared[:18]) <= _DISCARDED * most:
        async for part in request.stream():
            total += len(part)
            if total <= most and not is_large:
                parts += part
            elif total > _DISCARDED * most:
                break
    if is_large or total > most:
        raise RefusedError(
            413, f"The body is larger than {most:,} bytes.", "Send several smaller requests.",
            {"Connection": "close"},
        )  # fmt: skip
    return bytes(parts)


def _parse_form(body: bytes) -> dict[str, Any]:
    """Return the fields of a form; one that is there several times is a list."""
    text = body.decode("utf-8")
    fields = parse_qs(text, keep_blank_values=True, max_num_fields=_FIELDS, errors="replace")
    found: dict[str, Any] = {x: y[0] if len(y) == 1 else y for x, y in fields.items()}
    if str(found.get("alternatives", "")).isdecimal():
        found["alternatives"] = int(found["alternatives"][:9])
    return found


async def while_connected(request: Request, work: Coroutine[Any, Any, R]) -> R:
    """Return what ``work`` returns; it is cancelled when the client goes away.

    Raises:
        ClientDisconnect: It went.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_wait_gone(request.receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _wait_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class JsonLines(Response):
    """An answer of one object a line, numbered, each sent as soon as it is there.

    Args:
        objects: What is sent. An error ends it with a line of its own.
        deadline: Seconds that all of it may take.
    """

    media_type = LINES

    def __init__(self, objects: AsyncGenerator[dict[str, Any]], deadline: float) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._objects, self._deadline = objects, deadline

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        try:
            await while_connected(Request(scope, receive), self._write(send))
        except ClientDisconnect:
            return
        await send({"type": "http.response.body", "body": b""})

    async def _write(self, send: Send) -> None:
        index = 0
        try:
            async with asyncio.timeout(self._deadline), aclosing(self._objects) as objects:
                async for values in objects:
                    await _send_line(send, {"index": index, **values})
                    index += 1
        except Exception as error:
            await _send_line(send, {"index": index, **error_body(refusal(error))})


async def _send_line(send: Send, values: dict[str, Any]) -> None:
    line = json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
    await send({"type": "http.response.body", "body": line, "more_body": True})
