"""The wheel: in an empty folder of a fresh environment, every example of the help works.

The environment contains the wheel and nothing else of this checkout. It shares the dependencies of
the interpreter that runs the tests, so that nothing is downloaded.
"""

from __future__ import annotations

import ast
import csv
import gzip
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from nmt.cli.builder import COMMANDS, PARENTS
from nmt.cli.documents import DOCUMENTS
from nmt.config.loader import load_config
from nmt.data.demo import demo_pairs
from nmt.errors import ConfigError, install_command
from tests.cli.commands import examples
from tests.process import LIMIT
from tests.quick import preloaded

ROOT = Path(__file__).parents[2]
# Examples that need more than an empty folder.
NOT_RUN = {
    r"^torchrun|--devices": "several GPUs",
    r"wmt14": "a download",
    r"^nmt pull|opus:": "a hub",
    r"nmt import|models/(en-|nllb)": "somebody else's model",
    r"runs/seed-": "several trainings",
    r"^curl": "a server that runs",
}
# The demo in seconds: a toy model that stops soon when it translates.
SHORTER = {
    "model.model_dim": 32, "model.ff_dim": 64, "training.max_steps": 8, "training.save_every": 4,
    "training.validate_every": 4, "decoding.max_length_factor": 0, "decoding.max_length_offset": 8,
    "data.train.0.max_pairs": 1000, "tokenizer.vocab_size": 500, "batch.max_tokens": 1000,
    "training.max_minutes": "null", "training.validation.max_sentences": 20,
}  # fmt: skip
SETTINGS = " ".join(f"--set {key}={value}" for key, value in SHORTER.items())
SIZES = {"corpus": 400, "dev": 8, "test": 8, "old": 8, "new": 8, "in": 8, "news": 8}


def packaged() -> set[str]:
    """The files of this checkout that the wheel must contain."""
    files = [*(ROOT / "nmt").rglob("*"), *(ROOT / "configs").iterdir()]
    names = {path.relative_to(ROOT).as_posix() for path in files if path.is_file()}
    left_out = re.compile(r"__pycache__|^nmt/(docs/.*\.(?:svg|png)|[A-Z]+\.md)$")
    return {re.sub("^configs/", "nmt/configs/", x) for x in names if not left_out.search(x)}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        if int(version("setuptools").split(".")[0]) < 77:
            pytest.skip("building needs setuptools 77 or newer")
        version("pip")
    except PackageNotFoundError as error:
        pytest.skip(f"building needs {error.name}")
    source = tmp_path_factory.mktemp("source")  # a build leaves files in its folder
    for name in ("nmt", "configs"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", source / "dist"]
    pip("wheel", *options, source)
    (path,) = (source / "dist").iterdir()
    return path


def pip(*arguments: object, python: str = sys.executable) -> None:
    command = [sys.executable, "-m", "pip", "--python", python, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Variables of a shell in which `nmt` is that of the wheel."""
    place = tmp_path_factory.mktemp("venv")
    venv.create(place, symlinks=True)
    pip("install", "--no-deps", "--no-index", wheel, python=str(place / "bin" / "python"))
    # A line with a path only: the hooks of an editable installation stay out.
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(place)}))
    shared = "\n".join(path for path in sys.path if path.endswith("-packages"))
    (packages / "dependencies.pth").write_text(f"{shared}\n", encoding="utf-8")
    hidden = ("PYTHONPATH", "OMP_NUM_THREADS")  # `nmt doctor` advises against the latter
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    path = f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return kept | {"PATH": path, "BROWSER": "true %s", "HOME": str(place)}


def shell(line: str, environment: dict[str, Any]) -> str:
    command = ["bash", "-euo", "pipefail", "-c", line]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def runnable(line: str) -> str:
    """The same example in seconds; a server checks its models and ends."""
    line = re.sub(r"nmt (train|prepare) (\S+\.yaml)", rf"nmt \1 \2 {SETTINGS}", line)
    line += f" {SETTINGS}" * line.startswith("nmt distill")
    has_teacher = line.startswith(("nmt distill", "nmt augment")) and "--translations" not in line
    line += " --force" * has_teacher  # hardly trained models
    return line + " --check" * line.startswith("nmt serve")


def write_texts() -> None:
    """The texts that the examples name, of pairs of the demo corpus."""
    pairs = iter(demo_pairs("train", "en", "de"))
    for name, size in SIZES.items():
        columns = zip(*islice(pairs, size), strict=True)
        for code, column in zip(("en", "de"), columns, strict=True):
            Path(f"{name}.{code}").write_text("\n".join(column) + "\n", encoding="utf-8")
    shutil.copy("old.de", "new.de")
    names = {"corpus.en": "english.txt", "corpus.de": "german.txt", "in.en": "in.en"}
    for name, packed in (names | {"news.en": "news.en"}).items():
        Path(f"{packed}.gz").write_bytes(gzip.compress(Path(name).read_bytes()))
    subprocess.run(
        "paste corpus.en corpus.de | tee pairs.txt | gzip > pairs.tsv.gz;"
        "cp corpus.en part1.en; cp corpus.de part1.de; cp in.en part2.en; cp in.en part2.de",
        shell=True, check=True, timeout=LIMIT,
    )  # fmt: skip
    for code in ("en", "de"):
        text = Path(f"corpus.{code}").read_text("utf-8")
        Path(f"old-corpus.{code}").write_bytes(text.encode("latin-1"))
    rows = [line.split("\t") for line in Path("pairs.txt").read_text("utf-8").splitlines()]
    with Path("table.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("English", "German"), *rows])
    Path("keys.txt").write_text(f"reader {'k' * 20}\n", encoding="utf-8")


def test_the_wheel_contains_every_file_and_nothing_else(wheel: Path) -> None:
    assert re.fullmatch(r"nmt_toolkit-[\d.]+-py3-none-any\.whl", wheel.name)
    with ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == packaged()


def test_the_wheel_installs_its_extras_by_name_and_reads_its_own_configurations(
    environment: dict[str, Any],
) -> None:
    command = "from nmt.errors import install_command; print(install_command('serve'))"
    assert shell(f'python -c "{command}"', environment) == "pip install 'nmt-toolkit[serve]'\n"
    printed = shell("nmt config check configs/demo.yaml", environment)
    assert "reading configs/demo.yaml, which comes with nmt: " in printed
    assert "/site-packages/nmt/configs/demo.yaml" in printed
    for name, path in DOCUMENTS.items():
        title = path.read_text("utf-8").partition("\n")[0]
        assert shell(f"nmt help {name}", environment).startswith(f"{title}\n")


@pytest.mark.long
def test_every_example_of_the_help_works_in_an_empty_folder(environment: dict[str, Any]) -> None:
    skipped = {line for line in examples() for x in NOT_RUN if re.search(x, line)}
    for pattern in NOT_RUN:
        assert any(re.search(pattern, line) for line in skipped), pattern
    lines = [line for line in examples() if line not in skipped]
    assert len(lines) > 2 * len(skipped)
    for line in lines[:2]:  # no file was made for them
        shell(runnable(line), environment)
    write_texts()
    python = shell("command -v python", environment).strip()
    with preloaded(environment, python) as quick:
        for line in lines[2:]:
            shell(runnable(line), quick)


def test_no_message_points_to_a_document_that_the_wheel_lacks() -> None:
    """Comments may, and docstrings, because they are read in a clone.

    A file of the user may have any name, such as `KEYS.md`; documents are those of `nmt help`.
    """
    num_files = 0
    for name in packaged():
        path = ROOT / re.sub("^nmt/configs/", "configs/", name)
        if path.suffix not in (".py", ".j2", ".toml"):
            continue
        num_files += 1
        for text in messages_of(path):
            assert not re.search(r"\b(?:docs|configs|scripts|nmt)/[\w/]*\.md\b", text), name
            for topic in re.findall(r"nmt help ([a-z]+)", text):
                assert topic in {*DOCUMENTS, *COMMANDS, *PARENTS}, name
    assert num_files > 100


def messages_of(path: Path) -> list[str]:
    """The texts of a file that a user may see."""
    text = path.read_text("utf-8")
    if path.suffix == ".j2":  # its comments are written into files of the user
        return [text]
    if path.suffix == ".toml":
        return [re.sub(r"#.*", "", text)]
    tree = ast.parse(text)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        ast.get_docstring(x, clean=False) for x in ast.walk(tree) if isinstance(x, documented)
    }
    strings = [x.value for x in ast.walk(tree) if isinstance(x, ast.Constant)]
    return [x for x in strings if isinstance(x, str) and x not in docstrings]


def test_in_a_clone_the_command_for_an_extra_names_the_clone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert install_command("serve") == f"pip install -e '{ROOT}[serve]'"
    monkeypatch.chdir(ROOT)
    assert install_command("serve") == "pip install -e '.[serve]'"


def test_a_file_of_the_user_comes_first_and_a_wrong_name_lists_those_that_exist() -> None:
    shipped = load_config("configs/hello.yaml")
    assert shipped.data.valid[0].source == (ROOT / "configs" / "hello.fr",)
    Path("configs").mkdir()
    text = (ROOT / "configs" / "hello.yaml").read_text("utf-8").replace("name: hello", "name: own")
    Path("configs/hello.yaml").write_text(text, encoding="utf-8")
    own = load_config("configs/hello.yaml")
    assert (own.name, own.data.valid[0].source) == ("own", (Path("configs/hello.fr"),))
    with pytest.raises(ConfigError, match=r"Did you mean configs/demo\.yaml\?") as caught:
        load_config("configs/dmeo.yaml")
    for path in (ROOT / "configs").glob("*.yaml"):
        assert f"configs/{path.name}" in caught.value.fix
