"""TMX, the format of translation memories: units with a text in each of several languages.

Source: Translation Memory eXchange 1.4b (LISA, 2005), and the older versions from 1.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nmt.config.language_codes import is_same_language
from nmt.data.formats.markup import XML_LANGUAGE, read_elements, text_of
from nmt.data.formats.pair import BadPair
from nmt.data.formats.text import TextFile
from nmt.data.formats.units import Unit, UnitFormat


def _units(file: TextFile) -> Iterator[Unit | BadPair]:
    """Yield the units; the text in the source language is the first one."""
    source_language = ""  # of the memory; units may have another one
    for item in read_elements(file, ["tu"]):
        if isinstance(item, BadPair):
            yield item
            continue
        line, element = item
        header = element.getroottree().getroot().find("{*}header")
        if header is not None:  # it is released with the first unit
            source_language = header.get("srclang", "")
        yield Unit(line, _texts(element, element.get("srclang", source_language)))


def _texts(unit: Any, source_language: str) -> dict[str, str | None]:
    """Return the text of each language; the first one if there are several."""
    texts: dict[str, str | None] = {}
    variants = unit.findall("{*}tuv")
    variants.sort(key=lambda variant: not is_same_language(source_language, _language_of(variant)))
    for variant in variants:
        language = _language_of(variant)
        segment = variant.find("{*}seg")
        if language and segment is not None:
            texts.setdefault(language, text_of(segment))
    return texts


def _language_of(variant: Any) -> str:
    return variant.get(XML_LANGUAGE) or variant.get("lang", "")  # `lang` until TMX 1.3


TMX = UnitFormat("tmx", (".tmx",), _units)
