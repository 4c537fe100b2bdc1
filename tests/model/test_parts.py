"""Attention backends, dropout, positions, packing: each against its formula or a plain twin."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from typing_extensions import override

from nmt.config.model import ModelConfig
from nmt.model.attention import (
    BACKENDS,
    Backend,
    Segments,
    attention,
    bmm_attention,
    cached_attention,
    row_width,
    sdpa_attention,
    to_padded,
)
from nmt.model.dropout import dropout, dropped_share
from nmt.model.positions import (
    POSITIONS,
    LearnedPositions,
    PositionScheme,
    RelativePositions,
    RotaryPositions,
    SinusoidalPositions,
)
from nmt.packed import Packed
from tests.model.formula import Formula
from tests.model.small import small_model

LENGTHS = st.lists(st.integers(1, 8), min_size=1, max_size=5)


def packed_of(lengths: list[int]) -> Packed:
    return Packed.from_rows([[7] * length for length in lengths])


def test_a_batch_does_not_change_under_its_cached_masks() -> None:
    packed = packed_of([2, 3])
    assert packed.derived(Packed.mask).sum() == 5
    with pytest.raises(FrozenInstanceError):
        packed.max_length = 9  # type: ignore[misc]


@given(lengths=LENGTHS, heads=st.integers(1, 4))
def test_tokens_survive_padding_to_sentences_and_back(lengths: list[int], heads: int) -> None:
    packed = packed_of(lengths)
    values = torch.randn(sum(lengths), heads, 2)
    assert packed.positions.tolist() == [place for length in lengths for place in range(length)]
    assert torch.equal(packed.pad(values)[packed.mask()], values)
    assert packed.mask().sum(1).tolist() == lengths
    fused = torch.randn(sum(lengths), heads + 3, 2)
    for part in (values, fused[:, 2 : 2 + heads]):  # whole, or between others
        padded = to_padded(part, packed).view(len(lengths), heads, -1, 2)
        mask = packed.mask()[:, None, :, None]
        assert torch.equal(padded * mask, packed.pad(part).transpose(1, 2))


def reference(query: Tensor, key: Tensor, value: Tensor, segments: Segments, _: float) -> Tensor:
    """Sentence by sentence and head by head, by the formula."""
    rows, share = [], query.shape[1] // key.shape[1]
    ends = [packed.cu_seqlens.tolist() for packed in segments[:2]]
    for (q0, q1), (k0, k1) in zip(*map(pairwise, ends), strict=True):
        heads = []
        for head in range(query.shape[1]):
            keys, values = (x[k0:k1, head // share] for x in (key, value))
            scores = query[q0:q1, head] @ keys.T / query.shape[2] ** 0.5
            if segments.is_causal:
                scores = scores.masked_fill(torch.ones_like(scores).triu(1) > 0, -torch.inf)
            heads.append(scores.softmax(-1) @ values)
        rows.append(torch.stack(heads, dim=1))
    return torch.cat(rows)


@given(
    queries=LENGTHS,
    keys=LENGTHS,
    kind=st.sampled_from(["self", "causal", "cross"]),
    groups=st.sampled_from([1, 2, 4]),
)
def test_attention_equals_the_formula_forwards_and_backwards(
    queries: list[int], keys: list[int], kind: str, groups: int
) -> None:
    size = min(len(queries), len(keys))
    of_queries = of_keys = packed_of(queries[:size])
    if kind == "cross":
        of_keys = packed_of(keys[:size])
    shapes = [(of_queries.num_tokens, 4, 3), *[(of_keys.num_tokens, groups, 3)] * 2]
    inputs = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    segments = Segments(of_queries, of_keys, kind == "causal")
    results = []
    for backend in (reference, bmm_attention, sdpa_attention):
        leaves = [x.clone().requires_grad_() for x in inputs]
        mixed = backend(leaves[0], leaves[1], leaves[2], segments, 0.0)
        (mixed * torch.arange(mixed.numel()).view_as(mixed)).sum().backward()
        results.append((mixed.detach(), *[leaf.grad for leaf in leaves]))
    for found in results[1:]:
        for ours, expected in zip(found, results[0], strict=True):
            torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-8)


def test_attention_dropout_scales_by_what_was_kept() -> None:
    torch.manual_seed(9)
    packed = packed_of([64] * 8)
    query, key = (torch.zeros(512, 4, 4, dtype=torch.float64) for _ in range(2))
    value = torch.ones(512, 4, 4, dtype=torch.float64)
    segments = Segments(packed, packed)
    assert torch.allclose(bmm_attention(query, key, value, segments, 0.0), value)
    mixed = bmm_attention(query, key, value, segments, 0.25)
    # 512 x 4 x 64 draws: the mean of kept / (1 - p) has a standard deviation of 0.0016.
    assert mixed.mean().item() == pytest.approx(1, abs=0.008)
    assert mixed.std() > 0.01


def relative_attention(
    query: Tensor, key: Tensor, value: Tensor, both: Segments, dropout: float
) -> Tensor:
    """The way of schemes with vectors, which are 0 here."""
    width = row_width(both.queries)
    none = torch.zeros(width, width, query.shape[2])
    return attention(query, key, value, both, vectors=(none, none), dropout=dropout)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("backend", [bmm_attention, sdpa_attention, relative_attention])
def test_gradients_of_queries_keys_and_values_have_the_mask_of_attention_dropout(
    backend: Backend, causal: bool
) -> None:
    """The mask is what unit vectors as values show: value i is 1 in column i."""
    packed = packed_of([7, 5, 1])
    dropout = 0.25
    torch.manual_seed(4)
    shapes = [(13, 4, 8), (13, 2, 8), (13, 2, 8)]
    leaves = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    units = torch.eye(8, dtype=torch.float64)[packed.positions].unsqueeze(1).expand(-1, 2, -1)

    def mixed(value: Tensor) -> Tensor:
        torch.manual_seed(5)
        return backend(leaves[0], leaves[1], value, Segments(packed, packed, causal), dropout)

    weights = mixed(units).detach()
    first = 0
    rows = []
    for length in (7, 5, 1):
        sentence = slice(first, first + length)
        first += length
        query, key, value = (leaf[sentence].transpose(0, 1) for leaf in leaves)  # (heads, T, E)
        key, value = (x.repeat_interleave(2, dim=0) for x in (key, value))
        scores = query @ key.mT / 8**0.5
        if causal:
            scores = scores.masked_fill(torch.ones(length, length).triu(1) > 0, -torch.inf)
        kept = weights[sentence].transpose(0, 1)[..., :length] > 0
        rows.append((scores.softmax(-1) * kept / (1 - dropout) @ value).transpose(0, 1))
    expected = torch.cat(rows)
    found = mixed(leaves[2])
    torch.testing.assert_close(found, expected)
    num_possible = (49 + 25 + 1) * 4
    if causal:
        num_possible = (28 + 15 + 1) * 4
    # Of at least 176 draws: 0.033 is one deviation of the share.
    assert (weights > 0).sum().item() / num_possible == pytest.approx(1 - dropout, abs=0.13)
    draw = torch.randn(found.shape, dtype=torch.float64)
    ours, theirs = (torch.autograd.grad(x, leaves, draw) for x in (found, expected))
    for name, gradient, other in zip(("query", "key", "value"), ours, theirs, strict=True):
        torch.testing.assert_close(gradient, other, msg=name)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("length", [1, 2, 200])
@pytest.mark.parametrize("beams", [1, 3])
def test_a_cached_step_equals_reading_all_keys(groups: int, length: int, beams: int) -> None:
    torch.manual_seed(2)
    query = torch.randn(2 * beams, 4, 8)
    key, value = torch.randn(2, 2, groups, length, 8).unbind(0)
    mask, few = torch.zeros(2, groups, 1, length), length // 2 + 1
    mask[1, ..., few:] = -torch.inf
    segments = Segments(packed_of([beams] * 2), packed_of([length, few]))
    keys, values = (torch.cat((x[0], x[1, :, :few]), 1).transpose(0, 1) for x in (key, value))
    expected = reference(query, keys, values, segments, 0.0)
    found = cached_attention(query, key, value, mask)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_dropout_drops_the_stated_share_and_keeps_the_mean(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    values = torch.ones(1000, 1001, requires_grad=True, dtype=dtype)
    dropped = dropout(values, 0.1, training=True)
    dropped.sum().backward()
    assert dropped_share(0.1) == 26 / 256
    # What is kept is scaled by the share that was applied: 256 / 230, not 1 / 0.9.
    scale = torch.tensor(256 / 230, dtype=dtype).item()
    assert dropped.unique().tolist() == pytest.approx([0, scale], rel=1e-6)
    # 10^6 draws: the standard deviation of the share is 0.0003.
    assert (dropped == 0).float().mean().item() == pytest.approx(26 / 256, abs=0.0015)
    assert dropped.float().mean().item() == pytest.approx(scale * 230 / 256, abs=0.002)
    assert torch.equal(values.grad, dropped)  # type: ignore[arg-type]
    # Every one of the eight bytes of a random word drops alike.
    by_byte = (dropped.flatten()[: 1000 * 1000].view(-1, 8) == 0).float().mean(0)
    assert by_byte.max() - by_byte.min() < 0.006


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_dropout_adds_a_residual_that_is_never_dropped(dtype: torch.dtype) -> None:
    values, residual = (torch.randn(50, 7, dtype=dtype, requires_grad=True) for _ in range(2))
    weights = torch.randn(50, 7, dtype=dtype)
    torch.manual_seed(1)
    dropped = dropout(values, 0.5, training=True)
    (expected_grad,) = torch.autograd.grad((dropped * weights).sum(), values)
    torch.manual_seed(1)
    total = dropout(values, 0.5, training=True, residual=residual)
    gradients = torch.autograd.grad((total * weights).sum(), (values, residual))
    # With one rounding less than in two steps.
    torch.testing.assert_close(total, residual + dropped, rtol=0.01, atol=0.01)
    assert torch.equal(gradients[0], expected_grad)
    assert torch.equal(gradients[1], weights)
    assert torch.equal(dropout(values, 0.5, training=False, residual=residual), residual + values)


def test_rotation_makes_scores_depend_on_the_distance_and_a_table_has_an_end() -> None:
    query, key, rotate = torch.randn(1, 2, 8), torch.randn(1, 2, 8), RotaryPositions().rotate

    def score(query_position: int, key_position: int) -> torch.Tensor:
        rotated_query = rotate(query, torch.tensor([query_position]))
        return (rotated_query * rotate(key, torch.tensor([key_position]))).sum(-1)

    torch.testing.assert_close(score(3, 1), score(13, 11), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(score(3, 1), score(3, 2))
    torch.testing.assert_close(rotate(query, torch.tensor([0])), query)
    with pytest.raises(ValueError, match="9 positions, but the model has 8"):
        LearnedPositions(ModelConfig(max_positions=8), 4).table(9)


def test_a_table_of_positions_can_start_at_zeros_without_other_changes() -> None:
    """Only the table: all other initial weights are those of random positions."""
    models = []
    for start in ("normal", "zeros"):
        torch.manual_seed(1)
        models.append(small_model(positions="learned", position_init=start))
    normal, zeros = models
    for (name, one), other in zip(normal.named_parameters(), zeros.parameters(), strict=True):
        if "positions" in name:
            assert one.std() > 0.1
            assert not other.any()
        else:
            assert one.equal(other)


def test_rotation_multiplies_complex_numbers_by_powers_of_the_position() -> None:
    """Su et al. (2021), section 3.2.2: pair i turns by the position times 10000^(-2i / E)."""
    heads = torch.randn(4, 2, 8)
    positions = torch.tensor([0, 1, 5, 300])
    first, second = heads.double().split(4, dim=-1)
    angles = positions.view(4, 1, 1) * 10_000.0 ** (-2 * torch.arange(4) / 8)
    turned = torch.complex(first, second) * torch.polar(
        torch.ones(4, 1, 4).double(), angles.double()
    )
    expected = torch.cat((turned.real, turned.imag), dim=-1).float()
    found = RotaryPositions().rotate(heads, positions)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layout", ["sinusoidal", "sinusoidal-concatenated", "sinusoidal-halves"])
def test_the_table_of_positions_grows_with_the_longest_sentence(layout: str) -> None:
    scheme = SinusoidalPositions(8, layout)
    before = scheme.table(200).clone()
    table = scheme.table(700)
    assert torch.equal(table[: len(before)], before)
    formula = Formula(ModelConfig.model_validate({"positions": layout}), {})
    torch.testing.assert_close(table[699].double(), formula.sinusoid(699, 8))


class HalfRotary(RelativePositions):
    """Rotates only the first ``dim`` features, as GPT-NeoX does (Black et al. 2022, 2.1)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self._dim = dim
        self._rotary = RotaryPositions()

    @override
    def rotate(self, heads: Tensor, positions: Tensor) -> Tensor:
        rotated = self._rotary.rotate(heads[..., : self._dim], positions)
        return torch.cat((rotated, heads[..., self._dim :]), dim=-1)


POSITIONS.register("half-rotary", PositionScheme(relative=lambda _, dim: HalfRotary(dim // 2)))
SOURCE = Packed.from_rows([[7, 8, 9, 4, 3], [11, 12, 3]])
TARGET = Packed.from_rows([[2, 20, 21, 9], [2, 22]])


@pytest.mark.parametrize("num_kv_heads", [4, 2, 1])
@torch.inference_mode()
def test_a_registered_scheme_serves_all(num_kv_heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model(positions="half-rotary", num_kv_heads=num_kv_heads)
    whole = model(SOURCE, TARGET)
    state, steps, ids = model.start(SOURCE), [], TARGET.pad(TARGET.ids)
    for position in range(4):
        hidden, state = model.decode_step(state, ids[:, position : position + 1])
        steps.append(hidden[:, 0])
    torch.testing.assert_close(torch.stack(steps, 1)[TARGET.mask()], whole, rtol=1e-4, atol=1e-5)
    monkeypatch.setitem(BACKENDS, "cpu", sdpa_attention)
    torch.testing.assert_close(model(SOURCE, TARGET), whole, rtol=1e-4, atol=1e-5)
    none = small_model(positions="none", num_kv_heads=num_kv_heads)
    assert none.state_dict().keys() == model.state_dict().keys()
    assert not torch.allclose(none(SOURCE, TARGET), whole)
