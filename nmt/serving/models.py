"""Folders -> the models that a server translates with: loaded on demand, reloaded when changed."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from nmt.checkpoint.files import BEST, checkpoints_dir
from nmt.checkpoint.model_folder import CARD, CONFIG, find_model, load_folder_config
from nmt.config.decoding import change_options
from nmt.errors import CheckpointError, ConfigError, NmtError
from nmt.exchange.ctranslate2 import MODEL as EXPORTED
from nmt.exchange.ctranslate2 import is_ctranslate2
from nmt.files.manifest import NAME as MANIFEST
from nmt.files.manifest import Manifest
from nmt.runtime.engine import EngineOptions, LoadedEngine
from nmt.runtime.engine import Request as EngineRequest
from nmt.runtime.loading import load_engine
from nmt.translation.line_format import Request
from nmt.translation.result import TranslationResult
from nmt.translation.segment import joiner_for
from nmt.translation.translator import Translator

logger = logging.getLogger(__name__)

Languages: TypeAlias = tuple[str, str]
"""Source and target."""
_CHECK_SECONDS, _RETRY_SECONDS = 1.0, 10.0
_MOST_CARD_BYTES = 1 << 16
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
    loaded: LoadedEngine
    sha256: str
    """Of its weights."""
    step: int | None
    """Updates it was trained for; None if the folder does not say."""
    is_export: bool
    """Whether the folder is CTranslate2's, which no other engine reads."""

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
        from nmt.translation.scorer import Scorer  # noqa: PLC0415 - loads torch

        outputs = frozenset({"token_scores" if self.is_export else "attention"})
        request = EngineRequest(self.loaded.config.decoding, outputs=outputs)
        engine = self.loaded.engine.serving(request)
        scorer = Scorer(replace(self.loaded, engine=engine))
        return [found.as_dict() for found in scorer.score(pairs, tag=tag)]


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
        self.model.loaded.engine.serving(request).start_worker()
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


def _watched(folder: Path) -> tuple[Any, ...] | None:
    """Return what tells whether a model has changed; None when its folder is gone."""
    found: list[tuple[int, ...] | None] = []
    for path in (*(folder / name for name in (MANIFEST, CONFIG, BEST)), checkpoints_dir(folder)):
        try:
            status = path.stat()
        except OSError:
            found.append(None)
        else:
            found.append((status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(found) if any(found) else None


def _load(place: Place, options: EngineOptions) -> ServedModel:
    """Load a model and translate once with it."""
    is_export = is_ctranslate2(place.folder)
    if is_export:
        manifest = Manifest.read(place.folder)
        sha256, step = manifest.files[EXPORTED].sha256, None
    else:
        files = find_model(place.folder)
        sha256, step = files.sha256, files.step
    loaded = load_engine(place.folder, options)
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


@dataclass(slots=True)
class _Slot:
    """A model in memory, and the state of its folder."""

    model: ServedModel
    watched: Any
    checked: float
    refused: tuple[Any, float] | None = None
    """A state that could not be loaded, and when."""

    @property
    def status(self) -> str:
        """In a word."""
        if self.refused is None:
            return "ready"
        return "gone" if self.refused[0] is None else "changed"


class ModelStore:
    """The models that are served, and which of them are in memory.

    A model is loaded when it is first asked for, and again when its folder has changed. When the
    new one cannot be loaded, or the folder is gone, the old one stays. Of more than ``max_loaded``
    the one that was asked for least recently is let go, once nobody translates with it.

    Args:
        folders: Name -> folder.
        options: Which engine, and where.
        max_loaded: Most models in memory; None for all.
        pivot: Language through which a pair without a model is translated.

    Raises:
        CheckpointError: A folder holds no model.
        ConfigError: No model reads or writes the pivot.
    """

    def __init__(
        self,
        folders: Mapping[str, Path],
        options: EngineOptions,
        max_loaded: int | None = None,
        pivot: str | None = None,
    ) -> None:
        self.places = {name: _find_place(name, folder) for name, folder in folders.items()}
        self._options, self._max_loaded = options, max_loaded or len(folders)
        self._slots: OrderedDict[str, _Slot] = OrderedDict()
        self._locks = {name: asyncio.Lock() for name in folders}
        pairs = {place.languages: name for name, place in reversed(self.places.items())}
        self.routes: dict[Languages, tuple[str, ...]] = {pair: (pairs[pair],) for pair in pairs}
        first = [pair for pair in pairs if pair[1] == pivot]
        then = [pair for pair in pairs if pair[0] == pivot]
        for source, _ in first:
            for _, target in then:
                if source != target and (source, target) not in pairs:
                    route = pairs[source, str(pivot)], pairs[str(pivot), target]
                    self.routes[source, target] = route
        if pivot is not None and all(len(route) == 1 for route in self.routes.values()):
            raise ConfigError(
                f"--pivot {pivot} joins no two of these models.",
                fix="Leave it out, or serve models into it and out of it.",
            )

    def names(self) -> list[str]:
        """Return the names of the models that fit in memory together, in the order given."""
        return list(self.places)[: self._max_loaded]

    async def get(self, name: str) -> ServedModel:
        """Return a model, loaded.

        Raises:
            NmtError: It cannot be loaded, and was not before.
        """
        async with self._locks[name]:
            slot = self._slots.get(name)
            if slot is None or time.monotonic() - slot.checked > _CHECK_SECONDS:
                slot = await self._refreshed(name, slot)
            if name in self._slots:
                self._slots.move_to_end(name)
            return slot.model

    async def _refreshed(self, name: str, slot: _Slot | None) -> _Slot:
        place, now = self.places[name], time.monotonic()
        watched = await asyncio.to_thread(_watched, place.folder)
        if slot is not None:
            slot.checked = now
            if watched == slot.watched:
                slot.refused = None
                return slot
            known = slot.refused
            if known and known[0] == watched and now - known[1] < _RETRY_SECONDS:
                return slot
            if watched is None:
                logger.warning("the folder of %s is gone; the loaded model stays", name)
                slot.refused = watched, now
                return slot
        try:
            self._make_room(name)
            model = await asyncio.to_thread(_load, place, self._options)
        except NmtError as error:
            if slot is None:
                raise
            slot.refused = watched, now
            logger.warning("%s has changed, and the old one stays: %s", name, error.problem)
            return slot
        if slot is not None:
            logger.info("%s has changed and was loaded again", name)
        self._slots[name] = slot = _Slot(model, watched, now)
        return slot

    def _make_room(self, name: str) -> None:
        while len(self._slots) >= self._max_loaded and name not in self._slots:
            self._slots.popitem(last=False)

    @property
    def num_loaded(self) -> int:
        """Models in memory."""
        return len(self._slots)

    def describe(self) -> list[dict[str, Any]]:
        """Return what anybody may know of each model."""
        return [self._describe(place) for place in self.places.values()]

    def _describe(self, place: Place) -> dict[str, Any]:
        source, target = place.languages
        slot = self._slots.get(place.name)
        values = {
            "name": place.name,
            "source": source,
            "target": target,
            "loaded": slot is not None,
            "status": slot.status if slot else "not loaded",
        }
        if slot is None:
            return values
        model = slot.model
        return {
            **values,
            "sha256": model.sha256,
            "step": model.step,
            "dtype": model.translator.engine.dtype,
            "engines": model.engines(),
            "confidence": model.translator.has_confidence,
            "tags": sorted(model.loaded.tokenizers.source.tags),
            "decoding": model.translator.options.model_dump(mode="json"),
            "card": read_card(place.folder),
        }


def read_card(folder: Path) -> str | None:
    """Return the model card of a folder, up to a bound; None if there is none."""
    try:
        with (folder / CARD).open("rb") as file:
            return file.read(_MOST_CARD_BYTES).decode("utf-8", "replace")
    except OSError:
        return None


def _find_place(name: str, folder: Path) -> Place:
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is no folder.", fix="Name a run or model folder.")
    config = load_folder_config(folder)
    return Place(name, folder, (config.source_language, config.target_language))


def name_models(models: Iterable[tuple[str | None, Path]]) -> dict[str, Path]:
    """Return a name for each folder: the one given, or its languages, or its own.

    Raises:
        ConfigError: Two have the same name.
        CheckpointError: A folder holds no model.
    """
    found: dict[str, Path] = {}
    for given, folder in models:
        pair = "-".join(_find_place("", folder).languages) if given is None else given
        name = folder.resolve().name if pair in found and given is None else pair
        if name in found:
            raise ConfigError(
                f"{found[name]} and {folder} are both called {name}.",
                fix="Name one of them, as in --name second=FOLDER.",
            )
        found[name] = folder
    return found
