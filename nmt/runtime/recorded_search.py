"""Greedy and beam search of one sentence as one recorded graph.

For a single sentence most of a step is spent between the operations: torch runs a recorded loop
without Python. It finds what `nmt.search` finds, to the bit, and is made of the same functions; of
its rules it knows the limits of the length alone.

Shapes: K beams, V vocabulary; others as in `nmt.model.decoder_state`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from functools import cached_property
from threading import Lock
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from nmt.config.decoding import DecodingConfig
from nmt.model.decoder_state import GROWTH, LARGE, DecoderState, change_places
from nmt.model.projection import NarrowOutput, Projection, project
from nmt.model.transformer import Readers, Transformer
from nmt.runtime.model_stepper import ModelStepper
from nmt.search.beam import Expansion, going_on, merge
from nmt.search.constraints import Constraints
from nmt.search.hypothesis import Hypothesis
from nmt.search.lengths import Limits, full_size, length_penalty, limits_of
from nmt.search.ranking import block_size, first_largest_in_blocks, largest_in_blocks
from nmt.text.special import BOS_ID, EOS_ID

_LONGEST = 1024
"""Limit of the length beyond which tables up to it would cost more than is gained."""
_SEARCHES_BEFORE = 8
"""Searches that go without: to record takes as long as some of them."""

Found = list[tuple[list[int], float]]
"""Ids of each finished hypothesis, and its log probability with EOS."""


class Sentence(NamedTuple):
    """What the recorded searches need to know of a sentence."""

    table: Tensor
    """`nmt.model.embedding.Embedding.places`."""
    bias: Tensor
    """Of `nmt.model.decoder_state.DecoderState`, as the next one."""
    memory: Tensor
    tokens: Tensor
    """What ids of the search stand for. (V,), int64."""
    projection: Projection
    """To the logits of these tokens."""
    is_whole: bool
    """Whether they are all tokens: then their logits are the model's, not those of this."""
    shortest: int
    longest: int


class RecordedSearch:
    """Searches for one sentence.

    Args:
        model: Trains no more, and is on the CPU.
        readers: Its recorded readers.
    """

    def __init__(self, model: Transformer, readers: Readers) -> None:
        self._model, self._readers = model, readers
        self._lock, self._searches = Lock(), 0
        weight = model.output_weight
        none = weight.new_empty(0)
        self._all = torch.arange(len(weight))
        self._none = Projection(none, none, none, none, zero=0, is_fixed=True)

    def search(
        self,
        stepper: ModelStepper,
        source: Tensor,
        options: DecodingConfig,
        constraints: Sequence[Constraints] | None,
    ) -> list[list[Hypothesis]] | None:
        """Translate a sentence as `nmt.search.choose.search` does.

        Args:
            stepper: Of the model and its readers.
            source: Source ids with EOS. (B, S), int64.
            options: How to search.
            constraints: Of each sentence.

        Returns:
            One list of hypotheses, best first; None if this search cannot be recorded, or that
            does not pay yet.
        """
        if len(source) != 1 or constraints is not None or not _is_plain(options):
            return None
        limits = limits_of(source.shape[1] - 1, options)
        if limits.longest > _LONGEST or not self._is_known(stepper.readers.logits):
            return None
        self._searches += 1
        if self._searches <= _SEARCHES_BEFORE:
            return None
        with self._lock:
            graphs = self._graphs
        if graphs is None:
            return None
        with torch.inference_mode():
            state = stepper.start(source, torch.tensor([source.shape[1]]))
            sentence = self._sentence(stepper, state, limits)
            return [_hypotheses(graphs, sentence, state.past, options)]

    def _is_known(self, logits: Callable[[Tensor], Tensor]) -> bool:
        """Whether the model and these logits can be recorded."""
        if self._model.config.positions == "learned":  # a table that ends is a rule of its own
            return False
        return isinstance(logits, NarrowOutput) or logits is self._readers.logits

    def _sentence(self, stepper: ModelStepper, state: DecoderState, limits: Limits) -> Sentence:
        logits, embedding = stepper.readers.logits, self._model.target_embedding
        return Sentence(
            table=embedding.places(limits.longest, self._model.target_table),
            bias=state.bias,
            memory=state.memory,
            tokens=self._all if stepper.tokens is None else stepper.tokens,
            projection=logits.projection if isinstance(logits, NarrowOutput) else self._none,
            is_whole=stepper.tokens is None,
            shortest=limits.shortest,
            longest=limits.longest,
        )

    @cached_property
    def _graphs(self) -> _Graphs | None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of its end, one day
                return _record(self._readers.token, self._readers.logits)
        except (RuntimeError, OSError) as error:  # another release of torch; or no source code
            warnings.warn(f"searches are not recorded, and slower: {error}", stacklevel=2)
            return None


class _Wishes(NamedTuple):
    """What a search looks for."""

    block_size: int
    """See `nmt.search.ranking`."""
    beam_size: int
    n_best: int
    full: int
    """Finished hypotheses that end the search."""


class _Graphs(NamedTuple):
    """The recorded searches: a sentence and `DecoderState.past` -> what was finished."""

    greedy: Callable[[Sentence, Tensor, _Wishes], Found]
    beams: Callable[[Sentence, Tensor, _Wishes, list[float]], Found]
    """The last argument are length penalties, from length 1."""


def _is_plain(options: DecodingConfig) -> bool:
    """Whether a search has no rule but the limits of the length, and never draws."""
    return not (
        options.sampling
        or options.return_alternatives
        or options.diverse_beam_groups > 1
        or options.coverage_penalty
        or options.no_repeat_ngram_size
        or options.repetition_penalty != 1
    )


def _hypotheses(
    graphs: _Graphs, sentence: Sentence, past: Tensor, options: DecodingConfig
) -> list[Hypothesis]:
    """Search, and return the n best."""
    penalty, size = length_penalty(options), options.beam_size
    blocks = block_size(size, len(sentence.tokens))
    wishes = _Wishes(blocks, size, options.n_best, full_size(options, size))
    if size == 1:
        found = graphs.greedy(sentence, past, wishes)
    else:
        penalties = [penalty(length) for length in range(1, sentence.longest + 1)]
        found = graphs.beams(sentence, past, wishes, penalties)
    each = [Hypothesis(tuple(ids), value, value / penalty(len(ids) + 1)) for ids, value in found]
    return sorted(each, key=lambda hypothesis: -hypothesis.score)[: options.n_best]


# All below is recorded. No names of numbers can stand in it but as default values.


def _limit(log_probs: Tensor, length: int, sentence: Sentence, eos: int = EOS_ID) -> None:
    """Do what `nmt.search.rules.Rules` does: PAD, UNK and BOS never come, EOS not too early."""
    log_probs.narrow(-1, 0, eos).fill_(-math.inf)
    if length < sentence.shortest:
        log_probs.select(-1, eos).fill_(-math.inf)
    if length >= sentence.longest:
        log_probs.narrow(-1, eos + 1, log_probs.shape[-1] - eos - 1).fill_(-math.inf)


def _ended(found: Expansion, ends: Tensor, history: Tensor, beam_size: int) -> Found:
    """Return what ended among the best K, like `nmt.search.beam.collect`."""
    ended: list[tuple[list[int], float]] = []
    ranks: list[int] = ends[0, :beam_size].nonzero().flatten().tolist()
    for rank in ranks:
        log_prob = float(found.log_probs[0, rank])
        if math.isfinite(log_prob):
            ids: list[int] = history[int(found.parents[0, rank])].tolist()
            ended.append((ids, log_prob))
    return ended


def _with_room(past: Tensor, length: int, growth: int = GROWTH) -> Tensor:
    """Do what `nmt.model.decoder_state.DecoderState.with_room` does."""
    return past if length <= past.shape[4] else F.pad(past, (0, 0, 0, growth))


_Step = Callable[[Sentence, Tensor, Tensor, int, Tensor | None], Tensor]


def _record(token: Callable[..., Tensor], logits: Callable[[Tensor], Tensor]) -> _Graphs:
    """Record the searches of a model, given two of its `Readers`."""

    def step(
        sentence: Sentence, ids: Tensor, past: Tensor, length: int, rows: Tensor | None
    ) -> Tensor:
        tokens = sentence.tokens.index_select(0, ids)
        if rows is not None:
            tokens = torch.empty_like(tokens).index_copy_(0, rows, tokens)
        position = torch.full((1,), length - 1, dtype=torch.int64)
        filled = past.narrow(4, 0, length)
        hidden = token(tokens, position, sentence.table, sentence.bias, sentence.memory, filled)
        if rows is not None:
            hidden = hidden.index_select(0, rows)
        scores = logits(hidden) if sentence.is_whole else project(hidden, sentence.projection)
        log_probs = scores.unsqueeze(0).float().log_softmax(-1)
        _limit(log_probs, length, sentence)
        return log_probs

    recorded = torch.jit.script(step)
    return _Graphs(_record_greedy(recorded), _record_beams(recorded))


def _record_greedy(step: _Step) -> Callable[[Sentence, Tensor, _Wishes], Found]:
    """Record what `nmt.search.greedy` does. ``step``: ids (K,) -> log probabilities (1, K, V)."""

    def greedy(
        sentence: Sentence, past: Tensor, wishes: _Wishes, bos: int = BOS_ID, eos: int = EOS_ID
    ) -> Found:
        found: list[int] = []
        ids = torch.full((1,), bos, dtype=torch.int64)
        total = torch.zeros(1, 1)
        goes_on = True
        while goes_on:
            length = len(found) + 1
            past = _with_room(past, length)
            log_probs = step(sentence, ids, past, length, None)
            best, new = first_largest_in_blocks(log_probs, wishes.block_size)
            total = total + best
            ids = new.flatten()
            goes_on = int(ids) != eos and float(best) > -math.inf
            if goes_on:
                found.append(int(ids))
        return [(found, float(total))] if math.isfinite(float(total)) else []

    return cast(Callable[[Sentence, Tensor, _Wishes], Found], torch.jit.script(greedy))


def _record_beams(step: _Step) -> Callable[[Sentence, Tensor, _Wishes, list[float]], Found]:
    """Record what `nmt.search.beam` does. ``step`` as in `_record_greedy`."""

    def beams(
        sentence: Sentence,
        past: Tensor,
        wishes: _Wishes,
        penalties: list[float],
        bos: int = BOS_ID,
        eos: int = EOS_ID,
        large: int = LARGE,
    ) -> Found:
        finished: list[tuple[list[int], float]] = []
        scores: list[float] = []
        ids = torch.full((1, 1), bos, dtype=torch.int64)
        history = torch.empty(1, 0, dtype=torch.int64)
        totals = torch.zeros(1, 1)
        in_order = torch.arange(wishes.beam_size)
        slots: Tensor | None = None
        goes_on = True
        while goes_on:
            length = history.shape[1] + 1
            past = _with_room(past, length)
            rows = None if slots is None else slots.flatten()
            log_probs = step(sentence, ids.flatten(), past, length, rows)
            of_beam, new = largest_in_blocks(log_probs, 2 * wishes.beam_size, wishes.block_size)
            found = merge(totals, of_beam, new, wishes.beam_size)
            ends = found.tokens == eos
            for ended in _ended(found, ends, history, wishes.beam_size):
                finished.append(ended)
                scores.append(ended[1] / penalties[length - 1])
            parents, ids, totals = going_on(found, ends, wishes.beam_size)
            goes_on = _goes_on(scores, float(totals[0, 0]), wishes, penalties[-1])
            chosen = parents.flatten()
            if history.shape[0] != wishes.beam_size or not torch.equal(chosen, in_order):
                history = history.index_select(0, chosen)
                if past.shape[2] == wishes.beam_size and past.numel() >= large:
                    slots = change_places(past, slots, parents)
                else:
                    chosen = chosen if rows is None else rows.index_select(0, chosen)
                    past, slots = past.index_select(2, chosen), None
            history = torch.cat((history, ids.view(-1, 1)), dim=1)
        return finished

    graph = torch.jit.script(beams)
    return cast(Callable[[Sentence, Tensor, _Wishes, list[float]], Found], graph)


def _goes_on(scores: list[float], best: float, wishes: _Wishes, largest_penalty: float) -> bool:
    """Whether a search goes on, by the rules of `nmt.search.pools.Pools`."""
    if len(scores) >= wishes.full:
        return False
    is_beaten = False
    if len(scores) >= wishes.n_best:
        to_beat = sorted(scores)[len(scores) - wishes.n_best]
        is_beaten = to_beat >= best / largest_penalty
    return math.isfinite(best) and not is_beaten
