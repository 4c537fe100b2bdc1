"""Alignments between words, from the engine to the results."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from nmt.config.decoding import DecodingConfig
from nmt.errors import ConfigError
from nmt.runtime.engine import Engine
from nmt.search.hypothesis import Hypothesis
from nmt.text.tokenizer import Tokenizers
from nmt.translation.alignment import Part, joined, joined_weights, links, word_weights
from nmt.translation.translator import Translator
from tests.translation.conftest import OPTIONS, sentences

Ids = Sequence[Sequence[int]]


@given(
    source=st.lists(st.sampled_from(["\u2581a", "b"]), min_size=1, max_size=8),
    target=st.lists(st.sampled_from(["\u2581x", "y"]), min_size=1, max_size=8),
    data=st.data(),
)
def test_every_target_word_has_a_source_word(
    source: list[str], target: list[str], data: st.DataObject
) -> None:
    share = st.floats(0, 1, allow_nan=False)
    row = st.lists(share, min_size=len(source), max_size=len(source))
    weights = data.draw(st.lists(row, min_size=len(target), max_size=len(target)))
    part = Part.of(weights, source, target)

    assert {t for _, t in part.links} == set(range(part.target_words))
    assert {s for s, _ in part.links} <= set(range(part.source_words))
    assert joined([part]) == part.links
    assert joined_weights([part]) == part.weights
    assert [len(row) for row in part.weights] == [part.source_words] * part.target_words
    twice = joined([part, part])
    assert len(twice) == 2 * len(part.links)
    assert max(t for _, t in twice) < 2 * part.target_words


def test_words_see_what_their_subwords_see() -> None:
    """By hand: the source words are a and bc, the target words x and yz."""
    weights = [[0.5, 0.1, 0.2], [0.0, 0.4, 0.2], [0.2, 0.1, 0.1]]
    found = word_weights(weights, ["\u2581a", "\u2581b", "c"], ["\u2581x", "\u2581y", "z"])

    assert found[0] == pytest.approx((0.5, 0.3))
    assert found[1] == pytest.approx((0.1, 0.4))
    assert len(found) == 2


def test_no_output_has_no_links() -> None:
    assert links([], ["\u2581a"], []) == ()
    assert links([], [], []) == ()
    assert word_weights([], ["\u2581a"], []) == ()
    assert joined_weights([Part((), 1, 0), Part((), 1, 1, ((0.5,),))]) == ((0.0, 0.5),)
    assert joined_weights([]) == ()


class Echo(Engine):
    """Translates to the source itself."""

    @override
    def search(
        self, sources: Ids, options: DecodingConfig, constraints: object = None
    ) -> list[list[Hypothesis]]:
        return [[Hypothesis(tuple(ids), -1.0, -1.0)] for ids in sources]


class TellingEcho(Echo):
    """And says so."""

    @override
    def attention(self, sources: Ids, targets: Ids) -> list[list[list[float]]]:
        return [[[float(s == t) for s in range(len(ids))] for t in range(len(ids))]
                for ids in sources]  # fmt: skip


def test_words_are_counted_as_in_the_text(tokenizers: Tokenizers) -> None:
    translator = Translator(TellingEcho(), tokenizers, OPTIONS, max_length=32)
    lines = ["Hund", "", "der Hund sieht die Katze"]
    results = translator.translate(lines, alignments=True)

    assert results[0].alignment == ((0, 0),)
    assert results[1].alignment == ()
    assert results[2].alignment == tuple((word, word) for word in range(5))
    assert results[0].as_dict()["alignment"] == "0-0"


def test_the_parts_of_a_line_that_was_cut_count_on(tokenizers: Tokenizers) -> None:
    translator = Translator(TellingEcho(), tokenizers, OPTIONS, max_length=6)
    line = "der Hund läuft. die Katze schläft. das Haus"
    (result,) = translator.translate([line], alignments=True)

    assert result.text == line
    assert result.alignment == tuple((word, word) for word in range(len(line.split())))


def test_attention_is_told_by_words(tokenizers: Tokenizers) -> None:
    """Of a line that was cut, no part sees anything of another."""
    translator = Translator(TellingEcho(), tokenizers, OPTIONS, max_length=6)
    lines = ["der Hund läuft. die Katze schläft. das Haus", ""]
    (result, blank) = translator.translate(lines, attention=True)
    size = len(lines[0].split())

    assert result.alignment is None
    assert result.attention is not None
    assert [[share > 0 for share in row] for row in result.attention] == [
        [source == target for source in range(size)] for target in range(size)
    ]
    assert blank.attention == ()


def test_attention_is_that_of_the_alignment(translator: Translator) -> None:
    lines = sentences(6)
    for line, result in zip(
        lines, translator.translate(lines, attention=True, alignments=True), strict=True
    ):
        assert result.attention is not None
        assert result.alignment is not None
        rows = result.as_dict()["attention"]
        assert all(len(row) == len(line.split()) for row in rows)
        assert all(0 < sum(row) < 1.001 for row in rows)
        assert {target for _, target in result.alignment} == set(range(len(rows)))


def test_alignments_change_no_translation(translator: Translator) -> None:
    lines = sentences(6)
    plain, aligned = translator.translate(lines), translator.translate(lines, alignments=True)

    assert [r.text for r in plain] == [r.text for r in aligned]
    assert all("alignment" not in r.as_dict() for r in plain)
    for line, result in zip(lines, aligned, strict=True):
        assert result.alignment is not None
        assert all(s < len(line.split()) for s, _ in result.alignment)


def test_an_engine_that_tells_nothing_says_so(tokenizers: Tokenizers) -> None:
    with pytest.raises(ConfigError, match="no alignments"):
        Translator(Echo(), tokenizers, OPTIONS).translate(["Hund"], alignments=True)
    with pytest.raises(ConfigError, match="no alignments"):
        Translator(Echo(), tokenizers, OPTIONS).translate(["Hund"], attention=True)
