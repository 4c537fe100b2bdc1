"""Find what no rule of ruff finds: words, formats, and waits of tests. `make lint` runs it.

Prints each fault with its place; the exit code is 1 if there are any.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Set
from pathlib import Path

ROOT = Path(__file__).parents[1]
# On the public index, nmt[...] is another package, and only a clone has a folder to install from:
# `install_command` knows what works.
INSTALLATION = re.compile(r"\bnmt\[|pip install -e", re.IGNORECASE)
# "x is no y" for "x is not a y"; "there is no y" is fine.
SECOND_READING = re.compile(
    r"(?<!there )\b(?:is|are) no (?!longer|more)[a-z]|\b(?:does|do) not go with\b", re.IGNORECASE
)
# "Name" means to give a name. Use Pass, Use or Choose.
AT_THE_START = re.compile(r"(?:Name|Give) ")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
TEXT_FILES = {".toml", ".txt", ".j2", ".html", ".yaml"}
STARTS = {"run", "check_output", "check_call", "call"}  # of subprocess
WAITS = {"communicate", "wait", "join", "result"}
HEAD_OF_CONFIGURATION = ("data", "hardware", "time", "expect")
README_LINES = 180
README_WORDS = 1100
CELL_WORDS = 15


def faults_of_code(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each string that needs a second reading."""
    tree = ast.parse(source)
    docstring_nodes = set()  # identities of the nodes
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and node.body:
            first_statement = node.body[0]
            if isinstance(first_statement, ast.Expr):
                docstring_nodes.add(id(first_statement.value))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        text = " ".join(node.value.split())
        is_docstring = id(node) in docstring_nodes
        is_wrong = SECOND_READING.search(text) or INSTALLATION.search(text)
        # A docstring may start with "Give"; a message to the user may not.
        starts_wrong = not is_docstring and AT_THE_START.match(text)
        if is_wrong or starts_wrong:
            yield node.lineno, text


def waits_without_limit(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each call in a test that may wait for ever."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        keywords = {keyword.arg for keyword in node.keywords}
        if "timeout" in keywords or None in keywords:  # None: `**options`, which may have it
            continue
        method = node.func.attr
        is_start = method in STARTS and ast.unparse(node.func.value) == "subprocess"
        # The only positional argument of these methods is a limit, or a list of texts to join.
        is_wait = method in WAITS and not node.args
        if is_start or is_wait:
            yield node.lineno, ast.unparse(node)


def faults_of_configuration(text: str) -> Iterator[str]:
    """Yield the words that the comment at the top of a shipped configuration lacks."""
    head = text.split("\nname:")[0]
    for word in HEAD_OF_CONFIGURATION:
        if f"# {word} " not in head:
            yield f"the comment at the top has no line `# {word}`"


def faults_of_readme(text: str) -> Iterator[str]:
    """Yield what keeps a README from being read in five minutes."""
    if len(text.splitlines()) > README_LINES:
        yield f"more than {README_LINES} lines"
    visible_text = re.sub(r"<!--.*?-->", "", text)
    if len(visible_text.split()) > README_WORDS:
        yield f"more than {README_WORDS} words"
    for line in text.splitlines():
        if not line.startswith("|"):
            continue
        for cell in line.split("|"):
            if len(cell.split()) > CELL_WORDS:
                yield f"a cell of more than {CELL_WORDS} words: {cell.strip()}"


def with_suffix(paths: Iterable[Path], suffixes: Set[str]) -> list[Path]:
    """Return the paths that end with one of ``suffixes``."""
    return [path for path in paths if path.suffix in suffixes]


def faults() -> Iterator[str]:
    """Yield every fault of the repository, with its place."""
    for path in sorted((ROOT / "nmt").rglob("*.py")):
        for line, text in faults_of_code(path.read_text(encoding="utf-8")):
            yield f"{path}:{line}: {text}"
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for line, text in waits_without_limit(path.read_text(encoding="utf-8")):
            yield f"{path}:{line}: waits without a limit: {text}"
    texts = with_suffix((ROOT / "nmt").rglob("*"), TEXT_FILES)
    texts += with_suffix((ROOT / "configs").iterdir(), {*TEXT_FILES, ".md"})
    for path in sorted(texts):
        if INSTALLATION.search(path.read_text(encoding="utf-8")):
            yield f"{path}: installs nmt as it is not published"
    for path in sorted((ROOT / "configs").glob("*.yaml")):
        for fault in faults_of_configuration(path.read_text(encoding="utf-8")):
            yield f"{path}: {fault}"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for fault in faults_of_readme(readme):
        yield f"README.md: {fault}"


if __name__ == "__main__":
    all_faults = list(faults())
    for fault in all_faults:
        print(fault)
    sys.exit(bool(all_faults))
