"""Values for the keys that a configuration leaves open.

They come from a preset or the size of the training text (presets.yaml), from an older version, or
from a run. A resumed run keeps the values of its first start, although the defaults of a later
version differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from nmt.config.paths import expanded
from nmt.errors import ConfigError, DataError

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
_CHOICES = ("preset", "kind")
# Keys that say where a corpus is. If one has changed, it is another corpus.
PLACES = ("source", "target", "path", "huggingface", "sacrebleu", "demo")
# Keys that stand for ``path`` and a ``format`` with their name.
FORMATS = ("tsv", "csv", "jsonl")
_ADAMW_RATE = 1e-3  # Usual `peak_lr` of AdamW.
_VOCAB_SIZES = (500, 1000, 2000, 4000, 8000, 16_000, 32_000)


@dataclass(frozen=True)
class Scale:
    """Hyperparameters for a corpus of up to ``max_characters``, both languages together."""

    max_characters: float
    sections: Mapping[str, Values]  # Of a configuration.


_PRESETS = yaml.safe_load(Path(__file__).with_name("presets.yaml").read_text("utf-8"))
MODEL_PRESETS: Mapping[str, Values] = _PRESETS["models"]
SCALES = tuple(Scale(**values) for values in _PRESETS["scales"])  # From small to large.
# Hyperparameters of `nmt init` for a corpus of the last scale, on a machine without a GPU.
WITHOUT_GPU = Scale(**_PRESETS["without_gpu"])
# A text with more characters is in the last scale, so its exact size makes no difference.
ENOUGH_CHARACTERS = SCALES[-2].max_characters
# Keys of `model` that determine its size, if all of them or a preset are set.
_SIZE_KEYS = ("encoder_layers", "decoder_layers", "model_dim", "ff_dim", "num_heads")
_LIMITS = _ALTERNATIVES[0]


class UnknownSizeError(ConfigError):
    """The size of the training text is unknown, so values cannot be chosen for it."""


@dataclass(frozen=True)
class TextSize:
    """Size of the text that one epoch of training reads, both languages together."""

    num_pairs: int
    num_characters: int
    is_complete: bool = True  # False: there is more text, which was not counted.

    def __str__(self) -> str:
        """The counts, and the scale to which they belong."""
        scale = scale_of(self.num_characters)
        bounds = f"up to {scale.max_characters:,}"
        if scale is SCALES[-1]:
            bounds = f"over {ENOUGH_CHARACTERS:,}"
        counts = f"{self.num_pairs:,} pairs with {self.num_characters:,} characters"
        if not self.is_complete:
            counts = f"over {counts}"
        number = 1 + SCALES.index(scale)
        return f"{counts} (size {number} of {len(SCALES)}: {bounds} characters)"


@dataclass(frozen=True)
class Choice:
    """Values that nmt has chosen for keys that the user leaves open, and why."""

    reason: str
    values: Mapping[str, Any]  # By keys with dots, such as ``model.preset``.
    depends_on_text: bool = True  # False: no open key follows the size of the text.
    error: ConfigError | DataError | None = None  # Why the size is unknown, if training needs it.

    def __str__(self) -> str:
        chosen = ", ".join(f"{key} {value}" for key, value in self.values.items())
        return ": ".join(filter(None, (self.reason, chosen)))


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

    A section whose preset or kind of optimizer has changed is not filled in, because the
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


def with_path(corpus: Values) -> dict[str, Any]:
    """Return a corpus in which ``tsv: FILE`` is replaced by ``path: FILE`` and ``format: tsv``.

    A corpus with several places is not changed. Older versions wrote the three keys and the default
    [0, 1] of ``columns`` into every corpus, also where a header or keys decided.

    >>> with_path({"csv": "a", "weight": 2}), with_path({"source": "a", "tsv": None})
    ({'weight': 2, 'path': 'a', 'format': 'csv'}, {'source': 'a'})
    """
    changed = {key: value for key, value in corpus.items() if key not in FORMATS}
    used = [key for key in FORMATS if corpus.get(key) is not None]
    if any(isinstance(corpus[key], Mapping) for key in used):
        return dict(corpus)  # test sets with these names
    is_old = all(key in corpus for key in FORMATS)
    if is_old and used != ["tsv"] and list(corpus.get("columns") or ()) == [0, 1]:
        del changed["columns"]
    if not used:
        return changed
    key = used[0]
    if len(used) > 1 or corpus.get("path") is not None or corpus.get("format") not in (None, key):
        return dict(corpus)
    return {**changed, "path": corpus[key], "format": key}


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
        return expanded(Path(place)) != Path(recorded_place)
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
    value = with_path(value)
    if any(_is_elsewhere(key, value, recorded) for key in PLACES):
        return value  # another corpus
    return with_recorded(value, recorded)


def scale_of(num_characters: int) -> Scale:
    """Return the hyperparameters for a corpus of this size; the last scale has no limit."""
    return next(scale for scale in SCALES if num_characters <= scale.max_characters)


def own_model(values: Values) -> str:
    """Return the keys by which a configuration determines its model; empty if it leaves it open.

    Then the other keys that the configuration leaves open have the general defaults, because the
    values of a scale were measured together with its model.
    """
    if section_of(values, "training").get("init_from") is not None:
        return "training.init_from"
    model = section_of(values, "model")
    if "preset" in model:
        return "model.preset"
    if all(key in model for key in _SIZE_KEYS):
        return "the size of the model"
    return ""


def section_of(values: Values, key: str) -> Values:
    """Return the section at a key; empty if it is missing, null or an error, reported later."""
    section = values.get(key)
    return section if isinstance(section, Mapping) else {}


def has_limit(values: Values) -> bool:
    """Whether a configuration says when training ends."""
    training = section_of(values, "training")
    return any(training.get(key) is not None for key in (*_LIMITS, "patience"))


def with_scale(values: Values, num_characters: int) -> dict[str, Any]:
    """Add the values that suit a training text of ``num_characters``, for keys that are open.

    A limit of training that the user has set replaces the usual time. A configuration with a model
    of its own (`own_model`) gets this time only, and only if it has no limit.
    """
    sections = scale_of(num_characters).sections
    usual = sections["training"]
    training = section_of(values, "training")
    if own_model(values):
        if has_limit(values):
            return dict(values)
        return filled_in(values, {"training": {"max_minutes": usual["max_minutes"]}})
    if any(training.get(key) is not None for key in _LIMITS):
        usual = {key: value for key, value in usual.items() if key != "max_minutes"}
    return filled_in(values, {**sections, "training": usual})


def follows_text(values: Values) -> bool:
    """Whether keys are open whose values follow the size of the training text."""
    return with_scale(values, 0) != values


def added_values(filled: Values, values: Values, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the keys, with dots, and values that ``filled`` has in addition to ``values``.

    >>> dict(added_values({"a": {"x": 1, "y": 3}, "b": 4}, {"a": {"x": 1}}))
    {'a.y': 3, 'b': 4}
    """
    for key, value in filled.items():
        if isinstance(value, Mapping):
            yield from added_values(value, section_of(values, key), f"{prefix}{key}.")
        elif key not in values:
            yield f"{prefix}{key}", value


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
