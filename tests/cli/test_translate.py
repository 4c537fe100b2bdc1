"""``nmt translate`` as a user and a script see it."""

from __future__ import annotations

import gzip
import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import pytest
import torch
from typer.testing import Result

from nmt.checkpoint.model_folder import CONFIDENCE, SHORTLIST
from nmt.cli.app import app
from nmt.commands import translate as command
from nmt.commands.options import TranslateOptions
from nmt.inference import guard
from nmt.inference.confidence import ConfidenceModel, Term
from nmt.inference.translator import Translator
from nmt.text.tokenizer import Tokenizer
from tests.cli.commands import FLAGS, call, lines_of, refused
from tests.inference.conftest import sentences
from tests.inference.models import shortlist_bytes
from tests.process import started

LINES = sentences(9, seed=4, longest=8)
COMMAND = (sys.executable, "-c", "from nmt.cli import main; main()", "translate")
PATIENCE_SECONDS = 60


@pytest.fixture(scope="session")
def run_dir(runs: dict[str, Path]) -> Path:
    return runs["plain"]


@pytest.fixture
def own_run(run_dir: Path, tmp_path: Path) -> Path:
    """A copy of the run folder, to be damaged."""
    return Path(shutil.copytree(run_dir, tmp_path / "run"))


@pytest.fixture
def alarmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every output is too long."""
    monkeypatch.setattr(guard, "alarms", lambda *_: ("long",))


def translate(run: Path, *arguments: object, text: str | bytes = "") -> Result:
    return call("translate", run, *arguments, text=text)


def translated(run: Path, *arguments: object, text: str | bytes = "") -> list[str]:
    return lines_of(translate(run, *arguments, text=text))


def test_input_in_another_language_than_the_models_is_named(run_dir: Path) -> None:
    english, german = "This is the dog and the cat.\n", "Das ist der Hund und die Katze.\n"
    question = "the input looks like en, but the model translates de: wrong file or model?"
    assert question in translate(run_dir, text=11 * english).stderr
    for right in (20 * german, 10 * english):
        assert "looks like" not in translate(run_dir, text=right).stderr


def test_segmented_input_is_translated_with_a_warning(run_dir: Path) -> None:
    result = translate(run_dir, text="ein Hu@@ nd\n" * 5)
    assert result.exit_code == 0
    warning = "standard input was segmented by subword-nmt (@@), as in line 1: ein Hu@@ nd"
    assert warning in result.stderr
    assert len(result.stdout.splitlines()) == 5
    assert "segmented" not in translate(run_dir, text="ein Hu@@ nd\n" * 4).stderr


def test_as_many_lines_come_out_as_go_in(run_dir: Path) -> None:
    """Fault 42."""
    lines = ["", *LINES, " ", "a\u2028b\u0085c", "שלום", "\U0001f415", "", "der\r"]
    found = translated(run_dir, text="\n".join(lines) + "\n")
    assert len(found) == len(lines)
    assert [i for i, text in enumerate(found) if not text][:2] == [0, 10]
    assert found[1:10] == translated(run_dir, text="\n".join(LINES))  # the last without an LF
    assert translated(run_dir, "-b", 1, "--batch-tokens", 1, text="") == []


ADVERSARIAL = [
    *(b"A dog runs.", b"", b"   ", b"\t", "\u3000\u00a0".encode(), b"a", b".", b"?!?! ... --- ***"),
    *(b" leading and trailing ", b"carriage return at the end\r", b"carriage return\rinside"),
    "line separator\u2028paragraph separator\u2029next line\u0085end".encode(),
    b"form feed\x0cvertical tab\x0bnull\x00bell\x07",
    "zero width\u200bspace and joiner\u200d, byte order mark \ufeff inside".encode(),
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 flags \U0001f1e9\U0001f1ea".encode(),
    "combining e\u0301\u0323\u0308\u0301\u0301\u0301".encode(),
    *("\u202eright to left override\u202c".encode(), "\u72ac\u304c\u8d70\u308b\u3002".encode()),
    "\U00013080\U00013081 unseen signs \U000e0001".encode(),
    *(b"not UTF-8: \xff\xfe\xc3(", b"cut in a character: \xe2\x82", b"surrogate: \xed\xa0\x80"),
    *(b"<p>tags &amp; entities</p>", b"a ||| b ||| c", b'{"source": "no JSON was asked for"}'),
    *(b"--beam-size 7", b"123456789 3.14159 1,000,000 2026-11-21", b"x" * 700, b"word " * 300),
    *(b"One sentence. " * 90, ("\u00e4" * 200 + "\U0001f600" * 60).encode()),
    *(b"<s> </s> <unk> <pad> \xe2\x96\x81\xe2\x96\x81", b"A dog runs."),
]
"""Text that has broken filters: controls, other scripts, bytes that are no text, endless lines."""


def test_the_contract_holds_on_adversarial_lines(run_dir: Path) -> None:
    """Faults 42, 45 and 46: lines, their order and text, however many are searched together."""
    text = b"\n".join(ADVERSARIAL)
    found = translated(run_dir, "-b", 1, text=text)
    assert len(found) == len(ADVERSARIAL)
    for line, output in zip(ADVERSARIAL, found, strict=True):
        assert line.decode("utf-8", "replace").strip() or not output
        assert "\r" not in output
    assert found[0] == found[-1]
    for flags in (("--stream",), ("--batch-tokens", 1)):
        assert translated(run_dir, "-b", 1, *flags, text=text) == found


def test_a_line_is_answered_before_the_next_one_comes(run_dir: Path) -> None:
    """Fault 43."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with started([*COMMAND, run_dir, *FLAGS], **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for line in LINES[:3]:
            process.stdin.write(line.encode() + b"\n")
            process.stdin.flush()
            assert read_line(process.stdout).endswith(b"\n")
        process.stdin.close()
        assert process.stdout.read() == b""
        assert process.wait(PATIENCE_SECONDS) == 0


def read_line(stream: IO[bytes]) -> bytes:
    """The next line, if one comes in time; nothing is left in the buffer of the stream."""
    found = b""
    while not found.endswith(b"\n"):
        assert select.select([stream], [], [], PATIENCE_SECONDS)[0], "no answer"
        found += os.read(stream.fileno(), 1 << 16)
    return found


def test_chunks_are_prepared_beside_the_searches_of_a_gpu(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order, up to a line that ends the output."""
    expected = translated(run_dir, text="\n".join(LINES))
    load = command.load_translator

    def load_as_on_gpu(options: TranslateOptions) -> Translator:
        translator = load(options)
        translator.engine.on_gpu = True
        return translator

    monkeypatch.setattr(command, "load_translator", load_as_on_gpu)
    monkeypatch.setattr(command, "MAX_CHUNK_LINES", 2)
    assert translated(run_dir, text="\n".join(LINES)) == expected
    text = "\n".join([*(json.dumps({"source": line}) for line in LINES), "no JSON", "{}"])
    result = translate(run_dir, "--input-format", "json", text=text)
    assert (result.exit_code, result.stdout.splitlines()) == (3, expected)


def test_who_types_is_told_when_the_answers_come(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for flags, is_told in (((), True), (("--stream",), False)):
        master, slave = pty.openpty()
        os.write(master, b"Hund\n\x04")
        with monkeypatch.context() as patch, os.fdopen(slave) as keys:
            patch.setattr(sys, "stdin", keys)
            app(["translate", str(run_dir), *FLAGS, *flags], standalone_mode=False)
        os.close(master)
        output, error = capfd.readouterr()
        assert len(output.splitlines()) == 1
        assert ("--stream translates line by line" in error) == is_told


def test_a_reader_that_goes_away_ends_it_in_silence(run_dir: Path, tmp_path: Path) -> None:
    """Fault 44."""
    source, status = tmp_path / "source.de", tmp_path / "status"
    source.write_text("\n".join(LINES * 20) + "\n", "utf-8")
    script = '("$@"; echo $? > "$STATUS") | head -1'
    stream = ("--engine", "torch", "--stream", "-i", source)
    result = subprocess.run(
        ["sh", "-c", script, "sh", *COMMAND, run_dir, *FLAGS, *stream],
        capture_output=True,
        env={**os.environ, "STATUS": str(status)},
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    assert result.stdout.count(b"\n") == 1
    assert result.stderr == b""
    assert status.read_text() == "141\n"


@pytest.mark.usefixtures("alarmed")
def test_a_lost_log_message_loses_no_output(own_run: Path, tmp_path: Path) -> None:
    """Neither notes about lines nor that of the guard."""
    source, output = tmp_path / "in.de", tmp_path / "out.en"
    source.write_bytes(b"Hund\nKat\xffze\nHaus\n")
    expected = translated(own_run, "-q", "-b", 1, "-i", source)
    program = "from nmt.inference import guard; guard.alarms = lambda *_: ('long',);" + COMMAND[2]
    flags = (own_run, *FLAGS, "-b", "1", "-i", source, "-o", output)
    command = (*COMMAND[:2], program, "translate", *flags)
    subprocess.run(["sh", "-c", '"$@" 2>&-', "sh", *command], timeout=PATIENCE_SECONDS, check=True)
    assert output.read_text("utf-8").split("\n")[:-1] == expected


def test_warnings_about_damaged_lines_end_and_are_counted(run_dir: Path) -> None:
    """Fault 45."""
    translate(run_dir, text="a")  # converts the model for CTranslate2, and says so
    few = translate(run_dir, "-b", 1, "--no-guard", text=b"a\xff\n" * 20)
    many = translate(run_dir, "-b", 1, "--no-guard", text=b"a\xff\n" * 22)
    assert [few.exit_code, few.stdout.count("\n")] == [0, 20]
    assert "nmt: warning: line 2, byte 2: 0xff is not UTF-8" in few.stderr
    assert few.stderr.count("is not UTF-8;") == len(few.stderr.splitlines()) == 20
    *first, more, total = many.stderr.splitlines()
    assert first == few.stderr.splitlines()
    assert more.startswith("nmt: warning: more lines are too long or not UTF-8")
    assert total.startswith("nmt: warning: 22 lines were invalid UTF-8")
    assert "iconv -f LATIN1 -t UTF-8 FILE" in total


@pytest.mark.parametrize(("old", "new", "words"), [
    ("ff_dim: 48", "ff_dim: 64", "model.ff_dim: was 48, is 64"),
    ("source_language: de", "source_language: fr", "source_language: was de, is fr"),
    ("beam_size: 3", "beam_sizes: 3", "decoding.beam_size?"),
    ("beam_size: 3", "beam_size: [", "config.yaml"),
])  # fmt: skip
def test_a_changed_configuration_is_named(own_run: Path, old: str, new: str, words: str) -> None:
    """Fault 47."""
    path = own_run / "config.yaml"
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")
    refused(translate(own_run, text="Hund\n"), 4, words, "fix:")


def test_files_are_read_and_written_as_the_pipe_is(run_dir: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "in.de.gz", tmp_path / "out.en"
    source.write_bytes(gzip.compress("\n".join(LINES).encode()))
    assert translated(run_dir, "-i", source, "-o", output) == []
    assert output.read_text("utf-8").split("\n")[:-1] == translated(run_dir, text="\n".join(LINES))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.de.gz", "out.en"]


def test_no_input_is_overwritten(run_dir: Path, tmp_path: Path) -> None:
    source, link = tmp_path / "in.de", tmp_path / "link.de"
    source.write_text("Hund\n")
    link.symlink_to(source)
    for path in (source, link):
        refused(translate(run_dir, "-i", source, "-o", path), 2, f"{path} is also an input", "fix")
    assert source.read_text() == "Hund\n"


def test_json_has_source_translation_score_and_alternatives(run_dir: Path) -> None:
    found = translated(run_dir, "--format", "json", "--n-best", 2, text=f"{LINES[0]}\n\n")
    first, blank = (json.loads(line) for line in found)
    shared = ("translation", "score", "log_prob")
    assert set(first) == {"source", *shared, "alternatives", "alarms", "retried", "confidence"}
    assert first["source"] == LINES[0]
    assert [set(alternative) for alternative in first["alternatives"]] == [set(shared)] * 2
    assert first["alternatives"][0] == {name: first[name] for name in shared}
    empty: dict[str, object] = {"alternatives": [], "alarms": [], "retried": [], "confidence": None}
    assert blank == {"source": "", "translation": "", "score": 0.0, "log_prob": 0.0, **empty}
    (single,) = translated(run_dir, "--format", "json", text=f"{LINES[0]}\n")
    assert json.loads(single)["alternatives"] == first["alternatives"][:1]


def test_json_has_tokens_and_attention_when_asked_for(run_dir: Path) -> None:
    flags = ("--format", "json", "--token-scores", "--attention", "--n-best", 2, "--no-guard")
    first, blank = (json.loads(x) for x in translated(run_dir, *flags, text=f"{LINES[0]}\n\n"))
    assert (blank["tokens"], blank["attention"]) == ([], [])
    total = sum(token["log_prob"] for token in first["tokens"])
    assert total / len(first["tokens"]) == pytest.approx(first["score"], abs=1e-4)
    assert total == pytest.approx(first["log_prob"], abs=1e-3)
    assert {len(row) for row in first["attention"]} == {len(LINES[0].split())}
    assert all(share == round(share, 4) for row in first["attention"] for share in row)
    assert "alignment" not in first


def test_the_alignment_follows_the_text(run_dir: Path) -> None:
    flags = ("--engine", "torch", "--no-guard", "-b", 1)
    text = f"{LINES[0]}\n\n{LINES[1]}\n"
    found = [line.split(" ||| ") for line in translated(run_dir, *flags, "--alignments", text=text)]
    assert [line for line, _ in found] == translated(run_dir, *flags, text=text)
    assert found[1] == ["", ""]
    for (line, links), source in zip(found[::2], LINES, strict=False):
        pairs = [tuple(map(int, link.split("-"))) for link in links.split()]
        assert pairs == sorted(pairs)
        assert max(pairs)[0] < len(source.split())
        assert max(place for _, place in pairs) < len(line.split())


def test_the_languages_of_the_model_can_be_named_and_no_others(run_dir: Path) -> None:
    text = "\n".join(LINES)
    flags = ("-b", 1, "--no-guard")
    both = ("--from", "de", "--to", "en")
    assert translated(run_dir, *flags, *both, text=text) == translated(run_dir, *flags, text=text)
    refused(translate(run_dir, "--from", "en", text=text), 2, "fix:")
    refused(translate(run_dir, "--to", "de", text=text), 2, "fix:")


@pytest.mark.parametrize(
    ("least", "log_prob", "is_low"),
    [
        (50, (-100, 0), False),  # the estimate is 80 for every line
        (90, (-100, 0), True),
        (50, (100, 200), True),  # no estimate: unlike all lines that it was fitted to
    ],
)
def test_lines_of_low_or_unknown_confidence_are_marked_but_not_blank_ones(
    own_run: Path, least: int, log_prob: tuple[float, float], is_low: bool
) -> None:
    term = Term(weight=0.0, low=-100.0, high=100.0)
    of_log_prob = Term(weight=0.0, low=log_prob[0], high=log_prob[1])
    fitted = ConfidenceModel(intercept=80.0, log_prob=of_log_prob, probability=term, length=term,
                             ratio=term, num_lines=100)  # fmt: skip
    (own_run / CONFIDENCE).write_text(fitted.text(), "utf-8")
    flags = ("-b", 1, "--no-guard", "--min-confidence", least)
    text = f"{LINES[0]}\n\n"
    found = translated(own_run, *flags, text=text)
    assert [line.endswith(" ||| low confidence") for line in found] == [is_low, False]
    values = [json.loads(line) for line in translated(own_run, *flags, "--format=json", text=text)]
    assert [each["low_confidence"] for each in values] == [is_low, False]


def test_text_output_has_no_place_for_tokens_and_attention(tmp_path: Path) -> None:
    """Said before a model is looked for."""
    folder = tmp_path / "none"
    refused(translate(folder, "--token-scores"), 2, "cannot show --token-scores.", "--format json")
    refused(translate(folder, "--token-scores", "--attention"), 2, "--attention and --token-scores")


@pytest.mark.usefixtures("alarmed")
def test_the_guard_flags_and_counts_what_no_retry_clears(run_dir: Path) -> None:
    own_run, text = run_dir, "\n".join(LINES[:3])
    flagged = [json.loads(x) for x in translated(own_run, "--format", "json", text=text)]
    plain = [json.loads(x) for x in translated(own_run, "--format=json", "--no-guard", text=text)]
    assert all(result["alarms"] == ["long"] for result in flagged)
    assert [result["alarms"] + result["retried"] for result in plain] == [[], [], []]
    begin = time.perf_counter()
    result = translate(own_run, text=f"{text}\n\n")
    seconds = time.perf_counter() - begin
    note = r"guard: 3 of 4 translations are suspicious \(length\); a second search fixed 0 and "
    note += r"took (\d+\.\d) of (\d+\.\d) s; check length in 3 lines: 1, 2, 3\n"
    found = re.search(note, result.stderr)
    assert found
    # The command takes no longer than its call, but for the rounding.
    assert float(found[1]) <= float(found[2]) <= seconds + 0.05
    assert "guard" not in translate(own_run, "--no-guard", text=f"{text}\n\n").stderr


def test_a_shortlist_is_used_when_it_is_asked_for(own_run: Path) -> None:
    text = "\n".join(LINES)
    (own_run / SHORTLIST).write_bytes(b"{")  # damage matters only where it is used
    plain = translated(own_run, text=text)
    tokenizer = Tokenizer.load(own_run / "tokenizer" / "joint.model")
    none = torch.full((tokenizer.vocab_size, 1), -1, dtype=torch.int32)
    (own_run / SHORTLIST).write_bytes(shortlist_bytes(torch.tensor([300]), none))
    piece = tokenizer.decode([300, 300])
    assert translated(own_run, text=text) == plain
    for flags in (["--shortlist"], ["--set", "decoding.shortlist=true"]):
        found = translated(own_run, "--no-guard", *flags, text=text)
        assert found != plain
        assert {character for line in found for character in line} <= {*piece, " "}
    flags = ["--set", "decoding.shortlist=true", "--no-shortlist"]
    assert translated(own_run, *flags, text=text) == plain


def test_several_translations_are_numbered_by_their_line(run_dir: Path) -> None:
    found = translated(run_dir, "--n-best", 2, text=f"{LINES[0]}\n\n{LINES[1]}\n")
    rows = [line.split(" ||| ") for line in found]
    assert [row[0] for row in rows] == ["0", "0", "1", "2", "2"]
    scores = [float(row[2]) for row in rows]
    assert scores[0] >= scores[1]
    key = ("--set", "decoding.n_best=2")
    assert translated(run_dir, *key, text=LINES[0]) == found[:2]
    assert len(translated(run_dir, *key, "--n-best", 1, text=LINES[0])) == 1  # a flag beats a key


@pytest.mark.parametrize(("flags", "words"), [
    (["--alignments", "--set=decoding.n_best=3"], "cannot show the alignments of 3 translations"),
    (["--set=training.seed=3", "--set=decoding.beam_size=2", "--set=name=x"],
     "--set training.seed=3, name=x has no effect"),
    (["--mbr-candidates", 8], "--mbr-candidates needs --mbr"),
    (["--mbr-from", "beam"], "--mbr-from needs --mbr"),
    (["--ensemble-mean", "geometric"], "--ensemble-mean needs --with"),
])  # fmt: skip
def test_flags_without_effect_are_refused(run_dir: Path, flags: list[object], words: str) -> None:
    refused(translate(run_dir, *flags, text="Hund\n"), 2, words, "fix:")


@pytest.mark.parametrize(("flags", "key", "count"), [
    (["-b", 4, "--n-best", 2], "diverse_beam_groups=2", 2),
    (["--sample"], "epsilon_cutoff=0.02", 1),
    (["-b", 8], "n_best=8", 8),
])  # fmt: skip
def test_flags_and_keys_are_checked_together(
    run_dir: Path, flags: list[object], key: str, count: int
) -> None:
    flags = ["--no-guard", *flags, "--set", f"decoding.{key}"]
    assert len(translated(run_dir, *flags, text="der Hund läuft\n")) == count


REQUESTS = [
    {"source": "der Hund"},
    {"id": 7, "source": "die Katze", "required": ["groß"], "forbidden": ["groß"]},
    {"sourc": "x"},
    {"source": "das Haus"},
    {"source": "Hund", "prefix": "Katze " * 500},
]


def test_json_lines_that_cannot_be_answered_are_answered_with_an_error(
    run_dir: Path, tmp_path: Path
) -> None:
    """Neither they nor the others are lost; the exit code tells."""
    source, output = tmp_path / "in.json", tmp_path / "out.json"
    lines = [*map(json.dumps, REQUESTS), "no JSON"]
    source.write_text("".join(line + "\n" for line in lines), "utf-8")
    flags = ("--input-format", "json", "--format", "json", "-i", source, "-o", output)
    refused(translate(run_dir, *flags), 3, "4 lines could not be translated. The first: Line 2: ")
    found = [json.loads(line) for line in output.read_text("utf-8").splitlines()]
    good = [json.dumps(REQUESTS[row]) for row in (0, 3)]
    expected = translated(run_dir, *flags[:4], text="\n".join(good))
    for row, line in zip((0, 3), expected, strict=True):
        assert found[row]["translation"] == json.loads(line)["translation"]
    assert found[1]["error"].startswith("Line 2: a required phrase contains a forbidden phrase")
    assert found[1]["id"] == 7
    assert found[2] == {"sourc": "x", "error": "Line 3 needs a string in source."}
    assert found[5] == {"line": 6, "error": "Line 6 is not JSON (Expecting value, at column 1)."}
    assert found[4]["error"].startswith("Line 5: the prefix and the required phrases have ")


def test_a_field_that_looks_like_one_of_a_request_is_named_once(run_dir: Path) -> None:
    """It passes through, and whoever wrote it may have meant something."""
    fields = [{"forced": "a", "id": "1"}, {"forced": "b", "prefx": "c"}, {"forced": "d"}]
    text = "".join(json.dumps({"source": "Hund", **each}) + "\n" for each in fields)
    result = translate(run_dir, "--input-format", "json", "--format", "json", text=text)
    warnings = [line for line in result.stderr.splitlines() if "field" in line]
    text = "nmt: warning: line {}: unknown field '{}' is copied to the output (did you mean '{}'?)"
    rows = [(1, "forced", "required"), (2, "prefx", "prefix")]
    assert warnings == [text.format(*row) for row in rows]
    assert [json.loads(line)["forced"] for line in lines_of(result)] == ["a", "b", "d"]
    bad = '{"source": "Hund", "required": "a"}'  # the answer keeps its source, which is no mistake
    result = translate(run_dir, "--input-format", "json", "--format", "json", text=bad)
    assert json.loads(result.stdout)["source"] == "Hund"
    assert "passed through" not in result.stderr


def test_lone_surrogates_are_replaced_as_bytes_that_are_not_utf_8_are(run_dir: Path) -> None:
    """In fields that are copied, and in the source, they stay what they are."""
    flags = ("--input-format", "json", "--format", "json")
    text = r'{"source": "a \ud800 b", "prefix": "\udfff", "id": "\ud800"}'
    (found,) = translated(run_dir, *flags, text=text)
    assert json.loads(found)["source"] == "a \ud800 b"
    assert json.loads(found)["id"] == "\ud800"
    same = text.replace("\\ud800 b", "\ufffd b").replace("\\udfff", "\ufffd")
    (replaced,) = translated(run_dir, *flags, text=same)
    assert json.loads(replaced) == json.loads(found) | {"source": "a \ufffd b"}


def test_a_warning_about_a_line_comes_once(run_dir: Path) -> None:
    """Whatever has to be tried again for another line."""
    long = {"source": " ".join(sentences(12, seed=3))}
    text = "\n".join(json.dumps(request) for request in [long, *REQUESTS[:2], *[long] * 3])
    result = translate(run_dir, "--input-format", "json", "--format", "json", text=text)
    assert result.exit_code == 3
    assert result.stderr.count("cut into") == 4
    assert len(result.stdout.splitlines()) == 6


@pytest.mark.parametrize("bad", REQUESTS[1:3] + REQUESTS[4:], ids=["phrases", "key", "prefix"])
def test_text_ends_at_a_request_without_an_answer(run_dir: Path, bad: dict[str, object]) -> None:
    """After the answers to those before it."""
    lines = [{"source": line} for line in LINES]
    text = "\n".join(json.dumps(request) for request in [*lines, bad, *lines])
    result = translate(run_dir, "--input-format", "json", text=text)
    assert result.exit_code == 3
    assert f"Line {len(LINES) + 1}" in result.stderr
    assert "With --format json, all other lines are translated." in result.stderr
    assert result.stdout.splitlines() == translated(run_dir, text="\n".join(LINES))


def test_bad_flags_fail(run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Faults 9 and 49."""
    refused(translate(run_dir, "--n-best", 3, "-b", 2), 2, "n_best (3)", "beam_size (2)")
    refused(translate(run_dir, "-b", 999), 2, "beam_size is 999")
    refused(translate(run_dir, "--length-penalty", "nan"), 2, "--length-penalty")
    refused(translate(run_dir, "--checkpoint", "newest"), 2, "best, last, step-N or average")
    refused(translate(run_dir, "--checkpoint", "step-7"), 4, "step-00000007", "step-00000001")
    refused(translate(run_dir, "-i", tmp_path / "none.de"), 3, "none.de")
    refused(translate(run_dir, "-o", run_dir / "config.yaml" / "below"), 2, "config.yaml")
    monkeypatch.setattr(os, "access", lambda _, mode: mode == os.F_OK)
    refused(translate(tmp_path), 4, f"no permission to read {tmp_path}", "fix:")


def test_samples_are_drawn_by_their_seed(run_dir: Path) -> None:
    text = "\n".join(LINES)
    flags = ("--sample", "--no-guard", "--top-p", 0.95, "--temperature", 1.5)
    first = translated(run_dir, *flags, text=text)
    assert translated(run_dir, *flags, "--stream", "--batch-tokens", 1, text=text) == first
    assert translated(run_dir, *flags, "--seed", 8, text=text) != first
    three = translated(run_dir, *flags, "--n-best", 3, text=text)
    assert [line.split(" ||| ")[1] for line in three[::3]] == first
    likeliest = translated(run_dir, "--sample", "--no-guard", "--top-k", 1, text=text)
    assert likeliest == translated(run_dir, "--no-guard", "-b", 1, text=text)
    refused(translate(run_dir, "--top-p", 0.9, text=text), 2, "top_p", "sampling", "fix:")


@pytest.mark.parametrize("key", ["sampling", "return_alternatives"])
def test_a_beam_size_is_refused_where_there_is_no_beam(run_dir: Path, key: str) -> None:
    flags = ["--set", f"decoding.{key}=true"]
    plain = translated(run_dir, *flags, "--no-guard", text=LINES[0])
    assert translated(run_dir, *flags, "-b", 1, "--no-guard", text=LINES[0]) == plain
    refused(translate(run_dir, *flags, "-b", 4), 2, "--beam-size 4 cannot be combined", "fix:")


def test_a_long_line_goes_through_whole_where_positions_allow_it(runs: dict[str, Path]) -> None:
    line = " ".join(sentences(9, seed=2))
    cut = translate(runs["plain"], "-b", 1, text=line)
    whole = translate(runs["plain"], "-b", 1, "--no-split", text=line)
    assert "cut into" in cut.stderr
    assert "cut into" not in whole.stderr
    assert len(lines_of(whole)) == 1
    assert lines_of(whole) != lines_of(cut)
    result = translate(runs["learned"], "--no-split", text=line)
    refused(result, 2, "the model has 40 positions", "Remove --no-split")


@pytest.mark.parametrize("engine", ["torch", "ctranslate2", "ensemble"])
def test_every_engine_writes_the_terms_of_a_glossary(
    runs: dict[str, Path], tmp_path: Path, engine: str
) -> None:
    terms = tmp_path / "terms.tsv"
    terms.write_text("Hund|Katze\tlittle beast\n", encoding="utf-8")
    flags = ["--engine", engine]
    if engine == "ensemble":
        flags = ["--with", str(runs["plain"])]
    text = "".join(f"{line}\n" for line in LINES)
    result = translate(runs["plain"], *FLAGS, *flags, "--glossary", terms, text=text)
    for line, translation in zip(LINES, lines_of(result), strict=True):
        has_term = not {"Hund", "Katze"}.isdisjoint(line.split())
        assert ("ittle beast" in translation) is has_term
    num_lines = sum(not {"Hund", "Katze"}.isdisjoint(line.split()) for line in LINES)
    assert f"glossary: 2 terms, found in {num_lines} of {len(LINES)} lines" in result.stderr
    terms.write_text("Hund\n", encoding="utf-8")
    failed = translate(runs["plain"], *FLAGS, "--glossary", terms, text=text)
    assert failed.exit_code == 3
    assert "terms.tsv:1" in failed.stderr


def test_a_line_has_a_glossary_of_its_own(runs: dict[str, Path], tmp_path: Path) -> None:
    terms = tmp_path / "terms.tsv"
    terms.write_text("Hund\tlittle beast\n", encoding="utf-8")
    inputs = [{"source": "der Hund"}, {"source": "der Hund", "glossary": "Hund\tbig beast"},
              {"source": "der Hund", "glossary": ""}]  # fmt: skip
    text = "".join(f"{json.dumps(values)}\n" for values in inputs)
    formats = ["--input-format", "json", "--format", "json"]
    result = translate(runs["plain"], *FLAGS, *formats, "--glossary", terms, text=text)
    outputs = [json.loads(line) for line in lines_of(result)]
    has_term = [
        [word in output["translation"] for word in ("little beast", "big beast")]
        for output in outputs
    ]
    assert has_term == [[True, False], [False, True], [False, False]]
    assert not any("glossary" in output for output in outputs)
