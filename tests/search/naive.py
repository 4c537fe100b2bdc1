"""Searches of one sentence with all rules, in plain Python: slow, and right by inspection."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from nmt.config.model import DecodingConfig
from nmt.search.hypothesis import NONE, Constraints, Hypothesis, contains, length_penalty
from nmt.search.rules import length_limits
from nmt.text import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from tests.search.toys import FIRST_WORD, Table, toy_attention

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Naive:
    table: Table
    source: Ids
    vocab_size: int
    config: DecodingConfig
    constraints: Constraints = NONE

    @property
    def limits(self) -> tuple[int, int]:
        """Shortest and longest output with EOS."""
        shortest, longest = length_limits(torch.tensor([len(self.source)]), self.config)
        return int(shortest), max(int(longest), self.constraints.num_tokens + 1)

    @functools.lru_cache(10_000)  # noqa: B019 - keeps few and small sentences alive
    def next_log_probs(self, ids: Ids) -> list[float]:
        """Log probabilities after ``ids``, by all rules."""
        config, prefix = self.config, self.constraints.prefix
        values = [float(x) for x in self.table((*self.source, BOS_ID, *ids))]
        in_prefix = len(ids) < len(prefix)
        if in_prefix and not config.prefix_bias_beta:
            return [x if i == prefix[len(ids)] else -math.inf for i, x in enumerate(values)]
        if in_prefix and ids == prefix[: len(ids)]:
            beta, wanted = config.prefix_bias_beta, prefix[len(ids)]
            shares = [(1 - beta) * math.exp(x) + beta * (i == wanted) for i, x in enumerate(values)]
            values = [math.log(share) if share else -math.inf for share in shares]
        unused = self.unused(ids, values)
        return [
            -math.inf if self.is_ruled_out((*ids, i)) else (x - unused) * self.factor(ids, i)
            for i, x in enumerate(values)
        ]

    def unused(self, ids: Ids, values: list[float]) -> float:
        """Log of the probability left where rules take tokens away before the softmax."""
        shortest, longest = self.limits
        length = len(ids) + 1
        if length >= longest or not (length < shortest or self.config.no_repeat_ngram_size):
            return 0.0
        left = sum(
            math.exp(x)
            for i, x in enumerate(values)
            if i not in (PAD_ID, UNK_ID, BOS_ID)
            and not (i == EOS_ID and length < shortest)
            and not self.repeats((*ids, i))
        )
        return math.log(left) if left else 0.0

    def repeats(self, ids: Ids) -> bool:
        """Whether the last token ends an n-gram that was there before."""
        size = self.config.no_repeat_ngram_size
        return bool(size) and len(ids) > size and contains(ids[:-1], ids[-size:])

    def factor(self, ids: Ids, token: int) -> float:
        return self.config.repetition_penalty if token in ids else 1.0

    def is_ruled_out(self, ids: Ids) -> bool:
        """Whether the last token may not come."""
        shortest, longest = self.limits
        token = ids[-1]
        if token in (PAD_ID, UNK_ID, BOS_ID):
            return True
        if token == EOS_ID:
            return len(ids) < shortest
        if len(ids) >= longest or self.repeats(ids):
            return True
        return any(ids[-len(phrase) :] == phrase for phrase in self.constraints.forbidden)

    def every_output(self) -> list[Hypothesis]:
        """All outputs that the rules allow, best first."""
        shortest, longest = self.limits
        found = []
        for length in range(shortest, longest + 1):
            for ids in itertools.product(range(FIRST_WORD, self.vocab_size), repeat=length - 1):
                if all(contains(ids, phrase) for phrase in self.constraints.required):
                    total = self.log_prob(ids)
                    found.append(Hypothesis(ids, total, self.score(ids, total)))
        possible = [hypothesis for hypothesis in found if hypothesis.log_prob > -math.inf]
        return sorted(possible, key=lambda hypothesis: -hypothesis.score)

    def log_prob(self, ids: Ids) -> float:
        steps = ((*ids, EOS_ID)[: i + 1] for i in range(len(ids) + 1))
        return sum(self.next_log_probs(step[:-1])[step[-1]] for step in steps)

    def score(self, ids: Ids, log_prob: float) -> float:
        """After all penalties."""
        cost = 10.0 * self.goes_on_past_end(ids)
        normalized = (log_prob - cost) / length_penalty(self.config)(len(ids) + 1)
        if not self.config.coverage_penalty:
            return normalized
        looks = [
            toy_attention((*self.source, BOS_ID, *ids[:length]), len(self.source))
            for length in range(len(ids) + 1)
        ]
        words = list(zip(*looks, strict=True))[:-1]
        lost = sum(math.log(min(sum(shares), 1.0)) for shares in words)
        return normalized + self.config.coverage_penalty * lost

    def goes_on_past_end(self, ids: Ids) -> bool:
        """Whether something follows where the end was likeliest and a phrase was missing."""
        return any(
            self.next_log_probs(ids[:i]).index(max(self.next_log_probs(ids[:i]))) == EOS_ID
            for i in range(len(ids))
            if not all(contains(ids[:i], phrase) for phrase in self.constraints.required)
        )

    def greedy(self, ids: Ids = ()) -> Ids | None:
        """Go on from ``ids`` with the most probable token again and again."""
        while not ids or ids[-1] != EOS_ID:
            values = self.next_log_probs(ids)
            best = max(values)
            if best == -math.inf:
                return None
            ids = (*ids, values.index(best))
        return ids[:-1]


def truncated(log_probs: list[float], config: DecodingConfig) -> list[float]:
    """Probabilities to draw from. Assumes that no two tokens are equally probable."""
    weights = [math.exp(x / config.temperature) for x in log_probs]
    order = sorted(range(len(weights)), key=lambda i: -weights[i])
    kept = order[: config.top_k or None]
    probs = normalized(weights, kept)
    nucleus = list(_until(config.top_p, kept, probs))
    likely = [i for i in nucleus if probs[i] >= config.epsilon_cutoff]
    return normalized(weights, likely or order[:1])


def normalized(weights: list[float], kept: list[int]) -> list[float]:
    total = sum(weights[i] for i in kept)
    return [x / total if i in kept else 0.0 for i, x in enumerate(weights)]


def _until(mass: float, order: list[int], probs: list[float]) -> Iterator[int]:
    got = 0.0
    for i in order:
        if got < mass:
            yield i
        got += probs[i]
