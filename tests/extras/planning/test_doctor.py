from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tomllib
from collections import namedtuple
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from nmt.cli.app import app
from nmt.errors import install_command
from nmt.extras.planning import doctor
from nmt.extras.planning.doctor import Finding
from nmt.inference import engine
from tests.process import LIMIT

ROOT = Path(__file__).parents[3]
Usage = namedtuple("Usage", "total used free")


@pytest.mark.long
def test_a_healthy_machine_trains_and_translates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)  # of whoever runs the tests
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0, result.stdout
    lines = result.stdout.splitlines()
    names = [line.split()[1] for line in lines]
    assert names == ["nmt", "Python", "torch", "device", "instructions", "threads", "load",
                     *doctor._EXTRAS, "disk", "self-test"]  # fmt: skip
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert {*doctor._EXTRAS, "dev"} == set(project["optional-dependencies"])
    assert "trained and translated two sentences" in lines[-1]


def missing(name: str) -> str:
    raise PackageNotFoundError(name)


def test_each_problem_has_a_fix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    driver = tmp_path / "nvidiactl"
    driver.touch()
    monkeypatch.setattr(engine, "GPU_DRIVERS", (driver,))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "NO AVX")
    monkeypatch.setattr(doctor, "usable_cores", lambda: 999)
    monkeypatch.setitem(os.environ, "OMP_NUM_THREADS", "1")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(9, 8, 1))
    monkeypatch.setattr(doctor, "version", missing)
    monkeypatch.setattr(os, "getloadavg", lambda: (999.0, 0.0, 0.0))
    monkeypatch.setattr(doctor, "_self_test", lambda: Finding("self-test", "left out"))
    findings = {finding.name: finding for finding in doctor.doctor().findings}
    assert "nvidia-smi" in findings["device"].fix
    assert "AVX2" in findings["instructions"].fix
    assert findings["threads"].fix == "unset OMP_NUM_THREADS"
    assert findings["disk"].fix.startswith("Delete files")
    monkeypatch.setattr(doctor, "usable_cores", lambda: 1)  # which OMP_NUM_THREADS may use
    findings_of_one_core = {finding.name: finding for finding in doctor.doctor().findings}
    assert findings_of_one_core["threads"].fix == ""
    for extra in doctor._EXTRAS:
        assert install_command(extra) in findings[extra].found
        assert str(findings[extra]).startswith(f"--  {extra}")
    assert str(findings["load"]).startswith("--  load          load average 999.0 on")
    assert str(findings["disk"]).splitlines()[1].startswith("    fix: Delete files")


# A machine at the limits of what is no problem, and one change after the other past each limit.
AT_THE_LIMITS: dict[str, Any] = {
    "load": 2.0,
    "free": 2 << 30,
    "threads": 3,
    "machine": "x86_64",
    "flag": "AVX2",
}


@pytest.mark.parametrize(
    ("change", "name", "is_reported"),
    [
        ({}, "load", False),
        ({"load": 2.1}, "load", True),
        ({}, "disk", False),
        ({"free": (2 << 30) - 1}, "disk", True),
        ({}, "threads", False),
        ({"threads": 2}, "threads", True),
        ({"threads": 2, "OMP_NUM_THREADS": ""}, "threads", False),
        ({}, "instructions", False),
        ({"flag": "NO AVX"}, "instructions", True),
        ({"flag": "DEFAULT"}, "instructions", True),
        ({"flag": "DEFAULT", "machine": "aarch64"}, "instructions", False),
        ({}, "device", False),
        ({"has_driver": True}, "device", True),
    ],
)
def test_a_finding_is_reported_past_its_limit(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    change: dict[str, Any],
    name: str,
    is_reported: bool,
) -> None:
    given = AT_THE_LIMITS | change
    monkeypatch.setattr(engine, "GPU_DRIVERS", (tmp_path,) if "has_driver" in given else ())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: given["flag"])
    monkeypatch.setattr(torch, "get_num_threads", lambda: given["threads"])
    monkeypatch.setattr(platform, "machine", lambda: given["machine"])
    monkeypatch.setattr(doctor, "usable_cores", lambda: 3)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "getloadavg", lambda: (given["load"], 99.0, 99.0))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1 << 50, 1 << 50, given["free"]))
    monkeypatch.setenv("OMP_NUM_THREADS", given.get("OMP_NUM_THREADS", "2"))
    monkeypatch.setattr(doctor, "_self_test", lambda: Finding("self-test", "left out"))
    report = doctor.doctor()
    (found,) = (finding for finding in report.findings if finding.name == name)
    assert str(found).startswith("ok") == (not is_reported)
    is_problem = is_reported and name != "load"  # a busy machine is only slower
    assert (report.failure is not None) == is_problem
    assert [asdict(finding) for finding in report.findings] == report.as_dict()["findings"]


def test_a_self_test_that_fails_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("illegal instruction")

    monkeypatch.setattr(doctor, "fit", fail)
    result = CliRunner().invoke(app, ["doctor", "-v"])
    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert "!!  self-test     RuntimeError: illegal instruction" in result.stdout


def test_wrong_translations_of_the_self_test_are_a_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [SimpleNamespace(text="a cat"), SimpleNamespace(text="")]
    model = SimpleNamespace(translate=lambda _: found, engine=SimpleNamespace(name="torch"))
    monkeypatch.setattr(doctor, "fit", lambda _: None)
    monkeypatch.setattr("nmt.inference.translator.Translator.load", lambda _: model)
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 1
    assert "!!  self-test     wrong translations: ['a cat', '']" in result.stdout


def test_completion_is_installed_and_completes_commands(tmp_path: Path) -> None:
    nmt = Path(sys.executable).with_name("nmt")
    (home := tmp_path / "home").mkdir()
    own = {**os.environ, "HOME": str(home)}
    # The name of the process above decides for which shell.
    command = ["bash", "-c", f"'{nmt}' --install-completion; exit $?"]
    result = subprocess.run(
        command, env=own, capture_output=True, text=True, check=False, timeout=LIMIT
    )
    assert result.returncode == 0, result.stderr
    script = home / ".bash_completions" / "nmt.sh"
    assert f"bash completion installed in {script}" in result.stdout
    assert script.is_file()
    # The script itself, as Tab would call it.
    tab = "COMP_WORDS=(nmt tra); COMP_CWORD=1; _nmt_completion nmt; echo ${COMPREPLY[@]}"
    command = ["bash", "-c", f"PATH='{nmt.parent}':$PATH; . '{home / '.bashrc'}'; {tab}"]
    shown = subprocess.run(
        command, env=own, capture_output=True, text=True, check=True, timeout=LIMIT
    )
    assert sorted(shown.stdout.split()) == ["train", "translate"]
