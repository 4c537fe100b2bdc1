"""Trainings of a few updates that commands start."""

from __future__ import annotations

import copy
import signal
from typing import Any

import pytest

from nmt.config.run import RunConfig
from nmt.training.update import Updater
from tests.training.test_resume import CONFIG


def make_config(run_dir: str = "run", **training: object) -> RunConfig:
    """Of a training of ten updates."""
    values: dict[str, Any] = copy.deepcopy(CONFIG)
    values["run_dir"] = run_dir
    values["training"] |= {"max_steps": 10, "validate_every": 5, **training}
    return RunConfig.model_validate(values)


@pytest.fixture
def stopped_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal comes before the third update, whichever training makes it."""
    call, updates = Updater.__call__, 0

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal updates
        updates += 1
        if updates == 3:
            signal.raise_signal(signal.SIGTERM)
        return call(*arguments, **options)

    monkeypatch.setattr(Updater, "__call__", counted)
