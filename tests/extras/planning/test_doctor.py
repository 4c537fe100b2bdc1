from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tomllib
from collections import namedtuple
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from nmt.cli.app import app
from nmt.errors import install_command
from nmt.extras.planning import doctor
from nmt.extras.planning.doctor import Finding
from tests.process import LIMIT

ROOT = Path(__file__).parents[3]
Usage = namedtuple("Usage", "total used free")


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
    monkeypatch.setattr(doctor, "_GPU_DRIVERS", (driver,))
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
