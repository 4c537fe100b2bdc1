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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "nmt"
MAX_TOKENS = 347_900
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


# Of the package and of each of its folders.
LIMIT = Density(tokens=10.8, median=8, long_lines=5, tuples=4, nested=1, conditional=20)
# Statements with tensors: one operation on one tensor has ten tokens.
WITH_TENSORS = ("model", "search")
TENSOR_MEDIAN = 10
# Modules that will be replaced. Their tokens count, their density does not.
EXEMPT = ("data/hubs",)


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


def folder_of(module: str) -> str:
    """Return the folder that a module counts for; each extra is a folder."""
    *folders, _ = module.split("/")
    return "/".join(folders[:2]) or "(top)"


MODULES = sorted(
    path.relative_to(PACKAGE).with_suffix("").as_posix()
    for path in PACKAGE.rglob("*.py")
    if path.stat().st_size
)
FOLDERS = sorted({folder_of(module) for module in MODULES if module != "extras/__init__"})


@cache
def size_of(module: str) -> Size:
    size = Size()
    size.add(PACKAGE / f"{module}.py")
    return size


def density_of(modules: Iterable[str]) -> Density:
    """Return the density of several modules, without the exempt ones."""
    total = Size()
    for module in modules:
        if module not in EXEMPT:
            size = size_of(module)
            total.tokens += size.tokens
            total.lines += size.lines
            total.statements += size.statements
            total.shapes += size.shapes
    return total.density()


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
    assert sum(size_of(module).tokens for module in MODULES) <= MAX_TOKENS


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_statement_of_a_folder_is_read_once(folder: str) -> None:
    limit = LIMIT
    if folder in WITH_TENSORS:
        limit = replace(LIMIT, median=TENSOR_MEDIAN)
    check(density_of(module for module in MODULES if folder_of(module) == folder), limit)


def test_a_statement_of_the_package_is_read_once() -> None:
    check(density_of(MODULES), LIMIT)


def check(density: Density, limit: Density) -> None:
    denser = [name for name in vars(limit) if getattr(density, name) > getattr(limit, name)]
    assert not denser, f"{density} exceeds {limit} in {', '.join(denser)}"


def test_exempt_modules_exist() -> None:
    assert {*EXEMPT} <= {*MODULES}
