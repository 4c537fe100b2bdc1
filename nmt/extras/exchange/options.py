"""Options of `nmt.export`, `nmt.import_model`, `nmt.push` and `nmt.pull`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from nmt.commands.options import Checkpoint, Json, Model, OutputFolder
from nmt.config.flag import Flag, Options

_HubName = Annotated[str, Flag("Name on the hub.", argument=True, metavar="hub:ORG/NAME")]
_TARGETS = "safetensors, for nmt; or ctranslate2, which translates faster on CPUs."
_TYPES = "Weights: float32; ctranslate2 also has int8 (smallest, fastest on CPUs) and float16."
_SOURCE = "Folder or .zip of MarianMT (Hugging Face) or OPUS-MT, or an .npz of Marian."
_POSITIONS = "sinusoidal-halves, as Marian, or sinusoidal-concatenated, as Hugging Face computes."
_SCORES = "Scores that `nmt evaluate` printed as JSON, for the model's page. Repeatable."


@dataclass(frozen=True, kw_only=True)
class ExportOptions(Options):
    """Which model to write, and for which program."""

    model: Model
    to: Annotated[str, Flag(_TARGETS, metavar="TARGET")]
    output: OutputFolder
    quantization: Annotated[str | None, Flag(_TYPES, shown="float32")] = None
    checkpoint: Checkpoint = "best"
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class ImportOptions(Options):
    """Which model of another system to read."""

    source: Annotated[Path, Flag(_SOURCE, argument=True)]
    output: OutputFolder
    languages: Annotated[
        str | None, Flag("Pair, as en-de.", short="l", metavar="PAIR", shown="in the files")
    ] = None
    positions: Annotated[str | None, Flag(_POSITIONS, shown="the system's")] = None
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class PushOptions(Options):
    """Which model folder to upload, and what its card says."""

    folder: Annotated[Path, Flag("Exported, averaged or imported model.", argument=True)]
    name: _HubName
    license: Annotated[str | None, Flag("License, as the hub calls it.", metavar="NAME")] = None
    scores: Annotated[tuple[Path, ...], Flag(_SCORES)] = ()
    private: Annotated[bool, Flag("Make a new repository private.")] = False
    dry_run: Annotated[bool, Flag("Print the card and the files, and send nothing.")] = False
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class PullOptions(Options):
    """Which model to download."""

    name: _HubName
    output: OutputFolder
    json: Json = False
