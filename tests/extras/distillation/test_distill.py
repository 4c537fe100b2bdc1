"""Distillation: every step resumes, and the student learns what the teachers say."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from nmt.checkpoint.model_folder import SHORTLIST, ModelFiles, find_model, is_ctranslate2
from nmt.commands import augment as recipe
from nmt.commands.options import AugmentOptions
from nmt.config.loader import load_config
from nmt.config.model import ModelConfig
from nmt.errors import ConfigError, DataError, NmtError
from nmt.extras.distillation import distill as story
from nmt.extras.distillation.distill import DistillReport, distill
from nmt.extras.distillation.options import DistillOptions
from nmt.inference.engine import Ensemble
from nmt.inference.translator import Translator
from tests.extras.adaptation.conftest import train
from tests.extras.exchange.exported import needs_ctranslate2
from tests.training.toy import write_corpus

pytestmark = needs_ctranslate2
STUDENT = """
tokenizer: {vocab_size: 60, byte_fallback: false}
model: {preset: tiny, encoder_layers: 2, decoder_layers: 1, model_dim: 16, ff_dim: 32, num_heads: 2}
training:
  {max_steps: 4, validate_every: 2, save_every: 2, threads: 1, validation: {metric: loss},
   schedule: {peak_lr: 0.01, warmup_steps: 1}}
"""


@pytest.fixture(scope="module")
def _trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teachers")
    write_corpus(folder)
    (folder / "student.yaml").write_text(STUDENT, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        train("first", max_steps=60, validate_every=30)
        train("second", {"prepared_dir": "prepared/first"}, seed=2, max_steps=60, validate_every=30)
    return folder


@pytest.fixture
def teachers(_trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    shutil.copytree(_trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return [Path("runs/first"), Path("runs/second")]


def stop_after_each_step(
    first: str, run: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (first, "fit", "load_attribute", "_measure"):
        calls, real = list[int](), getattr(story, step)

        def stopped(
            *args: Any, real: Any = real, calls: list[int] = calls, name: str = step, **values: Any
        ) -> Any:
            calls.append(1)
            result = real(*args, **values)
            if len(calls) == (3 if name == "load_attribute" else 1):
                raise KeyboardInterrupt  # when the step is complete
            return result

        with monkeypatch.context() as patch:
            patch.setattr(story, step, stopped)
            with pytest.raises(KeyboardInterrupt):
                run()
        assert not Path("small/report.json").exists()


def learned(**options: Any) -> DistillReport:
    """A student of translations that no model here has made."""
    usual: dict[str, Any] = {
        "text": "train.de",
        "translations": "train.en",
        "from_": "de",
        "to": "en",
        "valid": ("valid.de", "valid.en"),
        "output": "small",
        "config": "student.yaml",
        "threads": 1,
    }
    return distill(DistillOptions(**usual | options))


def distilled(teachers: list[Path], **options: Any) -> DistillReport:
    usual: dict[str, Any] = {
        "output": "small",
        "config": "student.yaml",
        "threads": 1,
        "beam_size": 2,
        "force": True,  # these teachers are hardly trained
    }
    text = Path("train.de")
    return distill(DistillOptions(teachers=tuple(teachers), text=text, **usual | options))


@pytest.mark.parametrize("num_teachers", [1, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.long
def test_a_student_stopped_in_every_step_is_the_student_of_one_run(
    teachers: list[Path], monkeypatch: pytest.MonkeyPatch, num_teachers: int
) -> None:
    teachers = teachers[:num_teachers]
    load, loaded = Translator.load, list[tuple[object, object]]()

    def recorded(folder: Path, **options: Any) -> Translator:
        loaded.append((folder, options.get("ensemble")))
        return load(folder, **options)

    with monkeypatch.context() as patch:
        patch.setattr(story, "Translator", SimpleNamespace(load=recorded))
        whole = distilled(teachers, output="whole")
    # The teacher of the table is all of them together, and so is its size.
    others = Ensemble(tuple(teachers[1:]))
    assert loaded == [(teachers[0], others), (Path("whole/model"), None)]
    sizes = [find_model(run).manifest.files["model.safetensors"].size for run in teachers]
    assert whole.rows[0].megabytes == sum(sizes) / 1e6
    stop_after_each_step("augment", lambda: distilled(teachers), monkeypatch)
    report = distilled(teachers)
    assert [row.name for row in report.rows] == ["teacher", "student"]
    assert [row.bleu for row in report.rows] == [row.bleu for row in whole.rows]
    for name in ("model/model.bin", "corpus/corpus.tsv.gz"):
        assert Path("small", name).read_bytes() == Path("whole", name).read_bytes()
    monkeypatch.setattr(story, "_steps", None)  # nothing is left to do
    assert distilled(teachers) == report
    assert report.rows[1].megabytes == Path("small/model/model.bin").stat().st_size / 1e6
    assert "nmt translate small/model" in report.as_text()
    json.dumps(report.as_dict())


@pytest.mark.long
def test_a_student_of_given_translations_resumes_and_is_an_export_like_any_other(
    teachers: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert teachers  # they only have written the texts
    whole = learned(output="whole")
    stop_after_each_step("_use_translations", learned, monkeypatch)
    report = learned()
    assert [row.bleu for row in report.rows] == [row.bleu for row in whole.rows]
    assert [row.name for row in report.rows] == ["student"]
    for name in ("model/model.bin", "corpus/corpus.tsv.gz"):
        assert Path("small", name).read_bytes() == Path("whole", name).read_bytes()
    record = json.loads(Path("small/model/export.json").read_text(encoding="utf-8"))
    assert record["quantization"] == "int8"
    monkeypatch.setattr(story, "_steps", None)  # nothing is left to do
    assert learned() == report
    with pytest.raises(ConfigError, match="small was created with different settings: texts"):
        learned(translations="train.de")


def _stopped(*_: Any) -> None:
    raise KeyboardInterrupt


def test_blank_translations_and_copies_are_left_out_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(story, "fit", _stopped)
    caplog.set_level("INFO", logger=story.__name__)
    source = ["Ein Hund läuft.", "Eine Katze schläft.", "Berlin", "Zwei\tKinder.", ""]
    target = ["ein Hund läuft", " ", "Berlin", "Two children.\t", "A man."]
    for name, lines in {"train.de": source, "train.en": target}.items():
        Path(name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    for code in ("de", "en"):
        shutil.copy(f"train.{code}", f"valid.{code}")
    with pytest.raises(KeyboardInterrupt):
        learned(config=None)
    text = gzip.decompress(Path("small/corpus/corpus.tsv.gz").read_bytes()).decode()
    assert text == "Berlin\tBerlin\nZwei Kinder.\tTwo children. \n"
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    summary = "train.en: 5 translations; left out: 2 blank, 1 copies of the source"
    assert record.getMessage() == summary


def test_what_given_translations_need_is_asked_for_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path)
    for missing in ("from_", "to"):
        with pytest.raises(ConfigError, match=r"languages of train\.de and train\.en") as caught:
            learned(**{missing: None}, config=None)
        assert caught.value.fix == "Pass both codes, such as `from` en `to` de."
    with pytest.raises(ConfigError, match="The student has no validation set for de-en"):
        learned(valid=None, config=None)
    with pytest.raises(DataError, match=r"none\.en does not exist"):
        learned(translations="none.en", config=None)
    given = {"teachers": ("run",), "references": "train.en", "beam_size": 2, "force": True}
    for name, value in given.items():
        with pytest.raises(ConfigError, match=f"cannot be combined with `{name}`"):
            learned(**{name: value})
    with pytest.raises(ConfigError, match=r"train\.de is a text without a teacher"):
        learned(translations=None)
    assert not Path("small").exists()


def test_translations_with_another_number_of_lines_are_refused_and_can_be_corrected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path)
    lines = Path("train.en").read_text(encoding="utf-8").splitlines(keepends=True)
    Path("short.en").write_text("".join(lines[1:]), encoding="utf-8")
    sizes = rf"train\.de has {len(lines)} lines but short\.en has {len(lines) - 1}"
    with pytest.raises(DataError, match=sizes):
        learned(translations="short.en", config=None)
    monkeypatch.setattr(story, "fit", _stopped)
    with pytest.raises(KeyboardInterrupt):
        learned(config=None)


def test_the_student_is_exported_to_int8_with_greedy_search(teachers: list[Path]) -> None:
    model = Path(distilled(teachers[:1]).model)
    assert is_ctranslate2(model)
    assert (model / SHORTLIST).is_file()  # for --shortlist
    record = json.loads((model / "export.json").read_text(encoding="utf-8"))
    assert record["quantization"] == "int8"
    decoding = Translator.load(model, threads=1).options.decoding
    assert (decoding.beam_size, decoding.shortlist) == (1, False)


def test_the_corpora_and_sets_of_the_student(teachers: list[Path]) -> None:
    """Its own corpora are added; validation and test sets are those of the teacher, or given."""
    Path("more.yaml").write_text(
        STUDENT + "data: {train: [{source: train.de, target: train.en}], temperature: 2}\n"
        "decoding: {beam_size: 3}\n"
    )
    distilled(teachers[:1], config="more.yaml", valid=("valid.de", "valid.en"))
    config = load_config(Path("small/config.yaml"))
    first, second = config.data.train
    files = (*first.path, *second.source, *config.data.valid[0].source)
    assert list(map(str, files)) == ["small/corpus/corpus.tsv.gz", "train.de", "valid.de"]
    assert config.data.temperature == 2
    assert config.decoding.beam_size == 3


def test_only_sets_in_the_direction_of_the_student_are_its_sets(
    teachers: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(folder: Path) -> ModelFiles:
        files = find_model(folder)
        corpus = files.record["data"]["valid"]
        back = {**corpus, "source_language": "en", "target_language": "de"}
        sets = {"test": {"there": corpus, "back": back}, "valid": [corpus, back]}
        return replace(files, record={**files.record, "data": {**files.record["data"], **sets}})

    def stopped(_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(story, "find_model", other)
    monkeypatch.setattr(story, "augment", stopped)
    with pytest.raises(KeyboardInterrupt):
        distilled(teachers)
    data = yaml.safe_load(Path("small/config.yaml").read_text(encoding="utf-8"))["data"]
    assert ([*data["test"]], len(data["valid"])) == (["there"], 1)


def test_other_settings_and_a_teacher_without_validation_are_refused(
    teachers: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    distilled(teachers[:1])
    with pytest.raises(ConfigError, match="small was created with different settings: models"):
        distilled(teachers[1:])
    with pytest.raises(ConfigError, match="different settings: texts, beam_size"):
        distilled(teachers[:1], references=Path("train.en"), beam_size=3)
    with pytest.raises(ConfigError, match="is not empty and was not created by `nmt distill`"):
        distilled(teachers[:1], output=teachers[0])
    with pytest.raises(ConfigError, match="vocab_size"):  # before the teachers translate
        distilled(teachers[:1], output="wrong", set_=("tokenizer.vocab_size=3",))
    student = yaml.safe_load(STUDENT) | {"tokenizer": {"vocab_size": 4}}
    with pytest.raises(ConfigError, match=r"tokenizer\.vocab_size is 4"):
        distilled(teachers[:1], output="wrong", config=student)
    with pytest.raises(DataError, match=r"data\.valid\.source: none\.de does not exist"):
        distilled(teachers[:1], output="wrong", valid=("none.de", "valid.en"))
    assert not Path("wrong/corpus").exists()
    assert distilled(teachers[:1], output="wrong").rows  # the corrected command
    monkeypatch.setattr(story, "find_model", lambda folder: replace(find_model(folder), step=0))
    with pytest.raises(ConfigError, match="second has no validation set for de-en") as caught:
        distilled(teachers[1:], output="imported")
    assert "`valid` SOURCE TARGET" in caught.value.fix


@pytest.mark.long
def test_a_student_can_be_trained_longer_without_translating_again(
    teachers: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder may have been moved meanwhile; its name does not have to be that of a run."""
    distilled(teachers[:1], output="a student", set_=("training.max_steps=2",))
    before = Path("a student/model/model.bin").read_bytes()
    Path("a student").rename("moved")
    monkeypatch.setattr(recipe, "_ShardTranslation", None)
    report = distilled(teachers[:1], output=Path("moved").resolve(), set_=("training.max_steps=4",))
    assert Path(report.model, "model.bin").read_bytes() != before
    assert find_model(Path("moved/run"), "last").step == 4
    with pytest.raises(NmtError, match="ff_dim"):
        distilled(teachers[:1], output="moved", set_=("model.ff_dim=64",))
    assert not Path("moved/report.json").exists()


@pytest.mark.long
def test_the_table_names_its_test_set_and_units(
    teachers: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a second passes from each look at the clock to the next; the set has 12 lines."""
    clock = count(0, 0.5)
    monkeypatch.setattr(story, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    report = distilled(teachers[:1])
    speeds = [(row.sentences_per_second, row.milliseconds) for row in report.rows]
    assert speeds == [(24, 500), (24, 500)]
    assert report.test == "data.valid"
    assert "which also chose the best checkpoint" in report.as_text()
    report = distilled(teachers[:1], output="tested", test=("valid.de", "valid.en"))
    assert "\non data.test.test\n" in report.as_text()


@pytest.mark.long
def test_the_size_of_an_adapted_teacher_includes_its_base(teachers: list[Path]) -> None:
    (first, _) = teachers
    prepared = {"prepared_dir": "prepared/first"}
    train("adapted", prepared, init_from=str(first), lora={"rank": 2})
    both = first, Path("runs/adapted")
    sizes = [find_model(run).manifest.files["model.safetensors"].size for run in both]
    report = distilled([*both[1:]])
    assert report.rows[0].megabytes == sum(sizes) / 1e6


@pytest.mark.long
def test_the_usual_student_starts_with_the_weights_of_the_first_teacher(
    teachers: list[Path],
) -> None:
    steps = ("training.max_minutes=null", "training.max_steps=1", "training.r_drop_weight=0")
    distilled(teachers, config=None, set_=steps)
    config = load_config(Path("small/run/config.yaml"))
    assert (config.model.encoder_layers, config.model.decoder_layers) == (6, 1)
    assert (config.model.model_dim, config.model.dropout) == (32, 0.1)
    assert config.training.init_from == teachers[0]
    assert "taken" in Path("small/run/log.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("model", "changes"),
    [({"qk_norm": True}, ()), ({"model_dim": 514}, ()), ({}, ("model.ff_dim=64",))],
)
def test_a_student_that_differs_from_its_teacher_starts_with_random_weights(
    teachers: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    model: dict[str, Any],
    changes: tuple[str, ...],
) -> None:
    def other(folder: Path) -> ModelFiles:
        files = find_model(folder)
        values = files.config.model.model_dump() | model
        changed = files.config.model_copy(update={"model": ModelConfig(**values)})
        return replace(files, config=changed)

    monkeypatch.setattr(story, "find_model", other)
    translations: list[AugmentOptions] = []
    monkeypatch.setattr(story, "augment", translations.append)
    overrides = list[str]()

    def stopped(_: Path, given: Sequence[str]) -> None:
        overrides.extend(given)
        raise KeyboardInterrupt

    monkeypatch.setattr(story, "load_config", stopped)
    with pytest.raises(KeyboardInterrupt):
        distilled(teachers, config=None, set_=changes, device="cpu")
    assert overrides == ['training.device="cpu"', "training.threads=1", *changes]
    assert [(each.device, each.threads) for each in translations] == [("cpu", 1)]


def test_a_student_that_cannot_be_exported_is_refused_first(teachers: list[Path]) -> None:
    with pytest.raises(ConfigError, match=r"CTranslate2 does not support model\.qk_norm true"):
        distilled(teachers, set_=("model.qk_norm=true",))
    assert not Path("small/corpus").exists()


def test_the_usual_student_needs_no_configuration(
    teachers: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is checked before the teachers translate, and so are the texts."""

    def stopped(_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(story, "augment", stopped)
    with pytest.raises(KeyboardInterrupt):
        distilled(teachers, config=None)
    with pytest.raises(DataError, match=r"none\.en does not exist"):
        distilled(teachers, output="other", references=Path("none.en"))
    assert not Path("other").exists()
