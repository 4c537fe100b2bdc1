"""A search that is watched: what it read, found and kept at every step, by a `Stepper` around one.

The search runs as always and does not see the observer. One sentence at a time, greedy or beam
search. Also the search of texts that leave out the causal mask: all words are recomputed at every
step.

Shapes: K beams, V vocabulary, N packed target tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from nmt.config.decoding import DecodingConfig
from nmt.inference.stepper import ModelStepper, States
from nmt.model.transformer import Transformer
from nmt.packed import Packed
from nmt.search.beam import expand
from nmt.search.hypothesis import Hypothesis, Ids, length_penalty
from nmt.search.loop import coverage_penalty, search
from nmt.text import BOS_ID, EOS_ID, NUM_NEVER_CHOSEN


class Beam(NamedTuple):
    """A hypothesis that a step continued."""

    ids: Ids  # Tokens so far.
    parent: int | None  # Its place among the beams of the step before; None at the first step.
    log_prob: float  # Of all its tokens; minus infinity for a place without a hypothesis.
    # The most probable next tokens, and the model's probability of each, before any rule.
    likely: Sequence[tuple[int, float]]


class Finished(NamedTuple):
    """A hypothesis that ended."""

    beam: int  # Place of the beam that it ended in.
    hypothesis: Hypothesis
    coverage: float  # The part of its score that is the coverage penalty.


class SearchStep(NamedTuple):
    """What one step of the search saw."""

    beams: Sequence[Beam]
    finished: Sequence[Finished]


class SearchTrace(NamedTuple):
    """A search from beginning to end."""

    steps: Sequence[SearchStep]
    results: Sequence[Hypothesis]  # What the search returned, best first.


@dataclass(slots=True)
class _Moment:
    """What passed between search and stepper in one step."""

    ids: list[Ids]
    parents: list[int]
    likely: list[list[tuple[int, float]]]
    log_probs: Tensor  # (K, V); the search has its rules change it after the step.
    coverage: list[float] = field(default_factory=list)


class ObservingStepper:
    """Does what `nmt.inference.stepper.ModelStepper` does, and notes what passes.

    Args:
        model: On the CPU.
        options: Those of the search.
        num_likely: How many next tokens to note of each beam.
    """

    tokens: Tensor | None = None

    def __init__(self, model: Transformer, options: DecodingConfig, num_likely: int) -> None:
        self._weight, self._num_likely = options.coverage_penalty, num_likely
        self._inner = ModelStepper(model, with_coverage=self._weight > 0)
        self.max_positions = self._inner.max_positions
        self.moments: list[_Moment] = []
        self._kept: list[int] = []

    def start(self, source: Packed) -> States:
        """Read one source."""
        self._lengths = source.lengths
        return self._inner.start(source)

    def step(self, state: States, tokens: Tensor) -> tuple[Tensor, States]:
        """Note what the model finds likely after each beam."""
        log_probs, state = self._inner.step(state, tokens)
        ids: list[Ids] = [()]
        if self.moments:
            before = self.moments[-1].ids
            pairs = zip(self._kept, tokens[0].tolist(), strict=True)
            ids = [(*before[parent], token) for parent, token in pairs]
        shares, places = log_probs[0].exp().topk(min(self._num_likely, log_probs.shape[2]))
        rows = zip(places.tolist(), shares.tolist(), strict=True)
        likely = [list(zip(*row, strict=True)) for row in rows]
        self.moments.append(_Moment(ids, self._kept, likely, log_probs[0]))
        self._kept = list(range(len(ids)))
        return log_probs, state

    def select(self, state: States, sentences: Tensor, beams: Tensor) -> States:
        """Note which beams continue."""
        self._kept = beams[0].tolist()
        return self._inner.select(state, sentences, beams)

    def coverage(self, state: States) -> Tensor:
        """Note the coverage penalty."""
        found = self._inner.coverage(state)
        self.moments[-1].coverage = coverage_penalty(found, self._lengths, self._weight)[0].tolist()
        return found


@torch.inference_mode()
def trace_search(
    model: Transformer, source_ids: Sequence[int], options: DecodingConfig, num_likely: int
) -> SearchTrace:
    """Search for the translation of one sentence, and watch.

    Args:
        model: On the CPU, in evaluation mode.
        source_ids: Without special ids.
        options: Of greedy or beam search.
        num_likely: How many next tokens to note of each beam.
    """
    stepper = ObservingStepper(model, options, num_likely)
    (results,) = search(stepper, Packed.from_rows([[*source_ids, EOS_ID]]), options)
    steps, totals = list[SearchStep](), torch.zeros(1)
    for number, moment in enumerate(stepper.moments):
        parents: Sequence[int | None] = [None]
        if number:  # as the search adds: in float32
            before, parents = stepper.moments[number - 1].log_probs, moment.parents
            totals = totals[moment.parents] + before[moment.parents, [x[-1] for x in moment.ids]]
        rows = zip(moment.ids, parents, totals.tolist(), moment.likely, strict=True)
        steps.append(SearchStep([Beam(*row) for row in rows], _finished(moment, totals, options)))
    return SearchTrace(steps, results)


def _finished(moment: _Moment, totals: Tensor, options: DecodingConfig) -> list[Finished]:
    """Return what ends in EOS among the best K continuations, as greedy and beam search have it."""
    size = 1 if options.search == "greedy" else options.beam_size
    penalty, ended = length_penalty(options), list[Finished]()
    found = expand(totals.unsqueeze(0), moment.log_probs.unsqueeze(0), size)
    for beam, token, total in zip(*(x[0, :size].tolist() for x in found), strict=True):
        if token == EOS_ID and total > -torch.inf:
            ids, lost = moment.ids[beam], moment.coverage[beam] if moment.coverage else 0.0
            score = total / penalty(len(ids) + 1) + lost
            ended.append(Finished(beam, Hypothesis(ids, total, score), lost))
    return ended


@torch.inference_mode()
def recompute_words(model: Transformer, source: Packed, most: int) -> Iterator[list[int]]:
    """Translate by recomputing all words at every step, from those of the step before.

    With the causal mask no word ever changes, and the result is that of greedy search. Without it
    (see `nmt.extras.inspection.recording.without_causal_mask`) earlier words read later ones.

    Args:
        model: In evaluation mode.
        source: What the encoder reads: one sentence.
        most: Longest output, with EOS.

    Yields:
        The words of each step, one more than before, up to one that ends in EOS.
    """
    words: list[int] = []
    while len(words) < most and EOS_ID not in words[-1:]:
        logits = model.logits(model(source, Packed.from_rows([[BOS_ID, *words]])))
        logits[:, :NUM_NEVER_CHOSEN] = -torch.inf
        words = logits.argmax(-1).tolist()
        yield words
