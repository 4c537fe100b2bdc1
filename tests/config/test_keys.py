from __future__ import annotations

import pytest

from nmt.config.keys import all_keys, describe_schema, find_key, nearest_key


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("training.lr", "training.schedule.peak_lr"),
        ("learning_rate", "training.schedule.peak_lr"),
        ("training.schedule.warm_up_steps", "training.schedule.warmup_steps"),
        ("trainig", "training"),
        ("tokenizer.vocab", "tokenizer.vocab_size"),
        ("sourc_language", "source_language"),
        ("model.layers", "model.encoder_layers"),
        ("data.validation", "data.valid"),
        ("validation.metric", "training.validation.metric"),
        ("data.valid.src", "data.valid.source"),
        ("data.test.news.targe", "data.test.news.target"),
        ("batch_size", "batch.max_tokens"),
        ("training.epochs", "training.max_epochs"),
        ("beam_size", "decoding.beam_size"),
        ("seed", "training.seed"),
        ("xyzzy", None),
    ],
)
def test_the_nearest_key_is_found_in_the_whole_tree(wrong: str, meant: str | None) -> None:
    assert nearest_key(wrong.split(".")) == meant


def test_every_key_is_its_own_nearest_and_says_what_it_does_and_allows() -> None:
    for key in all_keys():
        assert key.description, key.path
        assert key.allowed, key.path
        if "*" not in key.path:
            assert nearest_key(key.path) == ".".join(key.path)


def test_a_key_is_found_below_positions_and_names() -> None:
    found = find_key(("data", "train", 3, "weight"))

    assert found is not None
    assert found.allowed == "a number, above 0, at most 100"
    assert find_key(("data", "valid", "weigth")) is None


def test_a_schema_is_put_in_words() -> None:
    assert describe_schema({"enum": ["a", "b"]}) == "a, b"
    assert describe_schema({"type": "number", "exclusiveMinimum": 0}) == "a number, above 0"
    assert (
        describe_schema({"anyOf": [{"type": "string", "format": "path"}, {"type": "null"}]})
        == "a path, or null"
    )
