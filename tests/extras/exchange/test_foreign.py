"""Strangers' files: refused with one error, soon, and without much memory. FAULTS 52, 76 and 77."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from safetensors.torch import load_file, save_file

from nmt.errors import CheckpointError, NmtError, nearest_word
from nmt.extras.exchange.hub import import_model
from nmt.extras.exchange.marian import read_vocabulary
from nmt.extras.exchange.options import ImportOptions
from nmt.files import foreign
from nmt.files.json_file import MANIFEST, Manifest
from nmt.inference.torch_engine import TorchEngine
from nmt.inference.translator import Translator
from nmt.text.tokenizer import Tokenizer
from tests.extras.exchange.fuzz import FORMATS, make_ctranslate2, seal
from tests.extras.exchange.marian_files import KINDS, write

ROOT = Path(__file__).parents[3]
PEAK_MIB = 500


@pytest.fixture
def theirs(shared_data: Path, tmp_path: Path) -> Path:
    return write(tmp_path / "theirs", shared_data / "marian_models", KINDS["tied, relu, half"])


def refused(source: Path, words: str) -> None:
    output = source.parent / "imported"
    with pytest.raises(CheckpointError, match=words) as caught:
        import_model(ImportOptions(source=source, output=output, languages="en-de"))
    assert caught.value.exit_code == 4
    assert not output.exists()


def fuzz(count: int, seconds: float, *formats: str) -> None:
    command = [sys.executable, "-m", "tests.extras.exchange.fuzz", str(count), str(seconds)]
    result = subprocess.run(
        [*command, *formats], cwd=ROOT, capture_output=True, text=True, check=True, timeout=3000
    )
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["format"] for line in lines] == [*formats]
    for line in lines:
        assert not line["failures"], line["failures"][0]
        assert set(line["codes"]) <= {"0", "2", "3", "4"}
        assert line["peak_mib"] < PEAK_MIB


def test_a_few_mutations_of_every_format_are_read_or_refused() -> None:
    """FAULT 77."""
    fuzz(500, 0.4, *FORMATS)


@pytest.mark.long
@pytest.mark.parametrize("name", FORMATS)
def test_five_hundred_mutations_are_read_or_refused(name: str) -> None:
    """FAULT 77."""
    fuzz(500, 3000, name)


def replace_by_link(path: Path) -> None:
    path.symlink_to("/dev/zero")


def replace_by_link_to_a_file(path: Path) -> None:
    path.symlink_to(__file__)


@pytest.mark.parametrize("name", ["source.spm", "config.json", "model.safetensors"])
@pytest.mark.parametrize("replace", [replace_by_link, replace_by_link_to_a_file, os.mkfifo])
def test_links_pipes_and_devices_are_not_opened(
    theirs: Path, name: str, replace: Callable[[Path], None]
) -> None:
    """FAULT 76."""
    (theirs / name).unlink()
    replace(theirs / name)
    refused(theirs, f"{name} is not a regular file of this folder")


@pytest.mark.parametrize("replace", [replace_by_link, os.mkfifo])
def test_a_pipe_instead_of_a_manifest_a_tokenizer_or_an_archive_is_not_opened(
    tmp_path: Path, replace: Callable[[Path], None]
) -> None:
    """Each reader has to refuse it before it opens it: reading would never end."""
    replace(tmp_path / MANIFEST)
    with pytest.raises(CheckpointError, match="json is missing"):
        Manifest.read(tmp_path)
    replace(tmp_path / "x.model")
    with pytest.raises(CheckpointError, match=r"x\.model is not a regular file"):
        Tokenizer.load(tmp_path / "x.model")
    replace(tmp_path / "x.zip")
    refused(tmp_path / "x.zip", "is not a regular file")


def test_a_tokenizer_over_the_limit_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "x").open("wb") as file:
        file.truncate(1 << 32)
    with pytest.raises(CheckpointError, match="x has 4,294,967,296 bytes; the limit is 33,554,432"):
        Tokenizer.load(tmp_path / "x")


def test_the_links_of_the_cache_of_the_hub_are_read(theirs: Path, tmp_path: Path) -> None:
    """They lead to ``blobs`` beside ``snapshots``."""
    cache = tmp_path / "models--x--y"
    snapshot = cache / "snapshots" / "1a2b"
    snapshot.mkdir(parents=True)
    shutil.move(theirs, cache / "blobs")
    for path in (cache / "blobs").iterdir():
        (snapshot / path.name).symlink_to(Path("../../blobs") / path.name)
    import_model(ImportOptions(source=snapshot, output=tmp_path / "imported", languages="en-de"))


@pytest.mark.parametrize("name", ["config.json", "vocab.json", "source.spm", "decoder.yml"])
def test_files_over_the_limit_are_not_read(theirs: Path, name: str) -> None:
    """FAULT 76: sparse files, which take no room on a disk."""
    with (theirs / name).open("ab") as file:
        file.truncate(1 << 32)
    refused(theirs, f"{name} has 4,294,967,296 bytes; the limit is")


def test_json_with_too_many_values_is_not_parsed(
    theirs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULT 76: lists of lists take twenty times the memory of their text."""
    monkeypatch.setattr(foreign, "MAX_VALUES", 1000)
    monkeypatch.setattr(foreign, "parse_json", lambda _: pytest.fail("parsed"))
    (theirs / "config.json").write_text(json.dumps([[]] * 2000))
    refused(theirs, "more than 1,000 values")


def test_expanded_tensors_take_no_memory(theirs: Path) -> None:
    """FAULT 76: 23 kB that mean gigabytes."""
    tensors = load_file(theirs / "model.safetensors")
    (theirs / "model.safetensors").unlink()
    views = {name: torch.zeros(1).expand(1 << 15, 1 << 15) for name in tensors}
    torch.save(views, theirs / "pytorch_model.bin")
    refused(theirs, "its tensors would be far larger than the file")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"a": 1}, "a: Input should be an instance of Tensor"),
        ({3: torch.zeros(1)}, "Input should be a valid string"),
        ([torch.zeros(1)], "Input should be a valid dictionary"),
        ({"a": [[]] * foreign.MAX_OPERATIONS}, "the pickle contains more than weights"),
    ],
)
@pytest.mark.parametrize("is_archive", [True, False])
def test_pickles_contain_tensors_by_name_and_nothing_else(
    theirs: Path, content: Any, words: str, is_archive: bool
) -> None:
    """FAULT 76: a pickle of lists takes a hundred times the memory of the file."""
    (theirs / "model.safetensors").unlink()
    path = theirs / "pytorch_model.bin"
    torch.save(content, path, _use_new_zipfile_serialization=is_archive)
    refused(theirs, words)


def test_a_long_list_of_tensors_is_not_read(theirs: Path) -> None:
    """FAULT 76: a million tensors without numbers."""
    length = (foreign.MAX_HEADER + 1).to_bytes(8, "little")
    (theirs / "model.safetensors").write_bytes(length + b" " * foreign.MAX_HEADER)
    refused(theirs, "its header is too large")


def test_a_matrix_that_is_a_single_number_is_refused(theirs: Path) -> None:
    """FAULT 77."""
    tensors = load_file(theirs / "model.safetensors")
    tensors["model.shared.weight"] = torch.tensor(1.0)
    save_file(tensors, theirs / "model.safetensors")
    refused(theirs, "source_vectors has 1 rows")


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.complex64])
def test_weights_that_are_no_real_numbers_are_refused(theirs: Path, dtype: torch.dtype) -> None:
    """FAULT 77."""
    tensors = load_file(theirs / "model.safetensors")
    name = "model.encoder.layers.0.fc1.weight"
    tensors[name] = tensors[name].to(dtype)
    save_file(tensors, theirs / "model.safetensors")
    refused(theirs, f"{name} has numbers of type")


@pytest.mark.parametrize("start", ["[", "{a: ", "- ", "a:\n  b: "])
def test_a_vocabulary_is_flat(tmp_path: Path, start: str) -> None:
    """FAULT 77: PyYAML's parser in C crashes if lists are nested deeply."""
    path = tmp_path / "vocab.yml"
    path.write_text(start * 30_000)
    with pytest.raises(CheckpointError, match="is damaged"):
        read_vocabulary(path)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("vocab.json", "\ud800", 3),
        ("config.json", "encoder_layers", 1e300),
        ("config.json", "max_length", -5),
        ("config.json", "num_beams", 10**30),
        ("tokenizer_config.json", "source_lang", ["en"]),
        ("tokenizer_config.json", "source_lang", "\udc00"),
    ],
)
def test_values_that_no_model_has_are_refused(
    theirs: Path, name: str, key: str, value: Any
) -> None:
    """FAULT 77."""
    values = json.loads((theirs / name).read_text("utf-8"))
    (theirs / name).write_text(json.dumps(values | {key: value}))
    refused(theirs, "is damaged")


def test_an_empty_token_is_refused(theirs: Path) -> None:
    """FAULT 77: SentencePiece does not load such a model."""
    ids = json.loads((theirs / "vocab.json").read_text("utf-8"))
    ids[""] = ids.pop([*ids][100])
    (theirs / "vocab.json").write_text(json.dumps(ids))
    refused(theirs, "a token is empty")


@pytest.mark.parametrize("token", ["", "a"])
def test_the_tokens_of_a_vocabulary_differ_and_have_characters(tmp_path: Path, token: str) -> None:
    """FAULT 76: millions of blank lines."""
    path = tmp_path / "x.vocab"
    path.write_text(f"<unk>\t0\n</s>\t0\n{token}\t0\nb\n{token}\t-1\n")
    with pytest.raises(CheckpointError, match="is damaged"):
        read_vocabulary(path)


def test_long_options_are_not_parsed(shared_data: Path, tmp_path: Path) -> None:
    """FAULT 76."""
    theirs = shutil.copytree(
        shared_data / "marian_models" / "opus", tmp_path / "theirs", copy_function=shutil.copyfile
    )
    (theirs / "decoder.yml").write_text("a: 1\n" * 210_000)
    refused(theirs, "its options have more than 1,048,576 characters")


@pytest.mark.parametrize("line", ["max-length: -5", "beam-size: x", "normalize: [1]", "models: a"])
def test_values_that_no_decoder_of_marian_has_are_refused(
    shared_data: Path, tmp_path: Path, line: str
) -> None:
    """FAULT 77."""
    theirs = shutil.copytree(
        shared_data / "marian_models" / "opus", tmp_path / "theirs", copy_function=shutil.copyfile
    )
    (theirs / "decoder.yml").write_text(f"{line}\n")
    refused(theirs, "is damaged")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "model"
    make_ctranslate2(folder)
    return folder


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("config.yaml", "max_length_offset: 20", "max_length_offset: 1000000000"),
        ("config.yaml", "max_length_factor: 2.0", "max_length_factor: 1.0e+300"),
        ("config.yaml", "ngram_size: 0", f"ngram_size: {10**30}"),
        ("config.json", '"unk_token": "<unk>"', '"unk_token": null'),
        ("config.json", '"bos_token": "<s>"', '"bos_token": "\\ud800"'),
        ("config.json", '"decoder_start_token": "<s>"', '"decoder_start_token": "x"'),
        ("config.json", '"layer_norm_epsilon": ', '"layer_norm_epsilon": -'),
        ("export.json", '"num_positions": 1024', '"num_positions": 0'),
        ("export.json", '"num_positions": 1024', '"num_positions": "1e9"'),
        ("shared_vocabulary.json", '"<unk>",', ""),
    ],
)
def test_values_that_no_export_has_are_refused(
    exported: Path, tmp_path: Path, name: str, old: str, new: str
) -> None:
    """FAULT 77. The manifest agrees with the files, because a stranger can write it, too."""
    theirs = shutil.copytree(exported, tmp_path / "theirs")
    text = (theirs / name).read_text("utf-8")
    assert old in text
    (theirs / name).write_text(text.replace(old, new, 1), "utf-8")
    seal(theirs)
    with pytest.raises(NmtError) as caught:
        Translator.load(theirs, device="cpu")
    assert caught.value.exit_code in (2, 4)


def test_errors_of_nmt_itself_keep_their_traceback(
    theirs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> NoReturn:
        raise AttributeError("ours")

    monkeypatch.setattr("nmt.extras.exchange.hugging_face.config_of", broken)
    with pytest.raises(AttributeError, match="ours"):
        import_model(ImportOptions(source=theirs, output=theirs.parent / "x", languages="en-de"))


def test_an_import_whose_model_cannot_translate_leaves_nothing(
    theirs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> NoReturn:
        raise RuntimeError("no translation")

    monkeypatch.setattr(TorchEngine, "search", broken)
    refused(theirs, "is damaged: no translation")


def test_long_words_are_compared_in_short_time() -> None:
    """A key of 50,000 characters took 43 seconds."""
    assert nearest_word("a" * 1_000_000, ["abc"] * 300) is None
