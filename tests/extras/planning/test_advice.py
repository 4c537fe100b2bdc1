"""Recipes that cannot work are noticed before they train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nmt.config.run import SCALES, RunConfig, scale_of, usual_vocab_size
from nmt.config.training import ScheduleConfig, TrainingConfig
from nmt.data.prepare_report import PrepareReport, SideReport
from nmt.extras.planning.plan import Plan, advise
from nmt.training.schedule import SCHEDULES, build_schedule


def config(**training: Any) -> RunConfig:
    return RunConfig.model_validate({
        "name": "x", "source_language": "de", "target_language": "en",
        "data": {"train": [{"demo": "train", "name": "a"}], "valid": {"demo": "valid"}},
        "tokenizer": {"vocab_size": training.pop("vocab_size", 4000)},
        "batch": {"max_tokens": 2000},
        "training": {"max_steps": 1000, **training},
    })  # fmt: skip


def report(num_pairs: int, mean: float = 18.0, vocab_size: int = 4000) -> PrepareReport:
    side = SideReport(
        language="de", vocab_size=vocab_size, tokens=round(num_pairs * mean), mean_length=mean,
        median_length=1, p99_length=1, max_length=1, fallback_rate=0.0,
    )  # fmt: skip
    counts = {"a": {"read": num_pairs, "kept": num_pairs}, "valid": {"read": 9, "kept": 9}}
    return PrepareReport(folder="p", up_to_date=True, counts=counts, sides=[side, side])


def found(config: RunConfig, plan: Plan) -> str:
    return " / ".join(advise(config, plan))


def warmed(shape: str, warmup: int, total: int) -> str:
    schedule = {"shape": shape, "warmup_steps": warmup}
    plan = Plan(total_steps=total, updates_per_epoch=None, report=None)
    return found(config(schedule=schedule), plan)


@pytest.mark.parametrize("shape", SCHEDULES.names())
def test_a_training_that_ends_inside_warm_up_or_soon_after_is_named(shape: str) -> None:
    half = "half of the 413 updates or more are warm-up ("
    is_cut = shape in ("linear", "cosine", "wsd")  # to half of the training
    inside = "training ends inside warm-up, after 413 of 500 updates"
    assert warmed(shape, 500, 413).startswith(half if is_cut else inside)
    assert warmed(shape, 300, 413).startswith(half)
    assert warmed(shape, 200, 413) == ""


@pytest.mark.parametrize("shape", SCHEDULES.names())
def test_a_share_of_the_run_is_the_warm_up_of_as_many_updates(shape: str) -> None:
    options = {"shape": shape, "peak_lr": 1.0}
    share, steps = (
        build_schedule(ScheduleConfig.model_validate(options | each), model_dim=8, total_steps=500)
        for each in ({"warmup": 0.06}, {"warmup_steps": 30})
    )
    rates = [share(step) for step in range(1, 501)]
    assert rates == [steps(step) for step in range(1, 501)]
    if shape != "constant":
        assert rates.index(max(rates)) == 29


def test_a_share_needs_a_budget_and_is_below_1() -> None:
    with pytest.raises(ValueError, match=r"schedule\.warmup is a share of a budget"):
        TrainingConfig.model_validate({"patience": 3, "schedule": {"warmup": 0.1}})
    with pytest.raises(ValueError, match="for 400 updates set warmup_steps to 400"):
        ScheduleConfig(warmup=400)
    assert ScheduleConfig(warmup=1e-9).warmup_updates(100) == 1


def test_an_epoch_that_is_never_finished_is_named() -> None:
    plan = Plan(total_steps=5000, updates_per_epoch=20_000, report=None)
    text = "training ends at update 5,000, and an epoch has 20,000: 75% of the pairs are never"
    assert text in found(config(), plan)
    assert found(config(), plan).endswith("`set` training.max_steps=20000")
    # 7 minutes hold a quarter of an epoch.
    timed = config(max_steps=None, max_minutes=7)
    assert found(timed, plan).endswith("training.max_minutes=null `set` training.max_epochs=1")
    assert found(config(), Plan(total_steps=20_000, updates_per_epoch=20_000, report=None)) == ""


@pytest.mark.parametrize(
    ("size", "pairs", "text"),
    [
        (400, 5800, "a vocabulary of 400 entries is small for 5,800 pairs (90 subwords a line): "
         "about 2,000 are usual"),
        (37_000, 5800, "a vocabulary of 37,000 entries is large for 5,800 pairs"),
        (8000, 29_000, ""), (1000, 40_000, ""), (37_000, 4_500_000, ""), (32_000, 200, ""),
    ],
)  # fmt: skip
def test_a_vocabulary_far_from_the_usual_is_named(size: int, pairs: int, text: str) -> None:
    plan = Plan(total_steps=None, updates_per_epoch=None, report=report(pairs, 90.0, 400))
    advice = found(config(vocab_size=size), plan)
    assert advice.startswith(text)
    assert bool(advice) == bool(text)


def test_a_batch_that_is_a_large_part_of_the_corpus_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    unprepared = config().model_copy(update={"prepared_dir": tmp_path})
    assert Plan.estimate(unprepared) == Plan(total_steps=1000, updates_per_epoch=None, report=None)
    # 1,000 pairs of (18 + 1) x 2 tokens are 38,000: 19 batches of 2,000.
    monkeypatch.setattr(PrepareReport, "read", lambda _: report(1000))
    plan = Plan.estimate(config(max_epochs=3))
    assert (plan.updates_per_epoch, plan.total_steps) == (19.0, 57)
    assert "an epoch of 1,000 pairs has 19 updates" in found(config(max_epochs=3), plan)
    monkeypatch.setattr(PrepareReport, "read", lambda _: report(2000))
    small = config(schedule={"warmup": 0.1})
    assert found(small, Plan.estimate(small)) == ""


@pytest.mark.parametrize("num_pairs", [5000, 50_000, 160_000, 4_500_000])
def test_what_goes_with_a_size_is_what_no_warning_speaks_against(num_pairs: int) -> None:
    scale = scale_of(72 * num_pairs)  # as long as those of Tatoeba
    sections = scale.sections()
    assert usual_vocab_size(num_pairs) == scale.vocab_size
    assert TrainingConfig.model_validate(sections["training"]).max_minutes == scale.minutes
    assert tuple(sorted(SCALES, key=lambda each: each.max_characters)) == SCALES
