"""Which filters the report recommends, and whether its number of pairs is that of a new run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from nmt.config.data import FilterConfig
from nmt.data.advice import num_without, reason_set, recommended_reasons, with_drops
from tests.commands.preparing import config_for, corpus, prepare, write_pairs


def kept(*pairs: tuple[int, tuple[str, ...]]) -> Counter[int]:
    return Counter({reason_set(reasons): count for count, reasons in pairs})


def test_filters_that_find_good_pairs_too_are_recommended_only_if_they_find_many() -> None:
    few = kept((989, ()), (10, ("language",)), (1, ("swapped", "language")))  # 11 of 1000
    assert recommended_reasons(few, has_copies=False) == ["swapped", "language"]
    fewer = kept((990, ()), (10, ("language",)))
    assert recommended_reasons(fewer, has_copies=False) == []
    assert num_without(few, ["swapped", "language"]) == 989
    assert num_without(few, ["swapped"]) == 999


def test_reasons_that_are_often_wrong_are_never_recommended() -> None:
    found = kept((1, ()), (99, ("lexical", "numbers", "near_duplicate", "control", "boilerplate")))
    assert recommended_reasons(found, has_copies=True) == []


def test_only_exact_copies_of_held_out_sentences_recommend_to_drop_copies() -> None:
    found = kept((50, ()), (50, ("held_out",)))
    assert recommended_reasons(found, has_copies=False) == []
    assert recommended_reasons(found, has_copies=True) == ["held_out"]


def test_languages_that_are_wrong_in_most_pairs_are_no_reason_to_drop_the_pairs() -> None:
    """The configuration is wrong: its languages, or the order of the files."""
    half = kept((50, ()), (50, ("swapped", "language", "script")))
    assert recommended_reasons(half, has_copies=False) == ["script", "swapped", "language"]
    most = kept((49, ()), (51, ("swapped", "language", "script")))
    assert recommended_reasons(most, has_copies=False) == []
    copies = kept((1, ()), (99, ("duplicate",)))
    assert recommended_reasons(copies, has_copies=False) == ["duplicate"]


def test_the_line_keeps_the_settings_of_the_user() -> None:
    settings = {"max_length": 100, "script": {"action": "report", "limit": 0.7}, "url": "off"}
    section = with_drops(FilterConfig.model_validate(settings), ["script", "swapped"])
    again = FilterConfig.model_validate(section)
    assert section["max_length"] == 100
    assert (again.script.action, again.script.limit) == ("drop", 0.7)
    assert again.url.action == "off"
    assert again.swapped == "drop"
    assert again.language == FilterConfig().language


@pytest.mark.parametrize("report_only", [True, False])
def test_the_report_ends_with_yaml_that_keeps_as_many_pairs_as_it_says(
    tmp_path: Path, *, report_only: bool
) -> None:
    """Some pairs have two of the problems, and the length of some is known only later."""
    source, target = corpus(400)
    source[10] = target[10] = "<b>drei</b> vier fünf sechs sieben acht"  # markup, and a copy
    source[20], target[20] = "<i>drei</i>", "three"
    source[30] = target[30] = "eins zwei drei vier fünf"
    target[40] = " ".join(target[40:50])  # ratio
    source += [*source[:7], source[20], source[90]]  # lines 1 to 5 are in the validation set, too
    target += [*target[:7], target[20], target[90]]
    write_pairs(tmp_path, source, target)
    settings: dict[str, Any] = {"ratio": "report", "max_length": 200, "language": "off"}
    report = prepare(config_for(tmp_path, filters=settings), report_only=report_only)
    block = report.as_text()[report.as_text().index("# would keep") :]
    advised = yaml.safe_load(block)["filters"]
    assert advised == {
        "max_length": 200, "language": "off", "ratio": "drop", "copy_of_source": "drop",
        "duplicate": "drop", "held_out": "drop", "markup": "drop",
    }  # fmt: skip
    again = prepare(config_for(tmp_path, filters=advised), report_only=report_only)
    num_kept = again.counts["numbers"]["kept"]
    about = "" if report_only else "about "
    assert block.startswith(f"# would keep {about}{num_kept} of 409 pairs\n")
    assert again.recommendation == ""
    assert again.with_findings["numbers"] < report.with_findings["numbers"] < 409


def test_the_number_of_kept_pairs_is_counted_with_the_subwords_that_are_then_learned(
    tmp_path: Path,
) -> None:
    """Copies fill the vocabulary. Without them, fewer of the good pairs are too long."""
    source, target = corpus(300)
    random = Random(1)
    copies = [" ".join("".join(random.choices("qwxyz", k=6)) for _ in range(4)) for _ in range(200)]
    write_pairs(tmp_path, source + copies, target + copies)
    settings: dict[str, Any] = {"language": "off", "max_length": 20}
    estimated = prepare(config_for(tmp_path, filters=settings))
    counted = prepare(config_for(tmp_path, filters=settings), report_only=True)
    advised = yaml.safe_load(counted.recommendation)["filters"]
    again = prepare(config_for(tmp_path, filters=advised), force=True)
    assert again.counts["numbers"]["kept"] == counted.kept_with_recommended
    assert counted.kept_with_recommended > estimated.kept_with_recommended
    assert "# would keep about " in estimated.recommendation


def test_filters_that_leave_nothing_of_a_corpus_are_not_recommended(tmp_path: Path) -> None:
    source, target = corpus(200)
    write_pairs(tmp_path, source, target)
    write_pairs(tmp_path, source[:50], source[:50], "copies")
    data = config_for(tmp_path).data.model_dump(mode="json")
    data["train"].append(
        {"name": "copies", "source": f"{tmp_path}/copies.de", "target": f"{tmp_path}/copies.en"}
    )
    config = config_for(tmp_path, data=data, filters={"language": "off"})
    assert prepare(config, report_only=True).recommendation == ""


def test_clean_text_gets_no_recommendation(tmp_path: Path) -> None:
    data = config_for(tmp_path).data.model_dump(mode="json")
    data["valid"] = write_pairs(tmp_path, ["Etwas ganz anderes."], ["Something else."], "far")
    config = config_for(tmp_path, data=data, filters={"language": "off"})
    report = prepare(config, report_only=True)
    assert report.recommendation == ""
    assert "filters:" not in report.as_text()
    assert "findings" not in report.as_text()
