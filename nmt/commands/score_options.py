"""Options of `nmt.score`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from nmt.commands.options import (
    Format,
    LengthPenalty,
    Model,
    ModelOptions,
    OutputFile,
    Overrides,
    Tag,
)
from nmt.config.flag import OF_THE_MODEL, Flag
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
    format: Annotated[Format, Flag("One number per line, or one JSON object with all tokens.")] = (
        "text"
    )
    length_penalty: LengthPenalty = None
    tag: Tag = None
    batch_tokens: Annotated[
        int | None,
        Flag("Source tokens, and target tokens, of a batch.", min=1, shown_default=OF_THE_MODEL),
    ] = None
    set_: Overrides = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.source is None) != (self.target is None):
            raise ConfigError(
                f"`{'source' if self.source is None else 'target'}` is missing.",
                fix="Give `source` and `target`, or neither and source<TAB>target on standard "
                "input.",
            )
        if self.source and is_standard(self.source) and is_standard(self.target):
            raise ConfigError("Standard input can be read once only.", fix="Name files instead.")
