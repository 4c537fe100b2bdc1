"""Neural machine translation: two text files in, a translator out.

Public names load on first use: `nmt.NmtError`, for example, does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nmt.config.flag import answering
from nmt.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    DeviceError,
    DivergedError,
    GateError,
    NmtError,
    TokenizerError,
    did_you_mean,
)
from nmt.registry import built_in, load_attribute
from nmt.version import __version__

if TYPE_CHECKING:
    from nmt.commands.augment import augment
    from nmt.commands.average import average
    from nmt.commands.config import load_config
    from nmt.commands.evaluate import evaluate
    from nmt.commands.options import (
        AugmentOptions,
        AverageOptions,
        EvaluateOptions,
        PrepareOptions,
        ScoreOptions,
        TrainOptions,
        TranslateOptions,
    )
    from nmt.commands.prepare import prepare
    from nmt.commands.score import score
    from nmt.commands.train import train
    from nmt.commands.translate import translate
    from nmt.extras.distillation.distill import distill
    from nmt.extras.distillation.options import DistillOptions
    from nmt.extras.exchange.export import export
    from nmt.extras.exchange.hub import import_model, pull, push
    from nmt.extras.exchange.options import ExportOptions, ImportOptions, PullOptions, PushOptions
    from nmt.extras.inspection.command import inspect
    from nmt.extras.inspection.options import InspectOptions
    from nmt.extras.planning.doctor import doctor
    from nmt.extras.planning.init import init
    from nmt.extras.planning.options import InitOptions
    from nmt.extras.serving.options import ServeOptions, serve
    from nmt.inference.glossary import Glossary
    from nmt.inference.request import Request, Result
    from nmt.inference.translator import Translator
    from nmt.metrics.metric import Score

__all__ = [
    "AugmentOptions", "AverageOptions", "CheckpointError", "ConfigError", "DataError",
    "DeviceError", "DistillOptions", "DivergedError", "EvaluateOptions", "ExportOptions",
    "GateError", "Glossary", "ImportOptions", "InitOptions", "InspectOptions", "NmtError",
    "PrepareOptions", "PullOptions", "PushOptions", "Request", "Result", "Score", "ScoreOptions",
    "ServeOptions", "TokenizerError", "TrainOptions", "TranslateOptions", "Translator",
    "__version__", "augment", "average", "distill", "doctor", "evaluate", "export", "import_model",
    "init", "inspect", "load_config", "prepare", "pull", "push", "score", "serve", "train",
    "translate",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in __all__:
        hint = did_you_mean(name, __all__) or " nmt.Translator.load(FOLDER) loads a model."
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}.{hint}")
    value = load_attribute(built_in("public name")[name])
    if name.islower():
        value = answering(value)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
