"""Options of `nmt.augment`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from nmt.commands.options import BeamSize, Checkpoint, Json, Overrides, SampleSeed, Tag, Threads
from nmt.config.flag import Flag


@dataclass(frozen=True, kw_only=True)
class AugmentOptions:
    """Which text to translate, and how."""

    text: Annotated[Path, Flag("Lines of one language; may be compressed.", argument=True)]
    with_: Annotated[Path, Flag("Model that translates them.", metavar="MODEL")]
    output: Annotated[Path, Flag("Folder to make.", short="o", metavar="FOLDER")]
    forward: Annotated[bool, Flag("The text is the source of the new corpus, not the target.")] = (
        False
    )
    tag: Tag = None
    sample: Annotated[bool, Flag("Draw from the model's distribution; do not search.")] = False
    seed: SampleSeed = None
    beam_size: BeamSize = None
    shard_lines: Annotated[int, Flag("Lines between two points to resume from.", min=1)] = 10_000
    checkpoint: Checkpoint = "best"
    threads: Threads = None
    set_: Overrides = ()
    json: Json = False
    engine: Literal["auto", "torch", "ctranslate2"] = "auto"
    guard: bool = True  # Search a second time for lines that look degenerate.
