"""``nmt translate``: a model and a stream of lines -> a stream of translations, line by line."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from nmt.config.loader import load_config, refuse_idle
from nmt.device import is_one_of_torchrun
from nmt.errors import ConfigError
from nmt.extras.planning.selfcheck import NUM_LINES, Promise, check_promises
from nmt.files.atomic import check_output
from nmt.files.progress import file_bar, progress_bar
from nmt.inference.line_format import LineFormat
from nmt.inference.stream import (
    LineTranslator,
    TranslationRun,
    errors_only,
    line_translator,
    translate_files,
    translate_stream,
)
from nmt.inference.translator import Translator
from nmt.inference.turns import OverlappingTurns

if TYPE_CHECKING:
    from nmt.inference.distributed import Team
    from nmt.inference.mbr import Mbr

logger = logging.getLogger(__name__)

_BYTES_OF_A_LANGUAGE = 300
"""Fewer say too little of a language."""
_NO_TEXT = {
    "jsonl?": "--input-format json reads JSON objects",
    "csv|tsv": "each line is translated whole, columns and all",
}
"""Ends of names, and what to know of such a file."""


def translate(
    model: Path | str,
    source: Path | None = None,
    output: Path | None = None,
    *,
    style: LineFormat | None = None,
    lines_at_once: int | None = None,
    mbr: Mbr | None = None,
    overrides: Sequence[str] = (),
    loading: Mapping[str, Any] | None = None,
    **decoding: Any,
) -> TranslationRun:
    """Translate a file, or standard input, to a file, or standard output, line by line.

    Under torchrun all processes work together, and the first one reads and writes.

    Args:
        model: Run folder or model folder.
        source: Lines to translate; standard input when None.
        output: Where translations go; standard output when None. A file appears when it is
            complete.
        style: How lines are read and results written; as plain text when None.
        lines_at_once: Lines that are searched together; 1 answers each before the next is read.
        mbr: Minimum Bayes risk decoding.
        overrides: ``decoding.key=value`` changes of the model's configuration.
        loading: Arguments of `Translator.load`, such as device or checkpoint.
        decoding: Decoding options, for example beam_size=1; they beat ``overrides``.

    Returns:
        How many lines there were, and what came of them.

    Raises:
        ConfigError: An option is unknown, out of bounds or contradicts another.
        CheckpointError: The model is missing or damaged.
        DataError: The input cannot be read or the output cannot be written, or a line has no
            translation: it ends text output; in JSON all others are written before.
    """
    style = style or LineFormat()
    check_output(output, source, Path(model))
    with _joined_team() as team:
        with team.loading() if team else nullcontext():
            translator = _load(Path(model), mbr, overrides, loading, decoding)
            translator.prepare(style.outputs)
            translator.translate([], tag=style.tag)  # an unknown one before anything is read
            _check_confidence(Path(model), translator, style)
        # What is answered line by line is not read ahead.
        turns = OverlappingTurns() if translator.on_gpu and lines_at_once != 1 else None
        run = partial(team.translate_files if team else translate_files, turns=turns)
        style = replace(style, n_best=translator.options.n_best)
        shown = team is None or team.is_first
        if shown and source and not style.reads_json:
            _warn_of_no_text(source.name)
        with file_bar("translating", source, unit="lines", shown=shown) as bar:
            # What is searched may not be written yet: then only what is written counts.
            counted = (
                translator.with_turns(turns) if turns else translator.with_progress(bar.update)
            )
            lines = line_translator(counted, style)
            if shown and not (style.reads_json or style.tag):
                lines = _with_language_check(lines, Path(model))
            reach = lambda number: bar.update(number - bar.n)  # noqa: E731
            return run(lines, source, output, lines_at_once=lines_at_once, progress=reach)


def _warn_of_no_text(name: str) -> None:
    """Warn of a file that would be read line by line, though its name says that it is no text."""
    for ending, advice in _NO_TEXT.items():
        if re.search(rf"\.({ending})(\.\w+)?$", name):
            logger.warning("%s is read as plain text; %s", name, advice)


def _with_language_check(lines: LineTranslator, model: Path) -> LineTranslator:
    """Return ``lines``, which warns once if its input is in another language than the model's."""

    def translate(chunk: Sequence[bytes], first_number: int) -> TranslationRun:
        if first_number == 1 and sum(map(len, chunk)) >= _BYTES_OF_A_LANGUAGE:
            from nmt.data.checks import other_language  # noqa: PLC0415 - short text needs none

            config = load_config(model / "config.yaml")
            texts = (line.decode("utf-8", "replace") for line in chunk)
            known = config.source_language
            if found := other_language(texts, known, [config.target_language]):
                text = (
                    "the input looks like %s, and the model translates %s: the wrong file or model?"
                )
                logger.warning(text, found, known)
        return lines(chunk, first_number)

    return translate


def _check_confidence(model: Path, translator: Translator, style: LineFormat) -> None:
    """Say what a model without confidence means for the output."""
    if translator.has_confidence:
        return
    if style.min_confidence is not None:
        raise ConfigError(
            f"{model} has no confidence.json, so --min-confidence can mark nothing.",
            fix="Use a run that trained to its end, with 100 validation lines or more.",
        )
    if style.kind == "json":
        logger.info("%s has no confidence.json: its translations get no confidence", model)


def selfcheck(
    model: Path | str,
    *,
    mbr: Mbr | None = None,
    overrides: Sequence[str] = (),
    loading: Mapping[str, Any] | None = None,
    **decoding: Any,
) -> list[Promise]:
    """Check the contract of `translate` on adversarial lines with a model; see there."""
    with _joined_team() as team:
        if team is not None:
            raise ConfigError(
                "--selfcheck does not work with several processes.",
                fix="Call it without torchrun: its findings hold for any number of them.",
            )
        translator = _load(Path(model), mbr, overrides, loading, decoding)

    with progress_bar("checking", unit="lines", total=NUM_LINES) as bar, errors_only():
        translator = translator.with_progress(bar.update)

        def run(source: IO[bytes], output: IO[bytes], lines_at_once: int, **changes: Any) -> None:
            translate_lines = line_translator(translator.with_options(**changes), LineFormat())
            translate_stream(translate_lines, source, output, lines_at_once=lines_at_once)

        return check_promises(run)


def _joined_team() -> AbstractContextManager[Team | None]:
    """Join the processes that torchrun has started beside this one, if it has."""
    if not is_one_of_torchrun():
        return nullcontext()
    from nmt.inference.distributed import join_team  # noqa: PLC0415 - loads torch

    return join_team()


def _load(
    model: Path,
    mbr: Mbr | None,
    overrides: Sequence[str],
    loading: Mapping[str, Any] | None,
    decoding: Mapping[str, Any],
) -> Translator:
    translator = Translator.load(model, **{"prepare": False, **(loading or {})})
    if mbr is not None:
        language = load_config(model / "config.yaml").target_language
        translator = translator.with_mbr(mbr.of_language(language))
    translator = translator.with_options(**decoding_changes(model, overrides, decoding))
    options, beam_size = translator.options, decoding.get("beam_size")
    if (options.sampling or options.return_alternatives) and beam_size not in (None, 1):
        shown = "--sample" if options.sampling else "decoding.return_alternatives"
        raise ConfigError(
            f"--beam-size {beam_size} does not go with {shown}, which has no beam.",
            fix="Leave one of them out; --n-best sets the number of translations of a line.",
        )
    return translator


def decoding_changes(
    model: Path, overrides: Sequence[str], decoding: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the decoding options that differ from the model's; an option beats an override.

    Args:
        model: The folder whose configuration is changed.
        overrides: ``decoding.key=value`` each.
        decoding: Decoding options.

    Raises:
        ConfigError: The configuration cannot be read or changed so, or an override is of another
            section.
    """
    if not overrides:
        return dict(decoding)
    # Together: one may be wrong without the other.
    both = [*overrides, *(f"decoding.{name}={json.dumps(x)}" for name, x in decoding.items())]
    config = load_config(model / "config.yaml", both)
    refuse_idle(overrides, ("decoding",))
    return config.decoding.model_dump()
