"""Repetitions are found, however the work is cut."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.config.data import Action, FilterConfig
from nmt.extras.cleaning.repeats import RepeatFinder, normalized, pair_hashes
from tests.examples import FEW

ALL: dict[str, Action] = dict.fromkeys(
    ("duplicate", "normalized_duplicate", "near_duplicate", "boilerplate"), "report"
)


def reasons(folder: Path, pairs: list[tuple[str, str]], held_at_once: int, cut: int = 2,
            **limits: float) -> dict[int, set[str]]:  # fmt: skip
    finder = RepeatFinder(folder, held_at_once=held_at_once)
    for block in (pairs[:cut], pairs[cut:]):
        finder.add(pair_hashes(block, sketches=True))
    rules = {name: {"limit": limit} for name, limit in limits.items()}
    repeats = finder.findings(ALL, FilterConfig.model_validate(rules))
    found = repeats.between(0, cut) | repeats.between(cut, len(pairs))  # block by block
    return {row: {each.reason for each in findings} for row, findings in found.items()}


@FEW
@given(pairs=st.lists(st.tuples(st.sampled_from("abA"), st.sampled_from("xyz"))))
@pytest.mark.long
def test_exactly_the_repetitions_are_found_however_the_work_is_cut(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[str, str]]
) -> None:
    """FAULTS 40. The truth is found by comparing all pairs."""
    folder = tmp_path_factory.getbasetemp()
    lowered = [(source.lower(), target) for source, target in pairs]
    for held_at_once in (1, 3, 1000):
        found = reasons(folder, pairs, held_at_once, boilerplate=2)
        for row, pair in enumerate(pairs):
            is_exact, is_alike = pair in pairs[:row], lowered[row] in lowered[:row]
            alike = {"normalized_duplicate"} if is_alike else set()
            expected = {"duplicate"} if is_exact else alike
            if len({source for source, target in lowered if target == pair[1]}) > 1:
                expected.add("boilerplate")
            assert found.get(row, set()) == expected


def test_pairs_that_differ_in_one_of_many_words_are_near_and_others_are_not(tmp_path: Path) -> None:
    rng = random.Random(5)
    words = [f"w{i}" for i in range(3000)]
    pairs = [(" ".join(rng.choices(words, k=16)), " ".join(rng.choices(words, k=16)))
             for _ in range(300)]  # fmt: skip
    near = []
    for source, target in pairs[:100]:  # Jaccard 31/33 = 0.94
        changed = source.split()
        changed[rng.randrange(16)] = "other"
        near.append((" ".join(changed), target))
    far = [(" ".join([*"uvwxyz", *one.split()[6:]]), other) for one, other in pairs[:100]]
    far += [(target, source) for source, target in pairs[:100]]  # the same words, exchanged
    found = reasons(tmp_path, pairs + near + far, 64)
    assert all(found.get(row) is None for row in range(300))
    assert sum(found.get(row) == {"near_duplicate"} for row in range(300, 400)) >= 85
    assert sum(row in found for row in range(400, 600)) == 0  # 26/38 = 0.68; 0


def test_pairs_without_sketch_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They all have the same one, 0: of a large corpus, a third came into memory at once."""
    rng, compared = random.Random(7), list[int]()
    short = [(f"a {number}", f"b {number}") for number in range(200)]
    long = [(" ".join(str(rng.random()) for _ in range(20)), "x") for _ in range(5)] * 2
    similar = RepeatFinder._similar

    def watched(finder: RepeatFinder, rows: Any, leaders: Any, least: float) -> Any:
        compared.append(len(rows))
        return similar(finder, rows, leaders, least)

    monkeypatch.setattr(RepeatFinder, "_similar", watched)
    found = reasons(tmp_path, short + long, 64)
    assert [row for row in found if found[row] == {"duplicate"}] == [*range(205, 210)]
    assert sum(compared) == 5 * 8


def test_hashes_are_the_same_in_every_process_and_block() -> None:
    pairs = [("Guten Tag, Welt", "Hello, world " * 6), ("", ""), ("a b", "c")]
    whole = pair_hashes(pairs, sketches=True)
    assert (whole == np.concatenate([pair_hashes([pair], sketches=True) for pair in pairs])).all()
    assert normalized("Ｆｕｌｌ　width!") == "full width"  # noqa: RUF001
