"""Check that training and decoding are correct on a GPU, then measure their speed.

    python scripts/gpu_report.py --model runs/multi30k-de-en
    python scripts/gpu_report.py --stages machine,gradients,training
    python scripts/gpu_report.py --device cpu --quick

Each stage runs in a separate process with a time limit. Results are written to ``--output`` at
once, one JSON object per line, and printed as a table at the end. Some stages are gates. If a gate
fails, the stages that depend on it are skipped, so that the speed of wrong results is not reported.
A gate that is not among ``--stages`` counts as passed. ``--within 420`` stops after 420 seconds and
keeps the results so far. Exit code 1 means that a gate failed or a stage did not finish.

Times are medians. The device is synchronised before each time measurement. Inputs are random.
`--device cpu --quick` uses tiny sizes, only to test the script.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = ("stage", "what", "result", "target", "predicted", "")


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of the report, which runs in a separate process."""

    name: str
    seconds: int
    """Time limit."""
    needs: tuple[str, ...] = ()
    """Stages without which this stage is skipped, if they fail."""


TRAINS = ("gradients", "updates", "compiled")
STAGES = (
    Stage("machine", 60),
    Stage("gradients", 90),
    Stage("updates", 60),
    Stage("compiled", 180),
    Stage("resume", 180),
    Stage("search", 150),
    Stage("shapes", 150, TRAINS),
    Stage("loss", 90, TRAINS),
    Stage("training", 400, TRAINS),
    Stage("pytorch", 300, TRAINS),
    Stage("kernels", 150, TRAINS),
    Stage("decoding", 200, ("search",)),
    Stage("variants", 300, TRAINS),
    Stage("beside", 150, TRAINS),
    Stage("start", 180, TRAINS),
    Stage("signals", 240, ("resume",)),
    Stage("together", 180, ("resume",)),
    Stage("multi30k", 420, (*TRAINS, "resume")),
    Stage("proof", 300, ("resume",)),
    Stage("tatoeba", 400, (*TRAINS, "resume")),
    Stage("files", 120, ("search",)),
)
"""Correctness first, then the speed of parts, then whole commands."""


class Report:
    """The results. Each result is written to disk at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.records: list[dict[str, Any]] = []
        self.failed: set[str] = set()
        """Stages with a failed gate, and stages that did not finish."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("", encoding="utf-8")

    def add(self, record: Mapping[str, Any]) -> None:
        """Write and print a record; see `gpu_stages.Recorder` for its fields."""
        self.records.append(dict(record))
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        print(json.dumps(record), flush=True)
        if record.get("passed") is False:
            self.failed.add(record["stage"])

    def table(self) -> str:
        """Return all records as a Markdown table."""
        rows = [COLUMNS, ("---",) * len(COLUMNS)]
        rows += map(_cells, self.records)
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)


MARKS = {True: "passed", False: "FAILED", None: ""}


def _cells(record: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a row of the table."""
    value = record["value"]
    if isinstance(value, float):
        format_spec = ".4g"
        if abs(value) >= 1000:
            format_spec = ",.0f"
        value = format(value, format_spec)
    unit = record.get("unit", "")
    shown = f"{value} {unit}".strip()
    target = record.get("target", "").strip()
    predicted = record.get("predicted", "").strip()
    mark = MARKS[record.get("passed")]
    return record["stage"], record["what"], shown, target, predicted, mark


def run_stage(
    stage: Stage, command: Sequence[str], report: Report, *, seconds_left: float = math.inf
) -> None:
    """Run one stage in a new process group, and kill the group at the time limit.

    Args:
        stage: The stage.
        command: Command that runs a stage, without ``--run NAME``.
        report: Receives the records that the stage prints.
        seconds_left: Seconds left for this stage and all later ones.
    """
    begin = time.monotonic()
    limit = min(seconds_left, stage.seconds)
    was_stopped = threading.Event()
    stage_command = [*command, "--run", stage.name]
    with subprocess.Popen(
        stage_command, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:

        def kill() -> None:
            was_stopped.set()
            os.killpg(process.pid, signal.SIGKILL)

        timer = threading.Timer(limit, kill)
        timer.start()
        try:
            for record in _records(process):
                report.add({"stage": stage.name, **record})
            exit_code = process.wait()
        finally:
            timer.cancel()
            if process.poll() is None:  # an exception, such as KeyboardInterrupt
                os.killpg(process.pid, signal.SIGKILL)
    record = {"stage": stage.name, "what": "stage"}
    if exit_code != 0:
        reason = f"code {exit_code}"
        if was_stopped.is_set():
            reason = f"stopped at its limit of {limit:.0f} s"
        report.add({**record, "value": reason, "passed": False})
    else:
        seconds = time.monotonic() - begin
        report.add({**record, "value": round(seconds, 1), "unit": "s"})


def _records(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    """Yield the JSON records that the process prints; copy other lines to standard error."""
    assert process.stdout is not None
    for line in process.stdout:
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            record = None
        if isinstance(record, dict) and "what" in record and "value" in record:
            yield record
        else:
            print(line, end="", file=sys.stderr)


def run_all(
    stages: Sequence[Stage], command: Sequence[str], report: Report, *, within: float = math.inf
) -> None:
    """Run stages one after another. Skip stages that depend on a failed stage."""
    end = time.monotonic() + within
    for stage in stages:
        seconds_left = end - time.monotonic()
        failed_needs = [name for name in stage.needs if name in report.failed]
        if failed_needs:
            reason = f"{', '.join(failed_needs)} failed"
        elif seconds_left <= 0:
            reason = "no time left"
        else:
            run_stage(stage, command, report, seconds_left=seconds_left)
            continue
        report.add({"stage": stage.name, "what": "stage", "value": f"skipped: {reason}"})


def chosen_stages(names: str) -> list[Stage]:
    """Return the stages in a comma-separated list of names; all stages if it is empty."""
    stages = {stage.name: stage for stage in STAGES}
    wanted = set(filter(None, names.split(",")))  # An empty text splits into one empty name.
    if not wanted:
        return list(STAGES)
    unknown = wanted - stages.keys()
    if unknown:
        raise SystemExit(
            f"error: unknown stage {', '.join(sorted(unknown))}; use some of {', '.join(stages)}"
        )
    return [stage for name, stage in stages.items() if name in wanted]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    summary, *_ = (__doc__ or "").split("\n", 1)
    parser = argparse.ArgumentParser(description=summary)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to test the script")
    parser.add_argument("--stages", default="", help="comma-separated names; default: all")
    parser.add_argument("--within", type=float, default=math.inf, help="time limit in seconds")
    parser.add_argument(
        "--sizes", default="base,big,tiny", help="model sizes of the stage training"
    )
    parser.add_argument("--model", type=Path, help="model folder for the stages search and files")
    parser.add_argument(
        "--data", type=Path, default=Path("data"),
        help="folder with multi30k/ and tatoeba_en_de/; a training without its files is skipped",
    )  # fmt: skip
    parser.add_argument(
        "--folder", type=Path, help="folder of runs and prepared data; default: temporary"
    )
    parser.add_argument("--output", type=Path, default=Path("build/gpu_report.jsonl"))
    parser.add_argument("--run", help=argparse.SUPPRESS)  # one stage, in this process
    return parser.parse_args(arguments)


def main() -> int:
    """Run the stages and print the table."""
    chosen = parse()
    if chosen.run:
        # cuBLAS reads this at its first product. Without it, sums are not deterministic.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]
        import gpu_stages  # noqa: PLC0415 - imports torch, which only the stages need

        gpu_stages.run(chosen)
        return 0
    stages = chosen_stages(chosen.stages)
    report = Report(chosen.output)
    with TemporaryDirectory() as temporary:
        command = [sys.executable, str(Path(__file__).resolve())]
        command += ["--device", chosen.device, "--data", str(chosen.data)]
        command += ["--folder", str(chosen.folder or temporary)]
        command += ["--sizes", chosen.sizes]
        if chosen.quick:
            command.append("--quick")
        if chosen.model:
            command += ["--model", str(chosen.model)]
        run_all(stages, command, report, within=chosen.within)
    print(f"\n{report.table()}")
    return int(bool(report.failed))


if __name__ == "__main__":
    sys.exit(main())
