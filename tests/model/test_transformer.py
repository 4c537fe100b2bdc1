"""Laws of the model: steps equal the whole, and nothing depends on batch mates or later tokens."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.model.small import VARIANTS, packed, small_model


@pytest.mark.parametrize("variant", VARIANTS)
def test_decoding_step_by_step_equals_reading_the_whole_target(variant: str) -> None:
    model = small_model(**VARIANTS[variant])
    source, target = packed([7, 4, 6]), packed([5, 6, 3])
    ids = target.pad(target.ids)
    with torch.no_grad():
        whole = model.logits(model(source, target))
        state = model.start(source)
        steps = []
        for position in range(6):
            hidden, state = model.decode_step(state, ids[:, position : position + 1])
            steps.append(model.logits(hidden)[:, 0])
    one_by_one = torch.stack(steps, dim=1)[target.mask()]
    torch.testing.assert_close(one_by_one, whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_selecting_beams_and_stepping_commute(variant: str) -> None:
    model = small_model(**VARIANTS[variant])
    with torch.no_grad():
        state = model.start(packed([7, 4, 6]))
        _, state = model.decode_step(state, torch.tensor([[2], [2], [2]]))
        state = state.select(torch.arange(3), torch.zeros(3, 2, dtype=torch.int64))
        tokens = torch.tensor([[4, 5], [6, 7], [8, 9]])
        _, state = model.decode_step(state, tokens)
        sentences, beams = torch.tensor([0, 2]), torch.tensor([[1, 0, 1], [0, 0, 1]])
        chosen = state.select(sentences, beams)
        after, _ = model.decode_step(chosen, torch.full((2, 3), 11))
        full, _ = model.decode_step(state, torch.full((3, 2), 11))
    expected = full[sentences].gather(1, beams.unsqueeze(-1).expand(-1, -1, full.shape[-1]))
    torch.testing.assert_close(after, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_token_changes_nothing_before_it(variant: str) -> None:
    model = small_model(**VARIANTS[variant])
    source, target, changed = packed([6]), packed([7]), packed([7])
    changed.ids[4] = 49 if target.ids[4] != 49 else 48
    with torch.no_grad():
        before, after = model(source, target), model(source, changed)
    torch.testing.assert_close(before[:4], after[:4], rtol=0, atol=0)
    assert not torch.allclose(before[4:], after[4:])


@settings(max_examples=20)
@given(
    variant=st.sampled_from(sorted(VARIANTS)),
    lengths=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=2, max_size=5),
)
def test_batch_mates_change_nothing(variant: str, lengths: list[tuple[int, int]]) -> None:
    model = small_model(**VARIANTS[variant])
    source, target = packed([s for s, _ in lengths]), packed([t for _, t in lengths])
    with torch.no_grad():
        together = model(source, target)
        alone = model(source.part(0, 1), target.part(0, 1))
    torch.testing.assert_close(together[: len(alone)], alone, rtol=1e-4, atol=1e-5)
