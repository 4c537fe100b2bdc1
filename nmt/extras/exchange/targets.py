"""Programs that a model can be exported for.

A new target of `nmt export` is a class in a file of its own and an entry in `EXPORT_TARGETS`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from nmt.checkpoint.files import MODEL
from nmt.checkpoint.model_folder import ModelBundle
from nmt.config.decoding import DecodingConfig
from nmt.config.run import RunConfig
from nmt.registry import Registry

if TYPE_CHECKING:
    from nmt.inference.shortlist_file import ShortlistParts


class ExportTarget(Protocol):
    """Writes the weights of a model in the form of some program."""

    weights_name: str  # of the file of the weights
    dtypes: Sequence[str]  # of the weights; the first is taken where none is named

    def check(self, config: RunConfig) -> None:
        """Find out before anything is loaded whether the model can be written.

        Raises:
            ConfigError: It cannot.
        """
        ...

    def decoding(self, options: DecodingConfig) -> DecodingConfig:
        """Return the part of ``options`` that the program can follow."""
        ...

    def write(
        self, folder: Path, bundle: ModelBundle, dtype: str, shortlist: ShortlistParts | None
    ) -> None:
        """Write the weights, and what else the program reads, into ``folder``.

        Configuration, tokenizer, model card and manifest are written by the caller.

        Args:
            folder: Where to write; it is there.
            bundle: The model.
            dtype: One of `dtypes`.
            shortlist: Which target tokens a source token may become, if the model has such lists.
        """
        ...


class SafetensorsTarget:
    """Exports for this program: the weights as they were trained. See `ExportTarget`."""

    weights_name = MODEL
    dtypes: Sequence[str] = ("float32",)

    def check(self, config: RunConfig) -> None:
        """Every model can be written."""

    def decoding(self, options: DecodingConfig) -> DecodingConfig:
        """Return all options."""
        return options

    def write(
        self,
        folder: Path,
        bundle: ModelBundle,
        dtype: str,  # noqa: ARG002 - there is one
        shortlist: ShortlistParts | None,  # noqa: ARG002 - its file is copied
    ) -> None:
        """Copy the file of the weights."""
        shutil.copyfile(bundle.folder / MODEL, folder / MODEL)


EXPORT_TARGETS: Registry[Callable[[], ExportTarget]] = Registry(
    "export target",
    {
        "safetensors": "nmt.extras.exchange.targets:SafetensorsTarget",
        "ctranslate2": "nmt.extras.exchange.ctranslate2:CTranslate2Target",
    },
)
