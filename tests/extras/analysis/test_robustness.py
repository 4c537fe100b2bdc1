"""Robustness: what is read, what is compared, and what is lost; and contrastive pairs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.errors import DataError
from nmt.extras.analysis.contrastive import ContrastivePair, accuracies, read_pairs
from nmt.extras.analysis.robustness import JOINED, SPLIT, noisy_sources, robustness_section
from nmt.metrics.metric import MetricOptions, Scorer
from nmt.metrics.result import Section, System
from nmt.metrics.scoring import Resampling
from nmt.text.noise import NOISES

LINES = [f"Sentence number {n} of a small test set, with words." for n in range(7)]


@given(st.lists(st.text("ab ", max_size=12), min_size=1, max_size=7), st.integers(0, 9))
def test_outputs_fit_the_lines_that_are_scored(lines: list[str], seed: int) -> None:
    for noisy in noisy_sources(lines, " ", seed):
        outputs = noisy.outputs(noisy.lines, " ")
        assert len(outputs) == len(noisy.scored(lines, " "))
        if noisy.noise in (JOINED, SPLIT):  # a copying model loses nothing by them
            assert list(outputs) == list(noisy.scored(lines, " "))


class Copier:
    """A model that copies its source."""

    config = SimpleNamespace(languages={"source": "en", "target": "de"})

    def translate(self, _name: str, lines: list[str], _tag: str | None) -> System:
        return System("copy", lines)


def robustness(metrics: tuple[str, ...] = ("chrf",), resamples: int = 50) -> Section:
    scored: Any = SimpleNamespace(
        test=SimpleNamespace(name="set", source=LINES, references=[LINES], tag=None),
        models=[Copier()],
        systems=[System("copy", LINES)],
        resampling=Resampling(resamples),
        make_scorers=lambda references: [Scorer(x, references, MetricOptions()) for x in metrics],
    )
    return robustness_section(scored)


def test_a_copying_system_loses_what_the_noise_changes() -> None:
    section = robustness(("chrf", "ter"))
    losses = {each["noise"] + each["metric"]: each for each in section.values}
    assert len(losses) == 2 * (len(NOISES) + 2)
    assert losses["joinedchrf"]["loss"] == losses["splitchrf"]["loss"] == 0
    chrf, ter = losses["upper-casechrf"], losses["upper-caseter"]
    assert chrf["loss"] == pytest.approx(chrf["clean"] - chrf["noisy"])
    assert chrf["confidence"]["low"] > 0
    assert ter["loss"] == pytest.approx(ter["noisy"] - ter["clean"])
    head, *rows = section.rows
    assert head == ["system", "noise", "chrf", "ter"]
    row = next(row for row in rows if row[1] == "upper-case")
    shown = f"100.00 -> {chrf['noisy']:.2f}, loss {chrf['loss']:.2f} ± "
    assert row[2].startswith(shown)
    assert "confidence" not in robustness(resamples=0).values[0]
    assert robustness() == robustness()


def test_accuracy_counts_what_is_more_probable_and_no_ties(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("a\tlonger\tx\tlength\nb\ty\tlonger\tlength\nc\tsame\tsame\ttie\nd\tzz\tz\n")
    pairs = read_pairs(path)
    assert pairs[3] == ContrastivePair("d", "zz", "z")
    right, wrong = [len(pair.right) for pair in pairs], [len(pair.wrong) for pair in pairs]
    found = accuracies("m", pairs, right, wrong)
    assert [(each["category"], each["num_correct"], each["num_pairs"]) for each in found] == [
        ("all", 2, 4), ("length", 1, 2), ("tie", 0, 1)
    ]  # fmt: skip
    assert found[0]["accuracy"] == 0.5
    for text in ("", "a\tb\n", "a\t\tc\n", "a\tb\tc\td\te\n"):
        path.write_text(text)
        with pytest.raises(DataError, match=r"pairs\.tsv"):
            read_pairs(path)
