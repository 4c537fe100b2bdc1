from __future__ import annotations

import re
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

import nmt.registry
from nmt.config.data import (
    BatchConfig,
    CorpusConfig,
    DataConfig,
    FilterConfig,
    LanguageTags,
    NoiseConfig,
    TokenizerConfig,
    chosen_tags,
    language_symbol,
    tag_symbol,
    tagged_languages,
)
from nmt.config.filling import MODEL_PRESETS, filled_in, usual_vocab_size, with_scale
from nmt.config.keys import find_key
from nmt.config.model import DecodingConfig, ModelConfig
from nmt.config.run import RunConfig, check_languages, name_of_folder
from nmt.config.section import Binds, Free, Registered, Section, bound_values, mark_of
from nmt.config.training import (
    OptimizerConfig,
    ScheduleConfig,
    TrainingConfig,
    ValidationConfig,
    full_device_name,
    full_dtype_name,
)
from nmt.errors import ConfigError
from nmt.registry import Registry, load_attribute, names_of

DATA: dict[str, Any] = {"train": [{"demo": "train"}], "valid": {"demo": "valid"}}
RUN: dict[str, Any] = {
    "name": "x", "source_language": "de", "target_language": "en", "data": DATA,
    "training": {"max_steps": 1},
}  # fmt: skip
AUTO: dict[str, Any] = {"max_tokens": "auto", "tokens_per_update": 900}
SIZES = {"source": 400, "target": 300}
SCHEDULE_FREE: dict[str, Any] = {
    "max_steps": 1, "optimizer": {"kind": "schedule-free"}, "schedule": {"shape": "constant"},
}  # fmt: skip
LEARNED: dict[str, Any] = {"positions": "learned", "max_positions": 257}
TUNED: dict[str, Any] = {"max_steps": 1, "init_from": "m"}
FRENCH = {"demo": "valid", "source_language": "fr"}
A = {"mix": {"a": 1.0}}


def staged(*stages: dict[str, Any], second: str = "b", **others: Any) -> dict[str, Any]:
    """A curriculum of two corpora."""
    train = [{"demo": "train", "name": name} for name in ("a", second)]
    return {**DATA, "train": train, "stages": stages, **others}


def named(error: ValidationError) -> set[str]:
    """Return the keys, values and numbers that an error names, without the input that it shows."""
    words: set[str] = set()
    for each in error.errors():
        path = ".".join(str(part) for part in each["loc"])
        words.add(path)
        words.update(re.findall(r"[\w.-]*\w", each["msg"]))
    return words


TOLD = re.compile(r"(?<!x )\b([a-z][a-z_.]*) (?:is |\()(\d+(?:\.\d+)?)\b")
"""A key and its value in a message, such as ``n_best (6)``, but not in a product."""


def value_of(section: type[BaseModel], values: Any, path: str) -> Any:
    """Return the given value of a key, or its default; None if there is no such key."""
    name, _, rest = path.partition(".")
    field = section.model_fields.get(name)
    if field is None:
        return None
    given = values.get(name, field.default)
    if not rest:
        return given
    inner = type(field.default)
    return value_of(inner, given if isinstance(given, dict) else given.model_dump(), rest)


def assert_values_are_told_right(
    error: ValidationError, section: type[BaseModel], values: Any
) -> None:
    for each in error.errors():
        for path, text in TOLD.findall(each["msg"]):
            value = value_of(section, values, path)
            if type(value) in (int, float):
                assert float(text) == value, (path, each["msg"])


@pytest.mark.parametrize(("section", "values", "names"), [
    (CorpusConfig, {}, "source target path huggingface sacrebleu demo"),
    (ValidationConfig, {"command": "a --to={references} {hypothesis} '{x} y'"},
     "command references source hypothesis reference"),
    (CorpusConfig, {"demo": "train", "tsv": "a.tsv"}, "path demo found"),
    (CorpusConfig, {"source": "a"}, "source target"),
    (CorpusConfig, {"demo": "train", "subset": "de-en"}, "subset huggingface"),
    (CorpusConfig, {"tsv": "a", "columns": [-1, 0]}, "columns.0.constrained-int"),
    (DataConfig, {**DATA, "test": {"a b": {"demo": "test"}}}, "test a b"),
    (DataConfig, {**DATA, "valid": {"demo": "valid", "noise": {"typos": 0.1}}}, "valid noise"),
    (DataConfig, {**DATA, "valid": []}, "valid"),
    (DataConfig, {**DATA, "replay": {"train": DATA["train"]}, "temperature": 5.0},
     "replay temperature"),
    (DataConfig, {**DATA, "valid": {"demo": "valid", "name": "a"}, "test": {"a": {"demo": "test"}}},
     "valid test a"),
    (TrainingConfig, {"max_steps": 1, "init_differences": ["layers"]},
     "init_differences init_from"),
    (DecodingConfig, {"n_best": 6}, "n_best beam_size 5"),
    (DecodingConfig, {"n_best": 3, "patience": 0.5}, "n_best patience beam_size 2.5"),
    (DecodingConfig, {"diverse_beam_groups": 2}, "diverse_beam_groups beam_size 5"),
    (DecodingConfig, {"temperature": 0.5, "top_k": 3}, "temperature top_k sampling true"),
    (DecodingConfig, {"sampling": True, "patience": 3.0}, "patience sampling false"),
    (DecodingConfig, {"sampling": True, "return_alternatives": True},
     "sampling return_alternatives"),
    (DecodingConfig, {"return_alternatives": True, "prefix_bias_beta": 0.5},
     "return_alternatives prefix_bias_beta 0"),
    (ModelConfig, {"num_heads": 3}, "num_heads 3 512 2 510"),
    (ModelConfig, {"model_dim": 100, "positions": "rotary"}, "num_heads 10 96"),
    (ModelConfig, {"model_dim": 2}, "num_heads 2 8"),
    (ModelConfig, {"num_kv_heads": 3}, "num_kv_heads num_heads 8 2"),
    (ModelConfig, {"model_dim": 5, "num_heads": 1}, "sinusoidal 4"),
    (ModelConfig, {"decoder_model_dim": 256}, "tied decoder_model_dim model_dim"),
    (ModelConfig, {"decoder_model_dim": 256, "embeddings": "inputs-shared"},
     "inputs-shared decoder_model_dim model_dim"),
    (ModelConfig, {"positions": "rotary", "model_dim": 24}, "rotary 32"),
    (TrainingConfig, {}, "max_steps max_minutes max_epochs patience"),
    (TrainingConfig, {"patience": 3, "schedule": {"shape": "cosine"}},
     "schedule.shape cosine max_steps"),
    (TrainingConfig, {**SCHEDULE_FREE, "schedule": {"shape": "cosine"}},
     "optimizer.kind schedule.shape constant cosine"),
    (TrainingConfig, {**SCHEDULE_FREE, "ema_decay": 0.99}, "optimizer.kind ema_decay"),
    (TrainingConfig, {"max_steps": 1, "average_last": 5}, "average_last keep_last 5"),
    (TrainingConfig, {"max_steps": 1, "trackers": ["wandbb"]},
     "trackers.0 tensorboard wandb mlflow trackio"),
    (ValidationConfig, {"metric": "command"}, "metric command"),
    (ValidationConfig, {"command": "score.py {source}"}, "command hypothesis"),
    (OptimizerConfig, {"betas": [0.9, 1.0]}, "betas.1 1"),
    (BatchConfig, {"max_tokens": None}, "max_tokens null max_sentences 128"),
    (BatchConfig, {"max_tokens": "auto"}, "max_tokens auto tokens_per_update"),
    (BatchConfig, {**AUTO, "max_sentences": 9}, "max_tokens auto max_sentences"),
    (TokenizerConfig, {"vocab_size": 200}, "vocab_size byte_fallback 256 300"),
    (TokenizerConfig, {"kind": "word", "vocab_size": 200}, "vocab_size byte_fallback 261"),
    (TokenizerConfig, {"vocab_size": SIZES}, "vocab_size joint false"),
    (TokenizerConfig, {"joint": False, "vocab_size": {"source": 400}}, "vocab_size both"),
    (FilterConfig, {"script": {"limit": 3}}, "script limit 3 0 1"),
    (FilterConfig, {"lexical": {"limit": 0.1}}, "lexical limit 0.1 0"),
    (TokenizerConfig, {"pad_vocab_by": SIZES}, "pad_vocab_by joint false"),
    (TokenizerConfig, {"vocab_size": 400, "pad_vocab_by": 101}, "pad_vocab_by 100 vocab_size 400"),
    (DataConfig, {**DATA, "test": {"a": {"demo": "test", "scores": "s"}}}, "a scores"),
    (DataConfig, staged({"mix": {"b": 1, "c": 1}}), "stages.0.mix c a b"),
    (DataConfig, staged(A, A), "stages.0.until steps corpus"),
    (DataConfig, staged({**A, "until": {"a": 1, "steps": 9}}), "stages.0.until exactly"),
    (DataConfig, staged({**A, "until": {"b": 1}}), "stages.0.until b"),
    (DataConfig, staged({**A, "until": {"steps": 1.5}}), "stages.0.until steps whole"),
    (DataConfig, staged(A, second="a"), "stages different names"),
    (DataConfig, staged(A, temperature=2.0), "temperature stages"),
    (DataConfig, staged(A, replay={"train": DATA["train"]}), "replay stages"),
    (TrainingConfig, {"max_steps": 1, "lora": {}}, "lora init_from"),
    (TrainingConfig, {**TUNED, "lora": {}, "init_differences": ["layers"]},
     "lora init_differences"),
    (DecodingConfig, {"return_alternatives": True, "coverage_penalty": 0.1},
     "coverage_penalty 0.1 return_alternatives false"),
    (TrainingConfig, {"patience": 3, "schedule": {"warmup_ratio": 0.1}},
     "schedule.warmup_ratio max_steps"),
    (TrainingConfig, {"max_steps": 1, "schedule": {"warmup_ratio": 9.0}},
     "warmup_ratio 9 warmup_steps"),
    (TrainingConfig, {"max_steps": 1, "schedule": {"warmup_steps": 0}},
     "schedule.shape inverse_sqrt warmup_steps"),
    (TrainingConfig, {**SCHEDULE_FREE, "optimizer": {"kind": "schedule-free", "betas": [0, 0.9]}},
     "optimizer.kind optimizer.betas 0"),
    (BatchConfig, {**AUTO, "gradient_accumulation": 2}, "max_tokens auto gradient_accumulation"),
    (BatchConfig, {"tokens_per_update": 900}, "tokens_per_update max_tokens auto"),
])  # fmt: skip
def test_a_rule_between_keys_is_explained(
    section: type[BaseModel], values: dict[str, Any], names: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        section.model_validate(values)
    assert set(names.split()) <= named(caught.value)
    assert_values_are_told_right(caught.value, section, values)


@pytest.mark.parametrize(("values", "names"), [
    ({"name": "../x"}, "name"),
    ({"source_language": "German!"}, "source_language"),
    ({"target_language": "de", "batch": {"max_tokens": 400}},
     "source_language target_language de batch.max_tokens 514 filters.max_length"),
    ({"run_dir": "x", "prepared_dir": "x"}, "prepared_dir run_dir x"),
    (
        {"tokenizer": {"joint": False}, "model": {"embeddings": "tied"}},
        "model.embeddings tied tokenizer.joint decoder-tied",
    ),
    ({"filters": {"min_length": 300}}, "filters.min_length filters.max_length 256"),
    ({"batch": {"bpe_dropout": 0.1}, "tokenizer": {"kind": "unigram"}},
     "batch.bpe_dropout tokenizer.kind bpe unigram"),
    ({"data": {**DATA, "valid": {"demo": "valid", "tag": "fr"}}}, "data.valid.tag fr none"),
    ({"data": {**DATA, "valid": [DATA["valid"], {"demo": "valid", "target_language": "fr"}]}},
     "data.valid.1 fr data.train en"),
    ({"tokenizer": {"joint": False}, "model": {"embeddings": "inputs-shared"}},
     "model.embeddings inputs-shared tokenizer.joint separate"),
    ({"batch": {**AUTO, "tokens_per_update": 400}}, "batch.tokens_per_update 400 514"),
    ({"data": {**DATA, "valid": FRENCH, "language_tags": "both"}},
     "data.valid fr source data.train de"),
    ({"data": {**DATA, "train": [{"demo": "train", "target_language": "de"}]}},
     "data.train.0 source_language target_language de"),
    ({"model": {**LEARNED, "max_positions": 256}},
     "model.max_positions 256 257 filters.max_length"),
    ({"model": {**LEARNED, "source_bos": True}}, "model.max_positions 257 258"),
    ({"model": {**LEARNED, "first_position": 1}}, "model.max_positions 257 258"),
])  # fmt: skip
def test_a_rule_between_sections_is_explained(values: dict[str, Any], names: str) -> None:
    with pytest.raises(ValidationError) as caught:
        RunConfig.model_validate({**RUN, **values})
    assert set(names.split()) <= named(caught.value)
    assert_values_are_told_right(caught.value, RunConfig, {**RUN, **values})


@pytest.mark.parametrize(("section", "values"), [
    # The last stage may have no end.
    (DataConfig, staged({**A, "until": {"steps": 9}}, {**A, "until": {"a": 0.5}},
                        {**A, "until": {"steps": 20}}, A)),
    # Without tags of the source, its language is free.
    (RunConfig, {**RUN, "data": {**DATA, "valid": FRENCH}}),
    # A model to start from may know other tags and languages.
    (RunConfig, {**RUN, "training": TUNED, "data": {**DATA, "valid": {**FRENCH, "tag": "med"}}}),
    (RunConfig, {**RUN, "training": TUNED,
                 "data": {**DATA, "valid": {"demo": "valid", "target_language": "fr"}}}),
    # A small share of the updates is one update, as inverse_sqrt needs.
    (TrainingConfig, {"max_steps": 9, "schedule": {"warmup_ratio": 0.06, "warmup_steps": 0}}),
    (TrainingConfig, {"patience": 3}),
    (TrainingConfig, {**TUNED, "lora": {}}),
    (TrainingConfig, SCHEDULE_FREE),
    (ValidationConfig, {"metric": "comet:some/model"}),
    (BatchConfig, AUTO),
    (DecodingConfig, {"sampling": True, "n_best": 9}),
    (DecodingConfig, {"beam_size": 4, "diverse_beam_groups": 2}),
    # Numbers at the limit that another key sets.
    (TrainingConfig, {"max_steps": 1, "average_last": 5, "keep_last": 5}),
    (DecodingConfig, {"n_best": 5}),
    (DecodingConfig, {"n_best": 2, "beam_size": 4, "patience": 0.5}),
    (DecodingConfig, {"return_alternatives": True, "n_best": 9}),
    (DecodingConfig, {"beam_size": 4, "diverse_beam_groups": 4}),
    (TokenizerConfig, {"vocab_size": 300}),
    (TokenizerConfig, {"vocab_size": 261, "kind": "char"}),
    (TokenizerConfig, {"vocab_size": 5, "byte_fallback": False}),
    (TokenizerConfig, {"vocab_size": 400, "pad_vocab_by": 100}),
    (TokenizerConfig, {"joint": False, "vocab_size": SIZES, "pad_vocab_by": {"source": 100,
                                                                             "target": 0}}),
    *((FilterConfig, {name: {"limit": limit}}) for name, limit in (
        ("script", 0), ("script", 1), ("lexical", 0), ("near_duplicate", 0.5), ("boilerplate", 2),
        ("language", 1),
    )),
    (RunConfig, {**RUN, "batch": {"max_tokens": 514}}),  # 2 x 256, and two ends
    (RunConfig, {**RUN, "batch": {"max_tokens": 515}, "model": {"source_bos": True}}),
    (RunConfig, {**RUN, "batch": {**AUTO, "tokens_per_update": 514}}),
    (RunConfig, {**RUN, "filters": {"min_length": 256}}),
    (RunConfig, {**RUN, "model": LEARNED}),
    (RunConfig, {**RUN, "model": {**LEARNED, "max_positions": 258, "source_bos": True}}),
    (RunConfig, {**RUN, "model": {**LEARNED, "max_positions": 259, "first_position": 2}}),
    (RunConfig, {**RUN, "model": {"embeddings": "decoder-tied"}, "tokenizer": {"joint": False}}),
    (RunConfig, {**RUN, "batch": {"bpe_dropout": 0.1}}),
    (RunConfig, {**RUN, "tokenizer": {"kind": "unigram"}}),
])  # fmt: skip
def test_what_no_rule_refuses_is_valid(section: type[BaseModel], values: dict[str, Any]) -> None:
    section.model_validate(values)


def test_what_follows_from_several_keys() -> None:
    assert ScheduleConfig(warmup_ratio=0.06, warmup_steps=9).warmup_updates(5) == 1  # not 0.3
    assert ScheduleConfig(warmup_ratio=0.06, warmup_steps=9).warmup_updates(None) == 9
    learned = ModelConfig.model_validate({**LEARNED, "first_position": 2})
    assert learned.position_limit == 255  # the positions 2 to 256
    assert ModelConfig(first_position=2).position_limit is None
    narrow = ModelConfig(decoder_model_dim=256, embeddings="separate")
    assert (narrow.model_dim, narrow.decoder_dim, narrow.decoder_ff) == (512, 256, 2048)
    ways: tuple[dict[str, Any], ...] = ({}, {"sampling": True}, {"return_alternatives": True})
    decoding = [DecodingConfig.model_validate({"n_best": 3, **way}) for way in ways]
    assert [each.num_hypotheses for each in decoding] == [5, 3, 3]
    sets = [DATA["valid"]] * 2
    replay = {"train": DATA["train"], "valid": sets}
    values = {**DATA, "train": [{"demo": "train"}] * 2, "test": {"a": DATA["valid"]}}
    assert [*DataConfig.model_validate({**values, "replay": replay}).corpora] == [
        "data.train.0", "data.train.1", "data.replay.train.0", "data.valid",
        "data.replay.valid.0", "data.replay.valid.1", "data.test.a",
    ]  # fmt: skip


def test_what_follows_from_a_single_key() -> None:
    names = [ValidationConfig(metric=metric).metric_name for metric in ("comet:a/b:c", "chrf++")]
    assert names == ["comet", "chrf++"]
    kinds = ("tied", "inputs-shared", "decoder-tied", "separate")
    models = [ModelConfig.model_validate({"embeddings": kind}) for kind in kinds]
    assert [each.shares_inputs for each in models] == [True, True, False, False]
    assert [each.ties_output for each in models] == [True, False, True, False]
    starts: tuple[tuple[dict[str, Any], bool], ...] = (
        ({}, False),
        ({"init_from": "m"}, True),
        ({"init_from": "m", "init_differences": ["layers"]}, True),
        ({"init_from": "m", "init_differences": ["layers", "vocabulary"]}, False),
    )
    for start, expected in starts:
        assert TrainingConfig.model_validate({"max_steps": 1, **start}).keeps_vocabulary == expected
    noise = {"upper_case": 0.5, "title_case": 0.0, "spacing": 0.25}
    assert NoiseConfig.model_validate(noise).rates == {"upper_case": 0.5, "spacing": 0.25}
    assert NoiseConfig().rates == {}
    corpora = [CorpusConfig(demo="train", tag=tag) for tag in (None, "bt", "<bt>", ">>bt<<")]
    assert [each.symbol for each in corpora][:3] == ["", "<bt>", "<bt>"]
    sides = {"joint": False, "vocab_size": SIZES, "pad_vocab_by": {"source": 9, "target": 0}}
    assert TokenizerConfig.model_validate(sides).unused == (9, 0)
    assert TokenizerConfig(pad_vocab_by=7).unused == (7, 7)
    smallest = {
        (kind, has_bytes): TokenizerConfig(kind=kind, byte_fallback=has_bytes).min_vocab_size
        for kind in ("bpe", "unigram", "word", "char")
        for has_bytes in (True, False)
    }
    assert {number for (_, has_bytes), number in smallest.items() if not has_bytes} == {5}
    assert [smallest[kind, True] for kind in ("bpe", "unigram", "word", "char")] == [
        300, 300, 261, 261,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("tags", "first", "last"),
    [(None, None, None), ("source", "fr", None), ("target", None, "fr"), ("both", "de", "fr")],
)
def test_each_side_begins_with_the_tag_that_its_place_says(
    tags: LanguageTags | None, first: str | None, last: str | None
) -> None:
    assert tagged_languages(tags, ("de", "fr")) == (first, last)
    assert chosen_tags(tags, [("de", "fr"), ("en", "fr")]) == tags
    assert chosen_tags(tags, [("de", "fr"), ("de", "en")]) == (tags or "source")


def test_a_tag_is_found_in_every_way_of_writing_and_the_plainest_first() -> None:
    symbols = ["x", "<2x>", "<x>", ">>x<<"]
    for start in range(4):
        assert tag_symbol("x", reversed(symbols[start:])) == symbols[start]
    assert tag_symbol("x", ["<3x>", "xx"]) is None


SCALE_LIMITS = ((1, 0), (10**6, 0), (10**6 + 1, 1), (6_500_000, 1), (6_500_001, 2),
                (30 * 10**6, 2), (30 * 10**6 + 1, 3), (10**12, 3))  # fmt: skip


@pytest.mark.parametrize(("num_characters", "place"), SCALE_LIMITS)
def test_the_size_of_the_corpus_chooses_what_is_not_given(num_characters: int, place: int) -> None:
    """Larger corpora have larger vocabularies, batches and times; own values come first."""
    bare = {key: value for key, value in RUN.items() if key != "training"}
    config = RunConfig.model_validate(with_scale(bare, num_characters))
    assert config.tokenizer.vocab_size == (2000, 4000, 8000, 32_000)[place]
    assert config.batch.max_tokens == (2048, 2048, 4096, 16_384)[place]
    assert config.model.dropout == (0.3, 0.1, 0.1, 0.1)[place]
    assert config.model.preset == ("tiny", "tiny", "tiny", "transformer-base")[place]
    training = config.training
    assert training.max_minutes == (20, 20, 45, 1440)[place]
    assert training.r_drop_weight == (3.0, 0, 0, 0)[place]
    assert training.optimizer.kind == ("muon", "muon", "muon", "adamw")[place]
    assert training.schedule.peak_lr == (4e-3, 4e-3, 4e-3, 7e-4)[place]
    assert training.validate_every == training.save_every == (500, 500, 500, 1000)[place]
    own = {**bare, "model": {"dropout": 0.2}, "training": {"max_minutes": 7, "save_every": 9}}
    given = RunConfig.model_validate(with_scale(own, num_characters))
    assert (given.model.dropout, given.training.max_minutes) == (0.2, 7)
    assert (given.training.save_every, given.training.validate_every) == (9, training.save_every)


def test_another_optimizer_or_warm_up_takes_no_rate_that_belongs_to_the_usual_one() -> None:
    usual = {
        "optimizer": {"kind": "muon", "newton_schulz_steps": 3},
        "schedule": {"shape": "linear", "peak_lr": 4e-3, "warmup_ratio": 0.06},
    }
    same = filled_in({"optimizer": {"kind": "muon", "momentum": 0.5}}, usual)
    assert same["optimizer"] == {"kind": "muon", "momentum": 0.5, "newton_schulz_steps": 3}
    assert same["schedule"] == usual["schedule"]
    other = filled_in({"optimizer": {"kind": "adamw"}}, usual)
    assert other["optimizer"] == {"kind": "adamw"}
    assert other["schedule"] == {**usual["schedule"], "peak_lr": 1e-3}
    warm = filled_in({"schedule": {"warmup_steps": 9}}, usual)
    assert warm["schedule"] == {"shape": "linear", "peak_lr": 4e-3, "warmup_steps": 9}
    assert filled_in({"schedule": None}, usual) == usual
    assert filled_in({"schedule": "fast"}, usual)["schedule"] == "fast"  # refused later


def test_short_forms_mean_their_full_values() -> None:
    names = [full_dtype_name(name) for name in ("bf16", "fp16", "half", "fp32", "float32", "auto")]
    assert names == ["bfloat16", "float16", "float16", "float32", "float32", "auto"]
    devices = [full_device_name(name) for name in ("gpu", "gpu:12", "cpu", "gpus", "cuda:1", 3)]
    assert devices == ["cuda", "cuda:12", "cpu", "gpus", "cuda:1", 3]
    short = {"max_steps": 1, "precision": "bf16", "device": "gpu:1"}
    full = {"max_steps": 1, "precision": "bfloat16", "device": "cuda:1"}
    assert TrainingConfig.model_validate(short) == TrainingConfig.model_validate(full)
    off = {"url": "off", "markup": "off"}
    assert FilterConfig.model_validate(dict.fromkeys(off, False)) == FilterConfig.model_validate(
        off
    )


def test_the_tags_of_corpora_are_symbols_unless_others_are_chosen() -> None:
    train = [{"demo": "train", "tag": tag} for tag in ("bt", "<med>", "bt")]
    values = {**RUN, "data": {**DATA, "train": train}}
    assert RunConfig.model_validate(values).tag_symbols == (("<bt>", "<med>"), ())
    values["tokenizer"] = {"user_defined_symbols": ["<med>", "<law>", "<bt>", "__URL__"]}
    own = ("<med>", "<law>", "<bt>", "__URL__")
    assert RunConfig.model_validate(values).tag_symbols == (own, own)


def test_a_folder_gives_a_valid_name() -> None:
    names = [name_of_folder(Path(text)) for text in ("/a/my runs (2)", "/a/.x_1-", "/a/実験", "/")]
    assert names == ["my-runs-2", "x_1", "model", "model"]
    for name in names:
        RunConfig.model_validate({**RUN, "name": name})


def test_the_usual_vocabulary_is_nearest_as_a_share_of_its_size() -> None:
    # 2000 (n / 5000)^0.4 is 2,667 for n = 5000 (4/3)^2.5 = 10,264: a third of 2,000 above it, and
    # a third of 4,000 below that.
    assert [usual_vocab_size(number) for number in (10_240, 10_290)] == [2000, 4000]
    assert [usual_vocab_size(number) for number in (1, 10**9)] == [500, 32_000]


PAIRS = st.lists(st.permutations(["de", "en", "fr"]).map(lambda x: x[:2]), min_size=1)


@given(PAIRS, st.sampled_from(["source", "target", "both", None]), st.booleans())
def test_a_new_vocabulary_has_exactly_the_tags_that_the_corpora_begin_with(
    pairs: list[list[str]], mode: LanguageTags | None, joint: bool
) -> None:
    keys = ("source_language", "target_language")
    train = [{"demo": "train", **dict(zip(keys, pair, strict=True))} for pair in pairs]
    languages = dict(zip(keys, pairs[0], strict=True))
    data = {"train": train, "valid": {"demo": "valid"}, "language_tags": mode}
    tied = {"embeddings": "decoder-tied"}
    changes = {"data": data, "tokenizer": {"joint": joint}, "model": tied}
    config = RunConfig.model_validate({**RUN, **languages, **changes})
    has_several = len({target for _, target in pairs}) > 1
    assert config.language_tags == (mode or ("source" if has_several else None))
    needed: tuple[set[str], set[str]] = set(), set()
    for source, target in pairs:
        first = {"source": target, "both": source}.get(config.language_tags or "")
        needed[0].update([f"<2{first}>"] if first else [])
        needed[0 if joint else 1].update([f"<2{target}>"] if mode in ("target", "both") else [])
    assert tuple(map(set, config.tag_symbols))[: 1 if joint else 2] == needed[: 1 if joint else 2]
    codes = [config.direction(corpus) for corpus in config.data.train]
    assert config.directions == tuple(dict.fromkeys(codes))


def test_a_code_finds_the_only_tag_of_its_language() -> None:
    tags = ["<2ary_Arab>", "<2zho_Hans>", "<2zho_Hant>", "<2de>", "<2de-AT>", "<bt>", ">>fra<<"]
    found = {
        code: language_symbol(code, tags)
        for code in ("ary", "zho", "zh-TW", "deu", "de-AT", "de-CH", "ar", "fr")
    }
    assert found == {
        "ary": "<2ary_Arab>",
        "zho": "<2zho_Hans>",  # the usual script
        "zh-TW": "<2zho_Hant>",
        "deu": "<2de>",
        "de-AT": "<2de-AT>",
        "de-CH": "<2de>",
        "ar": None,
        "fr": ">>fra<<",
    }


@pytest.mark.parametrize("code", ["ary", "br", "kr", "uk", "zzz", "ar-MA", "eng_Latn", "EN"])
def test_a_language_may_have_a_rare_code_or_none_of_a_standard(code: str) -> None:
    check_languages({"source_language": code})


def test_wrong_codes_of_languages_are_all_told() -> None:
    """But loaded: a model that was trained with them can be used."""
    values = {**RUN, "source_language": "jp", "target_language": "ar_MA"}
    values["data"] = {**DATA, "valid": {"demo": "valid", "source_language": "CZ-cz"}}
    with pytest.raises(ConfigError) as caught:
        check_languages(RunConfig.model_validate(values).language_codes)
    lines = caught.value.problem.splitlines()
    expected = [
        "source_language jp ja",
        "target_language ar_MA ar",
        "data.valid.source_language CZ cs",
    ]
    for names, line in zip(expected, lines, strict=True):
        assert set(names.split()) <= set(re.findall(r"[\w.]*\w", line))


def test_a_batch_of_sentences_needs_no_room_for_tokens() -> None:
    RunConfig.model_validate({**RUN, "batch": {"max_tokens": None, "max_sentences": 1}})


def test_a_vocabulary_has_one_size_or_one_for_each_side() -> None:
    assert TokenizerConfig().vocab_sizes == (8000, 8000)
    two = TokenizerConfig.model_validate({"joint": False, "vocab_size": SIZES})
    assert two.vocab_sizes == (400, 300)


def test_biases_are_in_all_places_in_none_or_in_those_that_are_named() -> None:
    def places(bias: Any) -> list[bool]:
        config = ModelConfig(bias=bias)
        return [config.has_bias(name) for name in ("attention", "feed-forward", "norm")]

    assert (places(True), places(False), places([])) == ([True] * 3, [False] * 3, [False] * 3)
    assert places(["norm", "feed-forward"]) == [False, True, True]


def test_a_filter_is_an_action_or_an_action_and_a_limit() -> None:
    given = {"script": "drop", "url": {"limit": 0.1}, "scores": {"action": "off", "limit": 2}}
    filters = FilterConfig.model_validate(given)
    rules = [filters.rule(name) for name in ("script", "url", "scores", "lexical", "ratio")]
    assert [each.action for each in rules] == ["drop", "report", "off", "report", "drop"]
    assert [each.limit for each in rules] == [0.5, 0.1, 2, -3.5, None]
    actions = {"numbers": "drop", "markup": "off", "swapped": "report"}
    plain = FilterConfig.model_validate(actions)
    assert {name: plain.rule(name).action for name in actions} == actions
    assert FilterConfig().rule("scores").bound == -inf  # which no score is below
    assert FilterConfig.model_validate(filters.model_dump()) == filters


@pytest.mark.parametrize("preset", MODEL_PRESETS)
def test_every_preset_is_a_valid_model(preset: str) -> None:
    model = ModelConfig.model_validate({"preset": preset})
    for name, value in MODEL_PRESETS[preset].items():
        assert getattr(model, name) == value


def test_the_big_preset_is_the_published_one() -> None:
    # Vaswani et al. (2017), table 3, last row.
    big = ModelConfig(preset="transformer-big")
    assert (big.encoder_layers, big.model_dim, big.ff_dim, big.num_heads, big.dropout) == (
        6, 1024, 4096, 16, 0.3,
    )  # fmt: skip


def test_plain_decoding_keeps_limits_and_rules_only() -> None:
    rules = {"no_repeat_ngram_size": 3, "length_penalty": 0.5, "max_length_offset": 7}
    sampling = DecodingConfig.model_validate({
        "sampling": True, "n_best": 9, "top_p": 0.5, "temperature": 2.0, **rules,
    })  # fmt: skip
    assert sampling.plain(2) == DecodingConfig.model_validate({"beam_size": 2, **rules})
    groups = DecodingConfig(diverse_beam_groups=5, n_best=5, patience=3.0)
    assert groups.plain(1) == DecodingConfig(beam_size=1)


def test_a_name_that_is_not_built_in_is_looked_up_in_its_registry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Toy(Section):
        name: Annotated[str, Registered("toy")] = "first"

    homes = {"first": "nowhere:FIRST", "second": "nowhere:SECOND"}
    monkeypatch.setitem(nmt.registry._BUILT_IN, "toy", homes)
    with pytest.raises(ValidationError, match="one of "):
        Toy(name="third")
    toys = Registry[object]("toy")
    toys.register("third", object())
    for name in ("second", "third", "third:argument"):
        assert Toy(name=name).name == name
    for name in ("fourth", "fourth:second"):
        with pytest.raises(ValidationError, match="one of "):
            Toy(name=name)
    assert Toy.model_json_schema()["properties"]["name"]["examples"] == ["first", "second"]


@pytest.mark.parametrize(("kind", "home", "field"), [
    ("search", "nmt.search.selector:SELECTORS", "decoding.search"),
    ("position scheme", "nmt.model.positions:POSITIONS", "model.positions"),
    ("schedule", "nmt.training.schedule:SCHEDULES", "training.schedule.shape"),
    ("optimizer", "nmt.training.optimizer:OPTIMIZERS", "training.optimizer.kind"),
    ("loss", "nmt.training.losses:LOSSES", "training.loss"),
    ("metric", "nmt.metrics.metric:METRICS", "training.validation.metric"),
])  # fmt: skip
def test_the_listed_names_are_those_of_the_registry(kind: str, home: str, field: str) -> None:
    load_attribute(home)
    key = find_key(field.split("."))
    assert key is not None
    assert {*key.allowed.split(", ")} - {"auto", "loss", "command", "or null"} <= set(
        names_of(kind)
    )


def test_a_mark_on_a_field_says_what_cannot_change() -> None:
    class Inner(Section):
        free: Annotated[int, Binds()] = 1
        run: Annotated[int, Binds("run")] = 2
        plain: int = 3

    class Outer(Section):
        whole: Annotated[Inner, Binds("data")] = Inner()
        parts: Annotated[tuple[Inner, ...], Binds("data", "budget")] = (Inner(), Inner(run=5))
        alone: Inner = Inner()
        path: Annotated[Path, Binds("run")] = Path("a")
        free: int = 4

    assert bound_values(Outer(), "data") == {"whole": {"plain": 3}, "parts": [{"plain": 3}] * 2}
    assert bound_values(Outer(), "run") == {
        "whole": {"run": 2}, "parts": [{"run": 2}, {"run": 5}], "alone": {"run": 2}, "path": "a",
    }  # fmt: skip
    assert bound_values(Outer(), "budget")["parts"][1] == {"plain": 3}
    assert bound_values(Inner(), "data") == {}


def test_what_binds_the_prepared_data_and_a_run() -> None:
    config = RunConfig.model_validate(RUN)
    data, run = bound_values(config, "data"), bound_values(config, "run")
    assert data.keys() == {"source_language", "target_language", "data", "tokenizer", "filters"}
    keys = {"train", "valid", "language_tags", "replay", "placeholders", "glossary"}
    assert data["data"].keys() == keys
    assert not {"weight", "noise"} & data["data"]["train"][0].keys()
    assert run.keys() == {
        "source_language", "target_language", "data", "batch", "model", "training",
    }  # fmt: skip
    assert run["data"]["train"] == [{"weight": 1.0, "noise": NoiseConfig().model_dump()}]
    assert run["training"].keys() == {
        "seed", "precision", "label_smoothing", "loss", "r_drop_weight", "optimizer", "schedule",
        "ema_decay", "freeze", "validation", "init_differences", "lora",
    }  # fmt: skip
    assert run["training"]["validation"] == {"metric": None, "choose_by": "mean"}
    assert bound_values(config, "budget") == {
        "training": {"max_steps": 1, "max_minutes": None, "max_epochs": None}
    }


def unmarked_fields(section: type[Section], path: str = "") -> Iterator[str]:
    """Yield the keys that have no mark, and are in no section with a mark."""
    for name, field in section.model_fields.items():
        if mark_of(field) is None:
            kind = field.annotation
            if isinstance(kind, type) and issubclass(kind, Section):
                yield from unmarked_fields(kind, f"{path}{name}.")
            else:
                yield f"{path}{name}"


def test_every_key_says_what_it_binds() -> None:
    class Toy(Section):
        whole: Free[DecodingConfig] = DecodingConfig()
        parts: ValidationConfig = ValidationConfig()
        plain: int = 3

    assert list(unmarked_fields(Toy)) == ["plain"]
    assert list(unmarked_fields(RunConfig)) == []


def test_two_vocabularies_choose_embeddings_that_allow_them() -> None:
    values = {**RUN, "tokenizer": {"joint": False}}
    assert RunConfig.model_validate(values).model.embeddings == "decoder-tied"
    values["model"] = {"preset": "tiny"}
    assert RunConfig.model_validate(values).model.embeddings == "decoder-tied"
    values["model"] = {"embeddings": "separate"}
    assert RunConfig.model_validate(values).model.embeddings == "separate"


def test_variants_of_a_language_can_be_translated_but_not_a_language_into_itself() -> None:
    for source, target in (("sr", "sr-Latn"), ("zh-CN", "zh-TW"), ("pt", "pt-BR")):
        RunConfig.model_validate({**RUN, "source_language": source, "target_language": target})
    with pytest.raises(ValidationError, match=r"are both deu; .* such as deu-x-simple"):
        RunConfig.model_validate({**RUN, "source_language": "deu", "target_language": "de"})
