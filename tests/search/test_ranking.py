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
    size=st.one_of(st.integers(1, 40), st.integers(500, 1500)),
    count=st.integers(1, 5),
    kinds=st.sampled_from([2, 30, 10**6]),
)
def test_equals_come_in_the_order_of_the_row(seed: int, size: int, count: int, kinds: int) -> None:
    """Short rows and rows of many blocks; all values equal, some, or none."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(0, kinds, (2, 3, size), generator=generator).float()
    found, expected = largest(values, count), by_sorting(values, count)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


@pytest.mark.parametrize("size", [6, 700])
def test_what_is_not_there_comes_last(size: int) -> None:
    values = torch.full((1, size), -torch.inf)
    values[0, size - 1], values[0, size - 3] = -2.0, -1.0
    best, index = largest(values, 3)
    assert best.tolist() == [[-1.0, -2.0, -torch.inf]]
    assert index[0, :2].tolist() == [size - 3, size - 1]


def test_rows_of_few_values_as_16_bits_have_are_not_sorted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sorting them made a search in bfloat16 slower than one in float32."""
    values = torch.randn(20, 4096).bfloat16().float()
    expected = by_sorting(values, 11)
    sort = Tensor.sort

    def watched(own: Tensor, *arguments: Any, **options: Any) -> Any:
        assert own.shape[-1] <= 12
        return sort(own, *arguments, **options)

    monkeypatch.setattr(Tensor, "sort", watched)
    monkeypatch.setattr(torch, "sort", None)
    best, index = largest(values, 11)
    assert torch.equal(best, expected[0])
    assert torch.equal(index, expected[1])


@given(
    seed=st.integers(0, 10**6),
    size=st.sampled_from([1, 7, 64, 640, 1000, 1280]),
    rows=st.integers(1, 60),
    kinds=st.sampled_from([2, 30, 10**6]),
)
def test_of_equals_the_first_is_the_largest(seed: int, size: int, rows: int, kinds: int) -> None:
    """Few values and many; whole blocks and others."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(0, kinds, (rows, 1, size), generator=generator).float()
    best, index = first_largest(values)
    expected = by_sorting(values, 1)
    assert torch.equal(best, expected[0][..., 0])
    assert torch.equal(index, expected[1][..., 0])


@pytest.mark.parametrize("rows", [1, 60])
def test_what_is_no_number_is_the_largest(rows: int) -> None:
    """So that a search sees it."""
    values = torch.zeros(rows, 640)
    values[:, 300] = torch.nan
    best, index = first_largest(values)
    assert bool(best.isnan().all())
    assert set(index.tolist()) == {300}
