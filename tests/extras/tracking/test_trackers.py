"""Trackers of experiments: with fakes of the libraries, and with the libraries, offline."""

from __future__ import annotations

import json
import shutil
import sqlite3
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from nmt.commands.train import fit
from nmt.commands.train_setup import TRACKERS
from nmt.config.run import RunConfig
from nmt.errors import ConfigError, install_command
from nmt.training.events import Event
from nmt.training.validation import Scores, combine
from tests.training.small import update_event, validation_event
from tests.training.toy import make_config, write_corpus

MODULES = {name: name for name in TRACKERS} | {"tensorboard": "torch.utils.tensorboard"}
START, RESUMED = Event(0, "training", "start"), Event(20, "resuming", "start")
END, STOPPED = (Event(40, "", "end", {"reason": reason}) for reason in ("budget", "signal"))
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

    def init(self, **values: Any) -> Fake:
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
        assert name == "nmt"

    def SummaryWriter(self, folder: Path) -> Fake:  # noqa: N802
        return self.init(name=folder.parent.name)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.log({name: value}, step)

    def add_text(self, name: str, text: str, step: int) -> None:
        self.texts[f"{name} at {step}"] = text

    def flush(self) -> None:
        assert self.scalars


def faked(name: str, monkeypatch: pytest.MonkeyPatch) -> Fake:
    library = Fake()
    monkeypatch.setitem(sys.modules, MODULES[name], library)
    return library


def give(name: str, config: RunConfig, *events: Event, closes: bool = True) -> None:
    tracker = TRACKERS[name](config)
    for event in events:
        tracker.report(event)
    if closes:
        tracker.close()


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
    give(name, config, Event(40, "resuming", "start"), END)
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
    assert not capsys.readouterr().out  # standard output belongs to the result
    give(name, config, START, updates[0])  # from the beginning: a new run
    assert library.scalars[-1][0] == 10
    assert library.opened[-1].get("id") is None
    assert library.opened[-1]["name"] != first["name"] or name != "trackio"


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


def recorded_by_tensorboard(run_dir: Path, _: str) -> dict[str, list[int]]:
    name = "tensorboard.backend.event_processing.event_accumulator"
    found = pytest.importorskip(name).EventAccumulator(str(run_dir / "tensorboard"))
    found.Reload()
    assert {"configuration/text_summary", "sample 1/text_summary"} <= set(found.Tags()["tensors"])
    return {tag: [x.step for x in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def recorded_by_wandb(_: Path, run_id: str) -> dict[str, list[int]]:
    steps: dict[str, list[int]] = {}
    exits = []
    for path in sorted(Path("wandb").glob(f"offline-run-*-{run_id}/*.wandb")):
        for record in wandb_records(path.read_bytes()):
            if record.HasField("run"):
                assert (record.run.display_name, record.run.project) == ("run", "nmt")
                assert "training" in {each.key for each in record.run.config.update}
            elif record.HasField("exit"):
                exits.append(record.exit.exit_code)
            for item in record.history.item:
                key = item.key or "/".join(item.nested_key)
                if not key.startswith("_"):
                    steps.setdefault(key, []).append(record.history.step.num)
    assert exits == [0, 0]
    return steps


def wandb_records(data: bytes) -> Iterator[Any]:
    """Records of a log in LevelDB's format: blocks of 32 KiB; a record may be in parts."""
    parse = pytest.importorskip("wandb.proto.wandb_internal_pb2").Record.FromString
    place, whole = 7, b""
    while place + 7 <= len(data):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        _, size, part = struct.unpack_from("<IHB", data, place)
        whole += data[place + 7 : place + 7 + size]
        place += 7 + size
        if part in (1, 4):  # whole, or the last part
            yield parse(whole)
            whole = b""


def recorded_by_mlflow(_: Path, run_id: str) -> dict[str, list[int]]:
    client = pytest.importorskip("mlflow").MlflowClient()
    run = client.get_run(run_id)
    assert (run.info.run_name, run.info.status) == ("run", "FINISHED")
    assert run.data.params["training.schedule.peak_lr"] == "0.003"
    history = client.get_metric_history
    return {key: [x.step for x in history(run_id, key)] for key in run.data.metrics}


def recorded_by_trackio(_: Path, run_id: str) -> dict[str, list[int]]:
    steps: dict[str, list[int]] = {}
    with sqlite3.connect("trackio/nmt.db") as base:
        rows = base.execute("SELECT step, metrics FROM metrics WHERE run_name = ?", [run_id])
        for step, metrics in rows.fetchall():
            for key in json.loads(metrics):
                steps.setdefault(key, []).append(step)
    base.close()
    return steps


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the libraries
@pytest.mark.parametrize(("name", "recorded"), [
    ("tensorboard", recorded_by_tensorboard),
    ("wandb", recorded_by_wandb),
    ("mlflow", recorded_by_mlflow),
    ("trackio", recorded_by_trackio),
])  # fmt: skip
def test_a_library_offline_has_every_step_of_a_resumed_run_once(
    name: str, recorded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the weights have the same bytes as without it."""
    pytest.importorskip(name, reason=f"not installed: {install_command(name)}")
    for key in ("HOME", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR"):
        monkeypatch.setenv(key, str(Path("home").absolute()))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    write_corpus(Path())
    settings: dict[str, Any] = {"log_every": 2, "save_every": 5, "keep_last": 9}
    fit(make_config("without", **settings))
    trackio = sys.modules.get("trackio") or (name == "trackio" and pytest.importorskip(name))
    if trackio:  # it reads TRACKIO_DIR when it is imported
        folder = Path("trackio").absolute()
        monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", folder)
        monkeypatch.setattr("trackio.utils.TRACKIO_DIR", folder)
    fit(make_config(trackers=[name], max_steps=8, **settings))
    # The checkpoint of the last step is lost, as after a power cut at step 8.
    for path in Path("run/checkpoints").glob("step-00000008"):
        shutil.rmtree(path)
    fit(make_config(trackers=[name], **settings))
    assert weights("run") == weights("without")
    run_id = json.loads(Path(f"run/tracker-{name}.json").read_text())["id"]
    steps = recorded(Path("run"), run_id)
    groups = {"train/loss": [2, 4, 6, 8, 10], "train/learning_rate": [2, 4, 6, 8, 10]}
    groups |= {"validation/loss": [5, 8, 10], "validation/bleu": [5, 8, 10]}
    assert {key: steps[key] for key in groups} == groups
