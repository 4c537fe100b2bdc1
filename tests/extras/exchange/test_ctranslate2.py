"""A converted model computes what ours does, is chosen where it can, and is kept by its run."""

from __future__ import annotations

import json
import logging
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from nmt.checkpoint.files import MODEL, checkpoint_dir, save_checkpoint
from nmt.checkpoint.model_folder import SHORTLIST, ModelBundle, find_model, load_model
from nmt.config.model import DecodingConfig, ModelConfig
from nmt.errors import CheckpointError, ConfigError, DeviceError
from nmt.extras.exchange import ctranslate2
from nmt.extras.exchange.ctranslate2 import (
    RECORD,
    VOCABULARY_MAP,
    CTranslate2Engine,
    CTranslate2Target,
    import_ctranslate2,
    not_expressed,
    not_followed,
    num_positions,
)
from nmt.files.json_file import FileRecord, Manifest
from nmt.inference import engine as engines
from nmt.inference.engine import (
    EngineLacksError,
    EngineOptions,
    Ensemble,
    LoadedModel,
    Needs,
    ShortlistParts,
    choose_engine,
)
from nmt.inference.guard import GuardLimits
from nmt.inference.torch_engine import TorchEngine
from nmt.inference.translator import Translator
from nmt.model.transformer import Transformer
from nmt.search.hypothesis import Constraints
from nmt.text import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from nmt.text.tokenizer import Tokenizers, load_tokenizers
from tests.checkpoint.faults import flip_bit
from tests.extras.exchange.exported import (
    STEP,
    needs_ctranslate2,
    random_model,
    run_config,
    write_run,
    write_shortlist,
)
from tests.inference.conftest import sentences
from tests.inference.models import shortlist_bytes, train_tokenizer
from tests.model.test_options import OPTIONS

pytestmark = needs_ctranslate2
LINES = sentences(20, seed=8)
# Each asks for CTranslate2.
CHOICES: tuple[dict[str, Any], ...] = ({"engine": "ctranslate2"}, {"dtype": "int8"})
SHARED = (
    *("separate tables", "biases of feed-forward and norms", "zero start", "epsilon of LayerNorm"),
    *("zero start, no positions", "relative", "relative, grouped heads"),
)
ARCHITECTURES: dict[str, dict[str, Any]] = {
    **{name: OPTIONS[name] for name in SHARED},
    "pre-norm": {},
    "post-norm": {"norm_position": "post"},
    "SwiGLU, RMSNorm, no biases": {"activation": "swiglu", "norm": "rms", "bias": False},
    "target tables tied": {"embeddings": "decoder-tied"},
    "learned positions from 1": {
        "positions": "learned", "max_positions": 48, "first_position": 1,
    },
    "width 4": {"model_dim": 4, "ff_dim": 6, "num_heads": 2, "embedding_init": "xavier-uniform"},
    "sinusoids in halves": {"positions": "sinusoidal-halves"},
    "learned positions": {"positions": "learned", "max_positions": 48},
    "rotary": {"positions": "rotary"},
    "BOS before the source": {"source_bos": True},
    "one key head": {"num_kv_heads": 1},
    "rotary, grouped heads": {"positions": "rotary", "num_kv_heads": 2},
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
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> Tokenizers:
    return load_tokenizers(train_tokenizer(tmp_path_factory.mktemp("exchange") / "tokenizer"))


def bundle_of(tokenizers: Tokenizers, **model: Any) -> ModelBundle:
    config = run_config(model)
    manifest = Manifest(1, "1", 30, {MODEL: FileRecord(0, "0" * 64)})
    built = random_model(config, tokenizers.vocab_sizes)
    return ModelBundle(config.inference, {}, tokenizers, 30, Path(), manifest, built)


def engines_of(
    bundle: ModelBundle, folder: Path, dtype: str = "float32", lists: ShortlistParts | None = None
) -> tuple[CTranslate2Engine, TorchEngine]:
    """A model, and its conversion."""
    CTranslate2Target().write(folder, bundle, dtype, lists)
    return CTranslate2Engine(folder, device="cpu", threads=1), TorchEngine(bundle.model)


def compare(
    bundle: ModelBundle, folder: Path, count: int = 12, start: int | None = None, **options: Any
) -> None:
    """Convert a model; compare sentence by sentence, hypothesis by hypothesis, token by token."""
    both = engines_of(bundle, folder)
    ids = bundle.tokenizers.source.encode_batch(sentences(count, seed=3))
    wanted = DecodingConfig(**{**bundle.config.decoding.model_dump(), **options})
    own = None if start is None else [Constraints(start=start)] * count
    theirs, ours = (engine.search(ids, wanted, own) for engine in both)
    for one, other in zip(ours, theirs, strict=True):
        assert [h.ids for h in one] == [h.ids for h in other]
        for expected, hypothesis in zip(one, other, strict=True):
            assert hypothesis.score == pytest.approx(expected.score, abs=1e-4)
            assert hypothesis.log_prob == pytest.approx(expected.log_prob, abs=4e-3)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_all_models_translate_like_torch(name: str, tokenizers: Tokenizers, tmp_path: Path) -> None:
    bundle = bundle_of(tokenizers, **ARCHITECTURES[name])
    assert bundle.model.target_embeddings[BOS_ID].abs().min() > 0  # the decoder starts from it
    compare(bundle, tmp_path, beam_size=3)


@pytest.mark.parametrize(
    "options",
    [
        {"beam_size": 1},
        {"beam_size": 4, "n_best": 3, "min_length_factor": 0.9},
        {"beam_size": 3, "max_length_factor": 0.4, "max_length_offset": 2},
        {"beam_size": 4, "max_length_factor": 0.0, "max_length_offset": 1, "length_penalty": 0.0},
        {"beam_size": 4, "length_penalty": 0.6, "length_penalty_form": "gnmt"},
    ],
    ids=str,
)
def test_a_start_token_is_the_same_in_both_engines(
    options: dict[str, Any], tokenizers: Tokenizers, tmp_path: Path
) -> None:
    compare(bundle_of(tokenizers), tmp_path, count=40, start=77, **options)


def test_special_tokens_are_impossible_in_the_search(
    tokenizers: Tokenizers, tmp_path: Path
) -> None:
    """Even if PAD, UNK and BOS are the most probable tokens."""
    bundle = bundle_of(tokenizers)
    assert bundle.model.output_bias is not None
    with torch.no_grad():
        bundle.model.output_bias[[PAD_ID, UNK_ID, BOS_ID]] = 9.0
        bundle.model.output_bias[EOS_ID] += 6.0  # what is cut off pays for its end in another way
    compare(bundle, tmp_path, beam_size=4, max_length_offset=50)


def test_outputs_at_the_limit_do_not_displace_finished_outputs(tmp_path: Path) -> None:
    """CTranslate2 cuts off the whole beam at the limit, and scores it without EOS.

    And two vocabularies are kept apart.
    """
    two = load_tokenizers(train_tokenizer(tmp_path / "tokenizer", joint=False))
    bundle = bundle_of(two, embeddings="separate")
    assert len(bundle.model.source_vectors) != len(bundle.model.target_embeddings)
    with torch.no_grad():
        bundle.model.output_weight.mul_(1.5)
    limits: dict[str, Any] = {"max_length_factor": 1.0, "max_length_offset": 6}
    compare(bundle, tmp_path, count=40, beam_size=4, **limits)


@pytest.mark.parametrize("dtype", CTranslate2Target.dtypes)
def test_every_type_of_weights_translates(
    dtype: str, tokenizers: Tokenizers, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bundle = bundle_of(tokenizers, activation="swiglu", num_kv_heads=2)
    engine, _ = engines_of(bundle, tmp_path, dtype)
    bytes_each = {"float32": 4, "float16": 2, "bfloat16": 2, "int16": 2}.get(dtype, 1)
    parameters = sum(parameter.numel() for parameter in bundle.model.parameters())
    positions = 1024 * 32 * 4
    assert (tmp_path / "model.bin").stat().st_size < bytes_each * parameters + positions + 40_000
    assert json.loads((tmp_path / RECORD).read_text("utf-8"))["quantization"] == engine.dtype
    assert engine.dtype == dtype
    assert len(engine.search([[7, 8], [9]], bundle.config.decoding)) == 2
    capfd.readouterr()  # CTranslate2 may say that it computes in another type here


@pytest.mark.parametrize(("length", "num_searches"), [(8, 2), (70, 1)])
def test_only_a_short_source_is_searched_again_at_its_limit(
    length: int, num_searches: int, tokenizers: Tokenizers, tmp_path: Path
) -> None:
    bundle = bundle_of(tokenizers)
    engine, reference = engines_of(bundle, tmp_path)
    options = DecodingConfig(
        beam_size=3, max_length_factor=0, max_length_offset=4, min_length_factor=1
    )
    checks = Mock()
    (found,) = engine.search([range(10, 10 + length)], options, None, checks)
    assert checks.call_count == num_searches
    assert len(found[0].ids) == 4
    (log_probs,) = reference.token_log_probs([range(10, 10 + length)], [found[0].ids])
    assert found[0].log_prob == pytest.approx(sum(log_probs), abs=4e-3)  # that of EOS, too


def test_shortlists_become_the_vocabulary_map(tokenizers: Tokenizers, tmp_path: Path) -> None:
    """Alone, a sentence gets only tokens of its own list; the list may contain every token."""
    tokens = np.arange(tokenizers.target.vocab_size)
    lists = ShortlistParts(np.array([5]), np.where(tokens % 2, tokens, -1)[:, None])
    engine, _ = engines_of(bundle_of(tokenizers), tmp_path, lists=lists)
    options = DecodingConfig(beam_size=4, shortlist=True, max_length_factor=1.0)
    for source in ([7, 8, 9], [11], [12, 14, 16], [300, 301, 303]):
        allowed = {0, 1, 2, 3, 5} | {token for token in source if token % 2}
        for hypothesis in engine.search([source], options)[0]:
            assert set(hypothesis.ids) <= allowed
    (begun,) = engine.search([[7]], options, [Constraints(start=16)])
    assert begun
    # Whole vocabularies are scored again after a search with shortlists.
    assert engine.token_log_probs([[7]], [[8]]) == engine.token_log_probs([[7]], [[8]])
    lines = (tmp_path / VOCABULARY_MAP).read_text("utf-8").split("\n")
    assert lines[0].startswith("\t<pad> <unk> <s> </s> ")


def test_unsupported_options_are_named() -> None:
    assert not_expressed(run_config({}).model) == []
    assert not_expressed(run_config({"qk_norm": True}).model) == ["model.qk_norm true"]
    assert not_expressed(run_config({"norm_gain": False}).model) == ["model.norm_gain false"]
    assert not_expressed(run_config({"norm": "layer-std"}).model) == ['model.norm "layer-std"']
    options = DecodingConfig(sampling=True, top_k=5, n_best=7, seed=9, length_penalty=0.5)
    assert not_followed(options) == ["decoding.sampling true", "decoding.top_k 5"]
    config = run_config({}).inference.model_copy(update={"decoding": options})
    followed = CTranslate2Target().adapt(config).decoding
    assert followed == DecodingConfig(seed=9, length_penalty=0.5)
    assert not_followed(followed) == []


def test_every_new_key_is_either_supported_or_listed_as_unsupported() -> None:
    """Add an unsupported key to `_NOT_EXPRESSED` or `_NOT_FOLLOWED`; then count it here."""
    assert len(ModelConfig.model_fields) == 32
    assert len(DecodingConfig.model_fields) == 26
    assert ModelConfig.model_fields.keys() >= ctranslate2._NOT_EXPRESSED
    assert DecodingConfig.model_fields.keys() >= ctranslate2._NOT_FOLLOWED


@pytest.mark.parametrize(
    ("positions", "length", "factor", "rows"),
    [
        ("sinusoidal", 40, 2.0, 1024),
        ("none", 1000, 2.0, 2021),  # 2 * 1000 + 20 and EOS
        ("sinusoidal", 2000, 0.5, 2001),
        ("rotary", 2000, 2.0, None),
        ("relative", 2000, 2.0, None),
    ],
)
def test_there_are_positions_for_the_longest_output(
    positions: str, length: int, factor: float, rows: int | None
) -> None:
    limits = {"filters": {"max_length": length}, "decoding": {"max_length_factor": factor}}
    config = run_config({"positions": positions}, **limits)
    assert num_positions(config.inference) == rows


def load(folder: Path, **options: Any) -> Translator:
    return Translator.load(folder, device="cpu", **options)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ctranslate2")
    write_run(folder / "run", train_tokenizer(folder / "tokenizer"), run_config({}))
    write_shortlist(folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def ours(original: Path) -> Translator:
    return load(original, threads=1, guard=False, engine="torch")


@pytest.fixture(scope="module")
def theirs(original: Path) -> Translator:
    return load(original, threads=1, guard=False, engine="ctranslate2")


@pytest.mark.parametrize(
    "changes",
    [
        {"beam_size": 1},
        {"beam_size": 4, "n_best": 2, "length_penalty": 0.0},
        {"beam_size": 5, "length_penalty": 0.6, "length_penalty_form": "gnmt"},
        {"beam_size": 5, "max_length_factor": 2.5, "max_length_offset": 3},
        {"beam_size": 4, "max_length_factor": 0.0, "max_length_offset": 1},
        {"beam_size": 4, "patience": 1.0},
        {"beam_size": 6, "n_best": 6, "max_length_factor": 0.4, "max_length_offset": 2},
        {"beam_size": 1, "patience": 3.0, "max_length_factor": 0.3, "max_length_offset": 1},
        {"beam_size": 5, "no_repeat_ngram_size": 2, "max_length_offset": 20},
        {"beam_size": 1, "no_repeat_ngram_size": 1},
        {"beam_size": 5, "min_length_factor": 0.9, "n_best": 3},
        {"beam_size": 5, "min_length_factor": 1.0, "no_repeat_ngram_size": 2},
    ],
    ids=str,
)
def test_the_search_equals_that_of_torch(
    ours: Translator, theirs: Translator, changes: dict[str, Any]
) -> None:
    results = (each.with_options(**changes).translate(LINES) for each in (ours, theirs))
    for expected, found in zip(*results, strict=True):
        assert found.text == expected.text
        assert found.score == pytest.approx(expected.score, abs=1e-4)
        assert [x.text for x in found.alternatives] == [x.text for x in expected.alternatives]


def test_token_scores_equal_those_of_torch(ours: Translator, theirs: Translator) -> None:
    """Including the scores of an empty output."""
    expected, given = (
        each.with_options(outputs={"token_scores"}).translate([*LINES, ""])
        for each in (ours, theirs)
    )
    for our, their in zip(expected, given, strict=True):
        assert our.tokens is not None
        assert their.tokens is not None
        assert [token.piece for token in their.tokens] == [token.piece for token in our.tokens]
        found = [token.log_prob for token in their.tokens]
        assert found == pytest.approx([token.log_prob for token in our.tokens], abs=1e-3)
    ids = ([[7, 8], [9]], [[], [5, 6]])
    scores = [engine.token_log_probs(*ids) for engine in (ours.engine, theirs.engine)]
    for of_us, of_them in zip(*scores, strict=True):
        assert of_them == pytest.approx(of_us, abs=1e-3)


def test_attention_equals_that_of_torch(ours: Translator, theirs: Translator) -> None:
    """The models have two layers, so that the upper half is the last layer."""
    ids = ([[7, 8], [9, 10, 11]], [[], [5, 6]])
    for expected, found in zip(
        ours.engine.attention(*ids), theirs.engine.attention(*ids), strict=True
    ):
        assert np.array(found) == pytest.approx(np.array(expected), abs=1e-3)


@pytest.mark.parametrize(("num_layers", "aligning"), [(1, 0), (3, 1), (4, 2), (6, 4)])
def test_attention_is_that_of_the_last_layer_but_one(
    tokenizers: Tokenizers,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    num_layers: int,
    aligning: int,
) -> None:
    theirs, ours = engines_of(bundle_of(tokenizers, decoder_layers=num_layers), tmp_path)
    layer = property(lambda model: {model.decoder[aligning]})
    monkeypatch.setattr(Transformer, "_aligning_layers", layer)
    ids = ([[7, 8, 9]], [[5, 6]])
    expected = np.array(ours.attention(*ids))
    assert np.array(theirs.attention(*ids)) == pytest.approx(expected, abs=1e-3)


def test_placeholders_have_the_same_places_as_with_torch(
    ours: Translator, theirs: Translator
) -> None:
    lines = [f"{{x}} {line} {{y}} {line} %s" for line in LINES if line.strip()]
    results = (each.translate(lines) for each in (ours, theirs))
    for expected, found in zip(*results, strict=True):
        assert found.text == expected.text
        assert all(found.text.count(mark) == 1 for mark in ("{x}", "{y}", "%s"))


def test_the_text_does_not_depend_on_batches(theirs: Translator) -> None:
    """Fault 46."""
    expected = [theirs.translate([line])[0] for line in LINES]
    for result, alone in zip(theirs.translate(LINES), expected, strict=True):
        assert result.text == alone.text
        assert result.score == pytest.approx(alone.score, abs=1e-4)


@pytest.mark.parametrize("shortest", [0.0, 1.0, 5.0])
def test_outputs_end_with_the_last_learned_position(tmp_path: Path, shortest: float) -> None:
    """Finding 9: there was none at the end of the table if outputs had to be longer."""
    config = run_config(
        {"positions": "learned", "max_positions": 12},
        filters={"max_length": 11},
        decoding={
            "beam_size": 2, "max_length_factor": 3.0, "max_length_offset": 20,
            "min_length_factor": shortest,
        },
    )  # fmt: skip
    model = write_run(tmp_path / "run", train_tokenizer(tmp_path / "tokenizer"), config)
    ids = [[7, 8, 9], [10] * 11, [11, 300, 4, 5]]
    found = load(tmp_path / "run", engine="ctranslate2").engine.search(ids, config.decoding)
    expected = TorchEngine(model).search(ids, config.decoding)
    assert [h.ids for (h, *_) in found] == [h.ids for (h, *_) in expected]
    assert max(len(h.ids) for (h, *_) in found) == 11


def test_unsupported_requests_are_errors(
    theirs: Translator, original: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for changes, named in (
        ({"sampling": True, "top_k": 5}, "decoding.sampling true, decoding.top_k 5"),
        ({"diverse_beam_groups": 3, "seed": 4}, "decoding.diverse_beam_groups 3"),
        ({"outputs": {"alignments"}}, "alignments"),
    ):
        with pytest.raises(ConfigError, match=f"does not support {named}"):
            theirs.with_options(**changes).translate(["Hund"])
    with pytest.raises(ConfigError, match="a prefix or phrases"):
        theirs.engine.search([[5]], theirs.options.decoding, [Constraints(prefix=(7,))])
    monkeypatch.setattr(import_ctranslate2(), "get_cuda_device_count", lambda: 0)
    for device in ("cuda", "cuda:0"):
        with pytest.raises(DeviceError, match="cannot find a CUDA device"):
            Translator.load(original, device=device, engine="ctranslate2")


def test_a_file_that_is_not_a_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"\7\0\0\0")
    (tmp_path / "export.json").write_text('{"quantization": "int8", "num_positions": null}')
    with pytest.raises(CheckpointError, match="cannot be loaded by CTranslate2"):
        CTranslate2Engine(tmp_path)


def needs_of(*, longest: int | None = 40, **changes: Any) -> Needs:
    """Decoding options, and the other fields."""
    own = {x: changes.pop(x) for x in ("constraints", "outputs") if x in changes}
    return Needs(decoding=DecodingConfig().model_copy(update=changes), longest=longest, **own)


def load_engine(folder: Path, needs: Needs | None = None, **options: Any) -> LoadedModel:
    return choose_engine(folder, EngineOptions(**{"device": "cpu", **options}), needs or needs_of())


def chosen(folder: Path, needs: Needs | None = None, **options: Any) -> tuple[str, str]:
    engine = load_engine(folder, needs, **options).engine
    return engine.name, engine.dtype


def converted(place: Path) -> list[str]:
    """Names of the cached conversions, without their hashes."""
    return sorted(path.name.rsplit("-", 1)[0] for path in place.glob("ctranslate2-*"))


@pytest.fixture
def run_dir(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    return shutil.copytree(original, tmp_path / "run", ignore=shutil.ignore_patterns(".cache"))


def test_on_a_cpu_ctranslate2_serves_supported_requests(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch serves unsupported requests, and all requests on a GPU."""
    assert chosen(run_dir) == ("ctranslate2", "float32")
    assert chosen(run_dir, dtype="int8") == ("ctranslate2", "int8")
    assert chosen(run_dir, engine="torch") == ("torch", "float32")
    assert chosen(run_dir, dtype="bf16") == ("torch", "bfloat16")
    shortlist = needs_of(shortlist=True, outputs=frozenset({"token_scores"}))
    assert chosen(run_dir, shortlist) == ("torch", "float32")
    assert chosen(run_dir, shortlist, dtype="int8") == ("ctranslate2", "int8")
    write_run(tmp_path / "qk", run_dir / "tokenizer", run_config({"qk_norm": True}))
    others = Ensemble((run_dir,))
    assert chosen(tmp_path / "qk")[0] == chosen(run_dir, ensemble=others)[0] == "torch"
    for choice in CHOICES:
        with pytest.raises(ConfigError, match=r"does not support model.qk_norm true"):
            load_engine(tmp_path / "qk", **choice)
    with pytest.raises(ConfigError, match="does not support ensembles"):
        load_engine(run_dir, engine="ctranslate2", ensemble=others)
    monkeypatch.setattr(engines, "_runs_on_gpu", lambda device: device != "cpu")
    assert chosen(run_dir, device="auto")[0] == "torch"


def test_what_an_import_writes_leaves_the_choice_of_engine_and_type_to_the_user(
    run_dir: Path,
) -> None:
    needs = needs_of(keep_special_mass=True)  # only torch is exact
    assert chosen(run_dir, needs) == ("torch", "float32")
    assert chosen(run_dir, needs, engine="ctranslate2") == ("ctranslate2", "float32")
    assert chosen(run_dir, needs, dtype="int8") == ("ctranslate2", "int8")


@pytest.mark.parametrize(
    ("needs", "why"),
    [
        (needs_of(sampling=True), "decoding.sampling true"),
        (needs_of(search="toy"), 'decoding.search "toy"'),
        (needs_of(constraints=True), "a prefix or phrases for single lines"),
        (needs_of(outputs=frozenset({"attention"})), "attention"),
        (needs_of(outputs=frozenset({"alignments"})), "alignments"),
        (needs_of(outputs=frozenset({"new output"})), "new output"),
        (needs_of(max_length_factor=90), "3,621 positions (the limit is 1,024)"),
        (needs_of(longest=1023), "2,067 positions (the limit is 1,024)"),
        (needs_of(longest=None), "positions for lines of any length"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_torch_replaces_ctranslate2_for_unsupported_requirements(
    run_dir: Path, needs: Needs, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With -v the reason is logged. Unknown options count as unsupported."""
    caplog.set_level(logging.DEBUG, "nmt.inference")
    assert chosen(run_dir, needs) == ("torch", "float32")
    assert any(text.startswith("using torch") and why in text for text in caplog.messages)
    with pytest.raises(EngineLacksError, match=f"engine does not support {re.escape(why)}"):
        chosen(run_dir, needs, engine="ctranslate2")
    assert not (run_dir / ".cache").exists()  # nothing was converted for nothing


def test_without_ctranslate2_torch_is_used(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    assert chosen(run_dir) == ("torch", "float32")
    for choice in CHOICES:
        with pytest.raises(ConfigError, match=r"not installed.*\n.*pip install"):
            load_engine(run_dir, **choice)


@pytest.mark.parametrize("changes", [{}, {"beam_size": 1}])
def test_both_engines_write_the_same_text_and_retry_the_same_lines(
    run_dir: Path, changes: dict[str, Any]
) -> None:
    """A random model makes the guard retry nearly every line."""
    changes["limits"] = GuardLimits(loop=1, repetition=0.05, subwords=(0.8, 1.2))
    ours, theirs = (
        load(run_dir, engine=name, threads=1, **changes).translate(LINES)
        for name in ("torch", "ctranslate2")
    )
    assert sum(bool(result.alarms or result.retried) for result in ours) > len(LINES) / 2
    for one, other in zip(ours, theirs, strict=True):
        assert (one.text, one.alarms, one.retried) == (other.text, other.alarms, other.retried)
        assert one.score == pytest.approx(other.score, abs=1e-4)


def test_a_model_is_converted_once_for_each_use(run_dir: Path) -> None:
    cache = run_dir / ".cache"
    for dtype in ("float32", "int8") * 2:
        load(run_dir, dtype=dtype).translate(LINES[:1])
    assert converted(cache) == ["ctranslate2-float32", "ctranslate2-int8"]
    times = {path: path.stat().st_mtime_ns for path in cache.glob("ctranslate2-*")}
    load(run_dir, engine="ctranslate2", shortlist=True).translate(LINES[:1])
    with pytest.raises(EngineLacksError, match="exported without a shortlist"):
        load(run_dir).with_options(shortlist=True)
    assert converted(cache) == ["ctranslate2-float32"] * 2 + ["ctranslate2-int8"]
    assert all(path.stat().st_mtime_ns == time for path, time in times.items())
    (run_dir / SHORTLIST).unlink()
    with pytest.raises(ConfigError, match=r"shortlist is on, but .* does not exist"):
        load(run_dir, shortlist=True)


def test_another_shortlist_and_longer_lines_get_a_new_conversion(run_dir: Path) -> None:
    """The vocabulary map and the table of positions are made of them."""
    load(run_dir, engine="ctranslate2", shortlist=True)
    config = run_dir / "config.yaml"
    parts = {"common": np.array([4, 9]), "candidates": np.full((320, 1), 8)}
    (run_dir / SHORTLIST).write_bytes(shortlist_bytes(**parts))
    engine = load(run_dir, engine="ctranslate2", shortlist=True, guard=False).engine
    assert converted(run_dir / ".cache") == ["ctranslate2-float32"] * 2
    options = DecodingConfig(beam_size=2, shortlist=True)
    (hypotheses,) = engine.search([[7, 30]], options)
    assert {token for each in hypotheses for token in each.ids} <= {4, 8, 9}
    text = config.read_text(encoding="utf-8")
    assert "max_length: 40" in text
    config.write_text(text.replace("max_length: 40", "max_length: 1400"), encoding="utf-8")
    # Up to 1.0 x 1400 + 5 subwords, and EOS.
    needs = needs_of(max_length_factor=1.0, max_length_offset=5, shortlist=True)
    assert load_engine(run_dir, needs, engine="ctranslate2").engine.max_positions == 1406


def test_other_weights_get_a_new_conversion_and_old_conversions_are_removed(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load(run_dir, guard=False).translate(LINES)
    model = load_model(run_dir).model
    with torch.no_grad():
        model.output_weight.mul_(-1)
    save_checkpoint(run_dir, STEP, model=model.state_dict(), optimizer={}, state={})
    second = load(run_dir, guard=False).translate(LINES)
    assert [result.text for result in second] != [result.text for result in first]
    assert converted(run_dir / ".cache") == ["ctranslate2-float32"] * 2
    monkeypatch.setattr(ctranslate2, "_MAX_CACHED_IN_RUN", 1)
    load(run_dir, dtype="int8")
    assert converted(run_dir / ".cache") == ["ctranslate2-int8"]


def test_a_changed_converter_never_uses_an_old_conversion(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {path.name for path in ctranslate2._CONVERTER}
    assert names == {"ctranslate2.py", "layers.toml"}
    load(run_dir)
    load(run_dir)
    assert converted(run_dir / ".cache") == ["ctranslate2-float32"]
    changed = []
    for path in ctranslate2._CONVERTER:
        copy = tmp_path / path.name
        copy.write_bytes(path.read_bytes() + b"\n")
        changed.append(copy)
    monkeypatch.setattr(ctranslate2, "_CONVERTER", changed)
    load(run_dir)
    assert converted(run_dir / ".cache") == ["ctranslate2-float32"] * 2


def test_damaged_conversions_are_repeated_and_damaged_weights_not_converted(run_dir: Path) -> None:
    expected = load(run_dir).translate(LINES)
    (folder,) = (run_dir / ".cache").glob("ctranslate2-*")
    for name in ("model.bin", "manifest.json", "config.json"):
        (folder / name).write_bytes(b"damaged")
        assert load(run_dir).translate(LINES) == expected
        assert (folder / name).stat().st_size > 7
    shutil.rmtree(run_dir / ".cache")
    flip_bit(checkpoint_dir(run_dir, STEP) / MODEL, -1)
    with pytest.raises(CheckpointError, match="has sha256"):
        load(run_dir)
    assert converted(run_dir / ".cache") == []


def test_a_read_only_run_uses_the_cache_of_the_user(
    run_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file blocks the cache folder, which also works when the tests run as root."""
    caplog.set_level(logging.INFO)
    (run_dir / ".cache").write_text("")
    expected = load(run_dir).translate(LINES)
    assert converted(tmp_path / "user" / "nmt") == ["ctranslate2-float32"]
    shutil.rmtree(tmp_path / "user")
    (tmp_path / "user").write_text("")
    caplog.clear()
    translator = load(run_dir)
    assert translator.engine.name == "torch"
    assert [x.text for x in translator.translate(LINES)] == [x.text for x in expected]
    assert "the model cannot be converted" in caplog.text
    for choice in CHOICES:
        with pytest.raises(ConfigError, match=r"cannot be converted: .*cannot be written"):
            load(run_dir, **choice)


def test_parallel_processes_convert_once(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes, write = [], CTranslate2Target.write

    def counted(*arguments: Any) -> None:
        writes.append(arguments)
        write(*arguments)

    monkeypatch.setattr(CTranslate2Target, "write", counted)
    files = find_model(run_dir)

    def convert(_: int) -> Path:
        return ctranslate2.converted_model(run_dir, files, "float32", with_shortlist=False)

    with ThreadPoolExecutor(4) as pool:
        folders = {*pool.map(convert, range(4))}
    assert len(folders) == len(writes) == 1
    assert CTranslate2Engine(folders.pop()).dtype == "float32"


def test_after_the_first_use_a_run_translates_without_torch(run_dir: Path) -> None:
    load(run_dir).translate(LINES[:1])
    code = (
        "import sys; from typer.testing import CliRunner; from nmt.cli.app import app;"
        f"result = CliRunner().invoke(app, ['translate', {str(run_dir)!r}], 'Hund\\n');"
        "print(result.output); sys.exit(result.exit_code or 'torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
