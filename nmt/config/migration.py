"""Documents of older versions -> documents of this version.

Every document that nmt writes and reads again contains a format number. Every change of a key or of
a default raises `FORMAT` and adds a step below, which gives an older document the new key, or the
old default. A document without a number has format 1 (nmt 0.1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from nmt.config.filling import filled_in, own_model, section_of, with_path
from nmt.config.inference import inference_section
from nmt.errors import ConfigError
from nmt.installation import read_toml

FORMAT = 9
FORMAT_KEY = "format"
# Sections of the configuration of a model folder.
INFERENCE = "inference"
RECORD = "record"
_VALUES = read_toml(__file__, "migration.toml")  # of older defaults


class Kind(Enum):
    """What a document describes."""

    CONFIGURATION = "configuration"  # Of a run, with all keys.
    MODEL = "model"  # `INFERENCE`, and `RECORD`: the configuration of its training.
    CHECKPOINT = "checkpoint"  # State of a run.
    REPORT = "report"  # Result of ``nmt evaluate`` as JSON.


class NewerFormatError(ConfigError):
    """A newer version of nmt wrote the document."""

    def __init__(self, name: str, number: int) -> None:
        problem = f"{name} has format {number}; this version of nmt reads formats up to {FORMAT}."
        super().__init__(problem, fix="Install the version of nmt that wrote it, or a newer one.")


def migrate(
    document: Mapping[str, Any], name: str, *, kind: Kind, default: int = 1
) -> dict[str, Any]:
    """Return a document in the present format, without its format number.

    Args:
        document: The document. It is not changed.
        name: Its name in messages, usually the path.
        kind: What it describes.
        default: The format number of a document that contains none.

    Raises:
        NewerFormatError: A newer version of nmt wrote the document.
        ConfigError: The number is not a whole number above 0.
    """
    migrated = dict(document)
    number = migrated.pop(FORMAT_KEY, default)
    if type(number) is not int or number < 1:
        raise ConfigError(
            f"{name}: {FORMAT_KEY} is {number!r}; it must be a whole number from 1 to {FORMAT}.",
            fix=f"Write {FORMAT_KEY}: {FORMAT}, or restore the file.",
        )
    if number > FORMAT:
        raise NewerFormatError(name, number)
    for old_format in range(number, FORMAT):
        change = _STEPS.get((kind, old_format))
        if change is not None:
            migrated = change(migrated)
    return migrated


def model_document(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document of a model folder, from the configuration of its training."""
    return {INFERENCE: inference_section(configuration), RECORD: dict(configuration)}


def _configuration_of_format_3(configuration: dict[str, Any]) -> dict[str, Any]:
    changed = filled_in(configuration, _VALUES["normalization"])
    if configuration.get("training") is None:  # then its values depend on the size of the corpus
        return changed
    return filled_in(changed, _VALUES["metric"])


def _model_of_format_3(document: dict[str, Any]) -> dict[str, Any]:
    return filled_in(document, {INFERENCE: _VALUES["normalization"]})


def _configuration_of_format_4(configuration: dict[str, Any]) -> dict[str, Any]:
    changed = {**configuration, "data": _with_paths(configuration.get("data"))}
    has_training = changed.get("training") is not None
    if changed.pop("recipe", None) == "low-resource":
        changed = filled_in(changed, _VALUES["low_resource"])
    if has_training and not own_model(changed):
        return filled_in(changed, _VALUES["general"])
    return changed


def _model_of_format_4(document: dict[str, Any]) -> dict[str, Any]:
    record = document.get(RECORD)
    if not isinstance(record, dict):
        return document
    return {**document, RECORD: {**record, "data": _with_paths(record.get("data"))}}


def _checkpoint_of_format_6(state: dict[str, Any]) -> dict[str, Any]:
    progress = {**state.get("progress", {})}
    progress.pop("timed", None)
    return {**state, "progress": progress}


def _checkpoint_of_format_8(state: dict[str, Any]) -> dict[str, Any]:
    return filled_in(state, {"identity": _VALUES["new_keys"]})


def _report_of_format_9(report: dict[str, Any]) -> dict[str, Any]:
    # The report of a single test set was the record of this test set.
    return {"test_sets": report.get("evaluations", [report])}


def _configuration_of_format_9(configuration: dict[str, Any]) -> dict[str, Any]:
    decoding = {**section_of(configuration, "decoding")}
    if decoding.get("sampling") or decoding.get("return_alternatives"):
        decoding.pop("patience", None)  # Without beams, only the default is valid.
        return {**configuration, "decoding": decoding}
    return filled_in(configuration, _VALUES["patience"])


def _model_of_format_9(document: dict[str, Any]) -> dict[str, Any]:
    section = section_of(document, INFERENCE)
    return {**document, INFERENCE: _configuration_of_format_9({**section})}


def _with_paths(value: Any) -> Any:
    """Return a part of the data section in which each corpus has ``path`` instead of ``tsv``."""
    if isinstance(value, list):
        return list(map(_with_paths, value))
    if not isinstance(value, dict):
        return value
    return with_path({key: _with_paths(item) for key, item in value.items()})


# Kind and format number -> a function that returns the document in the next format. Format 2 of a
# model folder separates `INFERENCE` from `RECORD`: `model_document`, also for run folders. Format 3
# changes the default of `tokenizer.normalization` from nmt_nfkc to identity, and chooses
# `training.validation.metric` by the target language. Format 4 replaces `tsv`, `csv` and `jsonl` of
# a corpus by `path` and `format`, has no recipes, and chooses open keys by the size of the training
# text also if the section `training` exists. Format 5 adds `data.max_sentences`,
# `data.placeholders` and `decoding.protect`, whose defaults suit older models. Format 6 of a
# checkpoint has plans of the time instead of one number of updates; an older run makes its first
# plan when it is resumed. Format 7 adds `data.max_characters`, which older models lack.
# Format 8 adds `data.glossary`, `model.norm_gain` and `model.position_init` with the values of all
# older models. Format 9 of a report has a list of test sets, also of a single one; that of other
# documents changes the default of `decoding.patience` from 1 to 2.
_STEPS: Mapping[tuple[Kind, int], Callable[[dict[str, Any]], dict[str, Any]]] = {
    (Kind.CONFIGURATION, 2): _configuration_of_format_3,
    (Kind.MODEL, 2): _model_of_format_3,
    (Kind.CONFIGURATION, 3): _configuration_of_format_4,
    (Kind.MODEL, 3): _model_of_format_4,
    (Kind.CHECKPOINT, 5): _checkpoint_of_format_6,
    (Kind.CHECKPOINT, 7): _checkpoint_of_format_8,
    (Kind.REPORT, 8): _report_of_format_9,
    (Kind.CONFIGURATION, 8): _configuration_of_format_9,
    (Kind.MODEL, 8): _model_of_format_9,
}
