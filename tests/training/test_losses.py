"""Losses against torch functions, autograd and values computed by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from typing_extensions import override

from nmt.data.loader import Batch
from nmt.device.compilation import compiled
from nmt.model.transformer import Transformer
from nmt.training import losses
from nmt.training.losses import (
    RDrop,
    _Chunks,
    _cross_entropy_step,
    _fused_step,
    _r_drop_step,
    cross_entropy,
)
from tests.compiling import use_backend
from tests.examples import FEW


class Passes:
    """Stands for a model whose passes give known states."""

    def __init__(
        self, hidden: tuple[Tensor, Tensor], weight: Tensor, bias: Tensor | None, compiler: Any
    ) -> None:
        self.output_weight, self.output_bias, self.compiled = weight, bias, compiler
        self._hidden = iter(hidden)

    def __call__(self, *_: object) -> Tensor:
        return next(self._hidden)


def chunked_loss(
    hidden: tuple[Tensor, Tensor],
    weight: Tensor,
    bias: Tensor | None,
    gold: Tensor,
    *,
    smoothing: float,
    strength: float | None,
    compiler: Any = None,
) -> Tensor:
    """The loss of R-Drop; without a strength, cross-entropy of the first states."""
    if strength is None:
        compilers = [] if compiler is None else [compiler]
        return cross_entropy(hidden[0], weight, bias, gold, smoothing, *compilers)
    model = cast(Transformer, Passes(hidden, weight, bias, compiler))
    batch = SimpleNamespace(gold=gold, source=None, target=None, num_target_tokens=len(gold))
    return RDrop(smoothing, strength)(model, cast(Batch, batch)).loss_sum


def test_losses_equal_values_computed_by_hand() -> None:
    # Two entries with logits ln 3 and 0: probabilities 3/4 and 1/4. Smoothing 0.2 asks for
    # 0.9 and 0.1: loss = -0.9 ln(3/4) - 0.1 ln(1/4).
    weight = torch.tensor([[math.log(3)], [0.0]])
    loss = cross_entropy(torch.ones(1, 1), weight, None, torch.tensor([0]), 0.2)
    assert float(loss) == pytest.approx(-0.9 * math.log(0.75) - 0.1 * math.log(0.25), abs=1e-6)
    huge = torch.tensor([[1e4], [-1e4]])
    assert float(cross_entropy(torch.ones(1, 1), huge, None, torch.tensor([1]), 0.0)) == 2e4
    # Two entries: p = (3/4, 1/4) and q = (1/2, 1/2), the first is right. Cross-entropy: ln(4/3)
    # and ln 2. KL(p||q) + KL(q||p) = sum of (p - q) ln(p/q) = ln(3/2)/4 - ln(1/2)/4 = ln(3)/4.
    hidden, weight = (torch.tensor([[math.log(3)]]), torch.zeros(1, 1)), torch.tensor([[1.0], [0]])
    loss = chunked_loss(hidden, weight, None, torch.tensor([0]), smoothing=0.0, strength=5.0)
    expected = (math.log(4 / 3) + math.log(2)) / 2 + 5 / 4 * math.log(3) / 4
    assert float(loss) == pytest.approx(expected, rel=1e-6)


@FEW
@given(
    rows=st.integers(1, 90),
    vocab_size=st.integers(2, 300),
    smoothing=st.sampled_from([0.0, 0.1]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)
def test_the_gpu_step_agrees_with_float64(
    rows: int, vocab_size: int, smoothing: float, dtype: torch.dtype
) -> None:
    torch.manual_seed(rows)
    logits = torch.randn(rows, vocab_size).mul(4).to(dtype)
    gold = torch.randint(vocab_size, (rows,))
    exact = logits.double().requires_grad_()
    expected = F.cross_entropy(exact, gold, label_smoothing=smoothing, reduction="sum")
    expected.backward()
    loss, gradient = _fused_step(logits.unsqueeze(1), gold, smoothing)
    torch.testing.assert_close(loss.double(), expected.detach(), rtol=1e-5, atol=1e-5)
    assert gradient.dtype == dtype
    assert exact.grad is not None
    assert (gradient.double() - exact.grad).norm() <= 4e-3 * exact.grad.norm() + 1e-6


@pytest.mark.parametrize(
    ("strength", "chosen", "fused"),
    [(None, _cross_entropy_step, _fused_step), (5.0, _r_drop_step, _r_drop_step)],
)
def test_gpu_chunks_give_the_same_loss_and_gradients_as_cpu_chunks(
    strength: float | None, chosen: Any, fused: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a last chunk of fewer rows, and what follows the products compiled."""
    values, gold = values_of(23)
    one, two, weight, bias = values
    options: Any = {"smoothing": 0.1, "strength": strength, "compiler": lambda function: function}

    def results() -> list[Tensor]:
        loss = chunked_loss((one, two), weight, bias, gold, **options)
        return [loss, *torch.autograd.grad(loss, values, materialize_grads=True)]

    expected = results()
    monkeypatch.setattr(losses, "_ROWS_PER_CHUNK", 5)
    compilers = use_backend("eager")
    backend = next(compilers)
    monkeypatch.setattr(losses, chosen.__name__, compiled(fused))
    found = results()
    next(compilers, None)
    assert_close(found, expected)
    assert backend.num_graphs == 1


def test_matrix_products_use_the_autocast_dtype() -> None:
    """A last norm gives float32 states, of which the products would be slow."""
    (one, _, weight, bias), gold = values_of(7)
    with torch.autocast("cpu", torch.bfloat16), ProductTypes() as types:
        loss = cross_entropy(one, weight, bias, gold, 0.1)
        gradients = torch.autograd.grad(loss, (one, weight, bias))
    assert types.seen == {torch.bfloat16}
    assert [each.dtype for each in gradients] == [torch.float32] * 3


class ProductTypes(TorchDispatchMode):
    """Notes the dtypes that matrix products are of."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: set[torch.dtype] = set()

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "mm" in str(func):
            self.seen |= {each.dtype for each in args if isinstance(each, Tensor)}
        return func(*args, **(kwargs or {}))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_on_a_gpu_chunks_agree_with_float64(dtype: torch.dtype, is_compiled: bool) -> None:
    torch.manual_seed(1)
    compiler = compiled if is_compiled else lambda function: function
    shapes, gold = ((9000, 64), (37_000, 64), (37_000,)), torch.randint(0, 37_000, (9000,)).cuda()
    values = [torch.randn(shape).div(4).to("cuda", dtype).requires_grad_() for shape in shapes]
    hidden, weight, bias = values
    loss = cross_entropy(hidden, weight, bias, gold, 0.1, compiler)
    exact = [value.detach().double().requires_grad_() for value in values]
    parts = zip(exact[0].split(1000), gold.split(1000), strict=True)
    expected = torch.stack(
        [
            F.cross_entropy(
                F.linear(rows, *exact[1:]), wanted, label_smoothing=0.1, reduction="sum"
            )
            for rows, wanted in parts
        ]
    ).sum()
    limit = 1e-4 if dtype == torch.float32 else 1e-2
    assert loss.item() == pytest.approx(expected.item(), rel=limit)
    ours, theirs = torch.autograd.grad(loss, values), torch.autograd.grad(expected, exact)
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine.double() - other).norm() < limit * other.norm()


@pytest.mark.parametrize("chunks", [None, _Chunks(64, 64, per_sum=4), _Chunks(64, 64)], ids=str)
@pytest.mark.parametrize("rows", [64 * 3, 64 * 7 + 5, 16_384])
def test_chunks_do_not_make_16_bit_weight_gradients_less_precise(
    chunks: _Chunks | None, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many small parts are summed, as on a GPU some of them in 16 bits, and none is lost."""
    if chunks is not None:
        monkeypatch.setattr(_Chunks, "of", lambda *_: chunks)
    torch.manual_seed(1)
    width, entries = 8, 32
    hidden = torch.randn(rows, width).bfloat16()
    values = torch.randn(entries, width).bfloat16(), torch.randn(entries).bfloat16()
    gold = torch.randint(0, entries, (rows,))
    exact = [value.double().requires_grad_() for value in values]
    logits = F.linear(hidden.double(), *exact)
    F.cross_entropy(logits, gold, label_smoothing=0.1, reduction="sum").backward()
    ours = [value.clone().requires_grad_() for value in values]
    cross_entropy(hidden, ours[0], ours[1], gold, 0.1).backward()
    for mine, true in zip(ours, exact, strict=True):
        assert mine.grad is not None
        assert true.grad is not None
        assert (mine.grad.double() - true.grad).norm() < 1e-2 * true.grad.norm()


def test_validation_computes_no_gradient_and_the_same_loss() -> None:
    """A gradient would take two more matrix products of the same size."""
    torch.manual_seed(1)
    rows, width, entries = 300, 8, 32
    hidden, weight = torch.randn(rows, width), torch.randn(entries, width, requires_grad=True)
    gold = torch.randint(0, entries, (rows,))
    trained = cross_entropy(hidden, weight, None, gold, 0.0)
    with torch.inference_mode(), FlopCounterMode(display=False) as flops:
        validated = cross_entropy(hidden, weight, None, gold, 0.0)
    assert torch.equal(validated, trained.detach())
    assert flops.get_total_flops() == 2 * rows * width * entries


VOCAB_SIZE, DIM = 11, 6


def values_of(rows: int, seed: int = 0) -> tuple[list[Tensor], Tensor]:
    """States of two passes, weight and bias, which ask for a gradient; and ids to predict."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((rows, DIM), (rows, DIM), (VOCAB_SIZE, DIM), (VOCAB_SIZE,))
    values = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
    return values, torch.randint(0, VOCAB_SIZE, (rows,), generator=generator)


def divergence(p: Tensor, q: Tensor) -> Tensor:
    """KL(p || q), of logits; torch takes the arguments the other way round."""
    return F.kl_div(q.log_softmax(-1), p.log_softmax(-1), log_target=True, reduction="sum")


def naive(
    logits: tuple[Tensor, Tensor], gold: Tensor, *, smoothing: float, strength: float | None
) -> Tensor:
    entropies = [
        F.cross_entropy(one, gold, label_smoothing=smoothing, reduction="sum") for one in logits
    ]
    if strength is None:
        return entropies[0]
    one, two = logits
    between = divergence(one, two) + divergence(two, one)
    return torch.stack(entropies).sum() / 2 + strength / 4 * between


def assert_close(ours: list[Tensor], theirs: list[Tensor], tolerance: float = 1e-4) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=tolerance, atol=tolerance)


@given(
    rows=st.integers(1, 600),
    smoothing=st.sampled_from([0.0, 0.1]),
    strength=st.sampled_from([None, 0.0, 1.0, 5.0]),
    has_bias=st.booleans(),
    scale=st.floats(0.1, 3),
    share=st.floats(0, 1),
)
def test_loss_and_gradients_equal_autograd_and_add_up(
    rows: int, smoothing: float, strength: float | None, has_bias: bool, scale: float, share: float
) -> None:
    """Also of the two parts of a batch: loss(A + B) == loss(A) + loss(B)."""
    values, gold = values_of(rows, seed=rows)
    one, two, weight, bias = values
    used = bias if has_bias else None
    options: Any = {"smoothing": smoothing, "strength": strength}
    wanted = [value for value in (one, two, weight, used) if value is not None]
    logits = F.linear(one, weight, used), F.linear(two, weight, used)
    theirs = naive(logits, gold, **options)
    ours = chunked_loss((one, two), weight, used, gold, **options)
    cut = round(share * rows)
    parts = [
        chunked_loss((one[part], two[part]), weight, used, gold[part], **options)
        for part in (slice(cut), slice(cut, None))
        if len(gold[part])
    ]
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(torch.stack(parts).sum(), ours, rtol=1e-5, atol=1e-4)
    assert_close(
        list(torch.autograd.grad(ours * scale, wanted, materialize_grads=True)),
        list(torch.autograd.grad(theirs * scale, wanted, materialize_grads=True)),
    )


def test_16_bit_states_give_gradients_near_the_exact_ones() -> None:
    """As under autocast: states in bf16, weights in float32."""
    values, gold = values_of(40)
    one, two, weight, bias = values
    exact = chunked_loss((one, two), weight, bias, gold, smoothing=0.1, strength=1.0)
    rounded = [one.detach().bfloat16(), two.detach().bfloat16()]
    states = [tensor.requires_grad_() for tensor in rounded]
    found = chunked_loss((states[0], states[1]), weight, bias, gold, smoothing=0.1, strength=1.0)
    torch.testing.assert_close(found, exact, rtol=0.02, atol=0)
    ours = torch.autograd.grad(found, (*states, weight, bias))
    theirs = torch.autograd.grad(exact, values)
    assert [tensor.dtype for tensor in ours] == [torch.bfloat16] * 2 + [torch.float32] * 2
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine.float() - other).norm() < 0.03 * other.norm()
