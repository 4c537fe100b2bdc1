"""Documents of several formats, translated with their structure kept."""

from __future__ import annotations

import asyncio
from typing import Any

from nmt.extras.serving.documents.document import read_document
from nmt.extras.serving.requests import DocumentRequest
from nmt.extras.serving.service import Route, Service
from nmt.inference.request import Request


async def translate_document(
    service: Service, asked: DocumentRequest, route: Route, client: str
) -> dict[str, Any]:
    """Return the translated document, and what is to be known of it.

    Raises:
        ConfigError: It is of another format.
        DataError: A part of it cannot be translated.
    """
    language = route.languages[0]
    document = await asyncio.to_thread(read_document, asked.text, asked.format, language)
    lines = [Request(sentence) for sentence in document.sentences]
    results = await service.translate_lines(lines, route, asked.options, client)
    found = [(result.text, result.alignment) for result in results]
    text = await asyncio.to_thread(document.rebuild, found, route.models[-1].joiner)
    alarms = sum(bool(result.alarms) for result in results)
    return {"format": asked.format, "text": text, "num_texts": len(results), "alarms": alarms}
