"""Pairs of lines -> how probable the model finds each translation.

Every target is read at once (teacher forcing) instead of token by token; the numbers are those of
the search. Scoring given translations is what reranking, filtering of corpora and error analysis
are made of, for example dual conditional cross-entropy (Junczys-Dowmunt 2018).
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
    """How probable the model finds the translation of one line."""

    source: str  # The line.
    target: str  # Its translation.
    # Natural-log probability of the target and of its end; minus infinity if it has none.
    log_prob: float
    score: float  # ``log_prob`` after length normalisation; higher is better.
    tokens: tuple[TokenScore, ...] = ()  # What ``log_prob`` is the sum of.

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, which has no infinity: null stands for it."""
        return {
            "source": self.source,
            "target": self.target,
            "score": self.score if math.isfinite(self.score) else None,
            "log_prob": self.log_prob if math.isfinite(self.log_prob) else None,
            "tokens": [asdict(token) for token in self.tokens],
        }


class Scorer:
    """Scores given translations with one model, or with several at once.

    The score of a text is that of its usual subwords. A search may have put the same text together
    from other subwords: then its score differs. Limits, rules and coverage penalty of the search do
    not count: a very short or long translation has its probability, and so have unknown characters.
    Where the model gives none, the rule is:

    - blank to blank is 0, as in translating;
    - a blank translation of a line is the model's probability of ending at once;
    - a translation of a blank line, and a pair too long for the model, get minus infinity.

    Too long is a source that translating would cut, and a target longer than any output of the
    search or than the model has positions for.

    Args:
        loaded: The engine, and what belongs to them.
        options: The length normalisation and the size of batches; the model's own when None.
    """

    def __init__(self, loaded: LoadedModel, options: DecodingConfig | None = None) -> None:
        own, most = loaded.decoding, loaded.engine.max_positions
        self.options, self._loaded = options or own, loaded
        self._longest_source = longest = loaded.max_length
        self._longest_target = max(
            int(longest * own.max_length_factor) + own.max_length_offset, longest
        )
        if most is not None:
            self._longest_target = min(self._longest_target, most - 1)
        self._pieces = subwords(loaded.tokenizers.target)

    @classmethod
    def load(cls, folder: Path | str, **options: Any) -> Scorer:
        """Load a run or model folder. Options are fields of `EngineOptions`, by name."""
        return cls(load_torch(Path(folder), EngineOptions(**options), Needs()))

    @property
    def languages(self) -> tuple[str, str]:
        """Of source and target."""
        return self._loaded.languages

    def with_options(self, **changes: Any) -> Scorer:
        """Return a scorer of the same model with other decoding options.

        Raises:
            ConfigError: An option is unknown or out of bounds. Lists every problem.
        """
        return Scorer(self._loaded, change_options(self.options, changes))

    def score(
        self,
        pairs: Iterable[tuple[str, str]],
        *,
        tag: str | None = None,
        progress: Callable[[int], object] = lambda _: None,
    ) -> list[PairScore]:
        """Score pairs of source and target lines; results come in the same order.

        Args:
            pairs: Any number.
            tag: What the sources begin with; see `nmt.inference.translator.Translator.translate`.
            progress: Called with the number of pairs of each batch, once it is scored.

        Raises:
            ConfigError: There is no such tag.
            CheckpointError: The model's weights are broken.
        """
        texts = list(pairs)
        first, encoded = self._encode(texts, tag)
        usable = {
            row: (first + source, target)
            for row, (source, target) in enumerate(encoded)
            if source and target is not None
        }
        log_probs = dict(zip(usable, self.score_ids(list(usable.values()), progress), strict=True))
        penalty = length_penalty(self.options)
        results = []
        for row, pair in enumerate(texts):
            if own := log_probs.get(row):
                total = math.fsum(own)
                tokens = score_tokens(self._pieces, usable[row][1], own)
                results.append(PairScore(*pair, total, total / penalty(len(own)), tokens))
            else:
                value = 0.0 if encoded[row] == ([], []) else -math.inf
                results.append(PairScore(*pair, value, value))
        return results

    def score_ids(
        self, pairs: Sequence[IdPair], progress: Callable[[int], object] = lambda _: None
    ) -> list[list[float]]:
        """Return the log probability of every target id, and of EOS, for each pair.

        Args:
            pairs: Source and target ids, without special ones. A source has at least one.
            progress: As of `score`.

        Raises:
            CheckpointError: The model's weights are broken.
        """
        found: list[list[float]] = [[] for _ in pairs]
        lengths = [len(source) + len(target) + 1 for source, target in pairs]
        wanted = self.options.batch_tokens
        tokens = self._loaded.engine.capacity.tokens if wanted == "auto" else wanted
        # The budget is of sources: source and target together may have twice as many.
        for rows in batch_by_length(lengths, max_tokens=2 * tokens, max_rows=max(1, len(pairs))):
            sources, targets = zip(*(pairs[row] for row in rows), strict=True)
            log_probs = self._loaded.engine.token_log_probs(sources, targets)
            for row, own in zip(rows, log_probs, strict=True):
                found[row] = own
            progress(len(rows))
        if not all(math.isfinite(sum(log_probs)) for log_probs in found):
            raise CheckpointError(
                "The model's probabilities are not numbers: its weights are broken.",
                fix="Use another checkpoint, or train again.",
            )
        return found

    def align(self, pairs: Iterable[tuple[str, str]], *, tag: str | None = None) -> list[Links]:
        """Return which source word each target word of a pair was made of, by attention.

        None for a pair with a blank side, or one too long for the model. For arguments and errors
        see `score`.
        """
        found, sources = list[Links](), subwords(self._loaded.tokenizers.source)
        first, encoded = self._encode(list(pairs), tag)
        for source, target in encoded:
            if not (source and target):
                found.append(())
                continue
            (weights,) = self._loaded.engine.attention([first + source], [target])
            words = [sources[i] for i in source], [self._pieces[i] for i in target]
            found.append(align_words([row[len(first) :] for row in weights], *words).links)
        return found

    def _encode(
        self, texts: Sequence[tuple[str, str]], tag: str | None
    ) -> tuple[list[int], list[tuple[list[int] | None, list[int] | None]]]:
        """Return the ids of the tag, and those of both sides of each pair; see `_encode`."""
        source, target = self._loaded.tokenizers
        first, sides = [] if tag is None else [source.tag_id(tag)], list(zip(*texts, strict=True))
        if not sides:
            return first, []
        sources = _encode(source, sides[0], self._longest_source - len(first), "source")
        targets = _encode(target, sides[1], self._longest_target, "target")
        return first, list(zip(sources, targets, strict=True))


def _encode(
    tokenizer: Tokenizer, texts: Sequence[str], longest: int, side: str
) -> list[list[int] | None]:
    """Ids of every text; [] for a blank one, None and a warning for one that has too many."""
    found = encode_fitting(tokenizer, texts, longest)
    for text, ids in zip(texts, found, strict=True):
        if ids is None:
            logger.warning(
                "%s line of %s characters has no score: the model reads %d %s subwords at once",
                side,
                f"{len(text):,}",
                longest,
                side,
            )
    return found
