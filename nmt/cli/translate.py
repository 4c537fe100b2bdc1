"""``nmt translate``: lines in, as many lines out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmt.cli.ensembles import MeanOption, Weights, With, make_ensemble
from nmt.cli.mbr import MbrCandidates, MbrFrom, MbrOption, make_mbr
from nmt.cli.options import (
    BatchTokens,
    BeamSize,
    Checkpoint,
    Device,
    DeviceOption,
    DtypeKind,
    DtypeOption,
    Format,
    LengthPenalty,
    Model,
    NoGuard,
    OutputFile,
    Quiet,
    SetOfModel,
    Shortlist,
    Threads,
    Verbose,
    decoding_changes,
    file_or_standard,
    make_note,
)
from nmt.engine import is_one_of_torchrun
from nmt.errors import ConfigError

if TYPE_CHECKING:
    from nmt.config.decoding import DecodingConfig
    from nmt.translation.distributed import Team
    from nmt.translation.mbr import MbrChoice
    from nmt.translation.translator import Translator

EPILOG = """\b
Examples:
  nmt translate runs/demo < in.de > out.en
  echo "Guten Morgen!" | nmt translate runs/demo --beam-size 1
  nmt translate runs/demo -i in.de.gz --format json --n-best 3
  nmt translate runs/demo -i in.de --sample --top-p 0.9 --n-best 5
  torchrun --nproc-per-node 4 -m nmt translate runs/demo -i in.de -o out.en
"""


def translate(
    model: Model,
    input_file: Annotated[
        Path | None,
        typer.Option(
            "-i",
            "--input",
            metavar="FILE",
            parser=file_or_standard,
            help="Text to translate; standard input if not given, or -.",
        ),
    ] = None,
    output_file: OutputFile = None,
    beam_size: BeamSize = None,
    n_best: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Translations of each line; several are written as `number ||| text ||| score`.",
            show_default="the model's",
        ),
    ] = None,
    format_: Annotated[
        Format, typer.Option("--format", help="Plain text, or one JSON object a line.")
    ] = Format.text,
    input_format: Annotated[
        Format,
        typer.Option(
            help='Plain text, or JSON objects such as {"source": ..., "prefix": ..., '
            '"required": [...], "forbidden": [...]}; other fields pass through to JSON output.'
        ),
    ] = Format.text,
    alignments: Annotated[
        bool,
        typer.Option(
            "--alignments", help="Add which words belong together, as in `0-0 1-2`, from attention."
        ),
    ] = False,
    attention: Annotated[
        bool,
        typer.Option(
            "--attention",
            help="Of JSON output: add what --alignments are taken from, a row of shares of the "
            "source words for each word of the translation.",
        ),
    ] = False,
    token_scores: Annotated[
        bool,
        typer.Option(
            "--token-scores",
            help="Of JSON output: add every token with its natural-log probability.",
        ),
    ] = False,
    length_penalty: LengthPenalty = None,
    sample: Annotated[
        bool,
        typer.Option(
            "--sample", help="Draw every token by chance; --n-best is the number of samples."
        ),
    ] = False,
    temperature: Annotated[
        float | None,
        typer.Option(
            help="Of --sample: below 1 the likely gets likelier.", show_default="the model's"
        ),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            help="Of --sample: from the fewest tokens with this probability.",
            show_default="the model's",
        ),
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option(
            min=0, help="Of --sample: from the k likeliest tokens.", show_default="the model's"
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0, help="Of --sample: another seed, other samples.", show_default="the model's"
        ),
    ] = None,
    shortlist: Shortlist = None,
    batch_tokens: BatchTokens = None,
    checkpoint: Checkpoint = "best",
    device: DeviceOption = Device.auto,
    dtype: DtypeOption = DtypeKind.float32,
    threads: Threads = None,
    set_: SetOfModel = [],  # noqa: B006 - read only, and typer wants the list here
    stream: Annotated[
        bool, typer.Option("--stream", help="Answer every line before reading the next.")
    ] = False,
    with_: With = [],  # noqa: B006
    weights: Weights = None,
    ensemble_mean: MeanOption = None,
    mbr: MbrOption = None,
    mbr_candidates: MbrCandidates = None,
    mbr_from: MbrFrom = None,
    no_guard: NoGuard = False,
    selfcheck: Annotated[
        bool,
        typer.Option(
            "--selfcheck",
            help="Try the promises of this command on nasty lines with this model, and report.",
        ),
    ] = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,  # noqa: ARG001 - the root reads it
) -> None:
    """Translate line by line: N lines in, N lines out, in order, blank lines kept."""
    from nmt.files.line_streams import check_output
    from nmt.recipes.translate import translate_files
    from nmt.translation.output_format import OutputFormat
    from nmt.translation.translator import Translator

    with _team() as team:
        check_output(output_file, input_file)
        note = make_note(quiet)
        if team is not None:
            note = team.make_note(note)
            if selfcheck:
                raise ConfigError(
                    "--selfcheck does not go with several processes.",
                    fix="Call it without torchrun: what it finds holds for any number of them.",
                )
        style = OutputFormat(
            format_.value,
            n_best or 1,
            alignments,
            reads_json=input_format is Format.json,
            attention=attention,
            token_scores=token_scores,
        )
        translator = Translator.load(
            model,
            device=device.value,
            checkpoint=checkpoint,
            dtype=dtype.value,
            threads=threads,
            note=note,
            ensemble=make_ensemble(with_, weights, ensemble_mean),
            guard=not no_guard,
        )
        changes = decoding_changes(
            model,
            set_,
            beam_size=beam_size,
            n_best=n_best,
            length_penalty=length_penalty,
            sampling=sample or None,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            seed=seed,
            shortlist=shortlist,
            batch_tokens=batch_tokens,
        )
        if choice := make_mbr(mbr, mbr_candidates, mbr_from, beam_size):
            translator = _with_mbr(translator, choice, model)
        translator = translator.with_options(**changes)
        _check_beam(translator.options, beam_size)
        if selfcheck:
            _selfcheck(model, translator)
            return
        run = translate_files if team is None else team.translate_files
        run(
            translator,
            input_file,
            output_file,
            replace(style, n_best=translator.options.n_best),
            note=note,
            lines_at_once=1 if stream else None,
            show_progress=input_file is not None and not quiet and sys.stderr.isatty(),
        )


@contextmanager
def _team() -> Iterator[Team | None]:
    """Join the processes that torchrun has started beside this one, if it has."""
    if is_one_of_torchrun():
        from nmt.translation.distributed import join_team  # loads torch

        with join_team() as team:
            yield team
    else:
        yield None


def _check_beam(options: DecodingConfig, beam_size: int | None) -> None:
    """Refuse a beam that this way of decoding would not have.

    Raises:
        ConfigError: It was asked for.
    """
    way = "sampling" if options.sampling else "return_alternatives"
    if getattr(options, way) and beam_size not in (None, 1):
        shown = "--sample" if options.sampling else f"decoding.{way}"
        raise ConfigError(
            f"--beam-size {beam_size} does not go with {shown}, which keeps no beam.",
            fix="Leave one of them out; --n-best says how many translations of a line come.",
        )


def _with_mbr(translator: Translator, choice: MbrChoice, model: Path) -> Translator:
    from nmt.config.loader import load_config

    language = load_config(model / "config.yaml").target_language
    return translator.with_mbr(choice.build(language))


def _selfcheck(model: Path, translator: Translator) -> None:
    from nmt.diagnostics.selfcheck import report, selfcheck

    promises = selfcheck(translator)
    typer.echo(report(promises, model))
    if any(promise.problem for promise in promises):
        raise typer.Exit(1)
