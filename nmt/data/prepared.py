"""The prepared folder that `nmt prepare` writes: its manifest, its checks, and its data."""

from __future__ import annotations

import glob
import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from pydantic import TypeAdapter

from nmt.config.data import CorpusConfig, DataConfig, tagged_languages
from nmt.config.loader import CONFIG, read_settings
from nmt.config.run import RunConfig
from nmt.data.corpus import VALID, corpus_files, corpus_names, is_piped, valid_sets
from nmt.data.formats.text import SPOOL
from nmt.data.store import ParallelStore
from nmt.errors import ConfigError, DataError, shell_command
from nmt.files.atomic import write_json
from nmt.files.json_file import (
    MANIFEST,
    FileRecord,
    SealedManifest,
    damage,
    field,
    read_json,
    sha256_of_file,
    sha256_of_json,
)
from nmt.files.lines import STANDARD, is_standard, read_lines
from nmt.text.tokenizer import Tokenizers, load_tokenizers, tokenizer_hash

FORMAT_VERSION = 2
# Subfolders, in addition to `VALID`.
TRAIN = "train"
TOKENIZER = "tokenizer"
LINKS = "links"
# Files that the manifest does not contain, because equal preparations may differ in them: the time
# that the preparation took, and the run folders that use the data.
TIMES = "times.json"
USERS = "users.json"
AGAIN = f"Run `{shell_command('prepare', 'CONFIG', force=True)}`."
_NUM_DIGITS = 8  # Of the hash in the name of a folder.
_LEARNING = 2  # Raised when vocabularies are learned in another way.
# Keys that older versions do not have, with the default that changes nothing; and the keys that
# older versions have instead, in every corpus.
_LATER_KEYS: Mapping[str, Any] = {
    "path": None, "format": None, "columns": None, "encoding": None, "on_bad_row": "error",
    "held_out": "report", "target_languages": [], "source_languages": [], "language_file": None,
    "placeholders": {"share": 0.0, "patterns": []}, "glossary": {"share": 0.0},
}  # fmt: skip
_FORMER_KEYS = {"tsv": None, "csv": None, "jsonl": None, "columns": [0, 1]}
# Keys of the data section that say how often training reads each corpus.
_WEIGHTS: Any = {
    "train": {"__all__": {"weight"}},
    "replay": {"share": True, "train": {"__all__": {"weight"}}},
    "stages": True,
    "temperature": True,
}


@dataclass(frozen=True, kw_only=True)
class PreparedManifest(SealedManifest):
    """The inputs and the files of a prepared folder."""

    format_version: int = FORMAT_VERSION
    config_hash: str  # hash of the configuration keys that change the result
    sources: Mapping[str, Mapping[str, Any]]  # input files: size, time and SHA-256, by path
    data_hash: str  # hash of all files of the token stores
    vocab_hash: str  # hash of the SentencePiece models
    source_vocab_size: int
    target_vocab_size: int
    counts: Mapping[str, Mapping[str, int]]  # by corpus: pairs read, kept, and dropped by reason
    max_sentences: int = 1  # 90% of the training lines do not have more sentences
    max_characters: int | None = None  # 99% of the training lines are not longer
    scored_with: Sequence[str] = ()  # models that have scored the pairs
    files: Mapping[str, FileRecord]  # every other file of the folder

    @classmethod
    def describe(
        cls,
        folder: Path,
        config_hash: str,
        sources: Mapping[str, Mapping[str, Any]],
        counts: Mapping[str, Mapping[str, int]],
        scored_with: Sequence[str],
        *,
        max_sentences: int,
        max_characters: int | None,
    ) -> PreparedManifest:
        """Make the manifest of a folder in which all other files are complete."""
        files = {}  # records by relative path
        data_hash = hashlib.sha256()  # of the files of the token stores, which end with .bin
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.name != TIMES:
                record = FileRecord.of(path)
                files[path.relative_to(folder).as_posix()] = record
                if path.suffix == ".bin":
                    data_hash.update((path.name + record.sha256).encode())
        source_vocab_size, target_vocab_size = load_tokenizers(folder / TOKENIZER).vocab_sizes
        return cls(
            config_hash=config_hash,
            sources=sources,
            data_hash=data_hash.hexdigest(),
            vocab_hash=tokenizer_hash(folder / TOKENIZER),
            source_vocab_size=source_vocab_size,
            target_vocab_size=target_vocab_size,
            counts=counts,
            max_sentences=max_sentences,
            max_characters=max_characters,
            scored_with=scored_with,
            files=files,
        )

    @classmethod
    def read(cls, folder: Path) -> PreparedManifest:
        """Read the manifest of ``folder``.

        Raises:
            DataError: The manifest is missing or damaged, or has a different format version.
        """
        path = folder / MANIFEST
        try:
            values = cls.sealed_values(path)
            version = values["format_version"]
            if version == FORMAT_VERSION:  # for another version see the end
                return TypeAdapter(cls).validate_python(values)
        except FileNotFoundError as error:
            raise DataError(
                f"{folder} is not a prepared folder: {MANIFEST} is missing.",
                fix="Run `nmt prepare CONFIG`.",
            ) from error
        except (OSError, ValueError) as error:
            raise DataError(f"{path} is damaged: {error}", fix=AGAIN) from error
        raise DataError(
            f"{path} has format version {version}; this release reads {FORMAT_VERSION}.", fix=AGAIN
        )


def verify_prepared(folder: Path) -> Mapping[str, FileRecord]:
    """Compare all files of a prepared folder with its manifest; return their records.

    Raises:
        DataError: The manifest or a file is missing or damaged. The message lists every file.
    """
    files = PreparedManifest.read(folder).files
    problems = list(damage(folder, files, files))
    if problems:
        raise DataError("\n  ".join(problems), fix=AGAIN)
    return files


def users(folder: Path, besides: Path | None = None) -> list[Path]:
    """Return the run folders that use a prepared folder, relative to the working directory.

    Deleted runs, and runs that now use another folder, do not count.

    Args:
        folder: The prepared folder.
        besides: A run that does not count either.
    """
    try:
        names = field(read_json(folder / USERS), kind=list)
    except (OSError, ValueError):  # no run has used the folder
        return []
    runs = [Path(os.path.relpath(folder.resolve() / name)) for name in names]
    if besides is not None:
        besides = Path(os.path.relpath(besides.resolve()))
    return [run for run in runs if run != besides and _is_user(run, folder)]


def _is_user(run: Path, folder: Path) -> bool:
    """Whether a run that has used ``folder`` still exists and uses it."""
    try:
        recorded = Path(str(read_settings(run / CONFIG)["prepared_dir"]))
    except (ConfigError, KeyError):  # a run that starts has no configuration yet
        return run.is_dir()
    recorded_names = {recorded.name, recorded.resolve().name}  # either may be a symbolic link
    return not recorded_names.isdisjoint({folder.name, folder.resolve().name})


def add_user(folder: Path, run: Path) -> None:
    """Record that a run uses a prepared folder. The caller must hold the lock of the folder.

    Paths are relative to the folder, so that a project can be moved.

    Raises:
        OSError: The folder cannot be written.
    """
    place = folder.resolve()
    names = set[str]()
    for user in (*users(folder), run):
        name = str(user.resolve())
        with suppress(ValueError):  # another drive on Windows
            name = os.path.relpath(name, place)
        names.add(name)
    write_json(folder / USERS, sorted(names))


class PreparedData:
    """The data of a prepared folder, read-only. The text is read once."""

    def __init__(self, folder: Path, manifest: PreparedManifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self.train = ParallelStore.open(folder / TRAIN)
        self.valid = ParallelStore.open(folder / VALID)

    @classmethod
    def open(cls, folder: Path) -> PreparedData:
        """Open a prepared folder.

        Raises:
            DataError: The folder is missing, incomplete or damaged.
        """
        return cls(folder, PreparedManifest.read(folder))

    @property
    def tokenizer_dir(self) -> Path:
        """Folder of the SentencePiece models."""
        return self.folder / TOKENIZER

    @cached_property
    def valid_source(self) -> list[str]:
        """Source lines of all validation sets, in the order of the token store."""
        return read_lines(self.folder / VALID / "source.txt")

    @cached_property
    def valid_target(self) -> list[str]:
        """Reference lines of all validation sets, in the order of the token store."""
        return read_lines(self.folder / VALID / "target.txt")

    @cached_property
    def valid_references(self) -> list[list[str]]:
        """Lines of each reference; the first ones are `valid_target`.

        The lines of a set with fewer references are empty.
        """
        files = (self.folder / VALID).glob("target.*.txt")
        return [self.valid_target, *map(read_lines, sorted(files))]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The parts of a configuration that determine the prepared data."""

    config: RunConfig
    input: Path | None = None  # a copy of standard input, if it is a corpus
    # The tokenizers of a run that will be resumed, and its prepared folder with the hash of the
    # recipe. Another version of nmt may have made them, which learned or filtered in another way.
    # The text of the folder may have changed since.
    vocabulary: Path | None = None
    folder_of_run: Path | None = None
    hash_of_run: str | None = None
    bound: Mapping[str, Any]  # values of the keys that ``Binds("data")`` marks

    @property
    def data(self) -> DataConfig:
        """The data section, which contains the path of the copy of standard input."""
        return self.config.data

    @property
    def init_from(self) -> Path | None:
        """The model whose vocabulary is copied; None if a vocabulary is learned."""
        training = self.config.training
        return training.init_from if training.keeps_vocabulary else None

    def spooled(self, piped: IO[bytes] | None, folder: Path) -> Recipe:
        """Copy standard input, which can be read only once, and return a recipe with the copy.

        Args:
            piped: Standard input; None if it was not opened.
            folder: Folder for the copy.

        Returns:
            A recipe in which the copy replaces ``path: -``; this recipe if no corpus has it.
        """
        are_piped = list(map(is_piped, self.data.train))
        if piped is None or not any(are_piped):
            return self
        path = folder / SPOOL
        with path.open("wb") as file:
            shutil.copyfileobj(piped, file)
        train = list(self.data.train)
        index = are_piped.index(True)  # `check_sources` allows only one
        name = list(self.corpora)[index]  # in reports; not the path of the copy
        train[index] = train[index].model_copy(update={"path": (path,), "name": name})
        data = self.data.model_copy(update={"train": tuple(train)})
        config = self.config.model_copy(update={"data": data})
        return replace(self, config=config, input=path)

    @property
    def corpora(self) -> dict[str, CorpusConfig]:
        """Training corpora, by their names in reports."""
        return dict(zip(corpus_names(self.data.training), self.data.training, strict=True))

    @property
    def valid_sets(self) -> dict[str, CorpusConfig]:
        """Validation sets, by their names in reports."""
        return valid_sets(self.data)

    def tag_ids(self, corpus: CorpusConfig, tokenizers: Tokenizers) -> tuple[list[int], list[int]]:
        """Return the ids in front of each source and target: language tag, then ``tag``.

        Raises:
            ConfigError: The vocabulary does not contain a tag.
        """
        direction = self.config.direction(corpus)
        # Languages of the tags in front of the source and of the target; None without a tag.
        source_code, target_code = tagged_languages(self.config.language_tags, direction)
        source_ids = []
        target_ids = []
        if source_code is not None:
            source_ids.append(tokenizers.source.language_id(source_code))
        if target_code is not None:
            target_ids.append(tokenizers.target.language_id(target_code))
        if corpus.tag is not None:
            tag_id = tokenizers.source.tag_id(corpus.tag)
            if tag_id not in source_ids:  # it may be the tag of the language
                source_ids.append(tag_id)
        return source_ids, target_ids

    @property
    def _is_weighted(self) -> bool:
        """Whether the vocabulary is learned from some corpora more than from others."""
        if self.config.tokenizer.models is not None:  # it is not learned
            return False
        data = self.data
        weights = {corpus.weight for corpus in data.training}
        has_weights = len(weights) > 1 or data.temperature != 1
        return has_weights or bool(data.stages or data.replay)

    @property
    def drops_held_out(self) -> bool:
        """Whether the prepared data depend on the test sets."""
        return self.config.filters.held_out == "drop"

    @property
    def files(self) -> list[Path]:
        """All input files."""
        files = set[Path]()
        corpora = [*self.data.training, *self.data.validation]
        if self.drops_held_out:
            corpora += self.data.test.values()
        for corpus in corpora:
            files.update(corpus_files(corpus))
        if self.init_from is None:
            files.update(self.config.tokenizer.models or ())
        return sorted(files)

    def hash(self, vocab_hash: str | None = None) -> str:
        """Return a hash of all inputs that change the prepared data, except the corpus files.

        Args:
            vocab_hash: Replaces the hash of the vocabulary of ``init_from`` if that model has been
                deleted, because a resumed run no longer needs it.
        """
        inputs = _in_former_keys(self.bound)
        if self.drops_held_out:
            inputs["test"] = self.data.model_dump(mode="json", include={"test"})
        if self.init_from is None:  # the vocabulary is learned from text with noise
            inputs["noise"] = [corpus.noise.rates for corpus in self.data.training]
            if self.vocabulary is None:  # not copied from a run either
                inputs["learning"] = _LEARNING
                if self._is_weighted:
                    inputs["weights"] = self.data.model_dump(mode="json", include=_WEIGHTS)
        else:
            folder = self.init_from / TOKENIZER
            if vocab_hash is None or folder.is_dir():
                vocab_hash = tokenizer_hash(folder)
            inputs["tokenizer"] = vocab_hash
        return sha256_of_json([FORMAT_VERSION, inputs])

    def folder_beside(self, sources: Mapping[str, Mapping[str, Any]]) -> Path:
        """Return the folder of this recipe if a run uses `prepared_dir` with another one.

        Args:
            sources: Result of `describe_sources`.
        """
        hashes = {name: record["sha256"] for name, record in sources.items()}
        folder = self.config.prepared_dir
        digest = sha256_of_json([self.hash(), hashes])[:_NUM_DIGITS]
        return folder.with_name(f"{folder.name}-{digest}")

    @property
    def folders(self) -> list[Path]:
        """The folders that can contain the data: `prepared_dir`, and existing folders beside it."""
        folder = self.config.prepared_dir
        pattern = f"{glob.escape(folder.name)}-{'?' * _NUM_DIGITS}"
        first = self.folder_of_run or folder
        return [first, folder, *sorted(folder.parent.glob(pattern))]

    def accepts(self, manifest: PreparedManifest) -> bool:
        """Whether a prepared folder has the settings of this recipe; corpora are not compared."""
        if self.vocabulary is None:
            return manifest.config_hash in (self.hash(manifest.vocab_hash), self.hash_of_run)
        if manifest.vocab_hash != tokenizer_hash(self.vocabulary):
            return False
        # A resumed run keeps its vocabulary. The folder may have been prepared for the resumed run,
        # or, with the same vocabulary, for a new run or by another version of nmt.
        hash_of_new_run = replace(self, vocabulary=None).hash()
        return manifest.config_hash in (self.hash(), hash_of_new_run, self.hash_of_run)


def _in_former_keys(value: Any) -> Any:
    """Return settings in the keys of older versions, as far as these say the same.

    Their prepared folders of corpora in text files stay up to date. Other formats are now read in
    another way.
    """
    if isinstance(value, list):
        return list(map(_in_former_keys, value))
    if not isinstance(value, Mapping):
        return value
    former = {}
    if "huggingface" in value:  # a corpus
        former = dict(_FORMER_KEYS)
    for key, item in value.items():
        if key not in _LATER_KEYS or item != _LATER_KEYS[key]:
            former[key] = _in_former_keys(item)
    return former


def describe_sources(recipe: Recipe) -> dict[str, Mapping[str, Any]]:
    """Return the size, modification time and hash of each input file, by path."""
    sources = dict[str, Mapping[str, Any]]()
    for path in recipe.files:
        # A copy of standard input is described as standard input.
        name = STANDARD if path == recipe.input else str(path)
        with suppress(OSError):  # reading the corpus reports the problem
            status = path.stat()
            sources[name] = {
                "size": status.st_size,
                "mtime_ns": status.st_mtime_ns,
                "sha256": sha256_of_file(path),
            }
    return sources


def are_unchanged(sources: Mapping[str, Mapping[str, Any]], piped: Path | None = None) -> bool:
    """Whether input files are unchanged, by size and time, or by content if the time differs.

    Args:
        sources: Result of `describe_sources` for the older files.
        piped: A copy of standard input; None assumes that standard input is unchanged.
    """
    try:
        return all(_is_unchanged(Path(name), record, piped) for name, record in sources.items())
    except OSError:
        return False


def _is_unchanged(path: Path, record: Mapping[str, Any], piped: Path | None) -> bool:
    """Whether one file is unchanged. ``record`` has its older size, time and hash."""
    if is_standard(path):  # a copy has another time, so only the content counts
        if piped is None:
            return True
        path = piped
    else:
        status = path.stat()
        if status.st_size != record["size"]:
            return False
        if status.st_mtime_ns == record["mtime_ns"]:
            return True
    return sha256_of_file(path) == record["sha256"]
