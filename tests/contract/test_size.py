"""Size and density are features: tokens of the package, and tokens of a statement in each folder.

Lines can be saved by writing more into each of them, and then nothing was saved: the reader reads
tokens. Therefore size is counted in tokens without docstrings and comments, and density for each
statement (a logical line), because breaking a call over several lines changes nothing for the
reader. A limit is raised only in a commit of its own, which says what users get for it.
"""

from __future__ import annotations

import ast
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "nmt"
MAX_TOKENS = 284_500
LONG_LINE = 20  # more tokens than this make a line long
_SKIPPED = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER, tokenize.ENCODING,
}  # fmt: skip
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Density:
    """How much a reader meets in one statement."""

    tokens: float  # of a statement, mean
    median: float  # tokens of a statement
    long_lines: float  # percent of the lines
    # For 1,000 statements:
    tuples: float  # assignments of a tuple to a tuple
    nested: float  # comprehensions with several clauses, or in comprehensions
    conditional: float  # conditional expressions


# No folder becomes denser than this.
LIMITS = {
    "(top)": Density(11.6, 9, 10.5, 10.1, 10.1, 43.5),
    "checkpoint": Density(10.3, 9, 8.2, 14.6, 8.1, 47.0),
    "cli": Density(11.4, 9, 10.1, 18.8, 10.3, 70.0),
    "commands": Density(11.3, 9, 7.1, 38.1, 3.4, 36.2),
    "config": Density(11.8, 11, 9.9, 15.2, 3.1, 68.8),
    "data": Density(12.0, 10, 13.1, 24.9, 5.6, 33.6),
    "device": Density(9.0, 8, 4.8, 31.9, 4.3, 29.8),
    "extras/adaptation": Density(12.9, 11, 14.3, 70.5, 7.1, 35.3),
    "extras/analysis": Density(13.5, 11, 14.0, 41.8, 32.1, 43.2),
    "extras/cleaning": Density(13.3, 12, 16.1, 40.2, 8.1, 25.8),
    "extras/comet": Density(10.0, 8, 5.9, 51.8, 8.7, 17.3),
    "extras/distillation": Density(12.4, 10, 6.0, 21.6, 0.0, 32.3),
    "extras/exchange": Density(12.9, 11, 11.5, 30.8, 10.1, 45.5),
    "extras/inspection": Density(13.1, 11, 14.1, 40.0, 14.6, 68.5),
    "extras/planning": Density(11.6, 9, 8.4, 33.3, 4.8, 44.4),
    "extras/serving": Density(11.5, 10, 10.2, 34.8, 6.9, 42.9),
    "extras/tracking": Density(12.1, 10, 10.0, 17.3, 17.3, 8.7),
    "files": Density(9.2, 7, 6.4, 20.7, 0.0, 41.4),
    "inference": Density(12.1, 10, 10.0, 26.1, 5.8, 35.4),
    "metrics": Density(12.8, 12, 14.9, 37.4, 23.0, 33.0),
    "model": Density(13.2, 12, 14.6, 40.6, 1.2, 56.4),
    "report": Density(14.5, 12, 19.5, 42.4, 10.6, 100.6),
    "search": Density(13.2, 12, 16.0, 43.5, 8.7, 28.6),
    "text": Density(11.0, 10, 10.6, 30.2, 9.3, 41.8),
    "training": Density(11.6, 10, 10.0, 33.6, 8.2, 41.2),
}


@dataclass
class Size:
    """Counts of one or more modules."""

    tokens: int = 0
    statements: list[int] = field(default_factory=list)  # tokens of each
    lines: int = 0
    shapes: Counter[str] = field(default_factory=Counter)  # long lines, and shapes of statements

    def add(self, path: Path) -> None:
        """Add the counts of a module."""
        tree = ast.parse(path.read_text(encoding="utf-8"))
        self.shapes.update(shapes_of(tree))
        docstrings = docstring_lines(tree)
        on_line = Counter[int]()
        in_statement = 0
        with path.open("rb") as file:
            for token in tokenize.tokenize(file.readline):
                if token.type == tokenize.NEWLINE and in_statement:
                    self.statements.append(in_statement)
                    in_statement = 0
                if token.type in _SKIPPED or token.start[0] in docstrings:
                    continue
                in_statement += 1
                on_line[token.start[0]] += 1
                for line in range(token.start[0] + 1, token.end[0] + 1):
                    on_line[line] += 0  # a text of several lines is one token, but fills its lines
        self.tokens += on_line.total()
        self.lines += len(on_line)
        self.shapes["long"] += sum(count > LONG_LINE for count in on_line.values())

    def density(self) -> Density:
        """Return the density of all added modules."""
        num_statements = len(self.statements)
        per_thousand = 1000 / num_statements
        return Density(
            tokens=self.tokens / num_statements,
            median=sorted(self.statements)[num_statements // 2],
            long_lines=100 * self.shapes["long"] / self.lines,
            tuples=self.shapes["tuple"] * per_thousand,
            nested=self.shapes["nested"] * per_thousand,
            conditional=self.shapes["conditional"] * per_thousand,
        )


def docstring_lines(tree: ast.Module) -> set[int]:
    """Return the numbers of all lines of docstrings."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, _DOCUMENTED) or not node.body:
            continue
        first = node.body[0]
        if not isinstance(first, ast.Expr) or not isinstance(first.value, ast.Constant):
            continue
        if isinstance(first.value.value, str):
            last_line = first.end_lineno or first.lineno
            lines.update(range(first.lineno, last_line + 1))
    return lines


def shapes_of(tree: ast.Module) -> Iterator[str]:
    """Yield a word for each statement or expression of a shape that needs a second reading."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield "tuple"
        elif isinstance(node, ast.IfExp):
            yield "conditional"
        elif isinstance(node, _COMPREHENSIONS):
            inner = [each for each in ast.walk(node) if isinstance(each, _COMPREHENSIONS)]
            if len(inner) > 1 or len(node.generators) > 1:
                yield "nested"


@cache
def sizes() -> dict[str, Size]:
    """Return the size of each folder; each extra counts as a folder."""
    folders: dict[str, Size] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).parts
        name = parts[0] if len(parts) > 1 else "(top)"
        if name == "extras" and len(parts) > 2:
            name = f"extras/{parts[1]}"
        folders.setdefault(name, Size()).add(path)
    return folders


def test_tokens_and_shapes_are_counted_as_said(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_text(
        '"""Doc."""\n'
        "\n"
        "# why\n"
        "a, b = 1, 2\n"  # 7 tokens: a , b = 1 , 2
        "x = [\n"  # 3 on this line, 9 in the statement
        "    1 if a else b,  # one\n"  # 6: 1 if a else b ,
        "]\n"  # 1, so 10 in the statement
        "def f():\n"  # 5: def f ( ) :
        '    """Doc."""\n'
        "    return [y for x in a for y in x]\n"  # 12: return [ y for x in a for y in x ]
    )
    size = Size()
    size.add(path)
    assert size.statements == [7, 10, 5, 12]
    assert size.tokens == 34
    assert size.lines == 6
    assert size.shapes == {"tuple": 1, "conditional": 1, "nested": 1, "long": 0}
    assert size.density() == Density(8.5, 10, 0, 250, 250, 250)


def test_the_package_is_within_its_limit() -> None:
    assert sum(size.tokens for size in sizes().values()) <= MAX_TOKENS


@pytest.mark.parametrize("folder", LIMITS)
def test_no_folder_becomes_denser(folder: str) -> None:
    density = sizes()[folder].density()
    limit = LIMITS[folder]
    denser = [name for name in vars(limit) if getattr(density, name) > getattr(limit, name)]
    assert not denser, f"{density} exceeds {limit} in {', '.join(denser)}"


def test_every_folder_with_code_has_a_limit() -> None:
    with_code = {name for name, size in sizes().items() if size.statements}
    assert with_code == {*LIMITS}
