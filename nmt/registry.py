"""Registries: names of alternatives -> objects that are imported on first use.

``registry.toml`` lists the built-in alternatives of each kind as text. The core refers to extras
only in this way. If the folder of an extra is missing, only the names of this extra raise an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Generic, TypeVar

from nmt.errors import ConfigError
from nmt.installation import read_toml

T = TypeVar("T")
_EXTRAS = "nmt.extras."
# Kind -> name -> ``module:attribute``.
_BUILT_IN: dict[str, dict[str, str]] = read_toml(__file__, "registry.toml")
_BY_KIND: dict[str, Registry[Any]] = {}  # The registry of each kind, if it has been created.


class Registry(Generic[T]):
    """Alternatives of one kind by name, for example filters, metrics, engines or export targets.

    Args:
        kind: Word for an entry in messages, for example ``metric``.
        suggest: Whether the error for an unknown name suggests a similar name.
    """

    def __init__(self, kind: str, *, suggest: bool = True) -> None:
        self.kind = kind
        self._suggest = suggest
        self._homes = built_in(kind)  # Name -> ``module:attribute``.
        self._entries = dict[str, T]()  # Entries that were imported or registered, by name.
        _BY_KIND[kind] = self

    def register(self, name: str, entry: T) -> None:
        """Add an entry, or replace the entry called ``name``."""
        self._entries[name] = entry

    def names(self) -> list[str]:
        """Return all names, built-in names first, including those of missing extras."""
        return list(dict.fromkeys((*self._homes, *self._entries)))

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __contains__(self, name: object) -> bool:
        return name in self._entries or name in self._homes

    def find(self, name: str) -> T | None:
        """Return the entry called ``name``; None if it is unknown or its extra is missing."""
        if name in self._entries:
            return self._entries[name]
        if name not in self._homes or _missing_extra(self._homes[name]):
            return None
        return self[name]

    def __getitem__(self, name: str) -> T:
        """Return the entry called ``name``.

        Raises:
            ConfigError: The name is unknown, or its extra is not installed.
        """
        if name not in self._entries:
            if name not in self._homes:
                raise ConfigError.unknown(self.kind, name, self.names(), near=self._suggest)
            self._entries[name] = load_attribute(self._homes[name])
        return self._entries[name]


def names_of(kind: str) -> list[str]:
    """Return the built-in names of a kind, then the names that programs have registered."""
    if kind in _BY_KIND:
        return _BY_KIND[kind].names()
    return list(built_in(kind))


def built_in(kind: str) -> Mapping[str, str]:
    """Return the entries of a kind in ``registry.toml``: name -> ``module:attribute``."""
    return _BUILT_IN.get(kind, {})


def chosen(choices: Mapping[str, T], name: str, kind: str) -> T:
    """Return ``choices[name]``; ``kind`` is the word for a choice in the error message.

    Raises:
        ConfigError: The name is unknown.
    """
    if name not in choices:
        raise ConfigError.unknown(kind, name, choices)
    return choices[name]


def load_attribute(home: str) -> Any:
    """Import ``module:attribute``.

    Raises:
        ConfigError: The module belongs to an extra whose folder is missing.
    """
    extra = _missing_extra(home)
    if extra:
        raise ConfigError(
            f"The folder nmt/extras/{extra} is missing from this installation.",
            fix="Reinstall nmt with all of its folders.",
        )
    module, _, attribute = home.partition(":")
    return getattr(import_module(module), attribute)


def _missing_extra(home: str) -> str:
    """Return the extra that ``home`` belongs to, if this extra is missing; else an empty text."""
    if not home.startswith(_EXTRAS):
        return ""
    extra = home.removeprefix(_EXTRAS).partition(".")[0]
    is_missing = find_spec(_EXTRAS + extra) is None
    return extra if is_missing else ""
