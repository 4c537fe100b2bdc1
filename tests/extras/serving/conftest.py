"""Two untrained models, a server process for the first, and a server inside this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from nmt.extras.serving.access import Gate, digest
from nmt.extras.serving.app import make_app
from nmt.extras.serving.models import ServedModel
from nmt.extras.serving.options import ServeOptions
from nmt.extras.serving.server import server_config
from nmt.extras.serving.service import Service
from nmt.text.tokenizer import load_tokenizers
from tests.extras.serving.process import Server
from tests.inference.models import run_config, save_run, small_model, train_tokenizer

Inside = Callable[..., TestClient]
"""Starts a server inside this process, with options."""


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Run folders: ``de-en`` and ``en-fr``."""
    place = tmp_path_factory.mktemp("served")
    words = train_tokenizer(place / "tokenizer", 0)
    found = {}
    for seed, name in enumerate(("de-en", "en-fr"), 3):
        languages = dict(zip(("source_language", "target_language"), name.split("-"), strict=True))
        model = small_model(load_tokenizers(words), seed=seed)
        config = run_config().model_copy(update=languages)
        found[name] = save_run(place / name, model, words, config)
    return found


@pytest.fixture(scope="session")
def loaded(models: dict[str, Path]) -> dict[str, ServedModel]:
    """Both models, computed by torch."""
    return {name: ServedModel(name, path, {"engine": "torch"}) for name, path in models.items()}


@pytest.fixture(scope="session")
def server(models: dict[str, Path]) -> Iterator[Server]:
    """A server of ``de-en`` with narrow limits."""
    limits = {"max_chars": 2000, "max_texts": 40, "max_queue": 64, "cache": 0}
    started = Server({"de-en": models["de-en"]}, **limits, deadline=20.0, body_seconds=1.0)
    yield started
    started.close()


@pytest.fixture
def inside(loaded: dict[str, ServedModel]) -> Iterator[Inside]:
    """See `Inside`. By default, clients have a local address, and nothing is cached."""
    batchers = []

    def start(
        served: Mapping[str, ServedModel] = loaded,
        keys: Mapping[str, str] | None = None,
        address: str = "127.0.0.1",
        is_stopping: bool = False,
        **options: Any,
    ) -> TestClient:
        settings = ServeOptions(models=(), threads=2, **{"cache": 0, **options})
        service = Service(served, settings)
        batchers.append(service.batcher)
        hashes = None if keys is None else {digest(key): name for key, name in keys.items()}
        service.is_stopping = is_stopping
        config = server_config(make_app(service, Gate(settings, hashes)), settings)
        config.load()
        return TestClient(config.loaded_app, "http://localhost", client=(address, 50000))

    yield start
    for batcher in batchers:
        batcher.close()
