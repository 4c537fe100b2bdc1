"""Connections of uvicorn that end when the other side is too slow, and a server that drains.

The only module that imports uvicorn.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Callable
from types import FrameType
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol

from nmt.extras.serving.options import Limits

_MOST_HEADER_BYTES = 1 << 15
_KEEP_ALIVE_SECONDS = 30
_DRAIN_SECONDS = 1.0
"""After SIGTERM, in which new requests are still taken: whoever sends them has to notice first."""
_BACKLOG = 1024


class BoundedConfig(uvicorn.Config):
    """Settings of uvicorn, and bounds of requests."""

    def __init__(self, app: ASGIApp, limits: Limits, **settings: Any) -> None:
        super().__init__(app, http=BoundedProtocol, **settings)
        self.limits = limits


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 with time limits for heads of requests and for readers of answers."""

    config: BoundedConfig
    _timer: asyncio.TimerHandle | None = None

    @override
    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.config.limits.max_connections:
            transport.abort()
        self._start()

    @override
    def data_received(self, data: bytes) -> None:
        if self._is_idle and self._timer is None:  # the next request of a connection
            self._start()
        super().data_received(data)
        if not self._is_idle:
            self._stop()

    @override
    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._is_idle:
            self._stop()

    @override
    def pause_writing(self) -> None:
        super().pause_writing()
        self._start()

    @override
    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    @override
    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    @override
    def send_400_response(self, msg: str) -> None:
        values = {
            "error": "This is no HTTP request.",
            "fix": "Send HTTP/1.1, with short headers.",
        }
        body = json.dumps(values).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            for event in (
                h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event))
        self.transport.close()

    @property
    def _is_idle(self) -> bool:
        """Whether no request is being read or answered."""
        return getattr(self.cycle, "response_complete", True)  # there is none at first

    def _start(self) -> None:
        self._stop()
        self._timer = self.loop.call_later(self.config.limits.body_seconds, self._abort)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _abort(self) -> None:
        self._timer = None
        if not self.transport.is_closing() or self.transport.get_write_buffer_size():
            self.transport.abort()


class DrainingServer(uvicorn.Server):
    """Ends with SIGTERM or SIGINT after all answers; at once with the second one.

    Args:
        config: Of uvicorn.
        on_stop: Called with the first signal.
    """

    def __init__(self, config: uvicorn.Config, on_stop: Callable[[], object]) -> None:
        super().__init__(config)
        self._on_stop, self._loop, self._stopping = on_stop, asyncio.get_running_loop(), False

    @override
    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        del sig, frame
        if self._stopping:
            self.force_exit = self.should_exit = True
            return
        self._stopping = True
        self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        self._on_stop()
        self._loop.call_later(_DRAIN_SECONDS, self.stop)

    def stop(self) -> None:
        """Take no more connections, finish the answers and end."""
        self.should_exit = True


def make_server(app: ASGIApp, limits: Limits, on_stop: Callable[[], object]) -> DrainingServer:
    """Return a server for an application. Called in an event loop."""
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # its messages hold addresses
    config = BoundedConfig(
        app,
        limits,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=int(limits.deadline) + 5,
        h11_max_incomplete_event_size=_MOST_HEADER_BYTES,
    )
    return DrainingServer(config, on_stop)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        OSError: The address is no address of this machine, or in use.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)
