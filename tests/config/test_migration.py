"""Documents of older and newer formats, and the section that translating needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from nmt.config import loader, migration
from nmt.config.data import BatchConfig
from nmt.config.filling import TextSize
from nmt.config.loader import (
    dump_config,
    dump_inference,
    load_config,
    load_inference,
    read_settings,
    settings_of,
)
from nmt.config.migration import FORMAT, Kind, NewerFormatError, migrate
from nmt.config.model import ModelConfig
from nmt.config.run import RunConfig
from nmt.config.training import OptimizerConfig
from nmt.errors import ConfigError

CORPUS = {"source": "a.de", "target": "a.en"}
FRENCH = {"source": "a.de", "target": "a.fr", "target_language": "fr"}
VALUES: dict[str, Any] = {
    "name": "mine",
    "source_language": "de",
    "target_language": "en",
    "data": {"train": [CORPUS, FRENCH], "valid": CORPUS, "test": {"own": CORPUS}},
    "training": {"max_steps": 10},
    "filters": {"max_length": 77},
    "decoding": {"beam_size": 3},
}


def write(values: Any, name: str = "config.yaml") -> Path:
    path = Path(name)
    path.write_text(yaml.safe_dump(values), "utf-8")
    return path


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later version: two formats more, with a renamed key and a new one."""

    def rename(document: dict[str, Any]) -> dict[str, Any]:
        new = {key: value for key, value in document.items() if key != "label"}
        return {**new, "name": document["label"]}

    def add(document: dict[str, Any]) -> dict[str, Any]:
        return {"decoding": {"beam_size": 4}, **document}

    steps = {(Kind.CONFIGURATION, FORMAT): rename, (Kind.CONFIGURATION, FORMAT + 1): add}
    monkeypatch.setattr(migration, "_STEPS", steps)
    for module in (migration, loader):
        monkeypatch.setattr(module, "FORMAT", FORMAT + 2)


@pytest.mark.usefixtures("later")
def test_a_document_takes_the_steps_of_its_kind_after_its_format() -> None:
    old = {"format": FORMAT, "label": "a"}
    assert migrate(old, "x", kind=Kind.CONFIGURATION) == {
        "name": "a",
        "decoding": {"beam_size": 4},
    }
    newer = {"format": FORMAT + 1, "name": "a"}
    assert migrate(newer, "x", kind=Kind.CONFIGURATION)["decoding"]
    newest = {"format": FORMAT + 2, "name": "a"}
    assert migrate(newest, "x", kind=Kind.CONFIGURATION) == {"name": "a"}
    for kind in set(Kind) - {Kind.CONFIGURATION}:
        assert migrate(old, "x", kind=kind) == {"label": "a"}
    assert old == {"format": FORMAT, "label": "a"}


def test_the_number_is_taken_out_and_a_document_without_it_is_of_the_first_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = {(Kind.REPORT, 1): lambda document: {**document, "is_first": True}}
    monkeypatch.setattr(migration, "_STEPS", steps)
    assert migrate({"a": 1, "format": 2}, "x", kind=Kind.REPORT) == {"a": 1}
    assert migrate({"a": 1}, "x", kind=Kind.REPORT) == {"a": 1, "is_first": True}
    assert migrate({"a": 1}, "x", kind=Kind.REPORT, default=2) == {"a": 1}
    with pytest.raises(NewerFormatError, match=rf"x has format {FORMAT + 1}.* up to {FORMAT}"):
        migrate({"format": FORMAT + 1}, "x", kind=Kind.REPORT)
    for wrong in (0, -1, True, "2", 1.0, None):
        with pytest.raises(ConfigError, match="x: format is"):
            migrate({"format": wrong}, "x", kind=Kind.REPORT)


@pytest.mark.usefixtures("later")
def test_a_written_configuration_is_migrated_and_a_users_file_is_of_this_version() -> None:
    old = {key: value for key, value in VALUES.items() if key not in ("name", "decoding")}
    written = {"format": FORMAT, "label": "theirs", **old}
    assert load_config(write(written)).decoding.beam_size == 4
    assert read_settings(write(written))["name"] == "theirs"
    assert load_inference(write(written))[0].name == "theirs"
    with pytest.raises(ConfigError, match="label"):  # without a number, label is a mistake
        load_config(write({"label": "theirs", **old}))


@pytest.mark.parametrize("number", [1, 2])
def test_an_older_configuration_keeps_bleu_as_its_metric(number: int) -> None:
    for beam_size in (None, 2):
        training: dict[str, Any] = {"max_steps": 10}
        if beam_size is not None:
            training["validation"] = {"beam_size": beam_size}
        path = write({**VALUES, "target_language": "ja", "training": training, "format": number})
        validation = load_config(path).training.validation
        assert validation.metric == "bleu"
        assert validation.beam_size == (beam_size or 1)
    chosen = {"max_steps": 10, "validation": {"metric": "loss"}}
    path = write({**VALUES, "training": chosen, "format": number})
    assert load_config(path).training.validation.metric == "loss"
    wrong: Any
    for wrong in (3, {"validation": 3}):  # are reported by the validation
        given = {"format": number, "training": wrong}
        migrated = migrate(given, "x", kind=Kind.CONFIGURATION)
        assert migrated["training"] == wrong
    given = {"format": number, "training": {"validation": None}}
    migrated = migrate(given, "x", kind=Kind.CONFIGURATION)
    assert migrated["training"] == {"validation": {"metric": "bleu"}}
    # Without this section, its values depend on the size of the corpus.
    given = {"format": number, "training": None}
    assert migrate(given, "x", kind=Kind.CONFIGURATION)["training"] is None


@pytest.mark.parametrize("number", [1, 2, 3])
def test_an_older_configuration_with_training_has_the_general_defaults(number: int) -> None:
    """They did not follow the size of the text. Without `training`, they did."""

    def migrated(**changes: Any) -> dict[str, Any]:
        values = {**VALUES, "recipe": None, **changes, "format": number}
        return migrate(values, "x", kind=Kind.CONFIGURATION)

    def measured(**changes: Any) -> RunConfig:
        path = write({**VALUES, **changes, "format": number})
        return load_config(path, measure_text=lambda *_: TextSize(9, 99))

    config = measured()
    # The architecture and all other values are the defaults of the keys.
    assert config.model == ModelConfig(preset="transformer-base")
    assert config.model.model_copy(update={"preset": None}) == ModelConfig()
    assert (config.batch, config.tokenizer.vocab_size) == (BatchConfig(), 8000)
    assert config.training.optimizer == OptimizerConfig()
    assert config.training.max_steps == 10
    assert measured(training=None).model.preset == "tiny"
    for changes in (
        {"training": None},
        {"model": {"preset": "modern"}},
        {"training": {"init_from": "base", "max_epochs": 3}},
    ):
        given = {**VALUES, **changes}
        found = migrated(**changes)
        assert found.get("model") == given.get("model")
        assert "recipe" not in found


def test_an_older_configuration_keeps_the_values_of_its_recipe() -> None:
    given = {**VALUES, "recipe": "low-resource", "model": {"dropout": 0.25}, "format": 3}
    config = load_config(write(given))
    assert (config.tokenizer.vocab_size, config.batch.max_tokens) == (2000, 2048)
    model = config.model
    assert (model.preset, model.positions, model.dropout) == ("tiny", "rotary", 0.25)
    training = config.training
    assert (training.max_steps, training.r_drop_weight) == (10, 3.0)
    assert (training.optimizer.kind, training.schedule.peak_lr) == ("muon", 0.004)
    with pytest.raises(ConfigError, match="unknown key recipe"):
        load_config(write({**given, "format": FORMAT}))


@pytest.mark.parametrize("number", [1, 2])
def test_an_older_document_keeps_its_normalization(number: int) -> None:
    """So that a vocabulary that is learned again under an old run is the same."""
    config = load_config(write({**VALUES, "format": number}))
    assert config.tokenizer.normalization == "nmt_nfkc"
    assert load_config(write(VALUES)).tokenizer.normalization == "identity"
    section = RunConfig.model_validate(VALUES).inference.model_dump(mode="json")
    del section["tokenizer"]["normalization"]
    path = write({"format": 2, "inference": section, "record": {}})
    assert load_inference(path)[0].tokenizer.normalization == "nmt_nfkc"


@pytest.mark.parametrize("number", [1, 8])
def test_an_older_document_keeps_its_patience(number: int) -> None:
    assert load_config(write({**VALUES, "format": number})).decoding.patience == 1.0
    assert load_config(write(VALUES)).decoding.patience == 2.0
    section = RunConfig.model_validate(VALUES).inference.model_dump(mode="json")
    del section["decoding"]["patience"]
    path = write({"format": max(number, 2), "inference": section, "record": {}})
    assert load_inference(path)[0].decoding.patience == 1.0
    # Sampling has no patience: the value that older versions wrote would be refused.
    for mode in ("sampling", "return_alternatives"):
        section["decoding"] |= {"patience": 1.0, mode: True}
        path = write({"format": max(number, 2), "inference": section, "record": {}})
        assert getattr(load_inference(path)[0].decoding, mode)
        section["decoding"][mode] = False


def test_dumps_are_read_back_in_every_way() -> None:
    config = load_config(write(VALUES))
    Path("run.yaml").write_text(dump_config(config), "utf-8")
    assert yaml.safe_load(dump_config(config))["format"] == FORMAT
    assert load_config("run.yaml") == config
    settings = settings_of(config)
    assert read_settings(Path("run.yaml")) == settings
    assert load_inference(Path("run.yaml")) == (config.inference, settings)
    Path("model.yaml").write_text(dump_inference(config.inference, settings), "utf-8")
    assert load_inference(Path("model.yaml")) == (config.inference, settings)
    assert load_config("model.yaml") == config  # a model folder can be trained again


def test_the_section_for_translating_has_the_values_of_the_whole_configuration() -> None:
    config = RunConfig.model_validate(VALUES)
    section = config.inference
    assert section.directions == (("de", "en"), ("de", "fr")) == config.directions
    assert section.language_tags == "source" == config.language_tags
    assert (section.max_length, section.decoding.beam_size) == (77, 3)
    assert section.base_model is None
    replay = {"train": [{**CORPUS, "source_language": "nl"}]}
    lora = {"max_steps": 10, "init_from": "base", "lora": {"rank": 2}}
    more = {**VALUES, "data": {**VALUES["data"], "replay": replay}, "training": lora}
    section, _ = load_inference(write(more))
    assert section.directions[2] == ("nl", "en")
    assert section.base_model == Path("base")


def test_a_record_with_unknown_keys_and_wrong_values_is_kept_and_never_validated() -> None:
    """FAULT 79: only what inference needs is validated."""
    section = RunConfig.model_validate(VALUES).inference.model_dump(mode="json")
    record = {"training": {"warp": 9}, "data": "lost", "filters": [3], "rocket": None}
    path = write({"format": FORMAT, "inference": section, "record": record})
    config, kept = load_inference(path)
    assert config == RunConfig.model_validate(VALUES).inference
    assert kept == record
    run = {**VALUES, "training": {"warp": 9}, "rocket": None}
    config, kept = load_inference(write(run))
    run["tokenizer"] = {"normalization": "nmt_nfkc"}  # the default of its time
    run["training"] = {"validation": {"metric": "bleu"}, **run["training"]}
    run["model"] = {"preset": "transformer-base"}
    run["decoding"] = {"beam_size": 3, "patience": 1.0}
    assert (config.max_length, kept) == (77, run)
    section["decoding"]["warp"] = 9
    path = write({"format": FORMAT, "inference": section, "record": record})
    line = path.read_text("utf-8").splitlines().index("    warp: 9") + 1
    with pytest.raises(ConfigError, match=rf"config.yaml:{line}: unknown key decoding.warp"):
        load_inference(path)


def test_damaged_values_are_errors_of_the_configuration() -> None:
    section = RunConfig.model_validate(VALUES).inference.model_dump(mode="json")
    for key, value in (("source_language", ["de"]), ("directions", 3), ("directions", None)):
        path = write({"format": FORMAT, "inference": {**section, key: value}, "record": {}})
        for overrides in ([], ["target_language=nl"]):
            with pytest.raises(ConfigError, match=r"config\.yaml"):
                load_inference(path, overrides, read=("target_language",))
    corpora = {**VALUES["data"], "train": [{**CORPUS, "target_language": ["fr"]}]}
    for change in ({"data": corpora}, {"source_language": ["de"]}):
        with pytest.raises(ConfigError, match=r"config\.yaml"):
            load_inference(write({**VALUES, **change}))
    for part in ("inference", "record"):
        broken = {"format": FORMAT, "inference": section, "record": {}, part: [1]}
        with pytest.raises(ConfigError, match=part):
            load_inference(write(broken))


def test_overrides_of_a_model_change_what_is_read_and_nothing_else() -> None:
    config = RunConfig.model_validate(VALUES)
    for text in (dump_config(config), dump_inference(config.inference, settings_of(config))):
        path = Path("config.yaml")
        path.write_text(text, "utf-8")
        assert load_inference(path, ["decoding.beam_size=9"])[0].decoding.beam_size == 9
        with pytest.raises(ConfigError, match=r"training\.seed=1 has no effect"):
            load_inference(path, ["training.seed=1"])
        with pytest.raises(ConfigError, match=r"did you mean decoding\.beam_size"):
            load_inference(path, ["decoding.beam_siz=9"])
        overrides = ["data.test.own.source=b.de", "source_language=nl"]
        changed, record = load_inference(path, overrides, read=("data", "source_language"))
        assert changed.directions == (("nl", "en"), ("nl", "fr"))
        assert record["data"]["test"]["own"]["source"] == "b.de"


def test_a_report_has_a_list_of_test_sets_also_of_a_single_one() -> None:
    """Until format 8, it was the results of a single test set, or had a list `evaluations`."""
    one, two = {"test": "a"}, {"test": "b"}
    several = {"evaluations": [one, two], "mean": {}, "format": 8}
    assert migrate(several, "x", kind=Kind.REPORT) == {"test_sets": [one, two]}
    assert migrate(one, "x", kind=Kind.REPORT) == {"test_sets": [one]}
    present = {"test_sets": [one], "mean": {}}
    assert migrate({**present, "format": FORMAT}, "x", kind=Kind.REPORT) == present
