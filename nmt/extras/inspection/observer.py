"""A search that is watched: what it read, found and kept at every step, by a `Stepper` around one.

The search runs as always and knows nothing of it. One sentence at a time, greedy or beam search.
And the search of those who leave out the causal mask: all words are recomputed at every step.

Shapes: K beams, V vocabulary, N packed target tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from nmt.config.decoding import DecodingConfig
from nmt.inference.stepper import ModelStepper, States, source_of
from nmt.model.transformer import Transformer
from nmt.packed import Packed
from nmt.search.beam import expand
from nmt.search.hypothesis import Hypothesis, Ids, length_penalty
from nmt.search.loop import coverage_penalty, search
from nmt.text import BOS_ID, EOS_ID, NUM_NEVER_CHOSEN


class Beam(NamedTuple):
    """A hypothesis that a step continued."""

    ids: Ids
    """Tokens so far."""
    parent: int | None
    """Its place among the beams of the step before; None at the first step."""
    log_prob: float
    """Of all its tokens; minus infinity for a place without a hypothesis."""
    likely: Sequence[tuple[int, float]]
    """The most probable next tokens, and the model's probability of each, before any rule."""


class Finished(NamedTuple):
    """A hypothesis that ended."""

    beam: int
    """Place of the beam that it ended in."""
    hypothesis: Hypothesis
    coverage: float
    """The part of its score that is the coverage penalty."""


class SearchStep(NamedTuple):
    """What one step of the search saw."""

    beams: Sequence[Beam]
    finished: Sequence[Finished]


class SearchTrace(NamedTuple):
    """A search from beginning to end."""

    steps: Sequence[SearchStep]
    results: Sequence[Hypothesis]
    """What the search returned, best first."""
    cache_difference: float
    """Largest difference between a log probability after a cached step and after reading the whole
    prefix at once."""


@dataclass(slots=True)
class _Moment:
    """What passed between search and stepper in one step."""

    ids: list[Ids]
    parents: list[int]
    likely: list[list[tuple[int, float]]]
    log_probs: Tensor
    """(K, V); the search has its rules change it after the step."""
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
        self._model, self._weight, self._num_likely = model, options.coverage_penalty, num_likely
        self._inner = ModelStepper(model, with_coverage=self._weight > 0)
        self.max_positions = self._inner.max_positions
        self.moments: list[_Moment] = []
        self.cache_difference = 0.0
        self._kept: list[int] = []

    def start(self, source: Packed) -> States:
        """Read one source."""
        assert len(source) == 1
        self._source, self._read = source, source_of(self._model, source)
        self._memory = self._model.encode(self._read)
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
        likely = [
            list(zip(*pair, strict=True))
            for pair in zip(places.tolist(), shares.tolist(), strict=True)
        ]
        difference = self._difference(log_probs[0], ids)
        self.cache_difference = max(self.cache_difference, difference)
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
        penalty = coverage_penalty(found, self._source.lengths, self._weight)
        self.moments[-1].coverage = penalty[0].tolist()
        return found

    def _difference(self, log_probs: Tensor, ids: Sequence[Ids]) -> float:
        """Compare log probabilities (K, V) of a cached step with reading all prefixes whole."""
        target = Packed.from_rows([[BOS_ID, *prefix] for prefix in ids])
        source = Packed.from_rows(self._read.rows() * len(ids))
        hidden = self._model.decode(target, self._memory.repeat(len(ids), 1), source)
        whole = _log_probs(self._model, hidden[target.cu_seqlens[1:] - 1])
        differences = (whole - log_probs).abs()
        return float(differences[log_probs.isfinite()].max())


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
        if number:  # as the search adds: in float32
            before = stepper.moments[number - 1].log_probs
            last = [ids[-1] for ids in moment.ids]
            totals = totals[moment.parents] + before[moment.parents, last]
        parents = moment.parents if number else [None]
        rows = zip(moment.ids, parents, totals.tolist(), moment.likely, strict=True)
        steps.append(SearchStep([Beam(*row) for row in rows], _finished(moment, totals, options)))
    return SearchTrace(steps, results, stepper.cache_difference)


def _finished(moment: _Moment, totals: Tensor, options: DecodingConfig) -> list[Finished]:
    """Return what ends in EOS among the best K continuations, as greedy and beam search have it."""
    size = 1 if options.search == "greedy" else options.beam_size
    penalty = length_penalty(options)
    found = expand(totals.unsqueeze(0), moment.log_probs.unsqueeze(0), size)
    ended = []
    for beam, token, total in zip(*(x[0, :size].tolist() for x in found), strict=True):
        if token == EOS_ID and total > -torch.inf:
            ids, lost = moment.ids[beam], moment.coverage[beam] if moment.coverage else 0.0
            score = total / penalty(len(ids) + 1) + lost
            ended.append(Finished(beam, Hypothesis(ids, total, score), lost))
    return ended


@torch.inference_mode()
def next_log_probs(model: Transformer, source: Packed, target: Packed) -> Tensor:
    """Return the log probabilities of the token after each one of the target: (N, V).

    PAD, UNK and BOS have minus infinity, as in a search.
    """
    return _log_probs(model, model(source, target))


def _log_probs(model: Transformer, hidden: Tensor) -> Tensor:
    logits = model.logits(hidden)
    logits[:, :NUM_NEVER_CHOSEN] = -torch.inf
    return logits.log_softmax(-1)


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
        log_probs = next_log_probs(model, source, Packed.from_rows([[BOS_ID, *words]]))
        words = log_probs.argmax(-1).tolist()
        yield words
