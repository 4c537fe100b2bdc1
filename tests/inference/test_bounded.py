"""No line costs much more than a line of the same length in the language of the model."""

from __future__ import annotations

import random
import string
from collections.abc import Sequence
from typing import Any

import pytest
from typing_extensions import override

from nmt.config.model import DecodingConfig
from nmt.inference.engine import Engine
from nmt.inference.placeholders import placeholder_pattern
from nmt.inference.request import Request
from nmt.inference.torch_engine import TorchEngine
from nmt.model.transformer import Transformer
from nmt.search.hypothesis import Hypothesis
from nmt.text.tokenizer import Tokenizers
from tests.inference.conftest import OPTIONS, WORDS, sentences, translator_of


class Endless(Engine):
    """Repeats a token ten times, which always raises an alarm; notes lengths and options."""

    def __init__(self) -> None:
        self.searches: list[tuple[int, DecodingConfig]] = []

    @override
    def search(self, sources: Sequence[Any], options: DecodingConfig, *_: object) -> Any:
        self.searches += [(len(ids), options) for ids in sources]
        return [[Hypothesis((7,) * 10, -1.0, -1.0)] for _ in sources]


def keys(count: int) -> str:
    """Data in words of eight hexadecimal digits, none of which is long enough to be copied."""
    draw = random.Random(7)
    return " ".join("".join(draw.choices(string.hexdigits[:16], k=8)) for _ in range(count))


NOT_LANGUAGE = {
    "keys": keys(20),
    "a foreign script": "\u0436" * 200,
    "a repeated word": "Hund " * 300,
    "single letters": "q w " * 80,
}


@pytest.mark.parametrize("text", NOT_LANGUAGE.values(), ids=NOT_LANGUAGE)
def test_what_is_not_language_is_searched_once_greedily_and_ends_early(
    text: str, tokenizers: Tokenizers
) -> None:
    engine = Endless()
    translator = translator_of(engine, tokenizers, guard=True, max_length=256)
    translator = translator.with_options(max_length_factor=3.0, beam_size=4)
    (result,) = translator.translate([text])
    assert result.alarms
    lengths = [length for length, _ in engine.searches]
    num_ids = len(tokenizers.source.encode(text))
    assert num_ids <= sum(lengths) <= num_ids + len(lengths)  # no second search
    long_searches = [options for length, options in engine.searches if length > 32]
    assert long_searches
    for options in long_searches:
        assert (options.beam_size, options.max_length_factor) == (1, 1)


def test_language_is_searched_with_all_options(tokenizers: Tokenizers) -> None:
    engine = Endless()
    long_lines = [" ".join(sentences(9, seed)) for seed in range(20)]
    translator = translator_of(engine, tokenizers, max_length=256, max_length_factor=3.0)
    translator.translate([*long_lines, *WORDS, "\u0436" * 9])
    assert {options.beam_size for _, options in engine.searches} == {OPTIONS.beam_size}
    assert {options.max_length_factor for _, options in engine.searches} == {3}


def test_several_translations_of_what_is_not_language_are_still_returned(
    model: Transformer, tokenizers: Tokenizers
) -> None:
    translator = translator_of(TorchEngine(model), tokenizers, max_length=256, n_best=3)
    (result,) = translator.translate([keys(6)])
    assert len(result.alternatives) == 3


def test_constraints_are_met_also_in_what_is_not_language(
    model: Transformer, tokenizers: Tokenizers
) -> None:
    translator = translator_of(TorchEngine(model), tokenizers, max_length=256, constraints=True)
    request = Request(keys(6), required=("Hund", "Katze"))
    (result,) = translator.translate([request])
    assert "Hund" in result.text
    assert "Katze" in result.text


def test_long_rows_of_numbers_are_copied(tokenizers: Tokenizers) -> None:
    engine = Endless()
    text = " ".join(map(str, range(40)))
    short = "3,500"
    results = translator_of(engine, tokenizers).translate([text, short])
    assert results[0].text == text
    assert len(engine.searches) == 1


@pytest.mark.parametrize("text", ["1", "2.", "(3)", "1 2 3", "12:30", "00:00:01,500 --> 00:00:02"])
def test_digits_that_no_language_writes_differently_are_copied(
    text: str, tokenizers: Tokenizers
) -> None:
    engine = Endless()
    (result,) = translator_of(engine, tokenizers).translate([text])
    assert (result.text, result.is_copied, engine.searches) == (text, True, [])


def test_digits_with_a_prescribed_translation_are_not_copied(tokenizers: Tokenizers) -> None:
    engine = Endless()
    translator = translator_of(engine, tokenizers)
    translator.translate([Request("911", required=("112",))])
    translator.translate(["911"], glossary={"911": "112"})
    assert len(engine.searches) == 2


@pytest.mark.parametrize("text", ["3,500", "1.234,56", "12.03.2020", "\u0663", "1 Hund"])
def test_numbers_that_a_language_may_write_differently_are_translated(
    text: str, tokenizers: Tokenizers
) -> None:
    engine = Endless()
    translator_of(engine, tokenizers).translate([text])
    assert engine.searches


@pytest.mark.parametrize(
    "text",
    [
        "550e8400-e29b-41d4-a716-446655440000",
        "78cbab6a4e95eff97b1413928859d704",
        "dGhpcyBp1yBh3HRl4HQgb2Yga2V5cw==",
    ],
)
def test_keys_are_placeholders(text: str) -> None:
    (match,) = placeholder_pattern().finditer(f"Der Code {text}, bitte.")
    assert match[0] == text


@pytest.mark.parametrize(
    "text",
    [
        "COVID-19-Pandemie-Massnahmen-2020", "Donaudampfschifffahrtsgesellschaft",
        "1960er-Jahre-Architektur-3D", "2-Zimmer-Wohnung-mit-3-Balkonen", "01/02/2021-03/04/2021",
        "12345678901234567890", "getElementById_or_null",
    ],
)  # fmt: skip
def test_words_are_not_placeholders(text: str) -> None:
    assert not placeholder_pattern().search(text)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_torch_can_be_interrupted_in_each_step(
    beam_size: int, model: Transformer, tokenizers: Tokenizers
) -> None:
    engine = TorchEngine(model)
    options = OPTIONS.model_copy(update={"beam_size": beam_size})

    def calls_before(limit: int) -> int:
        num_calls = 0

        def check() -> None:
            nonlocal num_calls
            num_calls += 1
            if num_calls == limit:
                raise InterruptedError

        with pytest.raises(InterruptedError):
            engine.search([tokenizers.source.encode(" ".join(WORDS))], options, None, check)
        return num_calls

    assert [calls_before(limit) for limit in (1, 3)] == [1, 3]


@pytest.mark.parametrize("is_alarmed", [False, True])
def test_the_progress_of_a_translator_can_interrupt_a_search(
    is_alarmed: bool, model: Transformer, tokenizers: Tokenizers
) -> None:
    seen: list[int] = []

    def progress(number: int) -> None:
        seen.append(number)
        if len(seen) > 4:
            raise InterruptedError

    translator = translator_of(TorchEngine(model), tokenizers, progress=progress, guard=is_alarmed)
    with pytest.raises(InterruptedError):
        translator.translate(["Hund und Katze"])
    assert sum(seen) == 0  # no line is complete
