"""Leaked sentences are found wherever they stand; the truth compares all pairs."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nmt.data.formats.pair import SentencePair
from nmt.extras.cleaning.leakage import LeakageIndex, Leaks, are_near, find_leakage, max_edits

SENTENCE = st.lists(st.sampled_from("abc"), min_size=1, max_size=16)


def distance(left: Sequence[str], right: Sequence[str]) -> int:
    """Levenshtein distance by its definition."""
    table = [[max(i, j) for j in range(len(right) + 1)] for i in range(len(left) + 1)]
    for i, one in enumerate(left, start=1):
        for j, other in enumerate(right, start=1):
            table[i][j] = min(
                table[i - 1][j] + 1, table[i][j - 1] + 1, table[i - 1][j - 1] + (one != other)
            )
    return table[-1][-1]


@given(left=SENTENCE, right=SENTENCE)
def test_near_copies_are_those_within_the_edit_distance(left: list[str], right: list[str]) -> None:
    limit = max_edits(min(len(left), len(right)))
    assert are_near(left, right) == (distance(left, right) <= limit)


@given(held_out=st.lists(SENTENCE, max_size=5), training=st.lists(SENTENCE, max_size=12))
def test_exactly_near_lines_are_found(held_out: list[list[str]], training: list[list[str]]) -> None:
    found = LeakageIndex([*map(" ".join, held_out)]).find([*map(" ".join, training)])
    expected = {
        (row, index)
        for row, line in enumerate(training)
        for index, sentence in enumerate(held_out)
        if distance(line, sentence) <= max_edits(min(len(line), len(sentence)))
    }
    longer = {  # at an end of a longer line, which is near too
        (leak.row, leak.held_out) for leak in found
        if len(training[leak.row]) >= len(held_out[leak.held_out]) + 3
    }  # fmt: skip
    assert {(leak.row, leak.held_out) for leak in found} - longer == expected
    assert all(leak.is_exact == (training[leak.row] == held_out[leak.held_out]) for leak in found)


def test_a_near_copy_is_found_wherever_its_words_differ() -> None:
    """One or two words are replaced, missing or new, in sentences of 3 to 16 other words."""
    held_out = [[f"w{size}x{number}" for number in range(size)] for size in range(3, 17)]
    training, expected = list[str](), list[tuple[int, int]]()
    for index, words in enumerate(held_out):
        once = [*changed(words)]
        twice = [(two, end) for one, start in once for two, end in changed(one, start)]
        for other, _ in [*once, *twice]:
            if are_near(words, other):
                expected.append((len(training), index))
            training.append(" ".join(other))
    found = LeakageIndex([*map(" ".join, held_out)]).find(training)
    assert {(leak.row, leak.held_out) for leak in found} >= {*expected}


def changed(words: Sequence[str], start: int = 0) -> Iterator[tuple[list[str], int]]:
    """Yield the words with one change from a place on, and the first place behind the change."""
    for place in range(start, len(words)):
        before, after = [*words[:place]], words[place + 1 :]
        yield [*before, "new", *after], place + 1
        yield [*before, *after], place
        yield [*before, "new", *words[place:]], place + 1


def test_changed_and_joined_sentences_are_found_in_other_case_and_scripts() -> None:
    rng = random.Random(3)
    words = ["Haus", "Baum", "größer", "läuft", "дом", "شجرة", "42", "Über", "neu", "alt"]
    held_out = [" ".join(rng.choices(words, k=rng.randint(6, 30))) + "." for _ in range(60)]
    others = [" ".join(rng.choices(words, k=9)) + "!" for _ in range(60)]
    training = [
        *(f"{line} {other}" for line, other in zip(held_out[:20], others, strict=False)),
        *(f"{other} {line}" for line, other in zip(held_out[20:40], others, strict=False)),
        *(line.upper().replace(".", " ...") for line in held_out[40:]),
    ]
    found = LeakageIndex(held_out).find(training)
    kinds = {(leak.row, leak.held_out): leak.is_exact for leak in found}
    assert [kinds.get((row, row)) for row in range(60)] == [False] * 60
    assert [*find_leakage(held_out, [training[:25], training[25:]])] == found


def test_characters_of_text_without_spaces_and_ends_of_longer_lines_are_compared() -> None:
    index = LeakageIndex(["彼は昨日の夜遅くに東京から帰ってきました。"])
    assert index.find(["彼は昨日の朝遅くに東京から帰ってきました。"]) == [(0, 0, False)]
    assert index.find(["彼女は明日の朝に大阪へ行くつもりでした。"]) == []
    line = "the old man and his dog walk along the river every single day"  # 13 words
    more = "and nobody in the village knows why"
    found = LeakageIndex([line]).find([f"{line} {more}", f"{more} {line}", f"{more} {line} {more}"])
    assert [(leak.row, leak.is_exact) for leak in found] == [(0, False), (1, False)]


def test_a_sentence_of_another_direction_is_not_a_leak() -> None:
    pair = SentencePair("ein Hund", "a dog", 1)
    directions = {"train": ("de", "en"), "same": ("de", "en"), "other": ("de", "fr")}
    leaks = Leaks({"same": [pair], "other": [pair]}, directions)
    leaks.update("train", [pair], np.array([[0, 0, 1], [0, 1, 0]]))
    assert [leak["set"] for leak in leaks.entries] == ["same"]
    assert leaks.num_near() == {}


def test_the_first_exact_copy_is_shown_even_after_many_near_ones() -> None:
    """Of each sentence, 100 places are listed, and always the first near and the first exact one.

    The texts stand beside these two only: the page shows one of them.
    """
    held_out = [SentencePair("ein Hund läuft", "a", 1), SentencePair("eine Katze", "b", 2)]
    train = [SentencePair(f"text {line}", "c", line) for line in range(1, 154)]
    leaks = Leaks({"valid": held_out})
    near_dogs = [(row, 0, 0) for row in range(150)]
    exact_dogs = [(150, 0, 1), (151, 0, 1)]
    leaks.update("train", train, np.array([*near_dogs, *exact_dogs, (152, 1, 0)]))
    listed = [(leak["line"], leak["train_line"], leak["kind"]) for leak in leaks.entries]
    near = [(1, line, "near") for line in range(1, 101)]
    assert listed == [*near, (1, 151, "exact"), (2, 153, "near")]
    shown = [(leak["sentence"], leak["train_text"]) for leak in leaks.entries if "sentence" in leak]
    texts = ("ein Hund läuft", "text 1"), ("ein Hund läuft", "text 151"), ("eine Katze", "text 153")
    assert shown == [*texts]
    assert leaks.num_near() == {"valid": 1}


def test_other_spaces_are_exact_and_sentences_of_five_words_are_found_within_a_line() -> None:
    index = LeakageIndex(["Der Hund läuft sehr schnell.", "Er bellt heute laut."])
    before = "Nein, das glaube ich ihm nicht!"
    lines = [
        " Der Hund  läuft sehr schnell.",
        f"{before} Der Hund läuft sehr schnell.",
        *(f"{before}{mark} Der Hund läuft sehr schnell." for mark in '"\u201d\u201c\u00bb\u00ab'),
        f"{before} Er bellt heute laut.",  # four words, which occur everywhere
    ]
    assert index.find(lines) == [(0, 0, True), *((row, 0, False) for row in range(1, 7))]


def test_a_sentence_is_found_at_each_place_of_a_line_and_each_of_a_held_out_line() -> None:
    sentences = [f"The {word} has never seen it." for word in ("dog", "cat", "cow", "pig")]
    line = f" {' '.join(sentences)} "
    near = [(0, number, False) for number in range(4)]
    assert LeakageIndex(sentences).find([line]) == near
    assert LeakageIndex([line]).find(sentences) == [(row, 0, False) for row in range(4)]
