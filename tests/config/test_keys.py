from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from nmt.config import keys
from nmt.config.document import parse_document
from nmt.config.keys import (
    ANY,
    all_keys,
    describe_keys,
    described_sections,
    find_key,
    is_of_command_line,
    nearest_key,
)
from nmt.config.run import RunConfig
from nmt.errors import ConfigError

ALIASES = [
    entry
    for file in ("aliases.yaml", "renamed.yaml")
    for entry in yaml.safe_load(Path(keys.__file__).with_name(file).read_text("utf-8")).items()
]


@pytest.mark.parametrize(("wrong", "meant"), [
    ("training.lr", "training.schedule.peak_lr"),
    ("training.schedule.warm_up_steps", "training.schedule.warmup_steps"),
    ("trainig", "training"),
    ("tokenizer.vocab", "tokenizer.vocab_size"),
    ("data.validation", "data.valid"),
    ("validation.metric", "training.validation.metric"),
    ("data.test.news.targe", "data.test.news.target"),
    ("training.epochs", "training.max_epochs"),
    ("beam_size", "decoding.beam_size"),
    # Nothing is better than a key that has little in common with it.
    *((word, None) for word in ("xyzzy", "colour", "training.banana", "training.notify")),
    *((word, None) for word in ("model.flavour", "my_notes", "data.train.0.xyzzy")),
    # Names of papers and other toolkits.
    ("d_model", "model.model_dim"),
    ("N", "model.encoder_layers and model.decoder_layers"),
    ("model.n-layers", "model.encoder_layers and model.decoder_layers"),
    ("model.encoder.num_layers", "model.encoder_layers"),
    ("d_k", "model.num_heads (the width of a head is model_dim / num_heads)"),
    ("warmup", "training.schedule.warmup_ratio"),
    ("training.objective", "training.loss"),
    ("batch.accumulate", "batch.gradient_accumulation"),
    ("model.initialization", "model.embedding_init"),
    ("filters.deduplicate", "filters.duplicate"),
    # Former names.
    ("training.schedule.decay_share", "training.schedule.decay_ratio"),
    ("training.schedule.final_share", "training.schedule.min_lr_ratio"),
    ("training.report_every", "training.log_every"),
    ("training.start_from", "training.init_from"),
    ("training.tensorboard", "training.trackers (a list, as in [tensorboard])"),
    ("training.r_drop", "training.r_drop_weight"),
    ("preset", "model.preset"),
    ("recipe", "model.preset (without it, nmt chooses the values for a small text)"),
    ("data.train.0.augment", "data.train.0.noise"),
    ("batch.noise", "batch.length_noise"),
    ("tokenizer.unused_entries", "tokenizer.pad_vocab_by"),
    ("data.train.0.src", "data.train.0.source"),
    ("training.save_dir", "run_dir"),
])  # fmt: skip
def test_the_nearest_key_is_found_in_the_whole_tree(wrong: str, meant: str | None) -> None:
    assert nearest_key(wrong.split(".")) == (meant or "")


def test_every_alias_names_keys_that_exist_and_is_none_of_them() -> None:
    own, sections = {key.path[-1] for key in all_keys()}, {key.path[0] for key in all_keys()}
    of_keys = [(ours, others) for ours, others in ALIASES if not is_of_command_line(ours)]
    names = Counter(name for _, others in of_keys for name in others.split())
    # Keys of training.lora and tokenizer; elsewhere they are names of other toolkits.
    assert own & set(names) == {"alpha", "from", "layers"}
    assert set(names.values()) == {1}
    for name in names:
        assert re.fullmatch(r"[a-z0-9_]+", name)
    for answer, _ in of_keys:
        for key in re.split(" and | or ", re.split(" \\(|=", answer)[0]):
            path = key.split(".")
            assert find_key(path) if path[0] in sections else key in own, key


def test_one_section_or_key_is_described_alone() -> None:
    section = describe_keys("training.schedule")
    assert section.startswith("## training.schedule\n")
    assert section.count("\n## ") == 0
    assert section in describe_keys()
    assert describe_keys("training").count("## training") == 5
    assert describe_keys("model.ff_dim").count("\n| `") == 1
    assert "| `source` |" in describe_keys("data.valid")
    with pytest.raises(ConfigError, match=r"unknown key d_model; did you mean model.model_dim\?"):
        describe_keys("d_model")


def test_each_key_is_described_with_all_below_it_or_with_the_key_that_it_is_part_of() -> None:
    """And with the section that it is in. A filter describes its action and its limit itself."""
    by_path = {key.path: key for key in all_keys()}
    of_tables = {
        path
        for path, key in by_path.items()
        if not key.is_section and (len(path) == 1 or by_path[path[:-1]].is_section)
    }
    for key in all_keys():
        above = by_path.get(key.path[:-1])
        start = key if above is None or above.is_section else above
        expected = {each for each in of_tables if each[: len(start.path)] == start.path}
        found = [*described_sections(".".join(key.path))]
        shown = {each.path for _, _, rows in found for each in rows}
        assert shown == expected, key.path
        for name, about, rows in found:
            assert {".".join(each.path[:-1]) or "Top level" for each in rows} == {name}
            assert bool(about) == (name != "Top level")


def test_every_key_is_its_own_nearest_and_says_what_it_does_and_allows() -> None:
    for key in all_keys():
        assert key.description, key.path
        assert key.allowed, key.path
        if "*" not in key.path:
            assert nearest_key(key.path) == ".".join(key.path)


def test_what_a_key_allows_is_told_in_words() -> None:
    found = {".".join(key.path): (key.allowed, key.default) for key in all_keys()}
    for path, expected in {
        "name": ("text", ""),
        "run_dir": ("a path", "runs/<name>"),
        "training.seed": ("a whole number, at least 0, below 2147483648", "1"),
        "training.max_steps": ("a whole number, at least 1, or null", "null"),
        "training.ema_decay": ("a number, above 0, below 1, or null", "null"),
        "training.deterministic": ("true or false", "true"),
        "training.freeze": ("a list", "[]"),
        "training.optimizer.betas": ("a list of a number and a number", "[0.9, 0.98]"),
        "training.init_differences": ("a list of vocabulary, layers, encoder, decoder", "[]"),
        "filters.ratio": ("drop, report, off", "drop"),
        "batch.max_tokens": ("a whole number, at least 16, or auto, or null", "4096"),
        "data.train": ("a list, items at least 1", ""),
        "filters.extra": ("a section per name", "{}"),
        "data.train.*.noise.typos": ("a number, at least 0, at most 1", "0.0"),
    }.items():
        assert found[path] == expected, path


def test_a_key_is_found_below_positions_and_names() -> None:
    found = find_key(("data", "train", 3, "weight"))
    assert found is not None
    assert found.allowed == "a number, above 0, at most 100"
    assert find_key(("data", "valid", "weigth")) is None


# Every section of a configuration, with the keys that are required.
DEMO = {"demo": "train"}
SECTIONS: dict[str, Any] = {
    "name": "x", "source_language": "en", "target_language": "de",
    "data": {
        "train": [DEMO], "valid": {"demo": "valid"}, "test": {"t": {"demo": "test"}},
        "replay": {"train": [DEMO], "valid": {"demo": "valid"}},
    },
    "training": {"max_steps": 1, "init_from": "m", "lora": {}},
}  # fmt: skip


def place_of(path: Sequence[str]) -> tuple[str | int, ...]:
    """The path of a key in ``SECTIONS``."""
    above = ("", *path)
    return tuple(
        {"test": "t"}.get(before, 0) if part == ANY else part
        for before, part in zip(above, path, strict=False)
    )


def section_of(values: Any, place: Sequence[str | int]) -> Any:
    """The section of a key; made where it is omitted."""
    for part in place[:-1]:
        values = values.setdefault(part, {}) if isinstance(values, dict) else values[part]
    return values


def test_defaults_may_be_written_as_they_are_described() -> None:
    """All at once, as YAML, they change nothing."""
    values = deepcopy(SECTIONS)
    given = RunConfig.model_validate(SECTIONS)
    for key in all_keys():
        above = find_key(key.path[:-1])
        is_part = above is not None and not above.is_section  # of a filter, which has a default
        if key.default and not is_part and "stages" not in key.path[:-1]:
            text = key.default.replace("<name>", given.name)
            default = parse_document(f"default: {text}", name="x").values["default"]
            place = place_of(key.path)
            section_of(values, place).setdefault(place[-1], default)
    assert RunConfig.model_validate(values) == given


LIMIT = re.compile(r"(at least|above|at most|below) ([-+.\de]+)")


def test_a_number_is_allowed_exactly_where_its_description_says() -> None:
    num_limits = 0
    for key in all_keys():
        kind = key.allowed.partition(",")[0]
        if kind not in ("a number", "a whole number"):
            continue
        step = 1 if kind == "a whole number" else 1e-6
        for words, text in LIMIT.findall(key.allowed):
            limit = int(text) if kind == "a whole number" else float(text)
            outside = step if words in ("at most", "below") else -step
            is_included = words in ("at least", "at most")
            found = [is_allowed(key.path, limit + each) for each in (-outside, 0, outside)]
            assert found == [True, is_included, False], (key.path, words, limit)
            num_limits += 1
    assert num_limits > 100


def is_allowed(path: Sequence[str], value: float) -> bool:
    """Whether a key takes a value, whatever the rules between keys say."""
    values = deepcopy(SECTIONS)
    place = place_of(path)
    section_of(values, place)[place[-1]] = value
    try:
        RunConfig.model_validate(values)
    except ValidationError as error:
        return all(detail["loc"][: len(place)] != place for detail in error.errors())
    return True
