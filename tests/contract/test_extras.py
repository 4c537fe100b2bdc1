"""Each folder of `nmt/extras` can be deleted: the core goes on, and who needs it is told."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXTRAS = sorted(path.name for path in (ROOT / "nmt" / "extras").glob("[a-z]*/"))
HELLO = str(ROOT / "configs" / "hello.yaml")
TEXT = str(ROOT / "configs" / "hello.en")
# A command that each extra is needed for.
_LORA = ["--set", "training.lora={rank: 2}", "--set", "training.init_from=runs/hello"]
NEEDING = {
    "adaptation": ["train", HELLO, *_LORA],
    "analysis": ["evaluate", TEXT, "--reference", TEXT, "--report", "report.html"],
    "cleaning": ["prepare", HELLO, "--set", "prepared_dir=p", "--score-with", "runs/a,runs/b"],
    "comet": ["evaluate", TEXT, "--reference", TEXT, "--metric", "comet"],
    "distillation": ["distill", "runs/hello", TEXT, "-o", "small"],
    "exchange": ["export", "runs/hello", "exported"],
    "inspection": ["inspect", "runs/hello"],
    "planning": ["init", TEXT, TEXT],
    "serving": ["serve", "runs/hello"],
    "tracking": ["train", HELLO, "--set", "training.trackers=[wandb]"],
}
# An editable installation would find in the checkout the folders that a copy lacks.
COPY_ONLY = """
import sys
sys.meta_path[:] = [each for each in sys.meta_path if "editable" not in each.__module__]
"""
NMT = COPY_ONLY + "from nmt.cli import main; main()"
PYTEST = COPY_ONLY + "import pytest; sys.exit(pytest.main(sys.argv[1:]))"
# The tests of the modules that look an extra up. The others cannot name one (import-linter).
TESTED = (
    "checkpoint/test_model_folder.py", "cli/test_app.py", "cli/test_builder.py",
    "cli/test_config.py", "commands", "data/test_corpus.py", "data/test_filters.py",
    "inference/test_engine.py", "inference/test_mbr.py", "metrics/test_metric.py",
)  # fmt: skip


def copy_without(folder: Path, extras: Iterable[str]) -> None:
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(ROOT / "nmt", folder / "nmt", ignore=ignored)
    for name in extras:
        shutil.rmtree(folder / "nmt" / "extras" / name)


def nmt(
    folder: Path, *arguments: str, text: str = "", program: str = NMT, timeout: int = 120
) -> subprocess.CompletedProcess[str]:
    """Run the copy of the package that lies in a folder."""
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder), "HYPOTHESIS_PROFILE": "quick"},
        input=text,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def test_every_extra_has_a_command_that_needs_it() -> None:
    assert sorted(NEEDING) == EXTRAS


@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.long
def test_without_an_extra_its_name_is_told(tmp_path: Path, extra: str) -> None:
    copy_without(tmp_path, [extra])
    needing = nmt(tmp_path, *NEEDING[extra])
    assert needing.returncode == 2, needing.stderr
    assert f"nmt/extras/{extra}" in needing.stderr
    assert "Traceback" not in needing.stderr


@pytest.mark.long
def test_without_any_extra_help_and_the_four_verbs_work(tmp_path: Path) -> None:
    copy_without(tmp_path, EXTRAS)
    usage = nmt(tmp_path, "--help")
    assert (usage.returncode, usage.stderr) == (0, "")
    assert "prepare" in usage.stdout
    config = [HELLO, "--set", "prepared_dir=prepared", "--set", "run_dir=run"]
    dropping = nmt(tmp_path, "prepare", *config, "--set", "filters.markup=drop")
    prepared = nmt(tmp_path, "prepare", *config)
    trained = nmt(tmp_path, "train", *config, "--set", "training.max_steps=3")
    translated = nmt(tmp_path, "translate", "run", text="merci\n\nje suis\n")
    evaluated = nmt(tmp_path, "evaluate", "run")
    assert dropping.returncode == 2
    assert "cannot run. The folder nmt/extras/cleaning is missing" in dropping.stderr
    for run in (prepared, trained, translated, evaluated):
        assert run.returncode == 0, run.stderr
    assert "nmt/extras/cleaning is missing" in prepared.stdout
    page = (tmp_path / "prepared" / "report.html").read_text(encoding="utf-8")
    assert "<dt>Near copies in the training data</dt><dd>not checked " in page  # and not 0
    assert "no misaligned range" not in page
    assert '<code>duplicate</code>: <span class="none">The folder nmt/extras/cleaning' in page
    assert translated.stdout.count("\n") == 3
    assert "BLEU" in evaluated.stdout


@pytest.mark.long
def test_without_any_extra_the_tests_of_the_core_pass(tmp_path: Path) -> None:
    copy_without(tmp_path, EXTRAS)
    for name in ("tests", "configs"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    options = ["-q", "-x", "-m", "not long", "-p", "no:cacheprovider", "-p", "no:xdist"]
    tested = nmt(tmp_path, *options, *(f"tests/{x}" for x in TESTED), program=PYTEST, timeout=600)
    assert tested.returncode == 0, tested.stdout[-4000:]
    assert " passed" in tested.stdout
