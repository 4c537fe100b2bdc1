"""Neural machine translation: two text files in, a translator out.

The public names below load on first use, so that importing one does not import torch for another.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any

from nmt.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    DeviceError,
    DivergedError,
    GateError,
    NmtError,
    TokenizerError,
    shell_command,
)
from nmt.version import __version__

if TYPE_CHECKING:
    from nmt.commands.augment import augment
    from nmt.commands.augment_options import AugmentOptions
    from nmt.commands.average import average
    from nmt.commands.average_options import AverageOptions
    from nmt.commands.evaluate import evaluate
    from nmt.commands.evaluate_options import EvaluateOptions
    from nmt.commands.load_config import load_config
    from nmt.commands.prepare import prepare
    from nmt.commands.prepare_options import PrepareOptions
    from nmt.commands.score import score
    from nmt.commands.score_options import ScoreOptions
    from nmt.commands.train import train
    from nmt.commands.train_options import TrainOptions
    from nmt.commands.translate import translate
    from nmt.commands.translate_options import TranslateOptions
    from nmt.extras.exchange.export import export
    from nmt.extras.exchange.hub import pull, push
    from nmt.extras.exchange.import_model import import_model
    from nmt.extras.exchange.options import ExportOptions, ImportOptions, PullOptions, PushOptions
    from nmt.extras.inspection.command import inspect
    from nmt.extras.inspection.options import InspectOptions
    from nmt.extras.planning.doctor import doctor
    from nmt.extras.planning.init import init
    from nmt.extras.planning.options import InitOptions
    from nmt.extras.serving.command import serve
    from nmt.extras.serving.options import ServeOptions
    from nmt.inference.request import Request
    from nmt.inference.result import Result
    from nmt.inference.translator import Translator
    from nmt.metrics.metric import Score

__all__ = [
    "AugmentOptions",
    "AverageOptions",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "DeviceError",
    "DivergedError",
    "EvaluateOptions",
    "ExportOptions",
    "GateError",
    "ImportOptions",
    "InitOptions",
    "InspectOptions",
    "NmtError",
    "PrepareOptions",
    "PullOptions",
    "PushOptions",
    "Request",
    "Result",
    "Score",
    "ScoreOptions",
    "ServeOptions",
    "TokenizerError",
    "TrainOptions",
    "TranslateOptions",
    "Translator",
    "__version__",
    "augment",
    "average",
    "doctor",
    "evaluate",
    "export",
    "import_model",
    "init",
    "inspect",
    "load_config",
    "prepare",
    "pull",
    "push",
    "score",
    "serve",
    "train",
    "translate",
]

_HOMES = {
    "AugmentOptions": "nmt.commands.augment_options",
    "InitOptions": "nmt.extras.planning.options",
    "Score": "nmt.metrics.metric",
    "EvaluateOptions": "nmt.commands.evaluate_options",
    "PrepareOptions": "nmt.commands.prepare_options",
    "ScoreOptions": "nmt.commands.score_options",
    "TrainOptions": "nmt.commands.train_options",
    "doctor": "nmt.extras.planning.doctor",
    "export": "nmt.extras.exchange.export",
    "import_model": "nmt.extras.exchange.import_model",
    "init": "nmt.extras.planning.init",
    "InspectOptions": "nmt.extras.inspection.options",
    "inspect": "nmt.extras.inspection.command",
    "serve": "nmt.extras.serving.command",
    "ServeOptions": "nmt.extras.serving.options",
    "Request": "nmt.inference.request",
    "Result": "nmt.inference.result",
    "TranslateOptions": "nmt.commands.translate_options",
    "Translator": "nmt.inference.translator",
    "push": "nmt.extras.exchange.hub",
    "AverageOptions": "nmt.commands.average_options",
    "ExportOptions": "nmt.extras.exchange.options",
    "ImportOptions": "nmt.extras.exchange.options",
    "PullOptions": "nmt.extras.exchange.options",
    "PushOptions": "nmt.extras.exchange.options",
    "load_config": "nmt.commands.load_config",
    "pull": "nmt.extras.exchange.hub",
}


if sys.argv[:1] == ["-m"] and sys.orig_argv.count("-m"):  # Python looks for a module to run
    _name = sys.orig_argv[sys.orig_argv.index("-m") + 1]
    _command = _name.removeprefix("nmt.")
    if _command != _name and "." not in _command and not PathFinder.find_spec(_name, __path__):
        _fix = f"Type: python -m {shell_command(_command, help=True)}"
        sys.exit(f"error: nmt has no module {_command}.\n  fix: {_fix}")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, f"nmt.commands.{name}")), name)


def __dir__() -> list[str]:
    return sorted(__all__)
