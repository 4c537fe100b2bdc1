"""Robustness: what is read, what is compared, and what is lost; and contrastive pairs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.errors import DataError
from nmt.extras.analysis.robustness import (
    JOINED,
    SPLIT,
    Contrastive,
    noisy_sources,
    robustness_section,
)
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
    (shown,) = (row[2] for row in rows if row[1] == "upper-case")
    assert shown.startswith(f"100.00 -> {chrf['noisy']:.2f}, loss {chrf['loss']:.2f} ± ")
    assert "confidence" not in robustness(resamples=0).values[0]
    assert robustness() == robustness()


def test_accuracy_counts_what_is_more_probable_and_no_ties(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer = SimpleNamespace(
        score=lambda pairs: [SimpleNamespace(score=len(target)) for _, target in pairs]
    )
    monkeypatch.setattr("nmt.extras.analysis.robustness.load_scorer", lambda _: scorer)
    path, model = tmp_path / "pairs.tsv", SimpleNamespace(name="m")
    path.write_text("a\tlonger\tx\tlength\nb\ty\tlonger\tlength\nc\tsame\tsame\ttie\nd\tzz\tz\n")
    section = Contrastive(path)([cast("Any", model)])
    assert section.rows == [
        ["system", "contrastive pairs", "number", "accuracy"],
        ["m", "all", "4", "50.0%"], ["m", "length", "2", "50.0%"], ["m", "tie", "1", "0.0%"],
    ]  # fmt: skip
    assert section.values[0]["num_correct"] == 2
    for text in ("", "a\tb\n", "a\t\tc\n", "a\tb\tc\td\te\n"):
        path.write_text(text)
        with pytest.raises(DataError, match=r"pairs\.tsv"):
            Contrastive(path)
