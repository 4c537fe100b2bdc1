"""``nmt inspect``: pictures of a model's inside."""

from __future__ import annotations

import logging
import os
import shlex
import sys
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, ClassVar, Literal

import typer

from nmt.cli.options import OUTPUT_FILE, SET, TAG, file_name, flag, given
from nmt.errors import ConfigError
from nmt.extras.inspection.catalog import CATALOG
from nmt.files.atomic import check_output, open_output

logger = logging.getLogger(__name__)

EPILOG = """\b
Examples:
  nmt inspect runs/demo --source "Anna sold a red lamp." -o page.html --open
  nmt inspect runs/demo attention --source "Anna sold a red lamp." --layer 2 --head 1,3
  nmt inspect runs/demo attention --source "Anna sold a red lamp." -o figure.svg
  nmt inspect configs/base.yaml parameters
  nmt inspect --worked-examples

\b
WHAT:
""" + "\n".join(f"  {name:<15}{what.summary}" for name, what in CATALOG.items())


def _numbers(text: str | None) -> tuple[int, ...]:
    """Read whole numbers with commas between them."""
    try:
        return tuple(int(each) for each in text.split(",")) if text else ()
    except ValueError:
        raise ConfigError(
            f"--head {text}: that is no list of whole numbers.", fix="Write --head 1,3"
        ) from None


@dataclass(frozen=True, slots=True)
class ChoiceOptions:
    """What is looked at."""

    title: ClassVar[str] = "Choice"

    source: str | None = flag(metavar="TEXT", help="A sentence to read.", show_default=False)
    target: str | None = flag(
        metavar="TEXT", help="Its translation.", show_default="the model's own"
    )
    tag: str | None = TAG
    layer: int | None = flag(min=1, metavar="N", help="One layer, from 1.", show_default="all")
    head: str | None = flag(metavar="N,N,...", help="Heads, from 1.", show_default="all")
    checkpoint: str | None = flag(
        metavar="A,B,...",
        help="Checkpoints of a run folder: best, last, step-N, average, or untrained. With "
        "several, distributions shows each, and other WHATs the last one.",
        show_default="best",
    )
    unmasked: bool = flag(
        default=False, help="With trace: recompute without the causal mask, too, and compare."
    )
    test: str | None = flag(
        "--test", "-t", metavar="NAME", help="With heads: the test set.", show_default=False
    )
    limit: int | None = flag(
        min=1, metavar="N", help="With heads: the first N pairs only.", show_default="200"
    )

    def choice(self) -> dict[str, Any]:
        """Return what was chosen, as arguments of the recipe."""
        names = ("source", "target", "tag", "layer", "test", "limit")
        return given(**{name: getattr(self, name) for name in names}) | {
            "heads": _numbers(self.head),
            "checkpoints": tuple(filter(None, (self.checkpoint or "").split(","))),
            "unmasked": self.unmasked,
        }


def inspect(
    *,
    model: Path | None = typer.Argument(
        None,
        metavar="MODEL|CONFIG",
        parser=file_name,
        help="Run folder, model folder, or a configuration, trained or not.",
        show_default=False,
    ),
    what: str | None = typer.Argument(
        None,
        metavar="WHAT",
        help=f"One of {', '.join(CATALOG)}; all as one page if left out.",
        show_default=False,
    ),
    options: ChoiceOptions,
    output_file: Path | None = OUTPUT_FILE,
    format_: Literal["text", "html", "svg", "json"] | None = flag(
        "--format",
        help="Text for a terminal, a page, the drawings of one WHAT, or the numbers.",
        show_default="by the name of FILE, else text",
    ),
    open_: bool = flag("--open", default=False, help="Open the page in a browser."),
    worked_examples: bool = flag(
        default=False,
        help="Print the numbers of well-known explanations, computed by nmt; needs no MODEL.",
    ),
    set_: list[str] = SET,
) -> None:
    """Look inside a model: arithmetic, attention, decoding.

    Layers and heads are numbered from 1. A page is one file that needs no network.
    """
    from nmt.extras.inspection import command as recipe

    if model is None and not worked_examples:
        raise ConfigError("MODEL is missing.", fix="Name a run folder or a configuration.")
    if what not in (None, *CATALOG) and str(model) in CATALOG:
        fix = f"Type: nmt inspect {shlex.join([str(what), str(model)])}, then the same flags."
        raise ConfigError(f"The model comes before {model}.", fix=fix)
    is_page = what is None and not worked_examples
    style = recipe.style_of(output_file, format_, is_opened=open_, is_page=is_page)
    check_output(output_file, model)
    if model is None:
        found = recipe.worked_examples()
    else:
        found = recipe.inspect(model, what, overrides=set_, **options.choice())
    is_terminal = output_file is None and sys.stdout.isatty()
    text = found.render(style, colour=is_terminal and "NO_COLOR" not in os.environ)
    if open_ and output_file is None:
        output_file = Path(mkdtemp(prefix="nmt-")) / "inspect.html"
    with open_output(output_file) as writer:
        writer.write(text.encode("utf-8", "replace"))
    if is_page and style == "text" and model and model.is_dir() and options.source is None:
        more = "add --source TEXT for attention, alignment and beam; -o page.html for a page"
        logger.info("%s", more)
    if open_ and output_file:
        webbrowser.open(output_file.resolve().as_uri())
