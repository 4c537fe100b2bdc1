"""What `nmt export --to NAME` can write: one target for each name.

A new target is a class in a file of its own and an entry in `EXPORT_TARGETS`.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from nmt.checkpoint.files import MODEL
from nmt.config.decoding import DecodingConfig
from nmt.config.run import RunConfig
from nmt.errors import ConfigError
from nmt.exchange.ctranslate2 import CTranslate2Target, ShortlistParts

if TYPE_CHECKING:
    from nmt.checkpoint.model_folder import ModelBundle


class ExportTarget(Protocol):
    """Writes the weights of a model in the form of some program."""

    @property
    def weights_name(self) -> str:
        """Name of the file of the weights."""
        ...

    @property
    def dtypes(self) -> Sequence[str]:
        """Types that weights can be written in; the first is taken where none is named."""
        ...

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


EXPORT_TARGETS: dict[str, ExportTarget] = {
    "safetensors": SafetensorsTarget(),
    "ctranslate2": CTranslate2Target(),
}


def find_target(name: str) -> ExportTarget:
    """Return the target of this name.

    Raises:
        ConfigError: There is none.
    """
    if name not in EXPORT_TARGETS:
        raise ConfigError(
            f"There is no export target {name!r}.", fix=f"Use --to {' or '.join(EXPORT_TARGETS)}."
        )
    return EXPORT_TARGETS[name]
