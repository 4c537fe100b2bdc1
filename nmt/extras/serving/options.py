"""`nmt.serve`, and its options. Loads neither torch nor the packages of a server."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from nmt.commands.options import Json, Texts, Threads
from nmt.config.flag import Flag, Options
from nmt.errors import ConfigError
from nmt.registry import load_attribute

_UNITS = {"s": 1, "sec": 1, "second": 1, "m": 60, "min": 60, "minute": 60, "h": 3600, "hour": 3600}
# Of a JSON text: a character may be two escaped surrogates; a text has options of its own.
_BYTES_OF_CHARACTER, _BYTES_OF_TEXT, _BYTES_OF_REST = 12, 256, 1 << 16
_NEEDED = ("fastapi", "prometheus_client", "sentencex", "srt", "uvicorn")


class Rate(NamedTuple):
    """Requests in so many seconds."""

    requests: int
    seconds: int

    def __str__(self) -> str:
        unit = {1: "s", 60: "min", 3600: "h"}[self.seconds]
        return f"{self.requests}/{unit}"


def parse_rate(text: str) -> Rate:
    """Read a rate such as ``60/min``.

    Raises:
        ValueError: It is not a rate.

    >>> parse_rate("60/min"), str(parse_rate("2/s"))
    (Rate(requests=60, seconds=60), '2/s')
    """
    found = re.fullmatch(r"(\d{1,9})/([a-z]+)", text.strip().lower())
    if found is None or found[2] not in _UNITS or not int(found[1]):
        raise ValueError(f"{text!r} is not a rate. Write requests per time, as in 60/min.")
    return Rate(int(found[1]), _UNITS[found[2]])


def _parser(pattern: str, advice: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"{text!r} is not valid. {advice}")
        return text.rstrip("/").lower()

    return parse


parse_origin = _parser(r"https?://[\w.\[\]:-]+/?", "Write https://example.org, without a path.")
parse_host = _parser(r"[\w.-]+|\[[0-9a-fA-F:.]+\]", "Leave out https:// and the port.")
parse_path = _parser(r"(/[\w./-]*)?", "Write a path as in /mt.")


def parse_network(text: str) -> str:
    """Read an address or a network such as ``10.0.0.0/8``.

    Raises:
        ValueError: It is neither.
    """
    return str(ipaddress.ip_network(text, strict=False))


@dataclass(frozen=True, kw_only=True)
class ComputingOptions(Options):
    """How models are computed.

    Args:
        engine: auto: CTranslate2 if it has all that a request needs, otherwise torch.
        dtype: Type of the weights, as for `nmt translate`.
    """

    title: ClassVar[str] = "Model"

    engine: Literal["auto", "torch", "ctranslate2"] = "auto"
    dtype: Annotated[str, Flag(metavar="TYPE")] = "auto"
    threads: Threads = None


@dataclass(frozen=True, kw_only=True)
class LimitOptions(Options):
    """Limits of requests.

    Args:
        max_chars: Most characters of a request.
        max_texts: Most texts of a request.
        max_queue: Most requests at a time; further ones get status 503.
        deadline: Time for a request; then it gets 504.
        rate: Most requests of one client; more get 429. 60/min for other machines unless given.
    """

    title: ClassVar[str] = "Limits"

    max_chars: Annotated[int, Flag(min=1, max=10_000_000)] = 20_000
    max_texts: Annotated[int, Flag(min=1, max=100_000)] = 256
    max_queue: Annotated[int, Flag(min=0, max=100_000)] = 512
    deadline: Annotated[float, Flag(metavar="SECONDS", min=0.01, max=3600)] = 30.0
    rate: Annotated[Rate | None, Flag(metavar="N/TIME", parser=parse_rate)] = None
    # In which a body must have come, and an answer must have been read.
    body_seconds: Annotated[float, Flag(hidden=True)] = 10.0
    max_connections: Annotated[int, Flag(hidden=True)] = 4096

    @property
    def max_bytes(self) -> int:
        """Of the body of a request."""
        texts = _BYTES_OF_CHARACTER * self.max_chars + _BYTES_OF_TEXT * self.max_texts
        return texts + _BYTES_OF_REST


@dataclass(frozen=True, kw_only=True)
class AccessOptions(Options):
    """Who may send requests.

    Args:
        host: Address to listen on; for others `api_keys` or `no_auth` is needed.
        port: Port to listen on; 0 for any free one.
        api_keys: File of API keys: a line NAME KEY for each client.
        no_auth: Let other machines send requests without a key.
        allow_origin: Site whose pages may send requests. Repeatable.
        allow_host: Name of this server for clients. Repeatable.
        trusted_proxy: Proxies with X-Forwarded-For. Repeatable.
        root_path: Path of the server behind a proxy, as /mt.
    """

    title: ClassVar[str] = "Access"

    host: Annotated[str, Flag(metavar="IP")] = "127.0.0.1"
    port: Annotated[int, Flag(min=0, max=65535)] = 8080
    api_keys: Path | None = None
    no_auth: bool = False
    allow_origin: Annotated[Texts, Flag(metavar="URL", parser=parse_origin)] = ()
    allow_host: Annotated[Texts, Flag(metavar="NAME", parser=parse_host)] = ()
    trusted_proxy: Annotated[Texts, Flag(metavar="CIDR", parser=parse_network)] = ()
    root_path: Annotated[str, Flag(metavar="PATH", parser=parse_path)] = ""


@dataclass(frozen=True, kw_only=True)
class ServeOptions(ComputingOptions, LimitOptions, AccessOptions):
    """Which models to serve, to whom, and within which limits.

    Args:
        models: Run or model folders; NAME=FOLDER gives one a name.
        no_page: Serve the API only, without the page.
        no_metrics: Do not serve /metrics.
        check: Load every model, translate once with each, report and exit.
    """

    models: Annotated[Texts, Flag(argument=True, metavar="MODEL")]
    no_page: bool = False
    no_metrics: bool = False
    check: bool = False
    json: Json = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.api_keys or self.no_auth or is_loopback(self.host)):
            raise ConfigError(
                f"`host` {self.host} lets other machines send requests without a key.",
                fix="Add `api_keys` FILE, or `no_auth` if a proxy or firewall protects the server.",
            )


def address_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return what an address means; None for a name."""
    with suppress(ValueError):
        return ipaddress.ip_address(host)
    return None


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    return host == "localhost" or getattr(address_of(host), "is_loopback", False)


@dataclass(frozen=True, slots=True)
class CheckedModels:
    """What each model is."""

    models: list[dict[str, Any]]

    def as_text(self) -> str:
        """One line for each model."""
        return "\n".join(
            f"{x['name']}: {x['engines']['translate']}, {x['dtype']}, {x['sha256'][:12]}"
            for x in self.models
        )

    def as_dict(self) -> dict[str, Any]:
        """All that GET /v1/models says of them."""
        return asdict(self)


def serve(options: ServeOptions) -> CheckedModels | None:
    """Serve models until a signal ends it.

    Returns:
        With ``check`` what each model is, and nothing is served.

    Raises:
        ConfigError: Packages are missing, the address cannot be used, or an option is wrong.
        CheckpointError: A model is missing or damaged.
    """
    if missing := [name for name in _NEEDED if find_spec(name) is None]:
        raise ConfigError(
            f"`nmt serve` needs {', '.join(missing)}.", fix="pip install -e '.[serve]'"
        )
    return load_attribute("nmt.extras.serving.server:start_server")(options)
