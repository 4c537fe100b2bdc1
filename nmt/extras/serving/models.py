"""The models of a server, all loaded at startup, and the languages that they translate."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from nmt.checkpoint.model_folder import (
    CARD,
    find_model,
    is_ctranslate2,
    load_folder_config,
    read_profiles,
)
from nmt.config.data import code_of_tag
from nmt.config.loader import change_options
from nmt.errors import ConfigError, DataError
from nmt.extras.serving.bodies import Answer, RefusedError
from nmt.files.json_file import Manifest
from nmt.inference.direction import LanguageOptions
from nmt.inference.engine import EngineLacksError, LoadedModel
from nmt.inference.request import Request, Result
from nmt.inference.scorer import Scorer
from nmt.inference.translator import Translator
from nmt.registry import load_attribute
from nmt.text.identification import NO_PROFILES, LanguageProfiles, language_shares
from nmt.text.languages import is_right_to_left, name_of

logger = logging.getLogger(__name__)

_WARM_UP = "1"  # A text that is translated at the start: the first translation is slow.
# Source tokens that an engine on a CPU searches at once: CTranslate2 cannot be interrupted.
_SEARCHED_TOKENS = 256
_MAX_CARD_CHARACTERS = 1 << 16  # of a model card in an answer
_EXPORT_WEIGHTS = "model.bin"  # of CTranslate2


class ServedModel:
    """A model in memory.

    Some features, such as alignments, are missing in CTranslate2. The first request for such a
    feature loads the model a second time, with torch.

    Args:
        name: Name that clients use for the model.
        folder: Run or model folder.
        loading: Fields of `EngineOptions`, and ``glossary``.
    """

    def __init__(self, name: str, folder: Path, loading: dict[str, Any]) -> None:
        config = load_folder_config(folder)
        self.name = name
        self.folder = folder
        self.source = config.source_language
        self.target = config.target_language
        self.is_export = is_ctranslate2(folder)
        self._step: int | None = None  # Updates of the training; None for an export.
        if self.is_export:
            self._sha256 = Manifest.read(folder).files[_EXPORT_WEIGHTS].sha256
        else:
            files = find_model(folder)
            self._sha256 = files.sha256
            self._step = files.step
        self.profiles = read_profiles(folder)
        self.translator = Translator.load(folder, **loading)
        languages = self.translator.options.languages
        self.directions = languages.offered(self.translator.tokenizers)
        source, target = self.to_choose(self.directions[0])
        warm_up = Request(_WARM_UP, source_language=source, target_language=target)
        self.translator.translate([warm_up])
        self._torch_translator: Translator | None = None  # loaded when needed
        self._loading = loading
        self._loading_lock = threading.Lock()
        self._gpu_lock = threading.Lock()  # CUDA graphs allow one search at a time

    def to_choose(self, direction: tuple[str, str]) -> tuple[str | None, str | None]:
        """Return source and target to set for each text; None twice for an only direction."""
        return direction if len(self.directions) > 1 else (None, None)

    def with_options(self, **options: Any) -> Translator:
        """Return a translator with changed options. May load the model with torch.

        Raises:
            ConfigError: The options contradict each other, or no engine supports them.
        """
        try:
            return self.translator.with_options(**options)
        except EngineLacksError:
            if self.is_export:  # torch cannot load an export
                raise
        return self._with_torch().with_options(**options)

    def _with_torch(self) -> Translator:
        """Return a translator that computes with torch. The first call may load the model."""
        if self.translator.engine.name == "torch":
            return self.translator
        with self._loading_lock:
            if self._torch_translator is None:
                if find_model(self.folder).sha256 != self._sha256:  # of a later checkpoint
                    logger.warning("%s has changed since it was loaded", self.folder)
                    raise RefusedError(500, "The model has changed.", "Start the server again.")
                # The type of numbers may be one that only the other engine has.
                loading = {**self._loading, "engine": "torch", "dtype": "auto"}
                self._torch_translator = Translator.load(self.folder, **loading)
        return self._torch_translator

    def searching(self, translator: Translator) -> AbstractContextManager[Any]:
        """Return the context for a search: on a GPU, a lock; on a CPU, nothing."""
        return self._gpu_lock if translator.engine.on_gpu else nullcontext()

    def score(self, pairs: Sequence[tuple[str, str]], options: LanguageOptions) -> list[Answer]:
        """Score given translations with torch, as `nmt score` does; an export cannot use torch."""
        translator = self.translator
        if not self.is_export:
            translator = self._with_torch()
        options_of_model = translator.options
        loaded = LoadedModel(
            translator.engine,
            translator.tokenizers,
            options_of_model.decoding,
            options_of_model.max_length or 0,  # a server splits long lines, so it is never None
            options_of_model.languages,
        )
        scorer = Scorer(loaded)
        with self.searching(translator):
            return [score.as_dict() for score in scorer.score(pairs, options)]

    def describe(self) -> Answer:
        """Return the public description of the model, for GET /v1/models."""
        translator = self.translator
        engine = translator.engine.name
        # Engine of the features that CTranslate2 lacks; None if they are not available.
        fallback = None if self.is_export else "torch"
        tags = sorted(translator.tokenizers.source.tags)
        if len(self.directions) > 1:
            # Clients choose languages by source and target, and only other tags by tag.
            tags = [tag for tag in tags if code_of_tag(tag) is None]
        card = None
        if (self.folder / CARD).is_file():
            card = (self.folder / CARD).read_text("utf-8", "replace")[:_MAX_CARD_CHARACTERS]
        languages = {}
        for code in chain.from_iterable(self.directions):
            languages[code] = {"name": name_of(code), "rtl": is_right_to_left(code)}
        return {
            "name": self.name,
            "source": self.source,
            "target": self.target,
            "source_name": name_of(self.source),
            "target_name": name_of(self.target),
            "rtl": {
                "source": is_right_to_left(self.source),
                "target": is_right_to_left(self.target),
            },
            "directions": list(map(list, self.directions)),
            "languages": languages,
            "sha256": self._sha256,
            "step": self._step,
            "dtype": translator.engine.dtype,
            "engines": {
                "translate": engine,
                "alignment": fallback,
                "prefix": fallback,
                "score": fallback or engine,
            },
            "confidence": translator.options.confidence is not None,
            "tags": tags,
            "decoding": translator.options.decoding.model_dump(mode="json"),
            "card": card,
        }


@dataclass(frozen=True)
class Route:
    """The model and the languages of a text."""

    model: ServedModel
    source: str
    target: str
    languages: tuple[str | None, str | None]  # See `ServedModel.to_choose`.
    probability: float | None = None  # Of a detected source, 0 to 100.
    # Whether the text is not translated: its language is detected and is not a source language.
    keeps_text: bool = False

    @property
    def fields(self) -> Answer:
        """The fields of an answer that name the model and the languages."""
        fields = {"model": self.model.name, "source": self.source, "target": self.target}
        if self.probability is None:
            return fields
        return fields | {"detected": self.probability, "unchanged": self.keeps_text}


@dataclass(frozen=True)
class TranslationTask:
    """A model with its options and outputs. Texts with the same task can share a batch.

    Raises:
        ConfigError: The options contradict each other.
    """

    model: ServedModel
    # Decoding options that differ from the model's defaults.
    options: Mapping[str, Any] = field(hash=False)
    # Any of "alignments", "attention" and "token_scores".
    outputs: frozenset[str]
    # Texts with a prefix or phrases may need another engine, so they have batches of their own.
    is_constrained: bool = False

    def __post_init__(self) -> None:
        # Only for the error: later, it would reach the client as a failure of each text.
        change_options(self.model.translator.options.decoding, self.options)

    def __call__(
        self, requests: Sequence[Request], check: Callable[[object], None]
    ) -> Sequence[Result | DataError]:
        """Translate a batch in this thread. ``check`` can raise to interrupt the search."""
        translator = self.model.with_options(
            **self.options,
            outputs=self.outputs,
            constraints=self.is_constrained,
            progress=check,
            max_sentences=None,  # the service has split the texts
        )
        if not translator.engine.on_gpu:
            translator = translator.with_options(batch_tokens=_SEARCHED_TOKENS)
        if translator.engine.name == "torch":  # threads of a server compute different batches
            load_attribute("torch:set_num_threads")(1)
        with self.model.searching(translator):
            return translator.try_translate(requests)


def name_models(models: Iterable[str]) -> dict[str, Path]:
    """Return the name of each model and its folder.

    Without ``NAME=``, the name is the language pair; if that is taken, the name of the folder.

    Args:
        models: ``FOLDER`` or ``NAME=FOLDER``. The path of an existing folder may contain ``=``.

    Raises:
        ConfigError: A name is not valid, or two models have the same name.
        CheckpointError: A folder does not contain a model.
    """
    folders = dict[str, Path]()
    for argument in models:
        name, equals_sign, folder = argument.partition("=")
        if not equals_sign or Path(argument).exists():
            name = ""  # chosen below
            folder = argument
        elif not re.fullmatch(r"[\w.-]{1,64}", name) or not folder:
            raise ConfigError(
                f"{argument!r} is not a valid model argument.",
                fix="Write NAME=FOLDER, such as de-en=runs/base. NAME: letters, digits, . _ and -",
            )
        path = Path(folder)
        config = load_folder_config(path)
        pair = f"{config.source_language}-{config.target_language}"
        if not name:
            name = path.resolve().name if pair in folders else pair
        if name in folders:
            raise ConfigError(
                f"{folders[name]} and {path} have the same name, {name}.",
                fix=f"Choose another name for one model, such as {name}-2={path}.",
            )
        folders[name] = path
    return folders


def detect(
    text: str, codes: Sequence[str], profiles: LanguageProfiles = NO_PROFILES
) -> list[tuple[str, float]]:
    """Rank the languages of a text, with probabilities from 0 to 100, the likeliest first.

    All values are near 0 if the text is in another language, unless profiles are needed.

    Args:
        text: The text.
        codes: Languages to choose from.
        profiles: Profiles of the languages of a model. They are needed if py3langid cannot
            distinguish the languages.

    >>> detect("Der Hund ist nicht da.", ["en", "de"])[0][0], detect("A dog is there.", ["ja"])
    ('de', [('ja', 0.0)])
    """
    shares = language_shares(text, codes, profiles)
    ranked_codes = sorted(shares, key=lambda code: -shares[code])
    return [(code, round(100 * shares[code], 1)) for code in ranked_codes]
