"""``nmt export`` as a user and a script see it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from nmt.cli.app import app
from tests.translation.conftest import sentences
from tests.translation.exported import (
    STEP,
    needs_ctranslate2,
    run_config,
    train_tokenizers,
    write_run,
)

LINES = "".join(f"{line}\n" for line in sentences(6, seed=4, longest=8))
FLAGS = ("--device", "cpu", "--threads", "1", "--no-guard")


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    write_run(folder / "run", train_tokenizers(folder / "tokenizer"), run_config({}))
    return folder / "run"


def nmt(*arguments: object, text: str = "") -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)], input=text)


def done(*arguments: object, text: str = "") -> str:
    """Standard output of a call that succeeds."""
    result = nmt(*arguments, text=text)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def refused(code: int, message: str, *arguments: object) -> None:
    """The command fails with ``code`` and a message, prints no data and writes nothing."""
    result = nmt("export", *arguments)
    assert (result.exit_code, result.stdout) == (code, ""), result.stderr
    assert message in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "target", ["safetensors", pytest.param("ctranslate2", marks=needs_ctranslate2)]
)
def test_the_folder_translates_and_is_evaluated(run_dir: Path, tmp_path: Path, target: str) -> None:
    output = tmp_path / "a b"
    assert done("export", run_dir, "--to", target, "-o", output) == f"{output}\n"

    expected = done("translate", run_dir, *FLAGS, text=LINES)
    assert done("translate", output, *FLAGS, text=LINES) == expected
    flags = ("--set", "decoding.max_length_offset=2", "--beam-size", 1, "--n-best", 1, *FLAGS)
    assert done("translate", output, *flags, text=LINES) == (
        done("translate", run_dir, *flags, text=LINES)
    )
    source = tmp_path / "in.de"
    source.write_text(LINES, "utf-8")
    files = ("--source", source, "--reference", source)
    scores = [
        json.loads(done("evaluate", folder, *files, *FLAGS, "--json"))["systems"][0]["scores"]
        for folder in (run_dir, output)
    ]
    assert scores[0] == scores[1]


@needs_ctranslate2
def test_the_result_is_printed_as_json(run_dir: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    arguments = ("--to", "ctranslate2", "--quantization", "int8", "--output", output, "--json")
    found: dict[str, Any] = json.loads(done("export", run_dir, *arguments))

    size = (output / "model.bin").stat().st_size
    assert found == {
        "output": str(output), "to": "ctranslate2", "quantization": "int8", "step": STEP,
        "size_bytes": size,
    }  # fmt: skip


def test_mistakes_are_explained(run_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    refused(2, "--to", run_dir, "-o", out)
    refused(2, "--output", run_dir, "--to", "safetensors")
    refused(2, "'onnx'", run_dir, "--to", "onnx", "-o", out)
    refused(2, "'int3'", run_dir, "--to", "ctranslate2", "--quantization", "int3", "-o", out)
    refused(2, "is for --to ctranslate2", run_dir, "--to", "safetensors", "--quantization",
            "int8", "-o", out)  # fmt: skip
    refused(2, "checkpoint is 'newest'", run_dir, "--to", "safetensors", "--checkpoint", "newest",
            "-o", out)  # fmt: skip
    refused(4, "no checkpoint step-00000007", run_dir, "--to", "safetensors", "--checkpoint",
            "step-7", "-o", out)  # fmt: skip
    refused(4, "is not a folder", tmp_path / "nowhere", "--to", "safetensors", "-o", out)
    assert not any(tmp_path.iterdir())


def test_a_folder_that_holds_something_is_not_overwritten(run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine", "utf-8")

    refused(2, f"{tmp_path} is there already", run_dir, "--to", "safetensors", "-o", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_help_does_not_load_torch() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from nmt.cli.app import app;"
        "result = CliRunner().invoke(app, ['export', '--help']);"
        "sys.exit(result.exit_code or 'torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@needs_ctranslate2
def test_translating_an_export_does_not_load_torch(run_dir: Path, tmp_path: Path) -> None:
    done("export", run_dir, "--to", "ctranslate2", "-o", tmp_path / "out")
    code = (
        "import sys; from typer.testing import CliRunner; from nmt.cli.app import app;"
        f"result = CliRunner().invoke(app, ['translate', {str(tmp_path / 'out')!r}], 'Hund');"
        "sys.exit(result.exit_code or 'torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
