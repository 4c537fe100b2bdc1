"""A Transformer, or several together, as a `Stepper` of the search: over all tokens or a shortlist.

Averaging the predictions of networks that were trained apart is old (Hansen and Salamon 1990);
for translation see Sutskever et al. (2014), table 1.

A shortlist is a few hundred target tokens of a vocabulary of many thousands. To score them alone
saves most of the output projection and of all that follows it (Jean et al. 2015, section 3.2;
Devlin 2017). What a sentence may need does not depend on what shares its batch: only the rows that
are computed are those of all its sentences.

Shapes: B sentences, K beams, S source positions, V vocabulary; of shortlists, C candidates of a
source token, V' target tokens of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from nmt.inference.engine import Mean, require_shortlist
from nmt.model.decoder_state import DecoderState
from nmt.model.transformer import DecodeToken, Transformer
from nmt.packed import Packed
from nmt.search.hypothesis import Constraints, Hypothesis
from nmt.text import BOS_ID, EOS_ID, NUM_NEVER_CHOSEN

States = tuple[DecoderState, ...]  # Where each model is.
_SPECIAL = EOS_ID + 1  # PAD, UNK, BOS and EOS keep their ids


@dataclass(frozen=True, slots=True)
class Mixture:
    """How the log probabilities of several models become one."""

    shares: tuple[float, ...] = (1.0,)  # Weight of each model, above 0; they sum to 1.
    # ``arithmetic``: log of the weighted mean of probabilities: what one model finds likely stays
    # possible. ``geometric``: weighted mean of log probabilities, normalised again: every model can
    # veto.
    mean: Mean = "arithmetic"

    def combine(self, log_probs: Sequence[Tensor]) -> Tensor:
        """Return the log probabilities of all models together. Overwrites its argument.

        What is impossible (minus infinity) to one model is so to all: it is at the end of its
        positions.

        Args:
            log_probs: Of each model. (..., V), float32.
        """
        total, pairs = log_probs[0], list(zip(self.shares[1:], log_probs[1:], strict=True))
        if not pairs:
            return total
        if self.mean == "geometric":
            total.mul_(self.shares[0])
            for share, values in pairs:
                total.add_(values, alpha=share)
            return total.log_softmax(dim=-1)
        total.add_(math.log(self.shares[0]))
        for share, values in pairs:
            impossible = torch.isneginf(total) | torch.isneginf(values)
            torch.logaddexp(total, values.add_(math.log(share)), out=total)
            total.masked_fill_(impossible, -torch.inf)
        return total


@dataclass(frozen=True, slots=True)
class BatchVocabulary:
    """The target tokens of a batch. Ids of the search are indices into it."""

    # Ids of the whole vocabulary, ascending; special tokens keep their ids. (V',), int64.
    tokens: Tensor
    # 0 for tokens that a sentence may use, minus infinity for the rest. (B, 1, V'), float32; None
    # where every sentence may use all.
    allowed: Tensor | None

    def inside(self, constraints: Sequence[Constraints]) -> list[Constraints]:
        """Return the constraints in ids of the search, without phrases that cannot come anyway."""
        table = {token: index for index, token in enumerate(self.tokens.tolist())}

        def inside(ids: Sequence[int]) -> tuple[int, ...]:
            return tuple(table[token] for token in ids)

        return [
            Constraints(
                prefix=inside(each.prefix),
                required=tuple(map(inside, each.required)),
                forbidden=tuple(inside(ids) for ids in each.forbidden if table.keys() >= {*ids}),
            )
            for each in constraints
        ]

    def outside(self, found: Sequence[Sequence[Hypothesis]]) -> list[list[Hypothesis]]:
        """Return what the search found with ids of the whole vocabulary."""
        table = self.tokens.tolist()
        return [
            [replace(one, ids=tuple(table[token] for token in one.ids)) for one in each]
            for each in found
        ]


class Shortlist:
    """Candidates of each source token, and those that every sentence may need.

    Args:
        common: (F,), int64, target ids.
        candidates: (V, C), int32, target ids; -1 where there are fewer.
        vocab_size: Size of the target vocabulary.
    """

    def __init__(self, common: Tensor, candidates: Tensor, vocab_size: int) -> None:
        always = torch.cat((torch.arange(_SPECIAL, device=common.device), common))
        self._always = common.new_zeros(vocab_size, dtype=torch.bool).index_fill_(0, always, True)
        # In place of none stands what is there anyway.
        self._candidates = candidates.masked_fill(candidates < 0, EOS_ID)

    @classmethod
    def load(cls, folder: Path, vocab_sizes: tuple[int, int], device: torch.device) -> Self:
        """Return the shortlists of a folder, on a device.

        Raises:
            ConfigError: It has none.
            CheckpointError: They are damaged.
        """
        parts = require_shortlist(folder, vocab_sizes)
        common, candidates = (torch.tensor(part, device=device) for part in parts)
        return cls(common, candidates, vocab_sizes[1])

    def pick(
        self, source: Packed, constraints: Sequence[Constraints] | None = None
    ) -> BatchVocabulary:
        """Return the tokens that a batch may need.

        Args:
            source: Source ids.
            constraints: Of each sentence; their prefixes and required phrases are included.
        """
        marks = self._always.repeat(len(source), 1)
        found = self._candidates.index_select(0, source.ids).long()  # (N, C)
        found += (source.sentences * marks.shape[1]).unsqueeze(1)
        marks.view(-1).index_fill_(0, found.flatten(), True)
        for row, each in zip(marks, constraints or (), strict=constraints is not None):
            wanted = [*each.prefix, *(token for ids in each.required for token in ids)]
            row[wanted] = True
        tokens = marks.any(0).nonzero().squeeze(1)
        if len(source) == 1:
            return BatchVocabulary(tokens, None)
        missing = ~marks.index_select(1, tokens)
        allowed = torch.zeros(missing.shape, device=missing.device)
        return BatchVocabulary(tokens, allowed.masked_fill_(missing, -torch.inf).unsqueeze(1))


def source_of(model: Transformer, source: Packed) -> Packed:
    """Return what a model reads of a source that ends in EOS."""
    return source.prepend(BOS_ID) if model.config.source_bos else source


class ModelStepper:
    """Gives log probabilities of one model, or of several. See `nmt.search.selector.Stepper`.

    Args:
        models: On their device.
        mixture: How their probabilities become one.
        runs: Do what `Transformer.decode_token` of each does, faster.
        with_coverage: Whether a search will ask for the coverage of the source.
        keep_special_mass: See `nmt.config.model.DecodingConfig`.
        vocabulary: The few tokens that the batch to be translated may need; all if None. Ids are
            then indices into it.
    """

    def __init__(
        self,
        *models: Transformer,
        mixture: Mixture | None = None,
        runs: Sequence[DecodeToken] | None = None,
        with_coverage: bool = False,
        keep_special_mass: bool = False,
        vocabulary: BatchVocabulary | None = None,
    ) -> None:
        self._models, self._mixture = models, mixture or Mixture()
        self._runs: Sequence[DecodeToken | None] = runs or [None] * len(models)
        self._with_coverage, self._shares_special = with_coverage, not keep_special_mass
        self.tokens = None if vocabulary is None else vocabulary.tokens
        self._allowed = None if vocabulary is None else vocabulary.allowed
        self._logits = [
            model.logits if self.tokens is None else model.narrow_output(self.tokens)
            for model in models
        ]

    @property
    def max_positions(self) -> int | None:
        """Positions that all models have; None if no model has learned positions."""
        limits = [model.config.position_limit for model in self._models]
        return min((limit for limit in limits if limit is not None), default=None)

    def start(self, source: Packed) -> States:
        """Encode the source."""
        return tuple(
            model.start(
                source_of(model, source), with_coverage=self._with_coverage, allowed=self._allowed
            )
            for model in self._models
        )

    def step(self, state: States, tokens: Tensor) -> tuple[Tensor, States]:
        """Log probabilities after ``tokens`` (B, K): (B, K, V), float32.

        Of the tokens that a search may choose: PAD, UNK and BOS get minus infinity, unless their
        mass is kept.
        """
        if self.tokens is not None:
            tokens = self.tokens.take(tokens)
        log_probs, after = [], []
        parts = zip(self._models, self._runs, self._logits, state, strict=True)
        for model, run, project, before in parts:
            hidden, own = model.decode_step(before, tokens, run)
            logits = project(hidden)
            # Before the softmax, so that other tokens share what these would have got, and searches
            # find and score the same as CTranslate2's.
            if self._shares_special:
                logits.narrow(-1, 0, NUM_NEVER_CHOSEN).fill_(-torch.inf)
            if own.allowed is not None:
                logits.add_(own.allowed)
            log_probs.append(logits.float().log_softmax(dim=-1))
            after.append(own)
        return self._mixture.combine(log_probs), tuple(after)

    def select(self, state: States, sentences: Tensor, beams: Tensor) -> States:
        """Keep sentences and beams."""
        return tuple(own.select(sentences, beams) for own in state)

    def coverage(self, state: States) -> Tensor:
        """How much of each source token was read so far, as a mean of the models: (B, K, S)."""
        found = [
            own.coverage[:, int(model.config.source_bos) :]
            for model, own in zip(self._models, state, strict=True)
            if own.coverage is not None
        ]
        return torch.stack(found).mean(0).unflatten(0, (-1, state[0].num_beams))
