"""``nmt export``: write a model as a self-contained folder, for nmt or for CTranslate2.

To add a format, write a subclass of `ExportTarget` in a new file, and register the subclass in
`EXPORT_TARGETS`. The README of the folder is the model card: a hub reads the front matter, people
read the text.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from nmt.checkpoint.files import MODEL, adapter_record, read_object, save_tensors
from nmt.checkpoint.model_folder import (
    CARD,
    RECORD,
    ModelBundle,
    check_new_folder,
    find_model,
    is_ctranslate2,
    log_next_commands,
    new_model_folder,
    project_of,
    read_weights,
    recorded_data,
    recorded_value,
    write_folder_config,
)
from nmt.checkpoint.run import trained_on
from nmt.commands.options import CommandResult
from nmt.config.document import dump_document
from nmt.config.inference import InferenceConfig
from nmt.data.corpus import corpus_names
from nmt.data.prepared import PreparedData
from nmt.errors import ConfigError
from nmt.extras.exchange.options import ExportOptions
from nmt.files.progress import progress_bar
from nmt.inference.engine import ShortlistParts, read_shortlist
from nmt.installation import DISTRIBUTION
from nmt.registry import Registry
from nmt.report.page import render
from nmt.training.report import read_events
from nmt.version import __version__

logger = logging.getLogger(__name__)

IMPORTED = "Imported; see the original model for its license."  # Origin, in a model card.
HUB_NAME = "ORG/NAME"  # In a model card, until `nmt push` writes the name of the repository.
_SCORES = ("loss", "perplexity", "bleu", "chrf")  # Keys of an event of validation.


class ExportTarget:
    """An export format. This base class copies the weights; adapters are merged.

    The caller writes the configuration, tokenizer, model card and manifest.
    """

    weights_name: str = MODEL  # Name of the file with the weights.
    dtypes: Sequence[str] = ("float32",)  # Types of the weights; the first is the default.
    # End of the name of what `pack` writes: a file, or a folder if empty. None: no `pack`.
    archive_suffix: str | None = None
    library_name: str = "nmt"  # The library that loads the model.

    def adapt(self, config: InferenceConfig) -> InferenceConfig:
        """Return the configuration without decoding options that the format does not support.

        Raises:
            ConfigError: The format does not support the model.
        """
        return config

    def write(
        self, folder: Path, bundle: ModelBundle, dtype: str, shortlist: ShortlistParts | None
    ) -> None:
        """Write the weights and the other files of the format.

        Args:
            folder: An existing folder.
            bundle: The model.
            dtype: One of `dtypes`.
            shortlist: The likely target tokens of each source token, if the model has a shortlist.
        """
        del dtype, shortlist  # this format has one dtype, and the caller copies the shortlist
        if adapter_record(bundle.folder / MODEL):
            save_tensors(bundle.model.state_dict(), folder / MODEL)
        else:
            shutil.copyfile(bundle.folder / MODEL, folder / MODEL)

    def pack(self, folder: Path, output: Path, valid_targets: Sequence[str]) -> None:
        """Write the archive or the folder of a format that has an ``archive_suffix``.

        Args:
            folder: A complete model folder, which is deleted afterwards.
            output: The archive or folder to write.
            valid_targets: Reference lines of the validation sets; empty if they are unknown.
        """
        raise NotImplementedError


EXPORT_TARGETS = Registry[Callable[[], ExportTarget]]("export target")


@dataclass(frozen=True)
class WrittenFolder(CommandResult):
    """The output of a command that writes a model folder: text or JSON."""

    output: Path  # The model folder.

    def as_text(self) -> str:
        """Return only the path of the folder, for use in scripts."""
        return str(self.output)


@dataclass(frozen=True)
class ImportSummary(WrittenFolder):
    """What `nmt import` has written."""

    languages: tuple[str, str]  # Codes of source and target.
    # Sizes of vocabularies and weights, if the vocabulary was changed.
    before: Mapping[str, float] | None = None
    after: Mapping[str, float] | None = None


@dataclass(frozen=True)
class ExportSummary(WrittenFolder):
    """What `nmt export` has written."""

    to: str  # Format.
    quantization: str  # Type of the weights.
    step: int  # Updates that the model was trained for.
    size_bytes: int  # Size of the weights.


def export(options: ExportOptions) -> ExportSummary:
    """Write a self-contained model folder. After an error, no folder is left.

    Raises:
        ConfigError: ``output`` exists, or the format does not support the model or quantization.
        CheckpointError: The model is missing or damaged, or the folder cannot be written.
    """
    output = options.output
    target = EXPORT_TARGETS[options.to]()
    check_new_folder(output, options.model)
    suffix = target.archive_suffix
    if suffix is None:
        summary = _write_folder(options, target, output)
        log_next_commands(output)
        return summary
    if suffix and output.suffix != suffix:
        raise ConfigError(
            f"`to` {options.to} writes a file, and its name must end in {suffix}.",
            fix=f"Set `output` to {output}{suffix}.",
        )
    output.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=output.parent) as temporary:
        summary = _write_folder(options, target, Path(temporary) / "model")
    size_bytes = output.stat().st_size if suffix else summary.size_bytes
    return replace(summary, output=output, size_bytes=size_bytes)


def _write_folder(options: ExportOptions, target: ExportTarget, output: Path) -> ExportSummary:
    """Write a model folder, and its archive if the target has one."""
    source = options.model
    to = options.to
    if is_ctranslate2(source):
        raise ConfigError(
            f"{source} is already an export, and cannot be exported again.",
            fix="Pass the run or model folder that was exported.",
        )
    dtype = options.quantization or target.dtypes[0]
    if dtype not in target.dtypes:
        raise ConfigError(
            f"`to` {to} does not support `quantization` {dtype}.",
            fix=f"Remove `quantization`, or use {' or '.join(target.dtypes)}.",
        )
    files = find_model(source, options.checkpoint)
    merged_config = files.config.model_copy(update={"base_model": None})  # adapters are merged
    config = target.adapt(merged_config)
    corpora = list[str]()  # Names of the training corpora, for the model card.
    if files.step:  # imported models of older versions have placeholders for their corpora
        data = recorded_data(files.record, source)
        if data:
            corpora = corpus_names(data.train)
    metric = str(recorded_value(files.record, "training.validation.metric"))

    with progress_bar("exporting", unit="parts", total=3) as bar:  # reading, writing, checksums
        bundle = read_weights(files)
        shortlist = read_shortlist(source, bundle.tokenizers.vocab_sizes)
        bar.update()
        with new_model_folder(output, source, bundle.step) as folder:
            target.write(folder, bundle, dtype, shortlist)
            bar.update()
            write_folder_config(folder, config, files.record)
            size_bytes = (folder / target.weights_name).stat().st_size
            project = project_of(files.record, source)
            prepared_dir = project / str(files.record.get("prepared_dir"))
            prepared = trained_on(source, prepared_dir)
            counts = prepared.counts if prepared else {}
            origin = IMPORTED
            if bundle.step:
                origin = f"Trained for {bundle.step:,} updates."
            write_card(
                folder,
                config,
                origin,
                library_name=target.library_name,
                parameters=sum(tensor.numel() for tensor in bundle.model.parameters()),
                vocab_sizes=bundle.tokenizers.vocab_sizes,
                weights=f"{to}, {dtype}, {size_bytes / 2**20:,.1f} MiB",
                corpora={name: counts.get(name) for name in corpora},
                prepared=prepared,
                beams=recorded_value(files.record, "training.validation.beam_size"),
                # Of a metric such as comet:MODEL, the card shows only the name.
                scores=_scores(bundle, source, metric.partition(":")[0]),
            )
        if target.archive_suffix is not None:
            valid_targets = []
            if prepared:
                valid_targets = PreparedData(prepared_dir, prepared).valid_target
            target.pack(output, options.output, valid_targets)
        bar.update()
    dropped_options = []
    for name, value in files.config.decoding:
        if value != getattr(config.decoding, name):
            dropped_options.append(f"{name} {value}")
    if dropped_options:
        names = ", ".join(dropped_options)
        logger.info("left out decoding options that %s does not support: %s", to, names)
    return ExportSummary(output, to, dtype, bundle.step, size_bytes)


def write_card(
    folder: Path,
    config: InferenceConfig,
    origin: str,
    *,
    library_name: str = ExportTarget.library_name,
    **facts: Any,
) -> None:
    """Write the model card from the template card.md.j2.

    Args:
        folder: The model folder.
        config: Configuration of the model.
        origin: Sentences about the origin of the model, for example the number of updates.
        library_name: The library that loads the folder.
        facts: Variables of the template. Without ``corpora``, the sections about training data and
            scores are left out.
    """
    card = render(
        "card.md.j2",
        config=config,
        origin=origin,
        front=front_matter(config, library_name=library_name),
        library_name=library_name,
        version=__version__,
        distribution=DISTRIBUTION,
        name=HUB_NAME,
        **facts,
    )
    (folder / CARD).write_text(card, encoding="utf-8", newline="\n")


def front_matter(config: InferenceConfig, **values: Any) -> str:
    """Return the YAML front matter of a model card, for hubs.

    Args:
        config: Configuration of the model.
        values: Further keys, such as ``license``. Keys with the value None are left out.
    """
    optional_fields = {
        "language": list(config.languages),
        "pipeline_tag": "translation",
        "library_name": "nmt",
        "tags": ["nmt"],
        **values,
    }
    return front_text(optional_fields)


def front_text(optional_fields: Mapping[str, Any]) -> str:
    """Return YAML front matter with the keys whose value is not None."""
    fields = {key: value for key, value in optional_fields.items() if value is not None}
    return f"---\n{dump_document(fields)}---\n"


def _scores(bundle: ModelBundle, source: Path, metric: str) -> dict[str, float]:
    """Return the validation scores of these weights, by metric, without missing scores.

    Averaged weights have a record with one score. Those of a checkpoint were scored in training.

    Args:
        bundle: The model.
        source: The run folder, whose events are searched.
        metric: Metric of the score in the record.
    """
    scores = dict[str, float | None]()
    if (bundle.folder / RECORD).is_file():
        scores[metric] = read_object(bundle.folder / RECORD).get("score")
    else:
        validation = {"kind": "validation", "step": bundle.step}
        for event in read_events(source):
            # The event has these two fields. The last one counts, if a run was repeated.
            if validation.items() <= event.items():
                scores = {name: event.get(name) for name in _SCORES}
    return {name: value for name, value in scores.items() if value is not None}
