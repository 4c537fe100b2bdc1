"""The reporter of `training.trackers`: TensorBoard, Weights & Biases, MLflow and Trackio.

An error in a tracker does not stop training. To choose server, folder and offline mode, set the
environment variables of the library, for example ``WANDB_MODE`` and ``MLFLOW_TRACKING_URI``.
"""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from secrets import token_hex
from typing import Any

from nmt.config.loader import dump_config
from nmt.config.run import RunConfig
from nmt.errors import ConfigError
from nmt.files.atomic import write_json
from nmt.files.json_file import read_json
from nmt.training.events import TrainingEvent

logger = logging.getLogger(__name__)

_PROJECT = "nmt"
# Kind of event -> group of its values in the tracker. Other events are not recorded.
_GROUPS = {"update": "train", "validation": "validation"}
# Numbers of an event that are not recorded.
_NO_SCALARS = ("epoch", "seconds", "source_tokens_per_second", "target_tokens")


@dataclass(frozen=True)
class TrackedRun:
    """What each tracker implements for one run."""

    run_id: str  # A resumed training continues the run with this identifier.
    # Records numbers, such as ``train/loss``, with the keyword ``step``.
    log: Callable[..., object]
    end: Callable[[bool], object]  # Ends the run; False if a signal or an error stopped training.
    # Records lines of text under a name and a step.
    write: Callable[[str, Sequence[str], int], object] = lambda *_: None


class Tracker:
    """Sends losses, scores, learning rate and speed to a tracker; a `Reporter`.

    ``tracker-NAME.json`` in the run folder contains the identifier of the run and the last recorded
    steps. So a resumed training continues the same run, and no step is recorded twice. An error of
    the tracker is logged as a warning, and the tracker is not used until the next start.

    Args:
        name: Name in `training.trackers`, which is also the extra that installs the library.
        library: Name of the module to import.
        opener: Opens a run. Called with the module, the configuration, and the identifier of the
            run to continue, or None.
        config: The configuration.

    Raises:
        ConfigError: The library cannot be imported.
    """

    def __init__(
        self, name: str, library: str, opener: Callable[..., TrackedRun], config: RunConfig
    ) -> None:
        try:
            self._library = import_module(library)
            # A folder with this name, such as the one that wandb writes, is not the library.
            if getattr(self._library, "__file__", None) is None:
                raise ModuleNotFoundError(name=library)
        except Exception as error:
            raise ConfigError.of_import(error, "training.trackers", name) from error
        self._name = name
        self._open = opener
        self._config = config
        file = f"tracker-{name}.json"
        self._path = config.run_dir / file
        # What the file contains: ``id`` of the run, and the last recorded step by kind of event.
        self._record = dict[str, Any]()
        self._run: TrackedRun | None = None
        self._is_finished = False

    def report(self, event: TrainingEvent) -> None:
        """Open the run at the start; then record updates and validations."""
        if event.kind == "end" and event.values["reason"] in ("budget", "patience"):
            self._is_finished = True
        last_step = self._record.get(event.kind, -1)
        # A resumed training repeats steps after its checkpoint that were recorded before.
        is_new = event.kind in _GROUPS and event.step > last_step
        with self._contained():
            if event.kind == "start":
                # Without a checkpoint, training starts from the beginning: a new run.
                if event.step and self._path.exists():
                    self._record = read_json(self._path)
                run_id = self._record.get("id")
                self._run = self._open(self._library, self._config, run_id)
                self._save("id", self._run.run_id)
            elif self._run and is_new:
                # Saved first, because a killed process must not record the step again.
                self._save(event.kind, event.step)
                self._run.log(_scalars(event), step=event.step)
                # A single validation set has no name; its values are those of the event.
                sets = event.values.get("sets", {"": event.values})
                for name, values in sets.items():
                    for number, sample in enumerate(values.get("samples", ()), 1):
                        title = f"{name} sample {number}".strip()
                        self._run.write(title, sample, event.step)

    def close(self) -> None:
        """End the run."""
        with self._contained():
            if self._run:
                self._run.end(self._is_finished)

    def _save(self, key: str, value: str | int) -> None:
        self._record[key] = value
        write_json(self._path, self._record)

    @contextmanager
    def _contained(self) -> Iterator[None]:
        """Log errors as warnings. Redirect output to standard error, and block questions."""
        standard_input = sys.stdin
        with Path(os.devnull).open(encoding="utf-8") as empty_input, redirect_stdout(sys.stderr):
            # A library that asks a question reads no answer, and fails instead of waiting.
            sys.stdin = empty_input
            try:
                yield
            except Exception as error:
                self._run = None
                first_line, *_ = f"{type(error).__name__}: {error}".split("\n")
                logger.warning(
                    "%s is off until the next start of training: %s", self._name, first_line
                )
            finally:
                sys.stdin = standard_input


def _scalars(event: TrainingEvent) -> dict[str, float]:
    """Return the numbers of an event by their names in the tracker, such as ``train/loss``.

    The scores of several validation sets are under ``validation/NAME``.
    """
    group = _GROUPS[event.kind]
    sections = {group: event.values}
    sets = event.values.get("sets", {})
    for set_name, values in sets.items():
        sections[f"{group}/{set_name}"] = values
    scalars = {}
    for section, values in sections.items():
        for name, value in values.items():
            is_number = isinstance(value, int | float) and math.isfinite(value)
            if is_number and name not in _NO_SCALARS:
                scalars[f"{section}/{name}"] = value
    return scalars


def _tensorboard(library: Any, config: RunConfig, run_id: str | None) -> TrackedRun:
    """Write scalars, sample translations and the configuration to ``tensorboard/`` of the run."""
    folder = config.run_dir / "tensorboard"
    writer = library.SummaryWriter(folder)

    def write(name: str, lines: Sequence[str], step: int) -> None:
        # A text may contain rare line ends of Unicode. The text after them would not be indented.
        single_lines = [" ".join(line.splitlines()) for line in lines]
        # TensorBoard renders Markdown. Indented lines are code blocks, which stay verbatim.
        code = "".join(f"    {line}\n" for line in single_lines)
        writer.add_text(name, code, step)

    def log(scalars: Mapping[str, float], step: int) -> None:
        for name, value in scalars.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    if run_id is None:
        lines = dump_config(config).splitlines()
        write("configuration", lines, 0)
    return TrackedRun("tensorboard", log, lambda _: writer.close(), write)


def _wandb(library: Any, config: RunConfig, run_id: str | None) -> TrackedRun:
    """Record scalars and the configuration with Weights & Biases."""
    run = library.init(
        project=os.environ.get("WANDB_PROJECT", _PROJECT),
        name=config.run_dir.name,
        id=run_id,
        resume="allow",
        config=config.model_dump(mode="json"),
        settings=library.Settings(console="off"),  # log.txt has the messages of training
    )

    def end(is_finished: bool) -> None:
        run.finish(exit_code=int(not is_finished))

    return TrackedRun(run.id, run.log, end)


def _mlflow(library: Any, config: RunConfig, run_id: str | None) -> TrackedRun:
    """Record scalars and the configuration with MLflow."""
    experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT)
    library.set_experiment(experiment)
    run = library.start_run(run_id=run_id, run_name=config.run_dir.name)
    if run_id is None:
        settings = config.model_dump(mode="json")
        library.log_params(_flat(settings))

    def end(is_finished: bool) -> None:
        status = "FAILED"
        if is_finished:
            status = "FINISHED"
        library.end_run(status)

    return TrackedRun(run.info.run_id, library.log_metrics, end)


def _trackio(library: Any, config: RunConfig, run_id: str | None) -> TrackedRun:
    """Record scalars and the configuration with Trackio, which knows no state of an ended run."""
    # Trackio continues the newest run with a name, so the name must be unique.
    name = run_id or f"{config.run_dir.name}-{token_hex(3)}"
    run = library.init(
        project=_PROJECT,
        name=name,
        resume="allow",
        config=config.model_dump(mode="json"),
        embed=False,
    )
    return TrackedRun(name, run.log, lambda _: library.finish())


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of nested sections by dotted key."""
    flat = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            for inner_key, inner_value in _flat(value).items():
                flat[f"{name}.{inner_key}"] = inner_value
        else:
            flat[name] = value
    return flat


tensorboard = partial(Tracker, "tensorboard", "torch.utils.tensorboard", _tensorboard)
wandb = partial(Tracker, "wandb", "wandb", _wandb)
mlflow = partial(Tracker, "mlflow", "mlflow", _mlflow)
trackio = partial(Tracker, "trackio", "trackio", _trackio)
