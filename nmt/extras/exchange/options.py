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
Languages = Annotated[
    str | None,
    Flag(
        "Codes of source and target, as in en-de.",
        short="l",
        metavar="PAIR",
        shown_default="those named in the files",
    ),
]


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Which model to write, and for which program."""

    model: Model
    to: Annotated[
        str,
        Flag(
            "safetensors: the model alone, for nmt. ctranslate2: for CTranslate2, which "
            "translates faster on CPUs.",
            metavar="TARGET",
        ),
    ]
    output: OutputFolder
    quantization: Annotated[
        str | None,
        Flag(
            "Type of the weights. ctranslate2 has float32, float16, bfloat16, int16, int8, "
            "int8_float32, int8_float16 and int8_bfloat16; int8 is smallest and fastest on CPUs.",
            metavar="TYPE",
            shown_default="float32",
        ),
    ] = None
    checkpoint: Checkpoint = "best"
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """Which model of another system to read."""

    source: Annotated[
        Path,
        Flag(
            "Folder or .zip of a model of Hugging Face (MarianMT) or OPUS-MT, or Marian's .npz "
            "with its vocabularies beside it.",
            argument=True,
        ),
    ]
    output: OutputFolder
    languages: Languages = None
    positions: Annotated[
        str | None,
        Flag(
            "Position encoding: sinusoidal-halves, which Marian trains with, or "
            "sinusoidal-concatenated, which Hugging Face computes with.",
            metavar="NAME",
            shown_default="that of the system",
        ),
    ] = None
    check: Annotated[
        Path | None,
        Flag(
            "Also score the pairs of FILE (source, tab, translation) with both position "
            "encodings: the one with the higher log probability is the one it was trained with."
        ),
    ] = None
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class PushOptions:
    """Which model folder to upload, and what its card says."""

    folder: Annotated[
        Path,
        Flag(
            "Model folder of `nmt export`, `nmt average` or `nmt import`, for nmt itself.",
            argument=True,
        ),
    ]
    name: _HubName
    license: Annotated[
        str | None, Flag("License of the model, as the hub calls it.", metavar="NAME")
    ] = None
    scores: Annotated[
        tuple[Path, ...],
        Flag("Scores that `nmt evaluate` printed as JSON, shown on the model's page. Repeatable."),
    ] = ()
    private: Annotated[bool, Flag("Make a new repository private.")] = False
    dry_run: Annotated[bool, Flag("Print the card and the files, and send nothing.")] = False
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class PullOptions:
    """Which model to download."""

    name: _HubName
    output: OutputFolder
    json: Json = False
