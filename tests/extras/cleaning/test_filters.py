"""Reasons to drop a pair: what corpora contain, and what is right in spite of its looks."""

from __future__ import annotations

import pickle
import struct
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from nmt.config.data import FilterConfig
from nmt.data.filters import PairProblem, training_filters
from nmt.errors import ConfigError, install_command
from nmt.extras.cleaning.filters import numbers
from nmt.text.identification import LanguageProfiles

RTL = "\u0642\u0631\u0623\u062a \u0643\u062a\u0627\u0628\u064b\u0627 \u0639\u0646"


def reasons(source: str, target: str, languages: str = "de en") -> set[str]:
    config = FilterConfig.model_validate({"language": "off"})
    source_language, target_language = languages.split()
    filters = training_filters(config, source_language, target_language)
    filters = pickle.loads(pickle.dumps(filters))  # they travel to other processes
    return {each.reason for each in filters.text_problems(source, target)}


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        ("Der Hund läuft über die Wiese.", "Der Hund läuft über die Wiese .", "copy_of_source"),
        ("Tom und Maria gehen heute ins Kino", "Tom und Maria gehen heute in Kino",
         "copy_of_source"),
        ("ein Hund", "a \u200bdog", "control"),
        ("ein Hund", "a &quot;dog&quot;", "markup"),
        ("{\\an8}ein Hund", "a dog", "markup"),
        ("ein Hund", "a\ufffddog", "mojibake"),
        ("Menschen in M?nchen", "people in Munich", "mojibake"),
        ("ein Hund", "www.example.com/dog/and/cat.html dog", "url"),
        ("ein Hund", "--- *** ---", "punctuation"),
        ("ein Hund", "a dog a dog a dog a dog", "repetition"),
        ("ein Hund", "no way no way no way", "repetition"),  # four words repeat: the least
        ("ein Hund", "the big dog runs home the big dog runs home", "repetition"),
        ("ein Hund", "犬が走る" * 11, "repetition"),  # characters, in a script without spaces
        ("ein\u200dHund", "a dog", "control"),
        ("ein Hund", "собака бежит", "script"),
        ("the dog is in the house", "der Hund ist in dem Haus", "swapped"),
        ("Er kam 1985.", "He came in 1986.", "numbers"),
        ("Er hat 3 Hunde.", "He has 4 dogs.", "numbers"),
        ("Es waren 25 Leute.", "There were 13 people.", "numbers"),  # no time of the day
        ("Es sind 1.257 Leute.", "There are people.", "numbers"),
    ],
)  # fmt: skip
def test_damage_is_found_with_its_reason(source: str, target: str, reason: str) -> None:
    assert reason in reasons(source, target)


@pytest.mark.parametrize(
    ("source", "target", "languages"),
    [
        ("Er kam 1985 um 15:30 Uhr.", "He came at 3:30 p.m. in 1985.", "de en"),
        ("Drei Hunde, 2 Millionen Euro", "3 dogs, 2,000,000 euros", "de en"),
        ("in the 1990s, in 1815", f"{RTL} \u0661\u0668\u0661\u0665", "en ar"),
        ("half \u00bd and 5 < 7 > 3 R&D", "halb \u00bd und 5 < 7 > 3 F&E", "en de"),
        ("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", "I want", "fa en"),
        ("Tom!", "Tom!", "de en"), ("Что это?", "What is that?", "ru en"),
        ("Forscher entdecken Unterwasservulkan", "Scientists discover volcano", "de en"),
        ("Alles darüber steht von heute an auch unter http://a.de/s?artikel=1",
         "You will find everything about it today at http://a.de/s?artikel=1", "de en"),
        ("Very, very, very good!", "Sehr, sehr, sehr gut!", "en de"),
        ("NATO と EU の 会議 が 開か れ た", "a meeting of NATO and the EU", "ja en"),
        ("Ärger über Ößel, „naïve“ Café", "trouble with Ößel, a “naïve” café", "de en"),
    ],
)  # fmt: skip
def test_good_pairs_are_not_found_except_copies(source: str, target: str, languages: str) -> None:
    assert reasons(source, target, languages) <= {"copy_of_source"}


@pytest.mark.parametrize(
    ("left", "right", "found"),
    [
        ("15:45", "3:45", ""), ("13 Uhr", "1 p.m.", ""), ("24 Uhr", "12 p.m.", ""),
        ("0 Uhr", "12 a.m.", ""), ("25 Uhr", "13", "25|13"), ("17 Uhr", "4 p.m.", "17|4"),
        ("2,5 Millionen", "2,500,000", ""), ("2,5 Millionen", "2,600,000", "25|2600000"),
        ("die 1990er", "the 90s", ""), ("die 1990er", "the 80s", "1990|80"),
        ("99 Luftballons", "balloons", ""), ("101 Dalmatiner", "dalmatians", "101|"),
        ("12000 Leute", "people", ""), ("12300 Leute", "people", "12300|"),
        ("seit 1980", "since then", ""), ("seit 1981", "since then", "1981|"),
        ("then", "seit 1981", "|1981"), ("7 von 81", "7 of 82", "81|82"),
    ],
)  # fmt: skip
def test_numbers_differ_unless_they_can_mean_the_same(left: str, right: str, found: str) -> None:
    finding = numbers().text_problem(left, right)
    if not found:
        assert finding is None
        return
    assert isinstance(finding, PairProblem)
    assert finding.value == found


def test_a_list_of_numbers_is_no_copy() -> None:
    assert reasons("3 4 5 6 7 8", "3 4 5 6 7 8") == set()


SHAN = "မိူဝ်ႈၼႆႉ ႁဝ်းၵႂႃႇ"


@pytest.mark.parametrize("languages", ["de en", "deu eng", "deu_Latn eng_Latn", "de-AT en-GB"])
def test_swapped_sides_are_identified_with_any_codes(languages: str) -> None:
    english = "Scientists discover ancient underwater volcano"
    german = "Forscher entdecken uralten Unterwasservulkan"
    assert "swapped" in reasons(english, german, languages)
    assert "swapped" not in reasons(german, english, languages)
    assert "swapped" not in reasons(german, german, languages)


def test_swapped_sides_of_different_scripts_are_told_by_these() -> None:
    assert "swapped" in reasons("The dog sleeps.", "Собака спит.", "ru en")
    assert "swapped" in reasons("The dog", SHAN, "shn eng")
    assert "swapped" not in reasons(SHAN, "The dog", "shn eng")
    japanese, chinese = "犬が庭を走っています。", "狗在花园里跑步。"  # both have Chinese characters
    assert "swapped" in reasons(chinese, japanese, "ja zh")
    assert "swapped" not in reasons(japanese, chinese, "ja zh")


def profiles() -> LanguageProfiles:
    klingon = ["nuqneH, tlhIngan maH", "Heghlu'meH QaQ jajvam", "bortaS bIr jablu'DI' reH QaQqu'"]
    english = ["the dog is not there", "a good day to die", "we are here"]
    return LanguageProfiles.learn({"tlh": klingon, "en": english})


def test_unsupported_languages_are_told_by_their_trigrams() -> None:
    filters = training_filters(FilterConfig(), "tlh", "en", profiles())
    filters = pickle.loads(pickle.dumps(filters))
    klingon, english = "tlhIngan jajvam QaQqu'", "the good dog is here"
    assert filters.text_problems(klingon, english) == []
    found = {each.reason: each.value for each in filters.text_problems(english, klingon)}
    assert found["swapped"] == "both sides"
    assert found["language"] == "en"
    assert filters.warnings == []


def test_filters_that_cannot_judge_a_language_say_so() -> None:
    """A filter that the user relies on warns, another one only notes it."""
    named = ("language", "script", "swapped")
    for action in ("drop", "report"):
        config = FilterConfig.model_validate(dict.fromkeys(named, action))
        filters = training_filters(config, "mey", "tlh")
        told = filters.warnings if action == "drop" else filters.notes
        assert len(told) == 3
        for name, text in zip(sorted(named), sorted(told), strict=True):
            assert text.startswith(f"filters.{name} ")
            assert "mey and tlh" in text
        assert (filters.notes if action == "drop" else filters.warnings) == []
    assert (
        training_filters(FilterConfig(), "shn_Mymr", "en").notes[0].startswith("filters.language")
    )


def test_a_missing_extra_is_named_when_it_is_needed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for library in ("fasttext", "ftfy"):
        monkeypatch.setitem(sys.modules, library, None)
    training_filters(FilterConfig(), "de", "en")
    model = tmp_path / "lid.ftz"
    for values in ({"language": {"model": model}}, {"mojibake": "drop"}):
        with pytest.raises(ConfigError, match="not installed") as caught:
            training_filters(FilterConfig.model_validate(values), "de", "en")
        assert caught.value.exit_code == 2
        assert caught.value.fix == install_command("clean")


def write_fasttext(path: Path, words: Mapping[str, Sequence[str]]) -> Path:
    """Write a fastText classifier of languages (version 12): a word votes for its language."""
    size = len(words)
    every_word = [word for known in words.values() for word in known]
    # Dimension, window, epochs, ..., softmax (3), supervised (3), no buckets, no subwords.
    parts = [struct.pack("<ii12id", 793712314, 12, size, 5, 5, 1, 5, 1, 3, 3, 0, 0, 0, 100, 1e-4)]
    counts = len(every_word) + size, len(every_word), size
    parts.append(struct.pack("<iiiqq", *counts, 100, -1))
    parts += [word.encode() + struct.pack("<bqb", 0, 1, 0) for word in every_word]
    parts += [f"__label__{code}".encode() + struct.pack("<bqb", 0, 1, 1) for code in words]
    places = [number for number, known in enumerate(words.values()) for _ in known]
    for rows, weight in ((places, 1.0), (range(size), 6.0)):
        parts.append(struct.pack("<bqq", 0, len(rows), size))
        for place in rows:
            parts.append(struct.pack(f"<{size}f", *(weight * (place == x) for x in range(size))))
    path.write_bytes(b"".join(parts))
    return path


def test_a_fasttext_model_replaces_py3langid(tmp_path: Path) -> None:
    pytest.importorskip("fasttext")
    german, klingon = "der Hund ist nicht da", "tlhIngan maH QaQ jajvam reH"
    words = {"deu_Latn": german.split(), "tlh": klingon.split(), "fr": ["le", "chien"]}
    model = write_fasttext(tmp_path / "languages.bin", words)
    config = FilterConfig.model_validate({"language": {"action": "drop", "model": str(model)}})
    filters = training_filters(config, "de-AT", "tlh")
    filters = pickle.loads(pickle.dumps(filters))
    assert filters.text_problems(german, klingon) == []
    assert filters.text_problems(german, "unknown words are no sign") == []
    found = filters.text_problems("le chien le chien", klingon)
    assert found == [PairProblem("language", "fr", "de")]
    unsure = "le chien der Hund ist"  # more German
    assert filters.text_problems(unsure, klingon) == []


@pytest.mark.parametrize(
    ("content", "language", "problem"),
    [
        (None, "de", "is not a fastText model: .*No such file"),
        (b"", "de", "is not a fastText model: .*wrong file format"),
        (b"text " * 99, "de", "is not a fastText model: .*wrong file format"),
        (300, "de", "is not a fastText model: "),  # fastText crashes
        (1000, "fr", "does not identify fr"),
    ],
)
@pytest.mark.long
def test_a_wrong_fasttext_model_is_refused(
    content: bytes | int | None, language: str, problem: str, tmp_path: Path
) -> None:
    pytest.importorskip("fasttext")
    path = write_fasttext(tmp_path / "x.bin", {"de": list("abcdefghijk"), "en": list("lmnopqr")})
    if isinstance(content, int):
        path.write_bytes(path.read_bytes()[:content])
    elif content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    config = FilterConfig.model_validate({"language": {"model": str(path)}})
    with pytest.raises(ConfigError, match=problem) as caught:
        training_filters(config, language, "en")
    assert "remove filters.language.model" in caught.value.fix


def test_languages_are_judged_where_py3langid_knows_them() -> None:
    german = "Der Zug nach München fährt heute leider nicht mehr."
    french = "Le train pour Paris ne part plus ce soir, malheureusement."
    filters = training_filters(FilterConfig(), "de", "xx")
    assert [each.value for each in filters.text_problems(french, german)] == ["fr"]
    assert filters.text_problems(german, french) == []
    assert filters.text_problems("C'est ça?", german) == []  # too short to be sure
    danish = "Skoleelever demonstrerede uden for Folketinget."
    alike = training_filters(FilterConfig(), "no", "xx")  # one sentence does not decide
    assert alike.text_problems(danish, german) == []
    assert filters.text_problems(danish, german)


def test_markup_control_characters_and_numbers_are_counted() -> None:
    """FAULTS 40."""
    pairs = [
        ("<b>fett</b>", "bold"), ("a &amp; b", "a & b"), ("1 < 2 > 0", "2 > 1 < 3"),
        ("R&D", "<3"), ("Glo\xadcke", "bell"), ("a\x00b", "x"), ("tab\there", "nbsp\xa0here"),
        ("line\u2028separator", "zero\u200bwidth"), ("schön", "pretty"),
    ]  # fmt: skip
    filters = training_filters(FilterConfig())
    found = Counter(each.reason for pair in pairs for each in filters.text_problems(*pair))
    assert found == {"markup": 2, "control": 3, "numbers": 1}
