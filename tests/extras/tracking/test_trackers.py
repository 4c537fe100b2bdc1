"""Trackers of experiments: with fakes of the libraries, and with tensorboard."""

from __future__ import annotations

import math
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from nmt.commands.train import fit
from nmt.commands.train_setup import TRACKERS
from nmt.config.run import RunConfig
from nmt.errors import ConfigError, install_command
from nmt.training.events import TrainingEvent
from nmt.training.validation import Scores, combine
from tests.training.small import update_event, validation_event
from tests.training.toy import make_config, write_corpus

MODULES = {name: name for name in TRACKERS} | {"tensorboard": "torch.utils.tensorboard"}
START, RESUMED = TrainingEvent(0, "training", "start"), TrainingEvent(20, "resuming", "start")
END, STOPPED = (TrainingEvent(40, "", "end", {"reason": reason}) for reason in ("budget", "signal"))
SCORES = {"bleu": 21.5, "chrf": 48.0, "loss": 2.0, "perplexity": pytest.approx(7.389, rel=1e-3)}
RATES = {"learning_rate": 5e-4, "gradient_norm": 0.75, "target_tokens_per_second": 4000.0}


class Fake:
    """A library with the functions of all four that nmt calls; it remembers what it is told."""

    __file__ = __file__
    Settings = dict

    def __init__(self) -> None:
        self.opened: list[dict[str, Any]] = []
        self.scalars: list[tuple[int, str, float]] = []
        self.texts: dict[str, str] = {}
        self.ends: list[Any] = []
        self.id, self.info = "run 1", SimpleNamespace(run_id="run 1")
        self.error: Exception | None = None
        self.project = ""
        self.unwritten: list[tuple[int, str, float]] = []  # until `flush`

    def init(self, project: str = "", **values: Any) -> Fake:
        self.project = project or self.project
        print("progress on standard output")  # noqa: T201
        assert not sys.stdin.read()  # a question is not answered
        self.opened.append(values)
        return self

    def start_run(self, run_id: str | None, run_name: str) -> Fake:
        return self.init(id=run_id, name=run_name)

    def log_params(self, values: dict[str, Any]) -> None:
        self.opened[-1]["config"] = values

    def log(self, values: dict[str, float], step: int) -> None:
        if self.error:
            raise self.error
        self.scalars += [(step, *item) for item in values.items()]

    log_metrics = log

    def finish(self, exit_code: int | str | None = None) -> None:
        self.ends.append(exit_code)

    end_run = close = finish

    def set_experiment(self, name: str) -> None:
        self.project = name

    def SummaryWriter(self, folder: Path) -> Fake:  # noqa: N802
        return self.init(name=folder.parent.name)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.unwritten.append((step, name, value))

    def add_text(self, name: str, text: str, step: int) -> None:
        self.texts[f"{name} at {step}"] = text

    def flush(self) -> None:
        assert self.unwritten
        self.scalars += self.unwritten
        self.unwritten.clear()


def faked(name: str, monkeypatch: pytest.MonkeyPatch) -> Fake:
    library = Fake()
    monkeypatch.setitem(sys.modules, MODULES[name], library)
    return library


def give(name: str, config: RunConfig, *events: TrainingEvent, closes: bool = True) -> None:
    tracker = TRACKERS[name](config)
    for event in events:
        tracker.report(event)
    if closes:
        tracker.close()


def test_a_run_that_failed_is_not_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    library, config = faked("mlflow", monkeypatch), make_config("runs/mine")
    config.run_dir.mkdir(parents=True)
    give("mlflow", config, START, TrainingEvent(3, "", "end", {"reason": "Training diverged."}))
    assert library.ends == ["FAILED"]


@pytest.mark.parametrize("name", MODULES)
def test_a_tracker_gets_name_configuration_scalars_and_state_once(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first start is killed after step 30 and resumes at 20; the second one is stopped."""
    library, config = faked(name, monkeypatch), make_config("runs/mine")
    config.run_dir.mkdir(parents=True)
    updates = [update_event(step, loss=step) for step in (10, 20, 30, 40)]
    events = [updates[0], updates[1], validation_event(20), updates[2]]
    give(name, config, START, *events, closes=False)
    give(name, config, RESUMED, *events[1:], updates[3], STOPPED)
    give(name, config, TrainingEvent(40, "resuming", "start"), END)
    assert [item for item in library.scalars if item[1] == "train/loss"] == [
        (step, "train/loss", step) for step in (10, 20, 30, 40)
    ]
    found = {key.partition("/")[2]: x for step, key, x in library.scalars if step == 20}
    assert found == {**SCORES, **RATES, "padding_waste": 0.125}
    states = {"wandb": [1, 0], "mlflow": ["FAILED", "FINISHED"]}
    assert library.ends == states.get(name, [None, None])
    first, *later = library.opened
    assert first["name"].startswith("mine")
    if name == "tensorboard":
        assert "    name: toy\n" in library.texts.pop("configuration at 0")
        code = "    ein *Hund*\n    a <b>dög</b>\n    a dog\n"  # Markdown leaves it alone
        assert library.texts == {"sample 1 at 20": code}
    elif name == "mlflow":
        assert first["config"]["training.schedule.peak_lr"] == 0.003
        assert [each for each in later if "config" in each] == []
    else:
        assert first["config"]["training"]["schedule"]["peak_lr"] == 0.003
    if name == "trackio":  # which continues the newest run of a name
        assert {each["name"] for each in later} == {first["name"]}
    elif name != "tensorboard":
        assert [each["id"] for each in library.opened] == [None, "run 1", "run 1"]
    if name in ("wandb", "trackio"):  # otherwise they overwrite the run with this name
        assert {each["resume"] for each in library.opened} == {"allow"}
    assert not capsys.readouterr().out  # standard output belongs to the result
    give(name, config, START, updates[0])  # from the beginning: a new run
    assert library.scalars[-1][0] == 10
    assert library.opened[-1].get("id") is None
    assert library.opened[-1]["name"] != first["name"] or name != "trackio"


def test_trackers_of_one_run_remember_their_own_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each continues its run with what it has not got: the last one missed the second update."""
    config = make_config("run")
    config.run_dir.mkdir(parents=True)
    names = ("wandb", "mlflow", "trackio")
    libraries = {name: faked(name, monkeypatch) for name in names}
    for name, library in libraries.items():
        library.id = library.info.run_id = f"run of {name}"
    updates = [update_event(step, loss=step) for step in (10, 20, 30)]
    for name in names:
        give(name, config, START, *updates[: 1 if name == "trackio" else 2], closes=False)
    for name in names:
        give(name, config, RESUMED, *updates)
    for name, library in libraries.items():
        steps = [step for step, key, _ in library.scalars if key == "train/loss"]
        assert steps == [10, 20, 30]
        first, second = library.opened
        if name == "trackio":
            assert second["name"] == first["name"]
        else:
            assert (first["id"], second["id"]) == (None, f"run of {name}")


def test_a_tracker_gets_the_scores_of_each_validation_set(monkeypatch: pytest.MonkeyPatch) -> None:
    library, config = faked("tensorboard", monkeypatch), make_config("run")
    config.run_dir.mkdir(parents=True)
    sets = {name: Scores(2.0, {"bleu": 9.5}, samples=((name,) * 3,)) for name in ("new", "old")}
    give("tensorboard", config, START, validation_event(0, combine(sets, ["new"], "mean")), END)
    found = {key: value for _, key, value in library.scalars if key.endswith("bleu")}
    assert found == dict.fromkeys(
        ("validation/bleu", "validation/new/bleu", "validation/old/bleu"), 9.5
    )
    assert library.texts["old sample 1 at 0"] == "    old\n" * 3


def test_several_trackers_of_a_run_continue_their_own_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = make_config("run")
    config.run_dir.mkdir(parents=True)
    libraries = {name: faked(name, monkeypatch) for name in ("wandb", "mlflow")}
    libraries["wandb"].id = "run 7"
    for name in libraries:
        give(name, config, START, update_event(10))
    for name in libraries:
        give(name, config, RESUMED, update_event(30))
    assert [each["id"] for each in libraries["wandb"].opened] == [None, "run 7"]
    assert [each["id"] for each in libraries["mlflow"].opened] == [None, "run 1"]


class Killed(BaseException):
    """The end of the process: nothing else runs in the tracker."""


def test_a_step_is_not_sent_again_if_the_process_was_killed_while_sending_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library, config = faked("wandb", monkeypatch), make_config("run")
    config.run_dir.mkdir(parents=True)
    sent: list[int] = []

    def log_until_killed(_: dict[str, float], step: int) -> None:
        sent.append(step)
        if step == 20:
            raise Killed

    monkeypatch.setattr(library, "log", log_until_killed)
    updates = [update_event(step) for step in (10, 20, 30)]
    with pytest.raises(Killed):
        give("wandb", config, START, *updates)
    give("wandb", config, TrainingEvent(10, "resuming", "start"), *updates[1:], END)
    assert sent == [10, 20, 30]


def test_only_finite_numbers_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    library, config = faked("mlflow", monkeypatch), make_config("run")
    config.run_dir.mkdir(parents=True)
    give("mlflow", config, START, update_event(10, loss=math.inf), update_event(20, loss=3.0), END)
    found = {(step, name) for step, name, _ in library.scalars}
    assert {(10, "train/learning_rate"), (20, "train/loss")} <= found
    assert all(math.isfinite(value) for _, _, value in library.scalars)


@pytest.mark.parametrize(("name", "variable"), [
    ("wandb", "WANDB_PROJECT"), ("mlflow", "MLFLOW_EXPERIMENT_NAME"),
])  # fmt: skip
def test_the_variables_of_a_library_choose_the_project(
    name: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, config = faked(name, monkeypatch), make_config("run")
    config.run_dir.mkdir(parents=True)
    monkeypatch.delenv(variable, raising=False)
    give(name, config, START)
    assert library.project == "nmt"
    monkeypatch.setenv(variable, "ours")
    give(name, config, START)
    assert library.project == "ours"


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("found", [None, ModuleType("a folder of this name")])
def test_without_its_package_the_error_says_how_to_install_it(
    name: str, found: ModuleType | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before data are prepared or a folder is made; ./wandb, for example, is not the package."""
    monkeypatch.setitem(sys.modules, MODULES[name], found)  # importing None fails
    with pytest.raises(
        ConfigError, match=f"training.trackers needs {name}, which is not installed"
    ) as caught:
        fit(make_config(trackers=[name]))
    assert caught.value.fix == install_command(name)
    assert not list(Path("run").glob("[!.]*"))


@pytest.mark.parametrize(("code", "found"), [
    ("raise RuntimeError('no protocol')", "RuntimeError: no protocol"),
    ("import nosuchdependency", "ModuleNotFoundError: No module named 'nosuchdependency'"),
])  # fmt: skip
def test_a_broken_package_is_not_called_missing(
    code: str, found: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "wandb.py").write_text(code)
    with pytest.raises(ConfigError, match=f"wandb cannot be imported: {found}") as caught:
        fit(make_config(trackers=["wandb"]))
    assert caught.value.fix == "Repair the package, or remove it from training.trackers."


@pytest.mark.parametrize("where", ["open", "log", "close"])
@pytest.mark.long
def test_a_tracker_that_fails_neither_ends_nor_changes_training(
    where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_corpus(Path())
    fit(make_config("without"))
    library, error = faked("wandb", monkeypatch), OSError("no route to host\n  (long story)")
    if where == "log":
        library.error = error
    else:

        def fail(**_: Any) -> Fake:
            raise error

        monkeypatch.setattr(library, {"open": "init", "close": "finish"}[where], fail)
    fit(make_config("with", trackers=["wandb"]))
    text = "wandb is off until the next start of training: OSError: no route to host"
    assert [each.message for each in caplog.records if "wandb" in each.message] == [text]
    assert text in Path("with/log.txt").read_text()
    assert weights("with") == weights("without")


def weights(run_dir: str) -> dict[str, bytes]:
    paths = Path(run_dir, "checkpoints").glob("*/*.safetensors")
    return {f"{path.parent.name}/{path.name}": path.read_bytes() for path in paths}


@pytest.mark.filterwarnings("ignore")  # of the library
def test_tensorboard_has_every_step_of_a_resumed_run_once() -> None:
    """And the weights have the same bytes as without it."""
    name = "tensorboard.backend.event_processing.event_accumulator"
    accumulator = pytest.importorskip(name)
    write_corpus(Path())
    settings: dict[str, Any] = {"log_every": 2, "save_every": 5, "keep_last": 9}
    fit(make_config("without", **settings))
    fit(make_config(trackers=["tensorboard"], max_steps=8, **settings))
    # The checkpoint of the last step is lost, as after a power cut at step 8.
    for path in Path("run/checkpoints").glob("step-00000008"):
        shutil.rmtree(path)
    fit(make_config(trackers=["tensorboard"], **settings))
    assert weights("run") == weights("without")
    found = accumulator.EventAccumulator("run/tensorboard")
    found.Reload()
    assert {"configuration/text_summary", "sample 1/text_summary"} <= set(found.Tags()["tensors"])
    for group, steps in {"train": [2, 4, 6, 8, 10], "validation": [5, 8, 10]}.items():
        names = {tag for tag in found.Tags()["scalars"] if tag.startswith(f"{group}/")}
        assert f"{group}/loss" in names
        assert all([each.step for each in found.Scalars(tag)] == steps for tag in names)
