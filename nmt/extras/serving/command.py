"""``nmt serve``: model folders -> an HTTP service."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmt.errors import ConfigError
from nmt.inference.options import EngineOptions

if TYPE_CHECKING:
    from nmt.extras.serving.options import ServerOptions

_NEEDED = ("starlette", "uvicorn", "sentencex")


def serve(
    models: Iterable[tuple[str | None, Path]],
    options: ServerOptions | None = None,
    *,
    engine: str = "auto",
    dtype: str = "auto",
    threads: int | None = None,
    no_auth: bool = False,
    check: bool = False,
) -> list[dict[str, Any]]:
    """Serve models until a signal ends it.

    Args:
        models: Name and folder of each; without a name it is called by its languages.
        options: Of the server; the usual ones when None.
        engine: What computes; see `nmt.inference.translator.Translator.load`.
        dtype: Of the weights; see there.
        threads: Batches that are translated at the same time; None for all cores.
        no_auth: Whether other machines may ask without a key.
        check: Only load everything, translate once with each model, and return.

    Returns:
        With ``check`` the description of each model.

    Raises:
        ConfigError: Packages are missing, the address cannot be used, or options do not go
            together.
        CheckpointError: A model is missing or damaged.
    """
    if missing := [name for name in _NEEDED if find_spec(name) is None]:
        raise ConfigError(
            f"`nmt serve` needs {', '.join(missing)}.", fix="pip install 'nmt[serve]'"
        )
    from nmt.extras.serving.models import name_models  # noqa: PLC0415 - may not be installed
    from nmt.extras.serving.options import ServerOptions  # noqa: PLC0415
    from nmt.extras.serving.server import check_server, run_server  # noqa: PLC0415
    from nmt.inference.distributed import errors_only  # noqa: PLC0415

    options = options or ServerOptions()
    options.check(no_auth=no_auth)
    if not (folders := name_models(models)):
        raise ConfigError("There is no model to serve.", fix="Name a run or model folder.")
    choice = EngineOptions(engine=engine, dtype=dtype, threads=threads)
    with errors_only("nmt.inference"):  # notes on single lines are no news to who runs the server
        if check:
            return check_server(folders, choice, options)
        run_server(folders, choice, options)
    return []
