"""Reading without rounded sums: near to attention, and the same to the bit whatever the padding."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nmt.model.attention import exact_keys, exact_queries, exact_values, read_exactly
from nmt.model.quantized import input_ranges, quantize
from nmt.model.transformer import Readers, Transformer
from nmt.runtime.traced import trace_readers
from tests.model.test_traced import VOCAB_SIZE, decode, small_model


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@given(
    num_queries=st.integers(1, 6),
    num_keys=st.integers(1, 60),
    padding=st.integers(0, 30),
    width=st.sampled_from([4, 16, 32, 64]),
    seed=st.integers(0, 99),
)
def test_padding_changes_no_bit(
    num_queries: int, num_keys: int, padding: int, width: int, seed: int
) -> None:
    query = exact_queries(2 * draw(seed, 3, 2, num_queries, width), width)
    keys = exact_keys(draw(seed + 1, 3, 2, num_keys + padding, width))
    values = exact_values(2 * draw(seed + 2, 3, 2, num_keys + padding, width))
    bias = torch.zeros(3, 1, 1, num_keys + padding)
    bias[..., num_keys:] = -torch.inf

    padded = read_exactly(query, keys, values, bias)
    inputs = (query, keys[:, :, :num_keys], values[:, :, :num_keys], bias[..., :num_keys])
    assert torch.equal(padded, read_exactly(*inputs))
    alone = read_exactly(query[1:2], keys[1:2], values[1:2], bias[1:2])
    assert torch.equal(padded[1:2], alone)
    # What is rounded here are shares, to 1/1024 of the largest.
    expected = F.scaled_dot_product_attention(*inputs, scale=1.0)
    bound = num_keys * 2**-10 * float(values.abs().max())
    torch.testing.assert_close(padded, expected, rtol=0, atol=bound)


def test_it_equals_reading_by_hand() -> None:
    query = torch.tensor([[[[2.0, 0.001]]]])  # 0.001 * 256 / sqrt(2) is rounded to 0
    key, value = torch.tensor([[[[0.5, 9], [1, -9]]]]), torch.tensor([[[[1.0, 0], [0, 4.001]]]])
    low, high = (round(2 / 2**0.5 * 256) / 256 * x for x in (0.5, 1.0))
    share = round(1024 * 2.718281828 ** (low - high))  # of the first; that of the second is 1024

    short = exact_queries(query, 2), exact_keys(key), exact_values(value)
    found = read_exactly(*short, torch.zeros(1, 1, 1, 2))
    expected = torch.tensor([share / (share + 1024), 4 * 1024 / (share + 1024)])
    torch.testing.assert_close(found.flatten(), expected, rtol=1e-6, atol=0)


def logits(
    model: Transformer, readers: Readers | None, lines: Sequence[Sequence[int]], num_beams: int
) -> Tensor:
    """Of the first line, at five steps; tokens do not depend on what is predicted."""
    found = []
    lengths = torch.tensor([len(line) for line in lines])
    source = torch.zeros(len(lines), int(lengths.max()), dtype=torch.int64)
    for row, line in zip(source, lines, strict=True):
        row[: len(line)] = torch.tensor(line)
    with torch.inference_mode():
        state = model.start(source, lengths, readers)
        count = len(lines)
        state = state.select(torch.arange(count), torch.zeros(count, num_beams).long())
        for step in range(5):
            tokens = 4 + step + torch.arange(num_beams).expand(count, -1)
            scores, state = model.step(state, tokens, readers)
            found.append(scores[0])
    return torch.stack(found)


@pytest.fixture(scope="module", params=["scales of rows", "fixed ranges"])
def int8(request: pytest.FixtureRequest) -> tuple[Transformer, Readers | None]:
    model = small_model(model_dim=128, ff_dim=128)
    ranges = None
    if request.param == "fixed ranges":
        ranges = input_ranges(model, lambda: decode(model, None, [7, 4, 9, 12, 3], 2, 5))
    quantize(model, "int8", ranges)
    return model, trace_readers(model)


@settings(deadline=None)
@given(
    others=st.lists(st.lists(st.integers(4, VOCAB_SIZE - 1), min_size=1, max_size=30), max_size=12),
    line=st.lists(st.integers(4, VOCAB_SIZE - 1), min_size=1, max_size=20),
    num_beams=st.integers(1, 5),
)
def test_8_bit_weights_say_the_same_whatever_shares_the_batch(
    int8: tuple[Transformer, Readers | None],
    others: list[list[int]],
    line: list[int],
    num_beams: int,
) -> None:
    model, readers = int8
    alone = logits(model, readers, [line], num_beams)
    assert torch.equal(logits(model, readers, [line, *others], num_beams), alone)


def test_8_bit_weights_read_as_much_of_each_token() -> None:
    model, found = small_model(), []
    with torch.no_grad():
        for layer in model.aligning_layers:
            layer.cross_attention.query.weight.mul_(8)  # else all tokens are read alike
    for dtype in ("float32", "int8"):
        if dtype == "int8":
            quantize(model, "int8")
        with torch.inference_mode():
            source = torch.tensor([[5, 9, 30, 7], [7, 8, 0, 0]])
            state = model.start(source, torch.tensor([4, 2]), with_coverage=True)
            for _ in range(3):
                _, state = model.step(state, torch.tensor([[4], [5]]))
            assert state.coverage is not None
            found.append(state.coverage)
    torch.testing.assert_close(*found, rtol=0, atol=0.1)
    assert found[0].std(dim=1).min() > 0.3
