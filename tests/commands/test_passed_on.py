"""Every option of a command with a model reaches the model: no option is accepted and ignored."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nmt import AugmentOptions, ScoreOptions, TranslateOptions
from nmt.commands.augment import augment
from nmt.commands.score import score
from nmt.commands.translate import load_translator
from nmt.inference.engine import Ensemble
from nmt.inference.glossary import Glossary
from nmt.inference.mbr import Mbr

MODEL, OTHER = Path("model"), Path("other")
TERMS = Path("terms.tsv")
READ = ("read", TERMS)
TOGETHER = Ensemble((OTHER,), (1.0, 3.0), "geometric")

# Options of `ModelOptions` -> arguments of `load`.
LOADING: dict[str, Any] = {
    "checkpoint": "last", "device": "cuda:1", "threads": 3,
    "with_": (OTHER,), "weights": (1.0, 3.0), "ensemble_mean": "geometric",
}  # fmt: skip
LOADED: dict[str, Any] = {
    "checkpoint": "last", "device": "cuda:1", "threads": 3, "ensemble": TOGETHER,
}  # fmt: skip
LANGUAGES: dict[str, Any] = {"from_": "de", "to": "fr", "tag": "<news>"}
NAMED = {"source_language": "de", "target_language": "fr", "tag": "<news>"}


class Loaded(Exception):  # noqa: N818 - not an error: what comes after it is not of interest
    """Ends the command when the model is loaded."""


@pytest.fixture
def arguments(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments of the last `Translator.load`, which raises `Loaded`."""
    found: dict[str, Any] = {}

    def load(folder: Path, **options: Any) -> None:
        found.clear()
        found.update(options, folder=folder)
        raise Loaded

    stand_in = SimpleNamespace(load=load)
    for module in ("translate", "augment"):
        monkeypatch.setattr(f"nmt.commands.{module}.Translator", stand_in)
    monkeypatch.setattr(Glossary, "read", lambda path: ("read", path))
    return found


def fields(options: type[Any]) -> set[str]:
    return {field.name for field in dataclasses.fields(options)}


def test_translate_loads_the_model_with_every_option(arguments: dict[str, Any]) -> None:
    same: dict[str, Any] = {
        "engine": "ctranslate2", "dtype": "int8", "beam_size": 1, "length_penalty": 0.3,
        "shortlist": True, "batch_tokens": 77, "n_best": 2, "temperature": 0.7, "top_p": 0.8,
        "top_k": 9, "seed": 11, "sentences": "keep",
    }  # fmt: skip
    outputs = ("alignments", "attention", "token_scores")
    other: dict[str, Any] = {
        "sample": True, "no_guard": True, "no_split": True, "format": "json",
        "glossary": TERMS,
    } | dict.fromkeys(outputs, True)  # fmt: skip
    options = TranslateOptions(model=MODEL, **LOADING, **LANGUAGES, **same, **other)
    with pytest.raises(Loaded):
        load_translator(options)
    assert arguments == {
        "folder": MODEL, "mbr": None, "outputs": set(outputs), "guard": False, "split": False,
        "sampling": True, "constraints": False, **LOADED, **NAMED, **same, "glossary": READ,
    }  # fmt: skip
    # Of lines, and not of the model; `set_` and the options of MBR are tested elsewhere.
    of_lines = {"file", "input", "output", "input_format", "min_confidence", "stream"}
    elsewhere = {"set_", "mbr", "mbr_candidates", "mbr_from"}
    tested = {"model", *LOADING, *LANGUAGES, *same, *other}
    assert fields(TranslateOptions) == tested | of_lines | elsewhere


def test_without_options_the_model_decides(arguments: dict[str, Any]) -> None:
    with pytest.raises(Loaded):
        load_translator(TranslateOptions(model=MODEL))
    plain = {
        "folder": MODEL, "checkpoint": "best", "device": "auto", "threads": None, "mbr": None,
        "engine": "auto", "dtype": "auto", "ensemble": None, "guard": True, "split": True,
        "outputs": set(), "source_language": None, "target_language": None, "tag": None,
        "constraints": False, "sentences": "auto", "glossary": None,
    }  # fmt: skip
    assert arguments == plain
    for engine, constraints in (("auto", True), ("torch", False)):
        with pytest.raises(Loaded):
            load_translator(TranslateOptions(model=MODEL, input_format="json", engine=engine))
        assert arguments == plain | {"engine": engine, "constraints": constraints}


def test_mbr_compares_in_the_language_and_on_the_device_that_are_asked_for(
    arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def loaded(self: Mbr, language: str | None, device: str) -> Mbr:
        calls.append((language, device))
        return self

    monkeypatch.setattr(Mbr, "loaded", loaded)
    config = SimpleNamespace(target_language="en")
    monkeypatch.setattr("nmt.commands.translate.load_folder_config", lambda _: config)
    usual: dict[str, Any] = {"mbr": "bleu", "device": "cpu"}
    for given, expected in (
        ({}, ("bleu", 32, "samples")),
        ({"mbr_candidates": 5, "mbr_from": "beam", "to": "fr"}, ("bleu", 5, "beam")),
    ):
        options: dict[str, Any] = usual | given
        with pytest.raises(Loaded):
            load_translator(TranslateOptions(model=MODEL, **options))
        chosen = arguments["mbr"]
        assert (chosen.utility, chosen.num_candidates, chosen.kind) == expected
    assert calls == [("en", "cpu"), ("fr", "cpu")]


def test_augment_loads_the_models_with_every_option(arguments: dict[str, Any]) -> None:
    same: dict[str, Any] = {
        "checkpoint": "step-7", "device": "cuda:1", "threads": 3, "engine": "torch", "guard": False,
        "sentences": "split",
        "seed": 11, "beam_size": 6,
    }  # fmt: skip
    of_text: dict[str, Any] = {"text": Path("text"), "output": Path("folder")}
    options = AugmentOptions(
        **of_text, model=(MODEL, OTHER), sample=True, glossary=TERMS, **same, **LANGUAGES
    )
    with pytest.raises(Loaded):
        augment(options)
    assert arguments == {
        "folder": MODEL, "ensemble": Ensemble((OTHER,)), "sampling": True, "n_best": 1,
        **same, **NAMED, "glossary": READ,
    }  # fmt: skip
    tested = {"model", "sample", "glossary", *of_text, *same, *LANGUAGES}
    elsewhere = {"forward", "references", "shard_lines", "set_", "json", "force"}
    assert fields(AugmentOptions) == tested | elsewhere


def test_score_loads_the_model_with_every_option(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, Any]] = []

    class StandIn:
        @classmethod
        def load(cls, folder: Path, **options: Any) -> StandIn:
            calls.append(("load", options | {"folder": folder}))
            return cls()

        def with_options(self, **options: Any) -> StandIn:
            calls.append(("with_options", options))
            return self

        def score(self, pairs: list[Any], languages: tuple[str, ...], **_: Any) -> None:
            calls.append(("score", (pairs, tuple(languages))))
            raise Loaded

    monkeypatch.setattr("nmt.commands.score.Scorer", StandIn)
    same: dict[str, Any] = {"length_penalty": 0.3, "batch_tokens": 77}
    with pytest.raises(Loaded):
        score(ScoreOptions(model=MODEL, **LOADING, **LANGUAGES, **same))
    assert calls == [
        ("load", LOADED | {"folder": MODEL}),
        ("with_options", same),
        ("score", ([], ("de", "fr", "<news>"))),
    ]
    of_lines = {"source", "target", "output", "sum", "format", "set_"}
    assert fields(ScoreOptions) == {"model", *LOADING, *LANGUAGES, *same} | of_lines
