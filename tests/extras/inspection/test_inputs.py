"""Subwords, batches, positions and worked examples against tokenizer, `collate` and papers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nmt.commands.prepare import prepare_data as prepare
from nmt.config.loader import load_config
from nmt.errors import ConfigError
from nmt.extras.inspection.command import make_part
from nmt.extras.inspection.figure import Figure, Heatmap, Table, TextFigure
from nmt.extras.inspection.inputs import (
    LAYOUTS,
    collate_pairs,
    decoder_mask,
    neighbours,
    pairs_of,
    positions,
    shift_matrix,
    similarity,
    sinusoid_figures,
    written_out,
)
from nmt.extras.inspection.inspected import Inspected
from nmt.extras.inspection.options import InspectOptions
from nmt.extras.inspection.worked_examples import worked_examples
from nmt.model.attention import Segments, attention
from nmt.model.positions import rates, sinusoids
from nmt.model.transformer import build_model
from nmt.packed import Packed
from nmt.text.tokenizer import load_tokenizers
from tests.examples import FEW
from tests.inference.models import save_run
from tests.model.small import small_model

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


def configured(hello: dict[str, Path], **choice: Any) -> Inspected:
    overrides = (f"prepared_dir={hello['data']}",)
    return Inspected(HELLO, InspectOptions(set_=overrides, **choice))


def find(inspected: Inspected, what: str, title: str) -> Any:
    return next(each for each in make_part(what, inspected).figures if each.title == title)


def test_subwords_have_their_counts_in_the_training_data(hello: dict[str, Path]) -> None:
    inspected = configured(hello, source="je suis merci", target="i am a student")
    source, target = inspected.tokenizers
    found = find(inspected, "vocabulary", "Subwords, source")
    assert found.head == ["subword", "id", "count in training data"]
    ids = [*source.encode("je suis merci"), 3]
    # "merci" and "je suis étudiant": each word once, and two ends.
    assert found.rows == [(*each, n) for each, n in zip(
        zip(["▁je", "▁suis", "▁merci", "EOS"], ids, strict=True), [1, 1, 1, 2], strict=True
    )]  # fmt: skip
    found = find(inspected, "vocabulary", "One-hot vectors, target")
    assert isinstance(found, Heatmap)
    ids = [*target.encode("i am a student"), 3]
    assert [row.index(1) for row in map(list, found.values)] == ids
    assert [sum(x or 0 for x in row) for row in found.values] == [1] * 5
    assert [found.columns[index] for index in ids] == ["▁i", "▁am", "▁a", "▁student", "EOS"]


def test_a_one_hot_vector_times_the_matrix_is_the_model_input(hello: dict[str, Path]) -> None:
    inspected = Inspected(hello["run"], InspectOptions(source="merci"))
    found = find(inspected, "vocabulary", "From one-hot to vector, source")
    assert isinstance(found, TextFigure)
    model, (index, _) = inspected.model, inspected.source_ids
    ids = torch.tensor([index])
    read = model.source_embedding(ids, torch.tensor([0]), model.source_vectors, None)[0]
    shown = found.lines[-1].split("[")[1].rstrip("]").split()
    assert [float(x) for x in shown] == pytest.approx(read.tolist(), abs=5e-4)
    assert found.lines[0] == (
        f"x = one-hot vector of ▁merci: 8 numbers; number {index} is 1, the rest are 0"
    )


def test_neighbours_have_the_largest_cosines_without_special_tokens() -> None:
    # Angles from row 3: 90, 45, 180 and 0 degrees; before it PAD, UNK and BOS with cosines of 1.
    table = torch.tensor([[2.0, 0.0]] * 4 + [[0.0, 1.0], [3.0, 3.0], [-1.0, 0.0], [5.0, 0.0]])
    found = neighbours(table, 3, 3)
    assert [index for index, _ in found] == [7, 5, 4]
    assert [cosine for _, cosine in found] == pytest.approx([1, math.sqrt(0.5), 0], abs=1e-6)
    assert [index for index, _ in neighbours(table, 3, 50)] == [7, 5, 4, 6]


def test_the_nearest_subwords_of_each_side_have_the_largest_cosines(runs: dict[str, Path]) -> None:
    """Of a model with a matrix for each side. PAD, UNK, BOS and the subword itself are left out."""
    inspected = Inspected(runs["learned"], InspectOptions(source="Hund Hund", target="Katze"))
    assert inspected.prepared is None
    model = inspected.model
    sides = (
        ("source", inspected.source_ids, model.source_vectors),
        ("target", [*inspected.target_ids, 3], model.target_embeddings),
    )
    for (side, ids, matrix), tokenizer in zip(sides, inspected.tokenizers, strict=True):
        vectors = matrix.detach().double().numpy()
        lengths = np.linalg.norm(vectors, axis=1)
        expected = []
        for index in dict.fromkeys(ids):
            cosines = vectors @ vectors[index] / (lengths * lengths[index])
            cosines[[0, 1, 2, index]] = -1
            nearest = np.argsort(-cosines)[:5]
            texts = [f"{tokenizer.piece(int(i))} {cosines[i]:.4f}" for i in nearest]
            subword = "EOS" if index == 3 else tokenizer.piece(index)
            expected.append((subword, ", ".join(texts).replace("</s>", "EOS")))
        table = find(inspected, "vocabulary", f"Nearest subwords by cosine, {side}")
        assert table.rows == expected


def test_a_batch_is_shifted_padded_and_masked(hello: dict[str, Path]) -> None:
    part = make_part("shift", configured(hello, source="je suis étudiant", target="i am a student"))
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
    assert (first.across, first.down) == ("token read", "token read → token predicted")
    assert isinstance(second, Heatmap)
    assert second.values == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0]]


def test_the_mask_of_a_longer_sentence_is_whole(hello: dict[str, Path]) -> None:
    """The given pair is the short one here; the other, of five tokens, is that of validation."""
    inspected = configured(hello, source="merci", target="thanks")
    short, long = (find(inspected, "shift", f"Decoder mask of sentence {n}") for n in (1, 2))
    assert short.values == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0]]
    assert long.values == torch.ones(5, 5).tril().tolist()


@FEW
@given(pairs=st.lists(st.tuples(IDS, IDS), min_size=1, max_size=4), source_bos=st.booleans())
def test_any_pairs_get_bos_and_eos_where_training_puts_them(
    pairs: list[tuple[list[int], list[int]]], source_bos: bool
) -> None:
    batch = collate_pairs(pairs, source_bos=source_bos)
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
    read = attention(heads, heads, values, Segments(target, target, is_causal=True))[:, 0]
    seen = target.pad(read)[..., : target.max_length] > 0
    assert torch.equal(seen, mask)


def test_a_single_pair_gets_a_shorter_second_pair(runs: dict[str, Path]) -> None:
    inspected = Inspected(
        runs["plain"], InspectOptions(source="Hund und Katze", target="Katze läuft")
    )
    (source, target), second = pairs_of(inspected)
    assert inspected.tokenizers.source.decode(source) == "Hund und Katze"
    assert inspected.tokenizers.target.decode(target) == "Katze läuft"
    assert second == (source[:1], target[:1])
    exported = Inspected(runs["plain"], InspectOptions(source="Hund"))
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
    variances = figures["Variance of q \N{DOT OPERATOR} k, a sum of 64 products of variance 1"]
    assert isinstance(variances, Table)
    for (_, expected, measured), value in zip(variances.rows, (64, 1), strict=True):
        assert expected == value
        assert measured == pytest.approx(value, rel=0.05)
    parameters = figures["Parameters of the base model with 37,000 subwords and tied embeddings"]
    assert isinstance(parameters, Table)
    assert parameters.rows[-1][2] == 63_082_496
    assert "63,119,496" in parameters.note
    assert "1,048,576" in parameters.note


WIDTHS = st.integers(2, 40).map(lambda half: 2 * half)
LAYOUT = st.sampled_from(sorted(LAYOUTS))


def formula(position: int, dim: int, layout: str) -> list[float]:
    """PE(position) of Vaswani et al. (2017) and of Tensor2Tensor."""
    pairs = [position / 10000 ** (2 * i / dim) for i in range(dim // 2)]
    if layout == "sinusoidal":
        return [wave(angle) for angle in pairs for wave in (math.sin, math.cos)]
    if layout == "sinusoidal-halves":
        pairs = [position / 10000 ** (i / (dim // 2 - 1)) for i in range(dim // 2)]
    return [wave(angle) for wave in (math.sin, math.cos) for angle in pairs]


def inspected_of(
    monkeypatch: pytest.MonkeyPatch, *, trained: bool = False, **options: Any
) -> Inspected:
    """A small model that replaces the model of hello.yaml."""
    inspected = Inspected(Path(__file__).parents[3] / "configs" / "hello.yaml")
    model = small_model(**options)
    config = inspected.config.model_copy(update={"model": model.config})
    monkeypatch.setitem(inspected.__dict__, "config", config)
    if trained:
        monkeypatch.setattr(Inspected, "has_weights", True)
        monkeypatch.setitem(inspected.__dict__, "model", model)
    return inspected


def figure_of(inspected: Inspected, title: str) -> Figure:
    return next(figure for figure in positions(inspected) if figure.title == title)


def heatmap_of(inspected: Inspected, title: str) -> Heatmap:
    figure = figure_of(inspected, title)
    assert isinstance(figure, Heatmap)
    return figure


def test_every_layout_of_sinusoids_has_its_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    titles = {
        layout: [
            figure.title.replace(LAYOUTS[layout], "LAYOUT")
            for figure in positions(inspected_of(monkeypatch, positions=layout))
        ]
        for layout in LAYOUTS
    }
    assert len(titles) > 1
    assert len(titles["sinusoidal"]) > 3
    assert all(found == titles["sinusoidal"] for found in titles.values())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("first", [0, 1])
def test_the_heatmap_of_both_sinusoidal_layouts_is_the_formula(
    layout: str, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    inspected = inspected_of(monkeypatch, positions=layout, first_position=first)
    found = heatmap_of(inspected, "Position vectors")
    assert found.rows == [str(position) for position in range(first, first + 20)]
    for label, row in zip(found.rows, found.values, strict=True):
        assert row == pytest.approx(formula(int(label), 32, layout), abs=1e-6)
    vectors = np.array([formula(int(label), 32, layout) for label in found.rows])
    lengths = np.linalg.norm(vectors, axis=1)
    similar = heatmap_of(inspected, "Position vectors: similarity")
    assert (similar.rows, similar.columns) == (found.rows, found.rows)
    expected = vectors @ vectors.T / np.outer(lengths, lengths)
    np.testing.assert_allclose(np.array(similar.values), expected, atol=1e-6)


@given(dim=WIDTHS, layout=LAYOUT, position=st.integers(0, 200), shift=st.integers(-50, 200))
def test_the_shift_matrix_maps_every_position_to_a_later_position(
    dim: int, layout: str, position: int, shift: int
) -> None:
    vector = torch.tensor(formula(position, dim, layout), dtype=torch.float64)
    moved = shift_matrix(dim, layout, shift) @ vector
    assert moved.tolist() == pytest.approx(formula(position + shift, dim, layout), abs=1e-9)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_table_of_the_shift_multiplies_position_2_into_position_5(layout: str) -> None:
    _, table = sinusoid_figures(layout, 4)
    assert isinstance(table, Table)
    assert [name.split(" ")[0] for name in table.head] == ["M", "", "", "", "PE(2)", "PE(5)"]
    numbers = torch.tensor(table.rows, dtype=torch.float64)
    matrix, second, fifth = numbers[:, :4], numbers[:, 4], numbers[:, 5]
    assert second.tolist() == pytest.approx(formula(2, 4, layout), abs=1e-6)
    assert fifth.tolist() == pytest.approx(formula(5, 4, layout), abs=1e-6)
    torch.testing.assert_close(matrix @ second, fifth, rtol=0, atol=1e-6)


def test_the_positions_of_a_wider_decoder_have_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"decoder_model_dim": 48, "embeddings": "separate"}
    inspected = inspected_of(monkeypatch, positions="sinusoidal", **options)
    for side, dim in (("source", 32), ("target", 48)):
        found = heatmap_of(inspected, f"Position vectors, {side}")
        assert found.values[7] == pytest.approx(formula(7, dim, "sinusoidal"), abs=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_similarity_depends_on_the_distance_alone(layout: str) -> None:
    # sin a sin b + cos a cos b = cos(a - b): the mean over the pairs of cos(k x rate).
    angles = rates(16, layout).tolist()
    found = similarity(sinusoids(12, 16, layout))
    for k in range(12):
        expected = sum(math.cos(k * x) for x in angles) / 8
        assert found.diagonal(k).tolist() == pytest.approx([expected] * (12 - k), abs=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dim", [4, 6, 512])
def test_formulas_of_a_position_vector_end_with_its_numbers(layout: str, dim: int) -> None:
    lines = written_out(dim, layout, 3)
    assert len(lines) == (dim if dim < 9 else 9)
    for line in lines:
        if line == "...":
            continue
        name, power, short, value = line.split(" = ")
        feature = int(name.removeprefix("PE(3, ").removesuffix(")"))
        assert float(value) == pytest.approx(formula(3, dim, layout)[feature], abs=1e-6)
        functions = {"__builtins__": {}, "sin": math.sin, "cos": math.cos}
        for each in (power.replace("^", "**"), short):
            assert eval(each, functions) == pytest.approx(float(value), abs=2e-5)


def test_rotary_angles_are_position_times_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    inspected = inspected_of(monkeypatch, positions="rotary")
    found = heatmap_of(inspected, "Rotation angles")
    for position, row in enumerate(found.values):  # Su et al. (2021): theta = 10000^(-2i / E)
        for i, angle in enumerate(row):
            expected = position * 10000 ** (-2 * i / 8)
            assert math.remainder((angle or 0) - expected, math.tau) == pytest.approx(0, abs=1e-4)
    for k, value in enumerate(heatmap_of(inspected, "One vector, rotated: similarity").values[0]):
        mean = sum(math.cos(k * 10000 ** (-2 * i / 8)) for i in range(4)) / 4
        assert value == pytest.approx(mean, abs=1e-4)


def test_learned_positions_are_the_models_own_and_random_before_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options: dict[str, Any] = {"positions": "learned", "max_positions": 9, "first_position": 1}
    untrained = inspected_of(monkeypatch, **options)
    assert "random" in heatmap_of(untrained, "Position vectors, source").note
    zeros = inspected_of(monkeypatch, position_init="zeros", **options)
    of_zeros = heatmap_of(zeros, "Position vectors, source")
    assert "starts with zeros" in of_zeros.note
    assert not any(map(any, of_zeros.values))
    inspected = inspected_of(monkeypatch, trained=True, **options)
    for side in ("source", "target"):
        found = heatmap_of(inspected, f"Position vectors, {side}")
        weight = getattr(inspected.model, f"{side}_embedding").positions.weight
        assert found.values == weight[1:].tolist()
        assert found.rows == [str(position) for position in range(1, 9)]
        assert "first token has position 1" in found.note
