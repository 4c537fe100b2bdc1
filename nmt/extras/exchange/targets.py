"""Programs that a model can be exported for.

A new target of `nmt export` is a class in a file of its own and an entry in `EXPORT_TARGETS`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nmt.checkpoint.files import MODEL
from nmt.checkpoint.model_folder import ModelBundle
from nmt.config.model import DecodingConfig
from nmt.config.run import RunConfig
from nmt.registry import Registry

if TYPE_CHECKING:
    from nmt.inference.engine import ShortlistParts


class ExportTarget:
    """Writes the weights of a model in the form of a program: here ours, as they were trained.

    Configuration, tokenizer, model card and manifest are written by the caller.
    """

    weights_name: str = MODEL  # of the file of the weights
    dtypes: Sequence[str] = ("float32",)  # of the weights; the first is taken where none is named

    def check(self, config: RunConfig) -> None:
        """Find out before anything is loaded whether the model can be written.

        Raises:
            ConfigError: It cannot.
        """

    def decoding(self, options: DecodingConfig) -> DecodingConfig:
        """Return the part of ``options`` that the program can follow."""
        return options

    def write(
        self,
        folder: Path,
        bundle: ModelBundle,
        dtype: str,  # noqa: ARG002 - there is one
        shortlist: ShortlistParts | None,  # noqa: ARG002 - its file is copied
    ) -> None:
        """Write the weights, and what else the program reads, into ``folder``.

        Args:
            folder: Where to write; it is there.
            bundle: The model.
            dtype: One of `dtypes`.
            shortlist: Which target tokens a source token may become, if the model has such lists.
        """
        shutil.copyfile(bundle.folder / MODEL, folder / MODEL)


EXPORT_TARGETS: Registry[Callable[[], ExportTarget]] = Registry(
    "export target",
    {
        "safetensors": "nmt.extras.exchange.targets:ExportTarget",
        "ctranslate2": "nmt.extras.exchange.ctranslate2:CTranslate2Target",
    },
)
