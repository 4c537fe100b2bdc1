"""``nmt prepare``: corpora -> a prepared folder: tokenizers, token stores, report and manifest.

The story, from top to bottom:

`prepare` reads the options and the configuration. `prepare_data` leaves a folder alone that is
fresh; otherwise it makes a new one under a temporary name, and renames it at the end, so that a
folder that looks finished is finished. `_read_corpora` does the work, in two passes over the text:

1. `_look`: each block of pairs meets the filters of texts. What they drop is counted and listed,
   such as lines of too many characters. A sample of the other pairs is drawn.
2. The vocabulary is learned from the sample, and `_encode` turns every line into token ids.
3. `_write`: pairs of more subwords than ``filters.max_length``, of unfit ratio, and pairs that a
   diagnosis of the whole corpora finds fault with are dropped. The others go to the token store.

Memory holds the sample, one block of pairs and a few bytes a line, however large the corpora. The
results of whole blocks are stored beside the folder (`nmt.data.block_map`): the same command after
a kill reads them, and makes what is missing.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nmt.checkpoint.model_folder import SHORTLIST
from nmt.commands.prepare_options import PreparationOptions, PrepareOptions
from nmt.config.data import CorpusConfig
from nmt.config.run import RunConfig, check_languages
from nmt.config.section import bound_values
from nmt.data.augment import noisy_texts
from nmt.data.block_map import Result, Shards, has_changed, map_blocks, work_folder
from nmt.data.blocks import Decide, Encode, Look, Task, kept_pairs
from nmt.data.checks import CorpusCheck
from nmt.data.corpus import BLOCK_PAIRS, Block, check_files, check_sources, is_piped, read_blocks
from nmt.data.diagnosis import PAGES, Diagnosis, Material, make_diagnosis
from nmt.data.filters import FilterChain, held_out_filters, training_filters
from nmt.data.findings import READ, Findings, Found
from nmt.data.freshness import Recipe, are_unchanged, current_report, describe_sources
from nmt.data.held_out import VALID, Overlap, held_out_sets, report_name
from nmt.data.hubs import check_hub
from nmt.data.lexicon import write_shortlist
from nmt.data.pairs import ReadOptions, SentencePair
from nmt.data.prepare_report import REPORT, LengthSample, PrepareReport, SideStatistics
from nmt.data.prepared import (
    MANIFEST,
    TOKENIZER,
    TRAIN,
    PreparedManifest,
    Verified,
    data_hash,
    verify_prepared,
)
from nmt.data.size import load_config
from nmt.data.store import FlatIds, ParallelStore, StoreWriter
from nmt.data.vocabulary import Reservoir, learn_tokenizers
from nmt.data.workers import Workers, open_workers
from nmt.errors import ConfigError, DataError
from nmt.files.atomic import (
    atomic_folder,
    remove_leftovers,
    restore_replaced,
    write_bytes,
    write_errors,
)
from nmt.files.lines import STANDARD
from nmt.files.lock import file_lock
from nmt.files.manifest import FileRecord, sha256_of_json
from nmt.files.progress import progress_bar
from nmt.text.tokenizer import Tokenizers, load_tokenizers, tokenizer_hash
from nmt.version import __version__

logger = logging.getLogger(__name__)

_SPOOL = "standard-input.tsv"
_NOISE_SEED = 1


def prepare(options: PrepareOptions) -> PrepareReport | Verified:
    """Prepare the folder of a configuration, or only verify it.

    Raises:
        NmtError: As of `prepare_data`; a file of a folder to verify is missing or damaged.
    """
    config = load_config(options.config, options.set_)
    if options.verify:
        return verify_prepared(config.prepared_dir)
    has_input = sys.stdin is not None and not sys.stdin.isatty()
    return prepare_data(config, options, piped=sys.stdin.buffer if has_input else None)


def prepare_data(
    config: RunConfig,
    options: PreparationOptions | None = None,
    *,
    piped: IO[bytes] | None = None,
    check: Callable[[PreparedManifest], None] = lambda _: None,
) -> PrepareReport:
    """Make ``config.prepared_dir``, unless it is up to date.

    Args:
        config: The experiment.
        options: How to prepare.
        piped: Standard input, for a training corpus with ``tsv: -``. Without it, that corpus must
            have been prepared before.
        check: Called with what would be written, may raise an error: then all stays as it was.

    Raises:
        ConfigError: A language has another code, a filter does not exist, no scheduler answers, or
            standard input is not what the configuration says.
        DataError: A corpus is missing, damaged, not parallel, or leaves no pair; or the folder
            cannot be written.
        TokenizerError: The text allows no vocabulary of this size.
    """
    options = options or PreparationOptions()
    folder, recipe = config.prepared_dir, _recipe(config)
    scored_with = tuple(map(str, options.score_with))
    is_anew = options.force or options.report_only
    has_pipe = check_sources(config.data)
    fresh = None if is_anew else current_report(folder, recipe, scored_with)
    if has_pipe and piped is None and fresh is None:
        raise ConfigError(
            f"A training corpus is standard input, and {folder} does not hold it as this "
            "configuration would have it.",
            fix="Run `nmt prepare CONFIG < FILE` first, with a pipe or a file as its input.",
        )
    if fresh and not (has_pipe and piped):  # what comes by a pipe may be new
        remove_leftovers(folder.parent, folder.name)
        return _with_files(fresh, folder, options.report)
    _check(config)

    if options.report_only:
        with tempfile.TemporaryDirectory(prefix="nmt-prepare-") as scratch:
            spooled = _spooled(recipe, piped, Path(scratch))
            with open_workers(options.workers, options.scheduler) as workers:
                job = Job(spooled, Path(scratch), workers, options.score_with)
                report = replace(_read_corpora(job), folder=str(folder), written=False)
            return _with_files(report, Path(scratch), options.report)

    fix = "Set prepared_dir to a folder you can write to, with room on its disk."
    with write_errors(folder, DataError, fix=fix):
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = folder.with_name(f".{folder.name}.lock")
        with file_lock(lock, wait=True, remove=True) as has_waited:
            restore_replaced(folder)  # a kill may have come between two renames
            with work_folder(folder) as work:
                spooled = _spooled(recipe, piped, work)
                if not is_anew and (has_waited or has_pipe):
                    copy = work / _SPOOL if has_pipe else None
                    if fresh := current_report(folder, recipe, scored_with, copy):
                        return _with_files(fresh, folder, options.report)
                _check_ours(folder, is_anew=is_anew)
                with (
                    open_workers(options.workers, options.scheduler) as workers,
                    atomic_folder(folder, replace=True) as new,
                ):
                    sources = describe_sources(spooled.files)
                    job = Job(spooled, new, workers, options.score_with, shards=work)
                    report = replace(_read_corpora(job), folder=str(folder))
                    if not are_unchanged(sources):
                        raise DataError(
                            "A corpus changed while it was read.",
                            fix="Prepare again when nothing writes to the corpora any more.",
                        )
                    (new / REPORT).write_text(_report_text(report), encoding="utf-8")
                    if (piped_source := sources.pop(str(work / _SPOOL), None)) is not None:
                        sources[STANDARD] = piped_source
                    # Last of all: a folder without a manifest is not finished.
                    manifest = _manifest(new, recipe, sources, report, scored_with)
                    check(manifest)
                    manifest.write(new)
    return _with_files(report, folder, options.report)


@dataclass(frozen=True, slots=True)
class Job:
    """One reading of all corpora."""

    recipe: Recipe
    folder: Path  # an existing, empty folder to write into
    workers: Workers
    score_with: Sequence[Path] = ()
    shards: Path | None = None  # results of blocks; None: only a report is wanted
    stages: dict[str, float] = field(default_factory=dict)  # seconds of each stage

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure the time of a part of the work."""
        start = time.perf_counter()
        yield
        self.stages[name] = round(self.stages.get(name, 0) + time.perf_counter() - start, 3)

    def blocks(self, corpus: CorpusConfig) -> Iterator[Block]:
        """Read a corpus."""
        filters = self.recipe.filters
        options = ReadOptions(*self.recipe.languages, filters.on_bad_utf8, filters.max_characters)
        return read_blocks(corpus, options)

    def stored(self, verb: str, name: str, corpus: CorpusConfig, depends_on: Any) -> Shards | None:
        """Return where results of the blocks of a corpus are stored, under all they depend on."""
        if self.shards is None:
            return None
        parts: list[Any] = [x.model_dump(mode="json") for x in (corpus, self.recipe.filters)]
        parts += [__version__, verb, name, self.recipe.languages, depends_on]
        return Shards(self.shards, sha256_of_json(parts), BLOCK_PAIRS)


@dataclass(frozen=True, slots=True)
class Looked:
    """What the first pass leaves to the second."""

    filters: Mapping[str, FilterChain]  # of both parts
    findings: Findings
    num_lines: dict[str, int] = field(default_factory=dict)  # of each corpus and held-out set
    is_kept: dict[str, list[npt.NDArray[np.uint8]]] = field(default_factory=dict)  # bits of blocks
    checks: dict[str, CorpusCheck] = field(default_factory=dict)

    def add(self, name: str, block: Block, result: Result) -> list[SentencePair]:
        """Take the result of a block of a corpus or held-out set; return the kept pairs."""
        is_kept = result.arrays["is_kept"]
        kept = kept_pairs(block, is_kept)
        self.num_lines[name] = self.num_lines.get(name, 0) + len(block)
        self.is_kept.setdefault(name, []).append(np.packbits(is_kept))
        self.checks[name].update([pair[:2] for pair in kept], result.arrays["lengths"])
        return kept


class Encoded(NamedTuple):
    """The token ids of every line."""

    tokenizers: Tokenizers
    lines: ParallelStore
    spans: Mapping[str, tuple[int, int]]  # first row of each corpus, and the row behind its last


def _read_corpora(job: Job) -> PrepareReport:
    """Read all corpora into the folder, in two passes.

    Raises:
        DataError: A corpus is missing, damaged or not parallel, changes meanwhile, or leaves no
            pair.
        TokenizerError: The text allows no vocabulary of this size.
    """
    begin, recipe = time.perf_counter(), job.recipe
    filters = training_filters(recipe.filters, *recipe.languages)
    sets, unchecked = held_out_sets(recipe.data, recipe.languages)
    with (
        Findings(job.folder, filters, recipe.corpora, VALID) as findings,
        tempfile.TemporaryDirectory(dir=job.folder) as scratch,
    ):
        looked = Looked({TRAIN: filters, VALID: held_out_filters(recipe.filters)}, findings)
        held_out = {name: _look_at_set(job, name, corpus, looked) for name, corpus in sets.items()}
        overlap = Overlap(held_out)
        material = Material(
            filters=recipe.filters, languages=recipe.languages, corpora=recipe.corpora,
            held_out=held_out, score_with=job.score_with, folder=job.folder, scratch=Path(scratch),
            workers=job.workers,
        )  # fmt: skip
        diagnosis = make_diagnosis(material, filters)
        with job.stage("reading"):
            sample = _look(job, looked, overlap, diagnosis)
        with job.stage("repeats"):
            diagnosis.end({name: looked.num_lines[name] for name in recipe.corpora})
        with job.stage("vocabulary"), progress_bar("learning subwords", leave=False):
            known = recipe.start_from and recipe.start_from / TOKENIZER
            tokenizers = learn_tokenizers(sample, job.folder / TOKENIZER, recipe.tokenizer, known)
        with job.stage("encoding"):
            scanned = {VALID, *(recipe.data.test if diagnosis.compares_words else ())}
            others = {report_name(name): sets[name] for name in sets if name in scanned}
            corpora = {**recipe.corpora, **others}
            encoded = _encode(job, corpora, looked, tokenizers, Path(scratch) / "lines")
        if diagnosis.compares_words:
            with job.stage("lexicon"):
                diagnosis.learn(encoded.lines, encoded.spans, tokenizers.vocab_sizes)
        with job.stage("writing"):
            sides, lengths = _write(job, TRAIN, looked, encoded, diagnosis)
            _write(job, VALID, looked, encoded, Diagnosis(material))
        if job.shards is not None:
            with job.stage("shortlist"), progress_bar("making short lists", leave=False):
                train = ParallelStore.open(job.folder / TRAIN)
                write_shortlist(job.folder / SHORTLIST, train, tokenizers.vocab_sizes)
        said, reported = diagnosis.report(), findings.report()
    if "language" in reported["reasons"]:
        reported["reasons"]["language"] |= said.languages
    odd = (f"{name}: {text}" for name, each in looked.checks.items() for text in each.warnings())
    return PrepareReport(
        folder=str(job.folder),
        up_to_date=False,
        **reported,
        shifts=[*said.shifts],
        unrelated=[*said.unrelated],
        leakage=[*said.leakage],
        overlap=overlap.counts(said.near),
        unchecked=unchecked,
        lengths=lengths.report(),
        sides=[side.report() for side in sides],
        joint=recipe.tokenizer.joint,
        notes=[*said.notes],
        warnings=[*filters.notes, *odd, *said.warnings],
        seconds=time.perf_counter() - begin,
        stages=job.stages,
    )


def _look_at_set(job: Job, name: str, corpus: CorpusConfig, looked: Looked) -> list[SentencePair]:
    """Return the usable pairs of a held-out set: only what the model cannot hold is dropped."""
    where, usable = report_name(name), list[SentencePair]()
    looked.checks[where] = CorpusCheck(*job.recipe.languages)
    look = Look(looked.filters[VALID], where)
    for block in job.blocks(corpus):
        result = look(block)
        usable += looked.add(where, block, result)
        if name == VALID:
            found, counts = result.values
            looked.findings.add(found, is_training=False)
            looked.findings.counts[name] += counts + Counter({READ: len(block)})
    return usable


def _look(job: Job, looked: Looked, overlap: Overlap, diagnosis: Diagnosis) -> Reservoir:
    """First pass over the training corpora. Return the sample that the vocabulary learns from."""
    sample, random = Reservoir(job.recipe.tokenizer.sample_sentences // 2), Random(_NOISE_SEED)
    for name, corpus in job.recipe.corpora.items():
        looked.checks[name] = CorpusCheck(*job.recipe.languages)
        look = Look(looked.filters[TRAIN], name, diagnosis.look)
        shards = job.stored("reading", name, corpus, diagnosis.depends_on)
        for block, result in map_blocks(
            f"reading {name}", job.blocks(corpus), look, shards=shards, workers=job.workers
        ):
            rows, counts = result.values
            found = [Found(*row) for row in rows]  # of a file they are lists
            looked.findings.add(found)
            looked.findings.counts[name].update(counts)
            looked.findings.counts[name][READ] += len(block)
            kept = looked.add(name, block, result)
            overlap.see(kept)
            diagnosis.see(name, kept, result.arrays, found)
            rates = corpus.augment.rates
            for source, target, _ in kept:
                # The vocabulary should know the noise that training will draw.
                pair = source, target
                sample.add(*(noisy_texts(pair, rates, random) if rates else pair))
    return sample


def _encode(
    job: Job,
    corpora: Mapping[str, CorpusConfig],
    looked: Looked,
    tokenizers: Tokenizers,
    folder: Path,
) -> Encoded:
    """Turn every line of some corpora into token ids, in a store of its own."""
    models, spans, end = tokenizer_hash(job.folder / TOKENIZER), {}, 0
    encode = Encode(tokenizers, job.workers.threads)
    with StoreWriter(folder, max(tokenizers.vocab_sizes)) as writer:
        for name, corpus in corpora.items():
            shards = job.stored("encoding", name, corpus, models)
            for _, (arrays, _) in map_blocks(
                f"encoding {name}", job.blocks(corpus), encode,
                shards=shards, workers=job.workers, total=looked.num_lines[name],
            ):  # fmt: skip
                sides = (FlatIds(arrays[f"ids_{i}"], arrays[f"lengths_{i}"]) for i in range(2))
                writer.append_flat((next(sides), next(sides)), 0, arrays["numbers"])
            spans[name] = end, end + looked.num_lines[name]
            end += looked.num_lines[name]
    return Encoded(tokenizers, ParallelStore.open(folder), spans)


def _write(
    job: Job, part: str, looked: Looked, encoded: Encoded, diagnosis: Diagnosis
) -> tuple[list[SideStatistics], LengthSample]:
    """Second pass, over the corpora of a part: decide, and store the token ids of kept pairs."""
    corpora = job.recipe.corpora if part == TRAIN else {VALID: job.recipe.data.valid}
    sides, sample = [
        SideStatistics(language, tokenizer, job.recipe.filters.max_length)
        for language, tokenizer in zip(job.recipe.languages, encoded.tokenizers, strict=True)
    ], LengthSample()  # fmt: skip
    size, is_stored = max(encoded.tokenizers.vocab_sizes), job.shards is not None
    with StoreWriter(job.folder / part, size) if is_stored else nullcontext() as writer:
        for index, (name, corpus) in enumerate(corpora.items()):
            tag = None if corpus.tag is None else encoded.tokenizers.source.tag_id(corpus.tag)
            decide = Decide(looked.filters[part], name)
            tasks = _tasks(job.blocks(corpus), name, looked, encoded, diagnosis, tag)
            for task, (arrays, (rows, counts)) in map_blocks(
                f"writing {name}", tasks, decide, workers=job.workers, total=looked.num_lines[name]
            ):
                is_kept, start = arrays["is_kept"], encoded.spans[name][0] + task.first - 1
                looked.findings.add([Found(*row) for row in rows], is_training=part == TRAIN)
                looked.findings.counts[name].update(counts)
                source, target = encoded.lines.block(start, start + len(task))
                source, target = source.selected(is_kept, tag), target.selected(is_kept)
                numbers = encoded.lines.lines[start : start + len(task)][is_kept]
                for side, ids in zip(sides, (source, target), strict=True):
                    side.update(ids)
                sample.update(numbers, source, target)
                if writer is not None:
                    writer.append_flat((source, target), index, numbers)
                    if part == VALID:  # its text, for scores of decoded output
                        _append_text(job.folder / VALID, kept_pairs(task.block, is_kept))
    kind = "training" if part == TRAIN else "validation"
    looked.findings.check_kept(kind, corpora)
    return sides, sample


def _tasks(
    blocks: Iterator[Block],
    name: str,
    looked: Looked,
    encoded: Encoded,
    diagnosis: Diagnosis,
    tag: int | None,
) -> Iterator[Task]:
    """Yield the blocks of a corpus with all that is known of each."""
    first, end = encoded.spans[name]
    for number, block in enumerate(blocks):
        start = first + block.first - 1
        rows = slice(start, start + len(block))
        if rows.stop > end:
            raise has_changed(name)
        lengths = encoded.lines.source_lengths[rows], encoded.lines.target_lengths[rows]
        counted = np.array(lengths, np.int64)
        counted[0] += tag is not None
        bits = np.unpackbits(looked.is_kept[name][number], count=len(block))
        is_kept = bits.astype(np.bool_)
        yield Task(block, counted, is_kept, diagnosis.of_block(name, block.first - 1, is_kept))


def _append_text(folder: Path, pairs: Sequence[SentencePair]) -> None:
    for side in ("source", "target"):
        with (folder / f"{side}.txt").open("ab") as file:
            file.write("".join(f"{getattr(pair, side)}\n" for pair in pairs).encode())


def _recipe(config: RunConfig) -> Recipe:
    """Return what decides what is prepared."""
    symbols = {"user_defined_symbols": config.tag_symbols}
    return Recipe(
        data=config.data,
        tokenizer=config.tokenizer.model_copy(update=symbols),
        filters=config.filters,
        languages=(config.source_language, config.target_language),
        start_from=config.training.start_from,
        bound=bound_values(config, "data"),
    )


def _check(config: RunConfig) -> None:
    """Check, before much is read, what can be checked at once."""
    check_languages(config.languages)
    start_from = config.training.start_from
    if start_from is not None and not (start_from / TOKENIZER).is_dir():
        raise ConfigError(
            f"{start_from} (training.start_from) is not a model: it has no {TOKENIZER} folder.",
            fix="Name a run or model folder that `nmt train` or `nmt average` wrote.",
        )
    check_files(config.data.corpora)
    for corpus in (*config.data.train, config.data.valid):
        check_hub(corpus)


def _check_ours(folder: Path, *, is_anew: bool) -> None:
    """Check that a folder may be replaced."""
    if (folder / MANIFEST).exists():
        if not is_anew:
            why = "was prepared from other corpora or settings, or is damaged"
            logger.info("%s %s; preparing it again", folder, why)
    elif folder.exists() and any(folder.iterdir()):
        raise DataError(
            f"{folder} exists, but was not made by `nmt prepare`.",
            fix="Set prepared_dir to another folder, or remove this one.",
        )


def _spooled(recipe: Recipe, piped: IO[bytes] | None, folder: Path) -> Recipe:
    """Return a recipe that names a copy of standard input, which can be read only once."""
    corpora = list(recipe.data.train)
    for number, (name, corpus) in enumerate(recipe.corpora.items()):
        if is_piped(corpus) and piped is not None:
            path = folder / _SPOOL
            with path.open("wb") as file:
                shutil.copyfileobj(piped, file)
            corpora[number] = corpus.model_copy(update={"tsv": path, "name": name})
    data = recipe.data.model_copy(update={"train": tuple(corpora)})
    return replace(recipe, data=data)


def _manifest(
    folder: Path,
    recipe: Recipe,
    sources: Mapping[str, Mapping[str, Any]],
    report: PrepareReport,
    scored_with: Sequence[str],
) -> PreparedManifest:
    """Describe a folder in which everything else is written."""
    sizes = load_tokenizers(folder / TOKENIZER).vocab_sizes
    written = sorted(path for path in folder.rglob("*") if path.is_file())
    return PreparedManifest(
        config_hash=recipe.hash(),
        sources=sources,
        data_hash=data_hash(folder),
        vocab_hash=tokenizer_hash(folder / TOKENIZER),
        source_vocab_size=sizes[0],
        target_vocab_size=sizes[1],
        counts=report.counts,
        scored_with=scored_with,
        files={path.relative_to(folder).as_posix(): FileRecord.of(path) for path in written},
    )


def _report_text(report: PrepareReport) -> str:
    return json.dumps(report.as_dict(), indent=2, ensure_ascii=False) + "\n"


def _with_files(report: PrepareReport, lists: Path, folder: Path | None) -> PrepareReport:
    """Write the files of a report, if there is a folder for them.

    Args:
        report: What to write, and to return.
        lists: Folder that holds its lists of pairs.
        folder: Where to write.
    """
    if folder is not None:
        fix = "Name a folder you can write to, with room on its disk."
        with write_errors(folder, DataError, fix=fix):
            folder.mkdir(parents=True, exist_ok=True)
            write_bytes(folder / REPORT, _report_text(report).encode())
            for path in lists.glob("*.tsv.gz"):
                write_bytes(folder / path.name, path.read_bytes())
            with suppress(ConfigError):  # the extra that draws it is missing
                write_bytes(folder / "report.html", PAGES["prepare"](report).encode())
    return report
