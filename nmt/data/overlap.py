"""How much of the held-out sets the training data has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class HeldOut:
    """Sentences that training must not have seen, and how often it did.

    Args:
        sets: Pairs of each held-out set, by its name.
    """

    def __init__(self, sets: Mapping[str, Sequence[tuple[str, str]]]) -> None:
        self._sets = sets
        self._sources: dict[str, bool] = {
            source.strip(): False
            for pairs in sets.values()
            for source, _ in pairs
            if source.strip()
        }
        self._pairs: dict[tuple[str, str], bool] = {
            (source.strip(), target.strip()): False
            for pairs in sets.values()
            for source, target in pairs
        }

    def see(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Take note of training pairs."""
        for source, target in pairs:
            stripped = source.strip()
            if stripped in self._sources:
                self._sources[stripped] = True
                pair = (stripped, target.strip())
                if pair in self._pairs:
                    self._pairs[pair] = True

    def overlap(self) -> dict[str, dict[str, int]]:
        """Return, for each set, its size and how many of its sources and pairs training has."""
        return {
            name: {
                "pairs": len(pairs),
                "sources_in_train": sum(self._sources.get(s.strip(), False) for s, _ in pairs),
                "pairs_in_train": sum(
                    self._pairs[source.strip(), target.strip()] for source, target in pairs
                ),
            }
            for name, pairs in self._sets.items()
        }
