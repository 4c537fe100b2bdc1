"""The reporter of `training.trackers`. An error in a tracker does not stop training."""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from nmt.config.run import RunConfig
from nmt.errors import ConfigError
from nmt.files.atomic import write_json
from nmt.files.json_file import read_json
from nmt.training.events import Event

logger = logging.getLogger(__name__)

_GROUPS = {"update": "train", "validation": "validation"}
_NO_SCALARS = ("epoch", "seconds", "source_tokens_per_second")


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """What each tracker implements for one run: see `nmt.extras.tracking.services`."""

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
        self._name, self._open, self._config = name, opener, config
        self._path = config.run_dir / f"tracker-{name}.json"
        self._record: dict[str, Any] = {}
        self._run: TrackedRun | None = None
        self._is_finished = False

    def report(self, event: Event) -> None:
        """Open the run at the start; then record updates and validations."""
        self._is_finished |= event.kind == "end" and event.values["reason"] != "signal"
        is_new = event.kind in _GROUPS and event.step > self._record.get(event.kind, -1)
        with self._contained():
            if event.kind == "start":
                # Without a checkpoint, training starts from the beginning: a new run.
                if event.step and self._path.exists():
                    self._record = read_json(self._path)
                self._run = self._open(self._library, self._config, self._record.get("id"))
                self._keep("id", self._run.run_id)
            elif self._run and is_new:
                # First, because a killed process must not record the step again.
                self._keep(event.kind, event.step)
                self._run.log(_scalars(event), step=event.step)
                for name, values in event.values.get("sets", {"": event.values}).items():
                    for number, sample in enumerate(values.get("samples", ()), 1):
                        self._run.write(f"{name} sample {number}".strip(), sample, event.step)

    def close(self) -> None:
        """End the run."""
        with self._contained():
            if self._run:
                self._run.end(self._is_finished)

    def _keep(self, key: str, value: str | int) -> None:
        self._record[key] = value
        write_json(self._path, self._record)

    @contextmanager
    def _contained(self) -> Iterator[None]:
        """Log errors as warnings. Redirect output to standard error, and block questions."""
        before = sys.stdin
        with Path(os.devnull).open(encoding="utf-8") as nothing, redirect_stdout(sys.stderr):
            sys.stdin = nothing
            try:
                yield
            except Exception as error:
                self._run = None
                text = f"{type(error).__name__}: {error}".partition("\n")[0]
                logger.warning("%s is off until the next start of training: %s", self._name, text)
            finally:
                sys.stdin = before


def _scalars(event: Event) -> dict[str, float]:
    group = _GROUPS[event.kind]
    sets = {f"{group}/{x}": values for x, values in event.values.get("sets", {}).items()}
    return {
        f"{place}/{name}": value
        for place, values in {group: event.values, **sets}.items()
        for name, value in values.items()
        if isinstance(value, int | float) and math.isfinite(value) and name not in _NO_SCALARS
    }
