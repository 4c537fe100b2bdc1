"""``nmt train``: configuration -> run folder, resuming by itself."""

from __future__ import annotations

from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmt.cli.options import Config, Json, Quiet, Set, Verbose, print_json

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
    config: Config,
    set_: Set = [],  # noqa: B006 - read only, and typer wants the list here
    run_dir: Annotated[
        Path | None, typer.Option(help="Folder of the run, instead of the configuration's.")
    ] = None,
    strict_resume: Annotated[
        bool,
        typer.Option("--strict-resume", help="Fail if the newest checkpoint is damaged."),
    ] = False,
    exact: Annotated[
        bool,
        typer.Option("--exact", help="Refuse to resume where the result could differ by a bit."),
    ] = False,
    devices: Annotated[
        int,
        typer.Option(min=1, help="Train in so many processes, on a GPU or some cores each."),
    ] = 1,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Say what training takes (memory, FLOPs, time); do not train."
        ),
    ] = False,
    prove_resume: Annotated[
        bool,
        typer.Option(
            "--prove-resume",
            help="Do not train, but show that a killed training ends with the same bytes.",
        ),
    ] = False,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Train a translator; prepares the data if needed, and goes on where it was stopped.

    SIGINT and SIGTERM let the update finish, save, and exit with 130 or 143.
    """
    from nmt.config.loader import load_config
    from nmt.errors import ConfigError

    # Quoted, so that YAML takes any path as text.
    overrides = set_ if run_dir is None else [*set_, f"run_dir={dumps(str(run_dir))}"]
    resolved = load_config(config, overrides)
    if devices > 1 and (dry_run or prove_resume):
        raise ConfigError(
            f"--devices does not go with {'--dry-run' if dry_run else '--prove-resume'}.",
            fix="Leave one of them out.",
        )
    if dry_run:
        _dry_run(resolved, json=json, quiet=quiet)
        return
    if prove_resume:
        _prove_resume(config, overrides, json=json, quiet=quiet)
        return
    if devices > 1:
        from nmt.training.launch import launch

        given = {
            "--strict-resume": strict_resume,
            "--exact": exact,
            "--json": json,
            "--quiet": quiet,
            "-v": verbose > 0,
            "-vv": verbose > 1,
        }
        flags = [name for name, is_set in given.items() if is_set]
        arguments = ["train", str(config), *(f"--set={text}" for text in overrides), *flags]
        training = resolved.training
        launch(arguments, num_processes=devices, threads=training.threads, device=training.device)
        return
    from nmt.recipes.train import train as run

    summary = run(resolved, quiet=quiet, strict_resume=strict_resume, exact=exact)
    from nmt.engine import is_first

    if not is_first():
        return
    folder = resolved.run_dir
    if json:
        print_json({"run_dir": str(folder), **asdict(summary)})
    elif not quiet:
        best = summary.best or "none"
        score = "" if summary.best_score is None else f" ({summary.best_score:.2f})"
        typer.echo(f"{folder}: {summary.step:,} steps; best: {best}{score}")


def _dry_run(config: RunConfig, *, json: bool, quiet: bool) -> None:
    from nmt.diagnostics.dry_run import dry_run

    report = dry_run(config, quiet=quiet)
    if json:
        print_json(report.as_dict())
    else:
        typer.echo(report.as_text())


def _prove_resume(config: Path, overrides: list[str], *, json: bool, quiet: bool) -> None:
    from nmt.diagnostics.prove_resume import prove_resume

    def say(line: str) -> None:
        if not quiet:
            typer.echo(line, err=True)

    proof = prove_resume(config, overrides, say=say, quiet=quiet)
    if json:
        print_json(asdict(proof))
    else:
        typer.echo(proof.as_text())
