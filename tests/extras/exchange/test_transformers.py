"""Folders for the Transformers library: what `nmt import` makes of them, and the library itself.

transformers is not a dependency of the tests: without it, the tests of the library are skipped.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from nmt.checkpoint.model_folder import load_folder_config, load_model
from nmt.cli.app import app
from nmt.errors import ConfigError
from nmt.extras.exchange.export import ExportSummary, export
from nmt.extras.exchange.hub import import_model
from nmt.extras.exchange.options import ExportOptions, ImportOptions
from nmt.files.json_file import Manifest
from nmt.inference.translator import Translator
from nmt.packed import Packed
from nmt.text import BOS_ID, EOS_ID
from tests.extras.exchange.exported import run_config, write_run
from tests.extras.exchange.m2m_files import LANGUAGES, mixed_lines, write_m2m, write_nllb
from tests.extras.exchange.marian_files import KINDS, write
from tests.inference.conftest import sentences
from tests.inference.models import train_tokenizer

# The library recommends a package that its tokenizer does not use.
pytestmark = pytest.mark.filterwarnings("ignore:Recommended")
needs_transformers = pytest.mark.skipif(
    find_spec("transformers") is None, reason="transformers is not installed"
)
FOREIGN = [*KINDS, "nllb", "m2m"]
LINES = [
    *sentences(44, seed=4, longest=8),
    "a\u00a0b\u00ad c", "\uff21\uff22\uff11", "e\u0301te\u0301", "x \u201cy\u201d \u2026", "b\tc",
    "z",
]  # fmt: skip


def exported(model: Path, output: Path) -> ExportSummary:
    return export(ExportOptions(model=model, output=output, to="transformers"))


def write_foreign(folder: Path, kind: str, marian_models: Path) -> Path:
    """Write a folder as the hub has them."""
    if kind == "nllb":
        return write_nllb(folder, tgt_lang="ary_Arab")
    if kind == "m2m":
        write_m2m(folder)
        return folder
    return write(folder, marian_models, KINDS[kind], ">>deu<<")


@pytest.fixture(params=FOREIGN)
def foreign(request: pytest.FixtureRequest, shared_data: Path, tmp_path: Path) -> Path:
    """A model that was imported and exported again, and its folders."""
    write_foreign(tmp_path / "theirs", request.param, shared_data / "marian_models")
    # With a search that no default has.
    search = {"length_penalty": 0.6, "no_repeat_ngram_size": 3, "early_stopping": True}
    search |= {"max_length": 30, "num_beams": 3}
    (tmp_path / "theirs" / "generation_config.json").write_text(json.dumps(search), "utf-8")
    import_model(ImportOptions(source=tmp_path / "theirs", output=tmp_path / "ours"))
    exported(tmp_path / "ours", tmp_path / "export")
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    """Return the weights and vocabularies of a model folder."""
    paths = [folder / "model.safetensors", *(folder / "tokenizer").iterdir()]
    return {path.name: path.read_bytes() for path in paths}


def test_an_import_of_the_export_is_the_same_model(foreign: Path) -> None:
    import_model(ImportOptions(source=foreign / "export", output=foreign / "again"))
    assert contents(foreign / "again") == contents(foreign / "ours")
    config, again = (load_folder_config(foreign / name) for name in ("ours", "again"))
    assert again.model_copy(update={"name": config.name}) == config
    assert config.decoding.length_penalty == 0.6


def test_a_trimmed_nllb_model_is_the_same_after_its_export(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("All human beings are born free.\n", encoding="utf-8")
    options: Any = {"keep_language": LANGUAGES[1:3], "keep_vocabulary": (text,)}
    source = write_nllb(tmp_path / "theirs")
    import_model(ImportOptions(source=source, output=tmp_path / "ours", **options))
    exported(tmp_path / "ours", tmp_path / "export")
    import_model(ImportOptions(source=tmp_path / "export", output=tmp_path / "again"))
    assert contents(tmp_path / "again") == contents(tmp_path / "ours")
    settings = json.loads((tmp_path / "export" / "config.json").read_text("utf-8"))
    assert settings["vocab_size"] < 300


def test_an_output_bias_is_refused_for_m2m(tmp_path: Path) -> None:
    import_model(ImportOptions(source=write_nllb(tmp_path / "theirs"), output=tmp_path / "ours"))
    path = tmp_path / "ours" / "model.safetensors"
    tensors = load_file(path)
    tensors["output_bias"][9] = 0.5  # as after training
    save_file(tensors, path)
    manifest = Manifest.read(tmp_path / "ours")
    Manifest.of(tmp_path / "ours", [*manifest.files], 1).write(tmp_path / "ours")
    with pytest.raises(ConfigError, match=r"needs model.output_bias false"):
        exported(tmp_path / "ours", tmp_path / "export")
    assert not (tmp_path / "export").exists()


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run of a model of the preset that was never trained."""
    config = run_config({"preset": "marian", "output_bias": False, "dropout": 0.25})
    write_run(tmp_path / "run", train_tokenizer(tmp_path / "tokenizer"), config)
    return tmp_path / "run"


def test_a_folder_has_the_files_that_transformers_reads(run_dir: Path, tmp_path: Path) -> None:
    output = tmp_path / "new" / "hf"
    command = ["export", str(run_dir), "--to", "transformers", "-o", str(output)]
    result = CliRunner().invoke(app, command)
    assert (result.exit_code, result.stdout) == (0, f"{output}\n")
    assert f"next: nmt push {output} ORG/NAME" in result.stderr
    assert {path.name for path in output.iterdir()} == {
        "README.md", "config.json", "generation_config.json", "manifest.json", "model.safetensors",
        "source.spm", "target.spm", "tokenizer_config.json", "vocab.json",
    }  # fmt: skip
    assert [path.name for path in output.parent.iterdir()] == ["hf"]
    front, text = (output / "README.md").read_text("utf-8").split("---\n")[1:]
    assert yaml.safe_load(front)["library_name"] == "transformers"
    assert 'AutoTokenizer.from_pretrained("ORG/NAME")' in text
    search = json.loads((output / "generation_config.json").read_text("utf-8"))
    # The longest line has 40 subwords, so its translation has up to 1.0 x 40 + 5, and EOS.
    assert (search["num_beams"], search["max_new_tokens"]) == (3, 46)
    assert load_file(output / "model.safetensors")["final_logits_bias"].any() == np.False_


def test_a_model_of_the_preset_translates_equally_after_an_import(
    run_dir: Path, tmp_path: Path
) -> None:
    exported(run_dir, tmp_path / "hf")
    import_model(ImportOptions(source=tmp_path / "hf", output=tmp_path / "again"))
    texts = []
    for folder in (run_dir, tmp_path / "again"):
        options: Any = {"max_length_factor": 0.0, "max_length_offset": 9}
        translator = Translator.load(folder, engine="torch", threads=1, guard=False, **options)
        texts.append([result.text for result in translator.translate(LINES)])
    assert texts[0] == texts[1]
    assert len({*texts[0]}) > 10
    assert load_folder_config(tmp_path / "again").model.dropout == 0.25


@pytest.mark.parametrize(
    ("model", "data", "words"),
    [
        (
            {"positions": "rotary", "activation": "swiglu"},
            {},
            ['norm_position "post"', 'positions "sinusoidal-concatenated"', 'activation "relu"'],
        ),
        (
            {"preset": "marian", "decoder_start": "zero"},
            {},
            ['needs model.decoder_start "bos".', "`model.preset` marian"],
        ),
        ({"preset": "marian", "norm_gain": False}, {}, ["needs model.norm_gain true."]),
        ({"preset": "marian"}, {"language_tags": "source"}, ["data.language_tags both"]),
        (
            {"preset": "marian"},
            {"language_tags": "both"},
            ["M2M100ForConditionalGeneration", 'norm_position "pre"', "first_position 2"],
        ),
    ],
)  # fmt: skip
def test_a_model_that_no_class_expresses_is_refused_with_all_keys(
    tmp_path: Path, model: dict[str, Any], data: dict[str, str], words: list[str]
) -> None:
    pair = {"source": "a.de", "target": "a.en"}
    sections: dict[str, Any] = {}
    if data:
        train = [pair, {**pair, "target_language": "fr"}]
        sections = {"data": {"train": train, "valid": pair, **data}}
    write_run(tmp_path / "run", train_tokenizer(tmp_path / "tok"), run_config(model, **sections))
    with pytest.raises(ConfigError) as caught:
        exported(tmp_path / "run", tmp_path / "hf")
    message = f"{caught.value} {caught.value.fix}"
    assert [word for word in words if word not in message] == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "tok"]


def load_theirs(folder: Path) -> tuple[Any, Any]:
    """Load tokenizer and model as a user does, who does not know their classes."""
    transformers: Any = pytest.importorskip("transformers")
    settings = json.loads((folder / "config.json").read_text("utf-8"))
    if settings["vocab_size"] != settings["decoder_vocab_size"] and transformers.__version__ < "5":
        pytest.skip("transformers 4 loads no vocabularies of different sizes")
    model, problems = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        folder, output_loading_info=True
    )
    assert not any(problems.values())
    return transformers.AutoTokenizer.from_pretrained(folder), model.eval()


@needs_transformers
@torch.inference_mode()
def test_logits_of_transformers_are_ours_also_with_padding(foreign: Path) -> None:
    bundle = load_model(foreign / "ours")
    source, target = bundle.tokenizers
    tokenizer, theirs = load_theirs(foreign / "export")
    lines = ["A dog runs.", "All human beings are born free and equal.", "☃ equal dignity"]
    batch = tokenizer(lines, return_tensors="pt", padding=True)
    vocabulary = getattr(tokenizer, "target_encoder", None) or tokenizer.get_vocab()
    # Their id of each of our tokens; -1 for those that only SentencePiece has.
    columns = []
    for index in range(target.vocab_size):
        piece = target.piece(index)
        if piece.startswith("<2"):  # a language
            code = piece[2:-1]
            piece = code if code in LANGUAGES else f"__{code}__"
        columns.append(vocabulary.get(piece, -1))
    decoded = [BOS_ID, *range(300, 306)]
    row = [columns[index] for index in decoded]
    row[0] = theirs.config.decoder_start_token_id
    expected = theirs(**batch, decoder_input_ids=torch.tensor([row] * len(lines))).logits
    shown = [index for index, column in enumerate(columns) if column >= 0 and index != BOS_ID]
    for line, logits in zip(lines, expected, strict=True):
        ids = [*source.encode(line), EOS_ID]
        if bundle.config.language_tags:
            ids = [source.language_id("en"), *ids]
        hidden = bundle.model(Packed.from_rows([ids]), Packed.from_rows([decoded]))
        found = bundle.model.logits(hidden)[:, shown]
        wanted = logits[:, [columns[index] for index in shown]]
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)


@pytest.fixture(scope="module", params=["tied", "separate"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a model that has learned to write `LINES` backwards, and its export."""
    folder = tmp_path_factory.mktemp("transformers")
    for name, lines in (("a.de", LINES), ("a.en", [line[::-1] for line in LINES])):
        text = "".join(f"{' '.join(line.split())}\n" for line in lines)
        (folder / name).write_text(text, encoding="utf-8")
    pair = {"source": str(folder / "a.de"), "target": str(folder / "a.en")}
    sizes: dict[str, Any] = {"joint": True, "vocab_size": 310}
    embeddings = request.param
    if embeddings == "separate":
        sizes = {"joint": False, "vocab_size": {"source": 300, "target": 310}}
    config = {
        "name": "a", "source_language": "de", "target_language": "en",
        "data": {"train": [pair], "valid": pair},
        "prepared_dir": str(folder / "prepared"), "run_dir": str(folder / "run"),
        "tokenizer": {"kind": "char", **sizes}, "filters": {"ratio": "off"},
        "model": {
            "preset": "marian", "encoder_layers": 1, "decoder_layers": 2, "model_dim": 64,
            "ff_dim": 128, "num_heads": 2, "dropout": 0, "embeddings": embeddings,
        },
        "batch": {"max_sentences": 50, "max_tokens": None},
        "training": {
            "max_steps": 150, "device": "cpu", "precision": "float32", "threads": 1,
            "label_smoothing": 0, "validate_every": 150,
            "schedule": {"shape": "constant", "peak_lr": 5.0e-3, "warmup_steps": 20},
        },
        "decoding": {"beam_size": 4, "length_penalty": 0.7},
    }  # fmt: skip
    path = folder / "a.yaml"
    path.write_text(json.dumps(config), encoding="utf-8")
    result = CliRunner().invoke(app, ["train", str(path)])
    assert result.exit_code == 0, result.stderr
    exported(folder / "run", folder / "hf")
    return folder


@pytest.mark.long
@needs_transformers
@torch.inference_mode()
def test_translations_of_transformers_are_ours(trained: Path) -> None:
    tokenizer, theirs = load_theirs(trained / "hf")
    batch = tokenizer(LINES, return_tensors="pt", padding=True)
    assert batch["attention_mask"].min() == 0
    options: Any = {"engine": "torch", "threads": 1, "guard": False, "sentences": "keep"}
    translator = Translator.load(trained / "run", **options)
    for beam_size in (1, 4):  # 4 as in generation_config.json, with its length penalty
        changed = {} if beam_size == 4 else {"num_beams": beam_size, "early_stopping": False}
        texts = tokenizer.batch_decode(
            theirs.generate(**batch, **changed), skip_special_tokens=True
        )
        found = translator.with_options(beam_size=beam_size).translate(LINES)
        assert texts == [result.text for result in found]
        assert len({*texts}) > 40


@pytest.mark.long
@needs_transformers
def test_the_pipeline_of_transformers_4_translates(trained: Path) -> None:
    transformers: Any = pytest.importorskip("transformers")
    if transformers.__version__ >= "5":
        pytest.skip("transformers 5 has no pipeline for translation")
    load_theirs(trained / "hf")  # or skip
    pipeline: Any = transformers.pipeline("translation", str(trained / "hf"))
    translator = Translator.load(trained / "run", engine="torch", threads=1, guard=False)
    texts = [result["translation_text"] for result in pipeline(LINES[:20])]
    assert texts == [result.text for result in translator.translate(LINES[:20])]


@pytest.mark.long
@needs_transformers
@pytest.mark.parametrize("kind", ["nllb", "m2m"])
def test_tokens_of_an_exported_multilingual_model_are_ours(
    kind: str, shared_data: Path, tmp_path: Path
) -> None:
    write_foreign(tmp_path / "theirs", kind, shared_data)
    import_model(ImportOptions(source=tmp_path / "theirs", output=tmp_path / "ours"))
    exported(tmp_path / "ours", tmp_path / "hf")
    tokenizer, _ = load_theirs(tmp_path / "hf")
    source = load_model(tmp_path / "ours").tokenizers.source
    lines = mixed_lines(100)
    for line in lines:
        pieces = tokenizer.convert_ids_to_tokens(tokenizer(line).input_ids)[1:-1]
        ids = {token: index for index, token in enumerate(pieces)}
        own = source.subwords(source.encode(line))
        assert [piece if piece in ids else "<unk>" for piece in own] == pieces, line
