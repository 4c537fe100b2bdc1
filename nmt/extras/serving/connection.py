"""Connections with limits that uvicorn lacks: on silence, slow heads and many from one address."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from importlib import import_module
from typing import ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from nmt.extras.serving.bodies import RefusedError

# Share of the connections that one address may have, unless a proxy is in front of the server.
_SHARE_OF_ADDRESS = 0.25
_NUM_REFUSABLE = 128  # Connections beyond the limit that get an answer with status 503.
_OTHER_FILES = 128  # Open files that are not connections, such as models and pipes.


def raise_file_limit(max_connections: int) -> int:
    """Raise the limit of open files for connections; return how many connections may be open."""
    if sys.platform == "win32":  # has no such limit for sockets
        return max_connections
    resource = import_module("resource")
    needed = max_connections + _NUM_REFUSABLE + _OTHER_FILES
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard_limit != resource.RLIM_INFINITY:
        needed = min(needed, hard_limit)
    if soft_limit != resource.RLIM_INFINITY and soft_limit < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard_limit))
    return min(max_connections, max(1, needed - _NUM_REFUSABLE - _OTHER_FILES))


class LimitedConnection(H11Protocol):
    """An HTTP connection that ends if a client does not send a complete request head in time.

    uvicorn ends connections that are silent after an answer (`timeout_keep_alive`), but waits
    without a limit for the first byte and for the rest of a head. Here, the same time limits both.
    """

    _num_open: ClassVar[Counter[str]] = Counter()  # connections of each address
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, or end it if there are too many."""
        super().connection_made(transport)
        self._num_open[self._address] += 1
        self._limit_head()
        maximum = self.limit_concurrency or sys.maxsize
        is_many = len(self.connections) > maximum + _NUM_REFUSABLE
        # All clients of a proxy have its address.
        if not self.config.proxy_headers:
            is_many |= self._num_open[self._address] > max(1, _SHARE_OF_ADDRESS * maximum)
        if is_many:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._num_open[self._address] -= 1
        if not self._num_open[self._address]:
            del self._num_open[self._address]
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read a part of a request."""
        super().data_received(data)
        if self._is_answering:
            self._stop_timer()
        else:
            self._limit_head()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP in the documented form, and end the connection."""
        refusal = RefusedError(400, msg, "Send a well-formed HTTP/1.1 request.")
        body = json.dumps(refusal.as_dict()).encode()
        headers = [
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
        ]
        events = [
            h11.Response(status_code=400, headers=headers),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ]
        for event in events:
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else ""

    @property
    def _is_answering(self) -> bool:
        """Whether a request has arrived that is not answered yet."""
        return bool(self.cycle) and not self.cycle.response_complete

    def _limit_head(self) -> None:
        """Start the time of the next head, unless it has started already."""
        if self._head_timer is None:
            seconds = self.timeout_keep_alive
            self._head_timer = self.loop.call_later(seconds, self._end_if_waiting)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _end_if_waiting(self) -> None:
        if not self._is_answering:
            self.transport.abort()
