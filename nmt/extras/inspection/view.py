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
    "vocabulary": View("words", "vocabulary", "pieces and ids, vectors, neighbours"),
    "positions": View("positions", "configuration", "the position encoding, distances", _MODEL),
    "shift": View("words", "vocabulary", "decoder input, output and masks of a small batch"),
    "attention": View("attention", "sentence", "who looks where: layers, heads, arcs", _HEAD),
    "score": View("score", "sentence", "the arithmetic of one query, number by number", _HEAD),
    "flow": View("flow", "sentence", "the residual stream, entropy of heads, gradient norms"),
    "alignment": View("attention", "sentence", "links between source and target"),
    "trace": View("trace", "sentence", "every decoding step and the beam tree", _SEARCH),
    "distributions": View("distributions", "sentence", "target and model, per checkpoint"),
    "heads": View("attention", "model", "what each head does on a test set", _TEST_SET),
}
# The whole page offers these as commands: they take longer, or more checkpoints.
NOT_IN_PAGE = ("distributions", "heads")
