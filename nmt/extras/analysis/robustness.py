"""The same test under noise in its source: what each kind of noise costs. Pure.

Noise that changes which lines there are has its own rule: ``joined`` gives every two lines as one,
and is compared with the two clean translations joined; ``split`` cuts every line of two words or
more in the middle, and joins the translations of the halves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from nmt.metrics.metric import Scorer, as_quality
from nmt.metrics.result import NoiseLoss, System
from nmt.metrics.scoring import Resampling, measure
from nmt.metrics.significance import confidence_interval
from nmt.text.noise import NOISES

JOINED, SPLIT = "joined", "split"
_Lines = Sequence[str]


@dataclass(frozen=True, slots=True)
class NoisySource:
    """A test set's source with one kind of noise, to be translated."""

    noise: str
    lines: _Lines
    """What a model reads instead of the source."""
    groups: Sequence[int] = ()
    """For ``split``: how many lines each source line became."""

    def outputs(self, translated: _Lines, joiner: str) -> _Lines:
        """Return one output for each line that is scored."""
        if not self.groups:
            return translated
        rest = iter(translated)
        return [joiner.join(next(rest) for _ in range(count)) for count in self.groups]

    def scored(self, lines: _Lines, joiner: str) -> _Lines:
        """Return clean translations or references, as they are compared with the outputs."""
        return _joined(lines, joiner) if self.noise == JOINED else lines


def noisy_sources(source: _Lines, joiner: str, seed: int) -> Iterator[NoisySource]:
    """Yield the source with each kind of noise.

    Args:
        source: One sentence each.
        joiner: What stands between two sentences of a line of the source language.
        seed: Of the draws; line i gets the same noise whatever the others are.
    """
    for name, noise in NOISES.items():
        lines = [
            noise(line, Random(f"{seed} {name} {number}")) for number, line in enumerate(source)
        ]
        yield NoisySource(name, lines)
    yield NoisySource(JOINED, _joined(source, joiner))
    halves = [_halves(line) for line in source]
    yield NoisySource(SPLIT, [half for own in halves for half in own], list(map(len, halves)))


def noise_losses(
    system: System,
    noisy: NoisySource,
    translated: _Lines,
    references: Sequence[_Lines],
    make_scorers: Callable[[Sequence[_Lines]], Sequence[Scorer]],
    joiner: str,
    resampling: Resampling,
) -> Iterator[NoiseLoss]:
    """Yield what noise costs a system under each metric, with paired intervals.

    Args:
        system: With the translations of the clean source.
        noisy: The source with noise.
        translated: Translations of its lines.
        references: Of the clean source.
        make_scorers: Returns the metrics of some references.
        joiner: What stands between two sentences of a line of the target language.
        resampling: For intervals.
    """
    scorers = make_scorers([noisy.scored(stream, joiner) for stream in references])
    both = (noisy.scored(system.lines, joiner), noisy.outputs(translated, joiner))
    tables = [[scorer.statistics(lines) for scorer in scorers] for lines in both]
    for clean, found in zip(*measure(tables, scorers, resampling), strict=True):
        metric = clean.score.metric
        loss = as_quality({metric: clean.score.value - found.score.value}, metric)
        interval = None
        if clean.samples is not None and found.samples is not None:
            sign = as_quality({metric: 1.0}, metric)
            differences = sign * (clean.samples - found.samples)
            interval = confidence_interval(differences, seed=resampling.seed)
        yield NoiseLoss(
            system=system.name,
            noise=noisy.noise,
            metric=metric,
            clean=clean.score.value,
            noisy=found.score.value,
            loss=loss,
            confidence=interval,
        )


def _joined(lines: _Lines, joiner: str) -> _Lines:
    return [joiner.join(lines[start : start + 2]) for start in range(0, len(lines), 2)]


def _halves(line: str) -> _Lines:
    words = line.split(" ")
    middle = (len(words) + 1) // 2
    return [" ".join(words[:middle]), " ".join(words[middle:])] if len(words) > 1 else [line]
