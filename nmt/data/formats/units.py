"""Formats whose units have a text in each of several languages: translation memories and the like.

A format reads units; the layout and the pairs follow from the languages of the units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, permutations, product
from pathlib import Path

from nmt.config.language_codes import Languages, is_same_language, matching, primary_code
from nmt.data.formats.layout import Format, Layout, Sample, UncertainError, Wanted
from nmt.data.formats.markup import root_name
from nmt.data.formats.pair import (
    BadPair,
    Pair,
    PairReader,
    ReadOptions,
    SentencePair,
    pair_of,
)
from nmt.data.formats.text import TextFile

SOURCE = "source"  # Stands for the code of a language that the file does not name.
TARGET = "target"
_UNNAMED = (SOURCE, TARGET)
Texts = Mapping[str, str | None]  # by language code
_SAMPLED_UNITS = 1000


@dataclass(frozen=True)
class Unit:
    """A text in several languages.

    Args:
        line: Where it starts in the file, from 1.
        texts: By language code, or `SOURCE` and `TARGET`. None for a text that is missing, or that
            the translator has not finished.
        references: Language code and text of each reference, in a test set.
    """

    line: int
    texts: Texts
    references: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class UnitFormat(Format):
    """A format whose files contain units.

    Args:
        read: Yields the units of a file, and what cannot be read.
        is_format: Whether the content of a file certainly has this format. None for XML whose root
            has the name of the format.
    """

    read: Callable[[TextFile], Iterator[Unit | BadPair]]
    is_format: Callable[[Sample], bool] | None = None

    def recognises(self, sample: Sample) -> bool:
        """Whether the content has this format."""
        if self.is_format is None:
            return root_name(sample.text) == self.name
        return self.is_format(sample)

    def layout(self, sample: Sample, wanted: Wanted) -> Layout:
        """Find the languages of both sides in the first units."""
        file = TextFile(sample.path, sample.encoding, ReadOptions("", "", "skip"))
        items = islice(self.read(file), _SAMPLED_UNITS)
        units = [item for item in items if isinstance(item, Unit)]
        columns = choose_languages(units, wanted, str(sample.path))
        source, target = (None if code in _UNNAMED else code for code in columns)
        return Layout(self.name, sample.encoding, columns, (source, target))

    def open(self, path: Path, layout: Layout, options: ReadOptions) -> PairReader:
        """Open a file; its units are parsed while it is read."""
        file = TextFile(path, layout.encoding, options)
        pairs = pairs_of_units(self.read(file), layout, options)
        return PairReader([file.name], [pairs])


def choose_languages(units: Sequence[Unit], wanted: Wanted, name: str) -> Languages:
    """Return the codes of source and target: the wanted ones, or the only two.

    Args:
        units: The first units of a file.
        wanted: Languages, or codes of the file as columns, that the user has named.
        name: Name of the file in messages.

    Raises:
        UncertainError: The file lacks a language, or it is not certain which languages are meant.
    """
    codes: list[str] = []
    for unit in units:
        codes += [code for code in unit.texts if code not in codes]
    chosen = codes
    if wanted.columns is not None:
        chosen = [str(column) for column in wanted.columns if column in codes]
    elif wanted.languages is not None:
        for_source = _code_in_file(wanted.languages[0], _UNNAMED, units, codes)
        for_target = _code_in_file(wanted.languages[1], _UNNAMED[::-1], units, codes)
        chosen = [for_source, for_target]
    if len(chosen) == len(set(chosen)) == 2 and all(chosen):
        return chosen[0], chosen[1]
    problem = f"{name}: it is not certain which languages are source and target."
    problem += f" The languages of its first units are {', '.join(codes) or 'unknown'}."
    fix = "Set both languages, or choose two of these codes, as in `columns` CODE,CODE."
    languages = dict.fromkeys(primary_code(code) for code in codes if code not in _UNNAMED)
    pairs = permutations(languages, 2)
    choices = [replace(wanted, languages=pair, columns=None) for pair in pairs]
    if wanted.languages is not None:  # the file has several codes for one of them
        source_codes, target_codes = (matching(language, codes) for language in wanted.languages)
        columns = product(source_codes, target_codes)
        choices = [replace(wanted, columns=pair) for pair in columns]
    raise UncertainError(problem, fix=fix, choices=choices)


def _code_in_file(
    language: str, unnamed: Sequence[str], units: Sequence[Unit], codes: Sequence[str]
) -> str:
    """Return the code that finds the texts of a language; empty if it is not certain.

    ``en`` finds ``en-US`` and ``en-GB``, unless the same unit has both.

    Args:
        language: The code that the user has named.
        unnamed: What may stand for it in a file that does not name it, the likeliest first.
        units: The first units.
        codes: The codes of all languages in these units.
    """
    matches = matching(language, codes)
    if not matches:
        matches = [code for code in unnamed if code in codes][:1]
    for unit in units:
        if len(unit.texts.keys() & matches) > 1:
            return ""
    if matches and all(is_same_language(language, code) for code in matches):
        return language
    return matches[0] if len(matches) == 1 else ""


def text_in(language: str, texts: Texts) -> str | None:
    """Return the text in a language; None if there is none.

    >>> text_in("en", {"de": "Haus", "en-GB": "House"})
    'House'
    """
    if language in texts:
        return texts[language]
    for code, text in texts.items():
        if is_same_language(language, code):
            return text
    return None


def pairs_of_units(
    units: Iterable[Unit | BadPair], layout: Layout, options: ReadOptions
) -> Iterator[Pair]:
    """Yield the pair of each unit.

    A unit that lacks a language, but translates between others, is not a pair of this corpus.
    """
    source_language, target_language = map(str, layout.columns or _UNNAMED)
    for unit in units:
        if isinstance(unit, BadPair):
            yield unit
            continue
        source = text_in(source_language, unit.texts)
        target = text_in(target_language, unit.texts)
        texts = list(filter(None, unit.texts.values()))
        if source is not None and target is not None:
            pair = pair_of(source, target, unit.line, options)
            references = [
                text for code, text in unit.references if text_in(target_language, {code: text})
            ]
            if len(references) > 1 and isinstance(pair, SentencePair):
                pair = pair._replace(other_targets=tuple(references[1:]))
            yield pair
        elif len(texts) < 2:
            yield BadPair("untranslated", unit.line, " ".join(texts))
