"""Documents of older versions -> documents of this version.

Every document that nmt writes and reads again contains a format number. Every change of a key or of
a default raises `FORMAT` and adds a step below, which gives an older document the new key, or the
old default. A document without a number has format 1 (nmt 0.1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

from nmt.config.inference import inference_section
from nmt.errors import ConfigError

FORMAT = 3
KEY = "format"  # Key of the format number.
INFERENCE, RECORD = "inference", "record"  # Sections of the configuration of a model folder.

Document = dict[str, Any]


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


def migrate(document: Mapping[str, Any], number: int, *, kind: Kind) -> Document:
    """Return a document in the present format.

    Args:
        document: The document, without its format number. It is not changed.
        number: Its format number, at most `FORMAT`.
        kind: What it describes.
    """
    migrated = dict(document)
    for step in range(number, FORMAT):
        change = _STEPS.get((kind, step))
        if change is not None:
            migrated = change(migrated)
    return migrated


def split_format(
    document: Mapping[str, Any], name: str, *, default: int = 1
) -> tuple[Document, int]:
    """Return a document without its format number, and the number.

    Args:
        document: The document.
        name: Its name in messages, usually the path.
        default: The number of a document that contains none.

    Raises:
        NewerFormatError: A newer version of nmt wrote the document.
        ConfigError: The number is not a whole number above 0.
    """
    values = dict(document)
    number = values.pop(KEY, default)
    if type(number) is not int or number < 1:
        problem = f"{name}: {KEY} is {number!r}; it must be a whole number from 1 to {FORMAT}."
        raise ConfigError(problem, fix=f"Write {KEY}: {FORMAT}, or restore the file.")
    if number > FORMAT:
        raise NewerFormatError(name, number)
    return values, number


def model_document(configuration: Mapping[str, Any]) -> Document:
    """Return the document of a model folder, from the configuration of its training."""
    return {INFERENCE: inference_section(configuration), RECORD: dict(configuration)}


def _with_default(values: Mapping[str, Any], keys: Sequence[str], default: Any) -> Document:
    """Set a key of nested sections if it is left open."""
    first, *others = keys
    if not others:
        return {first: default, **values}
    section = values.get(first)
    if section is None:
        section = {}
    if not isinstance(section, Mapping):  # the validation says that it is wrong
        return dict(values)
    return {**values, first: _with_default(section, others, default)}


def _configuration_of_format_3(values: Document) -> Document:
    changed = _with_default(values, ("tokenizer", "normalization"), "nmt_nfkc")
    if values.get("training") is None:  # then its values depend on the size of the corpus
        return changed
    return _with_default(changed, ("training", "validation", "metric"), "bleu")


def _model_of_format_3(document: Document) -> Document:
    return _with_default(document, (INFERENCE, "tokenizer", "normalization"), "nmt_nfkc")


# Kind and format number -> a function that returns the document in the next format. Format 2 of a
# model folder separates `INFERENCE` from `RECORD`: `model_document`, also for run folders. Format 3
# changes the default of `tokenizer.normalization` from nmt_nfkc to identity, and chooses
# `training.validation.metric` by the target language.
_STEPS: Mapping[tuple[Kind, int], Callable[[Document], Document]] = {
    (Kind.CONFIGURATION, 2): _configuration_of_format_3,
    (Kind.MODEL, 2): _model_of_format_3,
}
