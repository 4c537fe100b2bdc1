"""Scores of lines: of files, and of two models of opposite directions."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import pytest

from nmt.errors import CheckpointError, ConfigError, DataError
from nmt.extras.cleaning.scores import dual_score, dual_scorer, read_scores
from nmt.inference.scorer import Scorer
from nmt.text.tokenizer import load_tokenizers
from tests.commands.preparing import config_for, corpus, prepare
from tests.inference.models import run_config, save_run, small_model, train_tokenizer

PAIR = ("de", "en")


def test_scores_are_one_number_per_line_or_nan(tmp_path: Path) -> None:
    path = tmp_path / "scores.gz"
    path.write_bytes(gzip.compress(b"0.5\n -1e3\nnan\n-inf\n7"))
    values = read_scores(path, 5, is_part=False).tolist()
    assert values[:2] + values[3:] == [0.5, -1000, -math.inf, 7]
    assert math.isnan(values[2])
    assert read_scores(path, 2, is_part=True).tolist() == [0.5, -1000]


def test_scores_that_do_not_fit_the_corpus_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "scores"
    for text, lines, problem in (
        ("1\n2\n", 3, "has 2 scores, but the corpus has 3 lines"),
        ("1\n2\n", 1, "has 2 scores, but the corpus has 1 lines"),
        ("", 1, "has 0 scores"),
        ("1\n\n", 2, "line 2: '' is not a number"),
        ("1\nNaN, 3\n", 2, "line 2: 'NaN, 3' is not a number"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=problem) as caught:
            read_scores(path, lines, is_part=False)
        assert caught.value.exit_code == 3


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A model from German to English, and another one back."""
    folder = tmp_path_factory.mktemp("dual")
    tokenizer = train_tokenizer(folder / "tokenizer")
    made = []
    for seed, (source, target) in enumerate((PAIR, PAIR[::-1])):
        update = {"source_language": source, "target_language": target}
        model = small_model(load_tokenizers(tokenizer), seed=seed)
        config = run_config(256).model_copy(update=update)
        made.append(save_run(folder / source, model, tokenizer, config))
    return made


def test_scores_follow_the_formula_of_the_paper(runs: list[Path]) -> None:
    pairs = [*zip(*corpus(3), strict=True), ("eins", ""), (" ", "one"), ("eins " * 300, "one")]
    found = dual_scorer(runs[::-1], PAIR)(pairs)  # the order of the models does not matter
    forward, backward = (Scorer.load(run) for run in runs)
    for (source, target), value in zip(pairs[:3], found, strict=False):
        (one,), (other,) = forward.score([(source, target)]), backward.score([(target, source)])
        left, right = (-each.log_prob / len(each.tokens) for each in (one, other))
        assert value == pytest.approx(math.exp(-(abs(left - right) + (left + right) / 2)))
    assert all(map(math.isnan, found[3:]))
    assert dual_score(1, 2) > dual_score(1, 3) > dual_score(2.5, 2.5) * math.exp(-2)


def test_models_that_do_not_fit_are_refused(runs: list[Path], tmp_path: Path) -> None:
    for wrong in ([runs[0]], [runs[0], runs[0]]):
        with pytest.raises(ConfigError, match="de-en and en-de, but got de-en") as caught:
            dual_scorer(wrong, PAIR)
        assert caught.value.exit_code == 2
    with pytest.raises(ConfigError, match="de-fr and fr-de"):
        dual_scorer(runs, ("de", "fr"))
    with pytest.raises(CheckpointError) as missing:
        dual_scorer([runs[0], tmp_path / "none"], PAIR)
    assert missing.value.exit_code == 4


def test_pairs_are_scored_on_demand_and_the_manifest_names_the_models(
    runs: list[Path], tmp_path: Path
) -> None:
    config = config_for(tmp_path, filters={"dual_cross_entropy": {"limit": 1.0}})
    assert prepare(config).reasons["dual_cross_entropy"]["count"] == 0
    assert prepare(config, score_with=runs).reasons["dual_cross_entropy"]["count"] == 120
    rows = gzip.decompress((tmp_path / "prepared" / "dual_cross_entropy.tsv.gz").read_bytes())
    assert len(rows.splitlines()) == 121
    assert prepare(config, score_with=runs).up_to_date
    assert prepare(config).up_to_date
    assert not prepare(config, score_with=runs[::-1]).up_to_date
