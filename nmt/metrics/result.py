"""What an evaluation found, as frozen values that JSON, text, Markdown, JUnit XML and pages render.

Numbers have full precision here; renderers round and escape.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from nmt.errors import NmtError
from nmt.metrics.metric import Score
from nmt.metrics.significance import Confidence

if TYPE_CHECKING:
    from nmt.inference.result import Result
    from nmt.report.page import Chart

SMALL_SLICE = 30
"""A slice of fewer sentences is marked: its scores say little."""


@dataclass(frozen=True, slots=True)
class System:
    """Translations, what they are called, and their scores."""

    name: str
    """The model folder or the name of the file of translations."""
    lines: Sequence[str]
    settings: Mapping[str, str | int | float] = field(default_factory=dict)
    """How a model translated, for example ``engine`` and ``beam_size``; empty for a file of
    translations."""
    scores: tuple[Score, ...] = ()
    """One for each metric, in the order asked for; none before it is scored."""
    results: Sequence[Result] = ()
    """What the model says of each line: alarms of the guard, log probability, tokens if they were
    asked for. Empty for a file of translations."""
    sentence_scores: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """By metric, the score of each sentence; empty unless asked for."""
    curves: Sequence[Chart] = ()
    """Of the model's training, if it is a run."""

    def as_dict(self) -> dict[str, Any]:
        """Return name, scores and translations as plain values for JSON."""
        return {
            "name": self.name,
            "scores": [score.as_dict() for score in self.scores],
            **self.settings,
            "hypotheses": list(self.lines),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """One system at one gate."""

    kind: Literal["fail-under", "fail-if-worse"] = "fail-under"
    """A lowest score, or no significant loss against the baseline."""
    system: str
    """Name of the system."""
    metric: str
    """Name of the metric."""
    required: float
    """The lowest score allowed, or the score of the baseline."""
    value: float
    """What was found; full precision."""
    met: bool
    """Whether the gate lets the system pass."""
    baseline: str | None = None
    """Name of the baseline."""
    p_value: float | None = None
    """Of the difference from the baseline."""
    alpha: float | None = None
    """A p-value below it is significant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairComparison:
    """Two systems under one metric."""

    first: str
    second: str
    metric: str
    delta: float
    """Score of the second minus that of the first."""
    p_value: float
    """Of the paired test; not corrected for the number of pairs."""


@dataclass(frozen=True, slots=True)
class SliceScores:
    """How well one system translates one slice."""

    num_sentences: int
    scores: tuple[Score, ...] = ()
    """One for each metric; none for an empty slice."""

    @property
    def is_small(self) -> bool:
        """Whether it has too few sentences to say much."""
        return self.num_sentences < SMALL_SLICE


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """The sentences that have something in common, and how well each system translates them."""

    group: str
    """What the sentences are grouped by, for example ``source words``."""
    name: str
    """Which of them these are, for example ``10-19``."""
    systems: Mapping[str, SliceScores]
    """By system: in groups such as ``numbers`` each has sentences of its own."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        systems = [
            {
                "name": name,
                "num_sentences": each.num_sentences,
                "is_small": each.is_small,
                "scores": [score.as_dict() for score in each.scores],
            }
            for name, each in self.systems.items()
        ]
        return {"group": self.group, "name": self.name, "systems": systems}


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseLoss:
    """What noise in the source costs a system under one metric."""

    system: str
    noise: str
    """Kind of noise: one of `nmt.text.noise.NOISES`, ``joined`` or ``split``."""
    metric: str
    clean: float
    """Score without noise, of the same sentences (pairs of them for ``joined``)."""
    noisy: float
    """Score with noise."""
    loss: float
    """What the noise costs: positive is worse, whatever the metric's direction."""
    confidence: Confidence | None = None
    """95% interval of the loss by paired bootstrap resampling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContrastiveAccuracy:
    """How often a model finds the right translation more probable than the wrong one."""

    system: str
    category: str
    """Category of the pairs; ``all`` for the whole file."""
    num_pairs: int
    num_correct: int
    accuracy: float
    """Share of the pairs, 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidenceQuality:
    """How well a system's confidence predicts sentence chrF."""

    system: str
    num_sentences: int
    """Sentences with confidence."""
    pearson: float
    """Correlation of confidence with sentence chrF."""
    spearman: float
    """Correlation of their ranks."""
    calibration_error: float
    """Mean absolute difference of expected and actual chrF, by tenths of the sentences in the order
    of their confidence."""
    deciles: Sequence[tuple[float, float]]
    """Mean expected and mean actual chrF of each tenth, the least confident first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The scores of some systems on one test set."""

    test: str
    """Name of the test set."""
    references: Sequence[Sequence[str]]
    """Streams of reference lines; line i of each is a reference of sentence i."""
    source: Sequence[str] | None = None
    """Source lines, if they are known."""
    systems: tuple[System, ...]
    """What was scored."""
    baseline: System | None = None
    """What it was compared with."""
    pairs: tuple[PairComparison, ...] = ()
    """Every two of several systems; none with a baseline, or without resampling."""
    paired_test: str | None = None
    """Where p-values come from, in words; None where there are none."""
    gates: tuple[GateResult, ...] = ()
    """Every system at every gate."""
    slices: tuple[Slice, ...] = ()
    """Parts of the test set, if they were asked for; those of one group add up to the whole."""
    robustness: tuple[NoiseLoss, ...] = ()
    """Losses to noise, if they were asked for."""
    confidence: tuple[ConfidenceQuality, ...] = ()
    """Of each system that gives any."""

    @property
    def num_sentences(self) -> int:
        """Sentences scored."""
        return len(self.references[0])

    @property
    def num_references(self) -> int:
        """References of each sentence."""
        return len(self.references)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; what was not asked for is left out."""
        found = {
            "systems": [system.as_dict() for system in self.systems],
            "test": self.test,
            "num_sentences": self.num_sentences,
            "num_references": self.num_references,
            "references_sha256": hash_references(self.references),
            "baseline": self.baseline and self.baseline.as_dict(),
            "pairs": list(map(asdict, self.pairs)),
            "paired_test": self.paired_test,
            "gates": [_without_none(asdict(gate)) for gate in self.gates],
            "slices": [each.as_dict() for each in self.slices],
            "robustness": [_without_none(asdict(each)) for each in self.robustness],
            "confidence": list(map(asdict, self.confidence)),
        }
        return {name: value for name, value in found.items() if value}

    def sentences(self) -> Iterable[dict[str, Any]]:
        """Yield an object for every sentence of every system, with scores and the model's view."""
        for system in self.systems:
            for number, line in enumerate(system.lines):
                found: dict[str, Any] = {"test": self.test, "system": system.name}
                found |= {"line": number + 1}
                if self.source is not None:
                    found["source"] = self.source[number]
                found["hypothesis"] = line
                found["references"] = [stream[number] for stream in self.references]
                found["scores"] = {
                    metric: values[number] for metric, values in system.sentence_scores.items()
                }
                if system.results:
                    result = system.results[number]
                    found |= {"score": result.score, "log_prob": result.log_prob}
                    found["alarms"] = list(result.alarms)
                    if result.confidence is not None:
                        found["confidence"] = result.confidence
                yield found


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationReport:
    """All that one call of ``nmt evaluate`` found: one evaluation for each test set."""

    evaluations: tuple[Evaluation, ...]
    contrastive: tuple[ContrastiveAccuracy, ...] = ()
    """Accuracy of each model on contrastive pairs, if a file of them was given."""
    failures: tuple[NmtError, ...] = ()
    """What could not be computed or saved; to be raised once the scores are printed."""

    @property
    def gates(self) -> tuple[GateResult, ...]:
        """Every system at every gate on every test set."""
        return tuple(gate for each in self.evaluations for gate in each.gates)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: those of the test set, or a list of them for several."""
        several = [each.as_dict() for each in self.evaluations]
        found = several[0] if len(several) == 1 else {"evaluations": several}
        if self.contrastive:
            found["contrastive"] = list(map(asdict, self.contrastive))
        return found


def hash_references(references: Iterable[Sequence[str]]) -> str:
    """Return what tells one test set from another: sha256 of its references."""
    digest = hashlib.sha256()
    for stream in references:
        for line in stream:
            digest.update(line.encode("utf-8", "surrogatepass") + b"\n")
        digest.update(b"\0")
    return digest.hexdigest()


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
