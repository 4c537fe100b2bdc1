"""CTranslate2 finds what our search finds, or says that it cannot."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from nmt.checkpoint.bundle import load_model
from nmt.checkpoint.files import save_checkpoint
from nmt.config.decoding import DecodingConfig
from nmt.errors import CheckpointError, ConfigError, DeviceError
from nmt.exchange.ctranslate2_package import import_ctranslate2
from nmt.model.transformer import Transformer
from nmt.recipes.export import export
from nmt.runtime.ctranslate2_engine import CTranslate2Engine
from nmt.runtime.engine import Engine, choose_engine, is_ctranslate2
from nmt.runtime.ensemble import Ensemble
from nmt.runtime.torch_engine import TorchEngine
from nmt.search.constraints import Constraints
from nmt.translation.translator import Translator
from tests.translation.conftest import sentences
from tests.translation.exported import (
    needs_ctranslate2,
    run_config,
    train_tokenizers,
    write_run,
)

LINES = sentences(30, seed=8)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ctranslate2")
    write_run(folder / "run", train_tokenizers(folder / "tokenizer"), run_config({}))
    return folder / "run"


@pytest.fixture(scope="module")
def exported(run_dir: Path) -> Path:
    return export(run_dir, run_dir.parent / "out", "ctranslate2").output


@pytest.fixture(scope="module")
def ours(run_dir: Path) -> Translator:
    return Translator.load(run_dir, device="cpu", guard=False)


@pytest.fixture
def theirs(exported: Path) -> Translator:
    return Translator.load(exported, device="cpu", threads=1, guard=False)


@needs_ctranslate2
@pytest.mark.parametrize(
    "changes",
    [
        {"beam_size": 1},
        {"beam_size": 4, "n_best": 4},
        {"beam_size": 4, "n_best": 2, "length_penalty": 0.0},
        {"beam_size": 5, "length_penalty": 0.6, "length_penalty_form": "gnmt"},
        {"beam_size": 5, "max_length_factor": 2.5, "max_length_offset": 3},
        {"beam_size": 4, "max_length_factor": 0.0, "max_length_offset": 1},
        {"beam_size": 2, "batch_tokens": 50},
        {"beam_size": 4, "patience": 2.0},
    ],
    ids=str,
)
def test_the_search_is_ours(ours: Translator, theirs: Translator, changes: dict[str, Any]) -> None:
    for expected, found in zip(
        ours.translate(LINES, **changes), theirs.translate(LINES, **changes), strict=True
    ):
        assert found.text == expected.text
        assert found.score == pytest.approx(expected.score, abs=1e-4)
        assert [x.text for x in found.alternatives] == [x.text for x in expected.alternatives]


@needs_ctranslate2
def test_its_tokens_have_our_scores(ours: Translator, theirs: Translator) -> None:
    """Also those of an output that is empty."""
    expected = ours.translate([*LINES, ""], token_scores=True)
    for our, their in zip(expected, theirs.translate([*LINES, ""], token_scores=True), strict=True):
        assert our.tokens is not None
        assert their.tokens is not None
        assert [token.piece for token in their.tokens] == [token.piece for token in our.tokens]
        found = [token.log_prob for token in their.tokens]
        assert found == pytest.approx([token.log_prob for token in our.tokens], abs=1e-3)
    ids = ([[7, 8], [9]], [[], [5, 6]])
    scores = [engine.token_log_probs(*ids) for engine in (ours._engine, theirs._engine)]
    for of_us, of_them in zip(*scores, strict=True):
        assert of_them == pytest.approx(of_us, abs=1e-3)


@needs_ctranslate2
def test_no_output_is_shorter_than_asked_for(theirs: Translator) -> None:
    """Ours may find others: CTranslate2 shares out the probability of a forbidden EOS."""
    ids = theirs._tokenizers.source.encode_batch(LINES)
    options = theirs.with_options(min_length_factor=1.0, beam_size=3, n_best=3).options

    for source, found in zip(ids, theirs._engine.search(ids, options), strict=True):
        assert all(len(source) <= len(h.ids) <= len(source) + 5 for h in found)


@needs_ctranslate2
def test_no_ngram_occurs_twice(theirs: Translator) -> None:
    options = theirs.with_options(no_repeat_ngram_size=2, max_length_offset=20).options
    ids = theirs._tokenizers.source.encode_batch(LINES)
    for hypothesis, *_ in theirs._engine.search(ids, options):
        pairs = list(zip(hypothesis.ids, hypothesis.ids[1:], strict=False))
        assert len(set(pairs)) == len(pairs)


@needs_ctranslate2
def test_the_text_does_not_depend_on_batches(theirs: Translator) -> None:
    """Fault 46."""
    expected = [theirs.translate([line])[0] for line in LINES]
    for result, alone in zip(theirs.translate(LINES), expected, strict=True):
        assert result.text == alone.text
        assert result.score == pytest.approx(alone.score, abs=1e-4)


@needs_ctranslate2
def test_outputs_end_where_a_learned_table_ends(tmp_path: Path) -> None:
    config = run_config(
        {"positions": "learned", "max_positions": 12},
        filters={"max_length": 11},
        decoding={"beam_size": 2, "max_length_factor": 3.0, "max_length_offset": 20},
    )
    model = write_run(tmp_path / "run", train_tokenizers(tmp_path / "tokenizer"), config)
    export(tmp_path / "run", tmp_path / "out", "ctranslate2")
    ids = [[7, 8, 9], [10] * 11, [11, 300, 4, 5]]
    found = Translator.load(tmp_path / "out")._engine.search(ids, config.decoding)

    expected = TorchEngine(model).search(ids, config.decoding)
    assert [h.ids for (h, *_) in found] == [h.ids for (h, *_) in expected]
    assert max(len(h.ids) for (h, *_) in found) == 11


@needs_ctranslate2
@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"sampling": True, "top_k": 5}, "sampling true, top_k 5"),
        ({"repetition_penalty": 1.2}, "repetition_penalty 1.2"),
        ({"coverage_penalty": 0.2}, "coverage_penalty 0.2"),
        ({"diverse_beam_groups": 3, "seed": 4}, "diverse_beam_groups 3"),
        ({"shortlist": True}, "shortlist true"),
    ],
)
def test_an_option_that_it_cannot_follow_is_named(
    theirs: Translator, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, match=f"cannot be searched with {named}.\n"):
        theirs.translate(["Hund"], **changes)


@needs_ctranslate2
def test_wishes_for_single_lines_are_refused(theirs: Translator) -> None:
    with pytest.raises(ConfigError, match="a prefix or phrases"):
        theirs._engine.search([[5]], theirs.options, [Constraints(prefix=(7,))])


@needs_ctranslate2
def test_a_folder_says_what_it_is_for(run_dir: Path, exported: Path) -> None:
    assert (is_ctranslate2(run_dir), is_ctranslate2(exported)) == (False, True)
    assert choose_engine(exported, "auto") == "ctranslate2"
    assert choose_engine(run_dir, "torch") == "torch"
    with pytest.raises(ConfigError, match="out is a model for ctranslate2, not for torch"):
        Translator.load(exported, engine="torch")
    with pytest.raises(ConfigError, match="run is a model for torch, not for ctranslate2"):
        Translator.load(run_dir, engine="ctranslate2")


@needs_ctranslate2
def test_it_joins_no_ensemble(run_dir: Path, exported: Path) -> None:
    with pytest.raises(ConfigError, match="together with others"):
        Translator.load(exported, ensemble=Ensemble((run_dir,)))


@needs_ctranslate2
def test_a_gpu_that_is_not_there_is_refused(
    exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_ctranslate2(), "get_cuda_device_count", lambda: 0)
    with pytest.raises(DeviceError, match="no CUDA device"):
        CTranslate2Engine(exported, device="cuda")


@needs_ctranslate2
@pytest.mark.parametrize("name", ["model.bin", "export.json", "shared_vocabulary.json"])
def test_a_damaged_folder_is_refused(run_dir: Path, tmp_path: Path, name: str) -> None:
    path = export(run_dir, tmp_path / "out", "ctranslate2").output / name
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)

    with pytest.raises(CheckpointError, match=f"{name} has sha256"):
        Translator.load(tmp_path / "out")


@needs_ctranslate2
def test_a_file_that_is_no_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"\7\0\0\0")
    with pytest.raises(CheckpointError, match="cannot be loaded by CTranslate2"):
        CTranslate2Engine(tmp_path)


@needs_ctranslate2
def test_weights_that_are_not_numbers_are_named(run_dir: Path, tmp_path: Path) -> None:
    bundle = load_model(run_dir)
    with torch.no_grad():
        bundle.model.output_weight.fill_(torch.nan)
    write_run(tmp_path / "run", run_dir / "tokenizer", bundle.config)
    save_checkpoint(tmp_path / "run", 99, model=bundle.model.state_dict(), optimizer={}, state={})
    export(tmp_path / "run", tmp_path / "out", "ctranslate2", checkpoint="last")

    with pytest.raises(CheckpointError, match="not numbers"):
        Translator.load(tmp_path / "out").translate(["Hund"])


@needs_ctranslate2
def test_translating_does_not_load_torch(exported: Path) -> None:
    code = (
        "import sys; from nmt.translation.translator import Translator;"
        f"Translator.load({str(exported)!r}).translate(['der Hund läuft'], beam_size=2);"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@needs_ctranslate2
def test_it_is_an_engine(theirs: Translator, model: Transformer) -> None:
    engines: list[Engine] = [theirs._engine, TorchEngine(model)]
    for engine in engines:
        assert len(engine.search([[5, 6], [7]], DecodingConfig(beam_size=2))) == 2
