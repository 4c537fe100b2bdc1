"""``nmt translate``: lines in, as many lines out."""

from __future__ import annotations

import logging
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import typer

from nmt.cli.options import (
    MODEL,
    OUTPUT_FILE,
    TAG,
    EngineOptions,
    Format,
    MbrOptions,
    SearchOptions,
    file_name,
    file_or_standard,
    flag,
    format_name,
    given,
)
from nmt.cli.spelling import looks_like_file
from nmt.errors import ConfigError, DataError
from nmt.files.lines import CHECK_PATH, near_file

if TYPE_CHECKING:
    from nmt.inference.line_format import LineFormat

logger = logging.getLogger(__name__)
EPILOG = """\b
Examples:
  nmt translate runs/demo in.de > out.en
  echo "Guten Morgen!" | nmt translate runs/demo --beam-size 1
  nmt translate runs/demo -i in.de.gz --format json --n-best 3
  nmt translate runs/demo -i in.de --sample --top-p 0.9 --n-best 5
  torchrun --nproc-per-node 4 -m nmt translate runs/demo -i in.de -o out.en
"""


@dataclass(frozen=True, slots=True)
class InputOutput:
    """How lines are read and written."""

    title: ClassVar[str] = "Input and output"

    input_file: Path | None = flag(
        "-i",
        "--input",
        metavar="FILE",
        parser=file_or_standard,
        help="Text to translate, one sentence per line; may be compressed.",
        show_default="standard input",
    )
    output_file: Path | None = OUTPUT_FILE
    format_: Format = flag(
        "--format",
        default="text",
        metavar="[text|json]",
        parser=format_name,
        help="Output plain text, or one JSON object per line.",
    )
    input_format: Format = flag(
        default="text",
        metavar="[text|json]",
        parser=format_name,
        help='Input plain text, or JSON objects such as {"source": ..., "prefix": ..., '
        '"required": [...], "forbidden": [...], "tag": ...}. A required phrase may get an ending '
        "(Tokyos). Other fields pass through to JSON output, except those that have the name of a "
        "field of the output.",
    )
    n_best: int | None = flag(
        min=1,
        metavar="N",
        help="Translations per line; several are written as `number ||| text ||| score`, with one "
        "row for a blank line.",
    )
    alignments: bool = flag(
        default=False, help="Add word alignments in Pharaoh format (`0-0 1-2`), by attention."
    )
    attention: bool = flag(
        default=False,
        help="In JSON output: add the attention of each target word to each source word.",
    )
    token_scores: bool = flag(
        default=False, help="In JSON output: add every token with its natural-log probability."
    )
    min_confidence: float | None = flag(
        metavar="X",
        help="Mark lines whose confidence, the expected chrF from 0 to 100, is below X: in text by "
        "` ||| low confidence` behind them, in JSON by `low_confidence`: true.",
        show_default=False,
    )
    stream: bool = flag(default=False, help="Translate every line before reading the next one.")
    tag: str | None = TAG

    def style(self) -> LineFormat:
        """Return how lines are read and written."""
        from nmt.inference.line_format import LineFormat

        return LineFormat(
            self.format_,
            self.n_best or 1,
            self.alignments,
            reads_json=self.input_format == "json",
            attention=self.attention,
            token_scores=self.token_scores,
            tag=self.tag,
            min_confidence=self.min_confidence,
        )


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How translations are sampled."""

    title: ClassVar[str] = "Sampling"

    sample: bool = flag(
        default=False,
        help="Sample from the model's distribution instead of searching; --n-best is the number "
        "of samples, in the order in which they were drawn.",
    )
    temperature: float | None = flag(
        metavar="X", help="With --sample: softmax temperature; below 1 sharpens the distribution."
    )
    top_p: float | None = flag(
        metavar="P",
        help="With --sample: nucleus sampling, from the smallest set of tokens with this "
        "cumulative probability.",
    )
    top_k: int | None = flag(
        min=0, metavar="K", help="With --sample: sample from the K most probable tokens; 0 for all."
    )
    seed: int | None = flag(min=0, metavar="N", help="With --sample: random seed.")

    def decoding(self) -> dict[str, Any]:
        """Return the decoding options that were given."""
        names = ("temperature", "top_p", "top_k", "seed")
        own = {name: getattr(self, name) for name in names}
        return given(sampling=self.sample or None, **own)


def translate(
    *,
    model: Path = MODEL,
    file: Path | None = typer.Argument(
        None, metavar="FILE", parser=file_name, help="Text to translate, instead of --input."
    ),
    files: InputOutput,
    search: SearchOptions,
    sampling: SamplingOptions,
    mbr: MbrOptions,
    engine: EngineOptions,
    selfcheck: bool = flag(
        default=False, help="Check the line-in/line-out contract on adversarial input and report."
    ),
) -> None:
    """Translate lines: N in, N out, in order, blank lines kept.

    Reads standard input and writes standard output unless files are named. A line of more than
    50,000 characters is translated up to there, with a warning.
    """
    if file is not None and files.input_file is not None:
        raise ConfigError(
            f"Both {file} and --input {files.input_file} are to be translated.",
            fix="Name one of them.",
        )
    from nmt.commands import translate as recipe

    _refuse_sentence(model, file)
    style = files.style()
    decoding = search.decoding() | sampling.decoding() | given(n_best=files.n_best)
    loading = engine.loading() | search.loading()
    choice = mbr.choice(search.beam_size)
    if selfcheck:
        from nmt.extras.planning.selfcheck import report

        promises = recipe.selfcheck(
            model, mbr=choice, overrides=search.set_, loading=loading, **decoding
        )
        typer.echo(report(promises, model))
        if any(promise.problem for promise in promises):
            raise typer.Exit(1)
        return
    reads_keys = not (files.input_file or file) and sys.stdin is not None and sys.stdin.isatty()
    if reads_keys and not files.stream:
        logger.info("translating what you type after Ctrl-D; --stream answers each line")
    recipe.translate(
        model,
        files.input_file or file,
        files.output_file,
        style=style,
        lines_at_once=1 if files.stream else None,
        mbr=choice,
        overrides=search.set_,
        loading=loading,
        **decoding,
    )


def _refuse_sentence(model: Path, file: Path | None) -> None:
    """Refuse a missing file that looks like text.

    Raises:
        DataError: Says how to translate it.
    """
    text = str(file)
    if file is None or looks_like_file(text) or near_file(file):
        return
    command = f"echo {shlex.quote(text)} | nmt translate {shlex.quote(str(model))}"
    raise DataError(f"{text} does not exist.", fix=f"{CHECK_PATH} A sentence? {command}")
