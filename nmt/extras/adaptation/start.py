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


def layers_from(num_old: int, num_new: int) -> list[int | None]:
    """Return, for each layer of a new stack, the index of its layer in the old one; None is new.

    >>> layers_from(6, 3), layers_from(2, 3)
    ([0, 2, 5], [0, 1, None])
    """
    if num_new >= num_old:
        added_layers = [None] * (num_new - num_old)
        return [*range(num_old), *added_layers]
    # Evenly spaced, from the first to the last layer. A stack of one layer gets the first.
    last = max(num_new - 1, 1)
    return [round(index * (num_old - 1) / last) for index in range(num_new)]


def equal_rows(old: Tokenizer, new: Tokenizer) -> tuple[list[int], list[int]]:
    """Return the ids of the subwords that both vocabularies have: in the new one, in the old one.

    Special tokens have the same ids in all vocabularies, whatever they are called.
    """
    ids_by_piece = {old.piece(old_id): old_id for old_id in range(NUM_SPECIAL, old.vocab_size)}
    special_ids = range(NUM_SPECIAL)
    new_ids = list(special_ids)
    old_ids = list(special_ids)
    for new_id in range(NUM_SPECIAL, new.vocab_size):
        old_id = ids_by_piece.get(new.piece(new_id))
        if old_id is not None:
            new_ids.append(new_id)
            old_ids.append(old_id)
    return new_ids, old_ids


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
    # For the source and the target vocabulary: the result of `equal_rows`.
    rows = [*map(equal_rows, start.tokenizers, tokenizers)]
    weights = dict[str, Tensor]()
    # A part is a layer such as ``encoder.0``, an embedding matrix, or another parameter at the top.
    origins = dict[str, str]()
    sizes = Counter[str]()  # Number of weights of each part.
    for name, value in new.items():
        components = name.split(".")
        part = components[0]
        if part in ("encoder", "decoder"):
            part += f".{components[1]}"
        sizes[part] += value.numel()
        # The part of the old model to take; the part of the same name unless the layers differ.
        source = sources.get(part, part)
        if part in VOCABULARY_SIDES and "vocabulary" in differences:
            new_ids, old_ids = rows[VOCABULARY_SIDES[part]]
            weights[name] = value.clone()
            taken = old[name][old_ids]
            weights[name][new_ids] = taken.to(value.device)
            origins[part] = f"resized: {len(new_ids):,} of {len(value):,} rows taken, by subword"
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
    """Return, for each layer of the new model, its layer in the old one; None is new.

    For example ``{"encoder.0": "encoder.0", "encoder.1": "encoder.5", "decoder.0": None, ...}``.
    """
    sources = dict[str, str | None]()
    for side in ("encoder", "decoder"):
        is_new = side in config.training.init_differences
        num_old = getattr(start.config.model, f"{side}_layers")
        num_new = getattr(config.model, f"{side}_layers")
        for index, old_index in enumerate(layers_from(num_old, num_new)):
            layer = f"{side}.{index}"
            sources[layer] = None
            if old_index is not None and not is_new:
                sources[layer] = f"{side}.{old_index}"
        if is_new:
            sources[f"{side}_norm"] = None  # the norm after the last layer
    return sources
