"""Fixtures and settings for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("nmt", deadline=None)
settings.load_profile("nmt")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real parallel text beside the repository; tests that need it are skipped elsewhere."""
    folder = Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("../shared/data is not there: real parallel text is not part of the repository")
    return folder
