"""Values of a run for the keys that the user's configuration leaves open."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml

from nmt.config.filling import with_recorded
from nmt.config.loader import load_config, settings_of
from nmt.errors import ConfigError

CORPUS = {"source": "a.de", "target": "a.en"}
RECORDED: dict[str, Any] = {
    "name": "run",
    "data": {
        "train": [{**CORPUS, "weight": 2.0, "noise": {"typos": 0.1, "spacing": 0.2}}],
        "valid": {**CORPUS, "split": "old"},
        "test": {"a": {**CORPUS, "split": "old"}, "b": CORPUS},
        "stages": [{"mix": {"x": 1, "y": 2}, "until": {"steps": 5}}],
        "replay": {"share": 0.3},
    },
    "filters": {"script": {"action": "report", "limit": 0.7}, "extra": {"mine": {"x": 1}}},
    "model": {"preset": "tiny", "model_dim": 16, "dropout": 0.3},
    "training": {
        "max_steps": None,
        "max_minutes": 20,
        "optimizer": {"kind": "muon", "momentum": 0.5},
        "schedule": {"warmup_ratio": 0.1, "peak_lr": 4e-3},
    },
}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, RECORDED),
        ({"model": {"dropout": 0.1}}, {"model": {**RECORDED["model"], "dropout": 0.1}}),
        # Another preset or optimizer: the recorded values belong to the old one.
        ({"model": {"preset": "modern"}}, {"model": {"preset": "modern"}}),
        (
            {"training": {"optimizer": {"kind": "adamw"}}},
            {"training": {**RECORDED["training"], "optimizer": {"kind": "adamw"}}},
        ),
        # A limit or a warm-up replaces the others; null does not.
        (
            {"training": {"max_epochs": 2, "schedule": {"warmup_steps": 9}}},
            {
                "training": {
                    "max_epochs": 2,
                    "optimizer": RECORDED["training"]["optimizer"],
                    "schedule": {"warmup_steps": 9, "peak_lr": 4e-3},
                }
            },
        ),
        (
            {"training": {"max_epochs": None}},
            {"training": {**RECORDED["training"], "max_epochs": None}},
        ),
        # The same limit again replaces nothing, and null is a section without keys.
        ({"training": {"max_minutes": 20}}, RECORDED),
        ({"model": None, "training": {"schedule": None}}, RECORDED),
        # An action alone has the recorded limit.
        (
            {"filters": {"script": "drop"}},
            {"filters": {**RECORDED["filters"], "script": {"action": "drop", "limit": 0.7}}},
        ),
        # Names that the user has removed stay removed.
        ({"filters": {"extra": {}}}, {"filters": {**RECORDED["filters"], "extra": {}}}),
        ({"data": {"test": {"b": CORPUS}}}, {"data": {**RECORDED["data"], "test": {"b": CORPUS}}}),
        (
            {"data": {"stages": [{"mix": {"x": 1}}]}},
            {"data": {**RECORDED["data"], "stages": [{"mix": {"x": 1}, "until": {"steps": 5}}]}},
        ),
        ({"data": {"replay": None}}, {"data": {**RECORDED["data"], "replay": None}}),
        (
            {"data": {"valid": {"source": "./a.de", "target": ".//a.en"}}},
            {
                "data": {
                    **RECORDED["data"],
                    "valid": {"source": "./a.de", "target": ".//a.en", "split": "old"},
                }
            },
        ),
        # The same corpus is filled in, also in a list of one; another corpus is not.
        (
            {"data": {"valid": [CORPUS], "train": [{**CORPUS, "noise": {"typos": 0.4}}]}},
            {
                "data": {
                    **RECORDED["data"],
                    "valid": [RECORDED["data"]["valid"]],
                    "train": [{**CORPUS, "weight": 2.0, "noise": {"typos": 0.4, "spacing": 0.2}}],
                }
            },
        ),
        (
            {"data": {"valid": {"sacrebleu": "wmt14"}, "train": [CORPUS, CORPUS]}},
            {
                "data": {
                    **RECORDED["data"],
                    "valid": {"sacrebleu": "wmt14"},
                    "train": [CORPUS, CORPUS],
                }
            },
        ),
    ],
)  # fmt: skip
def test_open_keys_have_the_recorded_values(given: Any, expected: Any) -> None:
    assert with_recorded(given, RECORDED) == {**RECORDED, **expected}


def test_a_run_is_found_by_its_folder_and_its_values_come_before_presets() -> None:
    file = Path("mine.yaml")
    file.write_text(
        "{name: mine, source_language: de, target_language: en,"
        " data: {train: [{source: a, target: b}], valid: {source: a, target: b}}}"
    )
    first = load_config(file, ["training.max_steps=7", "model.preset=tiny", "batch.max_tokens=999"])
    recorded = settings_of(first)
    asked: list[Path] = []

    def recorded_settings(run_dir: Path) -> dict[str, Any]:
        asked.append(run_dir)
        return recorded

    def must_not_measure(*_: object) -> NoReturn:
        raise AssertionError

    # Without a training section, the size of the corpus would be counted.
    second = load_config(file, measure_text=must_not_measure, recorded_settings=recorded_settings)
    assert second == first
    third = load_config(
        file, ["run_dir=elsewhere", "training.seed=5"], recorded_settings=recorded_settings
    )
    assert asked == [Path("runs/mine"), Path("elsewhere")]
    assert (third.run_dir, third.training.seed) == (Path("elsewhere"), 5)
    assert third.prepared_dir == first.prepared_dir
    with pytest.raises(ConfigError) as caught:
        load_config(file, ["batch.max_tokens=auto"], recorded_settings=recorded_settings)
    assert "runs/mine/config.yaml" in str(caught.value.fix)
    assert yaml.safe_load(file.read_text())["name"] == "mine"
