from __future__ import annotations

import io
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tqdm import tqdm
from typer.testing import CliRunner

from nmt import cli, errors
from nmt.cli.app import app
from nmt.cli.messages import configure_logging, remove_logging
from nmt.errors import NmtError
from nmt.version import __version__
from tests.process import LIMIT

DEMO = str(Path(__file__).parents[2] / "configs" / "demo.yaml")


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def prepare(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("nmt.commands.prepare.prepare", prepare)


def test_help_tells_the_exit_codes_that_the_guide_tells() -> None:
    guide = (Path(__file__).parents[2] / "nmt" / "docs" / "guide.md").read_text("utf-8")
    table = guide.split("\n| code | meaning |\n")[1].split("\n\n")[0]
    text = CliRunner().invoke(app, ["--help"]).stdout.split("Exit codes:\n")[1]
    told = [row.split("|")[1] for row in table.splitlines()[1:]]
    helped = [row.strip().split("  ")[0] for row in text.splitlines() if row]
    codes, others = (re.findall(r"\d+", " ".join(column)) for column in (told, helped))
    assert codes == others


@pytest.mark.parametrize(("kind", "code"), [
    (NmtError, 1), (errors.ConfigError, 2), (errors.DeviceError, 2), (errors.DataError, 3),
    (errors.CheckpointError, 4), (errors.DivergedError, 5), (errors.GateError, 6),
])  # fmt: skip
def test_an_expected_failure_is_a_message_and_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, kind: type[NmtError], code: int
) -> None:
    fail_with(monkeypatch, kind("train.en is damaged.", fix="Fetch it again."))
    result = CliRunner().invoke(app, ["prepare", DEMO])
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr == "error: train.en is damaged.\n  fix: Fetch it again.\n"
    assert "Traceback" in CliRunner().invoke(app, ["prepare", DEMO, "--verbose"]).stderr


def test_messages_do_not_change_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger's file may contain escape sequences: of colours, titles or the order of text."""
    fail_with(monkeypatch, errors.DataError("\x1b[2Ja\r\u202eb\x9b:\n\té", fix="\x07"))
    result = CliRunner().invoke(app, ["prepare", DEMO])
    assert result.stderr == "error: \\x1b[2Ja\\r\\u202eb\\x9b:\n\té\n  fix: \\x07\n"


@pytest.mark.parametrize(("words", "problem", "fix"), [
    (["--quiet", "translate", "x"], "No such option: --quiet",
     "Put options after the command: nmt COMMAND [OPTIONS]"),
    (["config", "--quiet", "show"], "No such option: --quiet",
     "Put options after the command: nmt config COMMAND [OPTIONS]"),
    (["qqqqq"], "nmt: unknown command qqqqq.", "Run `nmt --help` for a list of commands."),
    (["translate", "x", "--beam-size", "many"],
     "Invalid value for '--beam-size' / '-b': Input should be a valid integer, "
     "unable to parse string as an integer.",
     "Run `nmt translate --help` for arguments and options."),
])  # fmt: skip
def test_words_in_the_wrong_place_are_answered_with_advice(
    words: list[str], problem: str, fix: str
) -> None:
    result = CliRunner().invoke(app, words, prog_name="nmt")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"error: {problem}\n  fix: {fix}\n"


def test_an_unexpected_failure_keeps_its_traceback_and_an_interrupt_exits_with_130(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fail_with(monkeypatch, RuntimeError("bug"))
    result = CliRunner().invoke(app, ["prepare", DEMO])
    assert result.exit_code == 1
    assert isinstance(result.exception, RuntimeError)
    fail_with(monkeypatch, KeyboardInterrupt())
    result = CliRunner().invoke(app, ["prepare", DEMO])
    assert (result.exit_code, result.stderr) == (130, "nmt: stopped by Ctrl-C\n")


def test_an_interrupt_while_modules_are_loading_exits_with_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("nmt.cli.app.main", interrupt)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 130
    assert capsys.readouterr().err == "nmt: stopped by Ctrl-C\n"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, cli._SPINS),
        ({"GOMP_SPINCOUNT": "5"}, "5"),
        ({"OMP_WAIT_POLICY": "passive"}, None),
    ],
)
def test_threads_wait_for_each_other_as_the_user_says(
    given: dict[str, str], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nmt.cli.app.main", lambda: None)
    monkeypatch.setattr(os, "environ", given)
    cli.main()
    assert given.get("GOMP_SPINCOUNT") == expected


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="needs the OpenMP of GNU")
def test_the_openmp_of_torch_reads_how_long_threads_wait() -> None:
    command = [sys.executable, "-m", "nmt", "doctor"]
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment["OMP_DISPLAY_ENV"] = "verbose"
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT
    )
    assert f"GOMP_SPINCOUNT = '{cli._SPINS}'" in done.stderr


def test_the_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['nmt', '--help']; from nmt.cli import main\n"
        "try: main()\n"
        "except SystemExit: print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=LIMIT
    )
    loaded = {name.partition(".")[0] for name in done.stderr.split()}
    assert {"nmt", "typer"} <= loaded
    heavy = ("torch", "numpy", "rich", "pydantic", "yaml", "datasets", "sentencepiece", "sacrebleu")
    assert not loaded.intersection(heavy)


def test_nothing_is_needed_from_the_environment_and_output_is_utf8(tmp_path: Path) -> None:
    """FAULTS 26: HOME unset, C locale, no terminal."""
    config, demo = tmp_path / "ü.yaml", Path(DEMO).read_text(encoding="utf-8")
    place = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "nmt", "config", "show", str(config)]
    for more, code in (("run_dir: läufe/実験\n", 0), ("größe: 1\n", 2)):
        config.write_text(demo + more, encoding="utf-8")
        done = subprocess.run(command, env=place, capture_output=True, check=False, timeout=60)
        assert done.returncode == code, done.stderr
        said = done.stderr if code else done.stdout
        assert ("unknown key größe" if code else more) in said.decode("utf-8")
        assert b"Traceback" not in done.stderr


def test_a_reader_that_goes_away_ends_the_command_quietly_with_141() -> None:
    """FAULTS 44, for commands that print."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "nmt", "config", "schema"]
    result = subprocess.run(
        command, stdout=writer, stderr=subprocess.PIPE, check=False, timeout=LIMIT
    )
    os.close(writer)
    assert (result.returncode, result.stderr) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
def test_a_message_that_nobody_can_read_keeps_its_exit_code(redirection: str) -> None:
    command = [sys.executable, "-m", "nmt", "config", "show", "none.yaml"]
    shell = ["sh", "-c", f'"$@" {redirection}', "sh"]
    assert subprocess.run([*shell, *command], check=False, timeout=LIMIT).returncode == 2


def test_the_process_ends_without_looking_for_garbage() -> None:
    code = """
import atexit, gc, sys
atexit.register(lambda: print(gc.get_freeze_count() > 1000, len(gc.get_objects()) < 1000))
sys.argv = ["nmt", "--version"]
from nmt.cli.app import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=LIMIT
    )
    assert done.stdout.splitlines() == [f"nmt {__version__}", "True True"]


def test_without_docstrings_only_the_help_is_shorter() -> None:
    command = [sys.executable, "-OO", "-m", "nmt", "train", "none.yaml", "--lr", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT)
    assert (done.returncode, "--set training.schedule.peak_lr=1" in done.stderr) == (2, True)


INFO, WARNING, DEBUG = "nmt: 7 lines\n", "nmt: warning: odd\n", "nmt: debug: detail\n"
LIBRARY = "library: debug: detail\n"


def log(*_: object, **__: object) -> None:
    logger = logging.getLogger("nmt.commands.prepare")
    logger.info("%d lines", 7)
    logger.warning("odd")
    logger.debug("detail")
    logging.getLogger("library").debug("detail")
    raise KeyboardInterrupt


@pytest.mark.parametrize(("flags", "expected"), [
    (["-q"], WARNING),
    ([], INFO + WARNING),
    (["-v"], INFO + WARNING + DEBUG),
    (["-v", "--verbose"], INFO + WARNING + DEBUG + LIBRARY),
])  # fmt: skip
def test_messages_go_to_standard_error_by_level(
    flags: list[str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nmt.commands.prepare.prepare", log)
    result = CliRunner().invoke(app, ["prepare", DEMO, *flags])
    assert result.stderr.removesuffix("nmt: stopped by Ctrl-C\n") == expected
    assert result.stdout == ""


def test_a_command_leaves_no_handler_and_no_level_behind() -> None:
    nmt, root = logging.getLogger("nmt"), logging.getLogger()
    before = [*nmt.handlers], nmt.level, [*root.handlers], root.level
    CliRunner().invoke(app, ["prepare", "none.yaml", "-vv"])
    assert (nmt.handlers, nmt.level, root.handlers, root.level) == before


def test_a_message_does_not_tear_a_progress_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    configure_logging()
    try:
        with tqdm(total=2, file=stderr, desc="translating", mininterval=0) as bar:
            logging.getLogger("nmt.x").info("a note")
            bar.update(2)
    finally:
        remove_logging()
    assert "nmt: a note" in [line.split("\r")[-1] for line in stderr.getvalue().split("\n")]
