"""Rules of the search: which tokens are allowed next, and which become less probable.

Every rule changes log probabilities in place, for all hypotheses at once. A rule that is off costs
nothing. Log probabilities must stay at most 0, because the search stops early based on this.

Shapes: B active sentences, K beams, V vocabulary, t tokens generated so far, P phrases.

- ``log_probs``: (B, K, V), float32, on any device.
- ``history``: start token, if any, and ids generated so far. (B, K, t), int64, on the CPU, to avoid
  waiting for the device.
- ``sentences``: index of each active sentence among all sentences. (B,), int64, on the CPU.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from nmt.config.model import DecodingConfig
from nmt.search.hypothesis import Constraints, Ids, limits_of
from nmt.text import EOS_ID, NUM_NEVER_CHOSEN, PAD_ID

_ANY, _NOTHING = -1, -2
_LOOP, _LONGEST_PERIOD = 8, 8


class Rules:
    """All rules of one search.

    Args:
        source_lengths: Source tokens of each sentence, EOS included. (B,), int.
        config: The decoding section.
        constraints: Constraints of each sentence; empty for no constraints.
        max_positions: Maximum output length, EOS included; None if there is no limit.
        end_loops: Whether to stop outputs that repeat endlessly; see `end_loops`.
    """

    # Minimum and maximum output length of each sentence, EOS included. (2, sentences), int64, on
    # the CPU.
    limits: Tensor

    def __init__(
        self,
        source_lengths: Tensor,
        config: DecodingConfig,
        constraints: Sequence[Constraints],
        max_positions: int | None = None,
        *,
        end_loops: bool = False,
    ) -> None:
        self._end_loops = end_loops
        shortest, longest = length_limits(source_lengths, config, max_positions)
        if constraints:
            most = max_positions or sys.maxsize
            needed = torch.tensor([min(own.num_tokens + 1, most) for own in constraints])
            longest = torch.maximum(longest, needed)
        self.limits = torch.stack((shortest, longest))
        # Lengths at which no sentence is at a limit.
        bounds = max(shortest.tolist(), default=0), min(longest.tolist(), default=0)
        self._free_lengths = range(*bounds)
        self._config, self._max_positions = config, max_positions
        phrases = [own.forbidden for own in constraints]
        self._forbidden = ForbiddenPhrases(phrases) if any(phrases) else None
        prefixes = [own.first_ids if own.prefix else () for own in constraints]
        self._prefixes = Prefixes(prefixes) if any(prefixes) else None

    @property
    def only_limit_length(self) -> bool:
        """Whether all rules except the length limits are off."""
        config = self._config
        has_phrases = self._forbidden is not None or self._prefixes is not None
        changes = config.no_repeat_ngram_size or config.repetition_penalty != 1
        return not (has_phrases or changes)

    def __call__(self, log_probs: Tensor, sentences: Tensor, history: Tensor) -> None:
        """Apply all rules to ``log_probs``, in place. For the shapes see the module."""
        begun, beta = None, self._config.prefix_bias_beta
        if self._prefixes is not None:
            begun = self._prefixes.next_tokens(sentences, history, log_probs.device)
        if begun is not None and beta:
            bias(log_probs, *begun, beta)
        forced = None
        if begun is not None and not beta:
            # An unknown token of a forced prefix does not change the score.
            forced = log_probs[begun].where(begun[2] >= NUM_NEVER_CHOSEN, 0.0)
        self._apply_others(log_probs, sentences, history)
        if begun is not None and forced is not None:
            log_probs[begun[:2]] = -torch.inf
            if history.shape[-1] + 1 != self._max_positions:  # else the prefix does not fit
                log_probs[begun] = forced

    def _apply_others(self, log_probs: Tensor, sentences: Tensor, history: Tensor) -> None:
        """Apply the rules that do not apply to forced prefixes."""
        log_probs.narrow(-1, 0, NUM_NEVER_CHOSEN).fill_(-torch.inf)
        length = history.shape[-1] + 1
        early = last = None
        if length not in self._free_lengths:
            shortest, longest = self.limits[:, sentences]
            early, last = shortest > length, longest <= length
            delay_end(log_probs, early)
        if self._config.no_repeat_ngram_size:
            forbid_repeated_ngrams(log_probs, history, self._config.no_repeat_ngram_size)
            renormalize(log_probs, None if last is None else ~last)
        elif early is not None and bool(early.any()):
            renormalize(log_probs, early)
        if self._config.repetition_penalty != 1:
            penalize_repetition(log_probs, history, self._config.repetition_penalty)
        if self._forbidden is not None:
            self._forbidden(log_probs, sentences, history)
        if last is not None:
            end_at_limit(log_probs, last)
        if self._end_loops:
            end_loops(log_probs, history)


def length_limits(
    source_lengths: Tensor, config: DecodingConfig, max_positions: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return the minimum and the maximum output length, EOS included. (B,), int64 each."""
    limits = [limits_of(n - 1, config, max_positions) for n in source_lengths.tolist()]
    shortest, longest = torch.tensor(limits, dtype=torch.int64).view(-1, 2).unbind(1)
    return shortest, longest


def renormalize(log_probs: Tensor, sentences: Tensor | None) -> None:
    """Normalize log probabilities again after tokens were forbidden, in place.

    The result is the same as if the tokens were forbidden before the softmax. CTranslate2 does
    that, so both engines return the same scores.

    Args:
        log_probs: (B, K, V), float32.
        sentences: Sentences to normalize. (B,), bool; None for all.
    """
    totals = log_probs.logsumexp(-1, keepdim=True).clamp_(min=torch.finfo(log_probs.dtype).min)
    if sentences is not None:
        totals *= sentences.to(log_probs.device, log_probs.dtype)[:, None, None]
    log_probs -= totals
    log_probs.clamp_(max=0.0)  # rounding may exceed 0


def delay_end(log_probs: Tensor, early: Tensor) -> None:
    """Forbid EOS in the sentences ``early``, (B,), bool, whose outputs are too short."""
    log_probs[early, :, EOS_ID] = -torch.inf


def end_at_limit(log_probs: Tensor, last: Tensor) -> None:
    """Allow only EOS in outputs of maximum length, marked in ``last``: (B,) or (B, K), bool.

    So every hypothesis ends in EOS and its score includes EOS.
    """
    if bool(last.any()):
        where = last.to(log_probs.device)
        ends = log_probs[where][..., EOS_ID]
        log_probs[where] = -torch.inf
        log_probs[..., EOS_ID][where] = ends


def end_loops(log_probs: Tensor, history: Tensor) -> None:
    """Allow only EOS after a loop: the last 8 tokens equal the tokens one period before them.

    Periods of 1 to 8 tokens are detected. This is a faster form of the guard's loop alarm.

    >>> log_probs = torch.full((1, 2, 4), -1.0)
    >>> end_loops(log_probs, torch.tensor([[[7, 5, 6] * 4, [7, 5, 6] * 3 + [7, 5, 5]]]))
    >>> log_probs.isneginf().any(-1)
    tensor([[ True, False]])
    """
    length, loops = history.shape[-1], torch.zeros(history.shape[:2], dtype=torch.bool)
    for period in range(1, min(_LONGEST_PERIOD, length - _LOOP) + 1):
        tail, before = history[..., -_LOOP:], history[..., -_LOOP - period : length - period]
        loops |= (tail == before).all(-1)
    end_at_limit(log_probs, loops)


def penalize_repetition(log_probs: Tensor, history: Tensor, penalty: float) -> None:
    """Multiply the log probability of each token in ``history`` by ``penalty``.

    Source: Keskar et al. (2019). The paper divides positive logits and multiplies negative ones.
    Log probabilities are never positive.

    >>> log_probs = torch.tensor([[[-1.0, -2.0, -3.0]]])
    >>> penalize_repetition(log_probs, torch.tensor([[[1, 1]]]), 1.5)
    >>> log_probs
    tensor([[[-1., -3., -3.]]])
    """
    seen = history.to(log_probs.device)
    log_probs.scatter_(-1, seen, log_probs.gather(-1, seen) * penalty)


def forbid_repeated_ngrams(log_probs: Tensor, history: Tensor, size: int) -> None:
    """Forbid tokens that would complete an n-gram that ``history`` contains (Paulus et al. 2018).

    >>> log_probs = torch.full((1, 1, 8), -2.0)
    >>> forbid_repeated_ngrams(log_probs, torch.tensor([[[4, 5, 4, 6, 4]]]), 2)
    >>> log_probs.isneginf().nonzero()[:, -1]
    tensor([5, 6])
    """
    length = history.shape[-1]
    if length < size:
        return
    ngrams = history.unfold(-1, size, 1)  # (B, K, t - size + 1, size)
    start = history[..., length - size + 1 :].unsqueeze(-2)
    rows, beams, places = (ngrams[..., :-1] == start).all(-1).nonzero(as_tuple=True)
    _forbid(log_probs, rows, beams, ngrams[rows, beams, places, -1])


class ForbiddenPhrases:
    """Forbids the last token of a phrase where the output ends with the rest of the phrase.

    Args:
        phrases: Forbidden phrases of each sentence. At least one sentence has a phrase.
    """

    def __init__(self, phrases: Sequence[Sequence[Ids]]) -> None:
        width = max(len(phrase) for own in phrases for phrase in own)
        # Right-aligned: any tokens may precede a short phrase. PAD fills up missing phrases.
        table = torch.full((len(phrases), max(map(len, phrases)), width), _ANY)
        table[..., -1] = PAD_ID
        for row, own in enumerate(phrases):
            for place, phrase in enumerate(own):
                table[row, place, width - len(phrase) :] = torch.tensor(phrase)
        self._table = table  # (sentences, P, width)

    def __call__(self, log_probs: Tensor, sentences: Tensor, history: Tensor) -> None:
        """Apply the rule in place. For the shapes see the module."""
        table = self._table[sentences].unsqueeze(1)  # (B, 1, P, width)
        starts, width = table[..., :-1], table.shape[-1] - 1
        tail = torch.full((*history.shape[:2], 1, width), _NOTHING)
        known = min(width, history.shape[-1])
        tail[..., 0, width - known :] = history[..., history.shape[-1] - known :]
        rows, beams, places = ((starts == tail) | (starts == _ANY)).all(-1).nonzero(as_tuple=True)
        _forbid(log_probs, rows, beams, table[rows, 0, places, -1])


def _forbid(log_probs: Tensor, *where: Tensor) -> None:
    """Forbid tokens, given as indices of rows, beams and tokens."""
    if len(where[0]):
        log_probs[tuple(x.to(log_probs.device) for x in where)] = -torch.inf


class Prefixes:
    """Prefixes that outputs are forced or biased to begin with.

    Args:
        prefixes: Prefix of each sentence; may be empty.
    """

    def __init__(self, prefixes: Sequence[Ids]) -> None:
        rows = [torch.tensor(prefix, dtype=torch.int64) for prefix in prefixes]
        self._table = pad_sequence(rows, batch_first=True, padding_value=PAD_ID)
        self._lengths = torch.tensor([len(prefix) for prefix in prefixes])

    def next_tokens(
        self, sentences: Tensor, history: Tensor, device: torch.device
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return rows, beams and next prefix tokens of hypotheses that follow their prefix so far.

        Returns:
            Three tensors of equal length, int64, on ``device``; None if no prefix continues.
        """
        length = history.shape[-1]
        if length >= self._table.shape[1]:
            return None
        agrees = (history == self._table[sentences, :length].unsqueeze(1)).all(-1)
        agrees &= (self._lengths[sentences] > length).unsqueeze(1)
        rows, beams = agrees.nonzero(as_tuple=True)
        if not len(rows):
            return None
        return rows.to(device), beams.to(device), self._table[sentences[rows], length].to(device)


def bias(log_probs: Tensor, rows: Tensor, beams: Tensor, tokens: Tensor, beta: float) -> None:
    """Bias hypotheses towards their prefixes (Arivazhagan et al. 2020), in place.

    The probability p of a token becomes (1 - beta) p, plus beta for the next token of the prefix.
    Must be applied before other rules.

    Args:
        log_probs: (B, K, V), float32.
        rows: From `Prefixes.next_tokens`, as ``beams`` and ``tokens``.
        beams: Beam of each hypothesis.
        tokens: Next token of each prefix.
        beta: Weight of the bias, between 0 and 1.
    """
    log_probs[rows, beams] += math.log1p(-beta)
    gain = torch.tensor(math.log(beta), device=log_probs.device)
    log_probs[rows, beams, tokens] = torch.logaddexp(log_probs[rows, beams, tokens], gain)
