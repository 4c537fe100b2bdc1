"""Fixtures that engines and translating share."""

from __future__ import annotations

from tests.translation.conftest import model, tokenizers, translator

__all__ = ["model", "tokenizers", "translator"]
