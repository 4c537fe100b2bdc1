"""A stepper made of a table, and the options that most tests of searches use."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nmt.config.model import DecodingConfig
from nmt.packed import Packed
from nmt.search.hypothesis import Hypothesis
from nmt.search.loop import search
from nmt.text import EOS_ID

FIRST_WORD = 4
Table = Callable[[tuple[int, ...]], Tensor]
"""Source and prefix, in one tuple -> log probabilities of the next token. (V,), float32."""


def random_table(seed: int, vocab_size: int, sharpness: float = 2.0, grain: float = 0.0) -> Table:
    """Log probabilities that are a pure function of source and prefix.

    With a ``grain``, scores before normalisation are multiples of it: many are equal.
    """

    @functools.cache
    def log_probs(key: tuple[int, ...]) -> Tensor:
        generator = random.Random(f"{seed} {key}")
        logits = [generator.gauss(0.0, sharpness) for _ in range(vocab_size)]
        if grain:
            logits = [grain * round(logit / grain) for logit in logits]
        return torch.tensor(logits).log_softmax(-1)

    return log_probs


def toy_attention(key: tuple[int, ...], source_length: int) -> list[float]:
    """How much of each source token the step after ``key`` reads: a pure function of it."""
    generator = random.Random(f"attention {key}")
    shares = [generator.random() ** 4 for _ in range(source_length)]
    return [share / sum(shares) for share in shares]


class ToyState(NamedTuple):
    """The sources, and the prefix of each beam, BOS first."""

    sources: list[tuple[int, ...]]
    prefixes: list[list[tuple[int, ...]]]


class TableStepper:
    """A `Stepper` that looks up its table; remembers what each step asked for."""

    tokens: Tensor | None = None
    max_positions: int | None = None

    def __init__(self, table: Table) -> None:
        self._table = table
        self.rows: list[int] = []  # sentences
        self.widths: list[int] = []  # beams of each

    def start(self, source: Packed) -> ToyState:
        return ToyState([tuple(ids) for ids in source.rows()], [[()]] * len(source))

    def step(self, state: ToyState, tokens: Tensor) -> tuple[Tensor, ToyState]:
        assert len(tokens) == len(state.sources)
        prefixes = [
            [(*prefix, token) for prefix, token in zip(old, new, strict=True)]
            for old, new in zip(state.prefixes, tokens.tolist(), strict=True)
        ]
        self.rows.append(len(tokens))
        self.widths.append(tokens.shape[1])
        values = [
            torch.stack([self._table((*source, *prefix)) for prefix in beams])
            for source, beams in zip(state.sources, prefixes, strict=True)
        ]
        return torch.stack(values), ToyState(state.sources, prefixes)

    def select(self, state: ToyState, sentences: Tensor, beams: Tensor) -> ToyState:
        chosen = sentences.tolist()
        assert chosen == sorted(set(chosen))
        kept = zip(chosen, beams.tolist(), strict=True)
        prefixes = [[state.prefixes[row][beam] for beam in own] for row, own in kept]
        return ToyState([state.sources[row] for row in chosen], prefixes)

    def coverage(self, state: ToyState) -> Tensor:
        width = max(len(source) for source in state.sources)
        found = torch.zeros(len(state.sources), len(state.prefixes[0]), width)
        for row, (source, prefixes) in enumerate(zip(state.sources, state.prefixes, strict=True)):
            for beam, prefix in enumerate(prefixes):
                for length in range(1, len(prefix) + 1):
                    shares = toy_attention((*source, *prefix[:length]), len(source))
                    found[row, beam, : len(source)] += torch.tensor(shares)
        return found


def sources(lengths: Sequence[int], seed: int = 0) -> Packed:
    """Sources of these lengths, EOS included, all different."""
    draw = random.Random(seed).randrange
    words = [[draw(FIRST_WORD, 10**9) for _ in range(length - 1)] for length in lengths]
    return Packed.from_rows([[*row, EOS_ID] for row in words])


def ids_of(results: Sequence[Sequence[Hypothesis]]) -> list[list[tuple[int, ...]]]:
    return [[hypothesis.ids for hypothesis in found] for found in results]


KINDS: list[dict[str, Any]] = [
    {"beam_size": 1},
    {"beam_size": 4, "n_best": 3},
    {"beam_size": 4, "patience": 3.0},
    {"beam_size": 4, "n_best": 2, "coverage_penalty": 0.5},
    {"beam_size": 6, "n_best": 4, "diverse_beam_groups": 3},
    {"sampling": True, "n_best": 3, "top_p": 0.8},
    {"sampling": True, "n_best": 2, "top_k": 3, "temperature": 0.7},
    {"return_alternatives": True, "n_best": 3},
]
"""Options of every kind of search."""


def options_of(**changes: Any) -> DecodingConfig:
    """Outputs of at most one token more than the source, with changes."""
    values = {"max_length_factor": 1.0, "max_length_offset": 1, **changes}
    return DecodingConfig.model_validate(values)


def search_by(name: str) -> Callable[..., list[list[Hypothesis]]]:
    """The search with this selector, whatever the other options ask for."""
    return lambda stepper, source, config, *constraints: search(
        stepper, source, config.model_copy(update={"search": name}), *constraints
    )


beam_search, greedy_search = search_by("beam"), search_by("greedy")
