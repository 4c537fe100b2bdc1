"""The documents: their commands run or have options that exist, and links lead somewhere."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from typer.main import get_command
from typer.testing import CliRunner

import nmt
from nmt.cli.app import app
from nmt.cli.builder import fields_of
from nmt.commands.config import load_config
from nmt.config.flag import option_name
from nmt.model.transformer import Transformer
from tests.cli.commands import acted_on, examples
from tests.quick import preloaded

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("README.md", "configs/*.md", "nmt/*.md", "nmt/docs/*.md", "scripts/*.md")
    for path in ROOT.glob(pattern)
)
SHORT_TOUR = "README.md"
LONG_TOURS = ["nmt/docs/guide.md", "nmt/docs/pretrained.md", "nmt/docs/tutorial.md"]
GATES = "nmt/docs/guide.md"

# The tours for real, but in seconds: on a toy corpus, with a toy model.
SHORTER = {
    "tokenizer.vocab_size": 400, "model.model_dim": 32, "model.ff_dim": 64, "model.num_heads": 2,
    "training.max_minutes": None, "training.max_steps": 6,
}  # fmt: skip
WORDS = {
    "Hund": "dog", "Katze": "cat", "Haus": "house", "Baum": "tree", "Kind": "child",
    "läuft": "walks", "schläft": "sleeps", "singt": "sings", "steht": "stands", "ruft": "calls",
}  # fmt: skip


@dataclass(frozen=True)
class Block:
    """One fenced block of a document and the mark before it.

    Marks: ``run`` (in one folder, in order), ``file NAME`` (written there), ``actions`` (a CI job),
    ``flags`` (options are checked), ``not run: REASON`` (options are checked as well).
    """

    mark: str
    language: str
    text: str


def text_of(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


def blocks(document: str) -> Iterator[Block]:
    pattern = r"(?:<!-- test: ([^>]*?) -->\n)?```(\w*)\n(.*?)```"
    for found in re.finditer(pattern, text_of(document), re.DOTALL):
        yield Block(found[1] or "", found[2], found[3])


def commands() -> list[str]:
    """Every line of every document that calls `nmt`, pipes and substitutions taken apart."""
    found = []
    for document in DOCUMENTS:
        for block in blocks(document):
            lines = re.sub(r"\s#.*", "", block.text.replace("\\\n", " ")).splitlines()
            if block.language == "console":
                lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
            elif block.language != "sh":
                continue
            for line in lines:
                found += calls(line)
    return sorted(set(found))


def calls(line: str) -> list[str]:
    """Return the calls of `nmt` in a line, without the pipes and substitutions around them."""
    substituted = re.findall(r"\$\((.*?)\)", line)
    outside = re.sub(r"\$\(.*?\)", "VALUE", line)
    parts = [part.strip() for part in re.split(r"\||&&", outside)]
    return [part for part in [*parts, *substituted] if re.match(r"(?:\S+=\S* )*nmt ", part)]


def write_corpus(folder: Path) -> None:
    generator = random.Random(1)
    for name, count in {"train": 200, "valid": 8, "test": 8}.items():
        pairs = [generator.choices(list(WORDS), k=generator.randint(2, 7)) for _ in range(count)]
        for language, lines in {
            "de": [" ".join(pair) for pair in pairs],
            "en": [" ".join(WORDS[word] for word in pair) for pair in pairs],
        }.items():
            path = folder / f"{name}.{language}"
            path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")


@pytest.mark.parametrize(
    "document", [SHORT_TOUR, *(pytest.param(name, marks=pytest.mark.long) for name in LONG_TOURS)]
)
@pytest.mark.long
def test_the_tour_works_as_it_is_written(tmp_path: Path, document: str) -> None:
    write_corpus(tmp_path)
    folder = Path(sys.executable).parent
    own = {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    with preloaded(os.environ | own) as environment:
        for block in blocks(document):
            if block.mark.startswith("file "):
                file = tmp_path / block.mark.removeprefix("file ")
                file.write_text(block.text, encoding="utf-8")
            elif block.mark == "run":
                run(block, cwd=tmp_path, env=environment)


def run(block: Block, **place: Any) -> None:
    """Run a block in its language; it prints what it shows."""
    shell = ["bash", "-euo", "pipefail"] if block.language != "python" else [sys.executable]
    result = subprocess.run(
        [*shell, "-c", shortened(block)], capture_output=True, timeout=300, **place
    )
    assert result.returncode == 0, f"{block.text}\n{result.stderr.decode()}"
    for line in printed(block):
        assert re.search(line, result.stdout.decode() + result.stderr.decode()), line


def shortened(block: Block) -> str:
    """The commands of a block; what trains or prepares does so for seconds."""
    if block.language == "python":
        return block.text
    settings = " ".join(f"--set {key}={json.dumps(value)}" for key, value in SHORTER.items())
    lines = block.text.splitlines()
    if block.language == "console":
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    return "\n".join(
        re.sub(r"nmt (train|prepare) ([^\s-]\S*)", rf"nmt \1 \2 {settings}", line) for line in lines
    )


def printed(block: Block) -> Iterator[str]:
    """Patterns of the lines that a console block shows; numbers, spaces and `...` may differ."""
    if block.language == "console":
        for line in block.text.splitlines():
            if line.strip() and not line.startswith("$ "):
                words = re.sub(r"(?:\\ )+", r"\\s+", re.escape(line)).replace("p\\s+<", "p\\s+[<=]")
                yield re.sub(r"(?:\\\.){3}|(?:\\[+-])?\d[\d,.:e+-]*", ".*", words)


@pytest.mark.parametrize(("system", "code"), [("Online-A", 0), ("ICL", 6)])
@pytest.mark.long
def test_the_steps_of_the_ci_job_pass_and_fail(
    shared_data: Path, tmp_path: Path, system: str, code: int
) -> None:
    """On 60 lines of WMT21: the baseline passes itself, a worse system does not."""
    (job,) = (yaml.safe_load(b.text)["jobs"] for b in blocks(GATES) if b.mark == "actions")
    (tmp_path / "wmt").mkdir()
    parts = {"reference": "ref.A", "base": "hyp.Online-A", "system": f"hyp.{system}"}
    for name, part in parts.items():
        path = shared_data / "wmt_sample" / f"newstest2021.en-de.{part}.de"
        lines = path.read_text("utf-8").split("\n")[:60]
        (tmp_path / "wmt" / f"{name}.de").write_text("\n".join(lines) + "\n", encoding="utf-8")
    keep = ["wmt/base.de", "wmt/reference.de", "--report", "wmt/baseline.json"]
    summary = tmp_path / "summary.md"
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "GITHUB_STEP_SUMMARY": str(summary),
    }
    place: dict[str, Any] = {
        "cwd": tmp_path, "env": environment, "check": False, "capture_output": True,
        "timeout": 300,
    }  # fmt: skip
    assert subprocess.run(["nmt", "evaluate", *keep], **place).returncode == 0
    steps = [step["run"] for step in job["quality"]["steps"] if "run" in step]
    assert steps[0] == "pip install ."
    gate, *after = (subprocess.run(["bash", "-ec", step], **place) for step in steps[1:])
    assert gate.returncode == code, gate.stderr
    assert [step.returncode for step in after] == [0]
    assert ("gates missed" if code else "all gates met") in summary.read_text("utf-8")
    assert (b"<failure" in (tmp_path / "gate.xml").read_bytes()) == bool(code)


def test_a_line_is_taken_apart_into_its_calls() -> None:
    line = """cat a | A=1 nmt translate "$(nmt average b | tail -1)" > c && echo nmt"""
    assert calls(line) == ["""A=1 nmt translate "VALUE" > c""", "nmt average b | tail -1"]


@pytest.mark.parametrize("line", commands())
def test_every_command_of_a_document_can_be_parsed(line: str) -> None:
    parse(line)


@pytest.mark.parametrize("line", examples())
def test_every_example_of_the_help_can_be_parsed(line: str) -> None:
    """`test_wheel.py` runs them in the long run."""
    for call in calls(line):
        parse(call)
    assert calls(line) or line.startswith(("curl ", "torchrun "))


def parse(line: str) -> None:
    """Fail for a flag or an argument that does not exist, or a value of a wrong type."""
    words = shlex.split(re.sub(r"\s[<>]\s+\S+", "", line), comments=True)
    words = words[words.index("nmt") :]
    command: Any = get_command(app)
    context = None
    while hasattr(command, "commands"):
        context = command.make_context(words.pop(0), [], parent=context, resilient_parsing=True)
        command = command.get_command(context, words[0])
    words.pop(0)
    command.make_context(command.name, words, parent=context)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_block_of_commands_runs_or_says_why_not(document: str) -> None:
    for block in blocks(document):
        if block.language in {"sh", "console", "python"}:
            assert re.match(r"run$|flags$|not run: \w", block.mark), block.text


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_leads_somewhere(document: str) -> None:
    text = re.sub(r"```.*?```", "", text_of(document), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, heading = target.partition("#")
        if re.match(r"https?:|mailto:", target):
            continue
        file = (ROOT / document).parent / path if path else ROOT / document
        assert file.exists(), target
        if heading and file.suffix == ".md":
            assert heading in headings(file), target


def headings(path: Path) -> set[str]:
    """Anchors of a document's headings, as GitHub makes them."""
    lines = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).strip().replace(" ", "-") for line in lines}


def test_every_path_named_exists() -> None:
    for document in DOCUMENTS:
        for path in re.findall(r"`((?:configs|scripts|nmt|tests)/[\w./-]*\w)`", text_of(document)):
            assert (ROOT / path).exists(), f"{document}: {path}"


def test_every_module_that_the_architecture_names_exists() -> None:
    """The page names them from the folder of the package, or of the extras."""
    for path in re.findall(r"`([\w/]+\.(?:py|toml))`", text_of("nmt/README.md")):
        places = [ROOT / "nmt" / path, ROOT / "nmt/extras" / path, ROOT / path]
        assert any(place.exists() for place in places), path


def test_the_error_shown_names_what_the_error_met_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = next(block for block in blocks("README.md") if block.mark == "file mine.yaml")
    monkeypatch.chdir(tmp_path)
    text = mine.text + "training:\n  lr: 0.1\n"
    Path("mine.yaml").write_text(text, encoding="utf-8")
    for name in re.findall(r"\w+\.(?:de|en)\b", mine.text):
        Path(name).touch()
    arguments = ["config", "show", "mine.yaml", "--set", "batch.max_tokens=big"]
    result = CliRunner().invoke(app, arguments)
    (shown,) = (x.text for x in blocks("nmt/docs/guide.md") if x.text.startswith("error: 2 prob"))
    assert acted_on(result.stderr) == acted_on(shown)
    assert {"mine.yaml:10", "training.schedule.peak_lr", "--set"} <= set(acted_on(shown))


def test_the_options_of_python_are_those_of_the_table() -> None:
    """Required options come first; `_` at the end of a name can be left out."""
    rows = dict(re.findall(r"^\| `(\w+Options)` \| (.*) \|$", text_of("nmt/docs/guide.md"), re.M))
    names = [name for name in nmt.__all__ if name.endswith("Options")]
    assert list(rows) == names
    for name in names:
        fields = fields_of(getattr(nmt, name))
        shown = [set(re.findall(r"`(\w+)`", cell)) for cell in rows[name].split("|")]
        required = {field.name for field in fields if field.default is MISSING}
        others = {option_name(field.name) for field in fields} - required
        assert shown == [required, others], name


def test_the_recipes_for_pretrained_models_build_the_models_of_the_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a text of any size: here it is small."""
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path)
    document = "nmt/docs/pretrained.md"
    text = text_of(document)
    models = {}
    for name, row in {"base.yaml": "German only", "both.yaml": "both"}.items():
        recipe = next(block for block in blocks(document) if block.mark == f"file {name}")
        Path(name).write_text(recipe.text, encoding="utf-8")
        config = load_config(name)
        size = config.tokenizer.vocab_size
        assert re.search(rf"^\| {row} \|[^|]*\| {size:,} \|", text, re.MULTILINE), name
        assert isinstance(size, int)
        with torch.device("meta"):
            model = Transformer(config.model, size, size)
        models[name] = sum(parameter.numel() for parameter in model.parameters())
    millions = models["base.yaml"] / 1e6
    assert f"tiny model ({millions:.1f} million parameters)" in text
    assert re.search(rf"^\| whole model, .* {4 * millions:.1f} MB \|$", text, re.MULTILINE)
    assert models["both.yaml"] - models["base.yaml"] == (12_000 - 8_000) * 256


def test_what_was_not_tested_and_the_licenses_stand_first() -> None:
    first, _, _ = text_of("nmt/docs/pretrained.md").partition("\n## ")
    assert "Not tested: the published weights" in first
    rows = re.findall(r"^\| .*(?:NLLB|M2M|OPUS).* \|$", first, re.MULTILINE)
    assert len(rows) == 3
    for row, license_name in zip(rows, ("CC-BY-NC-4.0", "MIT", "CC-BY-4.0"), strict=True):
        assert license_name in row.split("|")[3]


def test_every_make_target_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for document in DOCUMENTS:
        for target in re.findall(r"(?:^|`)make ([a-z-]+)", text_of(document), re.MULTILINE):
            assert f"\n{target}:" in makefile


def test_every_configuration_is_listed() -> None:
    for path in (ROOT / "configs").glob("*.yaml"):
        assert f"`{path.name}`" in text_of("configs/README.md")


def test_every_exit_code_is_documented() -> None:
    from nmt.errors import NmtError

    codes = {kind.exit_code for kind in NmtError.__subclasses__()}
    for code in {0, 1, *codes, 130, 141, 143}:
        assert re.search(rf"^\|[^|]*\b{code}\b[^|]*\|", text_of(GATES), re.MULTILINE)
