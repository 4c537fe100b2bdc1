"""Languages, sides and parts that the names of files show: ``train.en-de.de``, ``dev/src.txt``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Literal

from nmt.config.language_codes import Languages, primary_code, standard_language
from nmt.data.formats.columns import code_of_name
from nmt.files.lines import plain_name
from nmt.installation import read_toml
from nmt.text.languages import script_of

Part = Literal["train", "valid", "test"]
SOURCE = "source"  # The side of a file whose name has this word, or a short form of it.
TARGET = "target"
_WORD = re.compile(r"(?<![^\W_])[A-Za-z]+([-_]([A-Z][a-z]{3}|[A-Z]{2})(?![^\W_]))*(?![^\W_])")
_CODE = r"([a-z]{2,3}(?:_[A-Z][a-z]{3})?)"
_DIRECTION = re.compile(rf"(?<![^\W_]){_CODE}[-_]{_CODE}(?![^\W_])")
NAMES = read_toml(__file__, "file_names.toml")
_SIDES = NAMES["sides"]
_SIDE_WORD = re.compile(rf"(?<![^\W_])({'|'.join(_SIDES)})(?![^\W_])", re.IGNORECASE)
_PARTS: dict[str, Part] = NAMES["parts"]
_SHORTEST_NAME = 5  # Letters of the name of a language, such as Greek.
_SGML = (".sgm", ".sgml")


def format_of_name(name: str | Path) -> str | None:
    """Return the format that the suffix of a file tells, whatever its content is; or None.

    >>> format_of_name("de-en.tmx.gz"), format_of_name("train.de")
    ('tmx', None)
    """
    code: str | None = NAMES["formats"].get(_suffix(name))
    return code


def _suffix(name: str | Path) -> str:
    return Path(plain_name(Path(name))).suffix.lower()


def is_set(path: Path) -> bool:
    """Whether the suffix of a file is that of a set in SGML, one side of which it contains."""
    return _suffix(path) in _SGML


@lru_cache(4096)
def language_of(word: str) -> str | None:
    """Return the code of a language that a part of a file name certainly means, or None.

    Words of tools are codes of ISO 639-3, too, so a code of three letters needs a known script.

    >>> [language_of(word) for word in ("de", "deu", "deu_Latn", "pt-BR", "german")]
    ['de', 'deu', 'deu_Latn', 'pt-BR', 'de']
    >>> [language_of(word) for word in ("src", "trg", "raw", "tok", "bpe", "txt", "new", "train")]
    [None, None, None, None, None, None, None, None]
    """
    if word.lower() in NAMES["no_languages"]:
        return None
    code = code_of_name(word)
    if code is None or (len(word) >= _SHORTEST_NAME and word.isalpha()):
        return code
    language = standard_language(word)
    is_code = language is not None and language.is_valid()
    is_usual = len(primary_code(word)) == 2 or script_of(word) is not None
    return code if is_code and is_usual else None


def sides_of(name: str) -> Iterator[tuple[str, str]]:
    """Yield the possible languages (or sides) of a file, each with the rest of its name.

    Two files are the sides of a corpus if the rest of their names is the same. A language that
    occurs twice is taken out of the rest once or twice.

    >>> list(sides_of("train.en-de.de.gz")), list(sides_of("src.txt"))
    ([('de', 'train.en2de.*')], [('source', '*')])
    >>> list(sides_of("set-src.de")), list(sides_of("set-ref.en"))
    ([('source', 'set-*.de'), ('de', 'set-.*')], [('target', 'set-*.en'), ('en', 'set-.*')])
    >>> list(sides_of("de/train.de"))
    [('de', 'de/train.*'), ('de', '*/train.*')]
    """
    path = Path(name)
    name = str(path.parent / plain_name(path)).removesuffix(".txt")
    # A word that contains a digit is not a language.
    name = _DIRECTION.sub(lambda match: "2".join(_languages_in(match) or [match[0]]), name)
    for word in {match[0]: None for match in _WORD.finditer(name)}:
        language = language_of(word)
        side = language or _SIDES.get(word.lower())
        if side is None:
            continue
        whole_word = rf"(?<![^\W_]){word}(?![^\W_])"
        rests = [re.sub(rf"(.*){whole_word}", r"\1*", name), re.sub(whole_word, "*", name)]
        for rest in dict.fromkeys(rests):
            # The side is known, so that src and ref are not part of what both files share.
            yield side, _SIDE_WORD.sub("", rest) if language else rest


def _languages_in(direction: re.Match[str]) -> Languages | None:
    source = language_of(direction[1])
    target = language_of(direction[2])
    return (source, target) if source and target else None


def direction_of(name: str) -> Languages | None:
    """Return the last pair of languages in a name, such as ``en-de``; None if there is none.

    >>> direction_of("Corpus.en-de.de"), direction_of("train.de"), direction_of("to-do.pt_BR")
    (('en', 'de'), None, None)
    """
    pairs = filter(None, map(_languages_in, _DIRECTION.finditer(name)))
    return next(reversed(list(pairs)), None)


def part_of(path: Path) -> Part | None:
    """Return the part that a name, or else the nearest folder, tells.

    >>> part_of(Path("test/newsdev2014.en")), part_of(Path("tst2013/x.en")), part_of(Path("x.en"))
    ('valid', 'test', None)
    """
    for name in reversed(path.parts):
        for word in re.findall("[a-z]+", name.lower()):
            if word in _PARTS:
                return _PARTS[word]
    return None


def without_variant(name: str) -> str:
    """Return a name without words that say how the text was processed.

    >>> without_variant("train.tok.clean.*"), without_variant("train.*")
    ('train.*', 'train.*')
    """
    words = re.split(r"(?<=[.\-_])", name)
    return "".join(word for word in words if word.rstrip(".-_").lower() not in NAMES["variants"])
