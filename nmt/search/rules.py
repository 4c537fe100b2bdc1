"""Which tokens may come next, and which are made less likely.

Every rule is an edit of log probabilities in place, for all hypotheses at once; one that is off
costs nothing. Log probabilities stay at most 0: the search relies on it.

Shapes: B sentences still active, K beams, V vocabulary, t tokens so far, P phrases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from nmt.config.decoding import DecodingConfig
from nmt.search.hypothesis import Constraints, Ids, limits_of
from nmt.text import BOS_ID, EOS_ID, PAD_ID, UNK_ID

Edit = Callable[[Tensor, Tensor, Tensor], None]
"""Changes log probabilities (B, K, V), on any device, given the ids so far (B, K, t) and which of
all sentences (B,) they belong to; both int64 on the CPU."""

_NUM_NEVER = 3
assert {PAD_ID, UNK_ID, BOS_ID} == {*range(_NUM_NEVER)}
_ANY = -1
_NOTHING = -2


class Rules:
    """All rules of one search.

    Args:
        source_lengths: Source tokens of each sentence with EOS. (B,), int64.
        config: The decoding section.
        constraints: Of each sentence; empty if none has any.
        max_positions: Longest output that the model can produce, EOS included; None: any.
    """

    longest: Tensor
    """Longest output of each sentence with EOS. (B,), int64, on the CPU."""

    def __init__(
        self,
        source_lengths: Tensor,
        config: DecodingConfig,
        constraints: Sequence[Constraints],
        max_positions: int | None = None,
    ) -> None:
        self._shortest, self.longest = length_limits(source_lengths, config, max_positions)
        if constraints:
            needed = torch.tensor([own.num_tokens + 1 for own in constraints])
            self.longest = torch.maximum(self.longest, needed)
        if max_positions is not None:
            self.longest.clamp_(max=max_positions)
        self._max_positions = max_positions
        self._edits = tuple(_edits(config, constraints))
        self._ngram_size = config.no_repeat_ngram_size
        prefixes = [own.prefix for own in constraints]
        beta = config.prefix_bias_beta if any(prefixes) else 0.0
        self._bias = BiasedPrefix(prefixes, beta) if beta else None
        self._prefix = ForcedPrefix(prefixes) if any(prefixes) and not beta else None
        # Between them no sentence is at a limit.
        self._free_lengths = range(
            max(self._shortest.tolist(), default=0), min(self.longest.tolist(), default=0)
        )

    def __call__(self, log_probs: Tensor, sentences: Tensor, history: Tensor) -> None:
        """Apply all rules. See `Edit`."""
        if self._bias is not None:
            self._bias(log_probs, sentences, history)
        force = None
        if self._prefix is not None:
            force = self._prefix.force(log_probs, sentences, history)
        log_probs.narrow(-1, 0, _NUM_NEVER).fill_(-torch.inf)
        length = history.shape[-1] + 1
        early = last = None
        if length not in self._free_lengths:
            early, last = self._shortest[sentences] > length, self.longest[sentences] <= length
            delay_end(log_probs, early)
        if self._ngram_size:
            forbid_repeated_ngrams(log_probs, history, self._ngram_size)
            renormalize(log_probs, None if last is None else ~last)
        elif early is not None and bool(early.any()):
            renormalize(log_probs, early)
        for edit in self._edits:
            edit(log_probs, sentences, history)
        if last is not None:
            end_at_limit(log_probs, last)
        if force is not None:
            force()
            if length == self._max_positions:  # a prefix that does not fit has no output
                log_probs[..., EOS_ID + 1 :] = -torch.inf


def length_limits(
    source_lengths: Tensor, config: DecodingConfig, max_positions: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return the shortest and longest output of each sentence, EOS included. (B,), int64 each.

    Args:
        source_lengths: Source tokens with EOS. (B,), int64.
        config: The decoding section.
        max_positions: Longest output that the model can produce; None: any.
    """
    limits = [limits_of(n - 1, config, max_positions) for n in source_lengths.tolist()]
    shortest, longest = torch.tensor(limits, dtype=torch.int64).view(-1, 2).unbind(1)
    return shortest.clone(), longest.clone()


def _edits(config: DecodingConfig, constraints: Sequence[Constraints]) -> Iterator[Edit]:
    """The rules that are on and leave the probability of what they forbid unused."""
    penalty = config.repetition_penalty
    if penalty != 1:
        yield lambda log_probs, _, history: penalize_repetition(log_probs, history, penalty)
    phrases = [own.forbidden for own in constraints]
    if any(phrases):
        yield ForbiddenPhrases(phrases)


def renormalize(log_probs: Tensor, sentences: Tensor | None) -> None:
    """Share out the probability of tokens that were forbidden, in place.

    As if they had been forbidden before the softmax, which is what CTranslate2 does: so searches
    with a shortest length or without repeated n-grams score alike in both engines.

    Args:
        log_probs: (B, K, V), float32.
        sentences: Which to change. (B,), bool, on the CPU; None for all.
    """
    totals = log_probs.logsumexp(-1, keepdim=True).clamp_(min=torch.finfo(log_probs.dtype).min)
    if sentences is not None:
        totals *= sentences.to(log_probs.device, log_probs.dtype)[:, None, None]
    log_probs -= totals
    log_probs.clamp_(max=0.0)  # the search relies on it


def delay_end(log_probs: Tensor, early: Tensor) -> None:
    """Forbid EOS where an output is shorter than its limit, in place.

    Args:
        log_probs: (B, K, V), float32.
        early: Which sentences are. (B,), bool, on the CPU.
    """
    log_probs[early, :, EOS_ID] = -torch.inf


def end_at_limit(log_probs: Tensor, last: Tensor) -> None:
    """Allow nothing but EOS where an output is at its longest, in place.

    So every hypothesis ends and counts the probability of its end.

    Args:
        log_probs: (B, K, V), float32.
        last: Which sentences are. (B,), bool; on the CPU, to wait for no device.
    """
    if bool(last.any()):
        ends = log_probs[last][..., EOS_ID].clone()
        log_probs[last] = -torch.inf
        log_probs[last, :, EOS_ID] = ends


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
    _forbid_at(log_probs, rows, beams, ngrams[rows, beams, places, -1])


class ForbiddenPhrases:
    """Forbids the last token of a phrase after all others of it. An `Edit`.

    Args:
        phrases: Of each sentence.
    """

    def __init__(self, phrases: Sequence[Sequence[Ids]]) -> None:
        width = max(len(phrase) for own in phrases for phrase in own)
        count = max(len(own) for own in phrases)
        # Right-aligned: before a short phrase anything may stand. Where there is none, PAD is.
        table = torch.full((len(phrases), count, width), _ANY)
        table[..., -1] = PAD_ID
        for row, own in enumerate(phrases):
            for place, phrase in enumerate(own):
                table[row, place, width - len(phrase) :] = torch.tensor(phrase)
        self._table = table  # (sentences, P, width)

    def __call__(self, log_probs: Tensor, sentences: Tensor, history: Tensor) -> None:
        """Apply. See `Edit`."""
        table = self._table[sentences].unsqueeze(1)  # (B, 1, P, width)
        starts, width = table[..., :-1], table.shape[-1] - 1
        tail = torch.full((*history.shape[:2], 1, width), _NOTHING)
        known = min(width, history.shape[-1])
        tail[..., 0, width - known :] = history[..., history.shape[-1] - known :]
        rows, beams, places = ((starts == tail) | (starts == _ANY)).all(-1).nonzero(as_tuple=True)
        _forbid_at(log_probs, rows, beams, table[rows, 0, places, -1])


def _forbid_at(log_probs: Tensor, rows: Tensor, beams: Tensor, tokens: Tensor) -> None:
    if len(rows):
        where = (x.to(log_probs.device) for x in (rows, beams, tokens))
        log_probs[tuple(where)] = -torch.inf


class ForcedPrefix:
    """Prefixes that every hypothesis must begin with; their probabilities count.

    Args:
        prefixes: Of each sentence; empty for none.
    """

    def __init__(self, prefixes: Sequence[Ids]) -> None:
        self._table, self._lengths = _padded(prefixes)

    def force(
        self, log_probs: Tensor, sentences: Tensor, history: Tensor
    ) -> Callable[[], None] | None:
        """Note what is forced, before other rules change it; to apply after them. See `Edit`."""
        length = history.shape[-1]
        rows = (self._lengths[sentences] > length).nonzero().squeeze(1)
        if not len(rows):
            return None
        tokens = self._table[sentences[rows], length].to(log_probs.device)
        rows = rows.to(log_probs.device)
        values = log_probs[rows, :, tokens]

        def apply() -> None:
            log_probs[rows] = -torch.inf
            log_probs[rows, :, tokens] = values

        return apply


class BiasedPrefix:
    """Draws hypotheses to a prefix as long as they agree with it (Arivazhagan et al. 2020).

    The next token of the prefix gets the share beta of the probability, all tokens together the
    rest: (1 - beta) p + beta [token is the prefix's]. An `Edit`, for log probabilities that no rule
    has changed.

    Args:
        prefixes: Of each sentence; empty for none.
        beta: The share, above 0 and below 1.
    """

    def __init__(self, prefixes: Sequence[Ids], beta: float) -> None:
        self._table, self._lengths = _padded(prefixes)
        self._gain, self._loss = math.log(beta), math.log1p(-beta)

    def __call__(self, log_probs: Tensor, sentences: Tensor, history: Tensor) -> None:
        """Apply. See `Edit`."""
        length = history.shape[-1]
        if length >= self._table.shape[1]:
            return
        prefixes = self._table[sentences, :length].unsqueeze(1)  # (B, 1, t)
        agrees = (history == prefixes).all(-1) & (self._lengths[sentences] > length).unsqueeze(1)
        rows, beams = agrees.nonzero(as_tuple=True)
        if not len(rows):
            return
        tokens = self._table[sentences[rows], length].to(log_probs.device)
        rows, beams = rows.to(log_probs.device), beams.to(log_probs.device)
        log_probs[rows, beams] += self._loss
        gain = torch.tensor(self._gain, device=log_probs.device)
        log_probs[rows, beams, tokens] = torch.logaddexp(log_probs[rows, beams, tokens], gain)


def _padded(prefixes: Sequence[Ids]) -> tuple[Tensor, Tensor]:
    """Ids (sentences, longest) and lengths (sentences,)."""
    rows = [torch.tensor(prefix, dtype=torch.int64) for prefix in prefixes]
    lengths = torch.tensor([len(prefix) for prefix in prefixes])
    return pad_sequence(rows, batch_first=True, padding_value=PAD_ID), lengths
