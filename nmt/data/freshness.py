"""Whether a prepared folder is what a configuration and its corpora would give again."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from nmt.config.filters import FilterConfig
from nmt.config.run import RunConfig
from nmt.data.corpus import corpus_files
from nmt.data.filters import REASONS
from nmt.data.prepared import (
    FORMAT_VERSION,
    TOKENIZER,
    PreparedData,
    PreparedManifest,
    PrepareReport,
)
from nmt.errors import DataError
from nmt.files.lines import is_standard
from nmt.files.manifest import sha256_of_file, sha256_of_json
from nmt.text.tokenizer import tokenizer_hash


class Asked(NamedTuple):
    """What the configuration does not say."""

    repair: bool
    score_with: tuple[str, ...]

    def is_done(self, manifest: PreparedManifest) -> bool:
        """Whether a prepared folder has it."""
        is_scored = not self.score_with or (*(manifest.scored_with or ()),) == self.score_with
        return is_scored and (manifest.repaired is not None or not self.repair)


def describe_sources(config: RunConfig) -> dict[str, Mapping[str, Any]]:
    """Describe the files that are read."""
    sources: dict[str, Mapping[str, Any]] = {}
    for path in source_files(config):
        with suppress(OSError):  # reading it says what is wrong
            status, digest = path.stat(), sha256_of_file(path)
            known = {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "sha256": digest}
            sources[str(path)] = known
    return sources


def config_hash(config: RunConfig, *, vocab_hash: str | None = None) -> str:
    """Return the hash of everything in the configuration that changes the prepared data.

    ``vocab_hash`` stands for the vocabulary of ``training.start_from`` if that is gone: a run that
    resumes does not need it any more.
    """
    data = config.data.model_dump(
        mode="json",
        exclude={
            "test": True,
            "temperature": True,
            "stages": True,
            "train": {"__all__": {"weight"}},
        },
    )
    # Folders that were made before there were such keys stay valid.
    for corpus in (*data["train"], data["valid"]):
        del corpus["augment"]  # drawn while training reads; the vocabulary knows it, see below
        for key in ("csv", "tag", "scores"):
            if corpus[key] is None:
                del corpus[key]
    without = {
        name
        for name in ("extra", "length", "limits", *REASONS)
        if getattr(config.filters, name) == FilterConfig.model_fields[name].default
    }
    tokenizer = config.tokenizer
    new = ("unused_entries", "user_defined_symbols")
    unsaid = {key for key in new if not getattr(tokenizer, key)}
    parts = {
        "data": data,
        "tokenizer": tokenizer.model_dump(mode="json", exclude=unsaid),
        "filters": config.filters.model_dump(mode="json", exclude=without),
        "languages": [config.source_language, config.target_language],
        "format": FORMAT_VERSION,
    }
    noise = [corpus.augment.rates for corpus in config.data.train]
    start_from = config.training.start_from
    if any(noise) and start_from is None:
        parts["noise"] = noise
    if start_from is not None:  # fine-tuning keeps the vocabulary of the model it starts from
        is_gone = vocab_hash is not None and not (start_from / TOKENIZER).is_dir()
        parts["tokenizer"] = vocab_hash if is_gone else tokenizer_hash(start_from / TOKENIZER)
    return sha256_of_json(parts)


def current_report(
    config: RunConfig, asked: Asked, piped: Path | None = None
) -> PrepareReport | None:
    """Return the report of the folder if it is whole and what would be made again.

    Without ``piped``, which holds standard input, that is taken to be what it was.
    """
    folder = config.prepared_dir
    try:
        manifest = PreparedData.open(folder).manifest
        is_current = (
            asked.is_done(manifest)
            and manifest.config_hash == config_hash(config, vocab_hash=manifest.vocab_hash)
            and manifest.vocab_hash == tokenizer_hash(folder / TOKENIZER)
            # A folder of Hugging Face files may have more or fewer.
            and set(manifest.sources) == {str(path) for path in source_files(config)}
            and are_unchanged(manifest.sources, piped)
        )
    except (DataError, OSError):
        return None
    try:
        return PrepareReport.read(folder) if is_current else None
    except DataError:  # the data are whole, and of the report the counts are in the manifest
        return PrepareReport(folder=str(folder), up_to_date=True, counts=manifest.counts)


def source_files(config: RunConfig) -> list[Path]:
    """Return the files that the prepared data are made of."""
    corpora = (*config.data.train, config.data.valid)
    return sorted({path for corpus in corpora for path in corpus_files(corpus)})


def are_unchanged(sources: Mapping[str, Mapping[str, Any]], piped: Path | None = None) -> bool:
    """Compare sizes and times, which is quick; the contents only where the time differs."""
    try:
        for name, known in sources.items():
            path = Path(name)
            if is_standard(path):
                if piped is not None and sha256_of_file(piped) != known["sha256"]:
                    return False
                continue
            status = path.stat()
            is_touched = status.st_mtime_ns != known["mtime_ns"]
            if status.st_size != known["size"] or (
                is_touched and sha256_of_file(path) != known["sha256"]
            ):
                return False
    except OSError:
        return False
    return True
