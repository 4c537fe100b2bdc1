"""Whether a prepared folder is what a configuration and its corpora would give again."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from nmt.config.data import CorpusConfig, DataConfig, FilterConfig, TokenizerConfig
from nmt.data.corpus import corpus_files, corpus_names, is_piped
from nmt.data.prepare_report import PrepareReport
from nmt.data.prepared import FORMAT_VERSION, TOKENIZER, PreparedData
from nmt.errors import DataError
from nmt.files.json_file import sha256_of_file, sha256_of_json
from nmt.files.lines import STANDARD, is_standard
from nmt.text.tokenizer import tokenizer_hash

_SPOOL = "standard-input.tsv"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """All in a configuration that decides what is prepared."""

    data: DataConfig
    tokenizer: TokenizerConfig  # with the tags of the corpora
    filters: FilterConfig
    languages: tuple[str, str]
    start_from: Path | None  # fine-tuning keeps the vocabulary of the model that it starts from
    input: Path | None = None  # a copy of standard input, if that is a corpus
    bound: Mapping[str, Any]  # the values that ``Binds("data")`` marks in the configuration

    def spooled(self, piped: IO[bytes] | None, folder: Path) -> Recipe:
        """Return a recipe that names a copy of standard input, which can be read only once."""
        train, path = list(self.data.train), folder / _SPOOL
        for number, (name, corpus) in enumerate(self.corpora.items()):
            if is_piped(corpus) and piped is not None:
                with path.open("wb") as file:
                    shutil.copyfileobj(piped, file)
                train[number] = corpus.model_copy(update={"tsv": path, "name": name})
                data = self.data.model_copy(update={"train": tuple(train)})
                return replace(self, data=data, input=path)
        return self

    @property
    def corpora(self) -> dict[str, CorpusConfig]:
        """Training corpora, by their names in reports."""
        return dict(zip(corpus_names(self.data.train), self.data.train, strict=True))

    @property
    def files(self) -> list[Path]:
        """All files that the prepared data are made of."""
        corpora = (*self.data.train, self.data.valid)
        return sorted({path for corpus in corpora for path in corpus_files(corpus)})

    def hash(self, vocab_hash: str | None = None) -> str:
        """Return a hash of all that changes the prepared data, but for the text of the corpora.

        Args:
            vocab_hash: Stands for the vocabulary of ``start_from`` if that is gone: a run that
                resumes does not need it any more.
        """
        bound = dict(self.bound)
        if self.start_from is None:  # the vocabulary is learned from text with the noise
            bound["noise"] = [corpus.augment.rates for corpus in self.data.train]
        else:
            place = self.start_from / TOKENIZER
            is_gone = vocab_hash is not None and not place.is_dir()
            bound["tokenizer"] = vocab_hash if is_gone else tokenizer_hash(place)
        return sha256_of_json([FORMAT_VERSION, bound])


def describe_sources(recipe: Recipe) -> dict[str, Mapping[str, Any]]:
    """Return size, time and hash of each file that is read, by its path."""
    sources: dict[str, Mapping[str, Any]] = {}
    for path in recipe.files:
        with suppress(OSError):  # reading it says what is wrong
            status, digest = path.stat(), sha256_of_file(path)
            sources[STANDARD if path == recipe.input else str(path)] = {
                "size": status.st_size, "mtime_ns": status.st_mtime_ns, "sha256": digest
            }  # fmt: skip
    return sources


def current_report(
    folder: Path, recipe: Recipe, scored_with: tuple[str, ...] = (), piped: Path | None = None
) -> PrepareReport | None:
    """Return the report of a prepared folder if it is whole and would be made again as it is.

    Args:
        folder: The prepared folder.
        recipe: What would be made.
        scored_with: Models that would score the pairs; a folder with scores is as good as without.
        piped: A copy of standard input; without it, that is taken to be what it was.
    """
    try:
        manifest = PreparedData.open(folder).manifest
        is_current = (
            (not scored_with or tuple(manifest.scored_with) == scored_with)
            and manifest.config_hash == recipe.hash(manifest.vocab_hash)
            and manifest.vocab_hash == tokenizer_hash(folder / TOKENIZER)
            # A folder of Hugging Face files may have more or fewer.
            and set(manifest.sources) == {str(path) for path in recipe.files}
            and are_unchanged(manifest.sources, piped)
        )
        return PrepareReport.read(folder) if is_current else None
    except (DataError, OSError):
        return None


def are_unchanged(sources: Mapping[str, Mapping[str, Any]], piped: Path | None = None) -> bool:
    """Compare sizes and times, which is quick; the contents only where the time differs."""
    try:
        return all(_is_unchanged(Path(name), known, piped) for name, known in sources.items())
    except OSError:
        return False


def _is_unchanged(path: Path, known: Mapping[str, Any], piped: Path | None) -> bool:
    if is_standard(path):
        return piped is None or sha256_of_file(piped) == known["sha256"]
    status = path.stat()
    return status.st_size == known["size"] and (
        status.st_mtime_ns == known["mtime_ns"] or sha256_of_file(path) == known["sha256"]
    )
