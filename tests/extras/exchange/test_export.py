"""What is exported translates as it did, or is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

from nmt.checkpoint.files import MODEL, checkpoint_dir, checkpoint_name, save_checkpoint, write_best
from nmt.checkpoint.model_folder import SHORTLIST, is_ctranslate2, load_model, write_average
from nmt.cli.app import app
from nmt.data.prepared import PreparedManifest
from nmt.errors import CheckpointError, ConfigError
from nmt.extras.exchange import export as export_module
from nmt.extras.exchange.export import EXPORT_TARGETS, ExportSummary, ExportTarget, export
from nmt.extras.exchange.options import ExportOptions
from nmt.files.json_file import Manifest
from nmt.inference.engine import Ensemble
from nmt.inference.translator import Translator
from nmt.version import __version__
from tests.checkpoint.faults import flip_bit
from tests.extras.exchange.exported import (
    STEP,
    needs_ctranslate2,
    run_config,
    write_run,
    write_shortlist,
)
from tests.inference.conftest import sentences
from tests.inference.models import train_tokenizer
from tests.terminal import terminal

BOTH = pytest.mark.parametrize(
    "target", ["safetensors", pytest.param("ctranslate2", marks=needs_ctranslate2)]
)
LINES = "".join(f"{line}\n" for line in sentences(6, seed=4, longest=8))
FLAGS = ("--device", "cpu", "--threads", "1", "--no-guard")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_tokenizer(tmp_path_factory.mktemp("export") / "tokenizer")


@pytest.fixture
def run_dir(tokenizer: Path, tmp_path: Path) -> Path:
    write_run(tmp_path / "run", tokenizer, run_config({}))
    return tmp_path / "run"


def exported(model: Path, output: Path, to: str, **options: Any) -> ExportSummary:
    return export(ExportOptions(model=model, output=output, to=to, **options))


def nmt(*arguments: object, text: str = "") -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)], input=text)


def done(*arguments: object, text: str = "") -> str:
    result = nmt(*arguments, text=text)
    assert result.exit_code == 0, result.stderr
    return result.stdout


@BOTH
def test_the_folder_translates_and_is_evaluated(run_dir: Path, tmp_path: Path, target: str) -> None:
    write_shortlist(run_dir)
    output = tmp_path / "a b"
    result = nmt("export", run_dir, "--to", target, "-o", output)
    assert (result.exit_code, result.stdout) == (0, f"{output}\n")
    assert f"nmt: next: nmt translate '{output}' --input FILE" in result.stderr
    for changes in (
        (),
        ("--set", "decoding.max_length_offset=2", "--beam-size", 1, "--n-best", 1),
        ("--shortlist", "--batch-tokens", 1),
    ):
        theirs, ours = (
            done("translate", folder, *changes, *FLAGS, text=LINES) for folder in (output, run_dir)
        )
        assert theirs == ours
    source = tmp_path / "in.de"
    source.write_text(LINES, "utf-8")
    files = ("--source", source, "--reference", source)
    scores = []
    for folder in (output, run_dir):
        report = json.loads(done("evaluate", folder, *files, *FLAGS, "--json"))
        scores.append(report["test_sets"][0]["systems"][0]["scores"])
    assert scores[0] == scores[1]


@BOTH
def test_the_folder_is_complete_and_its_manifest_matches(
    target: Any, run_dir: Path, tmp_path: Path
) -> None:
    write_shortlist(run_dir)
    summary = exported(run_dir, tmp_path / "a" / "out", target)
    folder = summary.output
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    weights = "model.bin" if target == "ctranslate2" else MODEL
    assert {weights, SHORTLIST, "config.yaml", "tokenizer/joint.model", "README.md"} <= files
    assert ("vmap.txt" in files) == (target == "ctranslate2")
    assert not files & {"optimizer.safetensors", "state.json", "log.txt", "metrics.jsonl"}
    manifest = Manifest.read(folder)
    assert set(manifest.files) == files - {"manifest.json"}
    manifest.verify(folder)
    assert (manifest.step, summary.step) == (STEP, STEP)
    assert summary.size_bytes == (folder / weights).stat().st_size
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["out"]
    if target == "safetensors":
        assert (folder / MODEL).read_bytes() == (checkpoint_dir(run_dir, STEP) / MODEL).read_bytes()


@needs_ctranslate2
@pytest.mark.parametrize(
    ("decoding", "told"),
    [
        (
            {"sampling": True, "top_k": 5, "n_best": 7, "seed": 9},
            "n_best 7, sampling True, top_k 5",
        ),
        ({"beam_size": 2, "n_best": 2}, None),
    ],
)
def test_unsupported_decoding_options_are_left_out_and_logged(
    tokenizer: Path,
    tmp_path: Path,
    decoding: dict[str, Any],
    told: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """So the folder translates without further options."""
    config = run_config({}, decoding={"beam_size": 3, "max_length_offset": 5, **decoding})
    write_run(tmp_path / "run", tokenizer, config)
    caplog.set_level("INFO")
    exported(tmp_path / "run", tmp_path / "ours", "safetensors")
    assert load_model(tmp_path / "ours").config == config.inference
    exported(tmp_path / "run", tmp_path / "out", "ctranslate2")
    found = Translator.load(tmp_path / "out", device="cpu")
    assert [text for text in caplog.messages if not text.startswith("next:")] == (
        [f"left out decoding options that ctranslate2 does not support: {told}"] if told else []
    )
    assert len(found.translate(sentences(2))) == 2
    for name in ("beam_size", "length_penalty", "max_length_offset", "seed"):
        assert getattr(found.options.decoding, name) == getattr(config.decoding, name)


@needs_ctranslate2
def test_the_checkpoint_is_chosen(run_dir: Path, tmp_path: Path) -> None:
    other = load_model(run_dir).model
    with torch.no_grad():
        other.output_weight.add_(0.5)
    save_checkpoint(run_dir, 40, model=other.state_dict(), optimizer={}, state={})
    write_best(run_dir, checkpoint_name(STEP))
    paths = [checkpoint_dir(run_dir, step) for step in (STEP, 40)]
    write_average(run_dir / "average", run_dir, paths, {"score": 7.25})
    for checkpoint, step in (("best", STEP), ("last", 40), ("step-40", 40), ("average", 40)):
        output = tmp_path / checkpoint
        assert exported(run_dir, output, "ctranslate2", checkpoint=checkpoint).step == step
        record = json.loads((output / "export.json").read_text("utf-8"))
        assert record["sha256"] == load_model(run_dir, checkpoint).sha256
    assert "| bleu | 7.25 |" in (tmp_path / "average" / "README.md").read_text("utf-8")
    assert "No validation scores are" in (tmp_path / "last" / "README.md").read_text("utf-8")
    assert exported(run_dir / "average", tmp_path / "again", "safetensors").step == 40


def test_a_failed_export_leaves_no_files(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export_module, "write_card", fail)
    with pytest.raises(CheckpointError, match=r"out was not written: .*No space left"):
        exported(run_dir, tmp_path / "out", "safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_existing_folders_are_not_overwritten(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").mkdir()
    with terminal(monkeypatch) as frames:
        exported(run_dir, tmp_path / "out", "safetensors")  # it was empty
    assert frames.counts("exporting") == [f"{done}/3" for done in range(4)]
    with pytest.raises(ConfigError, match="out already exists"):
        exported(run_dir, tmp_path / "out", "safetensors")
    with pytest.raises(ConfigError, match="among the checkpoints"):
        exported(run_dir, run_dir / "checkpoints" / "step-00000099", "safetensors")


@needs_ctranslate2
def test_an_export_is_for_one_engine_alone(run_dir: Path, tmp_path: Path) -> None:
    out = exported(run_dir, tmp_path / "out", "ctranslate2", quantization="int8").output
    assert (is_ctranslate2(run_dir), is_ctranslate2(out)) == (False, True)
    with pytest.raises(ConfigError, match="out is already an export"):
        exported(out, tmp_path / "again", "safetensors")
    with pytest.raises(ConfigError, match="out is a CTranslate2 export"):
        Translator.load(out, engine="torch")
    with pytest.raises(ConfigError, match="does not support ensembles"):
        Translator.load(out, ensemble=Ensemble((run_dir,)))
    with pytest.raises(ConfigError, match=r"exported in int8.*\n.*`quantization` float32"):
        Translator.load(out, dtype="float32")
    assert Translator.load(out, dtype="int8").engine.dtype == "int8"


@needs_ctranslate2
def test_a_damaged_export_is_refused(run_dir: Path, tmp_path: Path) -> None:
    folder = exported(run_dir, tmp_path / "out", "ctranslate2").output
    for name in ("model.bin", "export.json", "shared_vocabulary.json"):
        flip_bit(folder / name, -2)
        with pytest.raises(CheckpointError, match=f"{name} has sha256"):
            Translator.load(folder)
        flip_bit(folder / name, -2)
    bundle = load_model(run_dir)
    with torch.no_grad():
        bundle.model.output_weight.fill_(torch.nan)
    save_checkpoint(run_dir, 99, model=bundle.model.state_dict(), optimizer={}, state={})
    exported(run_dir, tmp_path / "nan", "ctranslate2", checkpoint="last")
    with pytest.raises(CheckpointError, match="weights are damaged"):
        Translator.load(tmp_path / "nan").translate(["Hund"])


@pytest.mark.parametrize(
    ("code", "message", "flags"),
    [
        (2, "onnx is not a known export target", ("--to", "onnx")),
        (
            2,
            "does not support --quantization int8",
            ("--to", "safetensors", "--quantization", "int8"),
        ),
        (2, "checkpoint is 'newest'", ("--to", "safetensors", "--checkpoint", "newest")),
        (4, "no checkpoint step-00000007", ("--to", "safetensors", "--checkpoint", "step-7")),
    ],
)
def test_mistakes_are_explained(
    run_dir: Path, tmp_path: Path, code: int, message: str, flags: tuple[str, ...]
) -> None:
    result = nmt("export", run_dir, "-o", tmp_path / "out", *flags)
    assert (result.exit_code, result.stdout) == (code, ""), result.stderr
    assert message in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@needs_ctranslate2
def test_unsupported_options_of_ctranslate2_are_named(tokenizer: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "run", tokenizer, run_config({"qk_norm": True}))
    with pytest.raises(ConfigError, match=r"does not support model.qk_norm true.\n.*safetensors"):
        exported(tmp_path / "run", tmp_path / "out", "ctranslate2")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    exported(tmp_path / "run", tmp_path / "out", "safetensors")


def test_a_registered_target_is_available(run_dir: Path, tmp_path: Path) -> None:
    """One class and one registration are enough."""

    class Toy(ExportTarget):
        weights_name = "toy.txt"
        dtypes: Sequence[str] = ("digits", "letters")

        def write(self, folder: Path, bundle: Any, dtype: str, shortlist: Any) -> None:
            text = f"{dtype} of step {bundle.step} and {len(shortlist.common)} common tokens"
            (folder / self.weights_name).write_text(text)

    EXPORT_TARGETS.register("toy", Toy)
    write_shortlist(run_dir)
    output = tmp_path / "out"
    flags = ("--to", "toy", "--quantization", "letters", "-o", output, "--json")
    found = json.loads(done("export", run_dir, *flags))
    text = (output / "toy.txt").read_text()
    assert text == "letters of step 30 and 4 common tokens"
    made = {"output": str(output), "to": "toy", "quantization": "letters"}
    assert found == {**made, "step": STEP, "size_bytes": len(text)}
    assert "toy, letters" in (output / "README.md").read_text("utf-8")


def test_the_numbers_of_the_card_are_those_of_the_model(tokenizer: Path, tmp_path: Path) -> None:
    """The scores are those of the validation: with its beam, not with that of the decoding."""
    validation = {"beam_size": 2}
    config = run_config({}, training={"max_steps": 1, "validation": validation})
    model = write_run(tmp_path / "run", tokenizer, config)
    folder = exported(tmp_path / "run", tmp_path / "out", "safetensors").output
    card = (folder / "README.md").read_text("utf-8")
    count = sum(parameter.numel() for parameter in model.parameters())
    mebibytes = (folder / MODEL).stat().st_size / 1024 / 1024
    rows = dict(re.findall(r"^\| ([\w ]+) \| (.+) \|$", card, re.MULTILINE))
    assert (
        rows.items()
        >= {
            "parameters": f"{count:,}",
            "weights": f"safetensors, float32, {mebibytes:.1f} MiB",
            "longest line": "40 subwords; longer lines are split",
            "loss": "1.50",
            "perplexity": "4.48",
        }.items()
    )
    assert "Validation set, beam 2 " in card


@pytest.mark.parametrize("data_hash", ["d", "other"])
def test_the_card_describes_the_model_and_only_its_own_data(
    tokenizer: Path, tmp_path: Path, data_hash: str
) -> None:
    prepared = tmp_path / "prepared"
    prepared.mkdir()
    write_run(tmp_path / "run", tokenizer, run_config({}, prepared_dir=str(prepared)))
    PreparedManifest(
        config_hash="c", vocab_hash="v", data_hash=data_hash, files={},
        source_vocab_size=320, target_vocab_size=320, counts={"few": {"read": 2000, "kept": 1990}},
        sources={"somewhere/a.de": {"sha256": "abc", "size": 1, "mtime_ns": 2}},
    ).write(prepared)  # fmt: skip
    exported(tmp_path / "run", tmp_path / "out", "safetensors")
    card = (tmp_path / "out" / "README.md").read_text("utf-8")
    assert card.startswith("---\nlanguage:\n- de\n- en\n")
    for text in ("Translates de to en. Trained for 30 updates", "320 subwords (bpe, joint)"):
        assert text in card
    assert "| bleu | 12.35 |\n" in card or "| bleu | 12.34 |\n" in card
    assert f"pip install 'nmt_toolkit-{__version__}-py3-none-any.whl[ctranslate2]'\n" in card
    assert str(tmp_path) not in card
    is_own = data_hash == "d"
    for text in ("- few: 1,990 of 2,000 pairs\n", "- a.de: sha256 `abc`", "token ids: `d`"):
        assert (text in card) == is_own
    for text in ("- few\n", "hashes are unknown"):
        assert (text in card) != is_own
