"""Glossaries: files of terms, and translations that contain the terms."""

from __future__ import annotations

import logging
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from nmt.config.data import ANNOTATION, Direction, TokenizerConfig
from nmt.errors import DataError
from nmt.inference.direction import Languages
from nmt.inference.glossary import Glossary, count_forms, insert_terms
from nmt.inference.placeholders import Event, Paragraph
from nmt.inference.request import Request
from nmt.inference.torch_engine import TorchEngine
from nmt.inference.translator import Translator
from nmt.model.transformer import Transformer
from nmt.text.tokenizer import Tokenizers, load_tokenizers
from tests.inference.conftest import sentences, translator_of
from tests.inference.test_lines import Diagonal
from tests.learning import train_sentencepiece

DE_EN = Languages((Direction("de", "en"),))


def test_each_source_form_has_its_own_first_target_form_if_their_numbers_are_equal() -> None:
    lines = ["Hund|Hunde\tdog|dogs\ta note", "", "Rad\tbike | bicycle", "Tor|Tores\tgate"]
    assert Glossary.parse(lines).terms == {
        "Hund": ("dog", "dogs"),
        "Hunde": ("dogs", "dog"),
        "Rad": ("bike", "bicycle"),
        "Tor": ("gate",),
        "Tores": ("gate",),
    }


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_glossary_is_read_like_other_text(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "terms.tsv"
    path.write_bytes("Tür\tdoor\r\nBär\tbear\r\n".encode(encoding))
    assert Glossary.read(path).terms == {"Tür": ("door",), "Bär": ("bear",)}


def test_all_bad_lines_are_refused_with_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "terms.tsv"
    path.write_text("Hund\tdog\nKatze\nHund\thound\na\tb\tc\td\nHaus|\thouse\n \tx\n", "utf-8")
    with pytest.raises(DataError) as caught:
        Glossary.read(path)
    assert caught.value.problem.replace(str(path), "terms.tsv").split("\n  ") == [
        "terms.tsv:2: expected SOURCE<TAB>TARGET<TAB>NOTE, found 'Katze'",
        "terms.tsv:3: Hund is hound here, but dog in line 1",
        "terms.tsv:4: expected SOURCE<TAB>TARGET<TAB>NOTE, found 'a\\tb\\tc\\td'",
        "terms.tsv:5: expected SOURCE<TAB>TARGET<TAB>NOTE, found 'Haus|\\thouse'",
        "terms.tsv:6: expected SOURCE<TAB>TARGET<TAB>NOTE, found ' \\tx'",
    ]


def test_a_repeated_line_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        Glossary.parse(["Hund\tdog", "Katze\tcat", "Hund\tdog"], "t.tsv")
    assert "t.tsv:3: Hund repeats line 1" in caplog.text


@pytest.mark.parametrize(
    ("text", "language", "terms"),
    [
        ("Der Hund sieht Hundefutter.", "de", ["Hund"]),  # whole words
        ("Rote Rosen, rote Rosen", "de", ["Rote Rosen", "rote Rosen"]),  # the longest
        ('"Rote" und Rote', "de", ["Rote"]),  # a capital only at the beginning
        ("C++ und ABC++", "de", ["C++"]),
        ("EDV edv Edv", "de", ["EDV"]),
        ("我的狗和小狗", "zh", ["狗", "小狗"]),  # parts of the text
    ],
)
def test_terms_are_found(text: str, language: str, terms: list[str]) -> None:
    names = ["Hund", "rote", "rote Rosen", "C++", "EDV", "狗", "小狗"]
    glossary = Glossary.parse(f"{name}\tx" for name in names)
    assert [text[start:end] for start, end, _ in glossary.find(text, language)] == terms


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("Zwei rote  Rosen, rote\u00a0Rosen", ["rote  Rosen", "rote\u00a0Rosen"]),
        ("  Rote\tRosen ", ["Rote\tRosen"]),
        ("Ku\u0308he und K\u00fche.", ["Ku\u0308he", "K\u00fche"]),
        ("Eine Ku\u0308he2 Ku\u0308he", ["Ku\u0308he"]),
        ("ro\u00adte Ro\u200bsen!", ["ro\u00adte Ro\u200bsen"]),
        ("Raum \uff11\uff12", ["Raum \uff11\uff12"]),  # full-width digits
        ("\U0001f468\u200d\U0001f469 K\u00fche", ["K\u00fche"]),
    ],
)
def test_terms_are_found_however_their_spaces_and_accents_are_written(
    text: str, terms: list[str]
) -> None:
    names = ["rote Rosen", "Ku\u0308he", "Raum \uff11\uff12"]
    glossary = Glossary.parse(f"{name}\tx" for name in names)
    assert [text[start:end] for start, end, _ in glossary.find(text, "de")] == terms
    plain = unicodedata.normalize("NFD", text)
    found = [plain[start:end] for start, end, _ in glossary.find(plain, "de")]
    assert found == [unicodedata.normalize("NFD", term) for term in terms]


def test_the_quotes_of_a_spreadsheet_are_no_part_of_a_term() -> None:
    lines = ['"a, b|c"\t"x, y"', '"say ""yes"""\tsag "ja"', '"open\tclosed"']
    assert Glossary.parse(lines).terms == {
        "a, b": ("x, y",),
        "c": ("x, y",),
        'say "yes"': ('sag "ja"',),
        '"open': ('closed"',),
    }


WORDS = st.sampled_from(["rot", "rote", "Rose", "a", "b-c", "ä", ",", "(", "  "])


class CountedTerms(dict[str, tuple[str, ...]]):
    """Terms that count how often one is looked up."""

    num_lookups = 0

    @override
    def get(self, key: str, default: Any = None) -> Any:
        self.num_lookups += 1
        return super().get(key, default)


@pytest.mark.parametrize("language", ["de", "zh"])
def test_a_very_long_term_does_not_make_the_others_slow(language: str) -> None:
    terms = CountedTerms({"x" * 3000: ("y",), "Hund": ("dog",)})
    text = "Hund " * 1000
    assert len(list(Glossary(terms).find(text, language))) == 1000
    assert terms.num_lookups <= 3 * len(text)


@given(st.lists(st.lists(WORDS, min_size=1, max_size=3), max_size=5), st.lists(WORDS))
def test_terms_do_not_overlap_and_are_in_the_glossary(
    terms: list[list[str]], words: list[str]
) -> None:
    names = {" ".join(" ".join(term).split()) for term in terms} - {""}
    text = " ".join(words)
    end = 0
    for start, stop, _ in Glossary.parse(f"{name}\tx" for name in names).find(text, "de"):
        assert end <= start < stop
        end = stop
        name = " ".join(text[start:stop].split())
        assert name in names or name[0].lower() + name[1:] in names


def inserted(text: str, source: str, links: list[tuple[int, int]], *lines: str) -> str:
    events = [Event("text", source, source)]
    marked, _ = Glossary.parse(lines).mark(events, "de", annotates=False)
    rendered = Paragraph.read(marked, "", None).render([(text, links)])
    return insert_terms(rendered, "en")


@pytest.mark.parametrize(
    ("text", "source", "expected"),
    [
        ("A dog runs.", "Ein Hund läuft.", "A hound runs."),
        ("Dog a runs.", "Hund ein läuft.", "Hound a runs."),  # a capital at the beginning
        ("dog a runs.", "rotes ein läuft.", "red a runs."),
        ("dog a runs.", "dem Hund hund.", "dog hound runs."),  # another word is no term
        ("Two hounds run.", "Zwei Hund laufen.", "Two hounds run."),  # an accepted form
        ("The dog hound.", "Der Hund Jagdhund.", "The dog hound."),  # it is there
    ],
)
def test_aligned_words_become_the_term_unless_it_is_there(
    text: str, source: str, expected: str
) -> None:
    links = [(0, 0), (1, 1), (2, 2)]
    assert inserted(text, source, links, "Hund\thound|hounds", "rotes\tred") == expected


def test_several_words_are_replaced_by_several_words() -> None:
    text = inserted("I see a red wine glass.", "Ich sehe ein Weinglas.", [(3, 3), (3, 4), (3, 5)],
                    "Weinglas\tglass of wine")  # fmt: skip
    assert text == "I see a glass of wine."


def test_a_translation_needs_the_term_as_often_as_the_source() -> None:
    links = [(0, 0), (1, 1), (2, 2)]
    assert inserted("hound and dog", "Hund und Hund", links, "Hund\thound") == "hound and hound"


def test_forms_are_counted_as_whole_words() -> None:
    assert count_forms(("dog", "hot dog"), "A hot dog, Dogs, hotdog and Dog.", "en") == 2
    assert count_forms(("犬",), "子犬と犬", "ja") == 2


@pytest.mark.parametrize("symbols", [True, False])
def test_every_term_is_in_the_translation(
    model: Transformer, tokenizers: Tokenizers, symbols: bool
) -> None:
    """A model that was never trained translates nothing, so each term has to be inserted."""
    translator = translator_of(
        TorchEngine(model), tokenizers, languages=DE_EN, guard=True, symbols=symbols
    )
    glossary = Glossary.parse(["Hund\tlittle hound", "Katze\tcat|cats", "das Haus\tthe home"])
    lines = sentences(40, longest=8)
    for line, result in zip(lines, translator.translate(lines, glossary=glossary), strict=True):
        assert "lost" not in result.alarms
        for start, end, forms in glossary.find(line, "de"):
            assert start < end
            assert count_forms(forms, result.text, "en") >= 1
    terms = {"Hund": "little hound", "Katze": "cat|cats", "das Haus": "the home"}
    assert translator.translate(lines, glossary=terms) == translator.translate(
        lines, glossary=glossary
    )
    others = [Request(line, glossary=Glossary({})) for line in lines]
    without = translator.with_options(glossary=glossary).translate(others)
    assert [each.text for each in without] == [each.text for each in translator.translate(lines)]


def test_words_are_aligned_to_the_replaced_words(tokenizers: Tokenizers) -> None:
    engine = Diagonal(tokenizers.target.encode("das Haus klein"))
    translator = translator_of(engine, tokenizers, outputs={"alignments"}, languages=DE_EN)
    glossary = Glossary.parse(["Haus\thome"])
    (result,) = translator.translate(["das Haus klein"], glossary=glossary)
    assert result.text == "das home klein"
    assert result.alignment == ((0, 0), (1, 1), (2, 2))


def test_a_lost_term_is_an_alarm(tokenizers: Tokenizers, monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = __import__("nmt.inference.translator", fromlist=["insert_terms"])
    monkeypatch.setattr(module, "insert_terms", lambda *_: "die Katze")
    engine = Diagonal(tokenizers.target.encode("die Katze"))
    translator: Translator = translator_of(engine, tokenizers, guard=True, languages=DE_EN)
    glossary = Glossary.parse(["Hund\thound"])
    lost, kept = translator.translate(["der Hund", "die Katze"], glossary=glossary)
    assert "lost" in lost.alarms
    assert "lost" not in kept.alarms


@pytest.fixture(scope="module")
def annotating(tmp_path_factory: pytest.TempPathFactory) -> Tokenizers:
    """Tokenizers of a model that has learned glossaries."""
    path = tmp_path_factory.mktemp("annotating") / "joint.model"
    config = TokenizerConfig(vocab_size=330, user_defined_symbols=ANNOTATION)
    train_sentencepiece(iter(sentences(300)), path, config, threads=1)
    return load_tokenizers(path.parent)


def test_a_model_that_has_learned_glossaries_reads_the_target_terms(
    annotating: Tokenizers,
) -> None:
    engine = Diagonal(annotating.target.encode("das Haus klein"))
    translator = translator_of(engine, annotating, languages=DE_EN, outputs={"alignments"})
    glossary = Glossary.parse(["Katze\tHaus", "groß\tklein"])
    request = Request("die Katze {x} groß", glossary=glossary)
    (sentence,) = translator.segment([request]).sentences
    assert sentence.model_text == "die ⟦ Haus⟧ ⟦ klein⟧"
    (result,) = translator.translate([request])
    assert sorted(result.text.split()) == ["Haus", "das", "klein", "{x}"]
    assert result.source == request.text
    assert result.alignment is not None
    assert {source for source, _ in result.alignment} <= {0, 1, 2, 3}


def test_a_lost_term_is_inserted_by_alignment(annotating: Tokenizers) -> None:
    engine = Diagonal(annotating.target.encode("das Haus klein"))
    glossary = Glossary.parse(["Katze\tHund"])
    for guard in (True, False):
        translator = translator_of(engine, annotating, languages=DE_EN, guard=guard)
        (result,) = translator.translate(["die Katze groß"], glossary=glossary)
        assert ("Hund" in result.text.split()) is guard
