"""A stand-in for the package unbabel-comet, with the interface that `nmt` uses."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from nmt.extras.comet import metric

SIZE = 16


class Model(torch.nn.Module):
    """Compares bags of characters: of translation and ``compared``, and a little of the source."""

    def __init__(self, compared: str) -> None:
        super().__init__()
        self._compared = compared  # ``ref``, or ``src`` for a model that does not read references.
        self.batches: list[list[str]] = []  # Sources of each batch.

    def requires_references(self) -> bool:
        return self._compared == "ref"

    def prepare_for_inference(self, samples: Sequence[Mapping[str, str]]) -> dict[str, Tensor]:
        self.batches.append([sample["src"] for sample in samples])
        inputs = dict[str, Tensor]()
        for name in ("src", "mt", "ref"):
            ids = [torch.tensor([ord(c) % SIZE + 1 for c in x[name]] or [0]) for x in samples]
            padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
            inputs |= {f"{name}_input_ids": padded, f"{name}_attention_mask": padded > 0}
        return inputs

    def transfer_batch_to_device(self, batch: Any, device: torch.device, _: int) -> Any:
        return {name: tensor.to(device) for name, tensor in batch.items()}

    def get_sentence_embedding(self, ids: Tensor, mask: Tensor) -> Tensor:
        counts = torch.nn.functional.one_hot(ids, SIZE + 1).float() * mask[..., None]
        return torch.nn.functional.normalize(counts.sum(1), dim=-1)

    def estimate(self, source: Tensor, translation: Tensor, other: Tensor) -> Any:
        score = (translation * other).sum(-1) + (translation * source).sum(-1) / 8
        return SimpleNamespace(score=score)

    def predict_step(self, inputs: dict[str, Tensor]) -> Any:
        vectors = [
            self.get_sentence_embedding(inputs[f"{x}_input_ids"], inputs[f"{x}_attention_mask"])
            for x in ("src", "mt", self._compared)
        ]
        return SimpleNamespace(scores=self.estimate(*vectors).score)


def load_from_checkpoint(path: str, *, local_files_only: bool) -> Model:
    assert local_files_only, "nothing may be downloaded"
    torch.rand(3)  # real models draw initial weights
    text = Path(path).read_text("utf-8")
    if text == "pickle":
        raise pickle.UnpicklingError("Weights only load failed.\nMore lines.")
    return Model({"ref": "ref", "src": "src"}[text])


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """Install the stand-in; return a function that writes a checkpoint and returns its folder."""

    def write(folder: Path, text: str = "ref") -> Path:
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "checkpoints" / "model.ckpt").write_text(text, "utf-8")
        (folder / "hparams.yaml").touch()
        return folder

    package: Any = ModuleType("comet")
    package.load_from_checkpoint, package.__version__ = load_from_checkpoint, "2.2.7"
    monkeypatch.setitem(sys.modules, "comet", package)
    metric._load.cache_clear()
    yield write
    metric._load.cache_clear()
