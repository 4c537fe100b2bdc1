"""XLIFF, the format of translation projects: units with a source and, when translated, a target.

Source: XLIFF 1.2 and 2.0 (OASIS, 2008 and 2014).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lxml import etree

from nmt.data.formats.markup import read_elements, text_of
from nmt.data.formats.pair import BadPair
from nmt.data.formats.text import TextFile
from nmt.data.formats.units import SOURCE, TARGET, Unit, UnitFormat

_UNIT_TAGS = ("trans-unit", "segment")  # of XLIFF 1 and 2
# Languages of the file, in version 1, or of the document, in version 2.
_SOURCE_LANGUAGE = etree.XPath("ancestor::*/@source-language | ancestor::*/@srcLang")
_TARGET_LANGUAGE = etree.XPath("ancestor::*/@target-language | ancestor::*/@trgLang")
_UNFINISHED = ("new", "needs-", "initial")  # Beginnings of states.


def _units(file: TextFile) -> Iterator[Unit | BadPair]:
    """Yield the units. A target that is empty or not finished is None."""
    for item in read_elements(file, _UNIT_TAGS):
        if isinstance(item, BadPair):
            yield item
            continue
        line, element = item
        [source_language] = _SOURCE_LANGUAGE(element)[-1:] or [SOURCE]
        [target_language] = _TARGET_LANGUAGE(element)[-1:] or [TARGET]
        # Only children: alternative translations are deeper.
        source_text = _text_of_child(element, "source")
        target_text = _text_of_child(element, "target")
        texts = {str(source_language): source_text, str(target_language): target_text}
        yield Unit(line, texts)


def _text_of_child(unit: Any, tag: str) -> str | None:
    """Return the text of the source or the target; None if it is blank or not finished."""
    child = unit.find(f"{{*}}{tag}")
    if child is None:
        return None
    if tag == "target":
        state = child.get("state") or unit.get("state") or ""
        if state.startswith(_UNFINISHED):
            return None
    text = text_of(child)
    return text if text.strip() else None


XLIFF = UnitFormat("xliff", _units)
