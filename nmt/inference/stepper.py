"""Runs one Transformer or an ensemble as a `Stepper` of the search, with an optional shortlist.

An ensemble averages the predictions of models that were trained independently (Hansen and Salamon
1990; for translation Sutskever et al. 2014, table 1).

A shortlist is a few hundred target tokens out of a vocabulary of many thousands. Scoring only these
tokens saves most of the output projection and of later work (Jean et al. 2015, section 3.2; Devlin
2017). The output layer computes the union of the shortlists of a batch. A mask restricts each
sentence to its shortlist, so a translation does not depend on the other sentences of the batch.

Shapes: B sentences, K beams, S source positions, V vocabulary, C candidates for each source token,
V' tokens in the shortlist of a batch.
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

States = tuple[DecoderState, ...]  # One state for each model.
_SPECIAL = EOS_ID + 1  # PAD, UNK, BOS and EOS keep their ids


@dataclass(frozen=True, slots=True)
class Mixture:
    """Weights and kind of mean that combine the predictions of several models."""

    shares: tuple[float, ...] = (1.0,)  # Weight of each model, above 0. The weights sum to 1.
    # ``arithmetic``: weighted mean of probabilities; a token stays possible if one model finds it
    # probable. ``geometric``: weighted mean of log probabilities, normalized again; a token becomes
    # improbable if one model finds it improbable.
    mean: Mean = "arithmetic"

    def combine(self, log_probs: Sequence[Tensor]) -> Tensor:
        """Return the combined log probabilities. Overwrites the argument.

        A token with minus infinity in one model gets minus infinity.

        Args:
            log_probs: One tensor for each model. (..., V), float32.

        Returns:
            (..., V), float32.
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
    """The shortlist of a batch. The search uses positions in the shortlist as token ids."""

    # Ids of the whole vocabulary, ascending. Special tokens keep their ids. (V',), int64.
    tokens: Tensor
    # 0 for the tokens of a sentence's shortlist, otherwise minus infinity. (B, 1, V'), float32.
    # None if every sentence may use all tokens.
    allowed: Tensor | None

    def inside(self, constraints: Sequence[Constraints]) -> list[Constraints]:
        """Convert constraints to ids of the search. Impossible forbidden phrases are dropped."""
        table = {token: index for index, token in enumerate(self.tokens.tolist())}

        def inside(ids: Sequence[int]) -> tuple[int, ...]:
            return tuple(table[token] for token in ids)

        return [
            Constraints(
                prefix=inside(each.prefix),
                required=tuple(map(inside, each.required)),
                forbidden=tuple(inside(ids) for ids in each.forbidden if table.keys() >= {*ids}),
                start=None if each.start is None else table[each.start],
            )
            for each in constraints
        ]

    def outside(self, found: Sequence[Sequence[Hypothesis]]) -> list[list[Hypothesis]]:
        """Convert hypotheses of the search to ids of the whole vocabulary."""
        table = self.tokens.tolist()
        return [[replace(x, ids=tuple(table[i] for i in x.ids)) for x in row] for row in found]


class Shortlist:
    """Translation candidates of each source token, and tokens that every sentence may need.

    Args:
        common: Target ids that are always included. (F,), int64.
        candidates: Target ids for each source token, padded with -1. (V, C), int32.
        vocab_size: Size of the target vocabulary.
    """

    def __init__(self, common: Tensor, candidates: Tensor, vocab_size: int) -> None:
        always = torch.cat((torch.arange(_SPECIAL, device=common.device), common))
        self._always = common.new_zeros(vocab_size, dtype=torch.bool).index_fill_(0, always, True)
        # EOS replaces the padding: it is always included.
        self._candidates = candidates.masked_fill(candidates < 0, EOS_ID)

    @classmethod
    def load(cls, folder: Path, vocab_sizes: tuple[int, int], device: torch.device) -> Self:
        """Load the shortlist of a run or model folder to a device.

        Raises:
            ConfigError: The folder does not have a shortlist.
            CheckpointError: The file is damaged.
        """
        parts = require_shortlist(folder, vocab_sizes)
        common, candidates = (torch.tensor(part, device=device) for part in parts)
        return cls(common, candidates, vocab_sizes[1])

    def pick(
        self, source: Packed, constraints: Sequence[Constraints] | None = None
    ) -> BatchVocabulary:
        """Return the shortlist of a batch.

        Args:
            source: Source ids.
            constraints: Constraints of each sentence. Start tokens and the tokens of prefixes and
                required phrases are added to the shortlist.
        """
        marks = self._always.repeat(len(source), 1)
        found = self._candidates.index_select(0, source.ids).long()  # (N, C)
        found += (source.sentences * marks.shape[1]).unsqueeze(1)
        marks.view(-1).index_fill_(0, found.flatten(), True)
        for row, each in zip(marks, constraints or (), strict=constraints is not None):
            row[[*each.first_ids, *(token for ids in each.required for token in ids)]] = True
        tokens = marks.any(0).nonzero().squeeze(1)
        if len(source) == 1:
            return BatchVocabulary(tokens, None)
        missing = ~marks.index_select(1, tokens)
        allowed = torch.zeros(missing.shape, device=missing.device)
        return BatchVocabulary(tokens, allowed.masked_fill_(missing, -torch.inf).unsqueeze(1))


def source_of(model: Transformer, source: Packed) -> Packed:
    """Return the encoder input for a source that ends in EOS: with BOS if the model needs it."""
    return source.prepend(BOS_ID) if model.config.source_bos else source


class ModelStepper:
    """Computes log probabilities of one model or an ensemble: see `nmt.search.selector.Stepper`.

    Args:
        models: Models on their device.
        mixture: How to combine the predictions of several models.
        runs: A faster replacement of `Transformer.decode_token` for each model.
        with_coverage: Whether the search needs the coverage of the source.
        keep_special_mass: See `nmt.config.model.DecodingConfig`.
        vocabulary: The shortlist of the batch; None for the whole vocabulary. Token ids are indices
            into it.
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
        tokens = self.tokens
        self._logits = [m.logits if tokens is None else m.narrow_output(tokens) for m in models]

    @property
    def max_positions(self) -> int | None:
        """Positions that every model supports; None if no model has learned positions."""
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
        """Append ``tokens`` (B, K); return log probabilities (B, K, V), float32, and the state.

        PAD, UNK and BOS get minus infinity before the softmax, unless ``keep_special_mass`` is on.
        """
        if self.tokens is not None:
            tokens = self.tokens.take(tokens)
        log_probs, after = [], []
        parts = zip(self._models, self._runs, self._logits, state, strict=True)
        for model, run, project, before in parts:
            hidden, own = model.decode_step(before, tokens, run)
            logits = project(hidden)
            # Masked before the softmax, as in CTranslate2: other tokens share their probability.
            if self._shares_special:
                logits.narrow(-1, 0, NUM_NEVER_CHOSEN).fill_(-torch.inf)
            if own.allowed is not None:
                logits.add_(own.allowed)
            log_probs.append(logits.float().log_softmax(dim=-1))
            after.append(own)
        return self._mixture.combine(log_probs), tuple(after)

    def select(self, state: States, sentences: Tensor, beams: Tensor) -> States:
        """Select ``sentences`` and ``beams`` in the state of every model."""
        return tuple(own.select(sentences, beams) for own in state)

    def coverage(self, state: States) -> Tensor:
        """Attention to each source token, summed over steps, averaged over models: (B, K, S)."""
        found = [
            own.coverage[:, int(model.config.source_bos) :]
            for model, own in zip(self._models, state, strict=True)
            if own.coverage is not None
        ]
        return torch.stack(found).mean(0).unflatten(0, (-1, state[0].num_beams))
