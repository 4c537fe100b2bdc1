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
from nmt.errors import CheckpointError
from nmt.inference.direction import UNSET, LanguageOptions
from nmt.inference.engine import EngineOptions, LoadedModel, Needs, batch_by_length
from nmt.inference.request import Links, TokenScore, align_words, score_tokens, subwords
from nmt.inference.segment import encode_fitting
from nmt.inference.torch_engine import load_torch
from nmt.search.hypothesis import length_penalty
from nmt.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


# Source and target ids of a sentence, without BOS and EOS.
IdPair = tuple[Sequence[int], Sequence[int]]


@dataclass(frozen=True, slots=True)
class PairScore:
    """The score of one translation."""

    source: str
    target: str
    # Natural-log probability of the target, EOS included; minus infinity if it cannot be scored.
    log_prob: float
    score: float  # ``log_prob`` after length normalisation; higher is better.
    tokens: tuple[TokenScore, ...] = ()  # ``log_prob`` is the sum over these tokens.

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON. Infinity becomes null."""
        return {
            "source": self.source,
            "target": self.target,
            "score": self.score if math.isfinite(self.score) else None,
            "log_prob": self.log_prob if math.isfinite(self.log_prob) else None,
            "tokens": [asdict(token) for token in self.tokens],
        }


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
        own, most = loaded.decoding, loaded.engine.max_positions
        self.options, self._loaded = options or own, loaded
        self._longest_source = longest = loaded.max_length
        allowed = int(longest * own.max_length_factor) + own.max_length_offset
        self._longest_target = max(allowed, longest)
        if most is not None:
            self._longest_target = min(self._longest_target, most - 1)
        self._pieces = subwords(loaded.tokenizers.target)

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
        texts = list(pairs)
        before, first, encoded = self._encode(texts, languages)
        usable = {
            row: (before + source, first + target)
            for row, (source, target) in enumerate(encoded)
            if source and target is not None
        }
        log_probs = dict(zip(usable, self.score_ids(list(usable.values()), progress), strict=True))
        penalty = length_penalty(self.options)
        results = []
        for row, pair in enumerate(texts):
            if found := log_probs.get(row):
                own, size = found[len(first) :], len(found)  # as in the search
                total = math.fsum(own)
                tokens = score_tokens(self._pieces, usable[row][1][len(first) :], own)
                results.append(PairScore(*pair, total, total / penalty(size), tokens))
            else:
                value = 0.0 if encoded[row] == ([], []) else -math.inf
                results.append(PairScore(*pair, value, value))
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
        found: list[list[float]] = [[] for _ in pairs]
        lengths = [len(source) + len(target) + 1 for source, target in pairs]
        wanted = self.options.batch_tokens
        tokens = self._loaded.engine.capacity.tokens if wanted == "auto" else wanted
        # The budget counts source tokens: source and target together may have twice as many.
        for rows in batch_by_length(lengths, max_tokens=2 * tokens, max_rows=max(1, len(pairs))):
            sources, targets = zip(*(pairs[row] for row in rows), strict=True)
            log_probs = self._loaded.engine.token_log_probs(sources, targets)
            for row, own in zip(rows, log_probs, strict=True):
                found[row] = own
            progress(len(rows))
        if not all(math.isfinite(sum(log_probs)) for log_probs in found):
            problem = "The model's probabilities are NaN: its weights are damaged."
            raise CheckpointError(problem, fix="Set `checkpoint` to step-N, or train again.")
        return found

    def align(
        self, pairs: Iterable[tuple[str, str]], languages: LanguageOptions = UNSET
    ) -> list[Links]:
        """Align the words of each pair by attention.

        Returns:
            Links (source word, target word), from 0, for each pair. Empty if a side is blank or too
            long.
        """
        found, sources = list[Links](), subwords(self._loaded.tokenizers.source)
        before, first, encoded = self._encode(list(pairs), languages)
        for source, target in encoded:
            if not (source and target):
                found.append(())
                continue
            (weights,) = self._loaded.engine.attention([before + source], [first + target])
            words = [sources[i] for i in source], [self._pieces[i] for i in target]
            weights = [row[len(before) :] for row in weights[len(first) :]]
            found.append(align_words(weights, *words).links)
        return found

    def _encode(
        self, texts: Sequence[tuple[str, str]], languages: LanguageOptions
    ) -> tuple[list[int], list[int], list[tuple[list[int] | None, list[int] | None]]]:
        """Return the tags of both sides, and the ids of each pair; see the function `_encode`."""
        source, target = self._loaded.tokenizers
        tags = self._loaded.languages.choose(self._loaded.tokenizers, languages)
        before, first = [*tags.source_ids], [] if tags.start is None else [tags.start]
        if not texts:
            return before, first, []
        sides = list(zip(*texts, strict=True))
        sources = _encode(source, sides[0], self._longest_source - len(before), "source")
        targets = _encode(target, sides[1], self._longest_target - len(first), "target")
        return before, first, list(zip(sources, targets, strict=True))


def _encode(
    tokenizer: Tokenizer, texts: Sequence[str], longest: int, side: str
) -> list[list[int] | None]:
    """Return the ids of each text; [] if it is blank, None with a warning if it is too long."""
    found = encode_fitting(tokenizer, texts, longest)
    for text, ids in zip(texts, found, strict=True):
        if ids is None:
            said = "%s line of %s characters is not scored: the limit is %d %s subwords"
            logger.warning(said, side, f"{len(text):,}", longest, side)
    return found
