"""The log probabilities of the tokens of what a search found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nmt.errors import ConfigError
from nmt.model.transformer import Transformer
from nmt.runtime.engine import Engine
from nmt.runtime.ensemble_stepper import Mixture
from nmt.runtime.torch_engine import TorchEngine
from nmt.text import EOS_ID
from nmt.text.tokenizer import Tokenizers, load_tokenizers
from nmt.translation.mbr import Mbr
from nmt.translation.result import TranslationResult
from nmt.translation.translator import Translator
from tests.translation.conftest import OPTIONS, sentences
from tests.translation.models import SHAPES, run_config, save_run, small_model, train_tokenizer
from tests.translation.test_alignments import Echo

LINES = [*sentences(12, seed=3), ""]


def assert_they_make_up_the_score(result: TranslationResult, tolerance: float = 1e-4) -> None:
    assert result.tokens is not None
    values = [token.log_prob for token in result.tokens]
    assert all(value <= 0 for value in values)
    assert np.mean(values or [0]) == pytest.approx(result.score, abs=tolerance)


@pytest.mark.parametrize("shape", SHAPES)
def test_they_make_up_the_score(tokenizers: Tokenizers, shape: str) -> None:
    engine = TorchEngine(small_model(tokenizers, shape), is_final=True)
    translator = Translator(engine, tokenizers, OPTIONS)
    for result in translator.translate(LINES, token_scores=True, beam_size=4):
        assert_they_make_up_the_score(result)


@pytest.mark.parametrize("mean", ["arithmetic", "geometric"])
def test_of_several_models_they_are_the_mixture_s(tokenizers: Tokenizers, mean: str) -> None:
    models = [small_model(tokenizers, shape) for shape in ("plain", "modern")]
    mixture = Mixture((0.3, 0.7), "geometric" if mean == "geometric" else "arithmetic")
    engine = TorchEngine(*models, mixture=mixture)
    for result in Translator(engine, tokenizers, OPTIONS).translate(LINES, token_scores=True):
        assert_they_make_up_the_score(result)


def test_of_weights_in_16_bits_they_are_those_of_these_weights(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(tmp_path / "tokenizer")
    model = small_model(load_tokenizers(tokenizer), "modern")
    folder = save_run(tmp_path / "run", model, tokenizer, run_config(max_length=64))
    translator = Translator.load(folder, device="cpu", dtype="bf16", guard=False)
    for result in translator.translate(LINES, token_scores=True):
        assert_they_make_up_the_score(result, 2e-1)


def test_they_spell_the_translation(translator: Translator) -> None:
    *results, blank = translator.translate(LINES, token_scores=True)
    for result in results:
        assert result.tokens is not None
        *pieces, end = [token.piece for token in result.tokens]
        assert end == "</s>"
        if not any("<0x" in piece for piece in pieces):
            assert "".join(pieces).replace("\u2581", " ").strip() == result.text
    assert blank.tokens == ()
    assert blank.as_dict()["tokens"] == []


def test_every_part_of_a_line_that_was_cut_has_an_end(
    model: Transformer, tokenizers: Tokenizers
) -> None:
    translator = Translator(TorchEngine(model), tokenizers, OPTIONS, max_length=6)
    (result,) = translator.translate(["der Hund läuft. die Katze schläft."], token_scores=True)

    assert result.tokens is not None
    ends = [number for number, token in enumerate(result.tokens) if token.piece == "</s>"]
    assert len(ends) > 1
    assert ends[-1] == len(result.tokens) - 1


def test_they_are_of_the_candidate_that_was_chosen(translator: Translator) -> None:
    chosen = translator.with_mbr(Mbr(lambda texts: np.eye(len(texts))[::-1], 8))
    for result in chosen.translate(LINES[:4], token_scores=True):
        assert_they_make_up_the_score(result)


def test_rules_of_the_search_do_not_count(translator: Translator) -> None:
    (plain,) = translator.translate(["Hund"], token_scores=True, beam_size=1)
    (ruled,) = translator.translate(
        ["Hund"], token_scores=True, beam_size=1, repetition_penalty=1.0001
    )

    assert ruled.tokens == plain.tokens
    assert ruled.score != plain.score


def test_they_change_nothing_else_and_are_there_only_when_asked_for(
    translator: Translator,
) -> None:
    plain = translator.translate(LINES)
    told = translator.translate(LINES, token_scores=True)

    assert [(r.text, r.score) for r in plain] == [(r.text, r.score) for r in told]
    assert all("tokens" not in result.as_dict() for result in plain)


def test_a_model_in_training_reads_without_dropout(model: Transformer) -> None:
    engine = TorchEngine(model)
    expected = engine.token_log_probs([[5, 6]], [[7]])
    model.train()
    assert engine.token_log_probs([[5, 6]], [[7]]) == expected
    assert model.training
    model.eval()


def test_no_output_has_the_probability_of_its_end(model: Transformer) -> None:
    ((value,),) = TorchEngine(model).token_log_probs([[5, 6]], [[]])
    (found,) = TorchEngine(model).search([[5, 6]], OPTIONS.model_copy(update={"beam_size": 64}))
    assert EOS_ID == 3
    assert value < 0
    assert all(value >= h.log_prob for h in found if not h.ids)


def test_an_engine_that_tells_nothing_says_so(tokenizers: Tokenizers) -> None:
    engine: Engine = Echo()
    with pytest.raises(ConfigError, match="no scores of tokens"):
        Translator(engine, tokenizers, OPTIONS).translate(["Hund"], token_scores=True)
