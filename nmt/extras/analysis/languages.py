"""Counts translations that are not in the target language, for models of several languages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from nmt.commands.evaluate import EvaluatedSet
from nmt.config.language_codes import primary_code
from nmt.metrics.result import Section
from nmt.text import languages

_MEANING = (
    "wrong language: share of the translations that are in another language of the model, by "
    "script and py3langid."
)
_FOREIGN = 0.5  # Largest share of letters of another script in a text of its language.
_ODDS = 5.0  # A line is in another language if that is more than this many times as likely.


def language_section(scored: EvaluatedSet) -> Section | None:
    """Return the languages of the test set, and the share of translations in another language."""
    test, codes = scored.test, list[str]()
    if test.target_language is None:
        return None
    for model in scored.models:
        codes += (code for pair in model.config.directions for code in pair)
    direction, values = f"{test.source_language}-{test.target_language}", list[dict[str, Any]]()
    for system in scored.systems:
        share = wrong_language_share(system.lines, test.target_language, codes)
        values.append({"system": system.name, "languages": direction, "wrong_language": share})
    head = ["languages", "system", "wrong language"]
    shares = [x["wrong_language"] for x in values]
    shown = ["unknown" if share is None else f"{share:.1%}" for share in shares]
    rows = [[direction, x["system"], text] for x, text in zip(values, shown, strict=True)]
    return Section("languages", "Languages", [head, *rows], values, _MEANING)


def wrong_language_share(lines: Sequence[str], target: str, codes: Iterable[str]) -> float | None:
    """Return the share of lines in another language, blank lines left out.

    A line is in another language if most of its letters belong to another script, or if another
    language of the model is at least five times as likely (py3langid).

    Args:
        lines: Translations.
        target: Code of the expected language.
        codes: Codes of the languages of the model.

    Returns:
        None if the languages cannot be distinguished, or if all lines are blank.
    """
    script, own = languages.script_of(target), primary_code(target)
    others = {primary_code(code) for code in codes} - {own}
    # Other scripts are enough to distinguish the remaining languages.
    similar = {x for x in others if not script or languages.script_of(x) in (None, script)}
    model, texts = languages.identifier(), [line for line in lines if line.strip()]
    if not texts or not (others or script) or not all(map(languages.is_identifiable, similar)):
        return None
    if similar and not languages.is_identifiable(own):
        return None

    def is_wrong(text: str) -> bool:
        if languages.foreign_share(text, script) > _FOREIGN:
            return True
        shares = dict(model.rank(text)) if model and similar else {}
        return any(shares[code] > _ODDS * shares[own] for code in similar)

    return sum(map(is_wrong, texts)) / len(texts)
