"""A folder -> the engine for its model. Loads torch only where torch computes."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import get_args

from typing_extensions import override

from nmt.checkpoint.model_folder import (
    TOKENIZER,
    ModelFiles,
    find_model,
    load_folder_config,
    readable,
)
from nmt.config.keys import chosen
from nmt.errors import ConfigError
from nmt.extras.exchange.conversion_cache import NoCacheError, converted_model
from nmt.extras.exchange.ctranslate2 import (
    is_ctranslate2,
    is_installed,
    not_expressed,
    num_positions,
)
from nmt.extras.exchange.ctranslate2_engine import CTranslate2Engine, lacking
from nmt.files.manifest import Manifest
from nmt.inference.engine import (
    Engine,
    EngineChoice,
    EngineOptions,
    LoadedEngine,
    Request,
    parse_device,
)
from nmt.inference.shortlist_file import ShortlistFile
from nmt.search.hypothesis import limits_of
from nmt.text.tokenizer import load_tokenizers

logger = logging.getLogger(__name__)

_CONVERTED = ("float32", "int8")
"""Dtypes in which CTranslate2 is chosen for a CPU."""
_GPU_DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/dxg"), Path("/dev/kfd"))
_DEFAULTS = EngineOptions()


def load_engine(folder: Path, options: EngineOptions = _DEFAULTS) -> LoadedEngine:
    """Load what a folder is for; where a request decides what that is, with the first one.

    Args:
        folder: Run or model folder.
        options: Which engine, and where.

    Raises:
        ConfigError: The engine does not go with the folder, the device or the dtype.
        CheckpointError: A part is missing or damaged, or the models do not go together.
    """
    chosen(dict.fromkeys(get_args(EngineChoice)), options.engine, "engine")
    options = replace(options, device=parse_device(options.device))
    if options.threads is not None and options.threads < 1:
        raise ConfigError(f"threads is {options.threads}.", fix="Leave it out, or give 1 or more.")
    with readable():
        if is_ctranslate2(folder):
            return _load_export(folder, options)
        if options.engine == "torch":
            return _load_torch(folder, options, ())
        if reasons := list(_against_ctranslate2(options)):
            return _load_torch(folder, options, reasons)
        files = find_model(folder, options.checkpoint)
        if faults := not_expressed(files.config.model):
            reasons = [f"it cannot express {fault}" for fault in faults]
            return _load_torch(folder, options, reasons)
        engine = RunEngine(folder, files, options)
        return LoadedEngine(engine, files.config, files.tokenizers, engine.shortlist)


def _load_export(folder: Path, options: EngineOptions) -> LoadedEngine:
    """Load what `nmt export --to ctranslate2` wrote."""
    if options.engine == "torch":
        raise ConfigError(
            f"{folder} is exported for CTranslate2, not for torch.",
            fix="Leave --engine out, or name the run that it was exported from.",
        )
    if options.ensemble is not None and options.ensemble.others:
        raise ConfigError(
            f"{folder} is exported for CTranslate2 and cannot translate together with others.",
            fix="Use the run it was exported from.",
        )
    if options.checkpoint != "best":
        logger.warning(
            "%s holds one model: --checkpoint %s changes nothing there.", folder, options.checkpoint
        )
    Manifest.read(folder).verify(folder)
    engine = CTranslate2Engine(folder, device=options.device, threads=options.threads)
    if options.dtype not in (None, engine.dtype):
        raise ConfigError(
            f"{folder} was exported in {engine.dtype}.",
            fix=f"Leave --dtype out, or export again with --quantization {options.dtype}.",
        )
    tokenizers = load_tokenizers(folder / TOKENIZER)
    shortlist = ShortlistFile(folder, tokenizers.vocab_sizes)
    return LoadedEngine(engine, load_folder_config(folder), tokenizers, shortlist)


def _against_ctranslate2(options: EngineOptions) -> Iterator[str]:
    """Yield why CTranslate2 cannot run a model of ours, or is not meant to."""
    if not is_installed():
        yield "it is not installed (pip install 'nmt[ctranslate2]')"
    if options.ensemble is not None and options.ensemble.others:
        yield "it runs one model at a time"
    if options.engine == "auto":
        if options.device.startswith("cuda") or (options.device == "auto" and _has_gpu()):
            yield "it is chosen for CPUs only"
        if options.dtype not in (None, *_CONVERTED):
            yield f"it is not chosen for {options.dtype}"


def _has_gpu() -> bool:
    """Whether torch has a GPU; asked only where there are signs of one, as torch takes long."""
    if sys.platform == "linux" and not any(path.exists() for path in _GPU_DRIVERS):
        return False
    import torch  # noqa: PLC0415

    return torch.cuda.is_available()


def _load_torch(folder: Path, options: EngineOptions, reasons: Sequence[str]) -> LoadedEngine:
    """Load the torch engine, as there are reasons against CTranslate2 or it was asked for."""
    why = "; ".join(reasons)
    if options.engine == "ctranslate2":
        raise ConfigError(
            f"The CTranslate2 engine does not go here: {why}.",
            fix="Use --engine torch, or leave it out.",
        )
    if options.dtype == "int8":
        but = f", but {why}" if reasons else ""
        raise ConfigError(f"int8 needs the CTranslate2 engine{but}.", fix="Leave --dtype int8 out.")
    if reasons:
        logger.debug("engine: torch; of CTranslate2: %s", why)
    from nmt.inference.torch_engine import load_torch_engine  # noqa: PLC0415

    return load_torch_engine(folder, options)


class RunEngine(Engine):
    """Stands for CTranslate2 and torch: `serving` loads the one that a request needs.

    Args:
        folder: The run or model folder.
        files: Its model.
        options: How to load; with ``engine`` ``ctranslate2`` torch never takes over.
    """

    def __init__(self, folder: Path, files: ModelFiles, options: EngineOptions) -> None:
        self._folder, self._files, self._options = folder, files, options
        self.shortlist = ShortlistFile(folder, files.tokenizers.vocab_sizes)
        self.max_positions = files.config.model.position_limit
        self._loaded: dict[str, Engine] = {}
        self._lock = threading.Lock()

    @property
    def on_gpu(self) -> bool:  # type: ignore[override]
        """Whether what was loaded so far is."""
        return any(engine.on_gpu for engine in self._loaded.values())

    @override
    def serving(self, request: Request) -> Engine:
        reasons = list(self._lacking(request))
        shortlist = self.shortlist if request.options.shortlist else None
        if shortlist:
            shortlist.require()
        with self._lock:
            if not reasons:
                name = "ctranslate2 with short lists" if shortlist else "ctranslate2"
                try:
                    return self._once(name, lambda: self._load_ctranslate2(shortlist))
                except NoCacheError as error:
                    reasons = [f"the model cannot be converted: {error}"]
                    logger.info("torch translates, as %s", reasons[0])
            load = partial(_load_torch, self._folder, self._options, reasons)
            return self._once("torch", lambda: load().engine)

    def _lacking(self, request: Request) -> Iterator[str]:
        """Yield what CTranslate2 does not have of a request."""
        if names := lacking(request):
            yield f"it does not have {', '.join(names)}"
        config = self._files.config
        longest = max(config.filters.max_length, request.longest)
        most = limits_of(longest, request.options).longest
        most = max(most, longest + 1 + config.model.source_bos)
        known = num_positions(config)
        if known is not None and config.model.positions != "learned" and most > known:
            yield f"it is converted for {known:,} tokens, not for {most:,}"

    def _load_ctranslate2(self, shortlist: ShortlistFile | None) -> Engine:
        options, dtype = self._options, self._options.dtype or "float32"
        folder = converted_model(self._folder, self._files, dtype, shortlist)
        device = "cpu" if options.engine == "auto" else options.device
        return CTranslate2Engine(folder, device=device, threads=options.threads)

    def _once(self, name: str, load: Callable[[], Engine]) -> Engine:
        if name not in self._loaded:
            self._loaded[name] = load()
            logger.debug("engine: %s, %s", name, self._loaded[name].dtype)
        return self._loaded[name]
