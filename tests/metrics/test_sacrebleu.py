"""Scores, of all pairs at once too, and their intervals are sacrebleu's; bad input is named."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sacrebleu import __version__
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest

from nmt.errors import ConfigError, DataError
from nmt.files.lines import read_lines
from nmt.metrics import ngrams, scoring
from nmt.metrics.metric import Floats, MetricOptions, MetricScorer, Score
from nmt.metrics.ngrams import pairwise_bleu, pairwise_chrf
from nmt.metrics.result import System
from nmt.metrics.sacrebleu import bleu_tokenizer, bleu_words, default_tokenizer
from nmt.metrics.scoring import (
    Resampling,
    least_p_value,
    randomised_differences,
    resample_scores,
    score_systems,
)


def corpus_score(
    hypotheses: list[str], references: list[list[str]], metric: str = "bleu", **options: Any
) -> Score:
    return MetricScorer(metric, references, MetricOptions(**options)).score(hypotheses)


ODD = st.text("aAb\u00e4.,!(' 1\u2028\u4e16\U0001f415", max_size=24)


CASES = [("The DOG ran home. Now!", "the dog ran home. now!", "The Dog Ran home, now")]
LENGTHS = [
    ("a dog ran home", "a dog ran home now to eat", "a dog"),  # too short, of references around it
    ("a dog ran home to eat now", "a dog ran home", "the dog ran home"),  # too long
    ("a b c d", "a b c", "a b c d e"),  # as near to both
]


@given(st.lists(st.tuples(ODD, ODD, ODD), min_size=1, max_size=5), st.booleans(), st.booleans())
@example(CASES, False, False)
@example(CASES, True, True)
@example(LENGTHS, False, True)
@example(LENGTHS[:1], False, False)
@example(LENGTHS[1:2], False, False)
@example([*CASES, *LENGTHS], True, False)
def test_scores_of_any_corpora_equal_sacrebleus(
    rows: list[tuple[str, str, str]], lowercase: bool, is_narrow: bool
) -> None:
    """Whole and sentence by sentence; if narrow, in parts, and with n-grams numbered again."""
    hypotheses, *streams = (list(side) for side in zip(*rows, strict=True))
    theirs = {
        "bleu": (BLEU(lowercase=lowercase), BLEU(lowercase=lowercase, effective_order=True)),
        "chrf": (CHRF(lowercase=lowercase),) * 2,
        "chrf++": (CHRF(lowercase=lowercase, word_order=2),) * 2,
        "ter": (TER(),) * 2,
    }
    with pytest.MonkeyPatch.context() as patch:
        if is_narrow:
            patch.setattr(ngrams, "_SENTENCES_AT_ONCE", 2)
            patch.setattr(ngrams, "_KEY_BITS", 9)
        for metric, (whole, single) in theirs.items():
            scorer = MetricScorer(metric, streams, MetricOptions(lowercase=lowercase))
            table = scorer.statistics(hypotheses)
            expected, score = whole.corpus_score(hypotheses, streams).score, scorer.total(table)
            assert score.value == pytest.approx(expected, abs=1e-9)
            assert score.signature == whole.get_signature().format()
            each = [single.sentence_score(line, own).score for line, *own in rows]
            assert scorer.sentence_scores(table) == pytest.approx(each, abs=1e-9)


def test_bleu_of_a_small_example_is_what_the_definition_gives() -> None:
    # 4 of 5 words, 2 of 4 pairs, 1 of 3 triples, and no quadruple match (sacrebleu counts half of
    # one: 1/4); both sides have 5 words, so there is no brevity penalty.
    expected = 100 * (4 / 5 * 2 / 4 * 1 / 3 * (1 / 2) / 2) ** 0.25
    hypothesis, reference = "a b c x d", "a b c y d"
    assert corpus_score([hypothesis], [[reference]]).value == pytest.approx(expected)


def test_the_tokenizer_follows_the_target_language() -> None:
    assert [default_tokenizer(code) for code in ("zh", "zh-TW", "cmn", "ja", "ko", "de_AT")] == [
        "zh", "zh", "zh", "ja-mecab", "ko-mecab", "13a"
    ]  # fmt: skip
    assert {default_tokenizer(code) for code in ("tha", "lo", "khm_Khmr", "my", "dz")} == {"char"}
    assert {default_tokenizer(code) for code in ("vi", "hi", "xx", None)} == {"13a"}


def test_bleu_counts_characters_where_mecab_is_missing(caplog: pytest.LogCaptureFixture) -> None:
    """One rule for validation and evaluation."""
    expected = "ja-mecab" if find_spec("MeCab") else "char"
    assert bleu_tokenizer(MetricOptions(target_language="ja")) == expected
    assert ("counts characters" in caplog.text) == (expected == "char")
    score = corpus_score(["猫が好き"], [["猫が好き"]], target_language="ja")
    assert f"tok:{expected}" in score.signature


@pytest.mark.skipif(find_spec("MeCab") is not None, reason="MeCab is installed")
def test_a_requested_tokenizer_that_is_not_installed_gets_a_fix() -> None:
    with pytest.raises(ConfigError, match=r"not have them installed.\n.*sacrebleu\[ja\]") as caught:
        corpus_score(["猫"], [["猫"]], tokenize="ja-mecab")
    assert "set `tokenize` to char" in caught.value.fix
    assert corpus_score(["猫"], [["猫"]], "chrf", tokenize="ja-mecab").value == pytest.approx(100)


def test_unknown_tokenizers_get_a_suggestion_but_unknown_metrics_do_not() -> None:
    with pytest.raises(ConfigError, match="fix: Use one of bleu, chrf,"):
        corpus_score(["a"], [["a"]], "chrF")
    with pytest.raises(ConfigError, match=r"Did you mean ja-mecab\?"):
        corpus_score(["a"], [["a"]], tokenize="ja_mecab")


def test_files_of_different_lengths_are_refused_with_both_counts() -> None:
    """Fault 32."""
    with pytest.raises(DataError, match=r"1,000 lines but .* 999"):
        corpus_score(["a"] * 1000, [["a"] * 999])
    with pytest.raises(DataError, match=r"reference 1 has 2 lines but reference 2 has 3"):
        corpus_score(["a"] * 2, [["a"] * 2, ["a"] * 3])
    with pytest.raises(DataError, match="reference is empty"):
        corpus_score([], [[]])


@pytest.mark.parametrize(
    ("pair", "name"),
    [("en-de", "C"), ("en-zh", "A"),
     *(pytest.param("en-de", name, marks=pytest.mark.long) for name in ("A", "D", "all")),
     *(pytest.param("en-zh", name, marks=pytest.mark.long) for name in ("B", "all"))],
)  # fmt: skip
def test_published_scores_are_reproduced(shared_data: Path, pair: str, name: str) -> None:
    """All rows of the sample: whole test sets and their beginnings."""
    folder, language = shared_data / "wmt_sample", pair[-2:]

    def lines_of(part: str) -> list[str]:
        path = folder / f"newstest2021.{pair}.{part}.{language}"
        return path.read_text("utf-8").split("\n")[:-1]

    header, *lines = (folder / "SCORES.tsv").read_text("utf-8").splitlines()
    table = [dict(zip(header.split("\t"), line.split("\t"), strict=True)) for line in lines]
    rows = [row for row in table if (row["testset"][-5:], row["refs"]) == (pair, name)]
    names = {"en-de": "ACD", "en-zh": "AB"}[pair] if name == "all" else name
    references = [lines_of(f"ref.{name}") for name in names]
    options = MetricOptions(target_language=language)
    for system in sorted({row["system"] for row in rows}):
        tables: dict[str, Floats] = {}
        for metric, column in (("bleu", "BLEU"), ("chrf++", "chrF2++"), ("chrf", "chrF2")):
            scorer = MetricScorer(metric, references, options)
            # Of one reference, the counts of chrF are those of chrF++ without the words.
            tables[metric] = (
                tables["chrf++"][:, :18]
                if metric == "chrf" and len(names) == 1
                else scorer.statistics(lines_of(f"hyp.{system}"))
            )
            own = [row for row in rows if (row["system"], row["metric"]) == (system, column)]
            for row in own:
                score = scorer.total(tables[metric][: int(row["n_lines"])])
                assert score.value == pytest.approx(float(row["score_sacrebleu"]), abs=1e-9)
                assert score.signature == row["signature"].replace("2.6.0", __version__)
            assert len(own) == 1 + (metric != "chrf++")


ODD_WORDS = [
    "", " ", "a", "A", "a a a a a a a", "aaaaaaa", "a\u2028b", "\U0001f415 \U0001f415", "e\u0301é",
    "The dog, e.g. the one of 3.5%, isn't here.", "The dog isn't here .", "漢字 漢", "x\ty\u3000z",
]  # fmt: skip
WORDS = st.sampled_from(["the", "dog", "dogs", "cat,", "cat.", "ran", "(now)", "$3.50", *ODD_WORDS])


@given(st.lists(st.lists(WORDS, max_size=9).map(" ".join), min_size=1, max_size=6), st.booleans())
def test_pairwise_scores_equal_those_of_sacrebleu(texts: list[str], is_held_in_parts: bool) -> None:
    """Whether the table of n-grams is held whole or in parts."""
    chrf, bleu = CHRF(), BLEU(effective_order=True)
    with pytest.MonkeyPatch.context() as patch:
        if is_held_in_parts:
            patch.setattr(ngrams, "_MOST_CELLS", 50)
        found_chrf, found_bleu = pairwise_chrf(texts), pairwise_bleu(texts, bleu_words("en"))
    for i, hypothesis in enumerate(texts):
        for j, reference in enumerate(texts):
            expected = chrf.sentence_score(hypothesis, [reference]).score
            assert found_chrf[i, j] == pytest.approx(expected, abs=1e-9)
            expected = bleu.sentence_score(hypothesis, [reference]).score
            assert found_bleu[i, j] == pytest.approx(expected, abs=1e-9)


def test_words_are_those_of_bleu_in_the_language() -> None:
    assert bleu_words("de")("Hund, 3.5%") == ["Hund", ",", "3.5", "%"]
    assert bleu_words("zh")("狗在家") == ["狗", "在", "家"]


def test_chunks_bound_memory_and_change_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 17 sentences, 50 draws are 2 test sets, or the 32 exchanges that numpy draws at once."""
    one, other = (np.random.default_rng(n).integers(0, 9, (17, 1)).astype(float) for n in (1, 2))
    sizes: list[int] = []

    def total(sums: Floats) -> Floats:
        sizes.append(len(sums))
        return sums[:, 0]

    def numbers() -> tuple[Floats, Floats]:
        sizes.clear()
        (means,) = resample_scores([one], [total], Resampling(40))
        return means, randomised_differences(one, other, total, Resampling(trials=200))

    means, differences = numbers()
    assert sizes == [40, 200, 200]  # of both systems
    monkeypatch.setattr(scoring, "_CHUNK_DRAWS", 50)
    in_parts = numbers()
    assert sizes[:20] == [2] * 20
    assert set(sizes[20:]) == {32, 200 % 32}
    # The draws are the same; the order of summation may not be.
    assert in_parts[0] == pytest.approx(means, rel=1e-12)
    assert np.array_equal(in_parts[1], differences)


@given(st.integers(0, 30))
def test_p_values_are_limited_by_the_number_of_different_sentences(count: int) -> None:
    one = np.zeros((30, 3))
    other = one.copy()
    other[:count, 1] = 1
    assert least_p_value(one, other) == min(1, 2 ** (1 - count))


@pytest.mark.parametrize("kind", ["bs", "ar"])
def test_intervals_and_p_values_of_sacrebleu(shared_data: Path, kind: Literal["bs", "ar"]) -> None:
    names = ("ref.A", "hyp.VolcTrans-GLAT", "hyp.Online-A", "hyp.ICL")
    paths = (shared_data / "wmt_sample" / f"newstest2021.en-de.{name}.de" for name in names)
    reference, *hypotheses = (read_lines(path)[:25] for path in paths)
    base, *systems = map(System, names[1:], hypotheses)
    references = [reference]
    engines = {
        "bleu": BLEU(references=references), "chrf": CHRF(references=references),
        "ter": TER(references=references),
    }  # fmt: skip
    named = [(system.name, system.lines) for system in (base, *systems)]
    _, theirs = PairedTest(named, engines, None, test_type=kind, n_samples=300)()
    scorers = [MetricScorer(name, references, MetricOptions()) for name in engines]
    count = 300 if kind == "bs" else 40  # of resampled sets, for the intervals
    scored, scored_base, pairs = score_systems(
        systems, scorers, baseline=base, resampling=Resampling(count, significance=kind, trials=300)
    )
    assert scored_base is not None
    assert pairs is None
    for number, system in enumerate((scored_base, *scored)):
        for score in system.scores:
            expected = theirs[{"bleu": "BLEU", "chrf": "chrF2", "ter": "TER"}[score.metric]][number]
            assert not isinstance(expected, str)
            assert score.value == pytest.approx(expected.score, abs=1e-9)
            if kind == "bs" and score.confidence:
                # There the resampled sums are divided in single precision.
                found = (score.confidence.mean, score.confidence.half_width)
                assert found == pytest.approx((expected.mean, expected.ci), abs=1e-5)
            if score.comparison:
                assert score.comparison.p_value == pytest.approx(expected.p_value, abs=1e-12)


NAMES = ("right", "copy", "wrong")
TRUTH = [f"the {number} dogs of town {number} ran home" for number in range(20)]
WRONG = [f"the {number} cats" for number in range(20)]


@pytest.mark.parametrize("kind", ["bs", "ar"])
def test_differences_are_system_minus_baseline_with_their_interval(
    kind: Literal["bs", "ar"],
) -> None:
    """One system is right, and better in each of 20 sentences; a copy of it differs in none."""
    right, copy, wrong = map(System, NAMES, (TRUTH, TRUTH, WRONG))
    scorers = [MetricScorer("chrf", [TRUTH], MetricOptions())]
    loss = CHRF().corpus_score(WRONG, [TRUTH]).score - 100
    resampling = Resampling(200, significance=kind, trials=64)
    (same, worse), _, pairs = score_systems(
        [copy, wrong], scorers, baseline=right, resampling=resampling
    )
    assert pairs is None
    equal, lower = same.scores[0].comparison, worse.scores[0].comparison
    assert equal is not None
    assert lower is not None
    assert (equal.delta, equal.low, equal.high, equal.p_value) == (0, 0, 0, 1)
    assert lower.delta == pytest.approx(loss)
    assert lower.low is not None
    assert lower.high is not None
    assert lower.low <= loss <= lower.high < 0
    # No difference by chance is as large, so only the observed one counts.
    draws = {"bs": 200, "ar": 64}[kind]
    assert (lower.resamples, lower.p_value) == (draws, 1 / (draws + 1))


def test_without_a_baseline_all_pairs_of_systems_are_compared() -> None:
    systems = [*map(System, NAMES, (TRUTH, TRUTH, WRONG))]
    scorers = [MetricScorer("chrf", [TRUTH], MetricOptions())]
    _, base, pairs = score_systems(
        systems, scorers, baseline=None, resampling=Resampling(200, trials=64)
    )
    loss = CHRF().corpus_score(WRONG, [TRUTH]).score - 100
    assert base is None
    assert pairs is not None
    assert [(each["first"], each["second"]) for each in pairs.values] == [
        ("right", "copy"), ("right", "wrong"), ("copy", "wrong")
    ]  # fmt: skip
    assert [each["delta"] for each in pairs.values] == pytest.approx([0, loss, loss])
    shown = f"{loss:.2f} (p = 0.005)"  # 1 / 201
    assert [list(row) for row in pairs.rows] == [
        ["difference", "chrF"], ["copy - right", "+0.00 (p = 1.000)"],
        ["wrong - right", f"{shown} *"], ["wrong - copy", f"{shown} *"],
    ]  # fmt: skip
    # Holm: 3 times the smallest value, 2 times the next one, but not below that before it.
    corrected = [each["holm_p_value"] for each in pairs.values]
    assert corrected == pytest.approx([1, 3 / 201, 3 / 201])
    assert "3 pairs are compared" in pairs.meaning
    assert "resamples" not in pairs.meaning
    few = score_systems(systems, scorers, baseline=None, resampling=Resampling(59))[2]
    assert few is not None
    assert "needs 60 resamples" in few.meaning  # 3 / 60 is not below 0.05
    assert not any("*" in cell for row in few.rows for cell in row)
    # 3 / 201 is below 0.05, but not below 0.01.
    strict = Resampling(200, alpha=0.01)
    marked = score_systems(systems, scorers, baseline=None, resampling=strict)[2]
    assert marked is not None
    assert "*: below 0.01 after" in marked.meaning
    assert "needs 300 resamples" in marked.meaning
    assert not any("*" in cell for row in marked.rows for cell in row)
    never = score_systems(systems, scorers, baseline=None, resampling=Resampling(59, alpha=0))[2]
    assert never is not None
    assert not any("*" in cell for row in never.rows for cell in row)
    two = score_systems(systems[:2], scorers, baseline=None, resampling=Resampling(59))[2]
    assert two is not None
    assert (two.meaning, "holm_p_value" in two.values[0]) == ("", False)  # a single test
    without = Resampling(0)
    assert score_systems(systems, scorers, baseline=None, resampling=without)[2] is None
