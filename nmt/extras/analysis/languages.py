"""Counts translations that are not in the target language, for models of several languages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from nmt.checkpoint.model_folder import read_profiles
from nmt.commands.evaluate import EvaluatedSet
from nmt.config.language_codes import matching
from nmt.metrics.result import ReportSection
from nmt.text.identification import (
    NO_PROFILES,
    LanguageProfiles,
    are_identifiable,
    language_shares,
)
from nmt.text.languages import foreign_share, script_of

_MEANING = (
    "wrong language: share of the translations that are in another language of the model, by "
    "script, py3langid and the trigrams of the training text."
)
_FOREIGN = 0.5  # Largest share of letters of another script in a text of its language.
_ODDS = 5.0  # A line is in another language if that is more than this many times as likely.


def language_section(scored: EvaluatedSet) -> ReportSection | None:
    """Return the languages of the test set, and the share of translations in another language."""
    test = scored.test
    if test.target_language is None:
        return None
    profiles = NO_PROFILES
    codes = list[str]()
    for model in scored.models:
        if profiles is NO_PROFILES:
            profiles = read_profiles(model.folder)
        codes += chain.from_iterable(model.config.directions)
    direction = f"{test.source_language}-{test.target_language}"
    rows = [["languages", "system", "wrong language"]]
    values = []
    for system in scored.systems:
        share = wrong_language_share(system.lines, test.target_language, codes, profiles)
        values.append({"system": system.name, "languages": direction, "wrong_language": share})
        shown = "unknown" if share is None else f"{share:.1%}"
        rows.append([direction, system.name, shown])
    return ReportSection("languages", "Languages", rows, values, _MEANING)


def wrong_language_share(
    lines: Sequence[str],
    target: str,
    codes: Iterable[str],
    profiles: LanguageProfiles = NO_PROFILES,
) -> float | None:
    """Return the share of lines in another language, blank lines left out.

    A line is in another language if most of its letters belong to another script, or if another
    language of the model is more than five times as likely (`nmt.text.identification`).

    Args:
        lines: Translations.
        target: Code of the expected language.
        codes: Codes of the languages of the model.
        profiles: Trigrams of these languages, if the model has them.

    Returns:
        None if the languages cannot be distinguished, or if all lines are blank.
    """
    codes = list(dict.fromkeys(codes))
    script = script_of(target)
    own, *_ = matching(target, codes) or [target]
    others = [code for code in codes if code != own]
    # Other scripts are enough to distinguish the remaining languages.
    similar = [code for code in others if not script or script_of(code) in (None, script)]
    compared = [own, *similar]
    texts = [line for line in lines if line.strip()]
    if not texts or not (others or script):
        return None
    if similar and not (are_identifiable(compared) or profiles.cover(compared)):
        return None

    def is_wrong(text: str) -> bool:
        if foreign_share(text, target) > _FOREIGN:
            return True
        if not similar:
            return False
        shares = language_shares(text, compared, profiles)
        return any(shares[code] > _ODDS * shares[own] for code in similar)

    return sum(map(is_wrong, texts)) / len(texts)
