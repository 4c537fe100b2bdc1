"""``nmt translate``: a model and a stream of lines -> a stream of translations.

Contract: N lines in, N lines out, in order, blank lines included, written as soon as they are
ready. Input is split on LF only. Input and output lines are plain text or JSON.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any

from nmt.checkpoint.model_folder import find_model, is_ctranslate2, load_folder_config
from nmt.commands.loading import (
    check_output,
    decoding_changes,
    loading_arguments,
    mbr,
    warn_of_language,
)
from nmt.commands.options import TranslateOptions, refuse_beam
from nmt.data.formats.file_names import NAMES, format_of_name
from nmt.errors import ConfigError, DataError, shell_command
from nmt.files import lines as text_lines
from nmt.files.json_file import Manifest
from nmt.files.lines import MAX_CHUNK_LINES, MAX_NOTES, LineDecoder, is_standard, open_input
from nmt.files.part import resumable_output
from nmt.files.progress import file_bar
from nmt.inference import request
from nmt.inference.distributed import errors_only, joined_processes, translated
from nmt.inference.guard import GuardCounts
from nmt.inference.request import ERROR, Request, RequestError, Result, as_pharaoh, parse_request
from nmt.inference.translator import TranslationOptions, Translator
from nmt.text.preprocessing import find_preprocessing

logger = logging.getLogger(__name__)

Chunk = tuple[int, list[Request | DataError]]  # number of the first line, lines

# A word with a slash or an extension: the name of a file, not a sentence.
_FILE = re.compile(r"\S*(/\S*|\.[A-Za-z]\w*)")
_LOW_CONFIDENCE = " ||| low confidence"
_BYTES_OF_A_LANGUAGE = 300  # fewer are not enough to recognize a language


def translate(options: TranslateOptions) -> None:
    """Translate a file, or standard input, to a file, or standard output, line by line.

    Under torchrun, all processes translate; the first process reads and writes. The output file
    appears when it is complete. After an interruption, the finished lines stay in ``OUT.part``, and
    the same command continues there.

    Raises:
        ConfigError: An option is unknown, out of bounds or contradicts another option.
        CheckpointError: The model is missing or damaged.
        DataError: The input cannot be read, the output cannot be written, or a line cannot be
            translated. Text output ends before this line; JSON output contains all other lines.
    """
    source = options.source
    _refuse_sentence(options.model, source)
    check_output(options.output, source, options.glossary, options.model, *options.with_)
    with joined_processes() as processes:
        with errors_only() if processes.rank else nullcontext():  # only the first process reports
            translator = load_translator(options)
        if processes.rank:  # translate chunks from the first process until it sends no more
            for _ in translated(translator, iter(()), processes):
                pass
            return
        settings = (options, _weights(options), translator.options.glossary)
        with (
            open_input(source) as reader,
            resumable_output(options.output, settings) as (stream, part),
            file_bar("translating", source, unit="lines") as bar,
        ):
            if processes.size == 1:
                translator = translator.with_options(progress=bar.update)
            chunks = _read(reader, options, processes.size, translator)
            if part is not None:
                chunks = part.remaining(chunks)
            writer = _Writer(stream, options, translator.options)

            def is_ready() -> bool:
                # In streaming mode, do not read ahead.
                return not options.stream and text_lines.has_input(reader, 0.0)

            for chunk, results in translated(translator, chunks, processes, is_ready):
                first_number, lines = chunk
                writer.write(first_number, lines, results)
                if part is not None:
                    part.add(lines)
                bar.update(writer.num_lines - bar.n)  # `n` is what the bar shows already
    writer.close()


def _weights(options: TranslateOptions) -> list[Manifest]:
    """Return the manifest of each model, which contains the hash of its weights."""
    return [
        Manifest.read(folder)
        if is_ctranslate2(folder)
        else find_model(folder, options.checkpoint).manifest
        for folder in (options.model, *options.with_)
    ]


def load_translator(options: TranslateOptions) -> Translator:
    """Load the model with an engine that supports the options.

    Raises:
        ConfigError: An option is unknown, out of bounds or contradicts another option.
        CheckpointError: The model is missing or damaged.
    """
    model = options.model
    beam_size = options.beam_size
    utility = mbr(options, beam_size)
    if utility is not None:
        target = options.to or load_folder_config(model).target_language
        utility = utility.loaded(target, options.device)
    translator = Translator.load(
        model,
        **loading_arguments(options),
        mbr=utility,
        outputs=options.outputs,
        source_language=options.from_,
        target_language=options.to,
        tag=options.tag,
        # JSON lines can contain a prefix, so `auto` must choose an engine that supports prefixes.
        # An explicit engine is checked when such a line arrives.
        constraints=options.input_format == "json" and options.engine == "auto",
        **decoding_changes(model, options.set_, options.search),
    )
    if options.input_format == "text" and not translator.tokenizers.source.languages:
        _ = translator.direction  # checked before reading; lines of OPUS-MT may have their own tags
    decoding = translator.options.decoding
    options.check_output(decoding.n_best)
    if decoding.sampling:
        refuse_beam(beam_size, "`sample`")
    elif decoding.return_alternatives:
        refuse_beam(beam_size, "decoding.return_alternatives")
    if translator.options.confidence is None:
        problem = f"{model} has no confidence.json, so its translations have no confidence scores"
        if options.min_confidence is not None:
            raise ConfigError(
                f"{problem}.",
                fix="Use a run that completed training, with at least 100 validation lines.",
            )
        if options.format == "json":
            logger.info("%s", problem)
    return translator


def _read(
    reader: IO[bytes], options: TranslateOptions, num_processes: int, translator: Translator
) -> Iterator[Chunk]:
    """Yield chunks of input lines; warn about the wrong format or language."""
    source = options.source
    reads_json = options.input_format == "json"
    if source and not reads_json:
        format_name = format_of_name(source)
        if format_name is not None:
            hint = NAMES["as_text"][format_name]
            logger.warning("%s is read as plain text; %s", source.name, hint)
    name = str(source)
    if is_standard(source):
        name = "standard input"
        is_terminal = sys.stdin is not None and sys.stdin.isatty()
        if is_terminal and not options.stream:
            logger.info("type text, then Ctrl-D to translate it; `stream` translates line by line")
    decoder = LineDecoder()
    first_number = 1  # number of the first line of the chunk
    noted_fields = {"source"}
    # Each process translates a share of every chunk: in streaming mode, one line.
    lines_at_once = num_processes
    if not options.stream:
        lines_at_once *= MAX_CHUNK_LINES
    for chunk in text_lines.read_chunks(reader, lines_at_once=lines_at_once, name=name):
        texts = decoder.decode(chunk, first_number)
        lines = list[Request | DataError]()
        if reads_json:
            for number, text in enumerate(texts, first_number):
                lines.append(_parse(text, number, noted_fields))
        else:
            lines += map(Request, texts)
            if first_number == 1:
                traces = find_preprocessing(texts)
                if traces:
                    _, description = traces
                    message = "%s %s\n  Restore the text if the model learned plain text."
                    logger.warning(message, name, description)
                if not options.tag and sum(map(len, chunk)) >= _BYTES_OF_A_LANGUAGE:
                    warn_of_language("the input", texts, translator)
        yield first_number, lines
        first_number += len(lines)
    if decoder.num_damaged > MAX_NOTES:
        message = "%s lines were invalid UTF-8 or too long, and were changed; if the text is "
        message += "Latin-1, convert it first: iconv -f LATIN1 -t UTF-8 FILE"
        logger.warning(message, f"{decoder.num_damaged:,}")


def _parse(line: str, number: int, noted_fields: set[str]) -> Request | RequestError:
    """Parse a line of JSON; warn about fields with probable spelling mistakes.

    Args:
        line: The line.
        number: Its number, for messages.
        noted_fields: Fields that the user has been warned about. New ones are added.

    Returns:
        The request; or an error, which takes its place in the output, if the line is wrong.
    """
    try:
        parsed = parse_request(line, number)
    except RequestError as error:
        return error.with_traceback(None)  # the traceback would keep all local variables
    for name in parsed.others.keys() - noted_fields:
        similar_name = request.meant_field(name)
        if similar_name and len(noted_fields) < MAX_NOTES:
            noted_fields.add(name)
            text = "line %s: unknown field %r is copied to the output (did you mean %r?)"
            logger.warning(text, f"{number:,}", name, similar_name)
    return parsed


class _Writer:
    """Writes the output, and counts lines, warnings and errors."""

    def __init__(
        self, stream: IO[bytes], options: TranslateOptions, translation: TranslationOptions
    ) -> None:
        self.num_lines = 0  # written so far
        self._stream = stream
        self._options = options
        self._n_best = translation.decoding.n_best
        self._glossary = translation.glossary
        self._counts = GuardCounts()
        self._begin = time.perf_counter()
        self._num_failures = 0
        self._num_split = 0
        self._num_with_terms = 0
        self._first_failure: DataError | None = None

    def write(
        self,
        first_number: int,
        lines: Sequence[Request | DataError],
        results: Sequence[Result | DataError],
    ) -> None:
        """Write the results of a chunk. In JSON, a failed line becomes an object with its error.

        Args:
            first_number: Number of the first line, from 1.
            lines: Input lines; an error stands for a line that could not be parsed.
            results: The result of each line, in the same order.

        Raises:
            DataError: A line failed and the format is text. The lines before it are written.
        """
        translated_lines = dict[int, Result]()  # by line number
        for number, (line, result) in enumerate(zip(lines, results, strict=True), first_number):
            # Fields to copy to the output; a `DataError` that is not a `RequestError` has none.
            others = getattr(line, "others", {})
            if isinstance(result, Result):
                translated_lines[number] = result
                output_lines = self._output_lines(number, others, result)
            else:
                error = result
                if not isinstance(line, DataError):  # its message contains the line number
                    error = DataError(f"Line {number:,}: {error.problem}", fix=error.fix)
                if self._options.format == "text":
                    self._stream.flush()
                    raise DataError(
                        error.problem,
                        fix=f"{error.fix} With `format` json, all other lines are translated.",
                    )
                self._num_failures += 1
                self._first_failure = self._first_failure or error
                output_lines = [_json_line({**others, ERROR: error.problem})]
            for output_line in output_lines:
                # Lone surrogates in copied fields become JSON escapes again.
                self._stream.write(output_line.encode("utf-8", "backslashreplace") + b"\n")
        self._stream.flush()
        self.num_lines += len(lines)
        self._num_split += sum(bool(result.parts) for result in translated_lines.values())
        self._num_with_terms += sum(bool(result.num_terms) for result in translated_lines.values())
        self._counts.add(translated_lines)

    def _output_lines(self, number: int, others: Mapping[str, Any], result: Result) -> list[str]:
        """Return the output lines for input line ``number``; text has one for each translation.

        ``others`` are the fields that JSON output copies from the input.
        """
        options = self._options
        confidence_fields = {}
        if options.min_confidence is not None:
            # Without an estimate, the translation is unlike the validation set, so it counts as
            # low. A blank line, which has no tokens, never does.
            confidence = result.confidence
            is_low = confidence is None or confidence < options.min_confidence
            is_low = is_low and result.num_tokens > 0
            confidence_fields["low_confidence"] = is_low
        if options.format == "json":
            # The fields of the request come first, and its source is not changed.
            values = {**others, **result.as_dict(), **confidence_fields, **others}
            return [_json_line(values)]
        if options.alignments:
            return [f"{result.text} ||| {as_pharaoh(result.alignment or ())}"]
        if self._n_best == 1:
            ending = _LOW_CONFIDENCE if confidence_fields.get("low_confidence") else ""
            return [result.text + ending]
        index = number - 1  # lists of several translations count the lines from 0
        translations = result.alternatives or [result]
        return [f"{index} ||| {item.text} ||| {item.score:.4f}" for item in translations]

    def close(self) -> None:
        """Log the counts of split lines, of lines with terms, and of the guard.

        Raises:
            DataError: JSON output contains errors.
        """
        if self._num_split:
            text = "lines split into sentences: %s; `sentences` keep translates lines whole"
            logger.info(text, f"{self._num_split:,}")
        if self._glossary is not None:
            num_terms = f"{len(self._glossary.terms):,}"
            text = "glossary: %s terms, found in %s of %s lines"
            logger.info(text, num_terms, f"{self._num_with_terms:,}", f"{self.num_lines:,}")
        message = self._counts.message(time.perf_counter() - self._begin)
        if message:
            logger.info(message)
        error = self._first_failure
        if error is not None:
            problem = f"{self._num_failures:,} lines could not be translated. The first: "
            raise DataError(problem + error.problem, fix=error.fix)


def _json_line(values: Mapping[str, Any]) -> str:
    return json.dumps(values, ensure_ascii=False, allow_nan=False)


def _refuse_sentence(model: Path, file: Path | None) -> None:
    """Raise an error if the user passed a sentence instead of a file."""
    if file is None:
        return
    text = str(file)
    looks_like_file = _FILE.fullmatch(text) or os.path.lexists(text) or is_standard(file)
    if looks_like_file or text_lines.near_file(file):
        return
    # echo 'A sentence.' | nmt translate MODEL
    command = f"{shell_command('echo', text).removeprefix('nmt ')} | "
    command += shell_command("translate", model)
    raise DataError(f"{text} does not exist.", fix=f"{text_lines.CHECK_PATH} Or type: {command}")
