"""``nmt push`` and ``nmt pull``: model folders to and from a hub."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nmt.checkpoint.model_folder import CARD, find_model
from nmt.checkpoint.new_model_folder import check_new_folder
from nmt.config.document import dump_document
from nmt.errors import ConfigError, DataError, shell_command
from nmt.extras.exchange.hub import HubName, publish_folder, pull_folder
from nmt.extras.exchange.options import PullOptions, PushOptions
from nmt.files.atomic import atomic_folder
from nmt.files.json_file import read_json
from nmt.files.manifest import NAME as MANIFEST
from nmt.files.manifest import Manifest

_FENCE = "---\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """What was or would be uploaded."""

    repository: str
    """``ORG/NAME``."""
    files: Mapping[str, int]
    """Name -> bytes."""
    card: str
    """README.md, with what hubs read at its top."""
    address: str | None
    """Of the commit; None where nothing was sent."""

    def as_text(self) -> str:
        """Return the address; before anything is sent, the card and the sizes of the files."""
        files = [f"{size:>12,}  {name}" for name, size in self.files.items()]
        return self.address or "\n".join([self.card, *files])

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class PulledModel:
    """What was downloaded."""

    name: str
    """With the commit, by which the same model can be had again."""
    output: Path

    def as_text(self) -> str:
        """Return the name."""
        return self.name

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {"name": self.name, "output": str(self.output)}


def push(options: PushOptions) -> Publication:
    """Upload a model folder, with languages, license and scores where hubs look for them.

    Raises:
        CheckpointError: The folder is no complete model, or the hub refuses or is out of reach.
        ConfigError: ``folder`` is a run, or ``name`` no name on a hub.
        DataError: A file of scores is none.
    """
    folder = options.folder
    place = HubName.parse(options.name)
    if place.revision is not None:
        raise ConfigError("A revision cannot be pushed to.", fix=f"Write hub:{place.repository}.")
    if not (folder / MANIFEST).is_file() and (folder / "checkpoints").is_dir():
        raise ConfigError(
            f"{folder} is a run, with much that no translation needs.",
            fix="Export the model first: "
            + shell_command("export", folder, to="safetensors", output="FOLDER"),
        )
    files = find_model(folder)
    files.manifest.verify(folder)
    languages = files.config.source_language, files.config.target_language
    results = [result for path in options.scores for result in _results(path)]
    front = _front_matter(place.repository, languages, options.license, results)
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / "model"
        shutil.copytree(folder, copy)
        card = front + _without_front_matter(_text(folder / CARD))
        (copy / CARD).write_text(card, encoding="utf-8", newline="\n")
        names = sorted({*files.manifest.files, CARD})
        Manifest.of(copy, names, files.manifest.step).write(copy)
        sizes = {each: (copy / each).stat().st_size for each in [*names, MANIFEST]}
        message = f"Push {files.config.name}"
        address = None
        if not options.dry_run:
            address = publish_folder(copy, place, private=options.private, message=message)
    return Publication(repository=place.repository, files=sizes, card=card, address=address)


def pull(options: PullOptions) -> PulledModel:
    """Download a model folder and compare every file with its manifest.

    Raises:
        CheckpointError: It is no model folder or damaged, or the hub is out of reach.
        ConfigError: ``output`` is taken, or ``name`` no name on a hub.
    """
    place = HubName.parse(options.name)
    check_new_folder(options.output, options.output)
    with atomic_folder(options.output) as temporary:
        commit = pull_folder(place, temporary)
        Manifest.read(temporary).verify(temporary)
        find_model(temporary)
    return PulledModel(f"hub:{place.repository}@{commit}", options.output)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _without_front_matter(card: str) -> str:
    if not card.startswith(_FENCE):
        return card
    return card.partition(f"\n{_FENCE}")[2]


def _front_matter(
    repository: str,
    languages: tuple[str, str],
    license_name: str | None,
    results: Sequence[Mapping[str, Any]],
) -> str:
    values: dict[str, Any] = {"language": list(languages)}
    if license_name is not None:
        values["license"] = license_name
    values |= {"pipeline_tag": "translation", "library_name": "nmt", "tags": ["nmt"]}
    if results:
        index = {"name": repository.partition("/")[2], "results": list(results)}
        values["model-index"] = [index]
    return f"{_FENCE}{dump_document(values)}{_FENCE}"


def _results(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the entries of a model-index for each set of scores in a file."""
    try:
        report = read_json(path)
        for part in report.get("evaluations", [report]):
            scores = part["systems"][0]["scores"]
            metrics = [
                {
                    "type": str(score["metric"]),
                    "value": float(score["value"]),
                    "name": str(score["metric"]),
                    "args": {"signature": str(score["signature"])},
                }
                for score in scores
            ]
            test_set = str(part.get("test_set") or path.stem)
            yield {
                "task": {"type": "translation"},
                "dataset": {"name": test_set, "type": test_set},
                "metrics": metrics,
            }
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} holds no scores that `nmt evaluate` printed as JSON.",
            fix=f"Write them again: {shell_command('evaluate', 'MODEL', json=True)} > {path}",
        ) from error
