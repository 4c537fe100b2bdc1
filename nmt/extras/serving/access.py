"""Who may ask, and how often: Host, Origin, keys, rates."""

from __future__ import annotations

import ipaddress
import re
import time
from collections import OrderedDict
from collections.abc import Callable

from starlette.requests import Request

from nmt.extras.serving.faults import RefusedError
from nmt.extras.serving.options import Access, Rate, digest, is_loopback

_MOST_CLIENTS = 10_000
_MOST_HEADERS = 100
_CLOSE = {"Connection": "close"}
_USUAL_RATE = Rate(60, 60)
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[\w.-]+)(?::\d{1,5})?")


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
        now, rate = self._clock(), self._rate
        left, then = self._buckets.pop(client, (float(rate.count), now))
        left = min(rate.count, left + (now - then) * rate.count / rate.seconds)
        is_allowed = left >= 1
        self._buckets[client] = (left - is_allowed, now)
        if len(self._buckets) > _MOST_CLIENTS:  # the one that asked least recently is full again
            self._buckets.popitem(last=False)
        return 0.0 if is_allowed else (1 - left) * rate.seconds / rate.count


class Gate:
    """Lets requests in, or refuses them.

    Args:
        access: Who may ask.
        host: What the server listens on.
        rate: Of each client; None is the usual one for other machines only.
    """

    def __init__(self, access: Access, host: str, rate: Rate | None) -> None:
        self._access, self._limits_all = access, rate is not None
        self._hosts = {"localhost", host.lower(), *(name.lower() for name in access.hosts)}
        self._limiter = RateLimiter(rate or _USUAL_RATE)

    def check_site(self, request: Request) -> str | None:
        """Check Host, against DNS rebinding, and Origin, against pages of other sites.

        Returns:
            The other site that is allowed to read the answer; None for our own page, and for
            clients that are no page.

        Raises:
            RefusedError: One is missing, malformed, or not allowed.
        """
        if len(request.headers) > _MOST_HEADERS:
            raise RefusedError(400, "The request has too many headers.", "Send fewer.", _CLOSE)
        hosts = request.headers.getlist("host")
        found = _HOST.fullmatch(hosts[0].lower()) if len(hosts) == 1 else None
        if found is None:
            problem = "The request has no valid Host."
            raise RefusedError(400, problem, "Send one header Host.", _CLOSE)
        name = found[1]
        if name not in self._hosts and not _is_address(name):
            raise RefusedError(
                403, "This Host is not served here.", "Use the address, or start with --allow-host."
            )
        origin = request.headers.get("origin")
        if origin is None or origin.lower().partition("://")[2] == hosts[0].lower():
            return None
        if origin.lower() not in self._access.origins:
            raise RefusedError(
                403, "Pages of this origin may not ask.", "Start the server with --allow-origin."
            )
        return origin

    def client(self, request: Request, key: str | None = None) -> str:
        """Return who asks: the name of their key, or their address.

        Args:
            request: What came.
            key: From its body, where that may hold one.

        Raises:
            RefusedError: A key is missing or unknown.
        """
        scheme, _, sent = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            key = sent.strip()
        if self._access.keys is None:
            return f"address {self._address(request)}"
        if not key:
            raise RefusedError(
                401, "A key is needed.", "Send the header Authorization: Bearer KEY.",
                {"WWW-Authenticate": "Bearer"},
            )  # fmt: skip
        name = self._access.keys.get(digest(key))
        if name is None:
            raise RefusedError(403, "The key is unknown.", "Ask whoever runs the server for one.")
        return f"key {name}"

    def check_rate(self, client: str) -> None:
        """Count a request of a client.

        Raises:
            RefusedError: They have sent too many.
        """
        if not self._limits_all and is_loopback(client.removeprefix("address ")):
            return
        if seconds := self._limiter.wait(client):
            raise RefusedError(429, "Too many requests.", "Wait a little.", retry_after=seconds)

    def _address(self, request: Request) -> str:
        """Return the address of the client: behind trusted proxies, the one that they name."""
        address = request.client.host if request.client else "unknown"
        forwarded = ",".join(request.headers.getlist("x-forwarded-for")).split(",")
        while forwarded and self._is_proxy(address):
            candidate = forwarded.pop().strip()
            if not _is_address(candidate):
                break
            address = candidate
        return address

    def _is_proxy(self, address: str) -> bool:
        try:
            own = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(own in network for network in self._access.proxies)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
