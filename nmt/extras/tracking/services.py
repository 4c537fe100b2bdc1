"""The trackers: TensorBoard, Weights & Biases, MLflow and Trackio.

Each function opens a run: see `Tracker`. To choose server, folder and offline mode, set the
environment variables of the library, for example ``WANDB_MODE`` and ``MLFLOW_TRACKING_URI``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from secrets import token_hex
from typing import Any

from nmt.config.loader import dump_config
from nmt.config.run import RunConfig
from nmt.extras.tracking.tracker import TrackedRun, Tracker

_PROJECT = "nmt"


def _tensorboard(library: Any, config: RunConfig, run_id: str | None) -> TrackedRun:
    """Write scalars, sample translations and the configuration to ``tensorboard/`` of the run."""
    writer = library.SummaryWriter(config.run_dir / "tensorboard")

    def write(name: str, lines: Sequence[str], step: int) -> None:
        # TensorBoard renders Markdown. Indented lines are code blocks, which stay verbatim.
        code = "".join(f"    {' '.join(line.splitlines())}\n" for line in lines)
        writer.add_text(name, code, step)

    def log(scalars: Mapping[str, float], step: int) -> None:
        for name, value in scalars.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    if run_id is None:
        write("configuration", dump_config(config).splitlines(), 0)
    return TrackedRun("tensorboard", log, lambda _: writer.close(), write)


def _wandb(library: Any, config: RunConfig, run_id: str | None) -> TrackedRun:
    run = library.init(
        project=os.environ.get("WANDB_PROJECT", _PROJECT),
        name=config.run_dir.name,
        id=run_id,
        resume="allow",
        config=config.model_dump(mode="json"),
        settings=library.Settings(console="off"),  # log.txt has the messages of training
    )
    return TrackedRun(run.id, run.log, lambda done: run.finish(exit_code=int(not done)))


def _mlflow(library: Any, config: RunConfig, run_id: str | None) -> TrackedRun:
    library.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT))
    run = library.start_run(run_id=run_id, run_name=config.run_dir.name)
    if run_id is None:
        library.log_params(_flat(config.model_dump(mode="json")))

    def end(is_finished: bool) -> None:
        library.end_run("FINISHED" if is_finished else "FAILED")

    return TrackedRun(run.info.run_id, library.log_metrics, end)


def _trackio(library: Any, config: RunConfig, run_id: str | None) -> TrackedRun:
    # Trackio continues the newest run with a name, so the name must be unique. It has no end state.
    name, values = run_id or f"{config.run_dir.name}-{token_hex(3)}", config.model_dump(mode="json")
    run = library.init(project=_PROJECT, name=name, resume="allow", config=values, embed=False)
    return TrackedRun(name, run.log, lambda _: library.finish())


def _flat(value: Any, path: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the values of nested sections by dotted key."""
    if not isinstance(value, Mapping):
        return {".".join(path): value}
    return {key: x for name in value for key, x in _flat(value[name], (*path, name)).items()}


tensorboard = partial(Tracker, "tensorboard", "torch.utils.tensorboard", _tensorboard)
wandb = partial(Tracker, "wandb", "wandb", _wandb)
mlflow = partial(Tracker, "mlflow", "mlflow", _mlflow)
trackio = partial(Tracker, "trackio", "trackio", _trackio)
