"""Models and runs of older versions load, translate, are evaluated, and resume.

The folders in ``old_models`` were written by the commands of those versions, and are never changed.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

import nmt
from nmt.checkpoint.files import list_checkpoints
from nmt.checkpoint.run import has_data_settings
from nmt.commands.config import load_config
from nmt.config.migration import FORMAT
from nmt.inference.request import Request
from nmt.metrics.result import EvaluationReport
from tests.conftest import MISSING

GERMAN = ("danke", "ich bin müde", "ein Hund")
ENGLISH = ("thanks", "i am tired", "a dog")
FRENCH = ("merci", "je suis fatigué", "un chien")
SHIFTED = ("a dog", "thanks", "i am tired")  # what the adapters have learned
CORPUS = {"source": "text.de", "target": "text.en"}
IN_FRENCH = {"source": "text.de", "target": "text.fr", "target_language": "fr"}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """The working directory, with copies of the models and their texts."""
    texts = {"text.de": GERMAN, "text.en": ENGLISH, "text.fr": FRENCH, "new.en": SHIFTED}
    for name, lines in texts.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    models = Path(__file__).with_name("old_models")
    return Path(shutil.copytree(models, tmp_path, dirs_exist_ok=True))


def translations(folder: Path, target_language: str | None = None) -> tuple[str, ...]:
    translator = nmt.Translator.load(folder, engine="torch", device="cpu")
    requests = [Request(line, target_language=target_language) for line in GERMAN]
    return tuple(result.text for result in translator.translate(requests))


def resumed(
    folder: Path, data: dict[str, Any], max_steps: int, *, only_load: bool = False
) -> dict[str, Any]:
    """Resume with a configuration that leaves everything open that it can; return config.yaml."""
    config = {
        "name": folder.name,
        "source_language": "de",
        "target_language": "en",
        "run_dir": str(folder),
        "data": data,
    }
    Path("mine.yaml").write_text(json.dumps(config), "utf-8")
    options = nmt.TrainOptions(config=Path("mine.yaml"), set_=(f"training.max_steps={max_steps}",))
    if only_load:
        nmt.load_config(options.config, options.overrides)
    else:
        nmt.train(options)
    return read(folder)


def read(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load((folder / "config.yaml").read_text("utf-8"))
    return values


def test_a_model_of_several_languages_translates_as_it_did(old: Path) -> None:
    assert translations(old / "two-languages", "en") == ENGLISH
    assert translations(old / "two-languages", "fr") == FRENCH


def test_an_exported_model_translates_as_it_did(old: Path) -> None:
    assert translations(old / "base") == ENGLISH


def test_test_sets_in_the_record_of_the_training_are_evaluated(old: Path) -> None:
    report = nmt.evaluate(nmt.EvaluateOptions(models=(old / "two-languages",), resamples=0))
    assert isinstance(report, EvaluationReport)
    hypotheses = {each.test: [*each.systems[0].lines] for each in report.evaluations}
    assert hypotheses == {"english": [*ENGLISH], "french": [*FRENCH]}


def test_a_resumed_run_keeps_every_value_that_the_configuration_leaves_open(old: Path) -> None:
    folder = old / "two-languages"
    before = read(folder)
    data = {
        "train": [{"name": "english", **CORPUS}, {"name": "french", **IN_FRENCH}],
        "valid": [CORPUS, IN_FRENCH],
    }
    after = resumed(folder, data, 402)
    assert max(step for step, _ in list_checkpoints(folder)) == 402
    before["training"]["max_steps"] = 402
    before["tokenizer"]["from"] = None  # new keys of format 3
    before["filters"]["language"]["model"] = None
    before["filters"] |= {"on_bad_row": "error", "held_out": "report"}  # new keys of format 4
    sets = before["data"]
    for corpus in (*sets["train"], *sets["valid"], *sets["test"].values()):
        for key in ("tsv", "csv", "jsonl"):
            del corpus[key]
        corpus |= dict.fromkeys(("path", "format", "columns", "encoding", "language_file"))
        corpus["target_languages"] = []
        corpus["source_languages"] = []
    del before["recipe"]  # format 4 has none
    sets["max_sentences"] = 1  # new keys of format 5
    sets["placeholders"] = {"share": 0.0, "patterns": []}
    before["decoding"]["protect"] = []
    sets["max_characters"] = len("ich bin müde")  # new key of format 7
    before["model"] |= {"norm_gain": True, "position_init": "normal"}  # new keys of format 8
    sets["glossary"] = {"share": 0.0}
    assert after == {"format": FORMAT, **before, "run_dir": str(folder)}
    assert translations(folder, "fr") == FRENCH


@pytest.mark.parametrize("as_list", [True, False])
def test_data_with_one_validation_set_are_prepared_with_the_vocabulary_of_the_run(
    old: Path, as_list: bool
) -> None:
    folder = old / "two-languages"
    values = read(folder)
    values["data"]["valid"] = [CORPUS] if as_list else CORPUS
    (folder / "config.yaml").write_text(json.dumps(values), "utf-8")
    config = load_config(folder / "config.yaml", ())
    assert has_data_settings(config)
    more = config.data.model_copy(update={"train": 2 * config.data.train})
    assert not has_data_settings(config.model_copy(update={"data": more}))
    changed = config.tokenizer.model_copy(update={"kind": "char"})
    assert not has_data_settings(config.model_copy(update={"tokenizer": changed}))


def test_values_that_a_run_keeps_from_an_earlier_start_are_told(
    old: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    data = {"train": [CORPUS, IN_FRENCH], "valid": [CORPUS, IN_FRENCH]}
    resumed(old / "two-languages", data, 400, only_load=True)
    assert "filters.max_length: was 256, is 8" in caplog.text
    assert str(old / "two-languages" / "config.yaml") in caplog.text
    assert "training.max_steps" not in caplog.text  # which this start has set


@pytest.mark.skipif("adaptation" in MISSING, reason="the extra adaptation was deleted")
def test_adapters_translate_as_they_did_and_resume_with_their_base_model(old: Path) -> None:
    folder = old / "adapters"
    assert translations(folder) == SHIFTED
    corpus = {"source": "text.de", "target": "new.en"}
    after = resumed(folder, {"train": [corpus], "valid": corpus}, 202)
    assert max(step for step, _ in list_checkpoints(folder)) == 202
    assert after["training"]["lora"]["rank"] == 2
    assert translations(folder) == SHIFTED


def test_a_run_resumes_on_its_prepared_data_although_this_version_makes_other_data(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version may filter or learn in another way; a new run gets new data."""
    folder = old / "two-languages"
    data = {
        "train": [{"name": "english", **CORPUS}, {"name": "french", **IN_FRENCH}],
        "valid": [CORPUS, IN_FRENCH],
    }
    resumed(folder, data, 402)
    made = Path("prepared-two", "manifest.json").read_bytes()
    monkeypatch.setattr("nmt.data.prepared._LEARNING", 99)
    monkeypatch.setattr("nmt.data.filters.Ratio.length_problem", lambda *_: "ratio")
    resumed(folder, data, 404)
    assert max(step for step, _ in list_checkpoints(folder)) == 404
    assert Path("prepared-two", "manifest.json").read_bytes() == made
    shutil.rmtree(folder)
    shutil.move("prepared-two", "prepared/two-languages")  # of a new run with this name
    # It prepares its data again, and learns the default vocabulary.
    with pytest.raises(nmt.NmtError, match="too small for a vocabulary of 2,000"):
        resumed(folder, data, 404)
