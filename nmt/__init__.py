"""Neural machine translation: two text files in, a translator out.

The public names below load on first use, so that importing one does not import torch for another.
"""

from __future__ import annotations

from importlib import import_module
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
)
from nmt.version import __version__

if TYPE_CHECKING:
    from nmt.data.size import load_config
    from nmt.metrics.metric import Score
    from nmt.recipes.doctor import doctor
    from nmt.recipes.evaluate import evaluate
    from nmt.recipes.export import average, export
    from nmt.recipes.import_model import import_model
    from nmt.recipes.init import init
    from nmt.recipes.inspect import inspect
    from nmt.recipes.prepare import prepare
    from nmt.recipes.publish import publish, pull
    from nmt.recipes.score import score
    from nmt.recipes.serve import serve
    from nmt.recipes.train import train
    from nmt.recipes.translate import translate
    from nmt.translation.result import TranslationResult
    from nmt.translation.translator import Translator

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DataError",
    "DeviceError",
    "DivergedError",
    "GateError",
    "NmtError",
    "Score",
    "TokenizerError",
    "TranslationResult",
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
    "publish",
    "pull",
    "score",
    "serve",
    "train",
    "translate",
]

_HOMES = {
    "Score": "nmt.metrics.metric",
    "TranslationResult": "nmt.translation.result",
    "Translator": "nmt.translation.translator",
    "average": "nmt.recipes.export",
    "load_config": "nmt.data.size",
    "pull": "nmt.recipes.publish",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, f"nmt.recipes.{name}")), name)


def __dir__() -> list[str]:
    return sorted(__all__)
