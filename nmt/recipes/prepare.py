"""Corpora -> a prepared folder: tokenizers, token stores, manifest and report.

All is written under a temporary name beside the folder and renamed at the end, so that what looks
finished is finished.
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from nmt.config.run import RunConfig, check_languages
from nmt.data.corpus import check_files, corpus_files
from nmt.data.preparation import TOKENIZER, TRAIN, VALID, Preparation
from nmt.data.prepare_report import PrepareReport
from nmt.data.prepared import FORMAT_VERSION, MANIFEST, PreparedData, PreparedManifest
from nmt.errors import ConfigError, DataError
from nmt.files.atomic import sync
from nmt.text.tokenizer import Tokenizers, tokenizer_hash

__all__ = ["PrepareReport", "config_hash", "prepare"]


def prepare(
    config: RunConfig,
    *,
    force: bool = False,
    report_only: bool = False,
    quiet: bool = False,
    check: Callable[[PreparedManifest], None] = lambda _: None,
) -> PrepareReport:
    """Make ``config.prepared_dir``, unless it is up to date.

    Args:
        config: The experiment.
        force: Make it anew in any case.
        report_only: Read and report, but write nothing.
        quiet: Show no progress.
        check: Given what would be written, may raise an error: then all stays as it was.

    Raises:
        ConfigError: A language has another code.
        DataError: A corpus is missing, damaged, not parallel, or leaves no pair; or the folder
            cannot be written.
        TokenizerError: The text allows no vocabulary of this size.
    """
    for path in _source_files(config):
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise DataError(
                f"{path} is a pipe or device, and corpora are read twice.",
                fix="Write the text to a file first.",
            )
    if report_only:
        _check(config)
        with tempfile.TemporaryDirectory(prefix="nmt-prepare-") as scratch:
            return Preparation(config, Path(scratch), stores=False, quiet=quiet).run()[0]
    folder = config.prepared_dir
    up_to_date = PrepareReport(folder=str(folder), up_to_date=True)
    if not force and _is_current(config):
        with suppress(OSError):  # somebody else's folder may be used, if not tidied
            if _left_overs(folder):
                with _alone(folder, quiet=quiet):
                    _sweep(folder)
        return up_to_date
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _alone(folder, quiet=quiet) as has_waited:
            if has_waited and not force and _is_current(config):
                return up_to_date
            return _make(config, folder, check, quiet=quiet)
    except OSError as error:
        raise DataError(
            f"{folder} cannot be written: {error.strerror or error}.",
            fix="Set prepared_dir to a folder you can write to, with room on its disk.",
        ) from error


def _make(
    config: RunConfig, folder: Path, check: Callable[[PreparedManifest], None], *, quiet: bool
) -> PrepareReport:
    _check(config)
    start_from = config.training.start_from
    if start_from is not None and not (start_from / TOKENIZER).is_dir():
        raise ConfigError(
            f"{start_from} (training.start_from) is no model: it has no {TOKENIZER} folder.",
            fix="Name a run or model folder that `nmt train` or `nmt average` wrote.",
        )
    _sweep(folder)
    _refuse_foreign(folder)
    temporary = folder.parent / f".{folder.name}.tmp-{os.getpid()}"
    temporary.mkdir()
    try:
        sources = _describe(_source_files(config))
        report, tokenizers = Preparation(config, temporary, stores=True, quiet=quiet).run()
        if any(not _is_same_file(Path(path), known) for path, known in sources.items()):
            raise DataError(
                "A corpus changed while it was read.",
                fix="Prepare again when nothing writes to the corpora any more.",
            )
        text = json.dumps(report.as_dict(), indent=2, ensure_ascii=False)
        (temporary / "report.json").write_text(text + "\n", encoding="utf-8")
        manifest = _manifest(config, temporary, sources, report, tokenizers)
        check(manifest)
        manifest.write(temporary)
        _sync(temporary)
        _replace(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return report


def _check(config: RunConfig) -> None:
    """Check, before much is read, what can be checked at once."""
    if not (config.run_dir / "checkpoints").is_dir():  # a model that is trained keeps its names
        check_languages(config.languages)
    data = config.data
    check_files({
        **{f"data.train.{number}": corpus for number, corpus in enumerate(data.train)},
        "data.valid": data.valid,
        **{f"data.test.{name}": corpus for name, corpus in data.test.items()},
    })  # fmt: skip


def _left_overs(folder: Path) -> list[Path]:
    return list(folder.parent.glob(f".{glob.escape(folder.name)}.tmp-*"))


def _sweep(folder: Path) -> None:
    """Remove what interrupted runs left; only for who holds the lock."""
    for left_over in _left_overs(folder):
        shutil.rmtree(left_over, ignore_errors=True)


@contextmanager
def _alone(folder: Path, *, quiet: bool) -> Iterator[bool]:
    """Hold the lock of a folder: several trainings may want to prepare it at once.

    Yields:
        Whether another process held it meanwhile.
    """
    path, has_waited = folder.parent / f".{folder.name}.lock", False
    while True:
        with path.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not (quiet or has_waited):
                    sys.stderr.write(f"Another process prepares {folder}; waiting for it.\n")
                has_waited = True
                fcntl.flock(file, fcntl.LOCK_EX)
            if not _is_at(path, file.fileno()):
                continue  # the holder before us has removed it
            try:
                yield has_waited
            finally:
                path.unlink()
            return


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _refuse_foreign(folder: Path) -> None:
    if folder.exists() and not (folder / MANIFEST).exists() and any(folder.iterdir()):
        raise DataError(
            f"{folder} exists, but was not made by `nmt prepare`.",
            fix="Set prepared_dir to another folder, or remove this one.",
        )


def _replace(temporary: Path, folder: Path) -> None:
    """Put the finished folder in place; an older one never stands there half deleted."""
    old = temporary.with_name(f"{temporary.name}-old")
    if folder.exists():
        folder.rename(old)
    temporary.rename(folder)
    sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Wait until the folder's contents are on the disk: a rename may outrun them."""
    for path in [*folder.rglob("*"), folder]:
        sync(path)


def config_hash(config: RunConfig, *, vocab_hash: str | None = None) -> str:
    """Return the hash of everything in the configuration that changes the prepared data.

    ``vocab_hash`` stands for the vocabulary of ``training.start_from`` if that is gone: a run that
    goes on does not need it any more.
    """
    data = config.data.model_dump(mode="json", exclude={"test"})
    for corpus in data["train"]:
        corpus.pop("weight")
    parts = {
        "data": data,
        "tokenizer": config.tokenizer.model_dump(mode="json"),
        "filters": config.filters.model_dump(mode="json"),
        "languages": [config.source_language, config.target_language],
        "format": FORMAT_VERSION,
    }
    start_from = config.training.start_from
    if start_from is not None:  # fine-tuning keeps the vocabulary of the model it starts from
        is_gone = vocab_hash is not None and not (start_from / TOKENIZER).is_dir()
        parts["tokenizer"] = vocab_hash if is_gone else tokenizer_hash(start_from / TOKENIZER)
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _is_current(config: RunConfig) -> bool:
    try:
        manifest = PreparedData.open(config.prepared_dir).manifest
        if manifest.config_hash != config_hash(config, vocab_hash=manifest.vocab_hash):
            return False
        if tokenizer_hash(config.prepared_dir / TOKENIZER) != manifest.vocab_hash:
            return False
    except (DataError, OSError):
        return False
    if set(manifest.sources) != {str(path) for path in _source_files(config)}:
        return False  # a folder of Hugging Face files has more or fewer
    return all(_is_same_file(Path(path), known) for path, known in manifest.sources.items())


def _source_files(config: RunConfig) -> list[Path]:
    corpora = (*config.data.train, config.data.valid)
    return sorted({path for corpus in corpora for path in corpus_files(corpus)})


def _describe(paths: Iterable[Path]) -> dict[str, dict[str, Any]]:
    described = {}
    for path in paths:
        try:
            status = path.stat()
            described[str(path)] = {
                "size": status.st_size,
                "mtime_ns": status.st_mtime_ns,
                "sha256": _sha256(path),
            }
        except OSError:
            continue  # reading it says what is wrong
    return described


def _is_same_file(path: Path, known: Mapping[str, Any]) -> bool:
    """Compare size and time, which is quick; the contents only where the time differs."""
    try:
        status = path.stat()
        if status.st_size != known["size"]:
            return False
        return status.st_mtime_ns == known["mtime_ns"] or _sha256(path) == known["sha256"]
    except OSError:
        return False


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _manifest(
    config: RunConfig,
    folder: Path,
    sources: Mapping[str, Mapping[str, Any]],
    report: PrepareReport,
    tokenizers: Tokenizers,
) -> PreparedManifest:
    arrays = [path for part in (TRAIN, VALID) for path in sorted((folder / part).glob("*.bin"))]
    whole = hashlib.sha256()
    for path in arrays:
        whole.update(path.name.encode())
        whole.update(_sha256(path).encode())
    return PreparedManifest(
        format_version=FORMAT_VERSION,
        config_hash=config_hash(config),
        sources=sources,
        data_hash=whole.hexdigest(),
        vocab_hash=tokenizer_hash(folder / TOKENIZER),
        source_vocab_size=tokenizers.source.vocab_size,
        target_vocab_size=tokenizers.target.vocab_size,
        counts=report.counts,
    )
