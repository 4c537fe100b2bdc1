"""Held-out sets, and how many of their sentences are in the training text, word for word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nmt.config.data import CorpusConfig, DataConfig
from nmt.data.hubs import cached_test_sets

VALID = "valid"


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
        self._sets = {
            name: [(_plain(source), _plain(target)) for source, target, _ in pairs]
            for name, pairs in sets.items()
        }
        self._pairs = {pair for each in self._sets.values() for pair in each}
        self._sources, self._targets = {x for x, _ in self._pairs}, {y for _, y in self._pairs}
        self._seen_pairs = set[tuple[str, str]]()
        self._seen_sources, self._seen_targets = set[str](), set[str]()

    def see(self, pairs: Sequence[tuple[str, str, int]]) -> None:
        """Look at training pairs."""
        plain = [(_plain(source), _plain(target)) for source, target, _ in pairs]
        self._seen_pairs |= self._pairs.intersection(plain)
        self._seen_sources |= self._sources.intersection(source for source, _ in plain)
        self._seen_targets |= self._targets.intersection(target for _, target in plain)

    def counts(self, near: Mapping[str, int]) -> dict[str, dict[str, int]]:
        """Return, for each set, its size and how many of its sentences training has.

        Args:
            near: Sentences of each set that training has with small changes.
        """
        return {
            name: {
                "pairs": len(pairs),
                "sources_in_train": sum(source in self._seen_sources for source, _ in pairs),
                "near_sources_in_train": near.get(name, 0),
                "targets_in_train": sum(target in self._seen_targets for _, target in pairs),
                "pairs_in_train": sum(pair in self._seen_pairs for pair in pairs),
            }
            for name, pairs in self._sets.items()
        }


def _plain(text: str) -> str:
    return " ".join(text.split())
