"""``nmt augment``: monolingual text and a model -> a parallel corpus."""

from __future__ import annotations

import hashlib
import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import sacrebleu

from nmt.checkpoint.model_folder import ModelFiles, find_model, recorded_problem
from nmt.commands.loading import decoding_changes, read_glossary, warn_of_language
from nmt.commands.options import AugmentOptions, CommandResult, user_values
from nmt.data.corpus import Block
from nmt.data.workers import BlockResult, StoredResults
from nmt.errors import CheckpointError, ConfigError, DataError
from nmt.files.atomic import file_lock, open_output, remove_folder, write_errors, write_json
from nmt.files.json_file import read_json, sha256_of_file, sha256_of_json
from nmt.files.lines import decoded_lines, open_binary
from nmt.files.progress import progress_bar
from nmt.inference.engine import Ensemble
from nmt.inference.translator import Translator

logger = logging.getLogger(__name__)

CORPUS = "corpus.tsv.gz"
SETTINGS = "settings.json"
_REPORT = "report.json"
_SHARDS = "shards"
_EMPTY = "empty"


@dataclass(frozen=True, kw_only=True)
class AugmentReport(CommandResult):
    """Counts of lines read, written and dropped."""

    corpus: str  # The new corpus: source, tab, target.
    read: int  # Lines of the text.
    written: int  # Sentence pairs of the corpus.
    # Lines by reason: ``empty``, or a warning of the guard that remained after the second search.
    dropped: Mapping[str, int]
    shards_made: int  # Shards that this run has translated.
    seconds: float  # Time of this run.
    tag: str  # Tag for the corpus: ``<bt>``, or ``<ft>`` for forward translation.

    def as_text(self) -> str:
        """Return a report with the entry to add to a configuration."""
        lines = [f"{self.read:,} lines read, {self.written:,} sentence pairs written"]
        for reason, count in self.dropped.items():
            lines.append(f"  dropped {count:,}: {reason}")
        lines.append("add this entry to data.train of your configuration:")
        name = self.tag[1:-1]  # without the angle brackets
        lines.append(f"    - {{name: {name}, tsv: {self.corpus}, tag: {self.tag}}}")
        return "\n".join(lines)


def augment(options: AugmentOptions) -> AugmentReport:
    """Translate monolingual text into a parallel corpus; resume at the last complete shard.

    Back-translation (Sennrich et al. 2016): the model translates from the target language, and its
    output becomes the source side of the new corpus, with a tag (Caswell et al. 2019). Sampling is
    often better than beam search (Edunov et al. 2018). Forward translation with references is
    sequence-level interpolation (Kim and Rush 2016, section 3.3).

    Raises:
        ConfigError: An option or tag is wrong, or the folder was created with different settings.
        CheckpointError: The model is missing or damaged, or has not learned to translate.
        DataError: A text cannot be read, the references are not parallel to it, or the folder
            cannot be written.
    """
    begin = time.perf_counter()
    text = options.text
    output = options.output
    references = options.references
    translator = _load_translator(options)
    if references and _count_lines(text) != _count_lines(references):
        raise DataError(
            f"{text} and {references} have different numbers of lines.",
            fix="Pass one reference for each line of the text.",
        )
    models = [find_model(folder, options.checkpoint) for folder in options.model]
    if not options.force:
        for model in models:
            _check_has_learned(model)
    _ = translator.direction  # raises an error before the work begins if a language is missing
    warn_of_language(str(text), _read_lines(text), translator)
    settings = {
        "models": [model.sha256 for model in models],
        "forward": options.forward,
        "tag": options.tag,
        "references": references and sha256_of_file(references),  # None without references
        "from": options.from_,
        "to": options.to,
        "sentences": options.sentences,
        "shard_lines": options.shard_lines,
        "decoding": translator.options.decoding.model_dump(mode="json"),
    }
    if options.glossary:
        settings["glossary"] = sha256_of_file(options.glossary)
    key = sha256_of_json(settings)  # of the shards: without the text, which can grow
    text_record = _record_of(text)
    settings["text"] = text_record
    fix = "Choose a writable folder on a disk with free space."
    with write_errors(output, DataError, fix=fix):
        old_settings = settings
        if (output / SETTINGS).is_file():
            old_record = read_json(output / SETTINGS).get("text")
            if isinstance(old_record, dict) and not references:
                # The same text as before, if lines were only added at its end.
                old_settings = {**settings, "text": _record_of(text, old_record["lines"])}
        check_output_folder(output, old_settings, "augment")
        output.mkdir(parents=True, exist_ok=True)
        with file_lock(output / ".lock", remove=True):
            write_json(output / SETTINGS, settings)
            counts = Counter[str]()
            num_written = 0
            if (output / _REPORT).is_file():  # an earlier run has done everything
                values = read_json(output / _REPORT)
                if values["read"] == text_record["lines"]:
                    values["shards_made"] = 0
                    return AugmentReport(**values)
                num_written = values["written"]
                counts.update(values["dropped"], read=values["read"])
            (output / _SHARDS).mkdir(exist_ok=True)
            # After a kill, only the missing shards are translated.
            files = [text, references] if references else [text]
            total = text_record["lines"]
            begun = counts["read"]
            bar = progress_bar("translating", unit="lines", total=total, initial=begun)
            translator = translator.with_options(progress=bar.update)
            translate_shard = _ShardTranslation(translator, options.forward)
            stored_shards = StoredResults(translate_shard, output / _SHARDS, key)
            shards = _read_shards(files, options.shard_lines, begun)
            with bar, open_output(output / CORPUS) as corpus:
                if num_written:  # a killed run may have added more pairs than it has reported
                    with open_binary(output / CORPUS) as old_corpus:
                        corpus.writelines(islice(old_corpus, num_written))
                for shard in shards:
                    result = stored_shards(shard)
                    counts.update(result.values)
                    corpus.write(result.arrays["pairs"].tobytes())
                    bar.update(counts["read"] - bar.n)  # a stored shard, or lines without text
            # From here on `counts` has only the numbers of dropped lines, by reason.
            num_read = counts.pop("read", 0)
            report = AugmentReport(
                corpus=str(output / CORPUS),
                read=num_read,
                written=num_read - counts.total(),
                dropped=dict(counts.most_common()),
                shards_made=translate_shard.num_translated,
                seconds=round(time.perf_counter() - begin, 3),
                tag="<ft>" if options.forward else "<bt>",
            )
            write_json(output / _REPORT, asdict(report))
            remove_folder(output / _SHARDS)
            return report


def _check_has_learned(model: ModelFiles) -> None:
    """Check the record of the last validation of a model.

    Raises:
        CheckpointError: Its translations were no better than by chance.
    """
    problem = recorded_problem(model)
    if problem is None:
        text = "%s has no record of a validation, so nothing is known about its translations"
        logger.info(text, model.folder)
    elif problem:
        raise CheckpointError(
            f"{model.folder} has not learned to translate: {problem}.",
            fix="Train it longer or with more text. To use its translations anyway, add `force`.",
        )


def _load_translator(options: AugmentOptions) -> Translator:
    """Load the models; with references, all translations of the beam are returned.

    Raises:
        ConfigError: The options contradict each other.
        CheckpointError: A model is missing or damaged.
    """
    if options.references and (options.sample or not options.forward):
        raise ConfigError(
            "`references` needs `forward`, and cannot be combined with `sample`.",
            fix="Add `forward` and remove `sample`, or drop `references`.",
        )
    first_model, *other_models = options.model
    decoding = user_values(options, "seed", "beam_size")
    if options.sample:
        decoding["sampling"] = True
    decoding = decoding_changes(first_model, options.set_, decoding)
    # One translation of each line; only references need more, see below.
    decoding["n_best"] = 1
    translator = Translator.load(
        first_model,
        ensemble=Ensemble(tuple(other_models)),
        checkpoint=options.checkpoint,
        device=options.device,
        threads=options.threads,
        engine=options.engine,
        guard=options.guard,
        sentences=options.sentences,
        glossary=read_glossary(options.glossary),
        tag=options.tag,
        source_language=options.from_,
        target_language=options.to,
        **decoding,
    )
    if not options.references:
        return translator
    beam_size = translator.options.decoding.beam_size
    if beam_size == 1:
        raise ConfigError(
            "`references` choose a translation of the beam, but the beam size is 1.",
            fix="Set `beam_size` 5.",
        )
    return translator.with_options(n_best=beam_size)


def check_output_folder(output: Path, settings: Mapping[str, Any], command: str) -> None:
    """Check that a folder is new, or was created by this command with the same settings.

    Raises:
        ConfigError: The folder contains something else.
    """
    path = output / SETTINGS
    problem = ""
    if path.is_file():
        old_settings = read_json(path)
        names = [name for name, value in settings.items() if old_settings.get(name) != value]
        if names:
            problem = f"{output} was created with different settings: {', '.join(names)}."
    # Hidden files, such as the lock, may be there.
    elif output.is_file() or (
        output.is_dir() and any(entry.name[0] != "." for entry in output.iterdir())
    ):
        problem = f"{output} is not empty and was not created by `nmt {command}`."
    if problem:
        raise ConfigError(problem, fix="Choose a new folder, or use the same settings to resume.")


def _read_shards(files: Sequence[Path], shard_lines: int, num_skipped: int) -> Iterator[Block]:
    """Yield the lines of a text in shards, each with its reference if there are references.

    Args:
        files: The text, and the references if there are any.
        shard_lines: Lines per shard.
        num_skipped: First lines that are left out.

    Yields:
        A block with a column for each file. It is not parsed: `_ShardTranslation` uses the columns.
    """
    rows: Iterator[tuple[str, ...]]  # a line of each file
    rows = zip(*map(_read_lines, files), strict=True)
    rows = islice(rows, num_skipped, None)
    first_number = num_skipped + 1
    while shard := list(islice(rows, shard_lines)):
        columns = tuple(zip(*shard, strict=True))
        yield Block(list, columns, first_number)
        first_number += len(shard)


def _read_lines(path: Path) -> Iterator[str]:
    with open_binary(path) as stream:
        yield from decoded_lines(stream, str(path))


def _record_of(path: Path, max_lines: int | None = None) -> dict[str, Any]:
    """Return number and hash of the lines of a text, or of its first lines."""
    content = hashlib.sha256()
    num_lines = 0
    for line in islice(_read_lines(path), max_lines):
        content.update(f"{line}\n".encode())
        num_lines += 1
    return {"lines": num_lines, "sha256": content.hexdigest()}


def _count_lines(path: Path) -> int:
    return sum(1 for _ in _read_lines(path))


@dataclass
class _ShardTranslation:
    """Translates a block of lines, and counts the blocks."""

    translator: Translator
    forward: bool  # whether the lines are the source side of the new pairs
    num_translated: int = 0  # blocks

    def __call__(self, block: Block) -> BlockResult:
        """Return the array ``pairs`` (lines of TSV as UTF-8), and counts.

        The counts are ``read``, the number of lines, and the numbers of dropped lines by reason.
        """
        lines, *references = block.columns  # zero or one columns of references
        counts = Counter({"read": len(lines)})
        pairs = []
        for row, result in enumerate(self.translator.translate(lines, block.first)):
            translation = result.text
            if references:
                # A blank line has no alternatives.
                candidates = [item.text for item in result.alternatives] or [translation]
                translation = max(candidates, key=partial(_similarity, references[0][row]))
            source = result.source.replace("\t", " ")
            translation = translation.replace("\t", " ")
            if not (source.strip() and translation.strip()):
                counts[_EMPTY] += 1
            elif result.alarms:
                counts[result.alarms[0]] += 1
            elif self.forward:
                pairs.append(f"{source}\t{translation}\n")
            else:
                pairs.append(f"{translation}\t{source}\n")
        self.num_translated += 1
        content = "".join(pairs).encode()
        return BlockResult({"pairs": np.frombuffer(content, np.uint8)}, counts)


def _similarity(reference: str, text: str) -> float:
    """Return the smoothed BLEU of a translation."""
    return float(sacrebleu.sentence_bleu(text, [reference]).score)
