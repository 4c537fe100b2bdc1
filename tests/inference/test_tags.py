"""A tag is read before the source, counts as one of its tokens, and is no word of the line."""

from __future__ import annotations

import math
from unittest.mock import Mock

import pytest

from nmt.config.data import TokenizerConfig
from nmt.errors import ConfigError
from nmt.inference.request import Request
from nmt.inference.scorer import Scorer
from nmt.inference.torch_engine import TorchEngine
from nmt.inference.translator import Translator
from nmt.text.tokenizer import Tokenizers, load_tokenizers, train_sentencepiece
from tests.inference.conftest import OPTIONS, sentences, translator_of
from tests.inference.models import loaded, small_model

SYMBOLS = ("<2de>", "<2en>", "<bt>")
LINES = sentences(6, seed=2, longest=6)


@pytest.fixture(scope="module")
def tagged(tmp_path_factory: pytest.TempPathFactory) -> Tokenizers:
    folder = tmp_path_factory.mktemp("tagged")
    config = TokenizerConfig(vocab_size=330, user_defined_symbols=SYMBOLS)
    train_sentencepiece(iter(sentences(300, 0)), folder / "joint.model", config, threads=1)
    return load_tokenizers(folder)


@pytest.fixture(scope="module")
def translator(tagged: Tokenizers) -> Translator:
    return translator_of(TorchEngine(small_model(tagged)), tagged, max_length=12)


def test_the_vocabulary_knows_its_tags_and_dropout_leaves_them_whole(tagged: Tokenizers) -> None:
    assert tagged.source.tags == {"<2de>": 4, "<2en>": 5, "<bt>": 6}
    assert not any(is_normal for _, _, is_normal in tagged.source.pieces()[4:7])
    names = ("de", "<2en>", "bt")
    assert [tagged.source.tag_id(name) for name in names] == [4, 5, 6]
    with pytest.raises(ConfigError, match="no tag 'd'") as caught:
        tagged.source.tag_id("d")
    assert caught.value.fix == "Use one of <2de>, <2en>, <bt>."


def test_each_line_is_translated_by_its_own_tag(translator: Translator) -> None:
    tags = ["de", None, "en", "de", "bt", None]
    requests = [Request(line, tag=tag) for line, tag in zip(LINES, tags, strict=True)]
    together = translator.translate(requests)
    alone = [translator.translate([request])[0] for request in requests]
    assert [result.text for result in together] == [result.text for result in alone]
    of_all = translator.with_options(tag="de").translate(LINES)
    assert [result.text for result in of_all[::3]] == [result.text for result in together[::3]]
    assert [result.text for result in of_all] != [r.text for r in translator.translate(LINES)]
    assert [result.source for result in together] == LINES
    with pytest.raises(ConfigError, match="no tag 'fr'"):  # of all lines, so of the command
        translator.with_options(tag="fr")


def test_the_model_reads_the_tag_first_and_alignments_have_no_column_for_it(
    translator: Translator, tagged: Tokenizers, monkeypatch: pytest.MonkeyPatch
) -> None:
    spy = Mock(side_effect=translator.engine.attention)
    monkeypatch.setattr(translator.engine, "attention", spy)
    chosen = translator.with_options(tag="<2en>", outputs={"attention"})
    (result,) = chosen.translate([LINES[0]])
    assert spy.call_args.args[0] == [[5, *tagged.source.encode(LINES[0])]]
    assert result.attention is not None
    assert {len(row) for row in result.attention} == {len(LINES[0].split())}


def test_a_tag_takes_room(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    spy = Mock(side_effect=translator.engine.search_all)
    monkeypatch.setattr(translator.engine, "search_all", spy)
    translator.with_options(tag="de").translate([" ".join(LINES)])
    tasks = [task for call in spy.call_args_list for task in call.args[0]]
    lengths = [len(source) for task in tasks for source in task.sources]
    assert max(lengths) <= 12
    assert len(lengths) > 1


def test_a_score_is_that_of_the_source_with_its_tag(tagged: Tokenizers) -> None:
    scorer = Scorer(loaded(small_model(tagged), tokenizers=tagged), OPTIONS)
    pairs = [(LINES[0], LINES[1]), ("", "")]
    ids = tagged.source.encode(LINES[0]), tagged.target.encode(LINES[1])
    (expected,) = scorer.score_ids([([4, *ids[0]], ids[1])])
    scores = [score.log_prob for score in scorer.score(pairs, tag="de")]
    assert scores == [pytest.approx(math.fsum(expected)), 0.0]
    assert scorer.score(pairs)[0].log_prob != pytest.approx(math.fsum(expected))
