from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.compiling import Backend, use_backend


@pytest.fixture(params=["eager"])
def counting(request: pytest.FixtureRequest) -> Iterator[Backend]:
    yield from use_backend(request.param)
