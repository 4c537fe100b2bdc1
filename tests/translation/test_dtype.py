"""Weights of 8 and 16 bits, from a folder to text."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from nmt.checkpoint.bundle import load_model
from nmt.checkpoint.extras import RANGES
from nmt.errors import ConfigError
from nmt.model.quantized import input_ranges
from nmt.runtime.engine import CTRANSLATE2_MODEL, Dtype
from nmt.runtime.ensemble import Ensemble
from nmt.runtime.ranges import load_ranges, ranges_text
from nmt.runtime.torch_engine import TorchEngine
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


@pytest.fixture(scope="module")
def folder_with_ranges(folder: Path) -> Path:
    """The same with ``ranges.json``."""
    copy = shutil.copytree(folder, folder.with_name("with ranges"))
    bundle = load_model(copy)
    ids = bundle.tokenizers.source.encode_batch(sentences(5, seed=1))
    engine = TorchEngine(bundle.model)
    ranges = input_ranges(bundle.model, lambda: engine.token_log_probs(ids, ids))
    (copy / RANGES).write_text(ranges_text(ranges, bundle.sha256))
    return copy


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("with_ranges", [False, True])
def test_with_8_bits_a_line_does_not_depend_on_its_batch(
    folder: Path, folder_with_ranges: Path, with_ranges: bool, beam_size: int
) -> None:
    """And it differs from float32, else nothing was measured."""
    place, lines = folder_with_ranges if with_ranges else folder, sentences(20)
    plain, small = (
        Translator.load(place, device="cpu", dtype=dtype, guard=False).with_options(
            beam_size=beam_size
        )
        for dtype in ("float32", "int8")
    )
    together = small.translate(lines)
    alone = [small.translate([line])[0] for line in lines]

    assert [result.text for result in together] == [result.text for result in alone]
    assert [r.score for r in together] == pytest.approx([r.score for r in alone], abs=1e-5)
    assert [r.score for r in together] != [r.score for r in plain.translate(lines)]


def test_with_8_bits_every_model_of_several_has_its_own_ranges(
    folder: Path, folder_with_ranges: Path, tmp_path: Path
) -> None:
    lines, scores = sentences(4), []
    narrow = shutil.copytree(folder_with_ranges, tmp_path / "narrow")
    bundle = load_model(narrow)
    ranges = load_ranges(narrow, bundle.sha256) or {}
    narrowed = dict.fromkeys(ranges, (-0.01, 0.01))
    (narrow / RANGES).write_text(ranges_text(narrowed, bundle.sha256))
    for second in (folder, folder_with_ranges, narrow):
        translator = Translator.load(
            folder, device="cpu", dtype="int8", ensemble=Ensemble((second,)), guard=False
        )
        scores.append([result.score for result in translator.translate(lines)])

    assert scores[0] != scores[1] != scores[2] != scores[0]
    alone = Translator.load(folder, device="cpu", dtype="int8", guard=False).translate(lines)
    assert scores[0] == pytest.approx([result.score for result in alone], abs=1e-5)


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
