"""Codes of languages, and what was meant by codes that are none."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from nmt.errors import ConfigError

_COUNTRIES: Mapping[str, tuple[str, str]] = MappingProxyType({
    "cn": ("Chinese", "zh"), "cz": ("Czech", "cs"), "dk": ("Danish", "da"), "gr": ("Greek", "el"),
    "jp": ("Japanese", "ja"), "ua": ("Ukrainian", "uk"),
    "vn": ("Vietnamese", "vi"),
})  # fmt: skip
"""Codes of countries that are often taken for those of their languages, and are no language's."""
_FLORES = re.compile("[a-z]{3}_[A-Z][a-z]{3}")


def language_problem(code: str) -> str | None:
    """Say what is wrong with a code, or return None.

    Codes that no standard has are taken: there are more languages than codes. An underscore is
    taken in codes such as ``eng_Latn`` only, which are FLORES's names.

    >>> language_problem("jp")
    'jp is a country; the code of Japanese is ja'
    >>> language_problem("ar_MA")
    'ar_MA has an underscore; write ar'
    >>> language_problem("ary")
    """
    primary = re.split("[-_]", code)[0]
    if primary.lower() in _COUNTRIES:
        language, meant = _COUNTRIES[primary.lower()]
        return f"{primary} is a country; the code of {language} is {meant}"
    if "_" in code and not _FLORES.fullmatch(code):
        return f"{code} has an underscore; write {primary}"
    return None


def check_languages(codes: Mapping[str, str]) -> None:
    """Check what a new experiment calls its languages. Models that are trained keep their names.

    Args:
        codes: Each by where it was given, for example ``source_language``.

    Raises:
        ConfigError: Names every code that must have been meant otherwise.
    """
    problems = {where: language_problem(code) for where, code in codes.items()}
    found = [f"{where}: {problem}" for where, problem in problems.items() if problem]
    if found:
        raise ConfigError("\n  ".join(found) + ".", fix="Correct it.")
