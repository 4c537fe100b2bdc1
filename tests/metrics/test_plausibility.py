from __future__ import annotations

from collections.abc import Callable
from unicodedata import normalize

import pytest

from nmt.metrics.plausibility import odd_texts
from nmt.metrics.result import System


@pytest.mark.parametrize(
    ("num_lines", "num_tokenized", "is_odd"),
    [(300, 99, False), (300, 100, True), (1, 0, False), (1, 1, True)],
)
def test_a_file_that_looks_tokenized_is_named_with_an_example(
    num_lines: int, num_tokenized: int, is_odd: bool
) -> None:
    """From a third of the lines on. Only a space before the full stop counts."""
    rest = ["A dog."] * (num_lines - num_tokenized)
    systems = [System("mine", [*["A dog ."] * num_tokenized, *rest]), System("other", ["A dog."])]
    found = [*odd_texts(systems, ["A dog."], None, "en")]
    assert len(found) == is_odd
    for text in found:
        assert text.startswith("mine looks tokenized: ")
        assert "A dog .\n" in text


@pytest.mark.parametrize(
    ("tokenize", "language", "reference", "is_odd"),
    [
        (None, "en", "狗在家", True),
        (None, None, "いぬ", True),
        ("13a", "zh", "狗在家", True),
        (None, "zh", "狗在家", False),
        ("char", "en", "狗在家", False),
        (None, "en", "a dog", False),
        (None, "en", "ไปโรงเรียน", True),
        (None, "th", "ไปโรงเรียน", False),
        (None, "en", "狗aa", False),  # a third of the letters is not more than a third
        (None, "en", "狗狗aaa", True),
    ],
)
def test_a_tokenizer_that_does_not_suit_the_reference_is_named(
    tokenize: str | None, language: str | None, reference: str, is_odd: bool
) -> None:
    found = [*odd_texts([], [reference], tokenize, language)]
    assert ["13a" in text for text in found] == [True] * is_odd


# Ten sentences without common words.
LINES = [
    "Ein Hund schläft.", "Vier Kinder spielen am Fluss.", "Niemand hat das Fenster geputzt.",
    "Morgen kommt Besuch aus Rom.", "Zwei alte Boote sinken.", "Unser Brot wird knapp.",
    "Warum lachst du?", "Jeder zweite Zug fällt aus.", "Bitte Tür zumachen!", "Opa kocht Suppe.",
]  # fmt: skip


def problems(lines: list[str], source: list[str] | None = None) -> list[str]:
    return [*odd_texts([System("mine", lines)], LINES, None, "de", source)]


def test_lines_that_fit_their_references_are_not_odd() -> None:
    assert not problems(LINES, source=LINES)
    assert not problems([line.replace("e", "a") for line in LINES])


@pytest.mark.parametrize(
    ("lines", "first", "place"),
    [
        ([*LINES[1:], "Ende."], 1, "1 below"),
        ([*LINES[:4], *LINES[5:], "Ende."], 5, "1 below"),
        (["Anfang.", *LINES[:-1]], 2, "1 above"),
        ([*LINES[2:], "Ende.", "Ende."], 1, "2 below"),
    ],
)
def test_lines_that_fit_neighbouring_references_are_named(
    lines: list[str], first: int, place: str
) -> None:
    (problem,) = problems(lines)
    assert f"fit the reference {place} better" in problem
    assert f"the first is line {first})" in problem


def test_two_shifted_lines_are_not_enough() -> None:
    assert not problems([*LINES[:2], LINES[3], LINES[2], *LINES[4:]])


def test_blank_translations_are_named() -> None:
    (problem,) = problems([*LINES[:3], " ", *LINES[4:]])
    assert problem == "mine: 1 of 10 lines are blank (the first is line 4)"


def test_translations_that_repeat_the_source_are_named() -> None:
    source = [f"x y z {i}" for i in range(10)]
    (problem,) = problems([*LINES[:3], *source[3:]], source)
    assert problem == "mine: 7 of 10 lines repeat their source (the first is line 4)"
    # What the reference copies, too, is right.
    assert not problems(LINES, LINES)


@pytest.mark.parametrize(("change", "word"), [(str.lower, "capital"), (str.upper, "small")])
def test_missing_letter_cases_are_named(change: Callable[[str], str], word: str) -> None:
    (problem,) = problems([change(line) for line in LINES])
    assert problem.startswith(f"mine: no {word} letters, but the reference has them")


def test_a_text_without_any_letter_is_only_blank() -> None:
    (problem,) = problems([""] * 10)
    assert problem == "mine: 10 of 10 lines are blank (the first is line 1)"


def test_a_tokenized_reference_is_named() -> None:
    tokenized = [line.replace(".", " .") for line in LINES]
    (problem,) = odd_texts([System("mine", LINES)], tokenized, None, "de")
    assert problem.startswith("the reference looks tokenized: ")
    assert "as in line 1: Ein Hund schläft .\n" in problem


def test_translations_with_a_second_column_are_named() -> None:
    (problem,) = problems([f"{line}\t0.5" for line in LINES])
    assert problem.startswith("mine: 10 of 10 lines have a tab, but not their reference")
    assert not [*odd_texts([System("mine", ["a\tb"] * 10)], ["a\tb"] * 10, None, "de")]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ('"{}"', "are in quotation marks"),
        ("12. {}", "begin with a number"),
        ("3) {}", "begin with a number"),
        (r"{}\n", r"have \n for a line break"),
        ("{} \u2047", "have the sign of an unknown word"),
        ("{} <unk>", "have the sign of an unknown word"),
    ],
)
def test_signs_that_the_reference_lacks_are_named(change: str, problem: str) -> None:
    changed = [change.format(line) for line in LINES]
    (found,) = problems([*LINES[:7], *changed[7:]])
    assert found.startswith(f"mine: 3 of 10 lines {problem}, but not their reference")
    assert found.endswith("(the first is line 8)")
    assert not problems([*LINES[:8], *changed[8:]])  # two lines are too few
    assert not [*odd_texts([System("mine", changed)], changed, None, "de")]


def test_quotation_marks_may_have_another_form_in_the_reference() -> None:
    quoted = [f'"{line}"' for line in LINES]
    reference = [f"\u201e{line}\u201c" for line in LINES]
    assert not [*odd_texts([System("mine", quoted)], reference, None, "de")]


def test_letters_that_are_decomposed_on_one_side_only_are_named() -> None:
    # Three lines have an umlaut: lines 1, 8 and 9.
    composed = [*LINES[:7], "Jeder zweite Zug fällt aus.", *LINES[8:]]
    decomposed = [normalize("NFD", line) for line in composed]
    for lines, reference in ((decomposed, composed), (composed, decomposed)):
        (problem,) = odd_texts([System("mine", lines)], reference, None, "de")
        assert problem.startswith("mine: 3 of 10 lines differ from their reference in Unicode")
    assert not [*odd_texts([System("mine", decomposed)], decomposed, None, "de")]
