"""One model that is served: what it is, what is asked of it, and what computes it."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from typing_extensions import override

from nmt.checkpoint.model_folder import find_model
from nmt.config.loader import change_options
from nmt.errors import CheckpointError, ConfigError
from nmt.extras.exchange.ctranslate2 import MODEL as EXPORTED
from nmt.extras.exchange.ctranslate2 import is_ctranslate2
from nmt.files.manifest import Manifest
from nmt.inference.engine import Engine, EngineOptions, LoadedEngine
from nmt.inference.engine import Request as EngineRequest
from nmt.inference.line_format import Request
from nmt.inference.loading import load_engine
from nmt.inference.result import TranslationResult
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


class FallbackEngine(Engine):
    """An engine of certain weights or library, and torch for what that does not have.

    Args:
        first: Does what it can.
        load: Loads the torch engine, once.
    """

    def __init__(self, first: Engine, load: Callable[[], Engine]) -> None:
        self.max_positions = first.max_positions
        self._first, self._load = first, load
        self._other: Engine | None = None
        self._lock = threading.Lock()

    @property
    def on_gpu(self) -> bool:  # type: ignore[override]
        """Whether the first one is."""
        return self._first.on_gpu

    @override
    def serving(self, request: EngineRequest) -> Engine:
        try:
            return self._first.serving(request)
        except ConfigError:
            with self._lock:
                self._other = self._other or self._load()
            return self._other.serving(request)


@dataclass(frozen=True, slots=True, eq=False)
class ServedModel:
    """A model in memory."""

    place: Place
    translator: Translator
    loaded: LoadedEngine
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

    def score(self, pairs: Sequence[tuple[str, str]], tag: str | None) -> list[dict[str, Any]]:
        """Score given translations, as `nmt score` does."""
        from nmt.inference.scorer import Scorer  # noqa: PLC0415 - loads torch

        outputs = frozenset({"token_scores" if self.is_export else "attention"})
        request = EngineRequest(self.loaded.config.decoding, outputs=outputs)
        engine = self.loaded.engine.serving(request)
        scorer = Scorer(replace(self.loaded, engine=engine))
        with self.lock if engine.on_gpu else nullcontext():
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
        change_options(self.model.translator.options, dict(self.options))

    def translate(
        self, lines: Sequence[Request], check: Callable[[], object]
    ) -> Sequence[TranslationResult]:
        """Translate a batch, in this thread."""
        options = change_options(self.model.translator.options, dict(self.options))
        request = EngineRequest(options, self.is_constrained, self.outputs)
        engine = self.model.loaded.engine.serving(request)
        engine.start_worker()
        with self.model.lock if engine.on_gpu else nullcontext():
            return self._translate(lines, check)

    def _translate(
        self, lines: Sequence[Request], check: Callable[[], object]
    ) -> Sequence[TranslationResult]:
        return self.model.translator.with_progress(lambda _: check()).translate(
            [line.source for line in lines],
            prefixes=[line.prefix for line in lines],
            required=[line.required for line in lines],
            forbidden=[line.forbidden for line in lines],
            tag=[line.tag for line in lines],
            **dict.fromkeys(self.outputs, True),
            **dict(self.options),
        )


def is_constrained(line: Request) -> bool:
    """Whether a text has a prefix or phrases that are not blank."""
    return any(map(str.strip, (line.prefix, *line.required, *line.forbidden)))


def without_line(problem: str) -> str:
    """Return a message about a line without its number, which counts within a batch."""
    return _LINE.sub("", problem)


def load_served(place: Place, options: EngineOptions) -> ServedModel:
    """Load a model and translate once with it."""
    is_export = is_ctranslate2(place.folder)
    if is_export:
        manifest = Manifest.read(place.folder)
        sha256, step = manifest.files[EXPORTED].sha256, None
    else:
        files = find_model(place.folder)
        sha256, step = files.sha256, files.step
    loaded = load_engine(place.folder, options)
    if not is_export and (options.dtype == "int8" or options.engine == "ctranslate2"):
        plain = replace(options, engine="torch", dtype=None)
        engine = FallbackEngine(loaded.engine, lambda: load_engine(place.folder, plain).engine)
        loaded = replace(loaded, engine=engine)
    own = loaded.config.source_language, loaded.config.target_language
    if own != place.languages:
        raise CheckpointError(
            f"The model {place.name} translates {'-'.join(own)} now, not "
            f"{'-'.join(place.languages)}.",
            fix="Start the server again.",
        )
    translator = Translator.of(loaded, place.folder)
    translator.translate([_WARM_UP])
    return ServedModel(place, translator, loaded, sha256, step, is_export)
