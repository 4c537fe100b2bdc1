"""Which columns of a table, or keys of JSON, are source and target.

Names are compared with the languages (`de`, `deu_Latn`, `German`), and with the words that tools
use for both sides. Without names, the columns that contain sentences are counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain

import langcodes

from nmt.config.language_codes import matching, standard_language
from nmt.data.formats.layout import Column, UncertainError, Wanted
from nmt.text.languages import name_of

_SIDES = (("source", "target"), ("src", "tgt"), ("src", "trg"), ("source_text", "target_text"))
_SIDE_NAMES = frozenset(chain.from_iterable(_SIDES))
_REGION = re.compile("_(?=[A-Za-z]{2}$)")  # In the name of a locale, such as de_DE.
_FEWEST_ROWS = 20  # From which the content of two columns is checked.
_BEGINNING = 12  # Number of characters that are compared.
_LETTERS_OF_TEXT = 0.4  # Smallest share of letters in a text.
_SHOWN = 40  # Characters of a cell in a message.


def named_columns(
    names: Sequence[str], languages: tuple[str, str] | None
) -> tuple[str, str] | None:
    """Return the names of the columns of source and target; None if the names do not tell.

    Without languages, two columns whose names are languages are returned in their order.

    >>> named_columns(["id", "German", "English"], ("en", "de"))
    ('English', 'German')
    >>> named_columns(["EN", "DE"], None), named_columns(["a", "b"], None)
    (('EN', 'DE'), None)
    """
    codes = {name: code_of_name(name) for name in names}
    if languages is not None:
        chosen = []
        for language in languages:
            matches = matching(language, filter(None, codes.values()))
            chosen += [name for name, code in codes.items() if code in matches]
        if len(chosen) == 2 and chosen[0] != chosen[1]:
            return chosen[0], chosen[1]
    lowered = {name.strip().lower(): name for name in names}
    for source, target in _SIDES:
        if source in lowered and target in lowered:
            return lowered[source], lowered[target]
    in_languages = [name for name, code in codes.items() if code is not None]
    if languages is None and len(in_languages) == 2:
        return in_languages[0], in_languages[1]
    return None


@lru_cache(4096)
def code_of_name(name: str) -> str | None:
    """Return the code of a language from its code or its English name; None for another word.

    Names of sides are codes of rare languages, too: ``src`` of Logudorese Sardinian.

    >>> [code_of_name(name) for name in ("German", "deu_Latn", "EN", "pt_BR", "src")]
    ['de', 'deu_Latn', 'en', 'pt-BR', None]
    """
    name = name.strip()
    if name.lower() in _SIDE_NAMES:
        return None
    language = standard_language(name)
    if language is not None and language.is_valid() and name_of(name) != name:
        code = name.lower() if name.isupper() else name
        return _REGION.sub("-", code)
    try:
        return str(langcodes.find(name))
    except LookupError:
        return None


def choose_columns(
    rows: Sequence[Sequence[str]], wanted: Wanted, name: str
) -> tuple[Column, Column]:
    """Return the two columns with sentences, of a table whose header does not tell.

    Args:
        rows: The first rows, without a header.
        wanted: What the user has named.
        name: Name of the file in messages.

    Raises:
        UncertainError: There are not exactly two columns with sentences. The message shows the
            first row.
    """
    widths = Counter(map(len, rows))
    usual_width = widths.most_common(1)[0][0]
    usual_rows = [row for row in rows if len(row) == usual_width]
    columns = list(zip(*usual_rows, strict=True))
    with_text = [number for number, cells in enumerate(columns) if are_texts(cells)]
    if usual_width == 2 and (len(with_text) == 2 or len(rows) < _FEWEST_ROWS):
        return 0, 1
    varied = [number for number in with_text if not _are_alike(columns[number])]
    if len(varied) == 2:
        return varied[0], varied[1]
    cells = [f"{number}: {cell[:_SHOWN]}" for number, cell in enumerate(usual_rows[0])]
    problem = f"{name}: it is not certain which columns are source and target."
    problem += f" The first row is {', '.join(cells)}."
    fix = "Choose both, counted from 0, as in `columns` 0,1."
    raise UncertainError(problem, fix=fix, choices=wanted.choices(with_text))


def are_texts(cells: Sequence[str]) -> bool:
    """Whether most cells of a column are words, and not numbers, dates or blanks."""
    num_texts = 0
    for cell in cells:
        num_letters = sum(map(str.isalpha, cell))
        num_texts += num_letters > _LETTERS_OF_TEXT * len(cell)
    return num_texts > len(cells) / 2


def _are_alike(cells: Sequence[str]) -> bool:
    """Whether most cells of a column begin in the same way, as licences and languages do."""
    beginnings = Counter(cell[:_BEGINNING] for cell in cells)
    return beginnings.most_common(1)[0][1] > len(cells) / 2
