"""The GPU report keeps its results, stops at failed gates, and works on a CPU."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_report.py"
REPORT = runpy.run_path(str(SCRIPT))
Report, Stage = REPORT["Report"], REPORT["Stage"]
FAKE = """
import json, sys, time
name = sys.argv[-1]
print("some talk")
if name == "hangs":
    time.sleep(60)
print(json.dumps({"what": "error", "value": 0.5, "target": "< 1", "passed": name != "fails"}))
sys.exit(name == "crashes")
"""


def run_fakes(tmp_path: Path, *stages: Any) -> tuple[Any, dict[str, list[Any]]]:
    report = Report(tmp_path / "report.jsonl")
    REPORT["run_all"](stages, [sys.executable, "-c", FAKE], report)
    found: dict[str, list[Any]] = {}
    for line in (tmp_path / "report.jsonl").read_text().splitlines():
        record = json.loads(line)
        found.setdefault(record["stage"], []).append(record["value"])
    return report, found


def test_a_failed_gate_stops_only_what_depends_on_it(tmp_path: Path) -> None:
    stages = (Stage("fails", 30), Stage("speed", 30, ("fails",)), Stage("others", 30, ("speed",)))
    report, found = run_fakes(tmp_path, *stages)
    assert report.failed == {"fails"}
    assert found["speed"] == ["skipped: fails failed"]
    assert found["others"][0] == 0.5
    assert "| fails | error | 0.5 | < 1 |  | FAILED |" in report.table()


def test_a_stage_that_crashes_or_hangs_fails_and_unknown_stages_are_refused(tmp_path: Path) -> None:
    report, found = run_fakes(tmp_path, Stage("crashes", 30), Stage("hangs", 1))
    assert report.failed == {"crashes", "hangs"}
    assert found == {"crashes": [0.5, "code 1"], "hangs": ["stopped at its limit of 1 s"]}
    with pytest.raises(SystemExit, match="unknown stage speed; use some of machine, gradients"):
        REPORT["chosen_stages"]("speed,machine")


@pytest.mark.long
def test_stages_work_on_a_cpu(tmp_path: Path) -> None:
    output = tmp_path / "report.jsonl"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--device", "cpu", "--quick", "--output", str(output),
         "--folder", str(tmp_path), "--data", str(tmp_path), "--stages", "gradients,decoding"],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    records = [json.loads(line) for line in output.read_text().splitlines()]
    assert all(record["passed"] for record in records if record.get("passed") is not None)
    found = {f"{record['stage']}: {record['what']}": record["value"] for record in records}
    ended = {name.split(":")[0] for name in found if name.endswith(": stage")}
    assert ended == {"gradients", "decoding"}
    assert not any("skipped" in str(value) for value in found.values())
    assert found["gradients: tiny, float32, gradients together"] < 1e-5
    assert found["decoding: base, beam 5, batch 4: tokens/s"] > 0
