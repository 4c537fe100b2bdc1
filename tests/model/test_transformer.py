"""Laws of the model: steps equal the whole, and nothing depends on batch mates or later tokens.

Nor on activation checkpointing: less is kept then, and nothing else is other than without.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nmt.model.transformer import Transformer
from nmt.packed import round_up
from tests.examples import FEW
from tests.model.small import VARIANTS, packed, results, small_model


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


@pytest.mark.parametrize(("first", "length"), [(0, 257), (1, 256), (2, 255)])
@torch.inference_mode()
def test_positions_beyond_the_first_table_are_those_of_a_larger_one(
    first: int, length: int
) -> None:
    """Tables begin with 256 positions. Source, whole target and a single step ask for more."""
    options = {"first_position": first, "encoder_layers": 1, "decoder_layers": 1}
    model, grown, stepping = (small_model(**options) for _ in range(3))
    for embedding in (grown.source_embedding, grown.target_embedding):
        embedding.position_table(1000)
    short, long = packed([2]), packed([length])
    for pair in ((long, short), (short, long)):
        torch.testing.assert_close(model(*pair), grown(*pair), rtol=0, atol=0)
    hidden = []
    for each in (stepping, grown):
        state = each.start(short)
        cache = torch.ones(*state.self_kv.shape[:4], length, state.self_kv.shape[5])
        last = replace(state, self_kv=cache, length=length - 1)
        hidden.append(each.decode_step(last, torch.tensor([[5]]))[0])
    torch.testing.assert_close(hidden[0], hidden[1], rtol=0, atol=0)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_token_does_not_change_earlier_positions(variant: str) -> None:
    model = small_model(**VARIANTS[variant])
    source, target, changed = packed([6]), packed([7]), packed([7])
    changed.ids[4] = 49 if target.ids[4] != 49 else 48
    with torch.no_grad():
        before, after = model(source, target), model(source, changed)
    torch.testing.assert_close(before[:4], after[:4], rtol=0, atol=0)
    assert not torch.allclose(before[4:], after[4:])


@FEW
@given(
    variant=st.sampled_from(sorted(VARIANTS)),
    lengths=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=2, max_size=5),
)
def test_results_do_not_depend_on_the_batch(variant: str, lengths: list[tuple[int, int]]) -> None:
    model = small_model(**VARIANTS[variant])
    source, target = packed([s for s, _ in lengths]), packed([t for _, t in lengths])
    with torch.no_grad():
        together = model(source, target)
        alone = model(source.part(0, 1), target.part(0, 1))
    torch.testing.assert_close(together[: len(alone)], alone, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_filler_that_rounds_sizes_up_changes_no_state() -> None:
    model = small_model()
    plain = packed([7, 4]), packed([5, 6])
    filled = round_up(*plain, 9)
    assert filled[1].num_tokens > plain[1].num_tokens
    torch.testing.assert_close(model(*filled), model(*plain), rtol=1e-4, atol=1e-5)


DROPOUT: dict[str, Any] = {"dropout": 0.2, "attention_dropout": 0.2, "word_dropout": 0.1}


def model_of(*, recompute: bool, **options: Any) -> Transformer:
    model = small_model(**{**DROPOUT, **options}).train()
    model.recompute = recompute
    return model


def seeded(model: Transformer) -> dict[str, Tensor]:
    """Loss, gradients, and the state of the generator afterwards."""
    torch.manual_seed(7)
    return {**results(model, [5, 2, 7], [4, 6, 3]), "random": torch.get_rng_state()}


@pytest.mark.parametrize("variant", VARIANTS)
def test_loss_and_gradients_are_the_same_to_the_bit(variant: str) -> None:
    plain, saving = (seeded(model_of(recompute=x, **VARIANTS[variant])) for x in (False, True))
    torch.testing.assert_close(saving, plain, rtol=0, atol=0)


def test_recomputation_stores_less_for_the_backward_pass() -> None:
    kept = []
    for recompute, training in ((False, True), (True, True), (False, False), (True, False)):
        sizes: list[int] = []

        def pack(tensor: Tensor, sizes: list[int] = sizes) -> Tensor:
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model_of(recompute=recompute).train(training)(packed([5, 2, 7]), packed([4, 6, 3]))
        kept.append(sum(sizes))
    assert kept[1] < 0.5 * kept[0]
    assert kept[2] == kept[3]


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_checkpoint_has_the_parameters_and_nothing_else(variant: str) -> None:
    """A table of positions would depend on the longest sentence so far."""
    model = small_model(**VARIANTS[variant])
    assert model.state_dict().keys() == dict(model.named_parameters()).keys()
