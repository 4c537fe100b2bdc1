"""Lines with prefixes and phrases, and samples of lines, to translations."""

from __future__ import annotations

import random
from typing import Any

import pytest

from nmt.errors import ConfigError, DataError
from nmt.model.transformer import Transformer
from nmt.runtime.torch_engine import TorchEngine
from nmt.search.constraints import NONE, Constraints, contains
from nmt.text.tokenizer import Tokenizers
from nmt.translation.segment import cut_lines
from nmt.translation.translator import Translator
from nmt.translation.wishes import encode_wishes
from tests.translation.conftest import OPTIONS, sentences

LINES = sentences(12, seed=8, longest=6)


@pytest.mark.parametrize(
    "options",
    [
        {"sampling": True, "n_best": 3, "top_p": 0.9},
        {"return_alternatives": True, "n_best": 3},
        {"beam_size": 6, "n_best": 3, "diverse_beam_groups": 2, "no_repeat_ngram_size": 2},
    ],
)
def test_the_text_does_not_depend_on_batches_or_order(
    translator: Translator, options: dict[str, Any]
) -> None:
    expected = translator.translate(LINES, batch_tokens=1, **options)
    order = random.Random(1).sample(range(12), 12)
    for batch_tokens in (40, 100_000):
        results = translator.translate(
            [LINES[row] for row in order], batch_tokens=batch_tokens, **options
        )
        for row, result in zip(order, results, strict=True):
            texts = [alternative.text for alternative in result.alternatives]
            assert texts == [alternative.text for alternative in expected[row].alternatives]
            assert result.text == texts[0]
            assert len(texts) == 3


def test_a_prefix_is_forced_or_drawn_to(translator: Translator) -> None:
    prefixes = ["die Katze", "", *("der Hund und",) * 10]
    plain = translator.translate(LINES)
    for beam_size in (1, 3):
        options: dict[str, Any] = {"beam_size": beam_size, "length_penalty": 0.0}
        forced = translator.translate(LINES, prefixes=prefixes, **options)
        assert all(r.text.startswith(p) for r, p in zip(forced, prefixes, strict=True))
        drawn = translator.translate(LINES, prefixes=prefixes, prefix_bias_beta=0.99, **options)
        assert all(r.text.startswith(p) for r, p in zip(drawn, prefixes, strict=True))
        barely = translator.translate(LINES, prefixes=prefixes, prefix_bias_beta=1e-9, **options)
        assert barely == translator.translate(LINES, **options)
    assert translator.translate(LINES, prefixes=[""] * 12, forbidden=[[""]] * 12) == plain


def test_required_phrases_come(translator: Translator) -> None:
    required = [["Katze", "groß"] if i % 2 else [] for i in range(12)]
    results = translator.translate(LINES, required=required, beam_size=4)
    for result, phrases in zip(results, required, strict=True):
        assert all(phrase in result.text for phrase in phrases)
    assert results[::2] == translator.translate(LINES, beam_size=4)[::2]


def test_forbidden_phrases_stay_away(model: Transformer, tokenizers: Tokenizers) -> None:
    """The first two tokens of what the model would say."""
    engine, sources = TorchEngine(model), [tokenizers.source.encode(line) for line in LINES]
    plain = engine.search(sources, OPTIONS)
    own = [Constraints(forbidden=(best[0].ids[:2],)) for best in plain]
    for (best, *_), wishes in zip(engine.search(sources, OPTIONS, own), own, strict=True):
        assert not contains(best.ids, *wishes.forbidden)


def test_phrases_are_encoded_for_their_lines(tokenizers: Tokenizers) -> None:
    die, der = (tuple(tokenizers.target.encode(word)) for word in ("die", "der"))
    found = encode_wishes(tokenizers.target, 3, None, [["die", ""], [], ["der"]], [[], [], ["die"]])
    assert list(found) == [
        Constraints(required=(die,)), NONE, Constraints(required=(der,), forbidden=(die,)),
    ]  # fmt: skip


def test_what_stands_beside_words_is_forbidden_there_too(tokenizers: Tokenizers) -> None:
    """A full stop after a space, and after a word; a word only where one begins."""
    target = tokenizers.target
    (found,) = encode_wishes(target, 1, None, None, [[".", "Hund"]])
    hund, after_space = (tuple(target.encode(text)) for text in ("Hund", "."))
    assert found.forbidden[:2] == (after_space, hund)
    assert len(found.forbidden) == 3
    assert target.decode([*target.encode("nicht"), *found.forbidden[2]]) == "nicht."
    assert found.forbidden[2] != after_space


def test_the_first_part_of_a_cut_line_gets_the_wishes(
    translator: Translator, tokenizers: Tokenizers
) -> None:
    line = " ".join(sentences(12, seed=2))
    (result,) = translator.translate([line], prefixes=["die Katze"], required=[["groß"]])
    assert len(cut_lines([line], tokenizers.source, max_length=32)) > 2
    assert result.text.startswith("die Katze")
    assert "groß" in result.text


def test_wishes_that_do_not_go_together_are_named(translator: Translator) -> None:
    with pytest.raises(DataError, match=r"required has 1 entries for 2 lines.*\n.*fix: "):
        translator.translate(["Hund", "Katze"], required=[["groß"]])
    with pytest.raises(DataError, match=r"Line 2: a required phrase contains a forbidden one"):
        translator.translate(
            ["", "Hund"], required=[[], ["der Hund"]], forbidden=[["Hund"], ["Hund"]]
        )
    with pytest.raises(DataError, match=r"Line 1: no output has its prefix"):
        translator.translate(
            ["Hund"], prefixes=["die"], required=[["das die"]], no_repeat_ngram_size=1
        )
    with pytest.raises(ConfigError, match="sampling does not go with required phrases"):
        translator.translate(["Hund"], required=[["groß"]], sampling=True)
