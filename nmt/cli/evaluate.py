"""``nmt evaluate``: translations and references -> scores, and an exit code for scripts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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
    Json,
    LengthPenalty,
    NoGuard,
    Quiet,
    SetOfModel,
    Shortlist,
    Threads,
    Verbose,
    given,
    print_json,
)
from nmt.metrics.metric import METRICS

EPILOG = """\b
Examples:
  nmt evaluate runs/demo
  nmt evaluate runs/base -t wmt14 -l en-de --fail-under bleu=27
  nmt evaluate --hypothesis out.en --reference test.en --baseline old.en
  nmt translate runs/demo < in.de | nmt evaluate --hypothesis - --reference in.en

Exit code 6 means that a score is below --fail-under.
"""


def evaluate(
    model: Annotated[
        Path | None,
        typer.Argument(
            metavar="MODEL",
            help="Run folder or model folder whose translations are scored.",
            show_default=False,
        ),
    ] = None,
    hypothesis: Annotated[
        list[Path],
        typer.Option(
            metavar="FILE", help="Translations to score; - is standard input. Repeatable."
        ),
    ] = [],  # noqa: B006 - read only, and typer wants the lists here
    source: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Source lines for the model to translate.")
    ] = None,
    reference: Annotated[
        list[Path],
        typer.Option(metavar="FILE", help="Reference lines. Repeatable: all count as references."),
    ] = [],  # noqa: B006
    test: Annotated[
        str | None,
        typer.Option(
            "--test",
            "-t",
            metavar="NAME",
            help="Test set named in the model's configuration, or one of sacrebleu's. "
            "Default: the only one in the configuration.",
        ),
    ] = None,
    languages: Annotated[
        str | None,
        typer.Option(
            "--languages",
            "-l",
            metavar="PAIR",
            help="Languages of the test set, as in en-de; default: the model's. They choose "
            "BLEU's tokenizer too.",
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Score the first N sentences only.")
    ] = None,
    metric: Annotated[
        list[str],
        typer.Option(
            metavar="NAME",
            help=f"{', '.join(METRICS)}, or several with commas between. Repeatable.",
        ),
    ] = ["bleu", "chrf"],  # noqa: B006
    tokenize: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="BLEU's tokenizer: 13a, zh, ja-mecab, ko-mecab, intl, char, flores200, none. "
            "Default: by target language, else 13a.",
        ),
    ] = None,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Ignore case.")] = False,
    baseline: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Translations to compare with: shows differences and paired bootstrap p-values.",
        ),
    ] = None,
    fail_under: Annotated[
        list[str],
        typer.Option(
            metavar="METRIC=SCORE",
            help="Exit with code 6 if a score is lower, as in bleu=27,chrf=55. Repeatable.",
        ),
    ] = [],  # noqa: B006
    resamples: Annotated[
        int,
        typer.Option(
            min=0,
            max=1_000_000,
            metavar="N",
            help="Resampled test sets behind confidence and p-values; 0 leaves both out.",
        ),
    ] = 1000,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed of the resampling.")] = 12345,
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    shortlist: Shortlist = None,
    batch_tokens: BatchTokens = None,
    checkpoint: Checkpoint = "best",
    device: DeviceOption = Device.auto,
    dtype: DtypeOption = DtypeKind.float32,
    threads: Threads = None,
    with_: With = [],  # noqa: B006
    weights: Weights = None,
    ensemble_mean: MeanOption = None,
    mbr: MbrOption = None,
    mbr_candidates: MbrCandidates = None,
    mbr_from: MbrFrom = None,
    no_guard: NoGuard = False,
    save_hypotheses: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the model's translations here.")
    ] = None,
    set_: SetOfModel = [],  # noqa: B006
    json: Json = False,
    quiet: Quiet = False,  # noqa: ARG001 - its callback reads it
    verbose: Verbose = 0,  # noqa: ARG001 - the root reads it
) -> None:
    """Score translations of a model, or from files, with BLEU, chrF, chrF++ or TER."""
    from nmt.evaluation.gate import parse_gates, raise_if_missed
    from nmt.evaluation.scoring import Resampling
    from nmt.evaluation.test_set import SetChoice
    from nmt.recipes.evaluate import EvaluateOptions, ModelUse, run_evaluation

    use = ModelUse(
        checkpoint=checkpoint,
        device=device.value,
        dtype=dtype.value,
        threads=threads,
        ensemble=make_ensemble(with_, weights, ensemble_mean),
        mbr=make_mbr(mbr, mbr_candidates, mbr_from, beam_size),
        guard=not no_guard,
        overrides=tuple(set_),
        decoding=given(
            beam_size=beam_size,
            length_penalty=length_penalty,
            shortlist=shortlist,
            batch_tokens=batch_tokens,
        ),
        save_hypotheses=save_hypotheses,
    )
    options = EvaluateOptions(
        model=model,
        use=use,
        hypotheses=tuple(hypothesis),
        test=SetChoice(name=test, pair=languages, source=source, references=tuple(reference)),
        limit=limit,
        metrics=tuple(name.strip() for text in metric for name in text.split(",")),
        tokenize=tokenize,
        lowercase=lowercase,
        baseline=baseline,
        gates=parse_gates(fail_under),
        resampling=Resampling(resamples, seed),
    )
    evaluation = run_evaluation(options)
    if json:
        print_json(evaluation.as_dict())
    else:
        typer.echo(evaluation.as_text())
    if evaluation.unsaved is not None:
        raise evaluation.unsaved
    raise_if_missed(evaluation.gates)
