"""``nmt augment``: monolingual text and a model -> a parallel corpus."""

from __future__ import annotations

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

from nmt.checkpoint.model_folder import find_model
from nmt.commands.loading import decoding_changes, warn_of_language
from nmt.commands.options import AugmentOptions, given
from nmt.data.corpus import Block
from nmt.data.workers import BlockResult, StoredResults, map_blocks
from nmt.errors import ConfigError, DataError
from nmt.files.atomic import file_lock, open_output, remove_folder, write_errors, write_json
from nmt.files.json_file import read_json, sha256_of_file, sha256_of_json
from nmt.files.lines import decoded_lines, open_binary
from nmt.inference.engine import Ensemble
from nmt.inference.translator import Translator

CORPUS = "corpus.tsv.gz"
SETTINGS = "settings.json"
_REPORT = "report.json"
_SHARDS = "shards"
_EMPTY = "empty"


@dataclass(frozen=True, kw_only=True)
class AugmentReport:
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
        name = self.tag[1:-1]
        lines.append(f"    - {{name: {name}, tsv: {self.corpus}, tag: {self.tag}}}")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)


def augment(options: AugmentOptions) -> AugmentReport:
    """Translate monolingual text into a parallel corpus; resume at the last complete shard.

    Back-translation (Sennrich et al. 2016): the model translates from the target language, and its
    output becomes the source side of the new corpus, with a tag (Caswell et al. 2019). Sampling is
    often better than beam search (Edunov et al. 2018). Forward translation with references is
    sequence-level interpolation (Kim and Rush 2016, section 3.3).

    Raises:
        ConfigError: An option or tag is wrong, or the folder was created with different settings.
        CheckpointError: The model is missing or damaged.
        DataError: A text cannot be read, the references are not parallel to it, or the folder
            cannot be written.
    """
    begin = time.perf_counter()
    text = options.text
    output = options.output
    references = options.references
    translator = _load_translator(options)
    if references and _count(text) != _count(references):
        problem = f"{text} and {references} have different numbers of lines."
        raise DataError(problem, fix="Pass one reference for each line of the text.")
    models = [find_model(folder, options.checkpoint).sha256 for folder in options.model]
    _ = translator.direction  # fails before the work begins
    warn_of_language(str(text), _lines(text), translator)
    settings = {
        "text": sha256_of_file(text),
        "models": models,
        "forward": options.forward,
        "tag": options.tag,
        "references": references and sha256_of_file(references),
        "from": options.from_,
        "to": options.to,
        "shard_lines": options.shard_lines,
        "decoding": translator.options.decoding.model_dump(mode="json"),
    }
    fix = "Choose a writable folder on a disk with free space."
    with write_errors(output, DataError, fix=fix):
        check_ours(output, settings, "augment")
        output.mkdir(parents=True, exist_ok=True)
        with file_lock(output / ".lock", remove=True):
            write_json(output / SETTINGS, settings)
            if (output / _REPORT).is_file():  # an earlier run has done everything
                finished = read_json(output / _REPORT)
                finished["shards_made"] = 0
                return AugmentReport(**finished)
            (output / _SHARDS).mkdir(exist_ok=True)
            # After a kill, only the missing shards are translated.
            files = [text, references] if references else [text]
            translate = _Translate(translator, options.forward)
            stored = StoredResults(translate, output / _SHARDS, sha256_of_json(settings))
            parts = _parts(files, options.shard_lines)
            counts = Counter[str]()
            with open_output(output / CORPUS) as corpus:
                for _, result in map_blocks(f"translating {text}", parts, stored):
                    counts.update(result.values)
                    corpus.write(result.arrays["pairs"].tobytes())
            num_read = counts.pop("read", 0)
            dropped = counts  # The other counts are those of dropped lines, by reason.
            report = AugmentReport(
                corpus=str(output / CORPUS),
                read=num_read,
                written=num_read - dropped.total(),
                dropped=dict(dropped.most_common()),
                shards_made=translate.made,
                seconds=round(time.perf_counter() - begin, 3),
                tag="<ft>" if options.forward else "<bt>",
            )
            write_json(output / _REPORT, asdict(report))
            remove_folder(output / _SHARDS)
            return report


def _load_translator(options: AugmentOptions) -> Translator:
    """Load the models; with references, all translations of the beam are returned."""
    if options.references and (options.sample or not options.forward):
        problem = "`references` needs `forward`, and cannot be combined with `sample`."
        raise ConfigError(problem, fix="Add `forward` and remove `sample`, or drop `references`.")
    model, *others = options.model
    decoding = given(options, "seed", "beam_size")
    if options.sample:
        decoding["sampling"] = True
    decoding = decoding_changes(model, options.set_, decoding)
    decoding["n_best"] = 1
    translator = Translator.load(
        model,
        ensemble=Ensemble(tuple(others)),
        checkpoint=options.checkpoint,
        threads=options.threads,
        engine=options.engine,
        guard=options.guard,
        tag=options.tag,
        source_language=options.from_,
        target_language=options.to,
        **decoding,
    )
    if not options.references:
        return translator
    beam_size = translator.options.decoding.beam_size
    if beam_size == 1:
        problem = "`references` choose a translation of the beam, but the beam size is 1."
        raise ConfigError(problem, fix="Set `beam_size` 5.")
    return translator.with_options(n_best=beam_size)


def check_ours(output: Path, settings: Mapping[str, Any], command: str) -> None:
    """Check that a folder is new, or was created by this command with the same settings.

    Raises:
        ConfigError: The folder contains something else.
    """
    place = output / SETTINGS
    problem = ""
    if place.is_file():
        was = read_json(place)
        differing = [name for name, value in settings.items() if was.get(name) != value]
        if differing:
            problem = f"{output} was created with different settings: {', '.join(differing)}."
    elif output.is_dir() and any(path.name[0] != "." for path in output.iterdir()):
        problem = f"{output} is not empty and was not created by `nmt {command}`."
    if problem:
        raise ConfigError(problem, fix="Choose a new folder, or use the same settings to resume.")


def _parts(files: Sequence[Path], size: int) -> Iterator[Block]:
    """Yield the lines of a text in shards, each with its reference if there are references."""
    lines = zip(*map(_lines, files), strict=True)
    first = 1
    while part := list(islice(lines, size)):
        columns = tuple(zip(*part, strict=True))
        yield Block(list, columns, first)
        first += len(part)


def _lines(text: Path) -> Iterator[str]:
    with open_binary(text) as stream:
        yield from decoded_lines(stream, str(text))


def _count(text: Path) -> int:
    return sum(1 for _ in _lines(text))


@dataclass
class _Translate:
    """Translates a block of lines. Returns pairs as TSV, and counts of lines read and dropped."""

    translator: Translator
    forward: bool
    made: int = 0

    def __call__(self, block: Block) -> BlockResult:
        lines, *references = block.columns
        counts = Counter({"read": len(lines)})
        pairs = []
        for row, result in enumerate(self.translator.translate(lines)):
            translation = result.text
            if references:
                texts = [each.text for each in result.alternatives] or [translation]
                translation = max(texts, key=partial(_similarity, references[0][row]))
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
        self.made += 1
        content = "".join(pairs).encode()
        return BlockResult({"pairs": np.frombuffer(content, np.uint8)}, counts)


def _similarity(reference: str, text: str) -> float:
    """Return the smoothed BLEU of a translation."""
    return float(sacrebleu.sentence_bleu(text, [reference]).score)
