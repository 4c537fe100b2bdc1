"""What `nmt inspect` shows, as values and as text: the views make figures, and renderers draw them.

A figure holds numbers and labels, unrounded and unescaped: `part_text`, `as_dict` and `page` round,
escape and colour. Layers, heads and positions in labels count from 1. Figures need no torch; give
them lists and floats (``tensor.tolist()``). As text, drawings are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from math import isfinite
from textwrap import fill
from typing import Any, Literal

from nmt.metrics.result import text_table
from nmt.report.page import short_number, visible

# Of a table. Numbers are written with thousands separators or about four digits; None is empty.
Cell = str | int | float | None
# Rows of numbers. None is a cell that does not exist, such as a masked score.
Matrix = Sequence[Sequence[float | None]]
NodeKind = Literal["kept", "dropped", "finished", "best"]
_WIDTH = 100  # Of paragraphs. Tables are as wide as their cells.
_MAX_COLUMNS = 12  # Of a matrix that is written as numbers.
_MARKS = {"best": "*", "finished": "+", "dropped": "x", "kept": " "}


@dataclass(frozen=True)
class Figure:
    """A title, what its kind adds, and a note below."""

    title: str
    note: str = field(default="", kw_only=True)


@dataclass(frozen=True)
class Text(Figure):
    """Lines in a fixed-width font: arithmetic written out, or an equation."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Table(Figure):
    """Named columns and rows of text and numbers. The first column heads its row."""

    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    total: bool = False  # Whether the last row sums up the others.


@dataclass(frozen=True)
class Heatmap(Figure):
    """A matrix as colours: one hue from ``low`` to ``high``, two hues around 0 if ``low`` < 0."""

    values: Matrix
    rows: Sequence[str]
    columns: Sequence[str]
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


@dataclass(frozen=True)
class Links(Figure):
    """Lines between tokens on the left and on the right: attention arcs, or an alignment."""

    left: Sequence[str]
    right: Sequence[str]
    # Label, such as ``head 2``, -> weight (0 to 1) of the line from each left to each right token:
    # (len(left), len(right)). Each label has its colour.
    weights: Mapping[str, Matrix]


@dataclass(frozen=True)
class Node:
    """A token of a beam tree."""

    label: str
    detail: str  # Shown smaller, such as its probability and the score up to here.
    # Index of the node before it in `Tree.nodes`; None for a root. Parents come first.
    parent: int | None
    # ``best`` for all nodes of the returned hypothesis; ``dropped`` for a dead end.
    kind: NodeKind = "kept"


@dataclass(frozen=True)
class Tree(Figure):
    """A beam tree: time runs to the right, one column a decoding step."""

    nodes: Sequence[Node]

    @property
    def paths(self) -> list[tuple[int, ...]]:
        """Indices from the root to each node; sorted, they run through the tree depth first."""
        paths: list[tuple[int, ...]] = []
        for index, node in enumerate(self.nodes):
            paths.append((*(() if node.parent is None else paths[node.parent]), index))
        return paths


@dataclass(frozen=True)
class Box:
    """A block of a stack diagram."""

    label: str
    detail: str = ""  # Such as ``8 heads of 64``.
    kind: Literal["embedding", "attention", "feed-forward", "norm", "add", "output"] = "output"
    # Of an ``add``: how many boxes of the stack the residual connection goes around, below it.
    residual: int = 0


@dataclass(frozen=True)
class Stack:
    """Boxes from bottom (input) to top, some of them repeated."""

    title: str
    boxes: Sequence[Box]
    # First and last box (indices) of a layer, and the number of layers.
    repeated: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class Diagram(Figure):
    """A stack diagram: stacks side by side, and arrows between them."""

    stacks: Sequence[Stack]
    # From (stack, box) to (stack, box), and what it carries, such as ``memory``.
    arrows: Sequence[tuple[tuple[int, int], tuple[int, int], str]] = ()


@dataclass(frozen=True)
class Grid(Figure):
    """Small heatmaps of shares side by side, such as layers (down) x heads (across)."""

    rows: Sequence[str]
    columns: Sequence[str]
    # One row of matrices for each of ``rows``, all of one shape; they are drawn without labels.
    values: Sequence[Sequence[Matrix]]


@dataclass(frozen=True)
class Step:
    """A moment, with what is to be seen at it."""

    title: str
    figures: Sequence[Figure]


@dataclass(frozen=True)
class Steps(Figure):
    """Moments one after the other: buttons and arrow keys on a page, all of them when printed."""

    steps: Sequence[Step]


@dataclass(frozen=True)
class Part:
    """One view of a model: a section of the page."""

    name: str  # Such as ``attention``.
    title: str
    explanation: str  # Two to four sentences that name what one sees, in the words of the papers.
    figures: Sequence[Figure]


def as_dict(value: Any) -> dict[str, Any]:
    """Return the fields of a part or figure, for `json.dumps`; a figure's class is its ``kind``.

    >>> as_dict(Text("Norm", ["1 + 1 = 2"]))
    {'kind': 'text', 'title': 'Norm', 'note': '', 'lines': ['1 + 1 = 2']}
    """
    kind = {} if isinstance(value, Part | Node | Box) else {"kind": type(value).__name__.lower()}
    return kind | vars(value)


def vector_text(vector: Iterable[Any], count: int = 6) -> str:
    """Return the first numbers of a vector.

    >>> vector_text([0.5, 2, 0.25], 2)
    '[0.500 2.000 ...]'
    """
    numbers = [f"{value:.3f}" for value in islice(vector, count + 1)]
    return f"[{' '.join(numbers[:count])}{' ...' if len(numbers) > count else ''}]"


def part_text(part: Part) -> str:
    """Return a part as lines: title, explanation, figures."""
    lines = [part.title, fill(visible(part.explanation), _WIDTH), ""]
    return "\n".join([*lines, *(line for figure in part.figures for line in _titled(figure))])


def _titled(figure: Figure) -> list[str]:
    head = [visible(figure.title)] if figure.title else []
    note = [fill(visible(figure.note), _WIDTH)] if figure.note else []
    return [*head, *(f"  {line}" for line in figure_lines(figure)), *note, ""]


def figure_lines(figure: Figure) -> list[str]:
    """Return a figure as lines without title and note."""
    match figure:
        case Text():
            return [visible(line) for line in figure.lines]
        case Table():
            return _table(figure.head, figure.rows)
        case Heatmap() if len(figure.columns) <= _MAX_COLUMNS:
            named = zip(figure.rows, figure.values, strict=True)
            return _table(["", *figure.columns], [[name, *row] for name, row in named])
        case Tree():
            return _tree(figure)
        case Steps():
            inner = ([step.title, *_titled(each)] for step in figure.steps for each in step.figures)
            return [line for lines in inner for line in lines]
        case _:
            return ["(a drawing: choose the format html or svg)"]


def cell_text(cell: Cell) -> str:
    """Return what a cell says.

    >>> cell_text(1050624), cell_text(0.88079), cell_text(None)
    ('1,050,624', '0.8808', '')
    """
    if cell is None or isinstance(cell, str):
        return visible(cell or "")
    return f"{cell:,}" if isinstance(cell, int) else short_number(cell)


def numeric_columns(rows: Sequence[Sequence[Cell]]) -> list[bool]:
    """Return which columns hold numbers only: they are aligned to the right."""
    return [not any(isinstance(cell, str) for cell in column) for column in zip_longest(*rows)]


def _table(head: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[str]:
    columns = zip_longest(*(map(cell_text, row) for row in (head, *rows)), fillvalue="")
    aligned = [
        [cell.rjust(max(map(len, column))) for cell in column] if is_numeric else column
        for column, is_numeric in zip_longest(columns, numeric_columns(rows))
    ]
    return text_table(list(zip(*aligned, strict=True))).splitlines()


def _tree(figure: Tree) -> list[str]:
    """Return a line for each node, below its parent and further right."""
    lines = []
    for path in sorted(figure.paths):
        node, indent = figure.nodes[path[-1]], "  " * (len(path) - 1)
        lines.append(f"{_MARKS[node.kind]} {indent}{visible(node.label)}  {visible(node.detail)}")
    return [*lines, "* returned, + finished, x dead end"]
