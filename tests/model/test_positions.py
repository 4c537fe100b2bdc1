"""A new position scheme needs one file, such as this one, and its registration."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from typing_extensions import override

from nmt.model.attention import BACKENDS, sdpa_attention
from nmt.model.positions import POSITIONS, PositionScheme, RelativePositions
from nmt.packed import Packed
from tests.model.small import small_model


class Alibi(RelativePositions):
    """Attention with linear biases (Press et al. 2022)."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self._slopes = 2.0 ** (-8 * torch.arange(1, num_heads + 1) / num_heads)

    @override
    def bias(self, queries: Tensor, keys: Tensor) -> Tensor:
        distances = (queries.unsqueeze(1) - keys).abs()
        return -self._slopes.view(-1, 1, 1) * distances


POSITIONS.register("alibi", PositionScheme(relative=lambda config, _: Alibi(config.num_heads)))
SOURCE = Packed.from_rows([[7, 8, 9, 4, 3], [11, 12, 3]])
TARGET = Packed.from_rows([[2, 20, 21, 9], [2, 22]])


@pytest.mark.parametrize("num_kv_heads", [4, 2, 1])
@torch.inference_mode()
def test_a_registered_scheme_serves_all(num_kv_heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model(positions="alibi", num_kv_heads=num_kv_heads)
    whole = model(SOURCE, TARGET)
    state, steps, ids = model.start(SOURCE), [], TARGET.pad(TARGET.ids)
    for position in range(4):
        hidden, state = model.decode_step(state, ids[:, position : position + 1])
        steps.append(hidden[:, 0])
    torch.testing.assert_close(torch.stack(steps, 1)[TARGET.mask()], whole, rtol=1e-4, atol=1e-5)
    monkeypatch.setitem(BACKENDS, "cpu", sdpa_attention)
    torch.testing.assert_close(model(SOURCE, TARGET), whole, rtol=1e-4, atol=1e-5)
    none = small_model(positions="none", num_kv_heads=num_kv_heads)
    assert none.state_dict().keys() == model.state_dict().keys()
    assert not torch.allclose(none(SOURCE, TARGET), whole)
