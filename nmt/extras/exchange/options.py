"""Options of `nmt.export`, `nmt.import_model`, `nmt.push` and `nmt.pull`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from nmt.commands.options import Checkpoint, Json, Model, OutputFolder
from nmt.config.flag import Flag

_HubName = Annotated[
    str, Flag("The model's name on the hub.", argument=True, metavar="hub:ORG/NAME")
]
_TARGETS = "safetensors, for nmt; or ctranslate2, which translates faster on CPUs."
_TYPES = (
    "Type of the weights. ctranslate2 has float32, float16, bfloat16, int16, int8, int8_float32, "
    "int8_float16 and int8_bfloat16; int8 is smallest and fastest on CPUs."
)
_SOURCE = "Folder or .zip of MarianMT (Hugging Face) or OPUS-MT, or an .npz of Marian."
_POSITIONS = (
    "Position encoding: sinusoidal-halves, which Marian trains with, or sinusoidal-concatenated, "
    "which Hugging Face computes with."
)
_CHECK = (
    "Also score the pairs of FILE (source, tab, translation) with both position encodings: the "
    "model was trained with the one that has the higher log probability."
)
_SCORES = "Scores that `nmt evaluate` printed as JSON, shown on the model's page. Repeatable."


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Which model to write, and for which program."""

    model: Model
    to: Annotated[str, Flag(_TARGETS, metavar="TARGET")]
    output: OutputFolder
    quantization: Annotated[str | None, Flag(_TYPES, metavar="TYPE", shown_default="float32")] = (
        None
    )
    checkpoint: Checkpoint = "best"
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """Which model of another system to read."""

    source: Annotated[Path, Flag(_SOURCE, argument=True)]
    output: OutputFolder
    languages: Annotated[
        str | None,
        Flag("Language pair, as en-de.", short="l", metavar="PAIR", shown_default="in the files"),
    ] = None
    positions: Annotated[
        str | None, Flag(_POSITIONS, metavar="NAME", shown_default="that of the system")
    ] = None
    check: Annotated[Path | None, Flag(_CHECK)] = None
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class PushOptions:
    """Which model folder to upload, and what its card says."""

    folder: Annotated[
        Path, Flag("Folder of `nmt export`, `nmt average` or `nmt import`.", argument=True)
    ]
    name: _HubName
    license: Annotated[str | None, Flag("License, as the hub calls it.", metavar="NAME")] = None
    scores: Annotated[tuple[Path, ...], Flag(_SCORES)] = ()
    private: Annotated[bool, Flag("Make a new repository private.")] = False
    dry_run: Annotated[bool, Flag("Print the card and the files, and send nothing.")] = False
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class PullOptions:
    """Which model to download."""

    name: _HubName
    output: OutputFolder
    json: Json = False
