"""Shared groups of options -> the arguments by which a model is loaded."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmt.commands.options import MbrOptions, ModelOptions, SearchOptions, given
from nmt.config.loader import load_config, refuse_idle
from nmt.config.run import RunConfig
from nmt.data.checks import other_language
from nmt.errors import ConfigError
from nmt.inference.engine import Ensemble
from nmt.registry import load_attribute

if TYPE_CHECKING:
    from nmt.inference.mbr import Mbr

logger = logging.getLogger(__name__)


def loading(options: ModelOptions) -> dict[str, Any]:
    """Return the arguments of `Translator.load` and `Scorer.load`.

    Raises:
        ConfigError: The weights are wrong, or not as many as the models.
    """
    ensemble = None
    if options.with_ or options.weights is not None:
        mean = options.ensemble_mean or "arithmetic"
        ensemble = Ensemble(options.with_, options.weights or (), mean)
        ensemble.shares()  # before anything slow is loaded
    names = ("checkpoint", "device", "threads", "engine", "dtype")
    arguments = {name: getattr(options, name) for name in names if hasattr(options, name)}
    if isinstance(options, SearchOptions):
        arguments |= {"guard": not options.no_guard, "split": not options.no_split}
    return arguments | {"ensemble": ensemble}


def mbr(options: MbrOptions, beam_size: int | None) -> Mbr | None:
    """Return the utility and its candidates; None where it is not asked for.

    Raises:
        ConfigError: A beam size was given too, or candidates without a utility.
    """
    if options.mbr is None:
        for name in given(options, "mbr_candidates", "mbr_from"):
            raise ConfigError(f"`{name}` needs `mbr`.", fix="Add `mbr` chrf, or leave it out.")
        return None
    if beam_size is not None:
        fix = "Leave `beam_size` out, and set `mbr_candidates`."
        raise ConfigError(f"`beam_size` {beam_size} does not work with `mbr`.", fix=fix)
    make: type[Mbr] = load_attribute("nmt.inference.mbr:Mbr")  # its metrics take time to load
    return make(options.mbr, options.mbr_candidates or 32, options.mbr_from or "samples")


def decoding_changes(
    model: Path, overrides: Sequence[str], decoding: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the decoding options that differ from the model's; an option beats an override.

    Args:
        model: The folder whose configuration is changed.
        overrides: ``decoding.key=value`` each.
        decoding: Decoding options.

    Raises:
        ConfigError: The configuration cannot be read or changed so, or an override is of another
            section.
    """
    if not overrides:
        return dict(decoding)
    # Together: one may be wrong without the other.
    both = [*overrides, *(f"decoding.{name}={json.dumps(x)}" for name, x in decoding.items())]
    config = load_config(model / "config.yaml", both)
    refuse_idle(overrides, ("decoding",))
    return config.decoding.model_dump()


def warn_of_language(name: str, texts: Iterable[str], config: RunConfig) -> None:
    """Warn of a text in another language than the one that a model translates."""
    known = config.source_language
    if found := other_language(texts, known, [config.target_language]):
        text = "%s looks like %s, and the model translates %s: the wrong file or model?"
        logger.warning(text, name, found, known)
