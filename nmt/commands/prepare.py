"""Corpora -> a prepared folder: tokenizers, token stores, manifest and report.

All is written under a temporary name beside the folder and renamed at the end, so that what looks
finished is finished.
"""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any

from nmt.config.run import RunConfig, check_languages
from nmt.data.cluster import Workers, open_workers
from nmt.data.corpus import check_files, corpus_files, corpus_names, is_piped
from nmt.data.findings import DROPPED, REPORTED
from nmt.data.freshness import (
    Asked,
    are_unchanged,
    config_hash,
    current_report,
    describe_sources,
    source_files,
)
from nmt.data.hubs import check_hub
from nmt.data.preparation import Preparation
from nmt.data.prepared import (
    FORMAT_VERSION,
    MANIFEST,
    REPORT,
    TOKENIZER,
    PreparedManifest,
    PrepareReport,
)
from nmt.data.shards import shard_folder
from nmt.data.verification import Verified, data_hash, verify_prepared
from nmt.errors import ConfigError, DataError
from nmt.extras.cleaning.page import render_report
from nmt.extras.cleaning.scores import DUAL, LEXICAL, ScorePairs
from nmt.files.atomic import (
    atomic_folder,
    remove_leftovers,
    restore_replaced,
    write_bytes,
    write_errors,
)
from nmt.files.lines import STANDARD, is_standard
from nmt.files.lock import file_lock
from nmt.files.manifest import FileRecord
from nmt.text.tokenizer import Tokenizers, tokenizer_hash

logger = logging.getLogger(__name__)

_SPOOL = "standard-input.tsv"


def _scorer(config: RunConfig, asked: Asked) -> ScorePairs | None:
    """Load the models that score pairs, if there are to be any."""
    if not asked.score_with:
        return None
    from nmt.extras.cleaning.dual import dual_scorer  # noqa: PLC0415 - loads torch

    languages = config.source_language, config.target_language
    return dual_scorer([*map(Path, asked.score_with)], languages)


def prepare(  # noqa: PLR0913 - what a command line may ask for
    config: RunConfig,
    *,
    force: bool = False,
    report_only: bool = False,
    report_dir: Path | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    repair: bool = False,
    piped: IO[bytes] | None = None,
    score_with: Sequence[Path] = (),
    check: Callable[[PreparedManifest], None] = lambda _: None,
) -> PrepareReport:
    """Make ``config.prepared_dir``, unless it is up to date.

    Args:
        config: The experiment.
        force: Make it again in any case.
        report_only: Read and report, but write no prepared folder.
        report_dir: Where to write the report as JSON and as a page, and the lists of findings.
        workers: Processes, of one thread each; None for this one with threads for all processors.
        scheduler: Address of a Dask scheduler, or ``local`` for one on this machine.
        repair: Pair shifted ranges of aligned files again, which the manifest then lists.
        piped: Standard input, for a training corpus with ``tsv: -``. Without it, that corpus must
            have been prepared before.
        score_with: Two models, one for each direction, that score every training pair.
        check: Given what would be written, may raise an error: then all stays as it was.

    Raises:
        ConfigError: A language has another code, a filter does not exist, no scheduler answers, or
            the models are for other languages, or standard input cannot be what the configuration
            says.
        CheckpointError: A model is missing or damaged.
        DataError: A corpus is missing, damaged, not parallel, or leaves no pair; or the folder
            cannot be written.
        TokenizerError: The text allows no vocabulary of this size.
    """
    if repair and config.filters.misaligned == "off":
        raise ConfigError(
            "--repair pairs misaligned ranges again, and filters.misaligned is off.",
            fix="Set filters.misaligned to report.",
        )
    _check_piped(config, piped, is_read=force or report_only)
    for path in source_files(config):
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise DataError(
                f"{path} is a pipe or device, and corpora are read twice.",
                fix="Write the text to a file first.",
            )
    opened = partial(open_workers, workers, scheduler)
    asked = Asked(repair, tuple(map(str, score_with)))
    report = _prepare(config, force, report_only, report_dir, asked, piped, opened, check)
    if report_dir is not None and not report_only:
        _write_report(report, config.prepared_dir, report_dir)
    return report


def verify(config: RunConfig) -> Verified:
    """Compare all files of ``config.prepared_dir`` with what was written.

    Raises:
        DataError: There is no such folder, or files are missing or damaged: names each.
    """
    return verify_prepared(config.prepared_dir)


def _check_piped(config: RunConfig, piped: IO[bytes] | None, *, is_read: bool) -> None:
    """Check that no more is asked of standard input than can be."""
    data = config.data
    count = sum(map(is_piped, data.train))
    others = [
        path for each in data.train for path in (each.source, each.target, each.csv, each.jsonl)
    ]
    for each in (data.valid, *data.test.values()):
        others += corpus_files(each)
    if count > 1 or any(path is not None and is_standard(path) for path in others):
        raise ConfigError(
            "Standard input (-) can be the tsv of one training corpus, and nothing else.",
            fix="Write the other texts to files, and name these.",
        )
    if (
        count
        and piped is None
        and (is_read or current_report(config, asked=Asked(repair=False, score_with=())) is None)
    ):
        raise ConfigError(
            f"A training corpus is standard input, and {config.prepared_dir} does not hold it as "
            "this configuration would have it.",
            fix="Run `nmt prepare CONFIG < FILE` first, with a pipe or a file as its input.",
        )


def _spooled(config: RunConfig, piped: IO[bytes] | None, folder: Path) -> RunConfig:
    """Return a configuration that names a copy of standard input, which is read only once."""
    corpora = list(config.data.train)
    for number, corpus in enumerate(corpora):
        if is_piped(corpus) and piped is not None:
            path = folder / _SPOOL
            with path.open("wb") as file:
                shutil.copyfileobj(piped, file)
            name = corpus_names(corpora)[number]
            corpora[number] = corpus.model_copy(update={"tsv": path, "name": name})
    data = config.data.model_copy(update={"train": tuple(corpora)})
    return config.model_copy(update={"data": data})


def _prepare(
    config: RunConfig,
    force: bool,
    report_only: bool,
    report_dir: Path | None,
    asked: Asked,
    piped: IO[bytes] | None,
    opened: Callable[[], AbstractContextManager[Workers]],
    check: Callable[[PreparedManifest], None],
) -> PrepareReport:
    folder, is_left_alone = config.prepared_dir, not (force or report_only)
    is_known = piped is None or not any(map(is_piped, config.data.train))
    if is_known and is_left_alone and (current := current_report(config, asked)):
        remove_leftovers(folder.parent, folder.name)
        return current
    _check(config)
    if report_only:
        with (
            tempfile.TemporaryDirectory(prefix="nmt-prepare-") as scratch,
            opened() as crew,
        ):
            readable = _spooled(config, piped, Path(scratch))
            report, _, _ = _read(readable, Path(scratch), crew, asked)
            report = replace(report, folder=str(folder), written=False)
            if report_dir is not None:
                _write_report(report, Path(scratch), report_dir)
            return report
    fix = "Set prepared_dir to a folder you can write to, with room on its disk."
    with write_errors(folder, DataError, fix=fix):
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = folder.with_name(f".{folder.name}.lock")
        with file_lock(lock, wait=True, remove=True) as has_waited:
            restore_replaced(folder)
            with shard_folder(folder) as shards:
                readable = _spooled(config, piped, shards)
                is_unsure = is_left_alone and (has_waited or not is_known)
                if is_unsure and (current := current_report(config, asked, shards / _SPOOL)):
                    return current
                if is_left_alone and (folder / MANIFEST).exists():
                    why = "was prepared from other corpora or settings, or is damaged"
                    logger.info("%s %s; preparing it again", folder, why)
                with opened() as crew:
                    return _make(config, readable, crew, asked, check, shards)


def _write_report(report: PrepareReport, lists: Path, folder: Path) -> None:
    """Write the files of a report; ``lists`` is the folder that holds its lists of findings."""
    fix = "Name a folder you can write to, with room on its disk."
    with write_errors(folder, DataError, fix=fix):
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(folder / REPORT, _report_text(report).encode())
        write_bytes(folder / "report.html", render_report(report).encode())
        for name in (DROPPED, REPORTED, LEXICAL, DUAL):
            if (lists / name).exists():  # not in folders that an earlier release made
                write_bytes(folder / name, (lists / name).read_bytes())


def _report_text(report: PrepareReport) -> str:
    return json.dumps(report.as_dict(), indent=2, ensure_ascii=False) + "\n"


def _read(
    config: RunConfig, folder: Path, workers: Workers, asked: Asked, shards: Path | None = None
) -> tuple[PrepareReport, Tokenizers, Sequence[Mapping[str, Any]]]:
    """Read all corpora into a folder, with stores if there are shards.

    Return the ranges that were paired again, too.
    """
    score_pairs = _scorer(config, asked)
    repairs = _shifts(config, workers, shards) if asked.repair else ()
    work = Preparation(
        config,
        folder,
        workers,
        stores=shards is not None,
        repairs=repairs,
        score_pairs=score_pairs,
        shards=shards,
    )
    return *work.run(), repairs


def _shifts(
    config: RunConfig, workers: Workers, shards: Path | None = None
) -> Sequence[Mapping[str, Any]]:
    """Return the shifted ranges of the training corpora."""
    with tempfile.TemporaryDirectory(prefix="nmt-prepare-") as scratch:
        work = Preparation(config, Path(scratch), workers, stores=False, shards=shards)
        report, _ = work.run()
    return [each for each in report.shifts if each["corpus"] in report.findings]


def _make(
    config: RunConfig,
    readable: RunConfig,
    workers: Workers,
    asked: Asked,
    check: Callable[[PreparedManifest], None],
    shards: Path,
) -> PrepareReport:
    folder = config.prepared_dir
    if folder.exists() and not (folder / MANIFEST).exists() and any(folder.iterdir()):
        raise DataError(
            f"{folder} exists, but was not made by `nmt prepare`.",
            fix="Set prepared_dir to another folder, or remove this one.",
        )
    with atomic_folder(folder, replace=True) as temporary:
        sources = describe_sources(readable)
        report, tokenizers, repairs = _read(readable, temporary, workers, asked, shards)
        report = replace(report, folder=str(folder))
        if not are_unchanged(sources):
            raise DataError(
                "A corpus changed while it was read.",
                fix="Prepare again when nothing writes to the corpora any more.",
            )
        (temporary / REPORT).write_text(_report_text(report), encoding="utf-8")
        written = sorted(path for path in temporary.rglob("*") if path.is_file())
        manifest = PreparedManifest(
            format_version=FORMAT_VERSION,
            config_hash=config_hash(config),
            sources={
                STANDARD if Path(path) == shards / _SPOOL else path: each
                for path, each in sources.items()
            },
            data_hash=data_hash(temporary),
            vocab_hash=tokenizer_hash(temporary / TOKENIZER),
            source_vocab_size=tokenizers.source.vocab_size,
            target_vocab_size=tokenizers.target.vocab_size,
            counts=report.counts,
            repaired=repairs if asked.repair else None,
            files={path.relative_to(temporary).as_posix(): FileRecord.of(path) for path in written},
            scored_with=asked.score_with or None,
        )
        check(manifest)
        manifest.write(temporary)
    return report


def _check(config: RunConfig) -> None:
    """Check, before much is read, what can be checked at once."""
    check_languages(config.languages)
    start_from = config.training.start_from
    if start_from is not None and not (start_from / TOKENIZER).is_dir():
        raise ConfigError(
            f"{start_from} (training.start_from) is no model: it has no {TOKENIZER} folder.",
            fix="Name a run or model folder that `nmt train` or `nmt average` wrote.",
        )
    check_files(config.data.corpora)
    for corpus in (*config.data.train, config.data.valid):
        check_hub(corpus)
