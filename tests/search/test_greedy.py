"""Greedy search that does not wait for the device, and sampling beside plain Python."""

from __future__ import annotations

import itertools
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
from nmt.search.greedy import exponential, greedy_without_waiting, nucleus, sample_keys
from nmt.search.hypothesis import Constraints, Hypothesis, length_penalty
from nmt.search.loop import search
from nmt.search.rules import Rules
from nmt.search.selector import BeamState
from nmt.text import BOS_ID, EOS_ID
from tests.search.naive import Naive, truncated
from tests.search.toys import Table, TableStepper, random_table, sources


def greedy_of(
    stepper: TableStepper, source: Packed, options: DecodingConfig
) -> list[list[Hypothesis]]:
    rules = Rules(source.lengths, options, (), stepper.max_positions)
    parts = stepper.start(source), BeamState.first(len(source)), rules.limits
    with torch.inference_mode():
        return greedy_without_waiting(stepper, *parts, length_penalty(options))


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
def test_both_searches_find_the_same_output(
    seed: int, lengths: list[int], grain: float, steps: int, limits: dict[str, Any]
) -> None:
    table = random_table(seed, 9, grain=grain)
    options = DecodingConfig(beam_size=1, max_length_factor=1, **limits)
    source = Packed.from_rows([[*range(4, 3 + length), EOS_ID] for length in lengths])
    expected = search(TableStepper(table), source, options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(greedy, "_STEPS_BETWEEN_CHECKS", steps)
        assert greedy_of(TableStepper(table), source, options) == expected


def test_hypotheses_that_cannot_end_are_dropped() -> None:
    """Nothing is possible after the first token of the second sentence, and NaN is no output."""

    def table(key: tuple[int, ...]) -> Tensor:
        log_probs = torch.full((7,), -torch.inf)
        if 6 not in key:
            log_probs[EOS_ID] = -0.5
        elif 5 in key:
            log_probs[:] = torch.nan
        return log_probs

    source = Packed.from_rows([[4, EOS_ID], [6, EOS_ID], [6, 5, EOS_ID]])
    found = greedy_of(TableStepper(table), source, DecodingConfig(beam_size=1))
    assert found == [[Hypothesis((), -0.5, -0.5)], [], []]


def test_other_rules_use_the_waiting_search() -> None:
    for options, own, expected in (
        ({}, [], True),
        ({"min_length_factor": 1.0}, [], True),
        ({"no_repeat_ngram_size": 2}, [], False),
        ({"repetition_penalty": 1.1}, [], False),
        ({"repetition_penalty": 0.9}, [], False),
        ({}, [Constraints(start=5)], True),
        ({}, [Constraints(prefix=(5,))], False),
        ({}, [Constraints(forbidden=((5,),))], False),
    ):
        rules = Rules(torch.tensor([3]), DecodingConfig.model_validate(options), own)
        assert rules.only_limit_length is expected


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("start", [None, 7])
def test_on_a_gpu_it_finds_what_a_cpu_finds(start: int | None) -> None:
    torch.manual_seed(3)
    config = ModelConfig(model_dim=64, ff_dim=128, num_heads=4, encoder_layers=2, decoder_layers=2)
    model = build_model(config, 90, 90).eval()
    rows = [[*torch.randint(4, 90, (n,)).tolist(), EOS_ID] for n in (3, 9, 17, 5, 30, 30, 2)]
    options = DecodingConfig(beam_size=1, max_length_offset=12)
    starts = [Constraints(start=start)] * len(rows) if start else None
    expected = search(ModelStepper(model), Packed.from_rows(rows), options, starts)
    model = model.to("cuda")
    for runs in (None, [GraphedDecodeToken(model)]):
        for _ in range(3):  # steps are recorded after some uses
            stepper = ModelStepper(model, runs=runs)
            found = search(stepper, Packed.from_rows(rows, "cuda"), options, starts)
            assert [own[0].ids for own in found] == [own[0].ids for own in expected]
            scores = [[own[0].score for own in side] for side in (found, expected)]
            assert scores[0] == pytest.approx(scores[1], rel=1e-4)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.5},
    {"top_k": 3},
    {"top_k": 1},
    {"top_k": 100},
    {"top_p": 0.6},
    {"top_p": 0.001},
    {"epsilon_cutoff": 0.1},
    {"epsilon_cutoff": 0.99},
    {"temperature": 2.0, "top_k": 6, "top_p": 0.8, "epsilon_cutoff": 0.15},
]


def settings(**changes: Any) -> DecodingConfig:
    """Sampling of short outputs, with changes."""
    values = {"sampling": True, "max_length_factor": 1.0, "max_length_offset": 3, **changes}
    return DecodingConfig.model_validate(values)


def drawn(probs: list[float], key: Tensor) -> int:
    """The token with the largest ratio of probability to its own number."""
    numbers = exponential(key.view(1, 1, 1), torch.arange(len(probs)))[0, 0].tolist()
    return max(range(len(probs)), key=lambda token: probs[token] / numbers[token])


@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.9, 0.99])
def test_a_wide_nucleus_is_found(top_p: float, monkeypatch: pytest.MonkeyPatch) -> None:
    probs = torch.stack([random_table(seed, 3000, 0.5)(()).exp() for seed in range(3)])
    whole = nucleus(probs, top_p)
    monkeypatch.setattr(greedy, "_FIRST_NUCLEUS_SIZE", 3000)
    assert torch.equal(nucleus(probs, top_p), whole)
    for row, kept in zip(probs.tolist(), whole.tolist(), strict=True):
        least = min(x for x in kept if x)
        assert sum(kept) >= top_p - 1e-6
        assert sum(kept) - least < top_p
        assert all(bool(b) == (a >= least) for a, b in zip(row, kept, strict=True))


def by_hand(
    table: Table, source: tuple[int, ...], key: Tensor, number: int, config: DecodingConfig
) -> tuple[tuple[int, ...], float]:
    naive = Naive(table, source, 9, config)
    ids: tuple[int, ...] = ()
    total = 0.0
    while True:
        values = naive.next_log_probs(ids)
        own = sample_keys(key.view(1, 1), torch.tensor([[number]]), len(ids) + 1)
        token = drawn(truncated(values, config), own)
        total += values[token]
        if token == EOS_ID:
            return ids, total
        ids = (*ids, token)


@pytest.mark.parametrize("options", OPTIONS)
def test_samples_are_what_plain_python_draws(options: dict[str, Any]) -> None:
    config = settings(n_best=4, no_repeat_ngram_size=2, **options)
    table = random_table(8, 9)
    source = sources([4, 9, 1, 6], 8)
    found = search(TableStepper(table), source, config)
    for row, ids in enumerate(source.rows()):
        key = torch.tensor(greedy.source_key(config.seed, ids))
        assert len(found[row]) == 4
        for number, hypothesis in enumerate(found[row]):
            expected, total = by_hand(table, tuple(ids), key, number, config)
            assert hypothesis.ids == expected
            assert hypothesis.log_prob == pytest.approx(total, abs=1e-4)
            assert hypothesis.score == pytest.approx(total / (len(expected) + 1), abs=1e-4)


@given(seed=st.integers(0, 10**6), n_best=st.integers(1, 4))
def test_more_samples_do_not_change_earlier_samples(seed: int, n_best: int) -> None:
    table, inputs = random_table(seed, 9), sources([3, 6], seed)
    most = search(TableStepper(table), inputs, settings(n_best=6))
    fewer = search(TableStepper(table), inputs, settings(n_best=n_best))
    assert fewer == [own[:n_best] for own in most]


def test_samples_depend_on_the_seed_and_on_the_source() -> None:
    """All tokens are equally probable: only the drawn numbers differ."""

    def table(_: tuple[int, ...]) -> Tensor:
        return torch.zeros(30).log_softmax(0)

    source = Packed.from_rows([[41, 5, EOS_ID], [4, 15, EOS_ID]])  # the same digits
    found: list[Any] = []
    for seed in (1, 2, 11):
        config = settings(n_best=3, seed=seed)
        first, again = (search(TableStepper(table), source, config) for _ in range(2))
        assert first == again
        found += [[hypothesis.ids for hypothesis in own] for own in first]
    assert all(one != other for one, other in itertools.combinations(found, 2))


@pytest.mark.parametrize("options", [{}, {"top_k": 4}, {"top_p": 0.7}])
def test_leaving_out_impossible_tokens_does_not_change_samples(options: dict[str, Any]) -> None:
    """As a shortlist does: its columns are named by the ids of their tokens."""
    columns = [0, 1, 2, EOS_ID, 5, 6, 9, 10, 11]
    table = random_table(2, 12)

    def possible(key: tuple[int, ...]) -> Tensor:
        values = torch.full((12,), -torch.inf)
        values[columns] = table(key)[columns]
        return values

    def narrow(key: tuple[int, ...]) -> Tensor:
        start = key.index(BOS_ID)
        return possible((*key[:start], *(columns[token] for token in key[start:])))[columns]

    config, source = settings(n_best=4, **options), sources([6, 9], 3)
    expected = search(TableStepper(possible), source, config)
    stepper = TableStepper(narrow)
    stepper.tokens = torch.tensor(columns)
    for own, all_tokens in zip(search(stepper, source, config), expected, strict=True):
        ids = [tuple(columns[token] for token in hypothesis.ids) for hypothesis in own]
        assert ids == [hypothesis.ids for hypothesis in all_tokens]


def test_random_numbers_are_uniform_and_uncorrelated() -> None:
    """Over sentences, samples and positions; neighbours have nothing to do with each other."""
    keys = torch.arange(100).unsqueeze(1)
    numbers = torch.arange(40).expand(100, -1)
    own = torch.stack([sample_keys(keys, numbers, position) for position in range(1, 6)])
    waits = exponential(own.unsqueeze(-1), torch.arange(5))
    assert waits.min() > 0
    # Of this one 32 bits are ones, but for the last few: as a float32 that would be 1.
    assert exponential(torch.tensor([[[3613023184]]]), torch.tensor([6131])).isfinite().all()
    chances = -torch.expm1(-waits.double())  # (5 positions, 100 keys, 40 numbers, 5 tokens)
    assert chances.flatten().unique().numel() > 0.99 * chances.numel()
    chi_square = float(((torch.histc(chances, bins=100, min=0, max=1) - 1000) ** 2 / 1000).sum())
    assert 50 < chi_square < 160  # 99 degrees of freedom
    for dim in range(4):
        one, other = chances.unfold(dim, 2, 1).flatten(0, 3).unbind(-1)
        assert abs(float(torch.corrcoef(torch.stack((one, other)))[0, 1])) < 0.015
