"""What is counted since the start, for Prometheus. No label holds what a client sent."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Counters of one server."""

    def __init__(self) -> None:
        self.registry = own = CollectorRegistry()
        self.responses = Counter(
            "nmt_responses", "Answers by path and status.", ["path", "status"], registry=own
        )
        self.sentences = Counter("nmt_sentences", "Sentences of accepted requests.", registry=own)
        self.characters = Counter("nmt_characters", "Their characters.", registry=own)
        self.seconds = Histogram(
            "nmt_request_seconds", "From the whole request to the end of its answer.",
            buckets=_SECONDS, registry=own,
        )  # fmt: skip
        self.batches = Histogram(
            "nmt_batch_texts", "Sentences of a batch.", buckets=_TEXTS, registry=own
        )
        self.active = Gauge("nmt_active_requests", "Requests that are answered now.", registry=own)
        self._waiting = Gauge("nmt_waiting_texts", "Sentences that wait.", registry=own)

    def watch(self, num_waiting: Callable[[], float]) -> None:
        """Name the source of the number of sentences that wait."""
        self._waiting.set_function(num_waiting)
