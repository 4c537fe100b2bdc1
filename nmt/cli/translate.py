"""``nmt translate``: lines in, as many lines out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from nmt.cli.options import (
    EngineOptions,
    Format,
    MbrOptions,
    Model,
    ModelOptions,
    OutputFile,
    SearchOptions,
    file_or_standard,
    given,
)

EPILOG = """\b
Examples:
  nmt translate runs/demo < in.de > out.en
  echo "Guten Morgen!" | nmt translate runs/demo --beam-size 1
  nmt translate runs/demo -i in.de.gz --format json --n-best 3
  nmt translate runs/demo -i in.de --sample --top-p 0.9 --n-best 5
  torchrun --nproc-per-node 4 -m nmt translate runs/demo -i in.de -o out.en
"""


@dataclass(frozen=True, slots=True)
class InputOutput:
    """How lines are read and written."""

    title: ClassVar[str] = "Input and output"

    input_file: Annotated[
        Path | None,
        typer.Option(
            "-i",
            "--input",
            metavar="FILE",
            parser=file_or_standard,
            help="Text to translate, one sentence per line; may be compressed.",
            show_default="standard input",
        ),
    ] = None
    output_file: OutputFile = None
    format_: Annotated[
        Format, typer.Option("--format", help="Output plain text, or one JSON object per line.")
    ] = Format.text
    input_format: Annotated[
        Format,
        typer.Option(
            "--input-format",
            help='Input plain text, or JSON objects such as {"source": ..., "prefix": ..., '
            '"required": [...], "forbidden": [...]}. Other fields pass through to JSON output, '
            "except those that have the name of a field of the output.",
        ),
    ] = Format.text
    n_best: Annotated[
        int | None,
        typer.Option(
            "--n-best",
            min=1,
            metavar="N",
            help="Translations per line; several are written as `number ||| text ||| score`.",
            show_default="the model's",
        ),
    ] = None
    alignments: Annotated[
        bool,
        typer.Option(
            "--alignments", help="Add word alignments in Pharaoh format (`0-0 1-2`), by attention."
        ),
    ] = False
    attention: Annotated[
        bool,
        typer.Option(
            "--attention",
            help="In JSON output: add the attention of each target word to each source word.",
        ),
    ] = False
    token_scores: Annotated[
        bool,
        typer.Option(
            "--token-scores",
            help="In JSON output: add every token with its natural-log probability.",
        ),
    ] = False
    stream: Annotated[
        bool,
        typer.Option("--stream", help="Translate every line before reading the next one."),
    ] = False


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How translations are sampled."""

    title: ClassVar[str] = "Sampling"

    sample: Annotated[
        bool,
        typer.Option(
            "--sample",
            help="Sample from the model's distribution instead of searching; --n-best is the "
            "number of samples.",
        ),
    ] = False
    temperature: Annotated[
        float | None,
        typer.Option(
            "--temperature",
            metavar="X",
            help="With --sample: softmax temperature; below 1 sharpens the distribution.",
            show_default="the model's",
        ),
    ] = None
    top_p: Annotated[
        float | None,
        typer.Option(
            "--top-p",
            metavar="P",
            help="With --sample: nucleus sampling, from the smallest set of tokens with this "
            "cumulative probability.",
            show_default="the model's",
        ),
    ] = None
    top_k: Annotated[
        int | None,
        typer.Option(
            "--top-k",
            min=0,
            metavar="K",
            help="With --sample: sample from the K most probable tokens; 0 for all.",
            show_default="the model's",
        ),
    ] = None
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            min=0,
            metavar="N",
            help="With --sample: random seed.",
            show_default="the model's",
        ),
    ] = None


def translate(
    model: Model,
    files: InputOutput,
    search: SearchOptions,
    sampling: SamplingOptions,
    mbr: MbrOptions,
    options: ModelOptions,
    engine: EngineOptions,
    selfcheck: Annotated[
        bool,
        typer.Option(
            "--selfcheck",
            help="Check the line-in/line-out contract on adversarial input and report.",
        ),
    ] = False,
) -> None:
    """Translate line by line: N lines in, N lines out, in order, blank lines kept.

    Reads standard input and writes standard output unless files are named. A line of more than
    50,000 characters is translated up to there, with a warning.
    """
    from nmt.recipes import translate as recipe
    from nmt.translation.requests import LineFormat

    style = LineFormat(
        files.format_.value,
        files.n_best or 1,
        files.alignments,
        reads_json=files.input_format is Format.json,
        attention=files.attention,
        token_scores=files.token_scores,
    )
    decoding = search.decoding() | given(
        n_best=files.n_best,
        sampling=sampling.sample or None,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=sampling.seed,
    )
    loading = options.loading() | engine.loading() | {"guard": not search.no_guard}
    choice = mbr.choice(search.beam_size)
    if selfcheck:
        from nmt.diagnostics.selfcheck import report

        promises = recipe.selfcheck(
            model, mbr=choice, overrides=search.set_, loading=loading, **decoding
        )
        typer.echo(report(promises, model))
        if any(promise.problem for promise in promises):
            raise typer.Exit(1)
        return
    recipe.translate(
        model,
        files.input_file,
        files.output_file,
        style=style,
        lines_at_once=1 if files.stream else None,
        mbr=choice,
        overrides=search.set_,
        loading=loading,
        **decoding,
    )
