"""Counters and histograms in the text format of Prometheus. No label holds what a client sent."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator

_BUCKETS = {
    "request_seconds": (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
    "batch_texts": (1, 2, 4, 8, 16, 32, 64, 128, 256),
}
_HELP = {
    "responses": "Answers by path and status.",
    "sentences": "Sentences of accepted requests.",
    "characters": "Their characters.",
    "request_seconds": "From the whole request to the end of its answer.",
    "batch_texts": "Sentences that are translated together.",
    "active_requests": "Requests that are worked on or wait.",
    "waiting_texts": "Sentences that no thread has taken yet.",
    "loaded_models": "Models in memory.",
}


class Metrics:
    """What is counted since the start. Threads may count at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._buckets = {name: [0] * (len(edges) + 1) for name, edges in _BUCKETS.items()}
        self._sums = dict.fromkeys(_BUCKETS, 0.0)

    def count(self, name: str, amount: int = 1, labels: str = "") -> None:
        """Add to a counter; ``labels`` is ``{path="...",...}`` or nothing."""
        with self._lock:
            self._counts[name, labels] += amount

    def observe(self, name: str, value: float) -> None:
        """Add a value to a histogram."""
        with self._lock:
            self._buckets[name][bisect_left(_BUCKETS[name], value)] += 1
            self._sums[name] += value

    def text(self, **gauges: float) -> str:
        """Return all of it, with the present values of ``gauges``."""
        with self._lock:
            return "".join(f"{line}\n" for line in self._lines(gauges))

    def _lines(self, gauges: dict[str, float]) -> Iterator[str]:
        for name in dict.fromkeys(name for name, _ in sorted(self._counts)):
            yield from _head(f"{name}_total", _HELP[name], "counter")
            for (own, labels), value in sorted(self._counts.items()):
                if own == name:
                    yield f"nmt_{name}_total{labels} {value}"
        for name, edges in _BUCKETS.items():
            yield from _head(name, _HELP[name], "histogram")
            total = 0
            for edge, number in zip((*edges, "+Inf"), self._buckets[name], strict=True):
                total += number
                yield f'nmt_{name}_bucket{{le="{edge}"}} {total}'
            yield f"nmt_{name}_sum {self._sums[name]:.6g}"
            yield f"nmt_{name}_count {total}"
        for name, present in gauges.items():
            yield from _head(name, _HELP[name], "gauge")
            yield f"nmt_{name} {present:g}"


def _head(name: str, text: str, kind: str) -> tuple[str, str]:
    return f"# HELP nmt_{name} {text}", f"# TYPE nmt_{name} {kind}"
