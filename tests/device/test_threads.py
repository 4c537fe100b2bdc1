"""The number of CPU threads on a busy processor."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from nmt.device import threads as module
from nmt.device.threads import fastest_threads


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("rates", "best"),
    [
        ({8: 80.0, 4: 40.0, 2: 20.0, 1: 10.0}, 8),  # a quiet machine
        ({8: 30.0, 4: 35.0, 2: 20.0, 1: 10.0}, 8),  # 35 is not clearly more than 30
        ({8: 2.0, 4: 25.0, 2: 20.0, 1: 10.0}, 4),  # half of the processor is in use
        ({8: 2.0, 4: 2.1, 2: 2.2, 1: 10.0}, 1),  # all of it, also below numbers that do not help
        ({6: 1.0, 3: 5.0, 1: 4.0}, 3),
        ({1: 7.0}, 1),
    ],
)
def test_fewer_threads_are_best_only_if_they_are_clearly_faster(
    rates: dict[int, float], best: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        module, "_products_per_second", lambda _seconds: rates[torch.get_num_threads()]
    )
    before = torch.get_num_threads()
    assert fastest_threads(max(rates)) == (best, rates)
    assert torch.get_num_threads() == before


def test_products_are_counted_for_the_time() -> None:
    # A product of 1,024 x 256 by 256 x 256 takes more than a microsecond and less than a second.
    assert 1 < module._products_per_second(0.01) < 1e6
