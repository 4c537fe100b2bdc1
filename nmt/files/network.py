"""Whether a server answers: found out in seconds, before a library is loaded that asks it."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from urllib.parse import urlsplit
from urllib.request import getproxies

_HUB = "https://huggingface.co"
_CONNECT_SECONDS = 1.5


def hub_address() -> str:
    """Return the address of the hub of Hugging Face, or of the one that ``HF_ENDPOINT`` names."""
    return os.environ.get("HF_ENDPOINT", _HUB)


def reaches(url: str) -> bool:
    """Whether a server can be connected to; those who download try for half a minute, or longer."""
    place, reached = urlsplit(url), []
    port = place.port or (443 if place.scheme == "https" else 80)

    def connect() -> None:
        with suppress(OSError):
            socket.create_connection((str(place.hostname), port), _CONNECT_SECONDS).close()
            reached.append(True)

    # Looking up names, and each of several addresses, may take as long again.
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(_CONNECT_SECONDS)
    return bool(reached) or bool(getproxies())
