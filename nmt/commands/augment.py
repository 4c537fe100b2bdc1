"""``nmt augment``: text of one language and a model -> a parallel corpus, one side translated."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from nmt.checkpoint.model_folder import find_model
from nmt.commands.augment_options import AugmentOptions
from nmt.commands.loading import decoding_changes
from nmt.commands.options import given
from nmt.config.run import RunConfig
from nmt.data.checks import other_language
from nmt.errors import ConfigError, DataError
from nmt.files.atomic import open_output, remove_folder, write_bytes, write_errors, write_json
from nmt.files.json_file import field, read_json
from nmt.files.lines import decode_line, open_binary, split_lines
from nmt.files.lock import file_lock
from nmt.files.manifest import sha256_of_file
from nmt.files.progress import file_bar
from nmt.inference.translator import Translator

logger = logging.getLogger(__name__)

_CORPUS, _REPORT, _SETTINGS, _SHARDS = "corpus.tsv.gz", "report.json", "settings.json", "shards"
_EMPTY = "empty"


@dataclass(frozen=True, slots=True, kw_only=True)
class AugmentReport:
    """What was translated and what was dropped."""

    corpus: str
    """The new corpus: source, tab, target."""
    read: int
    """Lines of the text."""
    written: int
    """Pairs of the corpus."""
    dropped: Mapping[str, int]
    """Lines by reason: ``empty``, and what the guard still saw after its second search."""
    shards_made: int
    """Parts that were translated now, not by a run before this one."""
    seconds: float
    """Time of this run."""
    tag: str
    """The tag to give the corpus: ``<bt>``, or ``<ft>`` for forward-translation."""

    def as_text(self) -> str:
        """Return a report to read, with the line for a configuration."""
        lines = [f"{self.read:,} lines read, {self.written:,} pairs written"]
        lines += [f"  dropped {count:,}: {reason}" for reason, count in self.dropped.items()]
        entry = f"    - {{name: {self.tag[1:-1]}, tsv: {self.corpus}, tag: {self.tag}}}"
        return "\n".join([*lines, "add to data.train:", entry])

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)


def augment(options: AugmentOptions) -> AugmentReport:
    """Translate text of one language into a corpus of pairs; resume by shard if it was stopped.

    Back-translation (Sennrich et al. 2016): the model translates from the target language, and its
    output is the source of the new corpus, which gets a tag (Caswell et al. 2019). Sampled output
    often teaches more than that of a beam (Edunov et al. 2018).

    Raises:
        ConfigError: An option or tag is wrong, or the folder was made with other settings.
        CheckpointError: The model is missing or damaged.
        DataError: The text cannot be read, or the folder not be written.
    """
    begin, text, output, tag = time.perf_counter(), options.text, options.output, options.tag
    forward, shard_lines = options.forward, options.shard_lines
    decoding = given(
        sampling=options.sample or None, seed=options.seed, beam_size=options.beam_size
    )
    changes = decoding_changes(options.with_, options.set_, decoding) | {"n_best": 1}
    translator = Translator.load(
        options.with_,
        checkpoint=options.checkpoint,
        threads=options.threads,
        engine=options.engine,
        guard=options.guard,
        tag=tag,
        **changes,
    )
    files = find_model(options.with_, options.checkpoint)
    _check_language(text, files.config)
    settings = {
        "text": sha256_of_file(text), "model": files.sha256, "forward": forward, "tag": tag,
        "shard_lines": shard_lines, "decoding": translator.options.decoding.model_dump(mode="json"),
    }  # fmt: skip
    fix = "Name a folder that you can write to, with room on its disk."
    with write_errors(output, DataError, fix=fix):
        output.mkdir(parents=True, exist_ok=True)
        with file_lock(output / ".lock", remove=True):
            _check_settings(output, settings)
            if (output / _REPORT).is_file():
                return AugmentReport(**read_json(output / _REPORT) | {"shards_made": 0})
            (output / _SHARDS).mkdir(exist_ok=True)
            counts, made = Counter[str](), 0
            with file_bar("translating", text, unit="lines") as bar:
                for place, lines in _shards(text, output / _SHARDS, shard_lines):
                    known = _read_shard(place)
                    made += known is None
                    counts += known or _make_shard(place, lines, translator, forward=forward)
                    bar.update(counts["read"] - bar.n)
            return _finish(output, counts, made, forward=forward, begin=begin)


def _check_language(text: Path, config: RunConfig) -> None:
    """Warn if a text looks like another language than the one that the model reads."""
    known, other = config.source_language, config.target_language
    if found := other_language(_lines(text), known, [other]):
        logger.warning(
            "%s looks like %s, but the model translates from %s to %s", text, found, known, other
        )


def _check_settings(output: Path, settings: Mapping[str, Any]) -> None:
    place = output / _SETTINGS
    if not place.is_file():
        write_json(place, settings)
        return
    was = read_json(place)
    if differing := [name for name, value in settings.items() if was.get(name) != value]:
        raise ConfigError(
            f"{output} was made with another {', '.join(differing)}.",
            fix="Restore what differs to resume, or name another folder.",
        )


def _shards(text: Path, folder: Path, size: int) -> Iterator[tuple[Path, list[str]]]:
    """Yield the parts of a text, and the file of each."""
    lines, number = _lines(text), 0
    while part := list(islice(lines, size)):
        yield folder / f"{number:06d}.tsv", part
        number += 1


def _lines(text: Path) -> Iterator[str]:
    with open_binary(text) as stream:
        for number, line in enumerate(split_lines(stream, str(text)), start=1):
            yield decode_line(line or b"", str(text), number)


def _read_shard(place: Path) -> Counter[str] | None:
    """Return the counts of a shard; None if it is not whole."""
    try:
        marker = read_json(place.with_suffix(".json"))
        is_whole = field(marker, "sha256", kind=str) == sha256_of_file(place)
        return Counter(field(marker, "counts", kind=dict)) if is_whole else None
    except (OSError, ValueError):
        return None


def _make_shard(
    place: Path, lines: Sequence[str], translator: Translator, *, forward: bool
) -> Counter[str]:
    counts, pairs = Counter({"read": len(lines)}), []
    for result in translator.translate(lines):
        texts = [side.replace("\t", " ") for side in (result.source, result.text)]
        if not all(map(str.strip, texts)):
            counts[_EMPTY] += 1
        elif result.alarms:
            counts[result.alarms[0]] += 1
        else:
            pairs.append("\t".join(texts if forward else texts[::-1]) + "\n")
    write_bytes(place, "".join(pairs).encode())
    # Written last: a shard without it is made again.
    marker = {"sha256": sha256_of_file(place), "counts": counts}
    write_json(place.with_suffix(".json"), marker)
    return counts


def _finish(
    output: Path, counts: Counter[str], made: int, *, forward: bool, begin: float
) -> AugmentReport:
    """Join the shards and write the report."""
    dropped = {reason: number for reason, number in counts.most_common() if reason != "read"}
    report = AugmentReport(
        corpus=str(output / _CORPUS),
        read=counts["read"],
        written=counts["read"] - sum(dropped.values()),
        dropped=dropped,
        shards_made=made,
        seconds=round(time.perf_counter() - begin, 3),
        tag="<ft>" if forward else "<bt>",
    )
    with open_output(output / _CORPUS) as corpus:
        for place in sorted((output / _SHARDS).glob("*.tsv")):
            corpus.write(place.read_bytes())
    write_json(output / _REPORT, asdict(report))
    remove_folder(output / _SHARDS)
    return report
