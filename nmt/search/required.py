"""Outputs that contain given phrases: lexically constrained beam search.

Source: Hokamp and Liu (2017), with the beam divided as in Post and Vilar (2018).

Shapes: B sentences still searched, K beams, V vocabulary, t tokens so far.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor
from typing_extensions import override

from nmt.config.decoding import DecodingConfig
from nmt.search.beam import Expansion, PlainBeams, search_beams
from nmt.search.constraints import Constraints
from nmt.search.hypothesis import Hypothesis
from nmt.search.phrases import Progress, RequiredPhrases, bank_sizes
from nmt.search.rules import Rules
from nmt.search.stepper import Stepper
from nmt.text import EOS_ID, PAD_ID

S = TypeVar("S")


class _Candidate(NamedTuple):
    """A way to go on."""

    cost: float
    """Negative log probability. The order of fields is the order of candidates."""
    beam: int
    token: int
    progress: Progress


class ConstrainedBeams(PlainBeams):
    """Shares the beam among hypotheses with different numbers of met tokens.

    Candidates are the continuations of plain beam search, and for each beam its best one and all
    that bring a required phrase further. Only what contains all phrases may end. A sentence without
    required phrases is searched as by `PlainBeams`.

    Args:
        longest: Most tokens of each output with EOS. (sentences,), int64.
        config: Beam size, n best, patience and penalty.
        phrases: Required phrases of each sentence.
    """

    def __init__(
        self, longest: Tensor, config: DecodingConfig, phrases: Sequence[RequiredPhrases]
    ) -> None:
        super().__init__(longest, config)
        self._phrases = phrases
        self._progress = [[own.start] for own in phrases]  # of each sentence, of each beam

    @override
    def _expand(self, alive: Tensor, totals: Tensor, log_probs: Tensor) -> Expansion:
        found = super()._expand(alive, totals, log_probs)
        best = log_probs.argmax(dim=-1).tolist()
        for row, sentence in enumerate(alive.tolist()):
            if self._phrases[sentence].num_tokens:
                beams, tokens = self._more(sentence, best[row])
                more = totals[row, beams] + log_probs[row, beams, tokens].cpu()
                parents = torch.cat((found.parents[row], beams))
                tokens = torch.cat((found.tokens[row], tokens))
                scores = torch.cat((found.log_probs[row], more))
                kept = self._divide(sentence, parents, tokens, scores)
                for values, chosen in zip(found, kept, strict=True):
                    values[row] = chosen
        return found

    def _more(self, sentence: int, best: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Beams and tokens to look at besides those that the search has found."""
        own = self._phrases[sentence]
        steps = [
            (beam, token)
            for beam, (progress, first) in enumerate(
                zip(self._progress[sentence], best, strict=True)
            )
            for token in {first, *own.wanted(progress)}
        ]
        beams, tokens = torch.tensor(steps).unbind(1)
        return beams, tokens

    def _divide(self, sentence: int, parents: Tensor, tokens: Tensor, scores: Tensor) -> Expansion:
        """Choose what ends and, behind it, what goes on; note the progress of the latter."""
        own, before = self._phrases[sentence], self._progress[sentence]
        candidates = sorted(
            _Candidate(-score, beam, token, own.advance(before[beam], token))
            for beam, token, score in set(
                zip(parents.tolist(), tokens.tolist(), scores.tolist(), strict=True)
            )
            if math.isfinite(score) and (token != EOS_ID or own.is_met(before[beam]))
        )
        ended = [c for c in self._within_banks(own, candidates) if c.token == EOS_ID]
        live = self._within_banks(own, [c for c in candidates if c.token != EOS_ID])
        nothing = _Candidate(math.inf, 0, PAD_ID, own.start)
        live += [nothing] * (self._beam_size - len(live))
        self._progress[sentence] = [candidate.progress for candidate in live]
        kept = ended + live
        kept += [nothing] * (2 * self._beam_size - len(kept))
        return Expansion(
            torch.tensor([candidate.beam for candidate in kept]),
            torch.tensor([candidate.token for candidate in kept]),
            torch.tensor([-candidate.cost for candidate in kept]),
        )

    def _within_banks(
        self, own: RequiredPhrases, candidates: Sequence[_Candidate]
    ) -> list[_Candidate]:
        """The best of each bank, in the same order."""
        banks = [own.num_met(candidate.progress) for candidate in candidates]
        counts = [banks.count(bank) for bank in range(own.num_tokens + 1)]
        places = bank_sizes(counts, self._beam_size)
        kept = []
        for candidate, bank in zip(candidates, banks, strict=True):
            if places[bank]:
                places[bank] -= 1
                kept.append(candidate)
        return kept


def constrained_search(
    stepper: Stepper[S],
    source: Tensor,
    source_lengths: Tensor,
    config: DecodingConfig,
    constraints: Sequence[Constraints],
) -> list[list[Hypothesis]]:
    """Translate B sentences with their required phrases. See `ConstrainedBeams`.

    Args:
        stepper: Gives probabilities.
        source: Source ids, padded, ending in EOS. (B, S), int64.
        source_lengths: Tokens of each source with EOS. (B,), int64.
        config: Beam size, n best, length limits, penalties and rules.
        constraints: Of each sentence. Limits of length give way to its prefix and phrases.

    Returns:
        The n best hypotheses of each sentence, best first; none where other rules make every
        output with the phrases impossible.
    """
    rules = Rules(source_lengths, config, constraints)
    phrases = [RequiredPhrases(wishes.required) for wishes in constraints]
    beams = ConstrainedBeams(rules.longest, config, phrases)
    return search_beams(stepper, source, source_lengths, rules, beams, config.coverage_penalty)
