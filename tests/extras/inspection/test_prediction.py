"""The watched search against the search, and all words anew against greedy search."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from nmt.config.model import DecodingConfig
from nmt.errors import ConfigError
from nmt.extras.inspection.prediction import check_options, recompute_words, trace_search
from nmt.inference.torch_engine import TorchEngine
from nmt.model.transformer import Transformer
from nmt.packed import Packed
from nmt.text import BOS_ID, EOS_ID, NUM_NEVER_CHOSEN
from tests.model.small import VARIANTS, packed, small_model

LINES = packed([1, 2, 3, 5, 6, 8]).rows()
OPTIONS: list[dict[str, Any]] = [
    {"beam_size": 1},
    {"beam_size": 1, "coverage_penalty": 0.3},
    {"beam_size": 4, "search": "greedy"},
    {"beam_size": 1, "search": "beam"},
    {"beam_size": 4},
    {"beam_size": 4, "n_best": 4, "length_penalty": 0.3},
    {"beam_size": 3, "n_best": 2, "coverage_penalty": 0.5, "min_length_factor": 0.5},
    {"beam_size": 4, "no_repeat_ngram_size": 2, "patience": 1.0},
]


def options_of(**changes: Any) -> DecodingConfig:
    values = {"max_length_factor": 1.0, "max_length_offset": 2, **changes}
    return DecodingConfig.model_validate(values)


def model_of(variant: str = "paper") -> Transformer:
    """A model with probabilities as peaked as those of a trained model."""
    model = small_model(**VARIANTS[variant])
    with torch.no_grad():
        model.output_weight.mul_(3)
    return model


@pytest.mark.parametrize(
    ("variant", "changes"),
    [("paper", x) for x in OPTIONS]
    + [(x, {"beam_size": 3}) for x in ("tiny-like", "modern", "grouped", "relative")],
)
def test_a_trace_is_the_search_itself(variant: str, changes: dict[str, Any]) -> None:
    model, options = model_of(variant), options_of(**changes)
    expected = TorchEngine(model).search(LINES, options)
    num_finished = 0
    for ids, hypotheses in zip(LINES, expected, strict=True):
        moments, found = trace_search(model, ids, options)
        assert [each.ids for each in found] == [each.ids for each in hypotheses]
        ended = [hypothesis for moment in moments for hypothesis, _ in moment.finished]
        ended.sort(key=lambda hypothesis: -hypothesis.score)
        # The search adds in float32 and in the same order: nothing is rounded otherwise.
        assert ended[: len(found)] == list(found)
        num_finished += len(ended)
    assert num_finished >= sum(map(len, expected))


@torch.no_grad()
def test_every_beam_continues_one_of_the_step_before() -> None:
    model = model_of()
    moments, _ = trace_search(model, LINES[5], options_of(beam_size=4))
    source = Packed.from_rows([[*LINES[5], EOS_ID]])
    for before, moment in itertools.pairwise(moments):
        for ids, total, (tokens, shares) in zip(
            moment.ids, moment.totals.tolist(), moment.likely, strict=True
        ):
            assert ids[:-1] in before.ids
            logits = model.logits(model(source, Packed.from_rows([[BOS_ID, *ids]])))
            logits[:, :NUM_NEVER_CHOSEN] = -torch.inf
            log_probs = logits.log_softmax(-1)
            own = sum(float(row[token]) for row, token in zip(log_probs, ids, strict=False))
            assert total == pytest.approx(own, abs=1e-4)
            assert tokens[0] == int(log_probs[-1].argmax())
            assert shares[0] == pytest.approx(float(log_probs[-1].exp().max()), abs=1e-5)


@pytest.mark.parametrize("ids", LINES[:6])
def test_with_the_mask_no_word_changes_and_the_result_is_greedy_search(ids: list[int]) -> None:
    model = model_of()
    (best,) = TorchEngine(model).search([ids], options_of(beam_size=1))[0]
    steps = list(recompute_words(model, Packed.from_rows([[*ids, EOS_ID]]), len(ids) + 3))
    for before, after in itertools.pairwise(steps):
        assert after[:-1] == before
    is_cut = len(best.ids) == len(ids) + 2  # then the search says EOS, whatever is likely
    assert steps[-1][: len(best.ids)] == list(best.ids)
    assert is_cut or steps[-1][-1] == EOS_ID


@pytest.mark.parametrize(
    "changes",
    [{"sampling": True}, {"search": "constrained"}, {"beam_size": 4, "diverse_beam_groups": 2}],
)
def test_other_searches_are_refused_by_trace(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="trace"):
        check_options(options_of(**changes))
