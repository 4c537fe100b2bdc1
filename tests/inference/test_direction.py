"""Languages of lines, their tags on both sides, and what a tag changes in results."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
import torch

from nmt.config.data import Direction, TokenizerConfig
from nmt.errors import ConfigError, DataError
from nmt.inference.direction import LanguageOptions, Languages, MissingLanguageError
from nmt.inference.engine import LoadedModel
from nmt.inference.request import Request, Result, parse_request
from nmt.inference.scorer import Scorer
from nmt.inference.torch_engine import TorchEngine
from nmt.inference.translator import Translator
from nmt.text.tokenizer import Tokenizer, Tokenizers, load_tokenizers
from tests.inference.conftest import OPTIONS, sentences, translator_of
from tests.inference.models import small_model
from tests.inference.test_translator import Says
from tests.learning import train_sentencepiece

LINES = sentences(6, seed=2, longest=6)
SYMBOLS = ("<2de>", "<2fr>", "<2en>", "<2ary_Arab>", "<bt>")  # ids from 4
TWO = (Direction("en", "de"), Direction("en", "fr"))
MANY = (*TWO, Direction("de", "en"), Direction("fr", "en"))
ONE = (Direction("en", "ary"),)


@pytest.fixture(scope="module")
def tagged(tmp_path_factory: pytest.TempPathFactory) -> Tokenizers:
    folder = tmp_path_factory.mktemp("tagged")
    config = TokenizerConfig(vocab_size=330, user_defined_symbols=SYMBOLS)
    train_sentencepiece(iter(sentences(300, 0)), folder / "joint.model", config, threads=1)
    return load_tokenizers(folder)


@pytest.mark.parametrize(
    ("directions", "tags", "options", "expected"),
    [
        # No tags: nothing changes, unless the user chooses a language with a tag.
        (ONE, None, {}, ("en-ary", (), None)),
        (ONE, None, {"target": "ary"}, ("en-ary", (7,), None)),
        (ONE, None, {"target": "de", "tag": "bt"}, ("en-de", (4, 8), None)),
        (ONE, None, {"tag": "bt"}, ("en-ary", (8,), None)),
        (ONE, None, {"tag": "de", "source": "en"}, ("en-ary", (4,), None)),
        # The tag of the target language, then that of the domain.
        (TWO, "source", {"target": "fr", "tag": "bt"}, ("en-fr", (5, 8), None)),
        (MANY, "source", {"target": "en"}, ("-en", (6,), None)),  # from German or French
        (MANY, "source", {"source": "de"}, ("de-en", (6,), None)),  # the only target
        (MANY, "source", {"source": "de", "target": "fr"}, ("de-fr", (5,), None)),  # not trained
        (TWO, "target", {"target": "de", "tag": "bt"}, ("en-de", (8,), 4)),
        (ONE, "target", {}, ("en-ary", (), 7)),  # the only language, by its primary code
        (ONE, "both", {}, ("en-ary", (6,), 7)),
        (ONE, "both", {"target": "de"}, ("en-de", (6,), 4)),
        (MANY, "both", {"source": "fr", "target": "en"}, ("fr-en", (5,), 6)),
    ],
)  # fmt: skip
def test_languages_choose_tags(
    directions: tuple[Direction, ...], tags: Any, options: dict[str, str], expected: Any,
    tagged: Tokenizers,
) -> None:  # fmt: skip
    found = Languages(directions, tags).choose(tagged, LanguageOptions(**options))
    assert (str(found.direction), found.source_ids, found.start) == expected


@pytest.mark.parametrize(
    ("directions", "tags", "options", "problem", "fix"),
    [
        (TWO, "source", {}, "several target languages, and none is chosen", "`to`.*: de, fr."),
        (
            MANY,
            "both",
            {"target": "en"},
            "several source languages, and none is chosen",
            "`from`.*: de, fr.",
        ),
        (ONE, None, {"target": "it"}, "does not translate into 'it'", "language: ary, de, fr"),
        (TWO, "source", {"source": "it", "target": "de"}, "not translate from 'it'", "age: en."),
        (ONE, "target", {"target": "arx"}, "Did you mean ary", "Set `to`"),
        (TWO, "source", {"tag": "xy", "target": "de"}, "no tag 'xy'", "Use a tag such as"),
    ],
)
def test_unclear_languages_are_errors(
    directions: tuple[Direction, ...], tags: Any, options: dict[str, str], problem: str, fix: str,
    tagged: Tokenizers,
) -> None:  # fmt: skip
    with pytest.raises(ConfigError, match=rf"(?s){problem}.*{fix}") as caught:
        Languages(directions, tags).choose(tagged, LanguageOptions(**options))
    assert isinstance(caught.value, MissingLanguageError) == ("none is chosen" in problem)


def test_a_code_must_name_one_language(tagged: Tokenizers) -> None:
    portuguese = Languages((Direction("en", "pt-BR"), Direction("en", "pt-PT")), None)
    with pytest.raises(ConfigError, match=r"`to` pt is ambiguous.*\n.*: pt-BR, pt-PT\."):
        portuguese.choose(tagged, LanguageOptions(target="pt"))
    chinese = Languages((Direction("en", "zh-Hans"), Direction("en", "zh-Hant")), None)
    for code in ("zh-Hant", "zho_Hant", "zh-TW", "zho-HK"):
        assert chinese.choose(tagged, LanguageOptions(target=code)).direction.target == "zh-Hant"
    # A code without a script means the usual one.
    assert chinese.choose(tagged, LanguageOptions(target="zh")).direction.target == "zh-Hans"


def test_imported_models_offer_all_pairs_of_tagged_languages(tagged: Tokenizers) -> None:
    assert Languages(MANY, "both").offered(tagged) == MANY
    pairs = Languages(ONE, "both").offered(tagged)
    assert len(set(pairs)) == 12  # four languages
    assert Direction("ary_Arab", "de") in pairs
    assert {pair.source for pair in Languages(ONE, "target").offered(tagged)} == {"en"}


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Translator:
    """An imported model of a group of languages: lines begin with the tag of their language."""
    path = tmp_path_factory.mktemp("grouped") / "joint.model"
    config = TokenizerConfig(vocab_size=330)
    config = config.model_copy(update={"user_defined_symbols": (">>deu<<", ">>fra<<")})
    train_sentencepiece(iter(sentences(300, 0)), path, config, threads=1)
    joint = Tokenizer.load(path)
    languages = Languages((Direction("en", "mul"),))
    return translator_of(Says([9]), Tokenizers(joint, joint), languages=languages, max_length=6)


def test_a_line_of_a_group_needs_one_tag_and_is_read_with_one(grouped: Translator) -> None:
    """Its own tag, else that of the request, else that of all lines; also where it is cut."""
    german, french = 4, 5
    hund = grouped.tokenizers.source.encode("Hund")
    (missing,) = grouped.try_translate(["Hund"])
    assert isinstance(missing, DataError)
    assert "none is chosen" in missing.problem
    assert "deu, fra" in missing.fix
    default = grouped.with_options(target_language="deu")
    asked = Request("Hund", target_language="fra")
    for translator, line, expected in (
        (grouped, asked, french), (grouped, ">>fra<< Hund", french), (default, "Hund", german),
        (default, asked, french), (default, ">>fra<< Hund", french),
    ):  # fmt: skip
        (part,) = translator.segment([line]).segments
        assert part.read_ids == [expected, *hund]
    long = "der Hund läuft und die Katze schläft. das Haus"
    for translator, line in ((default, f">>fra<< {long}"), (grouped, f">>fra<< {long}")):
        parts = translator.segment([line]).segments
        assert len(parts) > 1
        for part in parts:
            assert len(part.read_ids) <= 6
            assert [index for index in part.read_ids if index in (german, french)] == [french]
            assert part.read_ids[0] == french


@pytest.fixture(scope="module")
def targeted(tagged: Tokenizers) -> Translator:
    """A model whose targets begin with the tag of their language."""
    model = small_model(tagged, "learned")
    assert model.output_bias is not None
    with torch.no_grad():
        model.output_bias[4:9] = -50.0  # a trained model never writes a tag
    languages = Languages(TWO, "target")
    return translator_of(TorchEngine(model), tagged, languages=languages)


def test_each_line_is_translated_into_its_language(targeted: Translator) -> None:
    codes = ["de", "fr", "fr", "de", "en", "fr"]
    pairs = zip(LINES, codes, strict=True)
    together = targeted.translate([Request(line, target_language=code) for line, code in pairs])
    for line, code, result in zip(LINES, codes, together, strict=True):
        (alone,) = targeted.with_options(target_language=code).translate([line])
        assert alone.text == result.text
        assert alone.score == pytest.approx(result.score, abs=1e-5)
    default = targeted.with_options(target_language="de")  # a line wins
    requests = [Request(LINES[0], target_language="fr"), Request(LINES[0])]
    french, german = default.translate(requests)
    assert (french.text, german.text) == (
        targeted.with_options(target_language="fr").translate(LINES[:1])[0].text,
        together[0].text,
    )
    assert french.text != german.text
    missing, unknown, fine = targeted.try_translate(
        ["Hund", Request("Hund", target_language="it"), Request("Hund", target_language="fr")]
    )
    assert isinstance(missing, DataError)
    assert isinstance(unknown, DataError)
    assert isinstance(fine, Result)
    with pytest.raises(ConfigError, match="into 'it'"):
        targeted.with_options(target_language="it")


@pytest.mark.parametrize("changes", [{"beam_size": 1}, {"beam_size": 4, "n_best": 3}])
def test_the_tag_of_the_target_is_in_no_output(
    targeted: Translator, changes: dict[str, Any]
) -> None:
    """Scores are those of the scorer, which reads the tag, too."""
    german = targeted.with_options(
        target_language="de", outputs={"alignments", "attention", "token_scores"}, guard=False,
        max_length=32, **changes,
    )  # fmt: skip
    requests = [*map(Request, LINES), Request(LINES[0], prefix="Hund"), Request(" ".join(LINES))]
    results = german.translate(requests)
    loaded = LoadedModel(
        targeted.engine, targeted.tokenizers, german.options.decoding, 32, Languages(TWO, "target")
    )
    scorer = Scorer(loaded)
    for result in results[:-1]:  # the last line has several segments
        assert result.attention is not None
        assert result.tokens is not None
        assert len(result.attention) == len(result.text.split())
        assert len(result.tokens) == result.num_tokens
        assert result.log_prob == pytest.approx(sum(x.log_prob for x in result.tokens), abs=1e-3)
        (given,) = scorer.score([(result.source, result.text)], LanguageOptions(target="de"))
        if [x.piece for x in given.tokens] == [x.piece for x in result.tokens]:
            assert given.score == pytest.approx(result.score, abs=1e-4)
            assert given.log_prob == pytest.approx(result.log_prob, abs=1e-3)
    texts = [each.text for result in results for each in result.alternatives]
    assert not any("<2" in text for text in texts)
    assert results[-2].text.startswith("Hund")
    with pytest.raises(MissingLanguageError):
        scorer.score([("Hund", "Hund")])


def test_attention_and_alignment_leave_out_the_tag_of_a_source(tagged: Tokenizers) -> None:
    engine = TorchEngine(small_model(tagged, "learned"))
    languages = Languages(TWO, "source")
    options: Any = {"outputs": {"alignments", "attention"}, "guard": False, "max_length": 12}
    translator = translator_of(engine, tagged, languages=languages, **options)
    for result in translator.with_options(target_language="de").translate(LINES):
        num_words = len(result.source.split())
        assert {len(row) for row in result.attention or []} == {num_words}
        assert all(source < num_words for source, _ in result.alignment or [])


@pytest.mark.parametrize(
    ("mode", "before", "start"),
    [(None, [], []), ("source", [7], []), ("target", [], [7]), ("both", [6], [7])],
)
def test_given_pairs_are_aligned_without_their_tags(
    tagged: Tokenizers, mode: Any, before: list[int], start: list[int]
) -> None:
    """The attention of a pair, tags first, worked out word by word. A blank side has no links."""
    engine = TorchEngine(small_model(tagged))
    scorer = Scorer(LoadedModel(engine, tagged, OPTIONS, 32, Languages(ONE, mode)))
    pairs = [(LINES[0], LINES[1]), ("", "Hund"), (LINES[2], LINES[3])]
    first, blank, last = scorer.align(pairs)
    assert blank == ()
    for links, (source, target) in ((first, pairs[0]), (last, pairs[2])):
        sides = tagged.source.encode(source), tagged.target.encode(target)
        (whole,) = engine.attention([before + sides[0]], [start + sides[1]])
        rows = whole[len(start) :]
        words = []
        for ids in sides:
            begins = [tagged.source.piece(index)[0] == "\u2581" for index in ids]
            words.append([sum(begins[: place + 1]) - 1 for place in range(len(ids))])
        sums = defaultdict[tuple[int, int], float](float)  # by source word and target word
        for place, whole_row in enumerate(rows):
            for word, weight in zip(words[0], whole_row[len(before) :], strict=True):
                sums[word, words[1][place]] += weight
        strongest = []
        for target_word in sorted(set(words[1])):
            cells = [cell for cell in sums if cell[1] == target_word]
            strongest.append(max(cells, key=sums.__getitem__))
        assert list(links) == strongest


def test_json_lines_name_their_languages() -> None:
    request = parse_request('{"source": "Hi", "from": "en", "to": "de", "id": 7}', 1)
    assert (request.source_language, request.target_language) == ("en", "de")
    assert request.others == {"source": "Hi", "id": 7}
    assert parse_request('{"source": "Hi", "to": ""}', 1).target_language is None
    with pytest.raises(DataError, match="needs a string in to"):
        parse_request('{"source": "Hi", "to": 3}', 1)
