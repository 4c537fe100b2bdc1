"""``nmt help``: the help of a command, or a document of the package, in the terminal."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markdown import Markdown

from nmt.cli.app import app
from nmt.cli.builder import COMMANDS, PARENTS
from nmt.commands.options import TextResult, Texts
from nmt.config.flag import Flag, Options
from nmt.errors import ConfigError
from nmt.installation import CONFIGS

_FOLDER = Path(__file__).parents[1] / "docs"
# Topic -> the file.
DOCUMENTS = {path.stem: path for path in sorted(_FOLDER.glob("*.md"))}
DOCUMENTS["configs"] = CONFIGS / "README.md"
_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)
# A link to a file or to a heading. Groups: text, and name of a document if the file is one.
_LINK = re.compile(r"!?\[([^\]]*)\]\((?!https?:)(?:(\w+)\.md)?[^)]*\)")


class HelpOptions(Options):
    """What to print.

    Args:
        topic: Name of a command or of a document. By default, all of them are listed.
    """

    topic: Annotated[Texts, Flag(argument=True)] = ()


def show_help(options: HelpOptions) -> TextResult:
    """Return the help of a command, a document, or the list of both.

    Raises:
        ConfigError: There is no command and no document of this name.
    """
    topic = " ".join(options.topic)
    if topic in DOCUMENTS:
        return TextResult(_rendered(DOCUMENTS[topic]), is_document=True)
    if topic in COMMANDS or topic in PARENTS:
        return TextResult(_help_of(*options.topic), is_document=True)
    if topic:
        raise ConfigError.unknown("command or document", topic, [*COMMANDS, *PARENTS, *DOCUMENTS])
    lines = [_help_of(), "", "Documents:"]
    for name, path in DOCUMENTS.items():
        title = path.read_text("utf-8").partition("\n")[0].removeprefix("# ")
        lines.append(f"  nmt help {name:<14}  {title}")
    return TextResult("\n".join(lines), is_document=True)


def _help_of(*words: str) -> str:
    """Return what ``--help`` prints after some words."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("nmt", [], resilient_parsing=True)
    for word in words:
        command = command.get_command(context, word)
        context = command.make_context(word, [], parent=context, resilient_parsing=True)
    text: str = command.get_help(context)
    return text


def _rendered(path: Path) -> str:
    """Return a document for the terminal; for a pipe, its Markdown."""
    text = _COMMENT.sub("", path.read_text("utf-8"))
    text = _LINK.sub(_without_link, text)
    console = Console()
    if not console.is_terminal:
        return text
    with console.capture() as capture:
        console.print(Markdown(text))
    return capture.get()


def _without_link(link: re.Match[str]) -> str:
    """Return the text of a link, with the command that prints the document."""
    text, document = link.groups()
    if document in DOCUMENTS:
        return f"{text} (`nmt help {document}`)"
    return str(text)
