"""Sentences of held-out sets in the training data: the filter `held_out`."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.commands.prepare import recipe_of
from nmt.config.data import Direction
from nmt.config.run import RunConfig
from nmt.data.formats.pair import SentencePair
from nmt.data.prepare_report import current_report
from nmt.errors import DataError
from nmt.extras.cleaning.diagnosis import look_at
from nmt.extras.cleaning.leakage import CopySearch, HeldOutSet, LeakageIndex
from tests.commands.preparing import config_for, corpus, prepare, write, write_pairs

THERE = Direction("de", "en")
BACK = Direction("en", "de")


def with_test(folder: Path, pairs: list[tuple[str, str]], **changes: Any) -> RunConfig:
    """A configuration whose validation set is far from the training text, with a test set."""
    data = config_for(folder).data.model_dump(mode="json")
    data["valid"] = write_pairs(folder, ["Etwas ganz anderes steht hier."], ["Nothing."], "far")
    sources, targets = zip(*pairs, strict=True)
    data["test"] = {"news": write_pairs(folder, list(sources), list(targets), "news")}
    return config_for(folder, data=data, **changes)


def dropped_lines(folder: Path) -> list[tuple[int, str]]:
    rows = gzip.decompress((folder / "dropped.tsv.gz").read_bytes()).decode().splitlines()[1:]
    cells = [row.split("\t") for row in rows]
    return [(int(row[1]), row[3]) for row in cells if row[2] == "held_out"]


@pytest.mark.long
def test_exact_and_near_copies_are_dropped_by_any_number_of_workers(tmp_path: Path) -> None:
    """Of lines 21 to 24: only spaces differ; a word differs; the sources or targets are equal."""
    source, target = corpus(120)
    source[21] += " und danach noch viel mehr davon"
    news = [
        (f" {source[20]}".replace(" ", "  "), target[20]),
        (source[21].replace("viel", "etwas"), "a different translation"),
        (source[22], "no translation"),
        ("keine Quelle", target[23]),
        ("Das steht nirgends.", "That is nowhere."),
    ]
    write_pairs(tmp_path, [*source, source[20]], [*target, target[20]])
    reported = prepare(with_test(tmp_path, news), report_only=True)
    assert reported.findings["numbers"]["held_out"] == 5
    num_found = reported.with_findings["numbers"]
    assert f"121 kept, {num_found} of them with findings" in reported.as_text()
    config = with_test(tmp_path, news, filters={"held_out": "drop"})
    contents = []
    report = reported
    for workers in (1, 2):
        folder = tmp_path / f"report{workers}"
        report = prepare(config, force=True, workers=workers, report_dir=folder)
        assert report.counts["numbers"] == {"read": 121, "kept": 116, "held_out": 5}
        assert report.overlap["news"]["sources_in_train"] == 0
        assert report.overlap["news"]["near_sources_in_train"] == 0
        assert report.leakage == []
        stores = sorted((tmp_path / "prepared" / "train").glob("*.bin"))
        contents.append([path.read_bytes() for path in stores])
    assert contents[0] == contents[1]
    places = [f"news, line {line}" for line in ("1", "2 (near)", "3", "4", "1")]
    assert dropped_lines(tmp_path / "report2") == [*zip([21, 22, 23, 24, 121], places, strict=True)]
    assert {example["value"] for example in report.reasons["held_out"]["examples"]} == {*places}


def test_a_copy_of_any_reference_is_a_copy(tmp_path: Path) -> None:
    """The first of three references is new."""
    source, target = corpus(120)
    write_pairs(tmp_path, source, target)
    others = [["nothing", target[7], "nothing"], [target[6], "nothing", "nothing"]]
    paths = [write(tmp_path, f"news{number}.en", lines) for number, lines in enumerate(others)]
    data = with_test(tmp_path, [("keine Quelle", "no copy")] * 3).data.model_dump(mode="json")
    news = data["test"]["news"]
    news["target"] = [news["target"], *paths]
    reported = prepare(config_for(tmp_path, data=data), report_only=True)
    counts = reported.overlap["news"]
    assert (counts["pairs"], counts["sources_in_train"], counts["pairs_in_train"]) == (3, 0, 0)
    assert counts["targets_in_train"] == 2
    config = config_for(tmp_path, data=data, filters={"held_out": "drop"})
    assert prepare(config).counts["numbers"]["kept"] == 118
    assert dropped_lines(config.prepared_dir) == [(7, "news, line 1"), (8, "news, line 2")]


def test_switched_off_no_pair_is_a_problem_but_sentences_are_counted(tmp_path: Path) -> None:
    source, target = corpus(120)
    news = list(zip(source[:3], target[:3], strict=True))
    config = with_test(tmp_path, news, filters={"held_out": "off"})
    report = prepare(config, report_only=True)
    assert "held_out" not in report.findings["numbers"]
    assert report.skipped["held_out"] == "Off in the configuration."
    assert report.overlap["news"]["sources_in_train"] == 3
    assert report.recommended == {}


def test_only_dropping_depends_on_the_test_sets(tmp_path: Path) -> None:
    source, target = corpus(120)
    news = list(zip(source[:3], target[:3], strict=True))
    for action, is_current in (("report", True), ("drop", False)):
        config = with_test(tmp_path, news, filters={"held_out": action})
        prepare(config)
        assert current_report(config.prepared_dir, recipe_of(config)) is not None
        write(tmp_path, "news.de", ["eins", *source[1:3]])
        report = current_report(config.prepared_dir, recipe_of(config))
        assert (report is not None) == is_current


def test_a_test_set_that_cannot_be_downloaded_stops_only_dropping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sacrebleu.utils.SACREBLEU_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("nmt.data.hubs.reaches", lambda _: False)
    data = config_for(tmp_path).data.model_dump(mode="json") | {
        "test": {"wmt": {"sacrebleu": "wmt14"}}
    }
    assert prepare(config_for(tmp_path, data=data), report_only=True).unchecked == ["wmt"]
    dropping = config_for(tmp_path, data=data, filters={"held_out": "drop"})
    with pytest.raises(DataError, match="Cannot download test set wmt14"):
        prepare(dropping, report_only=True)


words = st.lists(st.sampled_from("abcde"), min_size=1, max_size=6)
pairs = st.lists(
    st.builds(lambda s, t: (" ".join(s), " ".join(t).upper()), words, words), max_size=8
)


def numbered(texts: list[tuple[str, str]]) -> tuple[SentencePair, ...]:
    return tuple(SentencePair(*pair, line) for line, pair in enumerate(texts, start=1))


@given(pairs, pairs, pairs, st.booleans())
def test_the_rest_after_dropping_looks_as_if_it_was_the_whole_block(
    held_out: list[tuple[str, str]],
    counted: list[tuple[str, str]],
    texts: list[tuple[str, str]],
    is_reversed: bool,
) -> None:
    """A pair is a copy if a side is equal, or if the source is near to one in its direction."""
    training = numbered([pair[::-1] for pair in texts] if is_reversed else texts)
    sets = (
        HeldOutSet("configured", THERE, numbered(held_out), is_configured=True),
        HeldOutSet("cached", THERE, numbered(counted), is_configured=False),
    )
    directions = (("train", BACK if is_reversed else THERE),)
    search = CopySearch(sets, directions, is_dropping=True)
    sides = [{pair[side] for pair in held_out} for side in (0, 1)]
    near = {leak.row for leak in LeakageIndex([s for s, _ in held_out]).find([p[0] for p in texts])}
    copies = {
        row for row, pair in enumerate(texts)
        if pair[0] in sides[0] or pair[1] in sides[1] or (row in near and not is_reversed)
    }  # fmt: skip
    for made in (search, pickle.loads(pickle.dumps(search))):
        looked = look_at("train", training, search=made, sketches=False)
        assert {*looked.problems} == copies
        rest = [pair for row, pair in enumerate(training) if row not in copies]
        of_rest = look_at("train", rest, search=made, sketches=False)
        assert not of_rest.problems
        for name, array in of_rest.arrays.items():
            assert np.array_equal(looked.arrays[name], array)
