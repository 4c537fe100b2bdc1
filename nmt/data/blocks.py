"""What `nmt prepare` does with each block of a corpus: three pure functions, for any process.

Look: which pairs the filters of texts keep. Encode: the token ids of every line. Decide: which
pairs are kept now that their lengths are known, and what the whole corpora say of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nmt.data.block_map import Result
from nmt.data.corpus import Block
from nmt.data.filters import FilterChain, Finding
from nmt.data.findings import KEPT, Found
from nmt.data.pairs import BadPair, SentencePair
from nmt.data.store import FlatIds
from nmt.text.tokenizer import Tokenizers

Mask = npt.NDArray[np.bool_]


def kept_pairs(block: Block, is_kept: Mask) -> list[SentencePair]:
    """Return the pairs of a block that are kept."""
    pairs = compress(block.pairs, is_kept)
    return [pair for pair in pairs if isinstance(pair, SentencePair)]


@dataclass(frozen=True, slots=True)
class Look:
    """The first pass: what the texts of a block say.

    Pairs that are too long in characters, in bad encoding, blank, or have another reason that drops
    are not kept.

    The result has ``is_kept`` and ``lengths`` (characters of source and target of every line, 0 for
    what could not be read; (2, lines)), all arrays of ``look``, and as values the findings and the
    counts of dropped pairs, each under its first reason that drops.
    """

    filters: FilterChain
    corpus: str
    look: Callable[[Sequence[SentencePair]], Mapping[str, npt.NDArray[Any]]] | None = None

    def __call__(self, block: Block) -> Result:
        """Parse and examine a block.

        Raises:
            DataError: A line cannot be read.
        """
        pairs, found, counts = block.pairs, list[Found](), Counter[str]()
        is_kept, lengths = np.ones(len(pairs), np.bool_), list[tuple[int, int]]()
        for row, pair in enumerate(pairs):
            if isinstance(pair, BadPair):
                findings, texts = [Finding(pair.reason)], ("", "")
            else:
                texts = pair[:2]
                findings = self.filters.text_findings(*texts)
            lengths.append((len(texts[0]), len(texts[1])))
            if findings:
                found += [Found(self.corpus, pair.line, *each, *texts) for each in findings]
                if (reason := self.filters.dropping(findings)) is not None:
                    is_kept[row] = False
                    counts[reason] += 1
        arrays = self.look(kept_pairs(block, is_kept)) if self.look else {}
        own = {"is_kept": is_kept, "lengths": np.array(lengths, np.int64).T}
        return Result({**own, **arrays}, [found, counts])


@dataclass(frozen=True, slots=True)
class Encode:
    """The token ids of every line of a block; none of what cannot be read."""

    tokenizers: Tokenizers
    threads: int

    def __call__(self, block: Block) -> Result:
        """Return ids and lengths of both sides, and line ``numbers``.

        Raises:
            DataError: A line cannot be read.
        """
        pairs = block.pairs
        texts = [("", "") if isinstance(pair, BadPair) else pair[:2] for pair in pairs]
        arrays: dict[str, npt.NDArray[Any]] = {
            "numbers": np.array([pair.line for pair in pairs], np.int64)
        }
        for side, (tokenizer, lines) in enumerate(
            zip(self.tokenizers, zip(*texts, strict=True), strict=True)
        ):
            flat = FlatIds.of(tokenizer.encode_batch(lines, self.threads))
            arrays |= {f"ids_{side}": flat.ids, f"lengths_{side}": flat.lengths}
        return Result(arrays)


class Known(NamedTuple):
    """What is known of a block in the second pass."""

    lengths: npt.NDArray[np.int64]  # subwords of source and target, tag included. (2, lines)
    is_kept: Mask  # of each line, after the first pass
    found: Mapping[int, Sequence[Finding]]  # by the line's place: what whole corpora say


@dataclass(frozen=True, slots=True)
class Decide:
    """The second pass: drops repetitions, pairs of unfit length, and pairs with a low score.

    The result has ``is_kept``, and as values the findings and the counts of kept pairs and of
    dropped ones, each under its first reason that drops.
    """

    filters: FilterChain
    corpus: str

    def __call__(self, block: Block) -> Result:
        """Return what becomes of the pairs that the first pass has kept."""
        known: Known = block.known
        found, counts, is_kept = list[Found](), Counter[str](), known.is_kept.copy()
        rows = np.flatnonzero(is_kept)
        for row, *lengths in zip(rows.tolist(), *known.lengths[:, rows].tolist(), strict=True):
            findings = [*known.found.get(row, ()), *self.filters.length_findings(*lengths)]
            reason = None
            if findings:
                pair = block.pairs[row]
                found += [Found(self.corpus, pair.line, *each, *pair[:2]) for each in findings]
                reason = self.filters.dropping(findings)
            counts[reason or KEPT] += 1
            is_kept[row] = reason is None
        return Result({"is_kept": is_kept}, [found, counts])
