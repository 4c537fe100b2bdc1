"""The views of `nmt inspect` by name. Loads none of them.

To add a view, write a function ``(Subject) -> Iterator[Figure]`` whose docstring is its title and
explanation, and enter it here. What the view needs is checked before anything is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# What a view reads: the configuration alone; a tokenizer, too, and a text; weights; weights and a
# source sentence.
Need = Literal["configuration", "vocabulary", "model", "sentence"]
_PAIR = ("source", "target", "tag", "checkpoint")


@dataclass(frozen=True, slots=True)
class View:
    """An entry of `VIEWS`."""

    module: str  # Module of this package whose function of the view's name makes the figures.
    needs: Need
    summary: str  # One line for ``--help`` and the contents of the page.
    options: tuple[str, ...] = _PAIR  # Fields of the options that change what is shown.
    in_page: bool = True  # Whether the whole page shows it; others it offers as commands.


VIEWS: dict[str, View] = {
    "parameters": View("structure", "configuration", "formula and count of every part", ()),
    "diagram": View("structure", "configuration", "the stacks: sublayers, norms, residuals", ()),
    "shapes": View(
        "structure", "sentence", "tensors of one pass: shape, mean, spread", (*_PAIR, "layer")
    ),
    "vocabulary": View("words", "vocabulary", "pieces and ids, vectors, neighbours"),
    "positions": View(
        "positions", "configuration", "the position encoding, and its distances", ("checkpoint",)
    ),
    "shift": View("words", "vocabulary", "decoder input, output and masks of a small batch"),
    "attention": View(
        "attention", "sentence", "who looks where: layers, heads, arcs", (*_PAIR, "layer", "head")
    ),
    "score": View(
        "score", "sentence", "the arithmetic of one query, number by number",
        (*_PAIR, "layer", "head"),
    ),
    "flow": View("flow", "sentence", "the residual stream, entropy of heads, gradient norms"),
    "alignment": View("attention", "sentence", "links between source and target"),
    "trace": View(
        "trace", "sentence", "every decoding step and the beam tree",
        ("source", "tag", "checkpoint", "unmasked"),
    ),
    "distributions": View(
        "distributions", "sentence", "target and model distribution, per checkpoint", in_page=False
    ),
    "heads": View(
        "attention", "model", "what each head does on a test set",
        ("tag", "checkpoint", "test", "limit"), in_page=False,
    ),
}  # fmt: skip
