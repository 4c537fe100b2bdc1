"""``nmt augment``: monolingual text and a model -> a parallel corpus."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from nmt.checkpoint.model_folder import find_model
from nmt.commands.loading import decoding_changes, warn_of_language
from nmt.commands.options import AugmentOptions, given
from nmt.data.corpus import Block
from nmt.data.workers import Result, Stored, map_blocks
from nmt.errors import ConfigError, DataError
from nmt.files.atomic import file_lock, open_output, remove_folder, write_errors, write_json
from nmt.files.json_file import read_json, sha256_of_file, sha256_of_json
from nmt.files.lines import decoded_lines, open_binary
from nmt.inference.translator import Translator

_CORPUS, _REPORT, _SETTINGS, _SHARDS = "corpus.tsv.gz", "report.json", "settings.json", "shards"
_EMPTY = "empty"


@dataclass(frozen=True, slots=True, kw_only=True)
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
        lines += [f"  dropped {count:,}: {reason}" for reason, count in self.dropped.items()]
        entry = f"    - {{name: {self.tag[1:-1]}, tsv: {self.corpus}, tag: {self.tag}}}"
        return "\n".join([*lines, "add this entry to data.train of your configuration:", entry])

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)


def augment(options: AugmentOptions) -> AugmentReport:
    """Translate monolingual text into a parallel corpus; resume at the last complete shard.

    Back-translation (Sennrich et al. 2016): the model translates from the target language, and its
    output becomes the source side of the new corpus, with a tag (Caswell et al. 2019). Sampling is
    often better than beam search (Edunov et al. 2018).

    Raises:
        ConfigError: An option or tag is wrong, or the folder was created with different settings.
        CheckpointError: The model is missing or damaged.
        DataError: The text cannot be read, or the folder cannot be written.
    """
    begin, text, output, tag = time.perf_counter(), options.text, options.output, options.tag
    forward = options.forward
    decoding = given(options, "seed", "beam_size") | ({"sampling": True} if options.sample else {})
    changes = decoding_changes(options.model, options.set_, decoding) | {"n_best": 1}
    names = ("checkpoint", "threads", "engine", "guard", "tag")
    changes |= {name: getattr(options, name) for name in names}
    changes |= {"source_language": options.from_, "target_language": options.to}
    translator = Translator.load(options.model, **changes)
    files = find_model(options.model, options.checkpoint)
    _ = translator.direction  # fails before the work begins
    warn_of_language(str(text), _lines(text), translator)
    settings = {
        "text": sha256_of_file(text), "model": files.sha256, "forward": forward, "tag": tag,
        "from": options.from_, "to": options.to,
        "shard_lines": options.shard_lines,
        "decoding": translator.options.decoding.model_dump(mode="json"),
    }  # fmt: skip
    fix = "Choose a writable folder on a disk with free space."
    with write_errors(output, DataError, fix=fix):
        _check_ours(output, settings)
        output.mkdir(parents=True, exist_ok=True)
        with file_lock(output / ".lock", remove=True):
            write_json(output / _SETTINGS, settings)
            if (output / _REPORT).is_file():
                return AugmentReport(**read_json(output / _REPORT) | {"shards_made": 0})
            (output / _SHARDS).mkdir(exist_ok=True)
            # After a kill, only the missing shards are translated.
            parts, translate = _parts(text, options.shard_lines), _Translate(translator, forward)
            stored = Stored(translate, output / _SHARDS, sha256_of_json(settings))
            counts = Counter[str]()
            with open_output(output / _CORPUS) as corpus:
                for _, result in map_blocks(f"translating {text}", parts, stored):
                    counts.update(result.values)
                    corpus.write(result.arrays["pairs"].tobytes())
            dropped = {name: number for name, number in counts.most_common() if name != "read"}
            report = AugmentReport(
                corpus=str(output / _CORPUS), read=counts["read"],
                written=counts["read"] - sum(dropped.values()), dropped=dropped,
                shards_made=translate.made, seconds=round(time.perf_counter() - begin, 3),
                tag="<ft>" if forward else "<bt>",
            )  # fmt: skip
            write_json(output / _REPORT, asdict(report))
            remove_folder(output / _SHARDS)
            return report


def _check_ours(output: Path, settings: Mapping[str, Any]) -> None:
    """Check that a folder is new, or was created with the same settings."""
    place, problem = output / _SETTINGS, ""
    if place.is_file():
        was = read_json(place)
        if differing := [name for name, value in settings.items() if was.get(name) != value]:
            problem = f"{output} was created with different settings: {', '.join(differing)}."
    elif output.is_dir() and any(path.name != ".lock" for path in output.iterdir()):
        problem = f"{output} is not empty and was not created by `nmt augment`."
    if problem:
        raise ConfigError(problem, fix="Choose a new folder, or use the same settings to resume.")


def _parts(text: Path, size: int) -> Iterator[Block]:
    """Yield the lines of a text in shards."""
    lines, first = _lines(text), 1
    while part := list(islice(lines, size)):
        yield Block(list, (part,), first)
        first += len(part)


def _lines(text: Path) -> Iterator[str]:
    with open_binary(text) as stream:
        yield from decoded_lines(stream, str(text))


@dataclass(slots=True)
class _Translate:
    """Translates a block of lines. Returns pairs as TSV, and counts of lines read and dropped."""

    translator: Translator
    forward: bool
    made: int = 0

    def __call__(self, block: Block) -> Result:
        (lines,) = block.columns
        counts, pairs = Counter({"read": len(lines)}), []
        for result in self.translator.translate(lines):
            texts = [side.replace("\t", " ") for side in (result.source, result.text)]
            if not all(map(str.strip, texts)):
                counts[_EMPTY] += 1
            elif result.alarms:
                counts[result.alarms[0]] += 1
            else:
                pairs.append("\t".join(texts if self.forward else texts[::-1]) + "\n")
        self.made += 1
        return Result({"pairs": np.frombuffer("".join(pairs).encode(), np.uint8)}, counts)
