"""Options of `nmt.export`, `nmt.import_model`, `nmt.push` and `nmt.pull`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from nmt.commands.options import Checkpoint, Json, Model, OutputFolder
from nmt.config.flag import Flag, Options

_HubName = Annotated[str, Flag("Name on the hub.", argument=True, metavar="hub:ORG/NAME")]


@dataclass(frozen=True, kw_only=True)
class ExportOptions(Options):
    """Which model to write, and for which program.

    Args:
        to: safetensors, for nmt; or ctranslate2, which translates faster on CPUs.
        quantization: Weights: float32; ctranslate2 also has int8 (smallest, fastest on CPUs) and
            float16.
    """

    model: Model
    to: Annotated[str, Flag(metavar="TARGET")]
    output: OutputFolder
    quantization: Annotated[str | None, Flag(shown="float32")] = None
    checkpoint: Checkpoint = "best"
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class ImportOptions(Options):
    """Which model of another system to read.

    Args:
        source: Folder or .zip of MarianMT (Hugging Face) or OPUS-MT, or an .npz of Marian.
        languages: Pair, as en-de.
        positions: sinusoidal-halves, as Marian, or sinusoidal-concatenated, as Hugging Face
            computes.
    """

    source: Annotated[Path, Flag(argument=True)]
    output: OutputFolder
    languages: Annotated[str | None, Flag(short="l", metavar="PAIR", shown="in the files")] = None
    positions: Annotated[str | None, Flag(shown="the system's")] = None
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class PushOptions(Options):
    """Which model folder to upload, and what its card says.

    Args:
        folder: Exported, averaged or imported model.
        license: License, as the hub calls it.
        scores: Scores that `nmt evaluate` printed as JSON, for the model's page. Repeatable.
        private: Make a new repository private.
        dry_run: Print the card and the files, and send nothing.
    """

    folder: Annotated[Path, Flag(argument=True)]
    name: _HubName
    license: Annotated[str | None, Flag(metavar="NAME")] = None
    scores: tuple[Path, ...] = ()
    private: bool = False
    dry_run: bool = False
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class PullOptions(Options):
    """Which model to download."""

    name: _HubName
    output: OutputFolder
    json: Json = False
