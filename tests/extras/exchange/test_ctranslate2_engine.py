"""CTranslate2 finds what our search finds, or says that it cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nmt.config.decoding import DecodingConfig
from nmt.errors import CheckpointError, ConfigError, DeviceError
from nmt.extras.exchange.ctranslate2 import import_ctranslate2, not_followed
from nmt.extras.exchange.ctranslate2_engine import CTranslate2Engine
from nmt.inference.guard import GuardLimits, fallback_search
from nmt.inference.result import Alarm
from nmt.inference.torch_engine import TorchEngine
from nmt.inference.translator import Translator
from nmt.search.hypothesis import Constraints
from tests.extras.exchange.exported import (
    needs_ctranslate2,
    run_config,
    train_tokenizers,
    write_run,
)
from tests.inference.conftest import sentences

pytestmark = needs_ctranslate2
LINES = sentences(20, seed=8)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ctranslate2")
    write_run(folder / "run", train_tokenizers(folder / "tokenizer"), run_config({}))
    return folder / "run"


def load(folder: Path, engine: Any = "ctranslate2") -> Translator:
    return Translator.load(folder, device="cpu", threads=1, guard=False, engine=engine)


@pytest.fixture(scope="module")
def ours(run_dir: Path) -> Translator:
    return load(run_dir, "torch")


@pytest.fixture(scope="module")
def theirs(run_dir: Path) -> Translator:
    return load(run_dir)


@pytest.mark.parametrize(
    "changes",
    [
        {"beam_size": 1},
        {"beam_size": 4, "n_best": 2, "length_penalty": 0.0},
        {"beam_size": 5, "length_penalty": 0.6, "length_penalty_form": "gnmt"},
        {"beam_size": 5, "max_length_factor": 2.5, "max_length_offset": 3},
        {"beam_size": 4, "max_length_factor": 0.0, "max_length_offset": 1},
        {"beam_size": 4, "patience": 2.0},
        {"beam_size": 6, "n_best": 6, "max_length_factor": 0.4, "max_length_offset": 2},
        {"beam_size": 1, "patience": 3.0, "max_length_factor": 0.3, "max_length_offset": 1},
        {"beam_size": 5, "no_repeat_ngram_size": 2, "max_length_offset": 20},
        {"beam_size": 1, "no_repeat_ngram_size": 1},
        {"beam_size": 5, "min_length_factor": 0.9, "n_best": 3},
        {"beam_size": 5, "min_length_factor": 1.0, "no_repeat_ngram_size": 2},
    ],
    ids=str,
)
def test_the_search_is_ours(ours: Translator, theirs: Translator, changes: dict[str, Any]) -> None:
    for expected, found in zip(
        ours.with_options(**changes).translate(LINES),
        theirs.with_options(**changes).translate(LINES),
        strict=True,
    ):
        assert found.text == expected.text
        assert found.score == pytest.approx(expected.score, abs=1e-4)
        assert [x.text for x in found.alternatives] == [x.text for x in expected.alternatives]


def test_its_tokens_have_our_scores(ours: Translator, theirs: Translator) -> None:
    """Also those of an output that is empty."""
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


def test_the_text_does_not_depend_on_batches(theirs: Translator) -> None:
    """Fault 46."""
    expected = [theirs.translate([line])[0] for line in LINES]
    for result, alone in zip(theirs.translate(LINES), expected, strict=True):
        assert result.text == alone.text
        assert result.score == pytest.approx(alone.score, abs=1e-4)


@pytest.mark.parametrize("shortest", [0.0, 1.0, 5.0])
def test_outputs_end_where_a_learned_table_ends(tmp_path: Path, shortest: float) -> None:
    """Finding 9: there was none at the end of the table if outputs had to be longer."""
    config = run_config(
        {"positions": "learned", "max_positions": 12},
        filters={"max_length": 11},
        decoding={
            "beam_size": 2, "max_length_factor": 3.0, "max_length_offset": 20,
            "min_length_factor": shortest,
        },
    )  # fmt: skip
    model = write_run(tmp_path / "run", train_tokenizers(tmp_path / "tokenizer"), config)
    ids = [[7, 8, 9], [10] * 11, [11, 300, 4, 5]]
    found = load(tmp_path / "run").engine.search(ids, config.decoding)

    expected = TorchEngine(model).search(ids, config.decoding)
    assert [h.ids for (h, *_) in found] == [h.ids for (h, *_) in expected]
    assert max(len(h.ids) for (h, *_) in found) == 11


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"sampling": True, "top_k": 5}, "decoding.sampling true, decoding.top_k 5"),
        ({"repetition_penalty": 1.2}, "decoding.repetition_penalty 1.2"),
        ({"diverse_beam_groups": 3, "seed": 4}, "decoding.diverse_beam_groups 3"),
    ],
)
def test_an_option_that_it_does_not_have_is_named(
    theirs: Translator, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, match=f"does not have {named}"):
        theirs.with_options(**changes).translate(["Hund"])


def test_constraints_attention_and_a_gpu_that_is_not_there_are_refused(
    theirs: Translator, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="a prefix or phrases"):
        theirs.engine.search([[5]], theirs.options.decoding, [Constraints(prefix=(7,))])
    with pytest.raises(ConfigError, match="does not have alignments"):
        theirs.with_options(outputs={"alignments"})
    with pytest.raises(ConfigError, match="does not have attention"):
        theirs.engine.attention([[5]], [[6]])
    monkeypatch.setattr(import_ctranslate2(), "get_cuda_device_count", lambda: 0)
    with pytest.raises(DeviceError, match="no CUDA device"):
        Translator.load(run_dir, device="cuda", engine="ctranslate2")


def test_a_file_that_is_no_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"\7\0\0\0")
    (tmp_path / "export.json").write_text('{"quantization": "int8", "num_positions": null}')
    with pytest.raises(CheckpointError, match="cannot be loaded by CTranslate2"):
        CTranslate2Engine(tmp_path)


def test_it_has_all_that_a_retry_of_the_guard_may_ask_for() -> None:
    """Of what our own search defines as it does."""
    alarms: list[Alarm] = ["loop", "repetition", "short", "long", "compression"]
    changes = fallback_search(alarms, DecodingConfig(beam_size=1), GuardLimits())
    assert not not_followed(DecodingConfig(**changes))
