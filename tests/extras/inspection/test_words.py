"""Pieces, batches and worked examples against the tokenizer, `collate`, attention and paper."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.commands.prepare import prepare_data as prepare
from nmt.config.loader import load_config
from nmt.data.loader import collate
from nmt.data.prepared import PreparedData
from nmt.errors import ConfigError
from nmt.extras.inspection.command import make_part
from nmt.extras.inspection.figure import Heatmap, Table, Text
from nmt.extras.inspection.inputs import collate_pairs, decoder_mask, neighbours, pairs_of
from nmt.extras.inspection.options import InspectOptions
from nmt.extras.inspection.subject import Subject
from nmt.extras.inspection.worked_examples import worked_examples
from nmt.model.attention import attention
from nmt.model.transformer import build_model
from nmt.packed import Packed
from nmt.text.tokenizer import load_tokenizers
from tests.inference.models import run_config, save_run, train_tokenizer

HELLO = Path(__file__).parents[3] / "configs" / "hello.yaml"
IDS = st.lists(st.integers(4, 99), min_size=1, max_size=6)


@pytest.fixture(scope="module")
def hello(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The smallest example, prepared, and an untrained model of it in a run folder."""
    place = tmp_path_factory.mktemp("hello")
    config = load_config(HELLO, [f"prepared_dir={place / 'data'}"])
    prepare(config)
    tokenizer = place / "data" / "tokenizer"
    torch.manual_seed(3)
    model = build_model(config.model, *load_tokenizers(tokenizer).vocab_sizes)
    return {"data": place / "data", "run": save_run(place / "run", model, tokenizer, config)}


def configured(hello: dict[str, Path], **choice: Any) -> Subject:
    overrides = (f"prepared_dir={hello['data']}",)
    return Subject(HELLO, InspectOptions(set_=overrides, **choice))


def find(subject: Subject, what: str, title: str) -> Any:
    return next(each for each in make_part(what, subject).figures if each.title == title)


def test_pieces_are_the_tokenizers_with_their_counts_in_training(hello: dict[str, Path]) -> None:
    subject = configured(hello, source="je suis merci", target="i am a student")
    source, target = subject.tokenizers
    found = find(subject, "vocabulary", "Pieces, source")
    assert found.head == ["piece", "id", "times in training"]
    ids = [*source.encode("je suis merci"), 3]
    # "merci" and "je suis étudiant": each word once, and two ends.
    assert found.rows == [(*each, n) for each, n in zip(
        zip(["▁je", "▁suis", "▁merci", "EOS"], ids, strict=True), [1, 1, 1, 2], strict=True
    )]  # fmt: skip
    found = find(subject, "vocabulary", "One-hot vectors, target")
    assert isinstance(found, Heatmap)
    ids = [*target.encode("i am a student"), 3]
    assert [row.index(1) for row in map(list, found.values)] == ids
    assert [sum(x or 0 for x in row) for row in found.values] == [1] * 5
    assert [found.columns[index] for index in ids] == ["▁i", "▁am", "▁a", "▁student", "EOS"]


def test_a_one_hot_vector_times_the_table_is_what_the_model_reads(hello: dict[str, Path]) -> None:
    subject = Subject(hello["run"], InspectOptions(source="merci"))
    found = find(subject, "vocabulary", "From one-hot to vector, source")
    assert isinstance(found, Text)
    model, (index, _) = subject.model, subject.source_ids
    ids = torch.tensor([index])
    read = model.source_embedding(ids, torch.tensor([0]), model.source_vectors, None)[0]
    shown = found.lines[-1].split("[")[1].rstrip("]").split()
    assert [float(x) for x in shown] == pytest.approx(read.tolist(), abs=5e-4)
    assert found.lines[0] == (
        f"x = one-hot vector of ▁merci: 8 numbers, 0 but for number {index}, which is 1"
    )


def test_neighbours_have_the_largest_cosines_and_are_no_special_tokens() -> None:
    # Angles from row 3: 90, 45, 180 and 0 degrees; before it PAD, UNK and BOS with cosines of 1.
    table = torch.tensor([[2.0, 0.0]] * 4 + [[0.0, 1.0], [3.0, 3.0], [-1.0, 0.0], [5.0, 0.0]])
    found = neighbours(table, 3, 3)
    assert [index for index, _ in found] == [7, 5, 4]
    assert [cosine for _, cosine in found] == pytest.approx([1, math.sqrt(0.5), 0], abs=1e-6)
    assert [index for index, _ in neighbours(table, 3, 50)] == [7, 5, 4, 6]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder whose vocabulary is too large to be drawn, without its data."""
    place, config = tmp_path_factory.mktemp("large"), run_config()
    tokenizer = train_tokenizer(place / "tokenizer")
    model = build_model(config.model, *load_tokenizers(tokenizer).vocab_sizes)
    return save_run(place / "run", model, tokenizer, config)


def test_a_model_with_a_large_vocabulary_names_neighbours(large: Path) -> None:
    subject = Subject(large, InspectOptions(source="Hund Hund", target="Katze"))
    assert subject.prepared is None
    titles = [figure.title for figure in make_part("vocabulary", subject).figures]
    assert titles == [
        f"{what}, {side}"
        for side in ("source", "target")
        for what in ("Pieces", "From one-hot to vector", "Nearest pieces by cosine")
    ]
    table = find(subject, "vocabulary", "Nearest pieces by cosine, source")
    assert len(table.rows) == len({*subject.source_ids})
    assert all(row[1].count(", ") >= 4 for row in table.rows)


def test_the_batch_is_that_of_collate(hello: dict[str, Path]) -> None:
    subject = configured(hello, source="je suis étudiant", target="i am a student")
    valid = PreparedData.open(hello["data"]).valid
    expected = collate(valid, np.array([1, 0]))
    batch = collate_pairs(pairs_of(subject), 9, source_bos=False)
    for name in ("source", "target"):
        assert getattr(batch, name).rows() == getattr(expected, name).rows()
    assert torch.equal(batch.gold, expected.gold)
    part = make_part("shift", subject)
    encoder, decoder = part.figures[:2]
    assert isinstance(encoder, Table)
    assert isinstance(decoder, Table)
    assert encoder.rows == [
        ["1", "▁je", "▁suis", "▁étudiant", "EOS"],
        ["2", "▁merci", "EOS", "PAD", "PAD"],
    ]
    assert decoder.rows == [
        ["1 reads", "BOS", "▁i", "▁am", "▁a", "▁student"],
        ["1 predicts", "▁i", "▁am", "▁a", "▁student", "EOS"],
        ["2 reads", "BOS", "▁thanks", "PAD", "PAD", "PAD"],
        ["2 predicts", "▁thanks", "EOS", "PAD", "PAD", "PAD"],
    ]
    padding, first, second = part.figures[2:]
    assert isinstance(padding, Heatmap)
    assert padding.values == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert isinstance(first, Heatmap)
    assert first.values == torch.ones(5, 5).tril().tolist()
    assert first.rows[:2] == ["BOS → ▁i", "▁i → ▁am"]
    assert isinstance(second, Heatmap)
    assert second.values == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0]]


@settings(max_examples=30)
@given(pairs=st.lists(st.tuples(IDS, IDS), min_size=1, max_size=4), source_bos=st.booleans())
def test_any_pairs_get_bos_and_eos_where_training_puts_them(
    pairs: list[tuple[list[int], list[int]]], source_bos: bool
) -> None:
    batch = collate_pairs(pairs, 100, source_bos=source_bos)
    assert batch.source.rows() == [[2] * source_bos + [*source, 3] for source, _ in pairs]
    assert batch.target.rows() == [[2, *target] for _, target in pairs]
    assert batch.gold.tolist() == [index for _, target in pairs for index in [*target, 3]]


@given(lengths=st.lists(st.integers(1, 5), min_size=1, max_size=3))
def test_the_decoder_mask_is_what_attention_reads(lengths: list[int]) -> None:
    target = Packed.from_rows([[4] * length for length in lengths])
    mask = decoder_mask(target)
    # Values are one-hot by position, so what is read of each says where the weight was.
    heads = torch.zeros(target.num_tokens, 1, 5)
    values = torch.eye(5)[target.positions].unsqueeze(1)
    read = attention(heads, heads, values, (target, target), causal=True)[:, 0]
    seen = target.pad(read)[..., : target.max_length] > 0
    assert torch.equal(seen, mask)


def test_one_pair_alone_gets_a_shorter_one_beside_it(large: Path) -> None:
    subject = Subject(large, InspectOptions(source="Hund und Katze", target="Katze läuft"))
    (source, target), second = pairs_of(subject)
    assert subject.tokenizers.source.decode(source) == "Hund und Katze"
    assert subject.tokenizers.target.decode(target) == "Katze läuft"
    assert second == (source[:1], target[:1])
    exported = Subject(large, InspectOptions(source="Hund"))
    exported.has_weights = False
    with pytest.raises(ConfigError, match="`target`"):
        pairs_of(exported)


def test_the_worked_examples_are_the_published_numbers() -> None:
    figures = {figure.title: figure for figure in worked_examples()}
    scores = figures["Attention of one query to two keys"]
    assert isinstance(scores, Table)
    numbers = [row[1:] for row in scores.rows]
    assert numbers[:2] == [(112, 96), (14, 12)]
    # 1 / (1 + e^-2) = 0.8808
    assert numbers[2] == pytest.approx((0.88, 0.12), abs=0.005)
    assert numbers[2] == pytest.approx((1 / (1 + math.exp(-2)), 1 / (1 + math.exp(2))), abs=1e-6)
    variances = figures["Variance of q . k, a sum of 64 products of variance 1"]
    assert isinstance(variances, Table)
    for (_, expected, measured), value in zip(variances.rows, (64, 1), strict=True):
        assert expected == value
        assert measured == pytest.approx(value, rel=0.05)
    for where, halves in (("interleaved", False), ("in halves", True)):
        table = figures[f"20 positions of width 512, sines and cosines {where}"]
        assert isinstance(table, Heatmap)
        assert [len(row) for row in table.values] == [512] * 20
        sines = [1.0 * (column < 256 if halves else column % 2 == 0) for column in range(512)]
        assert table.values[0] == [1 - sine for sine in sines]
    parameters = figures["Parameters of the base model, 37,000 words, tied"]
    assert isinstance(parameters, Table)
    assert parameters.rows[-1][2] == 63_082_496
    assert "63,119,496" in parameters.note
    assert "1,048,576" in parameters.note
