"""``nmt prepare``: corpora -> a prepared folder: tokenizers, token stores, report and manifest.

The steps, from top to bottom:

`prepare` reads the options and the configuration. `prepare_data` keeps an up-to-date folder.
Otherwise it creates a new folder under a temporary name and renames it at the end, so that a folder
is always complete. `_read_corpora` reads the text three times:

1. `_look` applies the filters that need only text, such as a limit of characters, and counts and
   lists the dropped pairs. It draws a sample of the other pairs.
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

import logging
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import compress
from pathlib import Path
from random import Random
from typing import IO, Any

import numpy as np

from nmt.checkpoint.model_folder import CONFIG, PROFILES, SHORTLIST, load_folder_config
from nmt.checkpoint.run import has_data_settings, trained_on
from nmt.commands.config import load_config
from nmt.commands.options import PreparationOptions, PrepareOptions, TextResult
from nmt.config.data import CorpusConfig, Direction
from nmt.config.run import RunConfig, check_languages
from nmt.config.section import bound_values
from nmt.data import filters as pair_filters
from nmt.data import prepare_report, prepared
from nmt.data.checks import Overlap, held_out_sets, name_of_test
from nmt.data.corpus import VALID, check_files, check_plain_text, check_sources
from nmt.data.filters import Diagnosis, FilterChain, Material
from nmt.data.hubs import check_hub
from nmt.data.language_profiles import learn_profiles
from nmt.data.lexicon import write_shortlist
from nmt.data.pairs import SentencePair
from nmt.data.prepare_report import READ, Findings, PrepareReport, current_report
from nmt.data.prepared import TOKENIZER, TRAIN, PreparedManifest, Recipe
from nmt.data.reading import Decide, Encode, Encoded, Look, Reading
from nmt.data.resegment import noisy_texts
from nmt.data.store import ParallelStore, StoreWriter
from nmt.data.vocabulary import TextSample, learn_tokenizers
from nmt.data.workers import has_changed, map_blocks, open_workers, work_folder
from nmt.errors import ConfigError, DataError
from nmt.files import atomic
from nmt.files.json_file import MANIFEST
from nmt.files.lines import read_lines
from nmt.files.progress import progress_bar
from nmt.text.flat import FlatIds
from nmt.text.tokenizer import Tokenizer, Tokenizers, load_tokenizers, tokenizer_hash

logger = logging.getLogger(__name__)

_NOISE_SEED = 1


def prepare(options: PrepareOptions) -> PrepareReport | TextResult:
    """Prepare the data of a configuration, or verify prepared data.

    Raises:
        NmtError: See `prepare_data`; or a file of the folder to verify is missing or damaged.
    """
    config = load_config(options.config, options.set_)
    if options.verify:
        folder, files = config.prepared_dir, prepared.verify_prepared(config.prepared_dir)
        count, size = len(files), sum(each.size for each in files.values())
        text = f"{folder}: {count:,} files, {size:,} bytes, all undamaged"
        return TextResult(text, {"folder": str(folder), "files": count, "bytes": size})
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
        piped: Standard input, for a training corpus with ``tsv: -``. Without it, the corpus must
            already be prepared.
        check: Called with the new manifest. If it raises, the previous folder is kept.

    Raises:
        ConfigError: A language code is invalid, a filter does not exist, no scheduler answers, or
            standard input does not match the configuration.
        DataError: A corpus is missing, damaged or not parallel, all pairs are dropped, or the
            folder cannot be written.
        TokenizerError: The vocabulary size does not fit the text.
    """
    options = options or PreparationOptions()
    folder, recipe = config.prepared_dir, recipe_of(config)
    scored_with = tuple(map(str, options.score_with))
    ignores_existing = options.force or options.report_only
    reads_stdin = check_sources(config.data)
    # The report of an existing folder that was prepared with these settings and corpora.
    fresh = None if ignores_existing else current_report(folder, recipe, scored_with)
    if reads_stdin and piped is None and fresh is None:
        fix = "First run `nmt prepare CONFIG < FILE`, or pipe the corpus to this command."
        problem = f"The training corpus is standard input, but {folder} does not match"
        raise ConfigError(f"{problem} or is missing.", fix=fix)
    # Standard input can be compared only after it is stored: below.
    if fresh and not (reads_stdin and piped):
        atomic.remove_leftovers(folder.parent, folder.name)
        return fresh.written_to(options.report_dir, lists=folder)
    _check(config, options)

    if options.report_only:
        with tempfile.TemporaryDirectory(prefix="nmt-prepare-") as name:
            scratch = Path(name)
            with open_workers(options.workers, options.scheduler) as workers:
                reading = Reading(recipe.spooled(piped, scratch), scratch, workers)
                report = _read_corpora(reading, options.score_with)
            report = replace(report, folder=str(folder), written=False)
            return report.written_to(options.report_dir, lists=scratch)

    fix = "Set prepared_dir to a folder you can write to, with free space on its disk."
    with atomic.write_errors(folder, DataError, fix=fix):
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = folder.with_name(f".{folder.name}.lock")
        with atomic.file_lock(lock, wait=True, remove=True) as has_waited:
            atomic.restore_replaced(folder)  # after a kill between two renames
            with work_folder(folder) as work:
                readable = recipe.spooled(piped, work)
                # Another process has prepared the folder meanwhile, or standard input is stored.
                if not ignores_existing and (has_waited or reads_stdin):
                    fresh = current_report(folder, recipe, scored_with, readable.input)
                    if fresh is not None:
                        return fresh.written_to(options.report_dir, lists=folder)
                _check_ours(folder, is_anew=ignores_existing)
                with (
                    open_workers(options.workers, options.scheduler) as workers,
                    atomic.atomic_folder(folder, replace=True) as new,
                ):
                    sources = prepared.describe_sources(readable)
                    reading = Reading(readable, new, workers, shards=work)
                    report = _read_corpora(reading, options.score_with)
                    if not prepared.are_unchanged(sources, readable.input):
                        raise has_changed("in a file")
                    report = replace(report, folder=str(folder))
                    report.write(new)
                    # Written last: a folder without a manifest is incomplete.
                    manifest = PreparedManifest.describe(
                        new, recipe.hash(), sources, report.counts, scored_with
                    )
                    check(manifest)
                    manifest.write(new)
    return report.written_to(options.report_dir, lists=folder)


def _read_corpora(reading: Reading, score_with: Sequence[Path]) -> PrepareReport:
    """Read all corpora into the folder.

    Raises:
        DataError: A corpus is missing, damaged, not parallel or changing, or all pairs are dropped.
        TokenizerError: The vocabulary size does not fit the text.
    """
    begin, recipe, folder = time.perf_counter(), reading.recipe, reading.folder
    config = recipe.config
    for corpus in recipe.data.corpora.values():
        check_plain_text(corpus, config.direction(corpus))
    sets, unchecked = held_out_sets(recipe)
    directions = {name: config.direction(x) for name, x in {**sets, **recipe.corpora}.items()}
    pairs = dict.fromkeys(directions[name] for name in recipe.corpora)
    profiles = learn_profiles(recipe)
    chains = {x: pair_filters.training_filters(config.filters, *x, profiles) for x in pairs}
    filters = next(iter(chains.values()))  # all chains have the same actions
    # Not `folder`, which Windows could not rename while workers have files in it mapped.
    scratch = reading.shards or folder
    with Findings(folder, filters, recipe.corpora, recipe.valid_sets) as findings:
        held_out = {name: _look_at_set(reading, findings, name, sets[name]) for name in sets}
        overlap = Overlap(held_out, directions)
        material = Material(
            filters=config.filters, languages=next(iter(chains)), directions=directions,
            corpora=recipe.corpora, held_out=held_out, score_with=score_with, folder=folder,
            scratch=scratch, workers=reading.workers,
        )  # fmt: skip
        diagnosis = pair_filters.make_diagnosis(material, filters)
        with reading.stage("reading"):
            sample = _look(reading, chains, findings, overlap, diagnosis)
            diagnosis.end({name: reading.num_lines[name] for name in recipe.corpora})
        with reading.stage("vocabulary"), progress_bar("learning subwords", leave=False):
            unlearned = learn_tokenizers(sample, folder / TOKENIZER, recipe)
            tokenizers = load_tokenizers(folder / TOKENIZER)
        with reading.stage("encoding"):
            # Test sets are encoded only if the diagnosis compares their words with training data.
            scanned = [*recipe.data.test] if diagnosis.compares_words else []
            to_encode = [*recipe.corpora, *recipe.valid_sets]
            to_encode += [name_of_test(name) for name in sets if name in scanned]
            encoded = _encode(reading, to_encode, tokenizers, scratch / "lines")
        if diagnosis.compares_words:
            with reading.stage("lexicon"):
                diagnosis.learn(encoded.lines, encoded.spans, tokenizers.vocab_sizes)
        with reading.stage("writing"):
            _write(reading, TRAIN, (filters, findings), encoded, diagnosis)
            valid_filters = pair_filters.held_out_filters(config.filters)
            _write(reading, VALID, (valid_filters, findings), encoded, Diagnosis(material))
        train, valid = (ParallelStore.open(folder / part) for part in (TRAIN, VALID))
        sides, valid_sides = (
            prepare_report.report_sides(store, [*map(config.direction, corpora)], tokenizers)
            for store, corpora in ((train, recipe.data.training), (valid, recipe.data.validation))
        )
        with reading.stage("shortlist"), progress_bar("making shortlists", leave=False):
            sizes, lexicon = tokenizers.vocab_sizes, diagnosis.lexicon
            write_shortlist(folder / SHORTLIST, train, sizes, lexicon)
        if profiles.log_probs:
            atomic.write_json(folder / PROFILES, asdict(profiles))
        said, reported = diagnosis.report(), findings.report()
    if "language" in reported["reasons"]:
        reported["reasons"]["language"] |= said.languages
    idle = dict.fromkeys(text for each in chains.values() for text in each.warnings)
    warnings = [*idle, *prepare_report.lost_pairs(reported["counts"], recipe.corpora), *unlearned]
    for name, check in reading.checks.items():
        warnings += (f"{name}: {text}" for text in check.warnings())
    targets = read_lines(folder / VALID / "target.txt")
    warnings += prepare_report.loss_warnings(targets, tokenizers.target)
    warnings += [*said.warnings, *prepare_report.coverage_warnings(valid_sides)]
    return PrepareReport(
        folder=str(folder), up_to_date=False, **reported, shifts=[*said.shifts],
        unrelated=[*said.unrelated], leakage=[*said.leakage], overlap=overlap.counts(said.near),
        unchecked=unchecked, lengths=prepare_report.sample_lengths(train), sides=sides,
        joint=config.tokenizer.joint, skipped={**filters.skipped, **said.skipped},
        notes=[*dict.fromkeys(x for each in chains.values() for x in each.notes), *said.notes],
        warnings=warnings,
        seconds=time.perf_counter() - begin, stages=reading.stages,
    )  # fmt: skip


def _look_at_set(
    reading: Reading, findings: Findings, name: str, corpus: CorpusConfig
) -> list[SentencePair]:
    """Return the pairs of a held-out set without blank or too long sides (in characters).

    `_write` later drops validation pairs with too many subwords.
    """
    is_valid, usable = name in reading.recipe.valid_sets, list[SentencePair]()
    where = name if is_valid else name_of_test(name)
    look = Look(pair_filters.held_out_filters(reading.recipe.config.filters), where)
    for block in reading.blocks(corpus):
        result = look(block)
        usable += reading.saw(where, corpus, block, result)
        if is_valid:
            findings.take(name, result.values)
            findings.counts[name][READ] += len(block)
    return usable


def _look(
    reading: Reading,
    chains: Mapping[Direction, FilterChain],
    findings: Findings,
    overlap: Overlap,
    diagnosis: Diagnosis,
) -> TextSample:
    """First pass over the training corpora. Return the sample that the vocabulary learns from.

    Raises:
        DataError: The filters of texts drop all pairs of a corpus, or a corpus cannot be read.
    """
    recipe, random = reading.recipe, Random(_NOISE_SEED)
    directions = {name: recipe.config.direction(each) for name, each in recipe.corpora.items()}
    # Each pair has two sentences.
    sample = TextSample(directions, recipe.config.tokenizer.sample_sentences // 2)
    for name, corpus in recipe.corpora.items():
        direction, rates = recipe.config.direction(corpus), corpus.noise.rates
        look = Look(chains[direction], name, diagnosis.look)
        num_left = 0
        for block, result in reading.map("reading", name, look, diagnosis.depends_on):
            found = findings.take(name, result.values)
            findings.counts[name][READ] += len(block)
            kept = reading.saw(name, corpus, block, result)
            overlap.see(kept, direction)
            diagnosis.see(name, kept, result.arrays, found)
            num_left += len(kept)
            for source, target, _ in kept:
                pair = source, target
                # The vocabulary should contain the noise that training adds.
                noisy = noisy_texts(pair, rates, random) if rates else pair
                sample.add(name, *noisy)
        if not num_left:
            raise findings.nothing_left("training", name)
    return sample


def _encode(reading: Reading, names: list[str], tokenizers: Tokenizers, folder: Path) -> Encoded:
    """Encode all lines of the corpora ``names``, and write the ids to a store in ``folder``."""
    models, spans, end = tokenizer_hash(reading.folder / TOKENIZER), {}, 0
    encode = Encode(tokenizers, reading.workers.threads)
    with StoreWriter(folder, max(tokenizers.vocab_sizes)) as writer:
        for name in names:
            for _, (arrays, _) in reading.map("encoding", name, encode, models):
                source, target = (
                    FlatIds(arrays[f"ids_{side}"], arrays[f"lengths_{side}"]) for side in (0, 1)
                )
                writer.append(source, target, 0, arrays["numbers"])
            spans[name] = end, end + reading.num_lines[name]
            end += reading.num_lines[name]
    return Encoded(tokenizers, ParallelStore.open(folder), spans)


def _write(
    reading: Reading,
    part: str,
    judges: tuple[FilterChain, Findings],
    encoded: Encoded,
    diagnosis: Diagnosis,
) -> None:
    """Third pass: drop pairs of a part by ``judges`` and diagnosis; store the kept token ids."""
    recipe, (filters, findings), (tokenizers, lines, spans) = reading.recipe, judges, encoded
    corpora = recipe.corpora if part == TRAIN else recipe.valid_sets
    place = reading.folder / part
    with StoreWriter(place, max(tokenizers.vocab_sizes)) as writer:
        for index, (name, corpus) in enumerate(corpora.items()):
            of_source, of_target = recipe.tag_ids(corpus, tokenizers)
            blocks = reading.known_blocks(name, encoded, diagnosis)
            for block, (arrays, values) in map_blocks(
                f"writing {name}", blocks, Decide(filters, name),
                workers=reading.workers, total=reading.num_lines[name],
            ):  # fmt: skip
                findings.take(name, values)
                # Row of the block's first line in `lines`; line numbers count from 1.
                is_kept, start = arrays["is_kept"], spans[name][0] + block.first - 1
                rows = np.arange(start, start + len(block))
                source = lines.source_ids(rows).selected(is_kept, of_source)
                target = lines.target_ids(rows).selected(is_kept, of_target)
                writer.append(source, target, index, lines.lines[rows[is_kept]])
                if part == VALID:
                    _append_text(place, [*compress(block.pairs, is_kept)])
    findings.check_kept("training" if part == TRAIN else "validation", corpora)


def _append_text(folder: Path, pairs: Sequence[Any]) -> None:
    """Write the text of validation pairs, to score translations during training."""
    for side in ("source", "target"):
        with (folder / f"{side}.txt").open("ab") as file:
            file.write("".join(f"{getattr(pair, side)}\n" for pair in pairs).encode())


def recipe_of(config: RunConfig) -> Recipe:
    """Return the settings that determine the prepared data."""
    recipe = Recipe(config=config, bound=bound_values(config, "data"))
    vocabulary = config.run_dir / TOKENIZER
    if recipe.init_from is not None or not vocabulary.is_dir() or not has_data_settings(config):
        return recipe
    of_run = trained_on(config.run_dir, config.prepared_dir)
    hash_of_run = None if of_run is None else of_run.config_hash
    return replace(recipe, vocabulary=vocabulary, hash_of_run=hash_of_run)


def _check(config: RunConfig, options: PreparationOptions) -> None:
    """Check settings and files before reading the corpora."""
    check_languages(config.language_codes)
    if options.score_with and len(config.directions) > 1:
        found = ", ".join(map(str, config.directions))
        problem = f"`score_with` scores a single direction, but data.train has {found}."
        raise ConfigError(problem, fix="Score each direction with its own configuration.")
    init_from = config.training.init_from
    if init_from is not None and not (init_from / TOKENIZER).is_dir():
        problem = f"training.init_from {init_from} is not a model: it has no {TOKENIZER} folder."
        fix = "Use a run folder, or a folder created by `nmt average` or `nmt import`."
        raise ConfigError(problem, fix=fix)
    if init_from is not None and config.training.keeps_vocabulary:
        has_config, now = (init_from / CONFIG).is_file(), config.language_tags or "null"
        was = load_folder_config(init_from).language_tags if has_config else None
        if was not in (None, now):
            problem = f"data.language_tags is {now}, but {was} in training.init_from {init_from}."
            raise ConfigError(problem, fix=f"Set data.language_tags to {was}.")
        tokenizers = load_tokenizers(init_from / TOKENIZER)
        for corpus in config.data.corpora.values():
            recipe_of(config).tag_ids(corpus, tokenizers)  # which raises an error without a tag
    for path, symbols in zip(config.tokenizer.models or (), config.tag_symbols, strict=False):
        lacking = [symbol for symbol in symbols if symbol not in Tokenizer.load(path).symbols]
        if lacking:
            problem = f"tokenizer.from: {path} splits {', '.join(lacking)}."
            fix = "Learn it again with these symbols as --user_defined_symbols, or leave them out."
            raise ConfigError(problem, fix=fix)
    check_files(config.data.corpora)
    check_hub(config.data)


def _check_ours(folder: Path, *, is_anew: bool) -> None:
    """Check that the folder can be replaced; ``is_anew``: the user asked to prepare again."""
    if (folder / MANIFEST).exists():
        if not is_anew:
            why = "was prepared from other corpora or settings, or is damaged"
            logger.info("%s %s; preparing it again", folder, why)
    elif folder.exists() and any(folder.iterdir()):
        fix = "Set prepared_dir to a new folder, or remove this folder."
        raise DataError(f"{folder} exists, but was not created by `nmt prepare`.", fix=fix)
