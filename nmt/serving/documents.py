"""Documents of several formats, translated with their structure kept."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

from nmt.serving.requests import BadRequestError, DocumentRequest, TranslateRequest
from nmt.serving.service import Route, Service

FORMATS = ("txt",)
"""What can be read, and is written as it came."""


async def translate_document(
    service: Service, asked: DocumentRequest, route: Route, client: str
) -> dict[str, Any]:
    """Return the translated document, and what is to be known of it.

    Raises:
        BadRequestError: It is of another format, or a part of it cannot be translated.
    """
    if asked.format not in FORMATS:
        raise BadRequestError(
            f"Documents of format {asked.format!r} are not read.",
            fix=f"Use one of {', '.join(FORMATS)}.",
        )
    request = TranslateRequest(texts=[asked.text], options=asked.options)
    async with aclosing(service.translate(request, route, client)) as answers:
        values = await anext(answers)
    service.refuse_fault(values)
    sentences = values["sentences"]
    return {
        "format": asked.format,
        "text": values["translation"],
        "num_texts": len(sentences),
        "alarms": sum(bool(each["alarms"]) for each in sentences),
    }
