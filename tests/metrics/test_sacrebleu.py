"""Scores are sacrebleu's, and bad input is told apart."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.errors import ConfigError, DataError
from nmt.metrics.base import METRICS
from nmt.metrics.sacrebleu import (
    MetricOptions,
    Scorer,
    check_published,
    corpus_score,
    corpus_scores,
    default_tokenizer,
    published_test_set,
    resolve_tokenizer,
)

WORDS = st.sampled_from(["the", "Cat", "sat", "on", "it's", "mat", "größer", "42", "ok"])
SENTENCES = st.lists(WORDS, min_size=4, max_size=9).map(" ".join)
CORPORA = st.lists(SENTENCES, min_size=1, max_size=6)


@given(CORPORA, st.sampled_from(METRICS))
def test_a_text_is_its_own_best_translation(lines: list[str], metric: str) -> None:
    best = 0.0 if metric == "ter" else 100.0
    assert corpus_score(lines, [lines], metric).value == pytest.approx(best, abs=1e-9)


@given(CORPORA, st.sampled_from(["bleu", "chrf", "chrf++"]), st.data())
def test_more_references_never_make_bleu_matches_fewer(
    lines: list[str], metric: str, data: st.DataObject
) -> None:
    other = data.draw(st.lists(SENTENCES, min_size=len(lines), max_size=len(lines)))
    assert corpus_score(lines, [other, lines], metric).value == pytest.approx(100.0)


def test_bleu_of_a_small_example_is_what_the_definition_gives() -> None:
    # 4 of 5 words, 2 of 4 pairs, 1 of 3 triples, and no quadruple match (sacrebleu counts half of
    # one: 1/4); both sides have 5 words, so there is no brevity penalty.
    expected = 100 * (4 / 5 * 2 / 4 * 1 / 3 * (1 / 2) / 2) ** 0.25
    hypothesis, reference = "a b c x d", "a b c y d"
    assert corpus_score([hypothesis], [[reference]], "bleu").value == pytest.approx(expected)


def test_several_metrics_come_in_the_order_asked_for() -> None:
    scores = corpus_scores(["a b c d"], [["a b c d"]], ["chrf", "bleu"])
    assert [score.metric for score in scores] == ["chrf", "bleu"]


def test_case_counts_unless_told_otherwise() -> None:
    upper, lower = ["The Cat Sat Down"], ["the cat sat down"]
    folded = MetricOptions(lowercase=True)
    for metric in ("bleu", "chrf", "chrf++"):
        assert corpus_score(upper, [lower], metric).value < 99
        score = corpus_score(upper, [lower], metric, folded)
        assert score.value == pytest.approx(100)
        assert "case:lc" in score.signature


def test_a_scorer_serves_many_systems_with_the_same_references() -> None:
    scorer = Scorer("bleu", [["a b c d e"]], MetricOptions())
    assert scorer.statistics(["a b c d e"]).score.value == pytest.approx(100)
    assert scorer.statistics(["v w x y z"]).score.value == 0
    assert scorer.statistics(["a b c d e"]).score.value == pytest.approx(100)


@pytest.mark.parametrize("metric", METRICS)
def test_the_sums_of_the_statistics_give_the_score(metric: str) -> None:
    found = Scorer(metric, [["a b c d e", "f g h i"]], MetricOptions()).statistics(
        ["a b c e d", "f g h h"]
    )
    table = found.statistics.table
    assert table.shape[0] == 2
    assert found.statistics.score(table.sum(axis=0)) == pytest.approx(found.score.value, abs=1e-9)


def test_empty_hypotheses_score_nothing_instead_of_failing() -> None:
    assert corpus_score(["", ""], [["a b c d", "e f g h"]], "bleu").value == 0
    assert corpus_score(["", ""], [["a b c d", "e f g h"]], "chrf").value == 0
    assert corpus_score(["", ""], [["a b c d", "e f g h"]], "ter").value == 100


def test_the_tokenizer_follows_the_target_language() -> None:
    assert [default_tokenizer(code) for code in ("zh", "zh-TW", "cmn", "ja", "ko", "de_AT")] == [
        "zh", "zh", "zh", "ja-mecab", "ko-mecab", "13a"
    ]  # fmt: skip
    chinese = corpus_score(
        ["你好世界"], [["你好世界"]], "bleu", MetricOptions(target_language="zh")
    )
    assert "tok:zh" in chinese.signature
    assert chinese.value == pytest.approx(100)


def test_japanese_without_its_package_names_the_remedy() -> None:
    if find_spec("MeCab") is None:
        options = MetricOptions(target_language="ja")
        with pytest.raises(
            ConfigError, match=r"not have them installed.\n.*sacrebleu\[ja\]"
        ) as caught:
            corpus_score(["猫"], [["猫"]], "bleu", options)
        assert "--tokenize char" in caught.value.fix
        assert corpus_score(["猫"], [["猫"]], "chrf", options).value == pytest.approx(100)
        assert resolve_tokenizer(options).tokenize == "char"
    else:
        assert resolve_tokenizer(MetricOptions(target_language="ja")).tokenize == "ja-mecab"


def test_unknown_metrics_and_tokenizers_get_a_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"Did you mean chrf\?"):
        corpus_score(["a"], [["a"]], "chrF")
    with pytest.raises(ConfigError, match=r"Did you mean ja-mecab\?"):
        corpus_score(["a"], [["a"]], "bleu", MetricOptions(tokenize="ja_mecab"))


def test_lines_that_do_not_pair_up_are_refused_with_both_counts() -> None:
    """Fault 32."""
    with pytest.raises(DataError, match=r"1,000 lines but .* 999"):
        corpus_score(["a"] * 1000, [["a"] * 999], "bleu")
    with pytest.raises(DataError, match=r"reference 1 has 2 lines but reference 2 has 3"):
        corpus_score(["a"] * 2, [["a"] * 2, ["a"] * 3], "bleu")
    with pytest.raises(DataError, match="no reference lines"):
        corpus_score([], [[]], "bleu")


def test_unknown_test_sets_and_pairs_are_refused_without_a_download() -> None:
    with pytest.raises(ConfigError, match="wmt14"):
        check_published("wmt14-", "en-de")
    with pytest.raises(ConfigError, match=r"It has .*de-en"):
        check_published("wmt14", "en-xx")


def test_a_download_that_fails_names_the_test_set(monkeypatch: pytest.MonkeyPatch) -> None:
    from sacrebleu import utils

    def exits(*_: str) -> str:
        raise SystemExit(1)  # what sacrebleu does when a checksum is wrong

    monkeypatch.setattr(utils, "get_source_file", exits)
    with pytest.raises(DataError, match=r"wmt14 \(en-de\) cannot be downloaded"):
        published_test_set("wmt14", "en-de")
