"""Connections whose other side stands still."""

from __future__ import annotations

import asyncio
import socket
from unittest.mock import MagicMock

import pytest
from uvicorn.server import ServerState

from nmt.errors import ConfigError
from nmt.extras.serving.connection import BoundedConfig, BoundedProtocol
from nmt.extras.serving.options import Limits, ServerOptions
from nmt.extras.serving.server import check_server
from nmt.inference.options import EngineOptions


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_reader_that_stops_is_cut_off_and_one_that_goes_on_is_not(goes_on: bool) -> None:
    async def test() -> bool:
        limits = Limits(body_seconds=0.05)
        config = BoundedConfig(MagicMock(), limits, lifespan="off", ws="none", log_config=None)
        transport = MagicMock()
        transport.is_closing.return_value = False
        protocol = BoundedProtocol(config, ServerState(), {}, asyncio.get_running_loop())
        protocol.connection_made(transport)
        protocol.data_received(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        protocol.pause_writing()  # what is written is more than the other side has read
        if goes_on:
            protocol.resume_writing()
        await asyncio.sleep(0.2)
        protocol.connection_lost(None)
        return bool(transport.abort.called)

    assert asyncio.run(test()) is not goes_on


def test_more_connections_than_allowed_are_closed_at_once() -> None:
    async def test() -> list[bool]:
        limits = Limits(max_connections=2)
        config = BoundedConfig(MagicMock(), limits, lifespan="off", ws="none", log_config=None)
        state, transports = ServerState(), [MagicMock() for _ in range(3)]
        for transport in transports:
            protocol = BoundedProtocol(config, state, {}, asyncio.get_running_loop())
            protocol.connection_made(transport)
        return [bool(transport.abort.called) for transport in transports]

    assert asyncio.run(test()) == [False, False, True]


def test_an_address_that_cannot_be_had_is_told_in_words() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            ConfigError, match=rf"127.0.0.1:{port} .* on: Address already in use\.\n"
        ):
            check_server({}, EngineOptions(), ServerOptions(port=port))
    with pytest.raises(ConfigError, match=r"no-such-host\.invalid:8080 .* on: [^\[\]]+\.\n"):
        check_server({}, EngineOptions(), ServerOptions(host="no-such-host.invalid"))
