"""Scores of lines: of files, and of two models of opposite directions."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.errors import CheckpointError, ConfigError, DataError
from nmt.extras.cleaning import scores as module
from nmt.extras.cleaning.scores import Column, dual_score, dual_scorer, read_scores, write_scores
from nmt.inference.scorer import Scorer
from nmt.text.tokenizer import load_tokenizers
from tests.commands.preparing import config_for, corpus, prepare, write_pairs
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


@given(st.lists(st.dictionaries(st.integers(0, 9), st.integers(1, 5)), max_size=4))
def test_a_column_keeps_the_largest_value_of_each_row_however_it_is_cut(
    tmp_path_factory: pytest.TempPathFactory, updates: list[dict[int, int]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "column"
    expected = [max((update.get(row, 0) for update in updates), default=0) for row in range(10)]
    for at_once in (3, 1000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "_AT_ONCE", at_once)
            column = Column(path, np.float32, 10)
            for update in updates:
                rows = sorted(update)
                column.raise_to(np.array(rows, np.int64), np.array([update[row] for row in rows]))
        assert column[:].tolist() == expected


def test_written_scores_have_their_lines_however_they_are_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = {"a": np.array([0.5, -1, np.nan], np.float32), "b": np.array([2], np.float32)}
    lines = {"a": [4, 7, 9], "b": [1]}
    for files, names in (
        ({0: ""}, ["a", "a", "a"]),
        ({0: "1.de", 1: "2.de"}, ["1.de", "2.de", "2.de"]),
    ):
        expected = [
            [names[0], "4", "0.5000"], [names[1], "7", "-1.0000"], [names[2], "9", "nan"],
            ["b", "1", "2.0000"],
        ]  # fmt: skip
        for at_once in (1, 2, 9):
            monkeypatch.setattr(module, "_WRITTEN_AT_ONCE", at_once)
            write_scores(tmp_path / "some.tsv.gz", scores, lines, {"a": files, "b": {0: ""}})
            assert table(tmp_path / "some.tsv.gz") == expected


def table(path: Path) -> list[list[str]]:
    """Return the rows of a file of scores, below its head."""
    head, *lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    assert head == "corpus\tline\tscore"
    return [line.split("\t") for line in lines]


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


def test_a_score_belongs_to_its_line_where_lines_before_it_were_dropped(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Line 3 is blank, and only line 50 has a low score."""
    source, target = corpus(120)
    source[2] = ""

    def make_scorer(*_: object) -> module.ScorePairs:
        return lambda pairs: [0.1 if pair[0] == source[49] else 0.9 for pair in pairs]

    monkeypatch.setattr("nmt.extras.cleaning.diagnosis.dual_scorer", make_scorer)
    write_pairs(tmp_path, source, target)
    rule = {"action": "drop", "limit": 0.5}
    prepare(config_for(tmp_path, filters={"dual_cross_entropy": rule}), score_with=runs)
    dropped = gzip.decompress((tmp_path / "prepared" / "dropped.tsv.gz").read_bytes()).decode()
    rows = [line.split("\t")[:3] for line in dropped.splitlines()[1:]]
    assert rows == [["numbers", "3", "blank"], ["numbers", "50", "dual_cross_entropy"]]
    written = table(tmp_path / "prepared" / "dual_cross_entropy.tsv.gz")
    assert [row[1] for row in written] == ["1", "2", *map(str, range(4, 121))]
    assert [row[1] for row in written if row[2] == "0.1000"] == ["50"]
    for number, part in (("1", slice(0, 40)), ("2", slice(40, 120))):
        write_pairs(tmp_path, source[part], target[part], f"part{number}")
    data = config_for(tmp_path).data.model_dump(mode="json")
    data["train"] = [{"source": f"{tmp_path}/part?.de", "target": f"{tmp_path}/part?.en"}]
    prepare(config_for(tmp_path, data=data), score_with=runs)
    written = table(tmp_path / "prepared" / "dual_cross_entropy.tsv.gz")
    numbered = [("1", line) for line in range(1, 41) if line != 3]
    numbered += [("2", line) for line in range(1, 81)]
    assert [row[:2] for row in written] == [
        [f"{tmp_path}/part{number}.de", str(line)] for number, line in numbered
    ]
