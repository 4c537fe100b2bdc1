"""The keys of the configuration -> a page to read."""

from __future__ import annotations

from collections.abc import Sequence

from nmt.config.keys import Key, all_keys


def describe_keys() -> str:
    """Every key as Markdown: one table for each section, top level first."""
    lines = ["# Configuration", "", "Made by `nmt config keys`; do not edit."]
    seen: dict[tuple[Key, ...], str] = {}
    sections = [key for key in all_keys() if key.is_section]
    for path, about in [((), ""), *((section.path, section.description) for section in sections)]:
        keys = [key for key in all_keys() if key.path[:-1] == path and not key.is_section]
        if not keys:
            continue
        name = ".".join(path) or "Top level"
        lines += ["", f"## {name}", "", *([_markdown(about), ""] if about else [])]
        # Corpora are described once, although three keys hold them.
        table = tuple(Key(key.path[-1:], *_rest(key)) for key in keys)
        if table in seen:
            lines.append(f"The keys are those of `{seen[table]}`.")
        else:
            seen[table] = name
            lines += _table(keys)
    return "\n".join(lines) + "\n"


def _table(keys: Sequence[Key]) -> list[str]:
    rows = ["| key | default | allowed | meaning |", "|---|---|---|---|"]
    for key in keys:
        default = f"`{key.default}`" if key.default else "must be given"
        rows.append(
            f"| `{key.path[-1]}` | {default} | {key.allowed} | {_markdown(key.description)} |"
        )
    return rows


def _rest(key: Key) -> tuple[str, str, str, bool]:
    return key.allowed, key.default, key.description, key.is_section


def _markdown(text: str) -> str:
    return text.replace("``", "`").replace("|", "\\|")
