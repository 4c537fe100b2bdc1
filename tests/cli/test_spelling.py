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
from nmt.cli.mistakes import check_line
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
KEYS = "training.schedule.peak_lr"
PATH = "Check the path; relative paths start at the working directory."
RELATIVE = "Relative paths start at the working directory"

TRY = "set training.schedule.warmup_ratio to 0.06, a fraction of all updates"
# What is typed -> the first line of the answer, without `error: ` or `warning: `.
MISTAKES = {
    # Flags of other tools.
    "translate M -s in.de -t out": "nmt translate: unknown option -s (here: --input), -t "
    "(here: --output).",
    "translate M in.de -s de": "nmt translate: unknown option -s (here: --from).",
    "translate M --no-cuda": "nmt translate: unknown option --no-cuda (here: --device cpu).",
    "translate M --lr 1": f"nmt translate: unknown option --lr (here: {KEYS} in the "
    "configuration).",
    "translate M --batch-size 4": "nmt translate: unknown option --batch-size (here: "
    "--batch-tokens: in tokens, not sentences; chosen automatically by default).",
    "train cc.yaml": "cc.yaml: No such file or directory. Did you mean c.yaml?",
    "train -c c.yaml --config d.yaml": "nmt train accepts only one CONFIG: c.yaml and d.yaml.",
    "train c.yaml --set optimizer=adam": "--set optimizer=adam: unknown key optimizer; did you "
    "mean training.optimizer.kind=adamw?",
    "train c.yaml --set training.optimizer=adam": "--set training.optimizer=adam: "
    "training.optimizer is 'adam'; it must be a section; did you mean "
    "training.optimizer.kind=adamw?",
    "train c.yaml --layers 3": "nmt train: unknown option --layers (here: model.encoder_layers and "
    "model.decoder_layers in the configuration).",
    # What stands without a flag, or is missing.
    "translate M good day, all.": "nmt translate reads text from a file or from standard input.",
    "train in.de in.en": "nmt train needs a configuration, not text files.",
    "train c.yaml --set training.max_steps:3": "--set training.max_steps:3: expected "
        "KEY=VALUE.",
    "init in.de in.en --valid in.de --test in.de in.en": "--valid needs 2 values.",
    "average M": "nmt average needs --output.",
    "export M --zzz onnx --to x": "No such option: --zzz.",
    "-v train c.yaml": "No such option: -v",
    "train .": ".: Is a directory.",
    "train in.de": "in.de is not a YAML configuration: in.de contains no keys.",
    "inspect M attention --source a -o a.png":
    "--output a.png: the ending .png does not match the format text.",
    "translate M in.de -i in.de": "in.de and --input in.de cannot be combined.",
    "evaluate in.de in.de in.en": "Several files without flags: in.de, in.de, in.en.",
    "evaluate c.yaml": "c.yaml is a configuration, not a model. Its run folder is runs/mine.",
    # Values of other tools.
    "train c.yaml --set training.device=cuda:x": "--set training.device=cuda:x: training.device is "
    "'cuda:x'; it must be auto, cpu, cuda, cuda:N, mps (did you mean cuda:N?)",
    "config check c.yaml --set model.preset=low-resource": "--set model.preset=low-resource: "
    "model.preset is 'low-resource'; it must be transformer-base, transformer-big, tiny, modern, "
    "or null (low-resource is for the top-level key recipe: --set recipe=low-resource)",
    # Files and folders.
    "translate M/best in.de": "M/best is a checkpoint of the model M.",
    "translate M/config.yaml in.de": "M/config.yaml is a part of the model M.",
    "translate made in.de": "made has config.yaml, but neither model.safetensors nor "
    "checkpoints. Its run folder is runs/mine.",
    "translate M no.de": "no.de does not exist. Did you mean in.de?",
    "prepare gone.yaml --report-only": "data.train.0.source: gone.de does not exist. "
    "Did you mean in.de?",
    # Recipes that cannot work, and beginnings.
    "config check c.yaml": "c.yaml: training ends during warm-up, after 2 of 4,000 warm-up "
    f"updates: the learning rate never falls; {TRY}",
    "config check c.yaml --set training.schedule.warmup_ratio=400": "c.yaml:6 with --set "
    "training.schedule.warmup_ratio=400: training.schedule: warmup_ratio is a share of the run, "
    "below 1: for 400 updates set warmup_steps and remove warmup_ratio",
}  # fmt: skip


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


@pytest.mark.parametrize("typed", MISTAKES)
def test_a_mistake_is_answered_with_what_is_wrong(typed: str) -> None:
    result = nmt(typed)
    found = re.search(r"^(?:nmt: )?([Ee]rror|warning): (.*)$", result.stderr, re.MULTILINE)
    assert found is not None
    assert found[2] == MISTAKES[typed]
    assert result.exit_code in ((0,) if found[1] == "warning" else (2, 3, 4))
    assert "Value error" not in result.stderr


@pytest.mark.parametrize(("typed", "right"), [
    ("translate M -s in.de --beam 3 --gpu 0",
     "translate M --input in.de --beam-size 3 --device cuda"),
    ("translate M -s de -t en --gpu 1 in.de",
     "translate M in.de --from de --to en --device cuda:1"),
    ("translate M --tgt-lang en", "translate M --to en"),
    ("translate --model M -q --fp16 --src=-", "translate M -q --dtype float16 --input -"),
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
    ("train", "train CONFIG (YAML configuration file; nmt train --help)"),
    ("init in.de -q", "init in.de -q TARGET (Translations of the source, line by line; "
     "nmt init --help)"),
    ("augment in.en --with M -o x", "augment in.en --model M -o x"),
    ("prepare c.yaml --report x", "prepare c.yaml --report-dir x"),
    ("augment", "augment TEXT --model MODEL --output FOLDER (Monolingual text, one "
    "sentence per line; "
     "may be compressed; nmt augment --help)"),
    ("translte M 'a b'", "translate M 'a b'"),
    ("translate M in.de --remove-bpe", "translate M in.de"),
    ("prepare c.yaml --overwrite", "prepare c.yaml --force"),
    ("train c.yaml --overwrite", "train c.yaml"),
    ("build-vocab c.yaml", "prepare c.yaml"),
    ("average_checkpoints M -o x", "average M -o x"),
    ("average -o x", "average -o x RUN (Run folder created by `nmt train`; nmt average --help)"),
    ("translate M --device=cpu --beam 3 in.de", "translate M in.de --device=cpu --beam-size 3"),
    ("fine-tune M", "train CONFIG --set training.init_from=RUN"),
    ("completion bash", "--install-completion"),
    ("evaluate in.de", "evaluate --hypothesis in.de --reference REFERENCE"),
    ("evaluate M in.de in.en", "evaluate M --source in.de --reference in.en"),
    ("evaluate M in.en", "evaluate M --reference in.en"),
])  # fmt: skip
def test_the_answer_says_the_command_to_type(typed: str, right: str) -> None:
    assert nmt(typed).stderr.splitlines()[-1] == f"  fix: Type: nmt {right}"


@pytest.mark.parametrize(("typed", "right"), [
    ("in.de --required Hund -b 2", "M in.de --input-format json -b 2"),
    ("-i in.de --constraints a --required=b", "M -i in.de --input-format json"),
    ("--src in.de --prefix 'The dog'", "M --input in.de --input-format json"),
])  # fmt: skip
def test_constraints_are_answered_with_the_format_that_has_them(typed: str, right: str) -> None:
    for line in (f"translate M {typed}", f"translate {typed} --model M"):
        assert nmt(line).stderr.splitlines()[-1] == f"  fix: Type: nmt translate {right}"


@pytest.mark.parametrize("typed", [
    "train --source in.de --target in.en", "train -train_src in.de -train_tgt in.en",
    "train --trainpref in -s de -t en", "prepare in.de in.en", "prepare -s in.de -t in.en",
])  # fmt: skip
def test_texts_in_place_of_a_configuration_are_answered_with_init(typed: str) -> None:
    fix = "  fix: Type: nmt init in.de in.en (writes a configuration for two text files)"
    assert nmt(typed).stderr.splitlines()[-1] == fix


@pytest.mark.parametrize(("typed", "answer"), [
    ("translate data-bin --path checkpoint_best.pt",
     "is a checkpoint of a different tool.\n  fix: Type: nmt translate RUN FILE"),
    ("translate averaged.pt in.de",
     "is a checkpoint of a different tool.\n  fix: Type: nmt translate RUN FILE"),
    ("train c.yaml --restore-file checkpoint_last.pt",
     "(here: the same command resumes; training.init_from"),
    ("train c.yaml --resume", "\n  fix: Type: nmt train c.yaml\n"),
    ("translate Helsinki-NLP/opus-mt-en-vi", "  fix: To download it from the Hugging Face Hub, "
     "run: nmt pull Helsinki-NLP/opus-mt-en-vi --output models/opus-mt-en-vi\n"),
    ("translate hub:org/en-vi in.de", "run: nmt pull org/en-vi --output models/en-vi\n"),
])  # fmt: skip
def test_habits_of_other_tools_are_answered(typed: str, answer: str) -> None:
    assert answer in nmt(typed).stderr


@pytest.mark.parametrize(("typed", "fix"), [
    ("evaluate M -t nowhere", "`nmt evaluate --list` lists all test sets."),
    ("train empty.yaml", "Run `nmt init SOURCE TARGET` to write a configuration."),
    ("translate M in.de --n-best 9 --device cpu", "Correct the options. `nmt config keys "
     "decoding` describes every key."),
    ("translate M in.de --temperature -1 --top-p 2 --device cpu",
     "Correct the options. `nmt config keys decoding` describes every key."),
    ("config decode", "Run `nmt config --help` for a list of commands."),
    ("translate M 'ein Hund'", f"{PATH} Or type: echo 'ein Hund' | nmt translate M"),
    ("translate M Hund!", f"{PATH} Or type: echo 'Hund!' | nmt translate M"),
    ("translate M gone/Hund", PATH),
    ("translate M inn.de", PATH),
    ("evaluate in.en in.en --fail-if-worse", "Add --baseline FILE."),
    ("evaluate in.en in.en --fail-if-worse --baseline in.en --resamples 0",
     "Set --resamples to 1000, for example."),
    ("info", "Run `nmt --help` for a list of commands."),
    ("evaluate -t test", "Pass a run folder, as in `nmt evaluate RUN --test test`, or "
     "--hypothesis FILE."),
    ("train in.gz", "To train on two text files, run `nmt init SOURCE TARGET`."),
    ("train N.yaml", "Pass a configuration file, such as M/config.yaml, c.yaml, csv.yaml, "
     "or write one: nmt init SOURCE TARGET"),
    ("translate c.yaml", "Train first: `nmt train c.yaml`."),
    ("translate done.yaml", "Pass the run folder: M"),
    ("translate N", f"Pass a run folder created by `nmt train`, such as M. {RELATIVE}."),
    ("translate runs/N", f"Train a model first: `nmt train CONFIG`. {RELATIVE}."),
    ("init in.csv", "For a file with two columns, write a configuration that contains "
     "data: {train: [{csv: in.csv}]}"),
    ("inspect attention M --source a", "Type: nmt inspect M attention"),
    ("init in.de in.en -o made", "Continue with `nmt train made/config.yaml`, or choose "
     "another folder with --output."),
    ("init in.de in.en -o runs", "Choose another folder with --output."),
])  # fmt: skip
def test_the_answer_says_what_to_do(typed: str, fix: str) -> None:
    Path("runs").mkdir()
    Path("empty.yaml").write_text("# nothing\n", "utf-8")
    Path("done.yaml").write_text(Path("c.yaml").read_text("utf-8") + "run_dir: M\n", "utf-8")
    assert nmt(typed).stderr.splitlines()[-1] == f"  fix: {fix}"


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_to_type_is_one(path: str) -> None:
    options = [each for each in COMMANDS[path].params if each.param_type_name == "option"]
    names = {name for each in options for name in (*each.opts, *each.secondary_opts)}
    flags = [f"--{name.replace('_', '-')}" for name in aliases()]
    rests = [[], ["M", "y"], *([["-o", "x"]] if "-o" in names else [])]
    for flag, rest in itertools.product((*flags, "-s", "-t", "-m"), rests):
        found = suggestion(path, [*rest, flag, "3"])
        if found is not None:
            typed = [x.partition("=")[0] for x in found if x.startswith("-")]
            assert set(typed) <= names, (flag, found)
    assert suggestion(path, ["M", "--nope", "3", *rests[-1]]) is None


def suggestion(path: str, words: list[str]) -> list[str] | None:
    """The command to type instead, without its path; None if this one is right."""
    try:
        check_line(path, COMMANDS[path].params, words)
    except ConfigError as error:
        return shlex.split(error.fix.removeprefix(f"Type: {path}"))
    return None


def test_values_of_own_flags_are_not_taken_for_foreign_ones() -> None:
    words = ["M", "--set", "--lr", "--", "--beam"]
    check_line("nmt translate", COMMANDS["nmt translate"].params, words)


def test_a_table_or_json_that_would_be_translated_as_text_is_noticed() -> None:
    Path("in.csv").write_text("ein Hund,a dog\n", "utf-8")
    Path("in.jsonl.gz").write_bytes(gzip.compress(b'{"source": "ein Hund"}\n'))
    flags = "--device cpu --threads 1 --format jsonl"
    csv = "in.csv is read as plain text; every line is translated with all columns"
    json = "nmt: warning: in.jsonl.gz is read as plain text; --input-format json reads JSON"
    assert csv in nmt(f"translate M in.csv {flags}").stderr
    assert json in nmt(f"translate M in.jsonl.gz {flags}").stderr
    assert json not in nmt(f"translate M in.jsonl.gz {flags} --input-format json").stderr


def test_what_others_are_answered_with_exists() -> None:
    ours = {ours for found in aliases().values() for ours in found}
    flags = (Path(__file__).parents[1] / "contract" / "flags.txt").read_text("utf-8")
    for each in filter(is_of_command_line, ours):
        if each.startswith(": ") or each == "PREFIX":  # needs no flag; of two files
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
