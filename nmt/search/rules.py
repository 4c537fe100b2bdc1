"""Which tokens may come next, and which are made less likely.

Every rule is an edit of log probabilities in place, for all hypotheses at once; one that is off
costs nothing. Log probabilities stay at most 0: the search relies on it.

Shapes: B sentences still active, K beams, V vocabulary, t tokens so far, P phrases. Log
probabilities are (B, K, V), float32, on any device; other tensors are on the CPU, to wait for no
device: ids so far, (B, K, t), and which of all sentences they belong to, (B,), both int64.
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
        source_lengths: Source tokens of each sentence with EOS. (B,), int.
        config: The decoding section.
        constraints: Of each sentence; empty if none has any.
        max_positions: Longest output that the model can produce, EOS included; None: any.
        end_loops: Whether to end outputs that go round in circles; see `end_loops`.
    """

    # Shortest and longest output of each sentence with EOS. (2, sentences), int64, on the CPU.
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
        # Between them no sentence is at a limit.
        bounds = max(shortest.tolist(), default=0), min(longest.tolist(), default=0)
        self._free_lengths = range(*bounds)
        self._config, self._max_positions = config, max_positions
        phrases = [own.forbidden for own in constraints]
        self._forbidden = ForbiddenPhrases(phrases) if any(phrases) else None
        prefixes = [own.prefix for own in constraints]
        self._prefixes = Prefixes(prefixes) if any(prefixes) else None

    @property
    def only_limit_length(self) -> bool:
        """Whether there is no other rule than `limits`."""
        config = self._config
        has_phrases = self._forbidden is not None or self._prefixes is not None
        changes = config.no_repeat_ngram_size or config.repetition_penalty != 1
        return not (has_phrases or changes)

    def __call__(self, log_probs: Tensor, sentences: Tensor, history: Tensor) -> None:
        """Apply all rules."""
        begun, beta = None, self._config.prefix_bias_beta
        if self._prefixes is not None:
            begun = self._prefixes.next_tokens(sentences, history, log_probs.device)
        if begun is not None and beta:
            bias(log_probs, *begun, beta)
        forced = None
        if begun is not None and not beta:
            # An unknown token of a prefix is given, not chosen: it adds nothing to the score.
            forced = log_probs[begun].where(begun[2] >= NUM_NEVER_CHOSEN, 0.0)
        self._apply_others(log_probs, sentences, history)
        if begun is not None and forced is not None:
            log_probs[begun[:2]] = -torch.inf
            if history.shape[-1] + 1 != self._max_positions:  # else the prefix does not fit
                log_probs[begun] = forced

    def _apply_others(self, log_probs: Tensor, sentences: Tensor, history: Tensor) -> None:
        """Apply what does not hold for forced prefixes."""
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
    """Return the shortest and longest output of each sentence, EOS included. (B,), int64 each."""
    limits = [limits_of(n - 1, config, max_positions) for n in source_lengths.tolist()]
    shortest, longest = torch.tensor(limits, dtype=torch.int64).view(-1, 2).unbind(1)
    return shortest, longest


def renormalize(log_probs: Tensor, sentences: Tensor | None) -> None:
    """Share out the probability of tokens that were forbidden in some sentences; None for all.

    As if they had been forbidden before the softmax, which is what CTranslate2 does: so searches
    with a shortest length or without repeated n-grams score alike in both engines.
    """
    totals = log_probs.logsumexp(-1, keepdim=True).clamp_(min=torch.finfo(log_probs.dtype).min)
    if sentences is not None:
        totals *= sentences.to(log_probs.device, log_probs.dtype)[:, None, None]
    log_probs -= totals
    log_probs.clamp_(max=0.0)  # the search relies on it


def delay_end(log_probs: Tensor, early: Tensor) -> None:
    """Forbid EOS in sentences whose outputs are shorter than their limit, (B,), bool."""
    log_probs[early, :, EOS_ID] = -torch.inf


def end_at_limit(log_probs: Tensor, last: Tensor) -> None:
    """Allow nothing but EOS where outputs are at their longest: in sentences (B,) or beams (B, K).

    So every hypothesis ends and counts the probability of its end.
    """
    if bool(last.any()):
        where = last.to(log_probs.device)
        ends = log_probs[where][..., EOS_ID]
        log_probs[where] = -torch.inf
        log_probs[..., EOS_ID][where] = ends


def end_loops(log_probs: Tensor, history: Tensor) -> None:
    """Allow nothing but EOS after 8 tokens that repeat, in whole copies, what stands before them.

    It is the guard's loop alarm at its widest limit, for copies of up to 8 tokens.

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
    """Multiply the log probability of every token of ``history``, once (Keskar et al. 2019).

    The paper divides logits above 0; log probabilities are not above 0, so a product does it.

    >>> log_probs = torch.tensor([[[-1.0, -2.0, -3.0]]])
    >>> penalize_repetition(log_probs, torch.tensor([[[1, 1]]]), 1.5)
    >>> log_probs
    tensor([[[-1., -3., -3.]]])
    """
    seen = history.to(log_probs.device)
    log_probs.scatter_(-1, seen, log_probs.gather(-1, seen) * penalty)


def forbid_repeated_ngrams(log_probs: Tensor, history: Tensor, size: int) -> None:
    """Forbid tokens that would end an n-gram which ``history`` already has (Paulus et al. 2018).

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
    """Forbids the last token of a phrase after all others of it.

    Args:
        phrases: Of each sentence; not all are empty.
    """

    def __init__(self, phrases: Sequence[Sequence[Ids]]) -> None:
        width = max(len(phrase) for own in phrases for phrase in own)
        # Right-aligned: before a short phrase anything may stand. Where there is none, PAD is.
        table = torch.full((len(phrases), max(map(len, phrases)), width), _ANY)
        table[..., -1] = PAD_ID
        for row, own in enumerate(phrases):
            for place, phrase in enumerate(own):
                table[row, place, width - len(phrase) :] = torch.tensor(phrase)
        self._table = table  # (sentences, P, width)

    def __call__(self, log_probs: Tensor, sentences: Tensor, history: Tensor) -> None:
        """Apply."""
        table = self._table[sentences].unsqueeze(1)  # (B, 1, P, width)
        starts, width = table[..., :-1], table.shape[-1] - 1
        tail = torch.full((*history.shape[:2], 1, width), _NOTHING)
        known = min(width, history.shape[-1])
        tail[..., 0, width - known :] = history[..., history.shape[-1] - known :]
        rows, beams, places = ((starts == tail) | (starts == _ANY)).all(-1).nonzero(as_tuple=True)
        _forbid(log_probs, rows, beams, table[rows, 0, places, -1])


def _forbid(log_probs: Tensor, *where: Tensor) -> None:
    """Forbid tokens of rows and beams."""
    if len(where[0]):
        log_probs[tuple(x.to(log_probs.device) for x in where)] = -torch.inf


class Prefixes:
    """What outputs begin with.

    Args:
        prefixes: Of each sentence; empty for none.
    """

    def __init__(self, prefixes: Sequence[Ids]) -> None:
        rows = [torch.tensor(prefix, dtype=torch.int64) for prefix in prefixes]
        self._table = pad_sequence(rows, batch_first=True, padding_value=PAD_ID)
        self._lengths = torch.tensor([len(prefix) for prefix in prefixes])

    def next_tokens(
        self, sentences: Tensor, history: Tensor, device: torch.device
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return rows, beams and next tokens of hypotheses that have a beginning of their prefix.

        None if there are none.
        """
        length = history.shape[-1]
        if length >= self._table.shape[1]:
            return None
        agrees = (history == self._table[sentences, :length].unsqueeze(1)).all(-1)
        agrees &= (self._lengths[sentences] > length).unsqueeze(1)
        rows, beams = agrees.nonzero(as_tuple=True)
        if not len(rows):
            return None
        tokens = self._table[sentences[rows], length]
        return rows.to(device), beams.to(device), tokens.to(device)


def bias(log_probs: Tensor, rows: Tensor, beams: Tensor, tokens: Tensor, beta: float) -> None:
    """Draw hypotheses to their prefixes (Arivazhagan et al. 2020).

    The next token of the prefix gets the share beta of the probability, all tokens together the
    rest: (1 - beta) p + beta [token is the prefix's]. Before other rules.
    """
    log_probs[rows, beams] += math.log1p(-beta)
    gain = torch.tensor(math.log(beta), device=log_probs.device)
    log_probs[rows, beams, tokens] = torch.logaddexp(log_probs[rows, beams, tokens], gain)
