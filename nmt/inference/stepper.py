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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import inf, log
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from nmt.inference.engine import Mean, require_shortlist
from nmt.model.decoder_state import DecoderState
from nmt.model.transformer import DecodeToken, Transformer
from nmt.packed import Packed
from nmt.search.hypothesis import Constraints, Ids, NBestLists
from nmt.text import BOS_ID, EOS_ID, NUM_NEVER_CHOSEN, NUM_SPECIAL

States = tuple[DecoderState, ...]  # One state for each model.
Projection = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
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
        total = log_probs[0]
        if len(log_probs) == 1:
            return total
        first_share, *further_shares = self.shares
        further_models = zip(further_shares, log_probs[1:], strict=True)
        if self.mean == "geometric":
            total.mul_(first_share)
            for share, values in further_models:
                total.add_(values, alpha=share)
            return total.log_softmax(dim=-1)
        # log(share * probability) is log(share) + log_prob. `logaddexp` adds the probabilities.
        total.add_(log(first_share))
        for share, values in further_models:
            # A token that one model rules out stays impossible, although the sum is above 0.
            impossible = total.isneginf() | values.isneginf()
            values.add_(log(share))
            torch.logaddexp(total, values, out=total)
            total.masked_fill_(impossible, -inf)
        return total


@dataclass(frozen=True)
class BatchVocabulary:
    """The shortlist of a batch. The search uses positions in the shortlist as token ids."""

    # Ids of the whole vocabulary, ascending. Special tokens keep their ids. (V',), int64.
    tokens: Tensor
    # 0 for the tokens of a sentence's shortlist, otherwise minus infinity. (B, 1, V'), float32.
    # None if every sentence may use all tokens.
    allowed: Tensor | None

    def inside(self, constraints: Sequence[Constraints]) -> list[Constraints]:
        """Convert constraints to ids of the search. Impossible forbidden phrases are dropped."""
        # Position in the shortlist by token id. No position has the key None: it is only in the
        # type, because a sentence may have no start token.
        positions: dict[int | None, int]
        positions = {token: index for index, token in enumerate(self.tokens.tolist())}

        def positions_of(ids: Ids) -> Ids:
            return tuple(positions[token] for token in ids)

        converted = []
        for entry in constraints:
            # The search cannot generate a phrase with a token outside of the shortlist.
            possible = [ids for ids in entry.forbidden if positions.keys() >= set(ids)]
            converted.append(
                Constraints(
                    prefix=positions_of(entry.prefix),
                    required=tuple(map(positions_of, entry.required)),
                    forbidden=tuple(map(positions_of, possible)),
                    start=positions.get(entry.start),
                )
            )
        return converted

    def outside(self, results: NBestLists) -> NBestLists:
        """Convert hypotheses of the search to ids of the whole vocabulary, in place."""
        tokens = self.tokens.tolist()
        for hypotheses in results:
            for rank, hypothesis in enumerate(hypotheses):
                ids = tuple(tokens[index] for index in hypothesis.ids)
                hypotheses[rank] = replace(hypothesis, ids=ids)
        return results


class Shortlist:
    """Translation candidates of each source token, and tokens that every sentence may need.

    Args:
        common: Target ids that are always included. (F,), int64.
        candidates: Target ids for each source token, padded with -1. (V, C), int32.
        vocab_size: Size of the target vocabulary.
    """

    def __init__(self, common: Tensor, candidates: Tensor, vocab_size: int) -> None:
        # True for the target ids that every shortlist contains. (V,), bool.
        self._always = torch.zeros(vocab_size, dtype=torch.bool, device=common.device)
        self._always[:NUM_SPECIAL] = True  # PAD, UNK, BOS and EOS keep their ids
        self._always[common] = True
        # EOS replaces the padding, because EOS is always included. (V, C), int32.
        self._candidates = candidates.masked_fill(candidates < 0, EOS_ID)

    @classmethod
    def load(cls, folder: Path, vocab_sizes: tuple[int, int], device: torch.device) -> Self:
        """Load the shortlist of a run or model folder to a device.

        Raises:
            ConfigError: The folder does not have a shortlist.
            CheckpointError: The file is damaged.
        """
        stored = require_shortlist(folder, vocab_sizes)
        common = torch.tensor(stored.common, device=device)
        candidates = torch.tensor(stored.candidates, device=device)
        _, target_vocab_size = vocab_sizes
        return cls(common, candidates, target_vocab_size)

    def pick(
        self, source: Packed, constraints: Sequence[Constraints] | None = None
    ) -> BatchVocabulary:
        """Return the shortlist of a batch.

        Args:
            source: Source ids.
            constraints: Constraints of each sentence. Start tokens and the tokens of prefixes and
                required phrases are added to the shortlist.
        """
        is_included = self._always.repeat(len(source), 1)  # (B, V)
        vocab_size = is_included.shape[1]
        # Candidates of the N source tokens of the batch, as indices into the flattened table:
        # the row of sentence b starts at b * V.
        cells = self._candidates.index_select(0, source.ids).long()  # (N, C)
        cells += (source.sentences * vocab_size).unsqueeze(1)
        is_included.view(-1).index_fill_(0, cells.flatten(), True)
        if constraints is not None:
            for row, entry in zip(is_included, constraints, strict=True):
                row[list(chain(entry.first_ids, *entry.required))] = True
        tokens = is_included.any(0).nonzero().squeeze(1)  # of at least one sentence. (V',)
        if len(source) == 1:
            return BatchVocabulary(tokens, None)
        is_missing = ~is_included.index_select(1, tokens)  # (B, V')
        allowed = torch.zeros(is_missing.shape, device=is_missing.device)
        allowed.masked_fill_(is_missing, -inf)
        return BatchVocabulary(tokens, allowed.unsqueeze(1))


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
        self._models = models
        self._mixture = mixture or Mixture()
        # For each model; None runs `Transformer.decode_token`.
        self._runs: Sequence[DecodeToken | None] = runs or [None] * len(models)
        self._with_coverage = with_coverage
        self._keep_special_mass = keep_special_mass
        # Fields of the shortlist, see `BatchVocabulary`; None without a shortlist.
        self.tokens: Tensor | None = None
        self._allowed: Tensor | None = None
        # For each model: the output layer, (..., D) -> (..., V or V').
        self._projections: list[Projection] = [model.logits for model in models]
        if vocabulary is not None:
            self.tokens = vocabulary.tokens
            self._allowed = vocabulary.allowed
            self._projections = [model.narrow_output(vocabulary.tokens) for model in models]

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
        if self.tokens is not None:  # positions in the shortlist -> ids of the whole vocabulary
            tokens = self.tokens.take(tokens)
        log_probs = []
        new_states = []
        models = zip(self._models, self._runs, self._projections, state, strict=True)
        for model, run, project, old_state in models:
            hidden, new_state = model.decode_step(old_state, tokens, run)
            logits = project(hidden)
            # Masked before the softmax, as in CTranslate2: other tokens share their probability.
            if not self._keep_special_mass:
                logits.narrow(-1, 0, NUM_NEVER_CHOSEN).fill_(-inf)
            # Taken from the state, which has the rows of the selected sentences only.
            if new_state.allowed is not None:
                logits.add_(new_state.allowed)
            log_probs.append(logits.float().log_softmax(dim=-1))
            new_states.append(new_state)
        return self._mixture.combine(log_probs), tuple(new_states)

    def select(self, state: States, sentences: Tensor, beams: Tensor) -> States:
        """Select ``sentences`` and ``beams`` in the state of every model."""
        return tuple(model_state.select(sentences, beams) for model_state in state)

    def coverage(self, state: States) -> Tensor:
        """Attention to each source token, summed over steps, averaged over models: (B, K, S)."""
        coverages = []
        for model, model_state in zip(self._models, state, strict=True):
            if model_state.coverage is not None:  # always, as the search has asked for it
                # Leave out the column of BOS, which `source_of` adds for some models. (R, S)
                num_added = int(model.config.source_bos)
                coverages.append(model_state.coverage[:, num_added:])
        mean = torch.stack(coverages).mean(0)  # (R, S)
        return mean.unflatten(0, (-1, state[0].num_beams))
