"""What clients of LibreTranslate ask for and get."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

from nmt.extras.serving.detection import detect
from nmt.extras.serving.documents.translate import translate_document
from nmt.extras.serving.models import ModelStore
from nmt.extras.serving.options import ServerOptions
from nmt.extras.serving.requests import (
    DetectRequest,
    DocumentRequest,
    LibreRequest,
    Options,
    TranslateRequest,
)
from nmt.extras.serving.service import Route, Service
from nmt.text.languages import primary_code

_CODES = (
    "ar:Arabic ary:Moroccan_Arabic bg:Bulgarian bn:Bengali ca:Catalan cs:Czech da:Danish "
    "de:German el:Greek en:English eo:Esperanto es:Spanish et:Estonian eu:Basque fa:Persian "
    "fi:Finnish fr:French ga:Irish gl:Galician he:Hebrew hi:Hindi hr:Croatian hu:Hungarian "
    "id:Indonesian is:Icelandic it:Italian ja:Japanese ka:Georgian ko:Korean lt:Lithuanian "
    "lv:Latvian mk:Macedonian ms:Malay mt:Maltese nb:Norwegian nl:Dutch nn:Norwegian_Nynorsk "
    "no:Norwegian pl:Polish pt:Portuguese ro:Romanian ru:Russian sk:Slovak sl:Slovenian "
    "sq:Albanian sr:Serbian sv:Swedish sw:Swahili ta:Tamil th:Thai tl:Tagalog tr:Turkish "
    "uk:Ukrainian ur:Urdu vi:Vietnamese zh:Chinese"
)
_NAMES = {code: name for code, _, name in (pair.partition(":") for pair in _CODES.split())}
_RIGHT_TO_LEFT = ("ar", "ary", "arz", "ckb", "dv", "fa", "he", "ps", "sd", "ug", "ur", "yi")


def language_name(code: str) -> str:
    """Return the English name of a language; its code where none is known."""
    return _NAMES.get(primary_code(code), code).replace("_", " ")


def named(values: dict[str, Any]) -> dict[str, Any]:
    """Return the description of a model with names and directions of its languages."""
    sides = ("source", "target")
    names = {f"{side}_name": language_name(values[side]) for side in sides}
    rtl = {side: primary_code(values[side]) in _RIGHT_TO_LEFT for side in sides}
    return {**values, **names, "rtl": rtl}


def languages(store: ModelStore) -> list[dict[str, Any]]:
    """Return what GET /languages answers."""
    codes = sorted({code for pair in store.routes for code in pair})
    return [
        {
            "code": code,
            "name": language_name(code),
            "targets": sorted(target for source, target in store.routes if source == code),
        }
        for code in codes
    ]


def settings(service: Service, options: ServerOptions) -> dict[str, Any]:
    """Return what GET /frontend/settings answers."""
    source, target = next(iter(service.store.routes))
    has_keys = options.access.keys is not None
    return {
        "apiKeys": has_keys,
        "charLimit": options.limits.max_chars,
        "filesTranslation": False,
        "frontendTimeout": 500,
        "keyRequired": has_keys,
        "language": {
            "source": {"code": source, "name": language_name(source)},
            "target": {"code": target, "name": language_name(target)},
        },
        "suggestions": False,
        "supportedFilesFormat": [],
    }


def _texts(service: Service, asked: LibreRequest | DetectRequest) -> list[str]:
    """Return the texts of a request, which are not too many."""
    texts = [asked.q] if isinstance(asked.q, str) else asked.q
    service.check_size(len(texts), sum(map(len, texts)))
    return texts


async def translate(service: Service, asked: LibreRequest, client: str) -> dict[str, Any]:
    """Return what POST /translate answers."""
    texts = _texts(service, asked)
    route = await service.route(None, asked.source, asked.target, texts)
    found: list[tuple[str, list[str]]]
    if asked.format == "html":
        found = [(await _html(service, text, route, client), []) for text in texts]
    else:
        found = await _plain(service, texts, asked.alternatives, route, client)
    one = isinstance(asked.q, str)
    values: dict[str, Any] = {"translatedText": [text for text, _ in found]}
    if asked.alternatives:
        values["alternatives"] = [others for _, others in found]
    if route.detected:
        detected_language = {"language": route.detected[0], "confidence": route.detected[1]}
        values["detectedLanguage"] = [detected_language] * len(texts)
    return {name: each[0] for name, each in values.items()} if one else values


async def _plain(
    service: Service, texts: list[str], alternatives: int, route: Route, client: str
) -> list[tuple[str, list[str]]]:
    options = Options()
    if alternatives:
        own = route.models[-1].translator.options.decoding.beam_size
        options = Options(n_best=alternatives + 1, beam_size=max(own, alternatives + 1))
    request = TranslateRequest(texts=[*texts], options=options)
    found: list[tuple[str, list[str]]] = []
    async with aclosing(service.translate(request, route, client)) as answers:
        async for values in answers:
            service.refuse_fault(values)
            others = [each["translation"] for each in values["alternatives"]]
            found.append((values["translation"], others[1 : alternatives + 1]))
    return found


async def _html(service: Service, text: str, route: Route, client: str) -> str:
    request = DocumentRequest(format="html", text=text)
    values = await translate_document(service, request, route, client)
    return str(values["text"])


async def detected(service: Service, asked: DetectRequest) -> list[Any]:
    """Return what POST /detect answers: the languages that can be translated, for each text."""
    texts = _texts(service, asked)
    codes = sorted({source for source, _ in service.store.routes})
    ranked = await asyncio.to_thread(lambda: [detect(text, codes) for text in texts])
    found = [[{"language": code, "confidence": sure} for code, sure in each] for each in ranked]
    return found[0] if isinstance(asked.q, str) else found
