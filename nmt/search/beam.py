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

from nmt.search.hypothesis import Ids, NBestLists, contains, length_penalty, max_finished
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

        If a sentence has fewer of them, its last candidates are ended ones, with a log probability
        of minus infinity.
        """
        is_ended = self.tokens == EOS_ID
        if not is_ended.any():
            return Candidates(*(column[:, :beam_size] for column in self))
        # A stable sort of 0 (continues) and 1 (ended) moves the ended candidates to the end, and
        # leaves the others in their order.
        order = is_ended.int().argsort(dim=1, stable=True)
        order = order[:, :beam_size]
        log_probs = self.log_probs.masked_fill(is_ended, -inf)
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
    num_candidates = 2 * beam_size
    # Rank within each beam first: the host then sorts 2K x K sums instead of K x V.
    next_log_probs, tokens = largest(log_probs, num_candidates)  # (B, K, at most 2K)
    sums = totals.unsqueeze(-1) + next_log_probs
    sums = sums.flatten(1)
    sums, order = sums.sort(stable=True, descending=True)
    sums = sums[:, :num_candidates]
    order = order[:, :num_candidates]
    # `order` counts the continuations of a sentence beam by beam.
    parents = order // next_log_probs.shape[-1]
    tokens = tokens.flatten(1).gather(1, order)
    num_missing = num_candidates - order.shape[1]
    if num_missing:  # the vocabulary is smaller than the beam: fill up with empty candidates
        padding = (0, num_missing)
        parents = F.pad(parents, padding)
        tokens = F.pad(tokens, padding)
        sums = F.pad(sums, padding, value=-inf)
    return Candidates(parents, tokens, sums)


class BeamSelector(Selector):
    """Plain beam search: keeps the K best continuations of each sentence.

    A hypothesis finishes if it ends in EOS *and* is among the best K, so a beam of one is greedy
    search. The search of a sentence stops after ``patience`` x K finished hypotheses, or earlier if
    no unfinished hypothesis can still reach the n-best list: see `FinishedHypotheses.active`.
    """

    def __init__(self, inputs: SearchInputs, num_groups: int = 1) -> None:
        self._num_groups = num_groups
        self._n_best = inputs.options.n_best
        self._beam_size = inputs.options.beam_size // num_groups  # beams of each group
        # Each sentence has one pool for each group. So in plain beam search, the number of a pool
        # is the index of its sentence.
        # Groups may find the same outputs, so all results may be those of one group.
        most = max_finished(inputs.options, self._beam_size)
        self._finished = FinishedHypotheses(
            inputs,
            beam_size=self._beam_size,
            n_best=min(most, self._n_best),
            pools_per_sentence=num_groups,
        )

    @override
    def select(self, beams: BeamState, log_probs: Tensor, coverage: Tensor) -> Selection:
        candidates = self._expand(beams, log_probs)
        self._finish(candidates, beams.sentences, beams.history, coverage)
        parents, tokens, totals = candidates.active(self._beam_size)
        # Column 0 is the best unfinished hypothesis of each sentence.
        num_tokens = beams.history.shape[2] + 1
        active = self._finished.active(beams.sentences, totals[:, 0], num_tokens)
        return Selection(tokens, totals, parents, active)

    def _expand(self, beams: BeamState, log_probs: Tensor) -> Candidates:
        """Return 2K candidates for each sentence, best first.

        A candidate with EOS finishes only if it is among the first K. The first K candidates
        without EOS continue.
        """
        return expand(beams.totals, log_probs, self._beam_size)

    def _finish(
        self, candidates: Candidates, pools: Tensor, history: Tensor, coverage: Tensor
    ) -> None:
        """Collect the hypotheses that end: the candidates with EOS among the best K.

        Args:
            candidates: Candidates of B sentences, or of one group of beams of each.
            pools: Pool that collects the hypotheses of each sentence. (B,), int64.
            history: Ids of the beams that the candidates continue. (B, K, t), int64.
            coverage: Coverage penalty of these beams. (B, K), float32.
        """
        is_finished = candidates.tokens[:, : self._beam_size] == EOS_ID
        if not is_finished.any():
            return
        # Empty beams have candidates too, with a log probability of minus infinity.
        is_finished &= candidates.log_probs[:, : self._beam_size].isfinite()
        rows, ranks = is_finished.nonzero(as_tuple=True)
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
        n_best_lists = []
        for pools in self._finished.by_sentence():
            # Groups may find the same output, so a dictionary by ids keeps it once, at the place
            # where it is first.
            by_ids = {}
            # The best of each pool, then the second best of each; None where a pool is shorter.
            for hypothesis in chain(*zip_longest(*pools)):
                if hypothesis is not None:
                    by_ids[hypothesis.ids] = hypothesis
            best = list(by_ids.values())[: self._n_best]
            n_best_lists.append(sorted(best, key=lambda hypothesis: -hypothesis.score))
        return n_best_lists


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
        # The pools of a sentence have consecutive numbers, one for each group.
        first_pools = beams.sentences.unsqueeze(1) * self._num_groups
        pools = first_pools + torch.arange(self._num_groups)  # (B, G)
        is_full = self._finished.full(pools).unsqueeze(-1)  # (B, G, 1)
        # How many beams of earlier groups append each token in this step. (B, V), float32.
        num_uses = torch.zeros_like(log_probs[:, 0])
        selected = []  # The `Candidates` that continue, of each group. (B, k) each.
        for group in range(self._num_groups):
            first_beam = group * size
            # At the first step all groups continue the same empty hypothesis, which is beam 0.
            if beams.history.shape[1] == 1:
                first_beam = 0
            group_beams = slice(first_beam, first_beam + size)
            # A full group continues with empty beams, so that all groups keep the same width.
            totals = beams.totals[:, group_beams]
            totals = totals.masked_fill(is_full[:, group], -inf)
            penalty = self._strength * num_uses.unsqueeze(1)
            candidates = self._rank(totals, log_probs[:, group_beams], penalty)
            history = beams.history[:, group_beams]
            self._finish(candidates, pools[:, group], history, coverage[:, group_beams])
            active = candidates.active(size)
            # Parents are beams of the group here; a `Selection` has beams of the sentence.
            selected.append(active._replace(parents=active.parents + first_beam))
            # Empty beams do not count.
            uses = active.log_probs.isfinite().to(num_uses)
            num_uses.scatter_add_(1, active.tokens.to(log_probs.device), uses)
        # The groups side by side: (B, G * k).
        parents, tokens, totals = map(torch.hstack, zip(*selected, strict=True))
        best_of_groups = totals.unflatten(1, (self._num_groups, -1)).amax(-1)  # (B, G)
        active_groups = self._finished.active(pools, best_of_groups)
        return Selection(tokens, totals, parents, active_groups.any(1))

    def _rank(self, totals: Tensor, log_probs: Tensor, penalty: Tensor) -> Candidates:
        """Return the best 2k continuations of one group, ranked by log probability minus penalty.

        Their log probabilities are without the penalty, so they may not be sorted.

        Args:
            totals: Log probability of each hypothesis of the group. (B, k), float32, on the CPU.
            log_probs: Log probability of each next token. (B, k, V), float32.
            penalty: Penalty of each next token. (B, 1, V), float32.
        """
        parents, tokens, _ = expand(totals, log_probs - penalty, self._beam_size)
        rows = torch.arange(len(parents)).unsqueeze(1)
        next_log_probs = log_probs[rows, parents, tokens].cpu()
        return Candidates(parents, tokens, totals.gather(1, parents) + next_log_probs)


@lru_cache(1 << 16)
def _advance(phrase: Ids, matched: int, token: int) -> int:
    """Return how many first tokens of ``phrase`` the output ends with, after one more token.

    This is a step of the Knuth-Morris-Pratt automaton of the phrase.

    Args:
        phrase: Token ids.
        matched: How many first tokens of ``phrase`` the output ends with so far.
        token: The token that is appended to the output.

    >>> _advance((4, 4, 5, 4, 4, 6), 5, 5), _advance((4, 4, 5), 2, 6)
    (3, 0)
    """
    # The longest match so far and one more token: no longer beginning of the phrase can match.
    output_end = (*phrase[:matched], token)
    for length in range(len(output_end), 0, -1):
        if output_end[-length:] == phrase[:length]:
            return length
    return 0


class RequiredPhrases:
    """Tracks which required phrases of one sentence an output contains.

    Args:
        phrases: Token ids of each phrase. A phrase inside another phrase is dropped.
    """

    def __init__(self, phrases: Sequence[Ids]) -> None:
        separate_phrases = []
        unique_phrases = dict.fromkeys(phrases)
        for phrase in unique_phrases:
            containing = [longer for longer in unique_phrases if contains(longer, phrase)]
            if containing == [phrase]:  # every phrase contains itself
                separate_phrases.append(phrase)
        self.phrases = tuple(separate_phrases)
        self.num_tokens = sum(map(len, separate_phrases))  # Tokens of all phrases.
        self.start = (0,) * len(self.phrases)  # Progress of an empty output.

    def advance(self, progress: PhraseProgress, token: int) -> PhraseProgress:
        """Return the progress after one more token."""
        new_progress = []
        for phrase, matched in zip(self.phrases, progress, strict=True):
            if matched < len(phrase):  # else the output contains the phrase, and always will
                matched = _advance(phrase, matched, token)
            new_progress.append(matched)
        return tuple(new_progress)

    def wanted(self, progress: PhraseProgress) -> set[int]:
        """Return the tokens that continue or start a phrase."""
        return {phrase[matched] for phrase, matched in self._missing(progress)}

    def num_met(self, progress: PhraseProgress) -> int:
        """Return the number of met tokens of the required phrases.

        All tokens of a phrase count that the output contains. The output ends with the matched
        tokens of each other phrase, so these overlap: only the largest number of them counts. The
        output contains all phrases if the result equals ``num_tokens``.
        """
        missing_phrases = self._missing(progress)
        num_missing_tokens = sum(len(phrase) for phrase, _ in missing_phrases)
        most_matched = max((matched for _, matched in missing_phrases), default=0)
        return self.num_tokens - num_missing_tokens + most_matched

    def _missing(self, progress: PhraseProgress) -> list[tuple[Ids, int]]:
        """Return each phrase that the output does not contain, and how many tokens are matched."""
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
    share, remainder = divmod(beam_size, len(counts))
    sizes = [min(count, share) for count in counts]
    sizes[-1] = min(counts[-1], share + remainder)
    num_unused = beam_size - sum(sizes)
    for bank in reversed(range(len(counts))):
        num_added = min(num_unused, counts[bank] - sizes[bank])
        sizes[bank] += num_added
        num_unused -= num_added
    return sizes


class _Continuation(NamedTuple):
    """One candidate of a sentence. Candidates are sorted by their fields, in this order."""

    cost: float  # Negative log probability plus ``past_end``.
    beam: int  # Beam that the candidate continues.
    token: int  # Id that the candidate appends.
    progress: PhraseProgress  # Progress after this token.
    past_end: float  # `_PAST_END` if the hypothesis continued past a probable EOS, else 0.


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
        # The required phrases of each sentence.
        self._phrases = [RequiredPhrases(entry.required) for entry in inputs.constraints]
        # Progress of each beam of each sentence. At first a sentence has one beam.
        self._progress = [[phrases.start] for phrases in self._phrases]
        # Cost `_PAST_END`, or 0, of each beam of each sentence. (sentences, K), float32.
        self._past_end = torch.zeros(len(self._phrases), self._beam_size)
        self._penalty = length_penalty(inputs.options)

    @override
    def select(self, beams: BeamState, log_probs: Tensor, coverage: Tensor) -> Selection:
        # A hypothesis that ends in this step pays its cost from earlier steps. The cost counts as a
        # part of the log probability, so it is divided by the length penalty, EOS included.
        _, num_beams, length = beams.history.shape
        past_end = self._past_end[beams.sentences, :num_beams]
        score_change = -past_end / self._penalty(length + 1)
        return super().select(beams, log_probs, coverage + score_change)

    @override
    def _expand(self, beams: BeamState, log_probs: Tensor) -> Candidates:
        candidates = super()._expand(beams, log_probs)
        # Most probable next token of each beam of each sentence.
        best_tokens = log_probs.argmax(dim=-1).tolist()
        for row, sentence in enumerate(beams.sentences.tolist()):
            phrases = self._phrases[sentence]
            if not phrases.num_tokens:
                continue
            steps = []  # Beam and next token of each candidate that plain beam search may lack.
            for beam, progress in enumerate(self._progress[sentence]):
                next_tokens = phrases.wanted(progress) | {best_tokens[row][beam]}
                steps += [(beam, token) for token in next_tokens]
            parents, tokens = torch.tensor(steps).unbind(1)
            next_log_probs = log_probs[row, parents, tokens].cpu()
            totals = beams.totals[row, parents] + next_log_probs
            # Both yield beam, token and log probability. The set merges equal candidates.
            plain_candidates = zip(*(column[row].tolist() for column in candidates), strict=True)
            added_candidates = zip(*map(Tensor.tolist, (parents, tokens, totals)), strict=True)
            divided_candidates = self._divide(
                sentence, best_tokens[row], {*plain_candidates, *added_candidates}
            )
            columns = zip(*divided_candidates, strict=True)
            for column, values in zip(candidates, columns, strict=True):
                column[row] = torch.tensor(values)
        return candidates

    def _divide(
        self, sentence: int, best_tokens: list[int], candidates: Iterable[tuple[int, int, float]]
    ) -> list[tuple[int, int, float]]:
        """Divide the beam of a sentence, and store the state of the hypotheses that continue.

        Args:
            sentence: Index of the sentence among all sentences.
            best_tokens: Most probable next token of each beam.
            candidates: Beam, token and log probability of each candidate.

        Returns:
            Beam, token and log probability of 2K candidates: those that end, then those that
            continue, then empty ones.
        """
        phrases = self._phrases[sentence]
        progress = self._progress[sentence]
        old_past_end = self._past_end[sentence].tolist()  # of each beam
        allowed = []
        for beam, token, log_prob in candidates:
            is_complete = phrases.num_met(progress[beam]) == phrases.num_tokens
            if token == EOS_ID and not is_complete:
                continue
            past_end = old_past_end[beam]
            if best_tokens[beam] == EOS_ID and not is_complete:
                past_end = _PAST_END
            new_progress = phrases.advance(progress[beam], token)
            if isfinite(log_prob):  # else it continues an empty beam, or its token is forbidden
                cost = past_end - log_prob
                allowed.append(_Continuation(cost, beam, token, new_progress, past_end))
        allowed.sort()
        # Two divisions of the beam. Only candidates that continue take part in the first one, so K
        # beams continue even if others end. The second one decides which candidates may end.
        active = [candidate for candidate in allowed if candidate.token != EOS_ID]
        active = self._within_banks(phrases, active)
        ended = self._within_banks(phrases, allowed)
        ended = [candidate for candidate in ended if candidate.token == EOS_ID]
        empty = _Continuation(inf, 0, PAD_ID, phrases.start, 0.0)
        active += [empty] * (self._beam_size - len(active))
        self._progress[sentence] = [candidate.progress for candidate in active]
        new_past_end = [candidate.past_end for candidate in active]
        self._past_end[sentence] = torch.tensor(new_past_end)
        rows = ended + active
        rows += [empty] * (2 * self._beam_size - len(rows))
        # The cost is `past_end` minus the log probability.
        return [(row.beam, row.token, row.past_end - row.cost) for row in rows]

    def _within_banks(
        self, phrases: RequiredPhrases, candidates: Sequence[_Continuation]
    ) -> list[_Continuation]:
        """Return the best candidates of each bank, in the order of ``candidates``, best first.

        The number of a bank is the number of met tokens of its candidates.
        """
        banks = [phrases.num_met(candidate.progress) for candidate in candidates]
        counts = [banks.count(bank) for bank in range(phrases.num_tokens + 1)]
        num_free = bank_sizes(counts, self._beam_size)  # Beams of each bank that are not yet used.
        best = []
        for candidate, bank in zip(candidates, banks, strict=True):
            if num_free[bank]:
                num_free[bank] -= 1
                best.append(candidate)
        return best
