"""Run folders in the form of CTranslate2, converted once and kept.

A converted model lies in ``RUN/.cache``, or in the user's cache folder where the run cannot be
written. Its name says what it was made of, so that other weights never find it. It may be removed
at any time. Processes that need it at the same time convert it once: the first holds a lock, and
the folder appears whole. Finding one loads no torch.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path

from nmt.checkpoint.model_folder import SHORTLIST, ModelFiles, read_weights
from nmt.errors import CheckpointError
from nmt.extras.exchange.ctranslate2 import CONVERSION, CTranslate2Target, num_positions
from nmt.files.atomic import atomic_folder, file_lock, remove_folder
from nmt.files.json_file import Manifest, sha256_of_file, sha256_of_json
from nmt.inference.engine import EngineLacksError, ShortlistParts, require_shortlist

logger = logging.getLogger(__name__)

_KEPT_IN_RUN, _KEPT_OF_USER = 4, 16


def converted_model(folder: Path, files: ModelFiles, dtype: str, *, with_shortlist: bool) -> Path:
    """Return the folder of a model in the form of CTranslate2, converting it if need be.

    Args:
        folder: The run or model folder.
        files: The model.
        dtype: Type of the weights, by CTranslate2's name.
        with_shortlist: Whether its short lists become the vocabulary map.

    Raises:
        ConfigError: It has no short lists.
        CheckpointError: The weights are damaged.
        EngineLacksError: No place can be written.
    """
    sizes = files.tokenizers.vocab_sizes
    shortlist = require_shortlist(folder, sizes) if with_shortlist else None
    made_of = {  # whatever changes a byte
        "conversion": CONVERSION,
        "weights": files.sha256,
        "model": files.config.model.model_dump(mode="json"),
        "positions": num_positions(files.config),
        "shortlist": sha256_of_file(folder / SHORTLIST) if with_shortlist else None,
    }
    name = f"ctranslate2-{dtype}-{sha256_of_json(made_of)[:16]}"
    places = {folder / ".cache": _KEPT_IN_RUN}
    given = os.environ.get("XDG_CACHE_HOME", "")
    with suppress(RuntimeError):  # a user without a home
        users = Path(given) if Path(given).is_absolute() else Path.home() / ".cache"
        places[users / "nmt"] = _KEPT_OF_USER
    for place in places:
        if _is_whole(place / name):
            return place / name
    problems = []
    for place, kept in places.items():
        try:
            return _convert(place / name, kept, files, dtype, shortlist)
        except OSError as error:
            problems.append(f"{place} cannot be written ({error.strerror or error})")
    problem = f"the model cannot be converted: {'; '.join(problems)}"
    logger.info("%s", problem)  # torch, which takes over, is slower
    fix = "Make one of these writable, or use `engine` torch."
    raise EngineLacksError(f"The ctranslate2 engine does not go here: {problem}.", fix=fix)


def _is_whole(folder: Path) -> bool:
    try:
        Manifest.read(folder).verify(folder)
    except CheckpointError:
        return False
    return True


def _convert(
    folder: Path, kept: int, files: ModelFiles, dtype: str, shortlist: ShortlistParts | None
) -> Path:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(folder.parent / ".lock", wait=True):
        if _is_whole(folder):  # another process was faster
            return folder
        logger.info("converting the model for CTranslate2, once: %s", folder)
        bundle = read_weights(files)
        with atomic_folder(folder, replace=True) as place:
            CTranslate2Target().write(place, bundle, dtype, shortlist)
            names = sorted(path.name for path in place.iterdir())
            Manifest.of(place, names, files.step).write(place)
        # The oldest conversions are of checkpoints that are gone, or of other types.
        found = sorted(folder.parent.glob("ctranslate2-*"), key=lambda path: -path.stat().st_mtime)
        for old in found[kept:]:
            logger.debug("removing an old conversion: %s", old)
            remove_folder(old)
    return folder
