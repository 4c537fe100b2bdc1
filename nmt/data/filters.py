"""Filters: which sentence pairs are dropped and why, and the registry of filters.

To add a filter, write a module beside this with a `Filter`, register it at the end of this one,
and name it under ``filters.extra`` of a configuration. `nmt prepare` reports what it drops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from nmt.config.data import FilterConfig
from nmt.config.keys import chosen
from nmt.errors import ConfigError

DUPLICATE = "repeats an earlier pair"
"""Reason of pairs that `DuplicateFinder` finds."""

_SHORT_PAIR_ALLOWANCE = 3
_HELD_AT_ONCE = 1 << 24


class Filter:
    """Gives the reason why a pair is dropped, or None. Override one of the two methods, or both.

    Pure and quick: it is called for every pair, and must give the same answer each time.
    """

    def text_problem(self, source: str, target: str) -> str | None:
        """Return a reason that the texts give, before the tokenizer is learned."""
        del source, target
        return None

    def length_problem(self, source_length: int, target_length: int) -> str | None:
        """Return a reason that the numbers of subwords give."""
        del source_length, target_length
        return None


FILTERS: dict[str, Callable[..., Filter]] = {}
"""Makers of the filters that ``filters.extra`` can name; its parameters become arguments."""


def register_filter(name: str, build: Callable[..., Filter]) -> None:
    """Make a filter known by ``name`` to ``filters.extra`` of a configuration."""
    FILTERS[name] = build


class Blank(Filter):
    """Drops pairs without text on a side."""

    def text_problem(self, source: str, target: str) -> str | None:
        """Return which side is blank, or None."""
        has_source, has_target = bool(source.strip()), bool(target.strip())
        if has_source and has_target:
            return None
        if not has_source and not has_target:
            return "blank on both sides"
        return "blank target" if has_source else "blank source"


class Length(Filter):
    """Drops pairs with too many or few subwords on a side, or sides that differ much in length.

    Limits are inclusive. 3 is added to both sides for the ratio, as short pairs vary.
    """

    def __init__(self, max_length: int, min_length: int = 1, max_ratio: float = inf) -> None:
        self._max_length, self._min_length, self._max_ratio = max_length, min_length, max_ratio

    def length_problem(self, source_length: int, target_length: int) -> str | None:
        """Return which limit is broken, or None.

        >>> Length(256, max_ratio=4).length_problem(2, 9) is None  # (9 + 3) / (2 + 3) = 2.4
        True
        >>> Length(256, max_ratio=4).length_problem(2, 30)
        'length ratio'
        """
        shorter, longer = sorted((source_length, target_length))
        if longer > self._max_length:
            return "too many subwords"
        if shorter < self._min_length:
            return "too few subwords"
        ratio = (longer + _SHORT_PAIR_ALLOWANCE) / (shorter + _SHORT_PAIR_ALLOWANCE)
        return "length ratio" if ratio > self._max_ratio else None


class FilterChain(Filter):
    """Several filters; the first reason counts."""

    def __init__(self, filters: Iterable[Filter]) -> None:
        filters = list(filters)
        self._of_text = [f.text_problem for f in filters if _overrides(f, "text_problem")]
        self._of_length = [f.length_problem for f in filters if _overrides(f, "length_problem")]

    def text_problem(self, source: str, target: str) -> str | None:
        """Return the first reason of the texts, or None."""
        for check in self._of_text:
            if reason := check(source, target):
                return reason
        return None

    def length_problem(self, source_length: int, target_length: int) -> str | None:
        """Return the first reason of the lengths, or None."""
        for check in self._of_length:
            if reason := check(source_length, target_length):
                return reason
        return None


def _overrides(each: Filter, method: str) -> bool:
    return getattr(type(each), method) is not getattr(Filter, method)


def training_filters(config: FilterConfig) -> FilterChain:
    """Return the filters of training pairs.

    Raises:
        ConfigError: ``filters.extra`` names no filter, or parameters that it does not have.
    """
    return FilterChain([
        Blank(),
        Length(config.max_length, config.min_length, config.max_length_ratio),
        *(_extra(name, parameters) for name, parameters in config.extra.items()),
    ])  # fmt: skip


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


class DuplicateFinder:
    """Finds which pairs of a stream repeat an earlier one, in bounded memory.

    Collects a 64-bit hash of each pair in a file, then finds the repetitions by sorting. The hash
    is Python's own: other numbers in each process, so it must not outlive this one. Two different
    pairs among 100 million share one with a chance of 1 in 4000.

    Args:
        file: Empty, open to write and read; 8 bytes a pair.
        held_at_once: Most hashes sorted at once, about; more pairs take more passes of the file.
    """

    def __init__(self, file: IO[bytes], *, held_at_once: int = _HELD_AT_ONCE) -> None:
        self._file = file
        self._held_at_once = held_at_once
        self._count = 0

    def add(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Add pairs, in order."""
        hashes = np.array([hash(pair) for pair in pairs], dtype=np.int64)
        self._file.write(hashes.tobytes())
        self._count += len(hashes)

    def repetitions(self) -> npt.NDArray[np.bool_]:
        """Return whether each pair repeats an earlier one. (pairs added,)."""
        repeated = np.zeros(self._count, dtype=np.bool_)
        num_parts = -(-self._count // self._held_at_once)
        for part in range(num_parts):  # the hashes that leave this remainder
            found, places, start = [], [], 0
            self._file.seek(0)
            while block := self._file.read(8 * self._held_at_once):
                hashes = np.frombuffer(block, dtype=np.int64)
                where = np.flatnonzero(hashes % num_parts == part)
                found.append(hashes[where])
                places.append(where + start)
                start += len(hashes)
            rows = np.concatenate(places)
            first = np.unique(np.concatenate(found), return_index=True)[1]
            repeated[rows] = True
            repeated[rows[first]] = False
        return repeated
