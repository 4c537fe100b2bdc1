from __future__ import annotations

import subprocess
import sys

import pytest

import nmt
from tests.process import LIMIT


def test_the_public_names_are_these() -> None:
    assert nmt.__all__ == [
        "AugmentOptions", "AverageOptions", "CheckpointError", "ConfigError", "DataError",
        "DeviceError", "DistillOptions", "DivergedError", "EvaluateOptions", "ExportOptions",
        "GateError", "Glossary", "ImportOptions", "InitOptions", "InspectOptions", "NmtError",
        "PrepareOptions", "PullOptions", "PushOptions", "Request", "Result", "Score",
        "ScoreOptions", "ServeOptions",
        "TokenizerError", "TrainOptions", "TranslateOptions", "Translator", "__version__",
        "augment", "average", "distill", "doctor", "evaluate", "export", "import_model", "init",
        "inspect", "load_config", "prepare", "pull", "push", "score", "serve", "train", "translate",
    ]  # fmt: skip
    assert set(nmt.__all__) <= set(dir(nmt))


@pytest.mark.parametrize("name", nmt.__all__)
def test_every_public_name_loads_and_explains_itself(name: str) -> None:
    assert getattr(nmt, name).__doc__


def test_other_names_are_refused_as_python_does() -> None:
    """And with the nearest name, as a wrong command of the command line."""
    with pytest.raises(AttributeError, match=r"has no attribute 'tranlate'\. Did you mean tran"):
        nmt.tranlate  # noqa: B018


@pytest.mark.parametrize(
    "module",
    ["nmt", "nmt.cli", "nmt.commands.prepare", "nmt.commands.translate", "nmt.report.page"],
)
def test_what_few_commands_need_is_not_loaded_by(module: str) -> None:
    heavy = "{'torch', 'datasets', 'jinja2', 'lxml', 'sacrebleu'}"
    code = f"import sys, {module}; print(sorted({heavy} & {{*sys.modules}}))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, timeout=LIMIT
    )
    assert result.stdout.decode().strip() == "[]"
