"""A class of options as a command."""

from __future__ import annotations

import re
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, ClassVar, Literal

import pytest
from typer.testing import CliRunner, Result

from nmt.cli import builder
from nmt.cli.app import app
from nmt.cli.builder import Entry
from nmt.config.flag import OF_THE_MODEL, Flag
from nmt.errors import ConfigError, GateError, shell_command
from tests.conftest import MISSING

NAMES = (*builder.COMMANDS,)


@dataclass(frozen=True, kw_only=True)
class Shared:
    title: ClassVar[str] = "Search"

    beam_size: Annotated[int | None, Flag("Beam.", short="b", min=1, max=9, shown="4")] = None
    cache: Annotated[bool | None, Flag("Keep.")] = None
    # The first two are keys of the section decoding.
    shortlist: Annotated[bool | None, Flag("Few.", shown=OF_THE_MODEL)] = None
    top_p: Annotated[float | None, Flag("Most.", shown=OF_THE_MODEL)] = None
    size: Annotated[int | None, Flag("All.", shown=OF_THE_MODEL)] = None


@dataclass(frozen=True, kw_only=True)
class Options(Shared):
    """Everything a field may be.

    Args:
        with_: Can be
            repeated.
        stream: Of Python.
        json: JSON.
    """

    model: Annotated[Path, Flag("Folder.", argument=True)]
    others: Annotated[tuple[Path, ...], Flag("More.", argument=True)] = ()
    with_: tuple[str, ...] = ()
    weights: Annotated[tuple[float, ...] | None, Flag("See `with`.", separator=",")] = None
    kind: Annotated[Literal["a", "b"], Flag("One of two.")] = "a"
    pair: Annotated[tuple[Path, Path] | None, Flag("Two files.")] = None
    many: Annotated[tuple[str, ...], Flag("Any.", metavar="WORD...")] = ()
    json: bool = False
    notes: ClassVar[str] = "WORD:\n  all of them"
    stream: Annotated[object, Flag(hidden=True)] = None

    def __post_init__(self) -> None:
        if self.beam_size == 7:
            raise ConfigError("`beam_size` is 7 but `with` is not.", fix="See `nmt x`, `no_field`.")


@dataclass(frozen=True)
class Outcome:
    options: Options
    failure: GateError | None = None

    def as_text(self) -> str:
        return f"{asdict(self.options)}"

    def as_dict(self) -> dict[str, Any]:
        return {"größe": self.options.beam_size}


def work(options: Options) -> Outcome | None:
    if options.kind == "b":
        return Outcome(options, GateError("`beam_size` is too low.", fix="Raise it."))
    return Outcome(options)


@pytest.fixture(autouse=True)
def command(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("made_up")
    module.__dict__.update(Options=Options, work=work)
    monkeypatch.setitem(sys.modules, "made_up", module)
    entry = Entry("made_up:Options", "made_up:work", "Work.\n\nHard.", "nmt work x")
    monkeypatch.setitem(builder.COMMANDS, "work", entry)
    lost = Entry("nmt.extras.lost.options:Options", "nmt.extras.lost.command:lose", "Lose.", "nmt")
    monkeypatch.setitem(builder.COMMANDS, "lose", lost)


def call(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def test_flags_become_fields_with_their_types() -> None:
    line = "m n o -b 2 --no-cache --with p --with q --weights 1,2.5 --pair r s"
    values = asdict(Options(
        model=Path("m"), others=(Path("n"), Path("o")), beam_size=2, cache=False,
        with_=("p", "q"), weights=(1.0, 2.5), pair=(Path("r"), Path("s")),
    ))  # fmt: skip
    assert call("work", *line.split()).stdout == f"{values}\n"
    assert call("work", "m").stdout == f"{asdict(Options(model=Path('m')))}\n"
    assert call("work", "m", "-b", "3", "--json").stdout == '{"größe": 3}\n'


@pytest.mark.parametrize(
    ("line", "many", "more"),
    [
        ("m --many a b c", ("a", "b", "c"), {}),
        ("m --many a --many b c", ("a", "b", "c"), {}),
        ("m --many a b -b 2", ("a", "b"), {"beam_size": 2}),
        ("m --many a b --no-cache", ("a", "b"), {"cache": False}),
        ("m --many a b --with p --many c", ("a", "b", "c"), {"with_": ("p",)}),
        ("m n --with p", (), {"others": (Path("n"),), "with_": ("p",)}),
        ("-b 2 m n", (), {"others": (Path("n"),), "beam_size": 2}),
    ],
)
def test_a_flag_of_several_values_takes_all_words_up_to_the_next_flag(
    line: str, many: tuple[str, ...], more: dict[str, Any]
) -> None:
    expected = asdict(Options(model=Path("m"), many=many, **more))
    assert call("work", *line.split()).stdout == f"{expected}\n"


def listed(text: str) -> dict[str, list[str]]:
    """Return the first words of the lines under each heading of a help."""
    found: dict[str, list[str]] = {}
    rows: list[str] = []
    for line in text.splitlines():
        if line.endswith(":") and line[0] != " ":
            rows = found.setdefault(line.removesuffix(":"), [])
        elif re.match(r"  \S", line) and found:
            rows.append(line.split()[0])
    return found


def test_all_commands_are_listed_in_the_order_and_under_the_heading_of_their_group() -> None:
    found = listed(call("--help").stdout)
    groups = {title: [*names] for title, names in builder.GROUPS.items()}
    expected = {**groups, "Commands": ["work", "lose"]}
    assert [*found][: len(expected)] == [*expected]
    assert {title: found[title] for title in expected} == expected
    assert {"--version", "-h,"} <= {*found["General"]}
    names = [name.split() for name in builder.COMMANDS]
    assert {words[0] for words in names} == {name for rows in expected.values() for name in rows}
    for parent in builder.PARENTS:
        below = [words[1] for words in names if words[0] == parent]
        assert listed(call(parent, "--help").stdout)["Commands"] == below


def test_the_help_of_every_command_can_be_printed() -> None:
    """Click marks paragraphs that keep their lines with a backspace; none may be left."""
    for name in (*NAMES, "work"):
        found = call(*name.split(), "--help")
        if found.exit_code == 2 and MISSING:
            continue  # a command of an extra that was deleted
        assert found.exit_code == 0
        assert "".join(found.stdout.splitlines()).isprintable(), name


def test_help_has_sections_and_spells_the_fields_in_it() -> None:
    lines = call("work", "--help").stdout.splitlines()
    assert [line for line in lines if line.endswith(":") and line[0] != " "] == [
        "Arguments:", "Options:", "Search:", "General:",
    ]  # fmt: skip
    text = " ".join(" ".join(lines).split())
    assert "See --with." in text
    assert "--with TEXT Can be repeated." in text
    assert "-b, --beam-size N Beam. [default: 4]" in text
    assert "--cache / --no-cache" in text
    assert "--no-shortlist Few. [default: from the model, usually no]" in text
    assert "--top-p X Most. [default: from the model, usually 1.0]" in text
    assert "--size N All. [default: from the model]" in text
    assert text.startswith("Usage: nmt work [OPTIONS] MODEL [OTHERS...] Work. Hard.")
    assert text.endswith("Example: nmt work x WORD: all of them")
    assert "--stream" not in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-b", "7"], "--beam-size is 7 but --with is not.\n  fix: See `nmt x`, `no_field`.\n"),
        (["-b", "0"], "Invalid value for '--beam-size' / '-b': Input should be greater"),
        (["-b", "10"], "Invalid value for '--beam-size' / '-b': Input should be less"),
        (["--weights", "1,x"], "1,x is not a list of values separated by ','."),
        ([""], "the name is empty"),
    ],
)
def test_mistakes_are_named_as_they_are_typed(words: list[str], message: str) -> None:
    found = call("work", "m", *words)
    assert (found.exit_code, found.stdout) == (2, "")
    assert message in found.stderr


def test_a_failure_comes_after_the_result() -> None:
    found = call("work", "m", "--kind", "b", "--json")
    assert (found.exit_code, found.stdout) == (6, '{"größe": null}\n')
    assert found.stderr == "error: --beam-size is too low.\n  fix: Raise it.\n"


def test_only_the_first_of_several_processes_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")  # as torchrun sets it
    done = call("work", "m")
    failed = call("work", "m", "--kind", "b")
    assert (done.exit_code, done.stdout) == (0, "")
    assert (failed.exit_code, failed.stdout) == (6, "")
    monkeypatch.setenv("RANK", "0")
    assert call("work", "m").stdout


def test_a_command_without_its_extra_says_so_and_no_other_one_needs_it() -> None:
    assert "  lose " in call("--help").stdout
    found = call("lose", "--help")
    assert (found.exit_code, found.stdout) == (2, "")
    assert "nmt/extras/lost is missing" in found.stderr


def test_a_command_to_type_has_the_flags_of_its_options() -> None:
    flags: dict[str, Any] = {"beam_size": 1, "set_": ["a.b=1"], "json": True, "tag": None}
    typed = "nmt translate 'my runs/x' --beam-size 1 --set a.b=1 --json"
    assert shell_command("translate", "my runs/x", **flags) == typed
