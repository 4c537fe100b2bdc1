"""Trigrams of the languages: learned by `nmt prepare`, and kept with the model."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import Mock

import pytest

from nmt.checkpoint.model_folder import EXTRAS, PROFILES, read_profiles
from nmt.data import filters as pair_filters
from nmt.data.prepared import PreparedManifest, verify_prepared
from nmt.errors import CheckpointError
from nmt.inference.engine import copy_extras
from nmt.text.identification import NO_PROFILES
from tests.commands.preparing import config_for, corpus, prepare, write_pairs

KLINGON = {"source_language": "tlh"}  # of the source, which is German


def test_profiles_are_learned_and_copied_to_the_run(tmp_path: Path) -> None:
    prepare(config_for(tmp_path, **KLINGON))
    prepared, run = tmp_path / "prepared", tmp_path / "run"
    assert PROFILES in PreparedManifest.read(prepared).files
    verify_prepared(prepared)
    run.mkdir()
    copy_extras(prepared, run)
    assert PROFILES in EXTRAS  # which are copied into model folders
    profiles = read_profiles(run)
    assert set(profiles.log_probs) == {"tlh", "en"}
    assert profiles.likeliest("eins zwei acht") == "tlh"
    assert profiles.likeliest("one two eight") == "en"


@pytest.mark.parametrize("languages", [{}, {"source_language": "deu", "target_language": "eng"}])
def test_filters_use_profiles_only_if_py3langid_lacks_a_language(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, languages: dict[str, str]
) -> None:
    filters = Mock(side_effect=pair_filters.training_filters)
    monkeypatch.setattr(pair_filters, "training_filters", filters)
    prepare(config_for(tmp_path, **languages))
    assert len(read_profiles(tmp_path / "prepared").log_probs) == 2
    assert filters.call_args.args[-1] == NO_PROFILES


def test_pairs_of_unsupported_languages_are_dropped_by_their_trigrams(tmp_path: Path) -> None:
    source, target = corpus(120)
    source[7], target[7] = target[7], source[7]
    target[9] = source[8]
    write_pairs(tmp_path, source, target)
    filters = {"swapped": "drop", "language": "drop"}
    report = prepare(config_for(tmp_path, filters=filters, **KLINGON))
    swapped, foreign = (report.reasons[name]["examples"] for name in filters)
    assert [each["line"] for each in swapped] == [8]
    assert 10 in [each["line"] for each in foreign]
    assert report.counts["numbers"]["kept"] >= 115  # this text is too short for good profiles


def test_a_filter_that_cannot_judge_a_language_warns_in_the_first_line(tmp_path: Path) -> None:
    report = prepare(config_for(tmp_path, filters={"script": "drop"}, **KLINGON))
    first, second, *_ = report.as_text().splitlines()
    assert first.startswith("warning: filters.script does not check tlh: the script is unknown.")
    assert second.startswith("numbers: 120 sentence pairs read")
    assert "filters.script does not check tlh" in report.as_page()
    quiet = prepare(config_for(tmp_path, **KLINGON), force=True)
    assert quiet.as_text().startswith("numbers: 120 sentence pairs read")


def test_damaged_profiles_are_refused(tmp_path: Path) -> None:
    (tmp_path / PROFILES).write_text(json.dumps({"log_probs": {"tlh": "many"}}), encoding="utf-8")
    with pytest.raises(CheckpointError, match=rf"{PROFILES} is damaged") as caught:
        read_profiles(tmp_path)
    assert "delete this file" in caught.value.fix
