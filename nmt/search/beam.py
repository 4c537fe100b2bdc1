"""Beam search (Graves 2012; Sutskever et al. 2014): plain, diverse, or with required phrases.

Required phrases follow Hokamp and Liu (2017), with the beam divided as in Post and Vilar (2018). In
addition, the score is lowered when a hypothesis continues although EOS is probable. This places the
phrases inside the sentence.

Shapes: B active sentences, K beams in G groups of k, V vocabulary, t tokens generated so far.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain, zip_longest
from math import inf, isfinite
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from nmt.search.hypothesis import Ids, NBestLists, contains, length_penalty
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
PhraseProgress = tuple[int, ...]
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
        if not ends.any():
            return Candidates(*(column[:, :beam_size] for column in self))
        order = ends.int().argsort(dim=1, stable=True)
        order = order[:, :beam_size]
        log_probs = self.log_probs.masked_fill(ends, -inf)
        columns = (self.parents, self.tokens, log_probs)
        return Candidates(*(column.gather(1, order) for column in columns))


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
    count = 2 * beam_size
    # Rank within each beam first: the host then sorts 2K x K sums instead of K x V.
    of_beam, tokens = largest(log_probs, count)
    sums = totals.unsqueeze(-1) + of_beam
    sums = sums.flatten(1)
    sums, order = sums.sort(stable=True, descending=True)
    sums = sums[:, :count]
    order = order[:, :count]
    parents = order // of_beam.shape[-1]
    tokens = tokens.flatten(1).gather(1, order)
    missing = count - order.shape[1]
    if missing:  # the vocabulary is smaller than the beam: fill up with empty candidates
        padding = (0, missing)
        parents = F.pad(parents, padding)
        tokens = F.pad(tokens, padding)
        sums = F.pad(sums, padding, value=-inf)
    return Candidates(parents, tokens, sums)


class BeamSelector(Selector):
    """Plain beam search: keeps the K best continuations of each sentence.

    A hypothesis finishes if it ends in EOS *and* is among the best K, so a beam of one is greedy
    search. The search of a sentence stops after K finished hypotheses, or earlier if no unfinished
    hypothesis can still reach the n-best list.
    """

    def __init__(self, inputs: SearchInputs, num_groups: int = 1) -> None:
        self._num_groups = num_groups
        self._n_best = inputs.options.n_best
        self._beam_size = inputs.options.beam_size // num_groups  # of each group
        self._finished = FinishedHypotheses(
            inputs,
            beam_size=self._beam_size,
            n_best=min(self._beam_size, self._n_best),
            pools_per_sentence=num_groups,
        )

    @override
    def select(self, beams: BeamState, log_probs: Tensor, coverage: Tensor) -> Selection:
        candidates = self._expand(beams, log_probs)
        self._finish(candidates, beams.sentences, beams.history, coverage)
        parents, tokens, totals = candidates.active(self._beam_size)
        active = self._finished.active(beams.sentences, totals[:, 0])
        return Selection(tokens, totals, parents, active)

    def _expand(self, beams: BeamState, log_probs: Tensor) -> Candidates:
        """Return candidates, best first.

        An EOS candidate counts only among the first K. The first K candidates without EOS continue.
        """
        return expand(beams.totals, log_probs, self._beam_size)

    def _finish(
        self,
        candidates: Candidates,
        pools: Tensor,
        history: Tensor,
        coverage: Tensor,
    ) -> None:
        """Add candidates among the best K that end in EOS to the ``pools`` (B,)."""
        ends = candidates.tokens[:, : self._beam_size] == EOS_ID
        if not ends.any():
            return
        ends &= candidates.log_probs[:, : self._beam_size].isfinite()
        rows, ranks = ends.nonzero(as_tuple=True)
        parents = candidates.parents[rows, ranks]
        log_probs = candidates.log_probs[rows, ranks]
        history = history[rows, parents]
        coverage = coverage[rows, parents]
        self._finished.add(pools[rows], history, log_probs, coverage)

    @override
    def results(self) -> NBestLists:
        """Return the n-best list of every sentence, by score.

        Groups contribute in turn: the best of each group, then the second best of each group.
        """
        results = []
        for pools in self._finished.by_sentence():
            # Groups may find the same output: keep it once.
            unique = {}
            for hypothesis in chain(*zip_longest(*pools)):
                if hypothesis is not None:
                    unique[hypothesis.ids] = hypothesis
            best = list(unique.values())[: self._n_best]
            results.append(sorted(best, key=lambda hypothesis: -hypothesis.score))
        return results


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
    def select(self, beams: BeamState, log_probs: Tensor, coverage: Tensor) -> Selection:
        size = self._beam_size
        first_pools = beams.sentences.unsqueeze(1) * self._num_groups
        pools = first_pools + torch.arange(self._num_groups)  # (B, G)
        is_full = self._finished.full(pools).unsqueeze(-1)  # (B, G, 1)
        num_chosen = torch.zeros_like(log_probs[:, 0])  # beams of earlier groups. (B, V)
        rows = torch.arange(len(pools)).unsqueeze(1)
        continued = []  # Candidates of each group.
        for group in range(self._num_groups):
            # At the first step all groups continue the same empty hypothesis.
            first = group * size
            if beams.history.shape[1] == 1:
                first = 0
            of_group = slice(first, first + size)
            # A full group continues with empty beams, so that all groups keep the same width.
            totals = beams.totals[:, of_group]
            totals = totals.masked_fill(is_full[:, group], -inf)
            values = log_probs[:, of_group]  # (B, k, V)
            # The penalty only affects the ranking: the totals below are sums of `values`.
            penalty = self._strength * num_chosen.unsqueeze(1)
            parents, tokens, _ = expand(totals, values - penalty, size)
            chosen = values[rows, parents, tokens].cpu()
            totals = totals.gather(1, parents) + chosen
            candidates = Candidates(parents, tokens, totals)
            history = beams.history[:, of_group]
            self._finish(candidates, pools[:, group], history, coverage[:, of_group])
            active = candidates.active(size)
            # Numbers of beams in the group become numbers of beams of the sentence.
            continued.append(active._replace(parents=active.parents + first))
            is_used = active.log_probs.isfinite().to(num_chosen)
            num_chosen.scatter_add_(1, active.tokens.to(log_probs.device), is_used)
        parents, tokens, totals = map(torch.hstack, zip(*continued, strict=True))
        best_of_groups = totals.unflatten(1, (self._num_groups, -1)).amax(-1)  # (B, G)
        active_groups = self._finished.active(pools, best_of_groups)
        return Selection(tokens, totals, parents, active_groups.any(1))


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
    for length in range(len(seen), 0, -1):
        if seen[-length:] == phrase[:length]:
            return length
    return 0


class RequiredPhrases:
    """Tracks which required phrases of one sentence an output contains.

    Args:
        phrases: Token ids of each phrase. A phrase inside another phrase is dropped.
    """

    def __init__(self, phrases: Sequence[Ids]) -> None:
        kept = []
        for phrase in dict.fromkeys(phrases):
            others = [other for other in phrases if other != phrase]
            if not any(contains(other, phrase) for other in others):
                kept.append(phrase)
        self.phrases = tuple(kept)
        self.num_tokens = sum(map(len, kept))  # Tokens of all phrases.
        self.start = (0,) * len(self.phrases)  # Progress of an empty output.

    def advance(self, progress: PhraseProgress, token: int) -> PhraseProgress:
        """Return the progress after one more token."""
        after = []
        for phrase, matched in zip(self.phrases, progress, strict=True):
            if matched < len(phrase):
                matched = _advance(phrase, matched, token)
            after.append(matched)
        return tuple(after)

    def wanted(self, progress: PhraseProgress) -> set[int]:
        """Return the tokens that continue or start a phrase."""
        return {phrase[matched] for phrase, matched in self._missing(progress)}

    def num_met(self, progress: PhraseProgress) -> int:
        """Return the number of met tokens: of all finished phrases, and of the longest started one.

        The output contains all phrases if this equals ``num_tokens``.
        """
        missing = self._missing(progress)
        longest = max((matched for _, matched in missing), default=0)
        return self.num_tokens - sum(len(phrase) for phrase, _ in missing) + longest

    def _missing(self, progress: PhraseProgress) -> list[tuple[Ids, int]]:
        """Return the phrases that the output does not contain, with their matched tokens."""
        pairs = zip(self.phrases, progress, strict=True)
        return [(phrase, matched) for phrase, matched in pairs if matched < len(phrase)]


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


class _Continuation(NamedTuple):
    """One candidate of a sentence. Candidates are sorted by their fields, in this order."""

    cost: float  # Negative log probability plus ``past_end``.
    beam: int
    token: int
    progress: PhraseProgress
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
        self._phrases = [RequiredPhrases(each.required) for each in inputs.constraints]
        # Of each sentence and beam:
        self._progress = [[phrases.start] for phrases in self._phrases]
        self._past_end = torch.zeros(len(self._phrases), self._beam_size)
        self._penalty = length_penalty(inputs.options)

    @override
    def select(self, beams: BeamState, log_probs: Tensor, coverage: Tensor) -> Selection:
        # Hypotheses that end in this step pay what they owed before it.
        _, num_beams, length = beams.history.shape
        past_end = self._past_end[beams.sentences, :num_beams]
        lost = -past_end / self._penalty(length + 1)
        return super().select(beams, log_probs, coverage + lost)

    @override
    def _expand(self, beams: BeamState, log_probs: Tensor) -> Candidates:
        candidates = super()._expand(beams, log_probs)
        best_tokens = log_probs.argmax(dim=-1).tolist()
        for row, sentence in enumerate(beams.sentences.tolist()):
            phrases = self._phrases[sentence]
            if not phrases.num_tokens:
                continue
            steps = []
            for beam, progress in enumerate(self._progress[sentence]):
                wanted = phrases.wanted(progress) | {best_tokens[row][beam]}
                steps += [(beam, token) for token in wanted]
            parents, tokens = torch.tensor(steps).unbind(1)
            chosen = log_probs[row, parents, tokens].cpu()
            totals = beams.totals[row, parents] + chosen
            plain = zip(*(column[row].tolist() for column in candidates), strict=True)
            more = zip(*map(Tensor.tolist, (parents, tokens, totals)), strict=True)
            kept = self._divide(sentence, best_tokens[row], {*plain, *more})
            columns = zip(*kept, strict=True)
            for column, values in zip(candidates, columns, strict=True):
                column[row] = torch.tensor(values)
        return candidates

    def _divide(
        self,
        sentence: int,
        best_tokens: list[int],
        candidates: Iterable[tuple[int, int, float]],
    ) -> list[tuple[int, int, float]]:
        """Divide the beam of a sentence, and store the state of the hypotheses that continue.

        Args:
            sentence: Number of the sentence.
            best_tokens: Most probable next token of each beam.
            candidates: Beam, token and log probability of each candidate.

        Returns:
            2K candidates: those that end, then those that continue, then empty ones.
        """
        phrases = self._phrases[sentence]
        progress = self._progress[sentence]
        past_end = self._past_end[sentence].tolist()
        allowed = []
        for beam, token, log_prob in candidates:
            is_complete = phrases.num_met(progress[beam]) == phrases.num_tokens
            if token == EOS_ID and not is_complete:
                continue
            cost = past_end[beam]
            if best_tokens[beam] == EOS_ID and not is_complete:
                cost = _PAST_END
            after = phrases.advance(progress[beam], token)
            if isfinite(log_prob):
                allowed.append(_Continuation(cost - log_prob, beam, token, after, cost))
        allowed.sort()
        active = [candidate for candidate in allowed if candidate.token != EOS_ID]
        active = self._within_banks(phrases, active)
        ending = self._within_banks(phrases, allowed)
        ending = [candidate for candidate in ending if candidate.token == EOS_ID]
        nothing = _Continuation(inf, 0, PAD_ID, phrases.start, 0.0)
        active += [nothing] * (self._beam_size - len(active))
        self._progress[sentence] = [candidate.progress for candidate in active]
        costs = [candidate.past_end for candidate in active]
        self._past_end[sentence] = torch.tensor(costs)
        kept = ending + active
        kept += [nothing] * (2 * self._beam_size - len(kept))
        return [(each.beam, each.token, each.past_end - each.cost) for each in kept]

    def _within_banks(
        self, phrases: RequiredPhrases, candidates: Sequence[_Continuation]
    ) -> list[_Continuation]:
        """Return the best candidates of each bank, in the same order."""
        banks = [phrases.num_met(candidate.progress) for candidate in candidates]
        numbers = range(phrases.num_tokens + 1)
        counts = [banks.count(bank) for bank in numbers]
        places = bank_sizes(counts, self._beam_size)
        kept = []
        for candidate, bank in zip(candidates, banks, strict=True):
            if places[bank]:
                places[bank] -= 1
                kept.append(candidate)
        return kept
