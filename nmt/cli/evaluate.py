"""``nmt evaluate``: translations and references -> scores, and an exit code for scripts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nmt.cli.options import (
    EngineOptions,
    Json,
    MbrOptions,
    ModelOptions,
    SearchOptions,
    given_flags,
    print_json,
)
from nmt.errors import ConfigError
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
    ctx: typer.Context,
    search: SearchOptions,
    mbr: MbrOptions,
    options: ModelOptions,
    engine: EngineOptions,
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
        Path | None,
        typer.Option(
            metavar="FILE", help="Source lines of the test set, which the model translates."
        ),
    ] = None,
    reference: Annotated[
        list[Path],
        typer.Option(
            metavar="FILE",
            help="Reference translations. Repeatable: several references per sentence.",
        ),
    ] = [],  # noqa: B006
    test: Annotated[
        str | None,
        typer.Option(
            "--test",
            "-t",
            metavar="NAME",
            help="Test set named in the model's configuration, or one of sacrebleu's. "
            "Default: the configuration's, if it names just one.",
        ),
    ] = None,
    languages: Annotated[
        str | None,
        typer.Option(
            "--languages",
            "-l",
            metavar="PAIR",
            help="Languages of the test set, as in en-de; BLEU's tokenizer depends on them.",
            show_default="the model's",
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
            help="BLEU's tokenizer: 13a, zh, ja-mecab, ko-mecab, intl, char, flores200, none.",
            show_default="by target language, else 13a",
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
            help="Bootstrap resamples for confidence intervals and p-values; 0 for neither.",
        ),
    ] = 1000,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed of the resamples.")] = 12345,
    save_hypotheses: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the model's translations here.")
    ] = None,
    json: Json = False,
) -> None:
    """Score translations of a model, or from files, with BLEU, chrF, chrF++ or TER."""
    from nmt.evaluation.gate import parse_gates, raise_if_missed
    from nmt.evaluation.scoring import Resampling
    from nmt.evaluation.test_set import SetChoice
    from nmt.recipes.evaluate import EvaluateOptions, ModelUse, run_evaluation

    use = None
    if model is None:
        _refuse_model_flags(ctx)
    else:
        loading = options.loading() | engine.loading() | {"guard": not search.no_guard}
        use = ModelUse(
            folder=model,
            loading=loading,
            mbr=mbr.choice(search.beam_size),
            overrides=search.set_,
            decoding=search.decoding(),
            save_hypotheses=save_hypotheses,
        )
    evaluation = run_evaluation(
        EvaluateOptions(
            model=use,
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
    )
    if json:
        print_json(evaluation.as_dict())
    else:
        typer.echo(evaluation.as_text())
    if evaluation.unsaved is not None:
        raise evaluation.unsaved
    raise_if_missed(evaluation.gates)


def _refuse_model_flags(ctx: typer.Context) -> None:
    """Refuse what would change nothing without a model."""
    groups = (ModelOptions, EngineOptions, SearchOptions, MbrOptions)
    if flags := given_flags(ctx, *groups, "save_hypotheses"):
        is_one = len(flags) == 1
        raise ConfigError(
            f"{', '.join(flags)} {'needs' if is_one else 'need'} a model.",
            fix=f"Name a model folder, or drop the flag{'' if is_one else 's'}.",
        )
