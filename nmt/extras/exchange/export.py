"""``nmt export``: a model -> a folder for another program, or for nmt without the rest of a run."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nmt.checkpoint import model_folder
from nmt.checkpoint.model_folder import (
    CARD,
    CONFIG,
    ModelBundle,
    check_new_folder,
    write_model_folder,
)
from nmt.commands.result import log_next_commands
from nmt.config.loader import dump_config
from nmt.errors import CheckpointError, ConfigError
from nmt.extras.exchange.card import model_card, training_sections
from nmt.extras.exchange.options import ExportOptions
from nmt.extras.exchange.targets import EXPORT_TARGETS
from nmt.files.progress import progress_bar
from nmt.inference.engine import ShortlistParts, read_shortlist
from nmt.model.transformer import count_parameters

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ExportSummary:
    """What was written."""

    output: Path  # the model folder
    to: str  # what it is for
    quantization: str  # type of the weights
    step: int  # updates the model was trained for
    size_bytes: int  # of the weights

    def as_text(self) -> str:
        """Return the folder, for a script to read."""
        return str(self.output)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self) | {"output": str(self.output)}


def export(options: ExportOptions) -> ExportSummary:
    """Write a model folder that is complete in itself: whole, or not at all.

    Raises:
        ConfigError: ``output`` is taken, or the target cannot express the model or write such
            weights.
        CheckpointError: The model is missing or damaged, or the folder cannot be written.
    """
    source, output, target = options.model, options.output, options.to
    check_new_folder(output, source)
    if model_folder.is_ctranslate2(source):
        problem = f"{source} is an export already, which cannot be exported again."
        raise ConfigError(problem, fix="Name the run that it was exported from.")
    writer = EXPORT_TARGETS[target]()
    dtype = options.quantization or writer.dtypes[0]
    if dtype not in writer.dtypes:
        fix = f"Leave `quantization` out, or use one of {', '.join(writer.dtypes)}."
        raise ConfigError(f"`to` {target} writes no {dtype}.", fix=fix)
    files = model_folder.find_model(source, options.checkpoint)
    writer.check(files.config)
    config = files.config.model_copy(update={"decoding": writer.decoding(files.config.decoding)})

    def write(folder: Path) -> None:
        writer.write(folder, bundle, dtype, shortlist)
        bar.update()
        if config != files.config:
            (folder / CONFIG).write_text(dump_config(config), encoding="utf-8", newline="\n")
        size = (folder / writer.weights_name).stat().st_size
        facts = _facts(bundle, f"{target}, {dtype}, {size / 2**20:,.1f} MiB")
        origin = f"Trained for {bundle.step:,} updates."
        card = model_card(config, origin, facts, training_sections(bundle, source))
        (folder / CARD).write_text(card, encoding="utf-8", newline="\n")

    with progress_bar("exporting", unit="parts", total=3) as bar:  # reading, writing, checksums
        bundle = model_folder.read_weights(files)
        shortlist = _shortlist(source, bundle.tokenizers.vocab_sizes)
        bar.update()
        write_model_folder(output, source, bundle.step, write)
        bar.update()
    kept = config.decoding.model_dump()
    before = files.config.decoding.model_dump().items()
    if lost := [f"{name} {value}" for name, value in before if value != kept[name]]:
        logger.info("%s cannot search with %s: the export leaves that out", target, ", ".join(lost))
    log_next_commands(output)
    size = (output / writer.weights_name).stat().st_size
    return ExportSummary(output, target, dtype, bundle.step, size)


def _shortlist(folder: Path, sizes: tuple[int, int]) -> ShortlistParts | None:
    try:
        return read_shortlist(folder, sizes)
    except CheckpointError as error:
        logger.warning("the export has no short lists: %s %s", error.problem, error.fix)
        return None


def _facts(bundle: ModelBundle, weights: str) -> dict[str, str]:
    """Return the shape of a model for its card."""
    model, config, sizes = bundle.config.model, bundle.config, bundle.tokenizers.vocab_sizes
    layers = f"{model.encoder_layers} + {model.decoder_layers} layers"
    kind, both = config.tokenizer.kind, f"{sizes[0]:,} and {sizes[1]:,}"
    joint = f"{sizes[0]:,} entries ({kind}, joint)"
    vocabulary = joint if config.tokenizer.joint else f"{both} entries ({kind})"
    return {
        "parameters": f"{sum(count_parameters(bundle.model).values()):,}",
        "shape": f"{layers}, width {model.model_dim}, {model.num_heads} heads",
        "vocabulary": vocabulary,
        "longest line": f"{config.filters.max_length:,} subwords; longer ones are cut and joined",
        "weights": weights,
    }
