"""What ``nmt evaluate`` can be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from nmt.errors import ConfigError
from nmt.evaluation.test_set import STANDARD_INPUT, SetChoice
from nmt.metrics.significance import DEFAULT_RESAMPLES, DEFAULT_SEED
from nmt.runtime.engine import Dtype
from nmt.runtime.ensemble import Ensemble
from nmt.translation.mbr import MbrChoice

DEFAULT_METRICS = ("bleu", "chrf")
"""What is computed when no metric is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateOptions:
    """Everything that ``nmt evaluate`` can be told."""

    model: Path | None = None
    """Run folder or model folder whose translations are scored."""
    hypotheses: tuple[Path, ...] = ()
    """Files of translations to score; ``-`` is standard input."""
    test: SetChoice = field(default_factory=SetChoice)
    """What to score against."""
    limit: int | None = None
    """Score the first sentences only."""
    metrics: tuple[str, ...] = DEFAULT_METRICS
    """Names of metrics."""
    tokenize: str | None = None
    """BLEU's tokenizer; by target language when None."""
    lowercase: bool = False
    """Ignore case."""
    baseline: Path | None = None
    """File of translations that every system is compared with."""
    gates: Mapping[str, float] = field(default_factory=dict)
    """Lowest scores allowed, by metric; their metrics are computed too."""
    resamples: int = DEFAULT_RESAMPLES
    """Resampled test sets behind confidence and significance; 0 leaves both out."""
    seed: int = DEFAULT_SEED
    """Seed of the resampling."""
    save_hypotheses: Path | None = None
    """Write the model's translations to this file."""
    checkpoint: str = "best"
    """Which checkpoint of a run folder."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to translate."""
    dtype: Dtype = "float32"
    """What the model's weights are multiplied in."""
    threads: int | None = None
    """CPU threads for translating."""
    ensemble: Ensemble | None = None
    """Models that translate together with ``model``."""
    mbr: MbrChoice | None = None
    """Choose among many candidates by a metric."""
    guard: bool = True
    """Search anew what does not look like a translation."""
    overrides: tuple[str, ...] = ()
    """``key=value`` changes of the model's configuration."""
    decoding: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the decoding section to change, for example ``beam_size``."""


def check_options(options: EvaluateOptions) -> None:
    """Check what can be checked before anything is read.

    Raises:
        ConfigError: Flags are missing or contradict each other.
    """
    if options.model is None and not options.hypotheses:
        raise ConfigError(
            "There is nothing to score.", fix="Name a model folder, or give --hypothesis FILE."
        )
    if options.model is None:
        _check_no_model_flags(options)
    if options.save_hypotheses is not None and not options.save_hypotheses.parent.is_dir():
        raise ConfigError(
            f"The folder of {options.save_hypotheses} does not exist.", fix="Create it first."
        )
    inputs = [*options.hypotheses, *options.test.references, options.test.source, options.baseline]
    if inputs.count(STANDARD_INPUT) > 1:
        raise ConfigError("Standard input can be read once only.", fix="Name files instead.")


def _check_no_model_flags(options: EvaluateOptions) -> None:
    flags = [f"--{name.replace('_', '-')}" for name in options.decoding]
    flags += ["--set"] if options.overrides else []
    flags += [] if options.ensemble is None else ["--with"]
    flags += [] if options.mbr is None else ["--mbr"]
    flags += [] if options.guard else ["--no-guard"]
    flags += ["--save-hypotheses"] if options.save_hypotheses is not None else []
    if flags:
        verb = "needs" if len(flags) == 1 else "need"
        raise ConfigError(
            f"{', '.join(flags)} {verb} a model.",
            fix=f"Name a model folder, or drop the flag{'s' if len(flags) > 1 else ''}.",
        )
