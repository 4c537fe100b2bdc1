"""``training.start_from``: may a run begin with the weights of that model, and what is told."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from nmt.checkpoint.bundle import ModelBundle
from nmt.checkpoint.model_folder import load_folder_config
from nmt.config.run import RunConfig
from nmt.errors import ConfigError
from nmt.model.transformer import build_model
from nmt.training.parameters import freeze

# Of the model section: they change no weight's meaning.
_REGULARISATION = ("preset", "dropout", "attention_dropout", "activation_dropout", "word_dropout")
_ANY_SIZE = 8


def check_start(config: RunConfig) -> None:
    """Refuse a run that could not begin, before its data are prepared.

    Raises:
        ConfigError: ``training.start_from`` has another model, or ``training.freeze`` names no part
            of this one.
    """
    folder = config.training.start_from
    if folder is not None and (folder / "config.yaml").is_file():
        _check_shape(config, load_folder_config(folder))
    with torch.device("meta"):  # names alone, no numbers
        freeze(build_model(config.model, _ANY_SIZE, _ANY_SIZE), config.training.freeze)


def _check_shape(config: RunConfig, start: RunConfig) -> None:
    was, now = (c.model.model_dump() for c in (start, config))
    differing = [
        f"model.{key}: {was[key]} there, {now[key]} here"
        for key in now
        if key not in _REGULARISATION and was[key] != now[key]
    ]
    if differing:
        folder = config.training.start_from
        raise ConfigError(
            f"{folder} (training.start_from) has another model:\n  " + "\n  ".join(differing),
            fix=f"Copy the model section of {folder}/config.yaml.",
        )


def start_notes(config: RunConfig, start: ModelBundle) -> Iterator[str]:
    """Tell what a reader of ``config`` may not expect of a run that begins with ``start``.

    Raises:
        ConfigError: ``start`` has another model.
    """
    _check_shape(config, start.config)
    folder = config.training.start_from
    was, now = ((c.source_language, c.target_language) for c in (start.config, config))
    if was != now:
        languages = f"from {was[0]} to {was[1]}, this run is from {now[0]} to {now[1]}"
        yield f"{folder} was trained {languages}"
    size = start.tokenizers.target.vocab_size
    if "tokenizer" in config.model_fields_set and config.tokenizer.vocab_size != size:
        yield (
            f"the vocabulary is that of {folder} ({size:,} entries): the tokenizer section changes "
            "nothing"
        )
