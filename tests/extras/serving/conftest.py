"""Two small models that were never trained, a server of the first, and one inside this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from nmt.extras.serving.app import Api, State
from nmt.extras.serving.batching import Batcher
from nmt.extras.serving.metrics import Metrics
from nmt.extras.serving.models import ModelStore
from nmt.extras.serving.options import ServerOptions
from nmt.extras.serving.service import Service
from nmt.inference.options import EngineOptions
from nmt.inference.result import Result
from nmt.text.tokenizer import load_tokenizers
from tests.extras.serving.process import Server
from tests.inference.models import run_config, save_run, small_model, train_tokenizer

Inside = Callable[..., TestClient]
"""Starts a server inside this process: of models by name, with options."""


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Run folders: ``de-en`` and ``en-fr``."""
    place = tmp_path_factory.mktemp("served")
    words = train_tokenizer(place / "tokenizer", 0)
    found = {}
    for seed, name in enumerate(("de-en", "en-fr"), 3):
        source, target = name.split("-")
        config = run_config().model_copy(
            update={"source_language": source, "target_language": target}
        )
        model = small_model(load_tokenizers(words), seed=seed)
        found[name] = save_run(place / name, model, words, config)
    return found


@pytest.fixture(scope="session")
def server(models: dict[str, Path]) -> Iterator[Server]:
    """A server of ``de-en`` with narrow limits."""
    limits = {
        "max_chars": 2000, "max_texts": 40, "max_queue": 64, "deadline": 20.0, "body_seconds": 1.0
    }  # fmt: skip
    started = Server({"de-en": models["de-en"]}, limits)
    yield started
    started.close()


@pytest.fixture
def inside(models: dict[str, Path]) -> Iterator[Inside]:
    """See `Inside`. Its models are loaded when they are asked for."""
    batchers = []

    def start(
        folders: Mapping[str, Path] = models,
        options: ServerOptions | None = None,
        engine: EngineOptions = EngineOptions(engine="torch"),  # noqa: B008 - frozen
        state: State | None = None,
        **client: Any,
    ) -> TestClient:
        options = options or ServerOptions()
        store = ModelStore(folders, engine, options.max_loaded, options.pivot)
        batchers.append(Batcher[Result](2, 2048))
        service = Service(store, batchers[-1], options.limits, Metrics())
        app = Api(service, options, state or State(is_ready=True)).app()
        client = {"base_url": "http://localhost", "client": ("127.0.0.1", 50000), **client}
        return TestClient(app, **client)

    yield start
    for batcher in batchers:
        batcher.close()
