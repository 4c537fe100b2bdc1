"""When CTranslate2 is chosen, and what a run keeps of its conversion."""

from __future__ import annotations

import logging
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from nmt.checkpoint.files import MODEL, checkpoint_dir, save_checkpoint
from nmt.checkpoint.model_folder import SHORTLIST, find_model, load_model
from nmt.config.model import DecodingConfig
from nmt.errors import CheckpointError, ConfigError
from nmt.extras.exchange import ctranslate2
from nmt.extras.exchange.ctranslate2 import CTranslate2Target
from nmt.extras.exchange.ctranslate2_engine import CTranslate2Engine
from nmt.inference import engine as engines
from nmt.inference.engine import (
    EngineLacksError,
    EngineOptions,
    Ensemble,
    LoadedModel,
    Needs,
    choose_engine,
)
from nmt.inference.guard import GuardLimits
from nmt.inference.translator import Translator
from tests.checkpoint.faults import flip_bit
from tests.extras.exchange.exported import (
    STEP,
    needs_ctranslate2,
    run_config,
    train_tokenizers,
    write_run,
    write_shortlist,
)
from tests.inference.conftest import sentences

pytestmark = needs_ctranslate2
LINES = sentences(12, seed=8)
# Each asks for CTranslate2.
CHOICES: tuple[dict[str, Any], ...] = ({"engine": "ctranslate2"}, {"dtype": "int8"})


def needs_of(*, longest: int | None = 40, **changes: Any) -> Needs:
    """Decoding options, and the other fields."""
    own = {x: changes.pop(x) for x in ("constraints", "outputs") if x in changes}
    return Needs(decoding=DecodingConfig().model_copy(update=changes), longest=longest, **own)


def load_engine(folder: Path, needs: Needs | None = None, **options: Any) -> LoadedModel:
    return choose_engine(folder, EngineOptions(**{"device": "cpu", **options}), needs or needs_of())


def chosen(folder: Path, needs: Needs | None = None, **options: Any) -> tuple[str, str]:
    """Name and dtype of the engine that is chosen."""
    engine = load_engine(folder, needs, **options).engine
    return engine.name, engine.dtype


def load(folder: Path, **options: Any) -> Translator:
    return Translator.load(folder, device="cpu", **options)


def converted(place: Path) -> list[str]:
    """Names of what is kept, without what they are made of."""
    return sorted(path.name.rsplit("-", 1)[0] for path in place.glob("ctranslate2-*"))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("loading")
    write_run(folder / "run", train_tokenizers(folder / "tokenizer"), run_config({}))
    write_shortlist(folder / "run")
    return folder / "run"


@pytest.fixture
def run_dir(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    return shutil.copytree(original, tmp_path / "run")


def test_a_cpu_gets_ctranslate2_for_what_it_has(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And torch for what it cannot run, and a GPU."""
    assert chosen(run_dir) == ("ctranslate2", "float32")
    assert chosen(run_dir, dtype="int8") == ("ctranslate2", "int8")
    assert chosen(run_dir, engine="torch") == ("torch", "float32")
    assert chosen(run_dir, dtype="bf16") == ("torch", "bfloat16")
    shortlist = needs_of(shortlist=True, outputs=frozenset({"token_scores"}))
    assert chosen(run_dir, shortlist) == ("ctranslate2", "float32")
    write_run(tmp_path / "qk", run_dir / "tokenizer", run_config({"qk_norm": True}))
    others = Ensemble((run_dir,))
    assert chosen(tmp_path / "qk")[0] == chosen(run_dir, ensemble=others)[0] == "torch"
    for choice in CHOICES:
        with pytest.raises(ConfigError, match=r"does not have model.qk_norm true"):
            load_engine(tmp_path / "qk", **choice)
    with pytest.raises(ConfigError, match="several models at a time"):
        load_engine(run_dir, engine="ctranslate2", ensemble=others)
    monkeypatch.setattr(engines, "_has_gpu", lambda: True)
    assert chosen(run_dir, device="auto")[0] == "torch"


@pytest.mark.parametrize(
    ("needs", "why"),
    [
        (needs_of(sampling=True), "decoding.sampling true"),
        (needs_of(search="toy"), 'decoding.search "toy"'),
        (needs_of(constraints=True), "a prefix or phrases for single lines"),
        (needs_of(outputs=frozenset({"attention"})), "attention"),
        (needs_of(outputs=frozenset({"alignments"})), "alignments"),
        (needs_of(outputs=frozenset({"new output"})), "new output"),
        (needs_of(max_length_factor=90), "3,621 positions (it is converted for 1,024)"),
        (needs_of(longest=1023), "2,067 positions (it is converted for 1,024)"),
        (needs_of(longest=None), "positions for lines of any length"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_on_its_list_is_for_torch(
    run_dir: Path, needs: Needs, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With -v the reason is told; an option that is not known to the list is not on it."""
    caplog.set_level(logging.DEBUG, "nmt.inference")
    assert chosen(run_dir, needs) == ("torch", "float32")
    assert any(text.startswith("torch translates") and why in text for text in caplog.messages)
    with pytest.raises(EngineLacksError, match=f"engine does not have {re.escape(why)}"):
        chosen(run_dir, needs, engine="ctranslate2")
    assert not (run_dir / ".cache").exists()  # nothing was converted for nothing


def test_without_ctranslate2_torch_translates(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    assert chosen(run_dir) == ("torch", "float32")
    for choice in CHOICES:
        with pytest.raises(ConfigError, match=r"not installed.*\n.*pip install"):
            load_engine(run_dir, **choice)


@pytest.mark.parametrize("changes", [{}, {"beam_size": 1}])
def test_both_engines_write_the_same_text_and_their_guards_retry_alike(
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
    load(run_dir, shortlist=True).translate(LINES[:1])
    with pytest.raises(EngineLacksError, match="for which it was not converted"):
        load(run_dir).with_options(shortlist=True)
    assert converted(cache) == ["ctranslate2-float32"] * 2 + ["ctranslate2-int8"]
    assert all(path.stat().st_mtime_ns == time for path, time in times.items())
    (run_dir / SHORTLIST).unlink()
    with pytest.raises(ConfigError, match=r"shortlist is on, but .* has no"):
        load(run_dir, shortlist=True)


def test_other_weights_never_find_a_conversion_and_old_ones_are_removed(
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
    monkeypatch.setattr(ctranslate2, "_KEPT_IN_RUN", 1)
    load(run_dir, dtype="int8")
    assert converted(run_dir / ".cache") == ["ctranslate2-int8"]


def test_a_damaged_conversion_is_made_again_and_damaged_weights_are_not_converted(
    run_dir: Path,
) -> None:
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


def test_a_run_that_cannot_be_written_uses_the_cache_of_the_user(
    run_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file stands where the folder would be: so the test holds for the administrator, too."""
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


def test_a_first_use_by_several_at_once_converts_once(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
