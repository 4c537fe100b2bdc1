"""Noise is a pure function of seed, epoch and row, and only of corpora that ask for it."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.config.data import NoiseConfig, TokenizerConfig
from nmt.data.resegment import NoiseAdder, Resegmenter, in_turn
from nmt.data.store import ParallelStore, StoreWriter
from nmt.text import UNK_ID
from nmt.text.flat import FlatIds
from nmt.text.subword_dropout import SubwordDropout
from nmt.text.tokenizer import Tokenizers, load_tokenizers
from tests.conftest import TINY_PAIRS
from tests.examples import FEW
from tests.learning import train_sentencepiece

Read = Callable[[NoiseAdder, int, Sequence[int]], list[tuple[str, str]]]
SOURCES, TARGETS = ([pair[side] for pair in TINY_PAIRS] for side in (0, 1))
ALL = NoiseConfig(
    upper_case=0.4, title_case=0.4, no_final_punctuation=0.4, typos=0.5, spacing=0.5
).rates


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> Tokenizers:
    folder = tmp_path_factory.mktemp("tokenizer")
    config = TokenizerConfig(vocab_size=330)
    train_sentencepiece(SOURCES + TARGETS, folder / "joint.model", config, threads=1)
    return load_tokenizers(folder)


@pytest.fixture(scope="module")
def read(tokenizers: Tokenizers, tmp_path_factory: pytest.TempPathFactory) -> Read:
    """Return the texts of rows of the same twenty pairs twice, as two corpora."""
    folder = tmp_path_factory.mktemp("store") / "new"
    texts = zip(tokenizers, (SOURCES, TARGETS), strict=True)
    source, target = (FlatIds.of(each.encode_batch(text)) for each, text in texts)
    with StoreWriter(folder, tokenizers.source.vocab_size) as writer:
        for corpus in (0, 1):
            writer.append(source, target, corpus, range(1, 21))
    store = ParallelStore.open(folder)

    def read(noise: NoiseAdder, epoch: int, rows: Sequence[int]) -> list[tuple[str, str]]:
        places = np.array(rows)
        sides = noise(epoch, places, (store.source.ids(places), store.target.ids(places)))
        decoded = ([tokenizers.source.decode(ids) for ids in side.rows()] for side in sides)
        return list(zip(*decoded, strict=True))

    return read


def noise_adder(tokenizers: Tokenizers, *rates: dict[str, float], longest: int = 90) -> NoiseAdder:
    return NoiseAdder(tokenizers, np.array([20, 40]), rates, seed=1, longest=longest)


@FEW
@given(rows=st.lists(st.integers(0, 39), min_size=1, max_size=12), epoch=st.integers(0, 3))
def test_the_noise_of_a_pair_depends_only_on_seed_epoch_and_row(
    tokenizers: Tokenizers, read: Read, rows: list[int], epoch: int
) -> None:
    """In other processes, too."""
    noise = noise_adder(tokenizers, ALL, ALL)
    sent = pickle.loads(pickle.dumps(noise))
    assert read(noise, epoch, rows) == [read(sent, epoch, [row])[0] for row in rows]


def test_epochs_and_rows_differ_and_other_corpora_stay(tokenizers: Tokenizers, read: Read) -> None:
    first, second = (read(noise_adder(tokenizers, {}, ALL), epoch, range(40)) for epoch in (0, 1))
    assert first[:20] == second[:20] == list(TINY_PAIRS)
    assert sum(a != b for a, b in zip(first[20:], second[20:], strict=True)) > 10


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("upper_case", ("EIN HUND LÄUFT.", "A DOG RUNS.")),
        ("title_case", ("Ein Hund Läuft.", "A Dog Runs.")),
        ("no_final_punctuation", ("Ein Hund läuft", "A dog runs")),
    ],
)
def test_case_and_punctuation_change_both_sides(
    tokenizers: Tokenizers, read: Read, kind: str, expected: tuple[str, str]
) -> None:
    assert read(noise_adder(tokenizers, {kind: 1.0}, {}), 0, [0]) == [expected]


def test_tags_of_both_sides_stay_at_the_start(tmp_path: Path) -> None:
    config = TokenizerConfig(vocab_size=330, user_defined_symbols=("<2de>", "<bt>"))
    train_sentencepiece(SOURCES + TARGETS, tmp_path / "joint.model", config, threads=1)
    models = load_tokenizers(tmp_path)
    tags = [models.source.tag_id("de"), models.source.tag_id("bt")]
    stored = (
        FlatIds.of([[*tags, *models.source.encode("ein Hund")]]),
        FlatIds.of([[tags[0], *models.target.encode("a dog")]]),
    )
    noise = NoiseAdder(models, np.array([1]), [{"upper_case": 1.0}], seed=1, longest=90)
    source, target = (side.ids.tolist() for side in noise(0, np.array([0]), stored))
    assert (source[:2], target[:1]) == (tags, tags[:1])
    assert models.source.decode(source[2:]) == "EIN HUND"


@pytest.mark.parametrize("kind", ["typos", "spacing"])
def test_typos_and_spacing_leave_the_target(tokenizers: Tokenizers, read: Read, kind: str) -> None:
    found = read(noise_adder(tokenizers, {kind: 1.0}, {}), 0, range(20))
    assert [target for _, target in found] == TARGETS
    assert sum(source != own for (source, _), own in zip(found, SOURCES, strict=True)) > 3


def test_a_pair_that_would_be_too_long_stays_unchanged(tokenizers: Tokenizers, read: Read) -> None:
    """In capitals, most words are spelt letter by letter."""
    found = read(noise_adder(tokenizers, {"upper_case": 1.0}, {}, longest=18), 0, range(20))
    assert set(found) > {pair for pair in found if pair in TINY_PAIRS} != set()
    assert all(pair in TINY_PAIRS or (pair[0].isupper() and pair[1].isupper()) for pair in found)


def test_a_pair_with_unknown_characters_stays_unchanged(tmp_path: Path) -> None:
    """Its text cannot be restored from the ids."""
    config = TokenizerConfig(vocab_size=60, byte_fallback=False)
    train_sentencepiece(SOURCES + TARGETS, tmp_path / "joint.model", config, threads=1)
    models = load_tokenizers(tmp_path)
    known, unknown = (models.source.encode(text) for text in ("ein hund", "ein 犬"))
    assert UNK_ID in unknown
    rows = np.arange(3)
    stored = FlatIds.of([known, unknown, known]), FlatIds.of([known, known, unknown])
    noise = NoiseAdder(models, np.array([3]), [{"title_case": 1.0}], seed=1, longest=90)
    source, target = (side.rows() for side in noise(0, rows, stored))
    assert source[1:] == [unknown, known]
    assert target[1:] == [known, unknown]
    assert models.source.decode(source[0]) == "Ein Hund"


def dropout_of(tokenizers: Tokenizers, rate: float) -> SubwordDropout:
    pieces, scores, is_normal = zip(*tokenizers.source.pieces(), strict=True)
    return SubwordDropout(pieces, scores, is_normal, rate)


def test_a_sentence_that_other_subwords_would_make_too_long_keeps_its_own(
    tokenizers: Tokenizers,
) -> None:
    """With a rate of 1, every sentence is spelled in characters: one for each, and a space."""
    rows = [tokenizers.source.encode(text) for text in SOURCES]
    spelled = [len(text) + 1 for text in SOURCES]
    longest = sorted(spelled)[len(spelled) // 2]  # that long is still allowed
    dropout = dropout_of(tokenizers, 1.0)
    resegment = Resegmenter((dropout, dropout), seed=1, longest=longest)
    stored = FlatIds.of(rows)
    sides = resegment(0, np.arange(len(rows)), (stored, stored))
    for drawn in sides:
        lengths = drawn.lengths.tolist()
        wanted = [n if n <= longest else len(row) for n, row in zip(spelled, rows, strict=True)]
        assert lengths == wanted
        assert min(wanted) < longest < max(spelled)
        texts = [tokenizers.source.decode(row) for row in drawn.rows()]
        assert texts == SOURCES


def test_every_change_is_made_to_the_result_of_the_change_before(
    tokenizers: Tokenizers,
) -> None:
    """Without its full stop, a sentence becomes characters."""
    noise = noise_adder(tokenizers, {"no_final_punctuation": 1.0}, {})
    dropout = dropout_of(tokenizers, 1.0)
    resegment = Resegmenter((dropout, dropout), seed=1, longest=90)
    rows = np.array([0])
    stored = (
        FlatIds.of([tokenizers.source.encode("Ein Hund läuft.")]),
        FlatIds.of([tokenizers.target.encode("A dog runs.")]),
    )
    sides = in_turn([noise, resegment], 0, rows, stored)
    source, target = ([tokenizers.source.piece(x) for x in side.ids.tolist()] for side in sides)
    assert source == [*"▁Ein▁Hund▁läuft"]
    assert target == [*"▁A▁dog▁runs"]


def test_the_rate_is_the_share_of_pairs_and_kinds_are_independent(tokenizers: Tokenizers) -> None:
    """Of 40,000 draws the standard deviation is below 0.0025."""
    rates = [{"typos": 0.9}, {"typos": 0.1, "upper_case": 0.5}]
    noise = NoiseAdder(tokenizers, np.array([10_000, 50_000]), rates, seed=1, longest=9)
    drawn = noise.drawn(2, np.arange(50_000))
    shares = [drawn["typos"][:10_000], drawn["typos"][10_000:], drawn["upper_case"][10_000:]]
    assert [round(float(own.mean()), 1) for own in shares] == [0.9, 0.1, 0.5]
    assert not drawn["upper_case"][:10_000].any()
    assert abs((shares[1] & shares[2]).mean() - 0.05) < 0.01
