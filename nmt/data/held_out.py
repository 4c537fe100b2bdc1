"""Held-out sets, and how many of their sentences are in the training text, word for word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, starmap

import numpy as np

from nmt.config.data import CorpusConfig, DataConfig
from nmt.data.hubs import cached_test_sets

VALID = "valid"
_Key = tuple[str, str]


def held_out_sets(
    data: DataConfig, languages: tuple[str, str]
) -> tuple[dict[str, CorpusConfig], list[str]]:
    """Return the sets to look for, and the names of those that might have to be downloaded.

    The first are those of the configuration, and all that sacrebleu has in its cache.
    """
    cached = cached_test_sets("-".join(languages))
    sets = {VALID: data.valid, **data.test}
    remote = [
        name for name, each in sets.items()
        if each.huggingface or (each.sacrebleu and each.sacrebleu not in cached)
    ]  # fmt: skip
    named = {each.sacrebleu for each in sets.values()}
    for name, (source, target) in cached.items():
        if name not in named:
            sets.setdefault(name, CorpusConfig(source=source, target=target))
    return {name: each for name, each in sets.items() if name not in remote}, remote


def report_name(name: str) -> str:
    """Return what reports call a held-out set, as a training corpus may have its name."""
    return name if name == VALID else f"data.test.{name}"


class Overlap:
    """Counts the sentences of held-out sets that pass by in training text.

    Memory does not grow with the training text: only the held-out sides are kept.

    Args:
        sets: Source, target and line of each pair of a set, by the set's name.
    """

    def __init__(self, sets: Mapping[str, Sequence[tuple[str, str, int]]]) -> None:
        self._sets = {name: [_keys(*pair) for pair in pairs] for name, pairs in sets.items()}
        self._wanted = {key for pairs in self._sets.values() for keys in pairs for key in keys}
        self._seen = set[_Key]()

    def see(self, pairs: Sequence[tuple[str, str, int]]) -> None:
        """Look at training pairs."""
        self._seen |= self._wanted.intersection(chain.from_iterable(starmap(_keys, pairs)))

    def counts(self, near: Mapping[str, int]) -> dict[str, dict[str, int]]:
        """Return, for each set, its size and how many of its sentences training has.

        Args:
            near: Sentences of each set that training has with small changes.
        """
        counts = {}
        for name, pairs in self._sets.items():
            seen = np.array([[key in self._seen for key in keys] for keys in pairs], np.bool_)
            sources, targets, both = seen.reshape(-1, 3).sum(0).tolist()
            counts[name] = {
                "pairs": len(pairs),
                "sources_in_train": sources,
                "near_sources_in_train": near.get(name, 0),
                "targets_in_train": targets,
                "pairs_in_train": both,
            }
        return counts


def _keys(source: str, target: str, _line: int) -> tuple[_Key, _Key, _Key]:
    """Return what a pair is recognised by: its source, its target and both; no side is blank."""
    source, target = " ".join(source.split()), " ".join(target.split())
    return (source, ""), ("", target), (source, target)
