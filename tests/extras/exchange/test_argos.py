"""Packages for Argos Translate translate as nmt does, by the steps of Argos Translate."""

from __future__ import annotations

import json
import subprocess
import sys
import unicodedata
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import example, given
from hypothesis import strategies as st
from typer.testing import CliRunner

from nmt.cli.app import app
from nmt.errors import ConfigError
from nmt.extras.exchange.export import ExportSummary, export
from nmt.extras.exchange.options import ExportOptions
from nmt.inference.translator import Translator
from nmt.text.standalone import standalone_model
from nmt.text.tokenizer import Tokenizer, load_tokenizers
from tests.extras.exchange.exported import (
    needs_ctranslate2,
    run_config,
    write_run,
)
from tests.inference.conftest import sentences
from tests.inference.models import train_tokenizer

pytestmark = needs_ctranslate2
LINES = sentences(12, seed=4, longest=8)
ROOT = "translate-de_en-1_0"
# The steps of Argos Translate 1.11, without the search for sentence boundaries.
_ARGOS = """
import sys, types
for name in ("stanza", "minisbd", "minisbd.models"):  # they download models
    sys.modules[name] = types.ModuleType(name)
sys.modules["minisbd"].SBDetect = object
sys.modules["minisbd"].models = sys.modules["minisbd.models"]
from argostranslate import package, translate
import ctranslate2
class Whole:
    def split_sentences(self, text):
        return [text]
package.install_from_path(sys.argv[1])
(installed,) = package.get_installed_packages()
model = ctranslate2.Translator(str(installed.package_path / "model"))
for line in sys.stdin:
    (best,) = translate.apply_packaged_translation(installed, line[:-1], model, Whole(), 1)
    print(best.value)
"""


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run of a model that was never trained."""
    write_run(tmp_path / "run", train_tokenizer(tmp_path / "tokenizer"), run_config({}))
    return tmp_path / "run"


@pytest.fixture(scope="module", params=[True, False], ids=["joint", "separate"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a model that has learned `LINES` by heart."""
    folder = tmp_path_factory.mktemp("argos")
    for name, lines in (("a.de", LINES), ("a.en", [line[::-1] for line in LINES])):
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    pair = {"source": str(folder / "a.de"), "target": str(folder / "a.en")}
    sizes: dict[str, Any] = {"joint": True, "vocab_size": 290}
    if not request.param:
        sizes = {"joint": False, "vocab_size": {"source": 285, "target": 290}}
    config = {
        "name": "a", "source_language": "de", "target_language": "en",
        "data": {"train": [pair], "valid": pair},
        "prepared_dir": str(folder / "prepared"), "run_dir": str(folder / "run"),
        "tokenizer": {"kind": "char", **sizes}, "filters": {"ratio": "off"},
        "model": {
            "encoder_layers": 1, "decoder_layers": 2, "model_dim": 64, "ff_dim": 128,
            "num_heads": 2, "dropout": 0, "embeddings": "tied" if request.param else "decoder-tied",
        },
        "batch": {"max_sentences": 12, "max_tokens": None},
        "decoding": {"patience": 1},  # as in Argos Translate
        "training": {
            "max_steps": 200, "device": "cpu", "precision": "float32", "threads": 1,
            "label_smoothing": 0, "validate_every": 200,
            "schedule": {"shape": "constant", "peak_lr": 5.0e-3, "warmup_steps": 20},
        },
    }  # fmt: skip
    path = folder / "a.yaml"
    path.write_text(json.dumps(config), encoding="utf-8")
    result = CliRunner().invoke(app, ["train", str(path)])
    assert result.exit_code == 0, result.stderr
    return folder / "run"


def exported(model: Path, output: Path, **options: Any) -> ExportSummary:
    return export(ExportOptions(model=model, output=output, to="argos", **options))


def translations(run_dir: Path) -> list[str]:
    translator = Translator.load(
        run_dir, device="cpu", threads=1, engine="ctranslate2", dtype="int8", beam_size=4,
        guard=False, sentences="keep", length_penalty=0.2,
    )  # fmt: skip
    return [result.text for result in translator.translate(LINES)]


def test_a_package_has_the_files_that_argos_translate_reads(run_dir: Path, tmp_path: Path) -> None:
    output = tmp_path / "de_en.argosmodel"
    result = CliRunner().invoke(app, ["export", str(run_dir), "--to", "argos", "-o", str(output)])
    assert (result.exit_code, result.stdout) == (0, f"{output}\n")
    assert "install_from_path" in result.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"run", "tokenizer", output.name}
    with zipfile.ZipFile(output) as archive:
        archive.extractall(tmp_path)
    folder = tmp_path / ROOT
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*.*")}
    vocabularies = {name for name in names if name.endswith("vocabulary.json")}
    assert names - vocabularies == {
        "metadata.json", "README.md", "sentencepiece.model", "model/model.bin", "model/config.json"
    }  # fmt: skip
    assert len(vocabularies) == 1
    assert json.loads((folder / "metadata.json").read_text()) == {
        "package_version": "1.0", "argos_version": "1.9", "from_code": "de",
        "from_name": "German", "to_code": "en", "to_name": "English",
    }  # fmt: skip


@pytest.mark.long
def test_a_package_translates_as_nmt(trained: Path, tmp_path: Path) -> None:
    output = tmp_path / "x.argosmodel"
    exported(trained, output)
    with zipfile.ZipFile(output) as archive:
        archive.extractall(tmp_path)
    folder = tmp_path / ROOT
    ctranslate2 = pytest.importorskip("ctranslate2")
    model = ctranslate2.Translator(str(folder / "model"), intra_threads=1)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "sentencepiece.model"))
    expected = translations(trained)
    assert len(set(expected)) > 6
    for line, translation in zip(LINES, expected, strict=True):
        pieces = processor.encode(line, out_type=str)
        (result,) = model.translate_batch([pieces], beam_size=4, length_penalty=0.2)
        assert processor.decode_pieces(result.hypotheses[0]).strip() == translation


@pytest.mark.long
@pytest.mark.skipif(find_spec("argostranslate") is None, reason="argostranslate is not installed")
def test_argos_translate_installs_a_package_and_translates_as_nmt(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "x.argosmodel"
    exported(trained, output)
    for name in ("DATA", "CONFIG", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    done = subprocess.run(
        [sys.executable, "-c", _ARGOS, output],
        input="".join(f"{line}\n" for line in LINES),
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    assert [line.strip() for line in done.stdout.splitlines()] == translations(trained)


def test_a_package_never_writes_bytes(run_dir: Path, tmp_path: Path) -> None:
    exported(run_dir, tmp_path / "x.argosmodel")
    with zipfile.ZipFile(tmp_path / "x.argosmodel") as archive:
        archive.extractall(tmp_path)
    tokenizer = load_tokenizers(run_dir / "tokenizer").source
    ctranslate2 = pytest.importorskip("ctranslate2")
    sources = [tokenizer.subwords(tokenizer.encode(line)) for line in LINES]

    def writes_bytes(folder: Path) -> bool:
        model = ctranslate2.Translator(str(folder), intra_threads=1)
        results = model.translate_batch(sources, sampling_topk=0, beam_size=1)
        return any(piece.startswith("<0x") for found in results for piece in found.hypotheses[0])

    export(ExportOptions(model=run_dir, output=tmp_path / "plain", to="ctranslate2"))
    assert writes_bytes(tmp_path / "plain")
    assert not writes_bytes(tmp_path / ROOT / "model")


@pytest.mark.parametrize(
    ("name", "model", "word"),
    [("x", {}, "x.argosmodel"), ("x.argosmodel", {"data": "tags"}, "language tags")],
)
def test_what_a_package_cannot_hold_is_refused(
    tmp_path: Path, name: str, model: dict[str, str], word: str
) -> None:
    config = run_config({})
    if model:
        pair = {"source": "a.de", "target": "a.en"}
        data = {
            "train": [pair, {**pair, "target_language": "fr"}], "valid": pair,
            "language_tags": "source",
        }  # fmt: skip
        config = run_config({}, data=data)
    write_run(tmp_path / "run", train_tokenizer(tmp_path / "tokenizer"), config)
    with pytest.raises(ConfigError) as caught:
        exported(tmp_path / "run", tmp_path / name)
    assert word in f"{caught.value} {caught.value.fix}"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "tokenizer"]


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Tokenizer]:
    """The model for other programs, and the tokenizer that it stands for."""
    folder = train_tokenizer(tmp_path_factory.mktemp("readers") / "tokenizer")
    tokenizer = load_tokenizers(folder).source.for_translation()
    model = standalone_model(folder / "joint.model", tokenizer)
    return sentencepiece.SentencePieceProcessor(model_proto=model), tokenizer


# Marks come from letters that are taken apart: an accent that no letter contains may stay in place.
_LETTERS = st.characters(exclude_categories=["Cs", "Cn", "Co", "M"], exclude_characters="\0")


@given(st.text(_LETTERS))
@example("Schnee\u00ad \uff21\u200b\u2028x\t\u201cquote\u201d \u2026 \u1ec7\u01d6\ud55c")
def test_a_model_for_other_programs_reads_text_as_nmt(
    readers: tuple[Any, Tokenizer], text: str
) -> None:
    processor, tokenizer = readers
    for line in (text, unicodedata.normalize("NFD", text)):
        assert processor.encode(line) == tokenizer.encode(line), ascii(line)
