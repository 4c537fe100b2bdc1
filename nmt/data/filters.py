"""Filters: what is wrong with sentence pairs, and the registry of filters.

To add a filter, write a module beside this with a `Filter`, register it at the end of this one,
and name it under ``filters.extra`` of a configuration. `nmt prepare` reports what it drops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, get_args

from nmt.config.filters import Action, FilterConfig
from nmt.config.keys import chosen
from nmt.data.filter import Filter
from nmt.data.findings import Finding
from nmt.errors import ConfigError
from nmt.extras.cleaning.filters import pair_filters

ALWAYS: Mapping[str, Action] = MappingProxyType({
    "blank": "drop", "bad_utf8": "drop", "characters": "drop", "length": "drop",
})  # fmt: skip
"""Reasons that are always dropped."""
REASONS = tuple(
    name for name, field in FilterConfig.model_fields.items()
    if "off" in get_args(field.annotation)
)  # fmt: skip
"""Reasons that ``filters`` gives an action: names of its keys."""
_SHORT_PAIR_ALLOWANCE = 3


FILTERS: dict[str, Callable[..., Filter]] = {}
"""Makers of the filters that ``filters.extra`` can name; its parameters become arguments."""


def register_filter(name: str, build: Callable[..., Filter]) -> None:
    """Make a filter known by ``name`` to ``filters.extra`` of a configuration."""
    FILTERS[name] = build


class Blank(Filter):
    """Finds pairs without text on a side."""

    def text_problem(self, source: str, target: str) -> Finding | None:
        """Return which side is blank, or None."""
        has_source, has_target = bool(source.strip()), bool(target.strip())
        if has_source and has_target:
            return None
        if not has_source and not has_target:
            return Finding("blank", "both")
        return Finding("blank", "target" if has_source else "source")


class Length(Filter):
    """Finds pairs with too many or few subwords on a side. Limits are inclusive."""

    def __init__(self, max_length: int, min_length: int = 1) -> None:
        self._max_length, self._min_length = max_length, min_length

    def length_problem(self, source_length: int, target_length: int) -> Finding | None:
        """Return which limit is broken, or None."""
        shorter, longer = sorted((source_length, target_length))
        if longer > self._max_length:
            return Finding("length", longer, self._max_length)
        return Finding("length", shorter, self._min_length) if shorter < self._min_length else None


class Ratio(Filter):
    """Finds pairs whose sides differ much in length; 3 is added to both, as short pairs vary."""

    def __init__(self, max_ratio: float) -> None:
        self._max_ratio = max_ratio

    def length_problem(self, source_length: int, target_length: int) -> Finding | None:
        """Return the ratio if it is too high.

        >>> Ratio(4).length_problem(2, 9) is None  # (9 + 3) / (2 + 3) = 2.4
        True
        >>> Ratio(4).length_problem(2, 30)
        Finding(reason='ratio', value=6.6, limit=4)
        """
        shorter, longer = sorted((source_length, target_length))
        ratio = (longer + _SHORT_PAIR_ALLOWANCE) / (shorter + _SHORT_PAIR_ALLOWANCE)
        return Finding("ratio", ratio, self._max_ratio) if ratio > self._max_ratio else None


class FilterChain:
    """Several filters, and what is done about the reasons that they find.

    Args:
        filters: Each is asked about every pair.
        actions: What is done about a reason; others are dropped.
    """

    def __init__(self, filters: Iterable[Filter], actions: Mapping[str, Action] = ALWAYS) -> None:
        filters = list(filters)
        self.actions = dict(actions)
        self._of_text = [f.text_problem for f in filters if _overrides(f, "text_problem")]
        self._of_length = [f.length_problem for f in filters if _overrides(f, "length_problem")]

    def text_findings(self, source: str, target: str) -> list[Finding]:
        """Return all that the texts say, in the order of the filters."""
        found = [problem for check in self._of_text if (problem := check(source, target))]
        return [Finding(each) if isinstance(each, str) else each for each in found] if found else []

    def length_findings(self, source_length: int, target_length: int) -> list[Finding]:
        """Return all that the numbers of subwords say, in the order of the filters."""
        checks = (check(source_length, target_length) for check in self._of_length)
        return [Finding(each) if isinstance(each, str) else each for each in checks if each]

    def dropping(self, findings: Iterable[Finding]) -> str | None:
        """Return the first reason that drops a pair with these findings; None if it is kept."""
        for each in findings:
            if self.actions.get(each.reason, "drop") == "drop":
                return each.reason
        return None


def _overrides(each: Filter, method: str) -> bool:
    return getattr(type(each), method) is not getattr(Filter, method)


def filter_actions(config: FilterConfig) -> dict[str, Action]:
    """Return the action of every reason that is not off."""
    actions: dict[str, Action] = {**ALWAYS, **{name: getattr(config, name) for name in REASONS}}
    if config.deduplicate:
        actions["duplicate"] = "drop"
    return {name: action for name, action in actions.items() if action != "off"}


def training_filters(config: FilterConfig, source: str = "", target: str = "") -> FilterChain:
    """Return the filters of training pairs.

    Args:
        config: Actions and limits.
        source: Language code of the source; empty if not known.
        target: The same of the target.

    Raises:
        ConfigError: ``filters.extra`` names no filter, or parameters that it does not have; or a
            reason that drops needs a library that is not installed.
    """
    actions = filter_actions(config)
    ratio = [Ratio(config.max_length_ratio)] if "ratio" in actions else []
    return FilterChain([
        Blank(),
        *pair_filters(config.limits, actions, source, target),
        Length(config.max_length, config.min_length),
        *ratio,
        *(_extra(name, parameters) for name, parameters in config.extra.items()),
    ], actions)  # fmt: skip


def held_out_filters(config: FilterConfig) -> FilterChain:
    """Return the filters of validation pairs: only what the model cannot hold is dropped."""
    return FilterChain([Blank(), Length(config.max_length)])


def _extra(name: str, parameters: Mapping[str, Any]) -> Filter:
    build = chosen(FILTERS, name, "filters.extra")
    try:
        return build(**parameters)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"filters.extra.{name}: {error}.", fix="Correct the parameters of this filter."
        ) from error
