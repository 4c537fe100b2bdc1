"""The Hugging Face Hub: ``nmt push`` uploads models, and ``nmt pull`` and ``nmt import`` load them.

The package huggingface_hub does the work. This module adds a check: files that can contain code are
refused. ``HF_ENDPOINT`` is the address of a different hub; ``HF_TOKEN``, the access token. Of
models of other toolkits, only the files that the import reads are downloaded, into the cache of
huggingface_hub.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from typing_extensions import override

from nmt.checkpoint.files import MODEL, adapter_record
from nmt.checkpoint.model_folder import (
    CARD,
    CONFIG,
    check_new_folder,
    find_model,
    load_folder_config,
    log_next_commands,
)
from nmt.commands.options import CommandResult
from nmt.config.document import parse_document
from nmt.data.hubs import hub_address, reaches
from nmt.errors import CheckpointError, ConfigError, DataError, NmtError, shell_command
from nmt.extras.exchange.export import (
    HUB_NAME,
    IMPORTED,
    ImportSummary,
    WrittenFolder,
    front_matter,
    front_text,
)
from nmt.extras.exchange.imported import HF_CONFIG, read_settings, weight_files
from nmt.extras.exchange.options import (
    EXAMPLE,
    NAME_ON_HUB,
    ImportOptions,
    PullOptions,
    PushOptions,
    is_resized,
    parse_name,
)
from nmt.files.atomic import atomic_folder
from nmt.files.json_file import MANIFEST, FileRecord, Manifest
from nmt.metrics.result import read_report

# Paths of files that nmt writes into a model folder. None of them is hidden or outside the folder.
_MODEL_FILE = re.compile(r"(\w[\w.-]*/)*\w[\w.-]*\.(safetensors|json|yaml|model|md)")
# Files that an import reads, except the weights of Hugging Face.
_IMPORT_FILE = re.compile(
    r"(\w+_)?(config|vocab)\.json|(tokenizer|added_tokens|special_tokens_map)\.json"
    r"|[\w.+-]+\.(spm|npz|vocab|yml)|sentencepiece\.bpe\.model"
)


@dataclass(frozen=True)
class PushResult(CommandResult):
    """What `nmt push` has uploaded or, in a dry run, would upload."""

    repository: str
    files: Mapping[str, int]  # Name -> size in bytes.
    card: str
    address: str | None  # URL of the commit; None after a dry run.

    def as_text(self) -> str:
        """Return the URL of the commit; after a dry run, the model card and the list of files."""
        files = [f"{size:>12,}  {name}" for name, size in self.files.items()]
        return self.address or "\n".join([self.card, *files])


def push(options: PushOptions) -> PushResult:
    """Upload a model folder; put languages, license and scores into the model card.

    Raises:
        CheckpointError: The folder is incomplete, the upload is rejected, or the hub cannot be
            reached.
        ConfigError: ``folder`` is a run folder or needs a base model, or ``name`` is not a valid
            Hub name.
        DataError: A file in ``scores`` is not a JSON report of `nmt evaluate`.
    """
    folder = options.folder
    repository, revision = parse_name(options.name)
    if revision is not None:
        raise ConfigError(f"Cannot push to the revision @{revision}.", fix=f"Pass {repository}.")
    export = shell_command("export", folder, output="FOLDER")
    has_manifest = (folder / MANIFEST).is_file()
    if not has_manifest and (folder / "checkpoints").is_dir():
        raise ConfigError(f"{folder} is a run folder.", fix=f"Export the model first: {export}")
    is_foreign = (folder / HF_CONFIG).is_file() and not (folder / CONFIG).is_file()
    manifest = Manifest.read(folder) if is_foreign else find_model(folder).manifest
    manifest.verify(folder)
    if adapter_record(folder / MODEL):
        raise ConfigError(
            f"{folder} contains adapters only, which need the base model.",
            fix=f"Export the merged model first: {export}",
        )
    results = list[dict[str, Any]]()  # entries of the model-index
    for path in options.scores:
        results += _model_index_results(path)
    model_index = None
    name = repository.partition("/")[2]  # without the organization
    if results:
        model_index = [{"name": name, "results": results}]
    values = {"license": options.license, "model-index": model_index}
    front, text = _card_parts(folder)
    if is_foreign:
        fields = parse_document(front, name=str(folder / CARD)).values
        header = front_text({**fields, **values})
    else:
        header = front_matter(load_folder_config(folder), **values)
    card = header + text.replace(HUB_NAME, repository)
    card_bytes = card.encode()
    # The card changes, so the manifest needs the size and the hash of the new card.
    card_record = FileRecord(len(card_bytes), hashlib.sha256(card_bytes).hexdigest())
    records = {**manifest.files, CARD: card_record}
    manifest = replace(manifest, files=records)
    manifest_bytes = manifest.text().encode()
    # Only the files of the manifest are uploaded; other files in the folder stay private.
    contents: dict[str, Path | bytes] = {name: folder / name for name in records}
    contents |= {CARD: card_bytes, MANIFEST: manifest_bytes}
    sizes = {name: record.size for name, record in records.items()}
    sizes[MANIFEST] = len(manifest_bytes)
    address = None
    if not options.dry_run:
        with _connection(repository, "pushed") as library:
            api = library.HfApi()
            api.create_repo(repository, private=options.private, exist_ok=True)
            # Files of an earlier version. The hub itself writes .gitattributes.
            old_names = {*api.list_repo_files(repository)} - {".gitattributes", *contents}
            operations = [library.CommitOperationDelete(name) for name in sorted(old_names)]
            for name, content in sorted(contents.items()):
                operations.append(library.CommitOperationAdd(name, content))
            title = f"Push {name}"
            commit = api.create_commit(repository, operations, commit_message=title)
            address = str(commit.commit_url)
    return PushResult(repository, sizes, card, address)


def _card_parts(folder: Path) -> tuple[str, str]:
    """Return the front matter and the text of the model card."""
    if not (folder / CARD).is_file():
        return "", ""
    text = (folder / CARD).read_text(encoding="utf-8")
    if text.startswith("---\n"):  # the front matter, which ends at the next such line
        front, _, rest = text.partition("\n---\n")
        return front, rest
    return "", text


def _model_index_results(path: Path) -> Iterator[dict[str, Any]]:
    """Convert a JSON report of `nmt evaluate` to entries for the Hub's model-index.

    Each test set is one entry, with the scores of the first system in the report.
    """
    try:
        evaluations = read_report(path)
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} is not a JSON report of `nmt evaluate`.",
            fix=f"Create the report again: {shell_command('evaluate', 'MODEL', json=True)} > "
            f"{path}",
        ) from error
    for evaluation in evaluations:
        metrics = [
            _model_index_field(score.metric, value=score.value, args={"signature": score.signature})
            for score in evaluation.systems[0].scores
        ]
        dataset = _model_index_field(evaluation.test)
        yield {"task": {"type": "translation"}, "dataset": dataset, "metrics": metrics}


def _model_index_field(name: str, **values: Any) -> dict[str, Any]:
    """Return a metric or a data set for the model-index; its name is also its ``type``."""
    return {"name": name, "type": name, **values}


@dataclass(frozen=True)
class PullResult(WrittenFolder):
    """What `nmt pull` has downloaded."""

    name: str  # With the commit, so that the same version can be downloaded again.

    @override
    def as_text(self) -> str:
        return self.name


def import_model(options: ImportOptions, *, origin: str = IMPORTED) -> ImportSummary:
    """Convert a model of another toolkit, or change the vocabulary of a model of nmt.

    Args:
        options: Source, output, languages, and changes of the vocabulary.
        origin: Sentence about the origin of a local model, for the model card.

    Raises:
        CheckpointError: A file is missing or damaged, nmt does not support the model, or the hub
            cannot be reached.
        ConfigError: ``output`` exists, or the languages are unknown or not valid codes.
        DataError: A text file is missing, damaged or not UTF-8.
    """
    source = options.source
    check_new_folder(options.output, source)
    # ORG/NAME is a path or a name on the hub. It is a path if the folder ORG exists.
    if NAME_ON_HUB.fullmatch(str(source)) and not source.parent.exists():
        _, summary = _fetch(options)
        return summary
    return _convert(options, origin)


def _convert(options: ImportOptions, origin: str) -> ImportSummary:
    from nmt.extras.exchange.conversion import convert  # noqa: PLC0415 - loads torch

    return convert(options, origin)


def pull(options: PullOptions) -> PullResult:
    """Download a model folder and compare every file with the manifest; or import a model.

    Raises:
        CheckpointError: The repository is not a supported model or is damaged, or the hub cannot be
            reached.
        ConfigError: ``output`` exists, or ``name`` or the languages are not valid.
    """
    source = Path(options.name)
    import_options = ImportOptions(
        source=source, output=options.output, languages=options.languages
    )
    name, _ = _fetch(import_options)
    return PullResult(options.output, name)


def _fetch(options: ImportOptions) -> tuple[str, ImportSummary]:
    """Download a model; import it unless it is a model folder that stays as it is.

    Only files that the import needs are downloaded. An unsupported Hugging Face model is refused
    before the weights are downloaded.

    Args:
        options: ``source`` is the name on the hub.

    Returns:
        Repository and commit as ORG/NAME@COMMIT, and the result of the import.
    """
    repository, revision = parse_name(str(options.source))
    output = options.output
    check_new_folder(output, output)
    with _connection(repository, "pulled") as library:
        api = library.HfApi()
        info = api.model_info(repository, revision=revision)
        sha = info.sha  # of the commit
        version = f"{repository}@{sha}"
        # The files of a repository are called siblings. The hub itself writes .gitattributes.
        names = {sibling.rfilename for sibling in info.siblings or ()} - {".gitattributes"}
        download = partial(api.snapshot_download, repository, revision=sha)
        is_nmt_model = {MANIFEST, CONFIG} <= names
        if is_nmt_model:
            check_names(repository, names)
        if is_nmt_model and not is_resized(options):
            with atomic_folder(output) as folder:
                download(local_dir=folder, allow_patterns=sorted(names))
                shutil.rmtree(folder / ".cache", ignore_errors=True)  # written by huggingface_hub
                Manifest.read(folder).verify(folder)
                languages = find_model(folder).config.languages  # fails if this is not a model
            log_next_commands(output)
            return version, ImportSummary(output, languages)
        needed_names = [name for name in sorted(names) if _IMPORT_FILE.fullmatch(name)]
        if is_nmt_model:
            needed_names = sorted(names)
        elif HF_CONFIG in names:
            read_settings(Path(download(allow_patterns=[HF_CONFIG])))  # refuses other models
            needed_names += weight_files(repository, sorted(names))
        elif not any(name.endswith(".npz") for name in names):
            kinds = "an nmt model folder nor a Marian, M2M-100 or NLLB model"
            problem = f"{repository} is neither {kinds}"
            raise CheckpointError(
                f"{problem}: {MANIFEST} is missing.",
                fix="Use a model that `nmt push` uploaded, or an OPUS-MT model, such as "
                f"{EXAMPLE}.",
            )
        source = Path(download(allow_patterns=needed_names))
        terms = getattr(info.card_data, "license", None) or "unknown"
        page = f"{hub_address()}/{repository}"
        origin = f"Imported from {page}, commit {sha}, license: {terms}."
        return version, _convert(replace(options, source=source), origin)


def check_names(repository: str, names: set[str]) -> None:
    """Raise an error if a model folder contains files that nmt never writes.

    So nmt does not download files that can contain code or would be written outside the folder.
    """
    foreign_names = sorted(name for name in names if not _MODEL_FILE.fullmatch(name))
    if foreign_names:
        problem = f"{repository} contains files that nmt never writes into a model folder"
        raise CheckpointError(
            f"{problem}: {', '.join(foreign_names[:5])}.",
            fix="Pull an earlier version (ORG/NAME@COMMIT), or check who can write to the "
            "repository.",
        )


@contextmanager
def _connection(repository: str, action: str) -> Iterator[Any]:
    """Yield the package huggingface_hub, and convert errors inside to `CheckpointError`.

    Args:
        repository: Name of the repository, for messages.
        action: What the caller does with the repository: ``pushed`` or ``pulled``.
    """
    if not reaches(hub_address()):
        raise CheckpointError(
            f"{repository} was not {action}: {hub_address()} cannot be reached.",
            fix="Check the network, and HF_ENDPOINT if it is set.",
        )
    try:
        yield import_module("huggingface_hub")  # slow to load
    except NmtError:
        raise
    except Exception as error:  # huggingface_hub passes on errors of its dependencies
        first_line = str(error).strip().split("\n")[0]
        reason = first_line.rstrip(".") or type(error).__name__
        raise CheckpointError(
            f"{repository} was not {action}: {reason[:300]}.",
            fix="Check the name, the network and the permissions of the token in HF_TOKEN.",
        ) from error
