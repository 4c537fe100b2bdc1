"""Without `datasets`, and what comes with it, everything but data sets of the hub works."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.test_documents import SHORTER, write_corpus

# As if the packages were not installed; then one command after the other, in one process.
WITHOUT = """
import shlex, sys
for name in ("datasets", "pyarrow", "pandas"):
    sys.modules[name] = None
from nmt.cli.app import app
for line in sys.argv[1:]:
    print(f"$ {line}", flush=True)
    try:
        app(shlex.split(line), prog_name="nmt")
    except SystemExit as done:
        if done.code:
            raise
"""
SETTINGS = " ".join(f"--set {key}={value or 'null'}" for key, value in SHORTER.items())


def nmt(folder: Path, *lines: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [sys.executable, "-c", WITHOUT, *lines],
        cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


@pytest.mark.long
def test_without_datasets_the_main_commands_work(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    run = "runs/de-en"
    done = nmt(
        tmp_path,
        "init train.de train.en",
        f"train de-en/config.yaml {SETTINGS}",
        f"translate {run} test.de -o test.out --no-guard",
        f"evaluate {run}",
        f"score {run} --source test.de --target test.en",
        f"export {run} -o exported",
        f"inspect {run} --source Hund -o page.html",
        f"augment test.de --model {run} -o more --forward --force",
        f"serve {run} --check",
        "evaluate test.out --reference test.en",
        "config check de-en/config.yaml",
        "help guide",
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr
    assert done.stdout.count("$ ") == 12
    assert (tmp_path / "test.out").read_text(encoding="utf-8").count("\n") == 8


@pytest.mark.parametrize("line", [
    "init hub:someone/texts --languages de-en",
    "prepare hub.yaml",
])  # fmt: skip
def test_a_data_set_of_the_hub_says_what_to_install(tmp_path: Path, line: str) -> None:
    corpus = "{huggingface: someone/texts}"
    text = "name: a\nsource_language: de\ntarget_language: en\ntraining: {max_steps: 1}\n"
    text += f"data: {{train: [{corpus}], valid: {corpus}}}\n"
    (tmp_path / "hub.yaml").write_text(text, encoding="utf-8")
    done = nmt(tmp_path, line)
    assert done.returncode == 2, done.stderr
    assert "Data sets of the Hugging Face Hub need the package datasets" in done.stderr
    assert "fix: pip install datasets" in done.stderr
