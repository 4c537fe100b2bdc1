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
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any, TypeAlias

from nmt.checkpoint.model_folder import load_folder_config
from nmt.commands.loading import decoding_changes, loading, mbr, warn_of_language
from nmt.commands.options import TranslateOptions
from nmt.errors import ConfigError, DataError, shell_command
from nmt.files import lines as text_lines
from nmt.files.atomic import check_output, open_output
from nmt.files.lines import MAX_CHUNK_LINES, MAX_NOTES, LineDecoder, is_standard, open_input
from nmt.files.progress import file_bar
from nmt.inference import request
from nmt.inference.distributed import errors_only, joined_processes, translated
from nmt.inference.guard import GuardCounts
from nmt.inference.request import ERROR, Request, RequestError, Result, as_pharaoh, parse_request
from nmt.inference.translator import Translator
from nmt.text.preprocessing import find_preprocessing

logger = logging.getLogger(__name__)

Chunk: TypeAlias = tuple[int, list[Request | DataError]]  # number of the first line, lines

_FILE = re.compile(r"\S*(/\S*|\.[A-Za-z]\w*)")
_LOW_CONFIDENCE = " ||| low confidence"
_BYTES_OF_A_LANGUAGE = 300  # fewer are not enough to recognize a language
_NO_TEXT = {
    "jsonl?": "`input_format` json reads JSON objects",
    "csv|tsv": "every line is translated with all columns",
}  # file extension -> hint


def translate(options: TranslateOptions) -> None:
    """Translate a file, or standard input, to a file, or standard output, line by line.

    Under torchrun, all processes translate; the first process reads and writes. The output file
    appears when it is complete.

    Raises:
        ConfigError: An option is unknown, out of bounds or contradicts another option.
        CheckpointError: The model is missing or damaged.
        DataError: The input cannot be read, the output cannot be written, or a line cannot be
            translated. Text output ends before this line; JSON output contains all other lines.
    """
    source = options.source
    _refuse_sentence(options.model, source)
    check_output(options.output, source, options.model)
    with joined_processes() as processes:
        with errors_only() if processes.rank else nullcontext():  # only the first process reports
            translator = load_translator(options)
        if processes.rank:  # translate chunks from the first process until it sends no more
            deque(translated(translator, iter(()), processes), maxlen=0)
            return
        with (
            open_input(source) as reader,
            open_output(options.output) as output,
            file_bar("translating", source, unit="lines") as bar,
        ):
            if processes.size == 1:
                translator = translator.with_options(progress=bar.update)
            chunks = _read(reader, options, processes.size, translator)
            writer = _Writer(output, options, translator.options.decoding.n_best)

            def is_ready() -> bool:
                # In streaming mode, do not read ahead.
                return not options.stream and text_lines.has_input(reader, 0.0)

            for (first, lines), results in translated(translator, chunks, processes, is_ready):
                writer.write(first, lines, results)
                bar.update(writer.num_lines - bar.n)
    writer.close()


def load_translator(options: TranslateOptions) -> Translator:
    """Load the model with an engine that supports the options."""
    model = options.model
    beam_size = options.beam_size
    utility = mbr(options, beam_size)
    if utility is not None:
        target = options.to or load_folder_config(model).target_language
        utility = utility.loaded(target, options.device)
    translator = Translator.load(
        model,
        **loading(options),
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
    without_beam = ""
    if decoding.sampling:
        without_beam = "`sample`"
    elif decoding.return_alternatives:
        without_beam = "decoding.return_alternatives"
    if without_beam and beam_size not in (None, 1):
        problem = f"`beam_size` {beam_size} cannot be combined with {without_beam}."
        fix = "Remove one of the two options; `n_best` sets the number of translations per line."
        raise ConfigError(problem, fix=fix)
    if translator.options.confidence is None:
        problem = f"{model} has no confidence.json, so its translations have no confidence scores"
        if options.min_confidence is not None:
            fix = "Use a run that completed training, with at least 100 validation lines."
            raise ConfigError(f"{problem}.", fix=fix)
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
        for ending, advice in _NO_TEXT.items():
            if re.search(rf"\.({ending})(\.\w+)?$", source.name):
                logger.warning("%s is read as plain text; %s", source.name, advice)
    if is_standard(source) and not options.stream and sys.stdin is not None and sys.stdin.isatty():
        logger.info("type text, then Ctrl-D to translate it; `stream` translates line by line")
    decoder = LineDecoder()
    number = 1
    named = set[str]()
    at_once = num_processes
    if not options.stream:
        at_once *= MAX_CHUNK_LINES
    name = "standard input" if is_standard(source) else str(source)
    for chunk in text_lines.read_chunks(reader, lines_at_once=at_once, name=name):
        texts = decoder.decode(chunk, number)
        lines: list[Request | DataError] = []
        if reads_json:
            lines += [_parse(text, row, named) for row, text in enumerate(texts, number)]
        else:
            lines += [Request(text) for text in texts]
        if number == 1 and not reads_json:
            traces = find_preprocessing(texts)
            if traces:
                text = "%s %s\n  Restore the text if the model learned plain text."
                logger.warning(text, name, traces[1])
            if not options.tag and sum(map(len, chunk)) >= _BYTES_OF_A_LANGUAGE:
                warn_of_language("the input", texts, translator)
        yield number, lines
        number += len(lines)
    if decoder.num_damaged > MAX_NOTES:
        text = "%s lines were invalid UTF-8 or too long, and were changed; if the text is Latin-1, "
        convert = "convert it first: iconv -f LATIN1 -t UTF-8 FILE"
        logger.warning(text + convert, f"{decoder.num_damaged:,}")


def _parse(line: str, number: int, named: set[str]) -> Request | RequestError:
    """Parse a line of JSON; warn about fields with probable spelling mistakes."""
    try:
        parsed = parse_request(line, number)
    except RequestError as error:
        return error.with_traceback(None)
    for name in parsed.others.keys() - named - {"source"}:
        similar = request.meant_field(name)
        if similar and len(named) < MAX_NOTES:
            named.add(name)
            text = "line %s: unknown field %r is copied to the output (did you mean %r?)"
            logger.warning(text, f"{number:,}", name, similar)
    return parsed


class _Writer:
    """Writes the output, and counts lines, warnings and errors."""

    def __init__(self, stream: IO[bytes], options: TranslateOptions, n_best: int) -> None:
        self.num_lines = 0
        self._stream = stream
        self._options = options
        self._n_best = n_best
        self._counts = GuardCounts()
        self._begin = time.perf_counter()
        self._num_failures = 0
        self._first_failure: DataError | None = None

    def write(
        self,
        first: int,
        lines: Sequence[Request | DataError],
        results: Sequence[Result | DataError],
    ) -> None:
        """Write the results of a chunk. In JSON, a failed line becomes an object with its error.

        Raises:
            DataError: A line failed and the format is text. The lines before it are written.
        """
        done: dict[int, Result] = {}
        for number, (line, result) in enumerate(zip(lines, results, strict=True), first):
            others = getattr(line, "others", {})
            if isinstance(result, Result):
                done[number] = result
                written = self._texts(number, others, result)
            else:
                error = result
                if not isinstance(line, DataError):  # its message contains the line number
                    error = DataError(f"Line {number:,}: {error.problem}", fix=error.fix)
                if self._options.format == "text":
                    self._stream.flush()
                    fix = f"{error.fix} With `format` json, all other lines are translated."
                    raise DataError(error.problem, fix=fix)
                self._num_failures += 1
                self._first_failure = self._first_failure or error
                written = [_json_line({**others, ERROR: error.problem})]
            for text in written:
                # Lone surrogates in copied fields become JSON escapes again.
                self._stream.write(text.encode("utf-8", "backslashreplace") + b"\n")
        self._stream.flush()
        self.num_lines += len(lines)
        self._counts.add(done)

    def _texts(self, number: int, others: Mapping[str, Any], result: Result) -> list[str]:
        """Return the output lines for input line ``number``."""
        options = self._options
        mark = {}
        if options.min_confidence is not None:
            # Without an estimate, the translation is unlike the validation set.
            confidence = result.confidence or 0.0
            is_low = result.num_tokens > 0 and confidence < options.min_confidence
            mark["low_confidence"] = is_low
        if options.format == "json":
            return [_json_line({**others, **result.as_dict(), **mark})]
        if options.alignments:
            return [f"{result.text} ||| {as_pharaoh(result.alignment or ())}"]
        if self._n_best == 1:
            ending = _LOW_CONFIDENCE if mark.get("low_confidence") else ""
            return [result.text + ending]
        hypotheses = result.alternatives or [result]
        return [f"{number - 1} ||| {each.text} ||| {each.score:.4f}" for each in hypotheses]

    def close(self) -> None:
        """Log the counts of the guard.

        Raises:
            DataError: JSON output contains errors.
        """
        message = self._counts.message(time.perf_counter() - self._begin)
        if message:
            logger.info(message)
        first = self._first_failure
        if first is not None:
            problem = f"{self._num_failures:,} lines could not be translated. The first: "
            raise DataError(problem + first.problem, fix=first.fix)


def _json_line(values: Mapping[str, Any]) -> str:
    return json.dumps(values, ensure_ascii=False, allow_nan=False)


def _refuse_sentence(model: Path, file: Path | None) -> None:
    """Raise an error if the user passed a sentence instead of a file."""
    text = str(file)
    looks_like_file = _FILE.fullmatch(text) or os.path.lexists(text) or is_standard(file)
    if file is None or looks_like_file or text_lines.near_file(file):
        return
    command = f"{shell_command('echo', text).removeprefix('nmt ')} | "
    command += shell_command("translate", model)
    raise DataError(f"{text} does not exist.", fix=f"{text_lines.CHECK_PATH} Or type: {command}")
