"""What ``nmt inspect`` can be asked for. Loads no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from nmt.commands.options import Overrides, Tag, file_or_standard
from nmt.config.flag import Flag
from nmt.extras.inspection.view import VIEWS

Style = Literal["text", "html", "svg", "json"]


@dataclass(frozen=True, kw_only=True)
class InspectOptions:
    """All options of ``nmt inspect``."""

    notes: ClassVar[str] = "\b\nVIEW:\n" + "\n".join(
        f"  {name:<15}{view.summary}" for name, view in VIEWS.items()
    )

    model: Annotated[
        Path | None, Flag("Run folder, model folder or YAML configuration.", argument=True)
    ] = None
    view: Annotated[
        str | None, Flag("One view; without it, all views are on one page.", argument=True)
    ] = None
    output: Annotated[
        Path | None,
        Flag("File to write: .html, .svg, .json or .txt.", short="o", parser=file_or_standard,
             shown_default="standard output"),
    ] = None  # fmt: skip
    format_: Annotated[
        Style | None, Flag("Output format.", shown_default="from the file's ending, else text")
    ] = None
    open_: Annotated[bool, Flag("Open the page in a browser.")] = False
    worked_examples: Annotated[
        bool, Flag("Print the numbers of well-known explanations, computed by nmt; needs no model.")
    ] = False
    source: Annotated[str | None, Flag("Sentence to read.")] = None
    target: Annotated[str | None, Flag("Its translation.", shown_default="the model's own")] = None
    tag: Tag = None
    layer: Annotated[int | None, Flag("One layer, from 1.", min=1, shown_default="all")] = None
    head: Annotated[
        tuple[int, ...], Flag("Heads, from 1.", separator=",", shown_default="all")
    ] = ()
    checkpoint: Annotated[
        tuple[str, ...],
        Flag("Checkpoints of a run folder: best, last, step-N, average, or untrained. The view "
             "distributions draws each, other views the last one.",
             separator=",", shown_default="best"),
    ] = ()  # fmt: skip
    unmasked: Annotated[
        bool, Flag("In trace: also recompute without the causal mask, and compare.")
    ] = False
    test: Annotated[
        str | None, Flag("Test set of the view heads.", short="t", shown_default="the first")
    ] = None
    limit: Annotated[int, Flag("Number of sentence pairs that the view heads reads.", min=1)] = 200
    set_: Overrides = ()
