"""The flags of ``nmt evaluate``, by what they are about."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from nmt.cli.options import TAG, flag
from nmt.errors import ConfigError
from nmt.metrics import DEFAULT_RESAMPLES, DEFAULT_SEED, DEFAULT_TRIALS
from nmt.metrics.metric import METRICS

if TYPE_CHECKING:
    from nmt.metrics.scoring import Resampling
    from nmt.metrics.test_set import SetChoice


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

    def sets(self) -> tuple[SetChoice, ...]:
        """Return the test sets that are named; one of files, or the model's own, where none is."""
        from nmt.metrics.test_set import SetChoice

        sets = [SetChoice(name=name, pair=self.languages) for name in self.test]
        if self.reference or self.source or not sets:
            references = tuple(self.reference)
            sets.append(SetChoice(pair=self.languages, source=self.source, references=references))
        return tuple(sets)


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

    @property
    def baseline_model(self) -> Path | None:
        """The baseline if it is a model."""
        return self.baseline if self.baseline and self.baseline.is_dir() else None

    def resampling(self) -> Resampling:
        """Return what is behind intervals and p-values."""
        from nmt.metrics.scoring import Resampling

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
