"""Reasons to drop a pair: what corpora contain, and what is right in spite of its looks."""

from __future__ import annotations

import pickle
import sys
from collections import Counter

import pytest

from nmt.config.data import FilterConfig
from nmt.data.filters import Finding, training_filters
from nmt.errors import ConfigError, install_command
from nmt.extras.cleaning.filters import numbers

RTL = "\u0642\u0631\u0623\u062a \u0643\u062a\u0627\u0628\u064b\u0627 \u0639\u0646"


def reasons(source: str, target: str, languages: str = "de en") -> set[str]:
    filters = training_filters(FilterConfig.model_validate({"language": "off"}), *languages.split())
    filters = pickle.loads(pickle.dumps(filters))  # they travel to other processes
    return {each.reason for each in filters.text_findings(source, target)}


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
    assert isinstance(finding, Finding)
    assert finding.value == found


def test_a_list_of_numbers_is_no_copy() -> None:
    assert reasons("3 4 5 6 7 8", "3 4 5 6 7 8") == set()


def test_exchanged_sides_are_told_by_scripts_or_by_identification() -> None:
    assert "swapped" in reasons("The dog sleeps.", "Собака спит.", "ru en")
    pytest.importorskip("py3langid")
    source = "Scientists discover ancient underwater volcano"  # no frequent word
    assert "swapped" in reasons(source, "Forscher entdecken uralten Unterwasservulkan", "de en")


def test_a_missing_extra_is_named_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("py3langid", "ftfy"):
        monkeypatch.setitem(sys.modules, library, None)
    training_filters(FilterConfig(), "de", "en")
    for reason in ("language", "mojibake"):
        with pytest.raises(ConfigError, match="not installed") as caught:
            training_filters(FilterConfig.model_validate({reason: "drop"}), "de", "en")
        assert caught.value.exit_code == 2
        assert caught.value.fix == install_command("clean")


def test_languages_are_judged_where_py3langid_knows_them() -> None:
    pytest.importorskip("py3langid")
    german = "Der Zug nach München fährt heute leider nicht mehr."
    french = "Le train pour Paris ne part plus ce soir, malheureusement."
    filters = training_filters(FilterConfig(), "de", "xx")
    assert [each.value for each in filters.text_findings(french, german)] == ["fr"]
    assert filters.text_findings(german, french) == []
    assert filters.text_findings("C'est ça?", german) == []  # too short to be sure
    danish = "Skoleelever demonstrerede uden for Folketinget."
    alike = training_filters(FilterConfig(), "no", "xx")  # one sentence does not decide
    assert alike.text_findings(danish, german) == []
    assert filters.text_findings(danish, german)


def test_markup_control_characters_and_numbers_are_counted() -> None:
    """FAULTS 40."""
    pairs = [
        ("<b>fett</b>", "bold"), ("a &amp; b", "a & b"), ("1 < 2 > 0", "2 > 1 < 3"),
        ("R&D", "<3"), ("Glo\xadcke", "bell"), ("a\x00b", "x"), ("tab\there", "nbsp\xa0here"),
        ("line\u2028separator", "zero\u200bwidth"), ("schön", "pretty"),
    ]  # fmt: skip
    filters = training_filters(FilterConfig())
    found = Counter(each.reason for pair in pairs for each in filters.text_findings(*pair))
    assert found == {"markup": 2, "control": 3, "numbers": 1}
