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
        language = element.get("srclang", source_language)
        variants = element.findall("{*}tuv")
        variants.sort(key=lambda variant: not is_same_language(language, _language_of(variant)))
        texts: dict[str, str | None] = {}  # the first one of each language
        for variant in variants:
            segment = variant.find("{*}seg")
            if _language_of(variant) and segment is not None:
                texts.setdefault(_language_of(variant), text_of(segment))
        yield Unit(line, texts)


def _language_of(variant: Any) -> str:
    return variant.get(XML_LANGUAGE) or variant.get("lang", "")  # `lang` until TMX 1.3


TMX = UnitFormat("tmx", _units)
