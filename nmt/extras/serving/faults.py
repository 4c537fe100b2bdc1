"""What goes wrong with a request -> an answer in JSON: status, ``error`` and ``fix``."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from nmt.errors import CheckpointError, ConfigError, DataError, DeviceError, NmtError
from nmt.extras.serving.batching import log_fault
from nmt.extras.serving.model import without_line
from nmt.extras.serving.service import BusyError, TooLargeError

logger = logging.getLogger(__name__)

_STATUS: dict[type[NmtError], int] = {
    TooLargeError: 413,
    BusyError: 503,
    DataError: 422,
    ConfigError: 422,
}
"""The first that fits."""
_OF_ROUTING = {
    404: ("There is no such path.", "GET openapi.json lists them all."),
    405: ("This path has no such method.", "GET openapi.json lists them all."),
}
_BUSY_SECONDS = 1.0


class RefusedError(Exception):
    """A request that gets a certain status."""

    def __init__(
        self,
        status: int,
        problem: str,
        fix: str,
        headers: Mapping[str, str] | None = None,
        *,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(problem)
        self.status, self.problem, self.fix = status, problem, fix
        self.headers = dict(headers or {})
        if retry_after is not None:
            self.headers["Retry-After"] = str(max(1, math.ceil(retry_after)))


def refusal(error: Exception) -> RefusedError:
    """Return the answer to a client for any error."""
    if isinstance(error, RefusedError):
        return error
    if isinstance(error, HTTPException):
        problem, fix = _OF_ROUTING.get(error.status_code, (error.detail, "Correct the request."))
        return RefusedError(error.status_code, problem, fix, error.headers)
    if isinstance(error, TimeoutError):
        return RefusedError(504, "There was no answer in time.", "Send fewer or shorter texts.")
    if isinstance(error, CheckpointError | DeviceError):
        logger.warning("a request failed: %s", error.problem)  # it names folders of this machine
        problem, fix = "The model cannot be used now.", "Try later, or ask whoever runs the server."
        return RefusedError(503, problem, fix, retry_after=_BUSY_SECONDS)
    for kind, status in _STATUS.items():
        if isinstance(error, kind):
            wait = _BUSY_SECONDS if status == 503 else None
            return RefusedError(status, without_line(error.problem), error.fix, retry_after=wait)
    log_fault(error)
    return RefusedError(500, "The server failed.", "Report it, please: a bug.")


def as_response(error: Exception) -> Response:
    """Return the answer for an error."""
    refused = refusal(error)
    return JSONResponse(error_body(refused), refused.status, refused.headers)


def error_body(error: RefusedError) -> dict[str, Any]:
    """Return what stands in JSON."""
    return {"error": error.problem, "fix": error.fix}
