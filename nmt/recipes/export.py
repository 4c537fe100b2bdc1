"""A run or model folder -> a slim model folder, for us or for CTranslate2."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nmt.checkpoint.bundle import ModelBundle, load_model
from nmt.checkpoint.files import MODEL
from nmt.checkpoint.model_folder import CONFIG, check_new_folder, write_model_folder
from nmt.config.loader import dump_config
from nmt.config.run import RunConfig
from nmt.errors import CheckpointError, ConfigError
from nmt.exchange.ctranslate2 import (
    CTranslate2Format,
    check_expressible,
    write_ctranslate2,
)
from nmt.exchange.ctranslate2_package import import_ctranslate2
from nmt.exchange.model_card import NAME as CARD
from nmt.exchange.model_card import model_card
from nmt.runtime.ctranslate2_engine import followed, not_followed
from nmt.runtime.engine import CTRANSLATE2_MODEL, CTRANSLATE2_RECORD, is_ctranslate2
from nmt.search.hypothesis import limits_of
from nmt.text.tokenizer import Tokenizer
from nmt.version import __version__

Target = Literal["safetensors", "ctranslate2"]
Quantization = Literal[
    "float32", "float16", "bfloat16", "int16", "int8", "int8_float32", "int8_float16",
    "int8_bfloat16",
]  # fmt: skip

_LEAST_POSITIONS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSummary:
    """What was written."""

    output: Path
    """The model folder."""
    target: Target
    """What it is for."""
    quantization: Quantization
    """Type of the weights."""
    step: int
    """Updates the model was trained for."""
    size_bytes: int
    """Bytes of the weights."""


def export(
    source: Path,
    output: Path,
    target: Target,
    *,
    quantization: Quantization = "float32",
    checkpoint: str = "best",
    note: Callable[[str], None] = lambda _: None,
) -> ExportSummary:
    """Write a model folder that is complete in itself: whole, or not at all.

    Args:
        source: Run or model folder.
        output: Folder to write; missing or empty.
        target: ``safetensors`` for this package, ``ctranslate2`` for CTranslate2.
        quantization: Type of the weights of an export to CTranslate2.
        checkpoint: Of a run folder: ``best``, ``last``, ``step-N`` or ``average``.
        note: Told about damaged checkpoints that are passed over, and about what is left out.

    Raises:
        ConfigError: ``output`` is taken, CTranslate2 is missing or cannot express the model.
        CheckpointError: The model is missing or damaged, or the folder cannot be written.
    """
    check_new_folder(output, source)
    _check_target(source, target, quantization)
    bundle = load_model(source, checkpoint)
    sizes = []

    def write(folder: Path) -> None:
        if target == "ctranslate2":
            _write_for_ctranslate2(folder, bundle, quantization, note)
            weights, form = CTRANSLATE2_MODEL, f"CTranslate2, {quantization}"
        else:
            shutil.copyfile(bundle.folder / MODEL, folder / MODEL)
            weights, form = MODEL, "safetensors, float32"
        sizes.append((folder / weights).stat().st_size)
        card = model_card(bundle, source, form=form, size_bytes=sizes[0])
        (folder / CARD).write_text(card, encoding="utf-8", newline="\n")

    write_model_folder(output, source, bundle.step, write)
    return ExportSummary(
        output=output,
        target=target,
        quantization=quantization,
        step=bundle.step,
        size_bytes=sizes[0],
    )


def _check_target(source: Path, target: Target, quantization: Quantization) -> None:
    if target == "safetensors" and quantization != "float32":
        raise ConfigError(
            f"Quantization {quantization} is for --to ctranslate2.",
            fix="Leave --quantization out: safetensors keep the weights as they were trained.",
        )
    if is_ctranslate2(source):
        raise ConfigError(
            f"{source} is an export already, which cannot be exported again.",
            fix="Name the run that it was exported from.",
        )
    if target == "ctranslate2":
        import_ctranslate2()


def _write_for_ctranslate2(
    folder: Path, bundle: ModelBundle, quantization: Quantization, note: Callable[[str], None]
) -> None:
    if lost := not_followed(bundle.config.decoding):
        note(f"CTranslate2 cannot search with {', '.join(lost)}: the export leaves that out")
    decoding = followed(bundle.config.decoding)
    config = bundle.config.model_copy(update={"decoding": decoding})
    check_expressible(config.model)
    positions = max(_LEAST_POSITIONS, _most_positions(config))
    form = CTranslate2Format(
        source_tokens=_tokens(bundle.tokenizers.source),
        target_tokens=_tokens(bundle.tokenizers.target),
        quantization=quantization,
        num_positions=positions,
    )
    write_ctranslate2(folder, bundle.model, form)
    (folder / CONFIG).write_text(dump_config(config), encoding="utf-8", newline="\n")
    limits = {"learned": config.model.max_positions, "rotary": None}
    record = {
        "package_version": __version__,
        "ctranslate2_version": import_ctranslate2().__version__,
        "quantization": quantization,
        "num_positions": limits.get(config.model.positions, positions),
        "step": bundle.step,
        "sha256": bundle.sha256,
    }
    text = json.dumps(record, indent=2) + "\n"
    (folder / CTRANSLATE2_RECORD).write_text(text, encoding="utf-8", newline="\n")


def _most_positions(config: RunConfig) -> int:
    """Positions of the longest source and of its longest output, with EOS."""
    most = config.filters.max_length
    return max(most + 1, limits_of(most, config.decoding).longest)


def _tokens(tokenizer: Tokenizer) -> list[str]:
    tokens = [text for text, _, _ in tokenizer.pieces()]
    if len(set(tokens)) < len(tokens):
        twice = next(token for token in tokens if tokens.count(token) > 1)
        raise CheckpointError(
            f"The vocabulary holds {twice!r} more than once, which CTranslate2 cannot tell apart.",
            fix="Export with --to safetensors.",
        )
    return tokens
