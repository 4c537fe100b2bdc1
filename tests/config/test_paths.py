"""Paths with variables, patterns and shards."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from nmt.config.data import CorpusConfig, DataConfig
from nmt.config.paths import expanded, matching_files, shard_problem


def test_home_and_variables_are_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORPORA", "/data")
    corpus = CorpusConfig(source=(Path("~/x.en"),), target=(Path("${CORPORA}/$CORPORA.de"),))
    assert corpus.source == (Path.home() / "x.en",)
    assert corpus.target == (Path("/data//data.de"),)
    # Expanding again changes nothing, so a recorded configuration is read back as it is.
    assert CorpusConfig.model_validate(corpus.model_dump(mode="json")) == corpus


def test_a_variable_that_is_not_set_is_an_error_unless_a_file_has_this_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NOWHERE", raising=False)
    with pytest.raises(ValidationError, match="variable NOWHERE is not set"):
        CorpusConfig(path=(Path("$NOWHERE/x.tsv"),))
    assert expanded(Path("5$ and $")) == Path("5$ and $")
    Path("$NOWHERE").touch()
    assert expanded(Path("$NOWHERE")) == Path("$NOWHERE")


def test_an_expanded_path_is_not_expanded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIGHT", "data")
    monkeypatch.setenv("LEFT", "RIGHT")
    monkeypatch.setenv("AT_HOME", "~/data")
    for text in ("$AT_HOME/x", "$LEFT", "x/${RIGHT}/$5", "$RIGHT$", "~/$RIGHT", "$$5", "~other"):
        once = expanded(Path(text))
        assert expanded(once) == once
    # Expanded twice, both would become other paths.
    for text, left in (("$$LEFT", "RIGHT"), ("~/$$RIGHT", "data")):
        with pytest.raises(ValueError, match=f"variable {left} is not set, or"):
            expanded(Path(text))


def test_a_pattern_gives_its_files_in_natural_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("p10.de", "p2.de", "p1.de", "p1.en", "[1].de"):
        Path(name).touch()
    Path("p3.de").mkdir()  # a folder does not count
    assert matching_files([Path("p*.de")]) == (Path("p1.de"), Path("p2.de"), Path("p10.de"))
    assert matching_files([tmp_path / "p?.en"]) == (tmp_path / "p1.en",)
    assert matching_files([Path("[1].de"), Path("q*")]) == (Path("[1].de"), Path("q*"))


@pytest.mark.parametrize(("sources", "targets", "problem"), [
    ("a.en", "anything.txt", ""),
    ("p1.en p2.en", "p1.de p2.de", ""),
    ("en/p1 en/p2", "de/p1 de/p2", ""),
    ("news.source web.source", "news.target web.target", ""),
    ("p1.en p2.en", "p1.de", "source has 2 files, but target has 1"),
    ("p1.en p2.en", "p1.de p3.de", "p2.en and p3.de"),
    ("p2.en p3.en", "p1.de p2.de", "p2.en and p1.de"),
    ("news.en web.en", "news.de talks.de", "web.en and talks.de"),
])  # fmt: skip
def test_shards_have_the_same_names_apart_from_the_language(
    sources: str, targets: str, problem: str
) -> None:
    sides = [tuple(map(Path, names.split())) for names in (sources, targets)]
    found = shard_problem(*sides)
    assert found.startswith(problem) if problem else found == ""


def test_several_references_belong_to_held_out_sets_only() -> None:
    values = {"source": "a.en", "target": ["a.de", "b.de"]}
    held_out = {"train": [{"demo": "train"}], "valid": values, "test": {"t": values}}
    data = DataConfig.model_validate(held_out)
    assert data.valid[0].has_references
    assert not CorpusConfig(source=(Path("a"),), target=(Path("b"),)).has_references
    example = "train.0 has 2 targets for one source.*{source: a.en, target: a.de}"
    with pytest.raises(ValidationError, match=example):
        DataConfig.model_validate({**held_out, "train": [values]})
