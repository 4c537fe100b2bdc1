"""`--dtype` of the torch engine, from a folder to text."""

from __future__ import annotations

from pathlib import Path

import pytest

from nmt.errors import ConfigError
from nmt.runtime.engine import CTRANSLATE2_MODEL, Dtype
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


def test_int8_of_a_run_folder_is_refused_and_the_fix_names_the_engine(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"no int8.*\n.*fix: Add --engine ctranslate2"):
        Translator.load(folder, device="cpu", dtype="int8")


def test_float16_on_a_cpu_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"float16 is for GPUs.*\n.*fix: .*--dtype bf16"):
        Translator.load(folder, device="cpu", dtype="float16")
