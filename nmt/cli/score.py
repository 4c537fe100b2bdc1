"""``nmt score``: pairs of lines in, as many scores out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nmt.cli.ensembles import MeanOption, Weights, With, make_ensemble
from nmt.cli.options import (
    Checkpoint,
    Device,
    DeviceOption,
    Format,
    Model,
    OutputFile,
    Quiet,
    SetOfModel,
    Threads,
    Verbose,
    decoding_changes,
    file_name,
    make_note,
)

EPILOG = """\b
Examples:
  nmt score runs/demo --source test.en --target test.de > scores
  paste in.en out.de | nmt score runs/demo --format json
  nmt score runs/demo --with runs/second --source in.en.gz --target in.de.gz --sum -o scores.gz
"""


def score(
    model: Model,
    source: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            parser=file_name,
            help="Source lines; - is standard input. Without files, standard input holds "
            "source<TAB>target.",
        ),
    ] = None,
    target: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            parser=file_name,
            help="Translations; line i is of source line i; - is standard input.",
        ),
    ] = None,
    output_file: OutputFile = None,
    plain_sum: Annotated[
        bool, typer.Option("--sum", help="Write log probabilities without length normalisation.")
    ] = False,
    format_: Annotated[
        Format,
        typer.Option("--format", help="A number, or one JSON object a line with every token."),
    ] = Format.text,
    length_penalty: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Exponent of the length normalisation; no other penalty of a search counts here.",
            show_default="the model's",
        ),
    ] = None,
    batch_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Source tokens, and target tokens, read at once."),
    ] = None,
    checkpoint: Checkpoint = "best",
    with_: With = [],  # noqa: B006 - read only, and typer wants the lists here
    weights: Weights = None,
    ensemble_mean: MeanOption = None,
    device: DeviceOption = Device.auto,
    threads: Threads = None,
    set_: SetOfModel = [],  # noqa: B006
    quiet: Quiet = False,
    verbose: Verbose = 0,  # noqa: ARG001 - the root reads it
) -> None:
    """Score given translations: the log probability per token that MODEL gives each of them.

    One line for each pair, in order: what the search would show as the score of that translation,
    0 at best. Blank to blank is 0; a blank translation of a line is the probability of ending at
    once; a translation of a blank line, and a pair too long for the model, is -inf (JSON: null).
    """
    from nmt.files.line_streams import check_output, first_few
    from nmt.recipes.score import ScoreFormat, check_inputs, score_files, wants_progress
    from nmt.translation.scorer import Scorer

    check_inputs(source, target)
    check_output(output_file, source, target)
    note = make_note(quiet)
    scorer = Scorer.load(
        model,
        device=device.value,
        checkpoint=checkpoint,
        threads=threads,
        note=note,
        ensemble=make_ensemble(with_, weights, ensemble_mean),
    )
    changes = decoding_changes(
        model, set_, length_penalty=length_penalty, batch_tokens=batch_tokens
    )
    score_files(
        scorer.with_options(**changes),
        source,
        target,
        output_file,
        ScoreFormat(format_.value, plain_sum),
        note=first_few(note),
        show_progress=wants_progress(source, quiet=quiet),
    )
