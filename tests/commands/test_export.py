"""What is exported translates as it did, or is refused."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from nmt.checkpoint.average import write_average
from nmt.checkpoint.bundle import load_model
from nmt.checkpoint.files import (
    MODEL,
    checkpoint_dir,
    checkpoint_name,
    load_tensors,
    save_checkpoint,
    write_best,
)
from nmt.checkpoint.model_folder import EXTRAS, GUARD, SHORTLIST
from nmt.config.model import ModelConfig
from nmt.data.prepared import PreparedManifest
from nmt.errors import CheckpointError, ConfigError
from nmt.exchange import ctranslate2 as ctranslate2_model
from nmt.files.manifest import Manifest
from nmt.model.transformer import Transformer
from nmt.recipes import export as export_module
from nmt.recipes.export import Quantization, Target, export
from nmt.runtime.torch_engine import TorchEngine
from nmt.text import BOS_ID
from nmt.text.tokenizer import load_tokenizers
from nmt.translation.translator import Translator
from tests.translation.conftest import sentences
from tests.translation.exported import (
    STEP,
    needs_ctranslate2,
    run_config,
    train_tokenizers,
    write_run,
)

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "pre-norm": {},
    "post-norm": {"norm_position": "post"},
    "RMSNorm": {"norm": "rms"},
    "RMSNorm, post-norm": {"norm": "rms", "norm_position": "post"},
    "GELU": {"activation": "gelu"},
    "SwiGLU": {"activation": "swiglu"},
    "no biases": {"bias": False},
    "no biases, post-norm": {"bias": False, "norm_position": "post"},
    "SwiGLU, RMSNorm, no biases": {"activation": "swiglu", "norm": "rms", "bias": False},
    "three tables": {"embeddings": "separate"},
    "target tables tied": {"embeddings": "decoder-tied"},
    "not scaled": {"scale_embeddings": False},
    "sinusoids in halves": {"positions": "sinusoidal-halves"},
    "learned positions": {"positions": "learned", "max_positions": 48},
    "rotary": {"positions": "rotary"},
    "no positions": {"positions": "none"},
    "grouped heads": {"num_kv_heads": 2},
    "one key head": {"num_kv_heads": 1},
    "all key heads": {"num_kv_heads": 4},
    "rotary, grouped heads": {"positions": "rotary", "num_kv_heads": 2},
    "rotary, one key head": {"positions": "rotary", "num_kv_heads": 1},
    "other decoder": {
        "embeddings": "separate", "decoder_model_dim": 48, "decoder_ff_dim": 40,
        "decoder_layers": 1,
    },
    "other decoder, grouped heads": {
        "embeddings": "decoder-tied", "decoder_model_dim": 16, "num_kv_heads": 2,
    },
    "modern without QK-norm": {
        "preset": "modern", "encoder_layers": 3, "decoder_layers": 1, "ff_dim": 40,
        "qk_norm": False,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_tokenizers(tmp_path_factory.mktemp("export") / "tokenizer")


@pytest.fixture
def run_dir(tokenizer: Path, tmp_path: Path) -> Path:
    write_run(tmp_path / "run", tokenizer, run_config({}))
    return tmp_path / "run"


@pytest.fixture(scope="module")
def real_lines(shared_data: Path) -> list[str]:
    path = shared_data / "multi30k" / "test_2016_flickr.de.gz"
    return gzip.decompress(path.read_bytes()).decode().splitlines()


@pytest.fixture(scope="module")
def real_tokenizer(real_lines: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("real") / "tokenizer"
    return train_tokenizers(folder, lines=real_lines, size=900)


def compare(
    model: Transformer,
    folder: Path,
    tolerance: float = 1e-4,
    lines: Sequence[str] | None = None,
    **options: Any,
) -> None:
    """Sentence by sentence, hypothesis by hypothesis, token by token."""
    exported = Translator.load(folder, device="cpu", threads=1, guard=False)
    ours = TorchEngine(model)
    tokenizers = load_tokenizers(folder / "tokenizer")
    ids = tokenizers.source.encode_batch(lines or sentences(24, seed=3))
    wanted = exported.with_options(**options).options
    found = exported._engine.search(ids, wanted)
    for one, other in zip(ours.search(ids, wanted), found, strict=True):
        assert [h.ids for h in one] == [h.ids for h in other]
        for expected, hypothesis in zip(one, other, strict=True):
            assert hypothesis.score == pytest.approx(expected.score, abs=tolerance)
            assert hypothesis.log_prob == pytest.approx(expected.log_prob, abs=40 * tolerance)


@needs_ctranslate2
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_translates_as_ours(name: str, tokenizer: Path, tmp_path: Path) -> None:
    config = run_config(ARCHITECTURES[name])
    model = write_run(tmp_path / "run", tokenizer, config)
    assert model.target_table[BOS_ID].abs().min() > 0  # the decoder starts from it, not from zeros

    export(tmp_path / "run", tmp_path / "out", "ctranslate2")

    compare(model, tmp_path / "out", beam_size=1)
    compare(model, tmp_path / "out", beam_size=3)


@needs_ctranslate2
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_translates_real_text_as_ours(
    name: str, real_lines: list[str], real_tokenizer: Path, tmp_path: Path
) -> None:
    model = write_run(tmp_path / "run", real_tokenizer, run_config(ARCHITECTURES[name]))
    export(tmp_path / "run", tmp_path / "out", "ctranslate2")
    short = [line for line in real_lines if len(line) < 70][:40]

    compare(model, tmp_path / "out", lines=short, beam_size=3)


@needs_ctranslate2
def test_a_model_without_output_bias_translates_as_ours(tokenizer: Path, tmp_path: Path) -> None:
    """Greedy: CTranslate2 shares out the probability of tokens that may not come."""
    model = write_run(tmp_path / "run", tokenizer, run_config({"output_bias": False}))
    export(tmp_path / "run", tmp_path / "out", "ctranslate2")

    compare(model, tmp_path / "out", tolerance=1.0, beam_size=1)


@needs_ctranslate2
def test_two_vocabularies_are_kept_apart(tmp_path: Path) -> None:
    tokenizer = train_tokenizers(tmp_path / "tokenizer", joint=False)
    config = run_config({"embeddings": "separate"}, tokenizer={"joint": False})
    model = write_run(tmp_path / "run", tokenizer, config)
    export(tmp_path / "run", tmp_path / "out", "ctranslate2")

    assert len(model.source_vectors) != len(model.target_table)
    compare(model, tmp_path / "out", beam_size=2)


@needs_ctranslate2
@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_norms_have_the_same_epsilon(norm: str, tokenizer: Path, tmp_path: Path) -> None:
    """It shows where values are small."""
    config = run_config({"norm": norm, "positions": "none", "scale_embeddings": False})
    write_run(tmp_path / "run", tokenizer, config)
    bundle = load_model(tmp_path / "run")
    with torch.no_grad():
        bundle.model.source_vectors.mul_(1e-3)
    weights = bundle.model.state_dict()
    save_checkpoint(tmp_path / "run", STEP, model=weights, optimizer={}, state={})
    export(tmp_path / "run", tmp_path / "out", "ctranslate2")

    compare(bundle.model, tmp_path / "out", beam_size=1)


@needs_ctranslate2
@pytest.mark.parametrize("quantization", get_args(Quantization))
def test_every_type_of_weights_translates(
    quantization: Quantization, tokenizer: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shape = {"activation": "swiglu", "num_kv_heads": 2}
    model = write_run(tmp_path / "run", tokenizer, run_config(shape))
    summary = export(tmp_path / "run", tmp_path / "out", "ctranslate2", quantization=quantization)

    bytes_each = {"float32": 4, "float16": 2, "bfloat16": 2, "int16": 2}.get(quantization, 1)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    positions = 1024 * 32 * 4
    assert summary.size_bytes < bytes_each * parameters + positions + 40_000
    record = json.loads((tmp_path / "out" / "export.json").read_text("utf-8"))
    assert record["quantization"] == quantization
    lines = sentences(4)
    texts = [result.text for result in Translator.load(tmp_path / "out").translate(lines)]
    assert len(texts) == 4
    capfd.readouterr()  # CTranslate2 may say that it computes in another type here


@needs_ctranslate2
def test_what_ctranslate2_cannot_express_is_named(tokenizer: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "run", tokenizer, run_config({"qk_norm": True}))

    with pytest.raises(ConfigError, match=r"cannot express model.qk_norm true.\n.*safetensors"):
        export(tmp_path / "run", tmp_path / "out", "ctranslate2")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    export(tmp_path / "run", tmp_path / "out", "safetensors")


def test_a_new_key_of_the_model_is_refused_until_it_is_exported() -> None:
    """Whoever adds a key decides: it is exported, or named here."""
    known = ctranslate2_model._EXPRESSED
    assert set(ModelConfig.model_fields) - known == {"qk_norm"}
    assert known <= set(ModelConfig.model_fields)


@pytest.mark.parametrize(
    "target", ["safetensors", pytest.param("ctranslate2", marks=needs_ctranslate2)]
)
def test_the_folder_is_complete_and_sealed(target: Any, run_dir: Path, tmp_path: Path) -> None:
    summary = export(run_dir, tmp_path / "a" / "out", target)

    folder = summary.output
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    weights = "model.bin" if target == "ctranslate2" else MODEL
    assert {weights, "config.yaml", "tokenizer/joint.model", "README.md"} <= files
    assert not files & {"optimizer.safetensors", "state.json", "log.txt", "metrics.jsonl"}
    manifest = Manifest.read(folder)
    assert set(manifest.files) == files - {"manifest.json"}
    manifest.verify(folder)
    assert (manifest.step, summary.step) == (STEP, STEP)
    assert summary.size_bytes == (folder / weights).stat().st_size
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["out"]


def test_safetensors_are_those_of_the_checkpoint(run_dir: Path, tmp_path: Path) -> None:
    export(run_dir, tmp_path / "out", "safetensors")

    original = checkpoint_dir(run_dir, STEP) / MODEL
    assert (tmp_path / "out" / MODEL).read_bytes() == original.read_bytes()
    bundle = load_model(tmp_path / "out")
    for name, tensor in load_tensors(original).items():
        assert torch.equal(bundle.model.state_dict()[name], tensor)


@needs_ctranslate2
@pytest.mark.parametrize(
    ("decoding", "told"),
    [
        ({"shortlist": True}, "shortlist true"),
        ({"coverage_penalty": 0.2, "repetition_penalty": 1.1},
         "coverage_penalty 0.2, repetition_penalty 1.1"),
        ({"diverse_beam_groups": 3, "length_penalty": 0.5}, "diverse_beam_groups 3"),
        ({"sampling": True, "top_k": 5, "n_best": 7, "seed": 9}, "sampling true, top_k 5"),
        ({"beam_size": 2, "n_best": 2}, None),
    ],
)  # fmt: skip
def test_a_search_that_ctranslate2_does_not_have_is_left_out_and_that_is_told(
    tokenizer: Path, tmp_path: Path, decoding: dict[str, Any], told: str | None
) -> None:
    """So that the folder translates as it is."""
    config = run_config({}, decoding={"beam_size": 3, "max_length_offset": 5, **decoding})
    write_run(tmp_path / "run", tokenizer, config)
    notes: list[str] = []
    export(tmp_path / "run", tmp_path / "out", "ctranslate2", note=notes.append)
    found = Translator.load(tmp_path / "out", device="cpu")

    assert notes == (
        [f"CTranslate2 cannot search with {told}: the export leaves that out"] if told else []
    )
    assert len(found.translate(sentences(2))) == 2
    kept = {"beam_size", "length_penalty", "max_length_offset", "seed"}
    assert found.options.model_dump(include=kept) == config.decoding.model_dump(include=kept)
    notes.clear()
    export(tmp_path / "run", tmp_path / "ours", "safetensors", note=notes.append)
    assert load_model(tmp_path / "ours").config == config
    assert notes == []


@needs_ctranslate2
def test_a_folder_has_what_its_engine_reads(run_dir: Path, tmp_path: Path) -> None:
    """The guard reads the short lists, too."""
    for name in EXTRAS:
        (run_dir / name).write_text("{}")
    wanted: dict[Target, set[str]] = {
        "ctranslate2": {GUARD, SHORTLIST}, "safetensors": {*EXTRAS},
    }  # fmt: skip
    for target, expected in wanted.items():
        folder = export(run_dir, tmp_path / target, target).output
        assert {path.name for path in folder.iterdir()} & {*EXTRAS} == expected


@needs_ctranslate2
def test_the_checkpoint_is_chosen(run_dir: Path, tmp_path: Path) -> None:
    other = load_model(run_dir).model
    with torch.no_grad():
        other.output_weight.add_(0.5)
    save_checkpoint(run_dir, 40, model=other.state_dict(), optimizer={}, state={})
    write_best(run_dir, checkpoint_name(STEP))
    paths = [checkpoint_dir(run_dir, step) for step in (STEP, 40)]
    write_average(run_dir / "average", run_dir, paths, score=7.25)

    for checkpoint, step in (("best", STEP), ("last", 40), ("step-40", 40), ("average", 40)):
        output = tmp_path / checkpoint
        assert export(run_dir, output, "ctranslate2", checkpoint=checkpoint).step == step
        compare(load_model(run_dir, checkpoint).model, output, beam_size=2)
    assert "| bleu | 7.25 |" in (tmp_path / "average" / "README.md").read_text("utf-8")
    assert "None is recorded." in (tmp_path / "last" / "README.md").read_text("utf-8")
    assert export(run_dir / "average", tmp_path / "again", "safetensors").step == 40


def test_nothing_is_left_of_an_export_that_fails(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export_module, "model_card", fail)
    with pytest.raises(CheckpointError, match=r"out was not written: .*No space left"):
        export(run_dir, tmp_path / "out", "safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_places_that_hold_something_are_refused(run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    export(run_dir, tmp_path / "out", "safetensors")  # it was empty

    with pytest.raises(ConfigError, match="out is there already"):
        export(run_dir, tmp_path / "out", "safetensors")
    with pytest.raises(ConfigError, match="among the checkpoints"):
        export(run_dir, run_dir / "checkpoints" / "step-00000099", "safetensors")


@needs_ctranslate2
def test_an_export_is_not_exported_again(run_dir: Path, tmp_path: Path) -> None:
    export(run_dir, tmp_path / "out", "ctranslate2")

    with pytest.raises(ConfigError, match="out is an export already"):
        export(tmp_path / "out", tmp_path / "again", "safetensors")


def test_quantization_is_for_ctranslate2(run_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="int8 is for --to ctranslate2"):
        export(run_dir, tmp_path / "out", "safetensors", quantization="int8")


def test_a_missing_ctranslate2_is_named(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)

    with pytest.raises(ConfigError, match=r"not installed.\n.*pip install 'nmt\[ctranslate2\]'"):
        export(run_dir, tmp_path / "out", "ctranslate2")


def test_a_vocabulary_with_a_token_twice_is_refused(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = load_tokenizers(run_dir / "tokenizer").target
    pieces = tokenizer.pieces()
    monkeypatch.setattr(type(tokenizer), "pieces", lambda _: [*pieces[:-1], pieces[9]])

    with pytest.raises(CheckpointError, match="more than once"):
        export_module._tokens(tokenizer)


def test_the_card_tells_what_the_model_is(tokenizer: Path, tmp_path: Path) -> None:
    prepared = tmp_path / "prepared"
    prepared.mkdir()
    config = run_config({}, prepared_dir=str(prepared))
    write_run(tmp_path / "run", tokenizer, config)
    manifest = PreparedManifest(
        format_version=1, config_hash="c", vocab_hash="v", data_hash="d", source_vocab_size=320,
        target_vocab_size=320, counts={"few": {"read": 2000, "kept": 1990}},
        sources={"somewhere/a.de": {"sha256": "abc", "size": 1, "mtime_ns": 2}},
    )  # fmt: skip
    manifest.write(prepared)
    export(tmp_path / "run", tmp_path / "out", "safetensors")

    card = (tmp_path / "out" / "README.md").read_text("utf-8")
    assert card.startswith("---\nlanguage:\n- de\n- en\n")
    assert "Translates de to en. Trained for 30 updates" in card
    assert "- few: 1,990 of 2,000 pairs\n" in card
    assert "| a.de | `abc` |" in card
    assert "token ids: `d`" in card
    assert "| bleu | 12.35 |\n" in card or "| bleu | 12.34 |\n" in card
    assert "320 entries (bpe, joint)" in card
    assert str(tmp_path) not in card


def test_the_card_does_not_take_other_data_for_those_of_the_run(
    tokenizer: Path, tmp_path: Path
) -> None:
    prepared = tmp_path / "prepared"
    prepared.mkdir()
    write_run(tmp_path / "run", tokenizer, run_config({}, prepared_dir=str(prepared)))
    manifest = PreparedManifest(
        format_version=1, config_hash="c", vocab_hash="v", data_hash="other", source_vocab_size=1,
        target_vocab_size=1, counts={"few": {"read": 1, "kept": 1}}, sources={},
    )  # fmt: skip
    manifest.write(prepared)
    export(tmp_path / "run", tmp_path / "out", "safetensors")

    card = (tmp_path / "out" / "README.md").read_text("utf-8")
    assert "- few\n" in card
    assert "hashes are not known" in card
