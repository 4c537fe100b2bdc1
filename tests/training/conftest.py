"""The training server of the test session, and reference runs."""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Callable, Iterator

import pytest
import torch
import yaml

from nmt.device.device import DeviceQueue
from tests.training.runs import Harm, Run, Server
from tests.training.toy import CONFIG, write_corpus


@pytest.fixture
def run_ahead(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Called, it lets trainings use threads and run ahead of their device, as beside a GPU."""
    pace = DeviceQueue(torch.device("cpu"), max_inflight_updates=64, uses_threads=True)
    place = "nmt.device.device.choose_device_queue"
    return lambda: monkeypatch.setattr(place, lambda _device: pace)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("training")
    write_corpus(folder)
    (folder / "toy.yaml").write_text(yaml.safe_dump(CONFIG))
    with Server(folder) as started:
        yield started


@pytest.fixture
def run(server: Server, request: pytest.FixtureRequest) -> Run:
    return Run(server, re.sub(r"\W+", "-", request.node.name))


@pytest.fixture(scope="session")
def whole(server: Server) -> Run:
    """The run of one process that nothing happened to."""
    found = Run(server, "whole")
    found.finish()
    return found


@pytest.fixture(scope="session")
def whole_of_two(server: Server) -> Run:
    found = Run(server, "whole-of-two")
    found.finish(num=2)
    return found


@pytest.fixture(scope="session")
def stopped_run(server: Server) -> Run:
    run = Run(server, "stopped-at-12")
    result = run.train(harm=Harm("update", 12, (signal.SIGTERM,)))
    assert result.code == 143, result.stderr
    return run


@pytest.fixture
def stopped(run: Run, stopped_run: Run) -> Run:
    """A run that was stopped at step 12; it has checkpoints of steps 10 and 12."""
    shutil.copytree(stopped_run.folder, run.folder)
    return run
