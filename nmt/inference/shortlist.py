"""Which target tokens a sentence may need: a few hundred of a vocabulary of many thousands.

To score them alone saves most of the output projection and of all that follows it (Jean et al.
2015, section 3.2; Devlin 2017). What a sentence may need does not depend on what shares its batch:
only the rows that are computed are those of all its sentences.

Shapes: B sentences, N source tokens, V source vocabulary, C candidates of a source token, V' target
tokens of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from nmt.inference.shortlist_file import require_shortlist
from nmt.packed import Packed
from nmt.search.hypothesis import Constraints, Hypothesis
from nmt.text import EOS_ID

_SPECIAL = EOS_ID + 1  # PAD, UNK, BOS and EOS keep their ids


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
        vocab_size: Entries of the target vocabulary.
    """

    def __init__(self, common: Tensor, candidates: Tensor, vocab_size: int) -> None:
        always = torch.cat((torch.arange(_SPECIAL, device=common.device), common))
        self._always = common.new_zeros(vocab_size, dtype=torch.bool).index_fill_(0, always, True)
        # In place of none stands what is there anyway.
        self._candidates = candidates.masked_fill(candidates < 0, EOS_ID)

    @classmethod
    def load(cls, folder: Path, vocab_sizes: tuple[int, int], device: torch.device) -> Self:
        """Return the short lists of a folder, on a device.

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
