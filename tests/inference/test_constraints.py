"""Prefixes and phrases of lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from typing_extensions import override

from nmt.errors import ConfigError, DataError
from nmt.inference.engine import Engine
from nmt.inference.searching import make_task
from nmt.inference.segment import Segment, constrain, encode_constraints
from nmt.inference.torch_engine import TorchEngine
from nmt.inference.translator import Translator
from nmt.model.transformer import Transformer
from nmt.search.hypothesis import NONE, Constraints, Hypothesis, contains
from nmt.text.tokenizer import Tokenizers
from tests.inference.conftest import OPTIONS, sentences

LINES = sentences(12, seed=8, longest=6)


def test_a_prefix_is_forced_or_biased_to(translator: Translator) -> None:
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
    for (best, *_), mine in zip(engine.search(sources, OPTIONS, own), own, strict=True):
        assert not contains(best.ids, *mine.forbidden)


def test_phrases_are_encoded_for_their_lines(tokenizers: Tokenizers) -> None:
    die, der = (tuple(tokenizers.target.encode(word)) for word in ("die", "der"))
    found = encode_constraints(
        tokenizers.target, 3, None, [["die", ""], [], ["der"]], [[], [], ["die"]]
    )
    assert found == [
        Constraints(required=(die,)), NONE, Constraints(required=(der,), forbidden=(die,)),
    ]  # fmt: skip


def test_what_stands_beside_words_is_forbidden_there_too(tokenizers: Tokenizers) -> None:
    """A full stop after a space, and after a word; a word only where one begins."""
    target = tokenizers.target
    (found,) = encode_constraints(target, 1, None, None, [[".", "Hund"]])
    hund, after_space = (tuple(target.encode(text)) for text in ("Hund", "."))
    assert found.forbidden[:2] == (after_space, hund)
    assert len(found.forbidden) == 3
    assert target.decode([*target.encode("nicht"), *found.forbidden[2]]) == "nicht."
    assert found.forbidden[2] != after_space


def test_constraints_that_contradict_are_named(translator: Translator) -> None:
    with pytest.raises(DataError, match=r"required has 1 entries for 2 lines.*\n.*fix: "):
        translator.translate(["Hund", "Katze"], required=[["groß"]])
    with pytest.raises(DataError, match=r"Line 2: a required phrase contains a forbidden one"):
        translator.translate(
            ["", "Hund"], required=[[], ["der Hund"]], forbidden=[["Hund"], ["Hund"]]
        )
    rule: Any = {"no_repeat_ngram_size": 1}
    with pytest.raises(DataError, match=r"Line 13: no output has its prefix"):
        translator.translate(
            ["Hund"], prefixes=["die"], required=[["das die"]], first_line=13, **rule
        )
    with pytest.raises(ConfigError, match="sampling search does not go with required phrases"):
        translator.translate(["Hund"], required=[["groß"]], sampling=True)


def test_only_the_first_segment_of_a_line_gets_more_than_what_is_forbidden() -> None:
    own = Constraints(prefix=(5,), required=((6,),), forbidden=((7,),))
    segments = [Segment(0, [5]), Segment(1, [5]), Segment(1, [6])]
    constrain(segments, [NONE, own], OPTIONS, longest_output=2)
    later = Constraints(forbidden=((7,),))
    assert make_task(segments).constraints == [NONE, own, later]
    assert make_task(segments[:1]).constraints is None
    with pytest.raises(DataError, match="Line 2: its prefix and required phrases have 2 subwords"):
        constrain(segments, [NONE, own], OPTIONS, longest_output=1)


def test_a_forbidden_phrase_in_a_forced_prefix_refuses_the_line(translator: Translator) -> None:
    with pytest.raises(DataError, match="Line 2: the prefix contains a forbidden phrase"):
        translator.translate(
            LINES[:2], prefixes=["", "der Hund läuft"], forbidden=[["Katze"], ["Hund", "Haus"]]
        )
    (result,) = translator.translate(
        LINES[:1], prefixes=["der Hund"], forbidden=[["Hund"]], prefix_bias_beta=0.5
    )
    assert "Hund" not in result.text.split()


class Says(Engine):
    """Always the same."""

    def __init__(self, ids: list[int]) -> None:
        self._ids = tuple(ids)

    @override
    def search(
        self, sources: Sequence[Sequence[int]], *_: object, **__: object
    ) -> list[list[Hypothesis]]:
        return [[Hypothesis(self._ids, -1.0, -1.0)] for _ in sources]


@pytest.mark.parametrize(
    ("source", "text", "alarms"),
    [
        ("der Hund.", "die Katze. Haus.", ("constraint",)),
        ("der Hund.", "die Katze Haus.", ()),
        ("der Hund. das", "die Katze. Haus", ()),  # two sentences, as there
        ("der Hund.", "die Katze. das Haus", ()),  # a sentence of its own
    ],
)
def test_a_phrase_behind_the_sentence_raises_an_alarm(
    tokenizers: Tokenizers, source: str, text: str, alarms: tuple[str, ...]
) -> None:
    translator = Translator(Says(tokenizers.target.encode(text)), tokenizers, OPTIONS)
    (found,) = translator.translate([source], required=[["Haus"]])
    assert (found.text, found.alarms) == (text, alarms)
    assert translator.translate([source])[0].alarms == ()
