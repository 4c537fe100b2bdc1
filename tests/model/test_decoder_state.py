"""Caches that grow in place, and beams that are reordered in them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nmt.model import decoder_state
from nmt.model.transformer import Transformer
from nmt.packed import Packed
from tests.model.small import small_model

NUM_SENTENCES, NUM_TOKENS, NUM_STEPS = 5, 30, 13


@pytest.fixture(scope="module")
def model() -> Transformer:
    return small_model(encoder_layers=1, model_dim=16, num_heads=2)


def walk(model: Transformer, seed: int, num_beams: int, *, with_coverage: bool) -> list[Tensor]:
    """Beams go on from any others; every few steps sentences leave, and once beams."""
    draw = torch.Generator().manual_seed(seed)
    found, alive, beams = [], NUM_SENTENCES, num_beams
    with torch.inference_mode():
        source = torch.randint(4, NUM_TOKENS, (alive, 6), generator=draw).tolist()
        lengths = torch.randint(2, 7, (alive,), generator=draw).tolist()
        rows = [ids[:length] for ids, length in zip(source, lengths, strict=True)]
        state = model.start(Packed.from_rows(rows), with_coverage=with_coverage)
        state = state.select(torch.arange(alive), torch.zeros(alive, beams, dtype=torch.int64))
        for step in range(NUM_STEPS):
            tokens = torch.randint(4, NUM_TOKENS, (alive, state.num_beams), generator=draw)
            hidden, state = model.decode_step(state, tokens)
            found.append(hidden.clone())
            if state.coverage is not None:
                found.append(state.coverage.clone())
            stay = torch.arange(alive)[(step % 6 == 5) :]
            alive, beams = len(stay), beams - (step == 10 and beams > 1)
            chosen = torch.randint(0, state.num_beams, (alive, beams), generator=draw)
            state = state.select(stay, chosen)
    return found


@given(seed=st.integers(0, 1000), num_beams=st.integers(1, 6), with_coverage=st.booleans())
@pytest.mark.long
def test_moving_some_caches_equals_copying_all(
    model: Transformer, seed: int, num_beams: int, with_coverage: bool
) -> None:
    results = []
    for large in (1, 1 << 60):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(decoder_state, "LARGE", large)
            results.append(walk(model, seed, num_beams, with_coverage=with_coverage))
    for moved, copied in zip(*results, strict=True):
        torch.testing.assert_close(moved, copied, rtol=1e-5, atol=1e-5)


def test_sentences_that_stay_keep_all_that_is_theirs(model: Transformer) -> None:
    source = Packed.from_rows([[5, 6, 7], [8], [9, 10], [11, 12, 13]])
    allowed = torch.arange(4.0).view(4, 1, 1).expand(4, 1, NUM_TOKENS)
    state = model.start(source, with_coverage=True, allowed=allowed)
    tokens = torch.tensor([[5], [6], [7], [8]])
    _, state = model.decode_step(state, tokens)
    stay = torch.tensor([1, 3])
    left = state.select(stay, torch.zeros(2, 1, dtype=torch.int64))
    parts = {name: getattr(state, name) for name in ("source_mask", "allowed", "coverage")}
    for name, values in parts.items():
        assert torch.equal(getattr(left, name), values[stay]), name
    assert torch.equal(left.cross_kv, state.cross_kv[:, :, stay])
    assert torch.equal(left.self_kv[..., :1, :], state.self_kv[:, :, stay][..., :1, :])


def test_the_first_beam_that_continues_another_keeps_its_slot_and_only_others_move() -> None:
    past = torch.arange(8.0).view(1, 1, 8, 1, 1, 1)
    beams = torch.tensor([[2, 2, 0, 2], [3, 2, 1, 0]])  # two move; none does
    slots = decoder_state.reorder_cache(past, None, beams)
    assert slots.tolist() == [[2, 1, 0, 3], [3, 2, 1, 0]]
    assert past.flatten().tolist() == [0, 2, 2, 2, 4, 5, 6, 7]
    again = decoder_state.reorder_cache(past, slots, torch.tensor([[2, 2, 2, 2], [0, 1, 2, 3]]))
    assert again.tolist() == [[0, 1, 2, 3], [3, 2, 1, 0]]
    assert past.flatten().tolist() == [0, 0, 0, 0, 4, 5, 6, 7]


@pytest.mark.parametrize(("is_fixed", "place"), [(True, 1), (False, 3)])
def test_a_new_token_replaces_what_a_used_cache_has_in_its_place(
    *, is_fixed: bool, place: int
) -> None:
    """A cache of fixed size is used again for the next batch."""
    kv = torch.full((2, 1, 1, 4, 2), 9.0)
    mask = torch.zeros(1, 1, 1, 4) if is_fixed else None
    cache = decoder_state.SelfCache(kv, torch.tensor([place]), mask)
    keys, values, found = cache.extend(torch.full((1, 1, 2), 5.0), torch.full((1, 1, 2), 6.0))
    assert found is mask
    for heads, new in ((keys, 5.0), (values, 6.0)):
        expected = torch.full((4, 2), 9.0)
        expected[place] = new
        assert torch.equal(heads[0, 0], expected)
