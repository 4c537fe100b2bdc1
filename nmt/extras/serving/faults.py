"""What goes wrong with a request -> an answer in JSON: status, ``error`` and ``fix``."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from nmt.errors import CheckpointError, DeviceError, NmtError, nearest_word
from nmt.extras.serving.bodies import FIELDS

logger = logging.getLogger(__name__)

_LISTED = "GET openapi.json describes all paths."
RETRY = {"Retry-After": "1"}
_MOST_PROBLEMS = 5
_MOST_NAME = 40


class RefusedError(Exception):
    """A request that gets a certain status."""

    def __init__(
        self, status: int, problem: str, fix: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(problem)
        self.status, self.problem, self.fix, self.headers = status, problem, fix, headers

    def as_dict(self) -> dict[str, Any]:
        """Return what stands in JSON."""
        return {"error": self.problem, "fix": self.fix}


def refusal(error: Exception) -> RefusedError:
    """Return the answer to a client for any error."""
    if isinstance(error, RefusedError):
        return error
    if isinstance(error, RequestValidationError):
        return RefusedError(422, _problems(error), "Correct the request. " + _LISTED)
    if isinstance(error, HTTPException):
        status = 422 if error.status_code == 400 else error.status_code  # a body that is not JSON
        return RefusedError(status, f"{error.detail}.", _LISTED, error.headers)
    if isinstance(error, TimeoutError):
        return RefusedError(504, "There was no answer in time.", "Send fewer or shorter texts.")
    if isinstance(error, CheckpointError | DeviceError):
        logger.warning("a request failed: %s", error.problem)  # it names folders of this machine
        problem, fix = ("The model cannot be used now.", "Try again later.")
        return RefusedError(503, problem, fix, RETRY)
    if isinstance(error, NmtError):
        return RefusedError(422, error.problem, error.fix)
    log_fault(error)
    return RefusedError(500, "The server failed.", "Report it, please: a bug.")


def as_response(error: Exception) -> JSONResponse:
    """Return the answer for an error."""
    refused = refusal(error)
    return JSONResponse(refused.as_dict(), refused.status, refused.headers)


def log_fault(error: BaseException) -> None:
    """Log an unexpected error by its kind and place: its text may hold what somebody sent."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    place = f"{last.tb_frame.f_code.co_filename}:{last.tb_lineno}" if last else "unknown place"
    logger.error("unexpected %s at %s: a bug, please report it", type(error).__name__, place)


def _problems(error: RequestValidationError) -> str:
    found = list(dict.fromkeys(map(_problem, error.errors())))
    more = f"; and {len(found) - _MOST_PROBLEMS} more" if len(found) > _MOST_PROBLEMS else ""
    return f"{'; '.join(found[:_MOST_PROBLEMS])}{more}."


def _problem(detail: Mapping[str, Any]) -> str:
    if detail["type"] == "json_invalid":
        return f"The body is not JSON: {detail['ctx']['error']} at character {detail['loc'][-1]:,}"
    path = [str(part)[:_MOST_NAME] for part in detail["loc"][1:]]
    # The types that pydantic has tried say nothing to a client.
    shown = (
        x for x in path if x not in ("str", "Text") and not x.startswith(("function-", "list["))
    )
    place = ".".join(shown) or "the body"
    message = detail["msg"]
    if detail["type"] == "extra_forbidden":
        near = nearest_word(path[-1], FIELDS)
        message = "unknown field" + (f" (did you mean {near}?)" if near else "")
    return f"{place}: {message[0].lower()}{message[1:]}"
