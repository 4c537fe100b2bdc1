"""``nmt evaluate``: translations and references -> scores, and an exit code for scripts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import typer

from nmt.cli.options import (
    JSON,
    TAG,
    EngineOptions,
    MbrOptions,
    SearchOptions,
    flag,
    given_flags,
    print_result,
)
from nmt.errors import ConfigError
from nmt.metrics import DEFAULT_RESAMPLES, DEFAULT_SEED, DEFAULT_TRIALS
from nmt.metrics.metric import METRICS

if TYPE_CHECKING:
    from nmt.evaluation.result import EvaluationReport
    from nmt.evaluation.scoring import Resampling
    from nmt.evaluation.test_set import SetChoice
    from nmt.recipes.evaluated_model import ModelUse

EPILOG = """\b
Examples:
  nmt evaluate runs/demo
  nmt evaluate runs/base -t wmt14 -l en-de --fail-under bleu=27
  nmt evaluate out.en test.en
  nmt evaluate --hypothesis out.en --reference test.en --baseline old.en --fail-if-worse
  nmt evaluate runs/new --baseline runs/old --report report.json --report comment.md
  nmt evaluate runs/a runs/b -t wmt14 -t wmt17 -l en-de
  nmt translate runs/demo < in.de | nmt evaluate --hypothesis - --reference in.en

Exit code 6 means that a score is below --fail-under, or significantly worse than the baseline's
with --fail-if-worse.
"""


@dataclass(frozen=True, slots=True)
class TestOptions:
    """What is scored, and against what."""

    title: ClassVar[str] = "Test set and systems"

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
    test: list[str] = flag(
        "--test",
        "-t",
        default=[],
        metavar="NAME",
        help="Test set named in the model's configuration, or one of sacrebleu's. Repeatable. "
        "Default: the configuration's, if it names just one.",
        show_default=False,
    )
    tag: str | None = TAG
    languages: str | None = flag(
        "--languages",
        "-l",
        metavar="PAIR",
        help="Languages of the test set, as in en-de; BLEU's tokenizer depends on them.",
    )
    limit: int | None = flag(
        min=1, metavar="N", help="Score the first N sentences only.", show_default=False
    )
    list_: bool = flag(
        "--list",
        default=False,
        help="List the test sets that -t may name, those of the models first, and do nothing else.",
    )


@dataclass(frozen=True, slots=True)
class MetricOptions:
    """How it is scored."""

    title: ClassVar[str] = "Scores"

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
    external: str | None = flag(
        metavar="COMMAND",
        help="Also score with a program of yours (COMET, ...): it reads JSON lines with source, "
        "hypothesis and references, and writes one number a line; higher is better.",
        show_default=False,
    )


@dataclass(frozen=True, slots=True)
class GateOptions:
    """What the scores are compared with, and when the command fails."""

    title: ClassVar[str] = "Comparison and gates"

    baseline: Path | None = flag(
        metavar="FILE|RUN|REPORT.json",
        help="Compare with translations, with a model, or with an earlier --report FILE.json: "
        "shows differences and p-values.",
        show_default=False,
    )
    significance: Literal["bs", "ar"] | None = flag(
        help="Paired test: bootstrap resampling, or approximate randomisation.",
        show_default="bs; ar with --fail-if-worse, as it raises fewer false alarms",
    )
    alpha: float = flag(
        default=0.05, min=0, max=1, metavar="P", help="p-values below are significant."
    )
    fail_if_worse: bool = flag(
        default=False,
        help="Exit with code 6 if a --metric (or --external) is significantly worse than the "
        "baseline's.",
    )
    fail_under: list[str] = flag(
        default=[],
        metavar="METRIC=SCORE",
        help="Exit with code 6 if a score is lower, as in bleu=27,chrf=55. Repeatable.",
    )
    resamples: int | None = flag(
        min=0,
        max=1_000_000,
        metavar="N",
        help="Bootstrap resamples for confidence intervals and p-values, and exchanges of "
        "--significance ar; 0 for neither intervals nor p-values.",
        show_default=f"{DEFAULT_RESAMPLES}; ar {DEFAULT_TRIALS}",
    )
    seed: int = flag(default=DEFAULT_SEED, min=0, metavar="N", help="Seed of the resamples.")

    def resampling(self) -> Resampling:
        """Return what is behind intervals and p-values."""
        from nmt.evaluation.scoring import Resampling

        return Resampling(
            count=DEFAULT_RESAMPLES if self.resamples is None else self.resamples,
            seed=self.seed,
            significance=self.significance or ("ar" if self.fail_if_worse else "bs"),
            trials=self.resamples or DEFAULT_TRIALS,
        )


@dataclass(frozen=True, slots=True)
class AnalysisOptions:
    """Where a system is weak."""

    title: ClassVar[str] = "Analysis"

    slices: bool = flag(
        default=False,
        help="Score parts of the test set: by length, case, words that training had rarely or "
        "never, numbers and names kept or lost, length ratio, alarms of the guard.",
    )
    slice_: list[str] = flag(
        "--slice",
        default=[],
        metavar="NAME=FILE",
        help="Score parts of the test set by labels of yours: FILE has one for each sentence. "
        "Repeatable.",
    )

    robustness: bool = flag(
        default=False,
        help="Translate the test set again with typos, other case, no final punctuation, wrong "
        "spaces, decomposed Unicode, and lines joined and split: shows what is lost.",
    )
    contrastive: Path | None = flag(
        metavar="FILE",
        help="Lines of source, right and wrong translation and category, with tabs between: shows "
        "how often the right one is more probable.",
        show_default=False,
    )

    def labels(self) -> dict[str, Path]:
        """Return the files of labels by name.

        Raises:
            ConfigError: One has no name or no file.
        """
        found = {}
        for text in self.slice_:
            name, _, path = text.partition("=")
            if not (name and path):
                raise ConfigError(
                    f"--slice {text}: write NAME=FILE.", fix="For example --slice domain=labels.txt"
                )
            found[name] = Path(path)
        return found


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """What is written."""

    title: ClassVar[str] = "Output"

    report: list[Path] = flag(
        default=[],
        metavar="FILE",
        help="Also write the result, by the ending of FILE: .json (serves as --baseline later), "
        ".md (a comment for a pull request), .xml (JUnit, for a CI), .html (a page to read). "
        "Repeatable.",
    )
    sentence_level: bool = flag(
        default=False,
        help="Print JSON lines instead: one object for each sentence, with its scores.",
    )
    save_hypotheses: Path | None = flag(
        metavar="FILE", help="Write the model's translations here.", show_default=False
    )


def evaluate(
    ctx: typer.Context,
    test: TestOptions,
    metric: MetricOptions,
    gate: GateOptions,
    analysis: AnalysisOptions,
    output: OutputOptions,
    search: SearchOptions,
    mbr: MbrOptions,
    engine: EngineOptions,
    models: list[Path] = typer.Argument(
        default_factory=list,
        metavar="MODEL",
        help="Run folders or model folders whose translations are scored; or a file of "
        "translations and its reference, instead of --hypothesis and --reference.",
        show_default=False,
    ),
    *,
    json: bool = JSON,
) -> None:
    """Score models or files with BLEU, chrF, chrF++ or TER."""
    from nmt.evaluation.gates import parse_gates, raise_if_missed
    from nmt.recipes.evaluate import run_evaluation
    from nmt.recipes.evaluate_options import EvaluateOptions

    folders, test = _named_by_position(models, test)
    if test.list_:
        from nmt.recipes.evaluated_model import list_tests

        names = list_tests(folders)
        print_result("\n".join(names), {"tests": names}, json=json)
        return
    has_base = gate.baseline is not None and gate.baseline.is_dir()
    groups = [] if folders or has_base else [EngineOptions, SearchOptions, MbrOptions]
    _refuse_idle(given_flags(ctx, *groups, *([] if folders else ["save_hypotheses", "tag"])))
    loading = engine.loading() | search.loading()
    common: dict[str, Any] = {
        "overrides": search.set_,
        "decoding": search.decoding(),
        "tag": test.tag,
    }
    own: dict[str, Any] = {
        "mbr": mbr.choice(search.beam_size),
        "save_hypotheses": output.save_hypotheses,
    }
    uses = [_model_use(folder, loading=loading, **common, **own) for folder in folders]
    base: Path | ModelUse | None = gate.baseline
    if gate.baseline and has_base:
        loading |= {"checkpoint": "best", "ensemble": None}
        base = _model_use(gate.baseline, loading=loading, **common)
    found = run_evaluation(
        EvaluateOptions(
            models=tuple(uses),
            hypotheses=tuple(test.hypothesis),
            tests=_sets(test),
            limit=test.limit,
            metrics=tuple(name.strip() for text in metric.metric for name in text.split(",")),
            tokenize=metric.tokenize,
            lowercase=metric.lowercase,
            external=metric.external,
            baseline=base,
            gates=parse_gates(gate.fail_under),
            fail_if_worse=gate.fail_if_worse,
            alpha=gate.alpha,
            resampling=gate.resampling(),
            slices=analysis.slices,
            labels=analysis.labels(),
            robustness=analysis.robustness,
            contrastive=analysis.contrastive,
            sentence_level=output.sentence_level,
            reports=tuple(output.report),
        )
    )
    _print_found(found, sentence_level=output.sentence_level, json=json)
    for error in found.failures:
        raise error
    raise_if_missed(found.gates)


def _sets(test: TestOptions) -> tuple[SetChoice, ...]:
    """Return the test sets that are named; one of files, or the model's own, where none is."""
    from nmt.evaluation.test_set import SetChoice

    sets = [SetChoice(name=name, pair=test.languages) for name in test.test]
    if test.reference or test.source or not sets:
        references = tuple(test.reference)
        sets.append(SetChoice(pair=test.languages, source=test.source, references=references))
    return tuple(sets)


def _print_found(found: EvaluationReport, *, sentence_level: bool, json: bool) -> None:
    from nmt.evaluation.render import as_text

    if not sentence_level:
        print_result(as_text(found), found.as_dict(), json=json)
        return
    for each in found.evaluations:
        for sentence in each.sentences():
            print_result("", sentence, json=True)


def _model_use(folder: Path, **settings: Any) -> ModelUse:
    from nmt.recipes.evaluated_model import ModelUse

    return ModelUse(folder=folder, **settings)


def _refuse_idle(flags: Sequence[str]) -> None:
    if flags:
        is_one = len(flags) == 1
        raise ConfigError(
            f"{', '.join(flags)} {'needs' if is_one else 'need'} a model.",
            fix=f"Name a model folder, or drop the flag{'' if is_one else 's'}.",
        )


def _named_by_position(
    paths: Sequence[Path], test: TestOptions
) -> tuple[Sequence[Path], TestOptions]:
    """Tell models from translations and their reference: a model is a folder.

    Raises:
        ConfigError: What the files are is not clear; names the flags that say it.
    """
    if all(path.is_dir() for path in paths) or (len(paths) == 1 and not paths[0].is_file()):
        return paths, test
    model, *files = paths
    if model.is_dir():
        *sources, reference = files
        flags = [*(f"--source {file}" for file in sources), f"--reference {reference}"]
        problem, command = f"{model} is a model: say what the files are.", [str(model), *flags]
    elif len(files) == 1 and not (test.hypothesis or test.reference):
        return [], replace(test, hypothesis=[model], reference=list(files))
    else:
        *systems, reference = (model, *files) if files else (model, Path("REFERENCE"))
        flags = [f"--hypothesis {file}" for file in (*systems, *test.hypothesis)]
        problem, command = f"{model} is no model.", [*flags, f"--reference {reference}"]
    raise ConfigError(problem, fix=f"Type: nmt evaluate {' '.join(command)}")
