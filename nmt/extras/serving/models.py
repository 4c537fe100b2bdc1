"""Folders -> the models that a server translates with: loaded on demand, reloaded when changed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmt.checkpoint.files import BEST, checkpoints_dir
from nmt.checkpoint.model_folder import CARD, CONFIG, load_folder_config
from nmt.errors import CheckpointError, ConfigError, NmtError
from nmt.extras.serving.model import Languages, Place, ServedModel, load_served
from nmt.files.manifest import NAME as MANIFEST
from nmt.inference.options import EngineOptions

logger = logging.getLogger(__name__)

_CHECK_SECONDS, _RETRY_SECONDS = 1.0, 10.0
_MOST_CARD_BYTES = 1 << 16


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
            model = await asyncio.to_thread(load_served, place, self._options)
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
            can_return = (other for other, slot in self._slots.items() if slot.status != "gone")
            del self._slots[next(can_return, next(iter(self._slots)))]

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
            "confidence": model.translator.options.confidence is not None,
            "tags": sorted(model.translator.tokenizers.source.tags),
            "decoding": model.translator.options.decoding.model_dump(mode="json"),
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
