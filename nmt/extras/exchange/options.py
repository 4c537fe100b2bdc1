"""Options of `nmt.export`, `nmt.import_model`, `nmt.push` and `nmt.pull`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from nmt.commands.options import Checkpoint, Json, Model, OutputFolder
from nmt.config.flag import Flag, Options
from nmt.errors import ConfigError
from nmt.registry import chosen, names_of

# A name on the hub. Groups: repository, revision (None if there is none).
NAME_ON_HUB = re.compile(r"(?:hub:)?([A-Za-z0-9][\w.-]*/[\w.-]+)(?:@([\w./-]+))?")
EXAMPLE = "Helsinki-NLP/opus-mt-en-de"  # A model on the Hugging Face Hub, for messages.
_HubName = Annotated[str, Flag(argument=True, metavar="ORG/NAME")]
_Texts = Annotated[tuple[Path, ...], Flag(metavar="FILE...")]
_Codes = Annotated[tuple[str, ...], Flag(metavar="CODE...")]
_Languages = Annotated[str | None, Flag(short="l", metavar="PAIR", shown="from the files")]


class ExportOptions(Options):
    """The model to export, and the format of the result.

    Args:
        to: Format: safetensors, a folder for nmt on any device; ctranslate2, a folder for faster
            translation on CPUs; argos, a file NAME.argosmodel for LibreTranslate; or transformers,
            a folder for the Transformers library (models of the preset marian).
        quantization: Number type of the weights. safetensors has float32; ctranslate2 also has int8
            (smallest, fastest on CPUs), float16 and others. The default of argos is int8.
    """

    model: Model
    to: Annotated[str, Flag(metavar="FORMAT")] = "safetensors"
    output: OutputFolder
    quantization: Annotated[str | None, Flag(metavar="TYPE", shown="float32")] = None
    checkpoint: Checkpoint = "best"
    json: Json = False

    def __post_init__(self) -> None:
        chosen(dict.fromkeys(names_of("export target")), self.to, "export target")


class ImportOptions(Options):
    """The model to import, and the changes of its vocabulary.

    Args:
        source: Folder or .zip of a MarianMT, M2M-100 or NLLB-200 (Hugging Face) or OPUS-MT model, a
            Marian .npz file, or the name of a model on the Hugging Face Hub.
        languages: Language pair of the model, such as en-de. With several languages: the pair that
            is used unless `from` and `to` are set.
        keep_vocabulary: Text in all languages that you translate. Subwords that occur in none of
            these files are dropped. If source and target have separate vocabularies, a file such as
            train.de.gz counts for the side with the language de only. With this or another change
            of the vocabulary, SOURCE can also be a run or model folder.
        keep_language: Languages whose tags stay; the other language tags are dropped.
        add_vocabulary: Text in a language or script that the model lacks; new subwords are learned
            from it. Train the model further to use them.
        add_pieces: Maximum number of new subwords.
        add_language: Languages to add a tag for.
        like: Related language of the model. Its tag gives the new tags their first embedding; by
            default, they get the mean of all language tags.
    """

    source: Annotated[Path, Flag(argument=True)]
    output: OutputFolder
    languages: _Languages = None
    keep_vocabulary: _Texts = ()
    keep_language: _Codes = ()
    add_vocabulary: _Texts = ()
    add_pieces: Annotated[int | None, Flag(min=1, shown="2,000")] = None
    add_language: _Codes = ()
    like: Annotated[str | None, Flag(metavar="CODE")] = None
    json: Json = False


class PushOptions(Options):
    """The model folder to upload, and the contents of the model card.

    Args:
        folder: Model folder to upload: exported, averaged or imported.
        name: Repository on the Hugging Face Hub. A missing repository is created.
        license: License identifier from the Hub's list, such as cc-by-4.0, for the model card.
        scores: Output of `nmt evaluate` as JSON, for the scores on the model's page. Repeatable.
        private: Make the repository private, if it is new.
        dry_run: Print the model card and the list of files, and upload nothing.
    """

    folder: Annotated[Path, Flag(argument=True)]
    name: _HubName
    license: Annotated[str | None, Flag(metavar="NAME")] = None
    scores: tuple[Path, ...] = ()
    private: bool = False
    dry_run: bool = False
    json: Json = False


class PullOptions(Options):
    """The model to download, and the output folder.

    Args:
        name: Repository on the Hugging Face Hub. ORG/NAME@COMMIT selects a version.
        languages: Language pair of the model, such as en-de; see `nmt import`.
    """

    name: _HubName
    output: OutputFolder
    languages: _Languages = None
    json: Json = False

    def __post_init__(self) -> None:
        parse_name(self.name)


def parse_name(text: str) -> tuple[str, str | None]:
    """Split ``ORG/NAME`` or ``ORG/NAME@REVISION`` into repository and revision."""
    match = NAME_ON_HUB.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"{text!r} is not a valid Hub name.", fix=f"Write ORG/NAME, such as {EXAMPLE}."
        )
    return match[1], match[2]


def is_resized(options: ImportOptions) -> bool:
    """Whether the options change the vocabulary.

    Raises:
        ConfigError: An option has no effect without another one.
    """
    # The first option of a pair changes what the second one does.
    for name, needed_name in (("add_pieces", "add_vocabulary"), ("like", "add_language")):
        if getattr(options, name) and not getattr(options, needed_name):
            raise ConfigError(
                f"`{name}` has no effect without `{needed_name}`.",
                fix=f"Pass `{needed_name}`, or remove `{name}`.",
            )
    is_trimmed = options.keep_vocabulary or options.keep_language
    is_grown = options.add_vocabulary or options.add_language
    return bool(is_trimmed or is_grown)
