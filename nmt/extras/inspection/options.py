"""The views and the options of ``nmt inspect``. Loads no torch, and none of the views.

To add a view, write a function ``(Subject) -> Iterator[Figure]`` whose docstring is its title and
explanation, and enter it in `VIEWS`. What the view needs is checked before anything is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from nmt.commands.options import Overrides, Tag, file_or_standard
from nmt.config.flag import Flag, Options

Style = Literal["text", "html", "svg", "json"]

# What a view reads: the configuration alone; a tokenizer, too, and a text; weights; weights and a
# source sentence.
Need = Literal["configuration", "vocabulary", "model", "sentence"]
# Fields of the options that change what a view shows.
_MODEL = ("checkpoint",)
_PAIR = ("source", "target", "tag", *_MODEL)
_LAYER = (*_PAIR, "layer")
_HEAD = (*_LAYER, "head")
_SEARCH = ("source", "tag", *_MODEL, "unmasked")
_TEST_SET = ("tag", *_MODEL, "test", "limit")


@dataclass(frozen=True, slots=True)
class View:
    """An entry of `VIEWS`."""

    module: str  # Module of this package whose function of the view's name makes the figures.
    needs: Need
    summary: str  # One line for ``--help`` and the contents of the page.
    options: tuple[str, ...] = _PAIR  # Fields of the options that change what is shown.


VIEWS: dict[str, View] = {
    "parameters": View("structure", "configuration", "formula and count of every part", ()),
    "diagram": View("structure", "configuration", "the stacks: sublayers, norms, residuals", ()),
    "shapes": View("structure", "sentence", "tensors of one pass: shape, mean, spread", _LAYER),
    "vocabulary": View("inputs", "vocabulary", "pieces and ids, vectors, neighbours"),
    "positions": View("inputs", "configuration", "the position encoding, distances", _MODEL),
    "shift": View("inputs", "vocabulary", "decoder input, output and masks of a small batch"),
    "attention": View("attention", "sentence", "who looks where: layers, heads, arcs", _HEAD),
    "score": View("sublayers", "sentence", "the arithmetic of one query, number by number", _HEAD),
    "flow": View("sublayers", "sentence", "the residual stream, entropy of heads, gradient norms"),
    "alignment": View("attention", "sentence", "links between source and target"),
    "trace": View("prediction", "sentence", "every decoding step and the beam tree", _SEARCH),
    "distributions": View("prediction", "sentence", "target and model, per checkpoint"),
    "heads": View("attention", "model", "what each head does on a test set", _TEST_SET),
}
# The whole page offers these as commands: they take longer, or more checkpoints.
NOT_IN_PAGE = ("distributions", "heads")


@dataclass(frozen=True, kw_only=True)
class InspectOptions(Options):
    """All options of ``nmt inspect``.

    Args:
        model: Run folder, model folder or YAML configuration.
        view: One view; without it, all views are on one page.
        output: File to write: .html, .svg, .json or .txt.
        format_: Output format.
        open_: Open the page in a browser.
        worked_examples: Print the numbers of well-known explanations, computed by nmt; needs no
            model.
        source: Sentence to read.
        target: Its translation.
        layer: One layer, from 1.
        head: Heads, from 1.
        checkpoint: Checkpoints of a run folder: best, last, step-N, average, or untrained. The view
            distributions draws each, other views the last one.
        unmasked: In trace: also recompute without the causal mask, and compare.
        test: Test set of the view heads.
        limit: Number of sentence pairs that the view heads reads.
    """

    notes: ClassVar[str] = "\b\nVIEW:\n" + "\n".join(
        f"  {name:<15}{view.summary}" for name, view in VIEWS.items()
    )

    model: Annotated[Path | None, Flag(argument=True)] = None
    view: Annotated[str | None, Flag(argument=True)] = None
    output: Annotated[
        Path | None, Flag(short="o", parser=file_or_standard, shown="standard output")
    ] = None
    format_: Annotated[Style | None, Flag(shown="from the file's ending, else text")] = None
    open_: bool = False
    worked_examples: bool = False
    source: str | None = None
    target: Annotated[str | None, Flag(shown="the model's own")] = None
    tag: Tag = None
    layer: Annotated[int | None, Flag(min=1, shown="all")] = None
    head: Annotated[tuple[int, ...], Flag(separator=",", shown="all")] = ()
    checkpoint: Annotated[tuple[str, ...], Flag(separator=",", shown="best")] = ()
    unmasked: bool = False
    test: Annotated[str | None, Flag(short="t", shown="the first")] = None
    limit: Annotated[int, Flag(min=1)] = 200
    set_: Overrides = ()
