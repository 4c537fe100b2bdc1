"""Model folders on a hub of Hugging Face. The only module that imports huggingface_hub.

``HF_ENDPOINT`` names another hub, ``HF_TOKEN`` who asks.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from nmt.errors import CheckpointError, ConfigError
from nmt.files.manifest import NAME as MANIFEST
from nmt.files.network import hub_address, reaches

_NAME = re.compile(r"hub:([A-Za-z0-9][\w.-]*/[\w.-]+)(?:@([\w./-]+))?")
_ALLOWED = (".safetensors", ".json", ".yaml", ".model", ".md")
"""Files that are pulled: none of them can hold code."""
_OF_HUB = (".gitattributes",)


@dataclass(frozen=True, slots=True)
class HubName:
    """A model on a hub."""

    repository: str
    """``ORG/NAME``."""
    revision: str | None
    """Branch, tag or commit; None for the newest."""

    @classmethod
    def parse(cls, text: str) -> HubName:
        """Read ``hub:ORG/NAME`` or ``hub:ORG/NAME@REVISION``.

        Raises:
            ConfigError: It is written in another way.
        """
        if (match := _NAME.fullmatch(text)) is None:
            raise ConfigError(f"{text!r} is no name on a hub.", fix="Write hub:ORG/NAME.")
        return cls(match[1], match[2])


@contextmanager
def _hub_errors(name: HubName, what: str) -> Iterator[None]:
    if not reaches(hub_address()):
        raise CheckpointError(
            f"{name.repository} was not {what}: there is no connection to {hub_address()}.",
            fix="Check the network, and HF_ENDPOINT if it is set.",
        )
    try:
        yield
    except (ConfigError, CheckpointError):
        raise
    except Exception as error:  # its libraries raise what theirs raise
        reason = str(error).strip().split("\n")[0].rstrip(".") or type(error).__name__
        raise CheckpointError(
            f"{name.repository} was not {what}: {reason[:300]}.",
            fix="Check the name, the connection, and that HF_TOKEN holds a token that may do this.",
        ) from error


def publish_folder(folder: Path, name: HubName, *, private: bool, message: str) -> str:
    """Upload all files of a folder, in one commit; make the repository if there is none.

    Returns:
        The address of the commit.

    Raises:
        CheckpointError: The hub refuses, or is out of reach.
    """
    with _hub_errors(name, "published"):
        from huggingface_hub import HfApi  # noqa: PLC0415 - slow to load

        api = HfApi()
        api.create_repo(name.repository, private=private, exist_ok=True)
        found: Any = api.upload_folder(
            repo_id=name.repository,
            folder_path=folder,
            commit_message=message,
            delete_patterns="*",  # what an older version of the model had
        )
    return str(found.commit_url)


def pull_folder(name: HubName, folder: Path) -> str:
    """Download all files of one commit into ``folder``.

    Returns:
        The commit's hash.

    Raises:
        CheckpointError: There is no such model, it holds files that are not those of a model
            folder, or the hub is out of reach.
    """
    with _hub_errors(name, "pulled"):
        from huggingface_hub import HfApi, snapshot_download  # noqa: PLC0415 - slow to load

        info = HfApi().model_info(name.repository, revision=name.revision)
        files = {sibling.rfilename for sibling in info.siblings or ()} - set(_OF_HUB)
        _check_names(name, files)
        commit = str(info.sha)
        snapshot_download(
            name.repository, revision=commit, local_dir=folder, allow_patterns=sorted(files)
        )
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # of the library
    return commit


def _check_names(name: HubName, files: set[str]) -> None:
    others = sorted(file for file in files if PurePosixPath(file).suffix not in _ALLOWED)
    if others:
        raise CheckpointError(
            f"{name.repository} holds {', '.join(others[:5])}, which no model folder does.",
            fix=f"Only {', '.join(_ALLOWED)} are pulled; is it a model of another system?",
        )
    if MANIFEST not in files:
        raise CheckpointError(
            f"{name.repository} holds no {MANIFEST}, so it is no model folder of nmt.",
            fix="Models of Hugging Face: download the folder, then `nmt import`.",
        )
