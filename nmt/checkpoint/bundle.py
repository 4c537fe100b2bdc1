"""A model folder -> model, tokenizers and configuration, verified."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

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
)
from nmt.checkpoint.parts import load_folder_config, load_folder_tokenizers, readable
from nmt.checkpoint.run import changed_model
from nmt.config.run import RunConfig
from nmt.errors import CheckpointError, ConfigError
from nmt.files.manifest import Manifest
from nmt.model.factory import build_model
from nmt.model.transformer import Transformer
from nmt.text.tokenizer import Tokenizers, tokenizer_hash


@dataclass(frozen=True, slots=True)
class ModelBundle:
    """Everything that translating needs."""

    model: Transformer
    """On the CPU, in float32, not training."""
    config: RunConfig
    """The configuration it was trained with."""
    tokenizers: Tokenizers
    """Of both languages."""
    step: int
    """Updates it was trained for."""
    folder: Path
    """Where the weights came from."""
    sha256: str
    """Of the file of the weights."""


def load_model(
    folder: Path, checkpoint: str = "best", *, warn: Callable[[str], None] = lambda _: None
) -> ModelBundle:
    """Load a model from a run folder, or from a folder with weights, config.yaml and tokenizer.

    Args:
        folder: The run or model folder.
        checkpoint: In a run folder: ``best``, ``last``, ``step-N`` or ``average``.
        warn: Told about damaged checkpoints that ``last`` passes over, and of a choice that
            changes nothing.

    Raises:
        CheckpointError: A part is missing or damaged, or weights and configuration disagree.
        ConfigError: ``checkpoint`` is none of these.
    """
    with readable():
        return _load_model(folder, checkpoint, warn)


def _load_model(folder: Path, checkpoint: str, warn: Callable[[str], None]) -> ModelBundle:
    if not folder.is_dir():
        raise CheckpointError(
            f"{folder} is not a folder.", fix="Name the run folder that `nmt train` wrote."
        )
    config = load_folder_config(folder)
    weights_dir = _weights_dir(folder, checkpoint, warn)
    if weights_dir == folder / AVERAGE:
        return load_model(weights_dir)
    manifest = Manifest.read(weights_dir)
    if weights_dir == folder:
        manifest.verify(folder)
    else:
        manifest.verify(weights_dir, (MODEL, STATE))
        _check_run_files(folder, weights_dir, config)
    tokenizers = load_folder_tokenizers(folder)
    try:
        model = build_model(config.model, *tokenizers.vocab_sizes)
    except ValueError as error:
        raise CheckpointError(
            f"config.yaml and tokenizer of {folder} do not fit each other: {error}.",
            fix="Restore the config.yaml and tokenizer that `nmt train` wrote.",
        ) from error
    _load_weights(model, weights_dir / MODEL)
    sha256 = manifest.files[MODEL].sha256
    return ModelBundle(model.eval(), config, tokenizers, manifest.step, weights_dir, sha256)


def _check_run_files(folder: Path, weights_dir: Path, config: RunConfig) -> None:
    """Compare configuration and tokenizers with the record in the checkpoint.

    No manifest holds their hashes, as a run's settings may change; but what the weights mean may
    not, and the tokenizers are compared before anything parses them.
    """
    state = json.loads((weights_dir / STATE).read_text(encoding="utf-8"))
    recorded = state.get("identity", {})
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


def _weights_dir(folder: Path, checkpoint: str, warn: Callable[[str], None]) -> Path:
    if not checkpoints_dir(folder).is_dir():
        if (folder / MODEL).is_file():
            if checkpoint != "best":
                warn(f"{folder} holds one model: --checkpoint {checkpoint} changes nothing there.")
            return folder
        raise CheckpointError(
            f"{folder} has neither {MODEL} nor checkpoints.",
            fix="Train first: `nmt train CONFIG`.",
        )
    match = re.fullmatch(r"(?:step-)?(\d+)", checkpoint)
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
            f"checkpoint is {checkpoint!r}.",
            fix="Use --checkpoint best, last, step-N or average.",
        )
    return _best_or_newest(folder, warn) if checkpoint == "best" else _newest(folder, warn)


def _best_or_newest(folder: Path, warn: Callable[[str], None]) -> Path:
    best = read_best(folder)
    if best is not None:
        return best
    chosen = _newest(folder, warn)
    if (folder / BEST).is_file():
        warn(f"the best checkpoint of {folder} is gone: {chosen.name}, the newest, is used")
    return chosen


def _newest(folder: Path, warn: Callable[[str], None]) -> Path:
    chosen = newest_checkpoint(folder, warn=warn)
    if chosen is None:
        raise CheckpointError(
            f"{folder} has no checkpoint yet.", fix="Train first: `nmt train CONFIG`."
        )
    return chosen


def _load_weights(model: Transformer, path: Path) -> None:
    found, expected = load_tensors(path), model.state_dict()
    problems = [f"missing: {name}" for name in sorted(expected.keys() - found.keys())]
    problems += [f"not of this model: {name}" for name in sorted(found.keys() - expected.keys())]
    problems += [
        f"{name}: {tuple(found[name].shape)} in the file, {tuple(tensor.shape)} in config.yaml"
        for name, tensor in expected.items()
        if name in found and found[name].shape != tensor.shape
    ]
    if problems:
        shown = problems[:10] + ([f"... and {len(problems) - 10} more"] if problems[10:] else [])
        raise CheckpointError(
            f"{path} does not fit config.yaml and tokenizer:\n  " + "\n  ".join(shown),
            fix="Restore the config.yaml and tokenizer that belong to these weights.",
        )
    model.load_state_dict({name: tensor.float() for name, tensor in found.items()})
