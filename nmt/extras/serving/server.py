"""From folders to a running server, and its orderly end."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nmt.device import own_cores
from nmt.errors import ConfigError, NmtError
from nmt.extras.serving.app import Api, State
from nmt.extras.serving.batching import BATCH_TOKENS, Batcher
from nmt.extras.serving.connection import DrainingServer, listen, make_server
from nmt.extras.serving.metrics import Metrics
from nmt.extras.serving.models import ModelStore
from nmt.extras.serving.options import ServerOptions
from nmt.extras.serving.service import Service
from nmt.inference.options import EngineOptions
from nmt.inference.result import Result

logger = logging.getLogger(__name__)


def run_server(folders: Mapping[str, Path], engine: EngineOptions, options: ServerOptions) -> None:
    """Serve models until a signal ends it, and then answer what was accepted.

    Args:
        folders: Name -> folder.
        engine: Which engine, and where.
        options: Of the server.

    Raises:
        CheckpointError: A model cannot be loaded.
        ConfigError: The address cannot be listened on, or options contradict each other.
    """
    store = ModelStore(folders, engine, options.max_loaded, options.pivot)
    asyncio.run(_serve(store, engine, options, _listen(options)))


def check_server(
    folders: Mapping[str, Path], engine: EngineOptions, options: ServerOptions
) -> list[dict[str, Any]]:
    """Load every model, translate once with each, listen for a moment; return their descriptions.

    Raises and arguments as of `run_server`.
    """
    store = ModelStore(folders, engine, options.max_loaded, options.pivot)
    _listen(options).close()

    async def load() -> list[dict[str, Any]]:
        found = []
        for name in store.places:
            await store.get(name)
            found += [each for each in store.describe() if each["name"] == name]
        return found

    return asyncio.run(load())


def _listen(options: ServerOptions) -> socket.socket:
    try:
        return listen(options.host, options.port)
    except (OSError, OverflowError) as error:
        number = getattr(error, "errno", None) or 0  # negative where a name has no address
        cause = os.strerror(number) if number > 0 else getattr(error, "strerror", None) or error
        raise ConfigError(
            f"{options.host}:{options.port} cannot be listened on: {cause}.",
            fix="Choose another --port, or 0 for any, or an address of this machine.",
        ) from error


async def _serve(
    store: ModelStore, engine: EngineOptions, options: ServerOptions, listener: socket.socket
) -> None:
    metrics, state = Metrics(), State()
    batcher = Batcher[Result](
        engine.threads or own_cores(),
        BATCH_TOKENS,
        lambda count: metrics.observe("batch_texts", count),
    )
    api = Api(Service(store, batcher, options.limits, metrics), options, state)

    def stop() -> None:
        state.is_stopping = True
        logger.info("stopping: %d requests are answered first", api.service.num_active)

    server = make_server(api.app(), options.limits, stop)
    loading = asyncio.create_task(_load(store, state, server))
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    names = ", ".join(store.places)
    logger.info("loading %s, to be served on http://%s:%d", names, shown, port)
    try:
        await server.serve([listener])
        if loading.done():
            loading.result()
    finally:
        loading.cancel()
        batcher.close()


async def _load(store: ModelStore, state: State, server: DrainingServer) -> None:
    """Load as many models as fit; a model that cannot be loaded ends the server."""
    try:
        for name in store.names():
            await store.get(name)
    except NmtError:
        server.stop()
        raise
    state.is_ready = True
    logger.info("ready")
