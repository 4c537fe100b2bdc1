"""Scores given translations: the model's probability of a target line for a source line.

The decoder reads a whole target at once (teacher forcing). The scores equal those of the search.
Scores are used for reranking, error analysis and corpus filtering, for example by dual conditional
cross-entropy (Junczys-Dowmunt 2018).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nmt.config.loader import change_options
from nmt.config.model import DecodingConfig
from nmt.inference.direction import UNSET, LanguageOptions, Tags
from nmt.inference.engine import (
    EngineOptions,
    LoadedModel,
    Needs,
    batch_by_length,
    damaged_weights,
)
from nmt.inference.request import Links, TokenScores, align_words, score_tokens
from nmt.inference.segment import encode_fitting
from nmt.inference.torch_engine import load_torch
from nmt.search.hypothesis import length_penalty
from nmt.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)
_TOO_LONG = "%s line of %s characters is not scored: the limit is %d %s subwords"

# Source and target ids of a sentence, without BOS and EOS.
IdPair = tuple[Sequence[int], Sequence[int]]


@dataclass(frozen=True, slots=True)
class PairScore:
    """The score of one translation."""

    source: str
    target: str
    score: float  # ``log_prob`` after length normalisation; higher is better.
    # Natural-log probability of the target, EOS included; minus infinity if it cannot be scored.
    log_prob: float
    tokens: TokenScores = ()  # ``log_prob`` is the sum over these tokens.

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON. Infinity becomes null."""
        values = asdict(self)
        values["tokens"] = list(values["tokens"])
        if not math.isfinite(self.score):
            values["score"] = None
            values["log_prob"] = None
        return values


class Scorer:
    """Scores given translations with one model or an ensemble.

    A text is scored with the subwords that the tokenizer returns. A search may build the same text
    from other subwords, whose score differs. Limits, rules and the coverage penalty of the search
    are not applied. Special cases:

    - A blank translation of a blank line scores 0.
    - A blank translation of any other line scores the probability of EOS as the first token.
    - A translation of a blank line scores minus infinity.
    - A pair that is too long scores minus infinity: `translate` would cut the source, or the target
      is longer than the longest possible output.

    Args:
        loaded: The loaded model.
        options: Length normalisation and batch size; None uses the options of the model.
    """

    def __init__(self, loaded: LoadedModel, options: DecodingConfig | None = None) -> None:
        decoding = loaded.decoding
        self.options = options or decoding
        self._loaded = loaded
        # Maximum subwords of a target, EOS not included.
        longest = int(loaded.max_length * decoding.max_length_factor) + decoding.max_length_offset
        # The options of the search may lower this limit, but not below that of a source.
        self._longest_target = max(longest, loaded.max_length)
        limit = loaded.engine.max_positions
        if limit is not None:  # EOS needs the last position
            self._longest_target = min(self._longest_target, limit - 1)

    @classmethod
    def load(cls, folder: Path | str, **options: Any) -> Scorer:
        """Load a run or model folder. Keyword arguments are fields of `EngineOptions`.

        Raises:
            ConfigError: The device, dtype or checkpoint is unknown or not available.
            CheckpointError: A file is missing or damaged.
        """
        return cls(load_torch(Path(folder), EngineOptions(**options), Needs()))

    @property
    def languages(self) -> tuple[str, str]:
        """Source and target language code."""
        return self._loaded.languages.directions[0]

    def with_options(self, **changes: Any) -> Scorer:
        """Return a scorer of the same model with other decoding options.

        Raises:
            ConfigError: Options are unknown or out of bounds. The message lists all problems.
        """
        return Scorer(self._loaded, change_options(self.options, changes))

    def score(
        self,
        pairs: Iterable[tuple[str, str]],
        languages: LanguageOptions = UNSET,
        *,
        progress: Callable[[int], object] = lambda _: None,
    ) -> list[PairScore]:
        """Score pairs of source and target lines. Results are in the same order.

        Args:
            pairs: Source and target lines.
            languages: Languages and tag of all pairs, for models with several languages or tags.
            progress: Called after each batch with the number of scored pairs.

        Raises:
            ConfigError: The model does not have this tag or language, or it has several languages,
                and none is chosen.
            CheckpointError: The model's weights are damaged.
        """
        tags = self._loaded.languages.choose(self._loaded.tokenizers, languages)
        results = []
        ids_by_row = dict[int, IdPair]()  # Of the pairs that the model can score, with tags.
        texts = list(pairs)
        for row, (source, target) in enumerate(self._encode_pairs(texts, tags)):
            if source and target is not None:
                source_ids = [*tags.source_ids, *source]
                ids_by_row[row] = (source_ids, [*tags.target_ids, *target])
            # See the docstring of the class. The scores of all other pairs are replaced below.
            special_score = -math.inf
            if source == [] and target == []:
                special_score = 0.0
            results.append(PairScore(*texts[row], special_score, special_score))
        log_probs = self.score_ids(list(ids_by_row.values()), progress)
        penalty = length_penalty(self.options)
        num_tags = len(tags.target_ids)
        tokenizer = self._loaded.tokenizers.target
        for row, values in zip(ids_by_row, log_probs, strict=True):
            # As in the search, a tag counts in the length only.
            log_prob = math.fsum(values[num_tags:])
            score = log_prob / penalty(len(values))
            _, target_ids = ids_by_row[row]
            tokens = score_tokens(tokenizer, target_ids[num_tags:], values)
            results[row] = PairScore(*texts[row], score, log_prob, tokens)
        return results

    def score_ids(
        self, pairs: Sequence[IdPair], progress: Callable[[int], object] = lambda _: None
    ) -> list[list[float]]:
        """Return the natural-log probability of every target id, and of EOS, for each pair.

        Args:
            pairs: Source and target ids, without BOS and EOS. A source must not be empty.
            progress: Called after each batch with the number of scored pairs.

        Raises:
            CheckpointError: The model's weights are damaged.
        """
        engine = self._loaded.engine
        log_probs: list[list[float]] = [[] for _ in pairs]
        # Source and target together. 1 is the EOS of one of them; `batch_by_length` adds the other.
        lengths = [len(source) + len(target) + 1 for source, target in pairs]
        # The budget counts source tokens: source and target together may have twice as many.
        max_tokens = 2 * engine.batch_tokens(self.options)
        # The number of rows is not limited: no batch has more rows than there are pairs.
        for rows in batch_by_length(lengths, max_tokens, max_rows=len(pairs)):
            sources, targets = zip(*[pairs[row] for row in rows], strict=True)
            log_probs_of_rows = engine.token_log_probs(sources, targets)
            for row, values in zip(rows, log_probs_of_rows, strict=True):
                log_probs[row] = values
            progress(len(rows))
        # A sum is finite only if all of its values are.
        if not all(math.isfinite(sum(values)) for values in log_probs):
            raise damaged_weights()
        return log_probs

    def align(
        self, pairs: Iterable[tuple[str, str]], languages: LanguageOptions = UNSET
    ) -> list[Links]:
        """Align the words of each pair by attention.

        Returns:
            Links (source word, target word), from 0, for each pair. Empty if a side is blank or too
            long.
        """
        tokenizers = self._loaded.tokenizers
        tags = self._loaded.languages.choose(tokenizers, languages)
        links = list[Links]()
        for source, target in self._encode_pairs(list(pairs), tags):
            if not (source and target):  # blank or too long
                links.append(())
                continue
            source_ids = [*tags.source_ids, *source]
            target_ids = [*tags.target_ids, *target]
            (weights,) = self._loaded.engine.attention([source_ids], [target_ids])
            source_subwords = tokenizers.source.subwords(source)
            target_subwords = tokenizers.target.subwords(target)
            aligned = align_words(weights, source_subwords, target_subwords)
            links.append(aligned.links)
        return links

    def _encode_pairs(
        self, texts: Sequence[tuple[str, str]], tags: Tags
    ) -> Iterable[tuple[list[int] | None, list[int] | None]]:
        """Return source and target ids of each pair, without tags: see `_encode_side`."""
        tokenizers = self._loaded.tokenizers
        longest_source = self._loaded.max_length - len(tags.source_ids)
        longest_target = self._longest_target - len(tags.target_ids)
        source_texts = [source for source, _ in texts]
        target_texts = [target for _, target in texts]
        sources = _encode_side(tokenizers.source, source_texts, longest_source, "source")
        targets = _encode_side(tokenizers.target, target_texts, longest_target, "target")
        return zip(sources, targets, strict=True)


def _encode_side(
    tokenizer: Tokenizer, texts: Sequence[str], longest: int, side: str
) -> list[list[int] | None]:
    """Return the ids of each text; [] if it is blank, None with a warning if it is too long."""
    ids_of_texts = encode_fitting(tokenizer, texts, longest)
    for text, ids in zip(texts, ids_of_texts, strict=True):
        if ids is None:
            logger.warning(_TOO_LONG, side, f"{len(text):,}", longest, side)
    return ids_of_texts
