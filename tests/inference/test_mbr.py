"""The candidate that is most like all the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from sacrebleu import sentence_bleu

from nmt.config.model import DecodingConfig
from nmt.errors import ConfigError
from nmt.inference.mbr import (
    EPSILON,
    UTILITIES,
    Mbr,
    Utility,
    UtilityOf,
    expected_utilities,
)
from nmt.inference.translator import Translator
from nmt.metrics.metric import METRICS, Floats, MetricOptions
from nmt.metrics.ngrams import pairwise_chrf
from nmt.search.hypothesis import Hypothesis
from tests.inference.conftest import OPTIONS, sentences


def ranked(texts: list[str], utility: Utility = pairwise_chrf) -> list[str]:
    """The different texts, of candidates of equal scores, in the order in which they are chosen."""
    found = [Hypothesis((row,), -1, -1) for row in range(len(texts))]
    chosen = Mbr("chrf", compare=lambda _: utility).choose(found, lambda ids: texts[ids[0]], 99)
    return [texts[hypothesis.ids[0]] for hypothesis in chosen]


def test_texts_are_ranked_by_mean_similarity() -> None:
    # The most frequent wins where nothing is in common, and one in the middle over it otherwise.
    assert ranked(["aaa", "bbb", "ccc", "bbb"]) == ["bbb", "aaa", "ccc"]
    texts = ["zzzz", "a dog runs", "a dog runs home", "dog runs home", "zzzz"]
    assert ranked(texts)[0] == "a dog runs home"
    # Of equals the first comes first.
    assert ranked(["b", "a", "c", "a"], lambda x: np.ones((len(x), len(x)))) == ["b", "a", "c"]
    assert ranked(["", " ", ""]) == ["", " "]


def test_a_text_is_judged_as_a_hypothesis_and_the_others_as_references() -> None:
    """By hand, of a once and b twice: a has (1 + 2 * 0) / 3, and b has (0.9 + 2 * 1) / 3.

    As references they would have (1 + 2 * 0.9) / 3 and (0 + 2 * 1) / 3: a would be first.
    """

    def utility(texts: Sequence[str]) -> Floats:
        table = {"aa": 1.0, "ab": 0.0, "ba": 0.9, "bb": 1.0}
        return np.array([[table[own + other] for other in texts] for own in texts])

    found = expected_utilities(["a", "b", "b"], utility)
    assert found == pytest.approx({"a": 1 / 3, "b": 2.9 / 3})


def test_each_text_is_shown_with_its_best_score() -> None:
    found = [Hypothesis((ids,), score, score) for ids, score in ((7, -3), (5, -2), (6, -1))]
    texts = {7: "dog", 5: "cat", 6: "dog"}
    chosen = Mbr("chrf").choose(found, lambda ids: texts[ids[0]], 5)
    assert [(hypothesis.ids, hypothesis.score) for hypothesis in chosen] == [((6,), -1), ((5,), -2)]
    assert Mbr("chrf").choose([], str, 1) == []


def test_candidates_are_generated_as_configured() -> None:
    plain = DecodingConfig()
    found = Mbr("chrf", 16).search_options(plain)
    assert (found.sampling, found.n_best, found.epsilon_cutoff) == (True, 16, EPSILON)
    own = DecodingConfig(sampling=True, top_p=0.9, seed=7)
    found = Mbr("chrf", 16).search_options(own)
    assert (found.n_best, found.epsilon_cutoff, found.top_p, found.seed) == (16, 0.0, 0.9, 7)
    found = Mbr("chrf", 16, "beam").search_options(plain)
    assert (found.sampling, found.n_best, found.beam_size) == (False, 16, 16)
    with pytest.raises(ConfigError, match="beam_size"):
        Mbr("chrf", 1000, "beam").search_options(plain)


@pytest.mark.parametrize("kind", ["samples", "beam"])
def test_the_translator_chooses_by_definition(translator: Translator, kind: Any) -> None:
    lines, mbr = ["", *sentences(8, seed=3), " "], Mbr("chrf", 12, kind)
    options = mbr.search_options(OPTIONS)
    candidates = translator.with_options(**options.model_dump()).translate(lines)
    chosen = translator.with_options(mbr=mbr, n_best=3).translate(lines)
    for line, found, result in zip(lines, candidates, chosen, strict=True):
        texts = [alternative.text for alternative in found.alternatives]
        if not line.strip():
            assert result == found
            continue
        assert len(texts) == 12
        values = expected_utilities(texts, pairwise_chrf)
        best = [each.text for each in result.alternatives]
        expected = sorted(values.values(), reverse=True)[:3]
        assert [values[text] for text in best] == pytest.approx(expected)
        assert best[0] == result.text
        assert result.score == max(x.score for x in found.alternatives if x.text == result.text)


def test_a_utility_knows_the_language_the_model_after_its_name_and_the_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = ["今天天气很好", "今天天气好"]
    of_words, of_characters = (Mbr("bleu").loaded(x).compare("")(texts) for x in ("en", "zh"))
    assert of_words.round().tolist() == [[100, 0], [0, 100]]
    # Of 6 and 5 characters BLEU, by sacrebleu.
    expected = [[sentence_bleu(x, [y], tokenize="zh").score for y in texts] for x in texts]
    assert of_characters == pytest.approx(np.array(expected), abs=0.1)
    seen: list[object] = []

    def compare(source: str) -> Utility:
        seen.append(source)
        return pairwise_chrf

    def make(options: MetricOptions) -> UtilityOf:
        seen.extend((options.argument, options.target_language, options.device))
        return compare

    monkeypatch.setitem(UTILITIES._entries, "judge", make)
    monkeypatch.setitem(METRICS._entries, "judge", Mock(argument="model"))
    loaded = Mbr("judge:large").loaded("de", "cpu")
    loaded.choose([Hypothesis((5,), -1, -1)], str, 1, "ein Hund")
    assert seen == ["large", "de", "cpu", "ein Hund"]


def test_an_unknown_metric_gets_no_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"bleurt is not a .*\n  fix: Use one of comet, "):
        Mbr("bleurt").loaded("en")
