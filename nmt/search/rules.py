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

import sys
from collections.abc import Sequence
from itertools import chain
from math import inf, log, log1p

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from nmt.config.model import DecodingConfig
from nmt.search.hypothesis import Constraints, Ids, limits_of
from nmt.text import EOS_ID, NUM_NEVER_CHOSEN, PAD_ID

_ANY = -1  # stands for any token, in a table of phrases
_NO_TOKEN = -2  # stands before the start of an output; equals neither a token nor `_ANY`
_LOOP_LENGTH = 8
_LONGEST_PERIOD = 8


class Rules:
    """All rules of one search.

    Args:
        source_lengths: Source tokens of each sentence, EOS included. (B,), int.
        config: The decoding section.
        constraints: Constraints of each sentence; empty if no sentence has constraints.
        max_positions: Maximum output length, EOS included; None if there is no limit.
        end_loops: Whether to stop outputs that repeat endlessly; see `end_loops`.
    """

    limits: Tensor  # See `length_limits`; (2, sentences), on the CPU.

    def __init__(
        self,
        source_lengths: Tensor,
        config: DecodingConfig,
        constraints: Sequence[Constraints],
        max_positions: int | None = None,
        *,
        end_loops: bool = False,
    ) -> None:
        self._config = config
        self._max_positions = max_positions
        self._end_loops = end_loops
        # Minimum (row 0) and maximum (row 1) output length of each sentence.
        self.limits = length_limits(source_lengths, config, max_positions)
        if constraints:
            # Required tokens and EOS must fit.
            needed_lengths = torch.tensor([entry.num_tokens + 1 for entry in constraints])
            needed_lengths.clamp_(max=max_positions or sys.maxsize)
            self.limits[1] = self.limits[1].maximum(needed_lengths)
        min_lengths, max_lengths = self.limits.tolist()
        # Lengths at which no sentence is at a limit.
        self._free_lengths = range(max(min_lengths, default=0), min(max_lengths, default=0))
        # Forbidden phrases: see `_phrase_table`. None if there are none.
        self._phrases: Tensor | None = None
        phrases = [entry.forbidden for entry in constraints]
        if any(phrases):
            self._phrases = _phrase_table(phrases)
        # Start token, if any, and prefix of each sentence, padded at the end; only PAD for a
        # sentence without a prefix. (sentences, longest prefix), int64. None if no sentence has a
        # prefix.
        self._prefixes: Tensor | None = None
        if any(entry.prefix for entry in constraints):
            rows = []
            for entry in constraints:
                ids = entry.first_ids if entry.prefix else ()
                rows.append(torch.tensor(ids, dtype=torch.int64))
            self._prefixes = pad_sequence(rows, batch_first=True, padding_value=PAD_ID)

    @property
    def only_limit_length(self) -> bool:
        """Whether all rules except the length limits are off.

        `end_loops` does not count, because the search that asks for this ignores it.
        """
        config = self._config
        has_phrases = self._phrases is not None or self._prefixes is not None
        limits_repetition = config.no_repeat_ngram_size or config.repetition_penalty != 1
        return not (has_phrases or limits_repetition)

    def __call__(self, log_probs: Tensor, sentences: Tensor, history: Tensor) -> None:
        """Apply all rules to ``log_probs``, in place. For the shapes see the module."""
        prefix_tokens = self._next_prefix_tokens(sentences, history)
        if prefix_tokens is None:
            self._apply_without_prefix(log_probs, sentences, history)
            return
        rows, beams, tokens = (indices.to(log_probs.device) for indices in prefix_tokens)
        beta = self._config.prefix_bias_beta
        if beta:
            # The probability p of a token becomes (1 - beta) p, plus beta for the next token of the
            # prefix (Arivazhagan et al. 2020).
            log_probs[rows, beams] += log1p(-beta)
            gain = torch.tensor(log(beta), device=log_probs.device)
            prefix_log_probs = log_probs[rows, beams, tokens]
            log_probs[rows, beams, tokens] = prefix_log_probs.logaddexp(gain)
            self._apply_without_prefix(log_probs, sentences, history)
            return
        # A forced prefix may contain tokens that are never chosen, such as UNK. They do not change
        # the score.
        can_be_chosen = tokens >= NUM_NEVER_CHOSEN
        prefix_log_probs = log_probs[rows, beams, tokens].where(can_be_chosen, 0.0)
        self._apply_without_prefix(log_probs, sentences, history)
        # Only the next token of the prefix is allowed, whatever the other rules say.
        log_probs[rows, beams] = -inf
        # At the maximum length of the model, the prefix does not fit, and no token is allowed.
        if history.shape[-1] + 1 != self._max_positions:
            log_probs[rows, beams, tokens] = prefix_log_probs

    def _next_prefix_tokens(
        self, sentences: Tensor, history: Tensor
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return the next prefix token of each hypothesis that equals its prefix so far.

        Returns:
            Row, beam and token of each such hypothesis: three tensors of equal length, int64, on
            the CPU; None if there is no such hypothesis.
        """
        length = history.shape[-1]
        if self._prefixes is None or length >= self._prefixes.shape[1]:
            return None
        prefixes = self._prefixes[sentences]
        next_tokens = prefixes[:, length]  # PAD if the prefix is complete. (B,)
        prefixes_so_far = prefixes[:, :length].unsqueeze(1)  # (B, 1, t)
        follows_prefix = (history == prefixes_so_far).all(-1)  # (B, K)
        follows_prefix &= (next_tokens != PAD_ID).unsqueeze(1)
        rows, beams = follows_prefix.nonzero(as_tuple=True)
        if not len(rows):
            return None
        return rows, beams, next_tokens[rows]

    def _apply_without_prefix(self, log_probs: Tensor, sentences: Tensor, history: Tensor) -> None:
        """Apply the rules that do not apply to forced prefixes."""
        config = self._config
        log_probs.narrow(-1, 0, NUM_NEVER_CHOSEN).fill_(-inf)
        length = history.shape[-1] + 1  # of an output that ends in this step
        # Sentences whose output would be too short if it ended now. (B,), bool; None if none.
        is_early: Tensor | None = None
        # Sentences whose output must end now. (B,), bool; None if none.
        is_last: Tensor | None = None
        if length not in self._free_lengths:
            min_lengths, max_lengths = self.limits[:, sentences]
            if length < min_lengths.max():
                is_early = min_lengths > length
                delay_end(log_probs, is_early)
            if length >= max_lengths.min():
                is_last = max_lengths <= length
        if config.no_repeat_ngram_size:
            forbid_repeated_ngrams(log_probs, history, config.no_repeat_ngram_size)
            # Not at the limit, where EOS keeps the probability that the model gives it.
            renormalize(log_probs, None if is_last is None else ~is_last)
        elif is_early is not None:
            renormalize(log_probs, is_early)
        if config.repetition_penalty != 1:
            penalize_repetition(log_probs, history, config.repetition_penalty)
        if self._phrases is not None:
            forbid_phrases(log_probs, self._phrases[sentences], history)
        if is_last is not None:
            end_at_limit(log_probs, is_last)
        if self._end_loops:
            end_loops(log_probs, history)


def length_limits(
    source_lengths: Tensor, config: DecodingConfig, max_positions: int | None = None
) -> Tensor:
    """Return the minimum and the maximum output length, EOS included. (2, B), int64.

    Args:
        source_lengths: Source tokens of each sentence, EOS included. (B,), int.
        config: The decoding section.
        max_positions: See `limits_of`.
    """
    lengths = source_lengths.tolist()
    limits = [limits_of(length - 1, config, max_positions) for length in lengths]
    # `view` because the tensor of an empty list has one dimension.
    return torch.tensor(limits, dtype=torch.int64).view(-1, 2).T


def renormalize(log_probs: Tensor, sentences: Tensor | None) -> None:
    """Normalize log probabilities again after tokens were forbidden, in place.

    The result is the same as if the tokens were forbidden before the softmax. CTranslate2 does
    that, so both engines return the same scores.

    Args:
        log_probs: (B, K, V), float32.
        sentences: Sentences to normalize. (B,), bool; None for all.
    """
    totals = log_probs.logsumexp(-1, keepdim=True)
    # Finite, because a product of 0 and infinity is NaN.
    totals.clamp_(min=torch.finfo(log_probs.dtype).min)
    if sentences is not None:
        totals *= sentences.to(log_probs)[:, None, None]
    log_probs -= totals
    log_probs.clamp_(max=0.0)  # rounding may exceed 0


def delay_end(log_probs: Tensor, is_early: Tensor) -> None:
    """Forbid EOS in sentences whose outputs are too short: where ``is_early`` (B,), bool."""
    mask = is_early.to(log_probs.device).unsqueeze(1)
    log_probs[..., EOS_ID].masked_fill_(mask, -inf)


def end_at_limit(log_probs: Tensor, is_last: Tensor) -> None:
    """Allow only EOS in outputs of maximum length: where ``is_last``, (B,) or (B, K), bool.

    So every hypothesis ends in EOS and its score includes EOS.
    """
    mask = is_last.to(log_probs.device).view(len(is_last), -1, 1)
    eos_log_probs = log_probs[..., EOS_ID]  # (B, K), a view
    saved = eos_log_probs.clone()
    log_probs.masked_fill_(mask, -inf)
    eos_log_probs.copy_(saved)


def end_loops(log_probs: Tensor, history: Tensor) -> None:
    """Allow only EOS after a loop: the last 8 tokens equal the tokens one period before them.

    Periods of 1 to 8 tokens are detected. This is a faster form of the guard's loop alarm.

    >>> log_probs = torch.full((1, 2, 4), -1.0)
    >>> end_loops(log_probs, torch.tensor([[[7, 5, 6] * 4, [7, 5, 6] * 3 + [7, 5, 5]]]))
    >>> log_probs.isneginf().any(-1)
    tensor([[ True, False]])
    """
    is_loop = torch.zeros(history.shape[:2], dtype=torch.bool)
    last_ids = history[..., -_LOOP_LENGTH:]
    # Position of the first of them. At most 0 if the history is too short for any loop, and then no
    # period is tried.
    start = history.shape[-1] - _LOOP_LENGTH
    for period in range(1, min(_LONGEST_PERIOD, start) + 1):
        earlier_ids = history[..., start - period :][..., :_LOOP_LENGTH]
        is_loop |= (last_ids == earlier_ids).all(-1)
    if is_loop.any():
        end_at_limit(log_probs, is_loop)


def penalize_repetition(log_probs: Tensor, history: Tensor, penalty: float) -> None:
    """Multiply the log probability of each token in ``history`` by ``penalty``.

    Source: Keskar et al. (2019). The paper divides positive logits and multiplies negative ones.
    Log probabilities are never positive.

    >>> log_probs = torch.tensor([[[-1.0, -2.0, -3.0]]])
    >>> penalize_repetition(log_probs, torch.tensor([[[1, 1]]]), 1.5)
    >>> log_probs
    tensor([[[-1., -3., -3.]]])
    """
    tokens = history.to(log_probs.device)
    penalized = log_probs.gather(-1, tokens) * penalty
    log_probs.scatter_(-1, tokens, penalized)


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
    # The last size - 1 ids. The next token completes an n-gram that begins with them.
    last_ids = history[..., length - size + 1 :].unsqueeze(-2)
    is_equal = ngrams[..., :-1] == last_ids
    rows, beams, starts = is_equal.all(-1).nonzero(as_tuple=True)
    if len(rows):
        tokens = ngrams[rows, beams, starts, -1]
        log_probs[rows, beams, tokens] = -inf


def _phrase_table(phrases: Sequence[Sequence[Ids]]) -> Tensor:
    """Return the forbidden phrases of each sentence as a tensor, (sentences, P, width), int64.

    Phrases are right-aligned, with `_ANY` before a short phrase. A sentence with fewer than P
    phrases is filled up with PAD as a phrase, which is forbidden anyway.
    """
    width = max(map(len, chain(*phrases)))
    max_phrases = max(map(len, phrases))
    table = torch.full((len(phrases), max_phrases, width), _ANY)
    table[..., -1] = PAD_ID
    for row, sentence_phrases in zip(table, phrases, strict=True):
        for index, phrase in enumerate(sentence_phrases):
            row[index, -len(phrase) :] = torch.tensor(phrase)
    return table


def forbid_phrases(log_probs: Tensor, phrases: Tensor, history: Tensor) -> None:
    """Forbid the last token of a phrase where the output ends with the tokens before it.

    Args:
        log_probs: See the module.
        phrases: From `_phrase_table`. (B, P, width), int64.
        history: See the module.
    """
    table = phrases.unsqueeze(1)  # (B, 1, P, width)
    starts = table[..., :-1]  # Phrases without their last token. (B, 1, P, width - 1).
    num_ids = starts.shape[-1]
    # The last ids of each output. Padded on the left, because an output may have fewer ids.
    padded = F.pad(history, (num_ids, 0), value=_NO_TOKEN)
    last_ids = padded[..., history.shape[-1] :].unsqueeze(2)  # (B, K, 1, width - 1)
    is_equal = (starts == last_ids) | (starts == _ANY)
    rows, beams, indices = is_equal.all(-1).nonzero(as_tuple=True)
    tokens = phrases[rows, indices, -1]
    log_probs[rows, beams, tokens] = -inf
