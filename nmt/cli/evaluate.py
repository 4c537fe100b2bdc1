"""``nmt evaluate``: translations and references -> scores, and an exit code for scripts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import typer

from nmt.cli.options import (
    JSON,
    EngineOptions,
    MbrOptions,
    SearchOptions,
    flag,
    given_flags,
    print_result,
)
from nmt.errors import ConfigError
from nmt.metrics.metric import METRICS

EPILOG = """\b
Examples:
  nmt evaluate runs/demo
  nmt evaluate runs/base -t wmt14 -l en-de --fail-under bleu=27
  nmt evaluate out.en test.en
  nmt evaluate --hypothesis out.en --reference test.en --baseline old.en
  nmt translate runs/demo < in.de | nmt evaluate --hypothesis - --reference in.en

Exit code 6 means that a score is below --fail-under.
"""


@dataclass(frozen=True, slots=True)
class ScoringOptions:
    """What is scored, and how."""

    title: ClassVar[str] = "General"

    hypothesis: list[Path] = flag(
        default=[], metavar="FILE", help="Translations to score; - is standard input. Repeatable."
    )
    source: Path | None = flag(
        metavar="FILE",
        help="Source lines of the test set, which the model translates.",
        show_default=False,
    )
    reference: list[Path] = flag(
        default=[],
        metavar="FILE",
        help="Reference translations. Repeatable: several references per sentence.",
    )
    test: str | None = flag(
        "--test",
        "-t",
        metavar="NAME",
        help="Test set named in the model's configuration, or one of sacrebleu's. "
        "Default: the configuration's, if it names just one.",
        show_default=False,
    )
    languages: str | None = flag(
        "--languages",
        "-l",
        metavar="PAIR",
        help="Languages of the test set, as in en-de; BLEU's tokenizer depends on them.",
    )
    limit: int | None = flag(
        min=1, metavar="N", help="Score the first N sentences only.", show_default=False
    )
    metric: list[str] = flag(
        default=["bleu", "chrf"],
        metavar="NAME",
        help=f"{', '.join(METRICS)}, or several with commas between. Repeatable.",
    )
    tokenize: str | None = flag(
        metavar="NAME",
        help="BLEU's tokenizer: 13a, zh, ja-mecab, ko-mecab, intl, char, flores200, none.",
        show_default="by target language, else 13a",
    )
    lowercase: bool = flag(default=False, help="Ignore case.")
    baseline: Path | None = flag(
        metavar="FILE",
        help="Translations to compare with: shows differences and paired bootstrap p-values.",
        show_default=False,
    )
    fail_under: list[str] = flag(
        default=[],
        metavar="METRIC=SCORE",
        help="Exit with code 6 if a score is lower, as in bleu=27,chrf=55. Repeatable.",
    )
    resamples: int = flag(
        default=1000,
        min=0,
        max=1_000_000,
        metavar="N",
        help="Bootstrap resamples for confidence intervals and p-values; 0 for neither.",
    )
    seed: int = flag(default=12345, min=0, metavar="N", help="Seed of the resamples.")
    save_hypotheses: Path | None = flag(
        metavar="FILE", help="Write the model's translations here.", show_default=False
    )


def evaluate(
    ctx: typer.Context,
    search: SearchOptions,
    mbr: MbrOptions,
    engine: EngineOptions,
    model: Path | None = typer.Argument(
        None,
        metavar="MODEL",
        help="Run folder or model folder whose translations are scored.",
        show_default=False,
    ),
    files: list[Path] = typer.Argument(
        default_factory=list,
        metavar="FILE",
        help="Without MODEL: translations, and their reference, instead of --hypothesis and "
        "--reference.",
        show_default=False,
    ),
    *,
    scoring: ScoringOptions,
    json: bool = JSON,
) -> None:
    """Score translations of a model, or from files, with BLEU, chrF, chrF++ or TER."""
    from nmt.evaluation.scoring import Resampling, parse_gates, raise_if_missed
    from nmt.evaluation.test_set import SetChoice
    from nmt.recipes.evaluate import EvaluateOptions, ModelUse, run_evaluation

    model, scoring = _named_by_position(model, files, scoring)
    use = None
    if model is not None:
        use = ModelUse(
            folder=model,
            loading=engine.loading() | search.loading(),
            mbr=mbr.choice(search.beam_size),
            overrides=search.set_,
            decoding=search.decoding(),
            save_hypotheses=scoring.save_hypotheses,
        )
    elif flags := given_flags(ctx, EngineOptions, SearchOptions, MbrOptions, "save_hypotheses"):
        is_one = len(flags) == 1
        raise ConfigError(
            f"{', '.join(flags)} {'needs' if is_one else 'need'} a model.",
            fix=f"Name a model folder, or drop the flag{'' if is_one else 's'}.",
        )
    evaluation = run_evaluation(
        EvaluateOptions(
            model=use,
            hypotheses=tuple(scoring.hypothesis),
            test=SetChoice(
                name=scoring.test,
                pair=scoring.languages,
                source=scoring.source,
                references=tuple(scoring.reference),
            ),
            limit=scoring.limit,
            metrics=tuple(name.strip() for text in scoring.metric for name in text.split(",")),
            tokenize=scoring.tokenize,
            lowercase=scoring.lowercase,
            baseline=scoring.baseline,
            gates=parse_gates(scoring.fail_under),
            resampling=Resampling(scoring.resamples, scoring.seed),
        )
    )
    print_result(evaluation.as_text(), evaluation.as_dict(), json=json)
    if evaluation.unsaved is not None:
        raise evaluation.unsaved
    raise_if_missed(evaluation.gates)


def _named_by_position(
    model: Path | None, files: Sequence[Path], scoring: ScoringOptions
) -> tuple[Path | None, ScoringOptions]:
    """Tell a model from translations and their reference: a model is a folder.

    Raises:
        ConfigError: What the files are is not clear; names the flags that say it.
    """
    if model is None or model.is_dir() or not (files or model.is_file()):
        if not files:
            return model, scoring
        *sources, reference = files
        flags = [*(f"--source {file}" for file in sources), f"--reference {reference}"]
        problem, command = f"{model} is a model: say what the files are.", [str(model), *flags]
    elif len(files) == 1 and not (scoring.hypothesis or scoring.reference):
        return None, replace(scoring, hypothesis=[model], reference=list(files))
    else:
        *systems, reference = (model, *files) if files else (model, Path("REFERENCE"))
        flags = [f"--hypothesis {file}" for file in (*systems, *scoring.hypothesis)]
        problem, command = f"{model} is no model.", [*flags, f"--reference {reference}"]
    raise ConfigError(problem, fix=f"Type: nmt evaluate {' '.join(command)}")
