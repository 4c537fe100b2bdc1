"""What a search needs of a model, `Stepper`, and what an algorithm is: a `Selector`.

To add an algorithm, write a `Selector` in a module of its own and register it in `SELECTORS`; with
``decoding.search`` it is then chosen by its name. `FinishedHypotheses` holds what ended;
`largest` and `first_largest` rank log probabilities, equals in a fixed order.

Shapes: B sentences still active, K beams of each, V vocabulary, t tokens so far.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from nmt.config.model import DecodingConfig
from nmt.packed import Packed
from nmt.registry import Registry
from nmt.search.hypothesis import Constraints, Hypothesis, length_penalty, max_finished
from nmt.text import BOS_ID

S = TypeVar("S")


class Stepper(Protocol[S]):
    """Gives the log probabilities of the next token. Its state is opaque to the search.

    What comes after a state may use its memory again: the search continues each state once.

    Shapes: B sentences still active, S source positions, K beams of each sentence, V vocabulary.
    """

    @property
    def tokens(self) -> Tensor | None:
        """What the ids of the search stand for. (V,), int64; None where they are themselves."""
        ...

    @property
    def max_positions(self) -> int | None:
        """Positions of the decoder: the longest output, with EOS; None if there is no limit."""
        ...

    def start(self, source: Packed) -> S:
        """Read the source ids of B sentences; one beam for each."""
        ...

    def step(self, state: S, tokens: Tensor) -> tuple[Tensor, S]:
        """Append ``tokens`` (B, K), int64; return log probabilities (B, K, V), float32, and state.

        The search may overwrite the log probabilities.
        """
        ...

    def select(self, state: S, sentences: Tensor, beams: Tensor) -> S:
        """Keep ``sentences`` (B',), ascending, and in each the given ``beams`` (B', K').

        Both may be on the CPU, wherever the state is. A beam may be kept several times: K' need not
        be K.
        """
        ...

    def coverage(self, state: S) -> Tensor:
        """Attention that each source token got in all steps so far: (B, K, S), float32.

        The search asks only where it has a coverage penalty; a stepper not made for it may refuse.
        """
        ...


@dataclass(frozen=True, slots=True)
class SearchInputs:
    """What a selector is built from."""

    source: Packed  # Source ids, each sentence ending in EOS.
    options: DecodingConfig  # How to search.
    # Of each sentence. Forced prefixes and forbidden phrases are seen to by the loop.
    constraints: Sequence[Constraints]
    # Longest output of each sentence with EOS. (sentences,), int64, on the CPU.
    max_lengths: Tensor
    tokens: Tensor | None  # See `nmt.search.selector.Stepper`.


class Selection(NamedTuple):
    """The hypotheses that continue. All on the CPU."""

    tokens: Tensor  # The id that each appends. (B, K'), int64.
    # Its log probability; minus infinity for one that does not exist. (B, K'), float32.
    totals: Tensor
    # The beam that each continues. (B, K'), int64; None if every beam continues itself.
    parents: Tensor | None = None
    # Which sentences continue. (B,), bool; None for all. Others leave the batch.
    active: Tensor | None = None


class BeamState(NamedTuple):
    """The unfinished hypotheses of each active sentence. All on the CPU."""

    sentences: Tensor  # Which of all sentences each row is, ascending. (B,), int64.
    history: Tensor  # Ids so far, without BOS. (B, K, t), int64. K is 1 at the first step.
    tokens: Tensor  # The last id of each; BOS at the first step. (B, K), int64.
    # Log probability of each; minus infinity for one that does not exist. (B, K), float32.
    totals: Tensor

    @classmethod
    def first(cls, count: int) -> BeamState:
        """Return the empty hypothesis of each of ``count`` sentences."""
        history = torch.empty(count, 1, 0, dtype=torch.int64)
        tokens = torch.full((count, 1), BOS_ID)
        return cls(torch.arange(count), history, tokens, torch.zeros(count, 1))

    def advance(self, chosen: Selection) -> tuple[BeamState, tuple[Tensor, Tensor] | None]:
        """Return the state after one more token, and what `Stepper.select` keeps.

        The latter are rows (B',) and beams (B', K'), int64, or None if everything stays in place.
        """
        sentences, history = self.sentences, self.history
        tokens, totals, parents, active = chosen
        # The common steps, in which nothing moves or nothing ends, are told apart on lists: they
        # cost no copy of the caches, which are far larger than all that is here.
        stay = [True] if active is None else active.tolist()
        if not any(stay):
            return self._replace(sentences=sentences[:0]), None
        itself = torch.arange(history.shape[1]).expand(len(tokens), -1)
        if parents is not None and torch.equal(parents, itself):
            parents = None
        kept = None
        if parents is not None or not all(stay):
            rows, parents = torch.arange(len(sentences)), itself if parents is None else parents
            if active is not None and not all(stay):
                rows = active.nonzero().squeeze(1)
                sentences, history, tokens, totals, parents = (
                    x[rows] for x in (sentences, history, tokens, totals, parents)
                )
            history = history.gather(1, parents.unsqueeze(-1).expand(-1, -1, history.shape[2]))
            kept = rows, parents
        history = torch.cat((history, tokens.unsqueeze(-1)), dim=2)
        return BeamState(sentences, history, tokens, totals), kept


class Selector(ABC):
    """Selects, step by step, the hypotheses that continue, and collects those that end in EOS.

    Args:
        inputs: The batch. A subclass takes the same.
    """

    # Whether outputs contain the required phrases of `Constraints`. What does not is refused.
    meets_required_phrases: ClassVar[bool] = False

    @abstractmethod
    def __init__(self, inputs: SearchInputs) -> None: ...

    @abstractmethod
    def select(self, beams: BeamState, log_probs: Tensor, coverage: Tensor | None) -> Selection:
        """Take one step.

        Args:
            beams: The hypotheses to continue.
            log_probs: Of each next token; minus infinity for one that may not come. Not to be
                changed. (B, K, V), float32, on the device of the stepper.
            coverage: The coverage penalty of each hypothesis: added to its score if it ends here,
                at most 0. (B, K), float32, on the CPU; None without one.
        """

    @abstractmethod
    def results(self) -> list[list[Hypothesis]]:
        """Return the hypotheses of every sentence, in the order in which they are shown."""


SELECTORS: Registry[type[Selector]] = Registry(
    "search",
    {
        "greedy": "nmt.search.greedy:GreedySelector",
        "beam": "nmt.search.beam:BeamSelector",
        "diverse": "nmt.search.beam:DiverseSelector",
        "sampling": "nmt.search.greedy:SamplingSelector",
        "alternatives": "nmt.search.greedy:AlternativesSelector",
        "constrained": "nmt.search.beam:ConstrainedSelector",
    },
)


class FinishedHypotheses:
    """Finished hypotheses of a search, in pools, and whether better ones may still come.

    Args:
        inputs: The batch.
        pools_per_sentence: For example one for each group of beams; the pools of a sentence have
            consecutive numbers.
        beam_size: Beams K that fill a pool.
        n_best: Hypotheses wanted of each pool.
    """

    def __init__(
        self, inputs: SearchInputs, *, beam_size: int, n_best: int, pools_per_sentence: int = 1
    ) -> None:
        self._penalty = length_penalty(inputs.options)
        self._full, self._n_best = max_finished(inputs.options, beam_size), n_best
        lengths = inputs.max_lengths.tolist()
        largest = torch.tensor([self._penalty(n) for n in lengths], dtype=torch.float64)
        self._largest_penalty = largest.repeat_interleave(pools_per_sentence)
        self._to_beat = torch.full_like(self._largest_penalty, -torch.inf)
        self._counts = torch.zeros_like(self._to_beat, dtype=torch.int64)
        self._of: list[list[Hypothesis]] = [[] for _ in self._counts]  # each best first
        self._is_any_found = False

    def add(
        self, pools: Tensor, histories: Tensor, log_probs: Tensor, coverage: Tensor | None = None
    ) -> None:
        """Take in E hypotheses that end.

        Args:
            pools: (E,), int64.
            histories: Ids without EOS. (E, t), int64.
            log_probs: With EOS. (E,), float32.
            coverage: Added to the scores; at most 0. (E,), float32.
        """
        self._is_any_found = True
        penalty = self._penalty(histories.shape[1] + 1)
        own = [self._of[number] for number in pools.tolist()]
        extras = [0.0] * len(own) if coverage is None else coverage.tolist()
        values = zip(own, histories.tolist(), log_probs.tolist(), extras, strict=True)
        for pool, ids, log_prob, extra in values:
            found = Hypothesis(tuple(ids), log_prob, log_prob / penalty + extra)
            insort(pool, found, key=lambda hypothesis: -hypothesis.score)
        self._counts[pools] = torch.tensor([len(pool) for pool in own])
        place = self._n_best - 1
        nth = [pool[place].score if len(pool) > place else -torch.inf for pool in own]
        self._to_beat[pools] = torch.tensor(nth, dtype=torch.float64)

    def full(self, pools: Tensor) -> Tensor:
        """Whether ``pools`` have their K, or with patience (Kasai et al. 2022) more or fewer."""
        return self._counts[pools] >= self._full

    def active(self, pools: Tensor, best_active: Tensor) -> Tensor:
        """Whether the search of each of ``pools`` continues.

        Not for a pool that is full, nor where no hypothesis is left or none can reach the n best.

        Args:
            pools: Which. Any shape, int64.
            best_active: Highest log probability of the unfinished hypotheses of each. The same
                shape.
        """
        exists = best_active.isfinite()
        if not self._is_any_found:
            return exists
        return exists & ~self.full(pools) & ~self._hopeless(pools, best_active)

    def _hopeless(self, pools: Tensor, best_active: Tensor) -> Tensor:
        """Whether no unfinished hypothesis can reach the n best: to stop there changes no result.

        A log probability only falls, and the penalty of the longest output is the largest: no
        continuation scores above their quotient, as what is added to it is never above 0. Of
        equals the one found first is kept.
        """
        # In float64, as the scores: rounded to float32 an equal bound could look larger.
        return self._to_beat[pools] >= best_active.double() / self._largest_penalty[pools]

    def ranked(self, pool: int) -> list[Hypothesis]:
        """All hypotheses of a pool, best first."""
        return self._of[pool]


# Of blocks, the best first: peaks and blocks are then about equally many.
_SIZES = sorted(range(32, 129), key=lambda size: abs(size - 64))
_FEW = 1 << 12  # values that one plain search is quicker for


@cache
def _block_size(width: int) -> int:
    """Return a size of blocks that divides rows evenly; all of the row if there is none."""
    return next((size for size in _SIZES if width % size == 0), width)


def _blocks(values: Tensor) -> Tensor:
    """(..., V) -> (..., n, size): one block where one plain search is quicker.

    Torch looks at every value of a row one after the other. To find the peaks of blocks first, and
    then to look into the few best blocks only, takes a fraction of the time.
    """
    width = values.shape[-1]
    return values.unflatten(-1, (-1, width if values.numel() < _FEW else _block_size(width)))


def largest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the ``count`` largest of each row and where they are, on the CPU, best first.

    Of equals the first in the row comes first. `torch.topk` promises no order, so one more than
    asked for is looked at: it shows whether equals were left out. That is rare, but for a model
    that computes in 16 bits, whose logits have few values: to sort such rows took most of its time.

    Args:
        values: (..., V), float32. Minus infinity stands for what is not there.
        count: How many; all V of a shorter row.

    Returns:
        Values (..., min(count, V)), float32, and indices, int64.

    >>> largest(torch.tensor([1.0, 3.0, 2.0, 3.0]), 2)
    (tensor([3., 3.]), tensor([1, 3]))
    """
    more, blocks = min(count + 1, values.shape[-1]), _blocks(values)
    if blocks.shape[-2] < 4 * more:
        best, index = values.topk(more, dim=-1)
    else:
        block = blocks.amax(-1).topk(more, dim=-1, sorted=False).indices
        inside, size = blocks.take_along_dim(block.unsqueeze(-1), -2), blocks.shape[-1]
        best, place = inside.flatten(-2).topk(more, dim=-1)
        index = block.gather(-1, place // size) * size + place % size
    best, index = best.cpu(), index.cpu()
    if not bool((best[..., 1:] == best[..., :-1]).any()):
        return best[..., :count], index[..., :count]
    index, order = index.sort(dim=-1)
    best, order = best.gather(-1, order).sort(stable=True, dim=-1, descending=True)
    index = index.gather(-1, order)
    if more <= count:  # all of the row
        return best, index
    border = best[..., count - 1]
    cut = (border == best[..., count]) & (border > -math.inf)  # between equals
    best, index = best[..., :count], index[..., :count]
    if bool(cut.any()):
        where, border = cut.to(values.device), border[cut].unsqueeze(-1)
        places = -torch.arange(values.shape[-1], dtype=values.dtype, device=values.device)
        equal = values[where] == border.to(values.device)
        first = largest(torch.where(equal, places, -math.inf), count)[1]
        num_above = (best[cut] > border).sum(-1, keepdim=True)
        rank = torch.arange(count) - num_above
        index[cut] = torch.where(rank < 0, index[cut], first.gather(-1, rank.clamp(min=0)))
    return best, index


def first_largest(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest of each row and where it stands first. `torch.max`, but fast on a CPU.

    Args:
        values: (..., V), float32.

    Returns:
        Values (...), float32, and indices, int64, on the device of ``values``.

    >>> first_largest(torch.tensor([1.0, 3.0, 2.0, 3.0]))
    (tensor(3.), tensor(1))
    """
    blocks = _blocks(values)  # (..., n, size)
    if blocks.shape[-2] == 1:
        best, index = values.max(dim=-1)
        return best, index
    best, block = blocks.amax(-1).max(dim=-1)
    inside = blocks.take_along_dim(block[..., None, None], -2)
    return best, block * blocks.shape[-1] + inside.squeeze(-2).argmax(-1)
