"""Which engine is chosen, and what it is asked for."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from nmt.errors import ConfigError
from nmt.inference import engine as engines
from nmt.inference.engine import (
    EngineLoader,
    EngineOptions,
    Ensemble,
    LoadedModel,
    Needs,
    choose_engine,
    parse_dtype,
)
from nmt.inference.torch_engine import load_torch
from nmt.inference.translator import Translator
from nmt.registry import Registry
from tests.inference.conftest import sentences


def load_engine(folder: Path, needs: Needs | None = None, **options: Any) -> LoadedModel:
    return choose_engine(folder, EngineOptions(**options), needs or Needs(longest=40))


LINES = sentences(12, seed=8)


@pytest.fixture
def run_dir(runs: dict[str, Path]) -> Path:
    return runs["plain"]


def chosen(folder: Path, needs: Needs | None = None, **options: Any) -> tuple[str, str]:
    engine = load_engine(folder, needs, **options).engine
    return engine.name, engine.dtype


def test_only_models_without_a_position_limit_read_any_line(
    runs: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    """Of a model of its own, or of one beside it."""
    run_dir, learned = runs["plain"], runs["learned"]
    long = " ".join(LINES * 2)
    (result,) = Translator.load(run_dir, device="cpu", split=False).translate([long])
    assert result.text
    assert not caplog.messages  # it was not cut
    for folder, others in ((learned, ()), (run_dir, (learned,))):
        with pytest.raises(ConfigError, match=r"the model has 40 positions.*\n.* 32 tokens"):
            Translator.load(folder, device="cpu", split=False, ensemble=Ensemble(others))


def test_without_its_extra_torch_translates(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And an engine of one's own is named as the others are."""
    homes = {"ctranslate2": "nmt.extras.gone.engine:load"}
    gone: Registry[EngineLoader] = Registry("toy engine", homes)
    gone.register("torch", load_torch)
    gone.register("mine", load_torch)
    monkeypatch.setattr(engines, "ENGINES", gone)
    assert chosen(run_dir, device="cpu") == ("torch", "float32")
    assert chosen(run_dir, device="cpu", engine="mine") == ("torch", "float32")
    with pytest.raises(ConfigError, match="missing from this installation"):
        load_engine(run_dir, device="cpu", engine="ctranslate2")


@pytest.mark.parametrize(
    ("choice", "problem"),
    [
        ({"engine": "onnx"}, r"onnx is not a known engine.\n.*ctranslate2, torch"),
        ({"device": "tpu"}, "tpu is not a known device"),
        ({"dtype": "int4"}, r"int4 is not a known dtype.*\n.*auto, float32"),
        ({"threads": 0}, "`threads` is 0"),
        ({"beam_sice": 3}, "beam_sice"),
    ],
)
def test_unknown_choices_are_refused(run_dir: Path, choice: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        Translator.load(run_dir, **choice)
    assert parse_dtype("fp16") == "float16"


def test_with_16_bits_most_lines_score_nearly_the_same(run_dir: Path) -> None:
    """A line may take another turn at a near tie. Token scores are those of these weights."""
    plain: Any = {"device": "cpu", "engine": "torch", "guard": False, "outputs": {"token_scores"}}
    dtypes = "bf16", "float32"
    short, exact = (Translator.load(run_dir, dtype=x, **plain).translate(LINES) for x in dtypes)
    pairs = zip(short, exact, strict=True)
    differences = sorted(abs(x.score - y.score) / abs(y.score) for x, y in pairs)
    assert 0 < differences[len(LINES) // 2] < 0.05
    for result in short:
        mean = fmean(token.log_prob for token in result.tokens or ())
        assert mean == pytest.approx(result.score, abs=2e-1)
