"""JSON lines in; alignments, attention and token scores of translations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from nmt.errors import DataError
from nmt.inference.engine import Engine, EngineLacksError
from nmt.inference.glossary import Glossary
from nmt.inference.mbr import Mbr
from nmt.inference.request import (
    RESULT_FIELDS,
    Alternative,
    Request,
    Result,
    TokenScore,
    align_words,
    join_alignments,
    parse_request,
)
from nmt.inference.torch_engine import TorchEngine
from nmt.inference.translator import Translator
from nmt.model.transformer import Transformer
from nmt.search.hypothesis import Hypothesis
from nmt.text.tokenizer import Tokenizers
from tests.inference.conftest import OPTIONS, sentences, translator_of

Ids = Sequence[Sequence[int]]


@given(
    source=st.lists(st.sampled_from(["\u2581a", "b"]), min_size=1, max_size=8),
    target=st.lists(st.sampled_from(["\u2581x", "y"]), min_size=1, max_size=8),
    data=st.data(),
)
def test_every_target_word_has_a_source_word(
    source: list[str], target: list[str], data: st.DataObject
) -> None:
    row = st.lists(st.floats(0, 1, allow_nan=False), min_size=len(source), max_size=len(source))
    weights = data.draw(st.lists(row, min_size=len(target), max_size=len(target)))
    part = align_words(weights, source, target)
    # Each target word has one link: to the darkest cell of its row in a picture of the weights.
    assert [t for _, t in part.links] == list(range(len(part.weights)))
    assert all(part.weights[t][s] == max(part.weights[t]) for s, t in part.links)
    assert join_alignments([part]) == (part.links, part.weights)
    assert all(len(row) == part.source_words for row in part.weights)
    twice, _ = join_alignments([part, part])
    assert len(twice) == 2 * len(part.links)
    assert max(t for _, t in twice) < 2 * len(part.weights)


def test_a_word_is_aligned_by_all_its_subwords() -> None:
    """The full stop of "keys." reads "verloren." most; the whole word reads "Schlüssel" most.

    By hand: (0.4 + 0.3 + 0.1) / 2 = 0.4 for "Schlüssel", (0.1 + 0.1 + 0.3 + 0.2) / 2 = 0.35 for
    "verloren."
    """
    source = ["\u2581Schl", "\u00fcssel", "\u2581verlor", "en."]
    weights = [[0.4, 0.3, 0.1, 0.1], [0.1, 0.0, 0.3, 0.2]]
    part = align_words(weights, source, ["\u2581keys", "."])
    assert part.links == ((0, 0),)
    assert list(part.weights) == [pytest.approx((0.4, 0.35))]


def test_word_attention_sums_subword_attention() -> None:
    """By hand: the source words are a and bc, the target words x and yz."""
    weights = [[0.5, 0.1, 0.2], [0.0, 0.4, 0.2], [0.2, 0.1, 0.1]]
    part = align_words(weights, ["\u2581a", "\u2581b", "c"], ["\u2581x", "\u2581y", "z"])
    assert list(part.weights) == [pytest.approx((0.5, 0.3)), pytest.approx((0.1, 0.4))]
    # No output has no links.
    nothing, something = align_words([], ["\u2581a"], []), align_words([[0.5]], ["a"], ["b"])
    assert [tuple(nothing), tuple(align_words([], [], []))] == [((), (), 1), ((), (), 0)]
    assert join_alignments([nothing, something]) == (((1, 0),), ((0.0, 0.5),))
    assert join_alignments([]) == ((), ())


class Echo(Engine):
    @override
    def search(self, sources: Ids, *_: Any, **__: Any) -> list[list[Hypothesis]]:
        return [[Hypothesis(tuple(ids), -1.0, -1.0)] for ids in sources]


class AttentiveEcho(Echo):
    """With attention to the source token of the same position."""

    @override
    def attention(self, sources: Ids, targets: Ids) -> list[list[list[float]]]:
        return [[[float(s == t) for s in range(len(ids))] for t in range(len(ids))]
                for ids in sources]  # fmt: skip


def test_words_are_counted_through_the_parts_of_a_line_that_was_cut(tokenizers: Tokenizers) -> None:
    """And no part sees anything of another."""
    translator = translator_of(AttentiveEcho(), tokenizers, max_length=6, outputs={"alignments"})
    line = "der Hund läuft. die Katze schläft. das Haus"
    (result, blank, short) = translator.translate([line, "", "Hund"])
    size = len(line.split())
    assert result.text == line
    assert result.alignment == tuple((word, word) for word in range(size))
    assert (blank.alignment, short.as_dict()["alignment"]) == ((), "0-0")
    assert result.attention is None
    (result, blank) = translator.with_options(outputs={"attention"}).translate([line, ""])
    assert (result.alignment, blank.attention) == (None, ())
    assert result.attention is not None
    for target, row in enumerate(result.attention):
        assert [share > 0 for share in row] == [source == target for source in range(size)]


LINES = [*sentences(8, seed=3), ""]
EYE = Mbr("chrf", 8, compare=lambda _: lambda texts: np.eye(len(texts))[::-1])


@pytest.mark.parametrize("options", [{"beam_size": 4}, {"mbr": EYE}], ids=["beam", "mbr"])
def test_token_scores_make_up_the_score(translator: Translator, options: dict[str, Any]) -> None:
    """Also of a candidate that is chosen among samples."""
    for result in translator.with_options(outputs={"token_scores"}, **options).translate(LINES):
        assert result.tokens is not None
        values = [token.log_prob for token in result.tokens]
        assert all(value <= 0 for value in values)
        assert np.mean(values or [0]) == pytest.approx(result.score, abs=1e-4)


def test_tokens_spell_the_translation(model: Transformer, tokenizers: Tokenizers) -> None:
    short: dict[str, Any] = {"max_length": 6, "outputs": {"token_scores"}}
    *results, blank = translator_of(TorchEngine(model), tokenizers, **short).translate(LINES)
    assert (blank.num_tokens, blank.tokens, blank.as_dict()["tokens"]) == (0, (), [])
    for result in results:
        assert result.tokens is not None
        assert result.num_tokens == len(result.tokens)
        pieces = [token.piece for token in result.tokens]
        assert pieces[-1] == "</s>"
        if not any("<0x" in piece for piece in pieces):
            spelled = "".join(pieces).replace("\u2581", " ").replace("</s>", " ")
            assert spelled.split() == result.text.split()
    assert any(len([t for t in x.tokens or () if t.piece == "</s>"]) > 1 for x in results)  # cut


def test_rules_of_the_search_do_not_change_token_scores(translator: Translator) -> None:
    scored = translator.with_options(outputs={"token_scores"}, beam_size=1)
    (plain,) = scored.translate(["Hund"])
    (ruled,) = scored.with_options(repetition_penalty=1.0001).translate(["Hund"])
    assert ruled.tokens == plain.tokens
    assert ruled.score != plain.score


def test_an_empty_output_scores_the_probability_of_eos(model: Transformer) -> None:
    engine = TorchEngine(model)
    ((value,),) = engine.token_log_probs([[5, 6]], [[]])
    model.train()  # it is read without dropout all the same
    assert engine.token_log_probs([[5, 6]], [[]]) == [[value]]
    assert model.training
    model.eval()
    (found,) = engine.search([[5, 6]], OPTIONS.model_copy(update={"beam_size": 64}))
    assert value < 0
    assert all(value >= h.log_prob for h in found if not h.ids)


def test_an_engine_without_optional_outputs_raises_an_error(tokenizers: Tokenizers) -> None:
    for detail in ("alignments", "attention", "token_scores"):
        with pytest.raises(EngineLacksError):
            translator_of(Echo(), tokenizers, outputs={detail}).translate(["Hund"])


def test_optional_outputs_are_returned_and_change_nothing_else(translator: Translator) -> None:
    plain = translator.translate(LINES)
    every = {"token_scores", "alignments", "attention"}
    detailed = translator.with_options(outputs=every).translate(LINES)
    assert [(r.text, r.score) for r in plain] == [(r.text, r.score) for r in detailed]
    assert not any({"alignment", "attention", "tokens"} & set(r.as_dict()) for r in plain)
    for line, result in zip(LINES, detailed, strict=True):
        assert result.alignment is not None
        rows = result.as_dict()["attention"]
        assert all(len(row) == len(line.split()) for row in rows)
        assert all(0 < sum(row) < 1.001 for row in rows)
        assert {target for _, target in result.alignment} == set(range(len(rows)))
        assert all(source < len(line.split()) for source, _ in result.alignment)


TEXTS = {"prefix", "tag", "from", "to", "glossary"}
PHRASES = {"required", "forbidden"}
RESERVED = {"low_confidence", "error", *TEXTS, *PHRASES, *RESULT_FIELDS}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
OTHERS = st.dictionaries(st.text().filter(lambda name: name not in RESERVED), VALUES, max_size=4)


@given(
    others=OTHERS,
    source=st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])),
)
def test_unknown_fields_pass_through(others: dict[str, Any], source: str) -> None:
    line = json.dumps({**others, "source": source})
    assert parse_request(line, 1) == Request(source, others={**others, "source": source})


@pytest.mark.parametrize(
    ("line", "request_"),
    [
        ('{"source": "Ein Hund.", "prefix": "A", "required": ["dog"], "forbidden": ["cat", "x"]}',
         Request("Ein Hund.", "A", ("dog",), ("cat", "x"))),
        ('{"source": "a", "glossary": "a\\tb\\nc\\td"}',
         Request("a", glossary=Glossary({"a": ("b",), "c": ("d",)}))),
        ('{"source": "a", "glossary": ""}', Request("a", glossary=Glossary({}))),
        ("", Request("")),
        ("  ", Request("")),
        ('{"source": "a\\r\\nb\\n"}', Request("a b")),  # a line break does not make two lines
        ('{"source": "a\\u2028b\\u0085c\\fd"}', Request("a\u2028b\x85c\fd")),  # others are text
        # Half of a character of two halves cannot be written.
        ('{"source": "a\\ud800", "prefix": "\\udc00", "required": ["\\ud800b"]}',
         Request("a\ufffd", "\ufffd", ("\ufffdb",))),
    ],
)  # fmt: skip
def test_lines_are_read(line: str, request_: Request) -> None:
    parsed = parse_request(line, 1)
    assert replace(parsed, others={}) == request_
    # The output has the source as it was written.
    assert parsed.others == ({"source": json.loads(line)["source"]} if line.strip() else {})


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("Ein Hund.", "Line 7 is not JSON (Expecting value, at column 1)"),
        ("[" * 10**5, "Line 7 cannot be read as JSON"),
        ('{"source": "a", "id": ' + "9" * 5000 + "}", "Line 7 cannot be read as JSON"),
        ('{"source": "a"', "Line 7 is not JSON"),
        ('{"source": "a", "x": NaN}', "Line 7 cannot be read as JSON (NaN is not finite"),
        ('{"source": "a", "x": 1e400}', "Line 7 cannot be read as JSON (1e400 is not finite"),
        ('["a"]', "Line 7 is not a JSON object"),
        ('{"text": "a"}', "Line 7 needs a string in source"),
        ('{"source": 3}', "Line 7 needs a string in source"),
        ('{"source": "a", "prefix": ["b"]}', "Line 7 needs a string in prefix"),
        ('{"source": "a", "glossary": 1}', "Line 7 needs a string in glossary"),
        ('{"source": "a", "glossary": "b"}', "Line 7 has a bad glossary: glossary:1: expected"),
        ('{"source": "a", "required": "b"}', "Line 7 needs a list of strings in required"),
        ('{"source": "a", "forbidden": [1]}', "Line 7 needs a list of strings in forbidden"),
    ],
)
def test_invalid_requests_are_refused_with_their_line_number(line: str, problem: str) -> None:
    with pytest.raises(DataError) as caught:
        parse_request(line, 7)
    assert caught.value.problem.startswith(problem)
    assert '{"source": ' in caught.value.fix
    assert not problem.endswith("required") or getattr(caught.value, "others", {}) == {
        "source": "a"
    }


def test_a_result_is_written_with_its_own_values() -> None:
    result = Result(
        "ein Hund", "a dog", -0.25, (Alternative("a dog", -0.25, -1.0), Alternative("a", -2.5, -5)),
        alarms=("short",), retried=("loop", "long"), alignment=((0, 0), (1, 1)),
        attention=((0.123456, 0.5), (0.0, 1.0)), log_prob=-1.0, tokens=(TokenScore("x", -1.0),),
        num_tokens=4, num_terms=1, confidence=61.5, retry_seconds=9.0,
    )  # fmt: skip
    assert result.as_dict() == {
        "source": "ein Hund",
        "translation": "a dog",
        "score": -0.25,
        "log_prob": -1.0,
        "alternatives": [
            {"translation": "a dog", "score": -0.25, "log_prob": -1.0},
            {"translation": "a", "score": -2.5, "log_prob": -5},
        ],
        "alarms": ["short"],
        "retried": ["loop", "long"],
        "confidence": 61.5,
        "alignment": "0-0 1-1",
        "attention": [[0.1235, 0.5], [0.0, 1.0]],
        "tokens": [{"piece": "x", "log_prob": -1.0}],
    }


def test_fields_of_requests_and_results_do_not_collide() -> None:
    """Its own ``error`` would look as if the line had failed, its ``translation`` as if not."""
    every = Result(
        "a", "b", 0.0, alignment=(), attention=(), tokens=(TokenScore("b", 0.0),), confidence=1.0,
        unrated="ratio", parts=(Result("a", "b", 0.0),),
    )  # fmt: skip
    assert every.as_dict().keys() == RESULT_FIELDS
    own = dict.fromkeys(["error", "id", *RESULT_FIELDS], "theirs") | {"source": "a"}
    assert parse_request(json.dumps(own), 1).others == {"id": "theirs", "source": "a"}
