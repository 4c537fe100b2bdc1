"""Weights of 8 and 16 bits, from a folder to text."""

from __future__ import annotations

from pathlib import Path

import pytest

from nmt.errors import ConfigError
from nmt.text.tokenizer import load_tokenizers
from nmt.translation.engine import CTRANSLATE2_MODEL, Dtype
from nmt.translation.translator import Translator
from tests.translation.conftest import sentences
from tests.translation.models import SHAPES, run_config, save_run, small_model, train_tokenizer


@pytest.fixture(scope="module", params=SHAPES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("run")
    tokenizer = train_tokenizer(place / "tokenizer")
    model = small_model(load_tokenizers(tokenizer), request.param)
    return save_run(place / "run", model, tokenizer, run_config())


@pytest.mark.parametrize("beam_size", [1, 4])
def test_with_8_bits_a_line_does_not_depend_on_its_batch(folder: Path, beam_size: int) -> None:
    """And it differs from float32, else nothing was measured."""
    lines = sentences(20)
    plain, small = (
        Translator.load(folder, device="cpu", dtype=dtype, guard=False).with_options(
            beam_size=beam_size
        )
        for dtype in ("float32", "int8")
    )
    together = small.translate(lines)
    alone = [small.translate([line])[0] for line in lines]

    assert [result.text for result in together] == [result.text for result in alone]
    assert [r.score for r in together] == pytest.approx([r.score for r in alone], abs=1e-5)
    assert [r.score for r in together] != [r.score for r in plain.translate(lines)]


def test_with_16_bits_most_lines_score_nearly_the_same(folder: Path) -> None:
    lines = sentences(15)
    results = Translator.load(folder, device="cpu", dtype="bf16", guard=False).translate(lines)
    plain = Translator.load(folder, device="cpu", guard=False).translate(lines)
    # A line may take another turn at a near tie.
    differences = sorted(
        abs(x.score - y.score) / abs(y.score) for x, y in zip(results, plain, strict=True)
    )

    assert 0 < differences[7] < 0.05


@pytest.mark.parametrize("dtype", ["int8", "bf16"])
def test_a_model_of_ctranslate2_has_its_dtype_already(tmp_path: Path, dtype: Dtype) -> None:
    (tmp_path / CTRANSLATE2_MODEL).touch()

    with pytest.raises(ConfigError, match=f"export again with --quantization {dtype}"):
        Translator.load(tmp_path, dtype=dtype)
