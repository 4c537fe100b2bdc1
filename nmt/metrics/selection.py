"""The order of BLEU and chrF: the first selects checkpoints and is the first score in reports."""

from __future__ import annotations

from collections.abc import Iterable

from nmt.text.languages import writes_spaces

REPORTED_METRICS = ("bleu", "chrf")  # Computed in every validation and evaluation.


def default_metrics(languages: Iterable[str | None]) -> tuple[str, ...]:
    """Return BLEU and chrF; chrF first if a target language is written without spaces.

    BLEU counts words, so it depends on the tool that separates the words of such a language. chrF
    counts characters.

    Args:
        languages: Codes of the target languages; None if a language is not known.

    >>> default_metrics(["de", None]), default_metrics(["de", "tha"])
    (('bleu', 'chrf'), ('chrf', 'bleu'))
    """
    for language in languages:
        if language is not None and not writes_spaces(language):
            return tuple(reversed(REPORTED_METRICS))
    return REPORTED_METRICS
