"""Interfaces of the search: `Stepper` (the model) and `Selector` (the search algorithm).

To add an algorithm, write a `Selector` in its own module and register it in `SELECTORS`. Then
``decoding.search`` selects it by name. `FinishedHypotheses` collects the results; `largest` and
`first_largest` rank log probabilities, with ties in a fixed order.

Shapes: B active sentences, K beams of each sentence, V vocabulary, t tokens generated so far.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from nmt.config.model import DecodingConfig
from nmt.packed import Packed
from nmt.registry import Registry
from nmt.search.hypothesis import Constraints, Hypothesis, NBestLists, length_penalty, max_finished
from nmt.text import BOS_ID

S = TypeVar("S")


class Stepper(Protocol[S]):
    """Computes the log probabilities of the next token. The search treats the state as opaque.

    A new state may reuse the memory of the old one, so the search continues each state only once.

    Shapes: B active sentences, S source positions, K beams of each sentence, V vocabulary.
    """

    @property
    def tokens(self) -> Tensor | None:
        """Vocabulary id of each column of the log probabilities. (V,), int64; None if equal."""
        ...

    @property
    def max_positions(self) -> int | None:
        """Maximum output length, EOS included; None if there is no limit."""
        ...

    def start(self, source: Packed) -> S:
        """Encode the source ids of B sentences, with one beam for each sentence."""
        ...

    def step(self, state: S, tokens: Tensor) -> tuple[Tensor, S]:
        """Append ``tokens`` (B, K), int64; return log probabilities (B, K, V), float32, and state.

        The search may overwrite the log probabilities.
        """
        ...

    def select(self, state: S, sentences: Tensor, beams: Tensor) -> S:
        """Keep ``sentences``, and in each of them ``beams``.

        Both tensors may be on the CPU, even if the state is not.

        Args:
            state: The state to select from.
            sentences: Rows to keep, ascending. (B',), int64.
            beams: Beams to keep in each row. A beam may be kept several times. (B', K'), int64.
        """
        ...

    def coverage(self, state: S) -> Tensor:
        """Return the attention to each source token, summed over all steps: (B, K, S), float32.

        Only called if the search has a coverage penalty.
        """
        ...


@dataclass(frozen=True)
class SearchInputs:
    """Arguments of a selector."""

    source: Packed  # Source ids, each sentence ending in EOS.
    options: DecodingConfig  # Options of the search.
    # Constraints of each sentence. The search loop handles prefixes and forbidden phrases.
    constraints: Sequence[Constraints]
    # Maximum output length of each sentence, EOS included. (sentences,), int64, on the CPU.
    max_lengths: Tensor
    tokens: Tensor | None  # See `Stepper.tokens`.


class Selection(NamedTuple):
    """The hypotheses that continue. All tensors are on the CPU."""

    tokens: Tensor  # Id that each hypothesis appends. (B, K'), int64.
    # Log probability of each hypothesis; minus infinity marks an empty beam. (B, K'), float32.
    totals: Tensor
    # Beam that each hypothesis continues. (B, K'), int64; None if every beam continues itself.
    parents: Tensor | None = None
    # Whether each sentence stays in the batch. (B,), bool; None if all stay.
    active: Tensor | None = None


RowsAndBeams = tuple[Tensor, Tensor]  # Arguments of `Stepper.select`.


class BeamState(NamedTuple):
    """The unfinished hypotheses of each active sentence. All tensors are on the CPU."""

    sentences: Tensor  # Index of each row among all sentences, ascending. (B,), int64.
    # Start token, if any, and ids generated so far. (B, K, t), int64. K is 1 at first.
    history: Tensor
    tokens: Tensor  # Last id of each hypothesis; BOS without a history. (B, K), int64.
    # Log probability of each hypothesis; minus infinity marks an empty beam. (B, K), float32.
    totals: Tensor

    @classmethod
    def first(cls, count: int) -> BeamState:
        """Return one empty hypothesis, of probability 1, for each of ``count`` sentences."""
        sentences = torch.arange(count)
        history = torch.empty(count, 1, 0, dtype=torch.int64)
        tokens = torch.full((count, 1), BOS_ID)
        return cls(sentences, history, tokens, totals=torch.zeros(count, 1))

    def advance(self, selection: Selection) -> tuple[BeamState, RowsAndBeams | None]:
        """Append one token to each selected hypothesis.

        Returns:
            The next state, and the arguments of `Stepper.select`: rows (B',) and beams (B', K'),
            int64; None if all beams stay in place. If no sentence stays, the next state has no
            sentences, and its other tensors have no meaning.
        """
        sentences, history, _, _ = self
        tokens, totals, parents, active = selection
        # Whether each sentence stays; a single entry if all do.
        stays = [True] if active is None else active.tolist()
        if not any(stays):
            return self._replace(sentences=sentences[:0]), None
        rows_and_beams = None
        in_place = torch.arange(history.shape[1]).expand(len(tokens), -1)
        # Detect common steps in which no beam moves and no sentence ends: they need no copy of the
        # caches, which are far larger than the tensors here.
        is_in_place = parents is None or torch.equal(parents, in_place)
        if not (is_in_place and all(stays)):
            rows = torch.arange(len(sentences))
            if parents is None:
                parents = in_place
            if not all(stays):
                rows = rows[active]
                sentences = sentences[rows]
                history = history[rows]
                tokens = tokens[rows]
                totals = totals[rows]
                parents = parents[rows]
            indices = parents.unsqueeze(-1).expand(-1, -1, history.shape[2])
            history = history.gather(1, indices)
            rows_and_beams = (rows, parents)
        history = torch.cat((history, tokens.unsqueeze(-1)), 2)
        return BeamState(sentences, history, tokens, totals), rows_and_beams


class Selector(ABC):
    """A search algorithm: chooses the hypotheses that continue, and collects the finished ones.

    Args:
        inputs: The batch.
    """

    # Whether outputs contain the required phrases of `Constraints`. If not, such a search raises an
    # error.
    meets_required_phrases = False

    @abstractmethod
    def __init__(self, inputs: SearchInputs) -> None: ...

    @abstractmethod
    def select(self, beams: BeamState, log_probs: Tensor, coverage: Tensor) -> Selection:
        """Choose the hypotheses that continue with one more token.

        Args:
            beams: The hypotheses to continue.
            log_probs: Log probability of each next token; minus infinity if it is not allowed. Must
                not be changed. (B, K, V), float32, on the stepper's device.
            coverage: Coverage penalty of each hypothesis, at most 0, added to its score if it ends
                in this step; 0 if the penalty is off. (B, K), float32, on the CPU.
        """

    @abstractmethod
    def results(self) -> NBestLists:
        """Return the hypotheses of every sentence, in the order of the output."""


SELECTORS = Registry[type[Selector]]("search")
# `FinishedHypotheses.active` stops a search that is not worth continuing: with K finished
# hypotheses, if the best unfinished one cannot win within this many tokens, even of probability 1.
# On 2,000 lines, this changes no translation and saves 10% of the steps. With 3 it changes one,
# with 1 it changes 28.
_TOKENS_AHEAD = 4


class FinishedHypotheses:
    """Collects finished hypotheses in pools, and decides when to stop the search.

    Args:
        inputs: The batch.
        beam_size: Number of beams K that fill a pool.
        n_best: Number of hypotheses to return from each pool.
        pools_per_sentence: Pools of a sentence, for example one for each group of beams. They have
            consecutive numbers: those of sentence i begin at ``i * pools_per_sentence``.
    """

    def __init__(
        self, inputs: SearchInputs, *, beam_size: int, n_best: int, pools_per_sentence: int = 1
    ) -> None:
        self._n_best = n_best
        self._beam_size = beam_size
        self._max_finished = max_finished(inputs.options, beam_size)
        self._penalty = length_penalty(inputs.options)
        # A stronger penalty favours outputs that are much longer than the present ones.
        self._may_look_ahead = inputs.options.length_penalty <= 1
        penalties = [self._penalty(length) for length in inputs.max_lengths.tolist()]
        sentence_penalties = torch.tensor(penalties, dtype=torch.float64)
        # This tensor and the next two have one value for each pool. The first is the length penalty
        # of the longest output, in float64.
        self._largest_penalty = sentence_penalties.repeat_interleave(pools_per_sentence)
        # Score of the last hypothesis of the n-best list; minus infinity if the list is not full.
        self._to_beat = torch.full_like(self._largest_penalty, -inf)
        # Number of finished hypotheses. int64.
        self._counts = torch.zeros_like(self._to_beat, dtype=torch.int64)
        self._pools_per_sentence = pools_per_sentence
        # Finished hypotheses of each pool, best first.
        self._pools = [list[Hypothesis]() for _ in self._counts]
        self._is_any_finished = False

    def add(
        self, pools: Tensor, histories: Tensor, log_probs: Tensor, coverage: Tensor | None = None
    ) -> None:
        """Add E finished hypotheses.

        Args:
            pools: Pool of each hypothesis. (E,), int64.
            histories: Ids without EOS. (E, t), int64.
            log_probs: Log probabilities, EOS included. (E,), float32.
            coverage: Coverage penalty, added to the scores; at most 0. (E,), float32.
        """
        self._is_any_finished = True
        if coverage is None:
            coverage = torch.zeros_like(log_probs)
        # Writing to these arrays changes the tensors, and is faster than writing to the tensors.
        counts = self._counts.numpy()
        to_beat = self._to_beat.numpy()
        penalty = self._penalty(histories.shape[1] + 1)  # the length includes EOS
        columns = (pools, histories, log_probs, coverage)
        rows = zip(*map(Tensor.tolist, columns), strict=True)
        for pool, ids, log_prob, coverage_penalty in rows:
            score = log_prob / penalty + coverage_penalty
            hypotheses = self._pools[pool]
            hypothesis = Hypothesis(tuple(ids), log_prob, score)
            insort(hypotheses, hypothesis, key=lambda entry: -entry.score)
            counts[pool] = len(hypotheses)
            if len(hypotheses) >= self._n_best:
                to_beat[pool] = hypotheses[self._n_best - 1].score

    def full(self, pools: Tensor) -> Tensor:
        """Whether each of ``pools`` has ``patience`` x K hypotheses (Kasai et al. 2022).

        Args:
            pools: Pool numbers. Any shape, int64.

        Returns:
            The same shape, bool.
        """
        return self._counts[pools] >= self._max_finished

    def active(self, pools: Tensor, best_active: Tensor, num_tokens: int | None = None) -> Tensor:
        """Whether the search of each pool continues.

        The search of a pool stops if the pool is full, or if no unfinished hypothesis can reach the
        n-best list; with ``num_tokens`` also if none can do so soon (`_TOKENS_AHEAD`).

        Args:
            pools: Pool numbers. Any shape, int64.
            best_active: Highest log probability of the unfinished hypotheses of each pool; minus
                infinity if it has none. The same shape, float32.
            num_tokens: Number of tokens of each unfinished hypothesis.

        Returns:
            The same shape, bool.
        """
        has_active = best_active.isfinite()
        if not self._is_any_finished:
            return has_active
        is_done = self.full(pools) | self._hopeless(pools, best_active)
        if num_tokens is not None and self._may_look_ahead:
            # In float64, like the scores.
            best_soon = best_active.double() / self._penalty(num_tokens + _TOKENS_AHEAD)
            has_beam = self._counts[pools] >= self._beam_size
            is_done |= has_beam & (self._to_beat[pools] >= best_soon)
        return has_active & ~is_done

    def _hopeless(self, pools: Tensor, best_active: Tensor) -> Tensor:
        """Whether no unfinished hypothesis can reach the n-best list, so stopping is exact.

        Log probabilities only decrease, and the longest output has the largest length penalty. So
        their quotient is an upper bound of future scores. A tie does not replace an earlier result.
        """
        # In float64, like the scores: in float32 an equal bound could be rounded up.
        return self._to_beat[pools] >= best_active.double() / self._largest_penalty[pools]

    def by_sentence(self) -> list[NBestLists]:
        """Return the pools of each sentence, each with its hypotheses, best first."""
        size = self._pools_per_sentence
        starts = range(0, len(self._pools), size)
        return [self._pools[start : start + size] for start in starts]


# Block sizes, best first: the number of blocks should be similar to the size of a block.
_BLOCK_SIZES = sorted(range(32, 129), key=lambda size: abs(size - 64))
_LEAST_VALUES = 1 << 12  # fewer values are searched faster without blocks


def _blocks(values: Tensor) -> Tensor:
    """Split rows into blocks of equal size: (..., V) -> (..., n, size).

    Torch searches a row sequentially. It is several times faster to compute the maximum of each
    block, and then to search only the best blocks. A row becomes one block if the tensor is small,
    or if no block size divides V.
    """
    width = values.shape[-1]
    if values.numel() < _LEAST_VALUES:
        return values.unsqueeze(-2)
    size = next((size for size in _BLOCK_SIZES if width % size == 0), width)
    return values.unflatten(-1, (-1, size))


def _top(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return what ``values.topk(count)`` returns, several times faster for long rows."""
    blocks = _blocks(values)  # (..., n, size)
    num_blocks, size = blocks.shape[-2:]
    if num_blocks < 4 * count:  # most blocks would be searched anyway
        return values.topk(count, dim=-1)
    # Blocks with smaller maxima cannot contain one of the `count` largest values.
    best_blocks = blocks.amax(-1).topk(count, sorted=False).indices  # (..., count)
    candidates = blocks.take_along_dim(best_blocks.unsqueeze(-1), -2)  # (..., count, size)
    best, index = candidates.flatten(-2).topk(count)
    # From the index among the candidates to the index in the row.
    first_index = best_blocks.gather(-1, index // size) * size
    return best, first_index + index % size


def largest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the ``count`` largest values of each row and their indices, on the CPU, best first.

    Of equal values the one with the lower index comes first. `torch.topk` does not guarantee this.
    So ``count + 1`` values are computed: they show whether the last value kept is equal to one that
    was dropped. Such ties are rare in float32, but frequent in 16 bits.

    Args:
        values: (..., V), float32. Minus infinity marks missing values.
        count: Number of values; a shorter row returns all V.

    Returns:
        Values (..., min(count, V)), float32, and indices of the same shape, int64.

    >>> largest(torch.tensor([1.0, 3.0, 2.0, 3.0]), 2)
    (tensor([3., 3.]), tensor([1, 3]))
    """
    width = values.shape[-1]
    best, index = _top(values, min(count + 1, width))
    best = best.cpu()
    index = index.cpu()
    is_tied = best[..., 1:] == best[..., :-1]
    if not is_tied.any():
        return best[..., :count], index[..., :count]
    # Order equal values by their index: sort by index, then stably by value.
    index, order = index.sort()
    best = best.gather(-1, order)
    best, order = best.sort(stable=True, descending=True)
    index = index.gather(-1, order)
    last = best[..., count - 1 : count]  # The last value to return. (..., 1).
    dropped = best[..., count:]  # The value after it. (..., 1), or (..., 0) if there is none.
    best = best[..., :count]
    index = index[..., :count]
    # Rows in which the dropped value equals the last one. More values that equal the last one may
    # be missing, and some of them may have a lower index. (...), bool.
    is_cut = (last == dropped) & (last > -inf)
    is_cut = is_cut.any(-1)
    if is_cut.any():
        last = last[is_cut]  # (N, 1)
        rows = values[is_cut]  # (N, V)
        # The lowest indices of values that equal the last one, ascending; V fills up the rest.
        indices = torch.arange(width, dtype=rows.dtype, device=rows.device)
        indices = indices.where(rows == last.to(rows.device), width)
        lowest = indices.topk(count, largest=False).values.long()  # (N, count)
        lowest = lowest.cpu()
        # Larger values come first and stay. Replace only the indices of the equal values.
        num_larger = (best[is_cut] > last).sum(-1, keepdim=True)
        rank = torch.arange(count) - num_larger  # Rank among equal values; negative if larger.
        lowest = lowest.gather(-1, rank.clamp(min=0))
        index[is_cut] = index[is_cut].where(rank < 0, lowest)
    return best, index


def first_largest(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest value of each row and its first index: `torch.max`, but faster on a CPU.

    Args:
        values: (..., V), float32.

    Returns:
        Values (...), float32, and indices (...), int64, on the device of ``values``.

    >>> first_largest(torch.tensor([1.0, 3.0, 2.0, 3.0]))
    (tensor(3.), tensor(1))
    """
    blocks = _blocks(values)  # (..., n, size)
    if blocks.shape[-2] == 1:
        best, index = values.max(dim=-1)
        return best, index
    # First the best block of each row, then the best value inside this block.
    best, block = blocks.amax(-1).max(dim=-1)  # (...)
    block_values = blocks.take_along_dim(block[..., None, None], -2)  # (..., 1, size)
    offset = block_values.squeeze(-2).argmax(-1)
    return best, block * blocks.shape[-1] + offset
