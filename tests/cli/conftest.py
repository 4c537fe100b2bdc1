"""Run folders of small models that were never trained."""

from __future__ import annotations

from pathlib import Path

import pytest

from nmt.text.tokenizer import load_tokenizers
from tests.inference.models import (
    run_config,
    save_run,
    small_model,
    speak_whole_words,
    train_tokenizer,
)


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Models by their shapes over one vocabulary, and ``other`` over another."""
    place = tmp_path_factory.mktemp("runs")
    words = [train_tokenizer(place / f"tokenizer-{seed}", seed) for seed in (0, 1)]
    made = {"plain": "plain", "modern": "modern", "learned": "learned", "other": "plain"}
    found: dict[str, Path] = {}
    for name, shape in made.items():
        folder = words[name == "other"]
        tokenizers = load_tokenizers(folder)
        model = small_model(tokenizers, shape)
        if shape == "learned":
            speak_whole_words(model, tokenizers)
        found[name] = save_run(place / name, model, folder, run_config())
    return found
