"""Prefixes, phrases and tags of lines.

A tag is read before the source, counts as one of its tokens, and is no word of the line.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from nmt.config.data import TokenizerConfig
from nmt.errors import ConfigError, DataError
from nmt.inference.direction import LanguageOptions
from nmt.inference.request import Request, Result
from nmt.inference.scorer import Scorer
from nmt.inference.segment import segment
from nmt.inference.torch_engine import TorchEngine
from nmt.inference.translator import Translator
from nmt.model.transformer import Transformer
from nmt.search.hypothesis import NONE, Constraints
from nmt.text.tokenizer import Tokenizer, Tokenizers, load_tokenizers
from tests.inference.conftest import OPTIONS, sentences, translator_of
from tests.inference.models import loaded, small_model
from tests.inference.test_translator import Says
from tests.learning import train_sentencepiece

LINES = sentences(12, seed=8, longest=6)


def test_a_prefix_is_forced_or_biased(translator: Translator) -> None:
    prefixes = ["die Katze", "", *("der Hund und",) * 10]
    requests = [Request(x, prefix=p) for x, p in zip(LINES, prefixes, strict=True)]
    plain = translator.translate(LINES)
    for beam_size in (1, 3):
        own = translator.with_options(beam_size=beam_size, length_penalty=0.0)
        for beta in (0.0, 0.99):
            drawn = own.with_options(prefix_bias_beta=beta).translate(requests)
            assert all(r.text.startswith(p) for r, p in zip(drawn, prefixes, strict=True))
        assert own.with_options(prefix_bias_beta=1e-9).translate(requests) == own.translate(LINES)
    assert translator.translate([Request(line, "", (), ("",)) for line in LINES]) == plain


def test_required_phrases_occur(translator: Translator) -> None:
    required = [("Katze", "groß") if i % 2 else () for i in range(12)]
    translator = translator.with_options(beam_size=4)
    requests = [Request(x, required=own) for x, own in zip(LINES, required, strict=True)]
    results = translator.translate(requests)
    assert all(p in each.text for each, own in zip(results, required, strict=True) for p in own)
    assert results[::2] == translator.translate(LINES)[::2]


def constraints_of(tokenizers: Tokenizers, *requests: Request, **changes: Any) -> list[Constraints]:
    """Of each segment. None may fail."""
    found = segment(requests, tokenizers, OPTIONS.model_copy(update=changes), max_length=6)
    assert not found.failures
    return [own.constraints for own in found.segments]


def test_phrases_are_encoded_for_their_lines(tokenizers: Tokenizers) -> None:
    die, der = (tuple(tokenizers.target.encode(word)) for word in ("die", "der"))
    both = Request("a", required=("der",), forbidden=("die",))
    found = constraints_of(tokenizers, Request("a", required=("die", "")), Request("a"), both)
    expected = Constraints(required=(der,), forbidden=(die,))
    assert found == [Constraints(required=(die,)), NONE, expected]


def test_punctuation_is_also_forbidden_after_a_word(tokenizers: Tokenizers) -> None:
    """A full stop after a space, and after a word; a word only where one begins."""
    target = tokenizers.target
    (found,) = constraints_of(tokenizers, Request("a", forbidden=(".", "Hund")))
    hund, after_space = (tuple(target.encode(text)) for text in ("Hund", "."))
    assert found.forbidden[:2] == (after_space, hund)
    assert len(found.forbidden) == 3
    assert target.decode([*target.encode("nicht"), *found.forbidden[2]]) == "nicht."
    assert found.forbidden[2] != after_space


def test_words_of_unspaced_scripts_are_also_forbidden_inside_the_text(tmp_path: Path) -> None:
    """A dog after "we" is the same dog; a word of Latin letters begins after a space."""
    path = tmp_path / "joint.model"
    lines = ["今天天气很好我们去公园\u3002", "狗 跑\u3002 a b", "我们喜欢狗和猫\u3002 a"] * 30
    config = TokenizerConfig(vocab_size=40, byte_fallback=False)
    train_sentencepiece(iter(lines), path, config, threads=1)
    joint = Tokenizer.load(path)
    request = Request("a", forbidden=("狗", "b"))
    (found,) = constraints_of(Tokenizers(joint, joint), request)
    written = [[joint.piece(index) for index in phrase] for phrase in found.forbidden]
    assert written == [["\u2581狗"], ["\u2581b"], ["狗"]]


def test_only_the_first_segment_of_a_line_gets_phrases(tokenizers: Tokenizers) -> None:
    line = Request("der Hund läuft. die Katze schläft.", "das", ("Haus",), ("Hund",))
    first, *others = constraints_of(tokenizers, line)
    assert (len(first.prefix), len(first.required)) == (1, 1)
    assert set(others) == {Constraints(forbidden=first.forbidden)}


@pytest.mark.parametrize(
    ("request_", "options", "problem"),
    [
        (Request("Hund", "", ("der Hund",), ("Hund",)), {},
         "a required phrase contains a forbidden phrase"),
        (Request("Hund", "die", ("das die",)), {"no_repeat_ngram_size": 1},
         "no translation satisfies the prefix, required"),
        (Request("Hund", "der Hund läuft", (), ("Hund", "Haus")), {},
         "the prefix contains a forbidden phrase"),
        (Request("Hund", "und " * 99), {},
         "required phrases have 99 subwords, but a translation may have at most 34."),
    ],
)  # fmt: skip
def test_contradictions_fail_their_line(
    translator: Translator, request_: Request, options: dict[str, Any], problem: str
) -> None:
    translator = translator.with_options(**options)
    plain, failed = translator.try_translate(["Hund", request_])
    assert isinstance(failed, DataError)
    assert problem in failed.problem
    assert isinstance(plain, Result)
    assert plain.text == translator.translate(["Hund"])[0].text
    with pytest.raises(DataError, match=r"Line 14: .*\n.*fix: "):
        translator.translate(["Hund", request_], first_line=13)


def test_a_search_without_beams_refuses_required_phrases(translator: Translator) -> None:
    with pytest.raises(ConfigError, match="sampling search does not support required phrases"):
        translator.with_options(sampling=True).translate([Request("Hund", required=("groß",))])
    drawn = translator.with_options(prefix_bias_beta=0.5)
    (result,) = drawn.translate([Request(LINES[0], "der Hund", (), ("Hund",))])
    assert "Hund" not in result.text.split()


@pytest.mark.parametrize(
    ("source", "text", "alarms"),
    [
        ("der Hund.", "die Katze. Haus.", ("constraint",)),
        ("der Hund.", "die Katze Haus.", ()),
        ("der Hund. das", "die Katze. Haus", ()),  # two sentences, as there
        ("der Hund.", "die Katze. das Haus", ()),  # a sentence of its own
    ],
)
def test_a_phrase_after_the_sentence_raises_an_alarm(
    tokenizers: Tokenizers, source: str, text: str, alarms: tuple[str, ...]
) -> None:
    translator = translator_of(Says(tokenizers.target.encode(text)), tokenizers)
    (found,) = translator.translate([Request(source, required=("Haus",))])
    assert (found.text, found.alarms) == (text, alarms)
    assert translator.translate([source])[0].alarms == ()


SYMBOLS = ("<2de>", "<2en>", "<bt>")
TAGGED_LINES = sentences(6, seed=2, longest=6)


@pytest.fixture(scope="module")
def tagged(tmp_path_factory: pytest.TempPathFactory) -> Tokenizers:
    folder = tmp_path_factory.mktemp("tagged")
    config = TokenizerConfig(vocab_size=330, user_defined_symbols=SYMBOLS)
    train_sentencepiece(iter(sentences(300, 0)), folder / "joint.model", config, threads=1)
    return load_tokenizers(folder)


@pytest.fixture(scope="module")
def tagging(tagged: Tokenizers) -> Translator:
    return translator_of(TorchEngine(small_model(tagged)), tagged, max_length=12)


def test_tags_are_single_tokens_and_subword_dropout_keeps_them(tagged: Tokenizers) -> None:
    assert tagged.source.tags == {"<2de>": 4, "<2en>": 5, "<bt>": 6}
    assert not any(is_normal for _, _, is_normal in tagged.source.pieces()[4:7])
    names = ("de", "<2en>", "bt")
    assert [tagged.source.tag_id(name) for name in names] == [4, 5, 6]
    with pytest.raises(ConfigError, match="no tag 'd'") as caught:
        tagged.source.tag_id("d")
    assert caught.value.fix == "Use a tag such as 2de, 2en, bt."


def test_each_line_is_translated_by_its_own_tag(tagging: Translator) -> None:
    tags = ["de", None, "en", "de", "bt", None]
    requests = [Request(line, tag=tag) for line, tag in zip(TAGGED_LINES, tags, strict=True)]
    together = tagging.translate(requests)
    alone = [tagging.translate([request])[0] for request in requests]
    assert [result.text for result in together] == [result.text for result in alone]
    of_all = tagging.with_options(tag="de").translate(TAGGED_LINES)
    assert [result.text for result in of_all[::3]] == [result.text for result in together[::3]]
    assert [result.text for result in of_all] != [r.text for r in tagging.translate(TAGGED_LINES)]
    assert [result.source for result in together] == TAGGED_LINES
    with pytest.raises(ConfigError, match="no tag 'fr'"):  # of all lines, so of the command
        tagging.with_options(tag="fr")


def test_the_model_reads_the_tag_first_and_alignments_have_no_column_for_it(
    tagging: Translator, tagged: Tokenizers, monkeypatch: pytest.MonkeyPatch
) -> None:
    spy = Mock(side_effect=tagging.engine.attention)
    monkeypatch.setattr(tagging.engine, "attention", spy)
    chosen = tagging.with_options(tag="<2en>", outputs={"attention"})
    (result,) = chosen.translate([TAGGED_LINES[0]])
    assert spy.call_args.args[0] == [[5, *tagged.source.encode(TAGGED_LINES[0])]]
    assert result.attention is not None
    assert {len(row) for row in result.attention} == {len(TAGGED_LINES[0].split())}


def test_a_tag_counts_towards_the_segment_length(
    tagging: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    spy = Mock(side_effect=tagging.engine.search_all)
    monkeypatch.setattr(tagging.engine, "search_all", spy)
    tagging.with_options(tag="de").translate([" ".join(TAGGED_LINES)])
    tasks = [task for call in spy.call_args_list for task in call.args[0]]
    lengths = [len(source) for task in tasks for source in task.sources]
    assert max(lengths) <= 12
    assert len(lengths) > 1


def test_a_score_is_that_of_the_source_with_its_tag(tagged: Tokenizers) -> None:
    scorer = Scorer(loaded(small_model(tagged), tokenizers=tagged), OPTIONS)
    pairs = [(TAGGED_LINES[0], TAGGED_LINES[1]), ("", "")]
    ids = tagged.source.encode(TAGGED_LINES[0]), tagged.target.encode(TAGGED_LINES[1])
    (expected,) = scorer.score_ids([([4, *ids[0]], ids[1])])
    scores = [score.log_prob for score in scorer.score(pairs, LanguageOptions(tag="de"))]
    assert scores == [pytest.approx(math.fsum(expected)), 0.0]
    assert scorer.score(pairs)[0].log_prob != pytest.approx(math.fsum(expected))
    # Of at most 32 tokens the tag is one.
    longest, longer = ("und " * count for count in (31, 32))
    tag = LanguageOptions(tag="de")
    found = scorer.score([(longest, "und"), (longer, "und")], tag)
    assert [math.isinf(score.score) for score in found] == [False, True]


def test_a_prefix_that_ends_inside_a_word_is_completed_as_the_model_expects(
    model: Transformer, tokenizers: Tokenizers
) -> None:
    """The most probable subword that begins with it, unless a space ends the word."""
    engine = TorchEngine(model)
    translator = translator_of(engine, tokenizers, constraints=True)
    start = tuple(tokenizers.target.encode("die"))
    kinds = set()
    for source in LINES:
        ids = tokenizers.source.encode(source)
        candidates = tokenizers.target.completions("die l")
        assert {tokenizers.target.decode(each) for each in candidates} >= {"die läuft", "die lä"}
        assert all(each[: len(start)] == start for each in candidates)
        log_probs = engine.token_log_probs([ids] * len(candidates), candidates)
        totals = [sum(values[:-1]) for values in log_probs]
        expected = tokenizers.target.decode(candidates[totals.index(max(totals))])
        (completed,) = translator.translate([Request(source, prefix="die l")])
        assert completed.text.startswith(expected)
        kinds.add(expected)
    assert kinds != {"die l"}
    assert tokenizers.target.completions("die l ") == (tuple(tokenizers.target.encode("die l ")),)


def test_a_completion_contains_no_forbidden_phrase(translator: Translator) -> None:
    forbidden = ("läuft",)
    requests = [Request(line, prefix="die l", forbidden=forbidden) for line in LINES]
    for result in translator.translate(requests):
        assert result.text.startswith("die l")
        assert not set(forbidden) & set(result.text.split())
