"""Steps of a few fixed sizes say what the model says. Without a GPU a repeated call stands for the
graph: it sees the same tensors in the same places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nmt.config.model import DecodingConfig
from nmt.inference import cuda_graphs as graphed
from nmt.inference.cuda_graphs import CudaGraphs, GraphedDecodeToken
from nmt.inference.stepper import ModelStepper
from nmt.model import decoder_state
from nmt.model.decoder_state import StepInputs
from nmt.model.transformer import DecodeToken, Transformer
from nmt.packed import Packed
from nmt.search.loop import search
from tests.examples import FEW
from tests.model.small import VARIANTS, decode, random_parameters, small_model

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=9)


class Repeater:
    """Records nothing, and does it again; as a graph does, it leaves its result in one place."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, step: Callable[[], Tensor]) -> tuple[Callable[[], object], Tensor]:
        self.count += 1
        result = step()
        return lambda: result.copy_(step()), result


@pytest.fixture(autouse=True, scope="module")
def at_once() -> Iterator[None]:
    """Sizes are recorded when they are first used."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graphed, "_USES_BEFORE", 0)
        yield


def recorded(**options: Any) -> tuple[Transformer, GraphedDecodeToken, Repeater]:
    model, repeater = small_model(**options), Repeater()
    return model, GraphedDecodeToken(model, repeater), repeater


def assert_alike(model: Transformer, run: DecodeToken, sizes: tuple[list[int], int, int]) -> None:
    found, expected = (decode(model, own, *sizes) for own in (run, None))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_fixed_cache_sizes_give_the_same_result(variant: str) -> None:
    for large in (0, 1 << 30):  # caches that stay, and caches that are copied
        model, run, _ = recorded(**VARIANTS[variant])
        random_parameters(model)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(decoder_state, "LARGE", large)
            for sizes in (([5], 1, 4), ([7, 7, 7], 2, 20), ([9, 4, 6, 1, 33], 5, 36)):
                assert_alike(model, run, sizes)


@pytest.fixture(scope="module")
def fixed() -> tuple[Transformer, DecodeToken, Repeater]:
    return recorded(preset="modern")


@FEW
@given(st.tuples(LENGTHS, st.integers(1, 3), st.integers(1, 20)))
def test_a_few_graph_sizes_serve_all_batches(fixed: Any, sizes: tuple[list[int], int, int]) -> None:
    model, run, repeater = fixed
    assert_alike(model, run, sizes)
    # 1, 2, 4, 8 and 16 sentences, 1 to 3 beams, 16, 32 and 64 positions, 16 and 32 steps
    assert repeater.count <= 5 * 3 * 3 * 2


def test_graphs_keep_nothing_of_the_previous_batch() -> None:
    model, run, _ = recorded()
    with torch.no_grad():
        kept = model.source_vectors[7].clone()
        model.source_vectors[7] = torch.nan
    state = model.start(Packed.from_rows([[7] * 5]))
    logits, state = model.decode_step(state, torch.tensor([[7]]), run)
    logits, _ = model.decode_step(state, torch.tensor([[7]]), run)
    assert logits.isnan().all()
    with torch.no_grad():
        model.source_vectors[7] = kept
    assert_alike(model, run, ([3], 1, 2))


def test_two_batches_at_once_do_not_share_caches() -> None:
    model, run, _ = recorded()
    tokens, found = torch.tensor([[7]]), list[list[Tensor]]()
    with torch.inference_mode():
        for own in (run, None):
            states, logits = [model.start(Packed.from_rows([row])) for row in ([5, 3], [9, 3])], []
            for _ in range(3):
                for number, state in enumerate(states):
                    hidden, states[number] = model.decode_step(state, tokens, own)
                    logits.append(hidden)
                    del state
            found.append(logits)
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)


def test_a_result_outlives_the_next_step() -> None:
    model, run, _ = recorded()
    with torch.inference_mode():
        state = model.start(Packed.from_rows([[5, 6, 3]]))
        state = run.with_room(state)
        table = model.target_embedding.position_table(1)
        caches = state.source_mask, state.cross_kv, state.self_kv[..., :1, :]
        inputs = StepInputs(torch.tensor([7]), torch.zeros(1, dtype=torch.int64), table, *caches)
        first = run(inputs)
        kept = first.clone()
        assert not torch.equal(run(inputs._replace(ids=torch.tensor([8]))), kept)
    assert torch.equal(first, kept)


def test_memory_of_graphs_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One beam takes 16 positions of the source and 16 of the target, two take 16 and twice 16."""
    model, run, repeater = recorded()
    position = 2 * 2 * 32 * 4  # keys and values, layers, width, bytes
    monkeypatch.setattr(graphed, "_USUAL_MAX_BYTES", (16 + 16 + 16 + 32) * position - 1)
    for _ in range(2):
        assert_alike(model, run, ([5], 2, 3))  # one beam at first, then two
    assert repeater.count == 4
    monkeypatch.setattr(graphed, "_USUAL_MAX_BYTES", (16 + 16) * position - 1)
    assert_alike(model, run, ([5], 2, 3))
    assert repeater.count == 4


def test_rows_of_a_graph_are_sentences_times_beams(monkeypatch: pytest.MonkeyPatch) -> None:
    """One beam fits in one row, and two beams do not."""
    monkeypatch.setattr(graphed, "_MAX_ROWS", 1)
    model, run, repeater = recorded()
    assert_alike(model, run, ([5], 2, 3))  # one beam at first, then two
    assert repeater.count == 1


def test_a_size_is_recorded_when_it_was_used_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphed, "_USES_BEFORE", 5)
    model, run, repeater = recorded()
    for count in (0, 1, 1):
        assert_alike(model, run, ([5], 1, 3))
        assert repeater.count == count


def test_graphs_return_after_out_of_memory_and_stay_off_after_other_errors() -> None:
    """Recorded steps are given up, and later there are new ones; or never again."""
    repeater, calls = Repeater(), 0
    error: Exception | None = torch.OutOfMemoryError("CUDA out of memory")

    def record(step: Callable[[], Tensor]) -> tuple[Callable[[], object], Tensor]:
        nonlocal calls
        calls += 1
        if error:
            raise error
        return repeater(step)

    model = small_model()
    run = GraphedDecodeToken(model, record)
    assert_alike(model, run, ([5, 3], 2, 4))
    error = None
    assert_alike(model, run, ([5, 3], 2, 4))
    assert repeater.count > 0
    run, error, calls = GraphedDecodeToken(model, record), RuntimeError("not permitted"), 0
    with pytest.warns(UserWarning, match="not permitted"):
        assert_alike(model, run, ([5, 3], 2, 4))
    assert calls == 1


def test_a_failed_capture_leaves_the_stream_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch leaves the stream of a capture only if all went well."""
    main = Mock()
    current, seen = [main], list[Mock]()

    @contextmanager
    def use(stream: Mock) -> Iterator[None]:
        before = list(current)
        current.append(stream)
        try:
            yield
        finally:
            current[:] = before

    @contextmanager
    def capture(_: object, *, stream: Mock, **_how: object) -> Iterator[None]:
        current.append(stream)
        yield
        current.pop()

    def step(limit: int = 99) -> Tensor:
        seen.append(current[-1])
        if len(seen) > limit:
            raise RuntimeError("operation not permitted when stream is capturing")
        return torch.zeros(1)

    fakes = {"current_stream": lambda: current[-1], "stream": use, "graph": capture}
    for name in ("graph_pool_handle", "Stream", "CUDAGraph"):
        monkeypatch.setattr(torch.cuda, name, Mock())
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    record = CudaGraphs()
    record(step)
    assert current == [main]
    with pytest.raises(RuntimeError, match="not permitted"):
        record(lambda: step(5))
    assert current == [main]
    assert main not in seen


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_on_a_gpu_logits_of_16_bits_are_not_rounded(dtype: torch.dtype) -> None:
    model = small_model(output_bias=True).to("cuda", dtype)
    hidden = torch.randn(7, 2, 32, device="cuda").to(dtype)
    with torch.inference_mode():
        found = model.logits(hidden)
        few = model.narrow_output(torch.tensor([4, 9], device="cuda"))(hidden)
    exact = hidden.double() @ model.output_weight.detach().double().T
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(few, found[..., [4, 9]], rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_on_a_gpu_graphs_equal_the_model(dtype: torch.dtype) -> None:
    model = small_model().to("cuda", dtype)
    run = GraphedDecodeToken(model)
    tolerance = 1e-4 if dtype == torch.float32 else 5e-2
    torch.manual_seed(0)
    rows = [torch.randint(4, 50, (length,)).tolist() for length in (20, 17, 9, 5, 3, 2)]
    with torch.inference_mode():
        states = [model.start(Packed.from_rows(rows, "cuda")) for _ in range(2)]
        tokens = torch.full((6, 1), 4, device="cuda")
        for _ in range(40):
            found = []
            for number, own in enumerate((run, None)):
                logits, states[number] = model.decode_step(states[number], tokens, own)
                found.append(logits)
            torch.testing.assert_close(*found, rtol=tolerance, atol=tolerance)
            tokens = found[1].argmax(-1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("large", [0, 1 << 40])
def test_on_a_gpu_beams_are_the_same(monkeypatch: pytest.MonkeyPatch, large: int) -> None:
    monkeypatch.setattr(decoder_state, "LARGE_ON_GPU", large)
    model = small_model().to("cuda")
    torch.manual_seed(0)
    rows = [[*torch.randint(4, 50, (length,)).tolist(), 3] for length in (20, 17, 9, 5, 3, 2)]
    options = DecodingConfig(beam_size=5, max_length_factor=2.0)
    for _ in range(2):
        found, expected = (
            search(ModelStepper(model, runs=own), Packed.from_rows(rows, "cuda"), options)
            for own in ([GraphedDecodeToken(model)], None)
        )
        for own, plain in zip(found, expected, strict=True):
            assert [h.ids for h in own] == [h.ids for h in plain]
            assert [h.score for h in own] == pytest.approx([h.score for h in plain], abs=1e-4)
