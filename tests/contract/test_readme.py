"""The README's commands: those marked are run, the others are checked against the flags."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command
from typer.testing import CliRunner

from nmt.cli.app import app
from tests.commands.preparing import corpus, write_pairs

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")

# The tour for real, but in seconds: on a toy corpus, with a toy model.
SHORTER = {
    "vocab_size: 8000": "vocab_size: 400",
    "{preset: tiny}": "{preset: tiny, model_dim: 32, ff_dim: 64, num_heads: 2}",
    "max_minutes: 30": "max_steps: 6",
}


@dataclass(frozen=True)
class Block:
    """One fenced block of the README and the mark before it."""

    mark: str
    language: str
    text: str


def blocks() -> Iterator[Block]:
    pattern = r"(?:<!-- test: ([^>]*?) -->\n)?```(\w*)\n(.*?)```"
    for found in re.finditer(pattern, README, re.DOTALL):
        yield Block(found[1] or "", found[2], found[3])


def commands() -> list[str]:
    """Every line that calls `nmt`, pipes taken apart."""
    lines = [line for b in blocks() if b.language == "sh" for line in b.text.splitlines()]
    return [part.strip() for line in lines for part in line.split("|") if "nmt " in part]


def test_the_tour_works_as_it_is_written(tmp_path: Path) -> None:
    for name, count in {"train": 200, "valid": 8, "test": 8}.items():
        write_pairs(tmp_path, *corpus(count), name)
    folder = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    for block in blocks():
        if block.mark.startswith("file "):
            text = block.text
            for long, short in SHORTER.items():
                assert long in text
                text = text.replace(long, short)
            (tmp_path / block.mark.removeprefix("file ")).write_text(text, encoding="utf-8")
        elif block.mark == "run":
            shell = ["bash", "-euo", "pipefail"] if block.language == "sh" else [sys.executable]
            command = [*shell, "-c", block.text]
            result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True)
            assert result.returncode == 0, f"{block.text}\n{result.stderr.decode()}"
    hypothesis = (tmp_path / "test.hypothesis").read_bytes()
    assert hypothesis.count(b"\n") == (tmp_path / "test.de").read_bytes().count(b"\n")


@pytest.mark.parametrize(("system", "code"), [("Online-A", 0), ("ICL", 6)])
def test_the_steps_of_the_ci_job_pass_and_fail(
    shared_data: Path, tmp_path: Path, system: str, code: int
) -> None:
    """On 60 lines of WMT21: the baseline passes itself, a worse system does not."""
    (job,) = (yaml.safe_load(b.text)["jobs"] for b in blocks() if b.mark == "actions")
    (tmp_path / "wmt").mkdir()
    parts = {"reference": "ref.A", "base": "hyp.Online-A", "system": f"hyp.{system}"}
    for name, part in parts.items():
        path = shared_data / "wmt_sample" / f"newstest2021.en-de.{part}.de"
        lines = path.read_text("utf-8").split("\n")[:60]
        (tmp_path / "wmt" / f"{name}.de").write_text("\n".join(lines) + "\n", encoding="utf-8")
    keep = ["wmt/base.de", "wmt/reference.de", "--report", "wmt/baseline.json"]
    summary = tmp_path / "summary.md"
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "GITHUB_STEP_SUMMARY": str(summary),
    }
    place: dict[str, Any] = {
        "cwd": tmp_path, "env": environment, "check": False, "capture_output": True,
    }  # fmt: skip
    assert subprocess.run(["nmt", "evaluate", *keep], **place).returncode == 0
    steps = [step["run"] for step in job["quality"]["steps"] if "run" in step]
    assert steps[0] == "pip install ."
    gate, *after = (subprocess.run(["bash", "-ec", step], **place) for step in steps[1:])
    assert gate.returncode == code, gate.stderr
    assert [step.returncode for step in after] == [0]
    assert ("gates missed" if code else "all gates met") in summary.read_text("utf-8")
    assert (b"<failure" in (tmp_path / "gate.xml").read_bytes()) == bool(code)


@pytest.mark.parametrize("line", commands())
def test_every_command_uses_flags_that_exist(line: str) -> None:
    words = shlex.split(re.sub(r"[<>]\s*\S+", "", line))
    words = words[words.index("nmt") + 1 :]
    command: Any = get_command(app)
    context = None
    while hasattr(command, "commands"):
        context = command.make_context("nmt", [], parent=context, resilient_parsing=True)
        command = command.get_command(context, words.pop(0))
    # Raises for a flag or an argument that does not exist, or a value of a wrong type.
    command.make_context(command.name, words, parent=context)


def test_the_error_shown_is_the_error_met(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = next(block for block in blocks() if block.mark == "file mine.yaml")
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(mine.text + "  lr: 0.1\n", encoding="utf-8")
    for name in re.findall(r"\w+\.(?:de|en)\b", mine.text):
        Path(name).touch()
    arguments = ["config", "show", "mine.yaml", "--set", "batch.max_tokens=big"]
    result = CliRunner().invoke(app, arguments)
    assert result.stderr in {block.text for block in blocks()}


def test_every_make_target_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"(?:^|`)make ([a-z-]+)", README, re.MULTILINE):
        assert f"\n{target}:" in makefile


def test_every_file_named_exists() -> None:
    for name in re.findall(r"\]\(([^)#:]+)\)|`(configs/\S+?\.yaml)`", README):
        assert (ROOT / "".join(name)).exists()
    for path in (ROOT / "configs").glob("*.yaml"):
        assert f"`{path.name}`" in README


def test_every_exit_code_is_documented() -> None:
    from nmt.errors import NmtError

    codes = {kind.exit_code for kind in NmtError.__subclasses__()}
    for code in {0, 1, *codes, 130, 141, 143}:
        assert re.search(rf"^\|[^|]*\b{code}\b[^|]*\|", README, re.MULTILINE)
