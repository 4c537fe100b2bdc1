"""Position encodings against the formulas of the papers, worked out by the standard library."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nmt.extras.inspection.figure import Figure, Heatmap, Table, Text
from nmt.extras.inspection.inputs import (
    LAYOUTS,
    positions,
    rates,
    shift_matrix,
    similarity,
    sinusoid_figures,
    written_out,
)
from nmt.extras.inspection.subject import Subject
from nmt.model.positions import sinusoids
from tests.model.small import small_model

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


def subject_of(
    monkeypatch: pytest.MonkeyPatch, *, trained: bool = False, **options: Any
) -> Subject:
    """A small model in the place of what hello.yaml configures."""
    subject = Subject(Path(__file__).parents[3] / "configs" / "hello.yaml")
    model = small_model(**options)
    config = subject.config.model_copy(update={"model": model.config})
    monkeypatch.setitem(subject.__dict__, "config", config)
    if trained:
        monkeypatch.setattr(Subject, "has_weights", True)
        monkeypatch.setitem(subject.__dict__, "model", model)
    return subject


def figure_of(subject: Subject, title: str) -> Figure:
    return next(figure for figure in positions(subject) if figure.title == title)


def heatmap_of(subject: Subject, title: str) -> Heatmap:
    figure = figure_of(subject, title)
    assert isinstance(figure, Heatmap)
    return figure


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("first", [0, 1])
def test_the_heatmap_of_both_sinusoidal_layouts_is_the_formula(
    layout: str, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = subject_of(monkeypatch, positions=layout, first_position=first)
    found = heatmap_of(subject, "Position vectors")
    assert found.rows == [str(position) for position in range(first, first + 20)]
    for label, row in zip(found.rows, found.values, strict=True):
        assert row == pytest.approx(formula(int(label), 32, layout), abs=1e-6)


@given(dim=WIDTHS, layout=LAYOUT, position=st.integers(0, 200), shift=st.integers(-50, 200))
def test_the_shift_matrix_takes_every_position_to_the_one_further(
    dim: int, layout: str, position: int, shift: int
) -> None:
    vector = torch.tensor(formula(position, dim, layout), dtype=torch.float64)
    moved = shift_matrix(dim, layout, shift) @ vector
    assert moved.tolist() == pytest.approx(formula(position + shift, dim, layout), abs=1e-9)


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
def test_a_vector_written_out_has_its_numbers_behind_their_formulas(layout: str, dim: int) -> None:
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


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_map_in_numbers_multiplies_out(layout: str) -> None:
    _, table = sinusoid_figures(layout, 6)
    assert isinstance(table, Table)
    assert list(table.head)[-2:] == ["PE(2)", "PE(5) = M PE(2)"]
    rows: Any = table.rows
    before = [row[4] for row in rows]
    assert before == pytest.approx(formula(2, 4, layout), abs=1e-6)
    for row, expected in zip(rows, formula(5, 4, layout), strict=True):
        assert row[5] == pytest.approx(expected, abs=1e-6)
        product = sum(a * b for a, b in zip(row[:4], before, strict=True))
        assert product == pytest.approx(expected, abs=1e-6)
    assert float(table.note.split("at most ")[1].split()[0]) < 1e-6


def test_rotary_angles_are_position_times_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = subject_of(monkeypatch, positions="rotary")
    found = heatmap_of(subject, "Rotation angles")
    for position, row in enumerate(found.values):  # Su et al. (2021): theta = 10000^(-2i / E)
        for i, angle in enumerate(row):
            expected = position * 10000 ** (-2 * i / 8)
            assert math.remainder((angle or 0) - expected, math.tau) == pytest.approx(0, abs=1e-4)
    similar = heatmap_of(subject, "One vector, rotated: similarity").values
    for k, value in enumerate(similar[0]):
        mean = sum(math.cos(k * 10000 ** (-2 * i / 8)) for i in range(4)) / 4
        assert value == pytest.approx(mean, abs=1e-4)


def test_learned_positions_are_the_models_own_and_random_before_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options: dict[str, Any] = {"positions": "learned", "max_positions": 9, "first_position": 1}
    untrained = subject_of(monkeypatch, **options)
    assert "random" in heatmap_of(untrained, "Position vectors, source").note
    subject = subject_of(monkeypatch, trained=True, **options)
    for side in ("source", "target"):
        found = heatmap_of(subject, f"Position vectors, {side}")
        weight = getattr(subject.model, f"{side}_embedding").positions.weight
        assert found.values == weight[1:].tolist()
        assert found.rows == [str(position) for position in range(1, 9)]
        assert "first token stands at 1" in found.note


def test_a_model_without_positions_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(figure_of(subject_of(monkeypatch, positions="none"), "Positions"), Text)
    found = figure_of(subject_of(monkeypatch, positions="relative"), "Positions")
    assert isinstance(found, Text)
    assert found.lines == ["relative adds no vectors and turns none."]
