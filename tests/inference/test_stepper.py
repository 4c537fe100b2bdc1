"""Searching a real, untrained Transformer."""

from __future__ import annotations

import pytest
import torch

from nmt.config.model import DecodingConfig
from nmt.inference.stepper import Mixture, ModelStepper
from nmt.inference.torch_engine import TorchEngine
from nmt.packed import Packed
from nmt.search.loop import search
from nmt.text import BOS_ID, EOS_ID
from tests.model.small import small_model
from tests.search.toys import beam_search, greedy_search


def batch(lengths: list[int]) -> Packed:
    return Packed.from_rows(
        [[*torch.randint(4, 50, (length - 1,)).tolist(), EOS_ID] for length in lengths]
    )


@torch.no_grad()
def test_special_tokens_take_no_probability_from_other_tokens() -> None:
    model = small_model()
    source = batch([5])
    stepper = ModelStepper(model)
    log_probs, _ = stepper.step(stepper.start(source), torch.tensor([[BOS_ID]]))
    logits = model.logits(model(source, Packed.from_rows([[BOS_ID]])))[0]
    assert log_probs[0, 0, :EOS_ID].isneginf().all()
    torch.testing.assert_close(log_probs[0, 0, EOS_ID:], logits[EOS_ID:].log_softmax(0))


@torch.no_grad()
def test_the_coverage_penalty_uses_the_reported_attention() -> None:
    model = small_model()
    source = batch([9, 4, 1, 6])
    options = DecodingConfig(beam_size=4, n_best=4, max_length_factor=1.0, coverage_penalty=0.4)
    for row, found in enumerate(search(ModelStepper(model, with_coverage=True), source, options)):
        for hypothesis in found:
            target = Packed.from_rows([[BOS_ID, *hypothesis.ids]])
            read = model.align(source.part(row, row + 1), target)
            lost = read[0].sum(0)[:-1].clamp(max=1).log().sum()
            normalized = hypothesis.log_prob / target.num_tokens
            assert hypothesis.score == pytest.approx(normalized + 0.4 * float(lost), abs=1e-4)


@pytest.mark.parametrize(("min_length_factor", "first"), [(0.0, 0), (4.0, 0), (4.0, 1)])
def test_positions_limit_the_output(min_length_factor: float, first: int) -> None:
    """Even if it should be longer."""
    model = small_model(positions="learned", max_positions=8 + first, first_position=first)
    for beam_size, find in ((1, greedy_search), (3, beam_search)):
        config = DecodingConfig(
            beam_size=beam_size, max_length_offset=30, min_length_factor=min_length_factor
        )
        results = find(ModelStepper(model), batch([7, 4]), config)
        assert all(len(found[0].ids) <= 7 for found in results)
        assert not min_length_factor or all(len(found[0].ids) == 7 for found in results)


@torch.no_grad()
def test_source_bos_only_adds_a_token() -> None:
    """The same weights, told BOS by the key or by hand."""
    plain, marked = (
        small_model(embeddings="separate"),
        small_model(source_bos=True, embeddings="separate"),
    )
    marked.load_state_dict(plain.state_dict())
    sources, targets = ([ids[:-1] for ids in batch([9, 4, 2]).rows()] for _ in range(2))
    by_hand = [[BOS_ID, *ids] for ids in sources]
    one, other = TorchEngine(plain), TorchEngine(marked)
    options = DecodingConfig(beam_size=3, max_length_factor=0, max_length_offset=9)
    assert other.search(sources, options) == one.search(by_hand, options)
    assert other.token_log_probs(sources, targets) == one.token_log_probs(by_hand, targets)
    rows = zip(other.attention(sources, targets), one.attention(by_hand, targets), strict=True)
    assert all(found == [row[1:] for row in expected] for found, expected in rows)
    both = TorchEngine(plain, marked, mixture=Mixture((0.5, 0.5), "geometric"))
    assert len(both.search(sources, options)) == len(sources)
    limited = DecodingConfig(beam_size=1, max_length_factor=2, max_length_offset=1)
    assert [len(found.ids) for (found,) in other.search(sources, limited)] == [17, 7, 3]
    covered = []
    for model, rows_ in ((plain, by_hand), (marked, sources)):
        stepper = ModelStepper(model, with_coverage=True)
        state = stepper.start(Packed.from_rows([[*ids, EOS_ID] for ids in rows_]))
        _, state = stepper.step(state, torch.full((len(sources), 1), BOS_ID))
        covered.append(stepper.coverage(state))
    assert torch.equal(covered[1], covered[0][..., 1:])
