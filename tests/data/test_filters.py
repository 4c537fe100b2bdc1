"""A pair is kept, or there is a reason."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.config.data import FilterConfig
from nmt.config.loader import load_config
from nmt.data.filters import (
    FILTERS,
    DuplicateFinder,
    Filter,
    held_out_filters,
    register_filter,
    training_filters,
)
from nmt.errors import ConfigError
from nmt.recipes.prepare import prepare

DEMO = Path(__file__).parents[2] / "configs" / "demo.yaml"

DEFAULT = training_filters(FilterConfig())


def test_blank_sides_have_a_reason_each() -> None:
    """FAULTS 36."""
    for source, target, reason in (
        ("a", "b", None), (" ", "\t", "blank on both sides"), ("", "b", "blank source"),
        ("a", "\u3000", "blank target"),
    ):  # fmt: skip
        assert DEFAULT.text_problem(source, target) == reason


def test_limits_are_inclusive() -> None:
    for source_length, target_length, reason in (
        (256, 256, None), (257, 256, "too many subwords"), (5, 300, "too many subwords"),
        (0, 5, "too few subwords"), (1, 13, None), (1, 14, "length ratio"),
    ):  # fmt: skip
        assert DEFAULT.length_problem(source_length, target_length) == reason


@given(left=st.integers(0, 400), right=st.integers(0, 400))
def test_no_side_is_special(left: int, right: int) -> None:
    assert DEFAULT.length_problem(left, right) == DEFAULT.length_problem(right, left)


def test_held_out_pairs_are_dropped_only_where_the_model_cannot_hold_them() -> None:
    held_out = held_out_filters(FilterConfig(max_length=20, min_length=5, max_length_ratio=1.5))

    assert held_out.length_problem(1, 20) is None
    assert held_out.length_problem(1, 21) == "too many subwords"
    assert held_out.text_problem("", "b") == "blank source"


class Shouting(Filter):
    """Drops pairs with a word of many capitals."""

    def __init__(self, min_capitals: int) -> None:
        self._min_capitals = min_capitals

    def text_problem(self, source: str, target: str) -> str | None:
        words = f"{source} {target}".split()
        shouts = any(word.isupper() and len(word) >= self._min_capitals for word in words)
        return "shouting" if shouts else None


@pytest.fixture
def _shouting() -> Iterator[None]:
    register_filter("shouting", Shouting)
    yield
    del FILTERS["shouting"]


@pytest.mark.usefixtures("_shouting")
def test_a_registered_filter_drops_training_pairs_and_its_reason_is_reported(
    tmp_path: Path,
) -> None:
    config = load_config(DEMO, [
        f"prepared_dir={tmp_path / 'prepared'}", f"run_dir={tmp_path / 'run'}",
        "data.train.0.demo=valid", "tokenizer.vocab_size=400",
        "filters.extra={shouting: {min_capitals: 1}}",
    ])  # fmt: skip
    report = prepare(config)

    counts = report.counts["demo"]
    assert counts["shouting"] > 10  # "I" is a word of one capital
    assert counts["read"] == counts["kept"] + counts["shouting"] == 300
    assert f"dropped {counts['shouting']}: shouting" in report.as_text()
    assert report.counts["valid"]["kept"] == 300


@pytest.mark.usefixtures("_shouting")
@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"shoutin": {}}, "did you mean shouting"),
        ({"shouting": {"max_capitals": 1}}, "filters.extra.shouting: .*max_capitals"),
    ],
)
def test_an_unknown_filter_or_parameter_is_refused(extra: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        training_filters(FilterConfig(extra=extra))


@given(pairs=st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz"))))
def test_exactly_the_repetitions_are_found_however_the_work_is_cut(
    pairs: list[tuple[str, str]],
) -> None:
    """FAULTS 40."""
    for held_at_once in (1, 3, 1000):
        finder = DuplicateFinder(io.BytesIO(), held_at_once=held_at_once)
        finder.add(pairs[:2])
        finder.add(pairs[2:])

        found = finder.repetitions().tolist()

        assert found == [pair in pairs[:row] for row, pair in enumerate(pairs)]
