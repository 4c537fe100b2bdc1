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
from nmt.errors import CheckpointError, ConfigError, shell_command
from nmt.model.dropout import dropout
from nmt.model.layers import CrossAttention, FeedForward, SelfAttention
from nmt.model.transformer import VOCABULARY_SIDES, Transformer, fused_rows

_KINDS: Mapping[str, tuple[type[nn.Module], ...]] = {
    "attention": (SelfAttention, CrossAttention),
    "feed-forward": (FeedForward,),
}
# Parts of the names of the factors in a checkpoint: ``LAYER.lora_a.0`` and ``LAYER.lora_b.0``.
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
        # "meta" allocates no weight: the next line replaces it.
        super().__init__(base.in_features, base.out_features, bias=False, device="meta")
        self.weight = base.weight
        self.bias = base.bias
        # The factors A, (r, inputs), and B, (outputs, r), of each fused matrix.
        self.lora_a = nn.ParameterList()
        self.lora_b = nn.ParameterList()
        for num_rows in rows:
            self.lora_a.append(torch.empty(config.rank, base.in_features))
            self.lora_b.append(torch.zeros(num_rows, config.rank))
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
        # Each adapter writes only the outputs of its own matrix, so the other blocks are 0.
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
    # Name of a fused weight -> number of rows of each of its matrices.
    fused = fused_rows(model)
    adapters = dict[str, AdaptedLinear]()  # By the name of the layer in the model.
    for module_name, module in model.named_modules():
        if not isinstance(module, kinds):
            continue
        for name, layer in module.named_children():
            if isinstance(layer, nn.Linear) and layer.weight.requires_grad:
                layer_name = f"{module_name}.{name}"
                rows = fused.get(f"{layer_name}.weight", [layer.out_features])
                adapters[layer_name] = AdaptedLinear(layer, rows, config)
    # Freeze before the adapters are part of the model, so that they stay trained.
    trains_embeddings = "embeddings" in config.layers
    for name, parameter in model.named_parameters():
        is_trained = trains_embeddings and name in VOCABULARY_SIDES
        parameter.requires_grad_(parameter.requires_grad and is_trained)
    for layer_name, adapted in adapters.items():
        model.set_submodule(layer_name, adapted)
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
        # The separator is empty if the name does not contain it.
        layer, separator, index = name.partition(f".{_B}.")
        if separator:
            # The rows of a fused matrix come after those of the matrices before it.
            start = 0
            for earlier in range(int(index)):
                start += len(adapters[f"{layer}.{_B}.{earlier}"])
            end = start + len(value)
            rows = weights[f"{layer}.weight"][start:end]  # A view.
            rows.addmm_(value, adapters[f"{layer}.{_A}.{index}"], alpha=scale)
        elif f".{_A}." not in name:  # an embedding matrix, trained in full
            weights[name].copy_(value)


def adapt(model: Transformer, config: RunConfig, recorded: AdapterRecord | None) -> AdapterRecord:
    """Load the weights of `training.init_from` into a model, add adapters, and return their record.

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
    candidates = [start]
    candidates += [parent / start for parent in run_dir.resolve().parents]
    folders = [folder for folder in dict.fromkeys(candidates) if folder.is_dir()]
    for folder in folders:
        names = ["best"]  # The weights of a model folder.
        checkpoints = [path.name for _, path in list_checkpoints(folder)]
        if checkpoints:
            # A run folder: the newest checkpoint first, the average last.
            names = [*reversed(checkpoints), AVERAGE]
        for name in names:
            with suppress(CheckpointError):
                files = find_model(folder, name)
                if files.sha256 == sha256:
                    return files
    if folders:
        problem = f"The weights of {folders[0]} have changed since adapters were trained for them"
        problem += f" (expected sha256 {sha256[:12]}...): {run_dir} cannot be used."
        command = shell_command("train", "CONFIG", run_dir="FOLDER")
        fix = f"Restore the weights, or train the adapters again: `{command}`."
        raise CheckpointError(problem, fix=fix)
    problem = f"{run_dir} contains adapters of the base model {start}, which does not exist."
    command = shell_command("train", "CONFIG", set_="training.init_from=FOLDER")
    fix = f"Restore {start}, or pass its new place: `{command}`."
    raise CheckpointError(problem, fix=fix)


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
