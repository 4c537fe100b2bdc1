"""Values for the keys that a configuration leaves open.

They come from a preset, a recipe or the size of the corpus (presets.yaml), from an older version,
or from a run. A resumed run keeps the values of its first start, although the defaults of a later
version differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

Values = Mapping[str, Any]

# A limit or a schedule that the user sets replaces the others: only one of these keys is set.
_ALTERNATIVES = (
    ("max_steps", "max_minutes", "max_epochs"),
    ("warmup_steps", "warmup_ratio"),
)
# Sections whose keys are names that the user chose. Names that are left out were removed.
_NAMED = ("test", "extra", "mix", "until")
# Sections that null switches off. Elsewhere, null is a section without keys.
_OPTIONAL = ("lora", "replay")
# Keys that choose a set of values. If one has changed, recorded values belong to the old choice.
_CHOICES = ("recipe", "preset", "kind")
# Keys that say where a corpus is. If one has changed, it is another corpus.
PLACES = ("source", "target", "tsv", "csv", "jsonl", "huggingface", "sacrebleu", "demo")
_ADAMW_RATE = 1e-3  # Usual `peak_lr` of AdamW.
_VOCAB_SIZES = (500, 1000, 2000, 4000, 8000, 16_000, 32_000)


@dataclass(frozen=True)
class Scale:
    """Hyperparameters for a corpus of up to ``max_characters``, both languages together."""

    max_characters: float
    sections: Mapping[str, Values]  # Of a configuration.


_PRESETS = yaml.safe_load(Path(__file__).with_name("presets.yaml").read_text("utf-8"))
MODEL_PRESETS: Mapping[str, Values] = _PRESETS["models"]
RECIPES: Mapping[str, Mapping[str, Values]] = _PRESETS["recipes"]
SCALES = tuple(Scale(**values) for values in _PRESETS["scales"])  # From small to large.


def filled_in(values: Values, defaults: Values) -> dict[str, Any]:
    """Return ``values`` with the ``defaults`` of the keys that they lack, section by section.

    If ``values`` have a different optimizer than ``defaults``, the added learning rate is the usual
    rate of AdamW. ``warmup_ratio`` is not added if ``values`` have ``warmup_steps``.

    >>> filled_in({"a": {"x": 1}}, {"a": {"x": 2, "y": 3}, "b": 4})
    {'a': {'x': 1, 'y': 3}, 'b': 4}
    """
    if _has_other_optimizer(values, defaults):
        # The defaults suit their own optimizer only.
        schedule = {**defaults["schedule"], "peak_lr": _ADAMW_RATE}
        defaults = {**defaults, "optimizer": {}, "schedule": schedule}
    filled = dict(values)
    for key, default in defaults.items():
        is_replaced = key == "warmup_ratio" and "warmup_steps" in values
        section = values.get(key)
        if section is None and isinstance(default, Mapping):  # null is a section without keys
            section = {}
        if isinstance(section, Mapping) and isinstance(default, Mapping):
            filled[key] = filled_in(section, default)
        elif key not in values and not is_replaced:
            filled[key] = default
    return filled


def _has_other_optimizer(values: Values, defaults: Values) -> bool:
    usual = defaults.get("optimizer")
    chosen = values.get("optimizer")
    if not usual or not isinstance(chosen, Mapping):
        return False
    return bool(chosen.get("kind", usual["kind"]) != usual["kind"])


# Below, ``values`` is the user's configuration, or a section of it, and ``recorded`` is the same
# section of the complete configuration that a run has recorded.


def with_recorded(values: Values, recorded: Values) -> dict[str, Any]:
    """Return ``values`` with the recorded values of the keys that they lack.

    A section whose preset, recipe or kind of optimizer has changed is not filled in, because the
    recorded values belong to the old choice.

    Args:
        values: The user's configuration, with overrides.
        recorded: Complete configuration of the run.

    >>> recorded = {"training": {"max_minutes": 20, "seed": 3}, "name": "a"}
    >>> with_recorded({"training": {"max_steps": 100}}, recorded)
    {'training': {'max_steps': 100, 'seed': 3}, 'name': 'a'}
    """
    if any(_has_changed(key, values, recorded) for key in _CHOICES):
        return dict(values)
    filled = dict(values)
    for key, recorded_value in recorded.items():
        is_empty_section = isinstance(recorded_value, Mapping) and values.get(key) is None
        # An open key gets its recorded value, unless the user has set an alternative to it.
        if key not in values or (is_empty_section and key not in _OPTIONAL):
            if not _is_replaced(key, values, recorded):
                filled[key] = recorded_value
        elif key in _NAMED:
            filled[key] = _filled_names(values[key], recorded_value)
        else:
            filled[key] = _filled(values[key], recorded_value)
    return filled


def _has_changed(key: str, values: Values, recorded: Values) -> bool:
    """Whether the user has set a key to another value than the recorded one."""
    return key in values and values[key] != recorded.get(key)


def _is_replaced(key: str, values: Values, recorded: Values) -> bool:
    """Whether the user has set a new value of an alternative to a key.

    For example, ``max_epochs`` that the user has added replaces a recorded ``max_minutes``.
    """
    for group in _ALTERNATIVES:
        if key not in group:
            continue
        for alternative in group:
            # Null sets no limit, so it replaces nothing.
            if values.get(alternative) is not None and _has_changed(alternative, values, recorded):
                return True
    return False


def _is_elsewhere(key: str, values: Values, recorded: Values) -> bool:
    """Whether a corpus is read from another place; paths may be spelled differently."""
    if not _has_changed(key, values, recorded):
        return False
    place = values[key]
    recorded_place = recorded.get(key)
    if isinstance(place, str) and isinstance(recorded_place, str):
        return Path(place) != Path(recorded_place)
    return True


def _filled_names(values: Any, recorded: Any) -> Any:
    """Fill in the sections under names that the user chose; add no recorded names."""
    if not isinstance(values, Mapping) or not isinstance(recorded, Mapping):
        return values
    return {name: _filled(value, recorded.get(name)) for name, value in values.items()}


def _filled(value: Any, recorded: Any) -> Any:
    """Return the user's value of a key; keys that it leaves open get their recorded values.

    Args:
        value: A section, a list of sections, or any other value of the user.
        recorded: The recorded value of the same key; None if there is none.
    """
    if isinstance(value, list) and isinstance(recorded, list) and len(value) == len(recorded):
        return list(map(_filled, value, recorded))
    if not isinstance(recorded, Mapping):
        return value
    if isinstance(value, list) and len(value) == 1:  # one validation set, written as a list
        return [_filled(value[0], recorded)]
    if isinstance(value, str) and "action" in recorded:  # the short form of a filter
        return {**recorded, "action": value}
    if not isinstance(value, Mapping):
        return value
    if any(_is_elsewhere(key, value, recorded) for key in PLACES):
        return value  # another corpus
    return with_recorded(value, recorded)


def scale_of(num_characters: int) -> Scale:
    """Return the hyperparameters for a corpus of this size; the last scale has no limit."""
    return next(scale for scale in SCALES if num_characters <= scale.max_characters)


def with_scale(values: Values, num_characters: int) -> dict[str, Any]:
    """Add values for a corpus of ``num_characters`` to a configuration."""
    # The recipe comes before the scale, because the dropout of the recipe must win.
    recipe = RECIPES.get(str(values.get("recipe")), {})
    sections = filled_in(recipe, scale_of(num_characters).sections)
    return filled_in(values, sections)


def usual_vocab_size(num_pairs: int) -> int:
    """Return the usual vocabulary size for a number of sentence pairs (a rule of thumb).

    It is proportional to ``num_pairs ** 0.4``, from 2,000 for 5,000 pairs to the published 32,000
    for 4.5 million.

    >>> [usual_vocab_size(n) for n in (5_000, 30_000, 160_000, 4_500_000)]
    [2000, 4000, 8000, 32000]
    """
    size_of_rule = 2000 * (num_pairs / 5000) ** 0.4
    # The round size with the smallest relative difference.
    return min(_VOCAB_SIZES, key=lambda size: abs(size - size_of_rule) / size)
