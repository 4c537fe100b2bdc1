"""XLIFF, the format of translation projects: units with a source and, when translated, a target.

Source: XLIFF 1.2 and 2.0 (OASIS, 2008 and 2014).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from nmt.data.formats.layout import Sample
from nmt.data.formats.markup import ElementReader, TextSource, root_name, text_of
from nmt.data.formats.pair import BadPair
from nmt.data.formats.units import SOURCE, TARGET, Unit, UnitFormat

_UNIT_TAGS = ("trans-unit", "segment")  # of XLIFF 1 and 2
_UNFINISHED = ("new", "needs-", "initial")  # Beginnings of states.


def _is_xliff(sample: Sample) -> bool:
    return root_name(sample.text) == "xliff"


def _units(source: TextSource) -> Iterator[Unit | BadPair]:
    """Yield the units. A target that is empty or not finished is None."""
    for item in ElementReader(source, _UNIT_TAGS).read():
        if isinstance(item, BadPair):
            yield item
            continue
        line, element = item
        source_language = _attribute_around(element, ("source-language", "srcLang"))
        target_language = _attribute_around(element, ("target-language", "trgLang"))
        # Only children: alternative translations are deeper.
        source_text = _text_of_child(element, "source")
        target_text = _text_of_child(element, "target")
        texts = {source_language or SOURCE: source_text, target_language or TARGET: target_text}
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


def _attribute_around(element: Any, names: Sequence[str]) -> str | None:
    """Return the nearest value of an attribute with one of the names."""
    for ancestor in element.iterancestors():
        for name in names:
            if name in ancestor.attrib:
                return ancestor.get(name)
    return None


XLIFF = UnitFormat(
    "xliff", (".xlf", ".xliff", ".sdlxliff", ".mqxliff", ".mxliff"), _is_xliff, _units
)
