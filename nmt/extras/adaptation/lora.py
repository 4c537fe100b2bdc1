"""LoRA: low-rank adapters of a frozen model (Hu et al. 2021).

A linear layer of the base model computes x W^T + b. Its adapter adds alpha / rank * dropout(x) A^T
B^T, and only A and B are trained. B is zero at the start, so training starts with the outputs of
the base model. Fused matrices, such as those of query, key and value, have one adapter each.

Checkpoints contain the adapters only, and the SHA-256 of the weights of the base model
(`nmt.checkpoint.files.AdapterRecord`). `merged_model` adds the products to the weights of the
base model, so that everything after training has a model without adapters. Averages of weights are
those of A and B, not of their products.

Shapes: N tokens, r rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from nmt.checkpoint.files import AVERAGE, MODEL, AdapterRecord, list_checkpoints, load_tensors
from nmt.checkpoint.model_folder import ModelFiles, find_model, read_weights
from nmt.config.run import RunConfig
from nmt.config.training import LoraConfig
from nmt.errors import CheckpointError, ConfigError
from nmt.model.dropout import dropout
from nmt.model.layers import CrossAttention, FeedForward, SelfAttention
from nmt.model.transformer import VOCABULARY_SIDES, Transformer, fused_rows

_KINDS: Mapping[str, tuple[type[nn.Module], ...]] = {
    "attention": (SelfAttention, CrossAttention),
    "feed-forward": (FeedForward,),
}
_A = "lora_a"
_B = "lora_b"


class AdaptedLinear(nn.Linear):
    """A linear layer with its adapters. The parameters of the base layer keep their names.

    Args:
        base: The layer to adapt; its weight and bias are shared.
        rows: Number of rows of each matrix that is fused in the weight. Each has its own adapter.
        config: Rank, alpha and dropout.
    """

    def __init__(self, base: nn.Linear, rows: Sequence[int], config: LoraConfig) -> None:
        super().__init__(base.in_features, base.out_features, bias=False, device="meta")
        self.weight = base.weight
        self.bias = base.bias
        self.lora_a = nn.ParameterList()
        self.lora_b = nn.ParameterList()
        for count in rows:
            self.lora_a.append(torch.empty(config.rank, base.in_features))
            self.lora_b.append(torch.zeros(count, config.rank))
        for matrix in self.lora_a:
            nn.init.kaiming_uniform_(matrix, a=5**0.5)  # as in the code of the authors
        self._scale = config.alpha / config.rank
        self._dropout = config.dropout

    @override
    def forward(self, input: Tensor) -> Tensor:
        """Project (N, inputs) to (N, outputs)."""
        dropped = dropout(input, self._dropout, self.training)
        low = F.linear(dropped, torch.cat([*self.lora_a]))  # (N, adapters x r)
        base = F.linear(input, self.weight, self.bias)
        up = torch.block_diag(*self.lora_b)  # (outputs, adapters x r)
        return torch.addmm(base, low, up.mT, alpha=self._scale)


def add_adapters(model: Transformer, config: LoraConfig) -> None:
    """Add adapters to the linear layers of ``config.layers``, and freeze all other parameters.

    Layers that are frozen already (`training.freeze`) get no adapters. ``embeddings`` stay trained
    in full, unless they are frozen.

    Raises:
        ConfigError: Nothing is left to train.
    """
    kinds: tuple[type[nn.Module], ...] = ()
    for group in config.layers:
        kinds += _KINDS.get(group, ())
    fused = fused_rows(model)
    adapters: dict[str, AdaptedLinear] = {}
    for parent, module in model.named_modules():
        if not isinstance(module, kinds):
            continue
        for name, layer in module.named_children():
            if isinstance(layer, nn.Linear) and layer.weight.requires_grad:
                path = f"{parent}.{name}"
                rows = fused.get(f"{path}.weight", [layer.out_features])
                adapters[path] = AdaptedLinear(layer, rows, config)
    trains_embeddings = "embeddings" in config.layers
    for name, parameter in model.named_parameters():
        is_trained = trains_embeddings and name in VOCABULARY_SIDES
        parameter.requires_grad_(parameter.requires_grad and is_trained)
    for path, adapted in adapters.items():
        model.set_submodule(path, adapted)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        problem = "training.lora.layers and training.freeze leave no parameter to train."
        raise ConfigError(problem, fix="Remove one or more parts from training.freeze.")


def merge(weights: Mapping[str, Tensor], adapters: Mapping[str, Tensor], scale: float) -> None:
    """Add the products of the adapters to the weights of the base model, in place.

    Args:
        weights: Parameters of the base model by name, float32.
        adapters: Parameters that training with adapters has saved, by name. Names of A and B end in
            ``lora_a.N`` and ``lora_b.N``; other parameters replace those of the base model.
        scale: alpha / rank.

    Raises:
        KeyError: A parameter belongs to no parameter of the base model.
        RuntimeError: Shapes do not match.
    """
    for name, value in adapters.items():
        layer, is_factor, number = name.partition(f".{_B}.")
        if is_factor:
            start = 0
            for index in range(int(number)):
                start += len(adapters[f"{layer}.{_B}.{index}"])
            end = start + len(value)
            rows = weights[f"{layer}.weight"][start:end]
            rows.addmm_(value, adapters[f"{layer}.{_A}.{number}"], alpha=scale)
        elif f".{_A}." not in name:
            weights[name].copy_(value)


def adapt(model: Transformer, config: RunConfig, recorded: AdapterRecord | None) -> AdapterRecord:
    """Load the weights of `training.init_from` into a model, and add adapters.

    Args:
        model: A new model.
        config: The configuration, with `training.lora`.
        recorded: The result of the first start, if training resumes.

    Raises:
        CheckpointError: The base model is missing, damaged or not that of the first start.
        ConfigError: Nothing is left to train.
    """
    start = config.training.init_from
    lora = config.training.lora
    assert start is not None
    assert lora is not None
    if recorded is None:
        base = find_model(start)
    else:
        base = find_base(start, config.run_dir, recorded["base"])
    model.load_state_dict(read_weights(base).model.state_dict())
    add_adapters(model, lora)
    return AdapterRecord(base=base.sha256, scale=lora.alpha / lora.rank)


def find_base(start: Path, run_dir: Path, sha256: str) -> ModelFiles:
    """Find the base model of a run.

    A relative path starts at the working directory, or at any folder around the run folder. If the
    base model is a run folder, any of its checkpoints may have the weights.

    Args:
        start: `training.init_from` of the run.
        run_dir: Folder of the run, or of its averaged weights.
        sha256: SHA-256 of the weights.

    Raises:
        CheckpointError: The base model is missing, or its weights have changed.
    """
    places = [start]
    places += [parent / start for parent in run_dir.resolve().parents]
    present = [place for place in dict.fromkeys(places) if place.is_dir()]
    for place in present:
        names = ["best"]
        checkpoints = [path.name for _, path in list_checkpoints(place)]
        if checkpoints:
            names = [*reversed(checkpoints), AVERAGE]
        for name in names:
            with suppress(CheckpointError):
                files = find_model(place, name)
                if files.sha256 == sha256:
                    return files
    again = "or train the adapters again, with a new run_dir"
    if present:
        problem = f"The weights of {present[0]} have changed since adapters were trained for them"
        problem += f" (expected sha256 {sha256[:12]}...): {run_dir} cannot be used."
        raise CheckpointError(problem, fix=f"Restore the weights, {again}.")
    problem = f"{run_dir} contains adapters of the base model {start}, which does not exist."
    raise CheckpointError(problem, fix=f"Restore the folder {start}, {again}.")


def merged_model(files: ModelFiles, adapter: AdapterRecord) -> Transformer:
    """Return the base model of a run with its adapters merged into the weights.

    Args:
        files: The adapters: a checkpoint, or averaged weights.
        adapter: The record in their file.

    Raises:
        CheckpointError: The base model is missing or changed, or the adapters do not match it.
    """
    path = files.folder / MODEL
    start = files.config.base_model or Path("?")
    base = find_base(start, files.folder, adapter["base"])
    model = read_weights(base).model
    try:
        merge(model.state_dict(), load_tensors(path), adapter["scale"])
    except (KeyError, RuntimeError) as error:
        problem = f"{path} contains adapters that do not match {base.folder}: {error}."
        raise CheckpointError(problem, fix="Use another checkpoint of the run.") from error
    return model
