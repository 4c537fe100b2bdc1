"""``nmt translate``: lines in, as many lines out."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from nmt.cli.options import Quiet, Set, Verbose

EPILOG = """\b
Examples:
  nmt translate runs/demo < in.de > out.en
  echo "Guten Morgen!" | nmt translate runs/demo --beam-size 1
  nmt translate runs/demo -i in.de.gz --format json --n-best 3
"""


class Format(StrEnum):
    """How results are written."""

    text = "text"
    json = "json"


class Device(StrEnum):
    """Where to compute."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


def translate(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder written by `nmt train`.")],
    input_file: Annotated[
        Path | None,
        typer.Option("-i", "--input", help="Text to translate; standard input if not given."),
    ] = None,
    output_file: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Where to write; standard output if not given."),
    ] = None,
    beam_size: Annotated[
        int | None,
        typer.Option(
            "-b",
            "--beam-size",
            min=1,
            help="Hypotheses kept per sentence; 1 is greedy.",
            show_default="the model's",
        ),
    ] = None,
    n_best: Annotated[
        int,
        typer.Option(
            min=1, help="Translations of each line; written as `number ||| text ||| score`."
        ),
    ] = 1,
    format_: Annotated[
        Format, typer.Option("--format", help="Plain text, or one JSON object a line.")
    ] = Format.text,
    length_penalty: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Exponent of the length normalisation; higher favours longer output.",
            show_default="the model's",
        ),
    ] = None,
    batch_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Source tokens searched at once; the text does not depend on it."),
    ] = None,
    checkpoint: Annotated[
        str, typer.Option(help="best, last, step-N or average of a run folder.")
    ] = "best",
    device: Annotated[Device, typer.Option(help="Where to compute.")] = Device.auto,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.")] = None,
    set_: Set = [],  # noqa: B006 - read only, and typer wants the list here
    stream: Annotated[
        bool, typer.Option("--stream", help="Answer every line before reading the next.")
    ] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,  # noqa: ARG001 - the root reads it
) -> None:
    """Translate line by line: N lines in, N lines out, in order, blank lines kept."""
    from nmt.commands.translate import OutputFormat, stderr_note, translate_files
    from nmt.translation.translator import Translator

    translator = Translator.load(
        model, device=device.value, checkpoint=checkpoint, threads=threads, note=stderr_note
    )
    if set_:
        from nmt.config.loader import load_config

        chosen = load_config(model / "config.yaml", set_).decoding
        translator = translator.with_options(**chosen.model_dump())
    wanted: dict[str, Any] = {
        "beam_size": beam_size,
        "n_best": n_best,
        "length_penalty": length_penalty,
        "batch_tokens": batch_tokens,
    }
    changes = {name: value for name, value in wanted.items() if value is not None}
    translate_files(
        translator.with_options(**changes),
        input_file,
        output_file,
        OutputFormat(format_.value, n_best),
        lines_at_once=1 if stream else None,
        show_progress=input_file is not None and not quiet and sys.stderr.isatty(),
    )
