"""``nmt serve``: models behind HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import typer

from nmt.cli.options import JSON, dtype_name, file_name, flag, print_result

EPILOG = """\b
Examples:
  nmt serve runs/demo
  nmt serve runs/de-en runs/en-fr runs/en-it --pivot en --max-loaded 2
  nmt serve best=runs/base --host 0.0.0.0 --api-keys keys.txt --allow-host translate.example.org
  curl localhost:8080/v1/translate -H 'Content-Type: application/json' -d '{"texts": ["Hello."]}'
"""


@dataclass(frozen=True, slots=True)
class Computing:
    """What computes."""

    title: ClassVar[str] = "Model"

    engine: Literal["auto", "torch", "ctranslate2"] = flag(
        default="auto", help="auto: CTranslate2 where it has what a request needs, otherwise torch."
    )
    dtype: str = flag(
        default="auto",
        metavar="TYPE",
        parser=dtype_name,
        help="Type of the weights, as for `nmt translate`.",
    )
    threads: int | None = flag(
        min=1, max=1024, metavar="N", help="Batches at the same time.", show_default="all cores"
    )
    pivot: str | None = flag(
        metavar="LANGUAGE",
        help="Translate pairs without a model of their own through this language.",
        show_default=False,
    )
    max_loaded: int | None = flag(
        min=1,
        metavar="N",
        help="Models in memory; the one used least recently makes room.",
        show_default="all",
    )


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a request may be, and how many there may be."""

    title: ClassVar[str] = "Limits"

    max_chars: int = flag(
        default=20_000, min=1, max=10_000_000, metavar="N", help="Characters of a request."
    )
    max_texts: int = flag(default=256, min=1, max=100_000, metavar="N", help="Texts of a request.")
    max_queue: int = flag(
        default=512, min=1, max=100_000, metavar="N", help="Requests at once; more get 503."
    )
    deadline: float = flag(
        default=30.0, min=0.1, max=3600, metavar="SECONDS", help="Time for a request; then 504."
    )
    rate: str | None = flag(
        metavar="N/TIME",
        help="Requests of one client, as in 60/min; more get 429.",
        show_default="60/min, and no limit for this machine itself",
    )


@dataclass(frozen=True, slots=True)
class Reach:
    """Who may ask."""

    title: ClassVar[str] = "Access"

    host: str = flag(
        default="127.0.0.1",
        metavar="ADDRESS",
        help="Address to listen on; one that other machines reach needs --api-keys or --no-auth.",
    )
    port: int = flag(default=8080, min=0, max=65535, metavar="N", help="0 for any that is free.")
    api_keys: Path | None = flag(
        metavar="FILE",
        parser=file_name,
        help="Who may ask: a line NAME KEY for each client.",
        show_default=False,
    )
    no_auth: bool = flag(default=False, help="Let other machines ask without a key.")
    allow_origin: list[str] = flag(
        default=[],
        metavar="URL",
        help="A site whose pages may ask, as https://example.org. Repeatable.",
    )
    allow_host: list[str] = flag(
        default=[], metavar="NAME", help="A name under which the server is reached. Repeatable."
    )
    trusted_proxy: list[str] = flag(
        default=[],
        metavar="CIDR",
        help="Proxies whose X-Forwarded-For is believed, as 10.0.0.0/8. Repeatable.",
    )
    root_path: str = flag(
        default="", metavar="PATH", help="Path under which a proxy serves this, as /mt."
    )


def serve(
    *,
    models: list[str] = typer.Argument(
        metavar="MODEL", help="Run or model folders; NAME=FOLDER gives one a name."
    ),
    name: list[str] = flag(
        default=[], metavar="NAME=FOLDER", help="A further model with a name. Repeatable."
    ),
    computing: Computing,
    bounds: Bounds,
    reach: Reach,
    no_page: bool = flag(default=False, help="Serve the API only, without the page."),
    no_metrics: bool = flag(default=False, help="Serve no /metrics."),
    check: bool = flag(
        default=False, help="Load every model, translate once with each, report and exit."
    ),
    json: bool = JSON,
) -> None:
    """Serve models: a JSON API, LibreTranslate's API, and a page.

    Requests of all clients share batches. SIGTERM: /health/ready answers 503, what was accepted is
    answered, and the exit code is 0. Needs `pip install 'nmt[serve]'`.
    """
    from nmt.extras.serving import options as of
    from nmt.extras.serving.command import serve as run

    options = of.ServerOptions(
        host=reach.host,
        port=reach.port,
        limits=of.Limits(
            max_chars=bounds.max_chars,
            max_texts=bounds.max_texts,
            max_queue=bounds.max_queue,
            deadline=bounds.deadline,
            rate=of.parse_rate(bounds.rate) if bounds.rate is not None else None,
        ),
        access=of.Access(
            keys=of.read_keys(reach.api_keys) if reach.api_keys else None,
            hosts=of.host_names(reach.allow_host),
            origins=of.origins(reach.allow_origin),
            proxies=tuple(map(of.parse_network, reach.trusted_proxy)),
        ),
        pivot=computing.pivot,
        max_loaded=computing.max_loaded,
        page=not no_page,
        metrics=not no_metrics,
        root_path=of.path_prefix(reach.root_path),
    )
    found = run(
        map(of.parse_model, [*models, *name]),
        options,
        engine=computing.engine,
        dtype=computing.dtype,
        threads=computing.threads,
        no_auth=reach.no_auth,
        check=check,
    )
    for each in found:
        facts = (each["engines"]["translate"], each["dtype"], each["sha256"][:12])
        print_result(f"{each['name']}: {', '.join(facts)}", each, json=json)
