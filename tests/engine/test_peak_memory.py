from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from nmt.engine.memory import measure_peak

CPU = torch.device("cpu")


def test_the_peak_is_of_what_lives_at_one_time() -> None:
    held = torch.ones(1000)
    views: list[Tensor] = []

    def work() -> None:
        first = torch.empty(100)  # 400 bytes
        second = held + 1  # 4,000: together the peak
        views.extend((first[:50], held[:10]))  # nothing new
        held.add_(1)
        del first, second, views[:]
        torch.empty(1000).neg_()  # 4,000 again, alone

    assert measure_peak(work, CPU) == (None, 4_400)


def test_nothing_made_is_nothing_held() -> None:
    values = torch.ones(10)

    result, peak = measure_peak(lambda: values.mul_(2).view(2, 5), CPU)

    assert result.shape == (2, 5)
    assert peak == 0


def test_torch_s_profiler_sees_the_same_peak_in_forward_and_backward() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.LayerNorm(256), nn.Linear(256, 100))
    values, gold = torch.randn(200, 64), torch.randint(100, (200,))

    def work() -> None:
        nn.functional.cross_entropy(model(values), gold).backward()

    work()  # from now on there are gradients
    _, peak = measure_peak(work, CPU)

    # torch 2.11 warns if it is not told whether events of several cycles are kept.
    activities = [ProfilerActivity.CPU]
    with profile(activities=activities, profile_memory=True, acc_events=True) as profiler:
        work()
    inner = profiler.profiler
    assert inner is not None
    events = [e for e in inner.kineto_results.events() if e.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    # Rounding to the allocator's alignment, and scalars within kernels.
    assert abs(peak - most) <= 0.01 * most
    assert peak > 200 * (64 + 256) * 4


def test_compiled_code_is_followed_as_it_was_written() -> None:
    def work(values: torch.Tensor) -> torch.Tensor:
        return (values + 1).sum()

    compiled = torch.compile(work, backend="eager", fullgraph=True)
    values = torch.zeros(1000)

    assert measure_peak(lambda: compiled(values), CPU) == measure_peak(lambda: work(values), CPU)
    assert measure_peak(lambda: compiled(values), CPU)[1] == 4_004
