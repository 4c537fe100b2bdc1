"""Figures: views return figures; `part_text`, `as_dict` and the module `page` render figures.

A figure contains unrounded numbers and unescaped labels; the renderers round, escape and colour
them. Layers, heads and positions in labels are numbered from 1. Figures do not use torch: pass
lists and floats (``tensor.tolist()``). The text format leaves drawings out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, zip_longest
from math import isfinite
from textwrap import fill
from typing import Any, Literal
from unicodedata import bidirectional

from nmt.metrics.result import text_table
from nmt.report.page import visible

# Cell of a table. The floats of a column get the same number of decimals; None is empty.
Cell = str | int | float | None
Rows = list[list[Cell]]
# Rows of numbers. None is an empty cell, such as a masked score.
Matrix = Sequence[Sequence[float | None]]
BoxKind = Literal["embedding", "attention", "feed-forward", "norm", "add", "output"]
# From (stack, box) to (stack, box), with a label such as ``memory``.
Arrow = tuple[tuple[int, int], tuple[int, int], str]
NodeKind = Literal["kept", "dropped", "finished", "best"]
TIMES = "\N{MULTIPLICATION SIGN}"
ROOT = "\N{SQUARE ROOT}"
DOT = "\N{DOT OPERATOR}"
_WIDTH = 100  # Width of paragraphs. Tables are as wide as their cells.
_MAX_COLUMNS = 12  # Largest matrix that is written as numbers.
# Kind of a node -> mark in a tree as text.
_MARKS = {"best": "*", "finished": "+", "dropped": "x", "kept": " "}
_SUPERSCRIPTS = str.maketrans(
    "-0123456789", "\u207b\u2070\xb9\xb2\xb3\u2074\u2075\u2076\u2077\u2078\u2079"
)
_MAX_ARCS = 300  # Arcs of one drawing.
_FAINT = 0.05  # Arcs below this weight are left out.


def flat(values: Matrix) -> list[float]:
    """Return the numbers of all cells that are not empty."""
    return [value for value in chain.from_iterable(values) if value is not None]


@dataclass(frozen=True)
class Figure:
    """Base of all figures, with a title above and a note below."""

    title: str
    note: str = field(default="", kw_only=True)


@dataclass(frozen=True)
class TextFigure(Figure):
    """Lines in a fixed-width font, such as a calculation."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Table(Figure):
    """A table of text and numbers. The first column labels the rows."""

    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    total: bool = False  # Whether the last row is the total.


@dataclass(frozen=True)
class Heatmap(Figure):
    """A matrix as colours: one hue from ``low`` to ``high``, two hues around 0 if ``low`` < 0."""

    values: Matrix
    rows: Sequence[str]
    columns: Sequence[str]
    # Values of the palest and the strongest colour; from the smallest and largest value if None.
    low: float | None = None
    high: float | None = None
    across: str = ""  # Meaning of the columns, such as ``token read``.
    down: str = ""  # Meaning of the rows.
    # The palest and the strongest value are the same, such as the angles 0 and 2 pi: the colours
    # are a cycle of hues.
    cyclic: bool = False

    @property
    def bounds(self) -> tuple[float, float]:
        """The values of the palest and the strongest colour; -x and x if there are two hues."""
        values = [value for value in flat(self.values) if isfinite(value)]
        low = self.low
        high = self.high
        if low is None:
            low = min(values, default=0.0)
        if high is None:
            high = max(values, default=0.0)
        if low < 0:
            high = max(high, -low)
            low = -high
        if high <= low:
            high = low + 1
        return low, high


@dataclass(frozen=True)
class Links(Figure):
    """Lines between tokens on the left and on the right: attention arcs, or an alignment."""

    left: Sequence[str]
    right: Sequence[str]
    # Label, such as ``head 2`` -> weights (0 to 1) of the lines between left and right tokens:
    # (len(left), len(right)). Each label has its own colour.
    weights: Mapping[str, Matrix]

    @property
    def least(self) -> float:
        """The smallest weight that is drawn."""
        weights = list[float]()
        for matrix in self.weights.values():
            weights += flat(matrix)
        drawn = sorted(weights, reverse=True)[:_MAX_ARCS]
        return max([_FAINT, *drawn[-1:]])


@dataclass(frozen=True)
class Bars(Figure):
    """Horizontal bars, one for each label and series. All values are at least 0."""

    labels: Sequence[str]
    # Name of a series -> a value for each label. Each series has its own colour.
    values: Mapping[str, Sequence[float]]
    high: float  # Value of the longest possible bar.


@dataclass(frozen=True)
class Block:
    """A matrix of a product. Of a large matrix, ``values`` is the upper left corner."""

    label: str  # Such as ``W^Q``.
    values: Matrix
    shape: Sequence[int]  # Rows and columns of the whole matrix.
    sign: str = ""  # Before the matrix, such as a multiplication sign.
    rows: Sequence[str] = ()  # Labels of the rows.


@dataclass(frozen=True)
class Product(Figure):
    """Matrices side by side with their numbers, such as X W = Q."""

    blocks: Sequence[Block]


@dataclass(frozen=True)
class Words(Figure):
    """The vectors of all words on their way through the sublayers of a stack.

    Words meet in the boxes of attention. Of the other boxes, each word has its own.
    """

    words: Sequence[str]
    # Label of a sublayer -> the first numbers of the vector of each word above it. From bottom to
    # top; the first is ``embedding``.
    stages: Mapping[str, Matrix]


@dataclass(frozen=True)
class Node:
    """A token of a beam tree."""

    label: str
    detail: str  # Smaller text, such as the score so far.
    # Index of the parent in `Tree.nodes`; None for a root. Parents come first.
    parent: int | None
    # ``best`` for all nodes of the returned hypothesis; ``dropped`` for a dead end.
    kind: NodeKind = "kept"


@dataclass(frozen=True)
class Tree(Figure):
    """A beam tree, with one column for each decoding step from left to right."""

    nodes: Sequence[Node]

    @property
    def paths(self) -> list[tuple[int, ...]]:
        """The indices from the root to each node. Sorted paths are in depth-first order."""
        paths = list[tuple[int, ...]]()
        for index, node in enumerate(self.nodes):
            parent_path: tuple[int, ...] = ()
            if node.parent is not None:
                parent_path = paths[node.parent]  # parents come first
            paths.append((*parent_path, index))
        return paths


@dataclass(frozen=True)
class Box:
    """A block of a stack diagram."""

    label: str
    detail: str = ""  # Smaller text, such as ``8 heads of 64``.
    kind: BoxKind = "output"
    # For an ``add`` box: number of boxes below it that the residual connection bypasses.
    residual: int = 0


@dataclass(frozen=True)
class Stack:
    """Boxes from bottom (input) to top. Some boxes form a layer that is repeated."""

    title: str
    boxes: Sequence[Box]
    # Indices of the first and last box of a layer, and the number of layers.
    repeated: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class Diagram(Figure):
    """An architecture diagram: stacks side by side, with arrows between them."""

    stacks: Sequence[Stack]
    arrows: Sequence[Arrow] = ()


@dataclass(frozen=True)
class Grid(Figure):
    """Small heatmaps from 0 to 1 in rows and columns, such as layers x heads."""

    rows: Sequence[str]
    columns: Sequence[str]
    # For each row, a list of matrices. All have the same shape, and are drawn without labels.
    values: Sequence[Sequence[Matrix]]


@dataclass(frozen=True)
class Step:
    """One step of `Steps`, with its figures."""

    title: str
    figures: Sequence[Figure]


@dataclass(frozen=True)
class Steps(Figure):
    """A sequence of steps. A page shows one step at a time, with buttons; text shows all steps."""

    steps: Sequence[Step]


@dataclass(frozen=True)
class Part:
    """One view of a model: a section of the page."""

    name: str  # Such as ``attention``.
    title: str
    explanation: str  # A few sentences about what the figures show, in the words of the papers.
    figures: Sequence[Figure]
    is_detail: bool = False  # Whether the page folds it: how a model is built and computes.


def kind_of(value: Figure | Step) -> str:
    """Return the name of a class in JSON, in templates and in CSS, such as ``heatmap``.

    >>> kind_of(TextFigure("Norm", []))
    'text'
    """
    return type(value).__name__.removesuffix("Figure").lower()


def as_dict(value: Any) -> dict[str, Any]:
    """Return the fields of a part or figure, for `json.dumps`. The class is the ``kind``.

    Nodes and boxes have a field ``kind`` already, and a part needs none.

    >>> as_dict(TextFigure("Norm", ["1 + 1 = 2"]))
    {'kind': 'text', 'title': 'Norm', 'note': '', 'lines': ['1 + 1 = 2']}
    """
    if isinstance(value, Part | Node | Box):
        return vars(value)
    return {"kind": kind_of(value), **vars(value)}


def isolated(text: str) -> str:
    """Isolate a right-to-left token, so that the order of words in a label does not change.

    Source: Unicode Standard Annex 9, isolates (U+2068, U+2069).
    """
    if any(bidirectional(character) in ("R", "AL") for character in text):
        return f"\u2068{visible(text)}\u2069"
    return text


def vector_text(vector: Iterable[Any], count: int = 6) -> str:
    """Format the first numbers of a vector; dots mark omitted numbers.

    >>> vector_text([0.5, 2, 0.25], 2)
    '[0.5000 2.0000 ...]'
    """
    # One number more than is shown tells whether numbers are omitted.
    numbers = [f"{value:.4f}" for value in islice(vector, count + 1)]
    if len(numbers) > count:
        numbers[count] = "..."
    return f"[{' '.join(numbers)}]"


def part_text(part: Part, columns: int | None = None) -> str:
    """Return a part as text: title, explanation, figures.

    Args:
        part: The part.
        columns: Width of the terminal, which limits paragraphs; None for a file or a pipe.
    """
    width = min(columns or _WIDTH, _WIDTH)
    explanation = fill(visible(part.explanation), width)
    lines = [part.title, explanation, ""]
    for figure in part.figures:
        lines += _titled(figure, width)
    return "\n".join(lines)


def _titled(figure: Figure, width: int = _WIDTH) -> Iterator[str]:
    """Yield the lines of a figure with its title and note, then an empty line."""
    if figure.title:
        yield visible(figure.title)
    for line in figure_lines(figure):
        yield f"  {line}"
    if figure.note:
        yield fill(visible(figure.note), width)
    yield ""


def figure_lines(figure: Figure) -> list[str]:
    """Return a figure as lines of text, without title and note."""
    match figure:
        case TextFigure():
            return [visible(line) for line in figure.lines]
        case Table():
            return _table(figure.head, figure.rows)
        case Heatmap() if len(figure.columns) <= _MAX_COLUMNS:
            labelled = zip(figure.rows, figure.values, strict=True)
            rows = [[label, *values] for label, values in labelled]
            return _table(["", *figure.columns], rows)
        case Bars():
            columns = [figure.labels, *figure.values.values()]
            rows = [list(row) for row in zip(*columns, strict=True)]
            return _table(["", *figure.values], rows)
        case Product():
            lines = []
            for block in figure.blocks:
                lines.append(f"{block.sign} {visible(block.label)} {block.shape}")
                lines += map(vector_text, block.values)
            return lines
        case Tree():
            lines = []
            for path in sorted(figure.paths):  # depth first
                node = figure.nodes[path[-1]]
                indent = "  " * (len(path) - 1)
                lines.append(
                    f"{_MARKS[node.kind]} {indent}{visible(node.label)}  {visible(node.detail)}"
                )
            return [*lines, "* part of the translation, + finished, x dead end"]
        case Steps():
            step_lines = map(_step, figure.steps)
            return list(chain.from_iterable(step_lines))
        case Diagram():
            stack_lines = map(_stack, figure.stacks)
            return list(chain.from_iterable(stack_lines))
        case _:
            return ["(drawing: shown in the formats html and svg)"]


def _step(step: Step) -> Iterator[str]:
    yield visible(step.title)
    for figure in step.figures:
        yield from _titled(figure)


def _stack(stack: Stack) -> Iterator[str]:
    """Yield a line for each box, from the top (output) to the bottom (input)."""
    yield f"{stack.title}, from top to bottom"
    # Without a repeated layer, the range is empty: no box is from 0 to -1.
    first, last, num_layers = stack.repeated or (0, -1, 1)
    boxes = list(enumerate(stack.boxes))
    for index, box in reversed(boxes):
        copies = ""
        if first <= index <= last:
            copies = f"{num_layers} {TIMES}"
        yield f"{copies:>6} {visible(box.label):<18} {visible(box.detail)}".rstrip()


def number_format(numbers: Iterable[float | None]) -> str:
    """Return the format specification for numbers that are shown together.

    Whole numbers have no decimals, and large numbers have few; if all numbers are small, they are
    in scientific notation. Empty cells, zeros and infinities do not count. A "z" writes -0 as 0.

    >>> number_format([0.25, None, 12.5]), number_format([12.5, 2500]), number_format([0.0, 1.0])
    ('z,.4f', 'z,.1f', 'z,.0f')
    """
    sizes = [abs(number) for number in numbers if number and isfinite(number)]
    if all(size == int(size) for size in sizes):
        return "z,.0f"
    largest = max(sizes)  # a list without numbers has only whole numbers
    if largest >= 1000:
        return "z,.1f"
    return "z,.4f" if largest >= 1e-3 else "z.1e"


def number_text(number: float, form: str) -> str:
    """Format a number by a format specification, with the exponent as a power of ten.

    >>> number_text(1.25e-7, "z.1e"), number_text(0.25, "z,.4f")
    ('1.2 \u00d7 10\u207b\u2077', '0.2500')
    """
    digits, _, exponent = f"{number:{form}}".partition("e")
    if not exponent:
        return digits
    if not number:
        return "0"
    power = str(int(exponent)).translate(_SUPERSCRIPTS)
    return f"{digits} {TIMES} 10{power}"


def cell_texts(rows: Sequence[Sequence[Cell]]) -> list[list[str]]:
    """Return the cells of a table as text; all numbers of a column have the same format.

    >>> cell_texts([["a", 1050624, 0.5], [None, 3, 12.25]])
    [['a', '1,050,624', '0.5000'], ['', '3', '12.2500']]
    """
    columns = []
    for column in zip_longest(*rows):  # shorter rows get empty cells
        form = number_format(cell for cell in column if not isinstance(cell, str))
        columns.append([_cell_text(cell, form) for cell in column])
    return [list(row) for row in zip(*columns, strict=True)]


def _cell_text(cell: Cell, form: str) -> str:
    if isinstance(cell, int | float):
        return number_text(cell, form)
    return visible(cell or "")


def numeric_columns(rows: Sequence[Sequence[Cell]]) -> list[bool]:
    """Return for each column whether it contains only numbers, which are right-aligned."""
    columns = zip_longest(*rows)
    return [str not in map(type, column) for column in columns]


def _table(head: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[str]:
    """Return the lines of a table. The heads of numeric columns are right-aligned, too."""
    cells = [[visible(name) for name in head], *cell_texts(rows)]
    columns = [list(column) for column in zip_longest(*cells, fillvalue="")]
    for index, is_numeric in enumerate(numeric_columns(rows)):
        if is_numeric:
            width = max(map(len, columns[index]))
            columns[index] = [cell.rjust(width) for cell in columns[index]]
    aligned_rows = list(zip(*columns, strict=True))
    return text_table(aligned_rows).splitlines()
