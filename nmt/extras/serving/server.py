"""Start a server of models, and stop it without losing a request."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp

from nmt.commands.loading import read_glossary
from nmt.commands.options import user_values
from nmt.errors import ConfigError
from nmt.extras.serving.access import Gate, read_keys
from nmt.extras.serving.app import make_app
from nmt.extras.serving.connection import LimitedConnection, raise_file_limit
from nmt.extras.serving.models import ServedModel, name_models
from nmt.extras.serving.options import CheckedModels, ServeOptions
from nmt.extras.serving.service import Service

logger = logging.getLogger(__name__)
_MOST_HEADER_BYTES = 1 << 15
# After SIGTERM the server still accepts requests for this long: load balancers need time to notice.
_DRAIN_SECONDS = 1.0
# Connections that wait to be accepted. So many are accepted at once, before any is refused.
_BACKLOG = 128


def start_server(options: ServeOptions) -> CheckedModels | None:
    """Load all models, and serve them until SIGINT or SIGTERM.

    Returns:
        With ``check``, a description of each model; nothing is served.

    Raises:
        CheckpointError: A model cannot be loaded.
        ConfigError: The address cannot be used, or an option is wrong.
    """
    folders = name_models(options.models)
    glossary = read_glossary(options.glossary)
    keys = read_keys(options.api_keys) if options.api_keys else None
    listener = _listen(options)
    host, port = listener.getsockname()[:2]  # two more values follow for IPv6
    url_host = f"[{host}]" if ":" in host else host  # an IPv6 address has brackets in a URL
    logger.info("loading %s for http://%s:%d", ", ".join(folders), url_host, port)
    loading = user_values(options, "engine", "dtype", "device", "threads")
    loading["glossary"] = glossary
    models = {name: ServedModel(name, folder, loading) for name, folder in folders.items()}
    if options.check:
        listener.close()
        return CheckedModels([model.describe() for model in models.values()])
    service = Service(models, options)
    try:
        _run(service, Gate(options, keys), listener)
    finally:
        service.batcher.close()
    return None


def _run(service: Service, gate: Gate, listener: socket.socket) -> None:
    """Answer requests on a listening socket until a signal stops the server."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        """Install signal handlers: the application enters this context when it starts."""
        loop = asyncio.get_running_loop()

        def stop() -> None:
            """Stop ``server``, which is created below."""
            if service.is_stopping:  # the second signal: do not wait for running requests
                server.force_exit = server.should_exit = True
                return
            service.is_stopping = True
            logger.info("stopping after all running requests are answered")
            loop.call_later(_DRAIN_SECONDS, setattr, server, "should_exit", True)

        # These replace uvicorn's handlers, which raise the signal again at the end. Windows has no
        # `loop.add_signal_handler`.
        for signal_number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signal_number, lambda *_: loop.call_soon_threadsafe(stop))
        logger.info("ready")
        yield

    server = uvicorn.Server(server_config(make_app(service, gate, lifespan), service.options))
    server.run(sockets=[listener])


def server_config(app: ASGIApp, options: ServeOptions) -> uvicorn.Config:
    """Return uvicorn's settings. Logs contain neither addresses nor requests of clients."""
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # its messages contain addresses
    return uvicorn.Config(
        app,
        http=LimitedConnection,
        ws="none",
        log_config=None,
        access_log=False,
        proxy_headers=bool(options.trusted_proxy),
        forwarded_allow_ips=list(options.trusted_proxy),
        server_header=False,
        backlog=_BACKLOG,
        limit_concurrency=raise_file_limit(options.max_connections),
        timeout_keep_alive=math.ceil(options.body_seconds),
        timeout_graceful_shutdown=int(options.deadline) + 5,  # some seconds after the last answer
        h11_max_incomplete_event_size=_MOST_HEADER_BYTES,
    )


def _listen(options: ServeOptions) -> socket.socket:
    """Return a listening socket for the address in the options."""
    address = options.host, options.port
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    try:
        return socket.create_server(address, family=family, backlog=_BACKLOG)
    except OSError as error:
        # `socket.create_server` appends the address to its message, in parentheses.
        cause, _, _ = str(error.strerror).partition(" (")
        if error.errno and error.errno > 0:  # negative if a host name cannot be resolved
            cause = os.strerror(error.errno)
        raise ConfigError(
            f"The server cannot listen on {options.host}:{options.port}: {cause}.",
            fix="Choose another `port` (0 picks a free port), or a `host` address of this machine.",
        ) from error
