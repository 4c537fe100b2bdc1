"""BPE-dropout: the text stays, the distribution is the paper's, a seed gives the same ids."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise, product
from math import sqrt
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nmt.text.subword_dropout
from nmt.config.data import TokenizerConfig
from nmt.text.subword_dropout import SubwordDropout, sentence_generator
from nmt.text.tokenizer import Tokenizer
from tests.text.test_sentencepiece import TEXT, trained

RATES = st.one_of(st.floats(0, 1), st.sampled_from([0.0, 5e-324, 1e-17, 1 - 2**-53, 1.0]))
# Characters of the models, so that there is something to merge, and any other.
TEXTS = st.one_of(st.text(), st.text("HMZaeinorstuäü ▁<mask>"), st.sampled_from(TEXT))


@pytest.fixture(scope="module", params=["bytes", "unknown", "defined"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    config = TokenizerConfig(vocab_size=350)
    if request.param != "bytes":
        symbols = ("<mask>",) if request.param == "defined" else ()
        config = TokenizerConfig(vocab_size=90, byte_fallback=False, user_defined_symbols=symbols)
    return Tokenizer.load(trained(tmp_path_factory.mktemp("tokenizer"), config))


def dropout_of(model: Tokenizer, rate: float) -> SubwordDropout:
    pieces, scores, is_normal = zip(*model.pieces(), strict=True)
    return SubwordDropout(pieces, scores, is_normal, rate)


def toy(rate: float, *merges: str, scores: list[float] | None = None) -> SubwordDropout:
    """Pieces: the space, a, b, c with ids 0 to 3, then the merges, first the one made first."""
    pieces = ["▁", "a", "b", "c", *merges]
    scores = scores or [-float(index) for index in range(len(merges))]
    return SubwordDropout(pieces, [-99.0] * 4 + scores, [True] * len(pieces), rate)


def assert_distributed(
    counts: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float]
) -> None:
    """Every frequency is within four standard deviations of its probability."""
    total = counts.total()
    assert sum(expected.values()) == pytest.approx(1)
    assert counts.keys() <= expected.keys()
    for outcome, probability in expected.items():
        deviation = sqrt(total * probability * (1 - probability))
        assert abs(counts[outcome] - total * probability) <= 4 * deviation, outcome


@given(text=TEXTS, rate=RATES, seed=st.integers(0))
def test_rate_0_gives_sentencepiece_ids(
    model: Tokenizer, text: str, rate: float, seed: int
) -> None:
    ids = model.encode(text)
    dropped = dropout_of(model, rate).resegment(ids, Random(seed))
    assert model.decode(dropped) == model.decode(ids)
    # From any segmentation the same way: the words are merged from their characters.
    without = dropout_of(model, 0)
    assert without.resegment(dropped, Random(1)) == without.resegment(ids, Random(1)) == ids


def test_three_merges_have_the_distribution_worked_out_by_hand() -> None:
    """Merges ▁b, bc, ▁bc in this order, on "▁bc", each dropped with p = 0.3.

    From ▁ b c: best kept (0.7) to ▁b c; best dropped, bc kept (0.3 x 0.7 = 0.21) to ▁ bc; both
    dropped (0.09), the end. From either, ▁bc is the only merge: kept 0.7, dropped 0.3, the end.
    """
    dropout = toy(0.3, "▁b", "bc", "▁bc")
    one = {(6,): 0.7 * 0.7 + 0.21 * 0.7, (4, 3): 0.7 * 0.3, (0, 5): 0.21 * 0.3, (0, 2, 3): 0.09}
    # Two words in a sentence: drawn with the same numbers, and yet independent.
    two = {first + last: one[first] * one[last] for first, last in product(one, one)}
    generator = Random(1)
    counts = Counter(tuple(dropout.resegment([6, 6], generator)) for _ in range(40_000))
    assert_distributed(counts, two)


def by_the_paper(
    pieces: list[str], symbols: tuple[str, ...], rate: float
) -> dict[tuple[str, ...], float]:
    """The distribution, from every way to drop some of the candidates at every step."""
    joined = [first + last for first, last in pairwise(symbols)]
    candidates = [place for place, piece in enumerate(joined) if piece in pieces]
    found: dict[tuple[str, ...], float] = defaultdict(float)
    if not candidates:
        return {symbols: 1.0}
    for kept in product([True, False], repeat=len(candidates)):
        probability = rate ** kept.count(False) * (1 - rate) ** kept.count(True)
        left = [place for place, keep in zip(candidates, kept, strict=True) if keep]
        if not left:
            found[symbols] += probability
            continue
        place = min(left, key=lambda place: (pieces.index(joined[place]), place))
        merged = (*symbols[:place], joined[place], *symbols[place + 2 :])
        for outcome, rest in by_the_paper(pieces, merged, rate).items():
            found[outcome] += probability * rest
    return found


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_longer_words_have_the_distribution_of_the_papers_algorithm(rate: float) -> None:
    merges = ["ab", "▁a", "ba", "abab", "ca", "▁ab", "bc", "aba", "abc"]
    dropout = toy(rate, *merges)
    number = {piece: index for index, piece in enumerate(["▁", "a", "b", "c", *merges])}
    expected = {
        tuple(number[piece] for piece in outcome): probability
        for outcome, probability in by_the_paper(merges, tuple("▁ababca"), rate).items()
    }
    counts: Counter[tuple[int, ...]] = Counter()
    for row in range(10_000):
        generator = sentence_generator(1, 0, row, 0)
        counts[tuple(dropout.resegment([0, 1, 2, 1, 2, 3, 1], generator))] += 1
    assert_distributed(counts, expected)


def test_equal_scores_go_from_the_left_and_rate_1_gives_characters_without_numbers() -> None:
    assert toy(0, "bc", "ab", scores=[-1.0, -1.0]).resegment([1, 2, 3], Random(1)) == [5, 3]
    generator = Random(1)
    assert toy(1, "ab", "abc").resegment([0, 5, 1, 4], generator) == [0, 1, 2, 3, 1, 1, 2]
    assert generator.getstate() == Random(1).getstate()


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_a_rate_is_a_probability(rate: float) -> None:
    with pytest.raises(ValueError, match="not between 0 and 1"):
        toy(rate, "ab")


def test_no_merge_crosses_a_special_subword_or_an_unknown_character() -> None:
    pieces = ["a", "b", "<0x61>", "xa", "axa", "ab", "aa", "<0x61>a"]
    normal = [True, True, False, True, True, True, True, True]
    scores = [0.0, 0.0, 0.0, -1.0, -1.0, -1.0, -1.0, -1.0]

    def resegmented(ids: list[int], rate: float) -> list[int]:
        return SubwordDropout(pieces, scores, normal, rate).resegment(ids, Random(1))

    assert resegmented([0, 2, 0, 1], 0) == [0, 2, 5]
    assert resegmented([0, 3, 0, 1], 0) == [0, 3, 5]
    assert resegmented([6, 4, 2, 5], 1) == [0, 0, 4, 2, 0, 1]
    assert resegmented([2, 3], 0.5) == [2, 3]


def test_a_sentence_depends_on_no_other(model: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [model.encode(line) for line in TEXT]
    used = dropout_of(model, 0.3)

    def resegmented(row: int) -> list[int]:
        return used.resegment(rows[row], sentence_generator(1, 2, row, 0))

    forwards = [resegmented(row) for row in range(len(rows))]
    backwards = [resegmented(row) for row in reversed(range(len(rows)))]
    monkeypatch.setattr(nmt.text.subword_dropout, "_MAX_WORDS", 0)
    alone = [
        dropout_of(model, 0.3).resegment(ids, sentence_generator(1, 2, row, 0))
        for row, ids in enumerate(rows)
    ]
    assert forwards == backwards[::-1] == alone


@pytest.mark.parametrize("room", [3, 10**6])
def test_a_word_is_analysed_once_while_there_is_room(
    model: Tokenizer, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    asked: list[tuple[int, ...]] = []
    analyse = SubwordDropout._analyse

    def counted(self: SubwordDropout, pieces: tuple[int, ...]) -> Any:
        asked.append(pieces)
        return analyse(self, pieces)

    monkeypatch.setattr(SubwordDropout, "_analyse", counted)
    monkeypatch.setattr(nmt.text.subword_dropout, "_MAX_WORDS", room)
    used = dropout_of(model, 0.3)
    for line in TEXT:
        used.resegment(model.encode(line), Random(1))
    kept = [*dict.fromkeys(asked)][:room]
    assert [asked.count(word) for word in kept] == [1] * len(kept)
    asked.clear()
    for line in TEXT:
        used.resegment(model.encode(line), Random(1))
    assert not {*asked} & {*kept}
    assert bool(asked) == (room == 3)


def test_seed_epoch_row_and_side_give_other_numbers_each() -> None:
    keys = list(product(range(3), range(3), range(300), range(2)))
    numbers = [sentence_generator(*key).random() for key in keys]
    assert len(set(numbers)) == len(keys)
    assert sentence_generator(1, 2, 3, 1).random() == sentence_generator(1, 2, 3, 1).random()
    # Uniform, and without correlation to the next row's: means 1/2 and 1/4.
    pairs = [first * last for first, last in zip(numbers, numbers[2:], strict=False)]
    assert sum(numbers) / len(numbers) == pytest.approx(1 / 2, abs=4 * sqrt(1 / 12 / len(keys)))
    assert sum(pairs) / len(pairs) == pytest.approx(1 / 4, abs=4 * sqrt(7 / 72 / len(keys)))
