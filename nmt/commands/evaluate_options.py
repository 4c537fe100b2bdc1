"""All that ``nmt evaluate`` can be asked for, and what contradicts itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nmt.errors import ConfigError
from nmt.extras.analysis.gates import USUAL_ALPHA
from nmt.metrics.render import REPORTS
from nmt.metrics.scoring import Resampling
from nmt.metrics.test_set import SetChoice

if TYPE_CHECKING:
    from nmt.commands.evaluated_model import ModelUse

DEFAULT_METRICS = ("bleu", "chrf")
"""What is computed when no metric is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateOptions:
    """All options of ``nmt evaluate``."""

    models: tuple[ModelUse, ...] = ()
    """The models whose translations are scored."""
    hypotheses: tuple[Path, ...] = ()
    """Files of translations to score; ``-`` is standard input."""
    tests: tuple[SetChoice, ...] = (SetChoice(),)
    """What to score against. Of several, files of translations and labels belong to the one that is
    given as files."""
    limit: int | None = None
    """Score the first sentences only."""
    metrics: tuple[str, ...] = DEFAULT_METRICS
    """Names of metrics."""
    tokenize: str | None = None
    """BLEU's tokenizer; by target language when None."""
    lowercase: bool = False
    """Ignore case."""
    external: str | None = None
    """Command of an external metric; see `nmt.extras.analysis.external`."""
    baseline: Path | ModelUse | None = None
    """What every system is compared with: a file of translations, a report of an evaluation
    (``.json``), or a model."""
    gates: Mapping[str, float] = field(default_factory=dict)
    """Lowest scores allowed, by metric; their metrics are computed too."""
    fail_if_worse: bool = False
    """Whether a score that is significantly worse than the baseline's misses a gate."""
    alpha: float = USUAL_ALPHA
    """A difference whose p-value is below is significant."""
    resampling: Resampling = field(default_factory=Resampling)
    """Behind confidence intervals and p-values."""
    slices: bool = False
    """Whether to score parts of each test set by themselves."""
    labels: Mapping[str, Path] = field(default_factory=dict)
    """Groups of slices of the user's own: files with a label for each sentence, by name."""
    robustness: bool = False
    """Whether models translate the test set with noise in its source, too."""
    contrastive: Path | None = None
    """Right and wrong translations that models score; see `nmt.extras.analysis.contrastive`."""
    sentence_level: bool = False
    """Whether to score each sentence by itself, too."""
    reports: tuple[Path, ...] = ()
    """Files to write; their endings say what: see `nmt.metrics.render.REPORTS`."""


def check_options(options: EvaluateOptions) -> None:
    """Check what can be checked before anything is read.

    Raises:
        ConfigError: Options contradict each other.
    """
    if not (options.models or options.hypotheses):
        names = "".join(f" -t {test.name}" for test in options.tests if test.name)
        fix = f"Name a run folder, as in `nmt evaluate RUN{names}`, or give --hypothesis FILE."
        raise ConfigError("There is nothing to score.", fix=fix)
    baseline = options.baseline if isinstance(options.baseline, Path) else None
    files = [x for test in options.tests for x in (*test.references, test.source)]
    if [*options.hypotheses, *files, baseline].count(Path("-")) > 1:
        raise ConfigError("Standard input can be read once only.", fix="Name files instead.")
    _check_models(options)
    _check_sets(options)
    _refuse_itself(options)
    if options.fail_if_worse and (options.baseline is None or not options.resampling.count):
        what, fix = "--baseline", "Add --baseline FILE."
        if options.baseline is not None:
            what, fix = "resamples", "Leave --resamples 0 out."
        raise ConfigError(f"--fail-if-worse needs {what}.", fix=fix)
    for path in options.reports:
        if path.suffix not in REPORTS:
            raise ConfigError(
                f"--report {path}: the ending says what to write, and {path.suffix or 'none'} is "
                "unknown.",
                fix=f"Name it {', '.join(f'*{ending}' for ending in REPORTS)}.",
            )


def _check_sets(options: EvaluateOptions) -> None:
    """Check that every file belongs to a test set, and every test set has a system."""
    if len(options.tests) == 1:
        return
    has_files = any(test.references for test in options.tests)
    base = options.baseline
    if (
        not options.models
        or ((options.hypotheses or options.labels) and not has_files)
        or (isinstance(base, Path) and base.suffix != ".json")
    ):
        raise ConfigError(
            "A file of translations or labels belongs to one test set, and several are given.",
            fix="Name one test set, or models and reports instead of the file; with a model, "
            "--reference FILE says what the file belongs to.",
        )


def _refuse_itself(options: EvaluateOptions) -> None:
    """Refuse to compare a model with itself: flags such as --beam-size change both sides."""
    base = options.baseline
    if base is None or isinstance(base, Path):
        return
    for use in options.models:
        is_same = use.folder.resolve() == base.folder.resolve()
        if is_same and replace(use, folder=base.folder, save_hypotheses=None) == base:
            raise ConfigError(
                f"--baseline {base.folder}: both sides are the same model with the same options.",
                fix="Translate one side to a file first, with options of its own: `nmt translate "
                f"{base.folder} -i SOURCE -o FILE -b 5`. Then compare with --baseline FILE.",
            )


def _check_models(options: EvaluateOptions) -> None:
    """Check what is only for models, or for one of them."""
    if (options.robustness or options.contrastive) and not options.models:
        flag = "--robustness" if options.robustness else "--contrastive"
        raise ConfigError(f"{flag} needs a model.", fix="Name a model folder, or drop the flag.")
    is_single = len(options.models) <= 1 and len(options.tests) == 1
    for use in options.models:
        if use.save_hypotheses and not is_single:
            raise ConfigError(
                "--save-hypotheses is for one model and one test set.",
                fix="Use --report FILE.json, which keeps the translations of all.",
            )
        if use.loading.get("ensemble") and len(options.models) > 1:
            raise ConfigError(
                "--with does not go with several models.", fix="Evaluate the ensemble by itself."
            )
