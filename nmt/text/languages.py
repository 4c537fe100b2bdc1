"""Scripts and names of languages; scripts and repetitions in a text."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache

import regex

from nmt.config.language_codes import standard_language
from nmt.installation import read_toml

_MAX_CODES = 1024  # Codes in a cache.
_OTHER_SCRIPT = "Grek"  # Its only country, Greece, is not the country of another language.
_SCRIPTS = read_toml(__file__, "languages.toml")
# Scripts that consist of others, such as Jpan: the parts by the code of the script.
_PARTS: Mapping[str, Sequence[str]] = _SCRIPTS["parts"]
# Scripts that are written without spaces between words.
UNSPACED = frozenset(_SCRIPTS["unspaced"])
_LETTER = regex.compile(r"\p{L}")
_LETTER_OF_A_SCRIPT = regex.compile(r"(?V1)[\p{L}--\p{Common}--\p{Inherited}]")


def script_of(code: str) -> str | None:
    """Return the ISO 15924 code of a language's script, such as ``Latn``; None if unknown.

    A script in the code counts first. Otherwise it is the likely script of the language (CLDR).

    >>> script_of("sr-Latn"), script_of("srp"), script_of("zho-TW"), script_of("tlh")
    ('Latn', 'Cyrl', 'Hant', None)
    >>> script_of("grc"), script_of("grc_Grek"), script_of("non")
    (None, 'Grek', None)
    """
    language = standard_language(code)
    if language is None:
        return None
    if language.script is not None:
        return language.script
    # Without data about a language, `maximize` guesses the values of English. To detect this, it is
    # called again with a script that the language does not have: a guessed country then changes,
    # a country from data does not.
    likely = language.maximize()
    in_other_script = language.update_dict({"script": _OTHER_SCRIPT}).maximize()
    is_guess = likely.territory != in_other_script.territory
    if is_guess or likely.script in _SCRIPTS["historic"]:
        return None
    return likely.script


def name_of(code: str) -> str:
    """Return the English name of a language; the code if the name is unknown.

    >>> name_of("deu_Latn"), name_of("pt-BR"), name_of("xx")
    ('German', 'Portuguese (Brazil)', 'xx')
    """
    language = standard_language(code)
    if language is None or not language.is_valid():
        return code
    return language.simplify_script().display_name()


def is_right_to_left(code: str) -> bool:
    """Whether a language is written from right to left."""
    return script_of(code) in _SCRIPTS["right_to_left"]


def writes_spaces(code: str) -> bool:
    """Whether a language separates words by spaces; true for an unknown language.

    >>> writes_spaces("ko"), writes_spaces("vi"), writes_spaces("jpn"), writes_spaces("shn")
    (True, True, False, False)
    """
    return script_of(code) not in UNSPACED


@lru_cache(_MAX_CODES)
def letters_of(code: str) -> regex.Pattern[str] | None:
    """Return a pattern for the letters of a language; None if its script is not known."""
    script = script_of(code)
    if script is None:
        return None
    try:
        return regex.compile(f"{script_class(script)}+")
    except regex.error:  # the package does not know the script
        return None


def script_class(*scripts: str) -> str:
    r"""Return the class of a regular expression that matches the characters of scripts.

    >>> print(script_class("Jpan", "Thai"))
    [\p{scx=Hira}\p{scx=Kana}\p{scx=Hani}\p{scx=Thai}]
    """
    properties = ""
    for script in scripts:
        for part in _PARTS.get(script, [script]):
            properties += rf"\p{{scx={part}}}"
    return f"[{properties}]"


def foreign_share(text: str, language: str) -> float:
    """Return the share of letters that belong to another script than that of a language.

    Letters that several scripts share are never foreign. The share is 0 if there are no letters, or
    if the script is unknown.
    """
    letters = letters_of(language)
    if letters is None or (text.isascii() and letters.match("a")):
        return 0.0
    without_own_letters = letters.sub("", text)
    num_foreign = len(_LETTER_OF_A_SCRIPT.findall(without_own_letters))
    if not num_foreign:
        return 0.0
    return num_foreign / len(_LETTER.findall(text))


def longest_loop(tokens: Sequence[Hashable]) -> int:
    """Return the length, in tokens, of the longest run that repeats the tokens before it.

    The first copy is not counted, and the run must contain at least one whole copy.

    >>> longest_loop("a dog runs".split()), longest_loop("a dog a dog a dog runs".split())
    (0, 4)
    """
    if len(set(tokens)) == len(tokens):
        return 0
    longest = 0
    # In a loop with a period of n tokens, each token equals the one n tokens before it.
    for period in range(1, len(tokens) // 2 + 1):
        run_length = 0
        for token, earlier_token in zip(tokens[period:], tokens, strict=False):
            run_length = run_length + 1 if token == earlier_token else 0
            if run_length >= period:
                longest = max(longest, run_length)
    return longest
