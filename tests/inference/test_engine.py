"""Which engine is chosen, and what it is asked for."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any
from unittest.mock import Mock

import pytest
import torch

import nmt.registry
from nmt.config.model import DecodingConfig, ModelConfig
from nmt.errors import ConfigError
from nmt.inference import engine as engines
from nmt.inference.engine import (
    EngineLacksError,
    EngineLoader,
    EngineOptions,
    Ensemble,
    LoadedModel,
    Needs,
    choose_engine,
    parse_dtype,
)
from nmt.inference.torch_engine import TorchEngine, gpu_capacity, load_torch
from nmt.inference.translator import Translator
from nmt.registry import Registry
from nmt.text.tokenizer import Tokenizers
from tests.inference.conftest import sentences
from tests.inference.models import small_model


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
    monkeypatch.setitem(nmt.registry._BUILT_IN, "toy engine", homes)
    gone: Registry[EngineLoader] = Registry("toy engine")
    gone.register("torch", load_torch)
    gone.register("mine", load_torch)
    monkeypatch.setattr(engines, "ENGINES", gone)
    assert chosen(run_dir, device="cpu") == ("torch", "float32")
    assert chosen(run_dir, device="cpu", engine="mine") == ("torch", "float32")
    with pytest.raises(ConfigError, match="missing from this installation"):
        load_engine(run_dir, device="cpu", engine="ctranslate2")


@pytest.mark.parametrize(
    ("options", "trained", "exported", "lacking"),
    [
        ({}, "ctranslate2 cpu", "ctranslate2 auto", "torch auto"),  # there is no GPU
        ({"dtype": "int8"}, "ctranslate2 cpu", "ctranslate2 auto", None),
        ({"device": "cpu", "dtype": "fp32"}, "ctranslate2 cpu", "ctranslate2 cpu", "torch cpu"),
        ({"device": "cpu", "dtype": "bf16"}, "torch cpu", "ctranslate2 cpu", "torch cpu"),
        ({"device": "gpu"}, "torch cuda", "ctranslate2 cuda", "torch cuda"),
        ({"device": "cuda:1"}, "torch cuda:1", "ctranslate2 cuda:1", "torch cuda:1"),
        ({"device": "mps"}, "torch mps", "ctranslate2 mps", "torch mps"),
        ({"engine": "ctranslate2"}, "ctranslate2 auto", "ctranslate2 auto", None),
        ({"engine": "torch"}, "torch auto", "torch auto", "torch auto"),
    ],
)
def test_the_engine_follows_from_device_dtype_and_folder(
    options: dict[str, Any],
    trained: str,
    exported: str,
    lacking: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CTranslate2 runs what was exported for it, wherever. It gives way where it lacks a feature,
    unless it was asked for, or int8, which only it has."""

    def loader(name: str) -> EngineLoader:
        def load(_: Path, chosen: EngineOptions, needs: Needs) -> LoadedModel:
            if name == "ctranslate2" and needs.constraints:
                raise EngineLacksError.of(name, ["constraints"])
            engine = Mock(dtype="")
            engine.name = f"{name} {chosen.device}"
            return LoadedModel(engine, Mock(), needs.decoding, 9)

        return load

    toys: Registry[EngineLoader] = Registry("toy engine")
    for name in ("ctranslate2", "torch"):
        toys.register(name, loader(name))
    monkeypatch.setattr(engines, "ENGINES", toys)
    monkeypatch.setattr(engines, "GPU_DRIVERS", ())
    asked = EngineOptions(**options)
    for is_exported, expected in ((False, trained), (True, exported)):
        monkeypatch.setattr(engines, "is_ctranslate2", Mock(return_value=is_exported))
        assert choose_engine(Path("run"), asked, Needs()).engine.name == expected
    monkeypatch.setattr(engines, "is_ctranslate2", Mock(return_value=False))
    needs = Needs(constraints=True)
    if lacking is None:
        with pytest.raises(EngineLacksError, match="ctranslate2 engine"):
            choose_engine(Path("run"), asked, needs)
    else:
        assert choose_engine(Path("run"), asked, needs).engine.name == lacking


def test_a_loaded_model_reads_an_unknown_ellipsis_as_three_dots(run_dir: Path) -> None:
    translator = Translator.load(run_dir, engine="torch")
    unknown, plain = translator.segment(["der Hund\u2026", "der Hund..."]).segments
    assert unknown.ids == plain.ids


def test_torch_refuses_what_it_cannot_run(run_dir: Path, tmp_path: Path) -> None:
    """Also if it is another model of an ensemble that was exported."""
    exported = tmp_path / "exported"
    exported.mkdir()
    (exported / "model.bin").touch()
    others = Ensemble((exported,))
    for options, problem in (
        ({"dtype": "float16"}, "float16 needs a GPU"),
        ({"dtype": "int8"}, "int8 needs the CTranslate2 engine"),
        ({"ensemble": others}, "exported is a CTranslate2 export"),
    ):
        values: dict[str, Any] = {"device": "cpu", **options}
        with pytest.raises(ConfigError, match=problem):
            load_torch(run_dir, EngineOptions(**values), Needs())


def test_lines_are_cut_at_the_length_that_is_asked_for(runs: dict[str, Path]) -> None:
    """Else at that of the shortest model."""
    both: dict[str, Any] = {"device": "cpu", "engine": "torch"}
    assert Translator.load(runs["plain"], **both).options.max_length == 32
    assert Translator.load(runs["plain"], max_length=8, **both).options.max_length == 8


def test_batches_on_a_gpu_leave_room_for_all_models_of_an_ensemble() -> None:
    """By hand: a token takes, in 2 bytes, keys and values of all layers, in the source once and in
    five outputs twice: 11 * 2 * 2 * (6 * 512 + 2 * 256) bytes."""
    models = [
        ModelConfig(decoder_layers=layers, model_dim=width)
        for layers, width in ((6, 512), (2, 256))
    ]
    found = gpu_capacity(1 << 30, models, 2)
    assert found.tokens == (1 << 30) // (44 * 3584)
    assert found.probabilities == (1 << 30) // 24


def test_outputs_that_repeat_endlessly_end_after_nine_tokens_if_asked(
    tokenizers: Tokenizers,
) -> None:
    """The last 8 tokens are then those before them; otherwise the longest output is 22 tokens."""
    model = small_model(tokenizers, "learned")
    assert model.output_bias is not None
    with torch.no_grad():
        model.output_bias[9] = 99.0
    options = DecodingConfig(beam_size=1, max_length_factor=1.0, max_length_offset=20)
    for end_loops, length in ((True, 9), (False, 22)):
        ((found,),) = TorchEngine(model, end_loops=end_loops).search([[5, 6]], options)
        assert found.ids == (9,) * length


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
    plain["sentences"] = "keep"  # the score of a line that is split is the mean of its sentences
    dtypes = "bf16", "float32"
    short, exact = (Translator.load(run_dir, dtype=x, **plain).translate(LINES) for x in dtypes)
    pairs = zip(short, exact, strict=True)
    differences = sorted(abs(x.score - y.score) / abs(y.score) for x, y in pairs)
    assert 0 < differences[len(LINES) // 2] < 0.05
    for result in short:
        mean = fmean(token.log_prob for token in result.tokens or ())
        assert mean == pytest.approx(result.score, abs=2e-1)
