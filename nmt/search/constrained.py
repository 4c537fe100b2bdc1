"""Lexically constrained beam search: outputs that contain given phrases.

Source: Hokamp and Liu (2017), with the beam divided as in Post and Vilar (2018).

Shapes: B sentences still active, K beams, V vocabulary, t tokens so far.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from nmt.search.beam import BeamSelector, Candidates
from nmt.search.hypothesis import Ids, contains
from nmt.search.selector import BeamState, SearchInputs, register_selector
from nmt.text import EOS_ID, PAD_ID

Progress = tuple[int, ...]
"""Of each phrase, the length of its longest beginning that the output ends in; its whole length,
once it has been there."""


class RequiredPhrases:
    """The phrases of one sentence, each an automaton (Knuth, Morris and Pratt 1977).

    Args:
        phrases: Token ids. One that is part of another is met with it.
    """

    def __init__(self, phrases: Sequence[Ids]) -> None:
        unique = tuple(dict.fromkeys(phrases))
        self._phrases = tuple(
            phrase
            for phrase in unique
            if not any(contains(other, phrase) for other in unique if other != phrase)
        )
        self._borders = tuple(_borders(phrase) for phrase in self._phrases)
        self.num_tokens = sum(len(phrase) for phrase in self._phrases)
        """Tokens of all phrases."""
        self.start: Progress = (0,) * len(self._phrases)
        """Of an empty output."""

    def advance(self, progress: Progress, token: int) -> Progress:
        """Return the progress after one more token."""
        return tuple(
            matched if matched == len(phrase) else _next(phrase, borders, matched, token)
            for phrase, borders, matched in zip(self._phrases, self._borders, progress, strict=True)
        )

    def wanted(self, progress: Progress) -> set[int]:
        """Tokens that bring a phrase further."""
        return {phrase[matched] for phrase, matched in self._open(progress)}

    def num_met(self, progress: Progress) -> int:
        """Return how many tokens are met: of finished phrases and of the one that is furthest.

        Every wanted token that belongs to that one adds one or more.
        """
        begun = max((matched for _, matched in self._open(progress)), default=0)
        missing = sum(len(phrase) for phrase, _ in self._open(progress))
        return self.num_tokens - missing + begun

    def is_met(self, progress: Progress) -> bool:
        """Whether the output contains all phrases."""
        return not any(True for _ in self._open(progress))

    def _open(self, progress: Progress) -> Iterator[tuple[Ids, int]]:
        for phrase, matched in zip(self._phrases, progress, strict=True):
            if matched < len(phrase):
                yield phrase, matched


def _next(phrase: Ids, borders: Sequence[int], matched: int, token: int) -> int:
    """Length of the longest beginning of ``phrase`` that ends in ``token``."""
    while matched and phrase[matched] != token:
        matched = borders[matched]
    return matched + 1 if phrase[matched] == token else 0


def _borders(phrase: Ids) -> tuple[int, ...]:
    """For each length of a beginning, the longest shorter beginning that it ends in.

    >>> _borders((4, 4, 5, 4, 4))
    (0, 0, 1, 0, 1)
    """
    borders = [0, 0]
    for token in phrase[1:-1]:
        borders.append(_next(phrase, borders, borders[-1], token))
    return tuple(borders)


def bank_sizes(counts: Sequence[int], beam_size: int) -> list[int]:
    """Divide the beam among banks of hypotheses that have met equally many tokens.

    Every bank gets the same part, the last one the remainder; what a bank cannot fill goes to the
    highest banks that can use it. Source: Post and Vilar (2018), section 3.2, who pass it on from
    bank to bank.

    Args:
        counts: Candidates in each bank, by tokens met.
        beam_size: Places to give.

    Returns:
        Places of each bank, none above its count; together ``beam_size`` or all candidates.

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
    """One continuation."""

    cost: float
    """Negative log probability. The order of fields is the order of candidates."""
    beam: int
    token: int
    progress: Progress


@register_selector("constrained")
class ConstrainedSelector(BeamSelector):
    """Shares the beam among hypotheses with different numbers of met tokens.

    Candidates are the continuations of plain beam search, and for each beam its best one and all
    that bring a required phrase further. Only what contains all phrases may end. A sentence without
    required phrases is searched as by `BeamSelector`.
    """

    meets_required_phrases = True

    def __init__(self, inputs: SearchInputs) -> None:
        super().__init__(inputs)
        self._phrases = [RequiredPhrases(own.required) for own in inputs.constraints]
        self._progress = [[own.start] for own in self._phrases]  # of each sentence, of each beam

    @override
    def _expand(self, beams: BeamState, log_probs: Tensor) -> Candidates:
        found = super()._expand(beams, log_probs)
        best = log_probs.argmax(dim=-1).tolist()
        for row, sentence in enumerate(beams.sentences.tolist()):
            if self._phrases[sentence].num_tokens:
                more_parents, more_tokens = self._more(sentence, best[row])
                more = beams.totals[row, more_parents]
                more = more + log_probs[row, more_parents, more_tokens].cpu()
                parents = torch.cat((found.parents[row], more_parents))
                tokens = torch.cat((found.tokens[row], more_tokens))
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

    def _divide(self, sentence: int, parents: Tensor, tokens: Tensor, scores: Tensor) -> Candidates:
        """Choose what ends and, behind it, what continues; note the progress of the latter."""
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
        return Candidates(
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
