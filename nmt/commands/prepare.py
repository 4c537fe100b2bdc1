"""``nmt prepare``: corpora -> a prepared folder: tokenizers, token stores, report and manifest.

The steps, from top to bottom:

`prepare` reads the options and the configuration. `prepare_data` keeps an up-to-date folder.
Otherwise it creates a new folder under a temporary name and renames it at the end, so that a folder
is always complete. `_read_corpora` reads the text three times, corpus by corpus:

1. `_read_training`, the first pass, applies the filters that need only text, such as a limit of
   characters, and counts and lists the dropped pairs. It draws a sample of the other pairs.
2. The vocabulary is learned from the sample, and `_encode` converts every line to token ids.
3. `_write` drops pairs by length and length ratio in subwords, and by the diagnosis, which compares
   pairs across whole corpora. It writes the other pairs to the token store.

For each corpus, the report counts the pairs that were read, kept and dropped; each dropped pair
counts for the first matching reason. The report also counts pairs that are only reported, and
held-out sentences in the training data. Lists contain all of these pairs
(`nmt.data.prepare_report`).

Memory usage is the sample, one block of pairs and a few bytes per line, for any size of corpus.
Results of blocks are stored next to the folder (`nmt.data.workers`), so that the same command can
continue after a kill.
"""

from __future__ import annotations

import itertools
import logging
import os
import stat
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import IO

from nmt.checkpoint.model_folder import (
    CONFIG,
    PROFILES,
    SHORTLIST,
    find_start,
    load_folder_config,
)
from nmt.checkpoint.run import differing, has_data_settings, recorded_settings, trained_on
from nmt.commands.config import load_config
from nmt.commands.options import PreparationOptions, PrepareOptions, TextResult
from nmt.config.data import ANNOTATION, PLACEHOLDER, CorpusConfig, Direction, FilterConfig
from nmt.config.run import RunConfig, check_languages
from nmt.config.section import bound_values
from nmt.data import advice, prepare_report, prepared
from nmt.data import filters as pair_filters
from nmt.data.checks import Overlap, held_out_sets, learn_profiles, name_of_test
from nmt.data.corpus import (
    VALID,
    check_files,
    check_plain_text,
    check_sources,
    corpus_files,
    is_piped,
    layout_notes,
)
from nmt.data.diagnosis import Diagnosis, Material, make_diagnosis
from nmt.data.filters import FilterChain
from nmt.data.formats.pair import SentencePair
from nmt.data.hubs import check_hub
from nmt.data.lexicon import write_shortlist
from nmt.data.prepare_report import (
    KEPT,
    PrepareReport,
    ProblemLog,
    current_report,
    find_prepared,
)
from nmt.data.prepared import LINKS, TOKENIZER, TRAIN, PreparedManifest, Recipe
from nmt.data.reading import (
    CorpusReader,
    EncodedCorpora,
    EncodingPass,
    LengthPass,
    TextPass,
    kept_pairs,
)
from nmt.data.store import ParallelStore, StoreWriter
from nmt.data.terms import write_links
from nmt.data.vocabulary import TextSample, learn_tokenizers
from nmt.data.workers import has_changed, map_blocks, open_workers, work_folder
from nmt.errors import ConfigError, DataError
from nmt.files import atomic
from nmt.files.json_file import MANIFEST
from nmt.files.lines import read_lines
from nmt.files.progress import progress_bar
from nmt.inference.placeholders import with_symbols
from nmt.text.flat import FlatIds
from nmt.text.identification import NO_PROFILES, are_identifiable
from nmt.text.sentences import split_sentences, usual_size
from nmt.text.tokenizer import Tokenizer, Tokenizers, load_tokenizers, tokenizer_hash

logger = logging.getLogger(__name__)

_LINES_TO_COUNT = 100_000  # training lines, of all corpora together, whose sentences are counted


def prepare(options: PrepareOptions) -> PrepareReport | TextResult:
    """Prepare the data of a configuration, or verify prepared data.

    Raises:
        ConfigError: A training corpus is standard input, which is not connected.
        NmtError: See `prepare_data`; or a file of the folder to verify is missing or damaged.
    """
    if options.remove is not None:
        return _remove(options.remove)
    if options.config is None:  # `list_`
        return _list_folders(Path("prepared"))
    config = load_config(options.config, options.set_)
    if options.list_:
        return _list_folders(config.prepared_dir.parent)
    if options.verify:
        records = prepared.verify_prepared(config.prepared_dir)
        folder = str(config.prepared_dir)
        num_bytes = sum(record.size for record in records.values())
        text = f"{folder}: {len(records):,} files, {num_bytes:,} bytes, all undamaged"
        return TextResult(text, {"folder": folder, "files": len(records), "bytes": num_bytes})
    piped = None  # nobody types a corpus into a terminal
    if sys.stdin is not None and not sys.stdin.isatty():
        piped = sys.stdin.buffer
        if any(map(is_piped, config.data.train)) and _is_device(piped):
            raise ConfigError(
                "The training corpus is standard input, which is not connected (/dev/null).",
                fix="Run `nmt prepare CONFIG < FILE`, or pipe the corpus to this command.",
            )
    return prepare_data(config, options, piped=piped)


def _list_folders(parent: Path) -> TextResult:
    """Return the prepared folders in ``parent`` with their sizes and the runs that use them."""
    lines = []
    folders = []
    for path in sorted(parent.glob(f"[!.]*/{MANIFEST}")):
        folder = path.parent
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        users = list(map(str, prepared.users(folder)))
        lines.append(f"{folder}: {size / 2**20:,.1f} MiB, used by {', '.join(users) or 'no run'}")
        folders.append({"folder": str(folder), "bytes": size, "users": users})
    text = "\n".join(lines) or f"{parent} contains no prepared folders"
    return TextResult(text, {"folders": folders})


def _remove(folder: Path) -> TextResult:
    """Remove a prepared folder that no run uses.

    Raises:
        DataError: A run uses the folder, or it is not a prepared folder.
    """
    folder = folder.absolute()  # `.` has no name
    PreparedManifest.read(folder)  # raises an error if the folder contains something else
    with atomic.write_errors(folder, DataError), _lock(folder):
        users = prepared.users(folder)
        if users:
            raise _in_use(folder, users, "it cannot be removed")
        atomic.remove_folder(folder)
    return TextResult(f"removed {folder}", {"removed": str(folder)})


def _in_use(folder: Path, users: Sequence[Path], consequence: str) -> DataError:
    """Return the error that runs use a folder, so that it cannot be removed or replaced."""
    listed = ", ".join(map(str, users))
    return DataError(
        f"{folder} is used by {listed}: {consequence}.",
        fix="Set another prepared_dir, or delete these runs if you do not need them.",
    )


def _is_device(stream: IO[bytes]) -> bool:
    """Whether a stream is a device. Programs without a terminal, such as cron, pass /dev/null."""
    try:
        return stat.S_ISCHR(os.fstat(stream.fileno()).st_mode)
    except OSError:  # a stream in memory is not a file
        return False


def prepare_data(
    config: RunConfig,
    options: PreparationOptions | None = None,
    *,
    piped: IO[bytes] | None = None,
    check: Callable[[PreparedManifest], None] | None = None,
    user: Path | None = None,
) -> PrepareReport:
    """Make the prepared folder of a configuration, unless it is up to date.

    The folder is ``config.prepared_dir``; or `Recipe.folder_beside`, if a run uses
    ``config.prepared_dir`` with other data.

    Args:
        config: The experiment.
        options: How to prepare.
        piped: Standard input, for a training corpus with ``tsv: -``. Without it, the corpus must
            already be prepared.
        check: Called with the manifest. If it raises, all folders stay as they are. With a check, a
            run that training would resume keeps its folder, even if the text has changed.
        user: The run folder, locked by this process, whose training will use the data. The folder
            records it.

    Returns:
        The report, with the folder.

    Raises:
        ConfigError: A language code is invalid, a filter does not exist, no scheduler answers, or
            standard input does not match the configuration.
        DataError: A corpus is missing, damaged or not parallel, all pairs are dropped, or the
            folder cannot be written.
        TokenizerError: The vocabulary size does not fit the text.
    """
    options = options or PreparationOptions()
    folder = config.prepared_dir
    recipe = recipe_of(config)
    if check is None:
        recipe = replace(recipe, folder_of_run=None)
    score_models = tuple(map(str, options.score_with))
    ignores_existing = options.force or options.report_only
    reads_stdin = check_sources(config.data)
    if not reads_stdin:
        piped = None
    # The report of an existing folder; None if a folder has to be made or made again.
    existing_report = None
    if not ignores_existing:
        existing_report = find_prepared(recipe, score_models)
    if existing_report is not None and user is not None:
        existing = Path(existing_report.folder)
        with suppress(OSError), _lock(existing):  # a folder that cannot be written is not replaced
            prepared.add_user(existing, user)
        # Before, another process may have replaced the folder.
        existing_report = current_report(existing, recipe, score_models)
    lacks_input = reads_stdin and piped is None
    if lacks_input and existing_report is None:
        fix = "First run `nmt prepare CONFIG < FILE`, or pipe the corpus to this command."
        problem = f"The training corpus is standard input, but {folder} does not match"
        raise ConfigError(f"{problem} or is missing.", fix=fix)
    # New standard input must be stored before it can be compared with the folder: see below.
    if existing_report is not None and piped is None:
        folder = Path(existing_report.folder)
        if check is not None:
            check(PreparedManifest.read(folder))
            _compare_text(folder, recipe)
        atomic.remove_leftovers(folder.parent, folder.name)
        return existing_report.written_to(options.report_dir, lists=folder)
    _check_settings(config, options)

    if options.report_only:
        return _only_report(recipe, options, piped)

    fix = "Set prepared_dir to a folder you can write to, with free space on its disk."
    with atomic.write_errors(folder, DataError, fix=fix):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as locks:
            shards = locks.enter_context(_work_on(folder))
            readable_recipe = recipe.spooled(piped, shards)
            # The folder may be up to date after all: the process that this one has waited for may
            # have prepared it, and standard input, which is stored now, may be unchanged.
            existing_report = current_report(folder, recipe, score_models, readable_recipe.input)
            # This run itself needs other data only if it starts again; else `check` refuses them.
            users = prepared.users(folder, besides=user)
            if users and existing_report is None:
                folder = recipe.folder_beside(prepared.describe_sources(readable_recipe))
                logger.info("%s uses %s; preparing %s", users[0], config.prepared_dir, folder)
                if not reads_stdin:  # the copy of standard input is in the first folder
                    locks.close()
                shards = locks.enter_context(_work_on(folder))
                existing_report = current_report(
                    folder, recipe, score_models, readable_recipe.input
                )
                users = prepared.users(folder, besides=user)
            if existing_report is not None and not ignores_existing:
                if user is not None:
                    prepared.add_user(folder, user)
                return existing_report.written_to(options.report_dir, lists=folder)
            _check_replaceable(folder, is_requested=ignores_existing)
            with (
                open_workers(options.workers, options.scheduler) as workers,
                atomic.atomic_folder(folder, replace=True) as new_folder,
            ):
                sources = prepared.describe_sources(readable_recipe)
                reading = CorpusReader(readable_recipe, new_folder, workers, shards=shards)
                report = _read_corpora(reading, options.score_with)
                if not prepared.are_unchanged(sources, readable_recipe.input):
                    raise has_changed("in a file")
                report = replace(report, folder=str(folder))
                report.write(new_folder)
                # Written last: a folder without a manifest is incomplete.
                manifest = PreparedManifest.describe(
                    new_folder, recipe.hash(), sources, report.counts, score_models,
                    max_sentences=report.max_sentences, max_characters=report.max_characters,
                )  # fmt: skip
                if check is not None:
                    check(manifest)
                _check_users(folder, users, manifest)
                manifest.write(new_folder)
            for run in filter(None, (*users, user)):
                prepared.add_user(folder, run)
    return report.written_to(options.report_dir, lists=folder)


def _compare_text(folder: Path, recipe: Recipe) -> None:
    """Log a warning if the text of a resumed run is not that of its prepared folder."""
    if current_report(folder, replace(recipe, folder_of_run=None)) is None:
        text = "%s: its text has changed or is missing; training uses the prepared data"
        logger.warning(text, folder)


def _lock(folder: Path) -> AbstractContextManager[bool]:
    """Lock a prepared folder, after waiting for other processes that use or write it."""
    return atomic.file_lock(folder.with_name(f".{folder.name}.lock"), wait=True, remove=True)


@contextmanager
def _work_on(folder: Path) -> Iterator[Path]:
    """Lock a prepared folder in order to write it; yield a folder for shards."""
    with _lock(folder), work_folder(folder) as shards:
        atomic.restore_replaced(folder)  # after a kill between two renames
        yield shards


def _read_corpora(reading: CorpusReader, score_with: Sequence[Path]) -> PrepareReport:
    """Write the prepared data of all corpora into ``reading.folder``, and return their report.

    Raises:
        DataError: A corpus is missing, damaged, not parallel or changing, or all pairs are dropped.
        TokenizerError: The vocabulary size does not fit the text.
    """
    begin = time.perf_counter()
    recipe = reading.recipe
    config = recipe.config
    folder = reading.folder
    # Not `folder`, which Windows could not rename while workers have files in it mapped. Without
    # shards there is only a report, and `folder` is not renamed.
    scratch = reading.shards or folder

    for corpus in recipe.data.corpora.values():
        check_plain_text(corpus, config.direction(corpus))
    # The held-out sets by name, and the names of those that cannot be compared: not downloaded.
    sets, unchecked = held_out_sets(recipe)
    configured = [name for name in sets if name in recipe.valid_sets or name in recipe.data.test]
    corpora_and_sets = {**sets, **recipe.corpora}
    directions = {name: config.direction(corpus) for name, corpus in corpora_and_sets.items()}
    train_directions = list(map(config.direction, recipe.data.training))
    profiles = learn_profiles(recipe)
    filter_profiles = NO_PROFILES if are_identifiable(profiles.log_probs) else profiles
    # Filters depend on the languages, so corpora of the same direction have the same filters.
    chains = dict[Direction, FilterChain]()
    for direction in dict.fromkeys(train_directions):
        chains[direction] = pair_filters.training_filters(
            config.filters, *direction, filter_profiles
        )
    filters = chains[train_directions[0]]  # all chains have the same actions

    with ProblemLog(folder, filters, recipe.corpora, recipe.valid_sets) as log:
        held_out = {name: _read_held_out(name, sets[name], reading, log) for name in sets}
        overlap = Overlap(held_out, directions)
        material = Material(
            filters=config.filters, languages=train_directions[0], directions=directions,
            corpora=recipe.corpora, held_out=held_out, configured=configured, folder=folder,
            score_with=score_with, scratch=scratch, workers=reading.workers, files=reading.files,
        )  # fmt: skip
        diagnosis = make_diagnosis(material, filters)

        with reading.stage("reading"):
            sample = TextSample(
                {name: directions[name] for name in recipe.corpora},
                config.tokenizer.sample_sentences // 2,  # each pair has two sentences
                noise={name: corpus.noise.rates for name, corpus in recipe.corpora.items()},
            )
            sentences = list[int]()  # of the first lines
            characters = list[int]()
            for name in recipe.corpora:
                chain = chains[directions[name]]
                text_pass = TextPass(chain, name, diagnosis.look, config.tag_symbols[0])
                _read_training(
                    text_pass, reading, log, overlap, diagnosis, sample,
                    sentences=sentences, characters=characters,
                )  # fmt: skip
            diagnosis.end({name: reading.num_lines[name] for name in recipe.corpora})

        with reading.stage("vocabulary"), progress_bar("learning subwords", leave=False):
            vocabulary_warnings = learn_tokenizers(sample, folder / TOKENIZER, recipe)
            tokenizers = load_tokenizers(folder / TOKENIZER)

        with reading.stage("encoding"):
            names = [*recipe.corpora, *recipe.valid_sets]
            # Test sets are encoded only if the diagnosis compares their words with training data.
            if diagnosis.compares_words:
                names += [name_of_test(name) for name in sets if name in recipe.data.test]
            encoded = _encode(reading, names, tokenizers, scratch / "lines")
        if diagnosis.compares_words:
            with reading.stage("lexicon"):
                diagnosis.learn(encoded.lines, encoded.spans, tokenizers.vocab_sizes)

        with reading.stage("writing"):
            train = _write(TRAIN, reading, encoded, log, filters, diagnosis)
            valid_filters = pair_filters.held_out_filters(config.filters)
            # The base class of diagnoses finds no problems.
            valid = _write(VALID, reading, encoded, log, valid_filters, Diagnosis(material))

        with reading.stage("shortlist"), progress_bar("making shortlists", leave=False):
            write_shortlist(
                folder / SHORTLIST,
                train,
                tokenizers.vocab_sizes,
                diagnosis.lexicon,
                vocab_hash=tokenizer_hash(folder / TOKENIZER),
            )
        if recipe.data.glossary.share:
            with reading.stage("terms"), progress_bar("aligning words", leave=False):
                write_links(folder / LINKS, train, tokenizers, diagnosis.lexicon)
        atomic.write_json(folder / PROFILES, asdict(profiles))
        report = log.report()

    warnings = _distinct(chain.warnings for chain in chains.values())
    warnings += prepare_report.lost_pairs(report.counts, recipe.corpora)
    warnings += vocabulary_warnings
    for name, check in reading.checks.items():
        warnings += [f"{name}: {text}" for text in check.warnings()]
    valid_targets = read_lines(folder / VALID / "target.txt")
    warnings += prepare_report.loss_warnings(valid_targets, tokenizers.target)
    counts_of_sets = overlap.counts()
    kept_sets = sum(log.kept_sets.values(), Counter[int]())
    has_copies = any(counts_of_sets[name]["sources_in_train"] for name in configured)
    reasons = advice.recommended_reasons(kept_sets, has_copies=has_copies)
    num_kept = advice.num_without(kept_sets, reasons)
    is_possible = all(advice.num_without(sets, reasons) for sets in log.kept_sets.values())
    if reasons and is_possible:
        section = advice.with_drops(config.filters, reasons)
        report = replace(report, recommended=section, kept_with_recommended=num_kept)
    notes = []
    for name, corpus in reading.corpora.items():
        layouts = layout_notes(corpus, config.direction(corpus))
        notes += [f"{layout}: {reading.num_lines[name]:,} pairs" for layout in layouts]
    report = replace(
        report,
        overlap=counts_of_sets,
        unchecked=unchecked,
        sources=_sources(corpora_and_sets),
        lengths=prepare_report.sample_lengths(train),
        sides=prepare_report.report_sides(train, train_directions, tokenizers),
        joint=config.tokenizer.joint,
        # Rarer numbers of sentences teach little: with two sentences in 1% of the lines of Tatoeba,
        # a model drops the second sentence of 97 in 100 lines (29.5 BLEU split, 14.7 whole).
        max_sentences=usual_size(sentences, 0.9),
        max_characters=usual_size(characters, 0.99),
        skipped=filters.skipped,
        notes=_distinct([notes, *(chain.notes for chain in chains.values())]),
        warnings=warnings,
        stages=reading.stages,
    )
    report = diagnosis.complete(report)
    valid_directions = list(map(config.direction, recipe.data.validation))
    valid_sides = prepare_report.report_sides(valid, valid_directions, tokenizers)
    warnings = [*report.warnings, *prepare_report.coverage_warnings(valid_sides)]
    return replace(report, warnings=warnings, seconds=time.perf_counter() - begin)


def _only_report(
    recipe: Recipe, options: PreparationOptions, piped: IO[bytes] | None
) -> PrepareReport:
    """Return the report of `prepare_data` without a prepared folder.

    If it recommends filters, the corpora are read again with these, to count the pairs that would
    be kept: with fewer pairs, other subwords are learned, so other pairs are too long.
    """
    with (
        tempfile.TemporaryDirectory(prefix="nmt-prepare-") as name,
        open_workers(options.workers, options.scheduler) as workers,
    ):
        scratch = Path(name)
        recipe = recipe.spooled(piped, scratch)
        report = _read_corpora(CorpusReader(recipe, scratch, workers), options.score_with)
        # Models take hours to score again, and test sets that are missing cannot be compared.
        if report.recommended and not options.score_with and not report.unchecked:
            filters = FilterConfig.model_validate(report.recommended)
            config = recipe.config.model_copy(update={"filters": filters})
            again = scratch / "again"
            again.mkdir()
            counts = _read_corpora(
                CorpusReader(replace(recipe, config=config), again, workers), ()
            ).counts
            num_kept = sum(counts[name][KEPT] for name in recipe.corpora)
            report = replace(report, kept_with_recommended=num_kept, is_counted=True)
        report = replace(report, folder=str(recipe.config.prepared_dir), written=False)
        return report.written_to(options.report_dir, lists=scratch)


def _sources(corpora: Mapping[str, CorpusConfig]) -> dict[str, dict[str, str]]:
    """Return the files of each corpus, with the date of their last change."""
    sources = {}
    for name, corpus in corpora.items():
        dates = {}
        for path in corpus_files(corpus):
            with suppress(OSError):  # it is in an archive
                changed = time.gmtime(path.stat().st_mtime)
                dates[str(path)] = time.strftime("%Y-%m-%d", changed)
        sources[name] = dates
    return sources


def _distinct(texts: Iterable[Iterable[str]]) -> list[str]:
    """Return the texts of all sequences in order, without repetitions."""
    return list(dict.fromkeys(itertools.chain.from_iterable(texts)))


def _read_held_out(
    name: str, corpus: CorpusConfig, reading: CorpusReader, log: ProblemLog
) -> list[SentencePair]:
    """Return the pairs of a held-out set without blank or too long sides (in characters).

    Problems of test sets are not logged, because their pairs are not written. `_write` later drops
    validation pairs with too many subwords.
    """
    config = reading.recipe.config
    is_valid = name in reading.recipe.valid_sets
    name_in_report = name if is_valid else name_of_test(name)
    filters = pair_filters.held_out_filters(config.filters)
    text_pass = TextPass(filters, name_in_report, tags=config.tag_symbols[0])
    results = ((block, text_pass(block)) for block in reading.blocks(corpus))
    usable_pairs = list[SentencePair]()
    for pairs, result in reading.kept_pairs(name_in_report, config.direction(corpus), results):
        usable_pairs += pairs
        if is_valid:
            log.take(name, result.values)
    return usable_pairs


def _read_training(
    text_pass: TextPass,
    reading: CorpusReader,
    log: ProblemLog,
    overlap: Overlap,
    diagnosis: Diagnosis,
    sample: TextSample,
    *,
    sentences: list[int],
    characters: list[int],
) -> None:
    """First pass over one training corpus: filter its pairs, and count and sample the kept ones.

    Args:
        text_pass: The filters and the name of the corpus.
        reading: Keeps which pairs have passed the filters, for the last pass.
        log: Receives the problems of the pairs.
        overlap: Looks for held-out sentences in the kept pairs.
        diagnosis: Looks at the kept pairs.
        sample: Draws from the kept pairs.
        sentences: Receives the number of sentences of each of the first source lines.
        characters: Receives their lengths.

    Raises:
        DataError: A line cannot be read, or all pairs are dropped.
    """
    name = text_pass.corpus
    recipe = reading.recipe
    direction = recipe.config.direction(recipe.corpora[name])
    results = reading.map("reading", name, text_pass, diagnosis.depends_on)
    num_kept = 0
    num_to_count = _LINES_TO_COUNT // len(recipe.corpora)
    for pairs, result in reading.kept_pairs(name, direction, results):
        problems = log.take(name, result.values)
        overlap.see(pairs, direction)
        diagnosis.see(name, pairs, result.arrays, problems)
        for pair in pairs:
            sample.add(name, pair.source, pair.target)
            if num_kept < num_to_count:
                sentences.append(len(split_sentences(pair.source, direction.source)))
                characters.append(len(pair.source))
            num_kept += 1
    if not num_kept:
        raise log.nothing_left("training", name)


def _encode(
    reading: CorpusReader, names: Sequence[str], tokenizers: Tokenizers, folder: Path
) -> EncodedCorpora:
    """Second pass: encode all lines of the corpora ``names``, and store their ids in ``folder``.

    Dropped lines are encoded too, so that the row of a line follows from its number.
    """
    placeholders = reading.recipe.data.placeholders
    vocab_hash = tokenizer_hash(reading.folder / TOKENIZER)
    spans = {}  # first row of each corpus, and the row after its last row
    end = 0
    with StoreWriter(folder, max(tokenizers.vocab_sizes)) as writer:
        for name in names:
            share = placeholders.share if name in reading.recipe.corpora else 0.0
            change = partial(with_symbols, share=share, protect=placeholders.patterns)
            encoding_pass = EncodingPass(tokenizers, reading.workers.threads, change)
            depends_on = [vocab_hash, share, *placeholders.patterns]
            for _, (arrays, _) in reading.map("encoding", name, encoding_pass, depends_on):
                source = FlatIds(arrays["ids_0"], arrays["lengths_0"])
                target = FlatIds(arrays["ids_1"], arrays["lengths_1"])
                # The index of the corpus is not used: `spans` tells the corpora apart.
                writer.append(source, target, 0, arrays["numbers"])
            start = end
            end += reading.num_lines[name]
            spans[name] = (start, end)
    return EncodedCorpora(tokenizers, ParallelStore.open(folder), spans)


def _write(
    part: str,
    reading: CorpusReader,
    encoded: EncodedCorpora,
    log: ProblemLog,
    filters: FilterChain,
    diagnosis: Diagnosis,
) -> ParallelStore:
    """Third pass: drop pairs by length and diagnosis, and store the ids of the kept pairs.

    Args:
        part: `TRAIN` or `VALID`.
        reading: The results of the first pass.
        encoded: The ids of all lines.
        log: Log for the dropped pairs.
        filters: Filters of this part.
        diagnosis: Diagnosis of this part.

    Returns:
        The new store.

    Raises:
        DataError: All pairs of a corpus are dropped, or a corpus has become longer.
    """
    folder = reading.folder / part
    corpora = reading.recipe.corpora if part == TRAIN else reading.recipe.valid_sets
    valid_pairs = list[SentencePair]()
    all_lines = encoded.lines
    with StoreWriter(folder, max(encoded.tokenizers.vocab_sizes)) as writer:
        for index, (name, corpus) in enumerate(corpora.items()):
            source_tag_ids, target_tag_ids = reading.recipe.tag_ids(corpus, encoded.tokenizers)
            results = map_blocks(
                f"writing {name}",
                reading.blocks_to_filter(name, encoded, diagnosis),
                LengthPass(filters, name),
                workers=reading.workers,
                total=reading.num_lines[name],
            )
            for block, (arrays, values) in results:
                log.take(name, values)
                is_kept = arrays["is_kept"]
                if part == TRAIN:
                    log.count_reasons(name, arrays["found"][is_kept])
                rows = encoded.rows(name, block)[is_kept]
                source = all_lines.source.ids(rows).prepend(source_tag_ids)
                target = all_lines.target.ids(rows).prepend(target_tag_ids)
                line_numbers = all_lines.lines[rows]
                writer.append(source, target, index, line_numbers)
                if part == VALID:
                    valid_pairs += kept_pairs(block, is_kept)
    log.check_kept("training" if part == TRAIN else "validation", corpora)
    _write_text(folder, valid_pairs)
    return ParallelStore.open(folder)


def _write_text(folder: Path, pairs: Sequence[SentencePair]) -> None:
    """Write the text of all validation pairs, to score translations during training.

    The lines of a reference that a pair does not have are empty.
    """
    rows = [(pair.source, pair.target, *pair.other_targets) for pair in pairs]
    texts = itertools.zip_longest(*rows, fillvalue="")
    further_names = (f"target.{number}" for number in itertools.count(1))
    names = itertools.chain(("source", "target"), further_names)
    for name, lines in zip(names, texts, strict=False):
        content = "".join(f"{line}\n" for line in lines)
        (folder / f"{name}.txt").write_bytes(content.encode())


def recipe_of(config: RunConfig) -> Recipe:
    """Return the settings that determine the prepared data."""
    recipe = Recipe(config=config, bound=bound_values(config, "data"))
    if not has_data_settings(config):
        return recipe
    # The run will be resumed.
    vocabulary = config.run_dir / TOKENIZER
    if recipe.init_from is None and vocabulary.is_dir():
        recipe = replace(recipe, vocabulary=vocabulary)
    recorded_dir = Path(str(recorded_settings(config.run_dir).get("prepared_dir")))
    for folder in dict.fromkeys((config.prepared_dir, recorded_dir)):
        manifest = trained_on(config.run_dir, folder)
        if manifest is not None:
            return replace(recipe, folder_of_run=folder, hash_of_run=manifest.config_hash)
    return recipe


def _check_settings(config: RunConfig, options: PreparationOptions) -> None:
    """Check settings and files before reading the corpora."""
    check_languages(config.language_codes)
    if options.score_with and len(config.directions) > 1:
        listed = ", ".join(map(str, config.directions))
        raise ConfigError(
            f"`score_with` scores a single direction, but data.train has {listed}.",
            fix="Score each direction with its own configuration.",
        )
    model = config.training.init_from
    if model is not None and not (model / TOKENIZER).is_dir():
        find_start(model)  # raises an error
    if model is not None and config.training.keeps_vocabulary:
        try:
            _check_vocabulary(config, model)
        except ConfigError as error:
            fix = f"{error.fix} Or learn another vocabulary: {differing(config, 'vocabulary')}."
            raise ConfigError(error.problem, fix=fix) from error
    # Both have an entry for each side, unless the vocabulary is learned: then there are no models.
    for path, symbols in zip(config.tokenizer.models or (), config.tag_symbols, strict=False):
        known = Tokenizer.load(path).symbols  # before any other function opens the file
        unknown = [symbol for symbol in symbols if symbol not in known]
        if unknown:
            raise ConfigError(
                f"tokenizer.from: {path} splits {', '.join(unknown)}.",
                fix="Learn it again with these symbols as --user_defined_symbols, or leave "
                "them out.",
            )
    check_files(config.data.corpora)
    check_hub(config.data)


def _check_vocabulary(config: RunConfig, model: Path) -> None:
    """Check that the vocabulary of `training.init_from` has the tags of a configuration.

    Raises:
        ConfigError: A tag is missing or has another place.
    """
    tags = config.language_tags or "null"
    old_tags = tags  # a model without this setting is checked by its vocabulary below
    if (model / CONFIG).is_file():
        old_tags = load_folder_config(model).language_tags or tags
    if old_tags != tags:
        raise ConfigError(
            f"data.language_tags is {tags}, but {old_tags} in training.init_from {model}.",
            fix=f"Set data.language_tags to {old_tags}.",
        )
    tokenizers = load_tokenizers(model / TOKENIZER)
    needed = {
        "placeholders": config.data.placeholders.share and PLACEHOLDER,
        "glossary": config.data.glossary.share and ANNOTATION[0],
    }
    for key, symbol in needed.items():
        if symbol and symbol not in tokenizers.source.symbols:
            raise ConfigError(
                f"data.{key} needs U+{ord(symbol):04X}, which is not in the vocabulary of {model}.",
                fix=f"Set data.{key}.share to 0.",
            )
    recipe = recipe_of(config)
    for corpus in config.data.corpora.values():
        recipe.tag_ids(corpus, tokenizers)  # which raises an error without a tag


def _check_users(folder: Path, users: Sequence[Path], manifest: PreparedManifest) -> None:
    """Check that only the same data replace the data of a folder with users."""
    try:
        old = PreparedManifest.read(folder)
    except DataError:  # missing or damaged
        return
    if users and (old.data_hash, old.vocab_hash) != (manifest.data_hash, manifest.vocab_hash):
        raise _in_use(folder, users, "other data cannot replace its data")


def _check_replaceable(folder: Path, *, is_requested: bool) -> None:
    """Check that the folder contains nothing but prepared data, which a new folder may replace.

    Args:
        folder: The prepared folder; it may be missing.
        is_requested: Whether the user asked to prepare again. Otherwise the reason is logged.

    Raises:
        DataError: The folder contains something else.
    """
    if (folder / MANIFEST).exists():
        if not is_requested:
            why = "was prepared from other corpora or settings, or is damaged"
            logger.info("%s %s; preparing it again", folder, why)
    elif folder.exists() and any(folder.iterdir()):
        raise DataError(
            f"{folder} exists, but was not created by `nmt prepare`.",
            fix="Set prepared_dir to a new folder.",
        )
