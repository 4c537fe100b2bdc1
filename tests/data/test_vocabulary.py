"""The sample that the tokenizers learn from is uniform, bounded and repeatable."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from nmt.data.reading import Reservoir


def drawn(count: int, capacity: int, seed: int = 1, max_characters: int = 10**9) -> list[int]:
    sample = Reservoir(capacity, max_characters=max_characters, seed=seed)
    for number in range(count):
        sample.add(str(number), "x")
    return [int(source) for source, _ in sample.drain()]


@given(count=st.integers(0, 60), capacity=st.integers(1, 40), seed=st.integers(0, 9))
def test_a_sample_holds_distinct_members_and_all_where_they_fit(
    count: int, capacity: int, seed: int
) -> None:
    numbers = drawn(count, capacity, seed)

    assert len(set(numbers)) == min(count, capacity)
    assert set(numbers) <= set(range(count))
    assert numbers == (drawn(count, capacity, seed) if count > capacity else list(range(count)))


def test_every_member_is_drawn_equally_often_even_when_the_sample_shrinks() -> None:
    # 2000 draws of 5 of 20: each member 500 times, standard deviation 19.
    for max_characters in (10**9, 25):
        uses = Counter(
            number for seed in range(2000) for number in drawn(20, 10, seed, max_characters)
        )
        mean = sum(uses.values()) / 20
        assert all(abs(n - mean) < 5 * mean**0.5 for n in uses.values())


@given(lengths=st.lists(st.integers(1, 50), min_size=1))
def test_the_characters_held_stay_below_the_limit(lengths: list[int]) -> None:
    sample = Reservoir(1000, max_characters=100, seed=1)
    for length in lengths:
        sample.add("x" * length, "")

    held = list(sample.drain())

    assert held
    assert sum(len(source) for source, _ in held) <= 100
    assert len(sample) == 0
