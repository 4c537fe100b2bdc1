"""A pair is kept, or there is a reason."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nmt.cli.app import app
from nmt.config.data import FilterConfig
from nmt.config.loader import load_config
from nmt.data.filters import (
    FILTERS,
    Filter,
    FilterChain,
    PairProblem,
    held_out_filters,
    training_filters,
)
from nmt.errors import ConfigError
from nmt.registry import Registry
from tests.commands.preparing import prepare

DEMO = Path(__file__).parents[2] / "configs" / "demo.yaml"

DEFAULT = training_filters(FilterConfig())


def dropping(filters: FilterChain, source_length: int, target_length: int) -> str | None:
    lengths = source_length, target_length
    return filters.dropping(filters.length_problems(lengths, lengths))


def test_blank_sides_have_a_reason_each() -> None:
    """FAULTS 36."""
    for source, target, reason in (
        ("a", "b", None), (" ", "\t", "both"), ("", "b", "source"),
        ("a", "\u3000", "target"),
    ):  # fmt: skip
        blank = [each.value for each in DEFAULT.text_problems(source, target) if each[0] == "blank"]
        assert blank == ([] if reason is None else [reason])


def test_limits_are_inclusive() -> None:
    for source_length, target_length, reason in (
        (256, 256, None), (257, 256, "length"), (5, 300, "length"),
        (0, 5, "length"), (1, 13, None), (1, 14, "ratio"),
    ):  # fmt: skip
        assert dropping(DEFAULT, source_length, target_length) == reason
        assert dropping(DEFAULT, target_length, source_length) == reason


def test_a_check_that_is_off_is_skipped_and_said_to_be() -> None:
    filters = training_filters(FilterConfig.model_validate({"ratio": "off"}))
    assert dropping(filters, 1, 200) is None
    assert "ratio" in filters.skipped
    assert dropping(filters, 1, 257) == "length"


def test_what_a_check_lacks_is_an_error_only_if_it_is_to_drop_pairs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lacking(*_: Any) -> Filter:
        raise ConfigError("A package is missing.", fix="Install it.")

    filters: Registry[Any] = Registry("filter of a reason")
    filters.register("language", lacking)
    monkeypatch.setattr("nmt.data.filters.REASON_FILTERS", filters)
    chain = training_filters(FilterConfig.model_validate({"language": "report"}), "de", "en")
    assert "package is missing" in chain.skipped["language"]
    assert "Install it" in chain.skipped["language"]
    off = training_filters(FilterConfig.model_validate({"language": "off"}), "de", "en")
    assert "package" not in off.skipped["language"]
    with pytest.raises(ConfigError, match=r"filters\.language") as caught:
        training_filters(FilterConfig.model_validate({"language": "drop"}), "de", "en")
    assert caught.value.fix == "Install it."


def test_the_first_reason_that_drops_a_pair_counts_and_not_one_that_is_reported() -> None:
    filters = FilterChain([], {"first": "report", "second": "drop", "third": "drop"})
    findings = [PairProblem(reason) for reason in ("first", "second", "third")]
    assert filters.dropping(findings) == "second"
    assert filters.dropping(findings[:1]) is None
    assert filters.dropping([PairProblem("of an extra filter")]) == "of an extra filter"


def test_held_out_pairs_are_dropped_only_if_blank_or_too_long() -> None:
    held_out = held_out_filters(FilterConfig(max_length=20, min_length=5, max_length_ratio=1.5))
    assert dropping(held_out, 1, 20) is None
    assert dropping(held_out, 1, 21) == "length"
    assert held_out.dropping(held_out.text_problems("", "b")) == "blank"


def test_a_pair_that_is_long_only_in_bytes_has_a_reason_of_its_own() -> None:
    filters = training_filters(FilterConfig(max_length=20))
    for lengths, usual_lengths, reason in (
        ((30, 20), (10, 20), "bytes"), ((60, 20), (21, 20), "length"), ((20, 20), (7, 20), None),
    ):  # fmt: skip
        findings = filters.length_problems(lengths, usual_lengths)
        assert [each.reason for each in findings] == ([] if reason is None else [reason])
        held_out = held_out_filters(FilterConfig(max_length=20))
        assert held_out.dropping(held_out.length_problems(lengths, usual_lengths)) == reason


class Shouting(Filter):
    """Drops pairs with a word of many capitals, except for some words."""

    def __init__(self, min_capitals: int, allowed: Sequence[str] = ()) -> None:
        self._min_capitals = min_capitals
        self._allowed = allowed

    def text_problem(self, source: str, target: str) -> str | None:
        words = set(f"{source} {target}".split()).difference(self._allowed)
        shouts = any(word.isupper() and len(word) >= self._min_capitals for word in words)
        return "shouting" if shouts else None


FILTERS.register("shouting", Shouting)


def test_a_registered_filter_drops_training_pairs_and_its_reason_is_shown(tmp_path: Path) -> None:
    config = load_config(DEMO, [
        f"prepared_dir={tmp_path / 'prepared'}", f"run_dir={tmp_path / 'run'}",
        "data.train.0.demo=valid", "tokenizer.vocab_size=400",
        "filters.extra={shouting: {min_capitals: 1}}",
    ])  # fmt: skip
    report = prepare(config)
    counts = report.counts["demo"]
    assert counts["shouting"] > 10  # "I" is a word of one capital
    assert counts["read"] == counts["kept"] + counts["shouting"] == 300
    assert f"dropped {counts['shouting']} pairs: shouting" in report.as_text()
    assert report.counts["valid"]["kept"] == 300


def test_a_parameter_of_a_registered_filter_can_be_a_list() -> None:
    extra = "{shouting: {min_capitals: 1, allowed: [I, A]}}"
    filters = training_filters(load_config(DEMO, [f"filters.extra={extra}"]).filters)
    assert filters.text_problems("I see", "A dog") == []
    assert filters.text_problems("I see", "DOG") == [PairProblem("shouting")]


def test_an_unknown_filter_is_refused_by_config_check_and_with_its_place() -> None:
    """A fresh process has no registered filter; here there is one."""
    text = DEMO.read_text(encoding="utf-8")
    text = text.replace("filters: {", "filters: {extra: {shoutin: {}}, ")
    Path("mine.yaml").write_text(text, encoding="utf-8")
    result = CliRunner().invoke(app, ["config", "check", "mine.yaml"])
    line = text[: text.index("filters:")].count("\n") + 1
    assert result.exit_code == 2
    problem = "filters: extra.shoutin is not a registered filter. Did you mean shouting?"
    assert f"mine.yaml:{line}: {problem}" in result.stderr


def test_a_wrong_parameter_of_a_filter_is_refused() -> None:
    extra: Any = {"shouting": {"max_capitals": 1}}
    with pytest.raises(ConfigError, match=r"filters\.extra\.shouting: .*max_capitals"):
        training_filters(FilterConfig(extra=extra))


def test_a_blank_pair_has_no_other_problem() -> None:
    """Its lengths, numbers and languages say nothing, and take time."""
    filters = training_filters(FilterConfig(), "de", "en")
    for pair in (("", "12 apples"), ("12 Äpfel <b>", " "), ("", "")):
        assert [problem.reason for problem in filters.text_problems(*pair)] == ["blank"]
