"""Outputs of a search -> the same, but searched anew and more strictly where they look broken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from nmt.config.decoding import DecodingConfig
from nmt.errors import ConfigError
from nmt.search.hypothesis import Hypothesis
from nmt.text.tokenizer import Tokenizers
from nmt.translation.coverage import SourceCoverage
from nmt.translation.guard import Alarm, GuardedLine, GuardThresholds, alarms

_BEAM_SIZE = 5
_NGRAM_SIZE = 2  # a word three times in a row has a bigram twice

Outputs = list[list[Hypothesis]]
"""The n best of each sentence, best first."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the guard found in the output of one sentence."""

    alarms: tuple[Alarm, ...] = ()
    """Signs that it is no translation."""
    mended: tuple[Alarm, ...] = ()
    """Signs that the first output had, and this one of a stricter search has not."""


class Guard:
    """Looks at the best output of each sentence.

    Args:
        limits: What is normal.
        tokenizers: Of both languages.
        load_coverage: Called when it is first needed: returns what tells how much of a source is
            covered, or None, by which that sign is off.
    """

    def __init__(
        self,
        limits: GuardThresholds,
        tokenizers: Tokenizers,
        load_coverage: Callable[[], SourceCoverage | None] = lambda: None,
    ) -> None:
        self.limits, self._tokenizers = limits, tokenizers
        self._load_coverage = load_coverage

    @cached_property
    def _coverage(self) -> SourceCoverage | None:
        return self._load_coverage() if self.limits.coverage > 0 else None

    def stricter(self, options: DecodingConfig) -> dict[str, Any]:
        """Return the changes of ``options`` for a second search; none loosens anything."""
        factor, offset = self.limits.longest
        ngram = options.no_repeat_ngram_size or _NGRAM_SIZE
        changes: dict[str, Any] = {
            "no_repeat_ngram_size": min(ngram, _NGRAM_SIZE),
            "max_length_factor": min(options.max_length_factor, factor),
            "max_length_offset": min(options.max_length_offset, offset),
            "min_length_factor": max(options.min_length_factor, self.limits.subwords_low),
        }
        is_plain = not (options.sampling or options.return_alternatives)
        if is_plain and options.diverse_beam_groups == 1:
            changes["beam_size"] = max(options.beam_size, _BEAM_SIZE)
        return changes

    def check(self, source: Sequence[int], outputs: Sequence[Hypothesis]) -> tuple[Alarm, ...]:
        """Return the alarms of the best output of a sentence."""
        ids = outputs[0].ids
        texts = self._tokenizers.source.decode(source), self._tokenizers.target.decode(ids)
        covered = 1.0 if self._coverage is None else self._coverage.share(source, ids)
        return alarms(GuardedLine(*texts, source, ids, covered), self.limits)

    def mend(
        self,
        sources: Sequence[Sequence[int]],
        found: Outputs,
        search_again: Callable[[Sequence[int]], Outputs],
    ) -> list[Verdict]:
        """Check all outputs, and put better ones into ``found`` where a second search finds them.

        Args:
            sources: Source ids of each sentence.
            found: Outputs of each sentence, none empty. Changed.
            search_again: Searches the sentences with these numbers more strictly.
        """
        first = [
            self.check(source, outputs) for source, outputs in zip(sources, found, strict=True)
        ]
        verdicts = [Verdict(names) for names in first]
        rows = [row for row, names in enumerate(first) if names]
        try:
            again = search_again(rows) if rows else []
        except ConfigError:  # the engine cannot search so: the alarms stay
            return verdicts
        for row, outputs in zip(rows, again, strict=True):
            names = self.check(sources[row], outputs) if outputs else first[row]
            if len(names) < len(first[row]):
                mended = tuple(name for name in first[row] if name not in names)
                found[row], verdicts[row] = outputs, Verdict(names, mended)
        return verdicts
