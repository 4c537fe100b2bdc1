"""``nmt evaluate``: translations and references -> scores, and an exit code for scripts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from nmt.cli.evaluate_options import (
    AnalysisOptions,
    GateOptions,
    MetricOptions,
    OutputOptions,
    TestOptions,
)
from nmt.cli.options import (
    JSON,
    EngineOptions,
    MbrOptions,
    SearchOptions,
    given_flags,
    print_result,
)
from nmt.errors import ConfigError

if TYPE_CHECKING:
    from nmt.commands.evaluate_options import EvaluateOptions
    from nmt.commands.evaluated_model import ModelUse
    from nmt.metrics.result import EvaluationReport

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
    from nmt.commands.evaluate import run_evaluation
    from nmt.extras.analysis.gates import raise_if_missed

    folders, test = _named_by_position(models, test)
    if test.list_:
        from nmt.commands.evaluated_model import list_tests

        names = list_tests(folders)
        print_result("\n".join(names), {"tests": names}, json=json)
        return
    groups = [] if folders or gate.baseline_model else [EngineOptions, SearchOptions, MbrOptions]
    _refuse_idle(given_flags(ctx, *groups, *([] if folders else ["save_hypotheses", "tag"])))
    options = _options(folders, test, metric, gate, analysis, output, search, mbr, engine)
    found = run_evaluation(options)
    _print_found(found, sentence_level=output.sentence_level, json=json)
    for error in found.failures:
        raise error
    raise_if_missed(found.gates)


def _options(
    folders: Sequence[Path],
    test: TestOptions,
    metric: MetricOptions,
    gate: GateOptions,
    analysis: AnalysisOptions,
    output: OutputOptions,
    search: SearchOptions,
    mbr: MbrOptions,
    engine: EngineOptions,
) -> EvaluateOptions:
    from nmt.commands.evaluate_options import EvaluateOptions
    from nmt.commands.evaluated_model import ModelUse
    from nmt.extras.analysis.gates import parse_gates

    use = partial(ModelUse, overrides=search.set_, decoding=search.decoding(), tag=test.tag)
    loading = engine.loading() | search.loading()
    systems = partial(
        use, loading=loading, mbr=mbr.choice(search.beam_size),
        save_hypotheses=output.save_hypotheses,
    )  # fmt: skip
    base: Path | ModelUse | None = gate.baseline
    if gate.baseline_model:
        alone = loading | {"checkpoint": "best", "ensemble": None}
        base = use(folder=gate.baseline_model, loading=alone)
    return EvaluateOptions(
        models=tuple(systems(folder=folder) for folder in folders),
        hypotheses=tuple(test.hypothesis),
        tests=test.sets(),
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


def _print_found(found: EvaluationReport, *, sentence_level: bool, json: bool) -> None:
    from nmt.metrics.render import as_text

    if not sentence_level:
        print_result(as_text(found), found.as_dict(), json=json)
        return
    for each in found.evaluations:
        for sentence in each.sentences():
            print_result("", sentence, json=True)


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
    if all(path.is_dir() or path.suffix == ".yaml" for path in paths) or (
        len(paths) == 1 and not paths[0].is_file()
    ):
        return paths, test
    model, *files = paths
    if model.is_dir():
        *sources, reference = files
        flags = [*(f"--source {file}" for file in sources), f"--reference {reference}"]
        problem, command = f"{model} is a model: say what the files are.", [str(model), *flags]
    elif len(files) == 1 and not (test.hypothesis or test.reference):
        return [], replace(test, hypothesis=[model], reference=list(files))
    elif not (files or test.hypothesis) and (test.test or test.reference):
        return [], replace(test, hypothesis=[model])
    else:
        *systems, reference = (model, *files) if files else (model, Path("REFERENCE"))
        flags = [f"--hypothesis {file}" for file in (*systems, *test.hypothesis)]
        problem, command = f"{model} is no model.", [*flags, f"--reference {reference}"]
        if len(files) > 1:
            problem = f"Which of {', '.join(map(str, paths))} is the reference is not clear."
    raise ConfigError(problem, fix=f"Type: nmt evaluate {' '.join(command)}")
