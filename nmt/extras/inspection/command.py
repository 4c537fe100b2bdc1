"""``nmt inspect``: a model or configuration, and a sentence -> pictures of its inside."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nmt.config.keys import chosen
from nmt.errors import ConfigError
from nmt.extras.inspection.catalog import CATALOG, make_part
from nmt.extras.inspection.figure import Part, as_dict
from nmt.extras.inspection.subject import Choice, Subject

Style = Literal["text", "html", "svg", "json"]
_IMAGES = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".pdf")


@dataclass(frozen=True, slots=True)
class Inspection:
    """What was found of a model, and what else there is to see."""

    title: str
    """Name of the model."""
    facts: Mapping[str, str]
    """Name -> value: languages, layers, the sentence."""
    parts: Sequence[Part]
    """As of each WHAT."""
    offers: Mapping[str, str]
    """Commands for what the whole page leaves out -> what they show."""

    def render(self, style: Style = "text", *, colour: bool = False) -> str:
        """Return a page, a drawing, data or text.

        Args:
            style: ``html`` is one self-contained file, ``svg`` the drawings of one part.
            colour: With ``text``: whether the terminal has colours.
        """
        if style == "json":
            parts = {part.name: as_dict(part) for part in self.parts}
            facts = {"title": self.title, "facts": dict(self.facts)}
            return json.dumps(facts | {"parts": parts}, ensure_ascii=False) + "\n"
        if style == "html":
            from nmt.extras.inspection.page import render_page  # noqa: PLC0415

            return render_page(self.title, self.facts, self.parts, self.offers)
        if style == "svg":
            from nmt.extras.inspection.svg import document  # noqa: PLC0415

            return document([figure for part in self.parts for figure in part.figures])
        from nmt.extras.inspection.text import part_text  # noqa: PLC0415

        return "\n".join(part_text(part, colour=colour) for part in self.parts)


def inspect(
    model: Path | str,
    what: str | None = None,
    *,
    overrides: Sequence[str] = (),
    **choice: Any,
) -> Inspection:
    """Look inside a model.

    Args:
        model: Run folder, model folder, or YAML configuration: of one that was never trained there
            are ``parameters``, ``diagram`` and ``positions``.
        what: A part by name; all that need no test set and no other checkpoint if None.
        overrides: ``key=value`` changes of a configuration; of a trained model, of its
            ``decoding`` section.
        choice: ``source``, ``target``, ``layer``, ``heads`` and so on, as of `Choice`.

    Raises:
        ConfigError: There is no such part, layer or head, or the sentence is missing or too long.
        CheckpointError: The model is missing, damaged or exported for CTranslate2.
    """
    if what is not None:
        chosen(dict.fromkeys(CATALOG), what, "WHAT")
    subject = Subject(Path(model), Choice(**choice), overrides)
    subject.check()
    names = [what] if what else [name for name in CATALOG if _is_shown(name, subject)]
    with _one_thread():
        parts = [make_part(name, subject) for name in names]
        facts = _facts(subject)
    offers = {} if what else _offers(subject, names)
    return Inspection(f"Inside {subject.config.name}", facts, parts, offers)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute with one thread: for one sentence, several cost more to wake than they save."""
    import torch  # noqa: PLC0415

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _is_shown(name: str, subject: Subject) -> bool:
    what = CATALOG[name]
    several = name == "distributions" and len(subject.choice.checkpoints) > 1
    return (what.in_page or several) and subject.has(what.needs)


def _offers(subject: Subject, shown: Sequence[str]) -> dict[str, str]:
    """Return commands for the parts that a page leaves out."""
    found = {}
    for name, what in CATALOG.items():
        if name not in shown and (subject.is_folder or what.needs == "vocabulary"):
            words = ["nmt", "inspect", str(subject.place), name]
            if what.needs in ("sentence", "vocabulary"):
                words += ["--source", subject.choice.source or "Hello!"]
            if name == "distributions":
                words += ["--checkpoint", "untrained,best"]
            found[shlex.join(words)] = what.summary
    return found


def _facts(subject: Subject) -> dict[str, str]:
    """Return what a page says at its top."""
    config, choice = subject.config, subject.choice
    found = {
        "Languages": f"{config.source_language} \N{RIGHTWARDS ARROW} {config.target_language}",
        "Layers and heads": f"numbered from 1; encoder layer {config.model.encoder_layers} and "
        f"decoder layer {config.model.decoder_layers} are the top, layer 1 reads the embeddings; "
        f"{config.model.num_heads} heads in each",
    }
    if choice.source:
        found["Source"] = choice.source
        if subject.has("sentence"):
            target = subject.tokenizers.target.decode(subject.target_ids)
            name = "Target" if choice.target is not None else "Translation by the model"
            found[name] = target
    return found


def worked_examples() -> Inspection:
    """Return the numbers that well-known explanations use, computed by our own functions."""
    from nmt.extras.inspection.worked_examples import worked_examples  # noqa: PLC0415

    return Inspection("Worked examples", {}, [worked_examples()], {})


def style_of(
    output: Path | None, style: Style | None, *, is_opened: bool = False, is_page: bool = False
) -> Style:
    """Return the format of a file: as chosen, else by its name, else text, or HTML for a browser.

    Raises:
        ConfigError: A browser is to open no page, a whole page is to be one drawing, or the file
            is an image of another kind.

    >>> style_of(Path("page.html"), None)
    'html'
    """
    by_name: dict[str, Style] = {".html": "html", ".htm": "html", ".svg": "svg", ".json": "json"}
    default: Style = "html" if is_opened else "text"
    if output and output.suffix.lower() in _IMAGES:
        raise ConfigError(
            f"{output}: drawings are SVG, pages HTML.",
            fix=f"Name {output.with_suffix('.svg')}, and convert that.",
        )
    found = style or by_name.get(output.suffix.lower() if output else "", default)
    if is_opened and found not in ("html", "svg"):
        raise ConfigError(
            f"--open shows a page, not {found}.", fix="Leave --format out, or --open."
        )
    if found == "svg" and is_page:
        raise ConfigError(
            "An SVG file holds the drawings of one WHAT.",
            fix="Name one, such as attention, or write a page: -o page.html.",
        )
    return found
