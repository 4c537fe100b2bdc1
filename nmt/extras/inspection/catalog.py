"""The parts of `nmt inspect` (WHAT on the command line) by name. Loads none of them.

To add a part, write a module with a function named after it, ``(Subject) -> Part``, and enter it
here. What it needs is checked before anything is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from nmt.extras.inspection.figure import Part
    from nmt.extras.inspection.subject import Subject

Need = Literal["configuration", "vocabulary", "model", "sentence"]
"""What a part reads: the configuration alone; a tokenizer, too, and a text; weights; weights and a
source sentence."""


@dataclass(frozen=True, slots=True)
class What:
    """An entry of the catalog."""

    module: str
    """Module of this package whose function of the same name as the view makes the part."""
    needs: Need
    summary: str
    """One line for ``--help`` and the contents of the page."""
    in_page: bool = True
    """Whether the whole page shows it; others it offers as commands."""


CATALOG: dict[str, What] = {
    "parameters": What("structure", "configuration", "formula and count of every part"),
    "diagram": What("structure", "configuration", "the stacks: sublayers, norms, residuals"),
    "shapes": What("structure", "sentence", "tensors of one pass: shape, mean, spread"),
    "vocabulary": What("vocabulary", "vocabulary", "pieces and ids, vectors, neighbours"),
    "positions": What("positions", "configuration", "the position encoding, and its distances"),
    "shift": What("shift", "vocabulary", "decoder input, output and masks of a small batch"),
    "attention": What("attention", "sentence", "who looks where: layers, heads, arcs"),
    "score": What("score", "sentence", "the arithmetic of one query, number by number"),
    "flow": What("flow", "sentence", "the residual stream, entropy of heads, gradient norms"),
    "alignment": What("alignment", "sentence", "links between source and target"),
    "trace": What("trace", "sentence", "every decoding step and the beam tree"),
    "distributions": What(
        "distributions", "sentence", "target and model distribution, per checkpoint", in_page=False
    ),
    "heads": What("heads", "model", "what each head does on a test set", in_page=False),
}


def make_part(name: str, subject: Subject) -> Part:
    """Return one part of a subject.

    Raises:
        ConfigError: The subject lacks what the part needs, or is too large for it.
        CheckpointError: The subject has no weights that can be read.
    """
    subject.require(CATALOG[name].needs, name)
    module = import_module(f"nmt.extras.inspection.{CATALOG[name].module}")
    make: Callable[[Subject], Part] = getattr(module, name)
    return make(subject)
