"""Partial initialisation: start with a trained model that only partly matches the new one.

`training.init_differences` names what may differ. Embeddings are matched by subword. Of more layers
than the new model has, evenly spaced ones are taken (Shleifer and Rush 2020, "Pre-trained
Summarization Distillation"); with fewer layers, the last ones of the new model are new.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from torch import Tensor

from nmt.checkpoint.model_folder import ModelBundle
from nmt.config.run import RunConfig
from nmt.model.transformer import VOCABULARY_SIDES
from nmt.text import NUM_SPECIAL
from nmt.text.tokenizer import Tokenizer, Tokenizers


def layers_from(old: int, new: int) -> list[int | None]:
    """Return, for each layer of a new stack, the number of its layer in the old one; None is new.

    >>> layers_from(6, 3), layers_from(2, 3)
    ([0, 2, 5], [0, 1, None])
    """
    if new >= old:
        new_layers = [None] * (new - old)
        return [*range(old), *new_layers]
    last = max(new - 1, 1)
    return [round(number * (old - 1) / last) for number in range(new)]


def equal_rows(old: Tokenizer, new: Tokenizer) -> tuple[list[int], list[int]]:
    """Return the ids of the subwords that both vocabularies have: in the new one, in the old one.

    Special tokens have the same ids in all vocabularies, whatever they are called.
    """
    old_ids = {old.piece(index): index for index in range(NUM_SPECIAL, old.vocab_size)}
    special = range(NUM_SPECIAL)
    ours = list(special)
    theirs = list(special)
    for index in range(NUM_SPECIAL, new.vocab_size):
        old_index = old_ids.get(new.piece(index))
        if old_index is not None:
            ours.append(index)
            theirs.append(old_index)
    return ours, theirs


def initial_weights(
    config: RunConfig, start: ModelBundle, tokenizers: Tokenizers, new: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], str]:
    """Return the weights to start with, and a table of their origin.

    Args:
        config: The configuration of the new model.
        start: The model of `training.init_from`.
        tokenizers: The tokenizers of the new model.
        new: Random weights of the new model, by parameter name, float32.

    Returns:
        Weights by the same names, and one line for each layer and each embedding matrix: its
        parameters, and whether they are taken, resized or new.
    """
    differences = config.training.init_differences
    old = start.model.state_dict()
    sources = _sources(config, start)
    rows = [*map(equal_rows, start.tokenizers, tokenizers)]
    weights: dict[str, Tensor] = {}
    origins: dict[str, str] = {}
    sizes = Counter[str]()
    for name, value in new.items():
        components = name.split(".")
        part = components[0]
        if part in ("encoder", "decoder"):
            part += f".{components[1]}"
        sizes[part] += value.numel()
        source = sources.get(part, part)
        if part in VOCABULARY_SIDES and "vocabulary" in differences:
            ours, theirs = rows[VOCABULARY_SIDES[part]]
            weights[name] = value.clone()
            taken = old[name][theirs]
            weights[name][ours] = taken.to(value.device)
            origins[part] = f"resized: {len(ours):,} of {len(value):,} rows taken, by subword"
        elif source is None:
            weights[name] = value
            origins[part] = "new"
        else:
            weights[name] = old[source + name.removeprefix(part)]
            origins[part] = "taken"
            if source != part:
                origins[part] += f" from {source}"
    lines = [f"{'part':<20}{'parameters':>14}  origin"]
    for part, origin in origins.items():
        lines.append(f"{part:<20}{sizes[part]:>14,}  {origin}")
    return weights, "\n  ".join(lines)


def _sources(config: RunConfig, start: ModelBundle) -> dict[str, str | None]:
    """Return, for each layer of the new model, its layer in the old one; None is new."""
    sources: dict[str, str | None] = {}
    for side in ("encoder", "decoder"):
        is_new = side in config.training.init_differences
        old_layers = getattr(start.config.model, f"{side}_layers")
        new_layers = getattr(config.model, f"{side}_layers")
        for number, index in enumerate(layers_from(old_layers, new_layers)):
            layer = f"{side}.{number}"
            sources[layer] = None
            if index is not None and not is_new:
                sources[layer] = f"{side}.{index}"
        if is_new:
            sources[f"{side}_norm"] = None
    return sources
