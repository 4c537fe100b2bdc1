"""``nmt train``: configuration -> run folder, resuming by itself."""

from __future__ import annotations

import logging
import sys
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from nmt.cli.options import CONFIG, JSON, SET, flag, given_flags, log_next_commands, print_result
from nmt.errors import ConfigError

if TYPE_CHECKING:
    from nmt.config.run import RunConfig

logger = logging.getLogger(__name__)

EPILOG = """\b
Examples:
  nmt train configs/demo.yaml
  nmt train configs/demo.yaml --set training.max_minutes=10 --run-dir runs/longer
  nmt train configs/demo.yaml --prove-resume
  nmt train configs/base.yaml --dry-run
  nmt train configs/base.yaml --devices 4
  torchrun --nproc-per-node 4 -m nmt train configs/base.yaml
"""


def train(
    ctx: typer.Context,
    config: Path = CONFIG,
    set_: list[str] = SET,
    run_dir: Path | None = flag(
        metavar="FOLDER", help="Run folder, instead of the configuration's.", show_default=False
    ),
    strict_resume: bool = flag(default=False, help="Fail if the newest checkpoint is damaged."),
    exact: bool = flag(
        default=False, help="Refuse to resume where the result may not be bit-exact."
    ),
    devices: int = flag(
        default=1,
        min=1,
        metavar="N",
        help="Train in N processes, each with one GPU or some CPU cores.",
    ),
    dry_run: bool = flag(
        default=False, help="Estimate memory, FLOPs and time of the training; do not train."
    ),
    prove_resume: bool = flag(
        default=False,
        help="Kill and resume a short training; check that it ends with the same bytes.",
    ),
    json: bool = JSON,
) -> None:
    """Train a model. Prepares the data if needed; resumes from the last checkpoint.

    Ctrl-C (SIGINT) and SIGTERM let the current update finish, save, and exit with 130 or 143; the
    same command resumes. A run that has ended goes on with a larger budget, such as
    `--set training.max_minutes=60`.
    """
    from nmt.data.size import load_config

    if sys.stderr is not None and sys.stderr.isatty():  # loading torch takes seconds
        logger.info("reading %s", config)
    # Quoted, so that YAML takes any path as text.
    overrides = set_ if run_dir is None else [*set_, f"run_dir={dumps(str(run_dir))}"]
    resolved = load_config(config, overrides)
    if dry_run or prove_resume:
        _check_alone(ctx, "--dry-run" if dry_run else "--prove-resume")
    if dry_run:
        _dry_run(resolved, json=json)
    elif prove_resume:
        _prove_resume(config, overrides, json=json)
    elif devices > 1:
        from nmt.training.launch import launch

        given = {"--strict-resume": strict_resume, "--exact": exact, "--json": json}
        flags = [name for name, is_set in given.items() if is_set]
        flags += ["-q"] * ctx.params["quiet"] + ["-v"] * ctx.params["verbose"]
        arguments = ["train", str(config), *(f"--set={text}" for text in overrides), *flags]
        training = resolved.training
        launch(arguments, num_processes=devices, threads=training.threads, device=training.device)
    else:
        _train(resolved, strict_resume=strict_resume, exact=exact, json=json)


def _check_alone(ctx: typer.Context, mode: str) -> None:
    """Refuse flags that have no effect on a program that does not train."""
    flags = given_flags(ctx, "strict_resume", "exact", "devices", "dry_run", "prove_resume")
    if others := [flag for flag in flags if flag != mode]:
        raise ConfigError(
            f"{', '.join(others)} {'do' if len(others) > 1 else 'does'} not go with {mode}.",
            fix="Leave one of them out.",
        )


def _train(config: RunConfig, *, strict_resume: bool, exact: bool, json: bool) -> None:
    from nmt.commands.train import train as run

    summary = run(config, strict_resume=strict_resume, exact=exact)
    from nmt.device import is_first

    if is_first():
        best, metric = summary.best or "none", config.training.validation.metric
        score = "" if summary.best_score is None else f" ({metric} {summary.best_score:.2f})"
        text = f"{config.run_dir}: {summary.step:,} steps; best: {best}{score}"
        print_result(text, {"run_dir": str(config.run_dir), **asdict(summary)}, json=json)
        if summary.best:
            log_next_commands(config.run_dir, config)


def _dry_run(config: RunConfig, *, json: bool) -> None:
    from nmt.device import is_first

    if is_first():  # the others of torchrun would measure and say the same
        from nmt.commands.train import dry_run

        report = dry_run(config)
        print_result(report.as_text(), report.as_dict(), json=json)


def _prove_resume(config: Path, overrides: list[str], *, json: bool) -> None:
    from nmt.device import is_one_of_torchrun

    if is_one_of_torchrun():
        raise ConfigError(
            "--prove-resume starts processes of its own.", fix="Start it without torchrun."
        )
    from nmt.commands.train import prove_resume

    proof = prove_resume(config, overrides)
    print_result(proof.as_text(), asdict(proof), json=json)
