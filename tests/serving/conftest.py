"""Two small models that were never trained, and a server of the first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nmt.text.tokenizer import load_tokenizers
from tests.serving.process import Server
from tests.translation.models import run_config, save_run, small_model, train_tokenizer


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Run folders: ``de-en`` and ``en-de``."""
    place = tmp_path_factory.mktemp("served")
    words = train_tokenizer(place / "tokenizer", 0)
    model = small_model(load_tokenizers(words))
    found = {}
    for name in ("de-en", "en-de"):
        source, target = name.split("-")
        config = run_config().model_copy(
            update={"source_language": source, "target_language": target}
        )
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
    started.kill()
