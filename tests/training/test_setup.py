"""Training with compiled layers, from the configuration to the checkpoint."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from nmt.checkpoint.files import checkpoint_dir, load_checkpoint
from nmt.commands.train import fit
from nmt.config.run import RunConfig
from nmt.model.decoder_state import DecoderState
from nmt.model.transformer import Transformer
from nmt.packed import Packed
from tests.compiling import Backend, use_backend
from tests.training.toy import CONFIG, write_corpus


@pytest.fixture
def backend() -> Iterator[Backend]:
    yield from use_backend("eager")


# torch's compiler makes an object of an autograd function, which torch itself deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")


def config_of(run_dir: str = "run", **training: Any) -> RunConfig:
    values = copy.deepcopy(CONFIG) | {"run_dir": run_dir}
    values["model"]["dropout"] = 0.0
    rare = dict.fromkeys(("max_steps", "save_every", "validate_every"), 3)
    values["training"] |= {**rare, "report_every": 1, **training}
    return RunConfig.model_validate(values)


def trained(config: RunConfig) -> tuple[list[float], torch.Tensor, str]:
    """Losses of the updates, random numbers after them, and the log."""
    write_corpus(Path())
    fit(config)
    lines = map(json.loads, (config.run_dir / "metrics.jsonl").read_text().splitlines())
    random = load_checkpoint(checkpoint_dir(config.run_dir, 3)).optimizer["random/cpu"]
    log = (config.run_dir / "log.txt").read_text()
    return [line["loss"] for line in lines if line["kind"] == "update"], random, log


def test_a_run_with_compiled_layers_makes_the_updates_of_one_without_and_records_it(
    backend: Backend,
) -> None:
    losses, random, log = trained(config_of(compile=True))
    assert backend.num_graphs == 4
    expected, same_random, other_log = trained(config_of("plain"))
    assert losses == pytest.approx(expected, rel=1e-4)
    assert torch.equal(random, same_random)
    assert ", layers compiled in " in log
    assert "compiled" not in other_log
    assert backend.num_graphs == 4  # on a CPU nothing is compiled unasked
    state = json.loads((checkpoint_dir(Path("run"), 3) / "state.json").read_text())
    assert state["machine"]["compiled"] is True
    assert "not bit-exact: compiled: was true, is false" in trained(config_of(max_steps=4))[2]


@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
def test_sizes_are_few_where_kernels_are_made_for_each(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Validation translates in float32, and updates in 16 bits have sizes rounded up."""
    sizes: list[int] = []
    dtypes: list[torch.dtype] = []
    forward, start = Transformer.forward, Transformer.start

    def counted(model: Transformer, source: Packed, target: Packed) -> torch.Tensor:
        sizes.extend((source.num_tokens % 32, target.num_tokens % 32))
        return forward(model, source, target)

    def started(model: Transformer, *args: Any, **options: Any) -> DecoderState:
        dtypes.append(model.output_weight.dtype)
        return start(model, *args, **options)

    monkeypatch.setattr(Transformer, "forward", counted)
    monkeypatch.setattr(Transformer, "start", started)
    trained(config_of(precision=precision))
    assert any(sizes) == (precision == "float32")
    assert set(dtypes) == {torch.float32}
