"""Attention without padding: what gets it, and that it says the same.

Flash attention runs on GPUs only. Here a kernel of the same signature stands for it, which reads
sentence after sentence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nmt.model import attention as module
from nmt.model.attention import FlashAttention, Segments, attention, find_flash, sdpa_attention
from tests.compiling import Backend
from tests.model.small import packed
from tests.model.test_compiled_layers import SHAPES, assert_alike, two_models

pytestmark = pytest.mark.filterwarnings("ignore")


def read(heads: list[Tensor], ends: list[Tensor], causal: bool) -> Tensor:
    """Query, key and value of all sentences, and where those of queries and keys end."""
    sentences, places = [], []
    for x, last in zip(heads, ends, strict=False):
        place = torch.arange(len(x))
        # Without slices of the ends: a compiler would take the one of a single sentence apart.
        sentences.append(torch.bucketize(place, last, right=True) - 1)
        places.append(place - last[sentences[-1]])
    (at_query, at_key), mask = places, sentences[0].unsqueeze(1) == sentences[1]
    if causal:
        mask = mask & (at_query.unsqueeze(1) >= at_key)
    query, key, value = (x.transpose(0, 1) for x in heads)
    shared = {"enable_gqa": len(query) != len(key)}
    return F.scaled_dot_product_attention(query, key, value, mask, **shared).transpose(0, 1)


def of_2_10(  # noqa: PLR0917
    query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor,
    max_q: int, max_k: int, is_causal: bool = False, return_aux: None = None,
) -> Tensor:  # fmt: skip
    del max_q, max_k, return_aux
    assert query.shape[1] == key.shape[1]
    return read([query, key, value], [cu_seq_q, cu_seq_k], is_causal)


def of_2_13(  # noqa: PLR0917
    query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor,
    max_q: int, max_k: int, *, window_size: tuple[int, int] = (-1, -1), enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    assert max_q > 0
    assert max_k > 0
    assert enable_gqa == (query.shape[1] != key.shape[1])
    causal = {(-1, -1): False, (-1, 0): True}[window_size]
    return read([query, key, value], [cu_seq_q, cu_seq_k], causal)


@pytest.fixture
def float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FLASH_DTYPES", (torch.float32,))


@pytest.mark.parametrize("kernel", [of_2_10, of_2_13])
@pytest.mark.parametrize("kind", ["self", "causal", "cross"])
@pytest.mark.parametrize("groups", [4, 2])
@pytest.mark.usefixtures("float32")
def test_flash_attention_equals_padded_attention(
    kernel: Callable[..., Tensor], kind: str, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_queries = of_keys = packed([5, 1, 9])
    if kind == "cross":
        of_keys = packed([3, 12, 4])
    shapes = [(of_queries.num_tokens, 4, 8), *[(of_keys.num_tokens, groups, 8)] * 2]
    torch.manual_seed(2)
    heads = [torch.randn(x, requires_grad=True) for x in shapes]
    segments = Segments(of_queries, of_keys, kind == "causal")
    found, calls = [], []

    def padded(*arguments: Any) -> Tensor:
        calls.append(arguments)
        return sdpa_attention(*arguments)

    for own in (None, FlashAttention.of(kernel)):
        monkeypatch.setitem(module.FLASH, "cpu", own)
        monkeypatch.setitem(module.BACKENDS, "cpu", padded)
        mixed = attention(heads[0], heads[1], heads[2], segments)
        found.append([mixed, *torch.autograd.grad(mixed.square().sum(), heads)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert len(calls) == (1 if kernel is of_2_13 or groups == 4 else 2)


def test_unsupported_arguments_use_another_kernel() -> None:
    kernel = FlashAttention.of(of_2_13)
    narrow = torch.empty(3, 4, 64, dtype=torch.bfloat16)
    wide, odd = narrow.new_empty(3, 4, 264), narrow.new_empty(3, 4, 60)
    for x, fits in ((narrow, 1), (narrow.half(), 1), (narrow.float(), 0), (wide, 0), (odd, 0)):
        assert kernel.fits(x, x, 0.0) == bool(fits)
    assert not kernel.fits(narrow, narrow, 0.1)
    assert kernel.fits(narrow, narrow[:, :2], 0.0)
    assert not FlashAttention.of(of_2_10).fits(narrow, narrow[:, :2], 0.0)


def test_flash_attention_depends_on_the_compute_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_flash(torch.device("cpu")) is None
    for capability, is_there in (((7, 5), False), ((8, 0), True), ((9, 0), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, c=capability: c)
        assert (find_flash(torch.device("cuda")) is not None) is is_there


@pytest.mark.usefixtures("float32")
def test_compiled_layers_share_a_graph(counting: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    models = two_models(encoder_layers=1, decoder_layers=1, dropout=0.0)
    monkeypatch.setitem(module.FLASH, "cpu", FlashAttention.of(of_2_13))
    for shape in SHAPES:
        assert_alike(models, shape)
    assert counting.num_graphs == 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["self", "causal", "cross"])
@pytest.mark.parametrize("is_deterministic", [False, True])
def test_on_gpus_the_result_is_exact(dtype: torch.dtype, kind: str, is_deterministic: bool) -> None:
    device = torch.device("cuda")
    kernel = find_flash(device)
    assert kernel is not None
    of_queries = of_keys = packed([50, 1, 9, 33]).to(device)
    if kind == "cross":
        of_keys = packed([3, 120, 4, 1]).to(device)
    torch.manual_seed(2)
    shapes = (of_queries.num_tokens, 8, 64), *[(of_keys.num_tokens, 8, 64)] * 2
    heads = [torch.randn(x, device=device).to(dtype).requires_grad_() for x in shapes]
    exact = [x.detach().double().requires_grad_() for x in heads]
    segments, found = Segments(of_queries, of_keys, kind == "causal"), []
    torch.use_deterministic_algorithms(is_deterministic)
    try:
        for own in (heads, exact):
            assert kernel.fits(own[0], own[1], 0.0) is (own is heads)
            mixed = attention(own[0], own[1], own[2], segments)
            found.append([mixed, *torch.autograd.grad(mixed.square().sum(), own)])
    finally:
        torch.use_deterministic_algorithms(False)
    for ours, theirs in zip(*found, strict=True):
        assert (ours.double() - theirs).norm() < 1e-2 * theirs.norm()
