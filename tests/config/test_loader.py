from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.config.data import BatchConfig, CorpusConfig, DataConfig, FilterConfig, TokenizerConfig
from nmt.config.document import MAX_BYTES, dump_document, parse_document, read_document
from nmt.config.filling import MODEL_PRESETS, Choice, TextSize, UnknownSizeError
from nmt.config.loader import (
    change_options,
    dump_config,
    load_config,
    load_inference,
    settings_of,
)
from nmt.config.model import DecodingConfig, ModelConfig
from nmt.config.run import RunConfig
from nmt.config.training import OptimizerConfig, ScheduleConfig, TrainingConfig
from nmt.errors import ConfigError, DataError
from tests.examples import FEW

SMALL = """\
name: small
source_language: en
target_language: de
data:
  train: [{demo: train}]
  valid: {demo: valid}
training: {max_steps: 10}
"""
# nmt chooses the values that go with the size of the corpus.
BARE = SMALL.replace("training: {max_steps: 10}\n", "")

LANGUAGES = st.sampled_from(["de", "en", "no", "pt-BR", "zho_Hans"])
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
# Any text may be a path, except one that asks to be moved beside the file, and unset variables.
PATHS = st.text(st.characters(exclude_characters="\0$", exclude_categories=["Cs"]), min_size=1)
PLACES = st.one_of(
    st.fixed_dictionaries({"source": PATHS.map(Path), "target": PATHS.map(Path)}),
    st.fixed_dictionaries({"tsv": PATHS.map(Path), "columns": st.tuples(*[st.integers(0, 9)] * 2)}),
    st.fixed_dictionaries({"huggingface": st.text(), "subset": st.none() | st.text()}),
    st.fixed_dictionaries({"demo": st.sampled_from(["train", "valid", "test"])}),
)
CORPORA = st.builds(
    lambda place, **rest: CorpusConfig(**place, **rest),
    PLACES,
    weight=st.floats(0.01, 100),
    name=st.none() | st.text(),
    max_pairs=st.none() | st.integers(1, 10**9),
)
CONFIGS = st.builds(
    RunConfig,
    name=NAMES,
    source_language=LANGUAGES,
    target_language=st.just("fr"),
    run_dir=PATHS.map(lambda path: Path("runs") / path.lstrip("/")),
    prepared_dir=st.just(Path("prepared")),
    data=st.builds(
        DataConfig,
        train=st.lists(CORPORA, min_size=1, max_size=3).map(tuple),
        valid=CORPORA,
        test=st.dictionaries(st.sampled_from(["a", "2016", "no", "1e5", "null"]), CORPORA),
    ),
    tokenizer=st.builds(TokenizerConfig, vocab_size=st.integers(300, 32_000)),
    filters=st.builds(FilterConfig, max_length=st.integers(1, 100)),
    batch=st.builds(BatchConfig, max_tokens=st.integers(202, 10**6), length_noise=st.floats(0, 1)),
    model=st.sampled_from([None, *MODEL_PRESETS]).flatmap(
        lambda preset: st.builds(
            ModelConfig, preset=st.just(preset), dropout=st.floats(0, 1, exclude_max=True)
        )
    ),
    training=st.builds(
        TrainingConfig,
        max_steps=st.integers(1, 10**6),
        max_minutes=st.none() | st.floats(0.001, 1e6),
        optimizer=st.builds(OptimizerConfig, epsilon=st.floats(1e-300, 1e-3)),
        schedule=st.builds(ScheduleConfig, peak_lr=st.floats(1e-9, 10)),
    ),
    decoding=st.builds(DecodingConfig, length_penalty=st.floats(0, 20)),
)


def written(folder: Path, text: str) -> Path:
    path = folder / "c.yaml"
    path.write_text(text, encoding="utf-8", newline="\n")
    return path


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return written(tmp_path, SMALL)


def refusal(path: Path, *overrides: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    return caught.value


@FEW
@given(config=CONFIGS)
def test_a_resolved_configuration_is_read_back_equal(
    config: RunConfig, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """From a file or from a dictionary."""
    assert load_config(written(tmp_path_factory.getbasetemp(), dump_config(config))) == config
    assert load_config(settings_of(config)) == config


def test_a_dictionary_is_a_configuration_without_lines() -> None:
    values = parse_document(SMALL, name="x").values
    config = load_config(values | {"run_dir": Path("a b")}, ["training.max_steps=3"])
    assert (config.run_dir, config.training.max_steps) == (Path("a b"), 3)
    with pytest.raises(ConfigError) as caught:
        load_config(values | {"trainig": {}}, ["training.seed=x", "run_dirr=a"])
    problems = caught.value.problem.split("\n  ")
    assert problems[1].startswith("`set` run_dirr=a: unknown key run_dirr")
    assert problems[2].startswith("configuration: unknown key trainig; did you mean training?")
    assert problems[3].startswith("`set` training.seed=x: training.seed is 'x'")
    with pytest.raises(ConfigError, match="configuration contains no keys"):
        load_config({})


def test_each_layer_overrides_the_one_before(tmp_path: Path) -> None:
    path = written(tmp_path, SMALL + "model: {preset: modern, ff_dim: 512, num_heads: 8}\n")
    config = load_config(path, ["model.num_heads=4", "model.preset=tiny", "model.num_heads=2"])
    assert config.model.decoder_layers == 3  # the preset, of --set
    assert config.model.ff_dim == 512  # the file
    assert config.model.num_heads == 2  # the last --set
    assert config.model.activation == "relu"  # the default
    assert (config.prepared_dir, config.run_dir) == (Path("prepared/small"), Path("runs/small"))


def test_the_limit_of_a_filter_is_merged_into_its_short_form(small: Path) -> None:
    config = load_config(small, ["filters.script=drop", "filters.script.limit=0.3"])
    assert (config.filters.script.action, config.filters.script.limit) == ("drop", 0.3)


def test_overrides_are_typed_as_in_the_file(small: Path) -> None:
    config = load_config(small, [
        "training.schedule.peak_lr=1e-3", "training.max_steps=1e4", "training.max_minutes=null",
        "training.optimizer.betas=[0.9, 0.999]", "data.train.0.weight=2",
        "data.test.extra={demo: test}", "run_dir=somewhere/else",
    ])  # fmt: skip
    assert config.training.schedule.peak_lr == 1e-3
    assert config.training.max_steps == 10_000
    assert config.training.optimizer.betas == (0.9, 0.999)
    assert config.data.train[0].weight == 2.0
    assert config.data.test["extra"].demo == "test"
    assert config.run_dir == Path("somewhere/else")


def test_the_next_number_of_a_list_adds_an_item(small: Path) -> None:
    config = load_config(small, ["data.train.1={demo: test}", "data.train.1.weight=2"])
    assert [(corpus.demo, corpus.weight) for corpus in config.data.train] == [
        ("train", 1.0), ("test", 2.0),
    ]  # fmt: skip


def test_a_path_beside_the_configuration_is_found_from_any_folder(tmp_path: Path) -> None:
    valid = "{source: @config/v.en, target: plain/v.de}"
    path = written(tmp_path, SMALL.replace("{demo: valid}", valid))
    config = load_config(path, ["run_dir=@config/run"])
    assert config.data.valid[0].source == (tmp_path / "v.en",)
    assert config.data.valid[0].target == (Path("plain/v.de"),)
    assert config.run_dir == tmp_path / "run"


def test_all_problems_are_reported_at_once_with_their_lines(tmp_path: Path) -> None:
    """FAULTS 48: a misspelt key and a wrong type; line numbers and the nearest key."""
    path = written(
        tmp_path,
        SMALL.replace("source_language: en\n", "sourc_language: en\n")
        + "decoding: {beam_size: 0}\nmodel:\n  dropout: high\n  preset: tyni\n  warm_up_steps: 3\n",
    )
    problem = refusal(path, "training.seed=-1").problem
    lines = [int(line.split(":")[1]) for line in problem.splitlines() if str(path) in line]
    assert lines == sorted(lines)
    assert problem.startswith("6 problems")
    assert f"{path}:2: unknown key sourc_language; did you mean source_language?" in problem
    assert f"{path}:8: decoding.beam_size is 0; it must be a whole number, at least 1" in problem
    assert f"{path}:10: model.dropout is 'high'; it must be a number" in problem
    assert f"{path}:11: model.preset is 'tyni'; it must be" in problem
    assert f"{path}:12: unknown key model.warm_up_steps; did you mean" in problem
    assert "`set` training.seed=-1: training.seed is -1" in problem


def test_there_may_be_several_validation_sets(tmp_path: Path) -> None:
    sets = "[{demo: valid}, {demo: valid, nam: b}]"
    path = written(tmp_path, SMALL.replace("{demo: valid}", sets))
    problem = f"{path}:6: unknown key data.valid.1.nam; did you mean data.valid.name?"
    assert problem in refusal(path).problem
    path = written(tmp_path, SMALL.replace("{demo: valid}", sets.replace("nam:", "name:")))
    two = load_config(path, ["data.valid.1.max_pairs=5"])
    assert [corpus.max_pairs for corpus in two.data.valid] == [None, 5]
    assert [*two.data.corpora] == ["data.train.0", "data.valid.0", "data.valid.1"]
    assert "data.valid has 2 items" in refusal(path, "data.valid.max_pairs=5").problem
    assert load_config(written(tmp_path, dump_config(two))) == two


def test_a_written_configuration_takes_overrides_of_its_single_validation_set(
    tmp_path: Path,
) -> None:
    path = written(tmp_path, dump_config(load_config(written(tmp_path, SMALL))))
    assert load_config(path, ["data.valid.max_pairs=5"]).data.valid[0].max_pairs == 5
    replay = ["data.replay.train=[{demo: train}]", "data.replay.share=0.5"]
    assert load_config(path, replay).data.training[1].demo == "train"
    general = [*replay, "data.replay.valid={demo: valid}"]
    path = written(tmp_path, dump_config(load_config(path, general)))
    sets = load_config(path, ["data.replay.valid.max_pairs=7"]).data.validation
    assert [each.max_pairs for each in sets] == [None, 7]


def test_a_share_of_warmup_is_shown_without_the_updates_that_it_replaces(tmp_path: Path) -> None:
    path = written(tmp_path, SMALL)
    share, steps = ["training.schedule.warmup_ratio=0.1"], ["training.schedule.warmup_steps=9"]
    assert "warmup_steps" not in dump_config(load_config(path, share))
    assert "warmup_steps: 9" in dump_config(load_config(path, [*share, *steps]))


def test_a_missing_key_is_named_unless_it_may_be_missing(tmp_path: Path) -> None:
    path = written(tmp_path, SMALL.replace("  valid: {demo: valid}\n", ""))
    assert f"{path}:4: data.valid is missing" in refusal(path).problem
    path = written(tmp_path, "name: a\ntrain-sets: [a.de, a.en]\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path, measure_text=size_of(0))
    assert "data is missing" in caught.value.problem
    assert "training is missing" not in caught.value.problem


def words_of(problem: str) -> set[str]:
    """Return the keys, values and numbers of a message, and its other words."""
    return set(re.findall(r"[\w.-]*\w", problem))


@pytest.mark.parametrize(("line", "names"), [
    ("batch: {max_tokens: true}", "batch.max_tokens true number"),
    ("batch: {max_tokens: '4096'}", "batch.max_tokens 4096 number"),
    ("batch: {max_tokens: [1]}", "batch.max_tokens list number"),
    ("batch: 4096", "batch 4096 section"),
    ("tokenizer: {joint: yes}", "tokenizer.joint yes true false"),
    ("tokenizer: {kind: bpee}", "tokenizer.kind bpee bpe"),
    ("decoding: {length_penalty: .nan}", "decoding.length_penalty nan number"),
    ("run_dir: 3", "run_dir 3 path"),
    ("model:", "model null section"),
    (f"model: {{preset: {'x' * 99}}}", "model.preset tiny modern"),
])  # fmt: skip
def test_a_wrong_type_says_what_is_found_and_allowed(tmp_path: Path, line: str, names: str) -> None:
    """FAULTS 48."""
    path = written(tmp_path, SMALL + line + "\n")
    problem = refusal(path).problem
    assert problem.startswith(f"{path}:8: ")
    assert set(names.split()) <= words_of(problem.removeprefix(f"{path}:8: "))


@pytest.mark.parametrize(("override", "names"), [
    ("training.lr=abc", "training.schedule.peak_lr"),
    ("training.schedule.peak_lr=abc", "number"),
    ("name.deep=1", "unknown name.deep"),
    ("data.train.1.weight=1", "data.train 1 0"),
    ("data.train.2={demo: test}", "data.train 1 0"),
    ("data.train.5.weight=1", "data.train 1 0"),
    (f"data.train.{'9' * 5000}.weight=1", "data.train 1 0"),
    ("training.validation.command=false", "training.validation.command list"),
    ("model.preset=[]", "model.preset list transformer-base"),
    ("tokenizer.vocab_size={source: 3}", "tokenizer.vocab_size source 3 number"),
    ("training.optimizer.kind=[]", "training.optimizer.kind list adamw"),
    ("training.validation.metric=bleurt", "training.validation.metric loss command"),
    ("training.optimizer.kind=adamv", "muon adafactor adamw"),
    ("model.bias=[norm, ffn]", "model.bias true false"),
    ("training.seed", "section.key=value"),
    ("training.seed=[1", "YAML"),
    ("training.seed=", "training.seed null"),
    ("xyzzy=1", "unknown xyzzy"),
    ("training.scheduler=cosine", "training.schedule.shape"),
    ("training.scheduler={shape: cosine}", "training.schedule"),
    ("vocab_size={source: 9, target: 9}", "tokenizer.vocab_size"),
    ("training.optimizer=adam", "training.optimizer.kind adamw"),
])  # fmt: skip
def test_a_bad_override_is_named_in_the_same_form(small: Path, override: str, names: str) -> None:
    """FAULTS 49."""
    error = refusal(small, override)
    assert f"`set` {override}" in error.problem
    # Without the override itself, which contains some of these names.
    rest = error.problem.replace(f"`set` {override}", "")
    assert set(names.split()) <= words_of(rest) | set(re.findall(r"\S+=\w+", rest))
    assert error.exit_code == 2


@pytest.mark.parametrize(("override", "found", "meant"), [
    ("training.optimizer=adamw", "'adamw'", "training.optimizer.kind=adamw"),
    ("training.schedul=cosine", None, "training.schedule.shape=cosine"),
    ("model=tiny", "'tiny'", "model.preset=tiny"),
    ("training.optimizer.kind=adam", "'adam'", "adamw"),
    ("model.preset=tinny", "'tinny'", "tiny"),
    ("training.optimizer.kindd=adamw", None, "training.optimizer.kind"),
    ("training.loss=xent", "'xent'", None),
    ("training.seed=null", "null", None),
    ("training.compile={}", "a section", None),
    ("training.schedule=[]", "a list", None),
    ("decoding.beam_size=true", "true", None),
    ("model.dropout=1.5", "1.5", None),
    ("tokenizer.vocab_size={source: 3}", '{"source": 3}', None),
    (f"training.loss={'x' * 58}", f"'{'x' * 58}'", None),
    (f"training.loss={'x' * 59}", f"'{'x' * 56}...", None),  # 57 characters with the quote
])  # fmt: skip
def test_a_bad_value_is_shown_with_what_was_probably_meant(
    small: Path, override: str, found: str | None, meant: str | None
) -> None:
    problem = refusal(small, override).problem.removeprefix(f"`set` {override}: ")
    value = re.search(r" is (.*); it must be ", problem)
    assert (value and value[1]) == found
    hint = re.search(r"(?:did you mean |: `set` )(\S+?)(?:\?|\))", problem)
    assert (hint and hint[1]) == meant


def test_overrides_of_a_section_or_of_what_it_agrees_with_carry_problems(small: Path) -> None:
    assert "`set` batch={max_tokens: 1}" in refusal(small, "batch={max_tokens: 1}").problem
    replaced = refusal(small, "batch.max_tokens=1", "batch={max_tokens: 2}").problem
    assert replaced.startswith("`set` batch={max_tokens: 2}: batch.max_tokens is 2")
    train = "data.train=[{tsv: x, columns: [1, -1]}]"
    assert refusal(small, train).problem.startswith(f"`set` {train}: data.train.0.columns is -1")
    # The section may stand in the file: what is wrong with it does not.
    changes = ["training.seed=5", "batch.length_noise=0", "training.average_last=5"]
    shown = "with `set` training.seed=5, training.average_last=5: training: "
    assert f"c.yaml:7 {shown}" in refusal(small, *changes).problem


def size_of(num_characters: int) -> Callable[..., TextSize]:
    return lambda *_: TextSize(num_characters // 80, num_characters)


def test_values_for_the_size_of_the_training_text_fill_in_what_is_omitted(tmp_path: Path) -> None:
    measured = []

    def measure(corpora: Sequence[CorpusConfig], codes: tuple[str, str]) -> TextSize:
        measured.append(([corpus.max_pairs for corpus in corpora], codes))
        return TextSize(90_000, 7_000_000)

    path = written(tmp_path, BARE)
    changes = [
        "data.train=[{demo: train, max_pairs: 5}, {demo: train, max_pairs: 6}]",
        "data.test.t={demo: test, max_pairs: 7}",
        "data.replay={train: [{demo: train, max_pairs: 8}]}",
        "training.seed=7", "model.dropout=0.25",
    ]  # fmt: skip
    choices: list[Choice] = []
    config = load_config(path, changes, measure_text=measure, explain=choices.append)
    assert measured == [([5, 6], ("en", "de"))]
    # More than 6.5 million characters, less than 30 million.
    assert (config.tokenizer.vocab_size, config.batch.max_tokens) == (8000, 4096)
    assert (config.training.max_minutes, config.training.seed) == (45, 7)
    assert (config.training.validate_every, config.training.save_every) == (500, 500)
    assert (config.model.preset, config.model.dropout) == ("tiny", 0.25)
    (choice,) = choices
    assert "90,000 pairs with 7,000,000 characters (size 3 of 4: up to 30,000,000" in choice.reason
    assert choice.values["tokenizer.vocab_size"] == 8000
    assert choice.values["training.schedule.peak_lr"] == 4e-3
    assert "model.dropout" not in choice.values
    assert "training.seed" not in choice.values


OPEN: dict[str, list[dict[str, Any]]] = {
    "training": [
        {"max_minutes": 10}, {"max_steps": 9}, {"max_epochs": 3}, {"seed": 7}, {"patience": 2},
        {"label_smoothing": 0}, {"optimizer": {"kind": "adamw"}}, {"schedule": {"peak_lr": 0.002}},
        {"schedule": {"warmup_steps": 9}}, {"save_every": 9}, {"r_drop_weight": 1},
    ],
    "model": [{"preset": "modern"}, {"dropout": 0.2}, {"encoder_layers": 2}, {"model_dim": 128}],
    "tokenizer": [{"vocab_size": 700}, {"kind": "unigram"}],
    "batch": [{"max_tokens": 1000}],
}  # fmt: skip
SETTINGS = st.fixed_dictionaries(
    {}, optional={section: st.sampled_from(values) for section, values in OPEN.items()}
)


@given(SETTINGS, SETTINGS, st.integers(0, 10**8))
def test_open_keys_have_the_same_values_wherever_the_others_are_set(
    tmp_path_factory: pytest.TempPathFactory, first: Any, second: Any, num_characters: int
) -> None:
    """In the file, in overrides, or some here and some there."""
    folder = tmp_path_factory.mktemp("set")

    def loaded(in_file: Any, overrides: Any) -> RunConfig:
        lines = [f"{key}: {json.dumps(value)}\n" for key, value in in_file.items()]
        path = written(folder, BARE + "".join(lines))
        return load_config(path, overrides, measure_text=size_of(num_characters))

    overrides = [
        f"{section}.{key}={json.dumps(value)}"
        for section, values in second.items()
        for key, value in values.items()
    ]
    both = {key: {**first.get(key, {}), **second.get(key, {})} for key in {**first, **second}}
    expected = loaded(both, [])
    assert loaded(first, overrides) == expected
    assert loaded({}, [f"{key}={json.dumps(value)}" for key, value in both.items()]) == expected


@given(SETTINGS, st.integers(0, 10**8))
def test_a_limit_of_training_changes_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, settings: Any, num_characters: int
) -> None:
    path = written(tmp_path_factory.mktemp("limit"), BARE)
    overrides = [f"{key}={json.dumps(value)}" for key, value in settings.items()]

    def loaded(*limits: str) -> dict[str, Any]:
        measure = size_of(num_characters)
        values = settings_of(load_config(path, [*overrides, *limits], measure_text=measure))
        for key in ("max_minutes", "max_steps", "max_epochs"):
            del values["training"][key]
        return values

    expected = loaded()
    for limit in ("max_minutes=3", "max_steps=100", "max_epochs=2"):
        assert loaded(f"training.{limit}") == expected


def test_a_limit_replaces_the_usual_time(tmp_path: Path) -> None:
    path = written(tmp_path, BARE)

    def limits(*overrides: str) -> tuple[object, ...]:
        training = load_config(path, overrides, measure_text=size_of(0)).training
        return training.max_minutes, training.max_steps, training.max_epochs, training.patience

    assert limits() == (20, None, None, None)
    assert limits("training.max_steps=7") == (None, 7, None, None)
    assert limits("training.max_epochs=7") == (None, None, 7, None)
    assert limits("training.max_steps=null") == (20, None, None, None)
    # Patience is no limit for a schedule that needs one.
    assert limits("training.patience=3") == (20, None, None, 3)
    assert limits("training.patience=3", "model.preset=tiny") == (None, None, None, 3)
    assert limits("model.preset=tiny") == (20, None, None, None)


@pytest.mark.parametrize("keys", [
    ["model.preset=tiny"],
    ["training.init_from=elsewhere"],
    [f"model.{key}=8" for key in (
        "encoder_layers", "decoder_layers", "model_dim", "ff_dim", "num_heads")],
])  # fmt: skip
def test_values_for_the_size_stay_away_from_another_model(tmp_path: Path, keys: list[str]) -> None:
    path = written(tmp_path, SMALL)
    choices: list[Choice] = []
    config = load_config(path, keys, measure_text=must_not_measure, explain=choices.append)
    assert config == load_config(path, keys)
    assert config.training.optimizer == OptimizerConfig()
    (choice,) = choices
    assert not choice.depends_on_text
    assert "general defaults" in choice.reason


def must_not_measure(*_: object) -> NoReturn:
    raise AssertionError("text was read, although no value follows it")


def test_a_text_of_unknown_size_has_the_general_defaults_if_training_has_a_limit(
    tmp_path: Path,
) -> None:
    def measure(*_: object) -> NoReturn:
        raise UnknownSizeError("The size of x is unknown.", fix="Go.")

    path = written(tmp_path, BARE)
    for limit in ("max_minutes=3", "patience=3"):
        changes = [f"training.{limit}"]
        choices: list[Choice] = []
        config = load_config(path, changes, measure_text=measure, explain=choices.append)
        assert config == load_config(path, changes)
        assert [(str(each), each.values) for each in choices] == [(
            "The size of x is unknown. Open keys have the general defaults, for millions of pairs.",
            {},
        )]  # fmt: skip
    with pytest.raises(UnknownSizeError, match="The size of x is unknown"):
        load_config(path, ["training.seed=3"], measure_text=measure)


def test_the_default_rate_depends_on_the_optimizer(tmp_path: Path) -> None:
    path = written(tmp_path, BARE)
    adamw = "training.optimizer.kind=adamw"
    for overrides, expected in (
        ([adamw], ("adamw", 1e-3, 0.06)),  # a rate of Muon would diverge
        (["training.optimizer.kind=muon"], ("muon", 4e-3, 0.06)),
        ([adamw, "training.schedule.peak_lr=2e-3"], ("adamw", 2e-3, 0.06)),
        (["training.schedule.warmup_steps=9"], ("muon", 4e-3, None)),
        (["training.schedule=null"], ("muon", 4e-3, 0.06)),
    ):
        training = load_config(path, overrides, measure_text=size_of(0)).training
        schedule = training.schedule
        assert (training.optimizer.kind, schedule.peak_lr, schedule.warmup_ratio) == expected
        assert schedule.shape == "linear"


def test_absent_files_are_told_with_other_problems_and_are_needed_only_for_the_time(
    tmp_path: Path,
) -> None:
    checked = []

    def check(corpora: Mapping[str, CorpusConfig]) -> None:
        checked.append([*corpora])
        raise DataError("data.train.0.source: a is absent.\n  data.valid: b is absent.", fix="Go.")

    path = written(tmp_path, SMALL)
    choices: list[Choice] = []
    config = load_config(
        path, measure_text=must_not_measure, check_files=check, explain=choices.append
    )
    assert config == load_config(path)
    assert "data.train.0.source: a is absent. Open keys have the general" in str(choices[0])
    assert checked == [["data.train.0", "data.valid"], ["data.train.0"]]
    with pytest.raises(ConfigError) as caught:
        load_config(path, ["training.seed=-1"], check_files=check)
    first, *problems = caught.value.problem.splitlines()
    assert first.startswith("3 problems")
    assert [line.split(": ")[-1] for line in problems[1:]] == ["a is absent.", "b is absent."]
    assert {len(line) - len(line.lstrip()) for line in problems} == {2}  # they stand in one list
    path = written(tmp_path, BARE)
    with pytest.raises(DataError, match="a is absent"):
        load_config(path, measure_text=must_not_measure, check_files=check)


def test_a_missing_validation_set_does_not_hide_the_size_of_the_text(tmp_path: Path) -> None:
    def check(corpora: Mapping[str, CorpusConfig]) -> None:
        if "data.valid" in corpora:
            raise DataError("data.valid: b is absent.", fix="Go.")

    config = load_config(written(tmp_path, BARE), measure_text=size_of(0), check_files=check)
    assert config.model.preset == "tiny"


def test_a_model_to_start_from_gives_its_sections_for_omitted_keys(small: Path) -> None:
    """None of its architecture if a preset is chosen; no tags of a vocabulary that it lacks."""
    start = small.with_name("start")
    start.mkdir()
    changes = [
        "model.preset=modern", "model.dropout=0.25", "tokenizer.vocab_size=700",
        "decoding.beam_size=2", "data.language_tags=both", "filters.max_length=99",
    ]  # fmt: skip
    parent = load_config(small, changes)
    written(start, dump_config(parent)).rename(start / "config.yaml")

    def tuned(*overrides: str) -> RunConfig:
        return load_config(small, [f"training.init_from={start}", *overrides])

    plain = tuned("model.dropout=0.3")
    assert plain.model == parent.model.model_copy(update={"dropout": 0.3})
    assert (plain.tokenizer, plain.decoding) == (parent.tokenizer, parent.decoding)
    assert (plain.data.language_tags, plain.filters.max_length) == ("both", 256)
    assert tuned("model.preset=tiny").model == ModelConfig(preset="tiny")
    new = tuned("training.init_differences=[vocabulary]")
    assert (new.tokenizer, new.data.language_tags) == (TokenizerConfig(), None)
    assert (new.model, new.decoding) == (parent.model, parent.decoding)


def test_a_shipped_configuration_finds_its_corpora_from_any_folder() -> None:
    train = load_config("configs/hello.yaml").data.train[0]
    assert train.source[0].is_file()


def test_a_change_to_sampling_leaves_out_only_the_options_of_beam_search() -> None:
    kept = {"beam_size": 4, "length_penalty": 0.6, "no_repeat_ngram_size": 3}
    beams = {"coverage_penalty": 0.2, "patience": 3.0, "diverse_beam_groups": 2}
    options = DecodingConfig.model_validate({**kept, **beams})
    for way in ("sampling", "return_alternatives"):
        expected = DecodingConfig.model_validate({**kept, way: True})
        assert change_options(options, {way: True}) == expected
    wider = DecodingConfig.model_validate({**kept, **beams, "beam_size": 6})
    assert change_options(options, {"beam_size": 6}) == wider
    with pytest.raises(ConfigError) as caught:
        change_options(options, {"sampling": True, "top_p": 2.0, "temprature": 0.5})
    assert "top_p is 2.0" in caught.value.problem
    assert "unknown option temprature; did you mean temperature?" in caught.value.problem
    assert "?." not in caught.value.problem


def test_overrides_without_an_effect_on_a_trained_model_are_all_refused(small: Path) -> None:
    used = ["decoding={beam_size: 2}", "decoding.n_best=2", "target_language=fr"]
    idle = ["tokenizer.vocab_size=900", "model={preset: tiny}"]
    read = ("decoding", "target_language")
    config, _ = load_inference(small, used, read=read)
    assert (config.decoding.beam_size, config.decoding.n_best) == (2, 2)
    assert config.target_language == "fr"
    with pytest.raises(ConfigError) as caught:
        load_inference(small, [*used, *idle], read=read)
    assert [text in caught.value.problem for text in (*used, *idle)] == [False] * 3 + [True] * 2


def test_long_keys_are_refused_in_short_time(tmp_path: Path) -> None:
    """Comparing a key of 50,000 characters with all keys took 43 seconds."""
    text = "".join(f"? {letter * 50_000}\n: 1\n" for letter in "abc")
    assert "unknown key aaa" in refusal(written(tmp_path, text)).problem


@pytest.mark.parametrize("text", ["", "just text", "[1, 2]", "3"])
def test_a_file_without_keys_is_refused(tmp_path: Path, text: str) -> None:
    assert str(tmp_path / "c.yaml") in refusal(written(tmp_path, text)).problem


LOOK_ALIKES = ["no", "yes", "on", "null", "~", "1e5", "1:30", "0x1f", "2026-11-21", "1_000", "="]
SCALARS = st.one_of(
    *(st.none(), st.booleans(), st.integers(-(10**30), 10**30), st.floats(allow_nan=False)),
    *(st.text(), st.sampled_from(LOOK_ALIKES)),
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
)


@FEW
@given(st.dictionaries(st.text(), VALUES))
def test_what_is_dumped_is_read_back_to_equal_values(values: dict[str, Any]) -> None:
    assert parse_document(dump_document(values), name="x").values == values


@pytest.mark.parametrize(("text", "value"), [
    ("no", "no"), ("yes", "yes"), ("true", True), ("True", True), ("FALSE", False),
    ("5e-4", 5e-4), ("1e5", 100_000),
    ("2_000_000", 2_000_000), (".5", 0.5), ("1:30", "1:30"), ("2026-11-21", "2026-11-21"),
    ("'5'", "5"), ("~", None), ("-3", -3), ("1e500", float("inf")), ("9" * 10_000, "9" * 10_000),
])  # fmt: skip
def test_plain_scalars_are_those_of_yaml_1_2(text: str, value: object) -> None:
    found = parse_document(f"key: {text}", name="x").values["key"]
    assert found == value
    assert type(found) is type(value)


def test_every_value_remembers_its_line() -> None:
    lines = parse_document("a: 1\nb:\n  c:\n    - x\n    - y\n", name="x").lines
    assert (lines["a",], lines["b", "c"], lines["b", "c", 1]) == (1, 3, 5)


# Nine levels of nine references would be 387 million values.
BOMB = ["a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
BOMB += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("training:\n  max_steps: 3\n  seed: 1\n  seed: 2\n",
         "a.yaml:4: the key training.seed repeats line 3"),
        ("x: 1\nseed: !!python/object/apply:os.mkdir ['made']\n",
         "a.yaml:2: the tag !!python/object/apply:os.mkdir is not allowed"),
        ("key: !!set {a}", "is not allowed"),
        ("key: !!binary aGk=", "is not allowed"),
        ("\n".join(BOMB), "aliases expand, too far"),
        ("a: &a [*a]", "aliases expand, too far"),
        ("training:\n\tseed: 1\n", "a.yaml:2: found a tab"),
        ("[" * 1000, "nested too deeply"),
        ("? [a, b]\n: 1\n", "a key must be plain text"),
        ("a: [1", "invalid YAML"),
        ("\x00", "a.yaml: "),
        ("a: *nowhere", "invalid YAML"),
        ("--- a\n--- b", "invalid YAML"),
    ],
)  # fmt: skip
def test_hostile_and_broken_text_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    """FAULTS 48: and nothing in it runs."""
    with pytest.raises(ConfigError) as caught:
        parse_document(text, name="a.yaml")
    assert "a.yaml" in caught.value.problem
    assert problem in caught.value.problem
    assert ("tab" in problem) == ("spaces" in caught.value.fix)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["C:\\Users\\me", "D:\\my data"])
def test_a_path_of_windows_in_double_quotes_gets_advice_that_works(path: str) -> None:
    """YAML reads its backslashes as escapes."""
    with pytest.raises(ConfigError, match="escape") as caught:
        parse_document(f'a: "{path}"', name="a.yaml")
    assert "single quotes, or without quotes" in caught.value.fix
    assert parse_document(f"a: '{path}'\nb: {path}", name="a.yaml").values == {"a": path, "b": path}


@pytest.mark.parametrize(("content", "problem"), [
    (None, "No such file or directory"),
    (b"name: \xff\n", "byte 6 is not UTF-8"),
    (b"x" * (MAX_BYTES + 1), "is larger than 1,048,576 bytes"),
])  # fmt: skip
def test_an_unreadable_file_is_named(tmp_path: Path, content: bytes | None, problem: str) -> None:
    """FAULTS 48."""
    path = tmp_path / "a.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=problem) as caught:
        read_document(path)
    assert str(path) in caught.value.problem


def test_a_byte_order_mark_is_stripped_and_an_honest_alias_works(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: &x {path: p}\nb: *x\n")
    assert read_document(path).values == {"a": {"path": "p"}, "b": {"path": "p"}}


@pytest.mark.parametrize("section", ["{<<: *x, q: 3, r: 4}", "{q: 3, r: 4, <<: *x}"])
def test_a_section_takes_the_values_of_another_one_that_it_does_not_have(section: str) -> None:
    document = parse_document(f"a: &x {{p: 1, q: 2}}\nb:\n  {section}\n", name="c")
    assert document.values == {"a": {"p": 1, "q": 2}, "b": {"p": 1, "q": 3, "r": 4}}
    assert parse_document(
        "a: &x {p: 1, q: 2}\nb: &y {q: 3, r: 4}\nc: {<<: [*x, *y], r: 5}\n", name="c"
    ).values["c"] == {"p": 1, "q": 2, "r": 5}  # the first section has precedence
    lines = [document.place(("b", key)).text for key in ("p", "q", "r")]
    assert lines == ["c:2", "c:3", "c:3"]  # of the section, where the value is not written
