"""Results of translation -> lines of text or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from nmt.errors import ConfigError
from nmt.translation.alignment import as_pharaoh
from nmt.translation.result import TranslationResult


def as_json(values: Mapping[str, Any]) -> str:
    """Return one line of JSON."""
    return json.dumps(values, ensure_ascii=False, allow_nan=False)


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """How lines are read and results written."""

    kind: Literal["text", "json"] = "text"
    """``text``: the translation, or with several, lines of ``number ||| text ||| score``.
    ``json``: one object a line."""
    n_best: int = 1
    """Translations of each line."""
    alignments: bool = False
    """Whether words that belong together are told: in text after `` ||| ``."""
    reads_json: bool = False
    """Whether the lines that come are objects, too; see `nmt.translation.requests`."""
    attention: bool = False
    """Whether it is told how much of each source word each word goes back to; in JSON only."""
    token_scores: bool = False
    """Whether every token is told with its log probability; in JSON only."""

    def __post_init__(self) -> None:
        asked = {"--attention": self.attention, "--token-scores": self.token_scores}
        if self.kind == "text" and any(asked.values()):
            flags = " and ".join(flag for flag, is_on in asked.items() if is_on)
            raise ConfigError(
                f"Text output has no place for {flags}.",
                fix="Add --format json, or leave that out.",
            )
        if self.kind == "text" and self.alignments and self.n_best > 1:
            raise ConfigError(
                f"Text output has no place for the alignments of {self.n_best} translations.",
                fix="Add --format json, which tells those of the best, or leave out --alignments.",
            )

    def lines(
        self, number: int, result: TranslationResult, others: Mapping[str, Any]
    ) -> Iterator[str]:
        """Yield the output lines of input line ``number``, from 0; ``others`` only pass through."""
        if self.kind == "json":
            yield as_json({**others, **result.as_dict()})
        elif self.alignments:
            yield f"{result.text} ||| {as_pharaoh(result.alignment or ())}"
        elif self.n_best == 1:
            yield result.text
        else:
            alternatives = [(x.text, x.score) for x in result.alternatives]
            for text, score in alternatives or [(result.text, result.score)]:
                yield f"{number} ||| {text} ||| {score:.4f}"
