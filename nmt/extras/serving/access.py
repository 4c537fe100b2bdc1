"""Who may send requests, and how often: Host, Origin, keys, rates."""

from __future__ import annotations

import hashlib
import ipaddress
import math
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from nmt.errors import ConfigError
from nmt.extras.serving.faults import RefusedError
from nmt.extras.serving.options import Rate, ServeOptions, is_loopback

_MOST_CLIENTS = 10_000
_FEWEST_CHARACTERS = 16
_USUAL_RATE = Rate(60, 60)
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[\w.-]+)(?::\d{1,5})?")


def digest(key: str) -> str:
    """Return the hash under which a key is looked up, so that comparing takes no telling time."""
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()


def read_keys(path: Path) -> dict[str, str]:
    """Read a file of API keys: one a line, or ``NAME KEY``; ``#`` begins a comment.

    Returns:
        Hash of the key -> name of the client.

    Raises:
        ConfigError: The file cannot be read or has no key, or a key is too short or repeated.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.", fix="Name a text file.") from error
    keys: dict[str, str] = {}
    fix = f"Write NAME KEY, with a key of {_FEWEST_CHARACTERS} characters or more; "
    fail = partial(ConfigError, fix=f"{fix}`openssl rand -hex 24` makes one.")
    for number, line in enumerate(lines, 1):
        if not (words := line.partition("#")[0].split()):
            continue
        if len(words) > 2 or len(words[-1]) < _FEWEST_CHARACTERS:
            raise fail(f"{path}, line {number} does not have a valid key.")
        if digest(words[-1]) in keys:
            raise fail(f"{path}, line {number} repeats a key.")
        keys[digest(words[-1])] = words[0] if len(words) == 2 else f"key {number}"
    if not keys:
        raise fail(f"{path} does not have a key.")
    return keys


class RateLimiter:
    """Token buckets: ``rate.count`` requests at once, and as many again in ``rate.seconds``.

    Args:
        rate: Of each client.
        clock: Seconds.
    """

    def __init__(self, rate: Rate, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._clock = rate, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, client: str) -> float:
        """Count a request; return 0 if it may come, and otherwise the seconds to wait."""
        now, (count, seconds) = self._clock(), self._rate
        left, then = self._buckets.pop(client, (float(count), now))
        left = min(count, left + (now - then) * count / seconds)
        is_allowed = left >= 1
        self._buckets[client] = (left - is_allowed, now)
        if len(self._buckets) > _MOST_CLIENTS:  # the client of the oldest request is full again
            self._buckets.popitem(last=False)
        return 0.0 if is_allowed else (1 - left) * seconds / count


class Gate:
    """Lets requests in, or refuses them.

    Args:
        options: Of the server.
        keys: Hash of a key -> name of the client; None lets anybody in.
    """

    def __init__(self, options: ServeOptions, keys: Mapping[str, str] | None) -> None:
        self.keys, self._limits_all = keys, options.rate is not None
        self._hosts = {"localhost", options.host.lower(), *options.allow_host}
        self._origins = options.allow_origin
        self._limiter = RateLimiter(options.rate or _USUAL_RATE)

    def check_site(self, request: Request) -> None:
        """Check Host, against DNS rebinding, and Origin, against pages of other sites.

        Raises:
            RefusedError: A header is missing, malformed, or not allowed.
        """
        hosts = [name.lower() for name in request.headers.getlist("host")]
        found = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if found is None:
            raise RefusedError(400, "The request has no valid Host.", "Send one header Host.")
        if found[1] not in self._hosts and not _is_address(found[1]):
            fix = "Use the address, or start the server with `allow_host`."
            raise RefusedError(403, "The server does not have this Host.", fix)
        origin = request.headers.get("origin", "").lower()
        if origin and origin.partition("://")[2] != hosts[0] and origin not in self._origins:
            fix = "Start the server with `allow_origin`."
            raise RefusedError(403, "Pages of this origin may not send requests.", fix)

    def client(self, request: Request, key: str | None) -> str:
        """Return the name of the key, or the address.

        Raises:
            RefusedError: A key is missing or unknown.
        """
        if self.keys is None:
            return request.client.host if request.client else "unknown"
        if not key:
            fix = "Send the header Authorization: Bearer KEY."
            raise RefusedError(401, "A key is needed.", fix, {"WWW-Authenticate": "Bearer"})
        if (name := self.keys.get(digest(key))) is None:
            fix = "Get a key from whoever runs the server."
            raise RefusedError(403, "The key is unknown.", fix)
        return f"key {name}"

    def count(self, client: str) -> str:
        """Count a request of a client; return the client.

        Raises:
            RefusedError: The client has sent too many.
        """
        is_limited = self._limits_all or not is_loopback(client)
        if is_limited and (seconds := self._limiter.wait(client)):
            wait = {"Retry-After": str(math.ceil(seconds))}
            raise RefusedError(429, "Too many requests.", "Wait a little.", wait)
        return client


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


Bearer = Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]


async def known_client(request: Request, bearer: Bearer) -> str:
    """Return who sends a request."""
    gate: Gate = request.app.state.gate
    return gate.client(request, bearer.credentials if bearer else None)


async def counted_client(request: Request, client: Annotated[str, Depends(known_client)]) -> str:
    """Return who sends a request, which counts."""
    gate: Gate = request.app.state.gate
    return gate.count(client)


Client = Annotated[str, Depends(counted_client)]
