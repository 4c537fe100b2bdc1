"""COMET as a metric, with a stand-in for its package, and with the package if it is installed."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nmt.commands.train import fit
from nmt.errors import CheckpointError, ConfigError
from nmt.extras.comet.metric import CometModel
from nmt.inference.mbr import Mbr, expected_utilities
from nmt.metrics.metric import MetricOptions, MetricScorer
from nmt.training.validation import HeldOutText
from tests.cli.commands import call, lines_of
from tests.commands.test_evaluate import invoke, write
from tests.extras.analysis.conftest import LINES
from tests.extras.comet.checkpoint import KINDS, write_checkpoint
from tests.inference.conftest import sentences
from tests.training.toy import make_config, write_corpus

Fake = Callable[..., Path]
SOURCE = [f"{line} {'xyz' * (number % 7)}" for number, line in enumerate(LINES)]
BAD = [line.replace("this", "zzz") if number % 2 else line for number, line in enumerate(LINES)]


def samples(*sides: list[str]) -> list[dict[str, str]]:
    return [dict(zip(("src", "mt", "ref"), x, strict=True)) for x in zip(*sides, strict=True)]


@pytest.fixture
def flags(tmp_path: Path) -> list[object]:
    texts = {"--hypothesis": BAD, "--reference": LINES, "--baseline": LINES, "--source": SOURCE}
    return [*chain(*((flag, write(tmp_path / flag[2:], x)) for flag, x in texts.items()))]


def test_comet_is_scored_compared_sliced_and_gated(
    fake: Fake, flags: list[object], tmp_path: Path
) -> None:
    model = fake(tmp_path / "tiny")
    comet = [*flags, "--metric", f"comet:{model}", "--device", "cpu"]
    result = invoke(*comet, "--fail-under", "comet=2,chrf=1", "--fail-if-worse", "--json")
    assert result.exit_code == 6
    score, chrf = json.loads(result.stdout)["test_sets"][0]["systems"][0]["scores"]
    # Each sentence alone: its score depends neither on its batch nor on the order of batches.
    alone = [CometModel(str(model), "cpu").scores([x])[0] for x in samples(SOURCE, BAD, LINES)]
    assert score["value"] == pytest.approx(np.mean(alone))
    assert score["confidence"]["low"] < score["value"] < score["confidence"]["high"]
    assert score["comparison"]["p_value"] < 0.01
    assert (score["metric"], chrf["metric"]) == ("comet", "chrf")
    assert score["signature"].startswith("nrefs:1|model:tiny|sha256:")
    assert score["signature"].endswith("|version:2.2.7")
    value, delta = (f"{score['value']:.4f}", f"{score['comparison']['delta']:+.4f}")
    assert f"hypothesis: COMET is {value}, {2 - score['value']:.2g} below 2" in result.stderr
    assert f"COMET is {value}, {delta} against baseline: significantly worse" in result.stderr
    lines = invoke(*comet, "--sentence-level").stdout.splitlines()
    assert [json.loads(line)["scores"]["comet"] for line in lines] == pytest.approx(alone)
    table = invoke(*comet, "--slices").stdout
    assert f"{value} ± " in table
    assert "source words" in table


def test_batches_have_similar_lengths_and_draw_no_random_numbers(
    fake: Fake, tmp_path: Path
) -> None:
    before = torch.random.get_rng_state()
    model: Any = CometModel(str(fake(tmp_path / "tiny")), "cpu")
    model.scores(samples(SOURCE, LINES, LINES))
    lengths = [[len(line) for line in batch] for batch in model._model.batches]
    assert [len(batch) for batch in lengths] == [16, 16, 16, 12]
    assert [*chain(*lengths)] == sorted(map(len, SOURCE))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_models_of_the_cache_of_the_hub_are_used_and_references_averaged(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "hub" / "models--Unbabel--wmt22-comet-da"
    fake(repository / "snapshots" / "0123abcd")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0123abcd")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    options, streams = MetricOptions(source=SOURCE, device="cpu"), [LINES, LINES[::-1]]
    one, other, both = (
        MetricScorer("comet", own, options).score(LINES)
        for own in (streams[:1], streams[1:], streams)
    )
    assert both.value == pytest.approx((one.value + other.value) / 2)
    assert both.signature.startswith("nrefs:2|model:Unbabel/wmt22-comet-da|sha256:")


def test_unusable_models_are_refused_with_a_command(
    fake: Fake, flags: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, broken = fake(tmp_path / "pickle", "pickle"), fake(tmp_path / "broken", "broken")
    two = fake(tmp_path / "two")
    (two / "checkpoints" / "other.ckpt").touch()
    file = tmp_path / "h.de"
    file.touch()
    handlers = logging.getLogger().handlers[:]
    fetch = 'python -c "import comet; comet.load_from_checkpoint(comet.download_model('
    for metric, message in (
        ("comet", f"{fetch}'Unbabel/wmt22-comet-da'))\""),
        ("comet:a/b", "The COMET model a/b is neither a file nor in the Hugging Face cache"),
        ("comet:tyni", "fix: Check the path, or pass a name on the Hub, such as Unbabel/wmt"),
        (f"comet:{file}", f"{file} is not a COMET checkpoint: "),
        (f"comet:{folder}", "Weights only load failed.\n  fix: The file contains objects that"),
        (f"comet:{broken}", "model.ckpt: 'broken'\n  fix: If encoder files are missing"),
        (f"comet:{two}", "has 2 files checkpoints/*.ckpt"),
    ):
        assert message in invoke(*flags, "--metric", metric).stderr
    assert "fix: Add --source FILE" in invoke(*flags[:-2], "--metric", "comet").stderr
    monkeypatch.setitem(sys.modules, "comet", None)
    assert "The metric comet needs unbabel-comet (" in invoke(*flags, "--metric", "comet").stderr
    assert logging.getLogger().handlers == handlers  # later messages are shown as before


def test_comet_chooses_the_best_checkpoint(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HeldOutText, "problem_of", lambda *_: "")  # scores count as evidence
    write_corpus(tmp_path)
    with pytest.raises(ConfigError, match="neither a file nor"):  # before training
        fit(make_config(validation={"metric": "comet:missing"}))
    model = fake(tmp_path / "tiny")
    summary = fit(make_config(validation={"max_sentences": 8, "metric": f"comet:{model}"}))
    lines = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text("utf-8").splitlines())
    scores = {line["step"]: line["comet"] for line in lines if line["kind"] == "validation"}
    assert (summary.metric, summary.best_score) == ("comet", max(scores.values()))
    assert f"(validation COMET {summary.best_score:.4f}, " in summary.as_text()
    assert f"COMET {scores[10]:.4f}" in (tmp_path / "run" / "log.txt").read_text("utf-8")


@pytest.mark.parametrize("kind", ["ref", "src"])
def test_comet_is_a_utility_of_mbr_decoding(
    fake: Fake, runs: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    model = fake(tmp_path / "tiny", kind)
    utility = Mbr(f"comet:{model}").loaded("en", "cpu").compare
    texts = ["a dog", "a cat", "dogs", ""]
    pairs = samples(["ein Hund"] * 16, [one for one in texts for _ in texts], texts * 4)
    expected = CometModel(str(model), "cpu").scores(pairs).reshape(4, 4)
    assert utility("ein Hund")(texts) == pytest.approx(expected)
    lines = sentences(3, seed=2, longest=6)
    mbr = ("--mbr", f"comet:{model}", "--mbr-candidates", 6)
    sample = ("--sample", "--n-best", 6, "--set", "decoding.epsilon_cutoff=0.02")
    chosen, sampled = (
        lines_of(call("translate", runs["plain"], *x, "--no-guard", text="\n".join(lines)))
        for x in (mbr, (*sample, "--format", "json"))
    )
    for line, text, row in zip(lines, chosen, sampled, strict=True):
        candidates = [each["translation"] for each in json.loads(row)["alternatives"]]
        values = expected_utilities(candidates, utility(line))
        assert values[text] == pytest.approx(max(values.values()))
    with pytest.raises(ConfigError, match="ter is not a known utility"):
        Mbr("ter").loaded("en")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_scores_equal_those_of_the_package(tmp_path: Path, kind: str) -> None:
    folder = write_checkpoint(tmp_path / "tiny", [*LINES, *SOURCE], kind)
    model: Any = CometModel(str(folder), "cpu")
    rows = samples(SOURCE, LINES[::-1], LINES)
    expected = model._model.predict(list(rows), gpus=0, num_workers=0, progress_bar=False).scores
    assert model.scores(rows).tolist() == expected
    assert len(set(expected)) > 30
    pairs = samples([SOURCE[0]] * 16, [one for one in LINES[:4] for _ in range(4)], LINES[:4] * 4)
    matrix = model.scores(pairs).reshape(4, 4)
    np.testing.assert_allclose(model.pairwise(SOURCE[0], LINES[:4]), matrix, atol=1e-5)


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._path,)


@pytest.mark.filterwarnings("ignore")
def test_the_package_neither_runs_code_nor_downloads(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "tiny", LINES)
    path = folder / "checkpoints" / "model.ckpt"
    saved = torch.load(path)
    torch.save({**saved, "extra": Trap(tmp_path / "trapped")}, path)
    with pytest.raises(CheckpointError, match="can run code"):
        CometModel(str(folder), "cpu")
    assert not (tmp_path / "trapped").exists()
    torch.save(saved, path)
    (folder / "encoder").rename(folder / "moved")
    with pytest.raises(CheckpointError, match="If encoder files are missing"):
        CometModel(str(folder), "cpu")
