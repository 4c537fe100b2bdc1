"""Attention kernels, dropout, positions, layouts: each against its formula or a plain twin."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.model.attention import bmm_attention, sdpa_attention
from nmt.model.dropout import dropout, dropped_share
from nmt.model.layers import LearnedPositions, SinusoidalPositions, rotate, sinusoids
from nmt.model.layout import Layout

LENGTHS = st.lists(st.integers(1, 8), min_size=1, max_size=5)


@settings(max_examples=40)
@given(lengths=LENGTHS, extra=st.integers(0, 3), parts=st.integers(1, 3), heads=st.integers(1, 4))
def test_tokens_survive_the_way_to_the_rectangle_and_back(
    lengths: list[int], extra: int, parts: int, heads: int
) -> None:
    layout = Layout.from_lengths(torch.tensor(lengths), max(lengths) + extra)
    packed = torch.randn(sum(lengths), parts * heads * 2)

    assert torch.equal(layout.pack(layout.unpack(packed)), packed)
    rows = packed.reshape(-1, 2)
    cells = rows[layout.heads_to_rectangle(parts, heads)]
    assert torch.equal(cells[layout.heads_to_packed(parts, heads)], rows)
    rectangle = cells.view(parts, len(lengths), heads, layout.width, 2)
    plain = layout.unpack(packed).unflatten(-1, (parts, heads, 2)).permute(2, 0, 3, 1, 4)
    mask = layout.mask()[None, :, None, :, None]
    assert torch.equal(rectangle * mask, plain)
    assert len(layout.padded_head_rows(heads)) == heads * int((~layout.mask()).sum())


@settings(max_examples=40)
@given(queries=LENGTHS, keys=LENGTHS, kind=st.sampled_from(["self", "causal", "cross"]))
def test_both_attention_kernels_agree_forwards_and_backwards(
    queries: list[int], keys: list[int], kind: str
) -> None:
    size = min(len(queries), len(keys))
    queries, keys = queries[:size], keys[:size]
    query_layout = Layout.from_lengths(torch.tensor(queries), max(queries))
    key_layout = Layout.from_lengths(torch.tensor(keys), max(keys))
    if kind == "cross":
        inputs = [torch.randn(sum(queries), 12), torch.randn(sum(keys), 24)]
    else:
        key_layout, inputs = query_layout, [torch.randn(sum(queries), 36)]
    results = []
    for kernel in (bmm_attention, sdpa_attention):
        leaves = [x.clone().requires_grad_() for x in inputs]
        memory = leaves[1] if kind == "cross" else None
        mixed = kernel(leaves[0], memory, (query_layout, key_layout), 3, kind == "causal", 0.0)
        (mixed * torch.arange(mixed.numel()).view_as(mixed)).sum().backward()
        results.append((mixed, [leaf.grad for leaf in leaves]))

    (ours, our_gradients), (theirs, their_gradients) = results
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(our_gradients, their_gradients, strict=True):  # type: ignore[assignment]
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-2)


def test_attention_dropout_keeps_the_mean_and_its_gradient_is_that_of_the_same_mask() -> None:
    layout = Layout.from_lengths(torch.tensor([64] * 8), 64)
    fused = torch.randn(512, 3 * 16, dtype=torch.float64, requires_grad=True)

    def mean(values: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(9)
        return bmm_attention(values, None, (layout, layout), 4, False, 0.25).square().mean()

    rest = fused.detach()[2:]
    first = fused.detach()[:2].requires_grad_()
    assert torch.autograd.gradcheck(lambda part: mean(torch.cat((part, rest))), first)


def test_dropout_drops_the_share_it_says_and_keeps_the_sum() -> None:
    torch.manual_seed(1)
    values = torch.ones(1000, 1001, requires_grad=True)

    dropped = dropout(values, 0.1, training=True)
    dropped.sum().backward()

    assert dropped_share(0.1) == 26 / 256
    # 10^6 draws: the standard deviation of the share is 0.0003.
    assert (dropped == 0).float().mean().item() == pytest.approx(26 / 256, abs=0.0015)
    assert dropped.mean().item() == pytest.approx(1, abs=0.002)
    assert torch.equal(values.grad, dropped)  # type: ignore[arg-type]
    # Every one of the eight bytes of a random word drops alike.
    by_byte = (dropped.flatten()[: 1000 * 1000].view(-1, 8) == 0).float().mean(0)
    assert by_byte.max() - by_byte.min() < 0.006


def test_dropout_does_nothing_outside_training_or_at_zero() -> None:
    values = torch.randn(3, 5)

    assert dropout(values, 0.5, training=False) is values
    assert dropout(values, 0.0, training=True) is values


@pytest.mark.parametrize("dim", [8, 12])
def test_interleaved_sinusoids_follow_the_formula_of_the_paper(dim: int) -> None:
    table = sinusoids(30, dim, "sinusoidal")

    for position in range(30):
        for i in range(dim // 2):
            angle = position / 10_000 ** (2 * i / dim)
            assert table[position, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[position, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)


def test_sinusoids_in_halves_follow_tensor2tensor_s_formula() -> None:
    table = sinusoids(30, 8, "sinusoidal-halves")

    for position in range(30):
        for i in range(4):
            angle = position * math.exp(-i * math.log(10_000) / (4 - 1))
            assert table[position, i].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[position, 4 + i].item() == pytest.approx(math.cos(angle), abs=1e-6)


def test_the_sinusoid_table_grows_with_the_sentence() -> None:
    positions = SinusoidalPositions(8, "sinusoidal")

    assert torch.equal(positions(torch.tensor([700]), 701), sinusoids(701, 8, "sinusoidal")[700:])


def test_a_learned_table_refuses_positions_it_lacks() -> None:
    with pytest.raises(ValueError, match="9 positions, but the table holds 8"):
        LearnedPositions(8, 4)(torch.tensor([8]), 9)


def test_rotation_makes_scores_depend_on_the_distance_only() -> None:
    query, key = torch.randn(1, 2, 8), torch.randn(1, 2, 8)

    def score(query_position: int, key_position: int) -> torch.Tensor:
        rotated_query = rotate(query, torch.tensor([query_position]))
        return (rotated_query * rotate(key, torch.tensor([key_position]))).sum(-1)

    torch.testing.assert_close(score(3, 1), score(13, 11), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(score(3, 1), score(3, 2))
    torch.testing.assert_close(rotate(query, torch.tensor([0])), query)
