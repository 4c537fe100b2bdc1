"""The device ``mps``: what nmt chooses for it, on tensors that only say they are there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from nmt.commands.config import load_config
from nmt.commands.train import fit
from nmt.device.device import choose_device
from nmt.device.precision import choose_precision, fastest_dtype
from nmt.errors import DeviceError
from nmt.extras.exchange.ctranslate2 import CTranslate2Engine
from nmt.inference.torch_engine import TorchEngine
from nmt.inference.translator import Translator
from tests.apple import APPLE, Apple

CONFIG = """
name: small
source_language: de
target_language: en
data:
  train: [{source: train.de, target: train.en}]
  valid: {source: train.de, target: train.en}
tokenizer: {vocab_size: 90, byte_fallback: false}
model: {model_dim: 16, ff_dim: 32, num_heads: 2, encoder_layers: 1, decoder_layers: 1}
training: {max_steps: 4, validate_every: 2, average_last: 2, threads: 1, device: mps,
  schedule: {shape: constant}}
"""


@pytest.fixture
def apple(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    answers = {
        "recommended_max_memory": 8 << 30,
        "driver_allocated_memory": 1 << 30,
        "get_rng_state": torch.zeros(8, dtype=torch.uint8),
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.mps, name, lambda answer=answer: answer)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda _: None)
    future = torch.__future__
    monkeypatch.setattr(future, "get_overwrite_module_params_on_conversion", lambda: True)
    with Apple():
        yield


@pytest.mark.long
@pytest.mark.usefixtures("apple")
def test_the_stand_in_refuses_what_metal_refuses() -> None:
    here, there = torch.ones(2), torch.ones(2, device="mps")
    assert (there.device, (there + 1).device, there.cpu().device.type) == (APPLE, APPLE, "cpu")
    with pytest.raises(TypeError, match="float64"):
        there.double()
    with pytest.raises(RuntimeError, match="same device"):
        here + there


def test_mps_is_used_only_if_it_is_named_and_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match="Apple GPU"):
        choose_device("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert (choose_device("mps"), choose_device("auto").type) == (APPLE, "cpu")
    assert choose_precision("auto", APPLE).name == fastest_dtype(APPLE) == "float32"
    with pytest.raises(DeviceError, match="CUDA device"):
        CTranslate2Engine(Path("exported"), device="mps")


@pytest.mark.long
@pytest.mark.usefixtures("apple")
@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("shape", ["plain", "modern"])
def test_a_translation_on_mps_is_that_of_the_cpu(
    runs: dict[str, Path], shape: str, beam_size: int
) -> None:
    texts = {}
    for device in ("cpu", "mps"):
        translator = Translator.load(runs[shape], engine="auto", device=device, beam_size=beam_size)
        texts[device] = [x.text for x in translator.translate(["Ein Hund läuft.", "", "Katze"])]
        if device == "mps":
            assert isinstance(translator.engine, TorchEngine)
            assert (translator.engine.dtype, translator.engine.num_workers) == ("float32", 1)
    assert texts["mps"] == texts["cpu"]


@pytest.mark.long
@pytest.mark.usefixtures("apple")
@pytest.mark.parametrize("kind", ["adamw", "muon", "schedule-free"])
def test_training_and_its_validation_run_on_mps(
    tiny_corpus: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tiny_corpus)
    Path("small.yaml").write_text(CONFIG)
    config = load_config(Path("small.yaml"), [f"training.optimizer.kind={kind}"])
    summary = fit(config)
    assert summary.step == 4
    assert f"float32 on {APPLE}" in (config.run_dir / "log.txt").read_text("utf-8")
