"""The report of `nmt prepare`: its figures are those of a plain computation on the pairs."""

from __future__ import annotations

import gzip
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from nmt.config.data import Direction, TokenizerConfig
from nmt.data.filters import FilterChain, ListedProblem
from nmt.data.prepare_report import (
    DROPPED,
    KEPT,
    READ,
    REPORTED,
    PrepareReport,
    ProblemLog,
    lost_pairs,
    report_sides,
    sample_lengths,
)
from nmt.data.store import ParallelStore, StoreWriter
from nmt.errors import DataError
from nmt.text.flat import FlatIds
from nmt.text.tokenizer import Tokenizers, load_tokenizers
from tests.conftest import TINY_PAIRS
from tests.learning import train_sentencepiece

FIRST_WORD = 260  # after four special ids and 256 bytes
SIZE = 330
DIRECTIONS = [Direction("de", "en"), Direction("de", "fr"), Direction("en", "de")]
Rows = list[list[int]]


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> Tokenizers:
    folder = tmp_path_factory.mktemp("tokenizer")
    lines = [text for pair in TINY_PAIRS for text in pair]
    config = TokenizerConfig(vocab_size=SIZE)
    train_sentencepiece(lines, folder / "joint.model", config, threads=1)
    return load_tokenizers(folder)


def random_rows(random: np.random.Generator, count: int) -> Rows:
    """Few words are frequent, many are rare, and one token of twenty is a byte."""
    rows = []
    for length in random.integers(1, 40, size=count):
        words = FIRST_WORD + np.minimum(random.zipf(1.5, size=length), SIZE - FIRST_WORD) - 1
        is_byte = random.random(length) < 0.05
        rows.append(np.where(is_byte, random.integers(4, FIRST_WORD, length), words).tolist())
    return rows


def smallest_length(lengths: list[int], share: float) -> int:
    """The smallest length such that a share of the sentences is not longer."""
    return int(np.quantile(lengths, share, method="inverted_cdf"))


def figures_of(rows: Rows) -> dict[str, object]:
    """The figures of a side, from all its tokens."""
    lengths = [len(row) for row in rows]
    tokens = [token for row in rows for token in row]
    uses = Counter(tokens)
    num_for_most = covered = 0
    for _, count in uses.most_common():
        if covered < 0.99 * len(tokens):
            num_for_most += 1
            covered += count
    by_length = Counter(lengths)
    num_bytes = sum(token < FIRST_WORD for token in tokens)
    return {
        "vocab_size": SIZE,
        "tokens": len(tokens),
        "mean_length": pytest.approx(len(tokens) / len(rows)),
        "median_length": smallest_length(lengths, 0.5),
        "p99_length": smallest_length(lengths, 0.99),
        "max_length": max(lengths),
        "fallback_rate": pytest.approx(num_bytes / len(tokens)),
        "num_used": len(uses),
        "num_for_most": num_for_most,
        "lengths": [by_length[n] for n in range(smallest_length(lengths, 0.999) + 1)],
    }


def test_the_figures_of_each_language_are_those_of_its_corpora(
    tmp_path: Path, tokenizers: Tokenizers
) -> None:
    random = np.random.default_rng(1)
    corpora = [(random_rows(random, n), random_rows(random, n)) for n in (120, 90, 50)]
    with StoreWriter(tmp_path / "store", SIZE) as writer:
        for number, (source, target) in enumerate(corpora):
            lines = range(1, len(source) + 1)
            writer.append(FlatIds.of(source), FlatIds.of(target), number, lines)
    store = ParallelStore.open(tmp_path / "store")
    (first, english), (second, french), (third, german) = corpora
    expected = [
        {"side": "source", "language": "de", **figures_of([*first, *second])},
        {"side": "source", "language": "en", **figures_of(third)},
        {"side": "target", "language": "en", **figures_of(english)},
        {"side": "target", "language": "fr", **figures_of(french)},
        {"side": "target", "language": "de", **figures_of(german)},
    ]
    assert [asdict(side) for side in report_sides(store, DIRECTIONS, tokenizers)] == expected
    pairs = [(len(s), len(t)) for sides in corpora for s, t in zip(*sides, strict=True)]
    assert sample_lengths(store) == [list(pair) for pair in pairs]  # up to 400 pairs


def test_the_example_of_a_reason_is_the_first_readable_one_of_the_corpus() -> None:
    examples = [
        {"corpus": "a", "line": 2, "source": "another", "target": "corpus", "value": ""},
        {"corpus": "b", "line": 7000, "source": "eins\u200b\t", "target": "x" * 41, "value": ""},
        {"corpus": "b", "line": 8000, "source": "zwei", "target": "two", "value": ""},
        {"corpus": "b", "line": 3, "source": "", "target": "", "value": ""},  # not UTF-8
    ]
    report = PrepareReport(folder="", up_to_date=False, reasons={"control": {"examples": examples}})
    shown = rf"line 7,000: eins\u200b\t | {'x' * 40}…"
    assert report.example("b", "control") == shown
    bad = {**examples[3], "value": "a row", "file": "part2"}
    unread = PrepareReport(reasons={"columns": {"examples": [bad]}})
    assert unread.example("b", "columns") == "part2, line 3: a row"
    assert report.example("c", "control") == report.example("b", "markup") == ""


def test_findings_are_counted_by_corpus_and_reason_and_listed_as_dropped_or_reported(
    tmp_path: Path,
) -> None:
    """Of a validation set every finding drops the pair, and none is counted by its reason."""
    chain = FilterChain([], {"markup": "report", "ratio": "drop", "url": "report"})

    def found(corpus: str, line: int, reason: str) -> ListedProblem:
        return ListedProblem(corpus, line, reason, 2.5, 1.0, f"s{line}", "t")

    with ProblemLog(tmp_path, chain, ["a", "b", "empty"], ["held"]) as findings:
        for name in ("a", "b", "held", "empty"):
            findings.counts[name][READ] += 0 if name == "empty" else 10
        rows = [found("a", 1, "markup"), found("a", 2, "ratio"), found("a", 3, "markup")]
        assert findings.take("a", (rows, {KEPT: 9, "ratio": 1})) == rows
        findings.take("b", ([found("b", 4, "own"), found("b", 5, "markup")], {"own": 1, KEPT: 0}))
        findings.take("held", ([found("held", 6, "length")], {KEPT: 9, "length": 1}))
        for name, kept in (("a", 9), ("b", 0), ("held", 9)):
            assert findings.counts[name][KEPT] == kept
    report = findings.report()
    assert report.counts == {
        "a": {"read": 10, "kept": 9, "ratio": 1},
        "b": {"read": 10, "kept": 0, "own": 1},
        "empty": {"read": 0, "kept": 0},
        "held": {"read": 10, "kept": 9, "length": 1},
    }
    assert report.findings == {"a": {"markup": 2}, "b": {"markup": 1}, "empty": {}}
    reasons = {
        name: (each["action"], each["count"], sorted(x["line"] for x in each["examples"]))
        for name, each in report.reasons.items()
    }
    expected = {
        "markup": ("report", 3, [1, 3, 5]), "ratio": ("drop", 1, [2]), "url": ("report", 0, []),
        "own": ("drop", 1, [4]),
    }  # fmt: skip
    assert reasons == expected
    for name, lines in ((DROPPED, ["2", "4", "6"]), (REPORTED, ["1", "3", "5"])):
        table = gzip.decompress((tmp_path / name).read_bytes()).decode().splitlines()
        assert [row.split("\t")[1] for row in table[1:]] == lines
    findings.check_kept("training", ["a"])
    with pytest.raises(DataError, match="all training pairs of b: own 1"):
        findings.check_kept("training", ["a", "b"])
    with pytest.raises(DataError, match="empty contains no training pairs"):
        findings.check_kept("training", ["a", "empty"])


def test_the_warning_about_lost_pairs_names_the_most_frequent_reason() -> None:
    counts = {"c": {"read": 60, "kept": 10, "blank": 5, "ratio": 40, "length": 5}, "d": {}}
    [warning] = lost_pairs(counts, ["c"])
    assert "reason ratio dropped 40" in warning
