"""Beam search (Graves 2012; Sutskever et al. 2014): plain, diverse, or with required phrases.

Required phrases follow Hokamp and Liu (2017), with the beam divided as in Post and Vilar (2018). In
addition, the score is lowered when a hypothesis continues although EOS is probable. This places the
phrases inside the sentence.

Shapes: B active sentences, K beams in G groups of k, V vocabulary, t tokens generated so far.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from nmt.search.hypothesis import Hypothesis, Ids, contains, length_penalty
from nmt.search.selector import (
    BeamState,
    FinishedHypotheses,
    SearchInputs,
    Selection,
    Selector,
    largest,
)
from nmt.text import EOS_ID, PAD_ID

# For each phrase, how many of its first tokens the output ends with; the whole length once the
# output contains the phrase.
Progress = tuple[int, ...]
# Cost, in nats, of continuing for a phrase where EOS is the most probable token.
_PAST_END = 10.0


class Candidates(NamedTuple):
    """The best continuations of the hypotheses of each sentence, best first. On the CPU."""

    parents: Tensor  # Beam that each candidate continues. (B, 2K), int64.
    tokens: Tensor  # Id that each candidate appends. (B, 2K), int64.
    log_probs: Tensor  # Log probability of the whole extended hypothesis. (B, 2K), float32.

    def active(self, beam_size: int) -> Candidates:
        """Return the best ``beam_size`` candidates that do not end in EOS, in the same order.

        If there are too few, the rest are ended candidates with a log probability of minus
        infinity.
        """
        ends = self.tokens == EOS_ID
        if not bool(ends.any()):
            return Candidates(*(x[:, :beam_size] for x in self))
        order = ends.int().argsort(dim=1, stable=True)[:, :beam_size]
        totals = self.log_probs.masked_fill(ends, -math.inf)
        return Candidates(*(x.gather(1, order) for x in (self.parents, self.tokens, totals)))


def expand(totals: Tensor, log_probs: Tensor, beam_size: int) -> Candidates:
    """Rank all continuations of every sentence and keep the best 2 x ``beam_size``.

    At most one continuation of each beam ends in EOS, so at least ``beam_size`` unfinished
    candidates remain. Ties are broken by the better beam, then by the lower token id.

    Args:
        totals: Log probability of each hypothesis, best first; minus infinity marks an empty beam.
            (B, K), float32, on the CPU. K is 1 at the first step, later ``beam_size``.
        log_probs: Log probability of each next token. (B, K, V), float32, on any device.
        beam_size: Number of beams.

    Returns:
        2 x ``beam_size`` candidates for each sentence, best first.
    """
    # Rank within each beam first: the host then sorts 2K x K sums instead of K x V.
    of_beam, tokens = largest(log_probs, 2 * beam_size)
    sums = (totals.unsqueeze(-1) + of_beam).flatten(1)
    best, order = torch.sort(sums, stable=True, dim=-1, descending=True)
    best, order = best[:, : 2 * beam_size], order[:, : 2 * beam_size]
    found = Candidates(order // of_beam.shape[-1], tokens.flatten(1).gather(1, order), best)
    short = 2 * beam_size - order.shape[1]
    if not short:
        return found
    # The vocabulary is smaller than the beam: fill up with empty candidates.
    fillings = zip(found, (0, 0, -math.inf), strict=True)
    return Candidates(*(F.pad(x, (0, short), value=filling) for x, filling in fillings))


class BeamSelector(Selector):
    """Plain beam search: keeps the K best continuations of each sentence.

    A hypothesis finishes if it ends in EOS *and* is among the best K, so a beam of one is greedy
    search. The search of a sentence stops after K finished hypotheses, or earlier if no unfinished
    hypothesis can still reach the n-best list.
    """

    def __init__(self, inputs: SearchInputs, num_groups: int = 1) -> None:
        options, self._count = inputs.options, len(inputs.source)
        self._num_groups, self._n_best = num_groups, options.n_best
        self._beam_size = options.beam_size // num_groups  # of each group
        size, most = self._beam_size, min(self._beam_size, self._n_best)
        self._finished = FinishedHypotheses(
            inputs, beam_size=size, n_best=most, pools_per_sentence=num_groups
        )

    @override
    def select(self, beams: BeamState, log_probs: Tensor, coverage: Tensor | None) -> Selection:
        found = self._expand(beams, log_probs)
        self._finish(found, beams.sentences, beams.history, coverage)
        parents, tokens, totals = found.active(self._beam_size)
        active = self._finished.active(beams.sentences, totals[:, 0])
        return Selection(tokens, totals, parents, active)

    def _expand(self, beams: BeamState, log_probs: Tensor) -> Candidates:
        """Return candidates, best first.

        An EOS candidate counts only among the first K. The first K candidates without EOS continue.
        """
        return expand(beams.totals, log_probs, self._beam_size)

    def _finish(
        self, found: Candidates, pools: Tensor, history: Tensor, coverage: Tensor | None
    ) -> None:
        """Add candidates among the best K that end in EOS to the ``pools`` (B,)."""
        ends = found.tokens[:, : self._beam_size] == EOS_ID
        if not bool(ends.any()):
            return
        ends &= found.log_probs[:, : self._beam_size].isfinite()
        rows, ranks = ends.nonzero(as_tuple=True)
        if len(rows):
            parents, log_probs = found.parents[rows, ranks], found.log_probs[rows, ranks]
            lost = None if coverage is None else coverage[rows, parents]
            self._finished.add(pools[rows], history[rows, parents], log_probs, lost)

    @override
    def results(self) -> list[list[Hypothesis]]:
        """Return the n-best list of every sentence, by score.

        Groups contribute in turn: the best of each group, then the second best of each group.
        """
        found, groups = [], self._num_groups
        for first in range(0, self._count * groups, groups):
            rounds = zip_longest(*map(self._finished.ranked, range(first, first + groups)))
            # Groups may find the same output: keep it once.
            unique = {h.ids: h for round_ in rounds for h in round_ if h is not None}
            best = list(unique.values())[: self._n_best]
            found.append(sorted(best, key=lambda hypothesis: -hypothesis.score))
        return found


class DiverseSelector(BeamSelector):
    """Diverse beam search: groups of beams avoid each other's tokens (Vijayakumar et al. 2016).

    Groups choose tokens one after another; the first group is plain beam search with k beams. In a
    later group, a token loses ``diverse_beam_strength`` for each beam of an earlier group that
    chose it in this step (Hamming diversity). This penalty only affects the ranking, not the log
    probabilities of hypotheses. A group stops when it has enough finished hypotheses.
    """

    def __init__(self, inputs: SearchInputs) -> None:
        super().__init__(inputs, inputs.options.diverse_beam_groups)
        self._strength = inputs.options.diverse_beam_strength

    @override
    def select(self, beams: BeamState, log_probs: Tensor, coverage: Tensor | None) -> Selection:
        pools = beams.sentences.unsqueeze(1) * self._num_groups + torch.arange(self._num_groups)
        full = self._finished.full(pools)  # (B, G)
        taken = torch.zeros_like(log_probs[:, 0])  # (B, V)
        rows, groups = torch.arange(len(taken), device=taken.device).unsqueeze(1), []
        for group in range(self._num_groups):
            first = group * self._beam_size if beams.history.shape[1] > 1 else 0
            own = slice(first, first + self._beam_size)
            # A full group continues with empty beams, so that all groups keep the same width.
            before = beams.totals[:, own].masked_fill(full[:, group, None], -torch.inf)
            # The penalty only affects the ranking: the totals below are sums of `log_probs`.
            ranked = log_probs[:, own] - self._strength * taken.unsqueeze(1)
            found = expand(before, ranked, self._beam_size)
            where = rows, *(x.to(rows.device) for x in (found.parents + first, found.tokens))
            own_total = before.gather(1, found.parents) + log_probs[where].cpu()
            found = found._replace(log_probs=own_total)
            lost = None if coverage is None else coverage[:, own]
            self._finish(found, pools[:, group], beams.history[:, own], lost)
            parents, tokens, totals = found.active(self._beam_size)
            groups.append((parents + first, tokens, totals))
            taken.scatter_add_(1, tokens.to(taken.device), totals.isfinite().to(taken))
        parents, tokens, totals = (torch.cat(parts, dim=1) for parts in zip(*groups, strict=True))
        best = totals.unflatten(1, (self._num_groups, -1)).amax(-1)
        return Selection(tokens, totals, parents, self._finished.active(pools, best).any(1))


@lru_cache(1 << 16)
def _advance(phrase: Ids, matched: int, token: int) -> int:
    """Return how many first tokens of ``phrase`` are matched after one more token.

    This is a step of the Knuth-Morris-Pratt automaton of the phrase.

    Args:
        phrase: Token ids.
        matched: Matched tokens before.
        token: The new token.

    >>> _advance((4, 4, 5, 4, 4, 6), 5, 5), _advance((4, 4, 5), 2, 6)
    (3, 0)
    """
    seen = (*phrase[:matched], token)
    return next(n for n in range(len(seen), -1, -1) if seen[len(seen) - n :] == phrase[:n])


class RequiredPhrases:
    """Tracks which required phrases of one sentence an output contains.

    Args:
        phrases: Token ids of each phrase. A phrase inside another phrase is dropped.
    """

    def __init__(self, phrases: Sequence[Ids]) -> None:
        unique = dict.fromkeys(phrases)

        def is_inside(phrase: Ids) -> bool:
            return any(contains(other, phrase) for other in unique if other != phrase)

        self.phrases = tuple(phrase for phrase in unique if not is_inside(phrase))
        self.num_tokens = sum(map(len, self.phrases))  # Tokens of all phrases.
        self.start: Progress = (0,) * len(self.phrases)  # Progress of an empty output.

    def advance(self, progress: Progress, token: int) -> Progress:
        """Return the progress after one more token."""
        return tuple(
            matched if matched == len(phrase) else _advance(phrase, matched, token)
            for phrase, matched in zip(self.phrases, progress, strict=True)
        )

    def wanted(self, progress: Progress) -> set[int]:
        """Return the tokens that continue or start a phrase."""
        return {phrase[matched] for phrase, matched in self._open(progress)}

    def num_met(self, progress: Progress) -> int:
        """Return the number of met tokens: of all finished phrases, and of the longest started one.

        The output contains all phrases if this equals ``num_tokens``.
        """
        begun = max((matched for _, matched in self._open(progress)), default=0)
        missing = sum(len(phrase) for phrase, _ in self._open(progress))
        return self.num_tokens - missing + begun

    def _open(self, progress: Progress) -> Iterator[tuple[Ids, int]]:
        pairs = zip(self.phrases, progress, strict=True)
        return ((phrase, matched) for phrase, matched in pairs if matched < len(phrase))


def bank_sizes(counts: Sequence[int], beam_size: int) -> list[int]:
    """Divide the beam among banks, the sets of hypotheses with equally many met tokens.

    Every bank gets the same number of beams; the last bank also gets the remainder. Beams that a
    bank cannot fill are given to the highest banks with more candidates.

    Source: Post and Vilar (2018), section 3.2, except that they pass unused beams to neighbours.

    Args:
        counts: Candidates in each bank, by number of met tokens.
        beam_size: Number of beams.

    Returns:
        Beams of each bank, at most its count. They sum to ``beam_size``, or to all candidates.

    >>> bank_sizes([9, 9, 1], 8)
    [2, 5, 1]
    >>> bank_sizes([9, 9, 0, 0], 3)
    [0, 3, 0, 0]
    """
    share, rest = divmod(beam_size, len(counts))
    sizes = [min(count, share) for count in counts]
    sizes[-1] = min(counts[-1], share + rest)
    left = beam_size - sum(sizes)
    for bank in reversed(range(len(counts))):
        extra = min(left, counts[bank] - sizes[bank])
        sizes[bank] += extra
        left -= extra
    return sizes


class _Candidate(NamedTuple):
    """One continuation. Candidates are sorted by their fields, in this order."""

    cost: float  # Negative log probability plus ``past_end``.
    beam: int
    token: int
    progress: Progress
    past_end: float  # `_PAST_END` or 0.


class ConstrainedSelector(BeamSelector):
    """Beam search with required phrases (lexical constraints).

    Candidates are those of plain beam search, and for each beam its best token and all tokens that
    continue a required phrase. The beam is divided by the number of met tokens: see `bank_sizes`. A
    hypothesis may only end if it contains all phrases. A hypothesis that continues for a phrase
    where EOS is most probable pays `_PAST_END` nats. Sentences without required phrases use plain
    beam search.
    """

    meets_required_phrases = True

    def __init__(self, inputs: SearchInputs) -> None:
        super().__init__(inputs)
        self._phrases = [RequiredPhrases(own.required) for own in inputs.constraints]
        self._progress = [[own.start] for own in self._phrases]  # for each sentence and beam
        self._past_end = [[0.0] for _ in self._phrases]
        self._paid: dict[int, list[float]] = {}  # costs of the beams before this step
        self._penalty = length_penalty(inputs.options)

    @override
    def _expand(self, beams: BeamState, log_probs: Tensor) -> Candidates:
        found = super()._expand(beams, log_probs)
        best = log_probs.argmax(dim=-1).tolist()
        for row, sentence in enumerate(beams.sentences.tolist()):
            own = self._phrases[sentence]
            if not own.num_tokens:
                continue
            both = zip(self._progress[sentence], best[row], strict=True)
            wanted = ({first, *own.wanted(progress)} for progress, first in both)
            steps = [(beam, token) for beam, chosen in enumerate(wanted) for token in chosen]
            parents, tokens = torch.tensor(steps).unbind(1)
            totals = beams.totals[row, parents] + log_probs[row, parents, tokens].cpu()
            more = Candidates(parents, tokens, totals)
            pairs = zip(found, more, strict=True)
            has_ended = [token == EOS_ID for token in best[row]]
            lists = [torch.cat((x[row], y)).tolist() for x, y in pairs]
            kept = self._divide(sentence, has_ended, *lists)
            for values, chosen in zip(found, zip(*kept, strict=True), strict=True):
                values[row] = torch.tensor(chosen)
        return found

    def _divide(
        self,
        sentence: int,
        has_ended: list[bool],
        parents: list[int],
        tokens: list[int],
        scores: list[float],
    ) -> list[tuple[int, int, float]]:
        """Return the candidates that end, then those that continue, and store their progress."""
        own, before = self._phrases[sentence], self._progress[sentence]
        paid = self._paid[sentence] = self._past_end[sentence]

        def candidate(beam: int, token: int, score: float) -> _Candidate:
            goes_on = has_ended[beam] and own.num_met(before[beam]) < own.num_tokens
            past_end = _PAST_END if goes_on else paid[beam]
            progress = own.advance(before[beam], token)
            return _Candidate(past_end - score, beam, token, progress, past_end)

        candidates = sorted(
            candidate(beam, token, score)
            for beam, token, score in set(zip(parents, tokens, scores, strict=True))
            if math.isfinite(score)
            and (token != EOS_ID or own.num_met(before[beam]) == own.num_tokens)
        )
        ended = [c for c in self._within_banks(own, candidates) if c.token == EOS_ID]
        live = self._within_banks(own, [c for c in candidates if c.token != EOS_ID])
        nothing = _Candidate(math.inf, 0, PAD_ID, own.start, 0.0)
        live += [nothing] * (self._beam_size - len(live))
        self._progress[sentence] = [candidate.progress for candidate in live]
        self._past_end[sentence] = [candidate.past_end for candidate in live]
        kept = ended + live + [nothing] * (self._beam_size - len(ended))
        return [(each.beam, each.token, each.past_end - each.cost) for each in kept]

    @override
    def _finish(
        self, found: Candidates, pools: Tensor, history: Tensor, coverage: Tensor | None
    ) -> None:
        costs = torch.zeros(history.shape[:2])
        for row, sentence in enumerate(pools.tolist()):
            if paid := self._paid.get(sentence):
                costs[row] = torch.tensor(paid)
        if self._paid:
            lost = -costs / self._penalty(history.shape[2] + 1)
            coverage = lost if coverage is None else coverage + lost
        super()._finish(found, pools, history, coverage)

    def _within_banks(
        self, own: RequiredPhrases, candidates: Sequence[_Candidate]
    ) -> list[_Candidate]:
        """Return the best candidates of each bank, in the same order."""
        banks = [own.num_met(candidate.progress) for candidate in candidates]
        counts = [banks.count(bank) for bank in range(own.num_tokens + 1)]
        places, kept = bank_sizes(counts, self._beam_size), []
        for candidate, bank in zip(candidates, banks, strict=True):
            if places[bank]:
                places[bank] -= 1
                kept.append(candidate)
        return kept
