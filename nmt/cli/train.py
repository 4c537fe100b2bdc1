"""``nmt train``: configuration -> run folder, resuming by itself."""

from __future__ import annotations

from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmt.cli.options import Config, Json, Set, given_flags, log_flags, print_json
from nmt.errors import ConfigError

if TYPE_CHECKING:
    from nmt.config.run import RunConfig

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
    config: Config,
    set_: Set = [],  # noqa: B006 - read only, and typer wants the list here
    run_dir: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Run folder, instead of the configuration's."),
    ] = None,
    strict_resume: Annotated[
        bool, typer.Option("--strict-resume", help="Fail if the newest checkpoint is damaged.")
    ] = False,
    exact: Annotated[
        bool,
        typer.Option("--exact", help="Refuse to resume where the result may not be bit-exact."),
    ] = False,
    devices: Annotated[
        int,
        typer.Option(
            min=1, metavar="N", help="Train in N processes, each with one GPU or some CPU cores."
        ),
    ] = 1,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Estimate memory, FLOPs and time of the training; do not train."
        ),
    ] = False,
    prove_resume: Annotated[
        bool,
        typer.Option(
            "--prove-resume",
            help="Kill and resume a short training; check that it ends with the same bytes.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Train a model. Prepares the data if needed; resumes from the last checkpoint.

    SIGINT and SIGTERM let the current update finish, save, and exit with 130 or 143.
    """
    from nmt.config.loader import load_config

    # Quoted, so that YAML takes any path as text.
    overrides = set_ if run_dir is None else [*set_, f"run_dir={dumps(str(run_dir))}"]
    resolved = load_config(config, overrides)
    if dry_run or prove_resume:
        _check_alone(ctx, "--dry-run" if dry_run else "--prove-resume")
    if dry_run:
        _dry_run(resolved, json=json)
        return
    if prove_resume:
        _prove_resume(config, overrides, json=json)
        return
    if devices > 1:
        from nmt.training.launch import launch

        given = {"--strict-resume": strict_resume, "--exact": exact, "--json": json}
        flags = [name for name, is_set in given.items() if is_set] + log_flags(ctx)
        arguments = ["train", str(config), *(f"--set={text}" for text in overrides), *flags]
        training = resolved.training
        launch(arguments, num_processes=devices, threads=training.threads, device=training.device)
        return
    from nmt.recipes.train import train as run

    summary = run(resolved, strict_resume=strict_resume, exact=exact)
    from nmt.engine import is_first

    if not is_first():
        return
    folder = resolved.run_dir
    if json:
        print_json({"run_dir": str(folder), **asdict(summary)})
    else:
        best = summary.best or "none"
        score = "" if summary.best_score is None else f" ({summary.best_score:.2f})"
        typer.echo(f"{folder}: {summary.step:,} steps; best: {best}{score}")


def _check_alone(ctx: typer.Context, mode: str) -> None:
    """Refuse flags that have no effect on a program that does not train.

    Raises:
        ConfigError: There are some.
    """
    flags = given_flags(ctx, "strict_resume", "exact", "devices", "dry_run", "prove_resume")
    others = [flag for flag in flags if flag != mode]
    if others:
        raise ConfigError(
            f"{', '.join(others)} {'do' if len(others) > 1 else 'does'} not go with {mode}.",
            fix="Leave one of them out.",
        )


def _dry_run(config: RunConfig, *, json: bool) -> None:
    from nmt.engine import is_first

    if not is_first():  # the others of torchrun would measure and say the same
        return
    from nmt.recipes.train import dry_run

    report = dry_run(config)
    if json:
        print_json(report.as_dict())
    else:
        typer.echo(report.as_text())


def _prove_resume(config: Path, overrides: list[str], *, json: bool) -> None:
    from nmt.engine import is_one_of_torchrun

    if is_one_of_torchrun():
        raise ConfigError(
            "--prove-resume starts processes of its own.", fix="Start it without torchrun."
        )
    from nmt.recipes.train import prove_resume

    proof = prove_resume(config, overrides)
    if json:
        print_json(asdict(proof))
    else:
        typer.echo(proof.as_text())
