"""`nmt.serve` and its options. Imports neither torch nor the server's packages."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from nmt.commands.options import CommandResult, Device, GlossaryFile, Json, Texts, Threads
from nmt.config.flag import Flag, Options
from nmt.errors import ConfigError
from nmt.registry import load_attribute

# Unit of time -> seconds.
_UNITS = {"s": 1, "sec": 1, "second": 1, "m": 60, "min": 60, "minute": 60, "h": 3600, "hour": 3600}
# For the size of a request body: JSON can write one character as two escaped surrogates of six
# bytes, and each text can have its own options.
_BYTES_PER_CHARACTER = 12
_BYTES_PER_TEXT = 256
_BYTES_OF_OPTIONS = 1 << 16  # everything that is in a body once
_PACKAGES = ("cachetools", "fastapi", "prometheus_client", "srt", "uvicorn")


class Rate(NamedTuple):
    """A number of requests per period."""

    requests: int
    seconds: int

    def __str__(self) -> str:
        unit = {1: "s", 60: "min", 3600: "h"}[self.seconds]
        return f"{self.requests}/{unit}"


def parse_rate(text: str) -> Rate:
    """Read a rate such as ``60/min``.

    Raises:
        ValueError: The text is not a rate.

    >>> parse_rate("60/min"), str(parse_rate("2/s"))
    (Rate(requests=60, seconds=60), '2/s')
    """
    match = re.fullmatch(r"(\d{1,9})/([a-z]+)", text.strip().lower())
    if match is None or match[2] not in _UNITS or not int(match[1]):
        raise ValueError(f"{text!r} is not a rate. Write requests per time, such as 60/min.")
    return Rate(int(match[1]), _UNITS[match[2]])


def _parser(pattern: str, advice: str) -> Callable[[str], str]:
    """Return the parser of an option: it checks the pattern, and returns the usual spelling."""

    def parse(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"{text!r} is not valid. {advice}")
        return text.rstrip("/").lower()

    return parse


parse_origin = _parser(
    r"[a-zA-Z][\w+.-]*://[\w.\[\]:-]+/?|null", "Write https://example.org, without a path."
)
parse_host = _parser(r"[\w.-]+|\[[0-9a-fA-F:.]+\]", "Remove https:// and the port.")
parse_path = _parser(r"(/[\w./-]*)?", "Write a path such as /mt.")


def parse_network(text: str) -> str:
    """Read an address or a network such as ``10.0.0.0/8``.

    Raises:
        ValueError: The text is neither an address nor a network.
    """
    return str(ipaddress.ip_network(text, strict=False))


class ComputingOptions(Options):
    """How models are computed.

    Args:
        engine: Library that computes translations. auto uses CTranslate2 where it supports the
            request, and torch otherwise.
        dtype: Number type of the weights: auto, float32, bfloat16, float16 (GPU only) or int8
            (CTranslate2 only, fastest on CPUs). auto is float32 on CPUs and 16 bits on GPUs. In
            bfloat16, about 3% of the translations depend on the other lines (measured on a CPU).
    """

    title = "Model"

    engine: Literal["auto", "torch", "ctranslate2"] = "auto"
    dtype: Annotated[str, Flag(metavar="TYPE")] = "auto"
    device: Device = "auto"
    threads: Threads = None
    glossary: GlossaryFile = None


class LimitOptions(Options):
    """Limits of requests.

    Args:
        max_chars: Maximum characters per request; a longer request gets status 413.
        max_texts: Maximum texts per request; a request with more texts gets status 413.
        max_queue: Maximum concurrent requests; further requests get status 503.
        deadline: Time limit per request, in seconds; a slower request gets status 504.
        rate: Maximum requests per client, such as 60/min or 5/s; further requests get status 429.
            The default limits clients on other machines to 60/min, but not with `no_auth`.
        cache: Memory for the translations of earlier sentences, in megabytes (estimated). The same
            sentence with the same model and options is not translated again. 0 disables the cache.
    """

    title = "Limits"

    max_chars: Annotated[int, Flag(min=1, max=10_000_000)] = 20_000
    max_texts: Annotated[int, Flag(min=1, max=100_000)] = 256
    max_queue: Annotated[int, Flag(min=0, max=100_000)] = 512
    deadline: Annotated[float, Flag(metavar="SECONDS", min=0.01, max=3600)] = 30.0
    rate: Annotated[Rate | None, Flag(metavar="N/TIME", parser=parse_rate)] = None
    cache: Annotated[int, Flag(metavar="MB", min=0, max=100_000)] = 100
    # Time for a client to send a body, and again to read a streamed answer after the deadline.
    body_seconds: Annotated[float, Flag(hidden=True)] = 10.0
    max_connections: Annotated[int, Flag(hidden=True)] = 4096

    @property
    def max_bytes(self) -> int:
        """Maximum size of a request body, from the limits of characters and texts."""
        texts = _BYTES_PER_CHARACTER * self.max_chars + _BYTES_PER_TEXT * self.max_texts
        return texts + _BYTES_OF_OPTIONS


class AccessOptions(Options):
    """Who may send requests.

    Args:
        host: IP address to listen on. An address that other machines can reach, such as 0.0.0.0,
            needs `api_keys` or `no_auth`.
        port: Port to listen on; 0 picks a free port.
        api_keys: File of API keys, one `NAME KEY` per line; requests without a key get status 401.
        no_auth: Accept requests from other machines without an API key.
        allow_origin: Allowed CORS origin, such as https://example.org or moz-extension://ID: a
            website or extension whose pages may call this server. null allows pages without an
            origin. Repeatable.
        allow_host: Host name that clients use for this server. Requests for other names get status
            403, except for names without a dot if `host` is open to other machines. Repeatable.
        trusted_proxy: Address or network of a proxy whose X-Forwarded-For header is trusted.
            Repeatable.
        root_path: Path under which a proxy publishes this server, such as /mt.
    """

    title = "Access"

    host: Annotated[str, Flag(metavar="IP")] = "127.0.0.1"
    port: Annotated[int, Flag(min=0, max=65535)] = 8080
    api_keys: Path | None = None
    no_auth: bool = False
    allow_origin: Annotated[Texts, Flag(metavar="URL", parser=parse_origin)] = ()
    allow_host: Annotated[Texts, Flag(metavar="NAME", parser=parse_host)] = ()
    trusted_proxy: Annotated[Texts, Flag(metavar="CIDR", parser=parse_network)] = ()
    root_path: Annotated[str, Flag(metavar="PATH", parser=parse_path)] = ""


class ServeOptions(ComputingOptions, LimitOptions, AccessOptions):
    """Which models to serve, to whom, and within which limits.

    Args:
        models: Run or model folders to serve. NAME=FOLDER sets the name that clients use; the
            default is the language pair.
        title_: Title and heading of the web page.
        no_page: Serve only the API, without the web page.
        no_metrics: Do not serve Prometheus metrics at /metrics.
        check: Load every model, translate once with each, print a report and exit.
    """

    models: Annotated[Texts, Flag(argument=True, metavar="MODEL")]
    title_: str = "nmt: translate"
    no_page: bool = False
    no_metrics: bool = False
    check: bool = False
    json: Json = False

    def __post_init__(self) -> None:
        may_start = self.api_keys or self.no_auth or is_loopback(self.host)
        if not may_start:
            raise ConfigError(
                f"`host` {self.host} is open to other machines without a key.",
                fix="Add `api_keys` FILE, or `no_auth` if a proxy or firewall protects the server.",
            )


def address_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return an IP address; None for a host name."""
    with suppress(ValueError):
        return ipaddress.ip_address(host)
    return None


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine can reach an address."""
    return host == "localhost" or getattr(address_of(host), "is_loopback", False)


@dataclass(frozen=True)
class CheckedModels(CommandResult):
    """The report of a dry start (``check``): one description per model."""

    models: list[dict[str, Any]]  # See `nmt.extras.serving.models.ServedModel.describe`.

    def as_text(self) -> str:
        """One line per model: name, engine, dtype, and the start of the SHA-256 of its weights."""
        return "\n".join(
            f"{model['name']}: {model['engines']['translate']}, {model['dtype']}, "
            f"{model['sha256'][:12]}"
            for model in self.models
        )


def serve(options: ServeOptions) -> CheckedModels | None:
    """Serve models until SIGINT or SIGTERM.

    Returns:
        With ``check``, a description of each model; nothing is served.

    Raises:
        ConfigError: A package is missing, the address cannot be used, or an option is wrong.
        CheckpointError: A model is missing or damaged.
    """
    for package in _PACKAGES:
        if find_spec(package) is None:
            raise ConfigError.needs("`nmt serve`", package, extra="serve")
    return load_attribute("nmt.extras.serving.server:start_server")(options)
