"""``nmt prepare``: corpora -> prepared folder and a report."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from nmt.cli.options import CONFIG, JSON, SET, flag, print_result

EPILOG = """\b
Examples:
  nmt prepare configs/demo.yaml
  nmt prepare configs/demo.yaml --set tokenizer.vocab_size=2000 --report-only
  nmt prepare configs/demo.yaml --report-only --report report
  nmt prepare configs/demo.yaml --workers 8
  nmt prepare configs/demo.yaml --verify
  zcat pairs.tsv.gz | nmt prepare configs/demo.yaml --set data.train='[{tsv: -}]'
  nmt prepare configs/demo.yaml --scheduler tcp://10.0.0.5:8786
"""


def prepare(
    config: Path = CONFIG,
    set_: list[str] = SET,
    report_only: bool = flag(
        default=False, help="Print the report; write nothing but the files of --report."
    ),
    report: Path | None = typer.Option(
        None, "--report", metavar="DIR", help="Folder for report.json, report.html and the lists."
    ),
    force: bool = flag(default=False, help="Prepare again even if nothing has changed."),
    workers: int | None = flag(
        min=1,
        show_default="this process, on all processors",
        help="Processes, each of one thread. The output is the same for any number.",
    ),
    scheduler: str | None = flag(
        show_default="none",
        metavar="local|ADDRESS",
        help="Work through Dask: its scheduler's address, or local to start one here.",
    ),
    repair: bool = flag(
        default=False, help="Pair shifted ranges of lines again; the manifest lists them."
    ),
    verify: bool = flag(
        default=False, help="Only compare the prepared folder with the hashes of its manifest."
    ),
    score_with: str | None = flag(
        show_default="none",
        metavar="RUN,RUN",
        help="Score pairs by two models, one for each direction (reason dual_cross_entropy).",
    ),
    json: bool = JSON,
) -> None:
    """Filter and tokenize corpora into a folder; print a report."""
    from nmt.commands import prepare as recipe
    from nmt.data.size import load_config
    from nmt.errors import ConfigError

    loaded = load_config(config, set_)
    if verify:
        if report_only or report or force or workers or scheduler or repair or score_with:
            raise ConfigError(
                "--verify only reads what there is.", fix="Leave the other flags out."
            )
        whole = recipe.verify(loaded)
        print_result(whole.as_text(), whole.as_dict(), json=json)
        return
    is_piped = sys.stdin is not None and not sys.stdin.isatty()
    found = recipe.prepare(
        loaded,
        force=force,
        report_only=report_only,
        report_dir=report,
        workers=workers,
        scheduler=scheduler,
        repair=repair,
        piped=sys.stdin.buffer if is_piped else None,
        score_with=[Path(run) for run in score_with.split(",")] if score_with else (),
    )
    print_result(found.as_text(), found.as_dict(), json=json)
