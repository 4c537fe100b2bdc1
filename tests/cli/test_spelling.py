"""What is typed wrongly in the first hour, and the first line of each answer."""

from __future__ import annotations

import gzip
import itertools
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from nmt.cli.app import app
from nmt.config.keys import aliases, find_key, is_of_command_line
from nmt.errors import ConfigError
from tests.cli.commands import all_commands

CONFIG = """
name: mine
source_language: de
target_language: en
data: {train: [{TRAIN}], valid: {source: in.de, target: in.en}}
training: {max_steps: 2}
"""
PAIR = "{source: in.de, target: in.en}"
# What is typed, the exit code, and what the first line of the answer names.
MISTAKES = (
    # Flags of other tools.
    ("translate M -s in.de -t out", 2, "-s --input -t --output"),
    ("translate M in.de -s de", 2, "-s --from"),
    ("translate M --no-cuda", 2, "--no-cuda --device cpu"),
    ("translate M --lr 1", 2, "--lr training.schedule.peak_lr"),
    ("translate M --batch-size 4", 2, "--batch-size --batch-tokens"),
    ("translate M --scores", 2, "--scores --format json"),
    ("train c.yaml --batch-size 4", 2, "--batch-size batch.max_tokens batch.max_sentences"),
    ("train cc.yaml", 2, "cc.yaml c.yaml"),
    ("train -c c.yaml --config d.yaml", 2, "CONFIG c.yaml d.yaml"),
    ("train c.yaml --set optimizer=adam", 2, "optimizer training.optimizer.kind=adamw"),
    ("train c.yaml --set training.optimizer=adam", 2, "training.optimizer.kind=adamw"),
    ("train c.yaml --layers 3", 2, "--layers model.encoder_layers model.decoder_layers"),
    # What stands without a flag, or is missing.
    ("train c.yaml --set training.max_steps:3", 2, "training.max_steps:3 KEY=VALUE"),
    ("average M", 2, "--output"),
    ("export M --zzz onnx --to x", 2, "--zzz"),
    ("-v train c.yaml", 2, "-v"),
    ("train .", 2, ".: directory"),
    ("train in.de", 2, "in.de YAML"),
    ("inspect M attention --source a -o a.png", 2, "--output a.png .png text"),
    ("translate M in.de -i in.de", 2, "in.de --input"),
    ("evaluate in.de in.de in.en", 2, "in.de, in.en"),
    ("evaluate c.yaml", 4, "c.yaml runs/mine"),
    # Values of other tools.
    ("train c.yaml --set training.device=cuda:x", 2, "training.device cuda:x mps cuda:N?"),
    ("config check c.yaml --set recipe=low-resource", 2, "recipe model.preset"),
    # Files and folders.
    ("translate M/best in.de", 4, "M/best"),
    ("translate M/config.yaml in.de", 4, "M/config.yaml"),
    ("translate made in.de", 4, "made model.safetensors checkpoints runs/mine"),
    ("translate M no.de", 3, "no.de in.de?"),
    ("prepare gone.yaml --report-only", 3, "data.train.0.source gone.de in.de?"),
    # Recipes that cannot work, and beginnings.
    ("config check c.yaml --set 'training.schedule={shape: inverse_sqrt, warmup_steps: 4000}'", 0,
     "c.yaml 2 4,000 training.schedule.warmup_ratio 0.06"),
    ("config check c.yaml --set training.schedule.warmup_ratio=400", 2,
     "c.yaml:6 training.schedule warmup_steps warmup_ratio"),
)  # fmt: skip


COMMANDS = dict(all_commands())


def nmt(line: str) -> Result:
    return CliRunner().invoke(app, shlex.split(line), prog_name="nmt")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: dict[str, Path]) -> None:
    """A working directory with a model ``M``, two lines of text and some configurations."""
    monkeypatch.chdir(tmp_path)
    Path("M").symlink_to(runs["plain"])
    for name, place in (("c", PAIR), ("csv", PAIR), ("gone", "{source: gone.de, target: in.en}")):
        Path(f"{name}.yaml").write_text(CONFIG.replace("{TRAIN}", place), "utf-8")
    Path("in.de").write_text("ein Hund\n", "utf-8")
    Path("in.en").write_text("a dog\n", "utf-8")
    Path("in.gz").write_bytes(gzip.compress(b"ein Hund"))
    Path("made").mkdir()
    Path("made/config.yaml").write_text(Path("c.yaml").read_text("utf-8"), "utf-8")
    Path("runs").mkdir()
    Path("empty.yaml").write_text("# nothing\n", "utf-8")
    Path("done.yaml").write_text(Path("c.yaml").read_text("utf-8") + "run_dir: M\n", "utf-8")


def fix_of(typed: str, code: int) -> str:
    """Return what the last line of an answer says to do."""
    result = nmt(typed)
    assert result.exit_code == code
    last = result.stderr.splitlines()[-1]
    assert last.startswith("  fix: ")
    return last.removeprefix("  fix: ")


def command_in(fix: str) -> str:
    """Return the command of a fix, without the explanation after it; empty if there is none."""
    found = re.search(r"(?:echo '.*' \| )?nmt [^`]*?(?=, | \(|`|$)", fix)
    return found[0] if found else ""


@pytest.mark.parametrize(("typed", "code", "names"), MISTAKES)
def test_a_mistake_is_answered_with_what_is_wrong(typed: str, code: int, names: str) -> None:
    result = nmt(typed)
    found = re.search(r"^(?:nmt: )?(?:[Ee]rror|warning): (.*)$", result.stderr, re.MULTILINE)
    assert found is not None
    assert [name for name in names.split() if name not in found[1]] == []
    assert result.exit_code == code
    assert "Value error" not in result.stderr


@pytest.mark.parametrize(("typed", "right"), [
    ("translate M -s in.de --beam 3 --gpu 0",
     "translate M --input in.de --beam-size 3 --device cuda"),
    ("translate M -s de -t en --gpu 1 in.de",
     "translate M in.de --from de --to en --device cuda:1"),
    ("translate M --tgt-lang en", "translate M --to en"),
    ("translate --model M -q --fp16 --src=-", "translate M -q --input -"),
    ("translate M -o 'a b' --greedy", "translate M -o 'a b' --beam-size 1"),
    ("train -v --lr 0.1 --config c.yaml",
     "train c.yaml -v --set training.schedule.peak_lr=0.1"),
    ("score M --sampling", "score M --set decoding.sampling=true"),
    ("translate M --confidence in.de", "translate M in.de --format json"),
    ("evaluate M -i in.de -r in.en", "evaluate M --source in.de --reference in.en"),
    ("evaluate -i in.de -r in.en", "evaluate --hypothesis in.de --reference in.en"),
    ("train c.yaml --finetune M", "train c.yaml --set training.init_from=M"),
    ("translate M in.de out", "translate M in.de --output out"),
    ("score M in.de in.en", "score M --source in.de --target in.en"),
    ("init -t in.en -o x in.de", "init in.de in.en -o x"),
    ("init in.ary in.en --src ary --tgt en", "init in.ary in.en --languages ary-en"),
    ("init in.de in.en --dev a.de a.en", "init in.de in.en --valid a.de a.en"),
    ("check c.yaml", "config check c.yaml"),
    ("evaluate -i in.de --ref in.en -m bleu chrf",
     "evaluate --hypothesis in.de --reference in.en --metric bleu,chrf"),
    ("train", "train CONFIG"),
    ("init -q", "init -q PLACE"),
    ("augment in.en --with M -o x", "augment in.en --model M -o x"),
    ("prepare c.yaml --report x", "prepare c.yaml --report-dir x"),
    ("augment", "augment TEXT --model MODEL --output FOLDER"),
    ("translte M 'a b'", "translate M 'a b'"),
    ("translate M in.de --remove-bpe", "translate M in.de"),
    ("prepare c.yaml --overwrite", "prepare c.yaml --force"),
    ("train c.yaml --overwrite", "train c.yaml"),
    ("build-vocab c.yaml", "prepare c.yaml"),
    ("average_checkpoints M -o x", "average M -o x"),
    ("average -o x", "average -o x RUN"),
    ("translate M --device=cpu --beam 3 in.de", "translate M in.de --device=cpu --beam-size 3"),
    ("fine-tune M", "train CONFIG --set training.init_from=RUN"),
    ("completion bash", "--install-completion"),
    ("evaluate in.de", "evaluate --hypothesis in.de --reference REFERENCE"),
    ("evaluate M in.de in.en", "evaluate M --source in.de --reference in.en"),
    ("evaluate M in.en", "evaluate M --reference in.en"),
    ("evaluate in.en --hypothesis in.de", "evaluate --hypothesis in.de --reference in.en"),
    ("evaluate M in.de --reference in.en", "evaluate M --source in.de --reference in.en"),
    ("export M out", "export M --output out"),
    ("average M out", "average M --output out"),
    ("augment M in.de -o out", "augment in.de -o out --model M"),
    ("augment M in.de", "augment in.de --model M --output FOLDER"),
    ("translate M in.de --target-language en", "translate M in.de --to en"),
    ("config explain training.max_steps", "config keys training.max_steps"),
    ("config validate c.yaml", "config check c.yaml"),
    ("version", "--version"),
])  # fmt: skip
def test_the_answer_says_the_command_to_type(typed: str, right: str) -> None:
    assert command_in(fix_of(typed, code=2)) == f"nmt {right}"


@pytest.mark.parametrize(("typed", "right"), [
    ("in.de --required Hund -b 2", "M in.de --input-format json -b 2"),
    ("-i in.de --constraints a --required=b", "M -i in.de --input-format json"),
    ("--src in.de --prefix 'The dog'", "M --input in.de --input-format json"),
])  # fmt: skip
def test_constraints_are_answered_with_the_format_that_has_them(typed: str, right: str) -> None:
    for line in (f"translate M {typed}", f"translate {typed} --model M"):
        assert command_in(fix_of(line, code=2)) == f"nmt translate {right}"


@pytest.mark.parametrize("typed", [
    "train --source in.de --target in.en", "train -train_src in.de -train_tgt in.en",
    "train --trainpref in -s de -t en", "prepare in.de in.en", "prepare -s in.de -t in.en",
    "train in.de in.en",
])  # fmt: skip
def test_texts_in_place_of_a_configuration_are_answered_with_init(typed: str) -> None:
    assert command_in(fix_of(typed, code=2)) == "nmt init in.de in.en"


# What is typed, the exit code, and the command that the fix contains; none if it is empty.
COMMANDS_TO_TYPE = (
    # Habits of other tools.
    ("translate data-bin --path checkpoint_best.pt", 2, "nmt translate RUN FILE"),
    ("translate averaged.pt in.de", 2, "nmt translate RUN FILE"),
    ("train c.yaml --resume", 2, "nmt train c.yaml"),
    ("train c.yaml --restore-file checkpoint_last.pt", 2, "nmt train c.yaml"),
    ("translate Helsinki-NLP/opus-mt-en-vi", 4,
     "nmt pull Helsinki-NLP/opus-mt-en-vi --output models/opus-mt-en-vi"),
    ("translate hub:org/en-vi in.de", 4, "nmt pull org/en-vi --output models/en-vi"),
    # A sentence in place of a file.
    ("translate M good day, all.", 2, "echo 'good day, all.' | nmt translate M"),
    ("translate M 'ein Hund'", 3, "echo 'ein Hund' | nmt translate M"),
    ("translate M Hund!", 3, "echo 'Hund!' | nmt translate M"),
    ("translate M gone/Hund", 3, ""),
    ("translate M inn.de", 3, ""),
    # Where to read on.
    ("evaluate M -t nowhere", 2, "nmt evaluate --list"),
    ("translate M in.de --n-best 9 --device cpu", 2, "nmt config keys decoding"),
    ("translate M in.de --temperature -1 --top-p 2 --device cpu", 2, "nmt config keys decoding"),
    ("config decode", 2, "nmt config --help"),
    ("info", 2, "nmt --help"),
    # What comes first.
    ("train empty.yaml", 2, "nmt init SOURCE TARGET"),
    ("train in.gz", 2, "nmt init SOURCE TARGET"),
    ("train N.yaml", 2, "nmt init SOURCE TARGET"),
    ("evaluate -t test", 2, "nmt evaluate RUN --test test"),
    ("translate c.yaml", 4, "nmt train c.yaml"),
    ("translate N", 4, "nmt train"),
    ("translate runs/N", 4, "nmt train CONFIG"),
    ("inspect attention M --source a", 2, "nmt inspect M attention"),
    ("init in.de in.en -o made", 2, "nmt train made/config.yaml"),
)  # fmt: skip


@pytest.mark.parametrize(("typed", "code", "command"), COMMANDS_TO_TYPE)
def test_the_fix_contains_a_command(typed: str, code: int, command: str) -> None:
    assert command_in(fix_of(typed, code)) == command


@pytest.mark.parametrize(("typed", "code", "names"), [
    ("evaluate in.en in.en --fail-if-worse", 2, "--baseline"),
    ("evaluate in.en in.en --fail-if-worse --baseline in.en --resamples 0", 2, "--resamples 1000"),
    ("train N.yaml", 2, "M/config.yaml c.yaml csv.yaml"),
    ("translate done.yaml", 4, "M"),
    ("translate N", 4, "M"),
    ("translate M/best in.de", 4, "M --checkpoint best"),
    ("init in.de in.en -o made", 2, "--output"),
    ("init in.de in.en -o runs", 2, "--output"),
    ("translate M inn.de", 3, "path working directory"),
    ("evaluate --hypothesis M --reference in.en", 2, "without --hypothesis"),
    ("inspect M 'ein Hund'", 2, "--source"),
    ("serve done.yaml", 4, "M"),
    ("train c.yaml csv.yaml", 2, "one at a time"),
    ("average M M", 2, "one at a time"),
])  # fmt: skip
def test_the_fix_names_what_to_change(typed: str, code: int, names: str) -> None:
    fix = fix_of(typed, code)
    assert [name for name in names.split() if name not in fix] == []


@pytest.mark.parametrize(("typed", "answer"), [
    ("data={train: [in.de, in.en]}",
     "data.train.1 is 'in.en'; it must be a section, such as {source: FILE, target: FILE}"),
    ("data={train: in.de}",
     "data.train is 'in.de'; it must be a list, items at least 1, "
     "such as [{source: FILE, target: FILE}]"),
    ("data={test: {source: in.de}}",
     "data.test.source is 'in.de'; it must be a section, such as {source: FILE, target: FILE}"),
    ("decoding={batch_size: 9}", "did you mean decoding.batch_tokens (in source tokens)?"),
])  # fmt: skip
def test_a_wrong_value_or_key_is_answered_with_the_form_of_its_section(
    typed: str, answer: str
) -> None:
    assert answer in nmt(f"config check c.yaml --set '{typed}'").stderr


def test_text_after_a_flag_is_answered_with_a_pipe() -> None:
    assert "echo TEXT | nmt translate" in nmt("translate M --text Hund").stderr


def test_an_unknown_key_to_explain_is_answered_with_one_question() -> None:
    assert "did you mean training.max_steps?\n" in nmt("config keys training.max_step").stderr


def test_a_checkpoint_of_another_tool_is_continued_by_the_same_command() -> None:
    answer = nmt("train c.yaml --restore-file checkpoint_last.pt").stderr
    assert "training.init_from" in answer


@pytest.mark.long  # Shorter tests see the usual mistakes of each command.
@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_to_type_is_one(path: str) -> None:
    options = [each for each in COMMANDS[path].params if each.param_type_name == "option"]
    names = {name for each in options for name in (*each.opts, *each.secondary_opts)}
    # Every name is tried, but each with some of the commands only, to save time.
    mine = itertools.islice(aliases(), [*COMMANDS].index(path) % 10, None, 10)
    flags = [f"--{name.replace('_', '-')}" for name in mine]
    rests = [[], ["M", "y"], *([["-o", "x"]] if "-o" in names else [])]
    for flag, rest in itertools.product((*flags, "-s", "-t", "-m"), rests):
        found = suggestion(path, [*rest, flag, "3"])
        if found is not None:
            typed = [x.partition("=")[0] for x in found if x.startswith("-")]
            assert set(typed) <= names, (flag, found)
    assert suggestion(path, ["M", "--nope", "3", *rests[-1]]) is None


def suggestion(path: str, words: list[str]) -> list[str] | None:
    """The command to type instead, without its path; None if there is none."""
    command = COMMANDS[path]
    try:
        command.make_context(path, words)
    except ConfigError as error:
        found = re.search(rf": {path}( [^(\n]*|)( \(|$)", error.fix, re.MULTILINE)
        return shlex.split(found[1]) if found else None
    return None


def test_values_of_own_flags_are_not_taken_for_foreign_ones() -> None:
    words = ["M", "--set", "a=--lr", "--beam-size", "3", "--", "--beam"]
    COMMANDS["nmt translate"].make_context("nmt translate", words)


def test_a_format_that_would_be_translated_as_text_is_noticed() -> None:
    Path("in.csv").write_text("ein Hund,a dog\n", "utf-8")
    Path("in.po").write_text('msgid "ein Hund"\nmsgstr ""\n', "utf-8")
    Path("in.sgm").write_text('<seg id="1">ein Hund</seg>\n', "utf-8")
    Path("in.jsonl.gz").write_bytes(gzip.compress(b'{"source": "ein Hund"}\n'))
    flags = "--device cpu --threads 1 --format jsonl"
    for name in ("in.csv", "in.po", "in.sgm"):
        assert f"{name} is read as plain text" in nmt(f"translate M {name} {flags}").stderr
    warning = "in.jsonl.gz is read as plain text; --input-format json"
    assert warning in nmt(f"translate M in.jsonl.gz {flags}").stderr
    assert warning not in nmt(f"translate M in.jsonl.gz {flags} --input-format json").stderr


def test_what_others_are_answered_with_exists() -> None:
    ours = {ours for found in aliases().values() for ours in found}
    flags = (Path(__file__).parents[1] / "contract" / "flags.txt").read_text("utf-8")
    for each in filter(is_of_command_line, ours):
        # The first needs no flag; the others are two files, the places of `nmt init`.
        if each.startswith(": ") or each in ("PREFIX", "SOURCE", "TARGET", "ORG/NAME"):
            continue
        if each.startswith("--set "):
            path = re.split("[=:]", each.split()[1])[0].split(".")
            assert find_key([int(x) if x.isdecimal() else x for x in path]), each
        else:
            assert re.split("[ :]", each)[0] in flags.replace("/", " ").split(), each


def test_swapped_languages_are_noticed_in_all_sets() -> None:
    Path("in.de").write_text("der Hund und die Katze sind nicht mit dem Kind\n" * 20, "utf-8")
    Path("in.en").write_text("the dog and the cat are not with the child\n" * 20, "utf-8")
    text = Path("c.yaml").read_text("utf-8").replace("data: {", f"data: {{test: {{t: {PAIR}}}, ")
    text = text.replace("_language: de", "_language: EN").replace("_language: en", "_language: de")
    Path("c.yaml").write_text(text.replace("EN", "en"), "utf-8")
    result = nmt("prepare c.yaml --report-only --set tokenizer.vocab_size=300")
    swapped = ": the source looks like de and the target like en. Are the sides swapped?"
    for name in ("in.de", "valid", "data.test.t"):
        assert f"warning: {name}{swapped}\n" in result.stdout
