"""Jinja2 templates -> HTML pages: every page of every command is made here.

The templates lie in ``templates/``. Whatever they show is escaped, so text of a corpus or model
cannot become markup, and control characters that would hide or reorder text are shown as escapes.
Pages are well-formed XML, need no network, no script and no other file.
"""

from __future__ import annotations

import unicodedata
from functools import cache
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

if TYPE_CHECKING:
    from jinja2 import Environment

_ESCAPED_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_SHOWN = frozenset("\t\n\r\u200c\u200d")
"""White space, and the two joiners: Persian, Indic scripts and emoji are unreadable without."""
_NONCHARACTERS = frozenset("\ufffe\uffff")
"""XML forbids them."""


def visible(text: str) -> str:
    r"""Return text with control, bidirectional and other invisible characters as escapes.

    A right-to-left override, for example, would otherwise show a sentence in an order that it
    does not have.

    >>> visible("a\u202eb\x07")
    'a\\u202eb\\x07'
    """
    if text.isprintable():
        return text
    return "".join(_escape(character) if _is_hidden(character) else character for character in text)


def _is_hidden(character: str) -> bool:
    if character in _SHOWN:
        return False
    return unicodedata.category(character) in _ESCAPED_CATEGORIES or character in _NONCHARACTERS


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def _finalize(value: Any) -> Any:
    """Make the value of an expression safe to show; what a template made is safe already."""
    return value if isinstance(value, Markup) or not isinstance(value, str) else visible(value)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 - pages are rare

    return Environment(
        loader=PackageLoader("nmt.report"),
        autoescape=True,
        finalize=_finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def render(template: str, **values: Any) -> Markup:
    """Return a page or a part of one.

    Args:
        template: Name of a file in ``templates/``.
        values: What it shows.
    """
    return Markup(_environment().get_template(template).render(values))
