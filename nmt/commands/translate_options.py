"""Options of `nmt.translate`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from nmt.commands.options import (
    EngineOptions,
    Format,
    MbrOptions,
    Model,
    OutputFile,
    SampleSeed,
    SearchOptions,
    Tag,
    file_or_standard,
    format_name,
    given,
)
from nmt.config.flag import OF_THE_MODEL, Flag
from nmt.errors import ConfigError

_OUTPUTS = ("alignments", "attention", "token_scores")
_INPUT = "Text to translate, one sentence per line; may be compressed."
_FORMAT = "Output plain text, or one JSON object per line."
_INPUT_FORMAT = (
    'Input plain text, or JSON objects such as {"source": ..., "prefix": ..., "required": [...], '
    '"forbidden": [...], "tag": ...}. A required phrase may get an ending (Tokyos). Other fields '
    "pass through to JSON output, except those that have the name of a field of the output."
)
_N_BEST = "Translations per line; several are written as `number ||| text ||| score`."
_MIN_CONFIDENCE = (
    "Mark lines whose confidence, the expected chrF from 0 to 100, is below X: in text by "
    "` ||| low confidence` behind them, in JSON by `low_confidence`: true."
)
_TEMPERATURE = "With `sample`: softmax temperature; below 1 sharpens the distribution."
_TOP_P = "With `sample`: nucleus sampling, from the fewest tokens of this probability together."
_TOP_K = "With `sample`: sample from the K most probable tokens; 0 for all."


@dataclass(frozen=True, kw_only=True)
class LineOptions:
    """How lines are read and written."""

    title: ClassVar[str] = "Input and output"

    input: Annotated[
        Path | None,
        Flag(_INPUT, short="i", parser=file_or_standard, shown_default="standard input"),
    ] = None
    output: OutputFile = None
    format: Annotated[Format, Flag(_FORMAT, metavar="[text|json]", parser=format_name)] = "text"
    input_format: Annotated[
        Format, Flag(_INPUT_FORMAT, metavar="[text|json]", parser=format_name)
    ] = "text"
    n_best: Annotated[int | None, Flag(_N_BEST, min=1, shown_default=OF_THE_MODEL)] = None
    alignments: Annotated[
        bool, Flag("Add word alignments in Pharaoh format (`0-0 1-2`), by attention.")
    ] = False
    attention: Annotated[
        bool, Flag("In JSON output: add the attention of each target word to each source word.")
    ] = False
    token_scores: Annotated[
        bool, Flag("In JSON output: add every token with its natural-log probability.")
    ] = False
    min_confidence: Annotated[float | None, Flag(_MIN_CONFIDENCE)] = None
    stream: Annotated[bool, Flag("Translate every line before reading the next one.")] = False
    tag: Tag = None

    @property
    def outputs(self) -> frozenset[str]:
        """Return what is asked for besides texts and scores."""
        return frozenset(name for name in _OUTPUTS if getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """How translations are sampled."""

    title: ClassVar[str] = "Sampling"

    sample: Annotated[
        bool, Flag("Draw `n_best` translations from the model's distribution; do not search.")
    ] = False
    temperature: Annotated[float | None, Flag(_TEMPERATURE, shown_default=OF_THE_MODEL)] = None
    top_p: Annotated[float | None, Flag(_TOP_P, metavar="P", shown_default=OF_THE_MODEL)] = None
    top_k: Annotated[int | None, Flag(_TOP_K, min=0, metavar="K", shown_default=OF_THE_MODEL)] = (
        None
    )
    seed: SampleSeed = None


@dataclass(frozen=True, kw_only=True)
class TranslateOptions(LineOptions, SearchOptions, SamplingOptions, MbrOptions, EngineOptions):
    """Which lines to translate, with which model, and how they are written."""

    model: Model
    file: Annotated[Path | None, Flag("Text to translate, instead of `input`.", argument=True)] = (
        None
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.file is not None and self.input is not None:
            problem = f"Both {self.file} and `input` {self.input} are to be translated."
            raise ConfigError(problem, fix="Name one of them.")
        if self.min_confidence is not None and not 0 <= self.min_confidence <= 100:
            fix = "Give an expected chrF, from 0 to 100."
            raise ConfigError(f"`min_confidence` is {self.min_confidence:g}.", fix=fix)
        self.check_output(self.n_best or 1)

    def check_output(self, n_best: int) -> None:
        """Refuse what text has no place for beside so many translations of a line.

        Raises:
            ConfigError: So it is.
        """
        several, problem = n_best > 1, ""
        if self.format == "json":
            return
        if self.min_confidence is not None and (self.alignments or several):
            problem = "`min_confidence` beside alignments or several translations"
        elif names := [f"`{name}`" for name in _OUTPUTS[1:] if getattr(self, name)]:
            problem = " and ".join(names)
        elif self.alignments and several:
            problem = f"the alignments of {n_best} translations"
        if problem:
            fix = "Add `format` json, or leave that out."
            raise ConfigError(f"Text output has no place for {problem}.", fix=fix)

    @property
    def source(self) -> Path | None:
        """Return the lines to translate; None is standard input."""
        return self.input or self.file

    @property
    def search(self) -> dict[str, Any]:
        """Return the decoding options that were given."""
        names = ("temperature", "top_p", "top_k", "seed", "n_best")
        return self.decoding() | given(self, *names) | ({"sampling": True} if self.sample else {})
