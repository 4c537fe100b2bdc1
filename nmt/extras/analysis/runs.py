"""``nmt report``: the page of a training run, or a page that compares several runs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import yaml

from nmt.commands.loading import check_output
from nmt.commands.options import File, Files, TextResult
from nmt.config.flag import Flag, Options
from nmt.errors import CheckpointError
from nmt.files.atomic import is_locked, open_output
from nmt.training.report import HtmlReport, RunRecord, render_comparison, render_report

_SECONDS = 10  # Between two pages, with `follow`.

logger = logging.getLogger(__name__)


class ReportOptions(Options):
    """The runs to show, and the page to write.

    Args:
        runs: Run folders created by `nmt train`. Several runs are compared on one page.
        output: Output page. For one run, the default is the page in the run folder.
        follow: Write the page every 10 seconds until the runs have ended.
    """

    runs: Annotated[Files, Flag(argument=True, metavar="RUN")]
    output: Annotated[File, Flag(short="o", metavar="FILE", shown="runs.html")] = None
    follow: bool = False


def report(options: ReportOptions) -> TextResult:
    """Write the page of a run, or a page that compares several runs.

    Raises:
        CheckpointError: A folder is not a run folder.
    """
    runs = tuple(dict.fromkeys(options.runs))
    configs = []
    for run in runs:
        if not (run / "metrics.jsonl").is_file():
            fix = "Pass the folder that `nmt train` printed, for example runs/demo."
            raise CheckpointError(f"{run} is not a run folder: metrics.jsonl is missing.", fix=fix)
        configs.append(yaml.safe_load((run / "config.yaml").read_text("utf-8")))
    path = options.output
    write: Callable[[], None]
    if path is None and len(runs) == 1:
        path = runs[0] / "report.html"
        write = HtmlReport(runs[0], configs[0]["name"]).close
    else:
        path = path or Path("runs.html")
        check_output(path, *runs)
        write = partial(_write, path, runs, configs)
    while options.follow and any(map(is_locked, runs)):
        write()
        logger.info("wrote %s", path)
        time.sleep(_SECONDS)
    write()
    return TextResult(str(path), {"path": str(path)})


def _write(path: Path, runs: Sequence[Path], configs: Sequence[Any]) -> None:
    """Write the page of a run without links, or the page that compares runs."""
    if len(runs) == 1:
        record = RunRecord.read(runs[0])
        config_text = (runs[0] / "config.yaml").read_text("utf-8")
        page = render_report(configs[0]["name"], record, config_text)
    else:
        page = _comparison(runs, configs)
    with open_output(path) as file:
        file.write(page.encode("utf-8", "replace"))


def _comparison(runs: Sequence[Path], configs: Sequence[Any]) -> str:
    """Return the page that compares runs."""
    names = [run.resolve().name for run in runs]
    if len({*names}) < len(names):
        names = list(map(str, runs))
    records = dict(zip(names, map(RunRecord.read, runs), strict=True))
    settings = []
    for config in configs:
        flat = dict(_flat(config))
        settings.append(flat)
    return render_comparison(records, settings)


def _flat(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value of a configuration with its dotted key.

    Args:
        node: A mapping, a list of mappings (whose keys are the indices), or a value.
        key: Dotted key of the node; empty for the whole configuration.
    """
    if isinstance(node, list) and any(isinstance(item, dict) for item in node):
        node = dict(enumerate(node))
    if not isinstance(node, dict):
        yield key, node
        return
    prefix = f"{key}." if key else ""
    for name, child in node.items():
        yield from _flat(child, f"{prefix}{name}")
