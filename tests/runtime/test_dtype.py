"""`--dtype` of the torch engine, from a folder to text."""

from __future__ import annotations

from pathlib import Path

import pytest

from nmt.text.tokenizer import load_tokenizers
from nmt.translation.translator import Translator
from tests.translation.conftest import sentences
from tests.translation.models import SHAPES, run_config, save_run, small_model, train_tokenizer


@pytest.fixture(scope="module", params=SHAPES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("run")
    tokenizer = train_tokenizer(place / "tokenizer")
    model = small_model(load_tokenizers(tokenizer), request.param)
    return save_run(place / "run", model, tokenizer, run_config())


def test_with_16_bits_most_lines_score_nearly_the_same(folder: Path) -> None:
    lines = sentences(15)
    results, plain = (
        Translator.load(folder, device="cpu", dtype=dtype, engine="torch", guard=False).translate(
            lines
        )
        for dtype in ("bf16", "float32")
    )
    # A line may take another turn at a near tie.
    differences = sorted(
        abs(x.score - y.score) / abs(y.score) for x, y in zip(results, plain, strict=True)
    )

    assert 0 < differences[7] < 0.05
