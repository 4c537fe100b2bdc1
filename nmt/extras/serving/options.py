"""Settings of a server: addresses, who may ask, and bounds of every request."""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeAlias

from nmt.errors import ConfigError

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
_UNITS = {"s": 1, "sec": 1, "second": 1, "m": 60, "min": 60, "minute": 60, "h": 3600, "hour": 3600}
_FEWEST_CHARACTERS = 16
_BYTES_OF_CHARACTER = 12  # of a JSON text: two escaped surrogates
_BYTES_OF_TEXT = 256
_BYTES_OF_REST = 1 << 16


@dataclass(frozen=True, slots=True)
class Rate:
    """So many requests in so many seconds."""

    count: int
    seconds: float

    def __str__(self) -> str:
        names = {1: "s", 60: "min", 3600: "h"}
        return f"{self.count}/{names.get(int(self.seconds), f'{self.seconds:g}s')}"


def parse_rate(text: str) -> Rate:
    """Read a rate such as ``60/min``.

    Raises:
        ConfigError: It is none.

    >>> parse_rate("60/min"), parse_rate("2/s")
    (Rate(count=60, seconds=60), Rate(count=2, seconds=1))
    """
    found = re.fullmatch(r"(\d{1,9})/([a-z]+)", text.strip().lower())
    if found is None or found[2] not in _UNITS or not int(found[1]):
        raise ConfigError(f"--rate is {text!r}.", fix="Write requests per time, as in 60/min.")
    return Rate(int(found[1]), _UNITS[found[2]])


def parse_model(text: str) -> tuple[str | None, Path]:
    """Read ``FOLDER`` or ``NAME=FOLDER``; a folder that exists is never taken apart.

    Raises:
        ConfigError: The name or the folder is empty, or the name has other characters than letters,
            digits and ``._-``.
    """
    name, sign, folder = text.partition("=")
    if not sign or Path(text).exists():
        return None, Path(text)
    if not re.fullmatch(r"[\w.-]{1,64}", name) or not folder:
        raise ConfigError(
            f"{text!r} names no model.",
            fix="Write NAME=FOLDER, as in de-en=runs/base; names have letters, digits and ._-",
        )
    return name, Path(folder)


def parse_network(text: str) -> Network:
    """Read an address or a network such as ``10.0.0.0/8``.

    Raises:
        ConfigError: It is none.
    """
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError as error:
        raise ConfigError(
            f"--trusted-proxy is {text!r}: {error}.", fix="Give an address, or 10.0.0.0/8."
        ) from error


def digest(key: str) -> str:
    """Return the hash under which a key is looked up, so that comparing takes no telling time."""
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()


def read_keys(path: Path) -> dict[str, str]:
    """Read a file of API keys: one a line, or ``NAME KEY``; ``#`` begins a comment.

    Returns:
        Hash of the key -> name of the client.

    Raises:
        ConfigError: The file cannot be read, has no key, or one that is too short or there twice.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.", fix="Name a text file.") from error
    found: dict[str, str] = {}
    fail = partial(ConfigError, fix=f"Write NAME KEY, a key of {_FEWEST_CHARACTERS} characters or "
                   "more; `openssl rand -hex 24` makes one.")  # fmt: skip
    for number, line in enumerate(lines, 1):
        if not (words := line.partition("#")[0].split()):
            continue
        if len(words) > 2 or len(words[-1]) < _FEWEST_CHARACTERS:
            raise fail(f"{path}, line {number} holds no key.")
        if digest(words[-1]) in found:
            raise fail(f"{path}, line {number} repeats a key.")
        found[digest(words[-1])] = words[0] if len(words) == 2 else f"key {number}"
    if not found:
        raise fail(f"{path} holds no key.")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of requests."""

    max_chars: int = 20_000
    """Characters of all texts of a request."""
    max_texts: int = 256
    """Texts of a request."""
    max_queue: int = 512
    """Requests that are worked on or wait."""
    deadline: float = 30.0
    """Seconds that a request may take."""
    body_seconds: float = 10.0
    """Seconds in which the head, and then the body, of a request must have come, and in which some
    of an answer must have been read."""
    rate: Rate | None = None
    """Requests of one client; None is 60 a minute, and no limit for this machine itself."""
    max_connections: int = 4096
    """Open at once."""

    @property
    def max_bytes(self) -> int:
        """Of the body of a request."""
        texts = _BYTES_OF_CHARACTER * self.max_chars + _BYTES_OF_TEXT * self.max_texts
        return texts + _BYTES_OF_REST


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Who may ask."""

    keys: Mapping[str, str] | None = None
    """Hash of a key -> name of the client; None lets anybody ask."""
    hosts: frozenset[str] = frozenset()
    """Names in the header Host besides localhost and addresses."""
    origins: frozenset[str] = frozenset()
    """Other sites whose pages may ask, as ``https://example.org``."""
    proxies: tuple[Network, ...] = ()
    """Whose forwarded addresses are believed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """All of it."""

    host: str = "127.0.0.1"
    port: int = 8080
    limits: Limits = field(default_factory=Limits)
    access: Access = field(default_factory=Access)
    pivot: str | None = None
    """Language through which pairs without a model of their own are translated."""
    max_loaded: int | None = None
    """Models in memory at once; None for all."""
    page: bool = True
    metrics: bool = True
    root_path: str = ""
    """Under which path a proxy serves this."""

    def check(self, *, no_auth: bool) -> None:
        """Check that a server which others reach has keys, or is open on purpose.

        Raises:
            ConfigError: It has none.
        """
        if not (self.access.keys or no_auth or is_loopback(self.host)):
            raise ConfigError(
                f"--host {self.host} lets other machines ask, without a key.",
                fix="Add --api-keys FILE, or --no-auth if a proxy or firewall sees to that.",
            )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def origins(texts: Iterable[str]) -> frozenset[str]:
    """Read origins.

    Raises:
        ConfigError: One is not of the form ``https://example.org:8443``.
    """
    names = (text.rstrip("/").lower() for text in texts)
    fix = "Write https://example.org, without a path."
    return _all_match(names, r"https?://[\w.\[\]:-]+", "--allow-origin", fix)


def host_names(texts: Iterable[str]) -> frozenset[str]:
    """Read names of hosts.

    Raises:
        ConfigError: One has a scheme, a port or a path.
    """
    fix = "Write translate.example.org, without https:// and without a port."
    return _all_match(map(str.lower, texts), r"[\w.-]+|\[[0-9a-f:.]+\]", "--allow-host", fix)


def _all_match(texts: Iterable[str], pattern: str, option: str, fix: str) -> frozenset[str]:
    found = frozenset(texts)
    for text in found:
        if not re.fullmatch(pattern, text):
            raise ConfigError(f"{option} is {text!r}.", fix=fix)
    return found


def path_prefix(text: str) -> str:
    """Read the path under which a proxy serves; nothing for its root.

    Raises:
        ConfigError: It is no path.

    >>> path_prefix("mt/")
    '/mt'
    """
    if not re.fullmatch(r"[\w./-]*", text):
        raise ConfigError(f"--root-path is {text!r}.", fix="Write a path, as in /mt.")
    return f"/{text.strip('/')}" if text.strip("/") else ""
