"""Converts shared options to the arguments that load a model."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmt.checkpoint.model_folder import CONFIG
from nmt.commands.options import MbrOptions, ModelOptions, SearchOptions, user_values
from nmt.config.flag import as_overrides
from nmt.config.loader import corpora_in, load_inference, read_settings
from nmt.data.checks import other_language
from nmt.data.corpus import corpus_files
from nmt.errors import ConfigError
from nmt.files import atomic
from nmt.inference.direction import MissingLanguageError
from nmt.inference.engine import Ensemble
from nmt.inference.glossary import Glossary
from nmt.registry import load_attribute

if TYPE_CHECKING:
    from nmt.inference.mbr import Mbr
    from nmt.inference.translator import Translator

logger = logging.getLogger(__name__)


def check_output(output: Path | None, *inputs: Path | None) -> None:
    """Check the path of an output file before any work starts.

    A command must not overwrite its inputs (`nmt.files.atomic.check_output`), nor a training,
    validation or test text that the configuration of an input names. Other files are replaced.

    Args:
        output: The file to write; None or ``-`` for standard output.
        inputs: Files, models and configurations that are read; None and ``-`` for standard input.

    Raises:
        ConfigError: The file must not or cannot be written.
    """
    atomic.check_output(output, *inputs)
    if output is None or not output.is_file():  # nothing can be lost
        return
    for path in filter(None, inputs):
        config = path / CONFIG if path.is_dir() else path
        if any(text.is_file() and text.samefile(output) for text in _texts(config)):
            raise ConfigError(
                f"{output} is a text of the corpora or test sets in {config}.",
                fix="Choose another output file.",
            )


def _texts(config: Path) -> Iterator[Path]:
    """Yield the files of the corpora that a configuration names; none if it cannot be read."""
    if config.suffix in (".yaml", ".yml"):
        with suppress(ConfigError):  # reading the model reports the problem
            for _, corpus in corpora_in("data", read_settings(config).get("data")):
                yield from corpus_files(corpus)


def loading_arguments(options: ModelOptions) -> dict[str, Any]:
    """Return the arguments of `Translator.load` and `Scorer.load` that the options determine.

    Not all classes of options have an engine and a type of numbers, or options of the search.

    Raises:
        ConfigError: The weights are invalid, or their number differs from the number of models.
    """
    arguments: dict[str, Any] = {"ensemble": None}
    if options.with_ or options.weights is not None:
        mean = options.ensemble_mean or "arithmetic"
        ensemble = Ensemble(options.with_, options.weights or (), mean)
        ensemble.shares()  # check before loading
        arguments["ensemble"] = ensemble
    for name in ("checkpoint", "device", "threads", "engine", "dtype"):
        if hasattr(options, name):
            arguments[name] = getattr(options, name)
    if isinstance(options, SearchOptions):
        arguments["guard"] = not options.no_guard
        arguments["split"] = not options.no_split
        arguments["sentences"] = options.sentences
        arguments["glossary"] = read_glossary(options.glossary)
    return arguments


def read_glossary(path: Path | None) -> Glossary | None:
    """Read the glossary of an option; None without one."""
    return None if path is None else Glossary.read(path)


def mbr(options: MbrOptions, beam_size: int | None) -> Mbr | None:
    """Return the settings of minimum Bayes risk decoding, or None if it is not requested.

    Raises:
        ConfigError: MBR is combined with a beam size, or its options are set without `mbr`.
    """
    if options.mbr is None:
        unused_names = list(user_values(options, "mbr_candidates", "mbr_from"))
        if unused_names:
            name = unused_names[0]
            raise ConfigError(f"`{name}` needs `mbr`.", fix=f"Add `mbr` chrf, or remove `{name}`.")
        return None
    if beam_size is not None:
        raise ConfigError(
            f"`beam_size` {beam_size} cannot be combined with `mbr`.",
            fix="Remove `beam_size`, and set `mbr_candidates`.",
        )
    # Imported only here, because its metrics take time to load.
    mbr_class: type[Mbr] = load_attribute("nmt.inference.mbr:Mbr")
    return mbr_class(options.mbr, options.mbr_candidates or 32, options.mbr_from or "samples")


def decoding_changes(
    model: Path, overrides: Sequence[str], decoding: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the changed decoding options; options win over overrides.

    Args:
        model: Model folder.
        overrides: ``decoding.key=value`` each.
        decoding: Decoding options.

    Raises:
        ConfigError: The configuration cannot be read, or an override is invalid or belongs to a
            different section.
    """
    if not overrides:
        return dict(decoding)
    # Validate both together, because they can depend on each other.
    flags = as_overrides(decoding, "decoding.")
    config, _ = load_inference(model / CONFIG, [*overrides, *flags])
    return config.decoding.model_dump()


def warn_of_language(name: str, texts: Iterable[str], translator: Translator) -> None:
    """Warn if a text is not in the source language of the model."""
    with suppress(MissingLanguageError):  # several languages, and none was chosen
        source, target = translator.direction
        if not source:  # the configuration does not say
            return
        language = other_language(texts, source, [target])
        if language:
            text = "%s looks like %s, but the model translates %s: wrong file or model?"
            logger.warning(text, name, language, source)
