"""configs/README.md, "Coming from fairseq, ...": the answers shown, and names of other toolkits.

``python -m tests.contract.test_aliases`` writes both, the answers with their whole sentences.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import yaml
from typer.testing import CliRunner

from nmt.cli.app import app
from nmt.config import keys
from tests.cli.commands import acted_on

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "configs" / "README.md"
ALIASES = Path(keys.__file__).with_name("aliases.yaml")
NAMES = re.compile(r"(<!-- names, from .*? -->\n).*?(?=<!-- end of names -->)", re.DOTALL)
ANSWER = re.compile(r"^\$ nmt (.*)\n((?:(?!\$ |```).*\n)*)", re.MULTILINE)


def text() -> str:
    return PAGE.read_text(encoding="utf-8")


def names() -> Iterator[str]:
    """Lines of two tables, of keys and of flags: our name and the names of other toolkits."""
    entries = yaml.safe_load(ALIASES.read_text(encoding="utf-8"))
    for head, are_flags in (("key", False), ("flag or argument", True)):
        yield from ("", f"| {head} | other names |", "|---|---|")
        for ours, others in entries.items():
            if keys.is_of_command_line(ours) is are_flags:
                shown = [f"`{spelled(x) if are_flags else x}`" for x in others.split()]
                yield f"| {marked(ours)} | {', '.join(shown)} |"
    yield ""


def spelled(name: str) -> str:
    """A name as a flag: ``o`` is -o, ``save_dir`` is --save-dir."""
    return f"-{name}" if len(name) == 1 else f"--{name.replace('_', '-')}"


def marked(ours: str) -> str:
    """Our name in Markdown: keys in backticks, a remark after them."""
    code = re.split(r": | \(", ours, maxsplit=1)[0]
    quoted = re.sub(" (and|or) ", r"` \1 `", f"`{code}`") if code else "no flag"
    return quoted + ours.removeprefix(code)


def answer(line: str) -> str:
    """What ``nmt`` prints on standard error."""
    return CliRunner().invoke(app, shlex.split(line)).stderr


def with_names(page: str) -> str:
    return NAMES.sub(lambda found: found[1] + "\n".join(names()) + "\n", page)


def with_answers(page: str) -> str:
    return ANSWER.sub(lambda found: f"$ nmt {found[1]}\n{answer(found[1])}", page)


def test_the_names_are_those_of_the_file() -> None:
    assert NAMES.search(text())
    assert with_names(text()) == text(), "run: python -m tests.contract.test_aliases"


def test_the_answers_shown_name_what_nmt_names(tmp_path: Path) -> None:
    """Not in the checkout, where a run of `make demo` would add to an answer."""
    shutil.copytree(PAGE.parent, tmp_path / PAGE.parent.name)
    answers = ANSWER.findall(text())
    assert answers
    for line, shown in answers:
        assert acted_on(shown)
        assert acted_on(shown) == acted_on(answer(line))


if __name__ == "__main__":
    PAGE.write_text(with_answers(with_names(text())), encoding="utf-8")
