"""A run -> a model folder: one of its checkpoints, or the mean of several."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nmt.checkpoint.files import STATE, list_checkpoints, read_state
from nmt.checkpoint.model_folder import CARD, CONFIG, find_model, load_model, read_weights
from nmt.checkpoint.new_model_folder import check_new_folder, write_model_folder
from nmt.checkpoint.retention import by_score, write_average
from nmt.config.keys import chosen
from nmt.config.loader import dump_config
from nmt.config.run import RunConfig
from nmt.errors import CheckpointError, ConfigError
from nmt.extras.exchange.ctranslate2 import ShortlistParts, is_ctranslate2
from nmt.extras.exchange.targets import EXPORT_TARGETS, model_card
from nmt.files.manifest import Manifest
from nmt.files.progress import progress_bar
from nmt.inference.shortlist_file import ShortlistFile

logger = logging.getLogger(__name__)

DEFAULT_LAST = 10
"""Checkpoints that are averaged if nothing is said."""


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
        target: A name in `targets.EXPORT_TARGETS`: ``safetensors`` for this package,
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
    writer = chosen(EXPORT_TARGETS, target, "--to")
    dtype = quantization or writer.dtypes[0]
    if dtype not in writer.dtypes:
        raise ConfigError(
            f"--to {target} writes no {dtype}.",
            fix=f"Leave --quantization out, or use one of {', '.join(writer.dtypes)}.",
        )
    files = find_model(source, checkpoint)
    writer.check(files.config)
    config = files.config.model_copy(update={"decoding": writer.decoding(files.config.decoding)})

    def write(folder: Path) -> None:
        writer.write(folder, bundle, dtype, shortlist)
        bar.update()
        if config != files.config:
            (folder / CONFIG).write_text(dump_config(config), encoding="utf-8", newline="\n")
        size = (folder / writer.weights_name).stat().st_size
        card = model_card(bundle, source, form=f"{target}, {dtype}", size_bytes=size)
        (folder / CARD).write_text(card, encoding="utf-8", newline="\n")

    with progress_bar("exporting", unit="parts", total=3) as bar:  # reading, writing, checksums
        bundle = read_weights(files)
        shortlist = _shortlist(source, bundle.tokenizers.vocab_sizes)
        bar.update()
        write_model_folder(output, source, bundle.step, write)
        bar.update()
    _log_lost(target, files.config, config)
    size = (output / writer.weights_name).stat().st_size
    return ExportSummary(
        output=output, target=target, quantization=dtype, step=bundle.step, size_bytes=size
    )


def _log_lost(target: str, before: RunConfig, after: RunConfig) -> None:
    """Name the decoding options that an export leaves out."""
    kept = after.decoding.model_dump()
    options = before.decoding.model_dump().items()
    if lost := [f"{name} {value}" for name, value in options if value != kept[name]]:
        logger.info("%s cannot search with %s: the export leaves that out", target, ", ".join(lost))


def _shortlist(folder: Path, sizes: tuple[int, int]) -> ShortlistParts | None:
    try:
        return ShortlistFile(folder, sizes).parts
    except CheckpointError as error:
        logger.warning("the export has no short lists: %s %s", error.problem, error.fix)
        return None


@dataclass(frozen=True, slots=True)
class AverageSummary:
    """What was averaged, and where it is."""

    output: Path
    """The model folder."""
    steps: tuple[int, ...]
    """Steps of the checkpoints, oldest first."""


def average(
    run_dir: Path,
    output: Path,
    *,
    last: int | None = None,
    best: int | None = None,
    steps: Sequence[int] = (),
) -> AverageSummary:
    """Write the mean of checkpoints of a run as a model folder.

    A run that is being trained may be averaged too.

    Args:
        run_dir: The run folder.
        output: Folder to write; missing or empty.
        last: How many of the newest checkpoints; `DEFAULT_LAST` if nothing is said.
        best: Instead: how many of those with the highest validation score.
        steps: Instead: these checkpoints.

    Raises:
        ConfigError: More than one kind of choice, a count below 1, or ``output`` is taken.
        CheckpointError: A checkpoint is missing or damaged, or is of another model.
    """
    _check_choice(last, best, steps)
    check_new_folder(output, run_dir)
    present = dict(list_checkpoints(run_dir))
    if not present:
        raise CheckpointError(
            f"{run_dir} has no checkpoints.", fix="Name a run folder that `nmt train` wrote."
        )
    if missing := [str(step) for step in sorted(steps) if step not in present]:
        raise CheckpointError(
            f"{run_dir} has no checkpoint of step {', '.join(missing)}; it has "
            f"{', '.join(map(str, sorted(present)))}.",
            fix="Name some of these with --step.",
        )
    if best is not None:
        wanted, scored, kept = best, " with a validation score", "best"
        chosen = by_score(present, _scores(present))[:best]
    else:
        wanted, scored, kept = len(steps) or last or DEFAULT_LAST, "", "last"
        chosen = list(steps) or sorted(present)[-wanted:]
    if len(chosen) < wanted:
        advice = f"training.keep_{kept} says how many a run keeps"
        logger.info("%s has %s%s, not %d; %s", run_dir, _count(len(chosen)), scored, wanted, advice)
    folders = {step: present[step] for step in sorted(chosen)}
    for step, folder in folders.items():
        if (found := Manifest.read(folder).step) != step:  # it was chosen by a step not its own
            raise CheckpointError(
                f"{folder} holds step {found:,}.", fix="Give the folder its own name back."
            )
    # Refuses now what could not be translated with later.
    load_model(run_dir, f"step-{max(folders)}")
    shown = ", ".join(f"{step:,}" for step in folders)
    logger.info("averaging %s: step %s", _count(len(folders)), shown)
    write_average(output, run_dir, list(folders.values()))
    return AverageSummary(output, tuple(folders))


def _check_choice(last: int | None, best: int | None, steps: Sequence[int]) -> None:
    given = {"--last": last is not None, "--best": best is not None, "--step": bool(steps)}
    names = [name for name, is_given in given.items() if is_given]
    if len(names) > 1:
        raise ConfigError(
            f"{' and '.join(names)} choose checkpoints in different ways.", fix="Give one of them."
        )
    for name, count in (("--last", last), ("--best", best)):
        if count is not None and count < 1:
            raise ConfigError(f"{name} is {count}.", fix="Average at least one checkpoint.")
    if twice := sorted({step for step in steps if steps.count(step) > 1}):
        raise ConfigError(
            f"--step {', '.join(map(str, twice))} is given more than once.",
            fix="Name every checkpoint once: all have the same weight in the mean.",
        )


def _scores(present: Mapping[int, Path]) -> dict[int, float]:
    """Return validation scores of the whole run so far, as its newest checkpoint records them."""
    folder = present[max(present)]
    Manifest.read(folder).verify(folder, (STATE,))
    scores = dict(read_state(folder).get("progress", {}).get("history", []))
    if not scores.keys() & present.keys():
        raise CheckpointError(
            f"{folder / STATE} records no validation score of a checkpoint that is there.",
            fix="Use --last, or name checkpoints with --step.",
        )
    return scores


def _count(number: int) -> str:
    return f"{number:,} checkpoint{'' if number == 1 else 's'}"
