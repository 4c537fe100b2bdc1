"""The Hugging Face Hub, and ``nmt push``, which uploads models to it.

The package huggingface_hub does the work. This module adds a check: files that can contain code are
refused. ``HF_ENDPOINT`` is the address of a different hub; ``HF_TOKEN``, the access token.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from nmt.checkpoint.files import MODEL, adapter_record
from nmt.checkpoint.model_folder import CARD, find_model
from nmt.data.hubs import hub_address, reaches
from nmt.errors import CheckpointError, ConfigError, DataError, NmtError, shell_command
from nmt.extras.exchange.export import HUB_NAME, front_matter
from nmt.extras.exchange.options import EXAMPLE, PushOptions
from nmt.files.json_file import MANIFEST, FileRecord
from nmt.metrics.result import read_report

NAME = re.compile(r"(?:hub:)?([A-Za-z0-9][\w.-]*/[\w.-]+)(?:@([\w./-]+))?")
_ALLOWED = re.compile(r"(\w[\w.-]*/)*\w[\w.-]*\.(safetensors|json|yaml|model|md)")


@dataclass(frozen=True, slots=True)
class PushResult:
    """What `nmt push` has uploaded or, in a dry run, would upload."""

    repository: str
    files: Mapping[str, int]  # Name -> size in bytes.
    card: str
    address: str | None  # URL of the commit; None after a dry run.

    def as_text(self) -> str:
        """Return the URL of the commit; after a dry run, the model card and the list of files."""
        files = [f"{size:>12,}  {name}" for name, size in self.files.items()]
        return self.address or "\n".join([self.card, *files])

    def as_dict(self) -> dict[str, Any]:
        """Return all fields as plain data for JSON."""
        return asdict(self)


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
    model = find_model(folder)
    model.manifest.verify(folder)
    if adapter_record(folder / MODEL):
        problem = f"{folder} contains adapters only, which need the base model."
        raise ConfigError(problem, fix=f"Export the merged model first: {export}")
    results = list[dict[str, Any]]()
    for path in options.scores:
        results += _results(path)
    index = None
    if results:
        name = repository.partition("/")[2]
        index = [{"name": name, "results": results}]
    config = model.config
    header = front_matter(config, license=options.license, **{"model-index": index})
    card = header + _card_text(folder).replace(HUB_NAME, repository)
    content = card.encode()
    record = FileRecord(len(content), hashlib.sha256(content).hexdigest())
    files = {**model.manifest.files, CARD: record}
    manifest = replace(model.manifest, files=files)
    seal = manifest.text().encode()
    # Other files in the folder stay private.
    contents: dict[str, Path | bytes] = {name: folder / name for name in files}
    contents |= {CARD: content, MANIFEST: seal}
    sizes = {name: file.size for name, file in files.items()}
    sizes[MANIFEST] = len(seal)
    address = None
    if not options.dry_run:
        with connection(repository, "pushed") as library:
            api = library.HfApi()
            api.create_repo(repository, private=options.private, exist_ok=True)
            old = {*api.list_repo_files(repository)} - {".gitattributes", *contents}
            operations = [library.CommitOperationDelete(name) for name in sorted(old)]
            for name, source in sorted(contents.items()):
                operations.append(library.CommitOperationAdd(name, source))
            title = f"Push {config.name}"
            commit = api.create_commit(repository, operations, commit_message=title)
            address = str(commit.commit_url)
    return PushResult(repository, sizes, card, address)


def _card_text(folder: Path) -> str:
    """Return the model card without its front matter."""
    if not (folder / CARD).is_file():
        return ""
    text = (folder / CARD).read_text(encoding="utf-8")
    if text.startswith("---\n"):
        return text.partition("\n---\n")[2]
    return text


def _results(path: Path) -> Iterator[dict[str, Any]]:
    """Convert a JSON report of `nmt evaluate` to entries for the Hub's model-index."""
    try:
        evaluations = read_report(path)
    except (OSError, ValueError) as error:
        problem = f"{path} is not a JSON report of `nmt evaluate`."
        fix = f"Create the report again: {shell_command('evaluate', 'MODEL', json=True)} > {path}"
        raise DataError(problem, fix=fix) from error
    for evaluation in evaluations:
        metrics = [
            _named(score.metric, value=score.value, args={"signature": score.signature})
            for score in evaluation.systems[0].scores
        ]
        dataset = _named(evaluation.test)
        yield {"task": {"type": "translation"}, "dataset": dataset, "metrics": metrics}


def _named(name: str, **values: Any) -> dict[str, Any]:
    return {"name": name, "type": name, **values}


def parse_name(text: str) -> tuple[str, str | None]:
    """Split ``ORG/NAME`` or ``ORG/NAME@REVISION`` into repository and revision."""
    match = NAME.fullmatch(text)
    if match is None:
        fix = f"Write ORG/NAME, such as {EXAMPLE}."
        raise ConfigError(f"{text!r} is not a valid Hub name.", fix=fix)
    return match[1], match[2]


def check_names(repository: str, names: set[str]) -> None:
    """Raise an error if a model folder contains files that nmt never writes.

    So nmt does not download files that can contain code or would be written outside the folder.
    """
    others = sorted(name for name in names if not _ALLOWED.fullmatch(name))
    if others:
        problem = f"{repository} contains files that nmt never writes into a model folder"
        fix = "Pull an earlier version (ORG/NAME@COMMIT), or check who can write to the repository."
        raise CheckpointError(f"{problem}: {', '.join(others[:5])}.", fix=fix)


@contextmanager
def connection(repository: str, what: str) -> Iterator[Any]:
    """Yield the package huggingface_hub, and convert errors inside to `CheckpointError`.

    Args:
        repository: Name of the repository, for messages.
        what: What is done: pushed or pulled.
    """
    if not reaches(hub_address()):
        problem = f"{repository} was not {what}: {hub_address()} cannot be reached."
        raise CheckpointError(problem, fix="Check the network, and HF_ENDPOINT if it is set.")
    try:
        yield import_module("huggingface_hub")  # slow to load
    except NmtError:
        raise
    except Exception as error:  # huggingface_hub passes on errors of its dependencies
        first_line = str(error).strip().split("\n")[0]
        reason = first_line.rstrip(".") or type(error).__name__
        fix = "Check the name, the network and the permissions of the token in HF_TOKEN."
        raise CheckpointError(f"{repository} was not {what}: {reason[:300]}.", fix=fix) from error
