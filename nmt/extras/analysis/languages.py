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
# A line with a larger share of letters of another script is in another language.
_MAX_FOREIGN_SHARE = 0.5
# A line is in another language if that is more than this many times as likely.
_MIN_ODDS = 5.0


def language_section(scored: EvaluatedSet) -> ReportSection | None:
    """Return the languages of the test set, and the share of translations in another language.

    None if the test set has no target language.
    """
    test = scored.test
    if test.target_language is None:
        return None
    # Profiles of the first model that has profiles; languages of all models.
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
    target_script = script_of(target)
    # The model may have another code for the target language, such as "de" for "deu".
    target_code, *_ = matching(target, codes) or [target]
    other_codes = [code for code in codes if code != target_code]
    # Languages that may have the script of the target. The script is enough to recognise the rest.
    same_script = [
        code
        for code in other_codes
        if not target_script or script_of(code) in (None, target_script)
    ]
    compared = [target_code, *same_script]
    texts = [line for line in lines if line.strip()]
    if not texts:
        return None
    if not other_codes and not target_script:  # there is nothing to compare with
        return None
    if same_script and not (are_identifiable(compared) or profiles.cover(compared)):
        return None

    def is_wrong(text: str) -> bool:
        if foreign_share(text, target) > _MAX_FOREIGN_SHARE:
            return True
        if not same_script:
            return False
        shares = language_shares(text, compared, profiles)
        return any(shares[code] > _MIN_ODDS * shares[target_code] for code in same_script)

    return sum(map(is_wrong, texts)) / len(texts)
