"""The largest values of rows beside a stable sort."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nmt.search.selector import first_largest, largest


def by_sorting(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    ordered = torch.sort(values, dim=-1, descending=True, stable=True)
    return ordered.values[..., :count], ordered.indices[..., :count]


@given(
    seed=st.integers(0, 10**6),
    size=st.one_of(st.integers(1, 40), st.integers(500, 1500), st.sampled_from([64, 640, 1280])),
    rows=st.integers(1, 60),
    count=st.integers(1, 5),
    kinds=st.sampled_from([2, 30, 10**6]),
)
def test_equals_come_in_their_order(
    seed: int, size: int, rows: int, count: int, kinds: int
) -> None:
    """Short rows and rows of many blocks, whole or not; all values equal, some, or none."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(0, kinds, (rows, 2, size), generator=generator).float()
    expected = by_sorting(values, count)
    assert all(map(torch.equal, largest(values, count), expected))
    best = [part[..., 0] for part in by_sorting(values[:, :1], 1)]
    assert all(map(torch.equal, first_largest(values[:, :1]), best))


@pytest.mark.parametrize("size", [6, 700])
def test_what_is_not_there_comes_last_and_what_is_no_number_first(size: int) -> None:
    values = torch.full((1, size), -torch.inf)
    values[0, size - 1], values[0, size - 3] = -2.0, -1.0
    best, index = largest(values, 3)
    assert best.tolist() == [[-1.0, -2.0, -torch.inf]]
    assert index[0, :2].tolist() == [size - 3, size - 1]
    values = torch.zeros(60, 1, 640)
    values[..., 300] = torch.nan  # so that a search sees it
    for rows in (values, values[:1]):
        best, index = first_largest(rows)
        assert bool(best.isnan().all())
        assert set(index.flatten().tolist()) == {300}


def test_rows_of_few_values_are_not_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sorting them, as 16 bits have, made a search in bfloat16 slower than one in float32."""
    values = torch.randn(20, 4096).bfloat16().float()
    expected, sort = by_sorting(values, 11), Tensor.sort

    def watched(own: Tensor, *arguments: Any, **options: Any) -> Any:
        assert own.shape[-1] <= 12
        return sort(own, *arguments, **options)

    monkeypatch.setattr(Tensor, "sort", watched)
    monkeypatch.setattr(torch, "sort", None)
    assert all(map(torch.equal, largest(values, 11), expected))
