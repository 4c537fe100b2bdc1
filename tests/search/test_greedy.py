"""Greedy search that does not wait for the device finds what the one that waits finds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nmt.config.model import DecodingConfig, ModelConfig
from nmt.inference.cuda_graphs import GraphedDecodeToken
from nmt.inference.stepper import ModelStepper
from nmt.model.transformer import build_model
from nmt.packed import Packed
from nmt.search import greedy
from nmt.search.greedy import greedy_without_waiting
from nmt.search.hypothesis import Constraints, Hypothesis, length_penalty
from nmt.search.loop import search
from nmt.search.rules import Rules
from nmt.text import EOS_ID
from tests.search.toys import TableStepper, random_table


def run(stepper: TableStepper, source: Packed, options: DecodingConfig) -> list[list[Hypothesis]]:
    rules = Rules(source.lengths, options, (), stepper.max_positions)
    with torch.inference_mode():
        return greedy_without_waiting(stepper, source, rules.limits, length_penalty(options))


@given(
    seed=st.integers(0, 999),
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=7),
    grain=st.sampled_from([0.0, 2.0]),
    steps=st.integers(1, 9),
    limits=st.fixed_dictionaries(
        {
            "max_length_offset": st.integers(1, 9),
            "length_penalty": st.sampled_from([0.0, 1.0]),
            "min_length_factor": st.sampled_from([0.0, 1.0]),
        }
    ),
)
def test_both_find_the_same(
    seed: int, lengths: list[int], grain: float, steps: int, limits: dict[str, Any]
) -> None:
    table = random_table(seed, 9, grain=grain)
    options = DecodingConfig(beam_size=1, max_length_factor=1, **limits)
    source = Packed.from_rows([[*range(4, 3 + length), EOS_ID] for length in lengths])
    expected = search(TableStepper(table), source, options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(greedy, "_STEPS_BETWEEN_LOOKS", steps)
        assert run(TableStepper(table), source, options) == expected


def test_what_cannot_end_has_no_output() -> None:
    """Nothing is possible after the first token of the second sentence, and NaN is no output."""

    def table(key: tuple[int, ...]) -> Tensor:
        log_probs = torch.full((7,), -torch.inf)
        if 6 not in key:
            log_probs[EOS_ID] = -0.5
        elif 5 in key:
            log_probs[:] = torch.nan
        return log_probs

    source = Packed.from_rows([[4, EOS_ID], [6, EOS_ID], [6, 5, EOS_ID]])
    found = run(TableStepper(table), source, DecodingConfig(beam_size=1))
    assert found == [[Hypothesis((), -0.5, -0.5)], [], []]


def test_other_rules_are_left_to_the_other_search() -> None:
    for options, own, expected in (
        ({}, [], True),
        ({"min_length_factor": 1.0}, [], True),
        ({"no_repeat_ngram_size": 2}, [], False),
        ({"repetition_penalty": 1.1}, [], False),
        ({}, [Constraints(prefix=(5,))], False),
        ({}, [Constraints(forbidden=((5,),))], False),
    ):
        rules = Rules(torch.tensor([3]), DecodingConfig.model_validate(options), own)
        assert rules.only_limit_length is expected


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_it_finds_what_a_cpu_finds() -> None:
    torch.manual_seed(3)
    config = ModelConfig(model_dim=64, ff_dim=128, num_heads=4, encoder_layers=2, decoder_layers=2)
    model = build_model(config, 90, 90).eval()
    rows = [[*torch.randint(4, 90, (n,)).tolist(), EOS_ID] for n in (3, 9, 17, 5, 30, 30, 2)]
    options = DecodingConfig(beam_size=1, max_length_offset=12)
    expected = search(ModelStepper(model), Packed.from_rows(rows), options)
    model = model.to("cuda")
    for runs in (None, [GraphedDecodeToken(model)]):
        for _ in range(3):  # steps are recorded after some uses
            found = search(ModelStepper(model, runs=runs), Packed.from_rows(rows, "cuda"), options)
            assert [own[0].ids for own in found] == [own[0].ids for own in expected]
            scores = [[own[0].score for own in side] for side in (found, expected)]
            assert scores[0] == pytest.approx(scores[1], rel=1e-4)
