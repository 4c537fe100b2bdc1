"""A model folder -> model, tokenizers and configuration, verified."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

from nmt.checkpoint.files import (
    AVERAGE,
    BEST,
    MODEL,
    STATE,
    checkpoint_dir,
    checkpoints_dir,
    load_tensors,
    newest_checkpoint,
    read_best,
    read_state,
    tensor_differences,
)
from nmt.checkpoint.model_folder import load_folder_config, load_folder_tokenizers, readable
from nmt.checkpoint.run import changed_model
from nmt.config.model import ModelConfig
from nmt.config.run import RunConfig
from nmt.errors import CheckpointError, ConfigError
from nmt.files.manifest import Manifest
from nmt.text.tokenizer import Tokenizers, tokenizer_hash

if TYPE_CHECKING:  # what is found without loading weights needs no torch
    from nmt.model.transformer import Transformer

_MAX_DIGITS = 15
"""Of the step of a checkpoint."""
_MAX_SHOWN = 40
"""Characters of a wrong name that its message repeats."""


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The parts of a model, found and checked; the weights are not read yet."""

    config: RunConfig
    """The configuration it was trained with."""
    tokenizers: Tokenizers
    """Of both languages."""
    step: int
    """Updates it was trained for."""
    folder: Path
    """Where the weights are."""
    manifest: Manifest
    """Of that folder."""

    @property
    def weights(self) -> Path:
        """The file of the weights."""
        return self.folder / MODEL

    @property
    def sha256(self) -> str:
        """Of that file."""
        return self.manifest.files[MODEL].sha256


@dataclass(frozen=True, slots=True)
class ModelBundle(ModelFiles):
    """Everything that translating needs."""

    model: Transformer
    """On the CPU, in float32, in evaluation mode."""


@readable()
def find_model(folder: Path, checkpoint: str = "best") -> ModelFiles:
    """Find and check all of a model but its weights. Loads no torch. Arguments as of `load_model`.

    Raises:
        CheckpointError: A part is missing or damaged, or weights and configuration disagree.
        ConfigError: ``checkpoint`` is none of these.
    """
    if not folder.is_dir():
        raise CheckpointError(
            f"{folder} is not a folder.", fix="Name the run folder that `nmt train` wrote."
        )
    config = load_folder_config(folder)
    weights_dir = _weights_dir(folder, checkpoint)
    if weights_dir == folder / AVERAGE:
        return find_model(weights_dir)
    manifest = Manifest.read(weights_dir)
    if weights_dir == folder:
        manifest.verify(folder, (name for name in manifest.files if name != MODEL))
    else:
        manifest.verify(weights_dir, (STATE,))
        _check_run_files(folder, weights_dir, config)
    tokenizers = load_folder_tokenizers(folder)
    if MODEL not in manifest.files:
        raise CheckpointError(f"{weights_dir / MODEL} is missing.", fix="Use another checkpoint.")
    return ModelFiles(config, tokenizers, manifest.step, weights_dir, manifest)


def load_model(folder: Path, checkpoint: str = "best") -> ModelBundle:
    """Load a model from a run folder, or from a folder with weights, config.yaml and tokenizer.

    Args:
        folder: The run or model folder.
        checkpoint: In a run folder: ``best``, ``last``, ``step-N`` or ``average``.

    Raises:
        CheckpointError: A part is missing or damaged, or weights and configuration disagree.
        ConfigError: ``checkpoint`` is none of these.
    """
    return read_weights(find_model(folder, checkpoint))


def read_weights(files: ModelFiles) -> ModelBundle:
    """Build the model whose parts were found, after comparing its weights with their manifest.

    Raises:
        CheckpointError: The weights are missing or damaged, or of another configuration.
    """
    from nmt.model.transformer import build_model  # noqa: PLC0415 - loads torch

    with readable():
        files.manifest.verify(files.folder, (MODEL,))
        _check_widths(files.weights, files.config.model)
        try:
            model = build_model(files.config.model, *files.tokenizers.vocab_sizes)
        except ValueError as error:
            raise CheckpointError(
                f"config.yaml and tokenizer of {files.folder} do not fit each other: {error}.",
                fix="Restore the config.yaml and tokenizer that `nmt train` wrote.",
            ) from error
        weights = load_tensors(files.weights)
        if problems := tensor_differences(weights, model.state_dict()):
            raise CheckpointError(
                f"{files.weights} does not fit config.yaml and tokenizer:\n  {problems}",
                fix="Restore the config.yaml and tokenizer that belong to these weights.",
            )
        model.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    return ModelBundle(
        files.config, files.tokenizers, files.step, files.folder, files.manifest, model.eval()
    )


def _check_widths(path: Path, config: ModelConfig) -> None:
    """Refuse a configuration of another width than the weights before memory is taken for it."""
    try:
        with safe_open(path, framework="numpy") as file:
            found = {size for name in file.keys() for size in file.get_slice(name).get_shape()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path} is no readable safetensors file: {error}", fix="Use another checkpoint."
        ) from error
    names = ["model_dim", "decoder_model_dim", "ff_dim", "decoder_ff_dim"]
    names += ["max_positions"] if config.positions == "learned" else []
    gates = 2 if config.activation == "swiglu" else 1  # stand above the inner layer in one matrix
    wrong = [
        f"model.{name} is {width:,}"
        for name in names
        if (width := getattr(config, name)) is not None and not {width, gates * width} & found
    ]
    if wrong:
        raise CheckpointError(
            f"config.yaml is not of the weights in {path}, which have no such width: "
            f"{', '.join(wrong)}.",
            fix="Restore the config.yaml that belongs to these weights.",
        )


def _check_run_files(folder: Path, weights_dir: Path, config: RunConfig) -> None:
    """Compare configuration and tokenizers with the record in the checkpoint.

    No manifest holds their hashes, as a run's settings may change; but what the weights mean may
    not, and the tokenizers are compared before anything parses them.
    """
    recorded = read_state(weights_dir).get("identity", {})
    if found := changed_model(recorded, config):
        raise CheckpointError(
            f"{folder / 'config.yaml'} is not of these weights:\n  " + "\n  ".join(found),
            fix="Restore these settings in it.",
        )
    expected, place = recorded.get("vocab_hash"), folder / "tokenizer"
    if expected is not None and place.is_dir() and tokenizer_hash(place) != expected:
        raise CheckpointError(
            f"{place} is not the tokenizer this model was trained with.",
            fix="Restore the run's own tokenizer folder; a copy is in the prepared data.",
        )


def _weights_dir(folder: Path, checkpoint: str) -> Path:
    if not checkpoints_dir(folder).is_dir():
        if (folder / MODEL).is_file():
            if checkpoint != "best":
                logger.warning(
                    "%s holds one model: --checkpoint %s changes nothing there.", folder, checkpoint
                )
            return folder
        raise CheckpointError(
            f"{folder} has neither {MODEL} nor checkpoints.",
            fix="Train first: `nmt train CONFIG`.",
        )
    match = re.fullmatch(rf"(?:step-)?(\d{{1,{_MAX_DIGITS}}})", checkpoint)
    if match:
        chosen = checkpoint_dir(folder, int(match[1]))
        if not chosen.is_dir():
            there = ", ".join(sorted(path.name for path in checkpoints_dir(folder).glob("step-*")))
            raise CheckpointError(
                f"{folder} has no checkpoint {chosen.name}; it has {there or 'none'}.",
                fix="Use --checkpoint best, last or one of these.",
            )
        return chosen
    if checkpoint == AVERAGE:
        if not (folder / AVERAGE).is_dir():
            raise CheckpointError(
                f"{folder} has no mean of checkpoints.",
                fix="Set training.average_last and train to the end, or use `nmt average`.",
            )
        return folder / AVERAGE
    if checkpoint not in ("best", "last"):
        raise ConfigError(
            f"checkpoint is {checkpoint[:_MAX_SHOWN]!r}.",
            fix="Use --checkpoint best, last, step-N or average.",
        )
    return _best_or_newest(folder, checkpoint)


def _best_or_newest(folder: Path, checkpoint: str) -> Path:
    if checkpoint == "best" and (best := read_best(folder)):
        return best
    newest = newest_checkpoint(folder)
    if newest is None:
        raise CheckpointError(
            f"{folder} has no checkpoint yet.", fix="Train first: `nmt train CONFIG`."
        )
    if checkpoint == "best" and (folder / BEST).is_file():
        logger.warning(
            "the best checkpoint of %s is gone: %s, the newest, is used", folder, newest.name
        )
    return newest
