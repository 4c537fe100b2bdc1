"""How many examples property tests try; `tests/conftest.py` chooses the profile."""

from __future__ import annotations

from hypothesis import settings

FEW = settings(max_examples=settings().max_examples // 2)
"""For tests whose examples take long; `make test-long` tries more of these, too."""
