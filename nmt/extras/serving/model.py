"""One model that is served: what it is, what is asked of it, and what computes it."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeAlias

from nmt.checkpoint.model_folder import find_model, is_ctranslate2, load_folder_config
from nmt.config.loader import change_options
from nmt.errors import CheckpointError
from nmt.files.manifest import Manifest
from nmt.inference.engine import EngineLacksError, LoadedModel
from nmt.inference.options import EngineOptions
from nmt.inference.request import Request
from nmt.inference.result import Result
from nmt.inference.segment import joiner_for
from nmt.inference.translator import Translator

Languages: TypeAlias = tuple[str, str]
"""Source and target."""
_WARM_UP = "1"
_LINE = re.compile(r"^Line [\d,]+:? ")


@dataclass(frozen=True, slots=True)
class Place:
    """A model that is served, loaded or not."""

    name: str
    folder: Path
    languages: Languages


@dataclass(frozen=True, slots=True, eq=False)
class ServedModel:
    """A model in memory."""

    place: Place
    translator: Translator
    full: Callable[[], Translator]
    """Loads, once, a translator that has what the first one lacks."""
    sha256: str
    """Of its weights."""
    step: int | None
    """Updates it was trained for; None if the folder does not say."""
    is_export: bool
    """Whether the folder is CTranslate2's, which no other engine reads."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while a GPU computes, whose steps are recorded for one search at a time."""

    @property
    def joiner(self) -> str:
        """What stands between sentences of a translation."""
        return joiner_for(self.place.languages[1])

    def engines(self) -> dict[str, str | None]:
        """Return what computes which part of an answer; None where nothing does."""
        other = None if self.is_export else "torch"
        engine = self.translator.engine.name
        return {"translate": engine, "alignment": other, "prefix": other, "score": other or engine}

    def with_options(self, **changes: Any) -> Translator:
        """Return a translator with these options, whose engine has all of them.

        Raises:
            ConfigError: They contradict each other, or no engine has them.
        """
        try:
            return self.translator.with_options(**changes)
        except EngineLacksError:
            if self.is_export:
                raise
            return self.full().with_options(**changes)

    def score(self, pairs: Sequence[tuple[str, str]], tag: str | None) -> list[dict[str, Any]]:
        """Score given translations, as `nmt score` does."""
        from nmt.inference.scorer import Scorer  # noqa: PLC0415 - loads torch

        outputs = frozenset({"token_scores" if self.is_export else "attention"})
        translator = self.with_options(outputs=outputs)
        scorer = Scorer(LoadedModel(
            translator.engine, translator.tokenizers, translator.options.decoding,
            translator.options.max_length or 0, self.place.languages,
        ))  # fmt: skip
        with self.lock if translator.engine.on_gpu else nullcontext():
            found = scorer.score(pairs, tag=tag)
        return [each.as_dict() for each in found]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A model, and what is asked of it for each of some texts: what a batch has in common."""

    model: ServedModel
    options: tuple[tuple[str, Any], ...] = ()
    """Decoding options that differ from the model's."""
    outputs: frozenset[str] = frozenset()
    """Of ``alignments``, ``attention`` and ``token_scores``."""
    is_constrained: bool = False
    """Texts with a prefix or phrases, which may need another engine, are not mixed with others."""

    def check(self) -> None:
        """Check the options.

        Raises:
            ConfigError: They contradict each other.
        """
        change_options(self.model.translator.options.decoding, dict(self.options))

    def translate(self, lines: Sequence[Request], check: Callable[[], object]) -> Sequence[Result]:
        """Translate a batch, in this thread."""
        translator = self.model.with_options(
            outputs=self.outputs,
            constraints=self.is_constrained,
            progress=lambda _: check(),
            **dict(self.options),
        )
        translator.engine.start_worker()
        with self.model.lock if translator.engine.on_gpu else nullcontext():
            return translator.translate(lines)


def without_line(problem: str) -> str:
    """Return a message about a line without its number, which counts within a batch."""
    return _LINE.sub("", problem)


def load_served(place: Place, options: EngineOptions) -> ServedModel:
    """Load a model and translate once with it."""
    is_export = is_ctranslate2(place.folder)
    if is_export:
        manifest = Manifest.read(place.folder)
        sha256, step = manifest.files["model.bin"].sha256, None
    else:
        files = find_model(place.folder)
        sha256, step = files.sha256, files.step
    own = find_languages(place.folder)
    if own != place.languages:
        raise CheckpointError(
            f"The model {place.name} translates {'-'.join(own)} now, not "
            f"{'-'.join(place.languages)}.",
            fix="Start the server again.",
        )
    translator = Translator.load(place.folder, **_as_dict(options))
    lock, found = threading.Lock(), list[Translator]()

    def full() -> Translator:
        with lock:
            if not found:
                plain = replace(options, engine="torch", dtype="auto")
                found.append(Translator.load(place.folder, **_as_dict(plain)))
        return found[0]

    translator.translate([_WARM_UP])
    return ServedModel(place, translator, full, sha256, step, is_export)


def find_languages(folder: Path) -> Languages:
    """Return the languages of a model's folder."""
    config = load_folder_config(folder)
    return config.source_language, config.target_language


def _as_dict(options: EngineOptions) -> dict[str, Any]:
    return {each.name: getattr(options, each.name) for each in fields(options)}
