"""Settings of other toolkits in nmt's words: names, values, and what nmt does not have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from textwrap import indent
from typing import Any

from pydantic import ValidationError

from nmt.config.document import dump_document, parse_document
from nmt.config.keys import (
    KeyPath,
    aliases,
    choice_in,
    dotted,
    find_key,
    find_problems,
    known_key,
    leaves,
    normal,
)
from nmt.config.run import RunConfig
from nmt.errors import ConfigError

# A valid configuration, to which values are added to see whether they are accepted.
_EXAMPLE = """
name: x
source_language: en
target_language: de
data: {train: [{source: a, target: b}], valid: {source: a, target: b}}
training: {max_steps: 1}
"""
MANY = 4  # More unknown keys are those of another toolkit, not misspelled.
_BRACKETS = "[](){}\"'"


@dataclass
class Translation:
    """Settings of another toolkit in nmt's words."""

    settings: dict[str, str] = field(default_factory=dict)  # Accepted values as YAML, by key.
    # Settings that nmt does not have, or whose values it does not accept, with their values.
    left: list[str] = field(default_factory=list)

    def add(self, typed: str, ours: str, text: str) -> bool:
        """Add a setting; return whether nmt accepts its value.

        Args:
            typed: The setting and its value in the words of the user.
            ours: nmt's name, from `known_key`; empty if there is none.
            text: The value as YAML; ``true`` for a switch.
        """
        settings = _exchanged(ours, text)
        if any(self.settings.get(key, new) != new for key, new in settings.items()):
            settings = {}  # two settings are one here, and differ
        self.settings |= settings
        if not settings:
            self.left.append(f"{typed} (here: {ours})" if ours else typed)
        return bool(settings)

    def as_yaml(self) -> str:
        """Return the accepted values as YAML, and what must be corrected in it."""
        document = parse_document("{}", name="")
        for key, text in self.settings.items():
            document.override(f"{key}={text}")
        problems = [f"  {message}" for _, message in _problems(self.settings)]
        block = indent(dump_document(document.values), "    ")
        return "\n".join(["Set these values in it:", block.rstrip(), *problems])

    def rest(self) -> str:
        """Return what was not accepted; empty if there is nothing."""
        if not self.left:
            return ""
        return "\n    ".join(["\n  Without a counterpart:", *self.left])


def refuse_foreign(name: str, values: Mapping[str, Any]) -> None:
    """Check that a configuration is not that of another toolkit, in which most keys are unknown.

    Raises:
        ConfigError: It is. The fix has its values in nmt's words.
    """
    translation = Translation()
    is_known: list[bool] = []
    for path, value in leaves(values):
        is_known.append(find_key(path) is not None)
        text = json.dumps(value, ensure_ascii=False)
        ours = known_key(path, value)
        if (
            ours.startswith("data.") and path[1:] and not find_key(path[:-1])
        ):  # a corpus with a name
            ours = ""
        translation.add(f"{dotted(path)}: {text}", ours, text)
    if is_known.count(False) > max(is_known.count(True), MANY):
        problem = f"{name} is the configuration of another toolkit.{translation.rest()}"
        fix = f"Write a configuration (nmt init SOURCE TARGET). {translation.as_yaml()}"
        raise ConfigError(problem, fix=fix)


def _exchanged(ours: str, text: str) -> dict[str, str]:
    """Return a value of another toolkit as YAML, by nmt's keys; empty if nmt does not accept it."""
    name, _, fixed = f"{ours}{choice_in(ours, text.strip(_BRACKETS))}".partition("=")
    keys = name.split(" and ")
    texts = re.split("[:-]", text.strip('"'))  # 6:6, de-en
    if len(texts) != len(keys):
        texts = [text] * len(keys)
    if fixed:
        is_on = text.lower() == "true" or "=" not in ours
        texts = [fixed] if is_on else []
    settings: dict[str, str] = {}
    for key, item in zip(keys, texts, strict=False):
        if key.endswith("_language"):  # en_XX
            item = re.sub("_[A-Z]{2}$", "", item.strip('"'))
        for form in _forms(key, item):
            if key not in settings and _is_accepted(key, form):
                settings[key] = form
    return settings if len(settings) == len(keys) else {}


def _forms(key: str, text: str) -> Iterator[str]:
    """Yield a value of another toolkit in the forms that nmt may accept for a key."""
    bare = text.strip(_BRACKETS).replace('"', "")
    yield text
    yield bare
    yield f"[{bare.replace(':', ',')}]"
    first, _, second = bare.partition(", ")
    yield f"{{source: {first}, target: {second}}}"
    yield f"[{{source: {first}, target: {second}}}]"
    for ours in aliases().get(normal(bare), ()):
        if ours.startswith(f"{key}="):
            yield ours.removeprefix(f"{key}=")


def _is_accepted(key: str, text: str) -> bool:
    """Return whether a key accepts a value, whatever the rules between keys say."""
    problems = _problems({key: text})
    return not any(f"{dotted(place)}.".startswith(f"{key}.") for place, _ in problems)


def _problems(settings: Mapping[str, str]) -> list[tuple[KeyPath, str]]:
    """Return what is wrong with values, by key."""
    document = parse_document(_EXAMPLE, name="")
    for key, text in settings.items():
        try:
            document.override(f"{key}={text}")
        except (ConfigError, ValueError) as error:  # not YAML, or not a key
            return [(tuple(key.split(".")), str(error))]
    try:
        RunConfig.model_validate(document.values)
    except ValidationError as error:
        return find_problems(error)
    return []
