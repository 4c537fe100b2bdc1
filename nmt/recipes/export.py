"""A run or model folder -> a slim model folder, for us or for another program."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from nmt.checkpoint.bundle import find_model, read_weights
from nmt.checkpoint.model_folder import CONFIG, check_new_folder, write_model_folder
from nmt.config.loader import dump_config
from nmt.errors import CheckpointError, ConfigError
from nmt.exchange.ctranslate2 import ShortlistParts, is_ctranslate2
from nmt.exchange.model_card import NAME as CARD
from nmt.exchange.model_card import model_card
from nmt.exchange.targets import ExportTarget, find_target
from nmt.runtime.shortlist_file import ShortlistFile

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSummary:
    """What was written."""

    output: Path
    """The model folder."""
    target: str
    """What it is for."""
    quantization: str
    """Type of the weights."""
    step: int
    """Updates the model was trained for."""
    size_bytes: int
    """Bytes of the weights."""


def export(
    source: Path,
    output: Path,
    target: str,
    *,
    quantization: str | None = None,
    checkpoint: str = "best",
) -> ExportSummary:
    """Write a model folder that is complete in itself: whole, or not at all.

    Args:
        source: Run or model folder.
        output: Folder to write; missing or empty.
        target: A name in `nmt.exchange.targets.EXPORT_TARGETS`: ``safetensors`` for this package,
            ``ctranslate2`` for CTranslate2.
        quantization: Type of the weights; the target's first when None.
        checkpoint: Of a run folder: ``best``, ``last``, ``step-N`` or ``average``.

    Raises:
        ConfigError: ``output`` is taken, or the target cannot express the model or write such
            weights.
        CheckpointError: The model is missing or damaged, or the folder cannot be written.
    """
    check_new_folder(output, source)
    if is_ctranslate2(source):
        raise ConfigError(
            f"{source} is an export already, which cannot be exported again.",
            fix="Name the run that it was exported from.",
        )
    writer = find_target(target)
    dtype = _check_dtype(target, writer, quantization)
    files = find_model(source, checkpoint)
    writer.check(files.config)
    bundle = read_weights(files)
    shortlist = _shortlist(source, bundle.tokenizers.vocab_sizes)
    decoding = writer.decoding(files.config.decoding)
    sizes = []

    def write(folder: Path) -> None:
        writer.write(folder, bundle, dtype, shortlist)
        if decoding != files.config.decoding:
            config = files.config.model_copy(update={"decoding": decoding})
            (folder / CONFIG).write_text(dump_config(config), encoding="utf-8", newline="\n")
        sizes.append((folder / writer.weights_name).stat().st_size)
        card = model_card(bundle, source, form=f"{target}, {dtype}", size_bytes=sizes[0])
        (folder / CARD).write_text(card, encoding="utf-8", newline="\n")

    write_model_folder(output, source, bundle.step, write)
    if lost := [
        f"{name} {value}"
        for name, value in files.config.decoding.model_dump().items()
        if value != getattr(decoding, name)
    ]:
        logger.info("%s cannot search with %s: the export leaves that out", target, ", ".join(lost))
    return ExportSummary(
        output=output, target=target, quantization=dtype, step=bundle.step, size_bytes=sizes[0]
    )


def _check_dtype(name: str, target: ExportTarget, wanted: str | None) -> str:
    """Return the type of the weights to write."""
    if wanted is None:
        return target.dtypes[0]
    if wanted not in target.dtypes:
        raise ConfigError(
            f"--to {name} writes no {wanted}.",
            fix=f"Leave --quantization out, or use one of {', '.join(target.dtypes)}.",
        )
    return wanted


def _shortlist(folder: Path, sizes: tuple[int, int]) -> ShortlistParts | None:
    try:
        return ShortlistFile(folder, sizes).parts
    except CheckpointError as error:
        logger.warning("the export has no short lists: %s %s", error.problem, error.fix)
        return None
