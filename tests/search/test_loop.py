"""All searches with all rules beside plain Python; finished sentences; the registry."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeAlias

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor
from typing_extensions import override

from nmt.config.model import DecodingConfig
from nmt.errors import ConfigError
from nmt.packed import Packed
from nmt.search.hypothesis import NONE, Constraints, Hypothesis
from nmt.search.loop import search
from nmt.search.selector import (
    SELECTORS,
    BeamState,
    FinishedHypotheses,
    SearchInputs,
    Selection,
    Selector,
)
from nmt.text import BOS_ID, EOS_ID, UNK_ID
from tests.search.naive import Naive
from tests.search.toys import (
    FIRST_WORD,
    KINDS,
    TableStepper,
    beam_search,
    greedy_search,
    ids_of,
    options_of,
    random_table,
    sources,
)

VOCAB_SIZE = FIRST_WORD + 3
WORDS = range(FIRST_WORD, VOCAB_SIZE)

Options: TypeAlias = dict[str, Any]
Free: TypeAlias = list[Constraints]
seeds = st.integers(0, 10**6)
grains = st.sampled_from([0.0, 2.0])  # with a grain many tokens are equally probable
phrases = st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(tuple)
rules = st.fixed_dictionaries({
    "no_repeat_ngram_size": st.integers(0, 3),
    "repetition_penalty": st.sampled_from([1.0, 0.7, 1.4]),
    "prefix_bias_beta": st.sampled_from([0.0, 0.0, 0.3]),
    "length_penalty": st.sampled_from([0.0, 0.6, 1.0]),
    "length_penalty_form": st.sampled_from(["power", "gnmt"]),
    "min_length_factor": st.sampled_from([0.0, 0.6]),
})  # fmt: skip
prefixes = st.lists(st.sampled_from([UNK_ID, *WORDS]), max_size=3).map(tuple)
free = st.builds(Constraints, prefix=prefixes, forbidden=st.lists(phrases, max_size=3).map(tuple))
enumerable = free.filter(lambda own: UNK_ID not in own.prefix)
required = st.builds(
    Constraints,
    prefix=st.lists(st.sampled_from(WORDS), max_size=1).map(tuple),
    required=st.lists(phrases.filter(lambda p: len(p) < 3), max_size=2).map(tuple),
    forbidden=st.lists(phrases.filter(lambda p: len(p) > 1), max_size=1).map(tuple),
)


@given(
    seed=seeds,
    options=rules,
    weight=st.sampled_from([0.0, 0.0, 0.2, 5.0]),
    own=st.lists(st.one_of(enumerable, required), min_size=1, max_size=2),
)
def test_a_wide_beam_finds_the_best(seed: int, options: Options, weight: float, own: Free) -> None:
    table = random_table(seed, VOCAB_SIZE, sharpness=3.0)
    source = sources([3, 2][: len(own)], seed)
    config = options_of(beam_size=256, n_best=3, coverage_penalty=weight, **options)
    rows = zip(map(tuple, source.rows()), own, strict=True)
    naive = [Naive(table, ids, VOCAB_SIZE, config, each) for ids, each in rows]
    assume(all(each.limits[1] <= 6 for each in naive))
    results = search(TableStepper(table), source, config, own)
    for found, each in zip(results, naive, strict=True):
        expected = each.every_output()
        assert [h.ids for h in found] == [h.ids for h in expected[:3]]
        assert [h.score for h in found] == pytest.approx([h.score for h in expected[:3]], abs=1e-4)
    for size in (1, 3):
        narrow = config.model_copy(update={"beam_size": size, "n_best": 1})
        found_by_few = search(TableStepper(table), source, narrow, own)
        for few, best in zip(found_by_few, results, strict=True):
            assert not few or few[0].score <= best[0].score + 1e-6


@given(seed=seeds, options=rules, own=st.lists(free, min_size=1, max_size=3), grain=grains)
def test_greedy_search_is_a_beam_of_1(seed: int, options: Options, own: Free, grain: float) -> None:
    table = random_table(seed, VOCAB_SIZE, grain=grain)
    source = sources([3, 6, 1][: len(own)], seed)
    config = options_of(beam_size=1, **options)
    found = greedy_search(TableStepper(table), source, config, own)
    assert beam_search(TableStepper(table), source, config, own) == found
    if grain:  # plain Python rounds otherwise
        return
    for row, ids in enumerate(source.rows()):
        naive = Naive(table, tuple(ids), VOCAB_SIZE, config, own[row]).greedy()
        assert ids_of(found)[row] == ([] if naive is None else [naive])


@given(seed=seeds, own=free, options=rules)
def test_alternatives_are_the_next_tokens(seed: int, own: Constraints, options: Options) -> None:
    options = {**options, "prefix_bias_beta": 0.0}
    config = options_of(return_alternatives=True, n_best=5, **options)
    table, source = random_table(seed, VOCAB_SIZE), sources([4], seed)
    (found,) = search(TableStepper(table), source, config, [own])
    naive = Naive(table, tuple(source.ids.tolist()), VOCAB_SIZE, config, own)
    values = naive.next_log_probs(own.prefix)
    order = sorted(range(VOCAB_SIZE), key=lambda token: -values[token])
    possible = [token for token in order if values[token] > -float("inf")]
    outputs = [naive.greedy((*own.prefix, token)) for token in possible[:5]]
    assert [hypothesis.ids for hypothesis in found] == [ids for ids in outputs if ids is not None]


@given(
    seed=seeds,
    kind=st.sampled_from(KINDS),
    options=rules,
    own=st.lists(free, min_size=4, max_size=4),
    phrase=st.one_of(st.none(), required),
    grain=grains,
)
def test_results_do_not_depend_on_the_other_sentences_of_the_batch(
    seed: int, kind: Options, options: Options, own: Free, phrase: Constraints | None, grain: float
) -> None:
    """Nor on whether these have required phrases."""
    table = random_table(seed, VOCAB_SIZE, grain=grain)
    if kind.get("return_alternatives"):
        options = {**options, "prefix_bias_beta": 0.0}
    config = options_of(**kind, **options)
    if phrase is not None and "beam_size" in kind and "diverse_beam_groups" not in kind:
        own = [own[0], phrase, *own[2:]]
    source = sources([3, 5, 1, 4], seed)
    together = search(TableStepper(table), source, config, own)
    for order in ([2], [3, 0], [1]):
        part = Packed.from_rows([source.rows()[i] for i in order])
        some = search(TableStepper(table), part, config, [own[i] for i in order])
        assert some == [together[i] for i in order]
    for found in together:
        assert len(found) <= config.n_best
        if not config.sampling:
            assert len({hypothesis.ids for hypothesis in found}) == len(found)


@given(
    seed=seeds,
    kind=st.sampled_from(KINDS),
    options=rules,
    own=st.lists(st.one_of(free, required), min_size=2, max_size=2),
    plain=st.booleans(),
)
def test_a_start_token_is_a_prefix_that_costs_nothing(
    seed: int, kind: Options, options: Options, own: Free, plain: bool
) -> None:
    """It counts in the length, and is not part of the output."""
    options = {**options, "prefix_bias_beta": 0.0}
    size = VOCAB_SIZE + 2  # no phrase contains a start token
    config, table = options_of(**kind, **options), random_table(seed, size)
    if plain or "beam_size" not in kind or "diverse_beam_groups" in kind:
        own = [NONE if plain else replace(each, required=()) for each in own]
    source, first = sources([4, 2], seed), (VOCAB_SIZE + 1, VOCAB_SIZE)

    def free_first(key: tuple[int, ...]) -> Tensor:
        return table(key) if key[-1] != BOS_ID else torch.zeros(size)

    forced = [replace(c, prefix=(x, *c.prefix)) for x, c in zip(first, own, strict=True)]
    expected = search(TableStepper(free_first), source, config, forced)
    started = [replace(each, start=x) for x, each in zip(first, own, strict=True)]
    found = search(TableStepper(table), source, config, started)
    assert found == [[replace(h, ids=h.ids[1:]) for h in each] for each in expected]


@pytest.mark.parametrize("kind", KINDS)
def test_finished_sentences_and_hypotheses_leave_the_batch(kind: Options) -> None:
    stepper = TableStepper(random_table(4, 9))
    config = options_of(**kind, max_length_offset=3)
    results = search(stepper, sources([2, 5, 12, 20]), config)
    assert (stepper.rows[0], stepper.widths[0]) == (4, 1)
    assert stepper.rows == sorted(stepper.rows, reverse=True)
    assert stepper.rows[-1] < 4
    if kind == {"beam_size": 1}:
        ends = [len(found.ids) + 1 for (found,) in results]
        steps = range(1, max(ends) + 1)
        assert stepper.rows == [sum(end >= step for end in ends) for step in steps]
    elif "beam_size" not in kind:  # independent hypotheses leave one by one
        assert stepper.widths[1] == config.n_best
        assert stepper.widths[-1] == 1


@pytest.mark.parametrize("kind", KINDS)
def test_no_possible_output_gives_no_hypothesis(kind: Options) -> None:
    for value in (-torch.inf, torch.nan):
        stepper = TableStepper(lambda _, value=value: torch.full((8,), value))  # type: ignore[misc]
        assert search(stepper, sources([3, 1]), options_of(**kind)) == [[], []]


@pytest.mark.parametrize("kind", KINDS)
def test_positions_limit_the_output_whatever_the_options(kind: Options) -> None:
    stepper = TableStepper(random_table(3, 9))
    stepper.max_positions = 5
    config = options_of(**kind, max_length_factor=2.0, min_length_factor=1.0)
    for found in search(stepper, sources([9, 3, 6]), config):
        assert found
        assert all(2 <= len(hypothesis.ids) <= 4 for hypothesis in found)
    assert len(stepper.rows) == 5


@pytest.mark.parametrize(("size", "expected"), [(4, 1), (5, 0), (7, 0)])
def test_a_prefix_that_does_not_fit_the_positions_has_no_output(size: int, expected: int) -> None:
    prefix = Constraints(prefix=(5, 6, 7, 5, 6, 7, 5)[:size])
    for beta, number in ((0.0, expected), (0.9, 1)):
        stepper = TableStepper(random_table(3, 9))
        stepper.max_positions = 5
        (found,) = search(stepper, sources([3]), options_of(prefix_bias_beta=beta), [prefix])
        assert (len(found), len(stepper.rows) <= 5) == (number, True)


class Shortest(Selector):
    """Ends every output at once."""

    def __init__(self, inputs: SearchInputs) -> None:
        self._finished = FinishedHypotheses(inputs, beam_size=1, n_best=1)

    @override
    def select(self, beams: BeamState, log_probs: Tensor, coverage: Tensor | None) -> Selection:
        ends = log_probs[:, 0, EOS_ID].cpu()
        self._finished.add(beams.sentences, beams.history[:, 0], ends)
        return Selection(beams.tokens, beams.totals, active=torch.zeros_like(ends).bool())

    @override
    def results(self) -> list[list[Hypothesis]]:
        return [pool for (pool,) in self._finished.by_sentence()]


def test_a_registered_selector_is_chosen_by_its_name() -> None:
    SELECTORS.register("shortest", Shortest)
    stepper, inputs = TableStepper(random_table(1, 8)), sources([3, 5])
    assert ids_of(search(stepper, inputs, DecodingConfig(search="shortest"))) == [[()], [()]]
    assert stepper.rows == [2]
    with pytest.raises(ConfigError, match="shortst is not a known search"):
        search(stepper, inputs, DecodingConfig.model_construct(search="shortst"))
    own = [Constraints(required=((5,),)), NONE]
    for kind in ({"search": "shortest"}, *KINDS[4:]):
        with pytest.raises(ConfigError, match="does not support required phrases"):
            search(stepper, inputs, options_of(**kind), own)
