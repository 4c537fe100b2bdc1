"""``nmt import`` and ``nmt pull``: convert a pretrained model, from a folder or from the hub.

Of models of other toolkits, only the files that the import reads are downloaded, into the cache of
huggingface_hub.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from typing_extensions import override

from nmt.checkpoint.model_folder import check_new_folder, find_model, log_next_commands
from nmt.data.hubs import hub_address
from nmt.errors import CheckpointError
from nmt.extras.exchange.export import IMPORTED, ImportSummary, WrittenFolder
from nmt.extras.exchange.hub import NAME, check_names, connection, parse_name
from nmt.extras.exchange.imported import HF_CONFIG, read_settings, weight_files
from nmt.extras.exchange.options import EXAMPLE, ImportOptions, PullOptions, is_resized
from nmt.files.atomic import atomic_folder
from nmt.files.json_file import MANIFEST, Manifest

# Files that an import reads, except the weights of Hugging Face.
_IMPORTED = re.compile(
    r"(\w+_)?(config|vocab)\.json|(tokenizer|added_tokens|special_tokens_map)\.json"
    r"|[\w.+-]+\.(spm|npz|vocab|yml)|sentencepiece\.bpe\.model"
)


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
    # ORG/NAME is a path or a name on the hub.
    if NAME.fullmatch(str(source)) and not source.parent.exists():
        return _fetch(options)[1]
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
        Repository and commit, and the result of the import.
    """
    repository, revision = parse_name(str(options.source))
    output = options.output
    check_new_folder(output, output)
    with connection(repository, "pulled") as library:
        api = library.HfApi()
        info = api.model_info(repository, revision=revision)
        sha = info.sha
        commit = f"{repository}@{sha}"
        names = {sibling.rfilename for sibling in info.siblings or ()} - {".gitattributes"}
        download = partial(api.snapshot_download, repository, revision=sha)
        if MANIFEST in names:
            check_names(repository, names)
        if MANIFEST in names and not is_resized(options):
            with atomic_folder(output) as folder:
                download(local_dir=folder, allow_patterns=sorted(names))
                shutil.rmtree(folder / ".cache", ignore_errors=True)  # written by huggingface_hub
                Manifest.read(folder).verify(folder)
                find_model(folder)
            log_next_commands(output)
            return commit, ImportSummary(output, find_model(output).config.languages)
        needed = [name for name in sorted(names) if _IMPORTED.fullmatch(name)]
        if MANIFEST in names:
            needed = sorted(names)
        elif HF_CONFIG in names:
            read_settings(Path(download(allow_patterns=[HF_CONFIG])))
            needed += weight_files(repository, sorted(names))
        elif not any(name.endswith(".npz") for name in names):
            kinds = "an nmt model folder nor a Marian, M2M-100 or NLLB model"
            problem = f"{repository} is neither {kinds}"
            fix = f"Use a model that `nmt push` uploaded, or an OPUS-MT model, such as {EXAMPLE}."
            raise CheckpointError(f"{problem}: {MANIFEST} is missing.", fix=fix)
        source = Path(download(allow_patterns=needed))
        terms = getattr(info.card_data, "license", None) or "unknown"
        page = f"{hub_address()}/{repository}"
        origin = f"Imported from {page}, commit {sha}, license: {terms}."
        return commit, _convert(replace(options, source=source), origin)
