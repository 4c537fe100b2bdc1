"""What a configuration makes: updater, times to plan with, and what the start reports."""

from __future__ import annotations

import json
import re
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sacrebleu import corpus_bleu, corpus_chrf, sentence_chrf

from nmt.checkpoint.files import ValidationScore
from nmt.commands.prepare import prepare_data
from nmt.commands.train import Trainer
from nmt.commands.train_setup import describe_start, make_reporters
from nmt.config.data import NoiseConfig
from nmt.config.run import RunConfig
from nmt.data.loader import Batch
from nmt.metrics.result import hash_references
from nmt.training import timing
from nmt.training.budget import Budget, work_at_end
from nmt.training.checkpoints import History, Progress
from nmt.training.events import ReporterList, RunLog, TrainingEvent
from nmt.training.losses import CrossEntropy, RDrop
from nmt.training.processes import StopSignal
from nmt.training.timing import TrainingSetup, measure_costs
from nmt.training.update import Updater, UpdateStats
from nmt.training.validation import HeldOutText, Scores, Validator
from nmt.version import __version__
from tests.training.test_report import update, validation
from tests.training.toy import make_config, setup_of, write_corpus

NUM_EMPTY, NUM_LONG = 2, 1


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of 300 pairs and three that are dropped, and its prepared data."""
    folder = tmp_path_factory.mktemp("setup")
    write_corpus(folder)
    for side in ("de", "en"):
        with (folder / f"train.{side}").open("a") as file:
            file.write("\n" * NUM_EMPTY + "a b c d e " * 9 * NUM_LONG + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        prepare_data(make_config())
    return folder / "prepared"


@pytest.fixture(autouse=True)
def _prepared_here(prepared: Path) -> None:
    Path("prepared").symlink_to(prepared)


def test_options_of_training_reach_what_they_are_for() -> None:
    options: dict[str, Any] = {
        "optimizer": {"clip_norm": 0.25, "weight_decay": 0.5},
        "label_smoothing": 0.3,
        "ema_decay": 0.9,
        "activation_checkpointing": True,
        "freeze": ["encoder"],
        "validation": {"choose_by": "minimum", "beam_size": 3, "max_sentences": 5},
    }
    setup = setup_of(make_config(**options))
    updater = setup.updater
    text = setup.validator.sets[0].text
    assert updater._clip_norm == 0.25
    assert updater.objective == CrossEntropy(0.3)
    assert any(name.startswith("trained/") for name in updater.optimizer.state())  # beside the mean
    assert updater.model.recompute
    assert not any(p.requires_grad for p in updater.model.encoder.parameters())
    assert setup.validator.choose_by == "minimum"
    assert text is not None
    assert (text.options.decoding.beam_size, len(text.sources)) == (3, 5)
    plain = setup_of(make_config(r_drop_weight=2.0))
    assert plain.updater._clip_norm == 1.0
    assert plain.updater.objective == RDrop(0.1, 2.0)
    assert not any(name.startswith("trained/") for name in plain.updater.optimizer.state())
    assert not plain.updater.model.recompute


def test_the_start_reports_model_data_schedule_and_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/nmt", "train", "mine.yaml"])
    config = make_config()
    setup = setup_of(config)
    event = describe_start(config, setup, "", Progress(total_steps=10))
    assert (event.step, event.kind) == (0, "start")
    values = dict(event.values)
    assert "constant" in values.pop("schedule")
    assert values.pop("host") == socket.gethostname()
    assert values.pop("version").startswith(__version__)
    assert values.pop("command") == "nmt train mine.yaml"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[-+]\d{4}", values.pop("date"))
    text = setup.validator.sets[0].text
    assert text is not None
    assert values == {
        "device": "cpu",
        "precision": "float32",
        "threads": torch.get_num_threads(),
        "processes": 1,
        "parameters": sum(p.numel() for p in setup.updater.model.parameters()),
        "metric": "bleu",
        "beam_size": 1,
        "vocabulary": setup.data.manifest.vocab_hash,
        "validation": hash_references(text.references),
        "validation_sentences": len(text.sources),
        "label_smoothing": 0.1,
        "pairs": 300,
        "dropped": {"blank": NUM_EMPTY, "length": NUM_LONG},
        "total_steps": 10,
    }
    # Scores of another part of the set are not comparable.
    fewer = make_config(validation={"max_sentences": 5})
    of_fewer = describe_start(fewer, setup_of(fewer), "", Progress(total_steps=10)).values
    assert of_fewer["validation_sentences"] == 5
    assert of_fewer["vocabulary"] == values["vocabulary"]
    assert of_fewer["validation"] != values["validation"]


@pytest.mark.parametrize(("warmup", "text"), [
    ({"warmup_steps": 4000}, "4,000 updates"),
    ({"warmup_ratio": 0.06}, "6% of the updates"),
    ({"warmup_ratio": 0.125}, "12.5% of the updates"),
])  # fmt: skip
def test_the_start_says_how_long_the_warm_up_is(warmup: dict[str, Any], text: str) -> None:
    config = make_config(schedule={"shape": "linear", "peak_lr": 0.004, **warmup})
    start = describe_start(config, setup_of(config), "", Progress(total_steps=10))
    assert start.values["schedule"] == f"linear, peak_lr 0.004, warm-up: {text}"


@pytest.mark.parametrize(
    ("progress", "kept"),
    [
        # A new start repeats all. A run that goes on had its validation before the first update.
        (Progress(), []),
        (Progress(step=5), [("validation", 0), ("update", 3)]),
        (
            Progress(step=14, history=History({10: ValidationScore(1.0)})),
            [("validation", 0), ("update", 3), ("validation", 10), ("update", 12)],
        ),
    ],
)
def test_a_start_removes_the_lines_that_it_will_write_again(
    progress: Progress, kept: list[tuple[str, int]]
) -> None:
    config = make_config()
    log = RunLog()
    config.run_dir.mkdir()
    lines = [validation(0), update(3), validation(10), update(12), validation(14), update(15)]
    metrics = config.run_dir / "metrics.jsonl"
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    make_reporters(config, log, progress, []).close()
    found = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [(line["kind"], line["step"]) for line in found] == kept


def opened_budget(config: RunConfig, setup: TrainingSetup, progress: Progress) -> Budget:
    budget = Budget(setup, progress, config.run_dir, begin=0.0)
    budget.start()
    return budget


def test_the_schedule_knows_the_planned_updates_and_the_width() -> None:
    """Half of 10 updates are warm-up; noam has a rate of its factor / sqrt(width x warm-up)."""
    for shape, top in (("linear", 0.5), ("noam", 0.5 * (32 * 5) ** -0.5)):
        schedule = {"shape": shape, "peak_lr": 0.5, "warmup_steps": 1, "warmup_ratio": 0.5}
        config = make_config(max_steps=10, schedule=schedule)
        setup = setup_of(config)
        budget = opened_budget(config, setup, Progress())
        trainer = Trainer(config, setup, budget, {}, ReporterList(), StopSignal())
        rates = [trainer._schedule(step) for step in range(1, 11)]
        assert rates.index(max(rates)) == 4
        assert max(rates) == pytest.approx(top)


def test_tokens_of_an_earlier_start_count_for_the_loss_and_not_for_the_speed() -> None:
    config = make_config()
    events: list[TrainingEvent] = []
    progress = Progress(step=2, total_steps=10, loss_sum=40.0, scored_tokens=20)
    progress.source_tokens, progress.target_tokens = 30, 20
    reporter = SimpleNamespace(report=events.append, close=lambda: None)
    setup = setup_of(config)
    budget = opened_budget(config, setup, progress)
    trainer = Trainer(config, setup, budget, {}, ReporterList([reporter]), StopSignal())
    stats = UpdateStats([], 1e-3, 7, 5, 12, torch.tensor([10.0, 0.0, 0.5]))
    for _ in range(2):
        progress.source_tokens += stats.source_tokens
        progress.target_tokens += stats.target_tokens
        trainer.seconds += 1000.0  # reading the statistics adds a few microseconds
        trainer._report_updates(stats)
    first, second = (event.values for event in events)
    assert first["loss"] == 2.0
    for values in (first, second):
        assert values["source_tokens_per_second"] == pytest.approx(7 / 1000, rel=1e-3)
        assert values["target_tokens_per_second"] == pytest.approx(5 / 1000, rel=1e-3)


class Clock:
    """Stands for the time: an update takes two seconds, a validation one for each batch.

    And half a second for each line that it translates; all this divided by ``speed``. The first
    validation takes ``cold`` seconds more.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *, speed: float = 1.0, cold: float = 0.0
    ) -> None:
        self.now = 100.0
        self.cold = cold

        def update(_updater: Updater, _batches: Sequence[Batch], _rate: float) -> None:
            self.now += 2.0 / speed

        def validate(validator: Validator) -> Scores:
            self.now += self.cold
            self.cold = 0.0
            for held_out in validator.sets:
                self.now += len(held_out.batches) / speed
                if held_out.text is not None:
                    self.now += len(held_out.text.sources) / 2 / speed
            return Scores(1.0)

        monkeypatch.setattr(Updater, "__call__", update)
        monkeypatch.setattr(Validator, "__call__", validate)
        monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: self.now))


def several_batches(config: RunConfig) -> TrainingSetup:
    """Of validations in 13 batches and 50 lines."""
    setup = setup_of(config)
    (held_out,) = setup.validator.sets
    assert held_out.text is not None
    text = replace(held_out.text, sources=["a"] * 50, references=[["a"] * 50])
    sets = [replace(held_out, batches=[held_out.batches[0]] * 13, text=text)]
    return replace(setup, validator=replace(setup.validator, sets=sets))


def test_the_time_of_whole_validations_and_saves_is_measured_on_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setup = several_batches(make_config())
    tensors = [*setup.updater.optimizer.weights().values()]
    tensors += setup.updater.optimizer.state().values()
    Clock(monkeypatch)
    costs = measure_costs(setup, most_seconds=1e9)
    assert (costs.update, costs.num_timed) == (2.0, 20)
    assert costs.validation == pytest.approx(13 + 50 / 2)
    assert costs.saving == pytest.approx(sum(tensor.nbytes for tensor in tensors) / 250e6)


@pytest.mark.parametrize("cold", [0.0, 1.0, 5.0])
def test_half_a_minute_is_mostly_spent_on_updates(
    monkeypatch: pytest.MonkeyPatch, cold: float
) -> None:
    """The first validation loads and compiles: a line of that speed would fill the budget."""
    setup = several_batches(make_config(max_steps=None, max_minutes=0.5))
    clock = Clock(monkeypatch, speed=20.0, cold=cold)
    progress = Progress()
    Budget(setup, progress, Path("run"), begin=clock.now, clock=lambda: clock.now).start()
    assert progress.total_steps is not None
    update_seconds = 2 / 20
    validation_seconds = (13 + 50 / 2) / 20
    end = clock.now + progress.total_steps * update_seconds + validation_seconds
    assert end == pytest.approx(100 + 30, abs=2)
    assert progress.total_steps * update_seconds > 30 / 2


@pytest.mark.parametrize(
    ("average_last", "share", "validations"),
    # 200 lines are validated, and calibrated, which is three times the work; half of
    # them; a tenth, which is too little to calibrate.
    [(None, 1.0, 1 + 3), (2, 0.5, 2 + 3), (None, 0.1, 1)],
)
def test_the_work_at_the_end_is_validation_average_and_calibration(
    average_last: int | None, share: float, validations: float
) -> None:
    training = make_config(average_last=average_last).training
    assert work_at_end(training, 200, share) == pytest.approx(validations)


def test_samples_are_source_translation_and_reference_of_the_best_the_median_and_the_worst() -> (
    None
):
    references = ["the dog runs home", "a cat", "two women sing"]
    hypotheses = ["the dog sat at home", "xyz", "two women sing"]
    nobody: Any = None
    text = HeldOutText(["a", "b", "c"], [references], nobody, nobody, "en")
    found = text.score(hypotheses)
    assert found["samples"] == (
        ("c", "two women sing", "two women sing"),
        ("a", "the dog sat at home", "the dog runs home"),
        ("b", "xyz", "a cat"),
    )
    chrf = [
        sentence_chrf(translation, [reference]).score
        for _, translation, reference in found["samples"]
    ]
    assert list(found["sample_chrf"]) == pytest.approx(chrf)
    assert found["text"] == {
        "bleu": pytest.approx(corpus_bleu(hypotheses, [references]).score),
        "chrf": pytest.approx(corpus_chrf(hypotheses, [references]).score),
    }


def test_a_translation_may_agree_with_any_reference() -> None:
    nobody: Any = None
    hypotheses = ["the dog runs home", "a large cat sleeps here"]
    references = [["the dog runs home", "other words"], ["other words", hypotheses[1]]]
    text = HeldOutText(["a", "b"], references[:1], nobody, nobody, "en")
    assert text.score(hypotheses)["text"]["bleu"] < 90
    both = replace(text, references=references)
    found = both.score(hypotheses)
    assert found["text"] == {"bleu": pytest.approx(100), "chrf": pytest.approx(100)}
    assert found["samples"][-1] == ("b", hypotheses[1], f"other words / {hypotheses[1]}")


@pytest.mark.parametrize(
    ("language", "metric", "order"),
    [
        ("en", "bleu", ["bleu", "chrf"]),
        ("en", "ter", ["bleu", "chrf", "ter"]),
        ("en", "chrf", ["chrf", "bleu"]),
        ("th", "chrf", ["chrf", "bleu"]),
        ("th", "loss", ["chrf", "bleu"]),
        ("th", "ter", ["chrf", "bleu", "ter"]),
        ("th", "bleu", ["bleu", "chrf"]),
    ],
)
def test_the_first_score_is_the_metric_that_selects_or_suits_the_language(
    language: str, metric: str, order: list[str]
) -> None:
    nobody: Any = None
    text = HeldOutText(["a"], [["b"]], nobody, nobody, language, metric)
    assert [*text.score(["c"])["text"]] == order


@pytest.mark.parametrize(
    ("limits", "scores", "raised"),
    [
        ({"max_steps": 9}, {5: 1.0, 9: 2.0}, "training.max_steps"),
        ({"max_steps": 9, "max_epochs": 3}, {9: 2.0}, "training.max_steps and training.max_epochs"),
        ({"max_steps": 99, "patience": 2}, {3: 2.0, 6: 1.0, 9: 1.0}, "training.patience"),
    ],
)
def test_a_run_that_is_complete_says_which_limit_to_raise(
    limits: dict[str, Any], scores: dict[int, float], raised: str
) -> None:
    config = make_config(**limits)
    events: list[TrainingEvent] = []
    history = History({step: ValidationScore(score) for step, score in scores.items()})
    progress = Progress(step=9, history=history)
    reporter = SimpleNamespace(report=events.append, close=lambda: None)
    setup = setup_of(config)
    budget = opened_budget(config, setup, progress)
    trainer = Trainer(config, setup, budget, {}, ReporterList([reporter]), StopSignal())
    trainer._writer.saved_step = 9
    trainer.run()
    assert events[-1].text.endswith(f"to continue, raise {raised}")


def test_noise_and_bpe_dropout_are_both_drawn() -> None:
    """Typos change the source only, BPE-dropout the number of subwords of the target, too."""

    def num_tokens(typos: float, bpe_dropout: float) -> int:
        config = make_config()
        corpus = config.data.train[0].model_copy(update={"noise": NoiseConfig(typos=typos)})
        data = config.data.model_copy(update={"train": (corpus,)})
        batch = config.batch.model_copy(update={"bpe_dropout": bpe_dropout})
        setup = setup_of(config.model_copy(update={"data": data, "batch": batch}))
        loader = setup.loader
        batches = [loader.batch(rows) for rows in loader.plan(0)]
        return sum(len(each.gold) for each in batches)

    plain = num_tokens(0.0, 0.0)
    assert num_tokens(1.0, 0.0) == plain
    assert num_tokens(1.0, 0.9) > plain
