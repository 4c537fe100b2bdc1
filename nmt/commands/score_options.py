"""Options of `nmt.score`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from nmt.commands.options import (
    BatchTokens,
    Format,
    LengthPenalty,
    Model,
    ModelOptions,
    OutputFile,
    Overrides,
    Tag,
)
from nmt.config.flag import Flag
from nmt.errors import ConfigError
from nmt.files.lines import is_standard


@dataclass(frozen=True, kw_only=True)
class ScoreOptions(ModelOptions):
    """Which pairs to score, and how scores are written."""

    model: Model
    source: Annotated[
        Path | None, Flag("Source lines. Without files, standard input has source<TAB>target.")
    ] = None
    target: Annotated[Path | None, Flag("Translations, line by line.")] = None
    output: OutputFile = None
    sum: Annotated[bool, Flag("Write log probabilities without length normalisation.")] = False
    format: Annotated[Format, Flag("A number a line, or a JSON object with all tokens.")] = "text"
    length_penalty: LengthPenalty = None
    tag: Tag = None
    batch_tokens: BatchTokens = None
    set_: Overrides = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.source is None) != (self.target is None):
            missing = "source" if self.source is None else "target"
            fix = "Give `source` and `target`, or neither and source<TAB>target on standard input."
            raise ConfigError(f"`{missing}` is missing.", fix=fix)
        if self.source and is_standard(self.source) and is_standard(self.target):
            raise ConfigError("Standard input can be read once only.", fix="Name files instead.")
