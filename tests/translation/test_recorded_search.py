"""Recorded searches find what searches in Python find, to the bit."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.config.decoding import DecodingConfig
from nmt.config.model import ModelConfig
from nmt.model import decoder_state
from nmt.model.decoder_state import LARGE
from nmt.model.factory import build_model
from nmt.model.quantized import quantize
from nmt.model.transformer import Readers, Transformer
from nmt.runtime import recorded_search
from nmt.runtime.engine import Task
from nmt.runtime.model_stepper import ModelStepper
from nmt.runtime.recorded_search import RecordedSearch
from nmt.runtime.shortlist import BatchVocabulary
from nmt.runtime.torch_engine import TorchEngine
from nmt.runtime.traced import trace_readers
from nmt.search.choose import search
from nmt.search.constraints import Constraints
from nmt.search.hypothesis import Hypothesis

VOCAB_SIZE = 1200  # for a beam of five, so many that the largest are sought in blocks
SHAPES: dict[str, dict[str, Any]] = {
    "pre": {"norm_position": "pre"},
    "rotary": {"norm_position": "pre", "positions": "rotary", "norm": "rms"},
    "bias": {"output_bias": True, "decoder_layers": 2},
    "learned": {"positions": "learned", "max_positions": 30},
}
Dtype = Literal["float32", "int8", "float16"]


@pytest.fixture(autouse=True)
def from_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record without waiting."""
    monkeypatch.setattr(recorded_search, "_SEARCHES_BEFORE", 0)


@cache
def small_model(shape: str, dtype: Dtype) -> tuple[Transformer, Readers]:
    """A model that was never trained, some of whose tokens are always equally probable."""
    torch.manual_seed(5)
    values = {"model_dim": 32, "ff_dim": 48, "num_heads": 2, "encoder_layers": 1,
              "decoder_layers": 1, **SHAPES[shape]}  # fmt: skip
    model = build_model(ModelConfig.model_validate(values), VOCAB_SIZE, VOCAB_SIZE).eval()
    with torch.no_grad():
        model.output_weight.mul_(3)
        model.output_weight[3].mul_(1.2)  # EOS is not too rare
        model.output_weight[40:50] = model.output_weight[40]
    if dtype != "float32":
        quantize(model, dtype)
    readers = trace_readers(model)
    assert readers is not None
    return model, readers


@cache
def recorder(shape: str, dtype: Dtype, large: int) -> RecordedSearch:
    """Made once; with ``large``, from so many values on beams of caches change places."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorded_search, "LARGE", large)
        found = RecordedSearch(*small_model(shape, dtype))
        assert found._graphs
    return found


def both(
    shape: str,
    dtype: Dtype,
    ids: Sequence[int],
    options: DecodingConfig,
    tokens: torch.Tensor | None = None,
    large: int = LARGE,
) -> tuple[list[list[Hypothesis]] | None, list[list[Hypothesis]]]:
    """What is found recorded, and in Python."""
    model, readers = small_model(shape, dtype)
    vocabulary = None if tokens is None else BatchVocabulary(tokens, None)
    source = torch.tensor([[*ids, 3]])
    recorded = recorder(shape, dtype, large).search(
        ModelStepper(model, readers, vocabulary=vocabulary), source, options, None
    )
    plain, lengths = ModelStepper(model, readers, vocabulary=vocabulary), [source.shape[1]]
    with pytest.MonkeyPatch.context() as patch:  # in other rows, last bits of a beam may differ
        patch.setattr(decoder_state, "LARGE", large)
        return recorded, search(plain, source, torch.tensor(lengths), options)


@settings(deadline=None, max_examples=150)
@given(
    shape=st.sampled_from(["pre", "rotary", "bias"]),
    dtype=st.sampled_from(["float32", "int8"]),
    ids=st.lists(st.integers(4, VOCAB_SIZE - 1), min_size=0, max_size=12),
    few=st.none() | st.integers(2, 300),
    seed=st.integers(0, 99),
    large=st.sampled_from([1, 3000, LARGE]),  # the second is reached on the way
    beam_size=st.integers(1, 6),
    data=st.data(),
)
def test_the_same_is_found_to_the_bit(
    shape: str,
    dtype: Dtype,
    ids: list[int],
    few: int | None,
    seed: int,
    large: int,
    beam_size: int,
    data: st.DataObject,
) -> None:
    """Also where tokens are equally probable, or fewer than beams ask for."""
    patience = data.draw(st.sampled_from([0.5, 1.0, 2.0])) if beam_size > 1 else 1.0
    options = DecodingConfig(
        beam_size=beam_size,
        n_best=data.draw(st.integers(1, min(beam_size, int(patience * beam_size)))),
        patience=patience,
        length_penalty=data.draw(st.sampled_from([0.0, 0.6, 1.0])),
        length_penalty_form=data.draw(st.sampled_from(["power", "gnmt"])),
        max_length_factor=data.draw(st.sampled_from([0.0, 1.0, 1.7])),
        max_length_offset=data.draw(st.integers(1, 12)),
        min_length_factor=data.draw(st.sampled_from([0.0, 0.8])),
    )
    tokens = None
    if few is not None:
        draw = torch.Generator().manual_seed(seed)
        drawn = 4 + torch.randperm(VOCAB_SIZE - 4, generator=draw)[:few]
        tokens = torch.cat((torch.arange(4), drawn.sort().values))
    recorded, expected = both(shape, dtype, ids, options, tokens, large)

    assert recorded == expected


@pytest.mark.parametrize(("patience", "beam_size"), [(0.28, 25), (2.2, 5), (1.1, 10)])
def test_patience_is_the_same_where_its_product_is_not_exact(
    patience: float, beam_size: int
) -> None:
    options = DecodingConfig(
        beam_size=beam_size, patience=patience, max_length_factor=1.0, max_length_offset=5
    )
    for number in range(4, 24):
        recorded, expected = both("pre", "float32", [number, 7], options)
        assert recorded == expected


def test_a_limit_that_is_none_is_left_alone() -> None:
    """No tables are made up to it."""
    model, readers = small_model("pre", "float32")
    options = DecodingConfig(max_length_offset=100_000)
    source = torch.tensor([[5, 3]])
    assert (
        RecordedSearch(model, readers).search(ModelStepper(model, readers), source, options, None)
        is None
    )


def test_weights_of_16_bits_are_recorded_too() -> None:
    recorded, expected = both("pre", "float16", [7, 8, 9], DecodingConfig())
    assert recorded == expected


@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_model_of_no_numbers_finds_nothing(beam_size: int) -> None:
    torch.manual_seed(5)
    config = ModelConfig.model_validate(
        {"model_dim": 32, "ff_dim": 48, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    )
    model = build_model(config, 50, 50).eval()
    with torch.no_grad():
        model.output_weight.fill_(torch.nan)
    readers = trace_readers(model)
    assert readers is not None
    inputs = torch.tensor([[5, 6, 3]]), DecodingConfig(beam_size=beam_size)
    found = RecordedSearch(model, readers).search(ModelStepper(model, readers), *inputs, None)

    assert found == [[]]
    plain = search(ModelStepper(model, readers), inputs[0], torch.tensor([3]), inputs[1])
    assert plain == [[]]


def test_what_has_rules_of_its_own_is_left_alone() -> None:
    model, readers = small_model("pre", "int8")
    recorded, stepper = RecordedSearch(model, readers), ModelStepper(model, readers)
    one, two = torch.tensor([[5, 3]]), torch.tensor([[5, 3], [6, 3]])
    special: list[dict[str, Any]] = [
        {"sampling": True, "beam_size": 1}, {"return_alternatives": True, "beam_size": 1},
        {"diverse_beam_groups": 5}, {"coverage_penalty": 0.2}, {"no_repeat_ngram_size": 3},
        {"repetition_penalty": 1.2},
    ]  # fmt: skip
    for values in special:
        assert recorded.search(stepper, one, DecodingConfig(**values), None) is None
    assert recorded.search(stepper, one, DecodingConfig(), [Constraints(prefix=(7,))]) is None
    assert recorded.search(stepper, two, DecodingConfig(), None) is None
    assert recorded.search(stepper, one, DecodingConfig(), None) is not None

    many = BatchVocabulary(torch.arange(1000), None)  # so many that their weights are packed
    packed = ModelStepper(model, readers, vocabulary=many)
    assert recorded.search(packed, one, DecodingConfig(), None) is None
    ends = small_model("learned", "float32")
    assert RecordedSearch(*ends).search(ModelStepper(*ends), one, DecodingConfig(), None) is None


def test_an_engine_records_after_some_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_search, "_SEARCHES_BEFORE", 3)
    model, _ = small_model("pre", "float32")
    engine, plain = TorchEngine(model, is_final=True), TorchEngine(model)
    recorded: list[Any] = []
    record = recorded_search._record

    def watched(token: Any, logits: Any) -> Any:
        recorded.append(token)
        return record(token, logits)

    monkeypatch.setattr(recorded_search, "_record", watched)
    for number in range(6):
        for beam_size in (1, 5):
            options = DecodingConfig(beam_size=beam_size)
            source = [[9 + number, 5, 6]]
            found, expected = engine.search(source, options), plain.search(source, options)
            assert [one.ids for one in found[0]] == [one.ids for one in expected[0]]
        assert len(recorded) == (number >= 1)


def test_without_a_recording_searches_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("unknown to this release")

    monkeypatch.setattr(recorded_search, "_record", fail)
    model, _ = small_model("pre", "float32")
    engine, options = TorchEngine(model, is_final=True), DecodingConfig()
    with pytest.warns(UserWarning, match="not recorded, and slower: unknown") as told:
        found = [engine.search([[7, 8]], options)[0][0].ids for _ in range(3)]

    assert found == [TorchEngine(model).search([[7, 8]], options)[0][0].ids] * 3
    assert len(told) == 1


def test_threads_share_a_recording() -> None:
    model, _ = small_model("rotary", "float32")
    engine, options = TorchEngine(model, is_final=True), DecodingConfig()
    sources = [[[4 + number, 5, 6]] for number in range(24)]
    expected = [TorchEngine(model).search(source, options)[0][0].ids for source in sources]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda source: engine.search(source, options)[0][0].ids, sources))

    assert found == expected
    assert engine._recorded is not None
    assert vars(engine._recorded).get("_graphs") is not None


def test_the_longest_batches_come_first_and_results_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that no thread is left alone with the longest at the end."""
    model, _ = small_model("pre", "float32")
    engine, begun = TorchEngine(model, is_final=True), []
    tasks = [Task([[5] * length] * count) for length, count in ((1, 2), (9, 2), (4, 2), (30, 1))]

    def search_one(task: Task, _: DecodingConfig) -> list[list[Hypothesis]]:
        begun.append(len(task.sources[0]))
        return [[Hypothesis(tuple(ids), 0.0, 0.0)] for ids in task.sources]

    monkeypatch.setattr(engine, "_search", search_one)
    monkeypatch.setattr(TorchEngine, "num_workers", 2)
    found = list(engine.search_all(tasks, DecodingConfig()))

    assert sorted(begun[:2]) == [9, 30]
    assert [len(each[0][0].ids) for each in found] == [1, 9, 4, 30]
