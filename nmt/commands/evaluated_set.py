"""A test set while it is evaluated: systems are gathered, then all are scored."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nmt.commands.evaluate_options import EvaluateOptions
from nmt.data.checks import likely_language
from nmt.errors import ConfigError, NmtError
from nmt.extras.analysis.baseline import read_baseline_report
from nmt.extras.analysis.confidence import confidence_quality
from nmt.extras.analysis.external import ExternalError, ExternalScorer
from nmt.extras.analysis.gates import check_gates, check_regressions
from nmt.extras.analysis.robustness import noise_losses, noisy_sources
from nmt.extras.analysis.slices import (
    groups_of_source,
    groups_of_system,
    leakage_group,
    score_slices,
    user_group,
)
from nmt.metrics.metric import METRICS, MetricOptions, References, Scorer, check_metric
from nmt.metrics.result import Evaluation, GateResult, NoiseLoss, Slice, System
from nmt.metrics.scoring import Scored, odd_texts, score_systems
from nmt.metrics.significance import Floats
from nmt.metrics.test_set import EvaluationSet, fitting_lines, read_systems

if TYPE_CHECKING:
    from nmt.commands.evaluated_model import EvaluatedModel

logger = logging.getLogger(__name__)

_QUICKLY_SEARCHED = 1_000_000
"""Training pairs in which leaks are looked for without ``--slices``: in half a minute."""


class EvaluatedSet:
    """A test set while it is evaluated: its systems, and what their scores are computed by.

    Args:
        whole: All of its sentences.
        options: Of the evaluation.
        owns_files: Whether files of translations and labels belong to it.
    """

    def __init__(
        self, whole: EvaluationSet, options: EvaluateOptions, *, owns_files: bool = True
    ) -> None:
        self.chosen, self._options = whole.first(options.limit), options
        references = self.chosen.references
        self.scorers = self._make_scorers(references)
        self._losses = list[NoiseLoss]()
        self.systems, self._models = list[System](), list["EvaluatedModel"]()
        files = options.hypotheses if owns_files else ()
        labels = options.labels if owns_files else {}
        self._files = read_systems(files, whole, options.limit)
        self._labels = {
            name: fitting_lines(path, whole, options.limit) for name, path in labels.items()
        }
        self.baseline: System | None = None
        self.inputs = [*files, *labels.values(), *whole.files]
        path = options.baseline
        if isinstance(path, Path):
            self.inputs.append(path)
            if path.suffix == ".json":
                self.baseline = read_baseline_report(path, whole.name, references, self.scorers)
            else:
                (self.baseline,) = read_systems([path], whole, options.limit, is_baseline=True)

    def _make_scorers(self, references: References) -> list[Scorer]:
        options = self._options
        metric_options = MetricOptions(
            tokenize=options.tokenize,
            lowercase=options.lowercase,
            target_language=self.chosen.target_language,
        )
        metrics = dict.fromkeys(map(check_metric, (*options.metrics, *options.gates)))
        return [Scorer(metric, references, metric_options) for metric in metrics]

    @property
    def source(self) -> Sequence[str]:
        """Source lines.

        Raises:
            ConfigError: There are none.
        """
        if self.chosen.source is None:
            raise ConfigError("A model needs source lines.", fix="Add --source FILE.")
        return self.chosen.source

    def translate(self, model: EvaluatedModel) -> None:
        """Add a model's translations, and what noise in the source costs it."""
        name, tag, options = self.chosen.name, self.chosen.tag, self._options
        system = model.translate(name, self.source, tag)
        self.systems.append(system)
        self._models.append(model)
        if not options.robustness:
            return
        read, written = model.joiners
        for noisy in noisy_sources(self.source, read, options.resampling.seed):
            found = model.translate(f"{name} ({noisy.noise})", noisy.lines, tag)
            self._losses += noise_losses(
                system, noisy, found.lines, self.chosen.references, self._make_scorers, written,
                options.resampling,
            )  # fmt: skip

    def evaluate(self, failures: list[NmtError]) -> Evaluation:
        """Score all systems; what cannot be computed is added to ``failures``."""
        options, chosen = self._options, self.chosen
        systems = [*self.systems, *self._files]
        self._warn(systems)
        scored, scorers = self._score(systems, failures)
        found = scored.systems
        if options.sentence_level:
            found = tuple(
                replace(system, sentence_scores=_sentence_scores(scorers, tables))
                for system, tables in zip(found, scored.tables, strict=True)
            )
        return Evaluation(
            test=chosen.name,
            references=chosen.references,
            source=chosen.source,
            systems=found,
            baseline=scored.baseline,
            pairs=scored.pairs,
            paired_test=options.resampling.paired_test if scored.pairs or scored.baseline else None,
            gates=tuple(gate for system in found for gate in self._gates(system)),
            slices=tuple(self._slices(found, scored.tables, scorers)),
            robustness=tuple(self._losses),
            confidence=tuple(
                filter(None, (confidence_quality(x, chosen.references) for x in found))
            ),
        )

    def _warn(self, systems: Sequence[System]) -> None:
        options, chosen = self._options, self.chosen
        for text in odd_texts(
            systems, chosen.references[0], options.tokenize, chosen.target_language
        ):
            logger.warning("%s", text)
        references = likely_language(chosen.references[0])
        for system in systems:
            found = likely_language(system.lines)
            if references and found and found != references:
                text = "%s looks like %s and the reference like %s: do they belong together?"
                logger.warning(text, system.name, found, references)
        utilities = {model.mbr.utility for model in options.models if model.mbr}
        for metric in utilities & {scorer.name for scorer in self.scorers}:
            text = "MBR with %s was asked for, so %s is optimistic; look at other metrics, too."
            logger.warning(text, *[METRICS[metric].label] * 2)
        if len(systems) > 1 and not self.baseline:
            logger.info("--baseline FILE compares every system with FILE instead of each other")

    def _slices(
        self,
        systems: Sequence[System],
        tables: Sequence[Sequence[Floats]],
        scorers: Sequence[Scorer],
    ) -> Iterator[Slice]:
        options, source = self._options, self.chosen.source
        common = [user_group(name, labels) for name, labels in self._labels.items()]
        seen = [model.training_text() for model in self._models]
        if options.slices and source is not None:
            counts = seen[0].counts(source) if seen and seen[0] else None
            common += groups_of_source(source, counts)
        groups = {system.name: list(common) for system in systems}
        for system, text in zip(systems, seen, strict=False):
            if source is not None and text and (options.slices or len(text) <= _QUICKLY_SEARCHED):
                leaks = text.leaks(source)
                if leaks or options.slices:
                    groups[system.name].insert(0, leakage_group(leaks, len(source)))
        if options.slices:
            for system in systems:
                own = groups_of_system(system, source, self.chosen.references)
                groups[system.name] += own
        return score_slices(systems, tables, scorers, options.resampling, groups)

    def _score(
        self, systems: Sequence[System], failures: list[NmtError]
    ) -> tuple[Scored, Sequence[Scorer]]:
        """Score with the external metric, too; without it if that fails."""
        options, chosen = self._options, self.chosen
        score = partial(score_systems, baseline=self.baseline, resampling=options.resampling)
        if options.external is not None:
            external = ExternalScorer(options.external, chosen.references, chosen.source)
            scorers = [*self.scorers, external]
            try:
                return score(systems, scorers), scorers
            except ExternalError as error:
                failures.append(error)
        return score(systems, self.scorers), self.scorers

    def _gates(self, system: System) -> Iterable[GateResult]:
        options = self._options
        found = check_gates(system.name, system.scores, options.gates)
        if options.fail_if_worse:
            # Metrics that only --fail-under names do not count, an external one does.
            names = [score.metric for score in system.scores]
            chosen = [name for name in names if name in options.metrics or name not in METRICS]
            found += check_regressions(system, chosen, options.alpha)
        return found


def _sentence_scores(
    scorers: Iterable[Scorer], tables: Iterable[Floats]
) -> Mapping[str, Sequence[float]]:
    pairs = zip(scorers, tables, strict=True)
    return {scorer.name: scorer.sentence_scores(table) for scorer, table in pairs}
