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


def filled_in(given: Values, values: Values) -> dict[str, Any]:
    """Add ``values`` for keys that ``given`` does not contain, section by section.

    If ``given`` has a different optimizer than ``values``, the added learning rate is the usual
    rate of AdamW. ``warmup_ratio`` is not added if ``given`` has ``warmup_steps``.

    >>> filled_in({"a": {"x": 1}}, {"a": {"x": 2, "y": 3}, "b": 4})
    {'a': {'x': 1, 'y': 3}, 'b': 4}
    """
    if _has_other_optimizer(given, values):
        schedule = {**values["schedule"], "peak_lr": _ADAMW_RATE}
        values = {**values, "optimizer": {}, "schedule": schedule}
    filled = dict(given)
    for key, value in values.items():
        section = given.get(key)
        if section is None and isinstance(value, Mapping):  # null is a section without keys
            section = {}
        if isinstance(section, Mapping) and isinstance(value, Mapping):
            filled[key] = filled_in(section, value)
        elif key not in given and not (key == "warmup_ratio" and "warmup_steps" in given):
            filled[key] = value
    return filled


def _has_other_optimizer(given: Values, values: Values) -> bool:
    usual = values.get("optimizer")
    chosen = given.get("optimizer")
    if not usual or not isinstance(chosen, Mapping):
        return False
    return bool(chosen.get("kind", usual["kind"]) != usual["kind"])


def with_recorded(given: Values, recorded: Values) -> dict[str, Any]:
    """Add the values that a run has recorded for keys that ``given`` does not contain.

    A section whose preset, recipe or kind of optimizer has changed is not filled in, because the
    recorded values belong to the old choice.

    Args:
        given: The user's configuration, with overrides.
        recorded: Complete configuration of the run.

    >>> recorded = {"training": {"max_minutes": 20, "seed": 3}, "name": "a"}
    >>> with_recorded({"training": {"max_steps": 100}}, recorded)
    {'training': {'max_steps': 100, 'seed': 3}, 'name': 'a'}
    """
    if any(_has_changed(key, given, recorded) for key in _CHOICES):
        return dict(given)
    filled = dict(given)
    for key, value in recorded.items():
        is_empty_section = isinstance(value, Mapping) and given.get(key) is None
        if key not in given or (is_empty_section and key not in _OPTIONAL):
            if not _is_replaced(key, given, recorded):
                filled[key] = value
        elif key in _NAMED:
            filled[key] = _filled_names(given[key], value)
        else:
            filled[key] = _filled(given[key], value)
    return filled


def _has_changed(key: str, given: Values, recorded: Values) -> bool:
    return key in given and given[key] != recorded.get(key)


def _is_replaced(key: str, given: Values, recorded: Values) -> bool:
    """Whether the user has set a new value of an alternative to a key."""
    for group in _ALTERNATIVES:
        if key not in group:
            continue
        for other in group:
            if given.get(other) is not None and _has_changed(other, given, recorded):
                return True
    return False


def _is_elsewhere(key: str, given: Values, recorded: Values) -> bool:
    """Whether a corpus is read from another place; paths may be spelled differently."""
    if not _has_changed(key, given, recorded):
        return False
    now = given[key]
    before = recorded.get(key)
    if isinstance(now, str) and isinstance(before, str):
        return Path(now) != Path(before)
    return True


def _filled_names(given: Any, recorded: Any) -> Any:
    if not isinstance(given, Mapping) or not isinstance(recorded, Mapping):
        return given
    return {name: _filled(value, recorded.get(name)) for name, value in given.items()}


def _filled(given: Any, recorded: Any) -> Any:
    """Return the user's value of a key; keys that it leaves open get their recorded values."""
    if isinstance(given, list) and isinstance(recorded, list) and len(given) == len(recorded):
        return list(map(_filled, given, recorded))
    if not isinstance(recorded, Mapping):
        return given
    if isinstance(given, list) and len(given) == 1:  # one validation set, written as a list
        return [_filled(given[0], recorded)]
    if isinstance(given, str) and "action" in recorded:  # the short form of a filter
        return {**recorded, "action": given}
    if not isinstance(given, Mapping):
        return given
    if any(_is_elsewhere(key, given, recorded) for key in PLACES):
        return given  # another corpus
    return with_recorded(given, recorded)


def scale_of(num_characters: int) -> Scale:
    """Return the hyperparameters for a corpus of this size."""
    return next(scale for scale in SCALES if num_characters <= scale.max_characters)


def with_scale(values: Values, num_characters: int) -> dict[str, Any]:
    """Add values for a corpus of ``num_characters`` to a configuration."""
    recipe = RECIPES.get(str(values.get("recipe")), {})  # has its own dropout
    sections = filled_in(recipe, scale_of(num_characters).sections)
    return filled_in(values, sections)


def usual_vocab_size(num_pairs: int) -> int:
    """Return the usual vocabulary size for a number of sentence pairs (a rule of thumb).

    It is proportional to ``num_pairs ** 0.4``, from 2,000 for 5,000 pairs to the published 32,000
    for 4.5 million.

    >>> [usual_vocab_size(n) for n in (5_000, 30_000, 160_000, 4_500_000)]
    [2000, 4000, 8000, 32000]
    """
    wanted = 2000 * (num_pairs / 5000) ** 0.4
    return min(_VOCAB_SIZES, key=lambda size: abs(size - wanted) / size)
