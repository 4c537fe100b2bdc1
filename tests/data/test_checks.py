"""Signs of trouble in a corpus: found where there is trouble, and only there."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from nmt.config.data import FilterConfig
from nmt.data.checks import CorpusCheck
from nmt.data.filters import training_filters
from nmt.files.lines import read_lines

Pairs = list[tuple[str, str]]


def checked(
    pairs: Pairs, languages: tuple[str, str] = ("de", "en"), block: int = 700
) -> CorpusCheck:
    check = CorpusCheck(*languages)
    for start in range(0, len(pairs), block):
        part = pairs[start : start + block]
        check.update(part, np.array([[len(s) for s in pair] for pair in part]).T)
    return check


def read_pairs(source: Path, target: Path) -> Pairs:
    return list(zip(read_lines(source), read_lines(target), strict=True))


@pytest.fixture(scope="module")
def multi30k(shared_data: Path) -> Pairs:
    folder = shared_data / "multi30k"
    return read_pairs(folder / "train.de.gz", folder / "train.en.gz")[:5000]


def test_real_text_raises_no_warning(multi30k: Pairs) -> None:
    assert list(checked(multi30k).warnings()) == []
    assert list(checked(sorted(multi30k, key=lambda pair: len(pair[0]))).warnings()) == []
    assert list(checked(multi30k[:99]).warnings()) == []


def test_swapped_languages_are_noticed(multi30k: Pairs) -> None:
    """FAULTS 38."""
    swapped = [(target, source) for source, target in multi30k]

    (warning,) = checked(swapped).warnings()

    assert warning.endswith("are the sides swapped?")
    assert list(checked(swapped, ("en", "de-AT")).warnings()) == []
    assert list(checked(swapped, ("xx", "yy")).warnings()) == []
    # One known language is enough.
    assert any("swapped" in text for text in checked(swapped, ("xx", "en")).warnings())


def test_scripts_tell_languages_too(shared_data: Path) -> None:
    """FAULTS 38."""
    folder = shared_data / "small_parallel_enja"
    pairs = read_pairs(folder / "dev.en.gz", folder / "dev.ja.gz")

    assert not any("swapped" in text for text in checked(pairs, ("en", "ja")).warnings())
    assert any("swapped" in text for text in checked(pairs, ("ja", "en")).warnings())


def test_unrelated_sides_are_noticed(multi30k: Pairs) -> None:
    """FAULTS 38."""
    targets = [target for _, target in multi30k]
    random.Random(1).shuffle(targets)
    pairs = [(source, target) for (source, _), target in zip(multi30k, targets, strict=True)]

    (warning,) = checked(pairs).warnings()

    assert "hardly agree" in warning


def test_identical_sides_are_noticed() -> None:
    """FAULTS 38."""
    check = checked([("gleich", "gleich"), *[("ein", "a"), ("zwei", "two")] * 4])

    assert "11% of the pairs have identical sides" in next(check.warnings())


def test_markup_control_characters_and_numbers_are_counted() -> None:
    """FAULTS 40."""
    pairs = [
        ("<b>fett</b>", "bold"), ("a &amp; b", "a & b"), ("1 < 2 > 0", "2 > 1 < 3"),
        ("R&D", "<3"), ("Glo\xadcke", "bell"), ("a\x00b", "x"), ("tab\there", "nbsp\xa0here"),
        ("line\u2028separator", "zero\u200bwidth"), ("schön", "pretty"),
    ]  # fmt: skip

    filters = training_filters(FilterConfig())
    found = Counter(each.reason for pair in pairs for each in filters.text_findings(*pair))

    assert found == {"markup": 2, "control": 3, "numbers": 1}
