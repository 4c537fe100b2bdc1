"""What `nmt inspect` shows, as values: the parts make them, and four renderers draw them.

A figure holds numbers and labels, unrounded and unescaped: ``text``, ``page``, ``svg``
and ``as_dict`` round, escape and colour. Layers, heads and positions in labels count from 1.
Figures need no torch; give them lists and floats (``tensor.tolist()``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import isfinite
from typing import Any, Literal, TypeAlias

# Of a table. Numbers are written with thousands separators or about four digits; None is empty.
Cell: TypeAlias = str | int | float | None
# Rows of numbers. None is a cell that does not exist, such as a masked score.
Matrix: TypeAlias = Sequence[Sequence[float | None]]
NodeKind: TypeAlias = Literal["kept", "dropped", "finished", "best"]


@dataclass(frozen=True, slots=True)
class Text:
    """Lines in a fixed-width font: arithmetic written out, or an equation."""

    title: str
    lines: Sequence[str]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Named columns and rows of text and numbers. The first column heads its row."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    total: bool = False  # Whether the last row sums up the others.


@dataclass(frozen=True, slots=True)
class Heatmap:
    """A matrix as colours: one hue from ``low`` to ``high``, two hues around 0 if ``low`` < 0."""

    title: str
    values: Matrix
    rows: Sequence[str]
    columns: Sequence[str]
    note: str = ""
    # Value of the palest colour; the smallest value (or minus the largest magnitude) if None.
    low: float | None = None
    high: float | None = None
    across: str = ""  # What the columns are, such as ``token read``.
    down: str = ""  # What the rows are.

    @property
    def bounds(self) -> tuple[float, float]:
        """Values of the palest and of the strongest colour; around 0 if the first is negative."""
        values = [x for row in self.values for x in row if x is not None and isfinite(x)] or [0.0]
        low = min(values) if self.low is None else self.low
        high = max(values) if self.high is None else self.high
        if low < 0:
            high = max(high, -low)
            low = -high
        return low, high if high > low else low + 1


@dataclass(frozen=True, slots=True)
class Links:
    """Lines between tokens on the left and on the right: attention arcs, or an alignment."""

    title: str
    left: Sequence[str]
    right: Sequence[str]
    # Label, such as ``head 2``, -> weight (0 to 1) of the line from each left to each right token:
    # (len(left), len(right)). Each label has its colour.
    weights: Mapping[str, Matrix]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Bars:
    """Groups of bars: for each label one bar of each series, such as a target and a model."""

    title: str
    labels: Sequence[str]
    series: Mapping[str, Sequence[float]]
    unit: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """A token of a beam tree."""

    label: str
    detail: str  # Shown smaller, such as its probability and the score up to here.
    # Index of the node before it in `Tree.nodes`; None for a root. Parents come first.
    parent: int | None
    # ``best`` for all nodes of the returned hypothesis; ``dropped`` for a dead end.
    kind: NodeKind = "kept"


@dataclass(frozen=True, slots=True)
class Tree:
    """A beam tree: time runs to the right, one column a decoding step."""

    title: str
    nodes: Sequence[Node]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Box:
    """A block of a stack diagram."""

    label: str
    detail: str = ""  # Such as ``8 heads of 64``.
    kind: Literal["embedding", "attention", "feed-forward", "norm", "add", "output"] = "output"
    # Of an ``add``: how many boxes of the stack the residual connection goes around, below it.
    residual: int = 0


@dataclass(frozen=True, slots=True)
class Stack:
    """Boxes from bottom (input) to top, some of them repeated."""

    title: str
    boxes: Sequence[Box]
    # First and last box (indices) of a layer, and the number of layers.
    repeated: tuple[int, int, int] | None = None


@dataclass(frozen=True, slots=True)
class Diagram:
    """A stack diagram: stacks side by side, and arrows between them."""

    title: str
    stacks: Sequence[Stack]
    # From (stack, box) to (stack, box), and what it carries, such as ``memory``.
    arrows: Sequence[tuple[tuple[int, int], tuple[int, int], str]] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Grid:
    """Small heatmaps side by side, such as layers (down) x heads (across)."""

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    # One row of heatmaps for each of ``rows``; they are drawn without token labels.
    figures: Sequence[Sequence[Heatmap]]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """A moment, with what is to be seen at it."""

    title: str
    figures: Sequence[Figure]


@dataclass(frozen=True, slots=True)
class Steps:
    """Moments one after the other: buttons and arrow keys on a page, all of them when printed."""

    title: str
    steps: Sequence[Step]
    note: str = ""


Figure: TypeAlias = Text | Table | Heatmap | Links | Bars | Tree | Diagram | Grid | Steps


@dataclass(frozen=True, slots=True)
class Part:
    """The answer to one WHAT: a section of the page."""

    name: str  # The WHAT, such as ``attention``.
    title: str  # Heading, such as ``Attention``.
    explanation: str  # Two to four sentences that name what one sees, in the words of the papers.
    figures: Sequence[Figure]


def as_dict(value: Any) -> Any:
    """Return a part or figure as plain data for JSON; a figure's class is its ``kind``.

    >>> as_dict(Text("Norm", ["1 + 1 = 2"]))
    {'kind': 'text', 'title': 'Norm', 'lines': ['1 + 1 = 2'], 'note': ''}
    """
    if isinstance(value, Mapping):
        return {key: as_dict(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [as_dict(each) for each in value]
    if hasattr(value, "__dataclass_fields__"):
        kind = (
            {} if isinstance(value, Part | Node | Box) else {"kind": type(value).__name__.lower()}
        )
        return kind | {each.name: as_dict(getattr(value, each.name)) for each in fields(value)}
    return value
