"""Scores of given translations."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from nmt.errors import CheckpointError
from nmt.inference import torch_engine
from nmt.inference.engine import EngineOptions, Needs
from nmt.inference.scorer import Scorer
from nmt.inference.stepper import Mixture
from nmt.inference.torch_engine import TorchEngine, load_torch
from nmt.inference.translator import Translator
from nmt.model.transformer import Transformer
from nmt.packed import Packed
from nmt.search.hypothesis import length_penalty
from nmt.text import BOS_ID, EOS_ID, UNK_ID
from nmt.text.tokenizer import Tokenizers
from tests.inference.conftest import OPTIONS, sentences
from tests.inference.models import (
    loaded,
    run_config,
    save_run,
    small_model,
    train_tokenizer,
)

PAIRS = list(zip(sentences(20, seed=5), sentences(20, seed=6), strict=True))


@pytest.fixture
def scorer(model: Transformer, tokenizers: Tokenizers) -> Scorer:
    return Scorer(loaded(model, tokenizers=tokenizers))


@pytest.mark.parametrize(
    ("shapes", "mean", "changes"),
    [
        ("plain", "arithmetic", {"beam_size": 1}),
        ("wide", "arithmetic", {"beam_size": 4, "n_best": 2, "length_penalty": 0.6,
                                "length_penalty_form": "gnmt"}),
        ("learned", "arithmetic", {"beam_size": 2, "length_penalty": 0.0, "max_length_offset": 30}),
        ("plain modern wide", "arithmetic", {"beam_size": 3, "n_best": 3}),
        ("plain modern wide", "geometric", {"beam_size": 3, "n_best": 3}),
    ],
)  # fmt: skip
def test_the_scorer_returns_the_score_of_the_search(
    tokenizers: Tokenizers, shapes: str, mean: Any, changes: dict[str, object]
) -> None:
    """Every hypothesis, also that of an ensemble, has the same score when it is given."""
    options = OPTIONS.model_copy(update=changes)
    models = [small_model(tokenizers, shape, seed=7) for shape in shapes.split()]
    mixture = Mixture((0.5, 0.3, 0.2), mean) if len(models) > 1 else None
    sources = [tokenizers.source.encode(line) for line in sentences(12, seed=2)]
    results = TorchEngine(*models, mixture=mixture).search(sources, options)
    pairs = [(ids, h.ids) for ids, found in zip(sources, results, strict=True) for h in found]
    expected = [hypothesis for found in results for hypothesis in found]
    assert max(len(hypothesis.ids) for hypothesis in expected) > 3
    scorer = Scorer(loaded(*models, tokenizers=tokenizers, mixture=mixture), options)
    for hypothesis, log_probs in zip(expected, scorer.score_ids(pairs), strict=True):
        assert len(log_probs) == len(hypothesis.ids) + 1
        assert sum(log_probs) == pytest.approx(hypothesis.log_prob, abs=1e-4)
        score = sum(log_probs) / length_penalty(options)(len(log_probs))
        assert score == pytest.approx(hypothesis.score, abs=1e-4)


def test_special_tokens_keep_their_probability_in_searches_and_scores_alike(
    tokenizers: Tokenizers, tmp_path: Path
) -> None:
    """As in imported models. Here they are as likely as exp(6) = 403 of the other tokens."""
    words = train_tokenizer(tmp_path / "tokenizer")
    model = small_model(tokenizers, "learned", seed=7)
    assert model.output_bias is not None
    with torch.no_grad():
        model.output_bias[:3] = 6.0
    config = run_config(keep_special_mass=True)
    folder = save_run(tmp_path / "run", model, words, config)
    sources = [tokenizers.source.encode(line) for line in sentences(4, seed=2)]
    options = OPTIONS.model_copy(update={"keep_special_mass": True})
    results = TorchEngine(model).search(sources, options)
    targets = [found[0].ids for found in results]
    expected = [found[0].log_prob for found in results]
    stored = load_torch(folder, EngineOptions(device="cpu"), Needs()).engine
    for engine in (TorchEngine(model, keep_special_mass=True), stored):
        totals = [sum(own) for own in engine.token_log_probs(sources, targets)]
        assert totals == pytest.approx(expected, abs=1e-3)
    without = [sum(own) for own in TorchEngine(model).token_log_probs(sources, targets)]
    assert all(high > low + 0.1 for high, low in zip(without, expected, strict=True))


def test_a_token_that_no_search_writes_has_its_own_probability(tokenizers: Tokenizers) -> None:
    """A given text may have unknown words: of each step, the other special tokens are left out."""
    model, source, target = small_model(tokenizers), [5, 6], [7, UNK_ID, 8]
    (found,) = TorchEngine(model).token_log_probs([source], [target])
    with torch.no_grad():
        hidden = model(Packed.from_rows([[*source, EOS_ID]]), Packed.from_rows([[BOS_ID, *target]]))
        logits = model.logits(hidden).double().tolist()
    for gold, value, row in zip([*target, EOS_ID], found, logits, strict=True):
        others = math.fsum(math.exp(x) for x in row[EOS_ID:])
        own = math.exp(row[gold])
        rest = others if gold >= EOS_ID else others + own
        assert value == pytest.approx(math.log(own / rest), abs=1e-4)


def test_scores_do_not_depend_on_the_batch(scorer: Scorer, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = scorer.score(PAIRS)
    order = random.Random(1).sample(range(len(PAIRS)), len(PAIRS))
    for batch_tokens, cells in ((1, 1 << 23), (30, 1), (100_000, 3000)):
        monkeypatch.setattr(torch_engine, "_MAX_PROBABILITIES", cells)
        limited = scorer.with_options(batch_tokens=batch_tokens)
        for row, result in zip(order, limited.score(PAIRS[row] for row in order), strict=True):
            assert (result.source, result.target) == PAIRS[row]
            assert result.score == pytest.approx(expected[row].score, abs=1e-5)


def test_the_tokens_make_up_the_score(scorer: Scorer) -> None:
    plain = scorer.with_options(length_penalty=0).score(PAIRS[:3])
    for result, unnormalised in zip(scorer.score(PAIRS[:3]), plain, strict=True):
        total = sum(token.log_prob for token in result.tokens)
        assert result.tokens[-1].piece == "</s>"
        assert result.log_prob == pytest.approx(total)
        assert result.score == pytest.approx(total / len(result.tokens))
        assert unnormalised.score == unnormalised.log_prob == result.log_prob
        text = "".join(token.piece for token in result.tokens[:-1])
        assert text.replace("\u2581", " ").strip() == result.target


def test_progress_counts_all_scored_pairs(scorer: Scorer) -> None:
    """In batches of a few pairs. Pairs of which one side is blank or too long need no batch."""
    counts: list[int] = []
    pairs = [*PAIRS, ("", "dog")]
    found = scorer.with_options(batch_tokens=40).score(pairs, progress=counts.append)
    assert sum(counts) == sum(math.isfinite(result.score) for result in found)
    assert 1 < len(counts) < sum(counts)


def test_blank_lines_have_defined_scores(scorer: Scorer, translator: Translator) -> None:
    pairs = [("", ""), (" \u3000", " "), ("Hund", " "), ("", "dog"), ("Hund", "  ")]
    found = scorer.score(pairs)
    assert [found[0].score, found[1].score] == [0.0, 0.0]
    assert translator.translate([""])[0].score == 0.0
    assert [token.piece for token in found[2].tokens] == ["</s>"]
    assert -math.inf < found[2].score < 0
    assert found[4].score == pytest.approx(found[2].score)
    assert found[3].score == found[3].log_prob == -math.inf
    as_json = found[3].as_dict()  # which has no infinity
    assert (as_json["score"], as_json["log_prob"], as_json["tokens"]) == (None, None, [])
    assert found[2].as_dict()["score"] == found[2].score
    (unknown,) = scorer.score([("Hund \U0001f415", "שלום \udcff")])
    assert math.isfinite(unknown.score)
    assert scorer.score([]) == []


def test_pairs_that_are_too_long_are_logged_and_get_minus_infinity(
    model: Transformer, tokenizers: Tokenizers, caplog: pytest.LogCaptureFixture
) -> None:
    config = run_config(max_length=8, max_length_factor=1.0, max_length_offset=4)
    scorer = Scorer(loaded(model, tokenizers=tokenizers, config=config))
    eight, twelve = "und " * 8, "und " * 12
    lengths = [len(tokenizers.source.encode(text)) for text in (eight, twelve)]
    assert lengths == [8, 12]
    pairs = [
        (eight, twelve), (eight + "und", "und"), ("Hund", twelve + "und"), ("und", "und"),
        ("und " * 500_000, "und"),
    ]  # fmt: skip
    found = scorer.score(pairs)
    assert [math.isinf(result.score) for result in found] == [False, True, True, False, True]
    notes = caplog.messages
    sides = [note.split(" of ")[0] for note in notes]
    assert sides == ["source line", "source line", "target line"]
    assert "limit is 8 source subwords" in notes[0]
    assert "limit is 12 target subwords" in notes[2]
    alone = scorer.score([("und", "und")])[0]
    assert found[3].score == pytest.approx(alone.score, abs=1e-5)


def test_a_pair_longer_than_learned_positions_is_not_scored(tokenizers: Tokenizers) -> None:
    config = run_config(max_length=32, max_length_offset=200)
    model = small_model(tokenizers, "learned")
    scorer = Scorer(loaded(model, tokenizers=tokenizers, config=config))
    found = scorer.score([("und", "und " * 39), ("und", "und " * 40)])
    assert [math.isinf(result.score) for result in found] == [False, True]


def test_damaged_weights_are_reported(tokenizers: Tokenizers) -> None:
    model = small_model(tokenizers)
    with torch.no_grad():
        model.output_weight.fill_(torch.nan)
    with pytest.raises(CheckpointError, match="weights are damaged"):
        Scorer(loaded(model, tokenizers=tokenizers)).score(PAIRS[:2])
