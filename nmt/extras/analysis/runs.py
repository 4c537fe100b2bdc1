"""``nmt report``: the page of a training run, or a page that compares several runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import yaml

from nmt.commands.loading import check_output
from nmt.commands.options import File, Files, TextResult
from nmt.config.flag import Flag, Options
from nmt.errors import CheckpointError
from nmt.files.atomic import open_output
from nmt.training.report import HtmlReport, render_comparison

_DIFFER_ALWAYS = ("name", "run_dir")  # Keys that say nothing about how runs differ.


class ReportOptions(Options):
    """The runs to show, and the page to write.

    Args:
        runs: Run folders created by `nmt train`. Several runs are compared on one page.
        output: Output page. For one run, the default is the page in the run folder.
    """

    runs: Annotated[Files, Flag(argument=True, metavar="RUN")]
    output: Annotated[File, Flag(short="o", metavar="FILE", shown="runs.html")] = None


def report(options: ReportOptions) -> TextResult:
    """Write the page of a run, or a page that compares several runs.

    Raises:
        CheckpointError: A folder is not a run folder.
    """
    path = options.output
    settings = []  # of each run: dotted key -> value as text
    for run in options.runs:
        if not (run / "metrics.jsonl").is_file():
            fix = "Pass the folder that `nmt train` printed, for example runs/demo."
            raise CheckpointError(f"{run} is not a run folder: metrics.jsonl is missing.", fix=fix)
        config = (run / "config.yaml").read_text("utf-8")
        settings.append(dict(_flat(yaml.safe_load(config))))
    if path is None and len(options.runs) == 1:
        (run,) = options.runs
        path = run / "report.html"
        HtmlReport(run, settings[0]["name"]).close()
    else:
        path = path or Path("runs.html")
        check_output(path, *options.runs)
        folders = {str(run): run for run in options.runs}  # name on the page -> folder
        page = render_comparison(folders, [*_differing(settings)])
        with open_output(path) as file:
            file.write(page.encode("utf-8", "replace"))
    return TextResult(str(path), {"path": str(path)})


def _differing(settings: Sequence[Mapping[str, str]]) -> Iterator[tuple[str, list[str]]]:
    """Yield each key whose value differs between runs, with the value of each run."""
    for key in dict.fromkeys(chain.from_iterable(settings)):
        values = [run_settings.get(key, "\N{EN DASH}") for run_settings in settings]
        if len({*values}) > 1 and key not in _DIFFER_ALWAYS:
            yield key, values


def _flat(node: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield every value of a configuration with its dotted key.

    Args:
        node: A mapping, a list (whose keys are the indices), or a single value.
        key: Dotted key of the node; empty for the whole configuration.
    """
    if isinstance(node, list):
        node = dict(enumerate(node))
    if node is None:
        node = "null"  # as in YAML
    if not isinstance(node, dict):
        yield key, str(node)
        return
    prefix = f"{key}." if key else ""
    for name, child in node.items():
        yield from _flat(child, f"{prefix}{name}")
