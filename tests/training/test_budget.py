"""The budget of a run: plans of the minutes, on a machine whose speed changes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from nmt.commands.prepare import prepare_data as prepare
from nmt.errors import CheckpointError
from nmt.training import budget as module
from nmt.training.budget import PLANS, Budget, read_plans
from nmt.training.checkpoints import Progress
from nmt.training.losses import CrossEntropy, RDrop
from nmt.training.plan import Plan
from nmt.training.timing import Costs, TrainingSetup
from tests.training.small import full_disk
from tests.training.test_plan import PLAN
from tests.training.toy import make_config, setup_of, write_corpus

MINUTES = 10
Slowness = Callable[[float], float]  # From the time to a factor on all work.


@pytest.fixture(autouse=True)
def prepared() -> None:
    write_corpus(Path())
    prepare(make_config())


@dataclass
class Machine:
    """A machine with a clock of its own: an update takes a second, a validation ten."""

    slowness: Slowness = lambda _now: 1.0
    now: float = 0.0
    validations: float = 0.0  # seconds
    validated: list[int] = field(default_factory=list)  # steps

    def work(self, seconds: float) -> float:
        taken = seconds * self.slowness(self.now)
        self.now += taken
        return taken


def toy_setup(**training: object) -> TrainingSetup:
    values: dict[str, Any] = {"max_steps": None, "max_minutes": MINUTES}
    values |= {"validate_every": 40, "save_every": 400, "schedule": {"shape": "linear"}}
    return setup_of(make_config(**(values | training)))


def budget_of(
    setup: TrainingSetup, progress: Progress, machine: Machine, run_dir: str = "run"
) -> Budget:
    clock = lambda: machine.now  # noqa: E731
    budget = Budget(setup, progress, Path(run_dir), begin=machine.now, clock=clock)
    budget.start()
    return budget


def updates(budget: Budget, machine: Machine, until: int = 10**9) -> Iterator[float]:
    """Train: yield where in the schedule each update is."""
    progress = budget.progress
    while progress.step < min(progress.total_steps or until, until):
        yield budget.place(progress.step + 1)
        machine.work(1.0)
        progress.step += 1
        is_last = progress.step == progress.total_steps
        seconds = None
        if is_last or progress.step % budget.validate_every == 0:
            seconds = machine.work(10 * progress.plans[0].share)
            machine.validations += seconds
            machine.validated.append(progress.step)
        progress.seconds = budget.seconds  # as `Trainer` does before it saves
        budget.next_plan(seconds)


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The first measurement, which is right on a machine without other work."""
    calls = []

    def measure(_setup: TrainingSetup, **_: float) -> Costs:
        calls.append(1)
        return Costs(update=1.0, validation=10.0, saving=0.0)

    monkeypatch.setattr(module, "measure_costs", measure)
    return calls


SLOWNESS: dict[str, Slowness] = {
    "quiet": lambda _now: 1.0,
    "slower than measured": lambda _now: 5.0,
    "faster than measured": lambda _now: 0.2,
    "busy from the middle on": lambda now: 1.0 if now < 300 else 3.0,
    "busy until the middle": lambda now: 3.0 if now < 300 else 1.0,
    "busy every other minute": lambda now: 1.0 if now // 60 % 2 else 2.5,
    "busy at the end": lambda now: 1.0 if now < 500 else 2.0,
}


@pytest.mark.parametrize("name", SLOWNESS)
def test_a_run_uses_its_minutes_on_a_machine_of_changing_speed(name: str) -> None:
    """FAULT 73."""
    machine = Machine(SLOWNESS[name])
    setup = toy_setup()
    budget = budget_of(setup, Progress(), machine)
    places = list(updates(budget, machine))
    # The validation at the end is made; the rest of the work after it is not made here.
    rest = (budget.progress.plans[0].at_end - 1) * 10 * SLOWNESS[name](machine.now)
    assert machine.now + rest == pytest.approx(60 * MINUTES, rel=0.05)
    assert machine.validations <= 0.1 * 60 * MINUTES
    assert machine.validated[-1] == budget.progress.step
    # The schedule ends with the last update, and never goes back.
    assert places == sorted(places)
    assert places[-1] == pytest.approx(budget.schedule_length)


@pytest.mark.parametrize("factor", [5, 20])
def test_a_machine_that_is_slow_for_a_minute_does_not_end_training(factor: int) -> None:
    """A validation is part of this minute."""
    machine = Machine(lambda now: factor if 200 <= now < 260 else 1.0)
    list(updates(budget_of(toy_setup(), Progress(), machine), machine))
    assert machine.now > 0.8 * 60 * MINUTES


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def slowness_of_threads(now: float) -> float:
    """From second 100 to 400, other programs run: two threads wait for each other."""
    with_threads = {1: 2.0, 2: 1.0}
    if 100 <= now < 400:
        with_threads = {1: 2.5, 2: 20.0}
    return with_threads[torch.get_num_threads()]


def measure_threads(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> None:
    """Let `fastest_threads` measure the simulated machine."""

    def fastest(most: int) -> tuple[int, dict[int, float]]:
        before = torch.get_num_threads()
        rates = dict[int, float]()
        for threads in (most, most // 2):
            torch.set_num_threads(threads)
            rates[threads] = 1 / machine.slowness(machine.now)
        torch.set_num_threads(before)
        return max(rates, key=rates.__getitem__), rates

    monkeypatch.setattr(module, "fastest_threads", fastest)


@pytest.mark.usefixtures("two_threads")
def test_a_busy_processor_gets_fewer_threads_until_it_is_quiet_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(slowness_of_threads)
    measure_threads(monkeypatch, machine)
    budget = budget_of(toy_setup(threads=None), Progress(), machine)
    threads = [torch.get_num_threads() for _ in updates(budget, machine)]
    plans = read_plans(Path("run"))
    assert [plans[0].threads, plans[-1].threads] == [None, None]
    assert 1 in {plan.threads for plan in plans}
    # 100 + 120 + 200 updates at most; two threads alone would make 15 instead of 120.
    assert budget.progress.step > 340
    # Run again, on a quiet machine: the recorded plans have the threads.
    monkeypatch.setattr(module, "fastest_threads", lambda _most: pytest.fail("measured again"))
    shutil.copytree("run", "again")
    machine.now = 1000
    again = budget_of(toy_setup(threads=None), Progress(), machine, "again")
    assert [torch.get_num_threads() for _ in updates(again, machine)] == threads


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(
    "training", [{"threads": 2}, {"threads": None, "max_minutes": None, "max_steps": 5}]
)
def test_threads_are_not_changed_if_they_are_set_or_no_minutes_are_planned(
    training: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine(slowness_of_threads, now=200)
    measure_threads(monkeypatch, machine)
    budget = budget_of(toy_setup(**training), Progress(), machine)
    budget.progress.step += 1
    budget.next_plan(validation_seconds=1.0)
    assert torch.get_num_threads() == 2
    advice = "1 of 2 CPU threads compute 8.0 times as fast; set training.threads to 1"
    assert (advice in caplog.text) == (training["threads"] is None)


def test_a_slow_validation_uses_a_part_of_the_sentences_and_is_made_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = Costs(update=1.0, validation=30.0, saving=0.0)
    monkeypatch.setattr(module, "measure_costs", lambda *_, **__: slow)
    setup = toy_setup()
    (whole,) = setup.validator.sets
    assert whole.text is not None
    text = replace(whole.text, sources=["a"] * 600, references=[["b"] * 600, ["c"] * 600])
    whole = replace(whole, text=text)
    setup = replace(setup, validator=replace(setup.validator, sets=[whole]))
    progress = Progress()
    machine = Machine()
    budget = Budget(setup, progress, Path("run"), begin=0.0, clock=lambda: machine.now)
    (part,) = budget.start().validator.sets
    assert part.text is not None
    assert progress.plans[0].share == 1 / 3  # 12 seconds are 2% of the budget
    assert part.text.sources == text.sources[::3]
    assert part.text.references == [lines[::3] for lines in text.references]
    assert budget.validate_every == 200  # updates that take 20 times as long


def test_a_repeated_run_follows_the_recorded_plans_and_measures_nothing(
    measured: list[int],
) -> None:
    """FAULT 1: on a machine of another speed, from each checkpoint, and without one."""
    machine = Machine(SLOWNESS["busy every other minute"])
    first = budget_of(toy_setup(), Progress(), machine)
    places = list(updates(first, machine))
    plans = read_plans(Path("run"))
    assert len(plans) > 5
    assert plans == first.progress.plans
    measured.clear()
    for step in (0, 1, 150, first.progress.step):
        shutil.copytree("run", "again", dirs_exist_ok=True)
        progress = Progress(step=step)
        again = Machine(SLOWNESS["faster than measured"])
        repeated = budget_of(toy_setup(), progress, again, "again")
        repeated.next_plan()  # `Trainer` does so after the validation of this step
        assert list(updates(repeated, again)) == places[step:]
        assert read_plans(Path("again")) == plans == progress.plans
    assert not measured


def test_the_time_counts_while_a_command_runs() -> None:
    machine = Machine()
    progress = Progress()
    for _ in updates(budget_of(toy_setup(), progress, machine), machine, until=200):
        pass
    assert progress.seconds == machine.now
    machine.now += 5000.0  # between two commands
    begin = machine.now
    seconds_before = progress.seconds
    list(updates(budget_of(toy_setup(), progress, machine), machine))
    assert progress.seconds == pytest.approx(seconds_before + machine.now - begin)
    assert progress.seconds == pytest.approx(60 * MINUTES, rel=0.1)


def test_more_minutes_make_a_complete_run_longer() -> None:
    machine = Machine()
    progress = Progress()
    list(updates(budget_of(toy_setup(), progress, machine), machine))
    complete = progress.step
    longer = budget_of(toy_setup(max_minutes=2 * MINUTES), progress, machine)
    assert progress.total_steps == pytest.approx(2 * complete, rel=0.1)
    assert [plan.step for plan in progress.plans] == [0]
    # The schedule has the new length from its beginning.
    assert longer.place(complete) == complete
    list(updates(longer, machine))
    assert progress.seconds == pytest.approx(120 * MINUTES, rel=0.05)


def test_the_smallest_limit_ends_training_and_its_plans_are_kept() -> None:
    machine = Machine()
    progress = Progress()
    budget = budget_of(toy_setup(max_steps=100), progress, machine)
    places = list(updates(budget, machine))
    assert places == list(range(1, 101))
    assert (progress.total_steps, budget.schedule_length) == (100, 100)
    assert progress.plans[0].total_steps > 100
    budget_of(toy_setup(max_minutes=None, max_steps=120), progress, machine)
    assert (progress.total_steps, progress.plans) == (120, [])
    assert not Path("run", PLANS).exists()


def test_plans_are_written_before_the_next_update_or_not_followed() -> None:
    """FAULT 8."""
    machine = Machine(SLOWNESS["slower than measured"])
    progress = Progress()
    setup = toy_setup(on_full_disk="continue")
    budget = budget_of(setup, progress, machine)
    training = updates(budget, machine)
    with full_disk(0):
        while progress.step < 40:
            next(training)
    assert progress.plans == read_plans(Path("run"))
    assert len(progress.plans) == 1
    list(training)
    assert progress.plans == read_plans(Path("run"))
    assert machine.now == pytest.approx(60 * MINUTES, rel=0.1)


@pytest.mark.parametrize("content", ["{", '{"step": 1}\n', "[]\n", '{"step": "x"}\n'])
def test_damaged_plans_are_refused(content: str) -> None:
    Path("run").mkdir()
    Path("run", PLANS).write_text(content)
    with pytest.raises(CheckpointError, match=r"run/plans\.jsonl is damaged"):
        read_plans(Path("run"))


def test_plans_of_a_lost_file_are_those_of_the_checkpoint() -> None:
    machine = Machine()
    progress = Progress()
    list(updates(budget_of(toy_setup(), progress, machine), machine, until=100))
    Path("run", PLANS).unlink()
    plans: Sequence[Plan] = list(progress.plans)
    progress = Progress.from_dict(json.loads(json.dumps(progress.as_dict())))
    budget_of(toy_setup(), progress, machine)
    assert progress.plans == plans == read_plans(Path("run"))
    assert json.loads(Path("run", PLANS).read_text().splitlines()[0]) == asdict(plans[0])


@pytest.mark.parametrize(
    ("minutes", "loss", "expected"),
    [(1, "auto", CrossEntropy), (60, "auto", RDrop), (1, "r_drop", RDrop)],
)
def test_r_drop_is_not_used_where_the_minutes_are_too_few_for_it(
    minutes: int, loss: str, expected: type
) -> None:
    """Two passes over a batch take a second, one takes half of it."""
    machine = Machine()
    settings: dict[str, Any] = {"max_minutes": minutes, "r_drop_weight": 3.0, "loss": loss}
    setup = toy_setup(**settings)
    progress = Progress()
    budget_of(setup, progress, machine)
    assert isinstance(setup.updater.objective, expected)
    assert progress.plans[0].update_seconds == (0.5 if expected is CrossEntropy else 1.0)
    for again in (Progress.from_dict(progress.as_dict()), Progress()):  # after and before a save
        setup = toy_setup(**settings)
        budget_of(setup, again, machine)
        assert isinstance(setup.updater.objective, expected)
        assert again.plans == progress.plans


def test_a_run_keeps_its_loss_until_its_minutes_are_planned_anew(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Minutes, then updates, then more minutes; each is also resumed with equal settings."""
    caplog.set_level("INFO")
    progress = Progress()
    for minutes, steps, expected in (
        (1, None, CrossEntropy),
        (None, 50, CrossEntropy),
        (60, None, RDrop),
    ):
        for _ in range(2):
            setup = toy_setup(max_minutes=minutes, max_steps=steps, r_drop_weight=3.0)
            budget_of(setup, progress, Machine())
            assert isinstance(setup.updater.objective, expected)
            progress = Progress.from_dict(progress.as_dict())
    assert caplog.text.count("R-Drop is not used") == 4


def test_a_plan_says_what_is_planned() -> None:
    assert str(PLAN) == "planned for 1 minutes: 100 updates, validation every 10 updates"
    part = replace(PLAN, share=0.25)
    assert str(part).endswith("every 10 updates with 1/4 of the sentences")
