"""Held-out sets, and where training text holds their sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from nmt.config.data import CorpusConfig, DataConfig
from nmt.data.hubs import cached_test_sets
from nmt.data.prepared import VALID
from nmt.extras.cleaning.leakage import Leak, LeakageIndex

_MAX_LISTED = 100


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


class HeldOut:
    """Held-out sets, and where training text holds their sentences.

    Args:
        sets: Pairs of each set, by its name, and the line of each.
    """

    def __init__(self, sets: Mapping[str, Sequence[tuple[str, str, int]]]) -> None:
        self._sets = sets
        self._places = [(name, row) for name, pairs in sets.items() for row in range(len(pairs))]
        self.sources = [pair[0] for pairs in sets.values() for pair in pairs]
        """Of all sets."""
        self.index = LeakageIndex(self.sources)
        self._targets = {pair[1].strip() for pairs in sets.values() for pair in pairs}
        self._seen_targets: set[str] = set()
        self._in_train: dict[tuple[str, int], str] = {}
        self._pairs: set[tuple[str, int]] = set()
        self._listed = Counter[tuple[str, int]]()
        self.leaks: list[dict[str, Any]] = []
        """What was found, in the order of the training text; at most 100 for each sentence."""

    def update(
        self, pairs: Sequence[tuple[str, str, int]], corpus: str, leaks: Sequence[Leak]
    ) -> None:
        """Look at training pairs, and at what ``index`` has found in their sources."""
        self._seen_targets.update({pair[1].strip() for pair in pairs} & self._targets)
        for leak in leaks:
            place = name, row = self._places[leak.held_out]
            _, target, line = pairs[leak.row]
            held_out = self._sets[name][row]
            if leak.kind == "exact" or place not in self._in_train:
                self._in_train[place] = leak.kind
            if leak.kind == "exact" and target.strip() == held_out[1].strip():
                self._pairs.add(place)
            self._listed[place] += 1
            if self._listed[place] <= _MAX_LISTED:
                self.leaks.append({
                    "set": name, "line": held_out[2], "corpus": corpus, "train_line": line,
                    "kind": leak.kind,
                })  # fmt: skip

    def overlap(self) -> dict[str, dict[str, int]]:
        """Return, for each set, its size and how many of its sentences training has."""
        in_train = Counter((name, kind) for (name, _), kind in self._in_train.items())
        pairs_in_train = Counter(name for name, _ in self._pairs)
        return {
            name: {
                "pairs": len(pairs),
                "sources_in_train": in_train[name, "exact"],
                "near_sources_in_train": in_train[name, "near"],
                "targets_in_train": sum(pair[1].strip() in self._seen_targets for pair in pairs),
                "pairs_in_train": pairs_in_train[name],
            }
            for name, pairs in self._sets.items()
        }
